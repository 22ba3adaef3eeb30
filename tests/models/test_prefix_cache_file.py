"""Saved prefix caches: taken back with the same bits, refused if they are damaged, hostile or of something else."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import stat
import struct
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import pytest
from random_gguf import RandomLlama, random_words

from pelton import LLM, AsyncEngine, SamplingParams
from pelton.core.config import KV_CACHE_DTYPES
from pelton.core.errors import CacheFileError, ConfigError
from pelton.core.outputs import GenerationResult

WriteModel = Callable[[RandomLlama], Path]

MODEL = RandomLlama(name="saved_f32")
OPTIONS = {"threads": 1, "kv_cache_tokens": 2048}
PARAMS = SamplingParams(max_tokens=6, temperature=0.9, seed=4, logprobs=3, ignore_eos=True)
PROMPTS = [[int(word) % MODEL.vocab_size for word in random_words(f"saved {n}", n)] for n in (5, 40, 75)]


def get_bits(result: GenerationResult) -> tuple[object, ...]:
    return result.token_ids, result.logprobs


@pytest.fixture
def saved(write_model: WriteModel, tmp_path: Path) -> Path:
    path = tmp_path / "cache.pelton"
    with LLM(write_model(MODEL), **OPTIONS) as llm:
        llm.generate(PROMPTS, PARAMS)
        assert llm.save_prefix_cache(path) > 0
    return path


@pytest.mark.parametrize("kv_cache_dtype", KV_CACHE_DTYPES)
def test_saved_prompts_are_not_computed_again_and_give_the_same_bits(
    kv_cache_dtype: str, write_model: WriteModel, tmp_path: Path
) -> None:
    options = {**OPTIONS, "kv_cache_dtype": kv_cache_dtype}
    path = tmp_path / "cache.pelton"
    with LLM(write_model(MODEL), **options) as llm:
        cold = llm.generate(PROMPTS, PARAMS)
        num_blocks = llm.save_prefix_cache(path)
    with LLM(write_model(MODEL), **options) as llm:
        assert llm.load_prefix_cache(path) == num_blocks
        assert llm.load_prefix_cache(path) == 0, "all of it is there"
        warm = llm.generate(PROMPTS, PARAMS)
        llm._core.scheduler.check_invariants()
    assert [get_bits(result) for result in warm] == [get_bits(result) for result in cold]
    assert [result.usage.cached_tokens for result in warm] == [len(prompt) - 1 for prompt in PROMPTS]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.glob(".*")) == []


def test_asynchronous_engine_saves_and_loads_between_steps(write_model: WriteModel, tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncEngine(write_model(MODEL), **OPTIONS) as engine:
            running = asyncio.ensure_future(engine.generate(PROMPTS[2], PARAMS).get_result())
            first = await engine.generate(PROMPTS[1], PARAMS).get_result()
            assert await engine.save_prefix_cache(tmp_path / "cache") > 0
            await running
        async with AsyncEngine(write_model(MODEL), **OPTIONS) as engine:
            with pytest.raises(CacheFileError, match="cannot be read"):
                await engine.load_prefix_cache(tmp_path / "missing")
            assert await engine.load_prefix_cache(tmp_path / "cache") > 0
            again = await engine.generate(PROMPTS[1], PARAMS).get_result()
            assert get_bits(again) == get_bits(first)
            assert again.usage.cached_tokens == len(PROMPTS[1]) - 1

    asyncio.run(test())


def test_cache_larger_than_the_free_blocks_is_taken_as_far_as_it_goes(saved: Path, write_model: WriteModel) -> None:
    with LLM(write_model(MODEL), threads=1, kv_cache_tokens=48) as llm:
        assert llm.load_prefix_cache(saved) == 3
        llm._core.scheduler.check_invariants()
        assert len(llm.generate([PROMPTS[0]], PARAMS)[0].token_ids) == 6


def refuse(path: Path, write_model: WriteModel, match: str, model: RandomLlama = MODEL, **options: object) -> None:
    """The file is refused with these words, and the engine works as if there were none."""
    with LLM(write_model(model), **{**OPTIONS, **options}) as llm:
        with pytest.raises(CacheFileError, match=match):
            llm.load_prefix_cache(path)
        assert llm.generate([PROMPTS[1]], PARAMS)[0].usage.cached_tokens == 0


def test_cache_of_another_model_or_dtype_is_refused(saved: Path, write_model: WriteModel) -> None:
    refuse(saved, write_model, "has model_id", dataclasses.replace(MODEL, name="saved_other", num_layers=1))
    refuse(saved, write_model, "has kv_cache_dtype 'f16'; this engine needs 'f32'", kv_cache_dtype="f32")


def test_any_changed_byte_is_found(saved: Path, write_model: WriteModel) -> None:
    data = saved.read_bytes()
    for position in (0, 9, 30, len(data) // 3, len(data) // 2, len(data) - 1):
        saved.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        refuse(saved, write_model, "damaged|not a saved|header")


@pytest.mark.parametrize("num_bytes", [0, 8, 11, 100, -1])
def test_cut_or_extended_file_is_refused(num_bytes: int, saved: Path, write_model: WriteModel) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[:num_bytes])
    refuse(saved, write_model, "not a saved|damaged|bytes")
    saved.write_bytes(data + b"x")
    refuse(saved, write_model, "bytes")


def checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=16, person=b"pelton-cachefile").digest()


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("num_blocks", 2**62, "bytes; 4611686018427387904 blocks need"),
        ("num_blocks", -1, "num_blocks -1"),
        ("num_blocks", "3", "num_blocks '3'"),
        ("version", 2, "has version 2; this engine needs 1"),
        ("build_id", "0" * 64, "has build_id '000"),
        ("block_size", 2**40, "has block_size"),
    ],
)
def test_hostile_header_with_a_right_checksum_is_refused(
    field: str, value: object, match: str, saved: Path, write_model: WriteModel
) -> None:
    data = saved.read_bytes()
    (length,) = struct.unpack_from("<I", data, 8)
    header = json.dumps({**json.loads(data[12 : 12 + length]), field: value}).encode()
    start = data[:8] + struct.pack("<I", len(header)) + header
    saved.write_bytes(start + checksum(start) + data[12 + length + 16 :])
    refuse(saved, write_model, match)


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        (0, struct.pack("<Q", 2**63), "follows none"),
        (0, struct.pack("<Q", 7), "tokens from position 7"),
        (40, struct.pack("<I", 17), "has 17 tokens"),
        (40, struct.pack("<I", 0), "has 0 tokens"),
        (44, struct.pack("<i", -1), "outside the vocabulary"),
        (44, struct.pack("<i", 2**31 - 1), "outside the vocabulary"),
    ],
)
def test_hostile_block_with_a_right_checksum_is_refused(
    place: int, value: bytes, match: str, saved: Path, write_model: WriteModel
) -> None:
    data = saved.read_bytes()
    (length,) = struct.unpack_from("<I", data, 8)
    header = json.loads(data[12 : 12 + length])
    first = 12 + length + 16
    num_bytes = 44 + 4 * header["block_size"] + header["block_bytes"]
    record = bytearray(data[first : first + num_bytes])
    record[place : place + len(value)] = value
    saved.write_bytes(data[:first] + record + checksum(record) + data[first + num_bytes + 16 :])
    refuse(saved, write_model, match)


def test_engine_without_a_prefix_cache_says_so_and_a_file_that_cannot_be_written_is_an_error(
    write_model: WriteModel, tmp_path: Path
) -> None:
    with (
        LLM(write_model(MODEL), **OPTIONS, use_prefix_cache=False) as llm,
        pytest.raises(ConfigError, match="no prefix"),
    ):
        llm.save_prefix_cache(tmp_path / "cache")
    with LLM(write_model(MODEL), **OPTIONS) as llm:
        with pytest.raises(CacheFileError, match="cannot be written"):
            llm.save_prefix_cache(tmp_path / "missing" / "cache")
        assert not (tmp_path / "missing").exists()
