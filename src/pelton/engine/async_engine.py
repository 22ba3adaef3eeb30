"""`AsyncEngine`: the engine for many callers at once. One thread computes, any number of event loops read.

    async with AsyncEngine("model.gguf") as engine:
        async for output in engine.generate("The sea is", SamplingParams(max_tokens=16)):
            print(output.text_delta, end="", flush=True)

It puts the parts together; the loop itself is `engine_thread.py`. It must not know HTTP.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from pelton.core.config import EngineConfig
from pelton.core.embedding import EmbeddingParams
from pelton.core.errors import EngineDeadError, InvalidParameterError
from pelton.core.load_facts import LoadFacts
from pelton.core.model_config import ModelConfig
from pelton.core.request_options import RequestOptions
from pelton.core.sampling_params import SamplingParams
from pelton.core.trace import RequestTrace
from pelton.engine.core import EngineCore
from pelton.engine.embedder import Embedder, EmbeddingResult
from pelton.engine.engine_thread import EngineThread
from pelton.engine.kv_picture import BlockUse, list_runs
from pelton.engine.output_stream import OutputStream
from pelton.engine.parts import EngineParts, get_context_length, load_parts, make_config, make_load_facts
from pelton.engine.prepare import PreparedRequest, RequestPreparer
from pelton.engine.prompts import Message, Prompt, PromptEncoder
from pelton.engine.requests import RequestTable
from pelton.engine.stats import EngineStats
from pelton.engine.trace_log import TraceLog
from pelton.engine.trace_recorder import TraceRecorder
from pelton.text.chat_template import ChatTemplate
from pelton.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pelton.engine.prefix_cache_store import PrefixCacheStore
    from pelton.loading.pull import ProgressCallback

T = TypeVar("T")

# Prompts that are tokenised or rendered at the same time; more would take cores from the model.
_NUM_ENCODING_THREADS = 2


class AsyncEngine:
    """A model that generates for many callers at once. Close it, or use it in `async with`.

    `model`, `config`, `progress` and options are those of `LLM`. Nothing is loaded before `start`, which `async with`
    and the first request call. All methods may be called from any event loop and thread.
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
        self._set_up(config, partial(load_parts, model, config, progress))

    @classmethod
    def from_parts(cls, parts: EngineParts, config: EngineConfig | None = None) -> AsyncEngine:
        """Make an engine from parts that are loaded already; it closes their runner at the end."""
        engine = cls.__new__(cls)
        engine._set_up(EngineConfig() if config is None else config, lambda: parts)
        return engine

    def _set_up(self, config: EngineConfig, load: Callable[[], EngineParts]) -> None:
        self.config = config
        self._load = load
        self._start_lock = threading.Lock()
        self._loaded: _LoadedEngine | None = None
        self._is_closed = False
        self._executor = ThreadPoolExecutor(_NUM_ENCODING_THREADS, thread_name_prefix="pelton-encode")

    async def start(self) -> AsyncEngine:
        """Load the model and start the engine thread, unless that has been done; return self.

        Raises what `LLM` raises, and `EngineDeadError` after `close`.
        """
        await self._get_loaded()
        return self

    async def close(self, *, drain: bool = False) -> None:
        """Give memory and threads back; may be called again.

        Requests that are not finished are finished first if `drain`, else they end with `EngineDeadError`. New ones are
        refused from now on.
        """
        await asyncio.get_running_loop().run_in_executor(None, lambda: self.close_now(drain=drain))

    def close_now(self, *, drain: bool = False) -> None:
        """What `close` does, for callers outside an event loop; blocks until it is done."""
        self._is_closed = True
        with self._start_lock:  # a start that is under way comes to its end first
            loaded = self._loaded
        if loaded is not None:
            loaded.close(drain=drain)
        self._executor.shutdown(wait=False)

    async def __aenter__(self) -> AsyncEngine:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded and requests are taken."""
        return self._loaded is not None and self._loaded.thread.is_alive

    @property
    def model_config(self) -> ModelConfig:
        """Shape of the model. `EngineDeadError` before `start`, as for all properties of the model."""
        return self._require_loaded().parts.model_config

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model; safe to use from any thread."""
        return self._require_loaded().parts.tokenizer

    @property
    def isa(self) -> str:
        """Instruction set of the kernels."""
        return self._require_loaded().parts.runner.isa

    @property
    def chat_template(self) -> ChatTemplate | None:
        """Chat template of the model; None if it has none."""
        return self._require_loaded().parts.chat_template

    @property
    def model_path(self) -> Path | None:
        """File of the weights, if there is one."""
        return self._require_loaded().parts.model_path

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and output together."""
        return self._require_loaded().context_length

    @property
    def load_ms(self) -> float:
        """Milliseconds that loading took, without the download."""
        return self._require_loaded().parts.load_ms

    @property
    def traces(self) -> TraceLog:
        """What requests lived through, step by step."""
        return self._require_loaded().traces

    @property
    def load_facts(self) -> LoadFacts:
        """What the loaded model takes: memory, KV cache, threads."""
        loaded = self._require_loaded()
        return make_load_facts(loaded.parts, self.config, loaded.context_length)

    def stats(self) -> EngineStats:
        """Figures as of the last step, or the beginning of one that took up requests; zeros before `start`."""
        return EngineStats() if self._loaded is None else self._loaded.thread.stats

    def list_kv_runs(self, trace: RequestTrace | None = None) -> list[tuple[BlockUse, int]]:
        """What the KV blocks are used for, run-length coded in their order; those of `trace` are told apart."""
        scheduler = self._require_loaded().core.scheduler
        return list_runs(scheduler.block_pool, () if trace is None else scheduler.list_block_ids(trace.numbers))

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, options: RequestOptions | None = None
    ) -> OutputStream:
        """Generate for a text or token ids: an asynchronous iterator of outputs, `OutputStream`.

        Everything is checked by the first `__anext__`, or by `await stream.start()`.
        """

        def prepare(preparer: RequestPreparer) -> PreparedRequest:
            return preparer.prepare(prompt, params, options)

        return OutputStream(lambda: self._prepare(prepare))

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> OutputStream:
        """Answer a conversation through the model's chat template, which is given `tools` and `variables`.

        Returns what `generate` returns.
        """

        def prepare(preparer: RequestPreparer) -> PreparedRequest:
            return preparer.prepare_chat(messages, params, options, tools=tools, variables=variables)

        return OutputStream(lambda: self._prepare(prepare))

    async def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt as `generate` encodes it. Raises as `generate` does."""
        loaded = await self._get_loaded()
        return (await self._run(lambda: loaded.preparer.encoder.encode(text, "prompt"))).token_ids

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a conversation as `chat` encodes it. Raises as `chat` does."""
        encoder = (await self._get_loaded()).preparer.encoder
        return (
            await self._run(lambda: encoder.encode_chat(messages, "messages", tools=tools, variables=variables))
        ).token_ids

    async def decode(self, token_ids: Iterable[int]) -> str:
        """Text of token ids; control tokens add nothing. Raises `InvalidParameterError` for an unknown id."""
        tokenizer = (await self._get_loaded()).parts.tokenizer
        return await self._run(lambda: tokenizer.decode(token_ids))

    async def embed(
        self,
        prompts: Sequence[Prompt],
        params: EmbeddingParams | None = None,
        *,
        name: str = "prompts",
        max_prompt_tokens: int | None = None,
    ) -> EmbeddingResult:
        """Vectors of texts or token ids, in their order; the same bits whatever runs beside them.

        They are computed in chunks between the steps of requests. Errors call the list `name`. Raises what `generate`
        raises, `InvalidParameterError` also for an empty list and for a prompt of more than `max_prompt_tokens` tokens.
        Cancelling drops what is not computed.
        """
        loaded = await self._get_loaded()
        encoder = loaded.preparer.encoder
        if not prompts:
            raise InvalidParameterError(name, list(prompts), "at least one text or list of token ids")
        names = [name] if len(prompts) == 1 else [f"{name}[{i}]" for i in range(len(prompts))]

        def encode() -> list[tuple[int, ...]]:
            texts = [encoder.encode(prompt, each).token_ids for prompt, each in zip(prompts, names, strict=True)]
            for text, each in zip(texts, names, strict=True):
                if max_prompt_tokens is not None and len(text) > max_prompt_tokens:
                    raise InvalidParameterError(each, len(text), f"at most {max_prompt_tokens}", "number of tokens")
            return texts

        return await loaded.embedder.embed(await self._run(encode), params or EmbeddingParams())

    async def save_prefix_cache(self, path: str | Path) -> int:
        """What `LLM.save_prefix_cache` does; no step is computed meanwhile."""
        loaded = await self._get_loaded()
        return await self._run_between_steps(loaded, lambda: loaded.get_store().save(Path(path)))

    async def load_prefix_cache(self, path: str | Path) -> int:
        """What `LLM.load_prefix_cache` does; no step is computed meanwhile."""
        loaded = await self._get_loaded()
        return await self._run_between_steps(loaded, lambda: loaded.get_store().load(Path(path)))

    async def _run_between_steps(self, loaded: _LoadedEngine, work: Callable[[], T]) -> T:
        """Have the engine thread do `work`; what it raises is raised here and harms nobody else."""
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(work())
            # A boundary: the caller gets it, the engine goes on.
            except Exception as error:
                future.set_exception(error)

        loaded.thread.call(call, future.cancel)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if loaded.thread.is_alive:
                raise
            raise EngineDeadError("this engine was closed, or stopped, before that was done") from None

    async def _prepare(
        self, prepare: Callable[[RequestPreparer], PreparedRequest]
    ) -> tuple[PreparedRequest, EngineThread]:
        loaded = await self._get_loaded()
        # Before the work of encoding: an overloaded engine must be cheap to ask.
        loaded.thread.check_room(1)
        return await self._run(lambda: prepare(loaded.preparer)), loaded.thread

    async def _run(self, work: Callable[[], T]) -> T:
        """Do `work` in a thread of its own, so that a long text does not hold up the event loop."""
        try:
            future = self._executor.submit(work)
        except RuntimeError as error:
            raise EngineDeadError("this engine is closed; make a new one") from error
        return await asyncio.wrap_future(future)

    async def _get_loaded(self) -> _LoadedEngine:
        if self._loaded is None or self._is_closed:
            await asyncio.get_running_loop().run_in_executor(None, self._start_now)
        return self._require_loaded()

    def _start_now(self) -> None:
        with self._start_lock:
            if self._is_closed:
                raise EngineDeadError("this engine is closed; make a new one")
            if self._loaded is None:
                self._loaded = _LoadedEngine(self._load(), self.config)
                # Also when nobody calls close: the thread must not outlive the engine, nor run while Python ends.
                weakref.finalize(self, self._loaded.close)

    def _require_loaded(self) -> _LoadedEngine:
        if self._loaded is None:
            raise EngineDeadError("this engine has not been started; await its start() first")
        return self._loaded


class _LoadedEngine:
    """A loaded model with its running thread."""

    def __init__(self, parts: EngineParts, config: EngineConfig) -> None:
        self.parts = parts
        try:
            runner = parts.runner
            self.context_length = get_context_length(parts.model_config, config, runner.num_blocks * runner.block_size)
            # A file may name more tokens than its matrices have rows, or the reverse.
            vocab_size = min(parts.tokenizer.vocab_size, parts.model_config.vocab_size)
            self.preparer = RequestPreparer(
                PromptEncoder(parts.tokenizer, parts.chat_template, vocab_size, self.context_length)
            )
            self.core = EngineCore(runner, config)
            self.traces = TraceLog(config.num_kept_traces)
            table = RequestTable(
                self.core,
                parts.tokenizer,
                context_length=self.context_length,
                load_ms=parts.load_ms,
                recorder=TraceRecorder(self.traces, is_fair=config.scheduling_policy == "fair"),
            )
            self.thread = EngineThread(table, config)
            self.embedder = Embedder(runner, self.thread, config, lambda: table.has_unfinished)
            self.thread.start()
        except BaseException:
            parts.runner.close()
            raise
        self._config = config
        self._vocab_size = vocab_size
        self._store: PrefixCacheStore | None = None
        self._close_lock = threading.Lock()
        self._is_runner_closed = False

    def get_store(self) -> PrefixCacheStore:
        """What saves and loads the prefix cache; for the engine thread only."""
        if self._store is None:
            from pelton.engine.prefix_cache_store import PrefixCacheStore

            dtype = self._config.kv_cache_dtype
            self._store = PrefixCacheStore(self.core, self.parts.model_path, dtype, self._vocab_size)
        return self._store

    def close(self, *, drain: bool = False) -> None:
        """End the thread, then give the runner's memory back."""
        self.thread.close(drain=drain)
        with self._close_lock:
            if not self._is_runner_closed:
                self._is_runner_closed = True
                self.parts.runner.close()
