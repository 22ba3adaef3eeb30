"""The typer application: the table of commands, and the options before the command.

Knows the names of the commands, not what they do: only the module of a command that is asked for is imported. Start at
`run_command`. To add a command, write `cli/<name>.py` with a function of that name and `EXAMPLES`, and add a line to
`COMMANDS`; a name of two words has an underscore there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from pelton import __version__
from pelton.cli import terminal
from pelton.core.errors import InvalidParameterError

# Command -> module in this folder; the function in it has the command's name.
COMMANDS = {
    "run": "pelton.cli.run",
    "serve": "pelton.cli.serve",
    "bench": "pelton.cli.bench",
    "bench engine": "pelton.cli.bench_engine",
    "bench machine": "pelton.cli.bench_machine",
    "bench serve": "pelton.cli.bench_serve",
    "perplexity": "pelton.cli.perplexity",
    "plan": "pelton.cli.plan",
    "explain": "pelton.cli.explain",
    "tokenize": "pelton.cli.tokenize",
    "pull": "pelton.cli.pull",
    "doctor": "pelton.cli.doctor",
}

# typer keeps click inside itself in newer versions, so click's exceptions are reached through their public subclass.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]


class UsageError(Exception):
    """The command line cannot be understood; the text is one line."""


def run_command(args: Sequence[str]) -> int:
    """Run the command `args` asks for (help without any) and return its exit code.

    Raises `UsageError`, and whatever the command raises.
    """
    args = _join_name(args)
    first = args[0] if args else "--help"
    names: Sequence[str] = [first] if first in COMMANDS else list(COMMANDS)
    if first not in COMMANDS and not first.startswith("-"):
        raise InvalidParameterError("command", first, "one of " + ", ".join(COMMANDS))
    command = typer.main.get_command(make_app(names))
    try:
        code = command.main(list(args) or [first], prog_name="pelton", standalone_mode=False)
    except _ClickException as error:
        message: str = error.format_message()  # type: ignore[attr-defined]  # every ClickException has it
        hint = "; see `pelton --help` or `pelton COMMAND --help`" if isinstance(error, _UsageError) else ""
        raise UsageError(message.rstrip(".") + hint) from error
    return code if isinstance(code, int) else 0


def _join_name(args: Sequence[str]) -> Sequence[str]:
    """Make one word of a command's name that has two."""
    pair = " ".join(args[:2])
    return [pair, *args[2:]] if len(args) > 1 and pair in COMMANDS else args


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
    command: Callable[..., object] = vars(importlib.import_module(COMMANDS[name]))[name.replace(" ", "_")]
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
