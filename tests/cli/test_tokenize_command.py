"""`pelton tokenize`: the table of a text and the comparison of files."""

from __future__ import annotations

import json
from pathlib import Path


def test_table_shows_ids_pieces_and_bytes(cli) -> None:
    out = cli.run("tokenize", "hé").out
    rows = [line.split() for line in out.splitlines() if line.strip() and line.split()[0].isdigit()]
    assert [row[1] for row in rows[:3]] == ["104", "195", "169"]
    assert rows[0] == ["0", "104", "h", "68"]
    assert "3 tokens, 2 characters, 1.500 tokens per character, 1.00 UTF-8 bytes per token" in out


def test_special_tokens_are_shown_but_not_counted(cli) -> None:
    cli.tokenizer.add_bos = True
    out = cli.run("tokenize", "hi").out
    assert "<s>" in out
    assert "2 tokens (and 1 special), 2 characters" in out


def test_json_has_tokens_and_figures(cli) -> None:
    answer = json.loads(cli.run("tokenize", "--json", "hé").out)
    assert [token["id"] for token in answer["tokens"]] == [104, 195, 169]
    assert answer["tokens_per_char"] == 1.5


def test_text_is_read_from_a_pipe(cli) -> None:
    assert "2 tokens" in cli.run("tokenize", stdin=b"hi\n").out


def test_comparison_lists_files_with_fewest_tokens_per_character_first(cli, tmp_path: Path) -> None:
    english, greek = tmp_path / "en.txt", tmp_path / "el.txt"
    english.write_text("hello")
    greek.write_text("γειά", encoding="utf-8")
    answer = json.loads(cli.run("tokenize", "--json", "--compare", str(greek), str(english)).out)
    assert [(f["name"], f["tokens_per_char"]) for f in answer["files"]] == [(str(english), 1.0), (str(greek), 2.0)]
    out = cli.run("tokenize", "--compare", str(greek), "--compare", str(english)).out
    assert out.index("en.txt") < out.index("el.txt")


def test_markup_in_a_piece_is_shown_as_it_is(cli) -> None:
    assert "]" in cli.run("tokenize", "[red]").out


def test_unreadable_and_empty_files_are_named(cli, tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary"
    empty.write_text("")
    binary.write_bytes(b"ab\xfe")
    assert cli.run("tokenize", "--compare", str(empty)).error.startswith(f"{empty} is 'an empty file'")
    assert cli.run("tokenize", "--compare", str(binary)).error.startswith(f"{binary} is 'byte 0xfe at offset 2'")
    assert cli.run("tokenize", "--compare", str(tmp_path / "no")).error == f"{tmp_path}/no: No such file or directory"


def test_second_text_is_refused(cli) -> None:
    assert cli.run("tokenize", "one", "two").error.startswith("FILE is 'two'")
