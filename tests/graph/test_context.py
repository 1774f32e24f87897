"""What a call saw, byte for byte, and who wrote it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.factories import answer, assistant, call, completion, raw, system, user
from tests.strategies import Recording, recordings
from tracestore.graph.build import build
from tracestore.graph.context import answer_in_context, authors_on_path, context
from tracestore.wire.base import Raw

S, U = system("s"), user("u")


@settings(max_examples=40)
@given(recordings())
def test_a_context_is_what_the_call_saw_byte_for_byte(recording: Recording) -> None:
    graph = build(recording.events)
    for call_id in graph.calls.keys() - graph.pending:
        assert tuple(message.raw for message in context(graph, call_id)) == recording.contexts[call_id]


@settings(max_examples=40)
@given(recordings(may_omit_parents=False))
def test_authors_are_the_calls_that_are_continued(recording: Recording) -> None:
    graph = build(recording.events)
    for call_id, link in graph.links.items():
        authors = [message.author for message in context(graph, call_id) if message.author]
        if link.exact:
            assert authors[-1] == recording.parents[call_id]
        for author in authors:
            assert graph.calls[author[0]].agent_id == graph.calls[call_id].agent_id


def test_a_delta_sees_its_parents_bytes_and_not_its_own_spelling_of_them() -> None:
    said = Raw(b'{"content" : "\\u0061", "role":"assistant"}')
    first = Raw(b'{"role":"user","content":1e400}')
    graph = build(
        [
            call("c0", [first], answer(said)),
            call("c1", [U], answer("b"), parent="c0", delta=True),
            call("c2", [Raw(b'{ "role":"user" }')], parent="c1", delta=True),
        ]
    )
    seen = context(graph, "c2")
    assert [m.raw for m in seen] == [first, said, raw(U), raw(assistant("b")), b'{ "role":"user" }']
    assert [m.author for m in seen] == [None, ("c0", 0), None, ("c1", 0), None]
    assert [m.node for m in seen] == [node.key for node in graph.path(graph.prompt_node["c2"])]


def test_a_whole_context_that_echoes_an_answer_shows_its_own_bytes_and_the_author() -> None:
    echo = Raw(b'{"content":"a","role":"assistant","refusal":null}')
    graph = build([call("c0", [S, U], "a"), call("c1", [S, U, echo, U])])
    assert [(m.raw, m.author) for m in context(graph, "c1")][2] == (echo, ("c0", 0))


def test_a_context_after_a_completion_whose_call_has_not_come_is_read_without_its_author() -> None:
    graph = build([completion("c0", 0, "a"), call("c1", [S, U, assistant("a"), U], parent="c0")])
    assert [m.author for m in context(graph, "c1")] == [None] * 4
    assert authors_on_path(graph, "c1") == {}
    [said] = answer_in_context(graph, ("c0", 0))
    assert (said.raw, said.node, said.author) == (raw(assistant("a")), None, ("c0", 0))


def test_a_pending_call_shows_its_own_messages_without_a_place() -> None:
    graph = build([call("c1", [U], parent="c0", delta=True)])
    assert [(m.raw, m.node, m.author) for m in context(graph, "c1")] == [(raw(U), None, None)]


def test_authors_behind_a_rewritten_answer_are_still_known() -> None:
    """c2 continues c1, whose answer it changed; the answer before it is c0's, word for word."""
    graph = build(
        [
            call("c0", [U], "a"),
            call("c1", [U, assistant("a"), U], "b", parent="c0"),
            call("c2", [U, assistant("a"), U, assistant("changed"), U], parent="c1"),
        ]
    )
    assert authors_on_path(graph, "c2") == {1: ("c0", 0)}


def test_all_items_of_a_responses_answer_have_its_author() -> None:
    items = [{"type": "reasoning", "summary": []}, {"type": "message", "role": "assistant", "content": "hi"}]
    first = call("c0", raw({"input": "u"}), answer(raw(items)), dialect="openai_responses")
    follows = call(
        "c1",
        raw({"input": [{"role": "user", "content": "u"}, *items, U]}),
        dialect="openai_responses",
    )
    graph = build([first, follows])
    assert [m.author for m in context(graph, "c1")] == [None, ("c0", 0), ("c0", 0), None]
    assert [m.raw for m in answer_in_context(graph, ("c0", 0))] == [raw(item) for item in items]


def test_named_parents_in_a_circle_end_the_search_for_authors() -> None:
    graph = build([call("a", [U], "x", parent="b"), call("b", [U], "x", parent="a")])
    assert [m.author for m in context(graph, "a")] == [None]


def test_an_unknown_call_has_no_context() -> None:
    with pytest.raises(KeyError):
        context(build([call("c")]), "d")
