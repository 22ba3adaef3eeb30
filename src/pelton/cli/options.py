"""Command-line options made from dataclass fields, so that help, range and default are written once.

Knows `core/fields.OptionSpec` and typer, not what any option does. Start at `OptionGroup`: it describes the fields
of one dataclass as options, `with_options` adds them to a command, and `OptionGroup.build` makes the instance.
Values arrive as text and are parsed here, so that every bad one is reported in the same words.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar

import typer

from pelton.core.errors import InvalidParameterError
from pelton.core.fields import OptionSpec, get_option_specs

Kind = Literal["integer", "number", "text", "flag", "off_flag", "texts", "integers", "biases"]
T = TypeVar("T")

_METAVARS: dict[Kind, str] = {
    "integer": "N",
    "number": "X",
    "text": "NAME",
    "texts": "TEXT",
    "integers": "N,N...",
    "biases": "ID=X",
}
_REPEATED: tuple[Kind, ...] = ("texts", "biases")


@dataclass(frozen=True, slots=True)
class FieldOption:
    """One option made from a field: its flag, how its text is parsed, and what is allowed."""

    field: str
    flag: str
    kind: Kind
    spec: OptionSpec
    default: object

    @property
    def help(self) -> str:
        """One sentence, what is allowed, and the default."""
        notes = []
        if self.spec.minimum is not None:
            notes.append(self.spec.describe_allowed())
        if self.kind in _REPEATED:
            notes.append("may be repeated")
        if self.kind not in ("flag", "off_flag") and self.default not in (None, (), {}):
            notes.append(f"default {_format_default(self.default)}")
        help_text = f"Switch off: {self.spec.help}" if self.kind == "off_flag" else self.spec.help
        return f"{help_text} ({'; '.join(notes)})" if notes else help_text

    def parse(self, value: object) -> object:
        """Turn what typer delivered into the field's value; raise `InvalidParameterError` naming the flag."""
        if self.kind == "flag":
            return bool(value)
        if self.kind == "off_flag":
            return not value
        if self.kind == "texts":
            return tuple(_as_texts(value))
        if self.kind == "biases":
            return dict(self._parse_bias(text) for text in _as_texts(value))
        text = str(value)
        if self.kind == "integers":
            return tuple(self._parse_integer(part, text) for part in text.split(","))
        if self.kind == "integer":
            return self._parse_integer(text, text)
        if self.kind == "number":
            return self._parse_number(text, text)
        return text

    def _parse_integer(self, text: str, whole: str) -> int:
        try:
            return int(_require_plain(text))
        except ValueError:
            noun = "integers separated by commas, each" if self.kind == "integers" else "an integer,"
            raise InvalidParameterError(self.flag, whole, f"{noun} {self.spec.describe_allowed()}") from None

    def _parse_number(self, text: str, whole: str) -> float:
        try:
            return float(_require_plain(text))
        except ValueError:
            raise InvalidParameterError(self.flag, whole, f"a number, {self.spec.describe_allowed()}") from None

    def _parse_bias(self, text: str) -> tuple[int, float]:
        token_id, separator, bias = text.partition("=")
        try:
            if not separator:
                raise ValueError
            return int(_require_plain(token_id)), float(_require_plain(bias))
        except ValueError:
            raise InvalidParameterError(self.flag, text, "TOKEN_ID=BIAS, for example 42=-1.5") from None


@dataclass(frozen=True, slots=True)
class OptionGroup(Generic[T]):
    """The options of one frozen dataclass `cls`; `defaults` replaces field defaults, `hidden` leaves fields out."""

    cls: Callable[..., T]
    options: tuple[FieldOption, ...]

    @classmethod
    def from_dataclass(
        cls, source: type[T], *, defaults: Mapping[str, object] | None = None, hidden: tuple[str, ...] = ()
    ) -> OptionGroup[T]:
        """Describe every field of `source` that carries an `OptionSpec`, in declaration order."""
        hints = typing.get_type_hints(source)
        standard = _get_field_defaults(source)
        changed = defaults or {}
        options = tuple(
            _make_option(name, hints[name], spec, changed.get(name, standard[name]))
            for name, spec in get_option_specs(source).items()
            if name not in hidden
        )
        return cls(source, options)

    def build(self, values: Mapping[str, object], **fixed: object) -> T:
        """Make the instance from typer's values (None: not given) and `fixed` fields.

        Raises `InvalidParameterError` that names the flag rather than the field.
        """
        fields: dict[str, object] = {}
        for option in self.options:
            value = values[option.field]
            fields[option.field] = option.default if _is_unset(value) else option.parse(value)
        try:
            return self.cls(**fields, **fixed)
        except InvalidParameterError as error:
            raise InvalidParameterError(self._get_flag(error.parameter), error.value, error.allowed) from error

    def _get_flag(self, parameter: str) -> str:
        field, bracket, rest = parameter.partition("[")
        flags = {option.field: option.flag for option in self.options}
        return flags.get(field, field) + bracket + rest


# A group of whatever dataclass: `with_options` only reads `.options`.
AnyGroup = OptionGroup[typing.Any]  # Any: groups of different dataclasses stand in one argument list


def with_options(*groups: AnyGroup) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate a command `f(..., **values)`: typer then sees one option per field of `groups` instead of `**values`."""

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        # Not get_type_hints: before Python 3.11 it hides the annotation of a parameter whose default is None.
        signature = inspect.signature(command, eval_str=True)
        parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for option in (option for group in groups for option in group.options):
            parameters.append(_make_parameter(option))

        def call(**arguments: object) -> T:
            return command(**arguments)

        call.__name__ = command.__name__
        call.__doc__ = command.__doc__
        call.__module__ = command.__module__
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
        return call

    return decorate


def _make_parameter(option: FieldOption) -> inspect.Parameter:
    if option.kind in ("flag", "off_flag"):
        annotation: object = Annotated[bool, typer.Option(option.flag, help=option.help)]
        default: object = False
    else:
        value_type = list[str] if option.kind in _REPEATED else str
        choices = option.spec.choices
        info = typer.Option(
            option.flag,
            metavar="|".join(choices) if choices else _METAVARS[option.kind],
            help=option.help,
            show_default=False,
            autocompletion=_make_completion(choices) if choices else None,
        )
        annotation, default = Annotated[typing.Optional[value_type], info], None  # noqa: UP045  # a runtime type
    return inspect.Parameter(option.field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _make_completion(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def _make_option(field: str, hint: object, spec: OptionSpec, default: object) -> FieldOption:
    kind = _get_kind(field, hint, default)
    stem = field.removeprefix("use_") if kind == "off_flag" else field
    flag = f"--{'no-' if kind == 'off_flag' else ''}{stem.replace('_', '-')}"
    return FieldOption(field=field, flag=flag, kind=kind, spec=spec, default=default)


def _get_kind(field: str, hint: object, default: object) -> Kind:
    if isinstance(hint, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        # A field that takes texts beside its Python type reads all of them from the text.
        hint = str if str in parts else parts[0]
    if hint is bool:
        return "off_flag" if default else "flag"
    simple: dict[object, Kind] = {int: "integer", float: "number", str: "text"}
    if hint in simple:
        return simple[hint]
    if typing.get_origin(hint) is tuple:
        return "integers" if typing.get_args(hint)[0] is int else "texts"
    if typing.get_origin(hint) is Mapping:
        return "biases"
    raise TypeError(f"field {field} has type {hint}; no command-line form is known for it")


def _get_field_defaults(source: type) -> dict[str, object]:
    # Every options dataclass has a default for each field, so the standard instance holds them all.
    standard = source()
    return {field.name: getattr(standard, field.name) for field in dataclasses.fields(source)}


def _is_unset(value: object) -> bool:
    return value is None or value in ((), [])


def _as_texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]


def _require_plain(text: str) -> str:
    # Python would take 1_000 and digits of other scripts; a mistyped number is safer refused.
    if "_" in text or not text.isascii():
        raise ValueError
    return text


def _format_default(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item).replace("\n", "\\n") for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
