"""Sizes of memory as people write them, and the options made of them."""

from __future__ import annotations

import pytest

from pelton.core.config import EngineConfig
from pelton.core.errors import InvalidParameterError
from pelton.core.memory_size import parse_memory_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1", 1),
        (4096, 4096),
        ("9007199254740993", 9007199254740993),
        ("4GiB", 4 * 1024**3),
        ("4 gib", 4 * 1024**3),
        ("1.5KiB", 1536),
        ("500MB", 500_000_000),
        ("2TB", 2 * 10**12),
        ("50%", 500),
        ("100%", 1000),
        ("0.5%", 5),
    ],
)
def test_size_is_what_its_unit_says(text: object, num_bytes: int) -> None:
    assert parse_memory_size("kv_cache_memory", text).compute_bytes(free_bytes=1000) == num_bytes


@pytest.mark.parametrize(
    "value", ["", "0", "-1", "4G B", "0%", "101%", "1e9", "nan", "GiB", "4XB", 0, -5, True, 1.5, "١", "4GiB%"]
)
def test_anything_else_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidParameterError, match=r"kv_cache_memory is .* allowed: bytes"):
        parse_memory_size("kv_cache_memory", value)
    with pytest.raises(InvalidParameterError, match="kv_cache_memory"):
        EngineConfig(kv_cache_memory=value)


def test_two_sizes_at_once_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="kv_cache_tokens is 100; allowed: unset beside kv_cache_memory"):
        EngineConfig(kv_cache_memory="50%", kv_cache_tokens=100)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "5"])
def test_step_time_is_a_positive_number(value: object) -> None:
    with pytest.raises(InvalidParameterError, match="max_step_ms"):
        EngineConfig(max_step_ms=value)


def test_step_time_is_unlimited_for_a_batch_unless_it_is_given() -> None:
    assert EngineConfig().get_max_step_s(is_interactive=True) is None
    assert EngineConfig().get_max_step_s(is_interactive=False) == float("inf")
    assert EngineConfig(max_step_ms=20).get_max_step_s(is_interactive=False) == 0.02
