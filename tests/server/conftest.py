"""Live servers for the tests of this folder; engines are scripted (`scripted.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from live_server import LiveServer, run_live
from scripted import echo, make_engine

Serve = Callable[..., LiveServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers of engines; they end with the test. Nothing may be left in them."""
    with ExitStack() as stack:
        yield lambda engine, **options: stack.enter_context(run_live(engine, **options))


@pytest.fixture(scope="module")
def echo_server() -> Iterator[LiveServer]:
    """A server whose model repeats its prompt."""
    with run_live(make_engine(echo)) as server:
        yield server
