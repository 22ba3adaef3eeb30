"""Log-probabilities of given tokens, as scoring and perplexity need them. Entry point: `log_softmax_at`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pelton import _native
from pelton.core.errors import InvalidParameterError, SamplingError
from pelton.sampling.sampler import check_logits


def log_softmax_at(logits: NDArray[np.float32], targets: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float64]:
    """Natural-log probability of token `targets[r]` under row r of `logits` [R, V] f32: [R] f64, summed in f64.

    Minus infinity for a token without probability; NaN logits count as minus infinity. Raises
    `InvalidParameterError` for logits of another type or shape and targets outside the vocabulary, `SamplingError`
    if a row has no logit above minus infinity.
    """
    target_ids = np.asarray(targets)
    if target_ids.ndim != 1 or (target_ids.size and target_ids.dtype.kind not in "iu"):
        raise InvalidParameterError("targets", f"{target_ids.dtype} {target_ids.shape}", "a list of token ids")
    check_logits(logits, len(target_ids), logits.shape[-1])
    is_outside = (target_ids < 0) | (target_ids >= logits.shape[1])
    if is_outside.any():
        bad_id = int(target_ids[is_outside][0])
        raise InvalidParameterError("targets", bad_id, f"token ids 0 to {logits.shape[1] - 1}")
    logprobs = _native.log_softmax_at(logits, np.ascontiguousarray(target_ids, dtype=np.int32))
    bad_rows = np.flatnonzero(np.isnan(logprobs))
    if bad_rows.size:
        message = f"logits of row {bad_rows[0]} are all NaN or minus infinity; at least one must be above"
        raise SamplingError(message, tuple(bad_rows.tolist()))
    return logprobs
