"""Where two contexts, two branches, a fork and its origin part."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from tests.factories import answer, assistant, call, episode, user
from tests.scenarios import SCENARIOS
from tests.strategies import episodes
from tracestore.graph.branches import branches
from tracestore.graph.build import build
from tracestore.replay.differences import Difference
from tracestore.replay.paths import branch_path, context_path, forked, parting
from tracestore.wire.events import AnyEvent

U, V, W = user("u"), user("v"), user("w")


def origin_events() -> list[AnyEvent]:
    """u -> a -> v -> b -> w -> c, with ids."""
    return [
        episode("e", status="ok"),
        call("c0", [U], answer("a", ids=[11, 12]), prompt_ids=[1], ordinal=0),
        call("c1", [U, assistant("a"), V], answer("b", ids=[21]), prompt_ids=[1, 11, 12, 2], ordinal=1),
        call(
            "c2",
            [U, assistant("a"), V, assistant("b"), W],
            answer("c", ids=[31, 32, 33]),
            prompt_ids=[1, 11, 12, 2, 21, 3],
            ordinal=2,
        ),
    ]


def fork_events(*, after: str = "c0", ids: Any = (22, 23)) -> list[AnyEvent]:
    """The same up to v, then B."""
    return [
        episode("f", status="ok", forked_from_episode_id="e", forked_from_call_id=after),
        call(
            "d1",
            [U, assistant("a"), V],
            answer("B", ids=ids),
            prompt_ids=[1, 11, 12, 2],
            episode="f",
            agent="f/main",
        ),
    ]


def test_two_branches_part_at_the_first_message_byte_and_token() -> None:
    origin, fork = build(origin_events()), build(fork_events())
    found = parting(branch_path(origin, ("c1", 0)), branch_path(fork, ("d1", 0)))
    assert (found.messages, found.tokens, found.is_equal) == (3, 4, False)
    assert found.difference == Difference("content", 0, "b", "B")


def test_a_context_that_the_other_goes_on_from_ends_where_they_part() -> None:
    origin = build(origin_events())
    found = parting(context_path(origin, "c1"), context_path(origin, "c2"))
    assert (found.messages, found.tokens, found.difference, found.is_equal) == (3, 4, None, False)


def test_equal_messages_that_were_read_as_other_ids_are_not_equal() -> None:
    one = build([call("c0", [U], prompt_ids=[1, 2])])
    other = build([call("c0", [U], prompt_ids=[1, 3])])
    unknown = build([call("c0", [U])])
    found = parting(context_path(one, "c0"), context_path(other, "c0"))
    assert (found.messages, found.tokens, found.is_equal) == (1, 1, False)
    found = parting(context_path(one, "c0"), context_path(unknown, "c0"))
    assert (found.messages, found.tokens, found.is_equal) == (1, None, True)


@given(episodes())
def test_every_branch_is_equal_to_itself_and_is_no_fork_of_its_episode(events: list[AnyEvent]) -> None:
    graph = build(events)
    for branch in branches(graph):
        path = (
            context_path(graph, branch.end_call_id) if branch.end is None else branch_path(graph, branch.end)
        )
        found = parting(path, path)
        assert (found.messages, found.is_equal) == (len(branch.nodes), True)
    same = forked(graph, graph)
    if same is not None:
        assert (same.at_fork, same.at_origin) == (None, None)


def test_a_fork_is_set_beside_the_branch_it_left() -> None:
    found = forked(build(origin_events()), build(fork_events()))
    assert found is not None
    assert (found.origin_end, found.fork_end) == (("c2", 0), ("d1", 0))
    assert (found.parting.messages, found.parting.tokens) == (3, 4)
    assert found.at_origin is not None
    assert found.at_fork is not None
    assert (found.at_origin.author, found.at_fork.author) == (("c1", 0), ("d1", 0))
    # After it the origin sampled b and c, 1 + 3 tokens, the fork 2.
    assert (found.sampled_origin, found.sampled_fork) == (1 + 3, 2)


def test_tokens_after_a_fork_are_unknown_where_an_answer_has_no_ids() -> None:
    fork = build([*fork_events()[:1], call("d1", [U, assistant("a"), V], "B", episode="f", agent="f/main")])
    found = forked(build(origin_events()), fork)
    assert found is not None
    assert (found.parting.tokens, found.sampled_fork, found.sampled_origin) == (None, None, 4)


def test_of_several_branches_that_share_as_much_the_one_through_the_named_call_is_taken() -> None:
    def origin(first: str, second: str) -> list[AnyEvent]:
        return [
            episode("e"),
            *(call(id_, [U], answer(id_, ids=[5]), prompt_ids=[1]) for id_ in (first, second)),
        ]

    fork = [
        episode("f", forked_from_episode_id="e", forked_from_call_id="p1"),
        call("d", [U], answer("other", ids=[6]), prompt_ids=[1], episode="f", agent="f/main"),
    ]
    found = forked(build(origin("p0", "p1")), build(fork))
    assert found is not None
    assert found.origin_end == ("p1", 0)
    assert found.parting.messages == 1


def test_an_episode_that_shares_nothing_parts_at_the_first_message() -> None:
    found = forked(build(SCENARIOS["linear"]().events), build(fork_events()))
    assert found is not None
    # Both templates begin with token 1.
    assert (found.parting.messages, found.parting.tokens) == (0, 1)


def test_without_calls_there_is_no_fork() -> None:
    assert forked(build(origin_events()), build(fork_events()[:1])) is None
