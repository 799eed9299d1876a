"""Templates that would run on or grow without bound, each by another way."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rtcore.text import budget
from rtcore.text.budget import MAX_CHARACTERS, TemplateTooCostly
from rtcore.text.sandbox import ChatSandbox

LONG = "{% set b = 'x' * 8000000 %}"
DOUBLING = "{% set ns = namespace(x=START) %}{% for i in range(100) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"

COSTLY = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 40 }}{% endfor %}",
    "branching macros": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(40) }}",
    "slow comparisons": LONG + "{% for i in range(99999) %}{% if 'abc' in b %}{% endif %}{% endfor %}",
    "long output": "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "product": "{{ 'a' * 10000000000 }}",
    "product of a list": "{{ [1] * 10000000000 }}",
    "doubling by ~": DOUBLING.replace("START", "'ab'").replace("STEP", "ns.x ~ ns.x"),
    "doubling by +": DOUBLING.replace("START", "'ab'").replace("STEP", "ns.x + ns.x"),
    "doubling lists": DOUBLING.replace("START", "[1]").replace("STEP", "ns.x + ns.x"),
    "doubling by nesting": DOUBLING.replace("START", "[1]").replace("STEP", "[ns.x, ns.x]"),
    "nested, as JSON": DOUBLING.replace("START", "[1]")
    .replace("STEP", "[ns.x, ns.x]")
    .replace("ns.x }}", "ns.x|tojson }}"),
    "squaring": DOUBLING.replace("START", "10").replace("STEP", "ns.x * ns.x"),
    "power": "{{ 10 ** 100000 ** 2 }}",
    "kept slices": LONG + "{% set l = b|list %}{% for i in range(99) %}{% set l = l[1:] %}{% endfor %}",
    "center": "{{ 'a'|center(10000000000) }}",
    "ljust": "{{ 'a'.ljust(10000000000) }}",
    "indent": "{% set b = 'x\n' * 4000000 %}{{ b|indent(4000) }}",
    "indent by text": "{% set b = 'x\n' * 4000 %}{{ b|indent(b) }}",
    "replace": LONG + "{{ b|replace('x', b) }}",
    "replace method": LONG + "{{ b.replace('x', b) }}",
    "join": LONG + "{{ range(99999)|map('string')|join(b) }}",
    "join method": LONG + "{{ b.join(range(99999)|map('string')) }}",
    "join by attribute": LONG + "{{ ([{'a': b}] * 99999)|join(attribute='a') }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent from an argument": "{{ '%*d' % (10000000000, 1) }}",
    "format filter": "{{ '%10000000000d'|format(1) }}",
    "format": "{{ '{:10000000000}'.format(1) }}",
    "format from an argument": "{{ '{:{}}'.format(1, 10000000000) }}",
    "batch": "{{ [1]|batch(10000000000, 1)|list }}",
    "slice": "{{ [1]|slice(10000000000)|list }}",
    "repeated text": LONG + "{{ [b] * 1000 }}",
}


@pytest.mark.parametrize("way", COSTLY)
def test_a_costly_template_is_stopped(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_STEPS", 50_000)
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.5)
    sandbox = ChatSandbox()
    template = sandbox.compile_template(COSTLY[way])
    with pytest.raises(TemplateTooCostly):
        sandbox.render(template, {})


def test_time_is_the_threads_own_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.3)
    sandbox = ChatSandbox()
    template = sandbox.compile_template(COSTLY["slow comparisons"])
    started = time.thread_time()
    with pytest.raises(TemplateTooCostly, match="seconds"):
        sandbox.render(template, {})
    # Between two steps lies one comparison of eight million characters at most.
    assert time.thread_time() - started < 0.3 + 1


def test_a_large_conversation_is_affordable() -> None:
    sandbox = ChatSandbox()
    template = sandbox.compile_template(
        "{% set ns = namespace(last='') %}"
        "{% for m in messages %}{% set ns.last = m.content|trim %}{{ m.role ~ ': ' + ns.last }}"
        "{{ messages[loop.index:]|length }}{{ '\n' if not loop.last }}{% endfor %}"
    )
    messages = [{"role": "user", "content": " word" * 400} for _ in range(2500)]
    assert MAX_CHARACTERS / 2 < len(sandbox.render(template, {"messages": messages})) < MAX_CHARACTERS


def test_concatenation_and_loops_mean_what_they_mean_elsewhere() -> None:
    sandbox = ChatSandbox()
    source = (
        "{{ 1 ~ none ~ 'a' ~ [1] }} {% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.length }}{% endfor %} "
        "{% for x in [3, 4] %}{{ loop.index }}{{ loop.last }}{{ loop.nextitem }}{% else %}none{% endfor %} "
        "{% for x in missing %}{% else %}none{% endfor %} {{ [1, 2, 3][::-1] }} {{ 'abc'[1:] }} "
        "{{ [{'a': 'x'}, {'a': 'y'}]|join('-', attribute='a') }} {{ ['a', 1]|join }} {{ '%s=%d'|format('a', 1) }}"
    )
    assert sandbox.render(sandbox.compile_template(source), {}) == (
        "1Nonea[1] a11 1False42True none [3, 2, 1] bc x-y a1 a=1"
    )


def test_renderings_in_threads_have_budgets_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_STEPS", 20_000)
    sandbox = ChatSandbox()
    template = sandbox.compile_template("{% for i in range(n) %}{{ i % 2 }}{% endfor %}")

    def length(n: int) -> int | None:
        try:
            return len(sandbox.render(template, {"n": n}))
        except TemplateTooCostly:
            return None

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(length, [9_000, 30_000] * 8)) == [9_000, None] * 8
