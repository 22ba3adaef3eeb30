"""The page's pure functions, tested in node, and that its scripts do what its rules say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "src" / "pelton" / "web"
SCRIPTS = sorted(WEB.glob("*.js"))
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_figures_in_node(tmp_path: Path) -> None:
    # A copy with a package.json: without one node does not know that the files are modules.
    shutil.copytree(WEB, tmp_path / "src" / "pelton" / "web")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tests" / "web").mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("figures.test.mjs"), tmp_path / "tests" / "web")
    command = [str(NODE), "--test", "tests/web/figures.test.mjs"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_makes_no_markup_of_text_and_loads_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "DOMParser",
        "new Function",
    ):
        assert word not in text, word
    addresses = set(re.findall(r"https?://[^\s\"'`]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "a name of SVG is all that looks like an address"
    for name in re.findall(r'from "([^"]+)"', text):
        assert (WEB / name).is_file(), name


@pytest.mark.parametrize("path", [*SCRIPTS, *sorted(WEB.glob("*.css"))], ids=lambda path: path.name)
def test_a_file_is_short_and_says_what_it_is_for(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 400
    assert lines[0].startswith(("// ", "/* "))


def test_the_document_has_no_inline_script_or_style() -> None:
    text = (WEB / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []
    assert "<style" not in text
    assert re.findall(r"\s(?:on[a-z]+|style)=", text) == []
