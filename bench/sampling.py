"""Time of sampling: 64 rows of 49,152 logits, single thread, by parameters.

    python bench/sampling.py

Prints processor milliseconds of one `Sampler.sample` call: the least and the median of several. Logits are normal
with a spread of 3, and the histories 500 tokens long.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from pelton.core.sampling_params import SamplingParams
from pelton.sampling.row import SamplingRow
from pelton.sampling.sampler import Sampler

NUM_ROWS = 64
VOCAB_SIZE = 49152
NUM_REPEATS = 9

CASES: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "temperature + top_p": {"temperature": 0.7, "top_p": 0.95},
    "temperature + min_p": {"temperature": 0.7, "min_p": 0.05},
    "top_k + top_p": {"top_k": 40, "top_p": 0.95},
    "top_p + logprobs": {"top_p": 0.95, "logprobs": 5},
    "top_p + repetition": {"top_p": 0.95, "repetition_penalty": 1.1},
    "top_p + mask": {"top_p": 0.95, "allowed_token_ids": tuple(range(0, VOCAB_SIZE, 3))},
    "top_p + DRY": {"top_p": 0.95, "dry_multiplier": 0.8, "dry_sequence_breakers": ()},
    "typical_p": {"typical_p": 0.9},
    "min_p + XTC": {"min_p": 0.05, "xtc_probability": 0.5},
    "mirostat": {"mirostat": 2},
}


def make_row(params: SamplingParams, number: int, history: list[int]) -> SamplingRow:
    """Row `number` of a batch, with a mask if the parameters ask for one."""
    if getattr(params, "allowed_token_ids", None) is None:
        return SamplingRow(params, number, history[:250], history[250:], number)
    from pelton.sampling.masks import count_mask_words, make_mask

    mask = make_mask(params.allowed_token_ids or (), count_mask_words(VOCAB_SIZE))
    return SamplingRow(params, number, history[:250], history[250:], number, mask=mask)


def measure(params: SamplingParams, logits: np.ndarray, history: list[int]) -> list[float]:
    """Processor milliseconds of each repeat, after one that does not count."""
    rows = [make_row(params, number, history) for number in range(NUM_ROWS)]
    sampler = Sampler(VOCAB_SIZE)
    sampler.sample(logits, rows)
    times = []
    for _ in range(NUM_REPEATS):
        start_s = time.process_time()
        sampler.sample(logits, rows)
        times.append((time.process_time() - start_s) * 1e3)
    return times


def main() -> None:
    """Print one line per case; those whose parameters this version lacks are left out."""
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(NUM_ROWS, VOCAB_SIZE)) * 3).astype(np.float32)
    history = [int(i) for i in rng.integers(200, size=500)]
    for name, values in CASES.items():
        try:
            params = SamplingParams(**values)  # type: ignore[arg-type]  # any field
        except TypeError:
            continue
        times = measure(params, logits, history)
        print(f"{name:22} {min(times):8.2f} ms  median {statistics.median(times):8.2f} ms")


if __name__ == "__main__":
    main()
