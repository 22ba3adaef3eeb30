"""The command as users start it, a process of its own, with the default model."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import pelton

pytestmark = pytest.mark.model


def start(*arguments: str, stdin: str | None = None, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run `pelton ARGUMENTS -m <default model>` to its end."""
    environment = {**os.environ, "PYTHONPATH": str(Path(pelton.__file__).parents[1])}
    command = [sys.executable, "-m", "pelton", arguments[0], "-m", os.environ["PELTON_TEST_MODEL"], *arguments[1:]]
    return subprocess.run(
        command, input=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False
    )


def test_streamed_text_is_the_text_of_the_json_object() -> None:
    options = ["--seed", "5", "--max-tokens", "12", "--threads", "1"]
    streamed = start("run", *options, "How does inference work?")
    described = start("run", *options, "--json", stdin="How does inference work?\n")
    assert (streamed.returncode, described.returncode) == (0, 0)
    answer = json.loads(described.stdout)
    assert streamed.stdout == answer["text"] + "\n"
    assert len(answer["token_ids"]) == answer["usage"]["completion_tokens"] == 12
    assert answer["timings"]["ttft_ms"] > 0
    assert answer["kv_cache_bytes"] > 0
    assert streamed.stderr.count("\n") == 1


def test_verbose_run_holds_memory_and_speed_against_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path))
    process = start("run", "-v", "--threads", "1", "--kv-cache-tokens", "512", "--max-tokens", "3", "Hi")
    assert process.returncode == 0
    lines = process.stderr.splitlines()
    # No rates are stored, so nothing is said about speed, and nothing measured.
    assert [line[: line.index(":", 8)] for line in lines[:2]] == ["pelton: KV cache", "pelton: MB planned / measured"]
    assert "weights 96.6 / 96.6 (+0.0 %)" in lines[1]
    assert len(lines) == 3
    assert list(tmp_path.iterdir()) == []


def test_reader_that_leaves_after_the_first_byte_ends_the_run_in_one_line() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = start("run", "--max-tokens", "50", "Hi", stdout=write_end)
    os.close(write_end)
    assert process.returncode == 1
    assert process.stderr.startswith("pelton: error: standard output was closed by its reader")
    assert process.stderr.count("\n") == 1


def test_prompt_longer_than_the_context_is_one_line() -> None:
    process = start("run", "--raw", stdin="word " * 9000)
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("pelton: error: ")
    assert "8192" in process.stderr
    assert process.stderr.count("\n") == 1


def test_file_cut_off_in_the_middle_is_one_line(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with open(os.environ["PELTON_TEST_MODEL"], "rb") as whole:
        cut.write_bytes(whole.read(4_000_000))
    process = start("run", "-m", str(cut), "Hi")
    assert process.returncode == 1
    assert process.stderr.startswith(f"pelton: error: {cut}")
    assert process.stderr.count("\n") == 1


def test_perplexity_of_english_is_far_below_that_of_shuffled_words(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")[:6000]
    words = text.split()
    english, shuffled = tmp_path / "english.txt", tmp_path / "shuffled.txt"
    english.write_text(text, encoding="utf-8")
    random.Random(1).shuffle(words)
    shuffled.write_text(" ".join(words), encoding="utf-8")
    values = []
    for file in (english, shuffled):
        process = start("perplexity", "--text", str(file), "--context", "256", "--json")
        assert process.returncode == 0, process.stderr
        values.append(json.loads(process.stdout)["perplexity"])
    assert 1 < values[0] < values[1] / 5
