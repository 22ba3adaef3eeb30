"""Calls of Mistral models up to tokenizer version 7: [TOOL_CALLS] and a list of {"name": ..., "arguments": {...}}."""

from __future__ import annotations

import re

from pelton.text.tool_calls.style import ToolStyle, make_short_call_id

MISTRAL = ToolStyle(
    name="mistral",
    marker="[TOOL_CALLS]",
    arguments_key="arguments",
    template_pattern=re.compile(r"\[TOOL_CALLS\](?![\s\S]*\[ARGS\])"),
    is_list=True,
    make_id=make_short_call_id,
)
