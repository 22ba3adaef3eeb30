"""`python -m pelton`: the same as the `pelton` command. Knows nothing itself; see `cli/main.py`."""

from __future__ import annotations

import sys

from pelton.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
