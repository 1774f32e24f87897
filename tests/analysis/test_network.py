"""An episode for networkx: everything recorded is a node, and the typed edges are those of the view."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import pytest
from hypothesis import given, settings
from sqlalchemy import text

from tests import factories as make
from tests.databases import empty_store
from tests.factories import answer, assistant, call, member, posted, subagent, user
from tests.sample_traces.traces import NAMES, graphs_of, trace_events
from tests.strategies import episodes
from tracestore.analysis.network import networkx_of
from tracestore.graph.build import build
from tracestore.graph.context import context
from tracestore.store import Store
from tracestore.wire.events import AnyEvent

_IN_THE_VIEW = ("continuation", "spawn", "edit_before", "edit_after", "summary", "replaced", "copy")


def names_of(network: Any, kind: str) -> set[str]:
    return {name[1] for name in network if name[0] == kind}


@pytest.mark.parametrize("name", NAMES)
def test_its_edges_are_those_of_the_view(name: str, tmp_path: Path) -> None:
    events = trace_events(name)
    with Store.open(empty_store(tmp_path / "t.db")) as store:
        store.ingest("default", [posted(event) for event in events])
        sql = (
            "SELECT episode_id, kind, coalesce(from_call_id, from_agent_id, context_edit_id) AS a,"
            " coalesce(to_call_id, to_agent_id, context_edit_id) AS b FROM edges"
        )
        with store.read() as connection:
            expected = {tuple(row) for row in connection.execute(text(sql))}
    found = {
        (graph.episode.id, kind, start[1], end[1])
        for graph in graphs_of(events)
        if graph.episode is not None
        for start, end, kind in networkx_of(graph).edges(data="kind")
        if kind in _IN_THE_VIEW
    }
    assert found == expected


@settings(max_examples=30)
@given(events=episodes())
def test_everything_recorded_is_a_node_and_a_context_is_a_path(events: list[AnyEvent]) -> None:
    graph = build(events)
    network = networkx_of(graph)
    recorded = {name for name, is_recorded in network.nodes(data="is_recorded") if is_recorded}
    assert {id_ for kind, id_ in recorded if kind == "call"} == set(graph.calls)
    assert {id_ for kind, id_ in recorded if kind == "agent"} == set(graph.agents)
    assert names_of(network, "message") == {key.hex() for key in graph.nodes}
    for call_id in graph.calls.keys() - graph.pending:
        path = [node.key.hex() for node in graph.path(graph.prompt_node[call_id])]
        assert len(path) == len(context(graph, call_id))
        for before, after in pairwise(path):
            assert network.has_edge(("message", before), ("message", after), "next")


def test_nodes_and_edges_say_what_is_known() -> None:
    graph = build(
        [
            make.episode(status="ok", task_id="t"),
            make.agent(role="main"),
            call("c0", [user("u")], answer("a", ids=[3, 4]), answer("a"), ordinal=0, purpose="act"),
            call("c1", [user("u"), assistant("a"), user("v")], parent="c0", completion=1),
            subagent("sub", spawned_by="c9"),
            make.candidate_set("s", member("c0", 0, score=0.5), member("c0", 1)),
            make.selection("k", "s", 1),
        ]
    )
    network = networkx_of(graph)
    assert isinstance(network, networkx.DiGraph)
    assert (network.graph["status"], network.graph["task_id"]) == ("ok", "t")
    c0, c1 = ("call", "c0"), ("call", "c1")
    assert network.nodes[c0]["purpose"] == "act"
    assert network.nodes[c0]["sampled_tokens"] == 2
    assert network.nodes[c1]["sampled_tokens"] is None
    assert network.nodes["call", "c9"] == {"kind": "call", "is_recorded": False}
    assert network.edges[c0, c1, "continuation"]["completion"] == 1
    assert network.edges[("call", "c9"), ("agent", "sub"), "spawn"]["tool_call_id"] == "t1"
    members = sorted(network[("candidate_set", "s")][c0].values(), key=lambda facts: facts["member"])
    assert [(one["score"], one["selected"]) for one in members] == [(0.5, False), (None, True)]
    wrote = [
        facts["completion"] for _, _, facts in network.out_edges(c0, data=True) if facts["kind"] == "wrote"
    ]
    assert sorted(wrote) == [0, 1]
    previews = {facts["preview"] for name, facts in network.nodes(data=True) if name[0] == "message"}
    assert previews == {"u", "a", "v"}


def test_each_message_is_read_where_it_was_posted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message and one answer of each of 50 delta calls: 100, where their contexts together have 2,500."""
    events: list[AnyEvent] = [make.agent(), call("c0", [user("q0")], "a0")]
    events += [
        call(f"c{n}", [user(f"q{n}")], f"a{n}", parent=f"c{n - 1}", completion=0, delta=True)
        for n in range(1, 50)
    ]
    graph = build(events)
    read = []
    monkeypatch.setattr("tracestore.analysis.network.preview", lambda raw: read.append(raw) or raw.decode())
    networkx_of(graph)
    assert len(read) == len(graph.nodes) == 100
