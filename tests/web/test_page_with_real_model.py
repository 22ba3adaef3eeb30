"""The page with the default model: an answer with real probabilities, steps with costs, an answer in a schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

import pelton

pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install pelton[dev])")
from playwright.sync_api import expect

pytestmark = pytest.mark.model
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 8}},
    "required": ["animal", "legs"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[SimpleNamespace]:
    """`pelton serve` as it is started by people, on a free port; its `url` is what it prints."""
    command = [sys.executable, "-m", "pelton", "serve", "-m", os.environ["PELTON_TEST_MODEL"], "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(pelton.__file__).parents[1])}
    process = subprocess.Popen(
        [*command, "--kv-cache-tokens", "4096"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    try:
        url = next(line.split(" at ")[1].strip() for line in process.stderr if " at http" in line)
        yield SimpleNamespace(url=url.removesuffix("/v1"))
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


def test_an_answer_with_probabilities_steps_and_an_explanation(server, open_page, ask) -> None:
    page = open_page(server)
    page.fill("#max_tokens", "12")
    page.fill("#seed", "1")
    ask(page, "How does inference work?", end="Finished after 12 tokens")
    answer = page.locator("#tokens .token-view:nth-child(2)")
    expect(answer.locator(".token")).to_have_count(12)
    # The template's control tokens are pieces of the prompt.
    expect(page.locator("#tokens .token-view:nth-child(1) .token").first).to_contain_text("<|im_start|>")
    answer.locator(".token").first.hover()
    expect(answer.locator(".token-detail li")).to_have_count(8)
    percents = [float(t.strip(" %<")) for t in answer.locator(".token-detail li .percent").all_inner_texts()]
    assert percents == sorted(percents, reverse=True)
    assert sum(percents) <= 101.0
    expect(page.locator("#times .caption")).to_contain_text("As the engine saw it: 11 gaps")
    expect(page.locator("#explanation .verdict").first).to_be_visible()
    page.locator("#roofline .figures summary").click()
    # A step reads all weights, which are 135 million, and works on one or a few tokens.
    expect(page.locator("#roofline tbody tr").first).to_contain_text("12")
    expect(page.locator("#roofline tbody tr")).to_have_count(12)
    expect(page.locator("#engine dd").first).to_have_text("96.6 MB")
    expect(page.locator("#engine")).to_contain_text("Planned / measured: weights")
    expect(page.locator("#served")).to_contain_text("135 M parameters")


def test_the_engine_tells_plan_and_actual_memory(server) -> None:
    memory = httpx.get(f"{server.url}/v1/engine", timeout=120).json()["plan"]["memory"]
    for part in ("weight_bytes", "kv_cache_bytes"):
        assert abs(memory[part]["deviation_pct"]) < 1.0, part
    # The file says so: 30 layers, 3 heads of 64 for K and V, 16-bit values, 4,096 tokens.
    assert memory["kv_cache_bytes"]["measured"] == pytest.approx(4096 * 30 * 2 * 3 * 64 * 2, rel=0.05)


def test_an_answer_keeps_to_its_schema(server, open_page, ask) -> None:
    page = open_page(server)
    page.fill("#schema", json.dumps(SCHEMA))
    page.fill("#seed", "1")
    ask(page, "A pet, please.")
    found = json.loads(page.locator(".turn.assistant .turn-text").inner_text())
    assert found["animal"] in ("cat", "dog")
    assert 0 <= found["legs"] <= 8
