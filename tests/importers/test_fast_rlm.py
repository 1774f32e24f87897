from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import (
    as_lines,
    assert_builds,
    assert_grows,
    assert_order_free,
    assert_perturbation,
    of_kind,
    read_data,
    read_fixtures,
    read_values,
    same_events,
)

LEX = "rlm/avbiswas__fast-rlm/lex_fridman_2026-02-16T12-04-04-095Z.jsonl"


def row(run: str, step: int | None, event: str = "execution_result", **fields: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 10 if step else 0, "completion_tokens": 3 if step else 0, "cost": 0.5}
    told = {"code": f"c{step}", "output": f"o{step}", "hasError": False, "reasoning": "r", "usage": usage}
    return {
        "time": "2026-02-22T14:56:34.866Z",
        "run_id": run,
        "depth": 0,
        "event_type": event,
        **({} if step is None else {"step": step, **told}),
        **fields,
    }


def child(run: str, step: int | None, **fields: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"parent_run_id": "root", "depth": 1} | fields
    return row(run, step, **told)


LOG = (
    row("root", 0),
    row("root", 1),
    child("kid", 0),
    child("kid", 1, event="code_generated", output=None),
    row("kid", None, "final_result", depth=1, result="found"),
    row("root", 2, hasError=True),
    child("lost", 0),
    child("lost", 1),
    row("root", 3, "code_generated", output=None),
    row("root", None, "final_result", result={"a": 1}),
)


def test_each_step_but_the_first_is_a_call_that_read_the_output_before_it() -> None:
    imported = read_data(as_lines(*LOG))
    calls = {call.id: call for call in imported.of("call")}
    assert sorted(calls) == ["kid/1", "lost/1", "root/1", "root/2", "root/3"]
    second = calls["root/2"]
    assert json.loads(second.request)["messages"] == [{"role": "user", "content": "o1"}]
    assert json.loads(second.completions[0].message) == {
        "role": "assistant",
        "content": "c2",
        "reasoning": "r",
    }
    assert (second.parent_call_id, second.usage.prompt_tokens, second.usage.cost_usd) == ("root/1", 10, 0.5)
    assert {one.id: one.status for one in imported.of("tool_call")}["root/2/repl"] == "failed"
    assert {gap.cause for gap in imported.of("gap")} == {"missing_prompt"}
    assert_builds(imported)


def test_a_child_belongs_to_the_step_of_its_parent_that_was_written_next() -> None:
    imported = read_data(as_lines(*LOG))
    agents = {agent.id: agent for agent in imported.of("agent")}
    kid = agents["kid"]
    assert (kid.parent_agent_id, kid.spawned_by_call_id, kid.depth) == ("root", "root/2", 1)
    assert (kid.status, json.loads(kid.return_message)) == ("ok", "found")
    assert imported.notes.inferred["the step that spawned a run"].total() == 2


def test_a_log_in_two_files_has_the_order_of_their_times() -> None:
    timed = [{**one, "time": f"2026-02-22T14:56:{n:02}Z"} for n, one in enumerate(LOG)]
    whole = read_data(as_lines(*timed))
    for place in range(1, len(timed)):
        one, two = as_lines(*timed[:place]), as_lines(*timed[place:])
        assert same_events(read_data(one, two), whole)
        assert same_events(read_data(two, one), whole)


def test_a_run_without_a_final_result_stays_unfinished() -> None:
    imported = read_data(as_lines(*LOG))
    (lost,) = (agent for agent in imported.of("agent") if agent.id == "lost")
    assert (lost.status, lost.return_message, lost.ended_at) == (None, None, None)
    assert imported.of("episode")[0].status == "ok"
    assert read_data(as_lines(*LOG[:-1])).of("episode")[0].status is None


def test_a_run_whose_parent_is_not_there_keeps_its_episode() -> None:
    imported = read_data(as_lines(child("kid", 0), child("kid", 1)))
    assert [episode.id for episode in imported.of("episode")] == ["root"]
    assert_builds(imported)


def test_a_call_that_counted_nothing_has_no_usage() -> None:
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    (call,) = of_kind(read_values(row("root", 0), row("root", 1, usage=zeros))[0], "call")
    assert call.usage is None


@pytest.mark.parametrize(
    "value",
    [
        row("root", None),
        row("root", 1, usage=[1], code=3, output={"x": 1}),
        {"event_type": "final_result"},
        [1],
    ],
)
def test_a_field_of_another_type_never_ends_the_import(value: Any) -> None:
    imported = read_data(as_lines(row("good", 0), row("good", 1), value))
    assert "good/1" in {call.id for call in imported.of("call")}
    assert imported.notes.refused or len(imported.of("call")) == 2


def test_grown_and_repeated_and_shuffled_files_give_the_same() -> None:
    assert_grows(as_lines(*LOG).splitlines())
    other = [one | {"run_id": f"{one['run_id']}2"} for one in LOG[:2]]
    assert_order_free(as_lines(*LOG), as_lines(*other))


def test_no_leaf_changes_without_a_trace() -> None:
    assert_perturbation(as_lines(*LOG), limit=40)


def test_nested_runs_of_a_real_log_are_all_spawned_by_a_call_that_is_there() -> None:
    imported = read_fixtures(LEX)
    calls = {call.id for call in imported.of("call")}
    children = [agent for agent in imported.of("agent") if agent.role == "subagent"]
    assert len(children) == 18
    assert {agent.spawned_by_call_id for agent in children} <= calls
    assert max(agent.depth for agent in children) == 3
