"""The styles of tool calls, and which one a model writes. A new style is a file and a line here.

Entry point: `detect_style`.
"""

from __future__ import annotations

from pelton.text.chat_template import ChatTemplate
from pelton.text.tool_calls.hermes import HERMES
from pelton.text.tool_calls.llama3 import LLAMA3
from pelton.text.tool_calls.mistral import MISTRAL
from pelton.text.tool_calls.style import ToolStyle

STYLES = {style.name: style for style in (HERMES, MISTRAL, LLAMA3)}
DEFAULT_STYLE = HERMES


def detect_style(template: ChatTemplate | None) -> ToolStyle | None:
    """Return the style in which a chat template itself shows tool calls.

    None if there is no template, if it takes no tools, or if it shows calls in no known style: then tools are offered
    by a prompt of our own, in `DEFAULT_STYLE`.
    """
    if template is None or not template.takes_tools:
        return None
    return next((style for style in STYLES.values() if style.template_pattern.search(template.source)), None)
