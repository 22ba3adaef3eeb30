"""A loaded model beside its plan: the file against what was packed and reserved, times against a script."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))

from gguf import GGMLQuantizationType as GgmlType
from random_gguf import RandomLlama, write_gguf

from pelton import LLM
from pelton.core.load_facts import LoadFacts, LoadMemory, read_resident_bytes
from pelton.core.outputs import Choice, GenerationResult, ItlStats, Timings, Usage
from pelton.insight import this_machine
from pelton.insight.kernel_rates import AttendRates, LinearRates
from pelton.insight.kv_layout import KvFormat
from pelton.insight.machine_limits import MachineLimits, Measured, ThreadLimits
from pelton.insight.machine_rates import MeasuredMachine
from pelton.insight.model_source import open_model
from pelton.insight.plan_check import Comparison, check_request, make_plan_check
from pelton.insight.prediction import Planned, predict_decode, predict_prefill

MODEL = RandomLlama("check", weight_type=GgmlType.Q8_0, embedding_type=GgmlType.Q8_0, is_tied=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_gguf(MODEL, path)
    return path


@pytest.fixture
def facts(path: Path) -> LoadFacts:
    with LLM(path, threads=1, kv_cache_tokens=512, kv_cache_dtype="int8", prefill_chunk=64) as llm:
        return llm.load_facts


@pytest.fixture
def stored(facts: LoadFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with rates for the model, made up: no probe runs."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PELTON_CACHE", str(folder))
    monkeypatch.setenv("PELTON_ISA", facts.isa)
    rate = Measured(1e9, 1e9)
    limits = ThreadLimits(1, rate, 1, rate, rate, rate, Measured(0.0, 0.0))
    monkeypatch.setattr(this_machine, "measure_limits", lambda isa, counts: MachineLimits(isa, 1, (limits,)))
    monkeypatch.setattr(this_machine, "measure_linear", lambda *_: LinearRates(((1e-9,) * 8,) * 3, 1e-9, 1e-9))
    monkeypatch.setattr(this_machine, "measure_attend", lambda *_: AttendRates(1e9, 1e9, 1e9))
    this_machine.open_this_machine(this_machine.list_needs(plan(facts)), threads=1)
    return folder


def plan(facts: LoadFacts) -> Planned:
    assert facts.model_path is not None
    source = open_model(str(facts.model_path), facts.model_path.parent)
    return Planned(source.shape, source.formats, KvFormat(facts.kv_cache_dtype))


def make_result(prompt: int, cached: int, new: int, ttft_ms: float, itl_ms: float) -> GenerationResult:
    choice = Choice(0, "", (0,) * new, "length", None, None, 1)
    timings = Timings(tokenize_ms=50.0, ttft_ms=ttft_ms, itl_ms=ItlStats(itl_ms, itl_ms, itl_ms))
    return GenerationResult("r", (0,) * prompt, (choice,), Usage(prompt, new, cached), timings, 0)


def test_weights_and_kv_cache_are_what_loading_packed_and_reserved(facts: LoadFacts, tmp_path: Path) -> None:
    check = make_plan_check(facts, tmp_path)
    assert check is not None
    assert check.weight_bytes.predicted == check.weight_bytes.measured > 0
    assert check.kv_cache_bytes.predicted == check.kv_cache_bytes.measured == 32 * facts.kv_bytes_per_block
    assert check.weight_bytes.deviation_pct == 0
    assert check.workspace_bytes > 64 * MODEL.hidden_size * 4


def test_program_is_what_loading_added_besides_weights() -> None:
    assert LoadMemory(100, 1000, 1350).program_bytes == 250
    assert LoadMemory(100, None, 1350).program_bytes is None


def test_resident_memory_grows_by_what_is_written() -> None:
    before = read_resident_bytes()
    data = bytearray(os.urandom(1 << 20) * 64)
    after = read_resident_bytes()
    assert before is not None
    assert after is not None
    assert after - before > len(data) // 2


def test_resident_memory_is_none_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert read_resident_bytes(tmp_path / "missing") is None
    (tmp_path / "status").write_text("Name:\tpelton\nVmRSS:\n")
    assert read_resident_bytes(tmp_path / "status") is None


def test_without_stored_rates_no_speed_is_told_and_nothing_measured(
    facts: LoadFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("measured")

    for name in ("measure_limits", "measure_linear", "measure_attend"):
        monkeypatch.setattr(this_machine, name, refuse)
    check = make_plan_check(facts, tmp_path)
    assert check is not None
    assert check.speed is None
    assert len(check.describe()) == 1
    assert check_request(check, make_result(5, 0, 5, 1.0, 1.0)) is None


def test_expected_speed_is_the_prediction_for_one_user(facts: LoadFacts, stored: Path) -> None:
    check = make_plan_check(facts, stored)
    assert check is not None
    assert check.machine is not None
    assert check.speed is not None
    # The context of the KV cache is 512, so a prompt leaves room for a token.
    num_tokens = min(512, facts.context_length - 1)
    assert check.speed.prompt_tokens == num_tokens
    assert check.speed.ttft_s == predict_prefill(plan(facts), check.machine, 1, num_tokens, 0, 64).total_s
    assert check.speed.itl_s == predict_decode(plan(facts), check.machine, 1, num_tokens + 1).total_s


def test_work_row_by_row_takes_the_mean_of_what_all_formats_measured(facts: LoadFacts, stored: Path) -> None:
    check = make_plan_check(facts, stored)
    assert check is not None
    machine = check.machine
    assert isinstance(machine, MeasuredMachine)
    rates = machine.linear["q8_0"]
    other = dataclasses.replace(rates, rest_s_one=3e-9, rest_s_many=1e-9)
    for linear in ({"q8_0": rates, "f16": other}, {"f16": other, "q8_0": rates}):
        assert dataclasses.replace(machine, linear=linear).predict_rest(1000, 1) == pytest.approx(1000 * 2e-9)


def test_rates_of_another_number_of_threads_are_not_used(facts: LoadFacts, stored: Path) -> None:
    check = make_plan_check(dataclasses.replace(facts, num_threads=7), stored)
    assert check is not None
    assert check.speed is None


def test_without_the_kv_cache_no_speed_is_told(facts: LoadFacts, stored: Path) -> None:
    check = make_plan_check(dataclasses.replace(facts, use_kv_cache=False), stored)
    assert check is not None
    assert check.speed is None


def test_request_is_compared_with_what_it_computed(facts: LoadFacts, stored: Path) -> None:
    check = make_plan_check(facts, stored)
    assert check is not None
    assert check.machine is not None
    compared = check_request(check, make_result(prompt=100, cached=64, new=11, ttft_ms=200.0, itl_ms=50.0))
    assert compared is not None
    # The text took 50 ms of it, which is told apart.
    assert compared.ttft_s.measured == pytest.approx(0.15)
    assert "50.0 before it for the text" in compared.describe()
    assert compared.ttft_s.predicted == predict_prefill(plan(facts), check.machine, 1, 36, 64, 64).total_s
    assert compared.itl_s is not None
    assert compared.itl_s.measured == 0.05
    # The middle one of eleven tokens sees the prompt, five before it, and itself.
    assert compared.itl_s.predicted == predict_decode(plan(facts), check.machine, 1, 106).total_s
    assert "ITL" not in check_request(check, make_result(100, 64, 1, 200.0, 0.0)).describe()
    assert check_request(check, make_result(100, 64, 0, 0.0, 0.0)) is None


def test_comparison_says_both_numbers_and_how_far_off() -> None:
    assert Comparison(110.0, 100.0).describe(0.1) == "11.0 / 10.0 (+10.0 %)"
    assert Comparison(90.0, 100.0).deviation_pct == pytest.approx(-10)
    assert Comparison(90.0, None).describe(1) == "90.0 / not known"


def test_a_check_is_json(facts: LoadFacts, stored: Path) -> None:
    check = make_plan_check(facts, stored)
    assert check is not None
    value = json.loads(json.dumps(check.make_dict()))
    assert set(value) == {"memory", "speed"}
    assert value["memory"]["weight_bytes"]["deviation_pct"] == 0
    assert value["speed"]["prompt_tokens"] == check.speed.prompt_tokens


def test_a_model_from_no_file_has_no_plan(facts: LoadFacts, tmp_path: Path) -> None:
    assert make_plan_check(dataclasses.replace(facts, model_path=None), tmp_path) is None
