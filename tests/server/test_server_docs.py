"""docs/server.md and the dashboard are what their scripts write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("script", ["make_server_docs.py", "make_grafana_dashboard.py"])
def test_generated_pages_are_current(script: str) -> None:
    command = [sys.executable, str(DOCS / script), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
