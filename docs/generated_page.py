"""What the scripts that generate a file of this folder share: table cells, and `--check`. Start at `finish`."""

from __future__ import annotations

import sys
from pathlib import Path


def escape(text: str) -> str:
    """Keep a cell of a Markdown table in one piece."""
    return text.replace("|", "\\|")


def finish(path: Path, text: str, source: str) -> int:
    """Write `text` to `path`, or with `--check` compare the two; returns the exit code. `source` is what says it."""
    if "--check" not in sys.argv[1:]:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return 0
    print(f"{path} is not what {source}; run `make docs`", file=sys.stderr)
    return 1
