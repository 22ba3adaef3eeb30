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

    `ttft_ms` runs from the arrival of the request (its text) to its first token, tokenising included. `queue_ms` is the
    part of it between tokenising and the first step that held the request; a request that never ran only queued.
    """

    load_ms: float = 0.0
    tokenize_ms: float = 0.0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    itl_ms: ItlStats = field(default_factory=ItlStats)
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One streamed piece of choice `index`: new ids and the text they add.

    The last one of a choice carries its finish_reason and seed, and `stop_reason` or `error` where there is one. The
    last one of the request carries usage, timings and `result`, the whole request as `generate` returns it.

    `text_delta` never holds half a character, and all deltas of a choice joined are its text.
    """

    request_id: str
    new_token_ids: tuple[int, ...]
    text_delta: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    result: GenerationResult | None = None
    index: int = 0
    stop_reason: str | int | None = None
    error: str | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers to a prompt.

    `finish_reason` is "stop" (an end token, a stop token id or a stop string), "length", "abort" (dropped, or out of
    time: `error` says which) or "error" (`error` says why; text and ids are what came before). `stop_reason` is the
    stop string or stop token id that ended it, else None. `seed` repeats the choice exactly as a request of its own.
    `logprobs` has one entry per token if asked for. `cumulative_logprob` is the sum over all tokens, None if no
    log-probabilities were computed.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprobs, ...] | None
    seed: int
    cumulative_logprob: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished request: `n` choices, best first where `best_of` chose them, else in order of seed.

    `usage` counts all tokens that were computed, those of choices that `best_of` dropped too. `prompt_logprobs` has one
    entry per prompt token (None for the first, which nothing comes before) if asked for. The properties are those of
    the first choice.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    usage: Usage
    timings: Timings
    kv_cache_bytes: int
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """New token ids of the first choice."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def seed(self) -> int:
        """Seed of the first choice."""
        return self.choices[0].seed

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """Log-probabilities of the first choice's tokens, None unless asked for."""
        return self.choices[0].logprobs
