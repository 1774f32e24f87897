"""What is stored, what is a duplicate, what is a conflict, and what is refused with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from sqlalchemy import func, select

from tests import factories as make
from tests.factories import answer, assistant, call, completion, posted, user
from tracestore.graph.build import build
from tracestore.store import Outcome, Store
from tracestore.store import tables as t
from tracestore.store.verify import verify
from tracestore.wire.base import Raw
from tracestore.wire.call import Call, Usage
from tracestore.wire.decode import decode_event
from tracestore.wire.events import AnyEvent


def ingest(store: Store, *events: AnyEvent, project: str = "p") -> list[Outcome]:
    return store.ingest(project, [posted(event) for event in events])


def statuses(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def count(store: Store, table: object) -> int:
    with store.read() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()  # type: ignore[arg-type]


# Duplicates and conflicts


def test_posting_the_same_event_twice_stores_it_once(store: Store) -> None:
    event = call("c0", [user("u")], "hi")
    assert statuses(ingest(store, event)) == ["stored"]
    assert statuses(ingest(store, event, event)) == ["duplicate", "duplicate"]
    assert count(store, t.call) == 1
    assert store.snapshot("p") == 1


def test_the_same_value_in_another_spelling_is_a_duplicate(store: Store) -> None:
    first = (
        b'{"v":1,"kind":"reward","id":"r","target":{"episode_id":"e"},"name":"x","value":1,"meta":{"a":1.0}}'
    )
    again = (
        b'{ "id":"r","kind":"reward","v":1,"value":1.0,"name":"\\u0078",'
        b'"meta":{ "a":1 },"target":{"episode_id":"e"}}'
    )
    for text, status in ((first, "stored"), (again, "duplicate")):
        assert statuses(store.ingest("p", [(decode_event(text), text)])) == [status]


def test_a_negative_zero_told_again_in_other_words_is_a_duplicate(store: Store) -> None:
    text = b'{"v":1,"kind":"reward","id":"r","target":{"episode_id":"e"},"name":"n","value":-0.0}'
    spaced = text.replace(b",", b", ")
    told = [store.ingest("p", [(decode_event(one), one)]) for one in (text, spaced)]
    assert [statuses(outcomes) for outcomes in told] == [["stored"], ["duplicate"]]


def test_another_value_is_a_conflict_that_names_the_field_and_the_first_is_kept(store: Store) -> None:
    ingest(store, make.reward("r", 1.0))
    [outcome] = ingest(store, make.reward("r", 2.0))
    assert outcome.status == "conflict"
    assert outcome.problem is not None
    assert "differ in: value" in outcome.problem
    assert store.load_graph("p", "e").rewards["r"].value == 1.0


def test_a_field_left_out_is_not_a_field_that_is_null(store: Store) -> None:
    left_out = b'{"v":1,"kind":"gap","id":"g","episode_id":"e","cause":"c"}'
    null = b'{"v":1,"kind":"gap","id":"g","episode_id":"e","cause":"c","detail":null}'
    store.ingest("p", [(decode_event(left_out), left_out)])
    assert statuses(store.ingest("p", [(decode_event(null), null)])) == ["conflict"]


def test_a_conflict_costs_its_neighbours_nothing(store: Store) -> None:
    ingest(store, make.reward("r", 1.0))
    outcomes = ingest(store, make.gap("g1"), make.reward("r", 2.0), make.gap("g2"))
    assert statuses(outcomes) == ["stored", "conflict", "stored"]
    assert [outcome.index for outcome in outcomes] == [0, 1, 2]
    assert set(store.load_graph("p", "e").gaps) == {"g1", "g2"}


def test_projects_do_not_see_each_other(store: Store) -> None:
    assert statuses(ingest(store, make.reward("r", 1.0), project="a")) == ["stored"]
    assert statuses(ingest(store, make.reward("r", 2.0), project="b")) == ["stored"]
    assert store.load_graph("a", "e").rewards["r"].value == 1.0


# Start and end


def test_start_and_end_equal_the_whole(store: Store) -> None:
    start = call("c0", [user("u")], phase="start", ordinal=0)
    end = call("c0", None, "hi", phase="end", policy=None, usage=Usage(prompt_tokens=3), status="ok")
    ingest(store, start)
    ingest(store, end)
    got = store.load_graph("p", "e")
    assert got == build([call("c0", [user("u")], "hi", ordinal=0, usage=Usage(prompt_tokens=3))])
    assert verify(store, "p").problems == ()


def test_a_start_alone_says_that_its_end_has_not_come(store: Store) -> None:
    ingest(store, call("c0", [user("u")], phase="start"))
    assert store.load_graph("p", "e").calls["c0"].phase == "start"


def test_start_and_end_that_disagree_are_a_conflict(store: Store) -> None:
    ingest(store, call("c0", [user("u")], phase="start", model="a"))
    [outcome] = ingest(store, call("c0", None, "hi", phase="end", model="b"))
    assert outcome.status == "conflict"
    assert outcome.problem is not None
    assert "model" in outcome.problem
    assert statuses(ingest(store, call("c0", None, "hi", phase="end"))) == ["stored"]


def test_the_end_may_come_before_the_start(store: Store) -> None:
    parent = call("c0", [user("u")], "hi")
    start = call("c1", [user("u"), assistant("hi"), user("v")], phase="start")
    end = call("c1", None, "ho", phase="end")
    after = call("c2", [user("u"), assistant("hi"), user("v"), assistant("ho")], "la")
    ingest(store, parent, end, after)
    assert store.load_graph("p", "e").links["c2"].parent == ("c0", 0)
    ingest(store, start)
    assert store.load_graph("p", "e").links["c2"].parent == ("c1", 0)
    assert verify(store, "p").problems == ()


# Completions


def test_completions_in_the_call_and_on_their_own_become_one(store: Store) -> None:
    ingest(store, call("c0", [user("u")], answer("a", finish_reason=None)))
    ingest(store, completion("c0", 1, "b"), completion("c0", 0, answer("a", finish_reason="stop")))
    graph = store.load_graph("p", "e")
    assert [graph.completions["c0", i].finish_reason for i in (0, 1)] == ["stop", "stop"]
    assert count(store, t.completion) == 2


def test_two_posts_of_one_completion_that_differ_are_a_conflict(store: Store) -> None:
    ingest(store, call("c0", [user("u")], "a"))
    [outcome] = ingest(store, completion("c0", 0, "b"))
    assert outcome.status == "conflict"
    assert outcome.problem is not None
    assert "message" in outcome.problem


def test_a_completion_lies_in_the_episode_of_its_call(store: Store) -> None:
    ingest(store, call("c0", [user("u")]))
    [outcome] = ingest(store, completion("c0", 0, "b", episode="other"))
    assert outcome.status == "conflict"
    ingest(store, completion("c1", 0, "b", episode="other"))
    [outcome] = ingest(store, call("c1", [user("u")]))
    assert outcome.status == "conflict"


# Parents


def test_a_parent_that_comes_late_is_linked(store: Store) -> None:
    ingest(store, call("c1", [user("v")], "b", parent="c0", delta=True))
    assert store.load_graph("p", "e").pending == {"c1"}
    assert count(store, t.pending_message) == 1
    ingest(store, call("c0", [user("u")], "a"))
    assert store.context("p", "c1") == [make.raw(m) for m in (user("u"), assistant("a"), user("v"))]
    assert count(store, t.pending_message) == 0


def test_a_chain_of_late_parents_is_resolved_to_its_end(store: Store) -> None:
    """600 deltas posted backwards: none recurses, all are placed when the first call comes last."""
    number = 600
    calls = [call("c0", [user("u0")], "a0", prompt_ids=[0], ordinal=0)]
    for i in range(1, number):
        calls.append(
            call(
                f"c{i}",
                [user(f"u{i}")],
                answer(f"a{i}", ids=[i]),
                parent=f"c{i - 1}",
                completion=0,
                delta=True,
                prompt_ids_delta=[i],
                ordinal=i,
            )
        )
    calls[0] = call("c0", [user("u0")], answer("a0", ids=[0]), prompt_ids=[0], ordinal=0)
    ingest(store, *reversed(calls))
    assert len(store.context("p", f"c{number - 1}")) == 2 * number - 1
    with store.read() as connection:
        longest = connection.execute(select(func.max(t.token_run.c.num_tokens))).scalar()
    assert longest == 2 * number


def test_a_parent_in_another_project_is_one_that_never_came(store: Store) -> None:
    ingest(store, call("c0", [user("u")], "a"), project="other")
    ingest(store, call("c1", [user("v")], parent="c0", delta=True))
    assert store.load_graph("p", "e").pending == {"c1"}
    with store.read() as connection:
        placeholders = connection.execute(select(t.call.c.id).where(t.call.c.is_placeholder)).scalars().all()
    assert placeholders == ["c0"]


def test_a_parent_in_another_episode_is_one_that_never_came(store: Store) -> None:
    ingest(store, call("c0", [user("u")], "a", episode="other"))
    ingest(store, call("c1", [user("v")], parent="c0", delta=True))
    assert store.load_graph("p", "e").pending == {"c1"}
    assert verify(store, "p").problems == ()


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")])
def test_calls_whose_parents_go_round_are_refused(store: Store, order: tuple[str, ...]) -> None:
    parents = {"a": "c", "b": "a", "c": "b"}
    outcomes = [ingest(store, call(name, [user(name)], parent=parents[name]))[0] for name in order]
    assert statuses(outcomes) == ["stored", "stored", "error"]
    assert outcomes[-1].problem is not None
    assert "circle" in outcomes[-1].problem
    assert set(store.load_graph("p", "e").calls) == set(order[:2])


def test_agents_whose_parents_go_round_are_refused_in_one_batch_too(store: Store) -> None:
    outcomes = ingest(store, make.agent("a", parent_agent_id="b"), make.agent("b", parent_agent_id="a"))
    assert statuses(outcomes) == ["stored", "error"]
    assert statuses(ingest(store, make.agent("x", parent_agent_id="x"))) == ["error"]


# Storage


def test_contents_are_stored_once_per_project(store: Store) -> None:
    messages = [user(f"message {number}") for number in range(30)]
    for number in range(1, 30):
        ingest(store, call(f"c{number}", messages[:number], episode=f"e{number % 3}"))
    with store.read() as connection:
        stored = connection.execute(
            select(func.count()).select_from(t.content).where(t.content.c.role == "user")
        ).scalar()
    assert stored == 29


def test_places_grow_with_the_conversation_and_not_with_its_square(store: Store) -> None:
    """40 calls, each sending all before it: 40 user messages and 40 answers, so 80 places, not 1,640."""
    messages: list[object] = []
    for number in range(40):
        messages = [*messages, user(f"u{number}")]
        ingest(store, call(f"c{number}", messages, f"a{number}"))  # type: ignore[arg-type]
        messages = [*messages, assistant(f"a{number}")]
    assert count(store, t.node) == 80


def test_the_second_spelling_of_a_message_is_a_twin_of_the_first(store: Store) -> None:
    spelled = Raw(b'{"content":"u", "role":"user"}')
    ingest(store, call("c0", [user("u")], "a"), call("c1", [spelled], "b"))
    with store.read() as connection:
        rows = connection.execute(select(t.node).where(t.node.c.depth == 0).order_by(t.node.c.key)).all()
    first, second = rows
    assert (first.twin_of_key, second.twin_of_key) == (None, first.key)
    assert first.match_key == second.match_key
    assert store.request("p", "c1") == make.raw({"model": "m", "messages": [spelled]})


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("apart", [False, True])
def test_halves_of_a_tool_call_join_its_use_in_any_order_also_where_only_one_names_it(
    store: Store, order: tuple[int, ...], apart: bool
) -> None:
    uses = [make.tool_use("run", id="t1")]
    arriving = [
        call("c0", [user("u")], answer(assistant(None, tool_calls=uses))),
        make.tool_call("x1", "c0", tool_call_id="t1", phase="start"),
        make.tool_call("x1", "c0", tool_call_id=None, name=None, status="failed", phase="end"),
    ]
    for group in [[arriving[place]] for place in order] if apart else [[arriving[p] for p in order]]:
        ingest(store, *group)
    with store.read() as connection:
        (row,) = connection.execute(select(t.tool_call)).all()
    assert (row.id, row.position, row.sampled_name, row.status) == ("x1", 0, "run", "failed")


def test_tool_uses_are_read_from_the_message_and_joined_with_their_execution(store: Store) -> None:
    uses = [make.tool_use("run", '{"a":', id="t1"), make.tool_use("stop", id="t2")]
    executed = make.tool_call("x1", "c0", tool_call_id="t1", result=make.raw("out"))
    early = make.tool_call("x2", "c0", tool_call_id="t2")
    ingest(store, early, call("c0", [user("u")], answer(assistant(None, tool_calls=uses))), executed)
    with store.read() as connection:
        rows = connection.execute(select(t.tool_call).order_by(t.tool_call.c.position)).all()
    assert [(r.id, r.position, r.sampled_name, r.sampled_arguments) for r in rows] == [
        ("x1", 0, "run", '{"a":'),
        ("x2", 1, "stop", "{}"),
    ]
    assert store.load_graph("p", "e").tool_calls["x1"] == executed


def test_sampling_parameters_become_columns_where_they_fit(store: Store) -> None:
    params = {"temperature": 1, "top_p": 0.5, "max_completion_tokens": 7, "n": "many", "top_k": 2**70}
    ingest(store, call("c0", [user("u")], params=params))
    with store.read() as connection:
        row = connection.execute(select(t.call)).one()
    assert (row.temperature, row.top_p, row.max_tokens, row.n, row.top_k) == (1.0, 0.5, 7, None, None)


def test_free_text_of_any_code_point_is_stored(store: Store) -> None:
    text = "a\x00b\ud83d \U0001d11e"
    event = make.tool_call("x", arguments=text, name=text, error=text, result=Raw(rb'"\u0000\ud83d"'))
    assert statuses(ingest(store, event, make.gap(detail=text, cause=text))) == ["stored", "stored"]
    graph = store.load_graph("p", "e")
    assert graph.tool_calls["x"] == event
    assert graph.gaps["gap1"].detail == text


def test_a_call_without_anything_is_stored(store: Store) -> None:
    event = Call(id="c", episode_id="e", agent_id="a")
    ingest(store, event)
    assert store.load_graph("p", "e") == build([event])


def test_an_end_finds_what_its_start_referred_to_after_a_restart(store: Store) -> None:
    start = make.subagent("sub", spawned_by="c0", parent="main", phase="start", snapshot_id="m")
    ingest(store, start, call("c1", [user("v")], parent="c0", phase="start"))
    store._committer._memories.clear()  # as a new process: nothing is remembered
    ends = [make.agent("sub", phase="end", status="ok"), call("c1", None, "a", phase="end")]
    assert statuses(ingest(store, *ends)) == ["stored", "stored"]
    assert count(store, t.agent) == 2
    assert verify(store, "p").problems == ()


def test_an_answer_told_twice_is_told_byte_for_byte(store: Store) -> None:
    """Equal values in other bytes would leave it to the order of arrival which of them a context holds."""
    ingest(store, call("c0", [user("u")], answer(make.raw(assistant("a")))))
    same, respelled = answer(make.raw(assistant("a"))), answer(Raw(b'{"content":"a", "role":"assistant"}'))
    assert statuses(ingest(store, completion("c0", 0, same, id="x"))) == ["stored"]
    assert statuses(ingest(store, completion("c0", 0, respelled, id="y"))) == ["conflict"]
