"""Hidden states: against the NumPy reference and the goldens' logits; the same bits in any batch and any chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType
from golden_cases import GOLDEN_CASES
from random_gguf import RandomLlama, make_tensors, random_words

from pelton import LLM, SamplingParams
from pelton.compute.batch import make_batch
from pelton.compute.reference import ReferenceCache, run_reference
from pelton.core.config import EngineConfig
from pelton.core.embedding import EmbeddingParams
from pelton.engine.embedding import EmbeddingQueue, EmbeddingRequest
from pelton.execution.runner import ModelRunner
from pelton.loading.model import load_model

WriteModel = Callable[[RandomLlama], Path]
CASE = GOLDEN_CASES[0]
# More than one attention span, and no multiple of a tile, a block or a chunk; then short ones.
LENGTHS = (301, 1, 17, 2, 64, 65)


def make_texts(vocab_size: int) -> list[tuple[int, ...]]:
    return [tuple(int(w) % vocab_size for w in random_words(f"embed {n}", n)) for n in LENGTHS]


def embed(
    runner: ModelRunner, texts: list[tuple[int, ...]], params: EmbeddingParams, max_tokens: int = 2048
) -> list[bytes]:
    queue, request = EmbeddingQueue(runner), EmbeddingRequest(texts, params)
    queue.add(request)
    while queue.has_work:
        queue.step(max_tokens)
    return [request.vectors[i].tobytes() for i in range(len(texts))]


def test_output_matrix_times_hidden_states_gives_the_golden_logits(
    write_model: WriteModel, tiny_goldens: dict[str, dict[str, np.ndarray]]
) -> None:
    golden = tiny_goldens[CASE.name]
    model = load_model(write_model(CASE.model), EngineConfig(threads=1))
    batch = make_batch([(golden["token_ids"].tolist(), 0, [])], golden["positions"].tolist())
    hidden = run_reference(model.forward_hidden, batch, ReferenceCache("f32"))
    output = next(t for t in make_tensors(CASE.model) if t.name == "output.weight").dequantize()
    assert np.abs(hidden @ output.T - golden["logits"]).max() <= 1e-5 * np.abs(golden["logits"]).max()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_native_embeddings_match_the_reference(write_model: WriteModel, pooling: str) -> None:
    config = EngineConfig(threads=2, kv_cache_tokens=1024, kv_cache_dtype="f32")
    model = load_model(write_model(CASE.model), config)
    runner = ModelRunner(model, config)
    texts = make_texts(CASE.model.vocab_size)
    vectors = embed(runner, texts, EmbeddingParams(pooling=pooling, normalize=False))
    for text, vector in zip(texts, vectors, strict=True):
        batch = make_batch([(list(text), 0, [])], list(range(len(text))))
        hidden = run_reference(model.forward_hidden, batch, ReferenceCache("f32"))
        expected = hidden.mean(axis=0, dtype=np.float64) if pooling == "mean" else hidden[-1]
        assert np.abs(np.frombuffer(vector, np.float32) - expected).max() <= 1e-4 * np.abs(hidden).max()


@pytest.mark.parametrize("weight_type", [GgmlType.F32, GgmlType.Q8_0])
def test_an_embedding_is_the_same_bits_alone_in_a_batch_and_in_chunks(
    write_model: WriteModel, weight_type: GgmlType
) -> None:
    random_model = RandomLlama(name=f"embed_{weight_type.name}", weight_type=weight_type)
    config = EngineConfig(threads=2, kv_cache_tokens=1024)
    runner = ModelRunner(load_model(write_model(random_model), config), config)
    texts = make_texts(random_model.vocab_size)
    params = EmbeddingParams()
    alone = [embed(runner, [text], params)[0] for text in texts]
    assert embed(runner, texts, params) == alone
    assert embed(runner, texts[::-1], params) == alone[::-1]
    for chunk in (1, 7, 50):
        assert embed(runner, texts, params, chunk) == alone, f"chunks of {chunk}"


def test_llm_embeds_texts_and_token_ids_alike(write_model: WriteModel) -> None:
    with LLM(write_model(CASE.model), threads=1, kv_cache_tokens=1024) as llm:
        texts = ["Some words", "and more of them"]
        ids = [llm.tokenizer.encode(text) for text in texts]
        vectors = llm.embed(texts)
        assert vectors.shape == (2, CASE.model.hidden_size)
        assert np.array_equal(vectors, llm.embed(ids))
        assert np.array_equal(vectors[1], llm.embed(texts[1])[0])
        assert llm.generate("Some words", SamplingParams(max_tokens=1))[0].token_ids
