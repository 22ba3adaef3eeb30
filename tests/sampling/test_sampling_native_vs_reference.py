"""The native sampler against the NumPy reference over random logits and parameters: the same tokens, the same bits."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton import _native
from pelton.core.errors import SamplingError
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken
from pelton.sampling import reference
from pelton.sampling.masks import count_mask_words
from pelton.sampling.row import SamplingRow
from pelton.sampling.sampler import Sampler

ORDINARY = st.floats(-30, 30, width=32)
COARSE = st.integers(-3, 3).map(float)
ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)
LOGITS = st.one_of(
    st.lists(ORDINARY, min_size=1, max_size=300),
    st.lists(COARSE, min_size=1, max_size=300),
    st.lists(ANY, min_size=1, max_size=40),
)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.one_of(st.sampled_from([0.0, 1.0, 5e-324, 100.0]), st.floats(0, 3)),
    top_k=st.sampled_from([0, -1, 1, 2, 3, 5, 20, 150, 1000]),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.1, 10)),
    presence_penalty=st.one_of(st.just(0.0), st.floats(-3, 3)),
    frequency_penalty=st.one_of(st.just(0.0), st.floats(-3, 3)),
    typical_p=st.one_of(st.just(1.0), st.floats(1e-6, 1)),
    xtc_probability=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    xtc_threshold=st.one_of(st.sampled_from([0.0, 0.1]), st.floats(0, 1)),
    mirostat=st.sampled_from([0, 0, 2]),
    mirostat_tau=st.floats(0.1, 10),
    mirostat_eta=st.floats(0, 2),
    dry_multiplier=st.one_of(st.just(0.0), st.floats(0, 5)),
    dry_base=st.floats(1, 4),
    dry_allowed_length=st.integers(1, 3),
    dry_range=st.sampled_from([0, -1, 1, 5, 100]),
    logprobs=st.sampled_from([None, 0, 1, 5, 128]),
)


@st.composite
def make_cases(draw: st.DrawFn) -> tuple[np.ndarray, SamplingRow]:
    logits = np.array(draw(LOGITS), dtype=np.float32)
    ids = st.integers(0, len(logits) - 1)
    params = draw(PARAMS)
    breakers = draw(st.lists(ids, max_size=3))
    params = dataclasses.replace(
        params,
        logit_bias=draw(st.dictionaries(ids, st.floats(-100, 100), max_size=3)),
        dry_sequence_breakers=(),
        dry_breaker_token_ids=tuple(breakers),
    )
    seed = draw(st.integers(0, 2**64 - 1))
    # Few different tokens, so that some repeat.
    history = st.lists(st.one_of(st.just(0), ids), max_size=12)
    num_words = count_mask_words(len(logits))
    words = st.sampled_from([0, 0xFFFFFFFF, 0x55555555, 1])
    mask = draw(st.one_of(st.none(), st.lists(words, min_size=num_words, max_size=num_words)))
    return logits, SamplingRow(
        params,
        seed,
        tuple(draw(history)),
        draw(history),
        draw(st.integers(0, 2**33)),
        draw(st.one_of(st.none(), st.floats(-5, 40))),
        None if mask is None else np.array(mask, np.uint32),
    )


def check_equal(native: SampledToken, expected: SampledToken) -> None:
    assert native.token_id == expected.token_id
    assert native.mirostat_mu == expected.mirostat_mu
    if expected.logprobs is None:
        assert native.logprobs is None
        return
    assert native.logprobs is not None
    assert native.logprobs.logprob == pytest.approx(expected.logprobs.logprob, abs=1e-5)
    assert [i for i, _ in native.logprobs.top] == [i for i, _ in expected.logprobs.top]
    native_top = [value for _, value in native.logprobs.top]
    assert native_top == pytest.approx([value for _, value in expected.logprobs.top], rel=1e-9, abs=1e-5)
    assert all(math.isfinite(value) for value in native_top)


@settings(derandomize=True, deadline=None, max_examples=1000, database=None)
@given(make_cases())
def test_native_sampler_equals_the_reference(case: tuple[np.ndarray, SamplingRow]) -> None:
    logits, row = case
    sampler = Sampler(len(logits))
    try:
        expected = reference.sample_reference(logits, row)
    except SamplingError:
        with pytest.raises(SamplingError):
            sampler.sample(logits[None, :], [row])
        return
    native = sampler.sample(logits[None, :], [row])[0]
    check_equal(native, expected)
    neighbour = SamplingRow(SamplingParams(top_k=2, logprobs=3), 5, (), (), 0)
    batch = np.stack([np.zeros_like(logits), logits, np.ones_like(logits)])
    assert sampler.sample(batch, [neighbour, row, neighbour])[1] == native


@pytest.mark.parametrize("seed", range(4))
def test_native_sampler_equals_the_reference_on_a_larger_vocabulary(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab_size = 5003
    logits = (rng.normal(size=vocab_size) * rng.choice([0.5, 2, 5])).astype(np.float32)
    for kwargs in (
        {"top_p": 0.999, "temperature": 3.0},
        {"top_k": 100, "top_p": 0.5},
        {"min_p": 0.001, "top_k": 4000},
        {"typical_p": 0.9},
        {"typical_p": 0.2, "top_k": 2000, "temperature": 2.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0005},
        {"mirostat": 2, "mirostat_tau": 3.0},
        {"mirostat": 2, "typical_p": 0.95, "xtc_probability": 0.5, "min_p": 1e-5},
    ):
        params = SamplingParams(logprobs=128, presence_penalty=0.5, **kwargs)  # type: ignore[arg-type]  # mixed types
        row = SamplingRow(params, seed, (), rng.integers(vocab_size, size=100).tolist(), seed)
        native = Sampler(vocab_size).sample(logits[None, :], [row])[0]
        check_equal(native, reference.sample_reference(logits, row))


@pytest.mark.parametrize("seed", range(4))
def test_adjusted_logits_equal_those_of_the_reference_with_long_repeats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    history = [int(i) for i in rng.integers(3, size=200)] + [0, 1, 2] * 20
    params = SamplingParams(
        dry_multiplier=0.8, dry_range=[0, 50][seed % 2], dry_sequence_breakers=(), dry_breaker_token_ids=(9,)
    )
    row = SamplingRow(params, 0, history[: 100 * seed], history[100 * seed :], 0)
    logits = rng.normal(size=10).astype(np.float32)
    expected = reference.adjust_logits(logits, row)
    assert _native.adjust_logits(logits, Sampler(10)._pack_row(row)) == 0
    assert logits.tolist() == expected.tolist()
    assert expected.min() < -100
