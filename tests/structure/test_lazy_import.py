"""llguidance is loaded by the first structure that is compiled, not by an import."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_imports_llguidance_before_a_structure_is_compiled() -> None:
    code = (
        "import sys, pelton.structure.compiler, pelton.structure.forced_calls, pelton.core.sampling_params\n"
        "import pelton.text.tool_calls.prompt\n"
        "print([name for name in ('llguidance', 'jinja2', 'tokenizers') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
