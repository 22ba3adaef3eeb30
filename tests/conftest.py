"""What all tests share: those marked `model` run only where the default model has been put in place."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need the default model unless `make test` has fetched it: a test uses no network."""
    if os.environ.get("PELTON_TEST_MODEL"):
        return
    for item in items:
        if item.get_closest_marker("model") is not None:
            item.add_marker(pytest.mark.skip(reason="needs the default model; `make test` fetches it"))
