"""Perplexity of a text in llama.cpp's convention, so that figures can be compared.

The convention (llama.cpp tools/perplexity/perplexity.cpp): the whole text is tokenized once, without looking for
special tokens in it; floor(n / context) consecutive windows are scored and the rest is dropped; where the model adds
a BOS token, the first token of each window is replaced by it; with first = context // 2, the tokens first + 1 ..
context - 1 of a window are predicted from all tokens before them in the window. The result is
exp(-mean log-probability) over all of these. Knows tokens and scores, not files. Start at `measure_perplexity`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.fields import check_number_types, option, validate_options

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pelton.core.model_config import ModelConfig
    from pelton.text.tokenizer import Tokenizer

MIN_NUM_WINDOWS = 2  # llama.cpp refuses shorter texts too: one window says little

# Windows done, windows in all, perplexity so far.
WindowCallback = Callable[[int, int, float], None]


class Scorer(Protocol):
    """What is needed of `LLM`; tests put a model with known probabilities in its place."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model."""

    @property
    def model_config(self) -> ModelConfig:
        """Shape of the model."""

    def score(self, token_ids: Sequence[int], first: int = 1) -> npt.NDArray[np.float64]:
        """Natural-log probabilities of `token_ids[first:]`, each given all tokens before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerplexityOptions:
    """Options of a perplexity measurement, validated on construction (`InvalidParameterError`)."""

    context: int = option(512, "Length of a window.", minimum=4, maximum=2**20, unit="tokens")

    def __post_init__(self) -> None:
        check_number_types(self, ("context",), ())
        validate_options(self)


@dataclass(frozen=True, slots=True)
class PerplexityResult:
    """Perplexity, and over how many windows and scored tokens it was taken."""

    perplexity: float
    windows: int
    tokens: int


def measure_perplexity(
    llm: Scorer, text: str, options: PerplexityOptions, progress: WindowCallback | None = None
) -> PerplexityResult:
    """Perplexity of `text` under `llm`; `progress` is called after each window.

    Raises `ContextLengthError` if a window exceeds the model's context and `InvalidParameterError` if the text is
    shorter than two windows.
    """
    context = options.context
    max_context = llm.model_config.max_position_embeddings
    if context > max_context:
        raise ContextLengthError("--context", context, f"at most {max_context}, the context of this model")
    windows = split_windows(llm.tokenizer, text, context)
    first = context // 2
    log_probability = 0.0
    num_scored = 0
    value = math.nan
    for done, window in enumerate(windows, 1):
        scores = llm.score(window, first + 1)
        log_probability += math.fsum(float(score) for score in scores)
        num_scored += len(scores)
        value = math.exp(-log_probability / num_scored)
        if progress is not None:
            progress(done, len(windows), value)
    return PerplexityResult(value, len(windows), num_scored)


def split_windows(tokenizer: Tokenizer, text: str, context: int) -> list[list[int]]:
    """Token ids of the consecutive windows of `text`, each `context` long.

    Raises `InvalidParameterError` if there are fewer than two.
    """
    token_ids = tokenizer.encode(text, add_special=False, parse_special=False)
    bos = tokenizer.bos_token_id if tokenizer.add_bos else None
    if bos is not None:
        token_ids = [bos, *token_ids]
    num_windows = len(token_ids) // context
    if num_windows < MIN_NUM_WINDOWS:
        needed = MIN_NUM_WINDOWS * context
        raise InvalidParameterError(
            "number of tokens of the text", len(token_ids), f"at least {needed}, two windows of {context} tokens"
        )
    windows = [token_ids[start : start + context] for start in range(0, num_windows * context, context)]
    if bos is not None:
        windows = [[bos, *window[1:]] for window in windows]
    return windows
