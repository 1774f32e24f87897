"""In what two recordings differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.factories import answer, call
from tests.replay.conversations import tape_calls
from tests.replay.test_paths import fork_events, origin_events
from tracestore.graph.build import build
from tracestore.replay.compare import from_parting, of_calls, of_episodes, of_paths
from tracestore.replay.differences import Difference
from tracestore.replay.paths import branch_path, context_path
from tracestore.replay.tape import Recorded


def asked(text: str, said: str, *, id: str = "c0", ordinal: int = 0, read: Sequence[int] = (1, 2, 3)) -> Any:  # noqa: A002
    messages = [{"role": "user", "content": text}]
    return call(id, messages, answer(said, ids=[7, 8]), ordinal=ordinal, prompt_ids=read)


def calls_of(*events: Any) -> list[Recorded]:
    return tape_calls(list(events))


def test_equal_calls_do_not_differ() -> None:
    [one], [other] = calls_of(asked("a", "b")), calls_of(asked("a", "b", id="c9"))
    assert list(of_calls(one, other)) == []


def test_calls_that_ended_in_different_ways_differ() -> None:
    [one] = calls_of(asked("a", "b"))
    other = replace(one, call=one.call.model_copy(update={"status": "aborted"}))
    assert [(one.what, one.difference.path) for one in of_calls(one, other)] == [("outcome", "status")]


def test_what_was_asked_read_and_said_is_told_apart() -> None:
    [one] = calls_of(asked("abc", "yes"))
    [other] = calls_of(asked("abd", "yet", read=(1, 5, 3)))
    told = [(one.what, one.difference) for one in of_calls(one, other)]
    assert told == [
        ("request", Difference("messages[0].content", 2, "abc", "abd")),
        ("prompt tokens", Difference("[1]", None, "2", "5")),
        ("answer 0", Difference("content", 2, "yes", "yet")),
    ]


def test_episodes_differ_agent_by_agent_in_the_order_in_which_each_asked() -> None:
    mine = calls_of(asked("a", "b"), asked("c", "d", id="c1", ordinal=1))
    theirs = calls_of(
        asked("a", "b"), asked("c", "D", id="c1", ordinal=1), asked("e", "f", id="c2", ordinal=2)
    )
    found = list(of_episodes(mine, theirs))
    assert [(one.what, one.calls) for one in found] == [("answer 0", ("c1", "c1")), ("calls", (None, "c2"))]
    assert found[1].difference == Difference("main[2]", None, "(nothing)", "c2")
    assert list(of_episodes(theirs, theirs)) == []


def test_a_fork_is_beside_its_origin_from_the_call_after_the_one_it_names() -> None:
    origin = calls_of(*(asked("a", str(place), id=f"c{place}", ordinal=place) for place in range(3)))
    fork = calls_of(asked("a", "other", id="d"))
    assert [one.call.id for one in from_parting(origin, fork, after="c0")] == ["c1", "c2"]
    assert from_parting(origin, fork, after="c2") == []
    assert from_parting(origin, [], after="c0") == []


def test_where_a_fork_names_no_call_of_an_agent_it_leaves_it_at_the_one_most_like_its_first() -> None:
    origin, fork = calls_of(*origin_events()), calls_of(*fork_events())
    for after in (None, "of another agent"):
        assert [one.call.id for one in from_parting(origin, fork, after=after)] == ["c1", "c2"]


def test_branches_differ_in_their_first_message_and_token() -> None:
    one = branch_path(build(origin_events()), ("c1", 0))
    other = branch_path(build(fork_events()), ("d1", 0))
    assert [(each.what, each.difference) for each in of_paths(one, other, names=("c1/0", "d1/0"))] == [
        ("messages", Difference("messages[3].content", 0, "b", "B")),
        ("tokens", Difference("[4]", None, "21", "22")),
    ]
    assert list(of_paths(one, one, names=("c1/0", "c1/0"))) == []


def test_a_context_that_ends_differs_where_the_other_goes_on() -> None:
    origin = build(origin_events())
    found = list(of_paths(context_path(origin, "c1"), context_path(origin, "c2"), names=("c1", "c2")))
    assert [each.difference for each in found] == [
        Difference("messages[3]", None, "(nothing)", "b"),
        Difference("[4]", None, "(nothing)", "21"),
    ]
