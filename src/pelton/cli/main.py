"""Entry point of the `pelton` command. It imports nothing before `main` stands, so that Ctrl-C is quiet from the start.

Knows nothing but what runs next: `boundary.py`, then `app.py`. Start at `main`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

EXIT_INTERRUPTED = 130  # 128 + SIGINT, what shells report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `pelton` with `arguments` (default: those of the process) and return the exit code.

    0 success, 1 failure, 2 wrong usage or a value that is not allowed, 130 interrupted with Ctrl-C.
    """
    try:
        from pelton.cli.boundary import run_guarded

        return run_guarded(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
