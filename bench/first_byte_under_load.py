"""Milliseconds to the first byte of /health and of refusals while many chat streams run. Start at `main`.

    pelton serve --port 8000 &
    python bench/first_byte_under_load.py --port 8000

The streams run in a process of their own, each a closed loop: prompt of about 130 tokens, 128 tokens of output.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import time

PROBES: dict[str, tuple[str, str, dict[str, object] | None, int]] = {
    "health": ("GET", "/health", None, 200),
    "404 path": ("GET", "/no-such-path", None, 404),
    "404 model": ("POST", "/v1/completions", {"prompt": "x", "model": "none"}, 404),
    "400 value": ("POST", "/v1/completions", {"prompt": "x", "top_p": 2}, 400),
    "400 too long": ("POST", "/v1/completions", {"prompt": "a " * 9000}, 400),
}
KEYLESS = ("POST", "/v1/chat/completions", {}, 401)


async def stream_forever(number: int, port: int, key: str) -> None:
    """Send one chat after the other and read its stream."""
    messages = [{"role": "user", "content": f"word{number} " * 60}]
    body = json.dumps({"messages": messages, "max_tokens": 128, "stream": True, "ignore_eos": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-api-key: {key}\r\n"
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while await reader.read(65536):
            pass
        writer.close()


def run_load(num_streams: int, port: int, key: str) -> None:
    """The process of the streams; it is killed at the end."""

    async def run() -> None:
        await asyncio.gather(*(stream_forever(number, port, key) for number in range(num_streams)))

    asyncio.run(run())


def probe(port: int, key: str, method: str, path: str, body: dict[str, object] | None, expected: int) -> float:
    """Milliseconds to the first byte of one answer on a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    start_s = time.perf_counter()
    connection.request(method, path, None if body is None else json.dumps(body), {"x-api-key": key} if key else {})
    response = connection.getresponse()
    elapsed_ms = (time.perf_counter() - start_s) * 1e3
    response.read()
    connection.close()
    assert response.status == expected, f"{method} {path}: status {response.status}, not {expected}"
    return elapsed_ms


def main() -> None:
    """Print the percentiles of every kind of answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--key", default="", help="API key; with one, 401 is measured too")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--warm-up-s", type=float, default=6.0)
    parser.add_argument("--seconds", type=float, default=25.0)
    options = parser.parse_args()
    load = multiprocessing.get_context("spawn").Process(
        target=run_load, args=(options.streams, options.port, options.key), daemon=True
    )
    load.start()
    time.sleep(options.warm_up_s)
    times: dict[str, list[float]] = {name: [] for name in (*PROBES, *(["401"] if options.key else []))}
    end_s = time.monotonic() + options.seconds
    while time.monotonic() < end_s:
        for name, values in times.items():
            key = "" if name == "401" else options.key
            values.append(probe(options.port, key, *(KEYLESS if name == "401" else PROBES[name])))
        time.sleep(0.05)
    load.kill()
    for name, values in times.items():
        values.sort()
        p50, p99 = values[len(values) // 2], values[int(len(values) * 0.99)]
        slow = sum(value > 50 for value in values)
        print(f"{name:12} n {len(values)}  p50 {p50:.1f}  p99 {p99:.1f}  max {values[-1]:.1f} ms  over 50 ms: {slow}")


if __name__ == "__main__":
    main()
