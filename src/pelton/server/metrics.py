"""`ServerMetrics`: what `/metrics` shows, in Prometheus' text format. vLLM's names with the prefix `pelton:`.

What happens to requests is recorded here as it happens; what the engine counts itself is read from `AsyncEngine.stats`
when somebody asks (`engine_metrics.py`). Each server has its own registry.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from pelton.core.outputs import GenerationResult
from pelton.core.trace import Wait

# vLLM's buckets with finer ones below: a small model answers in milliseconds.
TTFT_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
DURATION_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKEN_BUCKETS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
CHOICE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)

# Name -> (help, buckets).
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From the arrival of a request to its first token.", TTFT_BUCKETS),
    "inter_token_latency_seconds": ("Between two tokens of one choice.", ITL_BUCKETS),
    "request_time_per_output_token_seconds": ("Mean time between tokens of a request.", ITL_BUCKETS),
    "e2e_request_latency_seconds": ("From the arrival of a request to its last token.", DURATION_BUCKETS),
    "request_queue_time_seconds": ("From the arrival of a request to its first step.", DURATION_BUCKETS),
    "request_inference_time_seconds": ("From the first step of a request to its last token.", DURATION_BUCKETS),
    "request_prefill_time_seconds": ("From the first step of a request to its first token.", DURATION_BUCKETS),
    "request_decode_time_seconds": ("From the first token of a request to its last.", DURATION_BUCKETS),
    "request_prompt_tokens": ("Prompt tokens of a request.", TOKEN_BUCKETS),
    "request_generation_tokens": ("Tokens a request generated.", TOKEN_BUCKETS),
    "request_prefill_kv_computed_tokens": ("Prompt tokens computed, those from the cache left out.", TOKEN_BUCKETS),
    "request_params_max_tokens": ("max_tokens of a request.", TOKEN_BUCKETS),
    "request_params_n": ("Choices of a request.", CHOICE_BUCKETS),
}


class ServerMetrics:
    """Counters and histograms of one server; `model_name` is on every one."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.model_name = model_name
        self._histograms = {
            name: Histogram(f"pelton:{name}", text, ("model_name",), registry=self.registry, buckets=buckets).labels(
                model_name
            )
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._itl = self._histograms["inter_token_latency_seconds"]
        self._prompt_tokens = self._make_counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._generation_tokens = self._make_counter("generation_tokens", "Tokens generated.")
        self._cached_tokens = self._make_counter("prompt_tokens_cached", "Prompt tokens whose K/V were reused.")
        self._by_source = Counter(
            "pelton:prompt_tokens_by_source",
            "Prompt tokens by where their K/V came from.",
            ("model_name", "source"),
            registry=self.registry,
        )
        self._success = Counter(
            "pelton:request_success",
            "Finished choices by reason.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self._waits = Counter(
            "pelton:request_wait_seconds",
            "Seconds that finished requests waited, by cause.",
            ("model_name", "cause"),
            registry=self.registry,
        )
        self._errors = Counter(
            "pelton:http_errors",
            "Requests answered with an error, or given up by their client (499).",
            ("status", "code"),
            registry=self.registry,
        )

    def count_error(self, status: int, code: str | None) -> None:
        """Count an error answer."""
        self._errors.labels(str(status), code or "none").inc()

    def count_unfinished(self, num_choices: int, reason: str) -> None:
        """Count the choices of a request without a result: "abort" if it was ended, "error" if the engine failed it."""
        self._success.labels(self.model_name, reason).inc(num_choices)

    def observe_tokens(self, num_tokens: int, gap_s: float | None) -> None:
        """Note new tokens of one choice, at least one, `gap_s` after the ones before them (None: the first ones)."""
        self._generation_tokens.inc(num_tokens)
        if gap_s is not None:
            self.observe_gaps(num_tokens, gap_s / num_tokens)

    def observe_gaps(self, num_gaps: int, gap_s: float) -> None:
        """Note `num_gaps` gaps between tokens, each of `gap_s`."""
        for _ in range(num_gaps):
            self._itl.observe(gap_s)

    def observe_waits(self, waits: Iterable[Wait]) -> None:
        """Note what a finished request waited for."""
        for wait in waits:
            self._waits.labels(self.model_name, wait.cause.value).inc(wait.end_s - wait.start_s)

    def observe_result(self, result: GenerationResult, max_tokens: int | None) -> None:
        """Note a finished request."""
        usage, timings = result.usage, result.timings
        observe = {name: histogram.observe for name, histogram in self._histograms.items()}
        num_computed = usage.prompt_tokens - usage.cached_tokens
        decode_s = timings.itl_ms.mean * max(0, usage.completion_tokens // max(1, len(result.choices)) - 1) / 1e3
        queue_s, prefill_s = timings.queue_ms / 1e3, timings.prefill_ms / 1e3
        observe["time_to_first_token_seconds"](timings.ttft_ms / 1e3)
        observe["e2e_request_latency_seconds"](timings.ttft_ms / 1e3 + decode_s)
        observe["request_queue_time_seconds"](queue_s)
        observe["request_prefill_time_seconds"](prefill_s)
        observe["request_decode_time_seconds"](decode_s)
        observe["request_inference_time_seconds"](prefill_s + decode_s)
        observe["request_time_per_output_token_seconds"](timings.itl_ms.mean / 1e3)
        observe["request_prompt_tokens"](usage.prompt_tokens)
        observe["request_generation_tokens"](usage.completion_tokens)
        observe["request_prefill_kv_computed_tokens"](num_computed)
        observe["request_params_n"](len(result.choices))
        if max_tokens is not None:
            observe["request_params_max_tokens"](max_tokens)
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._cached_tokens.inc(usage.cached_tokens)
        self._by_source.labels(self.model_name, "local_cache_hit").inc(usage.cached_tokens)
        self._by_source.labels(self.model_name, "local_compute").inc(num_computed)
        for choice in result.choices:
            self._success.labels(self.model_name, choice.finish_reason).inc()

    def render(self) -> bytes:
        """The page of `/metrics`."""
        return generate_latest(self.registry)

    def _make_counter(self, name: str, text: str) -> Counter:
        return Counter(f"pelton:{name}", text, ("model_name",), registry=self.registry).labels(self.model_name)
