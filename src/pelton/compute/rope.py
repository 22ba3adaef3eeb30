"""Inverse frequencies of rotary positions under every scaling kind. Pure arithmetic in float64.

Entry point: `compute_rope_table`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pelton.core.errors import UnsupportedModelError
from pelton.core.model_config import RopeConfig


def compute_rope_table(rope: RopeConfig) -> tuple[npt.NDArray[np.float64], float]:
    """Return (inverse frequencies [num_dims / 2], factor on cosine and sine).

    The angle of pair i at position p is p * inverse_frequency[i]. Raises `UnsupportedModelError` for a frequency
    factor list of the wrong length.
    """
    num_pairs = rope.num_dims // 2
    exponents = np.arange(num_pairs, dtype=np.float64) * 2.0 / rope.num_dims
    inverse = rope.theta**-exponents
    if rope.frequency_factors is not None:
        factors = np.asarray(rope.frequency_factors, np.float64)
        if factors.shape != (num_pairs,) or not np.all(np.isfinite(factors)) or np.any(factors <= 0):
            raise UnsupportedModelError(
                f"rope frequency factors: {factors.size} values; allowed: {num_pairs} positive numbers"
            )
        inverse = inverse / factors
    if rope.scaling == "linear":
        return inverse / rope.factor, 1.0
    if rope.scaling == "yarn":
        return _apply_yarn(inverse, rope)
    return inverse, 1.0


def _apply_yarn(inverse: npt.NDArray[np.float64], rope: RopeConfig) -> tuple[npt.NDArray[np.float64], float]:
    """YaRN (Peng et al. 2023, section 3.2 and eq. 22): interpolate slow pairs, keep fast ones, blend between."""

    def pair_of(num_rotations: float) -> float:
        # The pair that turns `num_rotations` times over the original context.
        ratio = rope.original_context / (num_rotations * 2.0 * math.pi)
        return rope.num_dims * math.log(ratio) / (2.0 * math.log(rope.theta))

    low = max(math.floor(pair_of(rope.yarn_beta_fast)), 0)
    high = min(math.ceil(pair_of(rope.yarn_beta_slow)), rope.num_dims - 1)
    span = max(high - low, 0.001)
    ramp = np.clip((np.arange(len(inverse)) - low) / span, 0.0, 1.0)
    scaled = inverse / rope.factor * ramp + inverse * (1.0 - ramp)
    magnitude = rope.yarn_attention_factor
    if magnitude is None:
        magnitude = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1.0 else 1.0
    return scaled, magnitude
