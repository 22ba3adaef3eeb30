"""`EngineThread`: the one thread that steps an engine, and what other threads may ask of it.

Other threads only leave messages and count; all engine state belongs to the thread. It must not know how prompts are
encoded. Entry points: `EngineThread.submit` and `EngineThread._run`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pelton.core.config import EngineConfig
from pelton.core.errors import EngineDeadError, PeltonError
from pelton.core.outputs import RequestOutput
from pelton.core.request import RequestStatus
from pelton.engine.admission import Admission
from pelton.engine.output_queue import OutputQueue, Waiter, wake_all
from pelton.engine.prepare import PreparedRequest
from pelton.engine.requests import RequestTable
from pelton.engine.stats import EngineStats

# A step that had nothing to compute (every request waits for something) is followed by a pause of this length.
_EMPTY_STEP_PAUSE_S = 0.001


class _Arrival(NamedTuple):
    key: str
    prepared: PreparedRequest
    queue: OutputQueue
    is_streamed: bool


class _Abort(NamedTuple):
    key: str


class _Call(NamedTuple):
    work: Callable[[], None]
    cancel: Callable[[], object]


class EngineThread:
    """Steps `table` while it has requests and sleeps, using no CPU, while it has none.

    An exception of the model ends the requests that cause it. Any other exception in the loop means that the engine's
    state cannot be trusted: the thread ends, and all calls, waiting and later ones, get `EngineDeadError`.
    """

    def __init__(self, table: RequestTable, config: EngineConfig) -> None:
        self._table = table
        self._condition = threading.Condition()
        # All below is guarded by the condition.
        self._admission = Admission(config.max_queued_requests, config.max_queued_tokens)
        self._inbox: list[_Arrival | _Abort | _Call] = []
        self._num_inbox_requests = 0
        self._num_inbox_tokens = 0
        self._is_closing = False
        self._is_draining = False
        self._death: BaseException | None = None
        # All below belongs to the thread.
        self._queues: dict[str, OutputQueue] = {}
        self._unhandled: deque[_Arrival | _Abort | _Call] = deque()
        self._num_started = (0, 0)
        self._stats = EngineStats()
        self._thread = threading.Thread(target=self._run_guarded, name="pelton-engine", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether new requests are taken."""
        return self._thread.is_alive() and self._death is None and not self._is_closing and not self._is_draining

    @property
    def stats(self) -> EngineStats:
        """Figures as of the last step, or the beginning of one that took up requests."""
        return self._stats

    def check_room(self, num_tokens: int) -> None:
        """Raise `EngineDeadError`, or `EngineOverloadedError` if a prompt of `num_tokens` tokens finds no room."""
        with self._condition:
            self._check(num_tokens)

    def submit(self, prepared: PreparedRequest, queue: OutputQueue, *, is_streamed: bool) -> str:
        """Queue a request, whose outputs go to `queue`; return its key. Raises as `check_room` does."""
        num_tokens = len(prepared.prompt.token_ids)
        with self._condition:
            self._check(num_tokens)
            key = self._table.make_key()
            self._inbox.append(_Arrival(key, prepared, queue, is_streamed))
            self._num_inbox_requests += 1
            self._num_inbox_tokens += num_tokens
            self._condition.notify_all()
        return key

    def abort(self, key: str) -> None:
        """Drop a request before the next step; unknown and finished ones are left alone."""
        with self._condition:
            self._inbox.append(_Abort(key))
            self._condition.notify_all()

    def call(self, work: Callable[[], None], cancel: Callable[[], object]) -> None:
        """Have `work` done by the thread between two steps; what it raises kills the engine.

        `cancel` is called instead if the thread ends before it comes to it. Raises `EngineDeadError`.
        """
        with self._condition:
            self._check_alive()
            self._inbox.append(_Call(work, cancel))
            self._condition.notify_all()

    def call_again(self, work: Callable[[], None], cancel: Callable[[], object]) -> None:
        """As `call`, for work that goes on: a thread that drains does it too."""
        with self._condition:
            if self._is_closing:
                self._check_alive()
            self._inbox.append(_Call(work, cancel))
            self._condition.notify_all()

    def close(self, *, drain: bool = False) -> None:
        """End the thread and wait for it: after all requests if `drain`, else at once, which fails them.

        May be called again, also without `drain` while another thread drains.
        """
        with self._condition:
            if drain:
                self._is_draining = True
            else:
                self._is_closing = True
            self._condition.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise _make_error(self._death)
        if self._is_closing or self._is_draining:
            raise EngineDeadError("this engine is closed; make a new one")

    def _check(self, num_tokens: int) -> None:
        self._check_alive()
        self._admission.check(
            time.perf_counter(),
            num_queued_requests=self._table.num_queued_requests + self._num_inbox_requests,
            num_queued_tokens=self._table.num_queued_tokens + self._num_inbox_tokens,
            num_new_tokens=num_tokens,
        )

    def _run_guarded(self) -> None:
        cause: BaseException | None = None
        try:
            self._run()
        # A boundary: the thread ends here whatever happened, and nobody may wait for it forever.
        except BaseException as error:
            cause = error
        self._fail_all(cause)

    def _run(self) -> None:
        while True:
            messages = self._take_messages()
            if messages is None:
                return
            waiters = self._handle_all(messages)
            if self._table.has_unfinished:
                for key, output in self._table.step(isolates_errors=True, on_taken_up=self._publish_stats):
                    waiter = self._deliver(key, output)
                    if waiter is not None:
                        waiters.append(waiter)
                self._note_started()
            # In this order: who has its result finds figures that contain it.
            self._publish_stats()
            wake_all(waiters)

    def _publish_stats(self) -> None:
        self._stats = self._table.make_stats()

    def _handle_all(self, messages: list[_Arrival | _Abort | _Call]) -> list[Waiter]:
        # A message leaves `_unhandled` when it is done with: nobody may wait for one that was lost with the thread.
        self._unhandled.extend(messages)
        waiters = []
        while self._unhandled:
            waiter = self._handle(self._unhandled[0])
            self._unhandled.popleft()
            if waiter is not None:
                waiters.append(waiter)
        return waiters

    def _take_messages(self) -> list[_Arrival | _Abort | _Call] | None:
        """Wait for something to do; None when the thread must end."""
        with self._condition:
            while not self._inbox and not self._table.has_unfinished and not self._is_closing:
                if self._is_draining:
                    return None
                self._condition.wait()
            if self._is_closing:
                return None
            if not self._inbox and self._table.is_stalled:
                self._condition.wait(_EMPTY_STEP_PAUSE_S)
            messages, self._inbox = self._inbox, []
            return messages

    def _handle(self, message: _Arrival | _Abort | _Call) -> Waiter | None:
        if isinstance(message, _Call):
            message.work()
            return None
        if isinstance(message, _Abort):
            if self._queues.pop(message.key, None) is not None:
                self._table.abort(message.key)
            return None
        try:
            message.queue.trace = self._table.add(message.key, message.prepared, is_streamed=message.is_streamed)
        except PeltonError as error:
            return message.queue.fail(error)
        finally:
            with self._condition:
                self._num_inbox_requests -= 1
                self._num_inbox_tokens -= len(message.prepared.prompt.token_ids)
        self._queues[message.key] = message.queue
        return None

    def _deliver(self, key: str, output: RequestOutput) -> Waiter | None:
        queue = self._queues[key] if output.result is None else self._queues.pop(key)
        return queue.put(output)

    def _note_started(self) -> None:
        started = (self._table.num_started_requests, self._table.num_started_tokens)
        if started != self._num_started:
            num_requests, num_tokens = (new - old for new, old in zip(started, self._num_started, strict=True))
            with self._condition:
                self._admission.note_started(time.perf_counter(), num_requests, num_tokens)
            self._num_started = started

    def _fail_all(self, cause: BaseException | None) -> None:
        """Tell every reader, of running requests and of those that had not reached the engine, that it is over."""
        with self._condition:
            self._death = cause
            self._is_closing = True
            inbox, self._inbox = [*self._unhandled, *self._inbox], []
        queues = [*self._queues.values(), *(message.queue for message in inbox if isinstance(message, _Arrival))]
        self._queues.clear()
        for message in inbox:
            if isinstance(message, _Call):
                message.cancel()
        wake_all([waiter for queue in queues if (waiter := queue.fail(_make_error(cause))) is not None])
        if cause is None:
            self._table.reset()
        else:
            self._table.finish_traces(RequestStatus.FAILED.value)


def _make_error(cause: BaseException | None) -> EngineDeadError:
    if cause is None:
        return EngineDeadError("this engine was closed before the request was finished")
    text = str(cause) if isinstance(cause, PeltonError) else f"{type(cause).__name__}: {cause}"
    error = EngineDeadError(f"the engine stopped: {text}")
    error.__cause__ = cause
    return error
