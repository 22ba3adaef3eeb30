"""Options from dataclass fields: parsing, defaults, and errors that name the flag."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pelton.cli.options import OptionGroup
from pelton.core.errors import InvalidParameterError
from pelton.core.fields import option, validate_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """One field of every kind."""

    count: int | None = option(None, "A count.", minimum=1, maximum=9)
    ratio: float = option(0.5, "A ratio.", minimum=0.0, maximum=1.0)
    color: str = option("red", "A colour.", choices=("red", "blue"))
    words: tuple[str, ...] = option((), "Words.")
    sizes: tuple[int, ...] = option((1, 2), "Sizes.", minimum=0)
    is_loud: bool = option(False, "Be loud.")
    use_cache: bool = option(True, "Keep things.")

    def __post_init__(self) -> None:
        validate_options(self)


GROUP = OptionGroup.from_dataclass(Knobs)


def build(**given: object) -> Knobs:
    values: dict[str, object] = {"count": None, "ratio": None, "color": None, "words": None, "sizes": None}
    return GROUP.build({**values, "is_loud": False, "use_cache": False, **given})


def test_nothing_given_means_the_defaults_of_the_fields() -> None:
    assert build() == Knobs()


def test_values_are_parsed_by_the_type_of_the_field() -> None:
    knobs = build(count="3", ratio="1e-1", color="blue", words=["a", "b"], sizes="4,5,6", is_loud=True, use_cache=True)
    assert knobs == Knobs(
        count=3, ratio=0.1, color="blue", words=("a", "b"), sizes=(4, 5, 6), is_loud=True, use_cache=False
    )


def test_flags_follow_from_names() -> None:
    flags = [o.flag for o in GROUP.options]
    assert flags == ["--count", "--ratio", "--color", "--words", "--sizes", "--is-loud", "--no-cache"]


def test_changed_default_is_used_and_shown() -> None:
    group = OptionGroup.from_dataclass(Knobs, defaults={"ratio": 0.25}, hidden=("words",))
    (ratio,) = [o for o in group.options if o.field == "ratio"]
    assert ratio.help == "A ratio. (0 to 1; default 0.25)"
    assert group.build({"count": None, "ratio": None, "color": None, "sizes": None, "is_loud": 0, "use_cache": 0}) == (
        Knobs(ratio=0.25)
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": "ten"}, "--count is 'ten'; allowed: an integer, 1 to 9"),
        ({"count": "10"}, "--count is 10; allowed: 1 to 9"),
        ({"count": "٣"}, "--count is '٣'; allowed: an integer, 1 to 9"),
        ({"ratio": "-0.1"}, "--ratio is -0.1; allowed: 0 to 1"),
        ({"ratio": "nan"}, "--ratio is nan; allowed: 0 to 1"),
        ({"color": "green"}, "--color is 'green'; allowed: one of red, blue"),
        ({"sizes": "1,,2"}, "--sizes is '1,,2'; allowed: integers separated by commas, each at least 0"),
    ],
)
def test_bad_value_names_flag_value_and_what_is_allowed(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        build(**given)
    assert str(caught.value) == message
