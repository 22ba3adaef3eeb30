"""A request that reuses K/V of others, shared or copied, gets the bits it gets from a cold cache, for each KV dtype.

Stored K/V depend on tokens and positions alone, but for int4 keys: their center is the mean of the block before, which
depends on the same tokens. The runner is the real one, on a tiny random model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from random_gguf import RandomLlama, random_words

from pelton import LLM, SamplingParams
from pelton._native import KV_BLOCK_TOKENS, KvCache
from pelton.core.config import KV_CACHE_DTYPES
from pelton.core.request import Request
from pelton.engine.core import EngineCore

WriteModel = Callable[[RandomLlama], Path]

_MODEL = RandomLlama(name="warm_cold")
# Ragged: around one, two and three blocks, within a block, and past an attention span of 256.
LENGTHS = (1, 2, 15, 16, 17, 20, 31, 32, 33, 47, 100, 257, 290)


def make_prompt(key: str, num_tokens: int) -> list[int]:
    return [int(word) % _MODEL.vocab_size for word in random_words(key, num_tokens)]


def sampled(seed: int, num_tokens: int = 6) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=0.9, seed=seed, logprobs=5, ignore_eos=True)


def answer(llm: LLM, prompts: Sequence[Sequence[int]], first_seed: int = 0) -> list[tuple[object, ...]]:
    """Ids and log-probabilities, every bit of them."""
    params = [sampled(first_seed + i) for i in range(len(prompts))]
    results = llm.generate([list(p) for p in prompts], params)
    return [(r.token_ids, tuple((step.logprob, step.top) for step in r.logprobs or ())) for r in results]


@pytest.fixture(params=KV_CACHE_DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


def open_llm(path: Path, dtype: str, **options: object) -> LLM:
    return LLM(path, **{"threads": 2, "kv_cache_tokens": 8192, "kv_cache_dtype": dtype, **options})


def test_repeated_and_diverging_prompts_get_the_bits_of_a_cold_cache(dtype: str, write_model: WriteModel) -> None:
    path = write_model(_MODEL)
    prompts = [make_prompt("stem", n) for n in LENGTHS]
    prompts += [make_prompt("stem", n) + make_prompt(f"end {n}", 1 + n % 19) for n in LENGTHS]
    prompts += prompts[::3]
    with open_llm(path, dtype, use_prefix_cache=False) as llm:
        cold = [answer(llm, [prompt], seed)[0] for seed, prompt in enumerate(prompts)]
    with open_llm(path, dtype) as llm:
        warm = [answer(llm, [prompt], seed)[0] for seed, prompt in enumerate(prompts)]
        stats = llm._core.scheduler.stats().prefix_cache
        llm._core.scheduler.check_invariants()
    assert warm == cold
    assert stats.num_hit_tokens > 0.75 * stats.num_query_tokens


def test_prompts_that_meet_in_a_small_cache_get_the_bits_they_get_alone(dtype: str, write_model: WriteModel) -> None:
    """Together, in chunks, with preemptions and evictions, twice over."""
    path = write_model(_MODEL)
    stem = make_prompt("shared", 75)
    prompts = [stem[: 5 * i] + make_prompt(f"own {i}", 40 - 2 * i) for i in range(14)]
    with open_llm(path, dtype, use_prefix_cache=False) as llm:
        cold = [answer(llm, [prompt], seed)[0] for seed, prompt in enumerate(prompts)]
    with open_llm(path, dtype, kv_cache_tokens=256, prefill_chunk=23, max_context=256) as llm:
        assert answer(llm, prompts) == cold
        assert answer(llm, prompts) == cold
        llm._core.scheduler.check_invariants()


def test_next_turn_of_a_chat_gets_the_bits_of_a_cold_cache(dtype: str, write_model: WriteModel) -> None:
    path = write_model(_MODEL)
    history = make_prompt("turn 1", 21)
    with open_llm(path, dtype) as warm_llm, open_llm(path, dtype, use_prefix_cache=False) as cold_llm:
        for turn in range(5):
            warm, cold = answer(warm_llm, [history], turn), answer(cold_llm, [history], turn)
            assert warm == cold
            history = [*history, *warm[0][0], *make_prompt(f"turn {turn + 2}", 7)]
        assert warm_llm._core.scheduler.stats().prefix_cache.num_hit_tokens > 100


@pytest.mark.parametrize("use_prefix_cache", [True, False])
@pytest.mark.parametrize("length", [1, 16, 20, 33])
def test_choices_of_one_prompt_are_the_requests_they_would_be_alone(
    dtype: str, length: int, use_prefix_cache: bool, write_model: WriteModel
) -> None:
    path = write_model(_MODEL)
    prompt = make_prompt("choices", length)
    with open_llm(path, dtype, use_prefix_cache=False) as llm:
        alone = [list(answer(llm, [prompt], seed)[0][0]) for seed in range(4)]
    with open_llm(path, dtype, use_prefix_cache=use_prefix_cache) as llm:
        core: EngineCore = llm._core
        requests: list[Request] = []
        for seed in range(4):
            request = Request(
                f"choice {seed}", tuple(prompt), sampled(seed), max_tokens=6, seed=seed, eos_token_ids=frozenset(),
                arrival_s=0.0, leader=requests[0] if requests else None,
            )  # fmt: skip
            requests.append(request)
            core.add_request(request)
        while core.num_unfinished_requests:
            core.step()
            core.scheduler.check_invariants()
    assert [request.output_token_ids for request in requests] == alone
    assert [request.num_cached_tokens for request in requests] == [0] + [length - 1] * 3


def test_blocks_written_by_scoring_are_not_taken_for_cached_ones(write_model: WriteModel) -> None:
    prompt = make_prompt("scored", 40)
    with open_llm(write_model(_MODEL), "f16") as llm:
        before = answer(llm, [prompt])
        llm.score(make_prompt("other", 60))
        assert answer(llm, [prompt]) == before


def test_block_copies_and_saved_blocks_hold_the_same_bytes(dtype: str) -> None:
    cache = KvCache(3, 2, 20, 8, dtype)
    rng = np.random.default_rng(5)
    data = [rng.integers(0, 256, cache.block_data_bytes, np.uint8).tobytes() for _ in range(2)]
    cache.set_block(0, data[0])
    cache.set_block(7, data[1])
    cache.copy_block(7, 3)
    assert [cache.get_block(i) for i in (0, 3, 7)] == [data[0], data[1], data[1]]
    assert cache.get_block(2) == bytes(cache.block_data_bytes)
    assert cache.block_data_bytes <= cache.bytes_per_block


def test_blocks_beyond_2_gib_are_found_at_their_own_place() -> None:
    """With 32-bit offsets block 1432 would lie before the buffer. Only three blocks are ever touched."""
    cache = KvCache(32, 6, 128, 1433, "f16")
    assert cache.bytes_per_block * 1432 > 2**31
    data = bytes(range(256)) * (cache.block_data_bytes // 256)
    cache.set_block(1432, data)
    cache.copy_block(1432, 0)
    cache.copy_block(0, 1431)
    assert cache.get_block(1432) == cache.get_block(0) == cache.get_block(1431) == data


def test_blocks_that_do_not_exist_and_wrong_sizes_are_refused() -> None:
    cache = KvCache(1, 1, 16, 4, "f16")
    for block in (-1, 4):
        with pytest.raises(ValueError, match=f"block is {block}; allowed: 0 to 3"):
            cache.copy_block(block, 0)
        with pytest.raises(ValueError, match=f"block is {block}"):
            cache.copy_block(0, block)
        with pytest.raises(ValueError, match=f"block is {block}"):
            cache.get_block(block)
    with pytest.raises(ValueError, match="3 were given"):
        cache.set_block(0, b"abc")
    assert KV_BLOCK_TOKENS == 16
