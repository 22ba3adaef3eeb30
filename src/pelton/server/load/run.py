"""Putting a load on a server: prompts, arrivals, and the traces of all requests. Start at `run_load`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pelton.core.errors import ConfigError
from pelton.server.load.client import RequestTrace, ResponseError, Target, get_json, stream_request
from pelton.server.load.lengths import Lengths
from pelton.server.load.options import LoadOptions

# Words that are one token each, with the blank before them, in the common English vocabularies.
_TEXT = """
the of and to in is was for on that with as by at from it an are his her which be this had not but were one
have they you all when we there can more if no man out other so what time up go about than into could state
only new year some take come these know see use get like then first any work now may such give over think
most even find day also after way many must look before great back through long where much should well
people down own just because good each those feel seem how high too place little world very still nation
hand old life tell write become here show house both between need mean call develop under last right move
thing general school never same another begin while number part turn real leave might want point form off
child few small since against ask late home interest large person end open public follow during present
without again hold govern around possible head
"""
_WORDS = tuple(_TEXT.split())
_CONNECT_TIMEOUT_S = 10.0

LoadCallback = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of a load: when it is sent (seconds from the start; closed loops have no times) and what it asks."""

    send_s: float
    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class LoadTraces:
    """All counted requests of a load, in order of planning, and the seconds from the first sending to the last end."""

    traces: tuple[RequestTrace, ...]
    duration_s: float
    model: str


def plan_requests(options: LoadOptions) -> list[PlannedRequest]:
    """The requests of a load; the same options give the same ones."""
    source = random.Random(options.seed)
    prompt_lengths = Lengths.parse(options.prompt_tokens, "prompt_tokens")
    output_lengths = Lengths.parse(options.output_tokens, "output_tokens")
    shared = source.choices(_WORDS, k=2**15)
    planned = []
    send_s = 0.0
    for _ in range(options.num_requests):
        length = prompt_lengths.draw(source)
        num_shared = int(length * options.shared_prefix)
        words = [*shared[:num_shared], *source.choices(_WORDS, k=length - num_shared)]
        planned.append(PlannedRequest(send_s, " ".join(words), output_lengths.draw(source)))
        if options.rate is not None:
            send_s += source.expovariate(options.rate)
    return planned


def make_body(options: LoadOptions, model: str, request: PlannedRequest) -> dict[str, object]:
    """The JSON of a request."""
    body: dict[str, object] = {
        "model": model,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.use_ignore_eos:
        body["ignore_eos"] = True
    if options.endpoint == "chat":
        return {**body, "messages": [{"role": "user", "content": request.prompt}]}
    return {**body, "prompt": request.prompt}


async def run_load(options: LoadOptions, api_key: str | None, on_finished: LoadCallback) -> LoadTraces:
    """Put the load on the server; `on_finished(num_finished, num_requests)` follows it.

    Raises `InvalidParameterError` for the URL and `ConfigError` for a server that cannot be reached.
    """
    target = Target.parse(options.url)
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    model = options.served_model or await _find_model(target, headers)
    planned = plan_requests(options)
    warm_up = plan_requests(_make_warm_up(options)) if options.num_warmup else []
    sender = _Sender(options, target, headers, model)
    await sender.run_closed(warm_up, lambda done: None)
    start_s = time.perf_counter()
    run = sender.run_closed if options.rate is None else sender.run_open
    traces = await run(planned, lambda done: on_finished(done, len(planned)))
    return LoadTraces(tuple(traces), max(t.end_s for t in traces) - start_s, model)


def _make_warm_up(options: LoadOptions) -> LoadOptions:
    # Other prompts, or the server's prefix cache would be warm for the ones that count.
    return replace(options, num_requests=options.num_warmup, seed=options.seed ^ 0x5EED, rate=None)


async def _find_model(target: Target, headers: dict[str, str]) -> str:
    try:
        answer = await get_json(target, "/models", headers, _CONNECT_TIMEOUT_S)
    except (OSError, ResponseError, ValueError, asyncio.TimeoutError) as error:
        raise ConfigError(
            f"no models from http://{target.host}:{target.port}{target.path}/models: {error or type(error).__name__}; "
            "allowed: the URL of a running server"
        ) from error
    match answer:
        case {"data": [{"id": str(name)}, *_]}:
            return name
    raise ConfigError(f"{target.path}/models lists no model; --served-model names one")


@dataclass(frozen=True, slots=True)
class _Sender:
    options: LoadOptions
    target: Target
    headers: dict[str, str]
    model: str

    async def run_closed(
        self, planned: Sequence[PlannedRequest], on_finished: Callable[[int], None]
    ) -> list[RequestTrace]:
        """Always `concurrency` requests under way, as long as there are any."""
        traces: dict[int, RequestTrace] = {}
        waiting = iter(enumerate(planned))

        async def work() -> None:
            for number, request in waiting:
                traces[number] = await self._send(request)
                on_finished(len(traces))

        await asyncio.gather(*(work() for _ in range(min(self.options.concurrency, len(planned)))))
        return [traces[number] for number in range(len(planned))]

    async def run_open(
        self, planned: Sequence[PlannedRequest], on_finished: Callable[[int], None]
    ) -> list[RequestTrace]:
        """Send each at its time, however many are under way."""
        start_s = time.perf_counter()
        num_finished = 0

        async def work(request: PlannedRequest) -> RequestTrace:
            nonlocal num_finished
            await asyncio.sleep(start_s + request.send_s - time.perf_counter())
            trace = await self._send(request)
            num_finished += 1
            on_finished(num_finished)
            return trace

        return list(await asyncio.gather(*(work(request) for request in planned)))

    async def _send(self, request: PlannedRequest) -> RequestTrace:
        path = "/chat/completions" if self.options.endpoint == "chat" else "/completions"
        body = make_body(self.options, self.model, request)
        return await stream_request(self.target, path, body, self.headers, self.options.timeout_s)
