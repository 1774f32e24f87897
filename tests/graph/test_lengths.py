"""How many tokens each message of a context took, as far as recorded ids tell."""

from __future__ import annotations

from hypothesis import given

from tests.factories import answer, assistant, call, user
from tests.scenarios import SCENARIOS
from tests.strategies import episodes
from tracestore.graph.build import build
from tracestore.graph.lengths import Stretch, stretches
from tracestore.graph.tokens import prompt_ids
from tracestore.wire.events import AnyEvent

U, A, V = user("u"), assistant("a"), user("v")


@given(episodes())
def test_the_pieces_are_the_context_and_their_lengths_add_up_to_what_was_read(events: list[AnyEvent]) -> None:
    graph = build(events)
    for call_id in graph.calls.keys() - graph.pending:
        found = stretches(graph, call_id)
        last = graph.prompt_node[call_id]
        ends = [0, *(one.end for one in found)]
        assert [one.first for one in found] == ends[:-1]
        assert ends[-1] == (0 if last is None else graph.nodes[last].depth + 1)
        ids = prompt_ids(graph, call_id)
        if ids is not None:
            known = [one.tokens for one in found if one.tokens is not None]
            assert (len(known), sum(known)) == (len(found), len(ids))
        else:
            assert all(one.tokens is None or one.is_sampled for one in found)


def test_what_a_chain_of_calls_read_tells_its_messages_apart() -> None:
    # Messages of 8 ids take 8 + 4, an answer 16, what is read before an answer 2.
    found = stretches(build(SCENARIOS["linear"]().events), "c2")
    assert found == (
        Stretch(0, 2, 12 + 12 + 2),
        Stretch(2, 3, 16, is_sampled=True),
        Stretch(3, 4, 1 + 12 + 2),
        Stretch(4, 5, 16, is_sampled=True),
        Stretch(5, 6, 1 + 12 + 2),
    )


def test_of_a_context_that_was_read_as_other_ids_only_the_sum_is_known() -> None:
    graph = build(SCENARIOS["retokenized_parent"]().events)
    ids = prompt_ids(graph, "b")
    assert ids is not None
    assert stretches(graph, "b") == (Stretch(0, 4, len(ids)),)


def test_without_prompt_ids_only_answers_have_a_length() -> None:
    events = [
        call("c0", [U], answer("a", ids=[5, 6, 7]), ordinal=0),
        call("c1", [U, A, V], "b", ordinal=1),
    ]
    assert stretches(build(events), "c1") == (
        Stretch(0, 1, None),
        Stretch(1, 2, 3, is_sampled=True),
        Stretch(2, 3, None),
    )


def test_tokens_after_the_last_message_are_the_templates() -> None:
    events = [
        call("c0", [U], answer("a", ids=[5]), prompt_ids=[1, 2], ordinal=0),
        call("c1", [U, A], "b", prompt_ids=[1, 2, 5, 9], ordinal=1),
    ]
    assert stretches(build(events), "c1") == (
        Stretch(0, 1, 2),
        Stretch(1, 2, 1, is_sampled=True),
        Stretch(2, 2, 1),
    )


def test_of_a_call_whose_parent_has_not_come_nothing_is_told() -> None:
    assert stretches(build([call("c1", [V], parent="c0", delta=True)]), "c1") == ()
