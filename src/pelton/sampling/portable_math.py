"""exp and log in NumPy, operation for operation those of native/sampling/portable_math.h, where the reasons stand.

With them the reference gives the sampler's own bits. Must not know sampling. Entry points: `exp_nonpositive`,
`log_positive`; both take and return [N] f64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LN2 = float.fromhex("0x1.62e42fefa39efp-1")
LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_SQRT2 = float.fromhex("0x1.6a09e667f3bcdp+0")
_MIN_EXPONENT = -708.0
_ROUND = 1.5 * 2.0**52

Doubles = NDArray[np.float64]


def exp_nonpositive(x: Doubles) -> Doubles:
    """exp(x) for x <= 0, within 1e-11 of itself; exp(-708) below -708 and for NaN."""
    clamped = np.where(x > _MIN_EXPONENT, x, _MIN_EXPONENT)
    n = (clamped * LOG2_E + _ROUND) - _ROUND
    r = (clamped - n * _LN2_HIGH) - n * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    p01 = 1.0 + r
    p23 = 1.0 / 2.0 + 1.0 / 6.0 * r
    p45 = 1.0 / 24.0 + 1.0 / 120.0 * r
    p67 = 1.0 / 720.0 + 1.0 / 5040.0 * r
    p89 = 1.0 / 40320.0 + 1.0 / 362880.0 * r
    p = (p01 + r2 * p23) + r4 * ((p45 + r2 * p67) + r4 * p89)
    power: Doubles = p * np.ldexp(1.0, n.astype(np.int32))
    return power


def log_positive(x: Doubles) -> Doubles:
    """log(x) for finite x > 0, within 2 units in the last place."""
    fraction, exponent = np.frexp(x)  # fraction in [1/2, 1)
    m = fraction * 2.0
    n = (exponent - 1).astype(np.float64)
    is_high = m > _SQRT2
    m = np.where(is_high, m * 0.5, m)
    n = np.where(is_high, n + 1.0, n)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = np.full_like(s, 1.0 / 23.0)
    for k in (21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0):
        p = p * z + 1.0 / k
    result: Doubles = n * _LN2_HIGH + (2.0 * s + (2.0 * s * z * p + n * _LN2_LOW))
    return result
