"""/v1/embeddings with the `openai` package and a tiny real model: values, forms, the same bits in any company."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from compat_engine import TINY_OPTIONS, LiveServer

from pelton import LLM, SamplingParams
from pelton.compute.batch import make_batch
from pelton.compute.reference import ReferenceCache, run_reference
from pelton.core.config import EngineConfig
from pelton.loading.model import load_model

HIDDEN_SIZE = 64
PATH = "/v1/embeddings"


@pytest.fixture
def client(tiny: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=tiny.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def make_ids(seed: int, num_tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 96, num_tokens).tolist()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_the_references_hidden_states(tiny: LiveServer, tiny_path: Path, pooling: str) -> None:
    ids = make_ids(1, 40)
    body = {"input": ids, "pooling": pooling, "normalize": False}
    vector = tiny.client.post(PATH, json=body).json()["data"][0]["embedding"]
    model = load_model(tiny_path, EngineConfig(threads=1))
    hidden = run_reference(model.forward_hidden, make_batch([(ids, 0, [])], list(range(40))), ReferenceCache("f32"))
    expected = hidden.mean(axis=0) if pooling == "mean" else hidden[-1]
    assert np.abs(np.array(vector) - expected).max() <= 1e-4 * np.abs(hidden).max()


def test_the_openai_package_gets_unit_vectors_in_order(client: openai.OpenAI) -> None:
    texts = ["one", "two three", "one"]
    answer = client.embeddings.create(model="tiny", input=texts)
    vectors = np.array([item.embedding for item in answer.data])
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert vectors.shape == (3, HIDDEN_SIZE)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(3), abs=1e-6)
    assert np.array_equal(vectors[0], vectors[2])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 3
    assert answer.timings["prompt_n"] == answer.usage.prompt_tokens


def test_base64_and_numbers_are_the_same(tiny: LiveServer) -> None:
    plain = tiny.client.post(PATH, json={"input": "x"}).json()["data"][0]["embedding"]
    coded = tiny.client.post(PATH, json={"input": "x", "encoding_format": "base64"}).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(coded), "<f4").tolist() == plain


def test_a_vector_is_the_same_bits_alone_in_a_batch_and_beside_generations(tiny: LiveServer) -> None:
    inputs = [make_ids(n, n) for n in (300, 1, 17, 64, 129)]
    alone = [tiny.client.post(PATH, json={"input": ids}).json()["data"][0]["embedding"] for ids in inputs]

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=tiny.url, timeout=60) as client:
            body = {"prompt": make_ids(9, 50), "max_tokens": 60, "ignore_eos": True}
            generations = [client.post("/v1/completions", json=body) for _ in range(3)]
            embeddings = [client.post(PATH, json={"input": [ids, *inputs]}) for ids in inputs]
            return await asyncio.gather(*embeddings, *generations)

    responses = asyncio.run(together())
    assert all(response.status_code == 200 for response in responses)
    for ids, response in zip(inputs, responses, strict=False):
        vectors = [item["embedding"] for item in response.json()["data"]]
        assert vectors[1:] == alone
        assert vectors[0] == alone[inputs.index(ids)]


def test_generations_are_the_same_bits_beside_embeddings(tiny: LiveServer, tiny_path: Path) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.9, seed=5, ignore_eos=True)
    prompt = make_ids(3, 30)
    with LLM(tiny_path, **TINY_OPTIONS) as llm:
        expected = list(llm.generate([prompt], params)[0].token_ids)

    async def together() -> dict:
        async with httpx.AsyncClient(base_url=tiny.url, timeout=60) as client:
            body = {"prompt": prompt, "max_tokens": 40, "temperature": 0.9, "seed": 5, "ignore_eos": True}
            calls = [client.post(PATH, json={"input": make_ids(n, 200)}) for n in range(4)]
            answers = await asyncio.gather(
                client.post("/v1/completions", json={**body, "return_token_ids": True}), *calls
            )
            return answers[0].json()

    assert asyncio.run(together())["choices"][0]["token_ids"] == expected


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [[5], [10**6]]}, "input[1]"),
        ({"input": [5, -1]}, "input"),
        ({"input": None}, "input"),
        ({"input": ["a"] * 300}, "input"),
        ({"input": [7] * 5000}, "input"),
        ({"dimensions": 5}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"pooling": "max"}, "pooling"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)
def test_what_is_not_possible_is_named(tiny: LiveServer, fields: dict, parameter: str) -> None:
    response = tiny.client.post(PATH, json={"input": "x", **fields})
    assert response.status_code == 400
    assert parameter in response.json()["error"]["message"]


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nobody", input="x")
