"""The fast way through long arrays of strings gives what a plain loop gives."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.loading.gguf_strings import read_strings

PIECES = st.one_of(
    st.binary(min_size=1, max_size=6).map(lambda raw: raw.decode("utf-8", "replace").encode()),
    st.sampled_from([b"", b"\0", b"a\0", b"\0" * 7, b"\0" * 8, b"a" + b"\0" * 16, b"y" * 255, b"y" * 256, b"y" * 300]),
)


@settings(deadline=None, max_examples=300, database=None)
@given(st.lists(PIECES, max_size=40), st.binary(max_size=20))
def test_string_arrays_read_the_same_fast_and_slow(pieces: list[bytes], tail: bytes) -> None:
    raw = b"".join(struct.pack("<Q", len(piece)) + piece for piece in pieces)
    strings: list[str] = []
    assert read_strings(raw + tail, 0, len(pieces), strings) == len(raw)
    assert strings == [piece.decode() for piece in pieces]


def test_strings_that_cross_the_windows_are_read_whole() -> None:
    pieces = [(f"piece {i} " * (i % 30 + 1))[:250] for i in range(30_000)]
    pieces[100] = ""
    pieces[20_000] = "z" * 1000
    raw = b"".join(struct.pack("<Q", len(piece)) + piece.encode() for piece in pieces)
    assert len(raw) > 3 << 20
    strings: list[str] = []
    assert read_strings(raw, 0, len(pieces), strings) == len(raw)
    assert strings == pieces
