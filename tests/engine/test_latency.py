"""Latency figures against hand-computed values and NumPy's percentiles."""

from __future__ import annotations

import numpy as np
import pytest

from pelton.core.outputs import ItlStats
from pelton.core.percentile import get_percentile
from pelton.core.request import Request
from pelton.core.sampling_params import SamplingParams
from pelton.engine.latency import make_itl_stats, make_timings


def test_percentiles_are_those_of_numpy() -> None:
    rng = np.random.default_rng(3)
    for size in (1, 2, 3, 10, 101):
        values = np.sort(rng.random(size))
        for fraction in (0.0, 0.5, 0.9, 0.99, 1.0):
            assert get_percentile(values.tolist(), fraction) == pytest.approx(np.quantile(values, fraction))


def test_itl_is_the_gap_between_tokens_in_milliseconds() -> None:
    stats = make_itl_stats([1.0, 1.010, 1.030, 1.040])
    assert stats.mean == pytest.approx(40 / 3)
    assert stats.p50 == pytest.approx(10)
    assert stats.p99 == pytest.approx(10 + 0.98 * 10)


@pytest.mark.parametrize("times", [[], [1.0]])
def test_itl_of_fewer_than_two_tokens_is_zero(times: list[float]) -> None:
    assert make_itl_stats(times) == ItlStats()


def test_timings_of_a_hand_made_request() -> None:
    request = Request(
        request_id="a",
        prompt_token_ids=tuple(range(100)),
        params=SamplingParams(),
        max_tokens=5,
        seed=0,
        eos_token_ids=frozenset(),
        arrival_s=10.0,
    )
    request.first_scheduled_s = 10.5
    request.num_cached_tokens = 20
    timings = make_timings(request, [[11.0, 11.25, 11.5]], end_s=11.5, tokenize_s=0.002, load_ms=7.0)
    assert timings.load_ms == 7.0
    assert timings.tokenize_ms == pytest.approx(2.0)
    assert timings.prefill_ms == pytest.approx(500)
    assert timings.ttft_ms == pytest.approx(1000)
    assert timings.prefill_tokens_per_s == pytest.approx(160)
    assert timings.decode_tokens_per_s == pytest.approx(4)
