"""Calls of Hermes 2 Pro, Qwen 2.5 and 3 and many others: <tool_call> {"name": ..., "arguments": {...}} </tool_call>.

Also the style Pelton asks for where a chat template does not know tools.
"""

from __future__ import annotations

import re

from pelton.text.tool_calls.style import ToolStyle

HERMES = ToolStyle(
    name="hermes",
    marker="<tool_call>",
    close="</tool_call>",
    arguments_key="arguments",
    template_pattern=re.compile(r"<tool_call>"),
)
