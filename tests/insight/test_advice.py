"""What advice promises: it begins at what was measured, it gains, and it is not what was done already."""

from __future__ import annotations

import pytest
from clocked_engine import list_names
from test_verdicts import NO_LIMIT, SITUATIONS, judge_trace, make

from pelton.insight.advice import advise, keep_first
from pelton.insight.explain_types import Advice

__all__ = ["make"]  # the fixture of the situations


@pytest.mark.parametrize("name", sorted(SITUATIONS))
def test_advice_begins_at_what_was_measured_and_gains(make, name: str) -> None:
    facts, verdicts = SITUATIONS[name](make)
    measured = {"ttft": facts.times.ttft_s, "total": facts.times.total_s}
    if facts.times.gaps_s:
        measured["itl"] = sum(facts.times.gaps_s) / len(facts.times.gaps_s)
    for advice in advise(facts, [*list_names(verdicts), "slow_to_start", "slow_to_stream"]):
        predicted = advice.predicted or {}
        for time_name, seconds in measured.items():
            if f"{time_name}_now_ms" in predicted:
                assert predicted[f"{time_name}_now_ms"] == pytest.approx(seconds * 1e3)
        if not advice.change.startswith(("--max-num-seqs", "more batching")):
            for key in (key for key in predicted if key.endswith("_now_ms")):
                assert predicted[key] >= 1.05 * predicted[key.replace("_now_ms", "_ms")], advice


def test_shorter_steps_are_no_advice_where_the_longest_gap_is_another_one(make) -> None:
    engine = make(prefill_chunk=500, max_step_ms=NO_LIMIT)
    trace = engine.add(4, max_tokens=40)
    engine.step(5)
    engine.add(2000, max_tokens=1, first=1)
    engine.step(6)
    engine.runner.costs = (0.6, 0.001, 0.002)  # the machine stood still for a step in which nobody's prompt ran
    engine.step()
    engine.runner.costs = (0.0, 0.001, 0.002)
    engine.finish()
    facts, verdicts = judge_trace(engine, trace)
    assert list_names(verdicts) == ["stalled_by_prefill"]
    assert max(facts.times.gaps_s) == pytest.approx(0.602)
    assert advise(facts, ["stalled_by_prefill"]) == []


def test_a_prompt_that_was_reused_gets_no_advice_to_reuse_it(make) -> None:
    engine = make()
    engine.add(1000, max_tokens=1)
    engine.finish()
    ids = [(7 * i) % 251 for i in range(400)]
    trace = engine.add([*ids, *range(100, 0, -1), *ids], max_tokens=2)
    engine.finish()
    facts, verdicts = judge_trace(engine, trace)
    assert trace.num_cached_tokens == 400
    assert list_names(verdicts) == ["cold_long_prompt"]
    assert not [advice for advice in advise(facts, ["cold_long_prompt"]) if "prefix cache" in advice.change]


def test_fewer_threads_promise_no_time_because_waiting_is_not_all_lost(make) -> None:
    facts, verdicts = SITUATIONS["too_many_threads"](make)
    (advice,) = advise(facts, list_names(verdicts))
    assert advice.change == "--threads 2 (now 8)"
    assert advice.predicted is None
    assert "ms" not in advice.effect


def test_an_option_is_turned_one_way_only() -> None:
    found = keep_first(Advice(change, "", "", None) for change in ("--max-step-ms 42", "a cache", "--max-step-ms 157"))
    assert [advice.change for advice in found] == ["--max-step-ms 42", "a cache"]
