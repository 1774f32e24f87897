"""Critical steps by hand, and the stages that episodes fall into."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import agent, answer, assistant, call, subagent, system, tool, tool_use, user
from tests.strategies import Recording, recordings
from tracestore.graph.build import build
from tracestore.graph.critical import OpenStage, Stage, critical_steps, stages
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call

S = system("s")


def test_a_stage_costs_its_own_calls_and_its_longest_subagent() -> None:
    assert critical_steps([Stage(2, (3, 7))]) == 2 + 7


def test_stages_add_up() -> None:
    assert critical_steps([Stage(1, (3, 10, 4)), Stage(2)]) == (1 + 10) + 2


def test_ten_subagents_cost_what_the_slowest_one_costs() -> None:
    assert critical_steps([Stage(1, tuple(range(1, 11)))]) == 1 + 10


def test_an_episode_without_calls_has_length_zero() -> None:
    assert critical_steps([]) == 0


def test_a_subagent_that_never_returned_leaves_its_stage_open() -> None:
    with pytest.raises(OpenStage, match="stage=1") as error:
        critical_steps([Stage(1), Stage(1, (3, None))])
    assert error.value.status == 409


@given(st.lists(st.builds(Stage, st.integers(0, 9), st.lists(st.integers(0, 9)).map(tuple))))
def test_critical_steps_lie_between_the_longest_line_and_the_sum(some: list[Stage]) -> None:
    own = sum(stage.own_calls for stage in some)
    every = own + sum(length or 0 for stage in some for length in stage.subagents)
    assert own <= critical_steps(some) <= every


def spawner(id: str, *children: str, context: tuple[object, ...] = (S,), ordinal: int = 0) -> Call:  # noqa: A002
    """A call whose answer uses a tool once for each child, the child's name being the tool call's id."""
    message = assistant(None, tool_calls=[tool_use("spawn", id=child) for child in children])
    return call(id, context, answer(message), ordinal=ordinal)  # type: ignore[arg-type]


def steps(name: str, count: int) -> list[Call]:
    return [call(f"{name}.{i}", [S, user(str(i))], "x", agent=name, ordinal=i) for i in range(count)]


def child(name: str, spawned_by: str, **fields: object) -> Agent:
    return subagent(name, spawned_by=spawned_by, tool_call=name, **fields)


def test_subagents_side_by_side_share_a_stage() -> None:
    """systems.md: stages (1; [3, 10, 4]) and (2; []) are 13 steps; one after the other they would be 20."""
    results = tuple(tool("done", tool_call_id=name) for name in "abc")
    events = [
        agent(),
        spawner("c0", "a", "b", "c"),
        *(child(name, "c0") for name in "abc"),
        *steps("a", 3),
        *steps("b", 10),
        *steps("c", 4),
        call("c1", [S, *results], "x", ordinal=1),
        call("c2", [S, *results, user("u")], "y", ordinal=2),
    ]
    found = stages(build(events), "main")
    assert found == (Stage(1, (3, 10, 4)), Stage(2))
    assert critical_steps(found) == (1 + 10) + 2


def test_a_child_costs_its_own_critical_steps() -> None:
    """a makes 2 calls and starts b and c (3 and 5 calls) from the first: 1 + 5 + 1 = 7; main: 1 + 7."""
    events = [
        agent(),
        spawner("c0", "a"),
        child("a", "c0"),
        call(
            "a0",
            [S, user("0")],
            answer(assistant(None, tool_calls=[tool_use("s", id="b")])),
            agent="a",
            ordinal=0,
        ),
        call("a1", [S, user("1")], "x", agent="a", ordinal=1),
        child("b", "a0", parent="a"),
        subagent("c", spawned_by="a0", tool_call=None, parent="a"),
        *steps("b", 3),
        *steps("c", 5),
    ]
    graph = build(events)
    assert critical_steps(stages(graph, "a")) == 1 + 5 + 1
    assert critical_steps(stages(graph, "main")) == 1 + 7


def test_overlapping_spawns_are_one_stage_until_the_last_child_returns() -> None:
    """a starts at c0 and is back before c3; b starts at c1 and is back before c2: (3; [4, 9]), (1; [])."""
    b_back = tool("b", tool_call_id="b")
    a_back = tool("a", tool_call_id="a")
    events = [
        agent(),
        spawner("c0", "a", ordinal=0),
        spawner("c1", "b", context=(S, user("1")), ordinal=1),
        call("c2", [S, b_back], "x", ordinal=2),
        call("c3", [S, b_back, a_back], "x", ordinal=3),
        child("a", "c0"),
        child("b", "c1"),
        *steps("a", 4),
        *steps("b", 9),
    ]
    found = stages(build(events), "main")
    assert found == (Stage(3, (4, 9)), Stage(1))
    assert critical_steps(found) == (3 + 9) + 1


def test_spawns_one_after_the_other_are_two_stages() -> None:
    events = [
        agent(),
        spawner("c0", "a", ordinal=0),
        spawner("c1", "b", context=(S, tool("a", tool_call_id="a")), ordinal=1),
        call("c2", [S, tool("b", tool_call_id="b")], "x", ordinal=2),
        child("a", "c0"),
        child("b", "c1"),
        *steps("a", 4),
        *steps("b", 9),
    ]
    found = stages(build(events), "main")
    assert found == (Stage(1, (4,)), Stage(1, (9,)), Stage(1))
    assert critical_steps(found) == (1 + 4) + (1 + 9) + 1


def test_the_harness_may_say_which_spawns_are_one_stage() -> None:
    events = [
        agent(),
        spawner("c0", "a", ordinal=0),
        spawner("c1", "b", context=(S, user("1")), ordinal=1),
        child("a", "c0", stage=0),
        child("b", "c1", stage=0),
        *steps("a", 4),
        *steps("b", 9),
    ]
    assert stages(build(events), "main") == (Stage(2, (4, 9)),)


def test_a_running_child_leaves_the_stages_above_it_open() -> None:
    events = [
        agent(),
        spawner("c0", "a"),
        child("a", "c0"),
        *steps("a", 1),
        subagent("b", spawned_by="a.0", parent="a", phase="start"),
    ]
    found = stages(build(events), "main")
    assert found == (Stage(1, (None,)),)
    with pytest.raises(OpenStage):
        critical_steps(found)


def test_a_child_spawned_from_outside_runs_beside_the_first_stage() -> None:
    events = [agent(), call("c0", [S], "x", ordinal=0), call("c1", [S], "x", ordinal=1)]
    events += [agent("a", parent_agent_id="main"), *steps("a", 5)]
    assert stages(build(events), "main") == (Stage(1, (5,)), Stage(1))


def test_agents_in_a_circle_end() -> None:
    events = [
        agent("a", parent_agent_id="b"),
        agent("b", parent_agent_id="a"),
        *steps("a", 1),
        *steps("b", 2),
    ]
    assert critical_steps(stages(build(events), "a")) == 1 + 2


@settings(max_examples=40)
@given(recordings())
def test_stages_hold_every_call_of_the_agent_once(recording: Recording) -> None:
    graph = build(recording.events)
    own = sum(stage.own_calls for stage in stages(graph, "main"))
    assert own == sum(c.agent_id == "main" for c in graph.calls.values())
    assert critical_steps(stages(graph, "main")) <= len(graph.calls)
