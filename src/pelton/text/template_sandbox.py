"""The sandbox a chat template runs in: Jinja without anything that could reach out, and with every step counted.

`instrument` rewrites a parsed template so that loops, literals, slices and `~` pass through the budget;
`LimitedEnvironment` does the same for operators, calls, filters and output. It must not know messages or tokenizers.
Start at `LimitedEnvironment`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from pelton.text.template_filters import (
    build_filters,
    check_format,
    check_join,
    check_percent,
    check_replace,
    raise_exception,
    strftime_now,
)
from pelton.text.template_limits import MAX_SOURCE_NODES, STEP_BYTES, TemplateBudget, TemplateLimitError

_TEXT_METHODS = """
    capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal isdigit islower
    isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex
    rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill
"""
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_TEXT_METHODS.split()),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
}
_JINJA_OBJECTS = (BlockReference, Cycler, Joiner, LoopContext, Macro, Namespace)
_FORBIDDEN_NODES: dict[type[nodes.Node], str] = {
    nodes.Extends: "extends",
    nodes.FromImport: "import",
    nodes.Import: "import",
    nodes.Include: "include",
    nodes.ScopedEvalContextModifier: "autoescape",
}


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the assistant wrote, for training; here it shows its body."""

    tags = {"generation"}  # noqa: RUF012  # Jinja reads this attribute of the class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body of the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as Hugging Face's chat templates expect it, within `budget`; made anew for each rendering.

    `num_literal_characters` is the plain text in the template, which each call of a macro may print once.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, budget: TemplateBudget, num_literal_characters: int = 0) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=budget.show,
            optimized=False,
            cache_size=0,
        )
        self._budget = budget
        self._num_literal_characters = num_literal_characters
        self.filters = build_filters(budget, lambda left, right: self._operate("+", left, right)) | {
            "_admit": budget.admit,
            "_concat": self._concatenate,
            "_count": budget.count,
        }
        del self.globals["lipsum"]
        self.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Allow known methods of text and containers, and what loops, macros and namespaces offer."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        for kind, methods in _METHODS.items():
            if isinstance(obj, kind):
                return attr in methods
        return isinstance(obj, _JINJA_OBJECTS)

    def unsafe_undefined(self, obj: object, attribute: str) -> Any:  # Any: never returns
        """Raise at once; Jinja's own answer prints as nothing."""
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is not allowed")

    # Any below: Jinja's signatures, which these methods must repeat.
    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # Any: see above
        """Compute `left operator right` within the budget."""
        return self._operate(operator, left, right)

    def call(
        self, context: Context, obj: Any, /, *args: Any, **kwargs: Any
    ) -> Any:  # Any: see above; positional only, so that templates may use any keyword
        """Call a macro, function or method of a template within the budget."""
        self._budget.spend()
        if isinstance(obj, (BlockReference, LoopContext, Macro)):
            self._budget.spend(self._num_literal_characters)
        if isinstance(obj, LoopContext) and args:  # the next level of a recursive loop
            args = (self._budget.count(args[0], STEP_BYTES + self._num_literal_characters), *args[1:])
        elif isinstance(obj, types.BuiltinMethodType) and isinstance(obj.__self__, str):
            self._check_text_method(obj.__self__, obj.__name__, args, kwargs)
        return self._budget.admit(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """Return a checked `str.format` for the method `value`, None if it is something else."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None or not isinstance(value, types.BuiltinMethodType):
            return None
        text = value.__self__
        if not isinstance(text, str) or value.__name__ != "format":
            return self.unsafe_undefined(text, value.__name__)  # type: ignore[no-any-return]  # never returns

        def checked(*args: object, **kwargs: object) -> str:
            check_format(self._budget, text, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return checked

    def _operate(self, operator: str, left: object, right: object) -> object:
        self._budget.spend()
        if operator == "*":
            self._check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._budget.check_integer(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, str):
            values = right.values() if isinstance(right, dict) else right if isinstance(right, tuple) else (right,)
            check_percent(self._budget, left, values)
        return self._budget.admit(self.binop_table[operator](left, right))

    def _check_product(self, left: object, right: object) -> None:
        if isinstance(left, int) and isinstance(right, int):
            self._budget.check_integer(left.bit_length() + right.bit_length())
        for value, times in ((left, right), (right, left)):
            if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                length = len(value) if isinstance(value, str) else self._budget.measure(value).num_characters
                self._budget.check_text(length * max(times, 0))

    def _check_text_method(self, text: str, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if name in ("center", "ljust", "rjust", "zfill"):
            self._budget.check_width(args[0] if args else 0)
        elif name == "format":
            check_format(self._budget, text, (*args, *kwargs.values()))
        elif name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
            check_replace(self._budget, text, args[0], args[1])
        elif name == "join" and args and isinstance(args[0], Iterable):
            check_join(self._budget, text, self._budget.collect(args[0]))

    def _concatenate(self, values: list[object]) -> object:
        self._budget.check_text(sum(map(self._budget.check_printable, values)))
        return self._budget.admit("".join(map(self._budget.show, values)))


class _Instrument(NodeTransformer):
    """Sends loops, literals, slices and `~` through the filters of `LimitedEnvironment` that charge the budget."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:  # Any: Jinja's signature
        if type(node) in _FORBIDDEN_NODES:
            raise TemplateError(f"a chat template must not use {_FORBIDDEN_NODES[type(node)]}")
        return super().generic_visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  # Jinja's name
        step_bytes = STEP_BYTES + count_literal_characters(node)
        self.generic_visit(node)
        node.iter = _filter(node.iter, "_count", nodes.Const(step_bytes))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  # Jinja's name
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes), "_concat")

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802  # Jinja's name
        return _filter(self.generic_visit(node), "_admit")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802  # Jinja's name
        return _filter(self.generic_visit(node), "_admit")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802  # Jinja's name
        self.generic_visit(node)
        return node if node.ctx == "store" else _filter(node, "_admit")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802  # Jinja's name
        self.generic_visit(node)
        return _filter(node, "_admit") if isinstance(node.arg, nodes.Slice) else node


def instrument(template: nodes.Template) -> nodes.Template:
    """Make a parsed template charge the budget.

    Raises `TemplateError` if it uses a forbidden statement and `TemplateLimitError` if it is too large.
    """
    num_nodes = 1 + sum(1 for _ in template.find_all(nodes.Node))
    if num_nodes > MAX_SOURCE_NODES:
        raise TemplateLimitError(f"the chat template has {num_nodes} nodes; allowed: at most {MAX_SOURCE_NODES}")
    _Instrument().visit(template)
    return template


def count_literal_characters(node: nodes.Node) -> int:
    """Return how many characters of plain text stand in a part of a template."""
    return sum(len(data.data) for data in node.find_all(nodes.TemplateData))


def _filter(node: Any, name: str, *args: nodes.Expr) -> nodes.Filter:  # Any: the transformer returns plain nodes
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)
