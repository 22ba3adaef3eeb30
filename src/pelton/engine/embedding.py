"""`EmbeddingQueue`: texts become vectors, a chunk at a time, so that an engine can put chunks between its steps.

A vector is the mean of the hidden states of a text's tokens, or the last one (`EmbeddingParams`). What else is in the
queue, and how texts are cut into chunks, changes no bit of it: hidden states do not depend on the batch, and sums run
over a text's tokens in their order. Knows no threads. Entry points: `EmbeddingQueue.add` and `step`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pelton.core.embedding import EmbeddingParams, TextChunk
from pelton.engine.core import Runner


@dataclass(slots=True, eq=False)
class EmbeddingRequest:
    """Texts of one call as token ids, none empty, and the vectors that are ready, by the number of the text.

    Vectors are [hidden] f32. `is_aborted` may be set by anyone: the request is then dropped, not finished. `start_s` is
    when its first chunk began (`time.perf_counter()`), `compute_s` what all chunks that held a part of it took.
    """

    texts: Sequence[tuple[int, ...]]
    params: EmbeddingParams
    vectors: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    is_aborted: bool = False
    start_s: float | None = None
    compute_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(text) for text in self.texts)

    @property
    def is_finished(self) -> bool:
        """Whether all vectors are there."""
        return len(self.vectors) == len(self.texts)


@dataclass(slots=True, eq=False)
class _Text:
    """A text on its way: tokens [0, num_computed) are in `total` (mean) or behind it (last)."""

    request: EmbeddingRequest
    index: int
    block_table: range = range(0)
    num_computed: int = 0
    total: npt.NDArray[np.float64] | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.request.texts[self.index]

    def push(self, states: npt.NDArray[np.float32]) -> None:
        """Take the hidden states of the next tokens [n, hidden]; at the end, give the request its vector."""
        self.num_computed += len(states)
        if self.request.params.pooling == "mean":
            if self.total is None:
                self.total = np.zeros(states.shape[1], np.float64)
            # Row by row: NumPy's own sum may pair rows, and then its rounding would depend on the chunks.
            for row in states:
                self.total += row
        if self.num_computed == len(self.token_ids):
            vector = states[-1].astype(np.float64) if self.total is None else self.total / self.num_computed
            if self.request.params.normalize:
                length = float(np.sqrt(np.sum(np.square(vector))))
                vector = vector / length if length > 0.0 else vector
            self.request.vectors[self.index] = vector.astype(np.float32)


class EmbeddingQueue:
    """First come, first served. Texts that fit into the blocks together are computed together, as one group."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._waiting: deque[_Text] = deque()
        self._group: list[_Text] = []

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to compute."""
        return bool(self._waiting or self._group)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens that are still to be computed, those of aborted requests left out."""
        texts = (*self._group, *self._waiting)
        return sum(len(text.token_ids) - text.num_computed for text in texts if not text.request.is_aborted)

    def add(self, request: EmbeddingRequest) -> None:
        """Queue the request's texts. Each must fit into the runner's `num_embedding_blocks`."""
        self._waiting.extend(_Text(request, index) for index in range(len(request.texts)))

    def step(self, max_tokens: int) -> list[EmbeddingRequest]:
        """Compute up to `max_tokens` tokens and return the requests that this finished.

        Raises what the runner raises; the queue can then only be emptied by `clear`.
        """
        self._group = [text for text in self._group if not text.request.is_aborted]
        if not self._group:
            self._form_group()
        planned: list[tuple[_Text, TextChunk]] = []
        num_free = max_tokens
        for text in self._group:
            token_ids = text.token_ids[text.num_computed : text.num_computed + num_free]
            if not token_ids:
                break
            planned.append((text, TextChunk(token_ids, text.num_computed, text.block_table)))
            num_free -= len(token_ids)
        finished = self._compute(planned) if planned else []
        if not self.has_work:
            self._runner.end_hidden_states()
        return finished

    def clear(self) -> list[EmbeddingRequest]:
        """Drop everything; returns the requests that had not finished."""
        texts = (*self._group, *self._waiting)
        self._group, self._waiting = [], deque()
        return list(dict.fromkeys(text.request for text in texts))

    def _form_group(self) -> None:
        num_used, block_size = 0, self._runner.block_size
        while self._waiting:
            text = self._waiting[0]
            num_blocks = 0 if text.request.is_aborted else -(-len(text.token_ids) // block_size)
            if num_used + num_blocks > self._runner.num_embedding_blocks:
                break
            self._waiting.popleft()
            if num_blocks:
                text.block_table = range(num_used, num_used + num_blocks)
                self._group.append(text)
                num_used += num_blocks
        # A text alone that needs more blocks than there are is refused before it comes here.
        assert self._group or not self._waiting

    def _compute(self, planned: Sequence[tuple[_Text, TextChunk]]) -> list[EmbeddingRequest]:
        start_s = time.perf_counter()
        states = self._runner.compute_hidden_states([chunk for _, chunk in planned])
        elapsed_s = time.perf_counter() - start_s
        for request in {text.request for text, _ in planned}:
            request.start_s = start_s if request.start_s is None else request.start_s
            request.compute_s += elapsed_s
        finished = []
        first = 0
        for text, chunk in planned:
            text.push(states[first : first + len(chunk.token_ids)])
            first += len(chunk.token_ids)
            if text.num_computed == len(text.token_ids) and text.request.is_finished:
                finished.append(text.request)
        self._group = [text for text in self._group if text.num_computed < len(text.token_ids)]
        return finished
