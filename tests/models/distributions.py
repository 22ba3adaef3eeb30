"""Log-probabilities over the whole vocabulary through Pelton's public interface, for small vocabularies.

Start at `get_logprobs_after`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pelton import LLM, SamplingParams
from pelton.core.outputs import TokenLogprobs


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural-log softmax over the last axis, in double precision."""
    values = logits.astype(np.float64)
    values = values - values.max(axis=-1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=-1, keepdims=True))


def as_row(logprobs: TokenLogprobs, vocab_size: int) -> np.ndarray:
    """Return [vocab_size] f64 of a step whose request asked for all of the vocabulary."""
    row = np.full(vocab_size, np.nan)
    for token_id, value in logprobs.top:
        row[token_id] = value
    assert not np.isnan(row).any(), "a token of the vocabulary has no log-probability"
    return row


def get_logprobs_after(llm: LLM, prefixes: Sequence[Sequence[int]]) -> np.ndarray:
    """Return [len(prefixes), vocab] f64: the distribution of the next token after each prefix, all in one batch."""
    vocab_size = llm.model_config.vocab_size
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=vocab_size, ignore_eos=True)
    rows = []
    for result in llm.generate([list(p) for p in prefixes], params):
        assert result.logprobs is not None
        assert len(result.logprobs) == 1
        rows.append(as_row(result.logprobs[0], vocab_size))
    return np.stack(rows)
