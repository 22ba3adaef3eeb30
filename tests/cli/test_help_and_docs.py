"""Help, version, completion and the generated page docs/cli.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

import make_cli_docs

import pelton
from pelton.cli import app
from pelton.cli import main as cli_main
from pelton.cli.run import HIDDEN_OPTIONS, RUN_DEFAULTS
from pelton.core.config import EngineConfig
from pelton.core.fields import get_option_specs
from pelton.core.sampling_params import SamplingParams

DOCS = Path(__file__).parents[2] / "docs"


def test_version_is_printed(cli) -> None:
    outcome = cli.run("--version")
    assert (outcome.code, outcome.out) == (0, f"pelton {pelton.__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_all_commands(cli, arguments: list[str]) -> None:
    outcome = cli.run(*arguments)
    assert outcome.code == 0
    for name in app.COMMANDS:
        assert re.search(rf"^  {name} +\S", outcome.out, re.MULTILINE)


@pytest.mark.parametrize("name", list(app.COMMANDS))
def test_help_of_every_command_has_examples_and_no_line_is_joined(cli, name: str) -> None:
    outcome = cli.run(name, "--help")
    assert outcome.code == 0
    assert "\n  Examples:\n    " in outcome.out
    for example in sys.modules[app.COMMANDS[name]].EXAMPLES:
        assert f"\n    {example}\n" in outcome.out


def test_help_shows_range_and_default_of_a_field(cli) -> None:
    text = " ".join(cli.run("run", "--help").out.split())
    spec = get_option_specs(SamplingParams)["temperature"]
    assert f"{spec.help} ({spec.describe_allowed()}; default {RUN_DEFAULTS['temperature']})" in text


def test_every_sampling_and_engine_field_is_an_option_of_run(cli) -> None:
    text = cli.run("run", "--help").out
    names = [*get_option_specs(SamplingParams), *get_option_specs(EngineConfig)]
    # One prompt never needs several sequences, nor a queue.
    left_out = {*HIDDEN_OPTIONS, "max_num_seqs", "max_queued_requests", "max_queued_tokens"}
    flags = [f"--{n.replace('use_', 'no_').replace('_', '-')}" for n in names if n not in left_out]
    assert [flag for flag in flags if not re.search(rf"{flag}\b", text)] == []


def test_serve_has_every_engine_field_and_every_flag_its_page_names(cli) -> None:
    text = cli.run("serve", "--help").out
    flags = {f"--{name.replace('use_', 'no_').replace('_', '-')}" for name in get_option_specs(EngineConfig)}
    page = re.sub(r"`pelton (?!serve)[^`]*`", "", (DOCS / "server.md").read_text(encoding="utf-8"))
    flags |= set(re.findall(r"--[a-z][a-z-]+[a-z]", page))
    assert [flag for flag in sorted(flags) if not re.search(rf"{flag}\b", text)] == []


def test_completion_script_can_be_shown_for_bash(cli) -> None:
    cli.monkeypatch.setenv("_PELTON_COMPLETE", "source_bash")
    try:
        code = cli_main.main([])
    except SystemExit as end:  # typer leaves this way
        code = end.code
    assert code == 0
    assert "_PELTON_COMPLETE" in cli.capsys.readouterr().out


def test_page_about_the_command_line_is_current() -> None:
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == make_cli_docs.make_page(), "run `make docs`"
