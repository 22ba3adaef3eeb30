"""Tokens and log-probabilities of a request are the same bits in chunks, in a batch, on threads, without a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as GgmlType
from random_gguf import RandomLlama, random_words

from pelton import LLM, SamplingParams
from pelton._native import available_isas
from pelton.core.config import KV_CACHE_DTYPES
from pelton.core.outputs import GenerationResult

WriteModel = Callable[[RandomLlama], Path]

_SMALL = RandomLlama(name="same_f32")
_SUPER_BLOCKS = RandomLlama(
    name="same_q4_k", hidden_size=256, num_heads=8, head_dim=32, intermediate_size=512, weight_type=GgmlType.Q4_K
)
MODELS = [
    _SMALL,
    replace(_SMALL, name="same_f16", weight_type=GgmlType.F16),
    replace(_SMALL, name="same_q8_0", weight_type=GgmlType.Q8_0),
    replace(_SMALL, name="same_q4_1", weight_type=GgmlType.Q4_1, vocab_size=101, num_kv_heads=1),
    _SUPER_BLOCKS,
    replace(_SUPER_BLOCKS, name="same_q6_k", weight_type=GgmlType.Q6_K),
]
# More than one attention span, and no multiple of a tile, a block or a chunk.
LONG_PROMPT_TOKENS = 301


def make_prompt(key: str, num_tokens: int, vocab_size: int) -> list[int]:
    """Random ids that depend on `key` only."""
    return [int(word) % vocab_size for word in random_words(key, num_tokens)]


def sampled(seed: int, num_tokens: int = 10) -> SamplingParams:
    """Parameters under which every bit of the logits matters: sampled tokens, log-probabilities reported."""
    return SamplingParams(max_tokens=num_tokens, temperature=0.9, top_p=0.95, seed=seed, logprobs=5, ignore_eos=True)


def get_answer(result: GenerationResult) -> tuple[object, ...]:
    """What must be equal, compared exactly: ids and log-probabilities."""
    assert result.logprobs is not None
    return result.token_ids, tuple((step.logprob, step.top) for step in result.logprobs)


def run(
    path: Path, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], **options: object
) -> list[object]:
    """Answers to `prompts` computed together by a fresh engine."""
    with LLM(path, **{"threads": 1, "kv_cache_tokens": 8192, **options}) as llm:
        return [get_answer(result) for result in llm.generate([list(p) for p in prompts], list(params))]


@pytest.fixture(params=MODELS, ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> RandomLlama:
    """Each weight format that has a path of its own."""
    return request.param


def test_chunked_prefill_gives_the_same_bits(model: RandomLlama, write_model: WriteModel) -> None:
    path = write_model(model)
    prompt, params = make_prompt("chunks", LONG_PROMPT_TOKENS, model.vocab_size), [sampled(11)]
    whole = run(path, [prompt], params)
    for chunk in (1, 7, 64):
        assert run(path, [prompt], params, prefill_chunk=chunk) == whole, f"chunks of {chunk}"


def test_threads_give_the_same_bits(model: RandomLlama, write_model: WriteModel) -> None:
    path = write_model(model)
    prompt, params = make_prompt("threads", LONG_PROMPT_TOKENS, model.vocab_size), [sampled(12)]
    one = run(path, [prompt], params, threads=1)
    for threads in (2, 3):
        assert run(path, [prompt], params, threads=threads) == one, f"{threads} threads"


def test_every_isa_gives_the_same_bits(model: RandomLlama, write_model: WriteModel) -> None:
    # More than the promise: reductions are defined on 16 lanes whatever the registers (docs/architecture.md).
    path = write_model(model)
    prompt, params = make_prompt("isa", LONG_PROMPT_TOKENS, model.vocab_size), [sampled(15)]
    scalar = run(path, [prompt], params, isa="scalar")
    for isa in available_isas()[1:]:
        assert run(path, [prompt], params, isa=isa) == scalar, isa


def test_the_environment_chooses_the_isa(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_ISA", "scalar")
    with LLM(write_model(_SMALL), threads=1, kv_cache_tokens=64) as llm:
        assert llm.runner.isa == "scalar"
    if "avx2" in available_isas():
        with LLM(write_model(_SMALL), threads=1, kv_cache_tokens=64, isa="avx2") as llm:
            assert llm.runner.isa == "avx2"


def test_a_batch_of_different_prompts_gives_the_same_bits(model: RandomLlama, write_model: WriteModel) -> None:
    path = write_model(model)
    lengths = (1, 2, 5, 17, 64, 65, LONG_PROMPT_TOKENS)
    prompts = [make_prompt(f"batch {i}", n, model.vocab_size) for i, n in enumerate(lengths)]
    params = [sampled(20 + i, num_tokens=6 + i) for i in range(len(prompts))]
    alone = [run(path, [prompt], [param])[0] for prompt, param in zip(prompts, params, strict=True)]
    assert run(path, prompts, params, threads=2) == alone
    assert run(path, prompts[::-1], params[::-1], threads=2, prefill_chunk=50) == alone[::-1]


def test_recomputing_without_kv_cache_gives_the_same_bits(model: RandomLlama, write_model: WriteModel) -> None:
    path = write_model(model)
    prompt, params = make_prompt("no cache", 40, model.vocab_size), [sampled(13, num_tokens=6)]
    assert run(path, [prompt], params, use_kv_cache=False) == run(path, [prompt], params)


@pytest.mark.parametrize("kv_cache_dtype", KV_CACHE_DTYPES)
def test_every_kv_cache_dtype_keeps_the_promise(kv_cache_dtype: str, write_model: WriteModel) -> None:
    path = write_model(_SMALL)
    prompts = [make_prompt(f"kv {i}", n, _SMALL.vocab_size) for i, n in enumerate((3, LONG_PROMPT_TOKENS))]
    params = [sampled(31), sampled(32)]
    together = run(path, prompts, params, kv_cache_dtype=kv_cache_dtype, prefill_chunk=7, threads=2)
    alone = [run(path, [p], [q], kv_cache_dtype=kv_cache_dtype)[0] for p, q in zip(prompts, params, strict=True)]
    assert together == alone


def test_scores_equal_reported_log_probabilities(model: RandomLlama, write_model: WriteModel) -> None:
    prompt = make_prompt("scores", 60, model.vocab_size)
    with LLM(write_model(model), threads=2, kv_cache_tokens=2048) as llm:
        result = llm.generate([prompt], SamplingParams(max_tokens=8, temperature=0.0, logprobs=0, ignore_eos=True))[0]
        scores = llm.score([*prompt, *result.token_ids], len(prompt))
    assert result.logprobs is not None
    # The two are rounded to f32 in different places, at most one unit of the last place of a number below 16.
    assert scores.tolist() == pytest.approx([step.logprob for step in result.logprobs], abs=1e-6)
