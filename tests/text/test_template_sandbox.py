import pytest

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.text import template_sandbox
from paged_jax.text.chat_template import render

CHAT = [{"role": "user", "content": "Hi"}]


def grow(start: str, step: str, times: int = 99) -> str:
    """A template that computes `step` from ns.x again and again and writes the result."""
    return (
        f"{{% set ns = namespace(x={start}) %}}{{% for _ in range({times}) %}}"
        f"{{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x }}}}"
    )


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ (''|attr('__class__')).__mro__ }}",
    "{{ ''['__class__'].__mro__ }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ raise_exception.__globals__.keys() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{% set ns = namespace(__class__=1) %}",
    "{{ dict.mro() }}",
]
TOO_LARGE = [
    "{{ 'x' * 10**9 }}",
    "{{ 'x' * 1000000000 }}",
    "{{ 1000000000 * [1] }}",
    "{{ 10 ** 10000000 }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x'.zfill(1000000000) }}",
    "{{ (1).to_bytes(length=1000000000) }}",
    "{{ [1] | batch(1000000000, 'x') | list }}",
    "{{ 1.5 | round(1000000000, 'ceil') }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, '999999999') }}",
    "{{ strftime_now('%999999999Y') }}",
    "{{ 'x\n' | indent(1000000000) }}",
    "{{ [1] | tojson(indent=1000000) }}",
    "{{ 'x'.expandtabs(1000) }}",
    "{{ ('x' * 9999).replace('x', 'y' * 9999) }}",
    "{{ ('x' * 9999) | replace('x', 'y' * 9999) }}",
    "{{ ('y' * 9999).join(('x' * 9999) | list) }}",
    "{{ ('x' * 9999) | join('y' * 9999) }}",
    "{{ (('y' * 9999) | safe).join(('x' * 9999) | list) }}",
    grow("'xx'", "ns.x ~ ns.x"),
    grow("'xx'", "ns.x + ns.x"),
    grow("[1]", "ns.x + ns.x"),
    grow("9", "ns.x * ns.x"),
    grow("[]", "[ns.x, ns.x]", 30),
    grow("[]", "[ns.x, ns.x]", 30).replace("{{ ns.x }}", "{{ ns.x | tojson }}"),
    grow("'\\\\'", "ns.x | tojson"),
    "{% for _ in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "{% for _ in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "{% set r = range(99999) %}{% set _ %}{% for a in r %}{% for b in r %}"
    + "x" * 9999
    + "{% endfor %}{% endfor %}{% endset %}",
    "x" * 300_000,
]
ENDLESS = [
    "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
]


def refusal(template: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        render(template, CHAT)
    return str(caught.value)


@pytest.mark.parametrize("template", ESCAPES)
def test_way_out_of_the_sandbox_is_closed(template):
    assert refusal(template)


@pytest.mark.parametrize("template", TOO_LARGE, ids=range(len(TOO_LARGE)))
def test_enormous_value_is_refused_before_it_is_made(template):
    assert "costs too much" in refusal(template)


@pytest.mark.parametrize("template", ENDLESS)
def test_endless_template_ends_at_its_deadline(monkeypatch, template):
    monkeypatch.setattr(template_sandbox, "DEADLINE_S", 0.2)
    assert "takes more than 0.2 seconds" in refusal(template)


def test_endless_recursion_is_refused():
    assert "RecursionError" in refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


def test_deeply_nested_template_is_refused():
    assert "RecursionError" in refusal("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}")


def test_long_prompt_is_within_the_budget():
    chat = [{"role": "user", "content": "x" * 20_000}]
    assert len(render(grow("''", "ns.x ~ messages[0].content", 100), chat)) == 2_000_000


@pytest.mark.parametrize(
    "template",
    [
        "{{ x | string }}",
        "{{ x | tojson }}",
        "{{ '%d' % x }}",
        "{{ '{}'.format(x) }}",
        "{{ missing | default(x) }}",
        "{% macro f(n) %}{{ n }}{% endmacro %}{{ f(x) }}",
    ],
)
def test_large_number_is_no_large_size(template):
    assert render(template, CHAT, variables={"x": 1_700_000_000}) == "1700000000"


def test_budget_is_each_renderings_own():
    for _ in range(5):
        assert len(render("{{ ('x' * 1000000) ~ ('y' * 1000000) }}", CHAT)) == 2_000_000
