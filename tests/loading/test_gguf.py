"""The GGUF reader: every value type against the published writer, and hostile files against plain errors."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np
import pytest

from pelton.core.errors import ModelFileError, ModelNotFoundError, PeltonError, UnsupportedModelError
from pelton.loading.gguf import open_gguf

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
# name, dims in file order, type id, offset
Tensor = tuple[str, list[int], int, int]


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, type_id: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_id) + value


def array(item_type: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", item_type, count) + items


def make_gguf(
    entries: Iterable[bytes] = (),
    tensors: Iterable[Tensor] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    num_tensors: int | None = None,
    num_entries: int | None = None,
    alignment: int = 32,
) -> bytes:
    entries, tensors = list(entries), list(tensors)
    raw = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_entries is None else num_entries,
    )
    raw += b"".join(entries)
    for name, dims, type_id, offset in tensors:
        raw += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)
    return raw + bytes(-len(raw) % alignment) + data if tensors else raw


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def check_error(path: Path, raw: bytes, *parts: str, error: type[PeltonError] = ModelFileError) -> None:
    """`raw` gives `error`, in one line that names the file and each of `parts`."""
    path.write_bytes(raw)
    with pytest.raises(error) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(path), *parts):
        assert part in message


def write_every_value_type(path: Path) -> None:
    """A file of the published writer with each type of value and two tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_float32("f32", 0.1)
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "wörd \n\0 漢")
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("bools", [True, False])
    writer.add_array("strings", ["a", "é", "x" * 300, "b"])
    writer.add_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("q", np.arange(36, dtype=np.uint8).reshape(2, 18), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_every_value_type_reads_as_the_published_writer_wrote_it(path: Path) -> None:
    write_every_value_type(path)
    with open_gguf(path) as file:
        assert file.version == 3
        assert file.metadata == {
            "general.architecture": "llama",
            "u8": 255,
            "i8": -128,
            "u16": 65535,
            "i16": -32768,
            "u32": 2**32 - 1,
            "i32": -(2**31),
            "f32": float(np.float32(0.1)),
            "u64": 2**64 - 1,
            "i64": -(2**63),
            "f64": 0.1,
            "yes": True,
            "no": False,
            "text": "wörd \n\0 漢",
            "integers": [1, -2, 3],
            "floats": [0.5, -1.5],
            "bools": [True, False],
            "strings": ["a", "é", "x" * 300, "b"],
        }
        assert list(file.tensors) == ["t", "q"]
        assert file.tensors["t"].shape == (2, 3)
        assert file.tensors["t"].data.view("<f4").tolist() == [0, 1, 2, 3, 4, 5]
        assert (file.tensors["q"].shape, file.tensors["q"].type.name) == ((2, 32), "Q4_0")
        assert file.tensors["q"].data.tolist() == list(range(36))
        assert not file.tensors["q"].data.flags.writeable


def test_version_2_and_nested_arrays_are_read(path: Path) -> None:
    inner = array(U32, 2, struct.pack("<II", 7, 8)) + array(STRING, 1, text("x"))
    path.write_bytes(make_gguf([entry("nested", ARRAY, array(ARRAY, 2, inner))], version=2))
    with open_gguf(path) as file:
        assert file.version == 2
        assert file.metadata == {"nested": [[7, 8], ["x"]]}
        assert file.tensors == {}


def test_long_numeric_array_is_an_array_that_outlives_the_file(path: Path) -> None:
    numbers = np.arange(5000, dtype="<i4")
    path.write_bytes(make_gguf([entry("types", ARRAY, array(5, 5000, numbers.tobytes()))]))
    with open_gguf(path) as file:
        metadata = file.metadata
    values = metadata["types"]
    assert isinstance(values, np.ndarray)
    assert values.tolist() == list(range(5000))
    path.write_bytes(make_gguf([entry("flags", ARRAY, array(BOOL, 2000, b"\0\1" * 1000))]))
    with open_gguf(path) as file:
        flags = file.metadata["flags"]
    assert isinstance(flags, np.ndarray)
    assert flags.tolist() == [False, True] * 1000


def test_other_alignment_moves_the_data(path: Path) -> None:
    raw = make_gguf(
        [entry("general.alignment", U32, struct.pack("<I", 256))],
        [("a", [2], 0, 0), ("b", [1], 0, 256)],
        struct.pack("<2f", 1, 2) + bytes(248) + struct.pack("<f", 3),
        alignment=256,
    )
    path.write_bytes(raw)
    with open_gguf(path) as file:
        assert file.tensors["a"].data.view("<f4").tolist() == [1, 2]
        assert file.tensors["b"].data.view("<f4").tolist() == [3]


def test_views_stay_valid_after_close_and_released_pages_come_back(path: Path) -> None:
    path.write_bytes(make_gguf([], [("a", [2], 0, 0)], struct.pack("<2f", 1, 2)))
    file = open_gguf(path)
    view = file.tensors["a"].data
    file.release_pages()
    assert view.view("<f4").tolist() == [1, 2]
    file.close()
    assert view.view("<f4").tolist() == [1, 2]
    file.release_pages()
    del view
    file.close()
    file.close()
    file.release_pages()


# Nothing the file says about a tensor is trusted.

ONE_TENSOR = make_gguf([], [("blk.0.w", [8], 0, 0)], bytes(32))


def test_missing_last_byte_names_the_tensor_and_the_numbers(path: Path) -> None:
    path.write_bytes(ONE_TENSOR)
    open_gguf(path).close()
    check_error(path, ONE_TENSOR[:-1], "truncated", "'blk.0.w'", "32 bytes", "31 bytes")


@pytest.mark.parametrize("offset", [2**41, 2**64 - 32])
def test_offset_beyond_the_file_is_refused(path: Path, offset: int) -> None:
    check_error(path, make_gguf([], [("w", [8], 0, offset)], bytes(32)), "'w'", str(offset))


def test_size_that_wraps_in_64_bits_is_refused(path: Path) -> None:
    dims = [8, 179951, 3203431780337]
    assert dims[0] * dims[1] * dims[2] * 4 == 2**64 - 32
    raw = make_gguf([], [("first", [64], 0, 0), ("huge", dims, 0, 256)], bytes(512))
    check_error(path, raw, "'huge'", str(2**64 - 32))


@pytest.mark.parametrize("num_dims", [0, 5, 9, 2**32 - 1])
def test_number_of_dimensions_is_bounded(path: Path, num_dims: int) -> None:
    raw = make_gguf(num_tensors=1) + text("w") + struct.pack("<I", num_dims) + bytes(200)
    check_error(path, raw, "'w'", f"{num_dims} dimensions", "1 to 4")


def test_dimension_of_zero_is_refused(path: Path) -> None:
    check_error(path, make_gguf([], [("w", [0, 4], 0, 0)], bytes(32)), "'w'", "[0, 4]")


def test_counts_are_compared_with_the_size_of_the_file(path: Path) -> None:
    check_error(path, make_gguf(num_tensors=2**60), "number of tensors", str(2**60))
    check_error(path, make_gguf(num_entries=2**64 - 1), "number of metadata keys", str(2**64 - 1))


def test_overlapping_tensors_are_refused(path: Path) -> None:
    raw = make_gguf([], [("a", [16], 0, 0), ("b", [8], 0, 32)], bytes(64))
    check_error(path, raw, "'a'", "'b'", "overlaps")


def test_zero_length_and_bare_magic_are_refused(path: Path) -> None:
    check_error(path, b"", "empty")
    check_error(path, b"GGUF", "truncated", "version")
    check_error(path, b"GG", "not a GGUF file")


def test_every_truncation_of_a_file_is_an_error(path: Path) -> None:
    whole = make_gguf(
        [
            entry("general.architecture", STRING, text("llama")),
            entry("words", ARRAY, array(STRING, 3, text("one") + text("") + text("three"))),
            entry("numbers", ARRAY, array(F32, 3, struct.pack("<3f", 1, 2, 3))),
            entry("flag", BOOL, b"\1"),
        ],
        [("w", [8], 0, 0)],
        bytes(32),
    )
    path.write_bytes(whole)
    open_gguf(path).close()
    for length in range(len(whole)):
        check_error(path, whole[:length])


def test_every_flipped_byte_is_either_sound_or_an_error(path: Path) -> None:
    entries = [entry("general.alignment", U32, struct.pack("<I", 32)), entry("s", ARRAY, array(STRING, 1, text("é")))]
    whole = make_gguf(entries, [("w", [32, 2], 2, 0)], bytes(36))
    for position in range(len(whole) - 36):
        for flip in (0x01, 0x80, 0xFF):
            raw = bytearray(whole)
            raw[position] ^= flip
            path.write_bytes(raw)
            with contextlib.suppress(PeltonError):
                open_gguf(path).close()


def test_unsupported_tensor_type_is_named_and_the_supported_listed(path: Path) -> None:
    raw = make_gguf([], [("blk.3.w", [256], 16, 0)], bytes(66))
    check_error(path, raw, "'blk.3.w'", "IQ2_XXS", "Q4_K", "BF16", error=UnsupportedModelError)
    raw = make_gguf([], [("w", [256], 999, 0)], bytes(66))
    check_error(path, raw, "type 999", error=UnsupportedModelError)


def test_rows_must_be_whole_blocks(path: Path) -> None:
    check_error(path, make_gguf([], [("w", [48, 2], 2, 0)], bytes(64)), "'w'", "48", "multiple of 32", "Q4_0")


def test_offset_must_keep_the_alignment(path: Path) -> None:
    check_error(path, make_gguf([], [("w", [4], 0, 16)], bytes(64)), "'w'", "offset 16", "alignment 32")


@pytest.mark.parametrize("alignment", [0, 4, 24, 33, 2**32 - 1])
def test_alignment_must_be_a_power_of_two(path: Path, alignment: int) -> None:
    raw = make_gguf([entry("general.alignment", U32, struct.pack("<I", alignment))])
    check_error(path, raw, "general.alignment", str(alignment), "power of two")


def test_alignment_of_another_kind_is_refused(path: Path) -> None:
    check_error(path, make_gguf([entry("general.alignment", STRING, text("32"))]), "general.alignment", "'32'")
    check_error(path, make_gguf([entry("general.alignment", BOOL, b"\1")]), "general.alignment", "True")


def test_alignment_larger_than_the_file_is_a_truncation(path: Path) -> None:
    raw = make_gguf([entry("general.alignment", U32, struct.pack("<I", 2**31))], [("w", [8], 0, 0)], bytes(64))
    check_error(path, raw, "'w'", "0 bytes of data")


def test_names_appear_once(path: Path) -> None:
    flag = entry("flag", BOOL, b"\1")
    check_error(path, make_gguf([flag, flag]), "'flag'", "twice")
    check_error(path, make_gguf([], [("w", [8], 0, 0), ("w", [8], 0, 32)], bytes(64)), "'w'", "twice")


def test_text_must_be_utf_8(path: Path) -> None:
    check_error(path, make_gguf([entry(b"k\xff", BOOL, b"\1")]), "key 0 of 1", "UTF-8", "0xff")
    check_error(path, make_gguf([entry("key", STRING, text(b"ab\xc3"))]), "'key'", "0xc3 at 2")
    words = array(STRING, 3, text("ok") + text(b"\x80") + text("ok"))
    check_error(path, make_gguf([entry("words", ARRAY, words)]), "'words'[1]", "0x80 at 0")


def test_value_types_bools_and_depth_are_checked(path: Path) -> None:
    check_error(path, make_gguf([entry("key", 13, bytes(8))]), "'key'", "value type 13")
    check_error(path, make_gguf([entry("key", ARRAY, array(99, 0, b""))]), "'key'", "item type 99")
    check_error(path, make_gguf([entry("key", BOOL, b"\2")]), "'key'", "byte 2")
    deep = array(ARRAY, 1, b"") * 5000 + array(U32, 0, b"")
    check_error(path, make_gguf([entry("key", ARRAY, deep)]), "'key'", "deeper than 4")


def test_number_of_nested_arrays_is_bounded(path: Path) -> None:
    empty = array(U32, 0, b"")
    check_error(path, make_gguf([entry("key", ARRAY, array(ARRAY, 70_000, empty * 70_000))]), "'key'", "65536 arrays")


@pytest.mark.parametrize("item_type", [0, 6, 7, 8, 9, 12])
@pytest.mark.parametrize("count", [2**32, 2**61, 2**64 - 1])
def test_array_lengths_are_compared_with_the_size_of_the_file(path: Path, item_type: int, count: int) -> None:
    raw = make_gguf([entry("key", ARRAY, array(item_type, count, bytes(64)))])
    check_error(path, raw, "'key'", str(count))


@pytest.mark.parametrize("length", [65, 2**40, 2**64 - 1])
def test_string_lengths_are_compared_with_the_size_of_the_file(path: Path, length: int) -> None:
    raw = make_gguf([entry("key", STRING, struct.pack("<Q", length) + bytes(64))])
    check_error(path, raw, "'key'", str(length))
    raw = make_gguf([entry("key", ARRAY, array(STRING, 2, text("a") + struct.pack("<Q", length) + bytes(64)))])
    check_error(path, raw, "'key'", "string 1 of 2")


def test_name_of_a_million_bytes_is_refused_in_a_short_message(path: Path) -> None:
    path.write_bytes(make_gguf([entry("k" * 10**6, BOOL, b"\1")]))
    with pytest.raises(ModelFileError, match="1000000 bytes long") as caught:
        open_gguf(path)
    assert len(str(caught.value)) < 400
    path.write_bytes(make_gguf([entry("k" * 60000, BOOL, b"\7")]))
    with pytest.raises(ModelFileError, match=r"\.\.\.") as caught:
        open_gguf(path)
    assert len(str(caught.value)) < 400


def test_other_versions_and_byte_orders_are_named(path: Path) -> None:
    check_error(path, b"GGUF" + struct.pack("<III", 1, 0, 0), "version 1", "2 and 3")
    check_error(path, b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4")
    check_error(path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian")


def test_things_that_are_not_model_files_are_named(tmp_path: Path, path: Path) -> None:
    check_error(path, b"Hello, world\n", "not a GGUF file", "b'Hell'")
    check_error(path, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer")
    with pytest.raises(ModelFileError, match="directory"):
        open_gguf(tmp_path)
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        open_gguf(path / "below-a-file.gguf")


def test_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(ModelFileError, match="not a regular file"):
        open_gguf(pipe)


def test_path_that_no_file_can_have_is_an_error() -> None:
    with pytest.raises(PeltonError, match=r"cannot be read|does not exist"):
        open_gguf(Path("x" * 5000))
    with pytest.raises(PeltonError, match=r"cannot be read|does not exist"):
        open_gguf(Path("a\0b"))
