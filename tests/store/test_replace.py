"""A grown source: the newest of each event holds, and the rows are as if nothing else had ever come."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event as listeners
from sqlalchemy import func, select, text

from tests import factories as make
from tests.factories import answer, assistant, call, completion, posted, tool_use, user
from tests.strategies import deliveries, episodes, revised, split_up
from tracestore.graph.build import build
from tracestore.graph.merge import newest
from tracestore.store import Outcome, SnapshotGone, Store
from tracestore.store import tables as t
from tracestore.store.engine import writer
from tracestore.store.schema import view_statements
from tracestore.store.verify import verify
from tracestore.wire.events import AnyEvent

# Its own numbers, the order in which things came, and what is counted in that order.
_OWN_NUMBERS = (
    *("content_id", "message_id", "position", "seq"),
    *("new_prompt_tokens", "tokens_once", "token_duplication"),
)


@settings(max_examples=10)
@given(data=st.data())
def test_every_view_shows_what_it_would_if_only_the_newest_had_come(
    shared: Store, data: st.DataObject
) -> None:
    _compare_views(shared, data)


@settings(max_examples=2)
@given(data=st.data())
def test_every_view_shows_what_it_would_if_only_the_newest_had_come_on_postgresql(
    on_postgresql: Store, data: st.DataObject
) -> None:
    _compare_views(on_postgresql, data)


def _compare_views(store: Store, data: st.DataObject) -> None:
    told = data.draw(revised(data.draw(split_up(data.draw(episodes(max_calls=4))))))
    seen = []
    for batches in (data.draw(deliveries(told)), [newest(told)]):
        project = uuid4().hex
        for batch in batches:
            outcomes = store.ingest(project, [posted(event) for event in batch])
            assert [outcome.problem for outcome in outcomes if outcome.problem] == []
        seen.append(_views(store, project))
    assert seen[0] == seen[1]


def _views(store: Store, project: str) -> dict[str, list[str]]:
    """The rows of every view, without the store's own numbers."""
    found = {}
    with store.read() as connection:
        for view in view_statements():
            rows = connection.execute(text(f"SELECT * FROM {view} WHERE project = :p"), {"p": project})
            names = [name for name in rows.keys() if not name.endswith(("project", *_OWN_NUMBERS))]  # noqa: SIM118
            found[view] = sorted(repr([row._mapping[name] for name in names]) for row in rows)
    return found


# One by one


def ingest(store: Store, *events: AnyEvent) -> list[Outcome]:
    return store.ingest("p", [posted(event) for event in events])


def statuses(store: Store, *events: AnyEvent) -> list[str]:
    return [outcome.status for outcome in ingest(store, *events)]


def everything(store: Store) -> dict[str, list[str]]:
    """Every row of every table."""
    with store.read() as connection:
        return {
            name: sorted(map(repr, connection.execute(select(table)).all()))
            for name, table in t.metadata.tables.items()
        }


def test_the_highest_revision_is_kept_and_a_lower_one_is_a_duplicate(store: Store) -> None:
    first = make.gap("g", "missing_prompt")
    second, third = (make.gap("g", f"cause {number}", revision=number) for number in (1, 5))
    assert statuses(store, first) == ["stored"]
    assert statuses(store, third) == ["stored"]
    assert statuses(store, second, first, third) == ["duplicate"] * 3
    assert store.load("p", "e") == [third]
    assert store.snapshot("p") == 2


def test_equal_revisions_must_agree(store: Store) -> None:
    ingest(store, make.gap("g", "a"), make.gap("g", "b", revision=2))
    [outcome] = ingest(store, make.gap("g", "c", revision=2))
    assert outcome.status == "conflict"
    assert "differ in: cause" in (outcome.problem or "")
    # In the post that replaces it too.
    assert statuses(
        store,
        make.gap("g", "d", revision=3),
        make.gap("g", "e", revision=3),
        make.gap("g", "f", revision=4),
        make.gap("g", "d", revision=3),
    ) == ["stored", "conflict", "stored", "duplicate"]
    assert store.load("p", "e") == [make.gap("g", "f", revision=4)]


def test_a_halves_own_revisions_come_back_as_the_highest_of_them(store: Store) -> None:
    start = make.agent("a", phase="start", role="main")
    ends = [
        make.agent("a", phase="end", status=status, revision=n) for n, status in enumerate(("ok", "failed"))
    ]
    ingest(store, start, *ends)
    [got] = store.load("p", "e")
    assert got == make.agent("a", role="main", status="failed", revision=1)
    assert got.model_fields_set == {"kind", "id", "episode_id", "role", "status", "revision"}


GROWN = [
    make.episode(status="ok"),
    make.agent(),
    call(
        "c0", [user("u")], answer(assistant("so f", tool_calls=[tool_use("run")]), ids=[3]), prompt_ids=[1, 2]
    ),
    make.tool_call(),
    call("c1", [user("v")], "b", parent="c0", delta=True),
]


@pytest.mark.parametrize(
    ("event", "status", "problem"),
    [
        (call("c0", [user("u")], "a", parent="c1", revision=1), "error", "go round in a circle"),
        (call("c0", [user("u")], "a", revision=1, episode="another"), "conflict", "another episode"),
        (make.tool_call(revision=1, episode="another"), "conflict", "another episode"),
        (call("c1", [user("v")], "c", parent="c0", delta=True, revision=1), "conflict", "field='message'"),
        (make.agent(phase="start", name="n", revision=1), "conflict", "field='name'"),
    ],
)
def test_a_revision_that_is_refused_leaves_everything_as_it_was(
    store: Store, event: AnyEvent, status: str, problem: str
) -> None:
    halves = [make.agent(phase="start"), make.agent(phase="end", name="m")]
    others = [event for event in GROWN if event.kind != "agent"]
    assert {*statuses(store, *others, *halves, completion("c1", 0, "b"))} == {"stored"}
    before = everything(store)
    for _ in range(2):
        [outcome] = ingest(store, event)
        assert outcome.status == status
        assert problem in (outcome.problem or "")
        assert everything(store) == before
        store._committer._memories.clear()
    assert verify(store, "p").problems == ()


def test_a_refused_revision_costs_its_neighbours_nothing(store: Store) -> None:
    ingest(store, *GROWN)
    more = [
        call("c1", [user("w")], "b", parent="c0", delta=True, revision=1),
        call("c0", [user("u")], "a", parent="c1", revision=1),
        completion("c1", 0, "no"),
        completion("c1", 0, "b", id="yes"),
        make.reward(),
    ]
    assert statuses(store, *more) == ["stored", "error", "conflict", "stored", "stored"]
    assert store.load_graph("p", "e") == build([*GROWN, more[0], more[3], more[4]])
    assert verify(store, "p").problems == ()


def test_revisions_of_one_post_may_not_close_a_circle_together(store: Store) -> None:
    ingest(store, call("c0", [user("u")], "a"), call("c1", [user("v")], "b"))
    first = call("c0", [user("u")], "a", parent="c1", revision=1)
    second = call("c1", [user("v")], "b", parent="c0", revision=1)
    assert statuses(store, first, second) == ["stored", "error"]
    assert store.load_graph("p", "e") == build([first, call("c1", [user("v")], "b")])
    assert verify(store, "p").problems == ()


def test_a_group_is_replaced_too(store: Store) -> None:
    group = make.group("g", size=2, task_id="a", phase="start")
    episodes_of = [make.episode("e", group_id="g"), make.episode("f", group_id="g")]
    newer = make.group("g", size=3, phase="start", revision=2)
    end = make.group("g", phase="end", closed_by="event")
    assert statuses(store, group, *episodes_of, newer, end) == ["stored"] * 5
    assert store.load_graph("p", "f").group == make.group("g", size=3, closed_by="event", revision=2)
    assert store.groups("p")[0].episode_ids == ("e", "f")
    with store.read() as connection:
        assert connection.execute(text("SELECT task_id FROM episodes")).scalars().all() == [None, None]
    assert verify(store, "p").problems == ()


def test_an_episode_may_turn_out_to_be_of_another_group(store: Store) -> None:
    events = [
        make.group("g"),
        make.group("h"),
        make.episode("e", group_id="g"),
        make.episode("f", group_id="g"),
    ]
    ingest(store, *events, make.reward())
    assert statuses(store, make.episode("e", group_id="h", revision=1)) == ["stored"]
    assert [(ref.group_id, ref.episode_ids) for ref in store.groups("p")] == [("h", ("e",)), ("g", ("f",))]
    assert statuses(store, make.episode("e", revision=2)) == ["stored"]
    assert [(ref.group_id, ref.episode_ids) for ref in store.groups("p")] == [(None, ("e",)), ("g", ("f",))]
    assert verify(store, "p").problems == ()


def test_what_another_episode_refers_to_stays_where_it_is(store: Store) -> None:
    fork = make.episode("f", forked_from_episode_id="e", forked_from_call_id="c0")
    borrowed = make.candidate_set("s", make.member("c0"), episode="f", agent="main")
    assert {*statuses(store, *GROWN, fork, borrowed)} == {"stored"}
    rows = everything(store)
    newer = call("c0", [user("u")], answer("so far and on", ids=[3, 4, 5]), prompt_ids=[1, 2], revision=3)
    assert statuses(store, newer) == ["stored"]
    for table in ("candidate_set", "candidate_member"):
        assert everything(store)[table] == rows[table]
    assert store.load_graph("p", "f") == build([fork, borrowed])
    assert store.load_graph("p", "e") == build([*GROWN, newer])
    assert verify(store, "p").problems == ()


def test_a_call_that_only_an_older_revision_named_is_free_for_another_episode(store: Store) -> None:
    ingest(store, completion("c0", 0, "a", id="x"))
    assert statuses(store, call("c0", [user("u")], "a", episode="f")) == ["conflict"]
    newer = completion("c9", 0, "a", id="x").model_copy(update={"revision": 1})
    assert statuses(store, newer) == ["stored"]
    assert statuses(store, call("c0", [user("u")], "b", episode="f")) == ["stored"]
    assert verify(store, "p").problems == ()


def test_what_a_replaced_event_had_brought_is_gone(store: Store) -> None:
    ingest(store, *GROWN)
    newer = call("c0", [user("u")], answer(assistant("no tools")), revision=1)
    assert statuses(store, newer) == ["stored"]
    with store.read() as connection:
        assert connection.execute(text("SELECT sum(sampled_tokens) FROM token_counts")).scalar() is None
        sampled = select(func.count()).where(t.tool_call.c.position.is_not(None))
        assert connection.execute(sampled).scalar() == 0
        assert connection.execute(select(t.token_run.c.num_ids)).scalars().all() == [0, 0]
        assert connection.execute(select(t.token_run.c.packed_ids)).scalars().all() == [b"", b""]
        # The old message and the text of the old request, until someone says them again.
        contents = connection.execute(select(func.count()).where(t.content.c.role == "assistant")).scalar()
        assert contents == 3
    assert verify(store, "p").problems == ()
    again = call("c0", [user("u")], answer(assistant("no tools"), ids=[7, 8]), prompt_ids=[6], revision=2)
    assert statuses(store, again) == ["stored"]
    with store.read() as connection:
        # 1 id of the prompt + 2 of the answer.
        assert connection.execute(select(func.sum(t.token_run.c.num_ids))).scalar() == 1 + 2
    assert store.load_graph("p", "e") == build([*GROWN, again])
    assert verify(store, "p").problems == ()


def test_an_answer_told_twice_is_still_one_when_its_call_is_replaced(store: Store) -> None:
    message = assistant(None, tool_calls=[tool_use("run")])
    early = completion("c0", 0, answer(message, ids=[3]))
    ingest(store, early, call("c0", [user("u")], answer(message), prompt_ids=[1]))
    newer = call("c0", [user("u"), user("v")], answer(message), prompt_ids=[1, 2], revision=1)
    assert statuses(store, newer) == ["stored"]
    with store.read() as connection:
        assert connection.execute(select(func.count()).select_from(t.tool_call)).scalar() == 1
    assert store.load_graph("p", "e") == build([early, newer])
    assert verify(store, "p").problems == ()


def test_prompts_build_on_the_ids_that_their_parent_has_now(store: Store) -> None:
    first, second = (
        call("c0", [user("u")], answer("a", ids=ids), prompt_ids=[1, 2], revision=number)
        for number, ids in enumerate(([3, 4], [3, 9]))
    )
    children = [
        call(f"c{n}", [user("u"), assistant("a"), user("v")], parent="c0", prompt_ids=[1, 2, 3, 4, n])
        for n in (1, 2)
    ]
    assert statuses(store, first, children[0]) == ["stored", "stored"]
    assert statuses(store, second) == ["stored"]
    assert statuses(store, children[1]) == ["stored"]
    assert store.load_graph("p", "e") == build([second, *children])
    assert verify(store, "p").problems == ()


def test_a_post_writes_an_episode_again_once(store: Store) -> None:
    ingest(store, *GROWN)
    newer = [event.model_copy(update={"revision": 1}) for event in GROWN]
    times = []

    @listeners.listens_for(store.engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, sql: str, *_more: Any) -> None:
        times.append(sql.startswith("DELETE FROM node "))

    assert statuses(store, *newer, *newer) == ["stored"] * 5 + ["duplicate"] * 5
    assert sum(times) == 1


# Snapshots


def test_a_snapshot_is_gone_once_something_of_it_is_replaced(store: Store) -> None:
    other = [make.episode("other", group_id="g"), make.reward("r9", episode="other")]
    ingest(store, make.group("g"), *other, make.episode("e", group_id="g"), make.gap("g1", "a"))
    at = store.snapshot("p")
    assert at == 5
    assert statuses(store, make.gap("g2"), make.gap("g1", "b", revision=4)) == ["stored", "stored"]
    for snapshot in (5, 6):
        with pytest.raises(SnapshotGone) as error:
            store.load("p", "e", snapshot=snapshot)
        assert error.value.values == {"snapshot": snapshot, "kind": "gap", "id": "g1"}
        with pytest.raises(SnapshotGone, match="read the latest snapshot"):
            store.groups("p", snapshot=snapshot)
    # Before it had come, and after it was replaced, nothing is missing; nor is it of another episode.
    assert [event.id for event in store.load("p", "e", snapshot=4)] == ["e", "g"]
    assert len(store.groups("p", snapshot=4)) == len(store.groups("p", snapshot=7)) == 1
    assert store.load("p", "e", snapshot=7) == store.load("p", "e")
    assert [event.id for event in store.load("p", "other", snapshot=5)] == ["other", "r9", "g"]
    assert statuses(store, make.group("g", size=2, revision=1)) == ["stored"]
    with pytest.raises(SnapshotGone, match="'group'"):
        store.load("p", "other", snapshot=7)


def test_a_replaced_event_stays_in_the_place_where_it_first_came(store: Store) -> None:
    ingest(store, make.episode("e"), make.gap("g1", "a"), make.episode("f"), make.gap("g2"))
    ingest(store, make.episode("e", status="ok", revision=1), make.gap("g1", "b", revision=1))
    assert [event.id for event in store.load("p", "e")] == ["e", "g1", "g2"]
    assert [ref.episode_ids for ref in store.groups("p")] == [("e",), ("f",)]
    assert store.snapshot("p") == 6


def test_what_is_written_again_keeps_its_positions(store: Store) -> None:
    ingest(store, make.agent(phase="start"), make.gap("g1", "a"), make.agent(phase="end", name="n"))

    def positions() -> tuple[int, int]:
        with store.read() as connection:
            row = connection.execute(select(t.agent.c.pos, t.agent.c.end_pos)).one()
            return (row.pos, row.end_pos)

    assert positions() == (1, 3)
    ingest(store, make.gap("g1", "b", revision=1))
    assert positions() == (1, 3)
    ingest(store, make.agent(phase="end", name="m", revision=1))
    assert positions() == (1, 5)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE raw_event SET num_replaced = NULL",
        "UPDATE raw_event SET num_replaced = 2 WHERE num_replaced = 1",
        "DELETE FROM raw_event WHERE kind = 'agent'",
        "UPDATE raw_event SET first_pos = NULL",
    ],
)
def test_verify_counts_the_positions_that_replaced_events_left_empty(store: Store, sql: str) -> None:
    ingest(store, make.gap("g1", "a"), make.agent())
    ingest(store, make.gap("g1", "b", revision=1))
    assert verify(store, "p").problems == ()
    with writer(store.engine).begin() as connection:
        connection.execute(text(sql))
    assert "commit_positions" in {finding.name for finding in verify(store, "p")}
