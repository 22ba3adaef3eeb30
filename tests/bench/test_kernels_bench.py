"""The kernel benchmark: cases are checked and timed, one that is wrong is not. Times decide nothing."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import kernel_cases
import kernels
from pelton._native import ThreadPool, available_isas
from pelton.quant.block_types import BLOCK_TYPES

ISA = available_isas()[-1]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BUDGET_S", 0.0)
    monkeypatch.setattr(kernel_cases, "COLD_BYTES", 1 << 16)
    monkeypatch.setattr(kernel_cases, "SHAPES", ((32, 256),))
    monkeypatch.setattr(kernel_cases, "ROW_COUNTS", (1, 17))
    monkeypatch.setattr(kernel_cases, "HEADS", ((4, 2, 16),))
    monkeypatch.setattr(kernel_cases, "CONTEXT", 700)
    kernel_cases.make_weights.cache_clear()


def test_every_op_and_format_has_a_case_that_passes_its_check() -> None:
    cases = [make() for _, make in kernel_cases.list_cases()]
    assert {case.format for case in cases if case.op == "linear"} == {t.name for t in BLOCK_TYPES.values()}
    assert {case.op for case in cases} == {
        "linear", "attend_decode", "attend_prefill", "rms_norm", "silu_mul", "rope", "quantize"
    }  # fmt: skip
    pool = ThreadPool(1)
    for case in cases:
        result = kernels.run_case(case, ISA, pool)
        assert "error" not in result, result
        assert result["median_s"] > 0
        assert result["num_repeats"] >= 3


def test_linear_counts_the_bytes_of_all_matrices_it_reads() -> None:
    q8_0 = next(t for t in BLOCK_TYPES.values() if t.name == "Q8_0")
    case = kernel_cases.make_linear_case(q8_0, 32, 256, 1)
    runs = kernels.time_case(case, ISA, ThreadPool(1))
    # 65,536 bytes need 8 copies of 8,704.
    assert runs[0][1:] == (8 * 8704, 8 * 2 * 32 * 256)


def test_case_with_wrong_bits_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = kernel_cases.make_row_case("silu_mul", 64, 2)
    other = kernel_cases.make_row_case("rms_norm", 64, 2)
    programs = iter([case.forward, other.forward])
    wrong = dataclasses.replace(case, small_case=dataclasses.replace(case, forward=lambda ops: next(programs)(ops)))
    monkeypatch.setattr(kernels, "time_case", lambda *_: pytest.fail("timed"))
    result = kernels.run_case(wrong, ISA, ThreadPool(1))
    assert result["error"] == "differs from the scalar code"
    assert "FAILED" in kernels.format_line(result)


def test_filter_and_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.main(["--filter", "linear Q4_1 1", "--isa", ISA, "--threads", "1,2", "--json"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["op"], r["format"], r["rows"], r["threads"]) for r in results] == [
        ("linear", "Q4_1", 1, 1), ("linear", "Q4_1", 1, 2)
    ]  # fmt: skip
    assert kernels.main(["--filter", "rope", "--isa", ISA]) == 0
    assert "ns/element" in capsys.readouterr().out
