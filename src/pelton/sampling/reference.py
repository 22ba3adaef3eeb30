"""Sampling in NumPy, one function per parameter: the oracle of the tests, and the place to read what each does.

Slow and obvious; must not import the native module. Start at `sample_reference`, then docs/sampling.md.
Throughout: `logits` [V] f32, `scaled` [V] f64 (0 for the most likely token), `kept` [V] bool, which filters narrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pelton.core.errors import SamplingError
from pelton.core.outputs import TokenLogprobs
from pelton.core.step_plan import SampledToken
from pelton.sampling.row import SamplingRow

Logits = NDArray[np.float32]
Scaled = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Equals kProbabilityTolerance in native/sampling/filters.h, where the reason stands.
PROBABILITY_TOLERANCE = 1e-6


def sample_reference(logits: Logits, row: SamplingRow) -> SampledToken:
    """Sample one token from `logits` [V] f32. Raises `SamplingError` if none is above minus infinity."""
    params = row.params
    adjusted = adjust_logits(logits, row)
    if np.all(np.isneginf(adjusted)):
        raise SamplingError("all logits are NaN or minus infinity", (0,))
    if params.is_greedy:
        token_id = int(np.argmax(adjusted))
    else:
        scaled = scale_by_temperature(adjusted, params.temperature)
        kept = adjusted > -np.inf
        kept = keep_top_k(adjusted, kept, params.top_k)
        kept = keep_top_p(adjusted, scaled, kept, params.top_p)
        kept = keep_min_p(scaled, kept, params.min_p)
        token_id = draw(scaled, kept, row.seed, row.position)
    return SampledToken(token_id, None if params.logprobs is None else find_logprobs(logits, token_id, params.logprobs))


def adjust_logits(logits: Logits, row: SamplingRow) -> Logits:
    """Return a copy of `logits` with NaN made minus infinity, then logit_bias and the penalties applied."""
    params = row.params
    adjusted = np.where(np.isnan(logits), np.float32(-np.inf), logits).astype(np.float32)
    add_logit_bias(adjusted, params.logit_bias)
    penalize_repetition(adjusted, [*row.prompt_token_ids, *row.output_token_ids], params.repetition_penalty)
    penalize_output(adjusted, row.output_token_ids, params.presence_penalty, params.frequency_penalty)
    return adjusted


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
    weights = np.where(kept, np.exp(scaled), 0.0)[ranked]
    cumulative = np.cumsum(weights)
    num_kept = 1 + int(np.count_nonzero(cumulative < (top_p - PROBABILITY_TOLERANCE) * cumulative[-1]))
    narrowed = np.zeros_like(kept)
    narrowed[ranked[:num_kept]] = True
    return narrowed & kept


def keep_min_p(scaled: Scaled, kept: Mask, min_p: float) -> Mask:
    """Keep tokens at least `min_p` times as likely as the most likely one; 0 keeps all."""
    if min_p == 0:
        return kept
    likely_enough: Mask = scaled >= np.log(min_p) - PROBABILITY_TOLERANCE
    return kept & likely_enough


def draw(scaled: Scaled, kept: Mask, seed: int, position: int) -> int:
    """Return the kept token with the largest scaled logit + noise, the lowest id among equals."""
    scores = np.where(kept, scaled + gumbel_noise(seed, position, len(scaled)), -np.inf)
    return int(np.argmax(scores))


def gumbel_noise(seed: int, position: int, vocab_size: int) -> Scaled:
    """Return the noise of tokens 0..vocab_size-1 at an output position: [vocab_size] f64, standard Gumbel."""
    words: list[int] = []
    for block in range((vocab_size + 3) // 4):
        words += philox4x32((block, 0, position & 0xFFFFFFFF, position >> 32), (seed & 0xFFFFFFFF, seed >> 32))
    uniform = (np.array(words[:vocab_size], dtype=np.float64) + 0.5) / 2**32
    return -np.log(-np.log(uniform))


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
