from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.exporters.round_trip import facts
from tests.factories import agent, answer, assistant, call, compaction, episode, reward, tool_call, user
from tests.importers.reading import as_lines, read_data, read_fixtures, read_paths
from tests.importers.test_fast_rlm import LEX
from tests.importers.test_rlm import LOG, below, block, iteration, metadata
from tests.scenarios import SCENARIOS
from tests.strategies import episodes
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.importers.carried import KEY
from tracestore.wire.events import AnyEvent
from tracestore_exporters.rlm import lines
from tracestore_exporters.writing import Report, encoded

TRACES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*/trace.jsonl"))
LOGS = tuple(
    f"rlm/avbiswas__fast-rlm/{name}Z.jsonl"
    for name in (
        "longbench_hotpot_idx100_2026-02-15T22-12-31-422",
        "longbench_hotpot_idx140_2026-02-15T22-22-02-941",
        "longbench_trec_idx100_2026-02-15T22-06-14-116",
        "r_count_2026-02-22T14-56-34-865",
    )
)


def assert_round_trip(graph: Graph) -> Report:
    """What is written and read again has the same calls, contexts, answers, tokens, agents and the rest."""
    report = Report()
    imported = read_data(b"".join(encoded(line) + b"\n" for line in lines(graph, report=report)))
    assert not imported.notes.refused, imported.notes.refused[:3]
    assert not imported.notes.inferred
    before, after = facts(graph), facts(build(imported.events))
    for what, told in before.items():
        assert after[what] == told, what
    return report


def plain(value: Any) -> Any:
    """A line as a reader takes it that knows nothing of us."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if name != KEY}
    return [plain(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parent.name)
def test_our_own_traces_come_back_from_a_log(path: Path) -> None:
    for graph in read_paths(path).graphs.values():
        # A log names payloads by their hash; their bytes lie in the store.
        assert +assert_round_trip(graph).lost == +Counter({"payload of a blob": len(graph.blobs)})


@pytest.mark.parametrize("name", LOGS)
def test_recorded_logs_of_recursive_models_come_back_from_a_log(name: str) -> None:
    for graph in read_fixtures(name).graphs.values():
        assert not assert_round_trip(graph).lost


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_comes_back_from_a_log(name: str) -> None:
    assert_round_trip(build(SCENARIOS[name]().events))


@settings(max_examples=12, deadline=None)
@given(episodes(max_calls=6))
def test_any_episode_comes_back_from_a_log(events: list[AnyEvent]) -> None:
    assert_round_trip(build(events))


def test_a_log_that_was_imported_is_written_as_it_was() -> None:
    failed = below(response="", error="busy", error_type="RateLimit", status_code=429)
    deep = below(
        prompt="part two?",
        metadata={
            "run_metadata": {"root_model": "m2", "max_depth": 2},
            "iterations": [iteration(1, [user_said("q")], block("y", below()), final_answer="yes")],
        },
    )
    first = [user_said("q")]
    second = [*first, {"role": "assistant", "content": "answer 1"}, user_said("out")]
    log = [
        metadata(),
        LOG[1],
        iteration(1, first, block("a()", below(), deep, failed), block("b()")),
        iteration(2, second, final_answer="42"),
    ]
    (graph,) = read_data(as_lines(*log)).graphs.values()
    assert_round_trip(graph)
    written = json.loads(encoded([plain(line) for line in lines(graph, report=Report())]))
    for line, was in zip(written, log, strict=True):
        assert _without_unknown(line) == _without_unknown(was)


def user_said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _without_unknown(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_unknown(one) for name, one in value.items() if one is not None}
    return [_without_unknown(one) for one in value] if isinstance(value, list) else value


def test_an_agent_is_logged_by_the_block_that_spawned_it() -> None:
    sub = {"parent_agent_id": "main", "spawned_by_call_id": "c0"}
    written = lines(
        build(
            [
                episode(task="long"),
                agent("main", role="main", model="m"),
                call("c0", [user("u")], answer(assistant("code")), ordinal=0),
                tool_call("x0", "c0", tool_call_id="code/0", name="repl", arguments="a()"),
                tool_call(
                    "x1", "c0", tool_call_id="code/1", name="repl", arguments="b()", result={"stdout": "2"}
                ),
                agent("s0", role="sub_lm", spawned_by_tool_call_id="code/1", return_message="one", **sub),
                call("d0", [user("q")], answer(assistant("one")), agent="s0"),
                agent("s1", role="subagent", spawned_by_tool_call_id="code/1", scope_prompt="p", **sub),
                call("d1", [user("q")], answer(assistant("two")), agent="s1", ordinal=0),
                call("d2", [user("r")], answer(assistant("three")), agent="s1", ordinal=1),
                agent("lost", role="sub_lm", **sub),
                call("d3", [user("q")], answer(assistant("four")), agent="lost"),
            ]
        ),
        report=Report(),
    )
    first, context, turn = (plain(line) for line in written)
    assert (first["type"], first["root_model"], first["max_depth"]) == ("metadata", "m", None)
    assert (context["type"], context["prompt"]) == ("run_context", "long")
    assert (turn["type"], turn["iteration"], turn["response"]) == ("iteration", 1, "code")
    assert turn["prompt"] == [{"role": "user", "content": "u"}]
    one, two, nobody = turn["code_blocks"]
    assert (one["code"], one["result"]["rlm_calls"]) == ("a()", [])
    assert (two["code"], two["result"]["stdout"]) == ("b()", "2")
    asked, deep = two["result"]["rlm_calls"]
    assert (asked["prompt"], asked["response"]) == ([{"role": "user", "content": "q"}], "one")
    assert "metadata" not in asked
    assert deep["prompt"] == "p"
    assert [one["response"] for one in deep["metadata"]["iterations"]] == ["two", "three"]
    assert (nobody["code"], len(nobody["result"]["rlm_calls"])) == ("", 1)


def test_what_has_no_place_is_carried_and_counted() -> None:
    report = Report()
    written = lines(
        build(
            [
                episode(),
                agent("main", role="main"),
                agent("judge", role="judge"),
                call("c0", [user("u")], answer(assistant("a"), ids=[1]), ordinal=0),
                call("j0", [user("v")], answer(assistant("b")), agent="judge"),
                compaction(),
                reward(),
            ]
        ),
        report=report,
    )
    assert {one["kind"] for one in written[0][KEY]["events"]} == {"agent", "call", "context_edit", "reward"}
    assert report.facts()["written"] == {"agent": 1, "call": 1, "episode": 1}
    assert report.facts()["lost"] == {}


def test_a_log_of_many_runs_keeps_every_agent_below_the_step_that_spawned_it() -> None:
    (graph,) = read_fixtures(LEX).graphs.values()
    written = [plain(line) for line in lines(graph, report=Report())]
    assert sum(_asked(line) for line in written) == 18


def _asked(value: Any) -> int:
    """Agents below, however deep."""
    if isinstance(value, dict):
        return len(value.get("rlm_calls", ())) + sum(map(_asked, value.values()))
    return sum(map(_asked, value)) if isinstance(value, list) else 0
