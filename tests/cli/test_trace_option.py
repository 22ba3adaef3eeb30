"""`pelton run --trace FILE`: a file that Perfetto opens, whatever the run was, and nothing of the text in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trace_format import check_trace_format


def read_names(path: Path) -> list[str]:
    """Names of the spans of requests."""
    events = check_trace_format(json.loads(path.read_text()))
    return [event["name"] for event in events if event["ph"] == "X" and event["pid"] == 1]


@pytest.mark.parametrize("options", [[], ["--json"], ["--raw"]])
def test_a_run_leaves_its_trace(cli, tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "out.json"
    outcome = cli.run("run", "--trace", str(path), *options, "Hi")
    assert outcome.code == 0
    names = read_names(path)
    assert names.count("decode") == 6
    assert names[0] == "tokenise"
    assert sum(name.startswith("prefill") for name in names) == 1
    assert ("send" in names) == (options != ["--json"])
    assert "Hello" not in path.read_text()


def test_a_chat_leaves_the_traces_of_all_turns(cli, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    outcome = cli.run("run", "--trace", str(path), typed="Hi\nAgain\n/exit\n")
    assert outcome.code == 0
    assert read_names(path).count("tokenise") == 2


def test_a_trace_of_nothing_is_refused(cli, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    outcome = cli.run("run", "--trace", str(path), "--num-kept-traces", "0", "Hi")
    assert outcome.code != 0
    assert "--num-kept-traces is 0; allowed: at least 1 beside --trace" in outcome.err
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_refused_before_the_run(cli, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "out.json"
    error = cli.run("run", "--trace", str(path), "Hi").error
    assert error.startswith(f"--trace is {str(path)!r}; allowed: a file that can be written (No such file")
    assert cli.references == []
