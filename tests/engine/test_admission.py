"""Limits of the queue and the estimate of when to come back, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from pelton.core.errors import EngineOverloadedError
from pelton.engine.admission import Admission


def refuse(admission: Admission, now_s: float, num_requests: int, num_tokens: int, num_new_tokens: int) -> float:
    with pytest.raises(EngineOverloadedError) as found:
        admission.check(
            now_s, num_queued_requests=num_requests, num_queued_tokens=num_tokens, num_new_tokens=num_new_tokens
        )
    return found.value.retry_after_s


def test_retry_is_what_must_leave_over_the_rate_of_late() -> None:
    admission = Admission(10, 1000)
    # 4 requests with 400 prompt tokens began within 2 s: 2 requests/s, 200 tokens/s.
    for second, num_requests in ((8.0, 1), (9.0, 3)):
        admission.note_started(second, num_requests, 100 * num_requests)
    assert refuse(admission, 10.0, 10, 500, 1) == pytest.approx(0.5)  # one request must begin
    assert refuse(admission, 10.0, 5, 1000, 300) == pytest.approx(1.5)  # 300 tokens must
    assert refuse(admission, 10.0, 5, 900, 5000) == pytest.approx(4.5)  # the whole queue, not more than there is


def test_retry_without_a_known_rate_is_a_second_and_old_starts_do_not_count() -> None:
    admission = Admission(1, None)
    assert refuse(admission, 10.0, 1, 5, 5) == 1.0
    admission.note_started(10.0, 1, 5)
    assert refuse(admission, 100.0, 1, 5, 5) == 1.0


def test_limits_that_are_not_set_never_refuse_and_an_empty_queue_takes_any_prompt() -> None:
    Admission(None, None).check(0.0, num_queued_requests=10**6, num_queued_tokens=10**9, num_new_tokens=10**6)
    Admission(1, 1).check(0.0, num_queued_requests=0, num_queued_tokens=0, num_new_tokens=10**6)
    Admission(2, 10).check(0.0, num_queued_requests=1, num_queued_tokens=5, num_new_tokens=5)
