"""Pelton against `transformers` on random Llama models: every RoPE kind, head layout and block type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from distributions import get_logprobs_after, log_softmax
from gguf import GGMLQuantizationType as GgmlType
from golden_cases import GOLDEN_CASES, GoldenCase, hash_weights
from random_gguf import RandomLlama

from pelton import LLM, SamplingParams

WriteModel = Callable[[RandomLlama], Path]
Goldens = dict[str, dict[str, np.ndarray]]

# Largest and root-mean-square difference of log-probabilities that is still taken for rounding; the logits of these
# models have a standard deviation of 2, and a wrong head, position or scale changes them by that much. With
# quantised weights the activations are rounded to 8 bits, which random weights do not average out: llama.cpp's
# differences on these files, measured the same way on 2026-11-29, are 0.37 at most and 0.07 root-mean-square.
FLOAT_TOLERANCE = (1e-4, 2e-5)
QUANTISED_TOLERANCE = (0.5, 0.08)
FLOAT_TYPES = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)


@pytest.fixture(params=GOLDEN_CASES, ids=lambda case: case.name, scope="module")
def case(request: pytest.FixtureRequest) -> GoldenCase:
    """Every random model in turn."""
    return request.param


@pytest.fixture(scope="module")
def llm(case: GoldenCase, write_model: WriteModel) -> Iterator[LLM]:
    """The model of the case, with a KV cache in f32 so that only arithmetic is compared."""
    with LLM(write_model(case.model), threads=2, kv_cache_dtype="f32", kv_cache_tokens=8192) as llm:
        yield llm


def get_tolerance(case: GoldenCase) -> tuple[float, float]:
    """Largest and root-mean-square difference allowed."""
    return FLOAT_TOLERANCE if case.model.weight_type in FLOAT_TYPES else QUANTISED_TOLERANCE


def test_golden_was_made_with_these_weights(case: GoldenCase, tiny_goldens: Goldens) -> None:
    golden = tiny_goldens[case.name]
    assert str(golden["weights_sha256"]) == hash_weights(case.model)
    assert golden["token_ids"].tolist() == case.get_token_ids()


def test_distributions_match_at_every_position(case: GoldenCase, llm: LLM, tiny_goldens: Goldens) -> None:
    golden = tiny_goldens[case.name]
    token_ids = golden["token_ids"].tolist()
    ours = get_logprobs_after(llm, [token_ids[: p + 1] for p in golden["positions"].tolist()])
    difference = ours - log_softmax(golden["logits"])
    largest, root_mean_square = get_tolerance(case)
    assert np.abs(difference).max() <= largest
    assert np.sqrt((difference**2).mean()) <= root_mean_square


def test_scores_of_a_text_match(case: GoldenCase, llm: LLM, tiny_goldens: Goldens) -> None:
    golden = tiny_goldens[case.name]
    token_ids = golden["token_ids"].tolist()
    scores = llm.score(token_ids, 1)
    expected = log_softmax(golden["logits"])
    for row, position in enumerate(golden["positions"].tolist()[:-1]):
        assert scores[position] == pytest.approx(expected[row, token_ids[position + 1]], abs=get_tolerance(case)[0])


def test_greedy_tokens_agree_where_the_margin_is_clear(case: GoldenCase, llm: LLM, tiny_goldens: Goldens) -> None:
    golden = tiny_goldens[case.name]
    token_ids, greedy_ids = golden["token_ids"].tolist(), golden["greedy_ids"].tolist()
    rows = get_logprobs_after(llm, [token_ids + greedy_ids[:i] for i in range(len(greedy_ids))])
    is_clear = golden["greedy_margins"] > get_tolerance(case)[0]
    assert is_clear.any()
    assert rows.argmax(axis=-1)[is_clear].tolist() == golden["greedy_ids"][is_clear].tolist()


def test_free_generation_follows_the_golden(case: GoldenCase, llm: LLM, tiny_goldens: Goldens) -> None:
    golden = tiny_goldens[case.name]
    unclear = np.flatnonzero(golden["greedy_margins"] <= get_tolerance(case)[0])
    num_sure = int(unclear[0]) if unclear.size else len(golden["greedy_ids"])
    params = SamplingParams(max_tokens=len(golden["greedy_ids"]), temperature=0.0, ignore_eos=True)
    result = llm.generate([golden["token_ids"].tolist()], params)[0]
    assert result.token_ids[:num_sure] == tuple(golden["greedy_ids"].tolist()[:num_sure])
    assert len(result.token_ids) == len(golden["greedy_ids"])


@pytest.mark.parametrize("name", ["plain_gqa2", "rope_llama3", "long_context"])
def test_f16_kv_cache_costs_little_accuracy(name: str, write_model: WriteModel, tiny_goldens: Goldens) -> None:
    case = next(c for c in GOLDEN_CASES if c.name == name)
    golden = tiny_goldens[name]
    token_ids = golden["token_ids"].tolist()
    with LLM(write_model(case.model), threads=2, kv_cache_dtype="f16", kv_cache_tokens=8192) as llm:
        ours = get_logprobs_after(llm, [token_ids[: p + 1] for p in golden["positions"].tolist()])
    # f16 keeps 11 bits: 2^-11 of keys and values of size 1 to 3, summed over two or three layers.
    assert np.abs(ours - log_softmax(golden["logits"])).max() <= 2e-2
