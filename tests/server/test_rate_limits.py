"""Requests and tokens per minute, with a clock set by hand."""

from __future__ import annotations

import pytest

from pelton.server.rate_limits import RateLimiter, format_retry_after


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_minutes_requests_may_come_at_once_and_then_one_per_interval() -> None:
    clock = Clock()
    limiter = RateLimiter(6, None, clock)
    assert [limiter.admit("a") for _ in range(6)] == [0.0] * 6
    assert limiter.admit("a") == pytest.approx(10.0)  # 6 a minute is one every 10 s
    assert limiter.admit("a") == pytest.approx(10.0), "a refusal costs nothing"
    clock.now_s += 9.0
    assert limiter.admit("a") == pytest.approx(1.0)
    clock.now_s += 1.0
    assert limiter.admit("a") == 0.0
    assert limiter.admit("a") > 0.0


def test_callers_do_not_share_an_allowance() -> None:
    limiter = RateLimiter(1, None, Clock())
    assert limiter.admit("a") == 0.0
    assert limiter.admit("b") == 0.0
    assert limiter.admit("a") > 0.0


def test_tokens_are_charged_afterwards_and_a_debt_is_waited_for() -> None:
    clock = Clock()
    limiter = RateLimiter(None, 600, clock)  # 10 tokens a second
    assert limiter.admit("a") == 0.0
    limiter.charge_tokens("a", 700)
    assert limiter.admit("a") == pytest.approx(10.1)  # 100 tokens of debt, and one to go on with
    clock.now_s += 10.1
    assert limiter.admit("a") == 0.0


def test_an_allowance_never_grows_beyond_a_minutes() -> None:
    clock = Clock()
    limiter = RateLimiter(2, None, clock)
    limiter.admit("a")
    clock.now_s += 3600.0
    assert [limiter.admit("a") > 0.0 for _ in range(3)] == [False, False, True]


def test_no_limit_refuses_nothing() -> None:
    limiter = RateLimiter(None, None, Clock())
    limiter.charge_tokens("a", 10**9)
    assert limiter.admit("a") == 0.0


@pytest.mark.parametrize(("wait_s", "text"), [(0.01, "1"), (1.0, "1"), (1.01, "2"), (59.2, "60")])
def test_retry_after_is_in_whole_seconds_and_never_zero(wait_s: float, text: str) -> None:
    assert format_retry_after(wait_s) == text
