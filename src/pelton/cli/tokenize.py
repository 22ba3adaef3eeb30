"""`pelton tokenize`: the token ids and pieces of a text, or how well a tokenizer fits the languages of some files.

Knows tokenizers, not models: no weights are loaded. Start at `tokenize`; the arithmetic is `text/describe.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pelton.cli import terminal
from pelton.cli.open_model import ModelOption, open_tokenizer
from pelton.core.errors import InvalidParameterError
from pelton.text.describe import TextComparison, describe_tokens, measure_text

if TYPE_CHECKING:
    from pelton.text.tokenizer import Tokenizer

EXAMPLES = (
    'pelton tokenize "How does inference work?"',
    "pelton tokenize --compare english.txt german.txt",
    "cat text.txt | pelton tokenize --json",
)


def tokenize(
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", show_default=False, help="The text. Left out: standard input if it is piped."),
    ] = None,
    model: ModelOption = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="FILE",
            show_default=False,
            help="Compare tokens per character of UTF-8 files instead, one row each (may be repeated).",
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", show_default=False, help="Further files for --compare."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show the token ids and pieces of a text, or compare files."""
    if compare:
        # In `--compare a b c` only a belongs to the option; what follows arrives as arguments.
        names = [*compare, *([text] if text is not None else []), *(files or [])]
        texts = [(name, read_text_file(name)) for name in names]
        tokenizer = open_tokenizer(model)
        # Not a mapping by name: a file may be given twice.
        fits = [measure_text(tokenizer, name, content) for name, content in texts]
        _show_comparison(sorted(fits, key=lambda fit: fit.tokens_per_character), json=json)
        return
    if files:
        raise InvalidParameterError("FILE", files[0], "one text (in quotes), or --compare with files")
    if text is None:
        if terminal.is_terminal(sys.stdin):
            raise InvalidParameterError("text", text, "a text as argument or on standard input")
        text = terminal.read_piped_text()
    if not text:
        raise InvalidParameterError("text", text, "a text of at least one character")
    terminal.check_utf8(text, "text")
    _show_tokens(open_tokenizer(model), text, json=json)


def read_text_file(name: str) -> str:
    """Read a UTF-8 file; raise `InvalidParameterError` when it is empty or not UTF-8, `OSError` when unreadable."""
    text = terminal.decode_utf8(Path(name).read_bytes(), name)
    if not text:
        raise InvalidParameterError(name, "an empty file", "a file with at least one character")
    return text


def _show_tokens(tokenizer: Tokenizer, text: str, *, json: bool) -> None:
    described = describe_tokens(tokenizer, text)
    fit = measure_text(tokenizer, "text", text)
    if json:
        tokens = [{"id": token.token_id, "piece": token.piece} for token in described]
        summary = {key: value for key, value in _as_json(fit).items() if key != "name"}
        terminal.write_json({"tokens": tokens, **summary, "num_special_tokens": len(described) - fit.num_tokens})
        return
    rows = [
        (str(i), str(token.token_id), token.piece, _show_bytes(tokenizer.token_bytes(token.token_id)))
        for i, token in enumerate(described)
    ]
    terminal.print_table("", [("position", True), ("id", True), ("piece", False), ("bytes", False)], rows)
    num_special = len(described) - fit.num_tokens
    special = f" (and {num_special} special)" if num_special > 0 else ""
    terminal.write_out(
        f"{fit.num_tokens} tokens{special}, {fit.num_characters} characters, "
        f"{fit.tokens_per_character:.3f} tokens per character, {fit.bytes_per_token:.2f} UTF-8 bytes per token\n"
    )


def _show_comparison(fits: Sequence[TextComparison], *, json: bool) -> None:
    if json:
        terminal.write_json({"files": [_as_json(fit) for fit in fits]})
        return
    columns = [("file", False), ("characters", True), ("UTF-8 bytes", True), ("tokens", True)]
    columns += [("tokens/character", True), ("bytes/token", True)]
    rows = [
        (
            f.name,
            str(f.num_characters),
            str(f.num_bytes),
            str(f.num_tokens),
            f"{f.tokens_per_character:.3f}",
            f"{f.bytes_per_token:.2f}",
        )
        for f in fits
    ]
    terminal.print_table("", columns, rows)


def _as_json(fit: TextComparison) -> dict[str, object]:
    return {**asdict(fit), "tokens_per_char": fit.tokens_per_character, "bytes_per_token": fit.bytes_per_token}


def _show_bytes(data: bytes) -> str:
    return data.hex(" ") if data else "(control)"
