"""The filters and functions a chat template may use, each with its cost bounded before it runs.

Filters of Jinja whose cost depends on their input only are used as they are; those that take a width, a count or a
text to repeat are written here. It must not know messages. Start at `build_filters`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from jinja2.exceptions import TemplateError
from jinja2.filters import FILTERS
from markupsafe import escape

from pelton.text.template_limits import TemplateBudget, TemplateLimitError

_SAFE_FILTERS = """
    abs capitalize count d default dictsort first float groupby items last length lower map max min reject rejectattr
    reverse select selectattr sort title trim truncate unique upper urlencode wordcount
"""
_MAX_DIGITS = 1000
# Width and precision of each field of a text for `%`, and what stands in the braces of one for `str.format`.
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d*)\.?(\*|\d*)")
_BRACES = re.compile(r"\{([^}]*)\}")
_DATE_FORMAT = re.compile(r"(?:[^%]|%-?[A-Za-z%])*")
_MAX_DATE_FORMAT_CHARACTERS = 200

Filter = Callable[..., object]


def build_filters(budget: TemplateBudget, add: Callable[[object, object], object]) -> dict[str, Filter]:
    """Return all filters by name. `add` is the template's checked `+`."""
    own = _TextFilters(budget)
    filters = {name: FILTERS[name] for name in _SAFE_FILTERS.split()} | {
        "batch": own.batch,
        "center": own.center,
        "e": own.escape,
        "escape": own.escape,
        "forceescape": own.escape,
        "format": own.format,
        "indent": own.indent,
        "int": own.to_integer,
        "join": own.join,
        "list": budget.collect,
        "replace": own.replace,
        "round": own.round,
        "safe": budget.show,
        "slice": own.slice,
        "string": budget.show,
        "sum": functools.partial(_sum, budget, add),
        "tojson": own.tojson,
    }
    return {name: _guard(budget, function) for name, function in filters.items()}


def _guard(budget: TemplateBudget, function: Filter) -> Filter:
    def guarded(*args: object, **kwargs: object) -> object:
        budget.spend()
        return budget.admit(function(*args, **kwargs))

    # Jinja marks what a filter wants to be given (context, environment) in attributes of the function.
    return functools.update_wrapper(guarded, function, assigned=())


def check_percent(budget: TemplateBudget, text: str, values: Iterable[object]) -> None:
    """Bound what `text % values` may make; raise `TemplateLimitError`."""
    _check_format(budget, text, values, [number for pair in _PERCENT.findall(text) for number in pair], text.count("%"))


def check_format(budget: TemplateBudget, text: str, values: Iterable[object]) -> None:
    """Bound what `text.format(values)` may make; raise `TemplateLimitError`."""
    numbers = re.findall(r"\d+|\{", " ".join(_BRACES.findall(text.replace("{{", ""))))
    _check_format(budget, text, values, numbers, text.count("{"))


def _check_format(
    budget: TemplateBudget, text: str, values: Iterable[object], numbers: list[str], num_fields: int
) -> None:
    """Bound the result of `num_fields` fields with the given widths; `*` or `{` stands for one taken from a value."""
    if "*" in numbers or "{" in numbers:
        raise TemplateLimitError("the chat template takes the width of a format from a value")
    widths = [int(number[:10]) for number in numbers if number]
    for width in widths:
        budget.check_width(width)
    longest = sum(map(budget.check_printable, values)) + max(widths, default=0)
    budget.check_text(len(text) + longest * num_fields)


def check_replace(budget: TemplateBudget, text: str, old: str, new: str) -> None:
    """Bound the result of replacing `old` by `new` in `text`; raise `TemplateLimitError`."""
    budget.check_text(len(text) + text.count(old) * len(new))


def check_join(budget: TemplateBudget, separator: str, values: list[object]) -> None:
    """Bound the result of joining `values`; raise `TemplateLimitError`."""
    budget.check_text(budget.check_printable(values) + len(separator) * len(values))


def raise_exception(message: object) -> None:
    """End the rendering with a message; templates call it for chats they do not support."""
    raise TemplateError(str(message)[:_MAX_DIGITS])


def strftime_now(format: str) -> str:
    """Return the local time now by a `strftime` format without widths."""
    if len(format) > _MAX_DATE_FORMAT_CHARACTERS or not _DATE_FORMAT.fullmatch(format):
        raise TemplateLimitError(f"the chat template asks for the date in an unknown format {format[:40]!r}")
    return datetime.now().strftime(format)


def _sum(
    budget: TemplateBudget,
    add: Callable[[object, object], object],
    values: Iterable[object],
    attribute: str | None = None,
    start: object = 0,
) -> object:
    total = start
    for value in budget.count(values):
        if attribute is not None:
            if not isinstance(value, Mapping):
                raise TypeError(f"sum(attribute={attribute!r}) needs objects, not {type(value).__name__}")
            value = value[attribute]
        total = add(total, value)
    return total


class _TextFilters:
    """Filters whose result can be much larger than what they are given."""

    def __init__(self, budget: TemplateBudget) -> None:
        self._budget = budget

    def batch(self, values: Iterable[object], linecount: int, fill_with: object = None) -> Iterator[list[object]]:
        self._budget.check_width(linecount)
        items = self._budget.collect(values)
        if linecount < 1:
            raise ValueError("batch needs a line count of at least 1")
        for start in range(0, len(items), linecount):
            row = items[start : start + linecount]
            yield row if fill_with is None else row + [fill_with] * (linecount - len(row))

    def center(self, value: object, width: int = 80) -> str:
        self._budget.check_width(width)
        return self._budget.show(value).center(width)

    def escape(self, value: object) -> str:
        return str(escape(self._budget.show(value)))

    def format(self, text: object, *args: object, **kwargs: object) -> str:
        if args and kwargs:
            raise TypeError("format takes positional or keyword arguments, not both")
        pattern = self._budget.show(text)
        check_percent(self._budget, pattern, (*args, *kwargs.values()))
        return pattern % (kwargs or args)

    def indent(self, text: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        self._budget.check_width(len(width) if isinstance(width, str) else width)
        margin = width if isinstance(width, str) else " " * width
        lines = (self._budget.show(text) + "\n").splitlines()
        self._budget.check_text(sum(map(len, lines)) + len(lines) * (len(margin) + 1))
        # Jinja's do_indent leaves the first line and, unless told otherwise, empty lines alone.
        rest = [margin + line if line or blank else line for line in lines[1:]]
        head = margin + lines[0] if first and (lines[0] or blank) else lines[0]
        return "\n".join([head, *rest])

    def to_integer(self, value: object, default: int = 0, base: int = 10) -> int:
        try:
            if isinstance(value, str):
                return int(value[: _MAX_DIGITS + 1], base) if len(value) <= _MAX_DIGITS else default
            return int(value)  # type: ignore[call-overload,no-any-return]  # whatever is no number raises TypeError
        except (TypeError, ValueError, OverflowError):
            try:
                return int(float(value))  # type: ignore[arg-type]  # as above
            except (TypeError, ValueError, OverflowError):
                return default

    def join(self, values: Iterable[object], d: object = "", attribute: str | None = None) -> str:
        items = self._budget.collect(values)
        if attribute is not None:
            items = [item[attribute] for item in items if isinstance(item, Mapping)]
        separator = self._budget.show(d)
        check_join(self._budget, separator, items)
        return separator.join(map(self._budget.show, items))

    def replace(self, text: object, old: object, new: object, count: int | None = None) -> str:
        show = self._budget.show
        source, before, after = show(text), show(old), show(new)
        check_replace(self._budget, source, before, after)
        return source.replace(before, after, -1 if count is None else count)

    def round(self, value: float, precision: int = 0, method: str = "common") -> float:
        self._budget.check_width(precision)
        return FILTERS["round"](float(value), min(precision, 300), method)  # type: ignore[no-any-return]  # Jinja's table is untyped

    def slice(self, values: Iterable[object], slices: int, fill_with: object = None) -> Iterator[list[object]]:
        self._budget.check_width(slices)
        items = self._budget.collect(values)
        size, num_longer = divmod(len(items), slices)
        start = 0
        for index in range(slices):
            end = start + size + (index < num_longer)
            # As Jinja does: every row that is not one of the longer ones is filled.
            is_filled = fill_with is not None and index >= num_longer
            yield [*items[start:end], fill_with] if is_filled else items[start:end]
            start = end

    def tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Write JSON the way Hugging Face's templates expect: not escaped for HTML, not ASCII only."""
        extent = self._budget.measure(value)
        # An escaped character takes six; a separator is as long as the template wants.
        num_characters = self._budget.check_printable(value) * 6
        num_characters += extent.num_values * sum(map(len, separators or ()))
        if indent is not None:
            width = len(indent) if isinstance(indent, str) else indent
            self._budget.check_width(width)
            num_characters += extent.num_values * (extent.depth * width + 1)
        self._budget.check_text(num_characters)
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
