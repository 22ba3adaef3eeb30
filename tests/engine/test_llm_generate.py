"""`LLM.generate`: many prompts, ends of generation, refusals, and what a result says."""

from __future__ import annotations

import math

import pytest

from pelton.core.errors import ContextLengthError, EngineDeadError, InvalidParameterError
from pelton.core.sampling_params import SamplingParams


def test_text_of_one_prompt_is_generated_until_the_end_token_which_is_counted_but_not_shown(kit) -> None:
    llm = kit.make_llm([*b"Hi!", kit.EOS])
    (result,) = llm.generate("abc")
    assert result.text == "Hi!"
    assert result.token_ids == (*b"Hi!", kit.EOS)
    assert result.prompt_token_ids == (kit.BOS, *b"abc")
    assert result.finish_reason == "stop"
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.cached_tokens) == (4, 4, 0)
    kit.assert_idle(llm)


def test_every_end_id_of_the_model_stops_and_ignore_eos_goes_on(kit) -> None:
    llm = kit.make_llm([ord("a"), kit.END_OF_TURN, kit.EOS, ord("b")])
    assert llm.generate("x")[0].token_ids == (ord("a"), kit.END_OF_TURN)
    result = llm.generate("x", SamplingParams(ignore_eos=True, max_tokens=4))[0]
    assert result.token_ids == (ord("a"), kit.END_OF_TURN, kit.EOS, ord("b"))
    assert (result.text, result.finish_reason) == ("ab", "length")


def test_stop_token_id_with_text_ends_generation_and_its_text_is_left_out(kit) -> None:
    llm = kit.make_llm(list(b"one\ntwo"))
    result = llm.generate("x", SamplingParams(stop_token_ids=(10,)))[0]
    assert (result.text, result.token_ids, result.finish_reason) == ("one", tuple(b"one\n"), "stop")


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_max_tokens_is_met_exactly(kit, max_tokens: int) -> None:
    result = kit.make_llm(list(b"abcdef")).generate("x", SamplingParams(max_tokens=max_tokens))[0]
    assert result.token_ids == tuple(b"abcdef"[:max_tokens])
    assert result.usage.completion_tokens == max_tokens
    assert result.finish_reason == "length"


@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_generation_ends_with_the_context_and_says_length(kit, max_tokens: int | None) -> None:
    """BOS + 3 prompt tokens leave 4 of a context of 8."""
    llm = kit.make_llm([65] * 100, model_context=8)
    result = llm.generate("abc", SamplingParams(max_tokens=max_tokens))[0]
    assert (result.text, result.finish_reason) == ("AAAA", "length")


def test_prompt_that_fills_the_context_is_refused_with_both_numbers_and_one_shorter_is_not(kit) -> None:
    llm = kit.make_llm([65] * 100, model_context=8)
    with pytest.raises(ContextLengthError, match=r"number of tokens of prompt is 8; .*at most 7 .*context is 8"):
        llm.generate("abcdefg")
    assert llm.generate("abcdef")[0].text == "A"


def test_context_is_limited_by_the_kv_cache_when_that_is_smaller(kit) -> None:
    llm = kit.make_llm([65] * 100, model_context=128, num_blocks=2)
    assert llm.context_length == 8
    assert llm.generate("abc")[0].text == "AAAA"
    with pytest.raises(InvalidParameterError, match="max_context is 16; allowed: 1 to 8, the token slots"):
        kit.make_llm([65], model_context=128, num_blocks=2, max_context=16)
    with pytest.raises(InvalidParameterError, match="max_context is 999; allowed: 1 to 128"):
        kit.make_llm([65], model_context=128, max_context=999)


def test_empty_prompt_needs_a_bos_token(kit) -> None:
    """Refused without BOS, one token with it; the next request works."""
    without = kit.make_llm([*b"ok", kit.EOS], tokenizer=kit.make_tokenizer(add_bos=False))
    for prompts in ("", [""], [], [[]], ["a", ""]):
        with pytest.raises(InvalidParameterError):
            without.generate(prompts)
    assert without.generate("a")[0].text == "ok"
    with_bos = kit.make_llm([*b"ok", kit.EOS])
    assert [r.prompt_token_ids for r in with_bos.generate(["", ""])] == [(kit.BOS,)] * 2
    for prompts in ([], [[]]):
        with pytest.raises(InvalidParameterError):
            with_bos.generate(prompts)
    assert with_bos.generate("")[0].text == "ok"


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1, 2, 999]], r"prompts\[0\]\[2\] is 999; allowed: token ids 0 to 258"),
        ([[1], [-1]], r"prompts\[1\]\[0\] is -1"),
        ([[1, True]], r"prompts\[0\]\[1\] is True"),
        ([[1, 2.5]], r"prompts\[0\]\[1\] is 2.5"),
        ([1, 2, 3], r"prompts\[0\] is 1; .*\[\[1, 2, 3\]\]"),
        (b"bytes", "prompts is b'bytes'"),
        ([b"bytes"], r"prompts\[0\] is b'bytes'"),
        ([None], r"prompts\[0\] is None"),
        (None, "prompts is None"),
        (3, "prompts is 3"),
        ({"a": 1}, "prompts is "),
        (["fine", "half \ud800"], r"prompts\[1\] is 'a lone surrogate'; allowed: text that can be written as UTF-8"),
    ],
)
def test_anything_that_is_no_prompt_is_named_and_nothing_is_computed(kit, prompts: object, message: str) -> None:
    llm = kit.make_llm([65] * 100)
    with pytest.raises(InvalidParameterError, match=message):
        llm.generate(prompts)
    assert llm.runner.num_steps == 0
    assert llm.generate("x", SamplingParams(max_tokens=1))[0].text == "A"


def test_token_ids_are_taken_as_they_are(kit) -> None:
    result = kit.make_llm([65, kit.EOS]).generate([[1, 2, 3]])[0]
    assert result.prompt_token_ids == (1, 2, 3)


@pytest.mark.parametrize("field", [{"stop_token_ids": (259,)}, {"logit_bias": {259: 1.0}}])
def test_parameters_with_ids_outside_the_vocabulary_are_refused(kit, field: dict) -> None:
    llm = kit.make_llm([65, kit.EOS])
    with pytest.raises(InvalidParameterError, match=f"{next(iter(field))} is 259; allowed: token ids 0 to 258"):
        llm.generate("x", SamplingParams(**field))


def test_params_may_differ_by_prompt_but_must_be_as_many(kit) -> None:
    llm = kit.make_llm([65] * 100)
    results = llm.generate(["a", "b"], [SamplingParams(max_tokens=3), SamplingParams(max_tokens=1)])
    assert [r.text for r in results] == ["AAA", "A"]
    with pytest.raises(InvalidParameterError, match=r"number of params is 1; .*each of the 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(InvalidParameterError, match="params is 'hot'"):
        llm.generate(["a"], ["hot"])
    with pytest.raises(InvalidParameterError, match="params is 5"):
        llm.generate(["a"], 5)


def test_many_prompts_come_back_in_order_and_never_exceed_max_num_seqs(kit) -> None:
    def choose(request) -> int:
        # Later prompts are shorter, so that they finish in another order than they came.
        num_wanted = 1 + (request.prompt_token_ids[-1] * 7) % 5
        return kit.EOS if len(request.output_token_ids) == num_wanted else request.prompt_token_ids[-1]

    llm = kit.make_llm(choose, max_num_seqs=3, num_blocks=32)
    finished: list[tuple[int, int]] = []
    prompts = [chr(65 + i) for i in range(20)]
    results = llm.generate(prompts, on_finished=lambda done, total: finished.append((done, total)))
    assert [r.text for r in results] == [chr(65 + i) * (1 + ((65 + i) * 7) % 5) for i in range(20)]
    assert llm.runner.max_num_scheduled == 3
    assert finished == [(i, 20) for i in range(1, 21)]
    kit.assert_idle(llm)


def test_tight_cache_preempts_and_the_results_stay_the_same(kit) -> None:
    def choose(request) -> int:
        return (sum(request.prompt_token_ids) + 31 * sum(request.output_token_ids)) % 256

    params = SamplingParams(max_tokens=12, seed=1)
    prompts = [[i, i + 1, i + 2] for i in range(8)]
    wide, tight = kit.make_llm(choose), kit.make_llm(choose, num_blocks=7)
    assert [r.token_ids for r in wide.generate(prompts, params)] == [
        r.token_ids for r in tight.generate(prompts, params)
    ]
    assert tight._core.scheduler.num_preemptions > 0


def test_kv_cache_bytes_counts_the_blocks_in_use(kit) -> None:
    """BOS + 3 prompt tokens + 6 new ones: the last one is not stored, so 9 tokens in blocks of 4."""
    result = kit.make_llm([65] * 10).generate("abc", SamplingParams(max_tokens=6))[0]
    assert result.kv_cache_bytes == 3 * 1000


def test_seed_is_reported_and_chosen_when_none_is_given(kit) -> None:
    seen: list[int] = []

    def choose(request) -> int:
        seen.append(request.seed)
        return kit.EOS

    llm = kit.make_llm(choose)
    results = llm.generate(["a", "b", "c"], [SamplingParams(seed=7), SamplingParams(), SamplingParams()])
    assert results[0].seed == 7
    assert [r.seed for r in results] == seen
    assert len({r.seed for r in results}) == 3
    assert all(0 <= r.seed < 2**53 for r in results)


def test_logprobs_have_one_entry_per_token_and_are_none_unless_asked_for(kit) -> None:
    llm = kit.make_llm([65, 66, kit.EOS])
    assert llm.generate("x")[0].logprobs is None
    logprobs = llm.generate("x", SamplingParams(logprobs=2))[0].logprobs
    assert [(p.logprob, len(p.top)) for p in logprobs] == [(-0.5, 2)] * 3


def test_timings_agree_with_each_other(kit) -> None:
    timings = kit.make_llm([65] * 10).generate("abc", SamplingParams(max_tokens=6))[0].timings
    assert timings.load_ms == 12.5
    assert 0 < timings.prefill_ms <= timings.ttft_ms
    assert 0 <= timings.tokenize_ms <= timings.ttft_ms
    assert math.isclose(timings.prefill_tokens_per_s, 4 / (timings.prefill_ms / 1e3))
    assert math.isclose(timings.decode_tokens_per_s, 1e3 / timings.itl_ms.mean, rel_tol=1e-3)
    assert timings.itl_ms.p50 <= timings.itl_ms.p99


def test_score_checks_its_input_and_forwards_to_the_runner(kit) -> None:
    llm = kit.make_llm([65], model_context=8)
    assert llm.score([1, 2, 3, 4], first=2).tolist() == [2, 3]
    with pytest.raises(InvalidParameterError, match=r"first is 4; allowed: 1 to 3"):
        llm.score([1, 2, 3, 4], first=4)
    with pytest.raises(InvalidParameterError, match="first is 0"):
        llm.score([1, 2, 3, 4], first=0)
    with pytest.raises(InvalidParameterError, match=r"token_ids\[1\] is 5000"):
        llm.score([1, 5000])
    with pytest.raises(InvalidParameterError, match="number of token_ids is 1; allowed: at least 2"):
        llm.score([1])
    with pytest.raises(ContextLengthError, match="is 9; allowed: at most 8"):
        llm.score([1] * 9)


def test_closed_engine_says_so(kit) -> None:
    with kit.make_llm([65, kit.EOS]) as llm:
        assert llm.generate("x")[0].text == "A"
    assert llm.runner.is_closed
    llm.close()
    for call in (lambda: llm.generate("x"), lambda: llm.stream("x"), lambda: llm.score([1, 2])):
        with pytest.raises(EngineDeadError, match="closed"):
            call()
