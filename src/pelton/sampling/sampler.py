"""Sample the rows of a step in one native call. Must not know where logits come from. Start at `Sampler`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pelton import _native
from pelton.core.errors import InvalidParameterError, SamplingError
from pelton.core.outputs import TokenLogprobs
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken
from pelton.sampling.row import SamplingRow

# RowStatus in native/sampling/row_params.h.
_STATUS_NO_CANDIDATE = 1
_STATUS_TOKEN_OUT_OF_RANGE = 2


class Sampler:
    """Turns logits into tokens for one vocabulary. Has no state: equal arguments give equal results."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def sample(self, logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """Sample one token for each row of `logits` [R, vocab_size] f32, C-contiguous; they are not changed.

        A row's result depends on its own logits and `SamplingRow` only. Log-probabilities, where asked for, are the
        natural-log softmax of `logits` as given, with at most `params.logprobs` most likely tokens; tokens of
        probability 0 are not among them. NaN counts as minus infinity.

        Raises `SamplingError` if a row has no logit above minus infinity, `InvalidParameterError` for logits of
        another type or shape and for token ids (bias, history read by a penalty) outside the vocabulary.
        """
        check_logits(logits, len(rows), self.vocab_size)
        if all(_is_plain_greedy(row.params) for row in rows):
            token_ids = _native.argmax_rows(logits)
            if min(token_ids, default=0) < 0:
                raise _no_candidate([r for r, token_id in enumerate(token_ids) if token_id < 0])
            return [SampledToken(token_id, None) for token_id in token_ids]
        results = _native.sample_rows(logits, [self._pack_row(row) for row in rows])
        self._check_statuses(rows, [result[0] for result in results])
        return [
            SampledToken(token_id, None if row.params.logprobs is None else TokenLogprobs(logprob, tuple(top)))
            for row, (_, token_id, logprob, top) in zip(rows, results, strict=True)
        ]

    def _pack_row(self, row: SamplingRow) -> _native.SamplingRowTuple:
        params = row.params
        has_repetition = params.repetition_penalty != 1
        has_output_penalty = params.presence_penalty != 0 or params.frequency_penalty != 0
        if params.logit_bias:
            params.check_vocabulary(self.vocab_size)
        return (
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            row.seed,
            row.position,
            -1 if params.logprobs is None else params.logprobs,
            list(params.logit_bias.items()),
            row.prompt_token_ids if has_repetition else (),
            row.output_token_ids if has_repetition or has_output_penalty else (),
        )

    def _check_statuses(self, rows: Sequence[SamplingRow], statuses: Sequence[int]) -> None:
        if not any(statuses):
            return
        for row, status in zip(rows, statuses, strict=True):
            if status == _STATUS_TOKEN_OUT_OF_RANGE:
                token_ids = (*row.prompt_token_ids, *row.output_token_ids)
                bad_id = next(i for i in token_ids if not 0 <= i < self.vocab_size)
                raise InvalidParameterError(
                    "token history of a penalty", bad_id, f"token ids 0 to {self.vocab_size - 1}"
                )
        raise _no_candidate([r for r, status in enumerate(statuses) if status == _STATUS_NO_CANDIDATE])


def check_logits(logits: NDArray[np.float32], num_rows: int, vocab_size: int) -> None:
    """Raise `InvalidParameterError` unless `logits` is a C-contiguous float32 array [num_rows, vocab_size]."""
    if logits.shape != (num_rows, vocab_size) or logits.dtype != np.float32 or not logits.flags.c_contiguous:
        found = f"{logits.dtype} {logits.shape}{'' if logits.flags.c_contiguous else ', not C-contiguous'}"
        raise InvalidParameterError("logits", found, f"C-contiguous float32 ({num_rows}, {vocab_size})")


def _is_plain_greedy(params: SamplingParams) -> bool:
    return (
        params.temperature == 0
        and params.logprobs is None
        and params.repetition_penalty == 1
        and params.presence_penalty == 0
        and params.frequency_penalty == 0
        and not params.logit_bias
    )


def _no_candidate(rows: list[int]) -> SamplingError:
    numbers = ", ".join(map(str, rows))
    return SamplingError(
        f"logits of row {numbers} are all NaN or minus infinity; at least one must be above", tuple(rows)
    )
