"""`EmbeddingQueue`: pooling by hand-computed values, groups, chunks, aborts. The runner is a fake."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pelton.core.embedding import EmbeddingParams, TextChunk
from pelton.core.errors import InvalidParameterError
from pelton.engine.embedding import EmbeddingQueue, EmbeddingRequest

MEAN = EmbeddingParams(pooling="mean", normalize=False)
LAST = EmbeddingParams(pooling="last", normalize=False)


class FakeRunner:
    """The hidden state of token t at position p is [t, p]; checks that a text's chunks follow each other."""

    block_size = 4

    def __init__(self, num_embedding_blocks: int = 4) -> None:
        self.num_embedding_blocks = num_embedding_blocks
        self.calls: list[list[TextChunk]] = []
        self.num_ends = 0

    def compute_hidden_states(self, chunks: Sequence[TextChunk]) -> np.ndarray:
        self.calls.append(list(chunks))
        blocks = [block for chunk in chunks for block in chunk.block_table]
        assert len(set(blocks)) == len(blocks)
        assert all(0 <= block < self.num_embedding_blocks for block in blocks)
        assert all(c.start + len(c.token_ids) <= len(c.block_table) * self.block_size for c in chunks)
        rows = [(float(t), float(c.start + i)) for c in chunks for i, t in enumerate(c.token_ids)]
        return np.array(rows, np.float32)

    def end_hidden_states(self) -> None:
        self.num_ends += 1


def run(queue: EmbeddingQueue, max_tokens: int = 100) -> list[EmbeddingRequest]:
    finished = []
    while queue.has_work:
        finished += queue.step(max_tokens)
    return finished


def test_mean_and_last_pooling_give_the_values_computed_by_hand():
    queue = EmbeddingQueue(FakeRunner())
    mean, last = EmbeddingRequest([(3, 5, 10)], MEAN), EmbeddingRequest([(3, 5, 10)], LAST)
    queue.add(mean)
    queue.add(last)
    assert run(queue) == [mean, last]
    assert mean.vectors[0].tolist() == [6.0, 1.0]
    assert last.vectors[0].tolist() == [10.0, 2.0]
    assert mean.vectors[0].dtype == np.float32


def test_a_normalized_vector_has_length_one_and_a_zero_vector_stays_zero():
    queue = EmbeddingQueue(FakeRunner())
    request = EmbeddingRequest([(0, 0, 0, 4, 3), (0,)], EmbeddingParams(pooling="last"))
    queue.add(request)
    run(queue)
    assert request.vectors[0].tolist() == pytest.approx([0.6, 0.8])
    assert request.vectors[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_chunks_change_no_vector(max_tokens: int):
    texts = [(1, 2, 3, 4, 5, 6, 7), (9,), (8, 8)]
    whole, parts = EmbeddingRequest(texts, MEAN), EmbeddingRequest(texts, MEAN)
    for request, limit in ((whole, 100), (parts, max_tokens)):
        queue = EmbeddingQueue(FakeRunner())
        queue.add(request)
        run(queue, limit)
    assert all(np.array_equal(whole.vectors[i], parts.vectors[i]) for i in range(3))


def test_short_texts_of_several_requests_are_computed_together():
    runner = FakeRunner(num_embedding_blocks=4)
    queue = EmbeddingQueue(runner)
    for token in range(6):
        queue.add(EmbeddingRequest([(token,)], MEAN))
    run(queue)
    assert [len(call) for call in runner.calls] == [4, 2]
    assert runner.num_ends == 1


def test_a_step_computes_at_most_what_it_may():
    runner = FakeRunner()
    queue = EmbeddingQueue(runner)
    queue.add(EmbeddingRequest([tuple(range(16))], MEAN))
    assert queue.num_waiting_tokens == 16
    queue.step(5)
    assert queue.num_waiting_tokens == 11
    run(queue, 5)
    assert [sum(len(c.token_ids) for c in call) for call in runner.calls] == [5, 5, 5, 1]


def test_an_aborted_request_is_dropped_in_the_middle_and_in_the_queue():
    runner = FakeRunner()
    queue = EmbeddingQueue(runner)
    first, second, third = (EmbeddingRequest([tuple(range(12))], MEAN) for _ in range(3))
    for request in (first, second, third):
        queue.add(request)
    queue.step(4)
    first.is_aborted = second.is_aborted = True
    assert queue.num_waiting_tokens == 12
    assert run(queue) == [third]
    assert not first.vectors
    assert not second.vectors


def test_clear_returns_what_had_not_finished():
    queue = EmbeddingQueue(FakeRunner())
    first, second = EmbeddingRequest([(1,), (2,)], MEAN), EmbeddingRequest([(3,)], MEAN)
    queue.add(first)
    queue.add(second)
    assert queue.clear() == [first, second]
    assert not queue.has_work


def test_an_unknown_pooling_is_refused():
    with pytest.raises(InvalidParameterError, match="pooling is 'max'; allowed: one of mean, last"):
        EmbeddingParams(pooling="max")
