"""Tasks of the page's main thread that last over 50 ms while it streams, and the server is busy with other streams.

    pelton serve --port 8000 --max-num-seqs 128 &
    python bench/page_long_tasks.py --url http://127.0.0.1:8000 --streams 64 --seconds 30

A browser on the machine of the server waits for a CPU as everybody does, and a task that waits is long. So two figures
are told for each task: how long it was, as the browser's own PerformanceObserver sees it, and how much CPU time the
main thread used in it, from the browser's trace. What the page does itself is the second one. Needs playwright and a
Chromium. The last line is JSON. Start at `measure`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import httpx
from playwright.sync_api import Page, expect, sync_playwright

from headless_chromium import ARGUMENTS, CHROMIUM

LIMIT_MS = 50.0
OBSERVE = """
window.longTasks = [];
new PerformanceObserver((list) => { for (const each of list.getEntries()) window.longTasks.push(each.duration); })
  .observe({ type: "longtask", buffered: true });
"""
# A task of the thread's loop, and a call of the page's own script in it.
_TASK, _CALL = "ThreadControllerImpl::RunTask", "FunctionCall"


@dataclass(frozen=True)
class Tasks:
    """What the main thread did, the page's start left out. `long_ms` are the tasks over the limit by the clock.

    Of CPU times: `longest_cpu_ms` of a task, `longest_script_ms` of a call of the page's script in one.
    """

    num_tasks: int
    long_ms: list[float]
    longest_cpu_ms: float
    longest_script_ms: float
    num_over_limit_cpu: int
    cpu_share_pct: float
    num_tokens: int


async def _stream_forever(client: httpx.AsyncClient, number: int, stop: threading.Event) -> None:
    body = {
        "messages": [{"role": "user", "content": f"Tell story number {number}."}],
        "stream": True,
        "max_tokens": 512,
        "ignore_eos": True,
    }
    while not stop.is_set():
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for _ in response.aiter_raw():
                if stop.is_set():
                    return


@contextmanager
def run_load(url: str, num_streams: int) -> Iterator[None]:
    """Keep `num_streams` requests streaming."""
    stop = threading.Event()

    async def run() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
            await asyncio.gather(*(_stream_forever(client, number, stop) for number in range(num_streams)))

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def use_page(page: Page, seconds: float) -> int:
    """Stream an answer for `seconds` and look at tokens meanwhile; returns the number of tokens that came."""
    page.fill("#max_tokens", "4000")
    page.fill("#prompt", "Tell me everything about water wheels, at length.")
    page.press("#prompt", "Enter")
    expect(page.locator("#tokens .token-view:nth-child(2) .token").first).to_be_visible(timeout=120_000)
    for summary in page.locator(".figures summary").all():
        if summary.is_visible():
            summary.click()
    answer = page.locator("#tokens .token-view:nth-child(2) .token")
    for _ in range(int(seconds)):
        page.wait_for_timeout(1000)
        answer.first.hover()
    count: str = page.evaluate("document.querySelector('.turn-foot:not(:empty)')?.textContent ?? ''")
    if page.locator("#stop").is_visible():
        page.click("#stop")
    first = count.replace(",", "").split(" ")[0]
    return int(first) if first.isdigit() else 0


def read_trace(data: bytes, name: str) -> list[float]:
    """CPU time in milliseconds of every event called `name` of the renderer's main thread."""
    events = json.loads(data)["traceEvents"]
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each.get("name") == "thread_name" and each["args"].get("name") == "CrRendererMain"
    }
    return [
        each["tdur"] / 1e3
        for each in events
        if each.get("name") == name and (each["pid"], each["tid"]) in threads and "tdur" in each
    ]


def measure(url: str, num_streams: int, seconds: float, executable: str) -> Tasks:
    """Open the page under load and watch its main thread."""
    with sync_playwright() as playwright, run_load(url, num_streams):
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.add_init_script(OBSERVE)
        page.goto(url, timeout=120_000)
        expect(page.locator("#served")).to_contain_text("parameters", timeout=120_000)
        page.evaluate("window.longTasks = []")
        browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
        num_tokens = use_page(page, seconds)
        long_ms: list[float] = page.evaluate("window.longTasks")
        trace = browser.stop_tracing()
        browser.close()
    cpu = read_trace(trace, _TASK)
    return Tasks(
        num_tasks=len(cpu),
        long_ms=[round(each, 1) for each in long_ms],
        longest_cpu_ms=round(max(cpu, default=0.0), 1),
        longest_script_ms=round(max(read_trace(trace, _CALL), default=0.0), 1),
        num_over_limit_cpu=sum(each > LIMIT_MS for each in cpu),
        cpu_share_pct=round(sum(cpu) / (seconds * 1e3) * 100, 1),
        num_tokens=num_tokens,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and fail (1) if a task used over 50 ms of CPU time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--chromium", default=CHROMIUM)
    options = parser.parse_args(arguments)
    if options.chromium is None:
        print("needs a Chromium; --chromium names one", file=sys.stderr)
        return 2
    tasks = measure(options.url, options.streams, options.seconds, options.chromium)
    print(f"{options.streams} other streams, {tasks.num_tokens} tokens on the page in {options.seconds:g} s")
    print(f"tasks of the main thread: {tasks.num_tasks:,}, using {tasks.cpu_share_pct} % of a CPU")
    print(f"longest by CPU time: {tasks.longest_cpu_ms} ms; over {LIMIT_MS:g} ms: {tasks.num_over_limit_cpu}")
    print(f"longest call of the page's script by CPU time: {tasks.longest_script_ms} ms")
    print(f"over {LIMIT_MS:g} ms by the clock, waiting for a CPU included: {len(tasks.long_ms)} {tasks.long_ms[:20]}")
    print(json.dumps(asdict(tasks)))
    return 1 if tasks.num_over_limit_cpu else 0


if __name__ == "__main__":
    raise SystemExit(main())
