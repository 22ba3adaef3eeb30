"""A mixed load for `plot_timeline.py`, and what each step of an engine did with it.

Two tenants meet in a small KV cache: chats that share the beginning of their prompts, a long document, a question that
comes while the document is computed, and a prompt with two choices. Nothing here draws. Start at `record`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pelton.core.request import Request
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import ScheduledRequest, StepPlan
from pelton.engine.core import EngineCore


@dataclass(frozen=True)
class Wish:
    """A request of the load: `prompt` lists slices of the text, `arrival` is the step before which it comes."""

    name: str
    tenant: str
    arrival: int
    prompt: tuple[slice, ...]
    max_tokens: int
    leader: str | None = None


_SYSTEM = slice(0, 40)
LOAD = (
    Wish("chat", "ann", 0, (_SYSTEM, slice(100, 116)), 46),
    Wish("second chat", "ann", 4, (_SYSTEM, slice(200, 218)), 40),
    Wish("document", "ann", 9, (slice(400, 880),), 8),
    Wish("question", "bob", 13, (slice(1000, 1044),), 24),
    Wish("choice 1", "bob", 40, (slice(1100, 1124),), 8),
    Wish("choice 2", "bob", 40, (slice(1100, 1124),), 8, leader="choice 1"),
)
# Token slots of the KV cache: so few that the document has to make room once.
NUM_SLOTS = 44 * 16
NUM_TEXT_TOKENS = 1124


@dataclass(frozen=True)
class Cell:
    """What a step did for a request: it computes `num_tokens`, after `num_cached` that it found in the cache.

    `kind`: prefill, again (computed before a preemption already), decode, paused (it runs, and this step has nothing
    for it) or waiting.
    """

    kind: str
    num_tokens: int = 0
    num_cached: int = 0


@dataclass(frozen=True)
class Step:
    """A step that took `duration_s`, and its cells by the request's name."""

    duration_s: float
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Recording:
    """All steps of a load."""

    wishes: tuple[Wish, ...]
    steps: tuple[Step, ...]


def make_request(wish: Wish, text: Sequence[int], leader: Request | None) -> Request:
    """The request of a wish; it takes no notice of end tokens, so that every recording has the same tokens."""
    prompt = tuple(token_id for part in wish.prompt for token_id in text[part])
    params = SamplingParams(max_tokens=wish.max_tokens)
    return Request(wish.name, prompt, params, wish.max_tokens, 1, frozenset(), 0.0, tenant=wish.tenant, leader=leader)


def record(
    core: EngineCore,
    text: Sequence[int],
    wishes: Sequence[Wish] = LOAD,
    clock: Callable[[], float] = time.perf_counter,
) -> Recording:
    """Run the load until nothing is left; `text` has the token ids that prompts are cut from."""
    recorder = _Recorder()
    requests: dict[str, Request] = {}
    steps: list[Step] = []
    plans: list[StepPlan] = []
    while core.num_unfinished_requests or len(requests) < len(wishes):
        for wish in wishes:
            if wish.name not in requests and wish.arrival <= len(steps):
                leader = None if wish.leader is None else requests[wish.leader]
                requests[wish.name] = make_request(wish, text, leader)
                core.add_request(requests[wish.name])
        unfinished = [request for request in requests.values() if not request.status.is_finished]
        start_s = clock()
        core.step(on_planned=plans.append)
        duration_s = clock() - start_s
        steps.append(Step(duration_s, recorder.describe(plans[-1], unfinished)))
    return Recording(tuple(wishes), tuple(steps))


class _Recorder:
    """Remembers how far each request was computed, to tell what is new from what is computed again."""

    def __init__(self) -> None:
        self._reached: dict[str, int] = {}
        # Where the request's next token is if nothing happens to it meanwhile.
        self._next: dict[str, int] = {}

    def describe(self, plan: StepPlan, unfinished: Sequence[Request]) -> dict[str, Cell]:
        """The cells of a step; `unfinished` are the requests there were before it."""
        items = {item.request.request_id: item for item in plan.scheduled}
        cells: dict[str, Cell] = {}
        for request in unfinished:
            name = request.request_id
            if name in items:
                cells[name] = self._describe_item(items[name])
            elif request.block_table:
                cells[name] = Cell("paused")
            else:
                cells[name] = Cell("waiting")
                self._next[name] = 0
        return cells

    def _describe_item(self, item: ScheduledRequest) -> Cell:
        name, num_tokens = item.request.request_id, len(item.token_ids)
        reached = self._reached.get(name, 0)
        num_cached = item.start - self._next.get(name, 0)
        stop = item.start + num_tokens
        if stop <= reached or (item.start < reached and num_tokens > 1):
            kind = "again"
        elif item.start >= len(item.request.prompt_token_ids):
            kind = "decode"
        else:
            kind = "prefill"
        self._reached[name] = max(stop, reached)
        self._next[name] = stop
        return Cell(kind, num_tokens, num_cached)
