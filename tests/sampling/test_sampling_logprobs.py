"""Log-probabilities: always of the raw logits; checked against numbers computed by hand and with NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pelton.core.errors import InvalidParameterError, SamplingError
from pelton.core.outputs import TokenLogprobs
from pelton.core.sampling_params import SamplingParams
from pelton.sampling.logprobs import log_softmax_at
from pelton.sampling.row import SamplingRow
from pelton.sampling.sampler import Sampler

RAW = [-0.44019, -1.44019, -2.44019, -3.44019]


def sample(logits: object, params: SamplingParams, position: int = 0) -> tuple[int, TokenLogprobs | None]:
    array = np.array([logits], dtype=np.float32)
    token = Sampler(array.shape[1]).sample(array, [SamplingRow(params, 1, (0,), (0,), position)])[0]
    return token.token_id, token.logprobs


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 7.0])
def test_logprobs_are_those_of_the_raw_logits_whatever_the_parameters(temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature, top_p=0.5, top_k=3, logprobs=4, repetition_penalty=1.3, logit_bias={3: 2}
    )
    token_id, logprobs = sample([2, 1, 0, -1], params)
    assert logprobs is not None
    assert [i for i, _ in logprobs.top] == [0, 1, 2, 3]
    assert [value for _, value in logprobs.top] == pytest.approx(RAW, abs=5e-6)
    assert logprobs.logprob == pytest.approx(RAW[token_id], abs=5e-6)


def test_logprobs_0_reports_the_chosen_token_only() -> None:
    token_id, logprobs = sample([2, 1, 0, -1], SamplingParams(temperature=0, logprobs=0))
    assert (token_id, logprobs) == (0, TokenLogprobs(pytest.approx(RAW[0], abs=5e-6), ()))  # type: ignore[arg-type]  # approx


def test_logprobs_unset_reports_none() -> None:
    assert sample([2, 1, 0, -1], SamplingParams(temperature=0))[1] is None
    assert sample([2, 1, 0, -1], SamplingParams())[1] is None


def test_chosen_token_outside_the_top_is_reported_beside_it() -> None:
    token_id, logprobs = sample([2, 1, 0, -1], SamplingParams(temperature=0, logprobs=2, logit_bias={3: 50}))
    assert token_id == 3
    assert logprobs is not None
    assert logprobs.logprob == pytest.approx(RAW[3], abs=5e-6)
    assert [i for i, _ in logprobs.top] == [0, 1]


def test_top_is_sorted_with_ties_by_lower_id_and_ends_with_the_vocabulary() -> None:
    _, logprobs = sample([1, 3, 1, 3, 2], SamplingParams(temperature=0, logprobs=20))
    assert logprobs is not None
    assert [i for i, _ in logprobs.top] == [1, 3, 4, 0, 2]


def test_tokens_of_probability_0_are_not_in_the_top() -> None:
    _, logprobs = sample([1, -math.inf, 0, math.nan], SamplingParams(temperature=0, logprobs=4))
    assert logprobs is not None
    assert [i for i, _ in logprobs.top] == [0, 2]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 127, 128, 129, 1000, 49152])
def test_log_softmax_at_agrees_with_numpy_in_float64(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = (rng.normal(size=(5, vocab_size)) * np.array([[0.1], [1], [5], [30], [300]])).astype(np.float32)
    targets = rng.integers(vocab_size, size=5)
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    expected = (exact - np.log(np.exp(exact).sum(axis=1, keepdims=True)))[np.arange(5), targets]
    found = log_softmax_at(logits, targets)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(log_softmax_at(logits[2:3], [int(targets[2])]), found[2:3])


def test_log_softmax_at_handles_nan_and_infinities() -> None:
    inf, nan = math.inf, math.nan
    logits = np.array([[0, nan, 0, -inf], [inf, 0, inf, nan], [0, nan, 0, -inf]], dtype=np.float32)
    np.testing.assert_allclose(log_softmax_at(logits, [0, 2, 1]), [-math.log(2), -math.log(2), -inf])
    with pytest.raises(SamplingError, match="row 1 "):
        log_softmax_at(np.array([[0, 0], [nan, -inf]], dtype=np.float32), [0, 1])


def test_log_softmax_at_refuses_wrong_targets_and_logits() -> None:
    logits = np.zeros((2, 4), dtype=np.float32)
    for targets in ([0, 4], [-1, 0], [0, 2**40]):
        with pytest.raises(InvalidParameterError, match=r"targets is .*0 to 3"):
            log_softmax_at(logits, targets)
    with pytest.raises(InvalidParameterError, match="targets"):
        log_softmax_at(logits, np.array([0.5, 1.5]))  # type: ignore[arg-type]  # the wrong type is the point
    with pytest.raises(InvalidParameterError, match="logits"):
        log_softmax_at(logits, [0, 1, 2])
    with pytest.raises(InvalidParameterError, match="logits"):
        log_softmax_at(logits.astype(np.float64), [0, 1])  # type: ignore[arg-type]  # the wrong type is the point
    assert log_softmax_at(logits[:0], []).shape == (0,)
