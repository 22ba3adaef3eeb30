"""The arithmetic of traces: shares, stalls, states."""

from __future__ import annotations

from array import array

from pelton.core.trace import RequestTrace, Share, StepTrace, WaitCause


def make_step(**changes: object) -> StepTrace:
    values: dict[str, object] = {
        "number": 1,
        "start_s": 10.0,
        "end_s": 10.1,
        "plan_s": 0.01,
        "model_s": 0.08,
        "sample_s": 0.005,
        "text_s": 0.005,
        "num_decodes": 1,
        "num_prompt_tokens": 30,
        "decode_alone_s": 0.03,
        "held_up_by": WaitCause.MEMORY,
        "num_waiting": 2,
        "num_used_blocks": 9,
        "flat_shares": array("q", [7, 100, 1, 8, 0, 30]),
    }
    return StepTrace(**(values | changes))  # type: ignore[arg-type]  # values of many types, checked by the test


def test_shares_are_read_back_in_batch_order() -> None:
    step = make_step()
    assert list(step.shares) == [Share(7, 100, 1), Share(8, 0, 30)]
    assert step.num_sequences == 2
    assert step.find_share(8) == Share(8, 0, 30)
    assert step.find_share(9) is None


def test_a_stall_is_what_a_step_takes_beyond_its_decodes() -> None:
    assert abs(make_step().stall_s - 0.05) < 1e-12
    assert make_step(decode_alone_s=0.5).stall_s == 0.0
    assert make_step(decode_alone_s=None).stall_s == 0.0
    assert make_step(num_prompt_tokens=0).stall_s == 0.0
    assert make_step(num_decodes=0).stall_s == 0.0


def test_states_follow_what_has_happened() -> None:
    trace = RequestTrace("r", "", 0, (1,), 0.0, 0.1, 0.2, 5, 10, token_times_s=[[]])
    assert trace.state == "queued"
    trace.first_scheduled_s = 0.3
    assert trace.state == "prefilling"
    trace.token_times_s[0].append(0.4)
    assert (trace.state, trace.first_token_s, trace.num_output_tokens) == ("decoding", 0.4, 1)
    trace.preempted_s = 0.5
    assert trace.state == "preempted"
    trace.end_s = 0.6
    assert trace.state == "finished"
