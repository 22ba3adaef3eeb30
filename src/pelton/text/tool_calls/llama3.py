"""Calls of Llama 3.1 and later: {"name": ..., "parameters": {...}} as the whole answer, or after <|python_tag|>.

Several calls, which these models are not trained for, are separated by a semicolon. Llama's built-in tools
(`brave_search.call(...)`) are no JSON and stay content.
"""

from __future__ import annotations

import re

from pelton.text.tool_calls.style import ToolStyle

LLAMA3 = ToolStyle(
    name="llama3",
    marker="<|python_tag|>",
    arguments_key="parameters",
    template_pattern=re.compile(r"<\|python_tag\|>|\"parameters\": dictionary"),
    separator=";",
    is_bare=True,
    is_parallel=False,
)
