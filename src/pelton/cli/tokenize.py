"""`pelton tokenize`: the token ids and pieces of a text, or how well a tokenizer fits the languages of some files.

Knows tokenizers, not models: no weights are loaded. Start at `tokenize`; `compare_texts` is the arithmetic.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pelton.cli import terminal
from pelton.cli.open_model import ModelOption, open_tokenizer
from pelton.core.errors import InvalidParameterError

if TYPE_CHECKING:
    from pelton.text.tokenizer import Tokenizer

EXAMPLES = (
    'pelton tokenize "How does inference work?"',
    "pelton tokenize --compare english.txt german.txt",
    "cat text.txt | pelton tokenize --json",
)


@dataclass(frozen=True, slots=True)
class TextFit:
    """How many tokens a text takes; characters are Unicode code points, bytes are UTF-8."""

    name: str
    num_characters: int
    num_bytes: int
    num_tokens: int
    tokens_per_char: float
    bytes_per_token: float


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
        _show_comparison(compare_texts(open_tokenizer(model), texts), json=json)
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


def measure_text(tokenizer: Tokenizer, name: str, text: str) -> TextFit:
    """Count the tokens of a text that is not empty, without BOS or EOS."""
    num_tokens = len(tokenizer.encode(text, add_special=False, parse_special=False))
    num_bytes = len(text.encode())
    return TextFit(
        name=name,
        num_characters=len(text),
        num_bytes=num_bytes,
        num_tokens=num_tokens,
        tokens_per_char=num_tokens / len(text),
        bytes_per_token=num_bytes / num_tokens if num_tokens else 0.0,
    )


def compare_texts(tokenizer: Tokenizer, texts: Sequence[tuple[str, str]]) -> list[TextFit]:
    """Measure named texts, fewest tokens per character first."""
    return sorted((measure_text(tokenizer, *text) for text in texts), key=lambda fit: fit.tokens_per_char)


def _show_tokens(tokenizer: Tokenizer, text: str, *, json: bool) -> None:
    token_ids = tokenizer.encode(text)
    fit = measure_text(tokenizer, "text", text)
    if json:
        tokens = [{"id": token_id, "piece": tokenizer.piece(token_id)} for token_id in token_ids]
        summary = {key: value for key, value in asdict(fit).items() if key != "name"}
        terminal.write_json({"tokens": tokens, **summary, "num_special_tokens": len(token_ids) - fit.num_tokens})
        return
    rows = [
        (str(i), str(t), tokenizer.piece(t), _show_bytes(tokenizer.token_bytes(t))) for i, t in enumerate(token_ids)
    ]
    terminal.print_table("", [("position", True), ("id", True), ("piece", False), ("bytes", False)], rows)
    num_special = len(token_ids) - fit.num_tokens
    special = f" (and {num_special} special)" if num_special > 0 else ""
    terminal.write_out(
        f"{fit.num_tokens} tokens{special}, {fit.num_characters} characters, "
        f"{fit.tokens_per_char:.3f} tokens per character, {fit.bytes_per_token:.2f} UTF-8 bytes per token\n"
    )


def _show_comparison(fits: Sequence[TextFit], *, json: bool) -> None:
    if json:
        terminal.write_json({"files": [asdict(fit) for fit in fits]})
        return
    columns = [("file", False), ("characters", True), ("UTF-8 bytes", True), ("tokens", True)]
    columns += [("tokens/character", True), ("bytes/token", True)]
    rows = [
        (
            f.name,
            str(f.num_characters),
            str(f.num_bytes),
            str(f.num_tokens),
            f"{f.tokens_per_char:.3f}",
            f"{f.bytes_per_token:.2f}",
        )
        for f in fits
    ]
    terminal.print_table("", columns, rows)


def _show_bytes(data: bytes) -> str:
    return data.hex(" ") if data else "(control)"
