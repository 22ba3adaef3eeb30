"""Hostile chat templates end soon, take little memory and reach nothing."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pelton.core.errors import ChatTemplateError
from pelton.text import template_limits
from pelton.text.chat_template import ChatTemplate

HANG_S = 60.0  # far below what these would take without the limits
MAX_BYTES = 100 * 10**6
CHAT = [{"role": "user", "content": "hi"}]
DOUBLE = "{% set ns = namespace(s='xxxxxxxx', a=[1], b=[1]) %}{% for i in range(60) %}"

FORBIDDEN = {
    "class": "{{ ''.__class__ }}",
    "class by index": "{{ ''['__class__'] }}",
    "class by map": "{{ ['']|map(attribute='__class__')|list }}",
    "class by format": "{{ '{0.__class__}'.format('') }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "append": "{{ messages.append(1) }}",
    "pop": "{{ messages[0].pop('role') }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}",
    "extends": "{% extends '/etc/passwd' %}",
    "format_map": "{{ '{a}'.format_map({'a': 1}) }}",
    "mro": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "environment": "{{ self._TemplateReference__context.environment }}",
    "namespace text": "{{ namespace(a=1) }}",
    "autoescape": "{% autoescape true %}{% endautoescape %}",
}

TOO_MUCH = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "text times number": "{{ 'x' * 10**9 }}",
    "list times number": "{{ [1] * 10**9 }}",
    "long source": "x" * (1 << 20),
    "many nodes": "{{a}}" * 13_000,
    "power": "{{ 9**99999 }}",
    "product of powers": "{{ 2**4000 * 2**4000 }}",
    "center filter": "{{ 'x'|center(10000000000) }}",
    "center": "{{ 'x'.center(10000000000) }}",
    "zfill": "{{ 'x'.zfill(10000000000) }}",
    "indent": "{{ 'x\n'|indent(1000000000) }}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent precision": "{{ '%.1000000000f' % 1 }}",
    "percent width from value": "{{ '%*d' % (1000000000, 1) }}",
    "format filter": "{{ '%1000000000d'|format(1) }}",
    "format width": "{{ '{:>1000000000}'.format(1) }}",
    "format width from value": "{{ '{:>{w}}'.format(1, w=1000000000) }}",
    "doubled by +": DOUBLE + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubled by ~": DOUBLE + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubled by join": DOUBLE + "{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}",
    "doubled by join method": DOUBLE + "{% set ns.s = ''.join([ns.s, ns.s]) %}{% endfor %}",
    "doubled by replace": DOUBLE + "{% set ns.s = ns.s|replace('x', ns.s) %}{% endfor %}",
    "doubled by replace method": DOUBLE + "{% set ns.s = ns.s.replace('', ns.s) %}{% endfor %}",
    "doubled by block": DOUBLE + "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
    "doubled by format": DOUBLE + "{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
    "nested lists printed": DOUBLE + "{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
    "nested lists compared": DOUBLE
    + "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    "nested tuples hashed": DOUBLE + "{% set ns.a = (ns.a, ns.a) %}{% endfor %}{{ {ns.a: 1} }}",
    "nested objects as JSON": DOUBLE + "{% set ns.a = {'x': ns.a, 'y': ns.a} %}{% endfor %}{{ ns.a|tojson }}",
    "JSON indent": "{{ [[[1]]]|tojson(indent=1000000000) }}",
    "JSON separators": "{{ ([1] * 9999)|tojson(separators=('x' * 99999, 'y')) }}",
    "date width": "{{ strftime_now('%1000000000d') }}",
    "batch": "{{ [1]|batch(1000000000, 'x')|list }}",
    "slice": "{{ [1]|slice(1000000000)|list }}",
    "round": "{{ 1.5|round(1000000000) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "endless block": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "text in a loop": "{% set x %}{% for i in range(99999) %}" + "y" * 30_000 + "{% endfor %}{% endset %}",
    "text in a macro": "{% macro f() %}" + "y" * 30_000 + "{% endmacro %}{% for i in range(99999) %}{% set x = f() %}"
    "{% endfor %}",
    "parentheses": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "attributes": "{{ a" + ".a" * 30_000 + " }}",
    "additions": "{{ 1" + "+1" * 30_000 + " }}",
    "nested loops in the source": "{%for a in b%}" * 2000 + "{%endfor%}" * 2000,
    "slices": "{% set s = 'x' * 1000000 %}" + "".join(f"{{%set a{i}=s[1:]%}}" for i in range(1000)),
}

# These make no large value and print nothing; only the clock stops them.
TOO_LONG = {
    "macro tree": "{% macro f(n) %}{% if n %}{% set a = f(n-1) %}{% set b = f(n-1) %}{% endif %}{% endmacro %}"
    "{{ f(40) }}",
    "recursive loop": "{% for i in [1, 2] recursive %}{% if loop.depth < 40 %}{{ loop([1, 2]) }}{% endif %}"
    "{% endfor %}",
    "search": "{% set a = 'x' * 1000000 %}{% for i in range(99999) %}{% set b = a.find('y') %}{% endfor %}",
    "sort": "{% set a = range(99999)|list %}{% for i in range(99999) %}{% set b = a|sort %}{% endfor %}",
}


def run(source: str) -> str:
    start_s = time.monotonic()
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source).render(CHAT)
    assert time.monotonic() - start_s < HANG_S
    message = str(caught.value)
    assert message
    assert len(message) < 500
    return message


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
def test_template_reaches_nothing_outside(name: str) -> None:
    run(FORBIDDEN[name])


@pytest.mark.parametrize("name", sorted(TOO_MUCH))
def test_template_is_stopped_before_it_takes_time_and_memory(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(TOO_MUCH[name])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < MAX_BYTES


@pytest.mark.parametrize("name", sorted(TOO_LONG))
def test_template_that_never_ends_is_stopped(name: str) -> None:
    # Which limit comes first depends on the machine: its clock, or the budget of work.
    message = run(TOO_LONG[name])
    assert "takes more than 1 s" in message or "does too much work" in message


def test_time_in_which_the_thread_had_to_wait_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(wall_s=100.0, thread_s=5.0)
    times = SimpleNamespace(monotonic=lambda: clock.wall_s, thread_time=lambda: clock.thread_s)
    monkeypatch.setattr(template_limits, "time", times)
    budget = template_limits.TemplateBudget()
    clock.wall_s += 10.0
    clock.thread_s += 0.9
    budget.spend()
    clock.thread_s += 0.2
    with pytest.raises(template_limits.TemplateLimitError, match="takes more than 1 s"):
        budget.spend()


def test_file_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jinja"
    secret.write_text("secret", encoding="utf-8")
    assert "secret" not in run(f"{{% include '{secret.name}' %}}")


def test_limits_grow_with_what_is_rendered() -> None:
    content = "x" * 5_000_000
    text = ChatTemplate("{{ messages[0].content }}{{ messages[0].content }}").render(
        [{"role": "u", "content": content}]
    )
    assert text == content * 2
