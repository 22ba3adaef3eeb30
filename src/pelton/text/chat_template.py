"""`ChatTemplate`: messages to the text a model was trained on, through the model's own Jinja template.

Templates come with model files, so they run sandboxed and within limits of time, text and memory
(template_sandbox.py, template_limits.py). Contents that are lists of text parts are joined by a line break for
templates that expect text. Jinja is imported when the first template is rendered. It must not know tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

from pelton.core.errors import ChatTemplateError, InvalidParameterError

if TYPE_CHECKING:
    from jinja2 import nodes

PART_SEPARATOR = "\n"
# A conversation is not to be replaced by the way, nor marked by tokens of another model.
_OWN_VARIABLES = ("messages", "tools", "bos_token", "eos_token", "add_generation_prompt")
_MAX_INPUT_DEPTH = 32
# What a template can run into besides Jinja's own errors; anything else would be a bug of ours.
_TEMPLATE_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


class _CompiledTemplate(NamedTuple):
    """Code, plain characters in the source, whether contents may be lists of parts, whether they must be.

    `takes_tools`: whether the template looks at the variable `tools`.
    """

    code: CodeType
    num_literal_characters: int
    takes_parts: bool
    needs_parts: bool
    takes_tools: bool


class ChatTemplate:
    """A model's chat template. Safe to share between threads; nothing is read from disk or network.

    `bos_token` and `eos_token` are the texts the template may print. Sources that are wrong are found at the first
    `render`.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        if not isinstance(source, str):
            raise ChatTemplateError(f"the chat template is a {type(source).__name__}; it must be a string")
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._compiled: _CompiledTemplate | None = None

    @property
    def takes_tools(self) -> bool:
        """Whether the template looks at `tools`; False also for a template that cannot be compiled."""
        try:
            return self._get_compiled().takes_tools
        except ChatTemplateError:
            return False

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the text of `messages`, each with a `role` and a `content`: a text, a list of text parts or None.

        `add_generation_prompt` ends the text with the beginning of the assistant's turn; `tools` and `variables` are
        given to the template as they are. Roles are the template's business. The result goes to
        `tokenizer.encode_chat`, which adds no second BOS.
        Raises `InvalidParameterError` for messages that are no messages and for variables that would replace what is
        set here, and `ChatTemplateError`, with the template's own message, if the template refuses them, fails or
        exceeds its limits.
        """
        for name in _OWN_VARIABLES:
            if name in (variables or {}):
                raise InvalidParameterError(f"variables.{name}", name, f"any name but {', '.join(_OWN_VARIABLES)}")
        plain = {
            "messages": _copy_messages(messages),
            "tools": None if tools is None else _copy(tools, "tools"),
            "documents": None,
            **{name: _copy(value, f"variables.{name}") for name, value in (variables or {}).items()},
            **self._tokens,
            "add_generation_prompt": bool(add_generation_prompt),
        }
        compiled = self._get_compiled()
        with _as_template_errors():
            return _render(compiled, plain)

    def _get_compiled(self) -> _CompiledTemplate:
        if self._compiled is None:
            with _as_template_errors():
                self._compiled = _compile(self.source)
        return self._compiled


@contextmanager
def _as_template_errors() -> Iterator[None]:
    """Raise what a template does wrong as `ChatTemplateError`."""
    from jinja2.exceptions import TemplateError

    from pelton.text.template_limits import TemplateLimitError

    try:
        yield
    except (TemplateError, TemplateLimitError) as error:
        raise ChatTemplateError(str(error) or type(error).__name__) from error
    except _TEMPLATE_FAULTS as error:
        raise ChatTemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error


def _compile(source: str) -> _CompiledTemplate:
    from jinja2 import nodes

    from pelton.text.template_limits import MAX_SOURCE_CHARACTERS, TemplateBudget, TemplateLimitError
    from pelton.text.template_sandbox import LimitedEnvironment, count_literal_characters, instrument

    if len(source) > MAX_SOURCE_CHARACTERS:
        raise TemplateLimitError(
            f"the chat template has {len(source)} characters; allowed: at most {MAX_SOURCE_CHARACTERS}"
        )
    environment = LimitedEnvironment(TemplateBudget())
    template = environment.parse(source)
    takes_parts, needs_parts = _find_part_handling(template)
    takes_tools = any(name.name == "tools" for name in template.find_all(nodes.Name))
    num_literal_characters = count_literal_characters(template)
    code = environment.compile(instrument(template), filename="<chat template>")
    return _CompiledTemplate(code, num_literal_characters, takes_parts, needs_parts, takes_tools)


def _render(compiled: _CompiledTemplate, variables: dict[str, object]) -> str:
    from pelton.text.template_limits import TemplateBudget
    from pelton.text.template_sandbox import LimitedEnvironment

    messages = variables["messages"]
    assert isinstance(messages, list)
    for message in messages:
        message["content"] = _adapt_content(message["content"], compiled)
    budget = TemplateBudget(sum(map(_count_characters, variables.values())))
    environment = LimitedEnvironment(budget, compiled.num_literal_characters)
    template = environment.template_class.from_code(environment, compiled.code, environment.make_globals(None))
    pieces, num_characters = [], 0
    for piece in template.generate(variables):
        num_characters += len(piece)
        budget.check_text(num_characters)
        pieces.append(piece)
    return "".join(pieces)


def _copy_messages(messages: Sequence[Mapping[str, object]]) -> list[object]:
    """Check messages and copy them into plain lists, dictionaries and texts, the only types a template may see."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidParameterError("messages", messages, 'a list of {"role": ..., "content": ...}')
    copies: list[object] = []
    for index, message in enumerate(messages):
        name = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidParameterError(name, message, 'an object {"role": ..., "content": ...}')
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidParameterError(f"{name}.role", role, "a text such as system, user or assistant")
        copy = {str(key): _copy(value, f"{name}.{key}") for key, value in message.items()}
        copy["content"] = _check_content(copy.get("content"), f"{name}.content")
        copies.append(copy)
    return copies


def _check_content(content: object, name: str) -> str | list[object]:
    """Return a content as text or as list of text parts; None is an empty text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidParameterError(name, content, 'a text, null, or a list of {"type": "text", "text": ...}')
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise InvalidParameterError(f"{name}[{index}]", part, '{"type": "text", "text": ...}; other types are none')
        if not isinstance(part.get("text"), str):
            raise InvalidParameterError(f"{name}[{index}].text", part.get("text"), "a text")
    return content


def _adapt_content(content: object, compiled: _CompiledTemplate) -> object:
    if isinstance(content, list) and not compiled.takes_parts:
        return PART_SEPARATOR.join(part["text"] for part in content)
    if isinstance(content, str) and compiled.needs_parts:
        return [{"type": "text", "text": content}]
    return content


def _copy(value: object, name: str, depth: int = 0) -> object:
    if depth > _MAX_INPUT_DEPTH:
        raise InvalidParameterError(name, "a value", f"values nested at most {_MAX_INPUT_DEPTH} deep")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _copy(entry, name, depth + 1) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_copy(entry, name, depth + 1) for entry in value]
    raise InvalidParameterError(name, value, "texts, numbers, lists and objects of these")


def _count_characters(value: object) -> int:
    """Characters of all texts in a plain value; anything else counts as a few."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _count_characters(entry) for key, entry in value.items())
    return 8 + (sum(map(_count_characters, value)) if isinstance(value, list) else 0)


def _find_part_handling(template: nodes.Template) -> tuple[bool, bool]:
    """Tell whether a template loops over the parts of a content, and whether it cannot do with a text instead.

    A loop over `content`, or over a variable set to one, goes through parts; a template that does this and never asks
    whether something is a string has no other way.
    """
    from jinja2 import nodes

    names = {"content"}
    for assignment in template.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, names):
            names.add(assignment.target.name)
    takes_parts = any(_is_content(loop.iter, names) for loop in template.find_all(nodes.For))
    asks = any(test.name in ("string", "iterable", "sequence", "mapping") for test in template.find_all(nodes.Test))
    return takes_parts, takes_parts and not asks


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    from jinja2 import nodes

    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"
