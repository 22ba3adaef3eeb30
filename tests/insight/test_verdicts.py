"""Each verdict: its situation is made to happen with the real scheduler and recorder, and it alone must be given.

Steps take scripted times, so that what a request waited for can be computed by hand.
"""

from __future__ import annotations

import random

import pytest
from clocked_engine import START_S, ClockedEngine, list_names

from pelton.core.sampling_params import SamplingParams
from pelton.core.trace import RequestTrace
from pelton.insight.advice import KNOBS, advise
from pelton.insight.explain_facts import RequestFacts
from pelton.insight.explain_times import RequestTimes
from pelton.insight.explain_types import Verdict
from pelton.insight.verdicts import BALANCED, RULES, judge

Found = tuple[RequestFacts, list[Verdict]]
NO_LIMIT = 3_600_000.0  # of a step, in milliseconds


@pytest.fixture
def make(monkeypatch):
    return lambda **options: ClockedEngine(monkeypatch, **options)


def judge_trace(engine: ClockedEngine, trace: RequestTrace) -> Found:
    facts = engine.explain(trace)
    return facts, judge(facts)


def run_cold_long_prompt(make) -> Found:
    engine = make()
    trace = engine.add(1000, max_tokens=6)
    engine.finish()
    return judge_trace(engine, trace)


def run_queued_behind_tenant(make) -> Found:
    engine = make(prefill_chunk=500, max_step_ms=NO_LIMIT)
    engine.add(3000, max_tokens=1, first=1, tenant="bob")
    trace = engine.add(20, max_tokens=6, first=2, tenant="alice")
    engine.finish()
    return judge_trace(engine, trace)


def run_queued_behind_prompts(make) -> Found:
    engine = make(prefill_chunk=500)
    engine.add(3000, max_tokens=1, first=1, tenant="alice")
    trace = engine.add(20, max_tokens=6, first=2, tenant="alice")
    engine.finish()
    return judge_trace(engine, trace)


def run_queued_for_memory(make) -> Found:
    engine = make(num_blocks=30, use_prefix_cache=False)
    engine.add(60, max_tokens=50)
    engine.step()
    trace = engine.add(60, max_tokens=4, first=1)
    engine.finish()
    return judge_trace(engine, trace)


def run_queued_for_seats(make) -> Found:
    engine = make(max_num_seqs=1)
    engine.add(4, max_tokens=100)
    engine.step()
    trace = engine.add(4, max_tokens=6, first=1)
    engine.finish()
    return judge_trace(engine, trace)


def run_queued_for_step(make) -> Found:
    engine = make(decode_s=0.1)
    engine.add(4, max_tokens=2)
    engine.step(2)
    engine.runner.costs = (0.0, 0.001, 0.002)
    trace = engine.add(4, max_tokens=4, first=1, ago_s=0.09)
    engine.finish()
    return judge_trace(engine, trace)


def run_slowed_by_decodes(make) -> Found:
    engine = make(decode_s=0.01, max_step_ms=12.0)
    engine.add(4, max_tokens=500)
    engine.step(5)
    trace = engine.add(200, max_tokens=2, first=1)
    while trace.end_s is None:
        engine.step()
    return judge_trace(engine, trace)


def run_memory_pressure(make) -> Found:
    engine = make(num_blocks=30, use_prefix_cache=False)
    engine.add(20, max_tokens=90)
    trace = engine.add(20, max_tokens=70, first=1)
    engine.finish()
    return judge_trace(engine, trace)


def run_stalled_by_prefill(make) -> Found:
    engine = make(prefill_chunk=500, max_step_ms=NO_LIMIT)
    trace = engine.add(4, max_tokens=40)
    engine.step(5)
    engine.add(2000, max_tokens=1, first=1)
    engine.finish()
    return judge_trace(engine, trace)


def run_changing_prefix(make) -> Found:
    engine = make()
    for date in range(4):
        trace = engine.add([*range(10), 200 + date, *(7 * i % 251 for i in range(300))], max_tokens=6)
        engine.finish()
    return judge_trace(engine, trace)


def run_too_many_threads(make) -> Found:
    engine = make(num_threads=8, load=(2.0, 0.0, 5.0, 2))
    trace = engine.add(200, max_tokens=101)
    engine.finish()
    return judge_trace(engine, trace)


def run_busy_neighbour(make) -> Found:
    engine = make(num_threads=2, load=(1.0, 1.0, 1.0, 2))
    trace = engine.add(200, max_tokens=101)
    engine.finish()
    return judge_trace(engine, trace)


def run_slow_reader(make) -> Found:
    engine = make()
    llm = engine.make_llm()
    outputs = llm.stream(list(range(10)), SamplingParams(max_tokens=20, ignore_eos=True))
    for _ in outputs:
        engine.runner.now_s += 0.05
    (trace,) = llm.traces.list_finished()
    return judge_trace(engine, trace)


def run_slow_to_start(make) -> Found:
    engine = make()
    trace = engine.add(100, max_tokens=3)
    engine.finish()
    return judge_trace(engine, trace)


def run_slow_to_stream(make) -> Found:
    engine = make()
    trace = engine.add(4, max_tokens=50)
    engine.finish()
    return judge_trace(engine, trace)


def run_balanced(make) -> Found:
    engine = make()
    trace = engine.add(100, max_tokens=51)
    engine.finish()
    return judge_trace(engine, trace)


SITUATIONS = {name.removeprefix("run_"): run for name, run in globals().items() if name.startswith("run_")}


def test_every_verdict_has_a_situation_and_knobs() -> None:
    names = [*(rule.name for rule in RULES), BALANCED]
    assert sorted(SITUATIONS) == sorted(names) == sorted(KNOBS)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_gets_its_verdict_and_no_other(make, name: str) -> None:
    facts, verdicts = SITUATIONS[name](make)
    assert list_names(verdicts) == [name]
    assert verdicts[0].text
    assert len(verdicts[0].evidence) >= (1 if name == BALANCED else 2)
    assert all(any(c.isdigit() for c in line) for line in verdicts[0].evidence), "evidence is measured numbers"
    assert abs(sum_parts(facts.times) - facts.times.total_s) < 1e-9


@pytest.mark.parametrize("name", sorted(set(SITUATIONS) - {"queued_for_step"}))
def test_a_situation_gets_advice(make, name: str) -> None:
    facts, verdicts = SITUATIONS[name](make)
    found = advise(facts, list_names(verdicts))
    if name in (BALANCED, "slow_to_start"):
        return  # nothing to put right, and half the prompt would read the same weights; the plan may have a word
    assert found
    for advice in found:
        assert advice.change
        assert advice.effect
        predicted = advice.predicted or {}
        assert all(value >= 0 for value in predicted.values())
        if "itl_now_ms" in predicted:  # what is better later is compared with what was measured
            gaps_s = facts.times.gaps_s
            assert predicted["itl_now_ms"] == pytest.approx(sum(gaps_s) / len(gaps_s) * 1e3)
    assert len({advice.change for advice in found}) == len(found)


def sum_parts(times: RequestTimes) -> float:
    """All parts of a request's life; none may be counted twice."""
    return (
        times.tokenize_s
        + times.memory_s
        + times.seats_s
        + times.other_wait_s
        + sum(times.behind_s.values())
        + times.beside_decodes_s
        + times.preempted_s
        + times.own_prefill_s
        + times.stall_s
        + times.reader_s
        + times.own_decode_s
    )


def test_waiting_behind_a_tenant_names_it_with_its_share(make) -> None:
    facts, verdicts = run_queued_behind_tenant(make)
    # 3,000 tokens of bob's at 1 ms; the last step has two of them, and her prompt.
    assert facts.times.queue_s == pytest.approx(3.0, abs=0.01)
    assert facts.times.behind_s == pytest.approx({"bob": 3.0})
    # Under the fair policy alice would wait for the step under way, and then as long as her own 20 tokens take.
    (advice,) = advise(facts, ["queued_behind_tenant"])
    assert advice.change == "--scheduling-policy fair"
    assert advice.predicted == pytest.approx({"waiting_for_prompts_ms": 520, "waiting_for_prompts_now_ms": 3000})
    assert "bob had 100 % of" in verdicts[0].evidence[1]
    assert "bob" in verdicts[0].text


def test_a_fair_policy_is_told_apart(make) -> None:
    engine = make(prefill_chunk=100, scheduling_policy="fair")
    engine.add(1000, max_tokens=1, first=1, tenant="bob")
    engine.add(1000, max_tokens=1, first=2, tenant="carol")
    trace = engine.add(400, max_tokens=2, first=3, tenant="alice")
    engine.finish()
    facts, verdicts = judge_trace(engine, trace)
    # They take turns, so that the other two compute as much as alice does, and her own prompt is a third of it.
    assert list_names(verdicts) == ["queued_behind_tenant", "cold_long_prompt"]
    assert set(facts.times.behind_s) == {"bob", "carol"}
    (advice,) = advise(facts, ["queued_behind_tenant"])
    assert advice.change == "--tokens-per-minute", "the policy is fair already"


def test_waiting_for_memory_lasts_until_the_blocks_come_back(make) -> None:
    facts, _ = run_queued_for_memory(make)
    # The other one has 49 tokens to go, 2 ms each; the first of these steps measures what decodes take, without it.
    assert facts.times.memory_s == pytest.approx(48 * 0.002)
    assert facts.times.queue_s == pytest.approx(49 * 0.002)


def test_a_stall_is_what_prompts_of_others_added(make) -> None:
    facts, _ = run_stalled_by_prefill(make)
    assert facts.times.stall_s == pytest.approx(2000 * 0.001)
    assert facts.times.own_decode_s == pytest.approx(39 * 0.002)


def test_preempted_request_counts_waiting_and_computing_again(make) -> None:
    facts, _ = run_memory_pressure(make)
    trace = facts.trace
    assert trace.num_preemptions >= 1
    waited = sum(wait.end_s - wait.start_s for wait in trace.waits)
    # It computes its prompt and the tokens it had generated again, at 1 ms each.
    again = [step for step in facts.decode_steps if step.num_prompt_tokens]
    assert facts.times.preempted_s == pytest.approx(waited + sum(step.num_prompt_tokens for step in again) * 0.001)


def test_machine_takes_its_share_of_computing_time_only(make) -> None:
    facts, verdicts = run_busy_neighbour(make)
    # 2 threads and 1 CPU of others want 3 of 2 CPUs, so a third is lost; the threads' own waiting says half.
    assert facts.neighbours_share == pytest.approx(0.5)
    assert verdicts[0].seconds == pytest.approx(0.5 * facts.times.total_s)
    facts, verdicts = run_too_many_threads(make)
    assert facts.own_threads_share == pytest.approx(0.75)
    assert "8 threads on 2 CPUs" in verdicts[0].evidence


def test_threads_that_wait_though_nobody_else_computes_are_too_many(make) -> None:
    engine = make(num_threads=4, load=(2.0, 0.05, 2.0, 4))
    trace = engine.add(200, max_tokens=101)
    engine.finish()
    facts, verdicts = judge_trace(engine, trace)
    assert list_names(verdicts) == ["too_many_threads"]
    assert facts.own_threads_share == pytest.approx(0.5)


def test_neighbours_on_cpus_that_are_free_cost_nothing(make) -> None:
    engine = make(num_threads=2, load=(2.0, 4.0, 0.0, 8))
    trace = engine.add(200, max_tokens=101)
    engine.finish()
    assert list_names(judge_trace(engine, trace)[1]) == ["balanced"]


def test_a_prompt_that_differs_at_its_end_has_no_changing_prefix(make) -> None:
    engine = make()
    for question in range(4):
        trace = engine.add([*(7 * i % 251 for i in range(300)), 200 + question, *range(5)], max_tokens=6)
        engine.finish()
    assert trace.num_cached_tokens == 300
    assert "changing_prefix" not in list_names(judge_trace(engine, trace)[1])


def test_other_documents_behind_one_instruction_are_no_changing_prefix(make) -> None:
    engine = make()
    for number, length in enumerate((300, 700, 1500, 400)):
        trace = engine.add([*range(10), 200 + number, *(7 * i % 251 for i in range(length))], max_tokens=6)
        engine.finish()
    assert list_names(judge_trace(engine, trace)[1]) == ["cold_long_prompt"]


def test_main_verdict_explains_most_and_lesser_ones_follow(make) -> None:
    engine = make(max_num_seqs=1, prefill_chunk=4096)
    engine.add(4, max_tokens=500)  # one second
    engine.step()
    trace = engine.add(2000, max_tokens=2, first=1)  # two seconds
    engine.finish()
    verdicts = judge_trace(engine, trace)[1]
    assert list_names(verdicts) == ["cold_long_prompt", "queued_for_seats"]
    assert verdicts[0].evidence[0].startswith("2.00 s of 3.00 s")


def test_an_unfinished_request_is_judged_by_what_happened_so_far(make) -> None:
    engine = make(max_num_seqs=1)
    engine.add(4, max_tokens=500)
    engine.step()
    trace = engine.add(4, first=1)
    engine.step(50)
    facts, verdicts = judge_trace(engine, trace)
    assert trace.state == "queued"
    assert list_names(verdicts) == ["queued_for_seats"]
    assert facts.times.seats_s == pytest.approx(engine.now_s - START_S - 0.004)


@pytest.mark.parametrize("seed", range(12))
def test_every_second_is_in_one_part_whatever_happens(make, seed: int) -> None:
    source = random.Random(seed)
    engine = make(
        num_blocks=source.choice([80, 400]),
        prefill_chunk=source.choice([64, 512]),
        max_num_seqs=source.choice([2, 16]),
        scheduling_policy=source.choice(["fcfs", "fair"]),
        base_s=0.0005,
    )
    traces = []
    for _ in range(25):
        ago_s = source.random() * min(engine.now_s - START_S, 0.01)
        options = {"tenant": source.choice("ab"), "first": source.randrange(3)}
        traces.append(engine.add(source.randint(1, 200), source.randint(1, 40), ago_s=ago_s, **options))
        engine.step(source.randint(0, 12))
    for trace in traces:  # some of them unfinished
        check_times(engine, trace)
    engine.finish()
    for trace in traces:
        check_times(engine, trace)
        assert judge(engine.explain(trace))


def check_times(engine: ClockedEngine, trace: RequestTrace) -> None:
    times = engine.explain(trace).times
    assert abs(sum_parts(times) - times.total_s) < 1e-6
    parts = [times.own_prefill_s, times.own_decode_s, times.stall_s, times.other_wait_s, times.preempted_s]
    assert all(part >= -1e-9 for part in parts)
