"""Thousands of prompts: bounded memory, lazy input, results in order, progress on a terminal."""

from __future__ import annotations

import io
import itertools
import sys

import pytest

from pelton.core.errors import InvalidParameterError
from pelton.core.sampling_params import SamplingParams


def choose_by_prompt(request) -> int:
    """Answers of 1 to 5 tokens, so that requests finish in another order than they came."""
    return 65 + request.prompt_token_ids[-1] % 26


def make_params(index: int) -> SamplingParams:
    return SamplingParams(max_tokens=1 + index % 5)


def test_ten_thousand_prompts_never_have_more_than_a_window_in_the_engine(kit) -> None:
    llm = kit.make_llm(choose_by_prompt, max_num_seqs=8, num_blocks=256)
    num_read = 0
    most_unfinished = 0

    def read_prompts():
        nonlocal num_read
        for index in range(10_000):
            num_read += 1
            yield [index % 256, index // 256]

    def watch() -> None:
        nonlocal most_unfinished
        most_unfinished = max(most_unfinished, llm._table.num_unfinished)

    llm.runner.on_step = watch
    params = (make_params(index) for index in range(10_000))
    for index, result in enumerate(llm.generate_iter(read_prompts(), params)):
        assert result.prompt_token_ids == (index % 256, index // 256)
        assert result.text == chr(65 + index // 256 % 26) * (1 + index % 5)
        assert num_read - index <= 4 * 8 + 1
    assert num_read == 10_000
    assert most_unfinished == 8
    kit.assert_idle(llm)


def test_slow_first_request_holds_the_window_but_not_for_ever(kit) -> None:
    llm = kit.make_llm(choose_by_prompt, max_num_seqs=2, num_blocks=256)
    prompts = ([index] for index in range(100))
    params = (SamplingParams(max_tokens=100 if index == 0 else 1) for index in range(100))
    results = llm.generate_iter(prompts, params)
    assert len(next(results).token_ids) == 100
    assert next(prompts) == [8], "8 = 4 * max_num_seqs were read while the first one ran"
    results.close()
    kit.assert_idle(llm)


def test_iterator_of_prompts_gives_what_a_list_gives(kit) -> None:
    llm = kit.make_llm(choose_by_prompt)
    prompts = [[index] for index in range(50)]
    params = [make_params(index) for index in range(50)]
    finished: list[tuple[int, int | None]] = []
    lazily = llm.generate(iter(prompts), iter(params), on_finished=lambda *numbers: finished.append(numbers))
    assert [r.text for r in lazily] == [r.text for r in llm.generate(prompts, params)]
    assert finished == [(done, None) for done in range(1, 51)]
    assert llm.generate(iter([])) == []


def test_bad_prompt_of_an_iterator_is_named_and_leaves_nothing_behind(kit) -> None:
    llm = kit.make_llm(choose_by_prompt, max_num_seqs=2)
    with pytest.raises(InvalidParameterError, match=r"prompts\[5\]\[0\] is 999"):
        llm.generate(iter([[1]] * 5 + [[999]]))
    kit.assert_idle(llm)
    with pytest.raises(InvalidParameterError, match="one for each prompt"):
        llm.generate(iter([[1], [2]]), itertools.repeat(make_params(0), 1))
    kit.assert_idle(llm)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("num_prompts", "progress", "is_terminal", "is_shown"),
    [
        (8, None, True, True),
        (7, None, True, False),
        (1, True, True, True),
        (8, False, True, False),
        (8, True, False, False),
    ],
)
def test_progress_is_shown_for_many_prompts_on_a_terminal(
    kit, monkeypatch, num_prompts: int, progress: bool | None, is_terminal: bool, is_shown: bool
) -> None:
    screen = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    kit.make_llm(choose_by_prompt).generate([[1]] * num_prompts, make_params(0), progress=progress)
    assert (f"{num_prompts}/{num_prompts}" in screen.getvalue()) == is_shown
