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
from pelton.loading.gguf import open_gguf

_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class PeltonEngine(Engine):
    """A loaded model; knows how much of the tests' common context is in the KV cache."""

    name = "pelton"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._llm = LLM(
            arguments.model,
            threads=arguments.threads,
            isa=arguments.isa,
            kv_cache_dtype=arguments.kv_cache_dtype,
            kv_cache_tokens=arguments.kv_cache_tokens,
        )
        self._weight_bytes = count_weight_bytes(arguments.model)
        # The first tokens of sequence 0 that are in the KV cache: the ids are the same in every test, and so is the
        # place of their blocks, so that a context need not be computed again for each test and round.
        self._num_cached = 0

    def describe(self) -> dict[str, object]:
        config, runner = self._llm.config, self._llm.runner
        return {
            "version": get_version("pelton"),
            "isa": runner.isa,
            "threads": runner.num_threads,
            "kv_cache_dtype": config.kv_cache_dtype,
            "prefill_chunk": config.prefill_chunk,
            "load_s": self._llm.load_ms / 1000,
            "weight_bytes_per_step": self._weight_bytes,
            "kv_bytes_per_token": runner.kv_bytes_per_block / runner.block_size,
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

    def prefill(self, num_tokens: int, depth: int) -> float:
        lockstep = self._make_lockstep(depth + num_tokens, 0, 1)
        if self._num_cached < depth:
            lockstep.prefill(0, depth)
        begin = time.perf_counter()
        lockstep.prefill(depth, depth + num_tokens)
        elapsed_s = time.perf_counter() - begin
        self._num_cached = max(self._num_cached, depth + num_tokens)
        return elapsed_s

    def decode(self, num_new_tokens: int, depth: int, num_seqs: int) -> float:
        # A prompt has at least one token; its last one is computed again to have a first token to go on from.
        num_prompt_tokens = max(depth, 1)
        lockstep = self._make_lockstep(num_prompt_tokens, num_new_tokens, num_seqs)
        start = num_prompt_tokens - 1 if num_seqs == 1 and self._num_cached >= num_prompt_tokens else 0
        lockstep.prefill(start, num_prompt_tokens)
        begin = time.perf_counter()
        lockstep.decode(num_new_tokens)
        elapsed_s = time.perf_counter() - begin
        self._num_cached = depth if num_seqs == 1 else 0
        return elapsed_s

    def perplexity(self, text: str, num_context: int) -> dict[str, object]:
        self._num_cached = 0
        result = measure_perplexity(self._llm, text, PerplexityOptions(context=num_context))
        token_ids = self._llm.tokenizer.encode(text, add_special=True, parse_special=False)
        return {
            "perplexity": result.perplexity,
            "windows": result.windows,
            "tokens": result.tokens,
            "token_ids": token_ids,
        }


def count_weight_bytes(path: Path) -> int:
    """Bytes of weights that one decode step must read, as the file stores them: all but an embedding used for one row.

    Without an output matrix of its own, a model multiplies by the embedding matrix.
    """
    with open_gguf(path) as file:
        sizes = {name: tensor.data.nbytes for name, tensor in file.tensors.items()}
    return sum(sizes.values()) - (sizes["token_embd.weight"] if "output.weight" in sizes else 0)


def main() -> None:
    """Parse the options, load the model, serve commands until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--isa")
    parser.add_argument("--kv-cache-dtype", default="f16")
    parser.add_argument("--kv-cache-tokens", type=int, default=16384)
    arguments = parser.parse_args()
    serve(lambda: PeltonEngine(arguments))


if __name__ == "__main__":
    main()
