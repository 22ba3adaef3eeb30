"""The random part: Philox against its published vectors, Gumbel noise, and the frequencies of draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pelton import _native
from pelton.core.sampling_params import SamplingParams
from pelton.sampling import reference
from pelton.sampling.row import SamplingRow
from pelton.sampling.sampler import Sampler

# counter, key, result: "philox4x32 10" in the kat_vectors file of Random123, the authors' library.
PHILOX_VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PHILOX_VECTORS)
def test_philox_gives_its_published_vectors(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert tuple(_native.philox4x32(counter, key)) == expected
    assert reference.philox4x32(counter, key) == expected


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (7, 3), (2**64 - 1, 2**40 + 5), (2**32, 2**32 - 1)])
def test_noise_is_minus_log_minus_log_of_the_philox_word_of_the_token(seed: int, position: int) -> None:
    expected = []
    for token_id in range(11):
        counter = (token_id // 4, 0, position % 2**32, position // 2**32)
        word = reference.philox4x32(counter, (seed % 2**32, seed // 2**32))[token_id % 4]
        expected.append(-math.log(-math.log((word + 0.5) / 2**32)))
    native = [_native.gumbel_noise(seed, position, token_id) for token_id in range(11)]
    assert native == pytest.approx(expected, rel=1e-14)
    assert reference.gumbel_noise(seed, position, 11).tolist() == pytest.approx(expected, rel=1e-14)


def test_noise_has_mean_and_variance_of_the_gumbel_distribution() -> None:
    noise = np.array([_native.gumbel_noise(5, 0, token_id) for token_id in range(20000)])
    # Standard errors: 0.0091 for the mean, about 0.025 for the variance.
    assert noise.mean() == pytest.approx(0.5772156649, abs=0.03)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.09)


@pytest.mark.parametrize("seed", [1, 2**63 + 12345])
def test_draw_frequencies_match_probabilities_by_chi_square(seed: int) -> None:
    probabilities = np.array([0.3, 0.02, 0.2, 0.05, 0.13, 0.1, 0.15, 0.05])
    num_draws = 20000
    logits = np.tile(np.log(probabilities).astype(np.float32), (num_draws, 1))
    params = SamplingParams()
    rows = [SamplingRow(params, seed, (), (), position) for position in range(num_draws)]
    counts = np.bincount([token.token_id for token in Sampler(8).sample(logits, rows)], minlength=8)
    expected = probabilities * num_draws
    # 99.9 % quantile of chi-square with 7 degrees of freedom.
    assert ((counts - expected) ** 2 / expected).sum() < 24.32


def test_draw_frequencies_over_seeds_match_too() -> None:
    probabilities = np.array([0.6, 0.3, 0.1])
    num_draws = 10000
    logits = np.tile(np.log(probabilities).astype(np.float32), (num_draws, 1))
    rows = [SamplingRow(SamplingParams(), seed, (), (), 0) for seed in range(num_draws)]
    counts = np.bincount([token.token_id for token in Sampler(3).sample(logits, rows)], minlength=3)
    expected = probabilities * num_draws
    # 99.9 % quantile with 2 degrees of freedom.
    assert ((counts - expected) ** 2 / expected).sum() < 13.82


@pytest.mark.parametrize("filters", [{}, {"top_k": 37}, {"top_p": 0.9}, {"min_p": 0.02}, {"top_k": 900, "top_p": 0.7}])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0, 40.0])
def test_skipping_tokens_that_cannot_win_changes_no_draw(filters: dict[str, float], spread: float) -> None:
    vocab_size = 2500
    rng = np.random.default_rng(int(spread * 100) + len(filters))
    params = SamplingParams(temperature=0.8, **filters)  # type: ignore[arg-type]  # top_k is an int
    for position in range(3):
        logits = (rng.normal(size=vocab_size) * spread).astype(np.float32)
        row = SamplingRow(params, 11, (), (), position)
        native = Sampler(vocab_size).sample(logits[None, :], [row])[0]
        assert native.token_id == reference.sample_reference(logits, row).token_id


def test_unlikely_token_wins_exactly_when_its_noise_says_so() -> None:
    # Logits chosen from the noise itself, so that a token far from the best wins or loses by 1e-3.
    noise = reference.gumbel_noise(3, 0, 400)
    token_id = 399
    best_other = float(noise[:300].max())
    for margin, wins in [(1e-3, True), (-1e-3, False)]:
        logits = np.full(400, -np.inf, dtype=np.float32)
        logits[:300] = 0.0
        logits[token_id] = best_other - float(noise[token_id]) + margin
        row = SamplingRow(SamplingParams(), 3, (), (), 0)
        token = Sampler(400).sample(logits[None, :], [row])[0]
        assert (token.token_id == token_id) is wins


def test_request_draws_the_same_tokens_whatever_shares_its_batch() -> None:
    vocab_size = 97
    rng = np.random.default_rng(1)
    logits = {name: rng.normal(size=(16, vocab_size)).astype(np.float32) * 2 for name in "abc"}
    params = {"a": SamplingParams(temperature=0.8), "b": SamplingParams(), "c": SamplingParams(top_k=5, logprobs=2)}
    seeds = {"a": 42, "b": 987654321, "c": 7}

    def run(joins: dict[str, int], order: str) -> list[int]:
        ids = []
        for step in range(16):
            names = [name for name in order if step >= joins.get(name, 99)]
            rows = [SamplingRow(params[n], seeds[n], (), (), step - joins[n]) for n in names]
            batch = np.stack([logits[n][step - joins[n]] for n in names])
            tokens = Sampler(vocab_size).sample(batch, rows)
            ids.append(tokens[names.index("a")].token_id)
        return ids

    alone = run({"a": 0}, "a")
    assert len(set(alone)) > 4
    assert run({"a": 0, "b": 0}, "ab") == alone
    assert run({"a": 0, "b": 4, "c": 4}, "abc") == alone
    assert run({"a": 0, "b": 4, "c": 0}, "cba") == alone


def test_seed_and_position_each_change_the_draw() -> None:
    logits = np.zeros((64, 1000), dtype=np.float32)
    params = SamplingParams()
    by_position = Sampler(1000).sample(logits, [SamplingRow(params, 1, (), (), i) for i in range(64)])
    by_seed = Sampler(1000).sample(logits, [SamplingRow(params, i, (), (), 1) for i in range(64)])
    assert len({token.token_id for token in by_position}) > 50
    assert len({token.token_id for token in by_seed}) > 50
