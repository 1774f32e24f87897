from __future__ import annotations

from typing import Any

import pytest

from tracestore.tokens.messages import Unrenderable, Written
from tracestore.tokens.template import BadTemplate, Template

USER = {"role": "user", "content": "<u> & ü"}


def text(source: str, *, now_ns: int | None = None, generation: bool = False, **message: Any) -> str:
    template = Template(source, special_tokens={"eos_token": "</s>"})
    return template.text([{**USER, **message}], tools=None, generation=generation, now_ns=now_ns)


def test_json_is_written_as_it_is_and_once_however_often_it_is_asked_for() -> None:
    arguments = Written({"b": "<ü>", "a": 1})
    source = "{% for i in range(2) %}{{ messages[0].arguments | tojson }}{% endfor %}"
    assert text(source, arguments=arguments) == 2 * '{"b": "<ü>", "a": 1}'
    assert len(arguments.texts) == 1
    assert (
        text("{{ messages[0].arguments | tojson(sort_keys=true) }}", arguments=arguments)
        == '{"a": 1, "b": "<ü>"}'
    )


def test_a_field_is_found_by_its_name_and_a_method_of_dicts_stays_one() -> None:
    source = (
        "{{ messages[0].texts }}|{{ messages[0].absent is defined }}|{{ messages[0].keys() | list | length }}"
    )
    assert text(source, texts="mine") == "mine|False|3"


def test_the_extensions_of_chat_templates_are_there() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}"
        "{% break %}{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    )
    assert text(source) == "<u> & ü</s>"
    assert text(source, generation=True) == "<u> & ü</s>!"


def test_the_date_is_that_of_the_episode() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    assert text(source, now_ns=86_400 * 10**9) == "02 Jan 1970"
    with pytest.raises(Unrenderable, match="asks for the date"):
        text(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + none }}",
        "{{ messages[0].a.b }}",
        "{{ [].append(1) }}",
    ],
)
def test_what_a_template_refuses_or_stumbles_over_is_no_crash(source: str) -> None:
    with pytest.raises(Unrenderable) as error:
        text(source)
    assert error.value.why == "template_refused"


def test_a_template_that_does_not_compile_says_where() -> None:
    with pytest.raises(BadTemplate, match="line=2"):
        Template("\n{% for %}", special_tokens={})
