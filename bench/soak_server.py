"""A server under abuse: whole answers, clients that leave, slow readers, malformed requests, all at once and at random.

    pelton serve --port 8000 --kv-cache-tokens 8192 &    # a cache that is full soon, so that memory can be flat
    python bench/soak_server.py --url http://127.0.0.1:8000 --seconds 600 --pid $!

It fails (exit code 1, one line per finding) if a well-formed request is not answered in full, a malformed one gets
anything but a 4xx with a JSON error, requests or KV blocks are left at the end, or the memory of process `--pid` has
grown by more than `--max-growth` since the first tenth of the run. Start at `soak`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

NUM_CLIENTS = 12
IDLE_TIMEOUT_S = 30.0

MALFORMED: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"nonsense",
    b'{"messages": 5}',
    b'{"messages": []}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
    b'{"messages": [{"role": "user", "content": "x"}], "no_such_field": 1}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -5}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 9223372036854775808}',
    b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"99999999": 5}}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "stop": [""]}',
    b'{"messages": ' + b"[" * 5000,
)


@dataclass
class Findings:
    """What happened: how often each kind of client ran, and what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


@dataclass
class Soak:
    """One run against `url`; `headers` go with every request. `max_tokens` bounds the answers."""

    url: str
    headers: dict[str, str]
    max_tokens: int
    source: random.Random
    findings: Findings = field(default_factory=Findings)

    def make_body(self, *, stream: bool) -> dict[str, object]:
        """A request that every server must answer."""
        words = " ".join(
            self.source.choices(("sea", "sky", "red", "fox", "tree", "é", "🦀"), k=self.source.randint(1, 40))
        )
        body: dict[str, object] = {
            "messages": [{"role": "user", "content": words}],
            "max_tokens": self.source.randint(1, self.max_tokens),
            "ignore_eos": True,
            "stream": stream,
        }
        if self.source.random() < 0.3:
            body["n"] = 2
        if self.source.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": 2}
        if stream:
            body["stream_options"] = {"include_usage": True}
        return body

    def check_answer(self, kind: str, body: dict[str, object], usage: dict[str, int] | None) -> None:
        """An answer that came to its end has as many tokens as were asked for."""
        num_wanted = int(str(body["max_tokens"])) * int(str(body.get("n", 1)))
        if usage is None or usage["completion_tokens"] != num_wanted:
            self.findings.problems.append(f"{kind}: usage {usage} where {num_wanted} tokens were asked for")

    async def read_whole(self, client: httpx.AsyncClient) -> None:
        """A client that waits for its answer."""
        body = self.make_body(stream=False)
        response = await client.post("/v1/chat/completions", json=body)
        if response.status_code != 200:
            self.findings.problems.append(f"whole: status {response.status_code}: {response.text[:200]}")
            return
        self.check_answer("whole", body, response.json()["usage"])

    async def read_stream(self, client: httpx.AsyncClient, pause_s: float = 0.0) -> None:
        """A client that reads to the end, perhaps slowly."""
        body = self.make_body(stream=True)
        usage, is_done = None, False
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode()
                self.findings.problems.append(f"stream: status {response.status_code}: {text[:200]}")
                return
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    is_done = True
                elif line.startswith("data: "):
                    usage = json.loads(line[6:]).get("usage") or usage
                if pause_s:
                    await asyncio.sleep(pause_s)
        if not is_done:
            self.findings.problems.append("stream: ended without [DONE]")
        self.check_answer("stream", body, usage)

    async def read_slowly(self, client: httpx.AsyncClient) -> None:
        """A client that takes its time with every line."""
        await self.read_stream(client, 0.005)

    async def leave_early(self, client: httpx.AsyncClient) -> None:
        """A client that leaves after a few lines."""
        body = {**self.make_body(stream=True), "max_tokens": 4 * self.max_tokens}
        num_lines = self.source.randint(0, 6)
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in response.aiter_lines():
                num_lines -= 1
                if num_lines <= 0:
                    return

    async def leave_at_once(self, client: httpx.AsyncClient) -> None:
        """A client that closes the connection when it has sent its request, or a part of it."""
        parts = urlsplit(self.url)
        data = json.dumps(self.make_body(stream=self.source.random() < 0.5)).encode()
        lines = [f"{name}: {value}" for name, value in self.headers.items()]
        head = ["POST /v1/chat/completions HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(data)}", *lines]
        message = "\r\n".join([*head, "", ""]).encode() + data
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(message[: self.source.choice((len(message), len(message) // 2))])
        await writer.drain()
        await asyncio.sleep(self.source.random() * 0.05)
        writer.close()

    async def send_malformed(self, client: httpx.AsyncClient) -> None:
        """A client that sends what no server should take."""
        data = self.source.choice(MALFORMED)
        response = await client.post("/v1/chat/completions", content=data)
        try:
            error = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            error = None
        if not 400 <= response.status_code < 500 or not error:
            self.findings.problems.append(
                f"malformed {data[:80]!r}: status {response.status_code}, {response.text[:100]}"
            )

    async def send_garbage(self, client: httpx.AsyncClient) -> None:
        """Bytes that are not HTTP."""
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(self.source.randbytes(200) + b"\r\n\r\n")
        with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
            await asyncio.wait_for(reader.read(200), 5)
        writer.close()

    async def run(self, seconds: float) -> None:
        """All clients until the time is over; each does something once at least."""
        actions: list[tuple[Callable[[httpx.AsyncClient], Awaitable[None]], int]] = [
            (self.read_whole, 4),
            (self.read_stream, 6),
            (self.read_slowly, 1),
            (self.leave_early, 4),
            (self.leave_at_once, 3),
            (self.send_malformed, 4),
            (self.send_garbage, 1),
        ]
        choices, weights = zip(*actions, strict=True)
        end_s = time.monotonic() + seconds

        async def work() -> None:
            async with httpx.AsyncClient(base_url=self.url, headers=self.headers, timeout=120) as client:
                while True:
                    action = self.source.choices(choices, weights)[0]
                    self.findings.counts[action.__name__] += 1
                    try:
                        await action(client)
                    except (httpx.HTTPError, OSError) as error:
                        self.findings.problems.append(f"{action.__name__}: {type(error).__name__}: {error}")
                    if time.monotonic() >= end_s:
                        return

        await asyncio.gather(*(work() for _ in range(NUM_CLIENTS)))

    async def wait_until_idle(self) -> None:
        """All requests must be gone soon, and all their blocks free."""
        async with httpx.AsyncClient(base_url=self.url, headers=self.headers, timeout=120) as client:
            end_s = time.monotonic() + IDLE_TIMEOUT_S
            while True:
                metrics = read_metrics((await client.get("/metrics")).text)
                live = (await client.get("/v1/requests")).json()["data"]
                busy = {name: metrics[name] for name in GAUGES if metrics.get(name) != 0.0}
                if not live and not busy:
                    return
                if time.monotonic() > end_s:
                    self.findings.problems.append(f"left behind: {busy}, {len(live)} live requests")
                    return
                await asyncio.sleep(0.05)


GAUGES = ("pelton:num_requests_running", "pelton:num_requests_waiting", "pelton:kv_cache_usage_perc")


def read_metrics(text: str) -> dict[str, float]:
    """The samples of a metrics page by name; labels are dropped."""
    samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            samples[name.split("{")[0]] = float(value)
    return samples


def read_rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no resident memory")


async def soak(
    url: str, seconds: float, *, api_key: str | None = None, max_tokens: int = 32, seed: int = 1, pid: int | None = None
) -> tuple[Findings, float]:
    """Run for `seconds`; return the findings, and by how much of itself the memory of `pid` has grown."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    run = Soak(url, headers, max_tokens, random.Random(seed))
    await run.run(seconds * 0.1)
    await run.wait_until_idle()
    before = 0 if pid is None else read_rss_bytes(pid)
    await run.run(seconds * 0.9)
    await run.wait_until_idle()
    growth = 0.0 if pid is None else read_rss_bytes(pid) / before - 1.0
    return run.findings, growth


def main() -> int:
    """Parse the command line, run, report; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--api-key")
    parser.add_argument("--pid", type=int, help="the server's process, to watch its memory")
    parser.add_argument("--max-growth", type=float, default=0.05)
    args = parser.parse_args()
    findings, growth = asyncio.run(
        soak(args.url, args.seconds, api_key=args.api_key, max_tokens=args.max_tokens, seed=args.seed, pid=args.pid)
    )
    if growth > args.max_growth:
        findings.problems.append(f"memory has grown by {growth:.1%}; allowed: {args.max_growth:.1%}")
    for name, count in sorted(findings.counts.items()):
        print(f"{name:16} {count}")
    print(f"memory growth    {growth:+.2%}")
    for problem, count in Counter(findings.problems).most_common(20):
        print(f"PROBLEM {count} x {problem}")
    return 1 if findings.problems else 0


if __name__ == "__main__":
    sys.exit(main())
