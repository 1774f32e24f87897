"""What a context edit replaced, who wrote the replacement, and what vanished."""

from __future__ import annotations

from tests.factories import assistant, call, compaction, raw, system, tool, tool_use, user
from tests.scenarios import SCENARIOS
from tracestore.graph.build import build
from tracestore.graph.compaction import compactions, edits_behind

S, U = system("s"), user("u")


def test_a_summary_replaces_the_turns_that_vanish() -> None:
    (found,) = compactions(build(SCENARIOS["compaction"]().events))
    assert found.author == ("sum", 0)
    assert found.replaced == (("c0", 0), ("c1", 0), ("c2", 0))
    assert found.vanished is not None
    assert [message.author for message in found.vanished] == [("c0", 0), None, ("c1", 0), None, ("c2", 0)]
    assert found.kept == 2  # system and task
    assert found.added is not None
    assert [message.raw for message in found.added] == [raw(user("Summary: summary text"))]


def test_replaced_completions_follow_from_what_vanished_where_the_edit_does_not_say() -> None:
    edit = compaction(edit="truncation", before_call_id="c1", after_call_id="c2")
    events = [
        call("c0", [S, U], "a", ordinal=0),
        call("c1", [S, U, assistant("a"), U], "b", ordinal=1),
        call("c2", [S, U, assistant("b"), U], "c", ordinal=2),
        edit,
    ]
    (found,) = compactions(build(events))
    assert found.replaced == (("c0", 0),)
    assert found.vanished is not None
    assert [message.raw for message in found.vanished] == [raw(assistant("a"))]
    assert found.author is None


def test_a_cleared_tool_result_vanishes_and_its_placeholder_is_added() -> None:
    use = assistant(None, tool_calls=[tool_use("run")])
    events = [
        call("c0", [U, use, tool("long output")], ordinal=0),
        call("c1", [U, use, tool("[cleared]")], ordinal=1),
        compaction(edit="tool_result_clearing", before_call_id="c0", after_call_id="c1"),
    ]
    (found,) = compactions(build(events))
    assert found.vanished is not None
    assert found.added is not None
    assert [m.raw for m in found.vanished] == [raw(tool("long output"))]
    assert [m.raw for m in found.added] == [raw(tool("[cleared]"))]


def test_a_message_that_stood_twice_and_stands_once_vanished_once() -> None:
    events = [
        call("c0", [S, U, U], ordinal=0),
        call("c1", [S, U], ordinal=1),
        compaction(edit="truncation", before_call_id="c0", after_call_id="c1"),
    ]
    (found,) = compactions(build(events))
    assert found.vanished is not None
    assert len(found.vanished) == 1
    assert found.kept == 2


def test_what_is_not_known_is_none() -> None:
    rejected = compaction(status="rejected", before_call_id="c0", author_call_id="gone")
    (found,) = compactions(build([call("c0", [S, U], "a"), rejected]))
    assert (found.author, found.replaced, found.vanished, found.kept, found.added) == (None,) * 5


def test_a_context_says_which_edit_brought_which_of_its_messages() -> None:
    behind, brought = edits_behind(build(SCENARIOS["compaction"]().events), "d1")
    # system, task, SUMMARY, answer of d0, observation
    assert ([one.edit.id for one in behind], brought) == (["edit1"], {2: "edit1"})


def test_a_summary_that_a_later_edit_kept_is_still_of_the_edit_that_brought_it() -> None:
    first, second = user("summary 1"), user("summary 2")
    events = [
        call("c0", [S, U], "a", ordinal=0),
        call("c1", [S, first], "b", ordinal=1),
        call("c2", [S, first, assistant("b"), U], "c", ordinal=2),
        call("c3", [S, first, second, U], "d", ordinal=3),
        compaction("e1", before_call_id="c0", after_call_id="c1", status="accepted"),
        compaction("e2", before_call_id="c2", after_call_id="c3", status="accepted"),
        compaction("e3", before_call_id="c0", after_call_id="c3", status="rejected"),
    ]
    graph = build(events)
    assert [one.edit.id for one in edits_behind(graph, "c3")[0]] == ["e2", "e1"]
    assert edits_behind(graph, "c3")[1] == {1: "e1", 2: "e2"}
    # The same words, said again after the edit, are no part of it.
    assert edits_behind(graph, "c2")[1] == {1: "e1"}
    assert edits_behind(graph, "c0") == ((), {})


def test_words_that_an_edit_brought_and_that_are_said_again_are_told_apart() -> None:
    events = [
        call("c0", [S, U], "a", ordinal=0),
        call("c1", [S, user("go on")], "b", ordinal=1),
        call("c2", [S, user("go on"), assistant("b"), user("go on")], "c", ordinal=2),
        compaction("e1", before_call_id="c0", after_call_id="c1"),
    ]
    assert edits_behind(build(events), "c2")[1] == {1: "e1"}
