"""What a request may sample at all: allowed_token_ids, min_tokens, bad_words and constraint masks; errors by row."""

from __future__ import annotations

import numpy as np
import pytest

from pelton.core.errors import InvalidParameterError, PeltonError, SamplingError
from pelton.core.request import Request
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken
from pelton.sampling.masks import MaskMaker, make_mask
from pelton.sampling.resolve import ParamsResolver
from pelton.sampling.row import SamplingRow
from pelton.sampling.sampler import Sampler


def make_request(params: SamplingParams, output: tuple[int, ...] = (), eos: tuple[int, ...] = ()) -> Request:
    request = Request("r", (0,), params, 100, 1, frozenset(eos), 0.0)
    request.output_token_ids.extend(output)
    return request


def find_allowed(
    params: SamplingParams, vocab_size: int = 40, constraint: set[int] | None = None, **request: object
) -> set[int]:
    maker = MaskMaker(vocab_size)
    constraint_mask = None if constraint is None else make_mask(constraint, maker.num_words)
    mask = maker.make(make_request(params, **request), constraint_mask)  # type: ignore[arg-type]  # passed on
    if mask is None:
        return set(range(vocab_size))
    return {i for i in range(vocab_size) if mask[i // 32] >> (i % 32) & 1}


ALL = set(range(40))


def test_request_without_restrictions_has_no_mask() -> None:
    assert MaskMaker(40).make(make_request(SamplingParams(), eos=(3,))) is None


def test_allowed_token_ids_are_the_only_ones() -> None:
    assert find_allowed(SamplingParams(allowed_token_ids=(0, 31, 32, 39))) == {0, 31, 32, 39}


def test_end_tokens_are_banned_until_min_tokens_came() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=(33,))
    for output in ((), (5,)):
        assert find_allowed(params, output=output, eos=(7, 8)) == ALL - {7, 8, 33}
    assert find_allowed(params, output=(5, 5), eos=(7, 8)) == ALL


def test_last_token_of_a_bad_sequence_is_banned_where_it_would_complete_it() -> None:
    params = SamplingParams(bad_token_sequences=((4,), (5, 6), (5, 6, 35)))
    assert find_allowed(params) == ALL - {4}
    assert find_allowed(params, output=(1, 5)) == ALL - {4, 6}
    assert find_allowed(params, output=(5, 6)) == ALL - {4, 35}
    assert find_allowed(params, output=(5, 6, 1)) == ALL - {4}


def test_all_restrictions_hold_together() -> None:
    params = SamplingParams(allowed_token_ids=(1, 2, 3, 4), min_tokens=1, bad_token_sequences=((2,),))
    assert find_allowed(params, constraint={2, 3, 4, 5}, eos=(4,)) == {3}


def test_constraint_mask_of_a_longer_vocabulary_is_taken_and_left_as_it_was() -> None:
    mask = np.full(5, 0xFFFFFFFF, np.uint32)
    made = MaskMaker(40).make(make_request(SamplingParams(min_tokens=1), eos=(3,)), mask)
    assert made is not None
    assert made.shape == (2,)
    assert (mask == 0xFFFFFFFF).all()


@pytest.mark.parametrize("vocab_size", [4, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_tokens_are_sampled(vocab_size: int, temperature: float) -> None:
    mask = make_mask((1, vocab_size - 1), -(-vocab_size // 32))
    params = SamplingParams(temperature=temperature, logprobs=2, logit_bias={0: 100})
    rows = [SamplingRow(params, 1, (), (), position, mask=mask) for position in range(50)]
    tokens = Sampler(vocab_size).sample(np.zeros((50, vocab_size), np.float32), rows)
    assert {token.token_id for token in tokens} == ({1} if temperature == 0 else {1, vocab_size - 1})
    # Log-probabilities stay those of the raw logits.
    assert tokens[0].logprobs is not None
    assert tokens[0].logprobs.logprob == pytest.approx(-np.log(vocab_size))


def test_mask_of_all_tokens_changes_nothing() -> None:
    logits = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32)
    mask = make_mask(range(50), 2)
    plain = [SamplingRow(SamplingParams(logprobs=3), 1, (), (), position) for position in range(20)]
    masked = [SamplingRow(SamplingParams(logprobs=3), 1, (), (), position, mask=mask) for position in range(20)]
    assert Sampler(50).sample(logits, masked) == Sampler(50).sample(logits, plain)


def test_errors_are_those_of_their_rows_and_the_others_have_tokens() -> None:
    logits = np.array([[0, 1], [np.nan, -np.inf], [0, 1], [2, -np.inf], [0, 1]], np.float32)
    params = SamplingParams(temperature=0)
    masks = [None, None, np.zeros(1, np.uint32), make_mask((1,), 1), None]
    rows = [SamplingRow(params, 1, (), (), 0, mask=mask) for mask in masks]
    rows[4] = SamplingRow(SamplingParams(repetition_penalty=2), 1, (9,), (), 0)
    results: list[SampledToken | PeltonError] = Sampler(2).sample_each(logits, rows)
    assert results[0] == SampledToken(1, None)
    assert str(results[1]) == "the logits are all NaN or minus infinity; at least one must be above"
    assert str(results[2]).startswith("no token is allowed: structure, allowed_token_ids, min_tokens and bad_words")
    assert str(results[3]).startswith("the logits of the allowed tokens are all NaN")
    assert isinstance(results[4], InvalidParameterError)
    with pytest.raises(SamplingError, match="row 1, 2, 3 ") as caught:
        Sampler(2).sample(logits[:4], rows[:4])
    assert caught.value.rows == (1, 2, 3)


@pytest.mark.parametrize("mask", [np.zeros(2, np.uint32), np.zeros(1, np.int32), np.zeros((1, 1), np.uint32)])
def test_mask_of_another_type_or_shape_is_refused(mask: np.ndarray) -> None:
    with pytest.raises(InvalidParameterError, match=r"mask is .*allowed: C-contiguous uint32"):
        Sampler(4).sample(np.zeros((1, 4), np.float32), [SamplingRow(SamplingParams(), 1, (), (), 0, mask=mask)])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens is 3; allowed: 0 to 2, which is max_tokens"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"allowed_token_ids": ()}, r"allowed_token_ids is \(\); allowed: at least one token id"),
        ({"allowed_token_ids": (3, -1)}, "allowed_token_ids is -1"),
        ({"bad_words": ("",)}, "bad_words is ''; allowed: non-empty strings"),
        ({"bad_words": ("a",) * 65}, "bad_words is '65 strings'"),
        ({"bad_token_sequences": ((),)}, "bad_token_sequences is"),
        ({"n": 0}, "n is 0"),
        ({"n": 3, "best_of": 2}, "best_of is 2; allowed: at least 3, which is n"),
        ({"prompt_logprobs": 129}, "prompt_logprobs is 129"),
    ],
)
def test_contradictions_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        SamplingParams(**values)  # type: ignore[arg-type]  # any field


def test_n_and_best_of_go_with_greedy() -> None:
    assert SamplingParams(n=3, temperature=0).num_choices == 3
    assert SamplingParams(n=2, best_of=4).num_choices == 4


@pytest.mark.parametrize(
    "values", [{"allowed_token_ids": (8,)}, {"bad_token_sequences": ((1, 8),)}, {"dry_breaker_token_ids": (8,)}]
)
def test_token_ids_outside_the_vocabulary_are_refused(values: dict[str, object]) -> None:
    params = SamplingParams(**values)  # type: ignore[arg-type]  # any field
    params.check_vocabulary(9)
    with pytest.raises(InvalidParameterError, match="is 8; allowed: token ids 0 to 7"):
        params.check_vocabulary(8)


class WordTokenizer:
    """Ids: 0 "a", 1 " a", 2 "b", 3 "\\n", 4 ": b". With `adds_space` a text begins with the token 5, a space."""

    PIECES = ("a", " a", "b", "\n", ": b", " ")
    vocab_size = 6

    def __init__(self, adds_space: bool = False) -> None:
        self._adds_space = adds_space

    def token_bytes(self, token_id: int) -> bytes:
        return self.PIECES[token_id].encode()

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        assert not add_special
        assert not parse_special
        if self._adds_space:
            text = " " + text
        ids = []
        while text:
            fitting = [i for i, piece in enumerate(self.PIECES) if text.startswith(piece)]
            if not fitting:
                raise InvalidParameterError("text", text, "a, b and a few more")
            ids.append(max(fitting, key=lambda i: len(self.PIECES[i])))
            text = text[len(self.PIECES[ids[-1]]) :]
        return ids


def test_bad_words_are_banned_with_and_without_a_space_before() -> None:
    for word in ("ab", " ab"):
        resolved = ParamsResolver(WordTokenizer()).resolve(SamplingParams(bad_words=(word,)))  # type: ignore[arg-type]  # a fake
        assert set(resolved.bad_token_sequences) == {(0, 2), (1, 2)}
        assert resolved.bad_words == ()


def test_bad_words_without_a_space_are_found_where_the_tokenizer_adds_one() -> None:
    resolver = ParamsResolver(WordTokenizer(adds_space=True))  # type: ignore[arg-type]  # a fake
    resolved = resolver.resolve(SamplingParams(bad_words="ab"))  # type: ignore[arg-type]  # one string is allowed
    assert {(0, 2), (1, 2)} <= set(resolved.bad_token_sequences)


def test_breakers_are_all_tokens_that_hold_them_else_the_last_of_their_tokens() -> None:
    resolver = ParamsResolver(WordTokenizer())  # type: ignore[arg-type]  # a fake
    params = SamplingParams(dry_multiplier=1, dry_sequence_breakers=(" ", "ba"))
    resolved = resolver.resolve(params)
    assert resolved.dry_breaker_token_ids == (0, 1, 4, 5)
    assert resolver.resolve(resolved) is resolved


def test_params_without_strings_are_left_as_they_are_and_strings_are_not_forgotten() -> None:
    resolver = ParamsResolver(WordTokenizer())  # type: ignore[arg-type]  # a fake
    params = SamplingParams()
    assert resolver.resolve(params) is params
    with pytest.raises(InvalidParameterError, match="bad_words is"):
        resolver.resolve(SamplingParams(bad_words=("q",)))
    row = SamplingRow(SamplingParams(bad_words=("a",), temperature=0), 1, (), (), 0)
    with pytest.raises(InvalidParameterError, match="ParamsResolver"):
        Sampler(4).sample(np.zeros((1, 4), np.float32), [row])
