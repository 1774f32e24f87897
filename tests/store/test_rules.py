from __future__ import annotations

import json

import pytest
from hypothesis import given

from tests import factories as make
from tests.strategies import episodes
from tests.wire.grammar import texts
from tracestore.store.rules import PROMPT, BadRules, Rule, read_rules, redact, spread, without_ids
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.encode import encode
from tracestore.wire.episode import Episode
from tracestore.wire.events import AnyEvent

KEY = r"sk-[A-Z0-9]+"


def rules(*values: dict[str, object]) -> tuple[Rule, ...]:
    return read_rules(json.dumps(list(values)))


def redacted_meta(text: str, *values: dict[str, object]) -> str:
    found = redact(with_meta(Raw(text.encode())), rules(*values))
    assert found is not None
    assert found.event.meta is not None
    return found.event.meta.decode()


def with_meta(meta: Raw) -> Episode:
    event = make.episode("e")
    return Episode.model_construct(_fields_set={"id", "meta"}, **{**dict(event), "meta": meta})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{ "a" : "x sk-A1 y",\n "b":1e400 }', '{ "a" : "x [redacted:key] y",\n "b":1e400 }'),
        (r'["\u0073k-A1", "\ud800 sk-A1"]', r'["[redacted:key]", "\ud800 [redacted:key]"]'),
        ('{"sk-A1": 1, "sk-A2": 2}', '{"[redacted:key]": 1, "[redacted:key] 2": 2}'),
        ('"sk-A1sk-A1"', '"[redacted:key]"'),
    ],
)
def test_what_a_pattern_finds_is_replaced_and_all_else_stays_byte_for_byte(before: str, after: str) -> None:
    assert redacted_meta(before, {"name": "key", "pattern": KEY + "(sk-A1)?"}) == after


def test_a_number_that_a_pattern_finds_becomes_text() -> None:
    assert redacted_meta("[4111111111111111, 42]", {"name": "card", "pattern": "[0-9]{16}"}) == (
        '["[redacted:card]", 42]'
    )


@pytest.mark.parametrize(
    ("path", "after"),
    [
        ("meta.user", '{"user":"[redacted:p]","list":[{"user":"b"},{"user":"c"}]}'),
        ("meta.list.*.user", '{"user":"a","list":[{"user":"[redacted:p]"},{"user":"[redacted:p]"}]}'),
        ("meta.list.1", '{"user":"a","list":[{"user":"b"},"[redacted:p]"]}'),
        ("**.user", '{"user":"[redacted:p]","list":[{"user":"[redacted:p]"},{"user":"[redacted:p]"}]}'),
        ("meta", '"[redacted:p]"'),
    ],
)
def test_a_path_names_what_lies_there(path: str, after: str) -> None:
    text = '{"user":"a","list":[{"user":"b"},{"user":"c"}]}'
    assert redacted_meta(text, {"name": "p", "path": path}) == after


def test_path_and_pattern_name_what_is_found_there_or_below() -> None:
    text = '{"a":["sk-A1",{"b":"sk-A2"}],"c":"sk-A3"}'
    after = '{"a":["[redacted:key]",{"b":"[redacted:key]"}],"c":"sk-A3"}'
    assert redacted_meta(text, {"name": "key", "path": "meta.a", "pattern": KEY}) == after


def test_the_kinds_of_a_rule_are_the_only_ones_it_holds_for() -> None:
    gap = make.gap("g", detail="sk-A1")
    assert redact(gap, rules({"name": "key", "pattern": KEY, "kinds": ["call"]})) is None
    found = redact(gap, rules({"name": "key", "pattern": KEY, "kinds": ["gap"]}))
    assert found is not None
    assert found.values == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Expecting"),
        ("[" * 100_000, "recursion"),
        ("[]", "at least one"),
        ('[{"name": "a"}]', "a path, a pattern, or both"),
        ('[{"name": "a", "pattern": "("}]', "no regular expression"),
        ('[{"name": "a", "pattern": "red"}]', "stands in its place"),
        ('[{"name": "a", "path": "a..b"}]', "one dot"),
        ('[{"name": "a", "path": "a", "kinds": ["cal"]}]', "no event is of kind"),
        ('[{"name": "a", "path": "a"}, {"name": "a", "path": "b"}]', "one name"),
        ('[{"name": "A b", "path": "a"}]', "pattern"),
        ('[{"name": "a", "path": "a", "with": "x"}]', "not permitted"),
    ],
)
def test_rules_that_cannot_be_used_are_refused(text: str, problem: str) -> None:
    with pytest.raises(BadRules, match=problem):
        read_rules(text)


@given(text=texts())
def test_json_of_any_spelling_is_copied_where_nothing_is_found(text: bytes) -> None:
    assert redact(with_meta(Raw(text)), rules({"name": "x", "pattern": "never found \x07"})) is None
    assert redact(with_meta(Raw(text)), rules({"name": "x", "path": "**.no such key"})) is None


@given(events=episodes(max_calls=3))
def test_redacting_the_redacted_changes_nothing(events: list[AnyEvent]) -> None:
    some = rules({"name": "v", "pattern": "[aeiou]+x?(?![^\\[]*\\])"}, {"name": "u", "path": "**.content"})
    for event in events:
        found = redact(event, some)
        if found is not None:
            again = redact(found.event, some)
            assert again is None or encode(again.event) == encode(found.event)


def test_ids_that_spell_redacted_text_are_named_and_taken_out() -> None:
    call = make.call(
        "c",
        [make.user("my key is sk-A1")],
        make.answer("no key", ids=[7]),
        make.answer("it is sk-A1", ids=[8, 9]),
        prompt_ids=[1, 2],
    )
    found = redact(call, rules({"name": "key", "pattern": KEY}))
    assert found is not None
    assert found.spelled == {PROMPT, 1}
    kept = without_ids(found.event, found.spelled)
    assert isinstance(kept, Call)
    assert kept.prompt_token_ids is None
    assert [body.token_ids is None for body in kept.completions or ()] == [False, True]
    assert [body.logprobs is None for body in kept.completions or ()] == [False, True]


def test_what_no_model_reads_leaves_the_ids() -> None:
    call = make.call("c", [make.user("hi")], prompt_ids=[1], params={"user": "sk-A1"})
    found = redact(call, rules({"name": "key", "pattern": KEY}))
    assert found is not None
    assert found.spelled == frozenset()


def test_calls_that_follow_a_redacted_one_by_its_context_read_it_too() -> None:
    calls = [
        make.call("a", [make.user("x")]),
        make.call("b", [make.user("y")], parent="a", delta=True),
        make.call("c", [make.user("z")], parent="b", delta=True),
        make.call("d", [make.user("x")], parent="a"),
    ]
    found = spread(calls, {"a": frozenset({PROMPT})})
    assert {name: set(some) for name, some in found.items()} == {"a": {PROMPT}, "b": {PROMPT}, "c": {PROMPT}}


def test_a_call_that_follows_another_completion_than_the_redacted_one_did_not_read_it() -> None:
    one = make.call("b", [make.user("y")], parent="a", completion=0, delta=True)
    other = make.call("c", [make.user("y")], parent="a", completion=1, delta=True)
    assert spread([one, other], {"a": frozenset({1})}).keys() == {"a", "c"}
