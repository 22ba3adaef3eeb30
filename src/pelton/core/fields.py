"""Describe an option once: default, help, range. Validation, command line and docs come from the field.

`option()` is `dataclasses.field` with an `OptionSpec` in its metadata; `validate_options()` checks an instance
against it. Start reading at `OptionSpec`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, cast

from pelton.core.errors import InvalidParameterError

_METADATA_KEY = "pelton"


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """What is known about one option besides its name, type and default.

    `minimum` and `maximum` are inclusive unless `exclusive_minimum`; `choices` lists the allowed strings;
    `unit` and `disabled_by` are for people.
    """

    help: str
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    choices: tuple[str, ...] | None = None
    unit: str = ""
    disabled_by: str = ""

    def describe_allowed(self) -> str:
        """One phrase that says which values are allowed."""
        if self.choices is not None:
            return "one of " + ", ".join(self.choices)
        low, high = self.minimum, self.maximum
        if low is not None and high is not None:
            return f"{'more than ' if self.exclusive_minimum else ''}{_format_bound(low)} to {_format_bound(high)}"
        if low is not None:
            return f"{'more than' if self.exclusive_minimum else 'at least'} {_format_bound(low)}"
        if high is not None:
            return f"at most {_format_bound(high)}"
        return "a finite number"


def _format_bound(bound: float) -> str:
    # "g" would show 2**31 - 1 as 2.14748e+09, which is not the limit.
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


# Any: a dataclass field is declared as its own default's type, which only the caller knows.
def option(default: Any, help: str, **spec: Any) -> Any:  # Any: see the line above
    """Declare a dataclass field that carries an `OptionSpec` built from `help` and `spec`."""
    metadata = {_METADATA_KEY: OptionSpec(help=help, **spec)}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=type(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def get_option_specs(cls: type) -> dict[str, OptionSpec]:
    """Return the `OptionSpec` of every field of dataclass `cls` that has one, in declaration order."""
    return {f.name: f.metadata[_METADATA_KEY] for f in dataclasses.fields(cls) if _METADATA_KEY in f.metadata}


def check_option(name: str, value: object, spec: OptionSpec) -> None:
    """Raise `InvalidParameterError` if `value` (None means unset and is allowed here) violates `spec`."""
    if value is None:
        return
    if spec.choices is not None:
        if value not in spec.choices:
            raise InvalidParameterError(name, value, spec.describe_allowed())
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    too_low = spec.minimum is not None and (value <= spec.minimum if spec.exclusive_minimum else value < spec.minimum)
    too_high = spec.maximum is not None and value > spec.maximum
    if not math.isfinite(value) or too_low or too_high:
        raise InvalidParameterError(name, value, spec.describe_allowed())


def check_number_types(instance: object, integers: tuple[str, ...], numbers: tuple[str, ...]) -> None:
    """Raise `InvalidParameterError` for a field that is not an integer (or number), or is a bool."""
    for name in (*integers, *numbers):
        value = getattr(instance, name)
        allowed = (int,) if name in integers else (int, float)
        if value is not None and (isinstance(value, bool) or not isinstance(value, allowed)):
            raise InvalidParameterError(name, value, "an integer" if name in integers else "a number")


def validate_options(instance: object) -> None:
    """Check every described field of a dataclass instance; raise `InvalidParameterError` on the first bad one.

    None is a value only of fields whose type says so, and a switch is true or false and nothing else.
    """
    # Any: a dataclass instance has no type of its own.
    for field in dataclasses.fields(cast(Any, instance)):  # Any: see the line above
        spec = field.metadata.get(_METADATA_KEY)
        if spec is None:
            continue
        value = getattr(instance, field.name)
        if isinstance(field.default, bool):
            if not isinstance(value, bool):
                raise InvalidParameterError(field.name, value, "True or False")
        # Types are text: all options are declared in modules with `from __future__ import annotations`.
        elif value is None and not str(field.type).endswith("None"):
            is_described = spec.choices is not None or isinstance(field.default, (int, float))
            raise InvalidParameterError(field.name, value, spec.describe_allowed() if is_described else "a value")
        check_option(field.name, value, spec)
