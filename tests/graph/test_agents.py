"""The tree of agents, whole or with pieces missing."""

from __future__ import annotations

from tests.factories import agent, assistant, call, completion, subagent, system, tool_use, user
from tracestore.graph.agents import Spawn, agent_tree, calls_in_order
from tracestore.graph.build import build

USES = assistant(None, tool_calls=[tool_use("spawn", id="t1"), tool_use("spawn", id="t2")])


def test_children_stand_under_the_call_that_spawned_them_in_its_order() -> None:
    graph = build(
        [
            subagent("deep", spawned_by="s0", parent="late"),
            subagent("late", spawned_by="c1", tool_call="t2"),
            subagent("early", spawned_by="c0"),
            agent("main"),
            call("c0", (), "x", ordinal=0),
            call("c1", (), "x", ordinal=1),
            call("s0", (), "x", agent="late"),
        ]
    )
    tree = agent_tree(graph)
    assert list(tree) == ["main", "early", "late", "deep"]
    assert [node.depth for node in tree.values()] == [0, 1, 1, 2]
    assert tree["main"].children == ("early", "late")
    assert tree["late"].spawn == Spawn("c1", 0, "t2")
    assert tree["main"].spawn is None
    assert not any(node.is_orphan for node in tree.values())


def test_calls_without_ordinals_stand_after_a_completion_whose_call_has_not_come() -> None:
    second = call("a1", [user("u"), assistant("y"), user("v")], agent="main")
    graph = build([completion("gone", 0, "x"), call("b0", [user("u")], "y", parent="gone"), second])
    assert [one.id for one in calls_in_order(graph, "main")] == ["b0", "a1"]


def test_an_agent_whose_parent_never_came_is_an_orphan_and_a_root() -> None:
    tree = agent_tree(build([subagent("sub", spawned_by="c0", parent="gone"), call("c", agent="sub")]))
    assert tree["sub"].is_orphan
    assert (tree["sub"].depth, tree["sub"].parent_id) == (0, "gone")


def test_an_agent_known_by_its_calls_alone_is_in_the_tree() -> None:
    tree = agent_tree(build([call("c", agent="main"), subagent("sub", spawned_by="c")]))
    assert tree["main"].agent is None
    assert tree["main"].children == ("sub",)


def test_agents_in_a_circle_are_roots_and_orphans() -> None:
    tree = agent_tree(build([agent("a", parent_agent_id="b"), agent("b", parent_agent_id="a")]))
    assert [(node.agent_id, node.depth, node.is_orphan) for node in tree.values()] == [
        ("a", 0, True),
        ("b", 0, True),
    ]


def test_calls_go_by_ordinal_and_without_one_by_what_they_continue() -> None:
    numbered = build([call("a", ordinal=2), call("b", ordinal=0), call("c", ordinal=1)])
    assert [c.id for c in calls_in_order(numbered, "main")] == ["b", "c", "a"]
    s, u = system("s"), user("u")
    chained = build(
        [
            call("z", [s], "one"),
            call("y", [s, assistant("one"), u], "two"),
            call("x", [s, assistant("one"), u, assistant("two"), u], "three"),
        ]
    )
    assert [c.id for c in calls_in_order(chained, "main")] == ["z", "y", "x"]
    assert calls_in_order(chained, "nobody") == ()
