"""Hand-made traces with round times: milliseconds are written as such, seconds begin at 100."""

from __future__ import annotations

from array import array

from pelton.core.cache_miss import CacheMiss, CacheMissReason
from pelton.core.trace import RequestTrace, Send, StepTrace, Wait, WaitCause

START_S = 100.0


def at(ms: float) -> float:
    """A moment in seconds."""
    return START_S + ms / 1e3


def make_step(
    number: int,
    start_ms: float,
    end_ms: float,
    shares: list[tuple[int, int, int]],
    *,
    num_decodes: int = 0,
    decode_alone_ms: float | None = None,
    held_up_by: WaitCause | None = None,
) -> StepTrace:
    """A step with 1 ms each of planning, sampling and text; `shares` are (number, start, tokens)."""
    num_tokens = sum(share[2] for share in shares)
    return StepTrace(
        number=number,
        start_s=at(start_ms),
        end_s=at(end_ms),
        plan_s=1e-3,
        model_s=(end_ms - start_ms - 3) / 1e3,
        sample_s=1e-3,
        text_s=1e-3,
        num_decodes=num_decodes,
        num_prompt_tokens=num_tokens - num_decodes,
        decode_alone_s=None if decode_alone_ms is None else decode_alone_ms / 1e3,
        held_up_by=held_up_by,
        num_waiting=0,
        num_used_blocks=number,
        flat_shares=array("q", [x for share in shares for x in share]),
    )


def make_trace(**changes: object) -> RequestTrace:
    """A finished request with a prompt of 30 tokens, 10 of them cached, and 3 tokens of output.

    It came at 0 ms, had its ids at 2, waited for a step and a seat, was computed in two chunks beside a neighbour
    (number 1), and decoded in steps 3 and 5; step 4 was the neighbour's alone.
    """
    values: dict[str, object] = {
        "request_id": "r",
        "tenant": "alice",
        "priority": 0,
        "numbers": (2,),
        "arrival_s": at(0),
        "tokenize_s": 2e-3,
        "queued_s": at(5),
        "num_prompt_tokens": 30,
        "max_tokens": 3,
        "num_cached_tokens": 10,
        "cache_miss": CacheMiss(CacheMissReason.DIVERGED, 10),
        "first_scheduled_s": at(20.5),
        "end_s": at(80),
        "finish_reason": "length",
        "steps": [STEPS[i] for i in (0, 1, 2, 4)],
        "waits": [Wait(WaitCause.STEP, at(2), at(5)), Wait(WaitCause.SEATS, at(5), at(20.5))],
        "token_times_s": [[at(43), at(54), at(79)]],
        "sends": [Send(at(44), at(46)), Send(at(55), at(70))],
    }
    return RequestTrace(**(values | changes))  # type: ignore[arg-type]  # values of many types, as in the class


STEPS = (
    make_step(1, 20, 30, [(1, 50, 1), (2, 10, 16)], num_decodes=1),
    make_step(2, 30, 44, [(1, 51, 1), (2, 26, 4), (3, 0, 4)], num_decodes=1, decode_alone_ms=3),
    make_step(3, 44, 55, [(1, 52, 1), (2, 30, 1), (3, 4, 8)], num_decodes=2, decode_alone_ms=4),
    make_step(4, 55, 60, [(1, 53, 1)], num_decodes=1),
    make_step(5, 60, 80, [(1, 54, 1), (2, 31, 1)], num_decodes=2, held_up_by=WaitCause.MEMORY),
)
