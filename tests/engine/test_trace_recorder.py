"""What requests waited for, which steps they were in, and how their traces end. Steps take fixed, scripted times."""

from __future__ import annotations

import pytest
from traced_table import MODEL_S, SAMPLE_S, TracedTable, get_queue_s, sum_waits

from pelton.core.cache_miss import CacheMissReason
from pelton.core.trace import RequestTrace, Wait, WaitCause
from pelton.engine.trace_log import TraceLog

STEP_S = MODEL_S + SAMPLE_S


@pytest.fixture
def make(monkeypatch):
    return lambda **options: TracedTable(monkeypatch, **options)


def list_shares(trace: RequestTrace, choice: int = 0) -> list[tuple[int, int]]:
    """(start, number of tokens) of every step of a choice."""
    found = (step.find_share(trace.numbers[choice]) for step in trace.steps)
    return [(share.start, share.num_tokens) for share in found if share is not None]


def test_a_lonely_request_waits_for_nothing(make) -> None:
    table = make(prefill_chunk=8)
    trace = table.add(20, max_tokens=3)
    assert trace.state == "queued"
    table.step()
    assert trace.state == "prefilling"
    table.finish()
    assert trace.waits == []
    assert list_shares(trace) == [(0, 8), (8, 8), (16, 4), (20, 1), (21, 1)]
    assert [s.num_prompt_tokens for s in trace.steps] == [8, 8, 4, 0, 0]
    assert [s.num_decodes for s in trace.steps] == [0, 0, 0, 1, 1]
    assert trace.token_times_s == [[1000.0 + STEP_S * n for n in (3, 4, 5)]]
    assert (trace.state, trace.finish_reason, trace.end_s) == ("finished", "length", 1000.0 + 5 * STEP_S)
    assert all(s.start_s < s.end_s and s.model_s == MODEL_S and s.sample_s == SAMPLE_S for s in trace.steps)


def test_a_request_that_comes_during_a_step_waits_for_it_and_then_for_a_seat(make) -> None:
    table = make(max_num_seqs=1)
    table.add(4, max_tokens=5)
    table.step()
    trace = table.add(4, ago_s=2.0)  # one second of it was tokenising
    table.finish()
    assert sum_waits(trace) == {"step": 1.0, "seats": 4 * STEP_S}
    assert get_queue_s(trace) == 1.0 + 4 * STEP_S
    assert [w.cause for w in trace.waits] == [WaitCause.STEP, WaitCause.SEATS]


def test_a_request_without_room_waits_for_memory(make) -> None:
    table = make(num_blocks=10, use_prefix_cache=False)
    table.add(24, max_tokens=4)
    table.step()
    trace = table.add(24, first_id=100)
    assert trace.state == "queued"
    table.finish()
    assert sum_waits(trace) == {"memory": get_queue_s(trace)}
    assert trace.num_preemptions == 0


def test_tokens_that_go_to_others_are_the_budget(make) -> None:
    table = make(prefill_chunk=8)
    table.add(32, max_tokens=1)
    trace = table.add(8, first_id=100)
    table.finish()
    assert sum_waits(trace) == {"budget": 4 * STEP_S}
    assert get_queue_s(trace) == 4 * STEP_S


def test_under_the_fair_policy_other_tenants_prompts_are_told_apart(make) -> None:
    table = make(prefill_chunk=16, scheduling_policy="fair")
    table.add(64, max_tokens=1, tenant="a")
    table.step()
    table.add(64, max_tokens=1, first_id=100, tenant="b")
    trace = table.add(16, max_tokens=1, first_id=200, tenant="a")
    table.finish()
    waits = sum_waits(trace)
    # b is behind and gets tokens first; then both take turns, and the earlier request of a goes before this one.
    assert set(waits) == {"budget", "tenant_share"}
    assert sum(waits.values()) == get_queue_s(trace)
    others = [s for s in table.log.list_steps() if s.start_s < trace.first_scheduled_s and s.find_share(2) is not None]
    assert waits["tenant_share"] == len(others) * STEP_S


@pytest.mark.parametrize(("policy", "tenants"), [("fair", "aa"), ("fcfs", "ab")])
def test_without_shares_of_tenants_it_is_the_budget(make, policy: str, tenants: str) -> None:
    table = make(prefill_chunk=16, scheduling_policy=policy)
    table.add(64, max_tokens=1, tenant=tenants[0])
    trace = table.add(16, first_id=100, tenant=tenants[1])
    table.finish()
    assert set(sum_waits(trace)) == {"budget"}


def test_a_preempted_request_waits_for_blocks_and_goes_on(make) -> None:
    table = make(num_blocks=8, use_prefix_cache=False)
    first = table.add(11, max_tokens=9)
    trace = table.add(11, max_tokens=9, first_id=100)
    states = set()
    while table.table.has_unfinished:
        table.step()
        states.add(trace.state)
    assert states == {"decoding", "preempted", "finished"}
    assert (trace.num_preemptions, first.num_preemptions) == (1, 0)
    (wait,) = trace.waits
    assert wait.cause is WaitCause.PREEMPTED
    # It came back in the first step after the other one had ended.
    assert wait.end_s == first.end_s
    assert trace.preempted_s is None
    back = next(step for step in trace.steps if step.start_s >= wait.end_s)
    num_known = 11 + sum(time_s <= wait.start_s for time_s in trace.token_times_s[0])
    share = back.find_share(trace.numbers[0])
    assert (share.start, share.num_tokens) == (0, num_known)
    assert trace.num_output_tokens == 9


def test_a_request_is_preempted_until_all_of_its_choices_are_back(make) -> None:
    table = make(num_blocks=10, use_prefix_cache=False)
    table.add(8, max_tokens=26)
    trace = table.add(8, max_tokens=26, first_id=100, n=2)
    seen = []
    while table.table.has_unfinished:
        table.step()
        seen.append((table.core.scheduler.num_running, trace.state))
    assert trace.num_preemptions >= 2
    assert (1, "preempted") in seen  # both choices are out
    waits = [wait for wait in trace.waits if wait.cause is WaitCause.PREEMPTED]
    assert len(waits) == len(trace.waits) == trace.num_preemptions
    assert trace.preempted_s is None
    assert [len(times) for times in trace.token_times_s] == [26, 26]


def test_choices_share_steps_and_have_times_of_their_own(make) -> None:
    table = make(prefill_chunk=8)
    trace = table.add(10, max_tokens=3, n=2)
    table.finish()
    assert len(trace.numbers) == 2
    assert len(set(map(id, trace.steps))) == len(trace.steps)
    assert list_shares(trace, 0) == [(0, 8), (8, 2), (10, 1), (11, 1)]
    # The second one takes the prompt over but for its last token.
    assert list_shares(trace, 1) == [(9, 1), (10, 1), (11, 1)]
    assert [len(times) for times in trace.token_times_s] == [3, 3]
    assert trace.num_output_tokens == 6
    assert trace.waits == []


def test_cached_tokens_and_why_there_are_no_more(make) -> None:
    table = make()
    first = table.add(12)
    table.finish()
    second = table.add(12)
    table.finish()
    third = table.add(12)
    table.find(third).prompt_token_ids = (*range(8), 99, 98, 97, 96)
    table.finish()
    assert (first.num_cached_tokens, first.cache_miss.reason) == (0, CacheMissReason.FIRST_TIME)
    assert (second.num_cached_tokens, second.cache_miss) == (11, None)
    assert (third.num_cached_tokens, third.cache_miss.reason) == (8, CacheMissReason.DIVERGED)
    assert third.cache_miss.position == 8
    assert list_shares(second)[0] == (11, 1)


def test_an_aborted_request_has_an_end_and_a_wait_up_to_it(make) -> None:
    table = make(max_num_seqs=1)
    running = table.add(4, max_tokens=9)
    queued = table.add(4)
    table.step()
    table.step()
    for key in ("request-1", "request-2"):
        assert table.table.abort(key)
    assert (running.finish_reason, queued.finish_reason) == ("abort", "abort")
    assert sum_waits(queued) == {"seats": 2 * STEP_S}
    assert queued.first_scheduled_s is None
    assert queued.steps == []
    assert len(running.steps) == 2
    assert table.log.list_live() == []
    assert table.log.list_finished() == [running, queued]


def test_a_request_out_of_time_ends_with_abort(make) -> None:
    table = make()
    trace = table.add(4, max_tokens=99, timeout_s=3 * STEP_S)
    table.finish()
    assert (trace.state, trace.finish_reason, len(trace.steps)) == ("finished", "abort", 3)
    assert trace.end_s == 1000.0 + 3 * STEP_S


def test_a_request_that_fails_ends_with_error_and_the_others_go_on(make) -> None:
    table = make()
    good, bad = table.add(4), table.add(4, first_id=100)
    table.failing = {"request-2"}
    table.finish()
    assert (good.finish_reason, bad.finish_reason) == ("length", "error")
    assert (good.num_output_tokens, bad.num_output_tokens) == (4, 0)
    assert bad.num_prompt_tokens == 4


def test_reset_ends_all_traces(make) -> None:
    table = make(max_num_seqs=1)
    traces = [table.add(4), table.add(4, n=2)]
    table.step()
    table.table.reset()
    assert [trace.finish_reason for trace in traces] == ["abort", "abort"]
    assert table.log.list_live() == []
    again = table.add(4)
    table.finish()
    assert again.finish_reason == "length"
    assert again.numbers[0] not in (*traces[0].numbers, *traces[1].numbers)


def test_the_models_seconds_are_divided_between_prompts_and_decodes(make) -> None:
    table = make(prefill_chunk=8)
    table.add(4, max_tokens=20)
    table.step()  # a prompt alone
    assert table.table.make_stats().prefill_s == MODEL_S
    table.step()  # a decode alone
    stats = table.table.make_stats()
    assert (stats.prefill_s, stats.decode_s) == (MODEL_S, MODEL_S)
    table.add(7, first_id=100)
    table.model_s = 3 * MODEL_S
    table.step()  # both: what the decode alone took is known
    stats = table.table.make_stats()
    assert (stats.prefill_s, stats.decode_s) == (3 * MODEL_S, 2 * MODEL_S)
    assert table.log.list_steps()[-1].stall_s == 2 * MODEL_S


def test_the_last_finished_requests_are_kept(make) -> None:
    table = make(num_kept_traces=2)
    traces = [table.add(4, request_id=f"r{i}", max_tokens=1) for i in range(4)]
    table.finish()
    assert table.log.list_finished() == traces[2:]
    assert [table.log.find_request(f"r{i}") for i in range(4)] == [None, None, *traces[2:]]
    assert table.log.num_finished == 4


def test_none_are_kept_if_none_are_wanted(make) -> None:
    table = make(num_kept_traces=0)
    trace = table.add(4, request_id="r")
    assert table.log.find_request("r") is trace
    table.finish()
    assert table.log.find_request("r") is None
    assert table.log.list_finished() == []


def test_long_requests_push_more_of_the_others_out(make, monkeypatch) -> None:
    monkeypatch.setattr("pelton.engine.trace_log.MAX_KEPT_EVENTS", 50)
    table = make()
    short = [table.add(4, max_tokens=5) for _ in range(3)]
    table.finish()
    assert table.log.list_finished() == short  # 10 events each
    long = table.add(4, max_tokens=40)
    table.finish()
    assert table.log.list_finished() == [long]


def test_of_one_name_the_last_request_is_found_and_none_is_lost(make) -> None:
    table = make(num_kept_traces=1)
    slow = table.add(4, max_tokens=9, request_id="twin")
    quick = table.add(4, max_tokens=2, request_id="twin")
    assert table.log.find_request("twin") is quick
    table.step()
    table.step()
    assert quick.is_finished
    assert table.log.find_request("twin") is quick
    table.add(4, max_tokens=1)
    table.step()  # which pushes the quick one out
    assert table.log.find_request("twin") is slow
    table.finish()


def test_a_sequence_admitted_without_tokens_and_then_preempted_keeps_its_first_wait(make) -> None:
    table = make()
    trace = table.add(4, ago_s=2.0)
    request = table.find(trace)
    recorder = table.table._recorder
    request.first_scheduled_s = table.now_s + 3.0  # by a step that had nothing left for it
    recorder._note_preempted(request, table.now_s + 5.0)
    assert trace.state == "preempted"
    recorder._note_admitted(request, table.now_s + 7.0)
    assert trace.waits == [
        Wait(WaitCause.STEP, 999.0, 1003.0),
        Wait(WaitCause.PREEMPTED, 1005.0, 1007.0),
    ]
    assert trace.state == "prefilling"


def test_steps_are_listed_by_number(make) -> None:
    table = make()
    table.add(4, max_tokens=100)
    table.finish()
    log: TraceLog = table.log
    numbers = [step.number for step in log.list_steps()]
    assert numbers == list(range(1, 101))
    assert [step.number for step in log.list_steps(after=97)] == [98, 99, 100]
    assert [step.number for step in log.list_steps(after=10, limit=2)] == [99, 100]
    assert log.list_steps(after=100) == log.list_steps(after=1000) == log.list_steps(limit=0) == []


def test_steps_say_who_waits_and_how_many_blocks_are_owned(make) -> None:
    table = make(max_num_seqs=1)
    table.add(8, max_tokens=2)
    table.add(4)
    table.step()
    (step,) = table.log.list_steps()
    assert (step.num_waiting, step.num_used_blocks, step.held_up_by) == (1, 2, WaitCause.SEATS)
