"""`LLM.stream`: deltas, stop strings across tokens, and every way a stream can end."""

from __future__ import annotations

import gc
import threading

import pytest

from pelton.core.errors import ContextLengthError, EngineBusyError, EngineDeadError, InvalidParameterError
from pelton.core.sampling_params import SamplingParams

STOP_CASES = [
    pytest.param(["A", "BC", "DE", "F"], ("CDE",), "AB", 3, id="across_three_tokens"),
    pytest.param(["xa", "ab"], ("aab",), "x", 2, id="false_start_of_the_same_letter"),
    pytest.param(["A", "B", "C"], ("A",), "", 1, id="in_the_first_token"),
    pytest.param(["abc", "d"], ("zz", "b"), "a", 1, id="second_of_two_inside_a_token"),
]


@pytest.mark.parametrize(("pieces", "stop", "text", "num_tokens"), STOP_CASES)
def test_stop_string_ends_the_text_before_it_and_nothing_of_it_is_ever_shown(
    kit, pieces: list[str], stop: tuple[str, ...], text: str, num_tokens: int
) -> None:
    tokenizer = kit.make_tokenizer(pieces=pieces)
    script = tokenizer.get_piece_ids(pieces)
    llm = kit.make_llm([*script, kit.EOS], tokenizer=tokenizer)
    outputs = list(llm.stream("x", SamplingParams(stop=stop)))
    assert "".join(o.text_delta for o in outputs) == text
    assert [o.finish_reason for o in outputs] == [None] * (num_tokens - 1) + ["stop"]
    assert [i for o in outputs for i in o.new_token_ids] == script[:num_tokens]
    assert llm.runner.num_steps == num_tokens
    kit.assert_idle(llm)
    result = llm.generate("x", SamplingParams(stop=stop))[0]
    assert (result.text, result.finish_reason, list(result.token_ids)) == (text, "stop", script[:num_tokens])
    kit.assert_idle(llm)


def test_text_held_back_for_a_stop_string_is_shown_when_the_stop_does_not_come(kit) -> None:
    for script, reason in (([*b"one two", kit.EOS], "stop"), ([*b"one two"], "length")):
        llm = kit.make_llm(script)
        outputs = list(llm.stream("x", SamplingParams(stop=("two!",), max_tokens=len(script))))
        assert "".join(o.text_delta for o in outputs) == "one two"
        assert "".join(o.text_delta for o in outputs[:-1]) in ("one ", "one")
        assert outputs[-1].finish_reason == reason


def test_stop_string_complete_with_the_last_allowed_token_is_a_stop(kit) -> None:
    llm = kit.make_llm(list(b"abcd"))
    result = llm.generate("x", SamplingParams(stop=("cd",), max_tokens=4))[0]
    assert (result.text, result.finish_reason) == ("ab", "stop")


def test_characters_spread_over_tokens_are_never_shown_in_part(kit) -> None:
    """Through the engine, one token per byte."""
    text = "A🦀漢é"
    llm = kit.make_llm([*text.encode(), kit.EOS])
    outputs = list(llm.stream("x"))
    assert not any("\ufffd" in o.text_delta for o in outputs)
    assert "".join(o.text_delta for o in outputs) == text
    assert outputs[-1].usage.completion_tokens == 11


def test_character_cut_by_max_tokens_is_shown_as_the_whole_decode_shows_it(kit) -> None:
    llm = kit.make_llm(list("é🦀".encode()))
    outputs = list(llm.stream("x", SamplingParams(max_tokens=4)))
    assert "".join(o.text_delta for o in outputs) == llm.tokenizer.decode("é🦀".encode()[:4])


def test_only_the_last_output_carries_the_result_and_it_is_that_of_generate(kit) -> None:
    llm = kit.make_llm([*b"Hi!", kit.EOS])
    params = SamplingParams(seed=3, logprobs=1)
    outputs = list(llm.stream("abc", params))
    assert [o.result is None for o in outputs] == [True, True, True, False]
    assert [(o.usage, o.timings) for o in outputs[:-1]] == [(None, None)] * 3
    result, last = outputs[-1].result, outputs[-1]
    assert (last.usage, last.timings, last.finish_reason) == (result.usage, result.timings, result.finish_reason)
    assert result.logprobs == tuple(p for o in outputs for p in o.logprobs)
    same = llm.generate("abc", params)[0]
    for field in (
        "text",
        "token_ids",
        "prompt_token_ids",
        "finish_reason",
        "kv_cache_bytes",
        "seed",
        "logprobs",
    ):
        assert getattr(result, field) == getattr(same, field), field


def test_prompt_in_chunks_yields_nothing_until_its_first_token(kit) -> None:
    llm = kit.make_llm([*b"Hi", kit.EOS], prefill_chunk=2)
    assert [o.text_delta for o in llm.stream("abcdef")] == ["H", "i", ""]
    assert llm.runner.num_steps == 4 + 2


def test_closed_stream_aborts_its_request_and_frees_its_blocks(kit) -> None:
    llm = kit.make_llm([65] * 100)
    stream = llm.stream("abc")
    next(stream)
    stream.close()
    kit.assert_idle(llm)
    for output in llm.stream("abc"):
        if output.new_token_ids:
            break
    gc.collect()
    kit.assert_idle(llm)
    assert llm.generate("x", SamplingParams(max_tokens=2))[0].text == "AA"


def test_stream_that_is_never_read_costs_nothing_and_holds_nothing(kit) -> None:
    llm = kit.make_llm([65] * 100)
    unread = llm.stream("abc")
    assert llm.generate("x", SamplingParams(max_tokens=2))[0].text == "AA"
    unread.close()
    kit.assert_idle(llm)


def test_bad_input_is_refused_at_the_call_and_not_at_the_first_token(kit) -> None:
    llm = kit.make_llm([65] * 100, model_context=8)
    with pytest.raises(ContextLengthError):
        llm.stream("abcdefgh")
    with pytest.raises(InvalidParameterError):
        llm.stream([])
    with pytest.raises(InvalidParameterError):
        llm.stream(3)


def test_second_call_beside_an_open_stream_is_refused_and_harms_neither(kit) -> None:
    llm = kit.make_llm([*b"abcd", kit.EOS])
    stream = llm.stream("x")
    deltas = [next(stream).text_delta]
    for call in (lambda: llm.generate("y"), lambda: next(llm.stream("y")), lambda: llm.score([1, 2])):
        with pytest.raises(EngineBusyError, match="stream that is open"):
            call()
    deltas += [o.text_delta for o in stream]
    assert "".join(deltas) == "abcd"
    assert llm.generate("y")[0].text == "abcd"


def test_call_from_a_second_thread_is_refused(kit) -> None:
    llm = kit.make_llm([*b"abcd", kit.EOS])
    errors: list[BaseException] = []

    def call() -> None:
        try:
            llm.generate("y")
        except EngineBusyError as error:
            errors.append(error)

    def run_thread() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    llm.runner.on_step = run_thread
    assert llm.generate("x")[0].text == "abcd"
    assert len(errors) == 5


def test_stream_has_ended_with_its_last_output_even_if_nobody_asks_for_more(kit) -> None:
    llm = kit.make_llm([65, kit.EOS])
    stream = llm.stream("x")
    outputs = [next(stream), next(stream)]
    assert outputs[-1].finish_reason == "stop"
    kit.assert_idle(llm)
    assert llm.generate("x")[0].text == "A"


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "ctrl_c"])
@pytest.mark.parametrize("step", [0, 2])
def test_engine_is_usable_after_an_exception_in_a_step(kit, step: int, error: BaseException) -> None:
    llm = kit.make_llm([*b"abcd", kit.EOS], prefill_chunk=3)
    llm.runner.fail_at = {step: error, step + 20: error}
    with pytest.raises(type(error)):
        list(llm.stream("x"))
    kit.assert_idle(llm)
    llm.runner.num_steps = 20
    with pytest.raises(type(error)):
        llm.generate(["x", "y", "z"])
    kit.assert_idle(llm)
    llm.runner.num_steps = 100
    assert [r.text for r in llm.generate(["x", "y"])] == ["abcd"] * 2


def test_exception_of_the_caller_ends_generate_cleanly(kit) -> None:
    llm = kit.make_llm([*b"abcd", kit.EOS])

    def interrupt(num_finished: int, num_prompts: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(["x", "y"], on_finished=interrupt)
    kit.assert_idle(llm)


def test_stream_of_an_engine_closed_meanwhile_ends_with_a_clear_error(kit) -> None:
    llm = kit.make_llm([65] * 100)
    stream = llm.stream("x")
    next(stream)
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        next(stream)
