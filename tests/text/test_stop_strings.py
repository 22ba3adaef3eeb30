"""Stop strings in streamed text, against a search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.core.errors import InvalidParameterError
from pelton.text.stop import StopStringMatcher


def stream(deltas: list[str], stop: list[str]) -> tuple[list[str], bool]:
    matcher = StopStringMatcher(stop)
    shown = []
    for delta in deltas:
        text, is_stopped = matcher.push(delta)
        shown.append(text)
        if is_stopped:
            return shown, True
    return [*shown, matcher.flush()], False


def find_in_whole(text: str, stop: list[str]) -> tuple[str, bool]:
    """Take characters one by one; end at the first place where one of the strings has just been completed."""
    for end in range(len(text) + 1):
        complete = [string for string in stop if text[:end].endswith(string)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


def test_stop_string_over_several_tokens_is_never_shown_in_part() -> None:
    assert stream(["A", "BC", "DE", "F"], ["CDE"]) == (["A", "B", ""], True)
    assert stream(["xa", "ab"], ["aab"]) == (["x", ""], True)


def test_text_that_turns_out_harmless_is_shown() -> None:
    assert stream(["A", "BC", "DX", "F"], ["CDE"]) == (["A", "B", "CDX", "F", ""], False)
    assert stream(["ab", "ab", "ac"], ["abac"]) == (["", "ab", ""], True)


def test_what_was_held_back_comes_at_the_end() -> None:
    assert stream(["x", "</"], ["</end>"]) == (["x", "", "</"], False)


def test_no_more_is_held_back_than_a_stop_string_may_need() -> None:
    matcher = StopStringMatcher(["\n\nUser:", "###"])
    assert matcher.push("text\n") == ("text", False)
    assert matcher.push("more #") == ("\nmore ", False)
    assert matcher.push("\n\nUs") == ("#", False)
    assert matcher.push("age") == ("\n\nUsage", False)


def test_first_complete_stop_string_wins() -> None:
    assert stream(["one two three"], ["three", "two"]) == (["one "], True)
    assert stream(["abcd"], ["bc", "abcd"]) == (["a"], True)
    assert stream(["abc"], ["c", "bc", "abc"]) == ([""], True)


def test_nothing_comes_after_a_stop_string() -> None:
    matcher = StopStringMatcher(["stop"])
    assert matcher.push("go stop and more") == ("go ", True)
    assert matcher.push("more") == ("", True)
    assert matcher.flush() == ""


def test_without_stop_strings_text_passes_at_once() -> None:
    assert stream(["a", "", "b"], []) == (["a", "", "b", ""], False)


@settings(max_examples=500, deadline=None)
@given(
    deltas=st.lists(st.text("abc", max_size=4), max_size=12),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_result_does_not_depend_on_how_text_is_cut(deltas: list[str], stop: list[str]) -> None:
    text = "".join(deltas)
    expected, is_stopped = find_in_whole(text, stop)
    for pieces in (deltas, list(text), [text]):
        shown, stopped = stream(pieces, stop)
        assert ("".join(shown), stopped) == (expected, is_stopped)


@pytest.mark.parametrize("stop", [[""], ["a", ""], [3], "abc"])
def test_stop_must_be_a_list_of_non_empty_strings(stop: list[str]) -> None:
    with pytest.raises(InvalidParameterError, match="stop is"):
        StopStringMatcher(stop)
