"""What a request lived through, step by step: plain data that the engine writes and explanations read.

A step is recorded once, whoever took part in it (`StepTrace`); a request (`RequestTrace`) keeps the steps it was in and
the spans in which it waited. Nothing here holds text or token ids of a prompt. All times are seconds of
`time.perf_counter()`. Start at `RequestTrace`.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pelton.core.cache_miss import CacheMiss


class WaitCause(enum.Enum):
    """Why a request did not advance.

    STEP: it came while a step was under way, or others were being taken over. BUDGET: the tokens of the step went to
    others. TENANT_SHARE: they went to other tenants because its own tenant had its share. MEMORY: no KV blocks were
    free. SEATS: `max_num_seqs` requests ran already. PREEMPTED: it had to give its blocks back and waited for new ones.
    """

    STEP = "step"
    BUDGET = "budget"
    TENANT_SHARE = "tenant_share"
    MEMORY = "memory"
    SEATS = "seats"
    PREEMPTED = "preempted"


class Wait(NamedTuple):
    """A span in which a request did not advance for one reason."""

    cause: WaitCause
    start_s: float
    end_s: float


class Share(NamedTuple):
    """What one sequence computed in a step: `num_tokens` tokens after `start` stored ones; `number` names it."""

    number: int
    start: int
    num_tokens: int


class Send(NamedTuple):
    """A piece of the answer: when its reader took it from the engine, and when the reader asked for the next one."""

    taken_s: float
    done_s: float


@dataclass(slots=True, eq=False)
class StepTrace:
    """One step of the engine.

    It was planned from `start_s` on, in `plan_s` seconds; `model_s` and `sample_s` are the seconds of the model and of
    sampling, `text_s` those of detokenising and handing out, up to `end_s`. `num_decodes` sequences got their next
    token and `num_prompt_tokens` other tokens were computed. `decode_alone_s` is what a step of the decodes alone
    takes, as far as it is known. `held_up_by` says why a waiting request was not admitted (None: nobody waited, or all
    were admitted). `num_waiting` sequences waited after planning; `num_used_blocks` KV blocks were owned by running
    ones. `flat_shares` holds number, start and num_tokens of each sequence, one after the other; see `shares`.
    """

    number: int
    start_s: float
    end_s: float
    plan_s: float
    model_s: float
    sample_s: float
    text_s: float
    num_decodes: int
    num_prompt_tokens: int
    decode_alone_s: float | None
    held_up_by: WaitCause | None
    num_waiting: int
    num_used_blocks: int
    flat_shares: array[int]

    @property
    def shares(self) -> Iterator[Share]:
        """What each sequence computed, in batch order."""
        flat = self.flat_shares
        return (Share(*flat[i : i + 3]) for i in range(0, len(flat), 3))

    @property
    def num_sequences(self) -> int:
        """Sequences in the step."""
        return len(self.flat_shares) // 3

    @property
    def model_start_s(self) -> float:
        """When the model began."""
        return self.start_s + self.plan_s

    @property
    def decode_s(self) -> float:
        """Seconds of the model that went into decodes: what they take alone, else their share of the tokens."""
        if not self.num_prompt_tokens:
            return self.model_s
        if self.decode_alone_s is not None:
            return min(self.decode_alone_s, self.model_s)
        return self.model_s * self.num_decodes / (self.num_decodes + self.num_prompt_tokens)

    @property
    def stall_s(self) -> float:
        """Seconds by which prompt tokens made the step longer for those who decode; 0 if that is not known."""
        if not self.num_prompt_tokens or not self.num_decodes or self.decode_alone_s is None:
            return 0.0
        return max(self.model_s - self.decode_alone_s, 0.0)

    def find_share(self, number: int) -> Share | None:
        """What the sequence `number` computed here; None if it was not in the step."""
        flat = self.flat_shares
        numbers = flat[::3]
        if number not in numbers:
            return None
        position = 3 * numbers.index(number)
        return Share(*flat[position : position + 3])


@dataclass(slots=True, eq=False)
class RequestTrace:
    """One request from arrival to its last token. The engine writes it; others may read it at any time.

    `request_id` is the name that outputs show. `numbers` are its sequences in `StepTrace.flat_shares`, one per choice.
    `arrival_s` is when its text came, `queued_s` when the engine had its token ids (`tokenize_s` of that went into
    tokenising), `end_s` when its last choice ended: None while it is unfinished, as `finish_reason` is. `steps` are
    those it took part in. `waits` are the spans before its first step and after each preemption. `token_times_s` holds
    the times of the tokens of every choice. `preempted_s` says since when it waits for blocks, if it does.
    """

    request_id: str
    tenant: str
    priority: int
    numbers: tuple[int, ...]
    arrival_s: float
    tokenize_s: float
    queued_s: float
    num_prompt_tokens: int
    max_tokens: int
    num_cached_tokens: int = 0
    cache_miss: CacheMiss | None = None
    first_scheduled_s: float | None = None
    end_s: float | None = None
    finish_reason: str | None = None
    num_preemptions: int = 0
    preempted_s: float | None = None
    steps: list[StepTrace] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    token_times_s: list[list[float]] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether its last choice has ended."""
        return self.end_s is not None

    @property
    def first_token_s(self) -> float | None:
        """When its first token came."""
        return min((times[0] for times in self.token_times_s if times), default=None)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all choices."""
        return sum(len(times) for times in self.token_times_s)

    @property
    def state(self) -> str:
        """Where it is: "queued", "prefilling", "decoding", "preempted" or "finished"."""
        if self.is_finished:
            return "finished"
        if self.first_scheduled_s is None:
            return "queued"
        if self.preempted_s is not None:
            return "preempted"
        return "prefilling" if self.first_token_s is None else "decoding"


class LoadSample(NamedTuple):
    """CPU seconds used so far: by this process, and by everybody on the CPUs it may use; counters, so take differences.

    `wait_s` is how long threads of this process were ready to run and had no CPU; None if the system does not say.
    """

    time_s: float
    own_s: float
    busy_s: float
    wait_s: float | None
    num_cpus: int
