"""The examples run as they are, with the default model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pelton

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, *arguments: str) -> str:
    """Output of an example, run with this package and the default model of the tests."""
    environment = {**os.environ, "PYTHONPATH": str(Path(pelton.__file__).parents[1])}
    model = os.environ["PELTON_TEST_MODEL"]
    command = [sys.executable, str(EXAMPLES / name), *arguments, "--model", model]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=120).stdout


@pytest.mark.model
def test_offline_batch_answers_every_line(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The sea is\n\nThe sky is\nA cat is\n", encoding="utf-8")
    answers = [
        json.loads(line) for line in run_example("offline_batch.py", str(prompts), "--max-tokens", "5").splitlines()
    ]
    assert len(answers) == 3
    assert all(answer["tokens"] == 5 or answer["finish"] == "stop" for answer in answers)


@pytest.mark.model
def test_async_streams_finish_and_leave_nothing_behind() -> None:
    lines = run_example("async_streams.py").splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["sea", "sky"]
    assert lines[2] == "given up after 3 pieces"
    assert lines[3].startswith("choices: ")
    assert lines[-1].endswith("0 unfinished")
