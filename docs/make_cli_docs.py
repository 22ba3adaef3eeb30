"""Write docs/cli.md from the commands themselves; `--check` only says whether the page is current.

Uses the objects behind `pelton --help`, and not its text, which differs from one version of typer to the next.
Start at `make_page`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from generated_page import escape, finish

from pelton.cli import app as cli

PAGE = Path(__file__).with_name("cli.md")

HEAD = """# The command line

<!-- Made by docs/make_cli_docs.py; run `make docs` after changing an option. -->

Every option below is described once in the source, most of them as fields of `SamplingParams` and `EngineConfig`.
`pelton COMMAND --help` shows the same.

Exit codes: 0 success, 1 failure, 2 wrong usage or a value that is not allowed, 130 interrupted with Ctrl-C. An error
is one line on standard error that begins with `pelton: error:`.

| Environment variable | Meaning |
|---|---|
| `PELTON_ISA` | Instruction set of the kernels: scalar, avx2, avx_vnni, avx512, amx or neon; `--isa` goes before it |
| `PELTON_CACHE` | Folder of downloaded models; else `$XDG_CACHE_HOME/pelton`, else `~/.cache/pelton` |
| `PELTON_API_KEYS` | API keys of `pelton serve`, separated by commas; `pelton bench serve` sends the first one |
| `PELTON_DEBUG` | `1` shows the traceback of an error |
| `NO_COLOR` | Anything turns colours off; there are none outside a terminal anyway |
"""


def make_page() -> str:
    """The whole page as Markdown."""
    group: Any = typer.main.get_command(cli.make_app(tuple(cli.COMMANDS)))  # Any: click's types move between versions
    sections = [HEAD]
    for name in cli.COMMANDS:
        sections.append(make_section(name, group.commands[name]))
    return "\n".join(sections)


def make_section(name: str, command: Any) -> str:  # Any: see make_page
    """One command: what it does, how it is called, its arguments and options, examples."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]
    usage = " ".join([f"pelton {name}", "[OPTIONS]", *(f"[{a.metavar}]" for a in arguments)])
    description = " ".join((command.help or "").split())
    lines = [f"## pelton {name}", "", description, "", "```text", usage, "```", ""]
    lines += ["| Argument or option | Meaning |", "|---|---|"]
    lines += [f"| `{a.metavar}` | {escape(a.help)} |" for a in arguments]
    lines += [f"| {describe_flags(option)} | {escape(option.help)} |" for option in options]
    lines += ["", "```bash", *sys.modules[cli.COMMANDS[name]].EXAMPLES, "```", ""]
    return "\n".join(lines)


def describe_flags(option: Any) -> str:  # Any: see make_page
    """All spellings of an option, and its value."""
    flags = sorted(option.opts, key=len)
    value = f" {option.metavar}" if option.metavar else ""
    return ", ".join(f"`{flag}{value}`" for flag in flags).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(finish(PAGE, make_page(), "the commands say"))
