"""A server on a free port of loopback, run by uvicorn in a thread: what the tests of this folder talk to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from pelton.server.app import create_app
from pelton.server.auth import ApiKeys
from pelton.server.options import ServerOptions
from pelton.server.serve import DrainingServer, bind, make_server
from pelton.server.state import ServerState

HANG_S = 120.0  # A guard: whatever takes this long has hung. No test may depend on how long anything takes.


class LiveServer:
    """A running server. `client` is an httpx client of its URL; `state` may be looked into."""

    def __init__(self, engine: object, *, keys: ApiKeys | None = None, log_stream=None, **options: object) -> None:
        self.options = ServerOptions(port=0, **options)
        app = create_app(engine, self.options, model_names=("tiny", "alias"), keys=keys, log_stream=log_stream)
        self.engine = engine
        self.state: ServerState = app.state.pelton
        self.server: DrainingServer = make_server(app, self.options)
        # A connection that a client kept while the machine was busy must not be closed under its next request.
        self.server.config.timeout_keep_alive = 10 * int(HANG_S)
        self.server.slow_heads.timeout_s = 10 * HANG_S  # nor one that has not sent anything yet
        self._listener = bind(self.options)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=HANG_S)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._listener]}, daemon=True)

    def start(self) -> None:
        self._thread.start()
        wait_until(lambda: self.server.started, "the server to start")

    def stop(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self.join()

    def join(self) -> None:
        self._thread.join(HANG_S)
        assert not self._thread.is_alive(), "the server did not stop"

    def chat(self, content: object = "hi", **fields: object) -> httpx.Response:
        return self.client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": content}], **fields}
        )

    def complete(self, prompt: object = "hi", **fields: object) -> httpx.Response:
        return self.client.post("/v1/completions", json={"prompt": prompt, **fields})


@contextmanager
def run_live(engine: object, **options: object) -> Iterator[LiveServer]:
    """A server for the length of a `with` block."""
    server = LiveServer(engine, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def wait_until(is_true, what: str, timeout_s: float = HANG_S) -> None:
    """Wait for a condition that another thread brings about."""
    end_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.002)
