"""Each sampling parameter on a few tokens, against values computed by hand; native and reference alike."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from pelton import _native
from pelton.core.errors import InvalidParameterError, SamplingError
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken
from pelton.sampling import reference
from pelton.sampling.row import SamplingRow
from pelton.sampling.sampler import Sampler

# Probabilities 0.5, 0.3, 0.15, 0.05 in no particular order of ids.
FOUR = np.log(np.array([0.15, 0.5, 0.05, 0.3])).astype(np.float32)
LOGITS = [0, 1, -1, 2, 4, -2, 3, 1.5]


def make_row(params: SamplingParams, position: int = 0, seed: int = 1, prompt=(), output=()) -> SamplingRow:
    return SamplingRow(params, seed, prompt, output, position)


def sample_one(logits: object, params: SamplingParams, **row: object) -> SampledToken:
    array = np.array(logits, dtype=np.float32)
    sampling_row = make_row(params, **row)
    native = Sampler(len(array)).sample(array[None, :], [sampling_row])[0]
    expected = reference.sample_reference(array, sampling_row)
    assert native.token_id == expected.token_id
    return native


def draw_ids(logits: object, params: SamplingParams, num_draws: int = 200) -> Counter[int]:
    array = np.array(logits, dtype=np.float32)
    batch = np.repeat(array[None, :], num_draws, axis=0)
    rows = [make_row(params, position) for position in range(num_draws)]
    native = [token.token_id for token in Sampler(len(array)).sample(batch, rows)]
    assert native == [reference.sample_reference(array, row).token_id for row in rows]
    return Counter(native)


def adjust(logits: object, params: SamplingParams, prompt=(), output=()) -> list[float]:
    array = np.array(logits, dtype=np.float32)
    row = make_row(params, prompt=prompt, output=output)
    expected = reference.adjust_logits(array, row)
    status = _native.adjust_logits(array, Sampler(len(array))._pack_row(row))
    assert status == 0
    assert array.tolist() == expected.tolist()
    return array.tolist()


def test_temperature_0_takes_the_most_likely_token() -> None:
    assert sample_one(FOUR, SamplingParams(temperature=0)).token_id == 1


def test_temperature_0_takes_the_lowest_id_among_equals() -> None:
    assert sample_one([1, 3, 3, 2], SamplingParams(temperature=0)).token_id == 1
    assert sample_one([-0.0, 0.0, 0.0, -0.0], SamplingParams(temperature=0)).token_id == 0


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-30, 1e-6, 5e-324])
def test_tiny_temperatures_take_the_most_likely_token_without_overflow(temperature: float) -> None:
    for position in range(20):
        token = sample_one([2, 50, 49], SamplingParams(temperature=temperature, logprobs=3), position=position)
        assert token.token_id == 1
        assert token.logprobs is not None
        assert token.logprobs.logprob == pytest.approx(-math.log(1 + math.exp(-1)), abs=1e-9)
        assert all(math.isfinite(logprob) for _, logprob in token.logprobs.top)


def test_temperature_changes_the_odds_as_its_definition_says() -> None:
    counts = draw_ids([math.log(4), 0.0], SamplingParams(temperature=0.5), 1000)
    assert counts[0] / 1000 == pytest.approx(16 / 17, abs=0.03)
    counts = draw_ids([math.log(4), 0.0], SamplingParams(temperature=2.0), 1000)
    assert counts[0] / 1000 == pytest.approx(2 / 3, abs=0.05)


@pytest.mark.parametrize("top_k", [0, -1, 4, 99])
def test_top_k_of_zero_minus_one_or_at_least_the_vocabulary_keeps_all(top_k: int) -> None:
    counts = draw_ids([1, 1, 1, 1], SamplingParams(top_k=top_k), 400)
    assert sorted(counts) == [0, 1, 2, 3]
    assert all(60 <= count <= 140 for count in counts.values())


def test_top_k_of_1_always_takes_the_lowest_of_equal_tokens() -> None:
    assert draw_ids([1, 1, 1, 1], SamplingParams(top_k=1), 400) == {0: 400}


def test_top_k_of_minus_2_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="top_k is -2"):
        SamplingParams(top_k=-2)


@pytest.mark.parametrize(("top_k", "kept"), [(1, {1}), (2, {1, 3}), (3, {0, 1, 3})])
def test_top_k_keeps_the_k_most_likely_tokens(top_k: int, kept: set[int]) -> None:
    assert set(draw_ids(FOUR, SamplingParams(top_k=top_k))) == kept


def test_top_k_prefers_lower_ids_among_equals_at_the_border() -> None:
    assert set(draw_ids([0, 2, 0, 2, 0, 2], SamplingParams(top_k=2))) == {1, 3}
    assert set(draw_ids([0, 2, 0, 2, 0, 2], SamplingParams(top_k=4))) == {0, 1, 3, 5}


# 0.5 reaches 0.5 and 0.5 + 0.3 reaches 0.8, although float32 logits cannot hold their logarithms exactly.
@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-9, {1}), (0.3, {1}), (0.5, {1}), (0.51, {1, 3}), (0.8, {1, 3}), (0.81, {0, 1, 3}), (0.95, {0, 1, 3}),
     (0.96, {0, 1, 2, 3}), (0.9999999, {0, 1, 2, 3})],
)  # fmt: skip
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, kept: set[int]) -> None:
    assert set(draw_ids(FOUR, SamplingParams(top_p=top_p))) == kept


def test_top_p_prefers_lower_ids_among_equals() -> None:
    assert set(draw_ids([1, 1, 1, 1], SamplingParams(top_p=0.5))) == {0, 1}


def test_top_p_counts_probabilities_after_temperature() -> None:
    # Squares of the four: 0.25, 0.09, 0.0225, 0.0025, sum 0.365; the first two are 0.9315 of it.
    assert set(draw_ids(FOUR, SamplingParams(top_p=0.9, temperature=0.5))) == {1, 3}
    assert set(draw_ids(FOUR, SamplingParams(top_p=0.9, temperature=1.0))) == {0, 1, 3}


def test_top_p_counts_probabilities_among_those_top_k_keeps() -> None:
    # Of 0.5 and 0.3 the first is 0.625.
    assert set(draw_ids(FOUR, SamplingParams(top_p=0.6, top_k=2))) == {1}
    assert set(draw_ids(FOUR, SamplingParams(top_p=0.6))) == {1, 3}


@pytest.mark.parametrize(
    ("min_p", "kept"), [(0.05, {0, 1, 2, 3}), (0.1, {0, 1, 2, 3}), (0.11, {0, 1, 3}), (0.3, {0, 1, 3}),
                        (0.31, {1, 3}), (0.6, {1, 3}), (0.61, {1}), (1.0, {1})],
)  # fmt: skip
def test_min_p_drops_tokens_below_that_part_of_the_most_likely(min_p: float, kept: set[int]) -> None:
    assert set(draw_ids(FOUR, SamplingParams(min_p=min_p), 300)) == kept


def test_logit_bias_is_added_to_its_tokens_only() -> None:
    params = SamplingParams(logit_bias={0: 2.5, 2: -100})
    assert adjust([0, 1, 2, 3], params) == [2.5, 1, -98, 3]
    assert sample_one([0, 1, 2, 3], SamplingParams(temperature=0, logit_bias={0: 4})).token_id == 0
    assert set(draw_ids([0, 0, 0, 0], SamplingParams(logit_bias={1: -100, 2: -100}))) == {0, 3}


def test_presence_and_frequency_penalties_count_output_tokens_only() -> None:
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=1)
    assert adjust(LOGITS, params, prompt=(5, 5, 6), output=(7, 7)) == [0, 1, -1, 2, 4, -2, 3, -0.5]


def test_repetition_penalty_counts_prompt_and_output_once_per_token() -> None:
    params = SamplingParams(repetition_penalty=2)
    assert adjust(LOGITS, params, prompt=(5, 5, 6), output=(7, 7)) == [0, 1, -1, 2, 4, -4, 1.5, 0.75]


def test_penalties_follow_bias_in_the_documented_order() -> None:
    # (-1 + 3) / 2 - (1 + 2 * 0.25): any other order gives another number.
    params = SamplingParams(logit_bias={0: 3}, repetition_penalty=2, presence_penalty=1, frequency_penalty=0.25)
    assert adjust([-1, 5], params, output=(0, 0)) == [-0.5, 5]


def test_penalties_of_a_row_do_not_depend_on_longer_neighbours() -> None:
    params = SamplingParams(temperature=0, repetition_penalty=2, frequency_penalty=0.5, logprobs=2)
    logits = np.array([LOGITS, LOGITS], dtype=np.float32)
    short = make_row(params, prompt=(4,), output=(4, 4))
    long = make_row(params, prompt=tuple(range(8)) * 20, output=(0,) * 30)
    alone = Sampler(8).sample(logits[:1], [short])
    assert Sampler(8).sample(logits, [short, long])[0] == alone[0]
    assert Sampler(8).sample(logits, [long, short])[1] == alone[0]
    # Token 4: 4 / 2 - 2 * 0.5 = 1, so 6, with 3, is the best.
    assert alone[0].token_id == 6


DISABLED = {
    "top_k": [0, -1, 4],
    "top_p": [1.0],
    "min_p": [0.0],
    "repetition_penalty": [1.0],
    "presence_penalty": [0.0],
    "frequency_penalty": [0.0],
    "logit_bias": [{}, {1: 0.0}],
    "typical_p": [1.0],
    "xtc_probability": [0.0],
    "mirostat": [0],
    "dry_multiplier": [0.0],
    "min_tokens": [0],
    "allowed_token_ids": [None],
    "bad_words": [()],
    "temperature": [1.0],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in DISABLED.items() for value in values])
def test_disabled_parameter_changes_nothing(name: str, value: object) -> None:
    logits = np.tile(np.random.default_rng(3).normal(size=4).astype(np.float32), (64, 1))
    plain = [make_row(SamplingParams(logprobs=4), p, prompt=(0, 1), output=(1, 2)) for p in range(64)]
    rows = [
        make_row(SamplingParams(logprobs=4, **{name: value}), p, prompt=(0, 1), output=(1, 2))  # type: ignore[arg-type]  # any field
        for p in range(64)
    ]
    assert Sampler(4).sample(logits, rows) == Sampler(4).sample(logits, plain)


def test_logits_are_left_as_they_were() -> None:
    logits = FOUR[None, :].copy()
    logits.flags.writeable = False
    params = SamplingParams(logit_bias={0: 5}, repetition_penalty=2, top_k=2, logprobs=1)
    Sampler(4).sample(logits, [make_row(params, prompt=(1,), output=(2,))])
    np.testing.assert_array_equal(logits[0], FOUR)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_counts_as_minus_infinity(temperature: float) -> None:
    logits = [math.nan, 1.0, math.nan, -math.inf]
    for position in range(20):
        params = SamplingParams(temperature=temperature, logprobs=4, top_p=0.99, min_p=0.01, top_k=3)
        token = sample_one(logits, params, position=position)
        assert token.token_id == 1
        assert token.logprobs is not None
        assert token.logprobs.logprob == 0.0
        assert token.logprobs.top == ((1, 0.0),)


def test_infinite_logits_share_all_probability() -> None:
    logits = [math.inf, 5.0, math.inf, math.nan]
    assert sample_one(logits, SamplingParams(temperature=0)).token_id == 0
    counts = draw_ids(logits, SamplingParams(), 400)
    assert sorted(counts) == [0, 2]
    assert 150 <= counts[0] <= 250
    token = sample_one(logits, SamplingParams(logprobs=4))
    assert token.logprobs is not None
    assert token.logprobs.top == ((0, -math.log(2)), (2, -math.log(2)))


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(top_p=0.5), SamplingParams(top_k=1)])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_row_without_any_candidate_is_an_error_that_names_it(params: SamplingParams, bad: float) -> None:
    logits = np.array([[1, 2], [bad, bad], [3, 4]], dtype=np.float32)
    with pytest.raises(SamplingError, match="row 1 ") as caught:
        Sampler(2).sample(logits, [make_row(params)] * 3)
    assert caught.value.rows == (1,)


@pytest.mark.parametrize("bad_id", [8, -1, 2**31, 2**80])
def test_token_id_outside_the_vocabulary_is_refused_and_harms_nobody(bad_id: int) -> None:
    logits = np.array([LOGITS, LOGITS], dtype=np.float32)
    neighbour = make_row(SamplingParams(temperature=0, repetition_penalty=1.5), output=(4,))
    for params, prompt, output in [
        (SamplingParams(repetition_penalty=2), (bad_id,), ()),
        (SamplingParams(repetition_penalty=2), (), (bad_id,)),
        (SamplingParams(frequency_penalty=2), (), (bad_id,)),
    ]:
        with pytest.raises(InvalidParameterError, match=rf"history.* is {bad_id}; .*0 to 7"):
            Sampler(8).sample(logits, [make_row(params, prompt=prompt, output=output), neighbour])
    if bad_id > 0:
        with pytest.raises(InvalidParameterError, match=f"logit_bias is {bad_id}"):
            Sampler(8).sample(logits, [make_row(SamplingParams(logit_bias={bad_id: 1})), neighbour])
    assert Sampler(8).sample(logits[1:], [neighbour])[0].token_id == 6


@pytest.mark.parametrize(
    "logits",
    [np.zeros((1, 4), np.float64), np.zeros((2, 4), np.float32), np.zeros((1, 5), np.float32),
     np.zeros(4, np.float32), np.zeros((1, 8), np.float32)[:, ::2]],
)  # fmt: skip
def test_logits_of_another_type_or_shape_are_refused(logits: np.ndarray) -> None:
    with pytest.raises(InvalidParameterError, match=r"logits is .*allowed: C-contiguous float32 \(1, 4\)"):
        Sampler(4).sample(logits, [make_row(SamplingParams())])


def test_no_rows_give_no_tokens() -> None:
    assert Sampler(4).sample(np.zeros((0, 4), np.float32), []) == []
