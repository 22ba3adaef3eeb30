"""The servers that the tests of protocols talk to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from compat_engine import HELLO, TINY_OPTIONS, CompatServer, LiveServer
from live_server import wait_until
from random_gguf import RandomLlama, write_gguf

from pelton.engine.async_engine import AsyncEngine
from pelton.server.auth import ApiKeys

Server = TypeVar("Server", bound=LiveServer)


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

    def wait_for_reader(num_tokens: int) -> None:
        what = f"the route to have {num_tokens} tokens"
        wait_until(lambda: any(live.num_output_tokens == num_tokens for live in server.state.live), what)

    server.recorder.before_failing = wait_for_reader
    yield from _run(server)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model's file; it has no chat template."""
    return write_gguf(RandomLlama(name="tiny"), tmp_path_factory.mktemp("tiny") / "model.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> Iterator[LiveServer]:
    """A server of that model."""
    yield from _run(LiveServer(AsyncEngine(tiny_path, **TINY_OPTIONS)))


def _run(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    finally:
        server.stop()
