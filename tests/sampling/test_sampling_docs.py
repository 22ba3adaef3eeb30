"""The numbers in docs/sampling.md are true."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_examples_of_the_sampling_page_give_what_it_says() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "sampling.md"
    failed, attempted = doctest.testfile(str(page), module_relative=False)
    assert attempted > 10
    assert failed == 0
