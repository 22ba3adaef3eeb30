"""typical_p, XTC and mirostat on four tokens, against values computed by hand; native and reference alike."""

from __future__ import annotations

import numpy as np
import pytest

from pelton.core.errors import InvalidParameterError
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken
from pelton.sampling import reference
from pelton.sampling.row import SamplingRow
from pelton.sampling.sampler import Sampler

# Probabilities 0.5, 0.3, 0.15, 0.05 of tokens 1, 3, 0, 2.
FOUR = np.log(np.array([0.15, 0.5, 0.05, 0.3])).astype(np.float32)


def draw_tokens(
    params: SamplingParams, num_draws: int = 200, mu: float | None = None, logits: np.ndarray = FOUR
) -> list[SampledToken]:
    """One token at each of the first output positions, native and reference compared bit for bit."""
    rows = [SamplingRow(params, 1, (), (), position, mu) for position in range(num_draws)]
    native = Sampler(len(logits)).sample(np.repeat(logits[None, :], num_draws, axis=0), rows)
    assert native == [reference.sample_reference(logits, row) for row in rows]
    return native


def find_drawn(params: SamplingParams, **options: object) -> set[int]:
    return {token.token_id for token in draw_tokens(params, **options)}  # type: ignore[arg-type]  # passed on


# Entropy 1.1421 nats; |-log p - H| is 0.0619, 0.4490, 0.7550, 1.8536 for tokens 3, 1, 0, 2, which is their order here.
@pytest.mark.parametrize(
    ("typical_p", "kept"),
    [
        (1e-9, {3}),
        (0.3, {3}),
        (0.31, {1, 3}),
        (0.8, {1, 3}),
        (0.81, {0, 1, 3}),
        (0.95, {0, 1, 3}),
        (0.96, {0, 1, 2, 3}),
    ],
)
def test_typical_p_keeps_the_tokens_nearest_to_the_entropy(typical_p: float, kept: set[int]) -> None:
    assert find_drawn(SamplingParams(typical_p=typical_p), num_draws=300) == kept


def test_typical_p_keeps_all_of_several_equally_typical_tokens() -> None:
    assert find_drawn(SamplingParams(typical_p=0.1), logits=np.zeros(4, np.float32)) == {0, 1, 2, 3}


def test_typical_p_counts_probabilities_among_those_kept_before() -> None:
    # Of 0.625 and 0.375 (entropy 0.6616) the first is nearer: 0.1916 against 0.3193.
    assert find_drawn(SamplingParams(typical_p=0.6, top_k=2)) == {1}
    assert find_drawn(SamplingParams(typical_p=0.63, top_k=2)) == {1, 3}


@pytest.mark.parametrize(
    ("threshold", "kept"),
    [(0.0, {2}), (0.05, {2}), (0.1, {0, 2}), (0.15, {0, 2}), (0.2, {0, 2, 3}), (0.3, {0, 2, 3}), (0.31, {0, 1, 2, 3}),
     (0.5, {0, 1, 2, 3}), (1.0, {0, 1, 2, 3})],
)  # fmt: skip
def test_xtc_leaves_the_least_likely_of_the_top_choices(threshold: float, kept: set[int]) -> None:
    assert find_drawn(SamplingParams(xtc_probability=1, xtc_threshold=threshold), num_draws=300) == kept


def test_xtc_counts_probabilities_among_those_kept_before() -> None:
    # 0.625 and 0.375 of the first two.
    assert find_drawn(SamplingParams(xtc_probability=1, xtc_threshold=0.35, top_k=2)) == {3}


def test_xtc_acts_with_its_probability_and_leaves_other_draws_as_they_were() -> None:
    plain = draw_tokens(SamplingParams(), 2000)
    mixed = draw_tokens(SamplingParams(xtc_probability=0.25, xtc_threshold=0.05), 2000)
    acted = [reference.xtc_number(1, position) < 0.25 for position in range(2000)]
    # Four standard deviations around 500.
    assert 420 < sum(acted) < 580
    for with_xtc, without, has_acted in zip(mixed, plain, acted, strict=True):
        assert with_xtc.token_id == (2 if has_acted else without.token_id)


def test_xtc_number_is_word_0_of_stream_1() -> None:
    word = reference.philox4x32((0, 1, 7, 0), (5, 0))[0]
    assert reference.xtc_number(5, 7) == (word + 0.5) / 2**32
    assert reference.xtc_number(5, 7) != reference.xtc_number(5, 8)


# Surprise in bits: 1, 1.737, 2.737, 4.322 for tokens 1, 3, 0, 2.
@pytest.mark.parametrize(
    ("mu", "kept"), [(-3.0, {1}), (0.5, {1}), (1.5, {1}), (2.0, {1, 3}), (3.0, {0, 1, 3}), (5.0, {0, 1, 2, 3})]
)
def test_mirostat_drops_tokens_that_surprise_more_than_mu(mu: float, kept: set[int]) -> None:
    assert find_drawn(SamplingParams(mirostat=2), num_draws=300, mu=mu) == kept


def test_mirostat_starts_at_twice_tau_and_moves_by_the_error() -> None:
    params = SamplingParams(mirostat=2, mirostat_tau=1.0, mirostat_eta=0.5)
    new_bounds = {token.token_id: token.mirostat_mu for token in draw_tokens(params)}
    # 2 - 0.5 * (surprise - 1)
    assert new_bounds == {1: pytest.approx(2.0, abs=1e-6), 3: pytest.approx(1.6315172, abs=1e-6)}


def test_mirostat_measures_surprise_before_it_cuts() -> None:
    # With mu 0.5 only token 1 is left; its surprise is still that of probability 0.5, 1 bit.
    params = SamplingParams(mirostat=2, mirostat_tau=3.0, mirostat_eta=1.0)
    assert draw_tokens(params, 1, mu=0.5)[0].mirostat_mu == pytest.approx(2.5, abs=1e-6)


def test_mirostat_brings_the_mean_surprise_to_tau() -> None:
    rng = np.random.default_rng(0)
    params = SamplingParams(mirostat=2, mirostat_tau=3.0)
    mu, surprises = None, []
    for position in range(1500):
        logits = (rng.normal(size=500) * 2).astype(np.float32)
        token = Sampler(500).sample(logits[None, :], [SamplingRow(params, 3, (), (), position, mu)])[0]
        mu = token.mirostat_mu
        exact = logits.astype(np.float64)
        surprises.append(-(exact[token.token_id] - np.log(np.exp(exact).sum())) / np.log(2))
    assert np.mean(surprises[100:]) == pytest.approx(3.0, abs=0.1)


def test_mirostat_leaves_greedy_requests_and_their_bound_alone() -> None:
    token = draw_tokens(SamplingParams(mirostat=2, temperature=0), 1, mu=0.1)[0]
    assert (token.token_id, token.mirostat_mu) == (1, 0.1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"typical_p": 0.0}, "typical_p is 0.0; allowed: more than 0 to 1"),
        ({"typical_p": float("nan")}, "typical_p is nan"),
        ({"xtc_probability": 1.1}, "xtc_probability is 1.1; allowed: 0 to 1"),
        ({"xtc_threshold": -0.1}, "xtc_threshold is -0.1"),
        ({"mirostat": 1}, r"mirostat is 1; allowed: 0 \(off\) or 2"),
        ({"mirostat": True}, "mirostat is True"),
        ({"mirostat_tau": 0}, "mirostat_tau is 0"),
        ({"mirostat_eta": float("inf")}, "mirostat_eta is inf"),
    ],
)
def test_values_outside_their_range_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        SamplingParams(**values)  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 100.0])
@pytest.mark.parametrize(
    "filters",
    [{"typical_p": 0.5}, {"xtc_probability": 1.0, "xtc_threshold": 0.0}, {"mirostat": 2, "mirostat_tau": 0.001}],
)
def test_extreme_temperatures_and_infinite_logits_always_give_a_token(
    temperature: float, filters: dict[str, float]
) -> None:
    params = SamplingParams(temperature=temperature, **filters)  # type: ignore[arg-type]  # mirostat is an int
    for logits in ([1, 3, 2, -np.inf], [np.inf, 0, np.inf, np.nan], [np.nan, np.nan, 1, 1]):
        draw_tokens(params, 20, logits=np.array(logits, np.float32))
