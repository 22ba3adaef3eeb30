"""Every failure of the command line is one line, with the right exit code, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pelton
from pelton.cli import app
from pelton.core.errors import PeltonError

COMMAND = [sys.executable, "-m", "pelton"]
TEXT = "pelton: error: "


def run_process(*arguments: str, stdout: int | None = subprocess.PIPE, **variables: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PELTON_")}
    environment |= {"PYTHONPATH": str(Path(pelton.__file__).parents[1]), **variables}
    return subprocess.run(
        [*COMMAND, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["frobnicate"],
            "command is 'frobnicate'; allowed: one of run, serve, bench, bench engine, bench machine, bench serve, "
            "perplexity, plan, explain, tokenize, pull, doctor",
        ),
        (["run", "--frobnicate"], "No such option"),
        (["run", "a", "b"], "unexpected extra argument"),
        (["run", "--max-tokens"], "requires an argument"),
        (["perplexity"], "--text"),
        (["bench", "--depth", "0,x"], "--depth is '0,x'; allowed: integers separated by commas, each 0 to 1048576"),
        (["bench", "--depth", "-1"], "--depth is -1; allowed: 0 to 1048576"),
        (["bench", "--concurrency", "1,0"], "--concurrency is 0; allowed: 1 to 4096"),
        (["bench", "--repeat", "0"], "--repeat is 0; allowed: 1 to 1000"),
        (["perplexity", "--text", "x", "--context", "3"], "--context is 3; allowed: 4 to 1048576"),
        (["perplexity", "--text", "/nowhere/x"], "/nowhere/x: No such file or directory"),
        (["perplexity", "--text", "/"], "/: Is a directory"),
        (["tokenize", ""], "text is ''; allowed: a text of at least one character"),
    ],
)
def test_wrong_usage_is_one_line(cli, arguments: list[str], message: str) -> None:
    assert message in cli.run(*arguments).error


def test_usage_errors_have_code_2_and_missing_files_code_1(cli) -> None:
    assert cli.run("run", "--frobnicate").code == 2
    assert cli.run("perplexity", "--text", "/nowhere/x").code == 1


def test_isa_in_the_environment_is_checked_for_every_command(cli) -> None:
    cli.monkeypatch.setenv("PELTON_ISA", "mmx")
    assert cli.run("doctor").error == "PELTON_ISA is 'mmx'; allowed: one of scalar, avx2, avx_vnni, avx512, amx, neon"


def test_message_of_several_lines_becomes_one(cli) -> None:
    def fail(*_: object) -> None:
        raise PeltonError("first\n  second\n\nthird")

    cli.load = fail
    assert cli.run("run", "Hi").error == "first second third"


def test_bug_is_one_line_that_says_how_to_see_more(cli) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    cli.load = fail
    error = cli.run("run", "Hi").error
    assert error.startswith("internal error, please report it: ZeroDivisionError: division by zero")
    assert "PELTON_DEBUG=1" in error


def test_debug_shows_the_traceback_before_the_line(cli) -> None:
    cli.monkeypatch.setenv("PELTON_DEBUG", "1")
    outcome = cli.run("run", "-m", "missing", "Hi")
    assert outcome.code == 1
    assert outcome.err.startswith("Traceback (most recent call last):")
    assert outcome.err.endswith("pelton: error: model 'missing' does not exist; allowed: smollm2\n")


def test_full_disk_names_the_file(cli, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "model.gguf"))

    cli.load = fail
    assert cli.run("run", "Hi").error == f"{tmp_path}/model.gguf: No space left on device"


def test_interrupt_outside_an_answer_is_quiet_with_code_130(cli) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    cli.load = interrupt
    outcome = cli.run("run", "Hi")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "")


def test_usage_error_classes_are_those_that_typer_raises() -> None:
    assert app._UsageError.__name__ == "UsageError"
    assert app._ClickException.__name__ == "ClickException"


def test_reader_that_has_gone_away_gives_one_line_and_no_noise_at_exit() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = run_process("doctor", stdout=write_end)
    os.close(write_end)
    assert process.returncode == 1
    assert process.stderr.startswith(f"{TEXT}standard output was closed by its reader")
    assert process.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_under_standard_output_gives_one_line() -> None:
    with open("/dev/full", "w") as full:
        process = run_process("doctor", stdout=full.fileno())
    assert process.returncode == 1
    assert process.stderr.startswith(f"{TEXT}standard output: No space left on device")
    assert process.stderr.count("\n") == 1


def test_standard_output_that_was_never_open_gives_one_line() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(pelton.__file__).parents[1])}
    command = f"exec '{sys.executable}' -m pelton doctor >&-"
    process = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert process.returncode == 1
    assert process.stderr.startswith(f"{TEXT}standard output is closed")
    assert process.stderr.count("\n") == 1


def test_standard_error_that_is_closed_changes_only_what_is_seen() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(pelton.__file__).parents[1])}
    command = f"exec '{sys.executable}' -m pelton run '' 2>&-"
    process = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, env=environment, check=False)
    assert process.returncode == 2
    assert process.stdout == ""


def test_command_that_runs_imports_nothing_it_does_not_need() -> None:
    code = (
        "import sys; from pelton.cli.main import main; code = main(['run', '--max-tokens', '0', 'Hi']);"
        "heavy = {'rich', 'numpy', 'jinja2', 'tokenizers', 'huggingface_hub', 'pelton.cli.bench', 'pelton.cli.chat'};"
        "print(code, sorted(heavy & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(pelton.__file__).parents[1])}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert process.stdout == "2 []\n"


def test_field_that_only_the_engine_can_check_is_named_by_its_flag(cli) -> None:
    assert cli.run("run", "--max-context", "1000", "Hi").error.startswith("--max-context is 1000; allowed: 1 to 512")
