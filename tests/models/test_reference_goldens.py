"""The NumPy reference, with the weights as Pelton packed them, against `transformers` on random Llama models.

Packing loses nothing and the reference quantises no activations, so quantised files are held to the same tolerance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from golden_cases import GOLDEN_CASES, GoldenCase
from random_gguf import RandomLlama

from pelton.compute.batch import make_batch
from pelton.compute.reference import ReferenceCache, run_reference
from pelton.core.config import EngineConfig
from pelton.loading.model import LoadedModel, load_model

WriteModel = Callable[[RandomLlama], Path]
Goldens = dict[str, dict[str, np.ndarray]]

# Relative to the largest logit; float32 sums of up to 256 products, taken in another order than torch takes them.
RELATIVE_TOLERANCE = 1e-5


@pytest.fixture(params=GOLDEN_CASES, ids=lambda case: case.name, scope="module")
def case(request: pytest.FixtureRequest) -> GoldenCase:
    """Every random model in turn."""
    return request.param


@pytest.fixture(scope="module")
def model(case: GoldenCase, write_model: WriteModel) -> LoadedModel:
    """The case's file, read by Pelton."""
    return load_model(write_model(case.model), EngineConfig(threads=1))


def test_configuration_is_read_as_it_was_written(case: GoldenCase, model: LoadedModel) -> None:
    config, written = model.config, case.model
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
    assert [getattr(config, n) for n in names] == [getattr(written, n) for n in names]
    assert config.tie_word_embeddings == written.is_tied
    assert config.max_position_embeddings == written.max_context
    assert config.norm_eps == pytest.approx(written.norm_eps, rel=1e-6)
    assert config.rope.theta == written.rope.theta
    assert config.rope.num_dims == written.head_dim
    assert config.rope.scaling == {"llama3": "factors"}.get(written.rope.scaling, written.rope.scaling)


def test_logits_match_at_every_position(case: GoldenCase, model: LoadedModel, tiny_goldens: Goldens) -> None:
    golden = tiny_goldens[case.name]
    batch = make_batch([(golden["token_ids"].tolist(), 0, [])], golden["positions"].tolist())
    logits = run_reference(model.forward, batch, ReferenceCache("f32"))
    assert logits.shape == golden["logits"].shape
    assert np.abs(logits - golden["logits"]).max() <= RELATIVE_TOLERANCE * np.abs(golden["logits"]).max()


@pytest.mark.parametrize("split", [1, 9])
def test_logits_match_when_the_prompt_comes_in_parts(
    case: GoldenCase, model: LoadedModel, tiny_goldens: Goldens, split: int
) -> None:
    golden = tiny_goldens[case.name]
    token_ids, cache = golden["token_ids"].tolist(), ReferenceCache("f32")
    starts = [0, split, len(token_ids) - 1, len(token_ids)]
    for start, stop in itertools.pairwise(starts):
        logits = run_reference(model.forward, make_batch([(token_ids[start:stop], start, [])]), cache)
    assert np.abs(logits[0] - golden["logits"][-1]).max() <= RELATIVE_TOLERANCE * np.abs(golden["logits"]).max()


def test_sequences_of_a_batch_do_not_see_each_other(
    case: GoldenCase, model: LoadedModel, tiny_goldens: Goldens
) -> None:
    golden = tiny_goldens[case.name]
    token_ids = golden["token_ids"].tolist()
    others = [token_ids[::-1], token_ids[3:8]]
    batch = make_batch([(others[0], 0, []), (token_ids, 0, []), (others[1], 0, [])])
    logits = run_reference(model.forward, batch, ReferenceCache("f32"))
    assert np.abs(logits[1] - golden["logits"][-1]).max() <= RELATIVE_TOLERANCE * np.abs(golden["logits"]).max()
