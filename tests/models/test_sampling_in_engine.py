"""Sampling parameters through the whole engine: a random small model, real logits, batches, preemption, failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from random_gguf import RandomLlama, random_words

from pelton import LLM, SamplingParams
from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.outputs import GenerationResult
from pelton.core.request import Request, RequestStatus
from pelton.sampling.beam_search import BeamSearchParams, beam_search
from pelton.sampling.masks import make_mask

WriteModel = Callable[[RandomLlama], Path]

MODEL = RandomLlama(name="sampling_f32")
EOS = 1


@pytest.fixture
def llm(write_model: WriteModel):
    with LLM(write_model(MODEL), threads=1, kv_cache_tokens=2048) as llm:
        yield llm


def make_prompt(key: str, num_tokens: int) -> list[int]:
    return [2 + int(word) % (MODEL.vocab_size - 2) for word in random_words(key, num_tokens)]


def generate(llm: LLM, num_tokens: int = 12, **values: object) -> GenerationResult:
    params = SamplingParams(**{"max_tokens": num_tokens, "seed": 3, **values})  # type: ignore[arg-type]  # any field
    return llm.generate([make_prompt("one", 20)], params)[0]


# An end token is best, another end id second, token 5 third.
@pytest.mark.parametrize("stop_token_ids", [(), (7,)])
def test_min_tokens_bans_every_end_token_until_reached_and_counts_none_of_them(
    llm: LLM, stop_token_ids: tuple[int, ...]
) -> None:
    result = generate(
        llm,
        5,
        temperature=0,
        min_tokens=2,
        logit_bias={EOS: 100, 5: 50} | dict.fromkeys(stop_token_ids, 75),
        stop_token_ids=stop_token_ids,
    )
    assert result.token_ids == (5, 5, EOS)
    assert result.finish_reason == "stop"
    assert result.text == llm.tokenizer.decode([5, 5])


def test_min_tokens_beyond_the_context_are_refused(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match="min_tokens is 2000; allowed: at most"):
        generate(llm, None, min_tokens=2000)  # type: ignore[arg-type]  # None is a value of max_tokens


def test_allowed_token_ids_are_all_that_comes(llm: LLM) -> None:
    result = generate(llm, 40, allowed_token_ids=(10, 11, 40, 95))
    assert set(result.token_ids) == {10, 11, 40, 95}
    with pytest.raises(InvalidParameterError, match="allowed_token_ids is 96; allowed: token ids 0 to 95"):
        generate(llm, allowed_token_ids=(96,))


def test_bad_words_do_not_come(llm: LLM) -> None:
    free = generate(llm, 60, ignore_eos=True)
    words = [llm.tokenizer.decode(free.token_ids[i : i + 2]) for i in (3, 11, 30)]
    result = generate(llm, 60, ignore_eos=True, bad_words=tuple(words))
    sequences = {tuple(llm.tokenizer.encode(word, add_special=False)) for word in words}
    assert len(result.token_ids) == 60
    for sequence in sequences:
        windows = {result.token_ids[i : i + len(sequence)] for i in range(60)}
        assert sequence not in windows
    assert result.token_ids != free.token_ids


def make_params() -> list[SamplingParams]:
    common = {"max_tokens": 30, "ignore_eos": True, "logprobs": 2}
    return [
        SamplingParams(mirostat=2, mirostat_tau=3, seed=1, **common),
        SamplingParams(mirostat=2, mirostat_tau=1.5, mirostat_eta=0.6, seed=2, **common),
        SamplingParams(dry_multiplier=2, dry_allowed_length=1, xtc_probability=0.5, seed=3, **common),
        SamplingParams(typical_p=0.7, bad_words=("a", "e"), min_tokens=3, seed=4, **common),
    ]


def get_answers(results: Sequence[GenerationResult]) -> list[object]:
    return [(result.token_ids, result.logprobs) for result in results]


def test_new_parameters_give_the_same_bits_alone_in_a_batch_and_after_preemption(write_model: WriteModel) -> None:
    path = write_model(MODEL)
    prompts = [make_prompt(f"p{i}", 6 + 9 * i) for i in range(4)]
    with LLM(path, threads=1, kv_cache_tokens=2048) as llm:
        alone = [llm.generate([p], q)[0] for p, q in zip(prompts, make_params(), strict=True)]
        together = llm.generate(prompts, make_params())
    assert get_answers(together) == get_answers(alone)
    with LLM(path, threads=1, kv_cache_tokens=96, use_prefix_cache=False) as llm:
        tight = llm.generate(prompts, make_params())
        assert llm._core.scheduler.num_preemptions > 0
    assert get_answers(tight) == get_answers(alone)


class OddConstraint:
    """Allows `allowed`; fails in `fill_mask` from the n-th token on if asked to, in `accept` at another."""

    is_complete = False

    def __init__(self, allowed: Sequence[int], *, fill_fails_at: int = -1, accept_fails_at: int = -1) -> None:
        self.accepted: list[int] = []
        self.threads: set[str] = set()
        self._allowed = allowed
        self._fill_fails_at = fill_fails_at
        self._accept_fails_at = accept_fails_at

    def fill_mask(self, mask: np.ndarray) -> None:
        self.threads.add(threading.current_thread().name)
        if len(self.accepted) == self._fill_fails_at:
            raise RuntimeError("no mask today")
        mask[:] = make_mask(self._allowed, len(mask))

    def accept(self, token_id: int) -> None:
        if len(self.accepted) == self._accept_fails_at:
            raise RuntimeError("not this token")
        self.accepted.append(token_id)


def make_request(name: str, constraint: OddConstraint | None = None, **values: object) -> Request:
    params = SamplingParams(max_tokens=8, **values)  # type: ignore[arg-type]  # any field
    prompt = tuple(make_prompt(name, 20))
    return Request(name, prompt, params, 8, 5, frozenset(), 0.0, constraint=constraint)


def run_to_end(llm: LLM, requests: Sequence[Request]) -> dict[str, str]:
    failed: dict[str, str] = {}
    for request in requests:
        llm._core.add_request(request)
    while llm._core.num_unfinished_requests:
        failed |= {request.request_id: reason for request, reason in llm._core.step().failed}
        llm._core.scheduler.check_invariants()
    return failed


def test_constraint_masks_are_followed_and_told_every_token(llm: LLM) -> None:
    constraint = OddConstraint([3, 50, 95])
    request = make_request("constrained", constraint)
    assert run_to_end(llm, [request]) == {}
    assert request.output_token_ids == constraint.accepted
    assert len(constraint.accepted) == 8
    assert set(constraint.accepted) <= {3, 50, 95}
    assert all(name.startswith("pelton-masks") for name in constraint.threads)


def test_failure_of_one_request_ends_that_request_only(llm: LLM) -> None:
    (alone,) = [make_request("good")]
    run_to_end(llm, [alone])
    good = make_request("good")
    bad = [
        make_request("nothing", OddConstraint([]), temperature=0),
        make_request("fill", OddConstraint([4, 5], fill_fails_at=2)),
        make_request("accept", OddConstraint([4, 5], accept_fails_at=1)),
        make_request("outside", OddConstraint([4]), allowed_token_ids=(5,)),
    ]
    failed = run_to_end(llm, [bad[0], bad[1], good, bad[2], bad[3]])
    assert good.output_token_ids == alone.output_token_ids
    assert good.status is RequestStatus.LENGTH_CAPPED
    assert [request.status for request in bad] == [RequestStatus.FAILED] * 4
    assert [len(request.output_token_ids) for request in bad] == [0, 2, 1, 0]
    assert failed["nothing"].startswith("no token is allowed")
    assert failed["outside"].startswith("no token is allowed")
    assert failed["fill"] == "the structure asked for could not be followed: RuntimeError: no mask today"
    assert failed["accept"] == "the structure asked for could not be followed: RuntimeError: not this token"
    pool = llm._core.scheduler.block_pool
    assert pool.num_free_blocks == pool.num_blocks


def test_failed_request_is_reported_with_finish_reason_error(llm: LLM) -> None:
    # The only allowed token ends the text, which min_tokens does not allow.
    bad = SamplingParams(max_tokens=4, allowed_token_ids=(EOS,), min_tokens=2)
    good = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    results = llm.generate([make_prompt("one", 20)] * 2, [bad, good])
    assert [result.finish_reason for result in results] == ["error", "length"]
    assert results[1].token_ids == generate(llm, 4, temperature=0, ignore_eos=True).token_ids


@pytest.mark.parametrize("num_prompt", [1, 2, 64, 65, 200])
@pytest.mark.parametrize("options", [{}, {"prefill_chunk": 7}, {"use_kv_cache": False}])
def test_prompt_logprobs_are_the_scores_of_the_prompt(
    num_prompt: int, options: dict[str, object], write_model: WriteModel
) -> None:
    prompt = make_prompt("scored", num_prompt)
    params = SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=2, ignore_eos=True)
    plain = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    with LLM(write_model(MODEL), threads=1, kv_cache_tokens=2048, **options) as llm:
        expected = llm.generate([prompt], plain)[0]
        results = llm.generate([prompt, make_prompt("other", 90), prompt], [params, plain, params])
        scores = [] if num_prompt == 1 else llm.score(prompt, 1).tolist()
    for result in (results[0], results[2]):
        assert result.token_ids == expected.token_ids
        assert result.prompt_logprobs is not None
        assert result.prompt_logprobs[0] is None
        found = [entry for entry in result.prompt_logprobs if entry is not None]
        assert [entry.logprob for entry in found] == scores
        assert all(len(entry.top) == 2 and entry.top[0][1] >= entry.logprob for entry in found)
        # No prefix hit, although the prompt was computed before.
        assert result.usage.cached_tokens == 0
    assert results[1].prompt_logprobs is None


def test_prompt_logprobs_survive_a_preemption(write_model: WriteModel) -> None:
    prompts = [make_prompt(f"tight {i}", 70) for i in range(3)]
    params = SamplingParams(max_tokens=30, temperature=0, prompt_logprobs=1, ignore_eos=True)
    with LLM(write_model(MODEL), threads=1, kv_cache_tokens=2048) as llm:
        expected = [llm.generate([prompt], params)[0].prompt_logprobs for prompt in prompts]
    with LLM(write_model(MODEL), threads=1, kv_cache_tokens=208) as llm:
        results = llm.generate(prompts, params)
        assert llm._core.scheduler.num_preemptions > 0
    assert [result.prompt_logprobs for result in results] == expected
    assert all(len(found or ()) == 70 for found in expected)


def test_prompt_logprobs_of_several_choices_are_given_once(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, n=3, prompt_logprobs=1, seed=8, ignore_eos=True)
    result = llm.generate([make_prompt("one", 30)], params)[0]
    assert len(result.prompt_logprobs or ()) == 30
    singles = [
        llm.generate([make_prompt("one", 30)], SamplingParams(max_tokens=3, seed=8 + i, ignore_eos=True))[0]
        for i in range(3)
    ]
    assert [choice.token_ids for choice in result.choices] == [single.token_ids for single in singles]


def test_beam_search_finds_the_best_pairs_of_tokens(llm: LLM) -> None:
    prompt = make_prompt("one", 20)
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=MODEL.vocab_size)
    first = llm.generate([prompt], params)[0].logprobs
    assert first is not None
    second = llm.generate([[*prompt, token_id] for token_id, _ in first[0].top], params)
    pairs = [
        ((a, b), logprob_a + logprob_b)
        for (a, logprob_a), result in zip(first[0].top, second, strict=True)
        for b, logprob_b in (result.logprobs or ())[0].top
        if a != EOS
    ]
    pairs += [((a,), logprob) for a, logprob in first[0].top if a == EOS]
    best = sorted(pairs, key=lambda pair: -pair[1])[:10]
    found = beam_search(llm, prompt, BeamSearchParams(beam_width=48, max_tokens=2, length_penalty=0))
    assert [(s.token_ids, s.cumulative_logprob) for s in found[:10]] == best
