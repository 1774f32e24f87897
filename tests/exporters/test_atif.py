from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.exporters.round_trip import assert_round_trip
from tests.factories import (
    agent,
    answer,
    assistant,
    blob,
    call,
    episode,
    reward,
    system,
    tool,
    tool_use,
    user,
)
from tests.importers.reading import read_fixtures, read_paths
from tests.importers.test_atif import CONTINUATION, SUMMARIZATION
from tests.scenarios import SCENARIOS
from tests.strategies import episodes
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.importers.carried import KEY
from tracestore.wire.call import Usage
from tracestore.wire.events import AnyEvent
from tracestore_exporters.atif import trajectory
from tracestore_exporters.writing import Report

TRACES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*/trace.jsonl"))


def write(graph: Graph, report: Report) -> Any:
    return trajectory(graph, report=report)


def written(*events: AnyEvent) -> dict[str, Any]:
    return trajectory(build(events), report=Report())


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parent.name)
def test_our_own_traces_come_back_from_a_trajectory(path: Path) -> None:
    for graph in read_paths(path).graphs.values():
        report = assert_round_trip(graph, write)
        # A trajectory names payloads by their hash; their bytes lie in the store.
        assert +report.lost == +Counter({"payload of a blob": len(graph.blobs)})


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_comes_back_from_a_trajectory(name: str) -> None:
    assert_round_trip(build(SCENARIOS[name]().events), write)


@settings(max_examples=12, deadline=None)
@given(episodes(max_calls=6))
def test_any_episode_comes_back_from_a_trajectory(events: list[AnyEvent]) -> None:
    assert_round_trip(build(events), write)


@pytest.mark.parametrize("names", [SUMMARIZATION, CONTINUATION], ids=["summarization", "continuation"])
def test_imported_trajectories_come_back_from_a_trajectory(names: list[str]) -> None:
    (graph,) = read_fixtures(*names).graphs.values()
    assert_round_trip(graph, write)


def test_a_step_says_what_atif_has_a_name_for() -> None:
    ask = assistant("let me look", tool_calls=[tool_use("look", '{"at": 1}')])
    first = [system("s"), user("u")]
    document = written(
        episode(),
        agent("main", role="main", name="scout", model="m"),
        call(
            "c0", first, answer(ask, ids=[1, 2], logprobs=[-0.5, -0.25]), ordinal=0, model="m", prompt_ids=[7]
        ),
        call("c1", [*first, ask, tool("seen")], answer(assistant("done")), ordinal=1, model="m"),
    )
    assert document["schema_version"] == "ATIF-v1.8"
    assert (document["session_id"], document["trajectory_id"]) == ("e", "main")
    assert document["agent"] == {"name": "scout", "version": "unknown", "model_name": "m"}
    one, two, three, four = ({n: v for n, v in step.items() if n != "extra"} for step in document["steps"])
    assert one == {"step_id": 1, "source": "system", "message": "s"}
    assert two == {"step_id": 2, "source": "user", "message": "u"}
    (use,) = three.pop("tool_calls")
    assert (use["tool_call_id"], use["function_name"], use["arguments"]) == ("t1", "look", {"at": 1})
    assert three == {
        "step_id": 3,
        "source": "agent",
        "message": "let me look",
        "model_name": "m",
        "metrics": {
            "prompt_token_ids": [7],
            "completion_token_ids": [1, 2],
            "logprobs": [-0.5, -0.25],
        },
        "observation": {"results": [{"source_call_id": "t1", "content": "seen"}]},
    }
    assert four == {"step_id": 4, "source": "agent", "message": "done", "model_name": "m"}


def test_a_sub_agent_is_embedded_and_the_step_that_spawned_it_refers_to_it() -> None:
    ask = assistant("", tool_calls=[tool_use("ask")])
    document = written(
        episode(),
        agent("main", role="main"),
        agent(
            "sub",
            role="subagent",
            parent_agent_id="main",
            spawned_by_call_id="c0",
            spawned_by_tool_call_id="t1",
        ),
        call("c0", [user("u")], answer(ask), ordinal=0),
        call("s0", [user("q")], answer(assistant("a")), agent="sub"),
        call("c1", [user("u"), ask, tool("a")], answer(assistant("done")), ordinal=1),
    )
    (child,) = document["subagent_trajectories"]
    assert child["trajectory_id"] == "sub"
    (result,) = document["steps"][1]["observation"]["results"]
    assert (result["source_call_id"], result["content"]) == ("t1", "a")
    assert [ref["trajectory_id"] for ref in result["subagent_trajectory_ref"]] == ["sub"]


def test_a_context_that_begins_anew_is_spelled_out_in_copied_steps() -> None:
    document = written(
        episode(),
        agent("main", role="main"),
        call("c0", [user("u")], answer(assistant("a")), ordinal=0),
        call("c1", [user("short")], answer(assistant("b")), ordinal=1),
    )
    copied = [(step["source"], step["message"], step.get("is_copied_context")) for step in document["steps"]]
    assert copied == [
        ("user", "u", None),
        ("agent", "a", None),
        ("system", "the context begins anew", None),
        ("user", "short", True),
        ("agent", "b", None),
    ]


def test_what_has_no_place_is_counted() -> None:
    report = Report()
    trajectory(build([episode(), agent("main"), reward(), blob()]), report=report)
    assert report.facts() == {
        "written": {"agent": 1},
        "carried": {"blob": 1, "episode": 1, "reward": 1},
        "lost": {"payload of a blob": 1},
    }


def test_the_totals_are_of_the_agents_own_steps() -> None:
    document = written(
        episode(),
        agent("main", role="main"),
        call(
            "c0", [user("u")], answer(assistant("a")), ordinal=0, usage=Usage(prompt_tokens=3, cost_usd=0.5)
        ),
        call("c1", [user("v")], answer(assistant("b")), ordinal=1, usage=Usage(prompt_tokens=4)),
    )
    assert document["final_metrics"] == {"total_prompt_tokens": 7, "total_cost_usd": 0.5, "total_steps": 5}
    assert json.dumps(document["extra"][KEY]["agent"]["id"]) == '"main"'
