"""A headless Chromium for the tests of this folder, and pages in it that must end without an error in the console."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from live_server import LiveServer, run_live

from headless_chromium import ARGUMENTS, CHROMIUM

Serve = Callable[..., LiveServer]
OpenPage = Callable[..., Any]

# A loaded machine may hold a process up for long; nothing here is slow by itself.
TIMEOUT_MS = 60_000


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers of engines; they end with the test."""
    with ExitStack() as stack:
        yield lambda engine, **options: stack.enter_context(run_live(engine, **options))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:  # Any: playwright may be missing
    """Chromium as Debian packages it, with a profile of its own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install pelton[dev])")
    if CHROMIUM is None:
        pytest.skip("needs a chromium in PATH (Debian: apt-get install chromium)")
    playwright.expect.set_options(timeout=TIMEOUT_MS)
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Open the page of a server; keywords are those of a playwright context.

    `allowed` matches what may be in the console: a browser writes every answer of 400 and above there.
    """
    contexts = []
    found: list[str] = []

    def open_(server: LiveServer, allowed: str = "$^", *, is_ready: bool = True, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        context.set_default_timeout(TIMEOUT_MS)
        contexts.append(context)
        page = context.new_page()

        def note(text: str) -> None:
            if not re.search(allowed, text):
                found.append(text)

        page.on("console", lambda message: message.type in ("error", "warning") and note(message.text))
        page.on("pageerror", lambda error: note(str(error)))
        page.on("dialog", lambda dialog: (note(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(server.url)
        if is_ready:
            page.wait_for_selector("#served:has-text('parameters')")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert found == []


@pytest.fixture
def ask() -> Callable[..., None]:
    """Send a prompt and wait for the end of the answer."""
    from playwright.sync_api import expect

    def ask_(page: Any, prompt: str, end: str = "Finished") -> None:
        page.fill("#prompt", prompt)
        page.press("#prompt", "Enter")
        expect(page.locator("#status")).to_contain_text(end)

    return ask_
