"""The limits of this machine: probes deliver numbers of the right kind. How large they are decides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pelton._native import ThreadPool, available_isas, measure_ops, measure_read, measure_stage_handoff
from pelton.insight.machine_limits import (
    Measured,
    ThreadLimits,
    choose_buffer_bytes,
    measure_limits,
    merge_limits,
    read_l3_bytes,
)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("num_threads", [1, 2])
def test_every_probe_gives_a_positive_number_per_repeat(isa: str, num_threads: int) -> None:
    pool = ThreadPool(num_threads)
    for num_streams in (1, 2, 4, 8):
        rates = measure_read(pool, isa, 1 << 20, num_streams, 3)
        assert len(rates) == 3
        assert min(rates) > 0
    for kind in ("f32", "int8"):
        rates = measure_ops(pool, isa, kind, 2)
        assert len(rates) == 2
        assert min(rates) > 0
    assert len(measure_ops(pool, isa, "bf16", 2)) in (0, 2)
    assert len(measure_stage_handoff(pool, isa, 10, 4)) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1 << 20, 3, 1), "num_streams must be 1, 2, 4 or 8"), ((1000, 1, 1), "num_bytes is too small")],
)
def test_reads_that_cannot_be_measured_are_refused(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure_read(ThreadPool(1), "scalar", *arguments)


def test_unknown_arithmetic_is_refused() -> None:
    with pytest.raises(ValueError, match="kind is 'int4'; allowed: f32, int8, bf16"):
        measure_ops(ThreadPool(1), "scalar", "int4", 1)


def test_limits_of_each_thread_count_are_reported_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.insight.machine_limits.choose_buffer_bytes", lambda l3_bytes: 1 << 20)
    seen: list[tuple[int, int, str]] = []
    isa = available_isas()[-1]
    limits = measure_limits(isa, (1, 2), lambda *step: seen.append(step))
    assert (limits.isa, limits.buffer_bytes) == (isa, 1 << 20)
    assert [each.num_threads for each in limits.limits] == [1, 2]
    for each in limits.limits:
        assert each.read_bytes_per_s.best >= each.read_bytes_per_s.median > 0
        assert each.stage_handoff_s.best <= each.stage_handoff_s.median
    assert seen[0] == (0, 6, "memory, 1 thread")
    assert seen[4] == (4, 6, "arithmetic, 2 threads")
    assert seen[-1] == (6, 6, "")


def test_buffer_is_far_larger_than_the_last_level_cache() -> None:
    assert choose_buffer_bytes(32 << 20) == 256 << 20
    assert choose_buffer_bytes(96 << 20) == 768 << 20
    assert choose_buffer_bytes(1 << 20) == 256 << 20
    assert choose_buffer_bytes(1 << 30) == 2 << 30
    assert choose_buffer_bytes(None) == 256 << 20


def test_last_level_cache_is_the_largest_that_linux_describes(tmp_path: Path) -> None:
    for index, size in enumerate(("32K\n", "1024K\n", "32M\n", "nonsense\n")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size)
    assert read_l3_bytes(tmp_path) == 32 << 20
    assert read_l3_bytes(tmp_path / "missing") is None


def test_the_better_of_two_measurements_counts() -> None:
    def make(read: float, int8: float, bf16: Measured | None, handoff: float, streams: int) -> ThreadLimits:
        median = 0.5
        return ThreadLimits(
            2, Measured(read, median * read), streams, Measured(7.0, 6.0), Measured(int8, median * int8), bf16,
            Measured(handoff, 2 * handoff),
        )  # fmt: skip

    merged = merge_limits(make(30.0, 900.0, None, 3e-6, 1), make(60.0, 800.0, None, 1e-6, 8))
    assert merged == make(60.0, 900.0, None, 1e-6, 8)
    bf16 = Measured(5.0, 4.0)
    assert merge_limits(make(1, 1, bf16, 1, 1), make(1, 1, Measured(4.0, 4.5), 1, 1)).bf16_ops_per_s == Measured(
        5.0, 4.5
    )
