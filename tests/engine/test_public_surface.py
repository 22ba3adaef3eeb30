"""`import pelton`: what it offers and what it must not cost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pelton
from pelton.core.errors import InvalidParameterError
from pelton.engine.parts import make_config


def test_every_public_name_can_be_imported_and_an_unknown_one_cannot() -> None:
    for name in pelton.__all__:
        assert getattr(pelton, name) is not None
    assert set(pelton.__all__) <= set(dir(pelton))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pelton.nothing


def test_version_is_that_of_the_package() -> None:
    text = (Path(pelton.__file__).parents[2] / "pyproject.toml").read_text() if in_source_tree() else ""
    match = re.search(r'^version = "(.*)"$', text, re.MULTILINE)
    if match is None:
        pytest.skip("no version written in a pyproject.toml beside this package")
    assert pelton.__version__ == match[1]


def in_source_tree() -> bool:
    return (Path(pelton.__file__).parents[2] / "pyproject.toml").is_file()


def list_modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    package_root = str(Path(pelton.__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {package_root!r})\n{code}"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_else_of_it() -> None:
    modules = list_modules_after("import pelton")
    assert {m for m in modules if m.startswith("pelton.")} == set()
    assert not {"numpy", "jinja2", "tokenizers"} & modules


def test_importing_the_engine_leaves_out_what_only_some_models_need() -> None:
    modules = list_modules_after("from pelton import LLM, SamplingParams, EngineConfig")
    assert not {"jinja2", "huggingface_hub", "pelton.loading.pull", "pelton.execution.runner", "typer"} & modules


def test_options_of_the_engine_are_checked_by_name_and_value() -> None:
    assert make_config(None, {"threads": 2}).threads == 2
    with pytest.raises(InvalidParameterError, match="thread is 2; allowed: one of the options threads, isa"):
        make_config(None, {"thread": 2})
    with pytest.raises(InvalidParameterError, match="threads is 0; allowed: 1 to 1024"):
        make_config(None, {"threads": 0})
