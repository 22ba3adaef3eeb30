"""`ReasoningSplitter`: an answer that begins with thoughts, as two streams of text: the thoughts, and what follows.

Thoughts stand between two markers at the very beginning of an answer; some chat templates write the first marker into
the prompt. It must not know tokens. Start at the class; `detect_reasoning` finds a model's markers, and
`find_reasoning` whether a prompt has opened the thoughts.
"""

from __future__ import annotations

from dataclasses import dataclass

_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """The markers around the thoughts of a model."""

    start: str
    end: str

    def is_open_after(self, prompt: str) -> bool:
        """Whether a prompt's last words are the first marker, so that the answer begins inside the thoughts."""
        return prompt.rstrip(_SPACE).endswith(self.start)


THINK = ReasoningStyle("<think>", "</think>")  # DeepSeek-R1, Qwen 3, SmolLM3
BRACKETS = ReasoningStyle("[THINK]", "[/THINK]")  # Magistral
REASONING_STYLES = (THINK, BRACKETS)


def detect_reasoning(template_source: str) -> ReasoningStyle | None:
    """Return the markers that a chat template knows, None if it knows none."""
    return next((style for style in REASONING_STYLES if style.end in template_source), None)


@dataclass(frozen=True, slots=True)
class ReasoningStart:
    """How an answer may begin with thoughts. `is_open`: the prompt has written the first marker."""

    style: ReasoningStyle
    is_open: bool


def find_reasoning(template_source: str, prompt: str) -> ReasoningStart | None:
    """Return how an answer to a prompt of this template may begin with thoughts.

    None if the model knows none, or if the prompt has closed them already, which is how templates turn them off.
    """
    style = detect_reasoning(template_source)
    if style is None or prompt.rstrip(_SPACE).endswith(style.end):
        return None
    return ReasoningStart(style, style.is_open_after(prompt))


class ReasoningSplitter:
    """Splits the text of one answer. However it is cut into deltas, the joined results are the same.

    `is_open`: the prompt has opened the thoughts. Blanks at both ends of the thoughts, and after them, are dropped; the
    markers never show. An answer without markers is content, unchanged; one that ends within its thoughts has no
    content.
    """

    def __init__(self, style: ReasoningStyle = THINK, *, is_open: bool = False) -> None:
        self._style = style
        self._is_open = is_open
        self._state = "start"
        self._held = ""
        self._is_at_edge = True  # of the thoughts or of the content after them: blanks are dropped

    @property
    def is_reasoning(self) -> bool:
        """Whether the next text belongs to the thoughts, as far as it is known."""
        return self._state == "reasoning" or (self._state == "start" and self._is_open)

    def push(self, text: str) -> tuple[str, str]:
        """Take the next text; return (thoughts, content) that are certain now."""
        self._held += text
        reasoning = ""
        if self._state == "start":
            self._find_start()
        if self._state == "reasoning":
            reasoning = self._take_reasoning()
        return reasoning, self._take_content() if self._state == "content" else ""

    def flush(self) -> tuple[str, str]:
        """Return (thoughts, content) held back, when no more text will come."""
        held, self._held = self._held, ""
        if self.is_reasoning:
            return (held.strip(_SPACE) if self._is_at_edge else held.rstrip(_SPACE)), ""
        return "", held

    def _find_start(self) -> None:
        """Leave the start once the first marker has come, or cannot come any more."""
        text, marker = self._held.lstrip(_SPACE), self._style.start
        if text.startswith(marker):  # also where the prompt had it already: some models write it again
            self._state, self._held = "reasoning", text[len(marker) :]
        elif not marker.startswith(text):
            self._state = "reasoning" if self._is_open else "content"
            self._is_at_edge = self._is_open

    def _take_reasoning(self) -> str:
        if self._is_at_edge:
            self._held = self._held.lstrip(_SPACE)
        text, found, rest = self._held.partition(self._style.end)
        if found:
            self._state, self._held, self._is_at_edge = "content", rest, True
            return text.rstrip(_SPACE)
        num_marker = next(
            (n for n in range(min(len(text), len(self._style.end) - 1), 0, -1) if text.endswith(self._style.end[:n])), 0
        )
        certain = text[: len(text) - num_marker].rstrip(_SPACE)
        self._held = text[len(certain) :]
        self._is_at_edge = self._is_at_edge and not certain
        return certain

    def _take_content(self) -> str:
        text, self._held = self._held, ""
        if self._is_at_edge:
            text = text.lstrip(_SPACE)
            self._is_at_edge = not text
        return text
