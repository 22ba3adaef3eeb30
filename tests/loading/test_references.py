"""The ways to name a model, and what is said about names that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pelton.core.errors import ModelFileError, ModelNotFoundError
from pelton.loading.catalog import CATALOG
from pelton.loading.pull import pull, resolve_model
from pelton.loading.references import HubReference, LocalReference, PypiReference, parse_reference


def test_each_form_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.touch()
    assert parse_reference(str(file)) == LocalReference(file)
    assert parse_reference(file) == LocalReference(file)
    assert parse_reference("smollm2") is CATALOG["smollm2"]
    assert parse_reference("pypi:a-b==1.0#c/d.gguf") == PypiReference("a-b", "1.0", "c/d.gguf")
    assert parse_reference("pypi:a==1!2.0+cpu") == PypiReference("a", "1!2.0+cpu", None)
    assert parse_reference("hf:org/repo") == HubReference("org/repo", None)
    assert parse_reference("hf:org/repo/sub/m.gguf") == HubReference("org/repo", "sub/m.gguf")


def test_every_known_model_names_a_file_of_a_package() -> None:
    for alias, entry in CATALOG.items():
        source = parse_reference(entry.reference)
        assert alias == entry.alias
        assert isinstance(source, PypiReference)
        assert source.member is not None
        assert source.member.rpartition("/")[2] == entry.file_name


@pytest.mark.parametrize(
    "text",
    [
        "pypi:",
        "pypi:a",
        "pypi:a==",
        "pypi:--index-url=x==1",
        "pypi:a==-1",
        "pypi:a==1#",
        "pypi:a>=1",
        "pypi:a==1 b",
        "pypi:../x==1",
        "hf:",
        "hf:org",
        "hf:org/",
        "hf:/repo",
        "hf:org/repo/",
        "hf:org/repo/../../x",
        "hf:../repo",
        "hf:-o/repo",
    ],
)
def test_malformed_reference_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"malformed; allowed: (pypi:package==version|hf:org/repo)") as caught:
        parse_reference(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["gpt5", "", " ", "a\0b", "https:", "llama"])
def test_unknown_name_lists_the_names_and_forms(text: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        parse_reference(text)
    for part in (repr(text), "smollm2", ".gguf", "hf:org/repo[/file]", "pypi:package==version[#file]"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_near_miss_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"did you mean smollm2\?"):
        parse_reference("SmolLM-2")
    (tmp_path / "model.Q4_1.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"did you mean .*model\.Q4_1\.gguf\?"):
        parse_reference(str(tmp_path / "model.Q4_0.gguf"))


def test_absent_path_is_said_to_be_absent(tmp_path: Path) -> None:
    for text in (str(tmp_path / "no" / "such"), "nothing.gguf", "./nothing"):
        with pytest.raises(ModelNotFoundError, match="does not exist"):
            parse_reference(text)


def test_path_that_no_file_can_have_is_an_error() -> None:
    for path in ("x" * 5000, Path("y" * 5000), Path("a\0b"), "a\nb/c.gguf"):
        with pytest.raises(ModelNotFoundError) as caught:
            parse_reference(path)
        assert len(str(caught.value)) < 500
        assert str(caught.value).isprintable()


def test_directory_names_the_model_files_in_it(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"is a directory.*no \.gguf file"):
        parse_reference(str(tmp_path))
    for name in ("b.gguf", "a.gguf", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ModelFileError, match=r"a\.gguf, .*b\.gguf\)$"):
        resolve_model(str(tmp_path), tmp_path)


def test_local_file_is_used_where_it_lies(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.touch()
    cache = tmp_path / "cache"
    assert resolve_model(str(file), cache) == pull(str(file), cache) == file
    assert not cache.exists()


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/m.gguf", tmp_path) == tmp_path / "m.gguf"
