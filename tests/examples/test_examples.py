"""The examples run as they are, with the default model."""

from __future__ import annotations

import ast
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
    return run_python(str(EXAMPLES / name), *arguments, "--model", os.environ["PELTON_TEST_MODEL"])


def run_python(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(pelton.__file__).parents[1])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=600).stdout


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


@pytest.mark.model
def test_structured_output_prints_what_fits_its_schema() -> None:
    people = [json.loads(line) for line in run_example("structured_output.py", "Ada lived in London.").splitlines()]
    people += [json.loads(line) for line in run_example("structured_output.py").splitlines()]
    assert len(people) == 3
    for person in people:
        assert list(person) == ["name", "city", "year"]
        assert max(len(person["name"]), len(person["city"])) <= 40
        assert 1000 <= person["year"] <= 2100


@pytest.mark.model
def test_readme_example_for_many_users_does_what_it_says() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    (program,) = [part for part in readme.split("```python\n") if "asyncio.run(main())" in part]
    program = program.partition("```")[0].replace("AsyncEngine()", f"AsyncEngine({os.environ['PELTON_TEST_MODEL']!r})")
    lines = run_python("-c", program).splitlines()
    num_cached, num_prompt = (int(word) for word in lines[-2].split() if word.isdigit())
    assert 40 <= num_cached < num_prompt  # the same sentence eight times
    pets = [json.loads(text) for text in ast.literal_eval(lines[-1])]
    assert len(pets) == 3
    assert all(set(pet) == {"animal", "legs"} and pet["animal"] in ("cat", "dog") for pet in pets)
