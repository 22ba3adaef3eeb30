"""Sampling in NumPy, one function per parameter: the oracle of the tests, and the place to read what each does.

Slow and obvious, bit for bit what the native sampler gives; must not import the native module. Start at
`sample_reference`, then docs/sampling.md.
Throughout: `logits` [V] f32, `scaled` [V] f64 (0 for the most likely token), `kept` [V] bool, which filters narrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pelton.core.errors import SamplingError
from pelton.core.outputs import TokenLogprobs
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken
from pelton.sampling.portable_math import LN2, LOG2_E, exp_nonpositive, log_positive
from pelton.sampling.row import SamplingRow

Logits = NDArray[np.float32]
Scaled = NDArray[np.float64]
Mask = NDArray[np.bool_]
Masses = NDArray[np.int64]

# Equals kProbabilityTolerance in native/sampling/filters.h, where the reason stands.
PROBABILITY_TOLERANCE = 1e-6

# kMassUnits, kMinScaledWithMass, kXtcStream and kMaxPenalty of native/sampling.
_MASS_UNITS = 2.0**40
_MIN_SCALED_WITH_MASS = -29.0
_XTC_STREAM = 1
_MAX_PENALTY = 1e100


def sample_reference(logits: Logits, row: SamplingRow) -> SampledToken:
    """Sample one token from `logits` [V] f32. Raises `SamplingError` if none is above minus infinity."""
    params = row.params
    adjusted = adjust_logits(logits, row)
    if np.all(np.isneginf(adjusted)):
        raise SamplingError("all logits are NaN or minus infinity, or not allowed", (0,))
    bound = row.get_mirostat_bound()
    if params.is_greedy:
        token_id = int(np.argmax(adjusted))
    else:
        scaled = scale_by_temperature(adjusted, params.temperature)
        kept = filter_tokens(adjusted, scaled, row)
        log_sum = find_log_sum(scaled, kept)
        if bound is not None:
            kept = limit_surprise(scaled, kept, log_sum, bound)
        token_id = draw(scaled, kept, row.seed, row.position)
        if bound is not None:
            bound = update_mirostat(params, bound, log_sum, float(scaled[token_id]))
    logprobs = None if params.logprobs is None else find_logprobs(logits, token_id, params.logprobs)
    return SampledToken(token_id, logprobs, bound)


def filter_tokens(logits: Logits, scaled: Scaled, row: SamplingRow) -> Mask:
    """Apply all filters but mirostat, in order."""
    params = row.params
    kept: Mask = logits > -np.inf
    kept = keep_top_k(logits, kept, params.top_k)
    kept = keep_top_p(logits, scaled, kept, params.top_p)
    kept = keep_min_p(scaled, kept, params.min_p)
    kept = keep_typical(scaled, kept, params.typical_p)
    if xtc_number(row.seed, row.position) < params.xtc_probability:
        kept = exclude_top_choices(logits, scaled, kept, params.xtc_threshold)
    return kept


def adjust_logits(logits: Logits, row: SamplingRow) -> Logits:
    """Return a copy of `logits` with NaN made minus infinity, then mask, logit_bias and the penalties applied."""
    params = row.params
    adjusted = np.where(np.isnan(logits), np.float32(-np.inf), logits).astype(np.float32)
    if row.mask is not None:
        apply_mask(adjusted, row.mask)
    add_logit_bias(adjusted, params.logit_bias)
    penalize_repetition(adjusted, [*row.prompt_token_ids, *row.output_token_ids], params.repetition_penalty)
    penalize_output(adjusted, row.output_token_ids, params.presence_penalty, params.frequency_penalty)
    penalize_repeats(adjusted, [*row.prompt_token_ids, *row.output_token_ids], params)
    return adjusted


def apply_mask(logits: Logits, mask: NDArray[np.uint32]) -> None:
    """Set the logits of tokens whose bit (i % 32 of word i // 32) is not set to minus infinity, in place."""
    token_ids = np.arange(len(logits), dtype=np.uint32)
    is_allowed = (mask[token_ids // 32] >> (token_ids % 32)) & 1
    logits[is_allowed == 0] = -np.inf


def add_logit_bias(logits: Logits, logit_bias: Mapping[int, float]) -> None:
    """Add each bias to its token's logit, in place."""
    for token_id, bias in logit_bias.items():
        logits[token_id] = _to_float32(float(logits[token_id]) + bias)


def penalize_repetition(logits: Logits, token_ids: Iterable[int], penalty: float) -> None:
    """Divide the positive and multiply the other logits of all distinct `token_ids` by `penalty`, in place."""
    if penalty == 1:
        return
    for token_id in set(token_ids):
        logit = float(logits[token_id])
        logits[token_id] = _to_float32(logit / penalty if logit > 0 else logit * penalty)


def penalize_output(logits: Logits, token_ids: Sequence[int], presence: float, frequency: float) -> None:
    """Subtract `presence` once, and `frequency` times its count, from the logit of each of `token_ids`, in place."""
    for token_id, count in Counter(token_ids).items():
        logits[token_id] = _to_float32(float(logits[token_id]) - (presence + frequency * count))


def penalize_repeats(logits: Logits, token_ids: Sequence[int], params: SamplingParams) -> None:
    """DRY: subtract multiplier * base^(L - allowed_length) from each token that would repeat L tokens, in place."""
    if params.dry_multiplier == 0:
        return
    history = list(token_ids)[-params.dry_range :] if params.dry_range > 0 else list(token_ids)
    longest = find_repeat_lengths(history, frozenset(params.dry_breaker_token_ids))
    for token_id, length in longest.items():
        if length >= params.dry_allowed_length:
            penalty = params.dry_multiplier
            for _ in range(length - params.dry_allowed_length):
                if penalty >= _MAX_PENALTY or params.dry_base == 1:
                    break
                penalty *= params.dry_base
            logits[token_id] = _to_float32(float(logits[token_id]) - penalty)


def find_repeat_lengths(history: Sequence[int], breakers: Collection[int]) -> dict[int, int]:
    """For each token that followed an earlier copy of the history's end: the length of the longest such copy.

    No copy holds a breaker, and breakers themselves are left out.
    """
    longest: dict[int, int] = {}
    for end in range(len(history) - 1):
        length = 0
        while length <= end and history[end - length] == history[-1 - length] not in breakers:
            length += 1
        following = history[end + 1]
        if length > longest.get(following, 0) and following not in breakers:
            longest[following] = length
    return longest


def _to_float32(value: float) -> np.float32:
    with np.errstate(over="ignore"):
        rounded: np.float32 = np.float32(value)
    return rounded


def scale_by_temperature(logits: Logits, temperature: float) -> Scaled:
    """Return (logits - max) / temperature. If the largest is +inf, tokens that have it get 0, the others -inf."""
    largest = logits.max()
    if np.isposinf(largest):
        return np.where(logits == largest, 0.0, -np.inf)
    with np.errstate(over="ignore"):
        return (logits.astype(np.float64) - float(largest)) / temperature


def rank_tokens(logits: Logits) -> NDArray[np.intp]:
    """Token ids by descending logit, then ascending id."""
    return np.argsort(-logits, kind="stable")


def keep_top_k(logits: Logits, kept: Mask, top_k: int) -> Mask:
    """Keep the `top_k` best-ranked tokens; 0 and -1 keep all."""
    if top_k <= 0:
        return kept
    narrowed = np.zeros_like(kept)
    narrowed[rank_tokens(logits)[:top_k]] = True
    return narrowed & kept


def keep_top_p(logits: Logits, scaled: Scaled, kept: Mask, top_p: float) -> Mask:
    """Keep the fewest best-ranked tokens whose probability, among those kept so far, reaches `top_p`; 1 keeps all."""
    if top_p == 1:
        return kept
    ranked = rank_tokens(logits)
    cumulative = np.cumsum(find_masses(scaled, kept)[ranked])
    num_kept = 1 + int(np.count_nonzero(cumulative < find_target_mass(top_p, int(cumulative[-1]))))
    narrowed = np.zeros_like(kept)
    narrowed[ranked[:num_kept]] = True
    return narrowed & kept


def find_masses(scaled: Scaled, kept: Mask) -> Masses:
    """Probability masses [V] i64 in units of 2^-40 of the most likely token's; 0 for tokens that are not kept."""
    masses = np.floor(exp_nonpositive(scaled) * _MASS_UNITS + 0.5).astype(np.int64)
    return np.where(kept & (scaled > _MIN_SCALED_WITH_MASS), masses, 0)


def find_target_mass(p: float, total: int) -> int:
    """Mass that counts as having reached probability `p` of `total`; at least 1."""
    return min(int(max((p - PROBABILITY_TOLERANCE) * float(total), 1.0)), total)


def keep_min_p(scaled: Scaled, kept: Mask, min_p: float) -> Mask:
    """Keep tokens at least `min_p` times as likely as the most likely one; 0 keeps all."""
    if min_p == 0:
        return kept
    likely_enough: Mask = scaled >= log_positive(np.array([min_p]))[0] - PROBABILITY_TOLERANCE
    return kept & likely_enough


def keep_typical(scaled: Scaled, kept: Mask, typical_p: float) -> Mask:
    """Keep the fewest tokens with log-probability nearest to its mean whose probability reaches `typical_p`.

    Meister et al. 2022 (arXiv 2202.00666). Tokens as near as the last one are kept too; 1 keeps all.
    """
    if typical_p == 1:
        return kept
    masses = find_masses(scaled, kept)
    with_mass = np.flatnonzero(masses)
    products = masses[with_mass].astype(np.float64) * scaled[with_mass]
    mean = np.add.accumulate(products)[-1] / float(masses.sum())  # accumulate adds one after the other
    distances = np.abs(scaled - mean)
    nearest_first = with_mass[np.argsort(distances[with_mass], kind="stable")]
    cumulative = np.cumsum(masses[nearest_first])
    num_kept = 1 + int(np.count_nonzero(cumulative < find_target_mass(typical_p, int(cumulative[-1]))))
    near_enough: Mask = distances <= distances[nearest_first[num_kept - 1]]
    return kept & near_enough


def xtc_number(seed: int, position: int) -> float:
    """Random number in (0, 1) that decides whether XTC acts at an output position."""
    return (_philox_words(_XTC_STREAM, 0, seed, position)[0] + 0.5) / 2**32


def exclude_top_choices(logits: Logits, scaled: Scaled, kept: Mask, threshold: float) -> Mask:
    """XTC: of the tokens whose probability reaches `threshold` keep the least likely one, and all below."""
    masses = find_masses(scaled, kept)
    bound = (threshold - PROBABILITY_TOLERANCE) * float(masses.sum())
    top_choices = [i for i in rank_tokens(logits) if kept[i] and scaled[i] > -np.inf and masses[i] >= bound]
    narrowed = kept & (scaled > -np.inf)
    narrowed[top_choices[:-1]] = False
    return narrowed


def find_log_sum(scaled: Scaled, kept: Mask) -> float:
    """Log of the sum of exp(scaled) over the kept tokens, at least one unit of mass."""
    total = max(int(find_masses(scaled, kept).sum()), 1)
    return float(log_positive(np.array([float(total) / _MASS_UNITS]))[0])


def limit_surprise(scaled: Scaled, kept: Mask, log_sum: float, mu: float) -> Mask:
    """Mirostat 2: drop tokens whose surprise, log_sum - scaled in bits, exceeds `mu`; the most likely one stays."""
    bound = min(log_sum - mu * LN2, float(scaled[kept].max()))
    expected_enough: Mask = scaled >= bound
    return kept & expected_enough


def update_mirostat(params: SamplingParams, mu: float, log_sum: float, scaled: float) -> float:
    """Bound for the next token, mu - eta * (surprise - tau), after one with this scaled logit was drawn."""
    surprise = (log_sum - scaled) * LOG2_E
    return mu - params.mirostat_eta * (surprise - params.mirostat_tau)


def draw(scaled: Scaled, kept: Mask, seed: int, position: int) -> int:
    """Return the kept token with the largest scaled logit + noise, the lowest id among equals."""
    scores = np.where(kept, scaled + gumbel_noise(seed, position, len(scaled)), -np.inf)
    return int(np.argmax(scores))


def gumbel_noise(seed: int, position: int, vocab_size: int) -> Scaled:
    """Return the noise of tokens 0..vocab_size-1 at an output position: [vocab_size] f64, standard Gumbel."""
    words: list[int] = []
    for block in range((vocab_size + 3) // 4):
        words += _philox_words(0, block, seed, position)
    uniform = (np.array(words[:vocab_size], dtype=np.float64) + 0.5) * 2.0**-32
    return -log_positive(-log_positive(uniform))


def _philox_words(stream: int, block: int, seed: int, position: int) -> tuple[int, int, int, int]:
    return philox4x32((block, stream, position & 0xFFFFFFFF, position >> 32), (seed & 0xFFFFFFFF, seed >> 32))


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of four and two 32-bit words (Salmon et al., SC 2011, section 3.3)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def find_logprobs(logits: Logits, token_id: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities of `token_id` and of the `num_top` most likely tokens under the raw `logits`."""
    clean = np.where(np.isnan(logits), np.float32(-np.inf), logits).astype(np.float32)
    scaled = scale_by_temperature(clean, 1.0)
    logprobs = scaled - np.log(np.exp(scaled).sum())
    best = rank_tokens(clean)[:num_top]
    top = tuple((int(i), float(logprobs[i])) for i in best if logprobs[i] > -np.inf)
    return TokenLogprobs(float(logprobs[token_id]), top)
