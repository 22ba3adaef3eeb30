"""Pelton behind a pipe, the counterpart of `llamacpp_worker.py`: same commands, same token ids, same measuring points.

Steps go straight to the runner, as llama.cpp's go straight to `llama_decode`; greedy sampling is part of Pelton's
time. Runs in an environment that has Pelton. Start at `PeltonEngine`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from protocol import Engine, random_token_ids, serve

from pelton import LLM, SamplingParams
from pelton.core.request import Request
from pelton.engine.benchmark import Lockstep
from pelton.engine.machine import get_version
from pelton.engine.perplexity import PerplexityOptions, measure_perplexity

_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class PeltonEngine(Engine):
    """A loaded model; keeps the context of the last decode test so that a repeat need not compute it again."""

    name = "pelton"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._llm = LLM(
            arguments.model, threads=arguments.threads, isa=arguments.isa, kv_cache_tokens=arguments.kv_cache_tokens
        )
        self._contexts: dict[tuple[int, int, int], Lockstep] = {}

    def describe(self) -> dict[str, object]:
        config, runner = self._llm.config, self._llm.runner
        return {
            "version": get_version("pelton"),
            "isa": runner.isa,
            "threads": runner.num_threads,
            "kv_cache_dtype": config.kv_cache_dtype,
            "prefill_chunk": config.prefill_chunk,
            "load_s": self._llm.load_ms / 1000,
        }

    def _make_lockstep(self, num_prompt_tokens: int, num_new_tokens: int, num_seqs: int) -> Lockstep:
        num_blocks = -(-(num_prompt_tokens + num_new_tokens + 1) // self._llm.runner.block_size)
        if num_blocks * num_seqs > self._llm.runner.num_blocks:
            raise ValueError(f"{num_seqs} x {num_blocks} KV blocks needed; allowed: {self._llm.runner.num_blocks}")
        token_ids = random_token_ids(num_prompt_tokens * num_seqs, self._llm.tokenizer.vocab_size)
        requests = [
            Request(
                request_id=f"side-by-side-{i}",
                prompt_token_ids=tuple(token_ids[i * num_prompt_tokens : (i + 1) * num_prompt_tokens]),
                params=_GREEDY,
                max_tokens=num_new_tokens + 1,
                seed=0,
                eos_token_ids=frozenset(),
                arrival_s=0.0,
                block_table=list(range(i * num_blocks, (i + 1) * num_blocks)),
            )
            for i in range(num_seqs)
        ]
        return Lockstep(
            self._llm.runner, requests, max_num_batched_tokens=self._llm.config.prefill_chunk, use_kv_cache=True
        )

    def prefill(self, num_tokens: int) -> float:
        self._contexts.clear()
        lockstep = self._make_lockstep(num_tokens, 0, 1)
        begin = time.perf_counter()
        lockstep.prefill(0, num_tokens)
        return time.perf_counter() - begin

    def decode(self, num_new_tokens: int, depth: int, num_seqs: int) -> float:
        key = (num_new_tokens, depth, num_seqs)
        lockstep = self._contexts.get(key)
        if lockstep is None:
            # Only one set of requests owns the KV blocks at a time. A prompt has at least one token.
            self._contexts.clear()
            lockstep = self._contexts[key] = self._make_lockstep(max(depth, 1), num_new_tokens, num_seqs)
            lockstep.prefill(0, max(depth, 1))
        lockstep.drop_output_after(1)
        begin = time.perf_counter()
        lockstep.decode(num_new_tokens)
        return time.perf_counter() - begin

    def perplexity(self, text: str, num_context: int) -> dict[str, object]:
        self._contexts.clear()
        result = measure_perplexity(self._llm, text, PerplexityOptions(context=num_context))
        token_ids = self._llm.tokenizer.encode(text, add_special=True, parse_special=False)
        return {
            "perplexity": result.perplexity,
            "windows": result.windows,
            "tokens": result.tokens,
            "token_ids": token_ids,
        }


def main() -> None:
    """Parse the options, load the model, serve commands until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--isa")
    parser.add_argument("--kv-cache-tokens", type=int, default=16384)
    arguments = parser.parse_args()
    serve(lambda: PeltonEngine(arguments))


if __name__ == "__main__":
    main()
