"""What a name that nobody knows may have meant. Start at `suggest`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def suggest(name: str, names: Sequence[str]) -> str:
    """Phrase that lists the `names` nearest to `name`, or all of them where none is near."""
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else "known: " + ", ".join(names)
