"""Chat templates: what they print, against plain Jinja with Hugging Face's settings; contents, BOS, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pelton.core.errors import ChatTemplateError, InvalidParameterError
from pelton.text.chat_template import ChatTemplate
from pelton.text.gguf_vocab import build_gguf_tokenizer
from pelton.text.tokenizer import encode_chat

Metadata = dict[str, object]
Make = Callable[..., Metadata]
Message = dict[str, object]
CHAT: list[Message] = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Why is <b>it</b> 'so'?"},
    {"role": "assistant", "content": "<think>hm</think>\n\nBecause."},
    {"role": "user", "content": "\u6f22\U0001f980"},
]
TOOLS: list[Message] = [
    {"type": "function", "function": {"name": "find", "parameters": {"properties": {"q": {"type": "string"}}}}}
]

# In the manner of the families' templates: ChatML, Llama 2, Llama 3 with tools, Gemma, Qwen3, Mistral.
TEMPLATES = {
    "chatml": "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ 'default' }}{% endif %}"
    "{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% if loop.index0 == 0 and system_message %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
    "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}"
    "{{ ' ' ~ content.strip() ~ ' ' ~ eos_token }}{% endif %}{% endfor %}",
    "llama3": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- set system_message = messages[0]['content']|trim %}
{%- set messages = messages[1:] %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message ~ "<|eot_id|>" + date_string }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim }}
    {%- endif %}
{%- endfor %}
""",
    "qwen3": """{%- macro show(content) %}{{ content if content is string else content|tojson }}{% endmacro %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" and '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {{- reasoning|upper }}
    {%- endif %}
    {%- if loop.last or loop.index0 > ns.last_query_index %}{{- '!' }}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + show(content) + '<|im_end|>\\n' }}
{%- endfor %}
{{- ns.last_query_index }}
""",
    "mixed": """{% set roles = {'user': 'U', 'assistant': 'A'} %}{% set names = ['a', 'b'] + ['c'] * 2 %}
{% for role, group in messages|groupby('role') %}
{{ roles.get(role, role) }}={{ group|map(attribute='content')|join(';') }}
{% endfor %}
{{ names }}|{{ names|join(', ') }}|{{ names|reverse|first }}|{{ (1, 'x') }}|{{ 7 // 2 }}|{{ 7 / 2 }}|{{ 2 ** 10 }}
{% for key, value in roles.items() %}
{{ loop.index }}/{{ loop.length }}:{{ key|capitalize }}{{ value }}{% if not loop.last %},{% endif %}
{% endfor %}
{% for x in range(9) if x is odd %}{% if x > 5 %}{% break %}{% endif %}{{ x }}{{ loop.cycle('-', '+') }}{% endfor %}
{{ "%s has %05.1f" % ("it", 2.5) }} {{ "{:>5}|{n}".format("r", n=3) }} {{ "%d"|format(3) }}
{{ none }} {{ missing }} {{ true }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }}
{{ 'a b'|title|replace('A', 'x')|indent(2) }} {{ 'a\n\nb'|indent(3, true) }} {{ 'a\n\nb\n'|indent('>', blank=true) }}
{% filter upper %}loud {{ 'er' }}{% endfilter %}{% set block %}in a {{ 'block' }}{% endset %}{{ block|length }}
{% macro twice(x, sep='-') %}{{ x }}{{ sep }}{{ caller() if caller else x }}{% endmacro %}
{{ twice('m') }}{% call twice('n') %}c{% endcall %}{{ twice(sep='/', x='k') }}
{{ 'abcdef'[1:4] }}{{ 'abc'[::-1] }} {{ [3, 1, 2]|sort }} {{ [1, 2, 3]|sum }} {{ 3.14159|round(2) }}
{{ '42'|int + 1 }} {{ 'x'|int(7) }} {{ '2.9'|int }} {{ 'ff'|int(base=16) }} {{ 2.5|round }} {{ 'x'|center(5) }}|
{% for row in [1, 2, 3]|batch(2, 0) %}{{ row }}{% endfor %}{% for row in [1, 2, 3]|slice(2) %}{{ row }}{% endfor %}
{{ [[1, 2], [3]]|sum(start=[]) }}{{ {'b': 1, 'a': 2}|dictsort }}{{ ['x'] | tojson }}{{ messages|tojson(indent=2) }}
{% for item in [[1, [2]], [3]] recursive %}{{ loop.depth }}{% if item is iterable %}{{ loop(item) }}{% endif %}
{% endfor %}{% for row in [1, 2, 3, 4, 5, 6, 7]|slice(3, '-') %}{{ row }}{% endfor %}
""",
}


def render_with_plain_jinja(source: str, **variables: object) -> str:
    """Render as transformers does (utils/chat_template_utils.py), without any of Pelton's limits."""

    def tojson(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    return environment.from_string(source).render(**variables)


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_text_is_that_of_plain_jinja(name: str, tools: list[Message] | None) -> None:
    expected = render_with_plain_jinja(
        TEMPLATES[name], messages=CHAT, tools=tools, bos_token="<s>", eos_token="</s>", add_generation_prompt=True
    )
    template = ChatTemplate(TEMPLATES[name], bos_token="<s>", eos_token="</s>")
    assert template.render(CHAT, tools=tools) == expected
    assert template.render(CHAT, tools=tools) == expected


def test_generation_prompt_can_be_left_out() -> None:
    template = ChatTemplate(TEMPLATES["chatml"])
    assert template.render(CHAT).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert template.render(CHAT, add_generation_prompt=False).endswith("\U0001f980<|im_end|>\n")


def test_lines_of_blocks_leave_no_blank_lines() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend\n"
    assert ChatTemplate(source).render([{"role": "user", "content": "x"}] * 2) == "x\nx\nend"


def test_generation_tag_shows_its_body() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}!{% endgeneration %}{% endfor %}"
    assert ChatTemplate(source).render(CHAT[:1]) == "Be brief. !"


def test_date_is_today() -> None:
    rendered = ChatTemplate("{{ strftime_now('%Y-%m') }}").render(CHAT)
    assert rendered == datetime.now().strftime("%Y-%m")


def test_variables_reach_the_template_but_cannot_replace_what_it_gets_anyway() -> None:
    template = ChatTemplate("{{ bos_token }}{{ enable_thinking }}", bos_token="<s>")
    assert template.render(CHAT, variables={"enable_thinking": False}) == "<s>False"
    for name in ("messages", "tools", "bos_token", "eos_token", "add_generation_prompt"):
        with pytest.raises(InvalidParameterError, match=rf"variables\.{name} is"):
            template.render(CHAT, variables={name: []})


STRING_ONLY = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
WITH_PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)
PARTS_ONLY = "{% for m in messages %}{% for part in m['content'] %}<{{ part['text'] }}>{% endfor %}{% endfor %}"
RED_FOX = [{"type": "text", "text": "red"}, {"type": "text", "text": "fox"}]


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (STRING_ONLY, RED_FOX, "[user]red\nfox"),
        (STRING_ONLY, [], "[user]"),
        (STRING_ONLY, "", "[user]"),
        (STRING_ONLY, None, "[user]"),
        (WITH_PARTS, RED_FOX, "[user]<red><fox>"),
        (WITH_PARTS, "red", "[user]red"),
        (WITH_PARTS, [], "[user]"),
        (PARTS_ONLY, RED_FOX, "<red><fox>"),
        (PARTS_ONLY, "red", "<red>"),
    ],
)
def test_content_reaches_the_template_in_the_form_it_takes(source: str, content: object, expected: str) -> None:
    assert ChatTemplate(source).render([{"role": "user", "content": content}]) == expected


def test_message_without_content_is_empty() -> None:
    assert ChatTemplate(STRING_ONLY).render([{"role": "assistant", "tool_calls": []}]) == "[assistant]"


def test_roles_are_the_business_of_the_template() -> None:
    assert ChatTemplate(STRING_ONLY).render([{"role": "critic", "content": "x"}]) == "[critic]x"


def test_message_of_the_template_is_the_message_of_the_error() -> None:
    with pytest.raises(ChatTemplateError, match=r"^Conversation roles must alternate$"):
        ChatTemplate(TEMPLATES["llama2"]).render([{"role": "assistant", "content": "x"}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].content.missing.more }}", "has no attribute 'missing'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ 'a'|nofilter }}", "No filter named 'nofilter'"),
        ("{{ 'a'.index('b') }}", "ValueError"),
    ],
)
def test_failing_template_is_an_error_that_says_why(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source).render(CHAT)


@pytest.mark.parametrize(
    ("messages", "name"),
    [
        ("hello", "messages is"),
        ({"role": "user"}, "messages is"),
        (["hello"], r"messages\[0\] is 'hello'"),
        ([{"content": "x"}], r"messages\[0\].role is None"),
        ([{"role": 3, "content": "x"}], r"messages\[0\].role is 3"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content is 3"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\].content\[0\] is 'x'"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], r"messages\[0\].content\[0\]"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content\[0\].text is None"),
        ([{"role": "user", "content": "x", "extra": object()}], r"messages\[0\].extra"),
    ],
)
def test_what_is_no_list_of_messages_is_named(messages: list[Message], name: str) -> None:
    with pytest.raises(InvalidParameterError, match=name):
        ChatTemplate(STRING_ONLY).render(messages)


def test_messages_of_the_caller_are_not_changed() -> None:
    messages: list[Message] = [{"role": "user", "content": RED_FOX}]
    before = json.dumps(messages)
    ChatTemplate(STRING_ONLY).render(messages)
    assert json.dumps(messages) == before


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("prints_bos", [True, False])
def test_chat_begins_with_one_bos_if_template_or_tokenizer_wants_one(
    make_byte_level: Make, add_bos: bool, prints_bos: bool
) -> None:
    tokenizer = build_gguf_tokenizer(make_byte_level(add_bos_token=add_bos))
    source = ("{{ bos_token }}" if prints_bos else "") + STRING_ONLY
    text = ChatTemplate(source, bos_token=tokenizer.bos_token).render([{"role": "u", "content": "hi"}])
    bos = [tokenizer.bos_token_id] if add_bos or prints_bos else []
    assert encode_chat(tokenizer, text) == [*bos, *b"[u]hi"]
    assert encode_chat(tokenizer, "<s>" + text)[:2] == [tokenizer.bos_token_id, ord("[")]


def test_chat_without_a_bos_token_has_none(make_byte_level: Make) -> None:
    tokenizer = build_gguf_tokenizer(make_byte_level(special=()))
    assert encode_chat(tokenizer, "hi") == list(b"hi")


def test_threads_can_share_a_template() -> None:
    template = ChatTemplate(TEMPLATES["qwen3"])
    chats = [[{"role": "user", "content": f"<think>{i}"}] for i in range(64)]
    with ThreadPoolExecutor(4) as pool:
        rendered = list(pool.map(template.render, chats))
    other = ChatTemplate(TEMPLATES["qwen3"])
    assert rendered == [other.render(chat) for chat in chats]


def test_long_honest_chat_stays_within_the_limits() -> None:
    chat = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " * 500} for i in range(1000)]
    for name in ("chatml", "qwen3"):
        expected = render_with_plain_jinja(TEMPLATES[name], messages=chat, add_generation_prompt=True)
        assert ChatTemplate(TEMPLATES[name]).render(chat) == expected
