"""`Embedder`: embeddings of an `AsyncEngine`, computed by its thread between two steps.

Callers wait in their event loops; the queue of texts belongs to the engine thread. Entry point: `Embedder.embed`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pelton.core.config import EngineConfig
from pelton.core.embedding import EmbeddingParams
from pelton.core.errors import EngineDeadError
from pelton.engine.admission import Admission
from pelton.engine.core import Runner
from pelton.engine.embedding import EmbeddingQueue, EmbeddingRequest
from pelton.engine.output_queue import Waiter, wake_all

# Tokens computed at once beside running requests, whose next tokens wait meanwhile, and in an idle engine, where a
# request that arrives waits. More would be hardly faster (docs/log.md, embeddings beside a stream).
_BUSY_CHUNK = 16
_IDLE_CHUNK = 128


class BetweenSteps(Protocol):
    """What an embedder needs of `EngineThread`: work done between two steps, `cancel` called if it never is."""

    def call(self, work: Callable[[], None], cancel: Callable[[], object]) -> None: ...
    def call_again(self, work: Callable[[], None], cancel: Callable[[], object]) -> None: ...


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    """Vectors [hidden] f32 in the order of the texts, tokens of all texts, and milliseconds.

    `queue_ms` is from the arrival to the first chunk, `compute_ms` what the chunks with this request's tokens took.
    """

    vectors: tuple[npt.NDArray[np.float32], ...]
    num_tokens: int
    queue_ms: float
    compute_ms: float


@dataclass(slots=True, eq=False)
class _Call:
    """One waiting caller."""

    request: EmbeddingRequest
    waiter: Waiter
    arrival_s: float = field(default_factory=time.perf_counter)
    error: BaseException | None = None


class Embedder:
    """Embeds texts for many callers. `is_busy` says whether requests run beside it."""

    def __init__(self, runner: Runner, thread: BetweenSteps, config: EngineConfig, is_busy: Callable[[], bool]) -> None:
        self._thread = thread
        self._is_busy = is_busy
        self._lock = threading.Lock()
        # All below is guarded by the lock.
        self._admission = Admission(config.max_queued_requests, config.max_queued_tokens)
        self._calls: dict[EmbeddingRequest, _Call] = {}
        self._arrived: list[EmbeddingRequest] = []
        self._is_scheduled = False
        # The queue belongs to the engine thread.
        self._queue = EmbeddingQueue(runner)

    async def embed(self, texts: Sequence[tuple[int, ...]], params: EmbeddingParams) -> EmbeddingResult:
        """Wait for the vectors of `texts`, token ids, none empty and none longer than the context.

        Raises `EngineOverloadedError`, `EngineDeadError`, and what the runner raises. Cancelling drops the request.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        request = EmbeddingRequest(texts, params)
        call = _Call(request, Waiter(loop, future))
        self._submit(call)
        try:
            await future
        except asyncio.CancelledError:
            request.is_aborted = True
            with self._lock:
                self._calls.pop(request, None)
            raise
        if call.error is not None:
            raise call.error
        assert request.start_s is not None, "a request with vectors has been computed"
        return EmbeddingResult(
            vectors=tuple(request.vectors[index] for index in range(len(texts))),
            num_tokens=request.num_tokens,
            queue_ms=(request.start_s - call.arrival_s) * 1e3,
            compute_ms=request.compute_s * 1e3,
        )

    def _submit(self, call: _Call) -> None:
        with self._lock:
            self._admission.check(
                call.arrival_s,
                num_queued_requests=len(self._calls),
                num_queued_tokens=sum(request.num_tokens for request in self._calls),
                num_new_tokens=call.request.num_tokens,
            )
            if not self._is_scheduled:
                self._thread.call(self._step, self._cancel)
                self._is_scheduled = True
            self._calls[call.request] = call
            self._arrived.append(call.request)

    def _step(self) -> None:
        """Compute one chunk, in the engine thread, and come again if there is more."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for request in arrived:
            self._queue.add(request)
        try:
            finished = self._queue.step(_BUSY_CHUNK if self._is_busy() else _IDLE_CHUNK)
        except Exception as error:  # the boundary of these requests: the engine and its other requests go on
            self._queue.clear()
            self._fail_all(error)
            return
        self._finish(finished)
        with self._lock:
            self._is_scheduled = self._queue.has_work or bool(self._arrived)
            is_over = not self._is_scheduled
        if is_over:
            return
        try:
            self._thread.call_again(self._step, self._cancel)
        except EngineDeadError as error:
            self._fail_all(error)

    def _finish(self, requests: Sequence[EmbeddingRequest]) -> None:
        with self._lock:
            calls = [call for request in requests if (call := self._calls.pop(request, None)) is not None]
            if calls:
                num_tokens = sum(call.request.num_tokens for call in calls)
                self._admission.note_started(time.perf_counter(), len(calls), num_tokens)
        wake_all([call.waiter for call in calls])

    def _cancel(self) -> None:
        self._fail_all(EngineDeadError("this engine was closed, or stopped, before the texts were embedded"))

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            calls, self._calls, self._arrived = list(self._calls.values()), {}, []
            self._is_scheduled = False
        for call in calls:
            call.error = error
        wake_all([call.waiter for call in calls])
