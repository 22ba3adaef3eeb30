"""OpenVINO GenAI behind a pipe, reading the GGUF file directly; the counterpart of `llamacpp_worker.py`.

The pipeline is stepped here, so that single steps can be timed: prefill is all steps up to the first token, decode
those after it. Sampling is greedy, as in Pelton. Runs in OpenVINO's environment. Start at `OpenVinoEngine`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from protocol import Engine, random_token_ids, serve

_KV_CACHE_GB = 2


class OpenVinoEngine(Engine):
    """A pipeline with continuous batching: the one that computes several sequences in one step."""

    name = "openvino"

    def __init__(self, arguments: argparse.Namespace) -> None:
        begin = time.perf_counter()
        self._properties: dict[str, object] = {
            "INFERENCE_NUM_THREADS": arguments.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_MMAP": True,
        }
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _KV_CACHE_GB
        scheduler.max_num_batched_tokens = arguments.chunk_tokens
        scheduler.max_num_seqs = 64
        scheduler.enable_prefix_caching = False
        self._chunk_tokens = arguments.chunk_tokens
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(arguments.model), scheduler, "CPU", self._properties
        )
        self._vocab_size = arguments.vocab_size
        self._load_s = time.perf_counter() - begin

    def describe(self) -> dict[str, object]:
        return {
            "version": f"openvino-genai {openvino_genai.__version__}, openvino {openvino.__version__}",
            "properties": self._properties,
            "max_num_batched_tokens": self._chunk_tokens,
            "load_s": self._load_s,
        }

    def _generate(self, num_prompt_tokens: int, num_new_tokens: int, num_seqs: int) -> list[float]:
        """Run to the end; seconds from the start at which the first step and the last step were done."""
        ids = random_token_ids(num_prompt_tokens * num_seqs, self._vocab_size)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_new_tokens, True, False
        handles = [
            self._pipeline.add_request(
                seq,
                openvino.Tensor(
                    np.array([ids[seq * num_prompt_tokens : (seq + 1) * num_prompt_tokens]], dtype=np.int64)
                ),
                config,
            )
            for seq in range(num_seqs)
        ]
        step_ends, begin = [], time.perf_counter()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            step_ends.append(time.perf_counter() - begin)
        del handles
        return step_ends

    def prefill(self, num_tokens: int, depth: int) -> float:
        if depth:
            raise ValueError("OpenVINO GenAI is measured at depth 0 only")
        return self._generate(num_tokens, 1, 1)[-1]

    def decode(self, num_new_tokens: int, depth: int, num_seqs: int) -> float:
        # One more token than is timed: the first one comes out of the prompt. Every later step computes one a sequence.
        step_ends = self._generate(max(depth, 1), num_new_tokens + 1, num_seqs)
        return step_ends[-1] - step_ends[-1 - num_new_tokens]

    def perplexity(self, text: str, num_context: int) -> dict[str, object]:
        raise NotImplementedError("OpenVINO GenAI hands out no logits")


def main() -> None:
    """Parse the options, load the model, serve commands until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--chunk-tokens", type=int, default=2048)
    parser.add_argument("--vocab-size", type=int, default=49152)
    arguments = parser.parse_args()
    serve(lambda: OpenVinoEngine(arguments))


if __name__ == "__main__":
    main()
