"""Thoughts and answers out of one text, however it is cut. Values are written by hand."""

from __future__ import annotations

import pytest

from pelton.text.reasoning import BRACKETS, THINK, ReasoningSplitter, ReasoningStart, detect_reasoning, find_reasoning

# text, whether the prompt opened the thoughts, thoughts, content
CASES = [
    ("<think>\nSo: a < b.\n\n</think>\n\nYes </b>\n", False, "So: a < b.", "Yes </b>\n"),
    ("\n <think>x</think>y", False, "x", "y"),
    ("So.\n</think>\n\nYes", True, "So.", "Yes"),
    ("<think>\nSo.</think>Yes", True, "So.", "Yes"),
    ("<think>\n\n</think>\n\nYes", False, "", "Yes"),
    ("\n</think>\n\nYes", True, "", "Yes"),
    ("No thoughts <think>here</think>", False, "", "No thoughts <think>here</think>"),
    (" plain\n", False, "", " plain\n"),
    ("<thin air", False, "", "<thin air"),
    ("<thin", False, "", "<thin"),
    ("<think>a </thi b </think></think>c", False, "a </thi b", "</think>c"),
    ("<think>never \n ends  ", False, "never \n ends", ""),
    ("never </thin", True, "never </thin", ""),
    ("", False, "", ""),
    ("  ", True, "", ""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("text", "is_open", "reasoning", "content"), CASES)
def test_split_is_the_same_however_the_text_is_cut(
    text: str, is_open: bool, reasoning: str, content: str, size: int
) -> None:
    splitter = ReasoningSplitter(is_open=is_open)
    deltas = [splitter.push(text[start : start + size]) for start in range(0, len(text), size)]
    deltas.append(splitter.flush())
    assert "".join(thought for thought, _ in deltas) == reasoning
    assert "".join(answer for _, answer in deltas) == content


def test_thoughts_go_out_as_they_come() -> None:
    splitter = ReasoningSplitter()
    assert splitter.push("<thi") == ("", "")
    assert splitter.push("nk>\nI see") == ("I see", "")
    assert splitter.is_reasoning
    assert splitter.push(" \n") == ("", "")
    assert splitter.push("it </") == (" \nit", "")
    assert splitter.push("think>\n") == ("", "")
    assert not splitter.is_reasoning
    assert splitter.push("\nDone ") == ("", "Done ")


def test_markers_are_found_in_templates_and_prompts() -> None:
    assert detect_reasoning("{{ '<think>' }}...</think>") is THINK
    assert detect_reasoning("[THINK] [/THINK]") is BRACKETS
    assert detect_reasoning("{{ messages }}") is None
    assert THINK.is_open_after("<|im_start|>assistant\n<think>\n")
    assert not THINK.is_open_after("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("prompt", "start"),
    [
        ("[assistant]<think>\n", ReasoningStart(THINK, True)),
        ("[assistant]\n", ReasoningStart(THINK, False)),
        ("[assistant]<think>\n\n</think>\n\n", None),
    ],
)
def test_prompt_says_how_an_answer_may_begin(prompt: str, start: ReasoningStart | None) -> None:
    assert find_reasoning("{{ messages }}<think></think>", prompt) == start
    assert find_reasoning("{{ messages }}", prompt) is None
