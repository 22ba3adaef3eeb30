"""Stories of hand-made traces, against figures worked out by hand."""

from __future__ import annotations

import json

from traces import STEPS, at, make_step, make_trace

from pelton.core.trace import WaitCause
from pelton.insight.request_story import make_row, make_story


def test_the_story_of_a_finished_request() -> None:
    story = make_story(make_trace(), at(500))
    assert story == {
        "request_id": "r",
        "caller": "alice",
        "state": "finished",
        "finish_reason": "length",
        "priority": 0,
        "prompt_tokens": 30,
        "cached_tokens": 10,
        "output_tokens": 3,
        "cache_miss": {"reason": "diverged_at", "position": 10},
        "preemptions": 0,
        "times": {
            "tokenize": 2.0,
            "queue": 18.5,
            "prefill": 22.5,
            "ttft": 43.0,
            "decode": 36.0,
            "total": 80.0,
            "itl": {"mean": 18.0, "p50": 18.0, "p99": 24.86, "max": 25.0},
        },
        "waits": [
            {"cause": "step", "start": 2.0, "end": 5.0},
            {"cause": "seats", "start": 5.0, "end": 20.5},
        ],
        # 7 ms for 17 tokens, one of them another's; then 11 ms, 3 for the decode, 4 of 8 for the third request.
        "prefill": [
            {"step": 1, "start": 20.0, "end": 30.0, "tokens": 16, "others_tokens": 1, "lost": round(7 / 17, 3)},
            {"step": 2, "start": 30.0, "end": 44.0, "tokens": 4, "others_tokens": 5, "lost": 7.0},
        ],
        # The second one came after 1 ms outside its step, whose 8 ms were 4 longer than those of two decodes.
        "decode": [
            {"step": 3, "start": 44.0, "end": 55.0, "choice": 0, "gap": 11.0, "batch": 3, "wait": 1.0, "stall": 4.0},
            {"step": 5, "start": 60.0, "end": 80.0, "choice": 0, "gap": 25.0, "batch": 2, "wait": 6.0, "stall": 0.0},
        ],
        "sends": [{"taken": 44.0, "done": 46.0}, {"taken": 55.0, "done": 70.0}],
    }
    json.dumps(story, allow_nan=False)


def test_waits_up_to_the_first_step_are_the_queue_time() -> None:
    story = make_story(make_trace(), at(500))
    assert sum(wait["end"] - wait["start"] for wait in story["waits"]) == story["times"]["queue"]


def test_what_has_not_happened_is_null() -> None:
    live = {"first_scheduled_s": None, "end_s": None, "finish_reason": None, "steps": [], "token_times_s": [[]]}
    trace = make_trace(**live, waits=[], sends=[], cache_miss=None, num_cached_tokens=0)
    story = make_story(trace, at(50), WaitCause.MEMORY)
    assert story["state"] == "queued"
    assert story["times"] == {
        "tokenize": 2.0,
        "queue": None,
        "prefill": None,
        "ttft": None,
        "decode": None,
        "total": None,
        "itl": None,
    }
    assert story["waits"] == [{"cause": "memory", "start": 5.0, "end": 50.0}]
    assert story["prefill"] == story["decode"] == story["sends"] == []
    assert make_story(trace, at(50))["waits"] == [{"cause": "step", "start": 5.0, "end": 50.0}]


def test_a_request_that_never_ran_only_queued() -> None:
    trace = make_trace(first_scheduled_s=None, steps=[], token_times_s=[[]], finish_reason="abort", sends=[])
    times = make_story(trace, at(99))["times"]
    assert (times["queue"], times["prefill"], times["total"]) == (78.0, None, 80.0)
    assert make_row(trace, at(99))["itl_ms"] is None


def test_a_preempted_request_computes_its_output_again() -> None:
    again = make_step(6, 100, 120, [(2, 0, 33)])
    trace = make_trace(
        end_s=None,
        finish_reason=None,
        steps=[*make_trace().steps, again],
        token_times_s=[[at(43), at(54), at(79), at(119)]],
    )
    story = make_story(trace, at(121))
    assert story["prefill"][-1] == {
        "step": 6,
        "start": 100.0,
        "end": 120.0,
        "tokens": 33,
        "others_tokens": 0,
        "lost": 0.0,
    }
    assert (story["decode"][-1]["gap"], story["decode"][-1]["wait"], story["state"]) == (40.0, 21.0, "decoding")
    trace.preempted_s = at(121)
    story = make_story(trace, at(130))
    assert story["state"] == "preempted"
    assert story["waits"][-1] == {"cause": "preempted", "start": 121.0, "end": 130.0}


def test_choices_are_told_apart() -> None:
    steps = [
        make_step(1, 0, 10, [(2, 0, 4)]),
        make_step(2, 10, 20, [(2, 4, 1), (3, 3, 1)], num_decodes=1),
        make_step(3, 20, 30, [(2, 5, 1), (3, 4, 1)], num_decodes=2),
    ]
    times = [[at(9.5), at(19.5), at(29.5)], [at(19.5), at(29.5)]]
    trace = make_trace(numbers=(2, 3), num_prompt_tokens=4, steps=steps, token_times_s=times, waits=[], end_s=at(30))
    story = make_story(trace, at(30))
    assert story["output_tokens"] == 5
    # The second choice computes the prompt's last token itself.
    assert [(chunk["step"], chunk["tokens"], chunk["others_tokens"]) for chunk in story["prefill"]] == [
        (1, 4, 0),
        (2, 1, 0),
    ]
    assert [(row["step"], row["choice"]) for row in story["decode"]] == [(2, 0), (3, 0), (3, 1)]
    assert {row["gap"] for row in story["decode"]} == {10.0}


def test_the_row_of_a_table_says_the_same() -> None:
    assert make_row(make_trace(), at(500)) == {
        "request_id": "r",
        "caller": "alice",
        "state": "finished",
        "finish_reason": "length",
        "prompt_tokens": 30,
        "cached_tokens": 10,
        "output_tokens": 3,
        "queue_ms": 18.5,
        "ttft_ms": 43.0,
        "itl_ms": 18.0,
        "total_ms": 80.0,
        "age_ms": 420.0,
        "preemptions": 0,
        "cache_miss": {"reason": "diverged_at", "position": 10},
    }


def test_a_stall_by_its_own_tokens_is_none() -> None:
    own = make_step(1, 0, 10, [(1, 50, 1), (2, 0, 33)], num_decodes=1, decode_alone_ms=2)
    trace = make_trace(steps=[own], token_times_s=[[at(-50), at(9)]])
    assert own.stall_s > 0
    assert make_story(trace, at(10))["decode"][0]["stall"] == 0.0
    assert len(STEPS) == 5
