"""Law 1 without a store, and what links promise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import agent, answer, assistant, call, completion, episode, group, raw, system, user
from tests.scenarios import SCENARIOS
from tests.strategies import Recording, deliveries, episodes, recordings, split_up
from tracestore.graph.build import SeveralEpisodes, build
from tracestore.graph.model import CompletionKey, Graph, Link
from tracestore.wire.call import Call
from tracestore.wire.events import AnyEvent

S, U = system("s"), user("u")


@given(st.data(), episodes())
def test_a_graph_is_a_function_of_the_set_of_events(data: st.DataObject, events: list[AnyEvent]) -> None:
    batches = data.draw(deliveries(data.draw(split_up(events))))
    assert build(event for batch in batches for event in batch) == build(events)


@given(st.data(), episodes())
def test_a_part_of_the_events_gives_one_graph_in_any_order(
    data: st.DataObject, events: list[AnyEvent]
) -> None:
    some = data.draw(st.lists(st.sampled_from(events), unique_by=lambda e: (e.kind, e.id)))
    assert build(some) == build(data.draw(st.permutations(some)))


@given(recordings(may_omit_parents=False))
def test_named_parents_are_the_links(recording: Recording) -> None:
    graph = build(recording.events)
    assert not graph.pending
    assert {call_id: link.parent for call_id, link in graph.links.items()} == recording.parents


@given(recordings())
def test_a_link_is_true_or_marked_ambiguous(recording: Recording) -> None:
    """Whole contexts without parents, echoed in the spellings of several clients."""
    graph = build(recording.events)
    for call_id, truth in recording.parents.items():
        link, posted = graph.links[call_id], graph.calls[call_id]
        is_parent_placed = truth is None or truth in graph.completion_node
        may_miss = posted.parent_call_id is None and (call_id in recording.is_drifted or not is_parent_placed)
        if link.how == "ambiguous" or may_miss:
            assert link.parent in {None, *_ancestors(recording, call_id)}
        elif link.how == "inferred" and truth is not None:
            assert _message(graph, link.parent) == _message(graph, truth)
        else:
            assert link.parent == truth


@given(recordings(may_omit_parents=False))
def test_posts_without_parents_give_the_links_of_posts_with_parents(recording: Recording) -> None:
    named = build(recording.events)
    unnamed = build(_without_parents(recording.events))
    assert unnamed.nodes == named.nodes
    for call_id, link in unnamed.links.items():
        if named.links[call_id].exact and link.how not in ("ambiguous", "named"):
            assert link == Link(named.links[call_id].parent, "matched", True)


def _without_parents(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """The same, whole contexts no longer naming what they continue (unless their ids need it)."""
    return [
        e.model_copy(update={"parent_call_id": None, "parent_completion": None})
        if isinstance(e, Call) and e.context == "whole" and e.prompt_token_ids_delta is None
        else e
        for e in events
    ]


def _ancestors(recording: Recording, call_id: str) -> set[CompletionKey]:
    found = set()
    parent = recording.parents[call_id]
    while parent is not None:
        found.add(parent)
        parent = recording.parents[parent[0]]
    return found


def _message(graph: Graph, key: CompletionKey | None) -> bytes | None:
    return None if key is None else graph.completion_node[key]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_link_every_call_to_the_one_it_continues(name: str) -> None:
    scenario = SCENARIOS[name]()
    named, unnamed = build(scenario.named.events), build(scenario.events)
    for call_id in named.calls:
        parent = scenario.parents.get(call_id)
        assert named.links[call_id].parent == (None if parent is None else (parent, 0))
        assert (
            unnamed.links[call_id].how == "ambiguous"
            or unnamed.links[call_id].parent == named.links[call_id].parent
        )


def test_identical_siblings_are_two_completions_at_one_node() -> None:
    graph = build([call("p0", [S, U], "same"), call("p1", [S, U], "same")])
    assert set(graph.completions) == {("p0", 0), ("p1", 0)}
    assert graph.completion_node["p0", 0] == graph.completion_node["p1", 0]
    assert len(graph.nodes) == 3  # s, u, same


def test_a_call_on_identical_siblings_is_observed_and_marked_and_the_search_goes_on_above() -> None:
    before = call("c0", [S], "a")
    context = [S, assistant("a"), U]
    graph = build(
        [
            before,
            call("p0", context, "same"),
            call("p1", context, "same"),
            call("w", [*context, assistant("same"), U], "done"),
        ]
    )
    assert graph.links["w"] == Link(("c0", 0), "ambiguous", True)


def test_an_agents_own_sibling_comes_first() -> None:
    events = [
        call("main", [S, U], "same", agent="main"),
        call("sub", [S, U], "same", agent="sub"),
        call("next", [S, U, assistant("same"), U], "done", agent="sub"),
        call("other", [S, U, assistant("same"), U], "done", agent="third"),
    ]
    graph = build(events)
    assert graph.links["next"] == Link(("sub", 0), "matched", True)
    assert graph.links["other"] == Link(None, "ambiguous", False)


def test_a_later_call_of_the_same_agent_is_never_continued() -> None:
    """After a compaction an agent may come to a context that it had before."""
    after = [S, U, assistant("a"), U]
    graph = build(
        [
            call("c0", [S, U], "a", ordinal=0),
            call("c1", after, "b", ordinal=1),
            call("c2", [S, U], "a", ordinal=2),
            call("c3", after, "b", ordinal=3),
        ]
    )
    assert graph.links["c1"] == Link(("c0", 0), "matched", True)
    assert graph.links["c3"].how == "ambiguous"


def test_interleaved_agents_keep_to_their_own_lines() -> None:
    scenario = SCENARIOS["interleaved_subagents"]()
    graph = build(scenario.events)
    agents = {key: graph.calls[link.parent[0]].agent_id for key, link in graph.links.items() if link.parent}
    assert agents == {"A1": "main", "A2": "main", "B1": "sub", "B2": "sub"}


def test_the_first_call_after_a_compaction_continues_nothing() -> None:
    graph = build(SCENARIOS["compaction"]().events)
    assert graph.links["d0"] == Link(None, "none", False)
    assert graph.links["d1"].parent == ("d0", 0)


def test_of_several_answers_the_one_in_the_context_is_inferred() -> None:
    parent = call("p", [S, U], "a", "b", "b")
    graph = build([parent, call("w", [S, U, assistant("b"), U], parent="p")])
    assert graph.links["w"] == Link(("p", 1), "inferred", True)


def test_a_named_parent_stays_the_parent_when_the_text_drifted() -> None:
    events = [
        call("p", [S, U], answer(assistant("a", reasoning="long"))),
        call("w", [S, U, assistant("a"), U], parent="p"),
    ]
    assert build(events).links["w"] == Link(("p", 0), "named", False)


def test_a_parent_that_never_came_is_no_parent_and_nothing_is_guessed() -> None:
    events = [call("p", [S, U], "a"), call("w", [S, U, assistant("a"), U], parent="elsewhere")]
    assert build(events).links["w"] == Link(None, "none", False)


def test_a_delta_waits_for_its_parent_and_is_placed_when_it_comes() -> None:
    child = call("c1", [U], "b", parent="c0", delta=True)
    late = build([child])
    assert late.pending == {"c1"}
    assert late.prompt_node == {"c1": None}
    assert late.completion_node == {}
    whole = build([child, call("c0", [S], "a")])
    assert whole.pending == frozenset()
    assert whole.links["c1"] == Link(("c0", 0), "named", True)
    assert whole.nodes == build([call("c1", [S, assistant("a"), U], "b"), call("c0", [S], "a")]).nodes


def test_a_chain_of_deltas_waits_for_the_first_of_it() -> None:
    deltas = [call(f"c{i}", [U], "b", parent=f"c{i - 1}", delta=True) for i in range(1, 1500)]
    assert len(build(deltas).pending) == 1499
    assert build([*deltas, call("c0", [S], "a")]).pending == frozenset()


def test_a_delta_on_one_of_several_equal_answers_takes_the_lowest() -> None:
    events = [call("p", [S], "a", "a"), call("w", [U], parent="p", delta=True)]
    assert build(events).links["w"] == Link(("p", 0), "inferred", True)


def test_a_delta_on_one_of_several_answers_must_say_which() -> None:
    parent = call("p", [S], "a", "b")
    unstated = build([parent, call("w", [U], parent="p", delta=True)])
    assert unstated.pending == {"w"}
    assert unstated.links["w"] == Link(None, "ambiguous", False)
    stated = build([parent, call("w", [U], parent="p", completion=1, delta=True)])
    assert stated.links["w"] == Link(("p", 1), "named", True)


def test_a_delta_waits_for_the_completion_that_it_names() -> None:
    events = [call("p", [S], "a"), call("w", [U], parent="p", completion=1, delta=True)]
    assert build(events).pending == {"w"}
    assert build([*events, completion("p", 1, "b")]).pending == frozenset()


def test_deltas_in_a_circle_of_parents_stay_pending() -> None:
    events = [call("a", [U], "x", parent="b", delta=True), call("b", [U], "x", parent="a", delta=True)]
    assert build(events).pending == {"a", "b"}


def test_a_match_gives_way_to_named_parents_that_it_would_close_a_circle_with() -> None:
    # b holds a's answer, so it would be matched to a; but a says that it continues b.
    events = [
        call("a", [S], "x", parent="b", completion=0),
        call("b", [S, assistant("x"), U], "y"),
    ]
    graph = build(events)
    assert graph.links == {"a": Link(("b", 0), "named", False), "b": Link(None, "none", False)}


def test_an_empty_context_has_no_node_and_its_answer_is_a_root() -> None:
    graph = build([call("c", None, "a")])
    assert graph.prompt_node == {"c": None}
    assert graph.pending == frozenset()
    assert graph.nodes[graph.completion_node["c", 0]].depth == 0


def test_a_completion_without_a_message_stands_nowhere() -> None:
    graph = build([call("c", [S], answer(None, ids=[1]))])
    assert graph.completion_node == {}
    assert ("c", 0) in graph.completions


def test_completions_of_a_call_and_those_posted_alone_stand_together() -> None:
    apart = build([completion("c", 1, "b"), completion("c", 0, "a"), call("c", [S])])
    together = build([call("c", [S], "a", "b", status=None)])
    assert apart.completions == together.completions
    assert apart.completions_of("c") == (("c", 0), ("c", 1))
    assert apart.completion_node == together.completion_node


def test_the_answer_of_a_responses_call_is_as_many_messages_as_it_has_items() -> None:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "run", "arguments": "{}"},
    ]
    asked = {"role": "user", "content": "u"}
    result = {"type": "function_call_output", "call_id": "t1", "output": "42"}
    echoed = [{k: v for k, v in item.items() if k != "id"} for item in items]

    def responses(id: str, inputs: object, *answers: object) -> Call:  # noqa: A002
        request = raw({"instructions": "s", "input": inputs})
        return call(id, request, *(answer(raw(a)) for a in answers), dialect="openai_responses")

    graph = build([responses("c0", "u", items), responses("c1", [asked, *echoed, result], [items[1]])])
    assert graph.links["c1"] == Link(("c0", 0), "matched", True)
    assert [node.role for node in graph.path(graph.prompt_node["c1"])] == [
        "system",
        "user",
        "assistant",
        "assistant",
        "tool",
    ]


def test_of_two_answers_where_one_begins_the_other_the_longer_one_was_continued() -> None:
    first, second = (
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": "a"},
    )
    parent = call(
        "p",
        raw({"input": "u"}),
        answer(raw([first])),
        answer(raw([first, second])),
        dialect="openai_responses",
    )
    follows = raw({"input": [U, first, second, U]})
    graph = build([parent, call("w", follows, parent="p", dialect="openai_responses")])
    assert graph.links["w"] == Link(("p", 1), "inferred", True)


def test_the_group_may_come_with_the_episode() -> None:
    graph = build([group("g"), episode(group_id="g"), agent()])
    assert graph.group is not None
    assert graph.group.id == "g"


@pytest.mark.parametrize("events", [[episode("a"), episode("b")], [group("a"), group("b")]])
def test_two_episodes_are_refused(events: list[AnyEvent]) -> None:
    with pytest.raises(SeveralEpisodes, match="one graph for each episode"):
        build(events)
