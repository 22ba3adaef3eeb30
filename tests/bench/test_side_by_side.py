"""The side-by-side benchmark's own arithmetic and its worker protocol, with a fake engine in place of a real one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import side_by_side
from make_text import make_text
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
    def prefill(self, num_tokens):
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


@pytest.fixture
def fake_worker(tmp_path: Path) -> list[str]:
    """Command line of a worker process around the fake engine."""
    script = tmp_path / "fake_worker.py"
    script.write_text(FAKE_WORKER)
    return [sys.executable, str(script)]


def test_worker_answers_commands_and_survives_a_failed_one(fake_worker: list[str], tmp_path: Path) -> None:
    with Worker("fake", fake_worker, log_path=tmp_path / "log") as worker:
        assert worker.description["engine"] == "fake"
        assert worker.ask("prefill", num_tokens=512) == {"seconds": 5.12}
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
    workers = [ScriptedWorker(label, [1.0] * 3, calls) for label in ("a", "b")]
    tests = side_by_side.make_tests(512, 128, [], 1)
    speeds = side_by_side.run_rounds(workers, tests, repeat=2)  # type: ignore[arg-type]  # scripted on purpose
    assert calls == ["b", "a", "a", "b", "b", "a"]
    assert speeds == {"prefill 512": {"a": [512.0, 512.0], "b": [512.0, 512.0]}}


def test_ratio_is_of_medians_against_the_fastest_peer() -> None:
    tests = side_by_side.make_tests(512, 128, [0], 1)
    speeds = {
        "prefill 512": {
            "pelton": [900.0, 1000.0, 5000.0],
            "slow": [100.0, 200.0, 300.0],
            "fast": [501.0, 501.0, 501.0],
        },
        "decode 128 at depth 0": {"pelton": [10.0, 10.0], "slow": [9.0, 9.0], "fast": [10.0, 10.0]},
    }
    prefill, decode = side_by_side.compare(tests, speeds)
    assert (prefill["best_peer"], prefill["ratio"], prefill["meets_target"]) == ("fast", 1000 / 501, False)
    assert (decode["ratio"], decode["meets_target"]) == (1.0, True)
    assert prefill["tokens_per_s"]["pelton"] == {"median": 1000.0, "min": 900.0, "max": 5000.0}


def test_batched_decode_counts_the_tokens_of_all_sequences() -> None:
    test = side_by_side.make_tests(512, 128, [4096], 8)[-1]
    assert (test.num_tokens, test.arguments["num_seqs"]) == (1024, 8)


def test_text_is_english_and_as_long_as_asked() -> None:
    text = make_text(30_000)
    assert len(text.encode()) >= 30_000
    assert text.count(" the ") > 200
    with pytest.raises(ValueError, match="allowed: at most"):
        make_text(10**9)
