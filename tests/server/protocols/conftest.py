"""The servers that the tests of protocols talk to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from compat_engine import HELLO, CompatServer

from pelton.server.auth import ApiKeys


@pytest.fixture(scope="session")
def hello() -> Iterator[CompatServer]:
    """A server that answers "Hello, wörld!"."""
    yield from _run(CompatServer())


@pytest.fixture(scope="session")
def guarded() -> Iterator[CompatServer]:
    """The same, for those with a key only."""
    yield from _run(CompatServer(HELLO, keys=ApiKeys.from_lines([f"friend:{CompatServer.key}"])))


@pytest.fixture(scope="session")
def broken() -> Iterator[CompatServer]:
    """A server whose model raises at the fourth token, when the ones before have been sent."""
    server = CompatServer(HELLO, fail_at=3)
    server.engine.runner.step_s = 0.03
    yield from _run(server)


def _run(server: CompatServer) -> Iterator[CompatServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()
