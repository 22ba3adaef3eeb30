"""What a caller gets back: `RequestOutput` while streaming, `GenerationResult` at the end. Frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities under the raw logits: the chosen token's, and the most likely tokens'.

    `top` holds (token id, log-probability) pairs, most likely first, ties by lower id.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; `cached_tokens` is the part of the prompt whose K/V were reused."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ItlStats:
    """Inter-token latency of one request in milliseconds; zeros when fewer than two tokens came."""

    mean: float = 0.0
    p50: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went. Milliseconds, and tokens per second.

    `ttft_ms` runs from the arrival of the request (its text) to its first token, tokenising included.
    """

    load_ms: float = 0.0
    tokenize_ms: float = 0.0
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    itl_ms: ItlStats = field(default_factory=ItlStats)
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One streamed piece: new ids and the text they add.

    The last one carries finish_reason, usage, timings and `result`, the whole request as `generate` returns it.

    `text_delta` never holds half a character, and all deltas joined are the text of the result.
    """

    request_id: str
    new_token_ids: tuple[int, ...]
    text_delta: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    result: GenerationResult | None = None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished request. `seed` repeats it exactly; `logprobs` has one entry per token if asked for."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: str
    usage: Usage
    timings: Timings
    kv_cache_bytes: int
    seed: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
