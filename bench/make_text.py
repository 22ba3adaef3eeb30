"""Write an English text for perplexity runs, taken from what every Python installation carries.

The text comes from `pydoc_data.topics`, the language reference that `help()` shows, so none has to be stored or
fetched. It differs a little between Python releases: compare engines on one file, not across machines. Start at
`make_text`.

    python bench/make_text.py build/text.txt --bytes 40000
"""

from __future__ import annotations

import argparse
from pathlib import Path
from pydoc_data.topics import topics

DEFAULT_BYTES = 40_000


def make_text(num_bytes: int) -> str:
    """Return whole topics in alphabetical order, at least `num_bytes` of UTF-8; ValueError if that is too many."""
    text = ""
    for name in sorted(topics):
        text += topics[name].strip() + "\n\n"
        if len(text.encode()) >= num_bytes:
            return text
    raise ValueError(f"--bytes is {num_bytes}; allowed: at most {len(text.encode())}, all this Python has")


def main() -> None:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--bytes", type=int, default=DEFAULT_BYTES)
    arguments = parser.parse_args()
    text = make_text(arguments.bytes)
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    arguments.path.write_text(text, encoding="utf-8")
    print(f"{arguments.path}: {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
