"""Entry point of the `pelton` command: picks the command, runs it, and turns every error into one line.

Knows the names of the commands, not what they do: only the module of the command that was asked for is imported.
Start at `main`. To add a command, write `cli/<name>.py` with a function of that name and add a line to `COMMANDS`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from pelton import __version__
from pelton.cli import terminal
from pelton.core.config import read_environment, read_is_debug
from pelton.core.errors import InvalidParameterError, PeltonError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, what shells report

# Command -> module in this folder; the function in it has the command's name.
COMMANDS = {
    "run": "pelton.cli.run",
    "bench": "pelton.cli.bench",
    "perplexity": "pelton.cli.perplexity",
    "tokenize": "pelton.cli.tokenize",
    "pull": "pelton.cli.pull",
    "doctor": "pelton.cli.doctor",
}

# typer keeps click inside itself in newer versions, so click's exceptions are reached through their public subclass.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `pelton` with `arguments` (default: those of the process) and return the exit code.

    0 success, 1 failure, 2 wrong usage or a value that is not allowed, 130 interrupted. Each failure writes exactly
    one line to standard error; PELTON_DEBUG=1 puts the traceback before it.
    """
    args = list(sys.argv[1:] if arguments is None else arguments)
    terminal.prepare_streams()
    try:
        code = _run_command(args)
        if sys.stdout is not None:
            terminal.write_out("")  # what is still buffered must arrive, or be reported
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # the process boundary: whatever failed becomes one line
        return _report(error)
    finally:
        _drop_unwritable_output()


def make_app(names: Sequence[str]) -> typer.Typer:
    """Build the typer application with the named commands; importing a command's module is what costs time."""
    app = typer.Typer(
        name="pelton",
        help="Run language models on this machine's CPU, and see where the time goes.",
        epilog="Start with: pelton run 'How does inference work?'",
        rich_markup_mode=None,  # rich would read [/file] as markup, and costs start-up time
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_root)
    for name in names:
        command = get_command(name)
        examples: Sequence[str] = importlib.import_module(COMMANDS[name]).EXAMPLES
        # "\b" keeps click from joining the lines.
        app.command(name, epilog="\n".join(["\b", "Examples:", *(f"  {line}" for line in examples)]))(command)
    return app


def get_command(name: str) -> Callable[..., object]:
    """Return the function of the command `name`, a key of `COMMANDS`."""
    command: Callable[..., object] = vars(importlib.import_module(COMMANDS[name]))[name]
    return command


def _print_version(is_asked: bool) -> None:
    if is_asked:
        terminal.write_out(f"pelton {__version__}\n")
        raise typer.Exit(0)


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Typer needs a function for the options before the command; all of them are eager."""


def _run_command(args: list[str]) -> int:
    read_environment()  # a bad variable is reported before any work
    if not args:
        args = ["--help"]
    first = args[0]
    if first in COMMANDS:
        names: Sequence[str] = [first]
    else:
        names = list(COMMANDS)
        if not first.startswith("-"):
            raise InvalidParameterError("command", first, "one of " + ", ".join(COMMANDS))
    command = typer.main.get_command(make_app(names))
    code = command.main(args, prog_name="pelton", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _report(error: Exception) -> int:
    if read_is_debug():
        import traceback

        terminal.write_error("".join(traceback.format_exception(error)).rstrip())
    message, code = _describe(error)
    terminal.write_error("pelton: error: " + " ".join(message.split()))
    return code


def _describe(error: Exception) -> tuple[str, int]:
    if isinstance(error, InvalidParameterError):
        return str(error), EXIT_USAGE
    if isinstance(error, PeltonError):
        return str(error), EXIT_FAILURE
    if isinstance(error, _ClickException):
        hint = "; see `pelton --help` or `pelton COMMAND --help`" if isinstance(error, _UsageError) else ""
        return error.format_message().rstrip(".") + hint, EXIT_USAGE  # type: ignore[attr-defined]  # click's method
    if isinstance(error, BrokenPipeError):
        return str(terminal.make_output_error(error)), EXIT_FAILURE
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror}", EXIT_FAILURE
    if isinstance(error, MemoryError):
        return "not enough memory; a smaller --max-context, --kv-cache-tokens or model needs less", EXIT_FAILURE
    hint = "" if read_is_debug() else "; PELTON_DEBUG=1 shows where"
    return f"internal error, please report it: {type(error).__name__}: {error}{hint}", EXIT_FAILURE


def _drop_unwritable_output() -> None:
    # What could not be written would be tried again, and complained about, when the interpreter ends.
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        terminal.silence_stdout()
