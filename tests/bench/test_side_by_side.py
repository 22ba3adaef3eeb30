"""The side-by-side benchmark's own arithmetic and its worker protocol, with a fake engine in place of a real one."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import side_by_side
from contestants import Places, list_contestants, start_contestants
from make_random_model import make_model
from make_text import make_text
from speed_table import count_step_bytes, format_busy, format_rows, make_rows
from suites import SUITES, SpeedTest
from worker_process import WORKERS, Worker, WorkerError

FAKE_WORKER = f"""
import sys
sys.path.insert(0, {str(WORKERS)!r})
from protocol import Engine, random_token_ids, serve

class Fake(Engine):
    name = "fake"
    def describe(self):
        print("noise on standard output")
        return {{"version": "1", "ids": random_token_ids(3, 100)}}
    def prefill(self, num_tokens, depth):
        return num_tokens / 100
    def decode(self, num_new_tokens, depth, num_seqs):
        if depth < 0:
            raise ValueError(f"depth is {{depth}}; allowed: at least 0")
        return num_new_tokens / 10
    def perplexity(self, text, num_context):
        return {{"perplexity": float(len(text)), "windows": 1, "tokens": num_context}}

def make():
    if "--broken" in sys.argv:
        raise RuntimeError("no model")
    return Fake()

serve(make)
"""


class ScriptedWorker:
    """Answers with prepared seconds, and notes in `calls` when it was asked."""

    def __init__(self, label: str, seconds: list[float], calls: list[str]) -> None:
        self.label, self._seconds, self._calls = label, iter(seconds), calls

    def ask(self, command: str, **_: object) -> dict[str, Any]:
        self._calls.append(self.label)
        return {"seconds": next(self._seconds)}


def find_test(suite: str, name: str) -> SpeedTest:
    return next(test for test in SUITES[suite].tests if test.name == name)


def describe_engine(label: str) -> dict[str, Any]:
    """What a measurement says about an engine; labels with Q4_1 read the same file as Pelton."""
    peer = label.split()[0]
    return {
        "peer": peer,
        "is_same_file": peer == "pelton" or "Q4_1" in label,
        "weight_bytes_per_step": 100e6,
        "kv_bytes_per_token": 1000.0,
    }


def make_measurement(test: str, runs: dict[str, list[float]], **facts: object) -> dict[str, Any]:
    engines = {label: describe_engine(label) for label in runs}
    common = {"case": "smollm2", "is_busy": False, "bandwidth_limit": 50e9, "date": "2026-11-29", "engines": engines}
    return {**common, "test": test, "runs": runs, **facts}


@pytest.fixture
def fake_worker(tmp_path: Path) -> list[str]:
    """Command line of a worker process around the fake engine."""
    script = tmp_path / "fake_worker.py"
    script.write_text(FAKE_WORKER)
    return [sys.executable, str(script)]


def test_worker_answers_commands_and_survives_a_failed_one(fake_worker: list[str], tmp_path: Path) -> None:
    with Worker("fake", fake_worker, log_path=tmp_path / "log") as worker:
        assert worker.description["engine"] == "fake"
        assert worker.ask("prefill", num_tokens=512, depth=0) == {"seconds": 5.12}
        with pytest.raises(WorkerError, match="depth is -1; allowed: at least 0"):
            worker.ask("decode", num_new_tokens=1, depth=-1, num_seqs=1)
        with pytest.raises(WorkerError, match="command is 'dance'"):
            worker.ask("dance")
        text = tmp_path / "text.txt"
        text.write_text("abc")
        assert worker.ask("perplexity", text_path=str(text), num_context=8)["perplexity"] == 3.0
    assert "noise on standard output" in (tmp_path / "log").read_text()


def test_worker_that_cannot_load_says_why(fake_worker: list[str], tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="RuntimeError: no model"):
        Worker("fake", [*fake_worker, "--broken"], log_path=tmp_path / "log")


def test_engines_alternate_and_swap_places_every_round() -> None:
    calls: list[str] = []
    workers = [ScriptedWorker(label, [1.0, 2.0, 1.0], calls) for label in ("a", "b")]
    speeds = side_by_side.run_rounds(workers, find_test("smollm2", "prefill512"), 3)  # type: ignore[arg-type]  # scripted
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert speeds == {"a": [512.0, 256.0, 512.0], "b": [512.0, 256.0, 512.0]}


def test_disturbed_first_call_does_not_rule_a_setting_out() -> None:
    worker = ScriptedWorker("a", [4.0, 1.0], [])
    assert side_by_side.warm_up(worker, find_test("smollm2", "prefill512")) == 512.0  # type: ignore[arg-type]  # scripted


def test_only_settings_near_the_best_of_their_group_are_timed() -> None:
    speeds = {"pelton": 10.0, "a fa=off": 100.0, "a fa=on": 90.0, "b fa=off": 80.0, "b fa=on": 50.0}
    groups = {"pelton": "pelton", "a fa=off": "a", "a fa=on": "a", "b fa=off": "b", "b fa=on": "b"}
    assert side_by_side.keep_best_settings(speeds, groups) == ["pelton", "a fa=off", "a fa=on", "b fa=off"]


def test_each_target_is_held_against_its_own_rivals() -> None:
    runs = {
        "pelton": [1900.0, 2000.0, 5000.0],
        "llama.cpp Q4_1 fa=off": [400.0],
        "llama.cpp Q8_0 fa=off": [1000.0],
        "vllm bf16": [1600.0],
    }
    rows = make_rows([make_measurement("prefill512", runs)])
    assert [(row["kind"], row["value"], row["is_met"]) for row in rows] == [
        ("speed", 2000.0, True),
        ("ratio", 1.25, False),
        ("ratio", 5.0, True),
    ]
    assert "vllm bf16 1600.0" in rows[1]["against"]


def test_ratio_is_taken_inside_one_run_when_parts_are_merged() -> None:
    slow_machine = make_measurement("decode", {"pelton": [100.0], "llama.cpp Q4_1 fa=off": [50.0]})
    fast_machine = make_measurement("decode", {"pelton": [300.0], "llama.cpp Q4_0 fa=off": [100.0]})
    rows = make_rows([slow_machine, fast_machine])
    assert [row["value"] for row in rows if row["kind"] == "ratio"] == [2.0, 2.0]


def test_bandwidth_counts_weights_once_a_step_and_the_cache_of_every_sequence() -> None:
    test = find_test("smollm2", "decode")
    assert count_step_bytes(describe_engine("pelton"), test) == 100e6 + 64 * 1000
    assert count_step_bytes(describe_engine("pelton"), find_test("smollm2", "decode-x8")) == 100e6 + 8 * 32 * 1000
    rows = make_rows([make_measurement("decode", {"pelton": [250.0]})])
    share = next(row for row in rows if row["kind"] == "bandwidth")
    assert (share["value"], share["is_met"]) == (pytest.approx(250 * 100.064e6 / 50e9), False)


def test_bandwidth_limit_is_the_fastest_reading_of_all_runs() -> None:
    undisturbed = make_measurement("decode-x8", {"pelton": [1.0]}, bandwidth_limit=100e9)
    rows = make_rows([make_measurement("decode", {"pelton": [250.0]}), undisturbed])
    share = next(row for row in rows if row["kind"] == "bandwidth")
    assert share["value"] == pytest.approx(250 * 100.064e6 / 100e9)


def test_target_without_rival_is_reported_as_not_measured() -> None:
    rows = make_rows([make_measurement("decode-x8", {"pelton": [100.0]})])
    assert [(row["value"], row["is_met"]) for row in rows] == [(None, None)]
    assert "not measured" in format_rows(rows)[1]


def test_cold_start_may_not_take_longer_than_its_target() -> None:
    measurements = [make_measurement("cold-start-s", {"pelton": [0.5]}, case="start")]
    assert [row["is_met"] for row in make_rows(measurements)] == [True]
    measurements[0]["runs"] = {"pelton": [0.7]}
    assert [row["is_met"] for row in make_rows(measurements)] == [False]


def test_share_kept_beside_a_busy_process_is_of_the_same_run() -> None:
    quiet = make_measurement("decode", {"pelton": [100.0]})
    other_day = make_measurement("decode", {"pelton": [1000.0]}, date="2026-11-28")
    busy = make_measurement("decode", {"pelton": [70.0]}, is_busy=True)
    assert [line.split("keeps")[1] for line in format_busy([other_day, quiet, busy])] == [" 70% beside a busy process"]


def test_peer_without_environment_is_absent_and_pelton_must_start(fake_worker: list[str], tmp_path: Path) -> None:
    places = Places(tmp_path / "peers", tmp_path / "models", tmp_path / "no-python")
    contestants = list_contestants(SUITES["smollm2"].cases[0], tmp_path / "m.gguf", 2, places)
    assert {c.peer for c in contestants} == {"pelton", "llama.cpp", "openvino", "vllm"}
    with ExitStack() as stack:
        workers, absent = start_contestants(contestants[1:], 1, tmp_path, stack)
        assert (workers, list(absent)) == ({}, [c.label for c in contestants[1:]])
        assert "--setup vllm makes it" in absent["vllm bf16"]
        with pytest.raises(WorkerError, match="no environment at"):
            start_contestants(contestants[:1], 1, tmp_path, stack)


def test_batched_decode_counts_the_tokens_of_all_sequences() -> None:
    test = find_test("smollm2", "decode-x8")
    assert (test.num_tokens, test.num_steps, test.arguments["num_seqs"]) == (512, 64, 8)


def test_random_1b_model_has_the_mixture_of_types_of_a_q4_k_m_file() -> None:
    model = make_model("llama-1b", "Q4_K_M", None)
    assert sum(name.endswith("ffn_down.weight") for name in model.tensor_types) == 8
    assert (model.weight_type.name, model.embedding_type and model.embedding_type.name) == ("Q4_K", "Q6_K")


def test_text_is_english_and_as_long_as_asked() -> None:
    text = make_text(30_000)
    assert len(text.encode()) >= 30_000
    assert text.count(" the ") > 200
    with pytest.raises(ValueError, match="allowed: at most"):
        make_text(10**9)
