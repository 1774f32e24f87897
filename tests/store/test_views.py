"""The views say what the graph says, name things by the client's ids, and read nothing but columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from tests import factories as make
from tests.factories import answer, assistant, call, posted, subagent, user
from tests.strategies import episodes
from tracestore.graph.branches import branches
from tracestore.graph.build import build
from tracestore.graph.context import context
from tracestore.graph.critical import OpenStage, critical_steps, stages
from tracestore.graph.invariants import orphans
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.duck import run_sql
from tracestore.store.engine import writer
from tracestore.store.schema import view_statements
from tracestore.store.tables import KEY_BITS
from tracestore.wire.base import Raw
from tracestore.wire.completion import VersionRun
from tracestore.wire.events import AnyEvent

NAMES = {
    *(
        "episodes",
        "agents",
        "calls",
        "tool_calls",
        "contexts",
        "messages",
        "edges",
        "branches",
        "candidates",
        "rewards",
    ),
    *("token_counts", "critical_steps", "compaction_loss", "orphans", "gaps", "consumption", "credit"),
    *("compaction_calls", "compaction_messages", "policy_versions", "prefix_duplication"),
    *("finish_rates", "unfolded_tokens", "snapshots", "blobs"),
}


def rows(store: Store, sql: str, project: str = "p") -> list[dict[str, Any]]:
    with store.read() as connection:
        return [dict(row._mapping) for row in connection.execute(text(sql), {"p": project})]


def ingest(store: Store, events: Sequence[AnyEvent], project: str = "p") -> None:
    for outcome in store.ingest(project, [posted(event) for event in events]):
        assert outcome.status == "stored", outcome.problem


def test_the_views_are_those_of_the_design() -> None:
    assert view_statements().keys() == NAMES


def test_every_view_says_of_which_project_and_episode_a_row_is() -> None:
    for name, sql in view_statements().items():
        assert re.search(r"\bAS project\b", sql), name
        assert re.search(r"\bAS episode_id\b", sql), name


def test_no_view_parses_json_or_reads_bodies() -> None:
    for name, sql in view_statements().items():
        assert not re.search(r"json|message_text|->|\bdata\b|\.ids\b", sql.split("AS", 1)[1], re.I), name


def count_as_before_0005(store: Store, project: str) -> None:
    """Make a project whose keys hold its number."""
    row = {"project_id": 1, "name": project, "commit_seq": 0, "next_key": (1 << KEY_BITS) + 1}
    with writer(store.engine).begin() as connection:
        connection.execute(t.project.insert().values(**row, created_at=0))


def test_the_numbers_of_contents_and_messages_are_unique_in_the_database(store: Store) -> None:
    count_as_before_0005(store, "old")
    for project in ("old", "p", "q"):
        ingest(store, [call("c", [user(f"of {project}"), user("again")], "ok")], project)
    said = rows(store, "SELECT project, content_id, message_id FROM messages")
    assert len({row["content_id"] for row in said}) == len({row["message_id"] for row in said}) == 9
    assert {row["content_id"] >> KEY_BITS for row in said if row["project"] == "q"} == {3}
    sql = "SELECT content_id, message_text(content_id) FROM messages"
    url = store.engine.url.set(drivername=store.engine.dialect.name).render_as_string(hide_password=False)
    for project in ("old", "p", "q"):
        read = run_sql(url, project, sql).rows
        assert {row[0] for row in read} == {row["content_id"] for row in said if row["project"] == project}
        assert {row[1] for row in read} == {f"of {project}", "again", "ok"}
        if store.engine.dialect.name == "sqlite":
            own = rows(store, f"{sql} WHERE project = :p", project)
            assert sorted(tuple(row.values()) for row in own) == sorted(read)
    parents = "SELECT m.depth FROM messages m JOIN messages a ON a.message_id = m.parent_message_id"
    assert sorted(row["depth"] for row in rows(store, parents)) == [1, 1, 1, 2, 2, 2]


@settings(max_examples=25)
@given(data=st.data())
def test_the_views_agree_with_the_graph(shared: Store, data: st.DataObject) -> None:
    _views_agree(shared, data)


@settings(max_examples=4)
@given(data=st.data())
def test_the_views_agree_with_the_graph_on_postgresql(on_postgresql: Store, data: st.DataObject) -> None:
    _views_agree(on_postgresql, data)


def _views_agree(store: Store, data: st.DataObject) -> None:
    events = data.draw(episodes())
    project = uuid4().hex
    ingest(store, events, project)
    graph = build(event for event in events if event.kind != "group")

    got = rows(store, "SELECT * FROM contexts WHERE project = :p ORDER BY call_id, position", project)
    for call_id in graph.calls.keys() - graph.pending:
        mine = [row for row in got if row["call_id"] == call_id]
        assert [row["position"] for row in mine] == list(range(len(mine)))
        seen = context(graph, call_id)
        assert [row["size"] for row in mine] == [len(m.raw) for m in seen]
        for row, message in zip(mine, seen, strict=True):
            if row["num_authors"] == 1 and message.author is not None:
                assert (row["author_call_id"], row["author_completion"]) == message.author
            if row["num_authors"] != 1:
                assert row["author_call_id"] is None

    got = rows(store, "SELECT * FROM branches WHERE project = :p", project)
    ends = [(row["end_call_id"], row["end_completion"], row["num_messages"]) for row in got]
    expected = [(b.end_call_id, None if b.end is None else b.end[1], len(b.nodes)) for b in branches(graph)]
    assert sorted(ends, key=str) == sorted(expected, key=str)

    got = rows(store, "SELECT * FROM calls WHERE project = :p", project)
    links = {
        row["call_id"]: (
            None if row["link_call_id"] is None else (row["link_call_id"], row["link_completion"]),
            row["link"],
        )
        for row in got
    }
    assert links == {call_id: (link.parent, link.how) for call_id, link in graph.links.items()}

    sampled = sum(len(body.token_ids) for body in graph.completions.values() if body.token_ids is not None)
    got = rows(store, "SELECT sum(sampled_tokens) AS n FROM token_counts WHERE project = :p", project)
    assert (got[0]["n"] or 0) == sampled

    got = rows(
        store,
        "SELECT DISTINCT kind, id FROM orphans "
        "WHERE project = :p AND missing IN ('parent_call', 'parent_agent')",
        project,
    )
    assert {(row["kind"], row["id"]) for row in got} == set(orphans(graph))


def test_a_tool_call_is_its_use_and_its_execution_and_a_failed_one_is_found(store: Store) -> None:
    uses = [make.tool_use("run", '{"a": 1}', id="t1"), make.tool_use("look", id="t2")]
    ingest(
        store,
        [
            call("c0", [user("u")], answer(make.assistant(None, tool_calls=uses))),
            make.tool_call("x1", "c0", tool_call_id="t1", status="failed", error="no such file"),
            make.tool_call("x3", "c0", tool_call_id="t3", status="ok"),
        ],
    )
    got = rows(store, "SELECT * FROM tool_calls ORDER BY position IS NULL, position")
    names = ("position", "tool_call_id", "execution_id", "name", "is_sampled", "is_executed", "status")
    assert [tuple(row[name] for name in names) for row in got] == [
        (0, "t1", "x1", "run", True, True, "failed"),
        (1, "t2", None, "look", True, False, None),
        (None, "t3", "x3", "run", False, True, "ok"),
    ]
    assert [row["error"] for row in got if row["status"] == "failed"] == ["no such file"]


def test_each_token_is_counted_once(store: Store) -> None:
    """Prompt of 3, answer of 2; the next prompt repeats these 5 and brings 4 more; its answer has 1."""
    ingest(
        store,
        [
            call("c0", [user("u")], answer("a", ids=[4, 5]), prompt_ids=[1, 2, 3], ordinal=0),
            call(
                "c1",
                [user("u"), assistant("a"), user("v")],
                answer("b", ids=[10]),
                prompt_ids=[1, 2, 3, 4, 5, 6, 7, 8, 9],
                ordinal=1,
            ),
        ],
    )
    got = rows(store, "SELECT * FROM token_counts ORDER BY call_id")
    assert [(r["prompt_tokens"], r["new_prompt_tokens"], r["sampled_tokens"]) for r in got] == [
        (3, 3, 2),
        (9, 4, 1),
    ]
    assert sum(r["new_prompt_tokens"] + r["sampled_tokens"] for r in got) == 3 + 2 + 4 + 1


def _calls(agent: str, count: int) -> list[AnyEvent]:
    return [call(f"{agent}{i}", [user(f"{agent} {i}")], "a", agent=agent, ordinal=i) for i in range(count)]


def test_an_episode_of_which_no_reward_counts_has_no_reward(store: Store) -> None:
    """mixed: 0.5 * 2 of its two; noted: its only reward has weight 0; wrong: its reward is 0."""
    events: list[AnyEvent] = [make.episode(name) for name in ("mixed", "noted", "wrong", "bare")]
    events += [
        make.reward("r0", 0.5, name="a", episode="mixed", weight=2.0),
        make.reward("r1", 9.0, name="b", episode="mixed", weight=0.0),
        make.reward("r2", 9.0, name="b", episode="noted", weight=0.0),
        make.reward("r3", 0.0, name="a", episode="wrong"),
    ]
    ingest(store, events)
    got = rows(store, "SELECT episode_id, reward FROM episodes")
    assert {row["episode_id"]: row["reward"] for row in got} == {
        "mixed": 0.5 * 2,
        "noted": None,
        "wrong": 0.0,
        "bare": None,
    }


def test_critical_steps_are_those_of_the_paper(store: Store) -> None:
    """Stages (1; [3, 10, 4]) and (2; []): 1 + 10 + 2 = 13, where one after the other would be 20."""
    spawned = [subagent(name, spawned_by="main0") for name in ("x", "y", "z")]
    lengths = {"main": 3, "x": 3, "y": 10, "z": 4}
    events = [make.agent("main"), *spawned]
    events += [event for name, count in lengths.items() for event in _calls(name, count)]
    ingest(store, events)
    got = rows(store, "SELECT * FROM critical_steps ORDER BY agent_id")
    assert {row["agent_id"]: row["critical_steps"] for row in got} == {"main": 13, "x": 3, "y": 10, "z": 4}
    graph = build(events)
    assert critical_steps(stages(graph, "main")) == 13


def test_a_subagent_of_a_subagent_adds_to_its_length(store: Store) -> None:
    """main 1 + (mid 2 + its subagent 5) = 8; a second subagent of main of 6 calls is shorter."""
    events: list[AnyEvent] = [
        make.agent("main"),
        subagent("mid", spawned_by="main0"),
        subagent("other", spawned_by="main0"),
        subagent("deep", spawned_by="mid0", parent="mid"),
    ]
    for name, number in (("main", 1), ("mid", 2), ("other", 6), ("deep", 5)):
        events += _calls(name, number)
    ingest(store, events)
    got = rows(store, "SELECT agent_id, critical_steps FROM critical_steps")
    assert {row["agent_id"]: row["critical_steps"] for row in got} == {
        "main": 8,
        "mid": 7,
        "other": 6,
        "deep": 5,
    }


def _line(below: int) -> list[AnyEvent]:
    """An agent with so many levels below it, of one agent and one call each."""
    names = [f"a{level:02}" for level in range(below + 1)]
    events: list[AnyEvent] = [make.agent(names[0])]
    events += [subagent(name, spawned_by=f"{above}0", parent=above) for above, name in pairwise(names)]
    return events + [event for name in names for event in _calls(name, 1)]


def test_critical_steps_look_twelve_levels_down_and_are_unknown_above_deeper_trees(store: Store) -> None:
    ingest(store, _line(13))
    got = rows(
        store, "SELECT agent_id, critical_steps, sequential_steps FROM critical_steps ORDER BY agent_id"
    )
    # a00 has 13 levels below it, a01 12 and so on: 1 call each.
    assert [row["critical_steps"] for row in got] == [None, *range(13, 0, -1)]
    assert [row["sequential_steps"] for row in got] == [*range(14, 0, -1)]


@st.composite
def deep_trees(draw: st.DrawFn) -> list[AnyEvent]:
    """Agents up to twelve levels deep, more often below the last one than below another; some not back."""
    parents = [-1]
    depth = [0]
    for number in range(1, draw(st.integers(1, 18))):
        above = number - 1 if draw(st.integers(0, 3)) else draw(st.integers(0, number - 1))
        above = above if depth[above] < 12 else 0
        parents.append(above)
        depth.append(depth[above] + 1)
    own = [draw(st.integers(1, 3)) for _ in parents]
    events: list[AnyEvent] = [make.agent("a0")]
    for number, above in enumerate(parents[1:], start=1):
        spawner = f"a{above}{draw(st.integers(0, own[above] - 1))}"
        phase = "start" if draw(st.integers(0, 15)) == 0 else "whole"
        events.append(subagent(f"a{number}", spawned_by=spawner, parent=f"a{above}", phase=phase))
    return events + [event for number, count in enumerate(own) for event in _calls(f"a{number}", count)]


@settings(max_examples=15)
@given(events=deep_trees())
def test_critical_steps_of_any_tree_are_those_of_the_graph(shared: Store, events: list[AnyEvent]) -> None:
    _steps_agree(shared, events)


@settings(max_examples=4)
@given(events=deep_trees())
def test_critical_steps_of_any_tree_are_those_of_the_graph_on_postgresql(
    on_postgresql: Store, events: list[AnyEvent]
) -> None:
    _steps_agree(on_postgresql, events)


def _steps_agree(store: Store, events: list[AnyEvent]) -> None:
    project = uuid4().hex
    ingest(store, events, project)
    got = rows(store, "SELECT agent_id, critical_steps FROM critical_steps WHERE project = :p", project)
    graph = build(events)
    expected: dict[str, int | None] = {}
    for agent_id in graph.agents:
        try:
            expected[agent_id] = critical_steps(stages(graph, agent_id))
        except OpenStage:
            expected[agent_id] = None
    assert {row["agent_id"]: row["critical_steps"] for row in got} == expected


def test_the_length_of_an_open_stage_is_unknown(store: Store) -> None:
    ingest(
        store,
        [
            make.agent("main"),
            subagent("x", spawned_by="main0", phase="start"),
            *_calls("main", 1),
            *_calls("x", 1),
        ],
    )
    got = rows(store, "SELECT agent_id, critical_steps FROM critical_steps ORDER BY agent_id")
    assert [tuple(row.values()) for row in got] == [("main", None), ("x", 1)]


def test_a_rejected_candidate_keeps_its_score_and_its_flag(store: Store) -> None:
    ingest(
        store,
        [
            call("c0", [user("u")], "a", "b", "c"),
            make.candidate_set(
                "set1", make.member("c0", 0, score=0.1), make.member("c0", 1), make.member("c0", 2)
            ),
            make.selection("sel0", "set1", 0),
            make.selection(
                "sel1", "set1", 2, scores={1: 0.4, 2: 0.9}, selector="judge", treatment="negative"
            ),
            make.candidate_set("set2", make.member("c0", 0)),
        ],
    )
    got = rows(store, "SELECT * FROM candidates ORDER BY candidate_set_id, member")
    assert [(r["candidate_set_id"], r["completion"], r["score"], r["selected"]) for r in got] == [
        ("set1", 0, 0.1, 1),
        ("set1", 1, 0.4, 0),
        ("set1", 2, 0.9, 1),
        ("set2", 0, None, None),
    ]
    assert {r["treatment"] for r in got[:3]} == {"negative"}


def test_what_selections_say_does_not_depend_on_which_came_last(store: Store) -> None:
    """Each chooses; scores and treatment are of the last by id; one beyond the set counts for nothing."""
    said = [
        make.selection("sel0", "set1", 0, scores={0: 0.2, 1: 0.3}, treatment="exclude"),
        make.selection("sel1", "set1", 1, scores={1: 0.7}, treatment="negative"),
        make.selection("sel2", "set1", 2, scores={0: 0.9}, treatment="shared"),
    ]
    members = make.member("c0", 0), make.member("c0", 1)
    opening = [call("c0", [user("u")], "a", "b"), make.candidate_set("set1", *members)]
    query = "SELECT member, score, selected, treatment FROM candidates WHERE project = ? ORDER BY member"
    for name, order in (("p1", said), ("p2", said[::-1])):
        store.ingest(name, [make.posted(event) for event in (*opening, *order)])
        got = rows(store, query.replace("?", f"'{name}'"))
        assert [tuple(row.values()) for row in got] == [(0, 0.2, 1, "negative"), (1, 0.7, 1, "negative")]


def test_compaction_loss_counts_what_went(store: Store) -> None:
    ingest(
        store,
        [
            make.agent(),
            call("c0", [user("u"), assistant("x"), user("v")], "s", purpose="summarize"),
            call("c1", [user("u"), user("summary")], "a"),
            make.compaction(
                before_call_id="c0",
                after_call_id="c1",
                author_call_id="c0",
                replaced_call_ids=("c0",),
                tokens_before=90,
                tokens_after=20,
            ),
        ],
    )
    (row,) = rows(store, "SELECT * FROM compaction_loss")
    assert (row["tokens_lost"], row["messages_before"], row["messages_after"], row["messages_lost"]) == (
        90 - 20,
        3,
        2,
        3 - 2,
    )
    assert (row["num_replaced"], row["num_kept"], row["author_call_id"]) == (1, 0, "c0")
    kinds = {row["kind"] for row in rows(store, "SELECT kind FROM edges WHERE context_edit_id = 'edit1'")}
    assert kinds == {"edit_before", "edit_after", "summary", "replaced"}


def test_edges_name_who_spawned_whom(store: Store) -> None:
    ingest(
        store,
        [
            make.agent(),
            call("c0", [user("u")], "a"),
            subagent("sub", spawned_by=("c0", 0), tool_call="t7"),
            make.episode("fork", forked_from_call_id="c0", forked_from_episode_id="e"),
        ],
    )
    got = rows(store, "SELECT * FROM edges ORDER BY kind")
    assert [(r["kind"], r["from_call_id"], r["to_agent_id"], r["to_episode_id"]) for r in got] == [
        ("fork", "c0", None, "fork"),
        ("spawn", "c0", "sub", None),
    ]
    assert got[1]["tool_call_id"] == "t7"


def test_what_only_its_parts_have_come_of_is_shown_as_such(store: Store) -> None:
    ingest(store, [call("c0", [user("u")], parent="gone", agent="ghost")])
    (episode,) = rows(store, "SELECT * FROM episodes")
    assert (episode["is_recorded"], episode["num_calls"], episode["num_agents"]) == (0, 1, 0)
    got = rows(store, "SELECT missing, missing_id FROM orphans ORDER BY missing")
    assert [tuple(row.values()) for row in got] == [
        ("agent", "ghost"),
        ("episode", "e"),
        ("parent_call", "gone"),
    ]


def test_consumption_and_gaps_are_listed(store: Store) -> None:
    ingest(store, [make.consumption(tokens=5), make.gap(cause="unrecorded_stream")])
    (used,) = rows(store, "SELECT * FROM consumption")
    assert (used["call_id"], used["completion"], used["tokens"], used["run"]) == ("c0", 0, 5, "run1")
    (gap,) = rows(store, "SELECT * FROM gaps")
    assert gap["cause"] == "unrecorded_stream"


def test_every_message_of_a_context_names_its_author(store: Store) -> None:
    """c1 sees what c0 wrote, spelled another way; "same" was said by both answers of c1."""
    ingest(
        store,
        [
            make.agent(),
            call("c0", [user("u")], "a"),
            call("c1", [user("u"), Raw(b'{"content": "a", "role": "assistant"}'), user("v")], "same", "same"),
            call("c2", [user("w")], "b", parent="c1", completion=1, delta=True),
        ],
    )
    sql = (
        "SELECT position, author_agent_id, author_call_id, author_completion, num_authors FROM contexts "
        "WHERE call_id = 'c2' ORDER BY position"
    )
    assert [tuple(row.values()) for row in rows(store, sql)] == [
        (0, None, None, None, 0),
        (1, "main", "c0", 0, 1),
        (2, None, None, None, 0),
        (3, None, None, None, 2),
        (4, None, None, None, 0),
    ]


def test_the_depth_of_an_agent_is_counted_along_the_tree(store: Store) -> None:
    ingest(
        store,
        [
            make.agent("main"),
            subagent("mid", spawned_by="main0"),
            subagent("deep", spawned_by="mid0", parent="mid"),
            subagent("lost", spawned_by="x", parent="gone"),
        ],
    )
    got = rows(store, "SELECT agent_id, tree_depth, is_complete FROM agents")
    assert {row["agent_id"]: row["tree_depth"] for row in got} == {"main": 0, "mid": 1, "deep": 2, "lost": 0}


def test_spawns_that_overlap_share_a_stage_and_the_speed_up_is_over_one_after_the_other(store: Store) -> None:
    """x and y overlap: 2 own + max(3, 10) = 12 and 2 + 3 + 10 = 15 in sequence, 15 / 12 = 1.25."""
    lengths = {"main": 2, "x": 3, "y": 10}
    events: list[AnyEvent] = [
        make.agent("main"),
        subagent("x", spawned_by="main0", stage=0),
        subagent("y", spawned_by="main1", stage=0),
    ]
    events += [event for name, count in lengths.items() for event in _calls(name, count)]
    ingest(store, events)
    sql = "SELECT own_calls, critical_steps, sequential_steps, speed_up FROM critical_steps"
    (row,) = rows(store, f"{sql} WHERE agent_id = 'main'")
    assert tuple(row.values()) == (2, 2 + 10, 2 + 3 + 10, 15 / 12)
    assert critical_steps(stages(build(events), "main")) == 12


def test_the_finish_rate_is_finished_over_assigned(store: Store) -> None:
    """PARL's worked numbers: 2 of 3 finished."""
    ingest(
        store,
        [
            make.agent("main"),
            subagent("x", spawned_by="c0", status="ok"),
            subagent("y", spawned_by="c0", status="ok"),
            subagent("z", spawned_by="c0", phase="start"),
        ],
    )
    got = rows(store, "SELECT agent_id, assigned, finished, unfinished_open, finish_rate FROM finish_rates")
    assert [tuple(row.values()) for row in got] == [("main", 3, 2, 1, 2 / 3)]


def test_unfolded_tokens_are_those_of_the_main_thread_that_spawn_nothing(store: Store) -> None:
    """c0 spawns; c1 reads 20 and samples 3, c2 reads 30 and samples 2: beyond a context of 25 there are 2."""
    ingest(
        store,
        [
            make.agent("main"),
            call("c0", [user("u")], answer("a", ids=[1]), prompt_ids=range(10), ordinal=0),
            call("c1", [user("v")], answer("b", ids=[1, 2, 3]), prompt_ids=range(20), ordinal=1),
            call("c2", [user("w")], answer("c", ids=[1, 2]), prompt_ids=range(30), ordinal=2),
            subagent("sub", spawned_by="c0"),
            call("s0", [user("x")], answer("d", ids=[1]), prompt_ids=range(40), agent="sub"),
        ],
    )
    got = rows(store, "SELECT call_id, context_tokens, sampled_tokens FROM unfolded_tokens ORDER BY ordinal")
    assert [tuple(row.values()) for row in got] == [("c1", 20, 3), ("c2", 30, 2)]
    (beyond,) = rows(store, "SELECT sum(sampled_tokens) AS n FROM unfolded_tokens WHERE context_tokens > 25")
    assert beyond["n"] == 2


def test_prefix_duplication_is_what_was_processed_over_what_there_is(store: Store) -> None:
    """Prompts of 3 and 9, answers of 2 and 1: 15 processed; 3 + 2 + 4 + 1 = 10 of them once."""
    second = [user("u"), assistant("a"), user("v")]
    ingest(
        store,
        [
            call("c0", [user("u")], answer("a", ids=[4, 5]), prompt_ids=[1, 2, 3]),
            call("c1", second, answer("b", ids=[10]), prompt_ids=range(1, 10)),
        ],
    )
    (row,) = rows(store, "SELECT * FROM prefix_duplication")
    assert (row["tokens_processed"], row["tokens_once"]) == (3 + 2 + 9 + 1, 3 + 2 + 4 + 1)
    assert (row["token_duplication"], row["messages_read"], row["messages_once"]) == (15 / 10, 1 + 3, 3)
    assert (row["num_calls"], row["calls_without_ids"]) == (2, 0)


def test_what_vanished_and_what_a_summary_replaced_are_listed(store: Store) -> None:
    """Before: s u a u b (the answer). After: s u SUMMARY. One of the two u stays."""
    start = [make.system("s"), user("u")]
    ingest(
        store,
        [
            make.agent(),
            call("c0", start, answer("a", ids=[3, 4]), prompt_ids=[1, 2]),
            call("c1", [*start, assistant("a"), user("u")], answer("b", ids=[6]), prompt_ids=[1, 2, 3, 4, 5]),
            call("c2", [*start, user("SUMMARY")], "c"),
            make.compaction(
                before_call_id="c1", after_call_id="c2", replaced_call_ids=("c0",), kept_call_ids=("c1",)
            ),
            make.compaction("open", before_call_id="c0"),
        ],
    )
    sql = "SELECT position, preview, vanished FROM compaction_messages"
    got = rows(store, f"{sql} WHERE context_edit_id = 'edit1' ORDER BY position")
    assert [tuple(row.values()) for row in got] == [
        (0, "s", False),
        (1, "u", False),
        (2, "a", True),
        (3, "u", True),
        (4, "b", True),
    ]
    got = rows(store, f"{sql} WHERE context_edit_id = 'open' ORDER BY position")
    assert [row["vanished"] for row in got] == [None, None, None]
    got = rows(
        store, "SELECT part, call_id, new_prompt_tokens, sampled_tokens FROM compaction_calls ORDER BY part"
    )
    assert [tuple(row.values()) for row in got] == [("kept", "c1", 1, 1), ("replaced", "c0", 2, 2)]


def test_snapshots_say_what_they_came_of_and_those_that_never_came_are_not_there(store: Store) -> None:
    ingest(
        store,
        [
            make.snapshot("m0", "h0", wave=0, frozen=True),
            make.snapshot("m1", "h1", parent_hash="h0", wave=1, commit_order=0, agent_id="main"),
            make.agent("main", snapshot_id="m0"),
            make.agent("other", snapshot_id="never came"),
        ],
    )
    names = "snapshot_id, agent_id, hash, parent_hash, wave, commit_order, frozen"
    got = rows(store, f"SELECT {names} FROM snapshots ORDER BY snapshot_id")
    assert [tuple(row.values()) for row in got] == [
        ("m0", None, "h0", None, 0, None, True),
        ("m1", "main", "h1", "h0", 1, 0, None),
    ]
    began = rows(store, "SELECT a.agent_id FROM agents a JOIN snapshots s USING (project, snapshot_id)")
    assert [row["agent_id"] for row in began] == ["main"]


def test_a_blob_has_a_row_for_every_place_that_refers_to_it(store: Store) -> None:
    image, scalar = "a" * 64, "b" * 64
    ingest(
        store,
        [
            call("c0", [user("u")], "a"),
            make.blob("b0", image, call_id="c0", position=5, role="image", media_type="image/png", size=70),
            make.blob("b1", image, agent_id="main"),
            make.blob("b2", scalar, call_id="c0", completion=0, dtype="float32", shape=()),
            make.blob("b3", scalar, dtype="float32", shape=(4, 896)),
        ],
    )
    names = "blob_id, hash, role, media_type, dtype, shape, size, agent_id, call_id, completion, position"
    assert [tuple(row.values()) for row in rows(store, f"SELECT {names} FROM blobs ORDER BY blob_id")] == [
        ("b0", image, "image", "image/png", None, None, 70, None, "c0", None, 5),
        ("b1", image, None, None, None, None, 70, "main", None, None, None),
        ("b2", scalar, None, None, "float32", "", None, None, "c0", 0, None),
        ("b3", scalar, None, None, "float32", "4,896", None, None, None, None, None),
    ]


def test_every_token_has_its_policy_version_and_consumption_its_staleness(store: Store) -> None:
    """Three tokens of version 4 and two of version 5, trained in step 7: 7 - 4 = 3 behind."""
    runs = (VersionRun(start=0, name="policy", version=4), VersionRun(start=3, name="policy", version=5))
    ingest(
        store,
        [
            call("c0", [user("u")], answer("a", ids=[1, 2, 3, 4, 5], versions=runs)),
            call("c1", [user("v")], answer("b", ids=[1])),
            make.consumption("u0", "c0", step=7),
            make.consumption("u1", "c1", step=7),
        ],
    )
    sql = "SELECT call_id, policy_version, token_start, num_tokens FROM policy_versions ORDER BY 1, position"
    assert [tuple(row.values()) for row in rows(store, sql)] == [
        ("c0", 4, 0, 3),
        ("c0", 5, 3, 2),
        ("c1", 1, 0, 1),
    ]
    got = rows(store, "SELECT call_id, policy_version, staleness FROM consumption ORDER BY call_id")
    assert [tuple(row.values()) for row in got] == [("c0", 4, 7 - 4), ("c1", 1, 7 - 1)]


def test_a_parent_in_another_episode_has_not_come(store: Store) -> None:
    events = [
        *(make.episode("one"), make.agent("m", episode="one", status="ok")),
        *(make.episode("two"), make.agent("s", episode="two", parent_agent_id="m", status="ok")),
        call("c", [user("u")], "a", episode="two", agent="s"),
    ]
    ingest(store, events)
    assert rows(store, "SELECT agent_id FROM finish_rates") == []
    depths = rows(store, "SELECT agent_id, tree_depth FROM agents ORDER BY agent_id")
    assert [(row["agent_id"], row["tree_depth"]) for row in depths] == [("m", 0), ("s", 0)]
    steps = rows(store, "SELECT agent_id, sequential_steps FROM critical_steps ORDER BY agent_id")
    # The one call is s's alone.
    assert [(row["agent_id"], row["sequential_steps"]) for row in steps] == [("m", 0), ("s", 1)]


def test_a_call_in_another_episode_than_its_agent_is_none_of_its_calls(store: Store) -> None:
    """It is an orphan there: its agent has not come."""
    events = [
        *(make.episode("one"), make.agent("m", episode="one", status="ok"), make.episode("two")),
        call("c", [user("u")], answer("a", ids=[1, 2]), episode="one", agent="m"),
        call("d", [user("u")], answer("a", ids=[1, 2, 3]), episode="two", agent="m"),
    ]
    ingest(store, events)
    assert [row["num_calls"] for row in rows(store, "SELECT num_calls FROM agents")] == [1]
    steps = rows(store, "SELECT own_calls, critical_steps, sequential_steps FROM critical_steps")
    assert [tuple(row.values()) for row in steps] == [(1, 1, 1)]
    unfolded = rows(store, "SELECT call_id, sampled_tokens FROM unfolded_tokens")
    assert [tuple(row.values()) for row in unfolded] == [("c", 2)]
    assert [row["id"] for row in rows(store, "SELECT id FROM orphans WHERE missing = 'agent'")] == ["d"]
