"""What a user may write to name a model: an alias, `hf:`, `pypi:` or a path. Text to typed values, nothing fetched.

Knows the forms, not the sources. Start at `parse_reference`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pelton.core.errors import ModelFileError, ModelNotFoundError
from pelton.loading.catalog import CATALOG, CatalogEntry

HUB_PREFIX = "hf:"
PYPI_PREFIX = "pypi:"
MODEL_SUFFIX = ".gguf"

# Names and versions start with a letter or digit, so none can pass for an option of pip (PEP 508, PEP 440).
_PACKAGE = re.compile(
    r"(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
)
_HUB_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_MAX_LISTED_FILES = 20


@dataclass(frozen=True, slots=True)
class LocalReference:
    """A file on this machine, used where it lies."""

    path: Path


@dataclass(frozen=True, slots=True)
class PypiReference:
    """A file inside a wheel of a Python package index; `member` None means the only GGUF file in it."""

    package: str
    version: str
    member: str | None

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class HubReference:
    """A file of a Hugging Face repository; `file` None means the only GGUF file in it."""

    repo_id: str
    file: str | None


Reference = LocalReference | PypiReference | HubReference | CatalogEntry


def describe_forms() -> str:
    """Return one phrase that says how a model can be named."""
    return (
        f"a known name ({', '.join(CATALOG)}), a path to a .gguf file, hf:org/repo[/file], pypi:package==version[#file]"
    )


def parse_reference(text: str | Path) -> Reference:
    """Return what `text` names; a `Path` is always a local file.

    Raises `ModelNotFoundError` for an unknown name, a path where nothing is or a malformed reference,
    `ModelFileError` for a directory.
    """
    if isinstance(text, Path):
        return _parse_path(text, looks_like_path=True)
    if text.startswith(PYPI_PREFIX):
        return _parse_pypi(text)
    if text.startswith(HUB_PREFIX):
        return _parse_hub(text)
    if text in CATALOG:
        return CATALOG[text]
    if not text.strip() or "\0" in text:
        raise ModelNotFoundError(f"model {text!r} is not a name; allowed: {describe_forms()}")
    path = Path(text).expanduser() if text.startswith("~/") else Path(text)
    return _parse_path(path, looks_like_path="/" in text or path.suffix.lower() == MODEL_SUFFIX)


def list_model_files(directory: Path) -> list[Path]:
    """Return the GGUF files directly in `directory`, sorted by name; empty if it cannot be read."""
    try:
        return sorted(path for path in directory.iterdir() if path.suffix.lower() == MODEL_SUFFIX and path.is_file())
    except OSError:
        return []


def list_names(names: list[str]) -> str:
    """Join file names for a message; a long list is cut and says so."""
    more = f" and {len(names) - _MAX_LISTED_FILES} more" if len(names) > _MAX_LISTED_FILES else ""
    return ", ".join(names[:_MAX_LISTED_FILES]) + more


def _parse_path(path: Path, *, looks_like_path: bool) -> LocalReference:
    try:
        if path.is_dir():
            files = [str(file) for file in list_model_files(path)]
            hint = f"name one of its files: {list_names(files)}" if files else "it holds no .gguf file"
            raise ModelFileError(f"{path} is a directory; a GGUF file is needed ({hint})")
        if path.exists():
            return LocalReference(path)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"{_shorten(path)} cannot be a path: {getattr(error, 'strerror', error)}") from error
    raise ModelNotFoundError(_explain_missing(path, looks_like_path))


def _explain_missing(path: Path, looks_like_path: bool) -> str:
    import difflib

    name = str(path) if str(path).isprintable() else repr(str(path))
    if looks_like_path:
        siblings = [str(file) for file in list_model_files(path.parent)]
        close = difflib.get_close_matches(name, siblings, n=1)
        return f"{name} does not exist" + (f"; did you mean {close[0]}?" if close else f"; allowed: {describe_forms()}")
    close = difflib.get_close_matches(name.lower(), CATALOG, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"no model is known as {name!r}{meant}; allowed: {describe_forms()}"


def _parse_pypi(text: str) -> PypiReference:
    requirement, mark, member = text.removeprefix(PYPI_PREFIX).partition("#")
    match = _PACKAGE.fullmatch(requirement)
    if match is None or (mark and not member):
        raise ModelNotFoundError(f"model {text!r} is malformed; allowed: pypi:package==version[#file]")
    return PypiReference(match["package"], match["version"], member or None)


def _parse_hub(text: str) -> HubReference:
    parts = text.removeprefix(HUB_PREFIX).split("/")
    if len(parts) < 2 or not all(_HUB_PART.fullmatch(part) for part in parts):
        raise ModelNotFoundError(f"model {text!r} is malformed; allowed: hf:org/repo[/file]")
    return HubReference("/".join(parts[:2]), "/".join(parts[2:]) or None)


def _shorten(path: Path) -> str:
    name = str(path)
    return repr(name if len(name) <= 80 else name[:77] + "...")
