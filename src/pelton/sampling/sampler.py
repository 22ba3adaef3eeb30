"""Sample the rows of a step in one native call. Must not know where logits come from. Start at `Sampler`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pelton import _native
from pelton.core.errors import InvalidParameterError, PeltonError, SamplingError
from pelton.core.outputs import TokenLogprobs
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken
from pelton.sampling.row import SamplingRow

# RowStatus in native/sampling/row_params.h.
_STATUS_TOKEN_OUT_OF_RANGE = 2
_STATUS_NOTHING_ALLOWED = 3


class Sampler:
    """Turns logits into tokens for one vocabulary. Has no state: equal arguments give equal results.

    Rows are dealt out to the threads of `pool`; None means the caller's alone.
    """

    def __init__(self, vocab_size: int, pool: _native.ThreadPool | None = None) -> None:
        self.vocab_size = vocab_size
        self._pool = pool

    def sample(self, logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """Sample one token for each row of `logits` [R, vocab_size] f32, C-contiguous; they are not changed.

        A row's result depends on its own logits and `SamplingRow` only. Log-probabilities, where asked for, are the
        natural-log softmax of `logits` as given, with at most `params.logprobs` most likely tokens; tokens of
        probability 0 are not among them. NaN counts as minus infinity.

        Raises `SamplingError` if a row has no allowed logit above minus infinity, `InvalidParameterError` for logits or
        masks of another type or shape, token ids (bias, history read by a penalty) outside the vocabulary, and
        parameters whose strings nobody has turned into token ids (`ParamsResolver`).
        """
        tokens: list[SampledToken] = []
        errors: dict[int, SamplingError] = {}
        for number, result in enumerate(self.sample_each(logits, rows)):
            if isinstance(result, SampledToken):
                tokens.append(result)
            elif isinstance(result, SamplingError):
                errors[number] = result
            else:
                raise result
        if errors:
            numbers = ", ".join(map(str, errors))
            raise SamplingError(f"row {numbers} of the logits: {next(iter(errors.values()))}", tuple(errors))
        return tokens

    def sample_each(self, logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> list[SampledToken | PeltonError]:
        """Sample as `sample` does, but give the error of a row as its result, so that the other rows have theirs."""
        check_logits(logits, len(rows), self.vocab_size)
        if all(_is_plain_greedy(row) for row in rows):
            return [
                SampledToken(token_id, None) if token_id >= 0 else _make_no_candidate(row)
                for row, token_id in zip(rows, _native.argmax_rows(logits), strict=True)
            ]
        packed: list[_native.SamplingRowTuple] = []
        errors: dict[int, PeltonError] = {}
        for number, row in enumerate(rows):
            try:
                packed.append(self._pack_row(row))
            except InvalidParameterError as error:
                errors[number] = error
                packed.append(_GREEDY_ROW)
        results = _native.sample_rows(logits, packed, self._pool)
        return [
            errors[number] if number in errors else self._unpack(row, result)
            for number, (row, result) in enumerate(zip(rows, results, strict=True))
        ]

    def _pack_row(self, row: SamplingRow) -> _native.SamplingRowTuple:
        params = row.params
        has_dry = params.dry_multiplier != 0
        reads_prompt = params.repetition_penalty != 1 or has_dry
        reads_output = reads_prompt or params.presence_penalty != 0 or params.frequency_penalty != 0
        if params.logit_bias or has_dry:
            params.check_vocabulary(self.vocab_size)
        if params.needs_tokenizer:
            strings = (*params.bad_words, *params.dry_sequence_breakers)
            raise InvalidParameterError("strings of SamplingParams", strings, "token ids, made by ParamsResolver")
        if row.mask is not None:
            self._check_mask(row.mask)
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
            row.prompt_token_ids if reads_prompt else (),
            row.output_token_ids if reads_output else (),
            _pack_dry(params) if has_dry else None,
            _pack_weigh(row),
            row.mask,
        )

    def _check_mask(self, mask: NDArray[np.uint32]) -> None:
        num_words = -(-self.vocab_size // 32)
        if mask.shape != (num_words,) or mask.dtype != np.uint32 or not mask.flags.c_contiguous:
            raise InvalidParameterError("mask", f"{mask.dtype} {mask.shape}", f"C-contiguous uint32 ({num_words},)")

    def _unpack(self, row: SamplingRow, result: _native.SamplingResultTuple) -> SampledToken | PeltonError:
        status, token_id, logprob, top, mu = result
        if status == _STATUS_TOKEN_OUT_OF_RANGE:
            token_ids = (*row.prompt_token_ids, *row.output_token_ids)
            bad_id = next(i for i in token_ids if not 0 <= i < self.vocab_size)
            return InvalidParameterError("token history of a penalty", bad_id, f"token ids 0 to {self.vocab_size - 1}")
        if status == _STATUS_NOTHING_ALLOWED:
            return SamplingError(
                "no token is allowed: structure, allowed_token_ids, min_tokens and bad_words together rule out all",
                (0,),
            )
        if status != 0:
            return _make_no_candidate(row)
        logprobs = None if row.params.logprobs is None else TokenLogprobs(logprob, tuple(top))
        return SampledToken(token_id, logprobs, mu if row.params.mirostat else None)


# Stands for a row that has an error already.
_GREEDY_ROW: _native.SamplingRowTuple = (0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, 0, -1, [], (), (), None, None, None)


def _pack_dry(params: SamplingParams) -> _native.DryTuple:
    return (
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        params.dry_range,
        params.dry_breaker_token_ids,
    )


def _pack_weigh(row: SamplingRow) -> _native.WeighTuple | None:
    params = row.params
    if params.typical_p == 1 and params.xtc_probability == 0 and params.mirostat == 0:
        return None
    return (
        params.typical_p,
        params.xtc_probability,
        params.xtc_threshold,
        row.get_mirostat_bound(),
        params.mirostat_tau,
        params.mirostat_eta,
    )


def check_logits(logits: NDArray[np.float32], num_rows: int, vocab_size: int) -> None:
    """Raise `InvalidParameterError` unless `logits` is a C-contiguous float32 array [num_rows, vocab_size]."""
    if logits.shape != (num_rows, vocab_size) or logits.dtype != np.float32 or not logits.flags.c_contiguous:
        found = f"{logits.dtype} {logits.shape}{'' if logits.flags.c_contiguous else ', not C-contiguous'}"
        raise InvalidParameterError("logits", found, f"C-contiguous float32 ({num_rows}, {vocab_size})")


def _is_plain_greedy(row: SamplingRow) -> bool:
    params = row.params
    return (
        params.temperature == 0
        and row.mask is None
        and params.logprobs is None
        and params.repetition_penalty == 1
        and params.presence_penalty == 0
        and params.frequency_penalty == 0
        and params.dry_multiplier == 0
        and params.mirostat == 0
        and not params.logit_bias
        and not params.bad_words
    )


def _make_no_candidate(row: SamplingRow) -> SamplingError:
    which = "of the allowed tokens " if row.mask is not None else ""
    return SamplingError(f"the logits {which}are all NaN or minus infinity; at least one must be above", (0,))
