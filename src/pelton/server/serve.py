"""Running the application: uvicorn with a graceful end. Start at `run_server`.

SIGTERM or SIGINT: new requests are refused and /ready turns 503; open ones go on for `drain_timeout_s`, then end with
an error; the socket closes and the process ends with exit code 0. A second SIGINT ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI

from pelton.core.errors import ConfigError
from pelton.server.options import ServerOptions
from pelton.server.slow_heads import Connection, SlowHeads
from pelton.server.state import ServerState

_GRACE_S = 5  # for answers that were just cut to reach their clients
_DRAIN_POLL_S = 0.05
_BACKLOG = 2048
_TICKS_PER_SECOND = 10


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains: see the module's docstring."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state
        self.slow_heads = SlowHeads(state.options.body_timeout_s)

    async def on_tick(self, counter: int) -> bool:
        """What is done ten times a second; the base class says whether to leave."""
        if counter % _TICKS_PER_SECOND == 0:
            # Websockets, which this server has not, would be the other kind.
            connections = cast("set[Connection]", self.server_state.connections)
            self.slow_heads.close_late(connections, time.monotonic())
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain at the first signal; the base class makes the loop leave."""
        self._state.is_draining = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for open requests, cut those that take too long, then stop."""
        self._state.is_draining = True
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._state.options.drain_timeout_s
        timer = loop.call_at(end_s, self._state.cut_all)
        # Before the base class closes the socket: /ready and refusals are answers that balancers understand.
        open_tasks = set(self.server_state.tasks)
        try:
            while loop.time() < end_s and not self.force_exit and not all(task.done() for task in open_tasks):
                await asyncio.sleep(_DRAIN_POLL_S)
            if self.force_exit:
                self._state.cut_all()
            await super().shutdown(sockets)
            if self.force_exit:  # the base class does not wait then, and the application would end by an exception
                await self.lifespan.shutdown()
        finally:
            timer.cancel()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but what the end of the server cancels is not reported as an error."""
        log = logging.getLogger("uvicorn.error")
        log.addFilter(self._is_worth_telling)
        try:
            super().run(sockets)
        finally:
            log.removeFilter(self._is_worth_telling)

    def _is_worth_telling(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not (self._state.is_draining and isinstance(error, asyncio.CancelledError))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the signal is not raised again at the end: a drained server has ended well."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def make_server(app: FastAPI, options: ServerOptions) -> DrainingServer:
    """A server of `app`, not yet listening. Raises `ConfigError` for TLS files that cannot be used."""
    state: ServerState = app.state.pelton
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
        ssl_ca_certs=options.ssl_ca_certs,
        ssl_cert_reqs=ssl.CERT_REQUIRED if options.ssl_ca_certs is not None else ssl.CERT_NONE,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"TLS: {error}; allowed: PEM files of a certificate and its key") from error
    return DrainingServer(config, state)


def bind(options: ServerOptions) -> socket.socket:
    """A listening socket; raises `ConfigError` if the address cannot be had."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {options.host} port {options.port}: {error.strerror or error}; allowed: a free port of "
            "an address of this machine"
        ) from error
    return listener


def run_server(
    app: FastAPI, options: ServerOptions, listener: socket.socket, on_listening: Callable[[str], None]
) -> int:
    """Serve until a signal, on a socket of `bind`; returns the exit code. `on_listening` is called with the URL."""
    # A waiting event loop gets the interpreter from a computing thread after this long; the default is 5 ms.
    sys.setswitchinterval(0.001)
    server = make_server(app, options)
    scheme = "http" if options.ssl_certfile is None else "https"
    host = f"[{options.host}]" if ":" in options.host else options.host
    on_listening(f"{scheme}://{host}:{listener.getsockname()[1]}")
    server.run(sockets=[listener])
    return 0
