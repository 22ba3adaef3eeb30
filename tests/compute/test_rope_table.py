"""Inverse frequencies of every scaling kind against hand-computed values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pelton.compute.rope import compute_rope_table
from pelton.core.errors import UnsupportedModelError
from pelton.core.model_config import RopeConfig


def llama3_factors(
    theta: float, num_dims: int, factor: float, low: float, high: float, original: int
) -> tuple[float, ...]:
    """The factors a converter writes to `rope_freqs.weight` for llama3 scaling (Llama 3.1 reference code)."""
    factors = []
    for i in range(num_dims // 2):
        wavelength = 2 * math.pi * theta ** (2 * i / num_dims)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(factors)


def test_unscaled_frequencies_are_powers_of_theta():
    inverse, magnitude = compute_rope_table(RopeConfig(num_dims=8, theta=10000.0))
    np.testing.assert_allclose(inverse, [1, 0.1, 0.01, 0.001], rtol=1e-12)
    assert magnitude == 1.0


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(8, [1, 0.04275118, 0.00125, 0.000125]), (32, [1, 0.03661738, 0.0003125, 0.00003125])],
)
def test_llama3_factors_give_the_published_frequencies(factor, expected):
    factors = llama3_factors(10000.0, 8, factor, 1, 4, 128)
    inverse, _ = compute_rope_table(RopeConfig(num_dims=8, theta=10000.0, scaling="factors", frequency_factors=factors))
    np.testing.assert_allclose(inverse, expected, rtol=1e-6)


def test_frequency_factors_divide():
    rope = RopeConfig(num_dims=8, theta=10000.0, scaling="factors", frequency_factors=(1.0, 2.0, 0.5, 4.0))
    np.testing.assert_allclose(compute_rope_table(rope)[0], [1, 0.05, 0.02, 0.00025], rtol=1e-12)


def test_linear_scaling_divides_positions():
    inverse, _ = compute_rope_table(RopeConfig(num_dims=8, scaling="linear", factor=4.0))
    np.testing.assert_allclose(inverse, [0.25, 0.025, 0.0025, 0.00025], rtol=1e-12)


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    rope = RopeConfig(num_dims=64, theta=10000.0, scaling="yarn", factor=4.0, original_context=4096)
    inverse, magnitude = compute_rope_table(rope)
    plain, _ = compute_rope_table(RopeConfig(num_dims=64, theta=10000.0))
    assert inverse[0] == plain[0]
    assert inverse[-1] == pytest.approx(plain[-1] / 4)
    assert np.all(inverse <= plain)
    # 0.1 ln 4 + 1 (Peng et al. 2023, eq. 22).
    assert magnitude == pytest.approx(1.1386294)


def test_factors_of_the_wrong_length_are_refused():
    rope = RopeConfig(num_dims=8, scaling="factors", frequency_factors=(1.0, 2.0))
    with pytest.raises(UnsupportedModelError, match="2 values; allowed: 4"):
        compute_rope_table(rope)


@pytest.mark.parametrize(("position", "expected"), [(257, 0.819306), (5001, 0.914913), (12345, 0.111436)])
def test_far_positions_keep_their_angle(position, expected):
    inverse, _ = compute_rope_table(RopeConfig(num_dims=2))
    assert math.cos(position * inverse[0]) == pytest.approx(expected, abs=1e-4)
