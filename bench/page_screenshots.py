"""Screenshots of the server's page for the README and the docs: light, dark, and on a phone, each under some load.

    pelton serve --port 8000 --kv-cache-tokens 16384 &
    python bench/page_screenshots.py --url http://127.0.0.1:8000

Needs playwright and a Chromium. The figures in the pictures are those of the machine it runs on. Start at `main`.
"""

from __future__ import annotations

import argparse
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

from headless_chromium import ARGUMENTS, CHROMIUM

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PROMPT = "How does inference work?"
END_MS = 300_000


@dataclass(frozen=True)
class Shot:
    """One picture: its name, the size of the window, the colours, and what is scrolled to its top.

    With `is_live` it is taken while the answer streams.
    """

    name: str
    width: int
    height: int
    scheme: str
    top: str = "body"
    is_live: bool = False


SHOTS = (
    Shot("page-light", 1440, 1130, "light"),
    Shot("page-dark", 1440, 1480, "dark", "#explanation", is_live=True),
    Shot("page-phone", 390, 1900, "light"),
)


@contextmanager
def run_neighbours(url: str, num_requests: int) -> Iterator[None]:
    """Some other requests that run meanwhile, begun one after the other."""
    stop = threading.Event()

    def stream(number: int) -> None:
        stop.wait(0.4 * number)
        content = f"Tell me story number {number}. " + "It has rain in it. " * (8 * number)
        body = {"messages": [{"role": "user", "content": content}], "stream": True, "max_tokens": 150, "seed": number}
        while not stop.is_set():
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as response:
                for _ in response.iter_raw():
                    if stop.is_set():
                        return

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(num_requests)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def ask(page: Page, *, is_live: bool) -> None:
    """Send the prompt, wait for its end, or its 80th token, and point at a token that was not certain."""
    page.fill("#max_tokens", "400" if is_live else "120")
    page.fill("#seed", "3")
    page.fill("#temperature", "0.7")
    page.fill("#prompt", PROMPT)
    page.press("#prompt", "Enter")
    if is_live:
        expect(page.locator("#tokens .token-view:nth-child(2) .token").nth(80)).to_be_attached(timeout=END_MS)
        expect(page.locator("#explanation .verdict").first).to_be_visible(timeout=END_MS)
        return
    expect(page.locator("#status")).to_have_text(re.compile("^Finished"), timeout=END_MS)
    expect(page.locator("#explanation .verdict").first).to_be_visible(timeout=END_MS)
    page.wait_for_timeout(2500)  # the last figures
    page.locator("#tokens .token-view:nth-child(2) .token:is(.rate-2, .rate-3)").nth(3).hover()
    page.wait_for_timeout(500)


def take(browser: Browser, url: str, shot: Shot) -> None:
    """Make one picture."""
    page = browser.new_page(viewport={"width": shot.width, "height": shot.height}, color_scheme=shot.scheme)
    page.goto(url)
    expect(page.locator("#served")).to_contain_text("parameters", timeout=END_MS)
    page.evaluate("document.getElementById('params').open = true")
    with run_neighbours(url, 4):
        ask(page, is_live=shot.is_live)
        page.evaluate("document.getElementById('params').open = innerWidth > 600")
        page.evaluate("(top) => document.querySelector(top).scrollIntoView()", shot.top)
        page.wait_for_timeout(1000)
        page.screenshot(path=IMAGES / f"{shot.name}.png")
    page.close()


def main() -> None:
    """Make all pictures, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="pictures to make; all by default")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--chromium", default=CHROMIUM)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=ARGUMENTS)
        for shot in SHOTS:
            if not options.names or shot.name in options.names:
                take(browser, options.url, shot)
        browser.close()


if __name__ == "__main__":
    main()
