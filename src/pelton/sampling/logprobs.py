"""Log-probabilities of given tokens. Entry points: `log_softmax_at` for scores and perplexity, `find_token_logprobs`
for prompts, which gives the most likely tokens too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pelton import _native
from pelton.core.errors import InvalidParameterError, SamplingError
from pelton.core.outputs import TokenLogprobs
from pelton.sampling.sampler import check_logits


def log_softmax_at(logits: NDArray[np.float32], targets: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float64]:
    """Natural-log probability of token `targets[r]` under row r of `logits` [R, V] f32: [R] f64, summed in f64.

    Minus infinity for a token without probability; NaN logits count as minus infinity. Raises
    `InvalidParameterError` for logits of another type or shape and targets outside the vocabulary, `SamplingError`
    if a row has no logit above minus infinity.
    """
    logprobs = _native.log_softmax_at(logits, _check_targets(logits, targets))
    bad_rows = np.flatnonzero(np.isnan(logprobs))
    if bad_rows.size:
        raise _make_no_candidate(bad_rows.tolist())
    return logprobs


def find_token_logprobs(
    logits: NDArray[np.float32], targets: Sequence[int] | NDArray[np.integer], num_top: int
) -> list[TokenLogprobs]:
    """Log-probabilities of token `targets[r]` and of the `num_top` most likely under row r of `logits` [R, V] f32.

    As `Sampler` reports them; raises as `log_softmax_at` does.
    """
    results = _native.find_token_logprobs(logits, _check_targets(logits, targets), num_top)
    bad_rows = [number for number, result in enumerate(results) if result[0] != 0]
    if bad_rows:
        raise _make_no_candidate(bad_rows)
    return [TokenLogprobs(logprob, tuple(top)) for _, _, logprob, top, _ in results]


def _check_targets(logits: NDArray[np.float32], targets: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int32]:
    target_ids = np.asarray(targets)
    if target_ids.ndim != 1 or (target_ids.size and target_ids.dtype.kind not in "iu"):
        raise InvalidParameterError("targets", f"{target_ids.dtype} {target_ids.shape}", "a list of token ids")
    check_logits(logits, len(target_ids), logits.shape[-1])
    is_outside = (target_ids < 0) | (target_ids >= logits.shape[1])
    if is_outside.any():
        bad_id = int(target_ids[is_outside][0])
        raise InvalidParameterError("targets", bad_id, f"token ids 0 to {logits.shape[1] - 1}")
    return np.ascontiguousarray(target_ids, dtype=np.int32)


def _make_no_candidate(rows: list[int]) -> SamplingError:
    message = f"logits of row {rows[0]} are all NaN or minus infinity; at least one must be above"
    return SamplingError(message, tuple(rows))
