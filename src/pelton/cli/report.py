"""How a finished request and the KV cache are shown: a line for people, one JSON object for programs. Pure functions.

Start at `make_stats_line` and `make_json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pelton.core.outputs import GenerationResult

if TYPE_CHECKING:
    from pelton.core.load_facts import LoadFacts


def make_kv_cache_line(facts: LoadFacts) -> str:
    """One line: how many tokens, and how many requests of the longest context, the KV cache holds."""
    from pelton.execution.kv_size import compute_kv_capacity

    capacity = compute_kv_capacity(
        facts.num_kv_blocks, facts.block_size, facts.kv_bytes_per_block, facts.context_length
    )
    return f"pelton: {capacity.describe()}"


def make_stats_line(result: GenerationResult) -> str:
    """One line about a request: prompt tokens, TTFT, prefill rate, ITL, decode rate, KV cache, how it ended, seed."""
    usage, timings = result.usage, result.timings
    itl = timings.itl_ms
    has_itl = usage.completion_tokens > 1
    parts = [
        f"prompt {usage.prompt_tokens} tokens",
        f"TTFT {timings.ttft_ms:.1f} ms",
        f"prefill {timings.prefill_tokens_per_s:.1f} tokens/s",
        f"ITL median {itl.p50:.2f} ms, p99 {itl.p99:.2f} ms" if has_itl else "ITL none (one token)",
        f"decode {timings.decode_tokens_per_s:.1f} tokens/s" if has_itl else "decode none",
        f"KV cache {result.kv_cache_bytes:,} bytes",
        f"{usage.completion_tokens} new tokens, ended by {result.finish_reason}",
        f"seed {result.seed}",
    ]
    return "pelton: " + " | ".join(parts)


def make_json(result: GenerationResult) -> dict[str, object]:
    """The object `pelton run --json` prints; `seed` repeats the answer."""
    usage, timings = result.usage, result.timings
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "prompt_token_ids": list(result.prompt_token_ids),
        "finish_reason": result.finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        },
        "timings": {
            "load_ms": timings.load_ms,
            "tokenize_ms": timings.tokenize_ms,
            "prefill_ms": timings.prefill_ms,
            "ttft_ms": timings.ttft_ms,
            "itl_ms": {"mean": timings.itl_ms.mean, "p50": timings.itl_ms.p50, "p99": timings.itl_ms.p99},
            "prefill_tokens_per_s": timings.prefill_tokens_per_s,
            "decode_tokens_per_s": timings.decode_tokens_per_s,
        },
        "kv_cache_bytes": result.kv_cache_bytes,
        "seed": result.seed,
    }
