from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
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
    read_paths,
    read_values,
)

ASKED = {"role": "user", "content": "q"}
SAID = {"role": "assistant", "content": "a"}


def trace(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "trace_id": name,
        "session_id": "s",
        "model": "m",
        "messages": [ASKED],
        "prompt_token_ids": [1, 2],
        "response_message": SAID,
        "completion_token_ids": [3, 4],
        "logprobs": [-0.5, -0.25],
        "finish_reason": "stop",
        "weight_version": 3,
        "timestamp": 1_700_000_000.0,
        "token_counts": {"prompt": 2, "completion": 2},
        **fields,
    }


FOLLOWING = trace(
    "t2",
    messages=[ASKED, SAID, {"role": "user", "content": "more"}],
    prompt_token_ids=[],
    prompt_delta_token_ids=[5],
    parent_trace_id="t1",
)


def store(path: Path, *traces: dict[str, Any]) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE traces (trace_id TEXT PRIMARY KEY, data TEXT NOT NULL, created_at REAL NOT NULL);"
            "CREATE TABLE trace_sessions (trace_id TEXT, session_id TEXT, run_id TEXT, created_at REAL);"
            "CREATE TABLE runs (run_id TEXT, started_at REAL, ended_at REAL, metadata TEXT);"
            "INSERT INTO runs VALUES ('run', 1.0, NULL, '{}');"
        )
        for one in traces:
            connection.execute("INSERT INTO traces VALUES (?, ?, 1.0)", (one["trace_id"], json.dumps(one)))
            connection.execute(
                "INSERT INTO trace_sessions VALUES (?, ?, 'run', 1.0)", (one["trace_id"], one["session_id"])
            )
        connection.commit()
    return path


def test_a_store_is_an_episode_for_each_session_with_its_calls(tmp_path: Path) -> None:
    path = store(tmp_path / "gateway.db", trace("t1"), FOLLOWING, trace("t3", session_id="other"))
    before = path.read_bytes()
    imported = read_paths(path)
    assert sorted(episode.id for episode in imported.of("episode")) == ["run/other", "run/s"]
    first, second = (call for call in imported.of("call") if call.episode_id == "run/s")
    assert (first.policy.version, first.prompt_token_ids.json(), first.usage.completion_tokens) == (
        3,
        [1, 2],
        2,
    )
    assert first.completions[0].logprobs.json() == [-0.5, -0.25]
    assert (second.parent_call_id, second.prompt_token_ids_delta.json()) == (first.id, [5])
    assert imported.notes.not_understood["rllm: run"].count == 1
    assert imported.notes.refused == []
    assert_builds(imported)
    assert path.read_bytes() == before


def test_a_store_that_is_damaged_is_refused_by_name(tmp_path: Path) -> None:
    path = store(tmp_path / "gateway.db", trace("t1"))
    path.write_bytes(path.read_bytes()[:6_000])
    assert read_paths(path).notes.refused[0].startswith(str(path))


def test_a_line_of_a_trace_reads_like_its_row() -> None:
    imported = read_data(as_lines(trace("t1"), FOLLOWING))
    assert [call.id for call in imported.of("call")] == ["s/t1", "s/t2"]
    assert_builds(imported)


def test_a_record_of_the_later_version_spells_its_answer_out() -> None:
    later = {
        "trace_id": "t1",
        "session_id": "s",
        "endpoint": "chat_completions",
        "model": "m",
        "messages": [ASKED],
        "tools": [{"name": "look"}],
        "sampling_params": {"temperature": 0.5},
        "content": "a",
        "reasoning": "hm",
        "tool_calls": [{"id": "t", "name": "look", "arguments": "{}"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1},
    }
    events, notes = read_values(later)
    (call,) = of_kind(events, "call")
    assert json.loads(call.request) == {"temperature": 0.5, "messages": [ASKED], "tools": [{"name": "look"}]}
    assert json.loads(call.completions[0].message)["reasoning_content"] == "hm"
    assert [use.name for use in of_kind(events, "tool_call")] == ["look"]
    assert notes.inferred["an answer as one message"].total() == 1


def step(*chat: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"chat_completions": list(chat), "reward": 0.0, "done": False, **fields}


def episode(name: str, *trajectories: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": name, "task": {"q": 1}, "is_correct": True, "trajectories": list(trajectories), **fields}


def trajectory(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"uid": "u", "name": "solver", "steps": list(steps), "reward": 1.0, **fields}


SOLVED = trajectory(
    step(ASKED, SAID, id="s1", prompt_ids=[1], response_ids=[2], logprobs=[-0.5]),
    step(ASKED, SAID, ASKED, SAID, reward=0.25, thought="hm"),
)


def test_steps_are_calls_and_trajectories_agents_and_a_task_is_a_group() -> None:
    judge = trajectory(step(input="q", output="a"), uid="v", name="judge", signals={"f1": 0.5}, reward=None)
    lines = as_lines(
        episode("task:0", SOLVED, judge, termination_reason="max_turns_exceeded"), episode("task:1", SOLVED)
    )
    imported = read_data(lines)
    assert [one.status for one in imported.of("episode")] == ["budget_exhausted", None]
    assert {one.group_id for one in imported.of("episode")} == {group.id for group in imported.of("group")}
    assert [agent.role for agent in imported.of("agent")] == ["solver", "judge", "main"]
    first = next(call for call in imported.of("call") if call.id == "task:0/u/s1")
    assert (first.prompt_token_ids.json(), first.completions[0].token_ids.json()) == ([1], [2])
    rewards = sorted((one.name, one.value, one.target.finest) for one in imported.of("reward"))
    assert rewards == [
        ("f1", 0.5, "agent"),
        ("is_correct", 1.0, "episode"),
        ("is_correct", 1.0, "episode"),
        ("reward", 1.0, "agent"),
        ("reward", 1.0, "episode"),
        ("step_reward", 0.25, "call"),
        ("step_reward", 0.25, "call"),
    ]
    assert_builds(imported)
    assert_grows(lines.splitlines())


@pytest.mark.parametrize(
    "value",
    [
        trace("x", prompt_token_ids=["y"]),
        trace("x", messages=3, response_message="text", logprobs=[-1.0], completion_token_ids=[]),
        episode("e", "x", task=None, metadata=[]),  # type: ignore[arg-type]
        {**episode("e"), "id": 3},
        trajectory("x", signals=[1], task=[1]),  # type: ignore[arg-type]
        trajectory(step("x", prompt_ids="y")),  # type: ignore[arg-type]
    ],
)
def test_a_field_of_another_type_never_ends_the_import(value: Any) -> None:
    imported = read_data(as_lines(trace("t1"), value))
    assert "s" in {one.id for one in imported.of("episode")}


def test_no_leaf_changes_without_a_trace_and_order_does_not_matter() -> None:
    lines = [trace("t1", metadata={"x": 1}, raw_request={"messages": [ASKED], "seed": 1}), FOLLOWING]
    assert_perturbation(as_lines(*lines), limit=50)
    assert_perturbation(as_lines(episode("task:0", SOLVED, metrics={"x": 1})), limit=50)
    assert_order_free(as_lines(lines[0]), as_lines(lines[1]), as_lines(SOLVED))
