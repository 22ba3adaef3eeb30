"""Beam search against the search of all sequences, on a model whose probabilities are a table."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.sampling_params import SamplingParams
from pelton.sampling.beam_search import BeamSearchParams, beam_search
from pelton.sampling.reference import find_logprobs

VOCAB_SIZE = 5
EOS = 4


def find_logits(token_ids: Sequence[int]) -> np.ndarray:
    """Random logits that depend on all tokens before; the end token is not the least likely."""
    rng = np.random.default_rng(zlib.crc32(bytes(token_ids)))
    return (rng.normal(size=VOCAB_SIZE) * 1.5).astype(np.float32)


class TableModel:
    """What beam search needs of an `LLM`."""

    context_length = 50
    tokenizer = SimpleNamespace(
        eos_token_ids=frozenset([EOS]),
        encode=lambda text: [int(c) for c in text],
        decode=lambda ids: "".join(map(str, ids)),
    )

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[SimpleNamespace]:
        assert (params.max_tokens, params.temperature) == (1, 0)
        self.batch_sizes.append(len(prompts))
        return [SimpleNamespace(logprobs=[self._find(prompt, params)]) for prompt in prompts]

    def _find(self, prompt: Sequence[int], params: SamplingParams) -> object:
        logits = find_logits(prompt)
        return find_logprobs(logits, int(logits.argmax()), params.logprobs or 0)


def search_all(prompt: Sequence[int], max_tokens: int, length_penalty: float) -> list[tuple[tuple[int, ...], float]]:
    """Every sequence that ends or has max_tokens, with its log-probability, best first."""
    found = []
    for length in range(1, max_tokens + 1):
        for ids in itertools.product(range(VOCAB_SIZE), repeat=length):
            if EOS in ids[:-1] or (length < max_tokens and ids[-1] != EOS):
                continue
            logprob = 0.0
            for i in range(length):
                logits = find_logits([*prompt, *ids[:i]]).astype(np.float64)
                logprob += float(logits[ids[i]] - np.log(np.exp(logits).sum()))
            found.append((ids, logprob))
    return sorted(found, key=lambda item: (-item[1] / len(item[0]) ** length_penalty, item[0]))


@pytest.mark.parametrize("prompt", ["0", "123", "3210"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
def test_a_beam_as_wide_as_the_search_finds_what_the_search_of_all_finds(prompt: str, length_penalty: float) -> None:
    expected = search_all([int(c) for c in prompt], 4, length_penalty)
    params = BeamSearchParams(beam_width=64, max_tokens=4, length_penalty=length_penalty)
    found = beam_search(TableModel(), prompt, params)  # type: ignore[arg-type]  # a fake
    assert len(found) == 64
    assert [sequence.token_ids for sequence in found] == [ids for ids, _ in expected[:64]]
    for sequence, (ids, logprob) in zip(found, expected, strict=False):
        assert sequence.cumulative_logprob == pytest.approx(logprob, abs=1e-9)
        assert sequence.score == pytest.approx(logprob / len(ids) ** length_penalty, abs=1e-9)
        assert sequence.finish_reason == ("stop" if ids[-1] == EOS else "length")
        assert sequence.text == "".join(str(i) for i in ids if i != EOS)


def test_a_beam_of_one_without_an_end_is_greedy() -> None:
    found = beam_search(TableModel(), [2], BeamSearchParams(beam_width=1, max_tokens=1))  # type: ignore[arg-type]  # a fake
    assert found[0].token_ids == (int(find_logits([2]).argmax()),)


@pytest.mark.parametrize("beam_width", [1, 2, 3])
def test_narrow_beams_are_ranked_and_no_better_than_the_best(beam_width: int) -> None:
    model = TableModel()
    found = beam_search(model, "12", BeamSearchParams(beam_width=beam_width, max_tokens=5))  # type: ignore[arg-type]  # a fake
    scores = [sequence.score for sequence in found]
    assert scores == sorted(scores, reverse=True)
    assert len({sequence.token_ids for sequence in found}) == len(found) == beam_width
    best_ids, best_logprob = search_all([1, 2], 5, 1.0)[0]
    assert scores[0] <= best_logprob / len(best_ids) + 1e-12
    assert max(model.batch_sizes) <= beam_width


def test_search_stops_when_nothing_can_improve() -> None:
    class EndingModel(TableModel):
        """The end token has probability 0.9 everywhere."""

        def _find(self, prompt: Sequence[int], params: SamplingParams) -> object:
            return find_logprobs(np.log([0.025] * 4 + [0.9]).astype(np.float32), EOS, params.logprobs or 0)

    model = EndingModel()
    found = beam_search(model, "1", BeamSearchParams(beam_width=2, max_tokens=40, length_penalty=0))  # type: ignore[arg-type]  # a fake
    # The second best ends after one other token; nothing longer can pass it.
    assert [sequence.token_ids for sequence in found] == [(EOS,), (0, EOS)]
    assert len(model.batch_sizes) == 2


def test_bad_input_is_refused() -> None:
    model = TableModel()
    with pytest.raises(ContextLengthError, match=r"prompt tokens \+ max_tokens is 51; allowed: at most 50"):
        beam_search(model, [1], BeamSearchParams(max_tokens=50))  # type: ignore[arg-type]  # a fake
    with pytest.raises(InvalidParameterError, match="prompt is"):
        beam_search(model, "", BeamSearchParams())  # type: ignore[arg-type]  # a fake
    for values in ({"beam_width": 0}, {"beam_width": 65}, {"max_tokens": 0}, {"length_penalty": math.nan}):
        with pytest.raises(InvalidParameterError):
            BeamSearchParams(**values)  # type: ignore[arg-type]  # any field
