"""The examples for the server run as they are, against a server of the default model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pelton

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = str(Path(pelton.__file__).parents[1])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    pytest.importorskip("openai")
    command = [sys.executable, "-m", "pelton", "serve", "-m", os.environ["PELTON_TEST_MODEL"], "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        yield next(line.split(" at ")[1].strip() for line in process.stderr if " at http" in line)
    finally:
        process.terminate()
        process.wait(120)
        process.stderr.close()
    assert process.returncode == 0


def run_example(name: str, url: str, *arguments: str) -> str:
    environment = {**os.environ, "PELTON_URL": url}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.model
def test_chat_stream_prints_an_answer(url: str) -> None:
    assert len(run_example("chat_stream.py", url, "What is the sea?")) > 20


@pytest.mark.model
def test_extract_json_prints_what_fits_its_schema(url: str) -> None:
    person = json.loads(run_example("extract_json.py", url))
    assert set(person) == {"name", "city", "year"}
    assert isinstance(person["year"], int)


@pytest.mark.model
def test_tool_loop_calls_and_answers(url: str) -> None:
    first, *rest = run_example("tool_loop.py", url).splitlines()
    call, result = first.split(" = ")
    a, b = call.removeprefix("multiply(").removesuffix(")").split(", ")
    assert int(result) == int(a) * int(b)
    assert rest
