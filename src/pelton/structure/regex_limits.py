"""A limit on nested counted repetitions, which make an automaton as large as the product of their counts.

llguidance's own limits count work per step, but a pattern like `((a{1000}){1000}){1000}` escapes them (a step took more
than ten seconds, measured 2026-11-29 with version 1.9.1). Entry point: `find_excess`.
"""

from __future__ import annotations

import re

# A group {1000} costs up to 0.2 s once; a product of 10,000 costs 20 ms per mask (same measurement).
MAX_GROUP_REPEATS = 1_000
MAX_REPEAT_PRODUCT = 10_000

_TOKEN = re.compile(
    r"""(?P<skip>\\[pPxu]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\])
      | (?P<count>\{(?P<low>\d+)(?P<comma>,(?P<high>\d*))?\})
      | (?P<open>\()
      | (?P<close>\))
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_MAX_DIGITS = 9


def find_excess(pattern: str) -> str | None:
    """Return what is too much about a regular expression's repetitions, None if it is within the limits."""
    products = [1]  # of the groups around, innermost last: the largest product of counts inside each so far
    last, is_group = 1, False  # the same for the atom just read, and whether it is a group
    for token in _TOKEN.finditer(pattern):
        if token["open"]:
            products.append(1)
        elif token["close"] and len(products) > 1:
            last, is_group = products.pop(), True
            products[-1] = max(products[-1], last)
        elif token["count"]:
            digits = token["high"] or token["low"]
            count = int(digits) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS
            is_nested = is_group or last > 1
            last *= max(count, 1)
            if is_nested and count > MAX_GROUP_REPEATS:
                return f"a group repeated {digits} times; allowed: {MAX_GROUP_REPEATS}"
            if is_nested and last > MAX_REPEAT_PRODUCT:
                return f"nested repetitions of {last} in all; allowed: {MAX_REPEAT_PRODUCT}"
            products[-1] = max(products[-1], last)
        elif token["other"] not in ("*", "+", "?"):
            last, is_group = 1, False
    return None
