"""`ToolCallParser`: the text of an answer comes in deltas, content and tool calls go out in deltas.

However the text is cut, the joined result is the same. No part of a marker is shown before it is decided, and nothing
raises: what looked like a call and is none comes back as content, marker and all. It must not know tokens or requests.
"""

from __future__ import annotations

from collections.abc import Collection

from pelton.text.tool_calls.call_reader import CallReader
from pelton.text.tool_calls.deltas import ContentDelta, Delta, ToolDelta
from pelton.text.tool_calls.style import ToolStyle

_SPACE = " \t\r\n"


class ToolCallParser:
    """Reads one answer in one style. `tool_names`: the tools the answer may call, which bare calls must name.

    `num_calls` counts the calls read to their end. States: "content"; "begin" before a call's brace; "call" within it;
    "after" between a call and what may follow.
    """

    def __init__(self, style: ToolStyle, tool_names: Collection[str]) -> None:
        self._style = style
        self._names = frozenset(tool_names)
        self._state = "content"
        self._is_in_list = False
        self._blanks = ""  # between or before calls: content only if other content comes next
        self._held = ""  # the end of content that may be the beginning of a marker, or of `close`
        self._raw: list[str] = []  # everything since the marker of the call being read
        self._reader = CallReader()
        self.num_calls = 0
        self._next_index = 0
        self._has_started = False  # whether a delta of the call being read has gone out
        self._is_gap = True  # nothing but blanks since the beginning, or since a call
        self._out: list[Delta] = []

    def push(self, text: str) -> list[Delta]:
        """Take the next text; return what is certain now."""
        for character in text:
            self._take(character)
        self._send_arguments()
        return self._collect()

    def flush(self) -> list[Delta]:
        """Return what was held back, when no more text will come; a call that is not whole comes as content."""
        if self._state in ("begin", "call"):
            self._fail()
        elif self._state == "content":
            self._show(self._held)
        self._held = ""
        if not self.num_calls:
            self._out.append(ContentDelta(self._blanks))
        self._blanks = ""
        return self._collect()

    def _collect(self) -> list[Delta]:
        """Take what is ready, with neighbouring pieces of content joined."""
        deltas: list[Delta] = []
        for delta in self._out:
            last = deltas[-1] if deltas else None
            if isinstance(delta, ToolDelta) or delta.cancelled_index is not None:
                deltas.append(delta)
            elif isinstance(last, ContentDelta):
                deltas[-1] = ContentDelta(last.text + delta.text, last.cancelled_index)
            elif delta.text:
                deltas.append(delta)
        self._out = []
        return deltas

    def _take(self, character: str) -> None:
        if self._state == "content":
            self._take_content(character)
        elif self._state == "after":
            self._take_after(character)
        else:
            self._raw.append(character)
            if self._state == "begin":
                self._take_begin(character)
            else:
                self._take_call(character)

    def _take_content(self, character: str) -> None:
        if self._style.is_bare and self._is_gap and not self._held and character == "{":
            self._begin_bare(character)
            return
        self._held += character
        marker = self._style.marker
        if self._held.endswith(marker):
            self._show(self._held[: -len(marker)])
            self._held = ""
            self._begin([marker])
            return
        num_held = _count_overlap(self._held, marker)
        self._show(self._held[: len(self._held) - num_held])
        self._held = self._held[len(self._held) - num_held :]

    def _begin(self, raw: list[str]) -> None:
        self._state = "begin"
        self._raw = raw
        self._reader = CallReader()
        self._has_started = False

    def _begin_bare(self, brace: str) -> None:
        self._begin([])
        self._reader = CallReader(self._names)
        self._take(brace)

    def _take_begin(self, character: str) -> None:
        if character in _SPACE:
            return
        if character == "[" and self._style.is_list and not self._is_in_list:
            self._is_in_list = True
        elif character == "{" and (self._is_in_list or not self._style.is_list):
            self._state = "call"
            self._take_call(character)
        else:
            self._fail()

    def _take_call(self, character: str) -> None:
        if not self._reader.push(character):
            self._fail()
        elif self._reader.is_done:
            self._send_arguments()
            self._has_started = False
            self.num_calls += 1
            self._blanks, self._held, self._is_gap = "", "", True
            self._state = "after"

    def _take_after(self, character: str) -> None:
        """Between calls: blanks and the style's own punctuation are dropped, anything else is content again."""
        style = self._style
        if character in _SPACE:
            return
        self._held += character
        if self._is_in_list:
            if character == ",":
                self._begin([self._held])
                self._held = ""
                return
            if character == "]":
                self._held = ""
                self._end_group()
                return
        elif style.close and style.close.startswith(self._held):
            if self._held == style.close:
                self._held = ""
                self._end_group()
            return
        elif style.separator == character:
            self._begin([self._held])
            self._held = ""
            return
        # A further bare call is one of the content state's, as is a further marker.
        held, self._held = self._held, ""
        self._end_group()
        for later in held:
            self._take_content(later)

    def _end_group(self) -> None:
        self._state, self._is_in_list = "content", False

    def _send_arguments(self) -> None:
        """Send what has come of the call being read, once it is certain to have a name and arguments."""
        if self._state != "call":
            return
        arguments = self._reader.take_arguments()
        if arguments is None:
            return
        if not self._has_started:
            self._has_started = True
            self._out.append(ToolDelta(self._next_index, arguments, self._style.make_id(), self._reader.name))
            self._next_index += 1
        elif arguments:
            self._out.append(ToolDelta(self._next_index - 1, arguments))

    def _fail(self) -> None:
        """Give the call being read back as content."""
        cancelled = self._next_index - 1 if self._has_started else None
        self._out.append(ContentDelta(self._blanks + "".join(self._raw), cancelled))
        self._raw, self._blanks, self._held = [], "", ""
        self._has_started, self._is_gap = False, False
        self._end_group()

    def _show(self, text: str) -> None:
        """Let content out; blanks in a gap wait for what comes next, as between calls they are none."""
        if self._is_gap:
            stripped = text.lstrip(_SPACE)
            self._blanks += text[: len(text) - len(stripped)]
            if not stripped:
                return
            text, self._blanks, self._is_gap = self._blanks + stripped, "", False
        self._out.append(ContentDelta(text))


def _count_overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(marker[:length])), 0)
