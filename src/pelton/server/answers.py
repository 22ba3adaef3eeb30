"""Pieces that answers of several protocols share: JSON responses, usage and `timings`. Pure functions of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from starlette.responses import Response

from pelton import __version__
from pelton.core.outputs import Timings, Usage
from pelton.server.json_text import dump_json

if TYPE_CHECKING:
    from pelton.engine.async_engine import AsyncEngine


class JsonAnswer(Response):
    """A response of JSON that is already made of plain dicts and lists."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Compact ASCII JSON."""
        return dump_json(content)


class TimingsBody(TypedDict):
    """llama-server's names, then Pelton's own: milliseconds, tokens, tokens per second."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    queue_ms: float
    tokenize_ms: float
    ttft_ms: float
    itl_ms: dict[str, float]


def make_timings(timings: Timings, usage: Usage) -> TimingsBody:
    """`timings` of a response. `prompt_n` counts the prompt tokens computed, those from the cache left out."""
    num_computed = usage.prompt_tokens - usage.cached_tokens
    num_predicted = usage.completion_tokens
    rate = timings.decode_tokens_per_s
    # The first token comes out of the prefill, so there is one decode step less than there are tokens.
    predicted_ms = (num_predicted - 1) / rate * 1e3 if rate > 0 else 0.0
    itl = timings.itl_ms
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": num_computed,
        "prompt_ms": round(timings.prefill_ms, 3),
        "prompt_per_token_ms": round(timings.prefill_ms / num_computed, 4) if num_computed else 0.0,
        "prompt_per_second": round(timings.prefill_tokens_per_s, 2),
        "predicted_n": num_predicted,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": round(1e3 / rate, 4) if rate > 0 else 0.0,
        "predicted_per_second": round(rate, 2),
        "queue_ms": round(timings.queue_ms, 3),
        "tokenize_ms": round(timings.tokenize_ms, 3),
        "ttft_ms": round(timings.ttft_ms, 3),
        "itl_ms": {"mean": round(itl.mean, 3), "p50": round(itl.p50, 3), "p99": round(itl.p99, 3)},
    }


class UsageBody(TypedDict):
    """OpenAI's `usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


def make_usage(usage: Usage) -> UsageBody:
    """`usage` of a response."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def get_system_fingerprint(engine: AsyncEngine) -> str:
    """What decides the bits of an answer besides model, prompt, parameters and seed: version and instruction set."""
    return f"pelton-{__version__}-{engine.isa}"
