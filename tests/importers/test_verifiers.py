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
    read_values,
)

USE = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
ASKED = {"role": "user", "content": "q"}
SAID = {"role": "assistant", "content": "a"}


def result(**fields: Any) -> dict[str, Any]:
    return {
        "example_id": 3,
        "prompt": [ASKED],
        "completion": [SAID],
        "reward": 1.0,
        "task": "math",
        "is_completed": True,
        **fields,
    }


def node(parent: int | None, role: str, text: str, ids: list[int] = (), **more: Any) -> dict[str, Any]:  # type: ignore[assignment]
    message = {"role": role, "content": text}
    return {"parent": parent, "message": message, "token_ids": list(ids), "mask": [False] * len(ids), **more}


def answer(parent: int, text: str, scaffold: list[int], ids: list[int], **more: Any) -> dict[str, Any]:
    return {
        **node(parent, "assistant", text, [*scaffold, *ids]),
        "sampled": True,
        "mask": [False] * len(scaffold) + [True] * len(ids),
        "logprobs": [-0.5] * len(ids),
        **more,
    }


def link(place: int, kind: str) -> dict[str, Any]:
    return {"semantic_parents": [{"node": place, "type": kind}]}


def trace(*nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "id": "t",
        "task": {"type": "Math", "data": {"idx": 0}, "hash": "h0"},
        "agent": {"config": {"model": "m"}, "name": "agent", "trainable": True},
        "nodes": list(nodes),
        **fields,
    }


CHAT = (
    node(None, "system", "s", [1]),
    node(0, "user", "q", [2, 3]),
    answer(1, "a", [4], [5, 6]),
    node(2, "user", "more", [7]),
    answer(3, "b", [8], [9]),
    answer(3, "c", [8], [10]),
)


def call_of(events: list[Any], call_id: str) -> Any:
    return next(event for event in of_kind(events, "call") if event.id == call_id)


# --- Results before v1


def test_every_answer_of_a_completion_is_a_call_with_its_tool_results() -> None:
    chat = [
        {**SAID, "tool_calls": [json.dumps(USE)]},
        {"role": "tool", "tool_call_id": "t1", "content": "3"},
        SAID,
    ]
    events, _ = read_values(
        result(completion=chat, metrics={"turns": 2.0}, turns=2.0, tool_defs=[{"name": "look"}])
    )
    first, second = of_kind(events, "call")
    assert json.loads(first.request) == {"tools": [{"name": "look"}], "messages": [ASKED]}
    assert json.loads(second.request)["messages"] == [chat[1]]
    (use,) = of_kind(events, "tool_call")
    assert (use.tool_call_id, use.name, use.arguments, json.loads(use.result)) == (
        "t1",
        "look",
        '{"at": 1}',
        "3",
    )
    assert [(one.name, one.value, one.weight) for one in of_kind(events, "reward")] == [
        ("reward", 1.0, None),
        ("turns", 2.0, 0.0),
    ]
    meta = json.loads(of_kind(events, "episode")[0].meta)["verifiers"]
    assert meta == {"example_id": 3, "task": "math", "is_completed": True, "metrics": {}}


def test_rollouts_of_one_example_are_a_group_and_a_text_prompt_is_a_text_call() -> None:
    imported = read_data(
        as_lines(result(), result(reward=0.0), result(example_id=4, prompt="q", completion="a"))
    )
    groups = [episode.group_id for episode in imported.of("episode")]
    assert sorted(map(groups.count, set(groups))) == [1, 2]
    assert {call.dialect for call in imported.of("call")} == {"openai_chat", "text"}
    assert_builds(imported)


def test_saved_steps_are_calls_with_their_ids() -> None:
    tokens = {
        "prompt_ids": [1, 2],
        "completion_ids": [3],
        "completion_logprobs": [-0.25],
        "is_truncated": False,
    }
    steps = [{"prompt": [ASKED], "completion": [SAID], "tokens": tokens, "advantage": 0.5}]
    events, _ = read_values(result(trajectory=steps))
    (call,) = of_kind(events, "call")
    assert (call.prompt_token_ids.json(), call.completions[0].token_ids.json()) == ([1, 2], [3])
    assert json.loads(call.meta)["verifiers"] == {"advantage": 0.5, "tokens": {"is_truncated": False}}


def test_how_a_rollout_ended_is_its_status() -> None:
    for fields, status in (
        ({"error": {"error_chain_str": "boom"}}, "failed"),
        ({"stop_condition": "max_turns"}, "budget_exhausted"),
        ({"is_completed": False}, None),
    ):
        (episode,) = of_kind(read_values(result(**fields))[0], "episode")
        assert episode.status == status


# --- Traces


def test_what_the_nodes_of_a_path_add_is_what_each_call_read() -> None:
    events, notes = read_values(trace(*CHAT, tools=[{"name": "look"}]))
    first, second, other = (call_of(events, f"t/{place}") for place in (2, 4, 5))
    assert (first.prompt_token_ids.json(), first.completions[0].token_ids.json()) == ([1, 2, 3, 4], [5, 6])
    assert second.prompt_token_ids_delta.json() == other.prompt_token_ids_delta.json() == [7, 8]
    assert [call.parent_call_id for call in (second, other)] == ["t/2", "t/2"]
    assert json.loads(second.request) == {
        "messages": [{"role": "user", "content": "more"}],
        "tools": [{"name": "look"}],
    }
    assert notes.inferred["the tools of a request"].total() == 1


def test_the_trace_tells_usage_times_and_failures_of_its_calls() -> None:
    calls = [
        {"node": None, "error": {"type": "Overloaded", "message": "busy", "status_code": 529}},
        {
            "node": 2,
            "model": "m",
            "sampling": {"temperature": 0.5},
            "finish_reason": "stop",
            "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6},
            "time": {"start": 1_700_000_000.5, "end": 1_700_000_001},
        },
    ]
    events, _ = read_values(trace(*CHAT[:3], calls=calls))
    failed = next(call for call in of_kind(events, "call") if call.status == "failed")
    assert (failed.error.message, failed.error.status_code, failed.ordinal) == ("busy", 529, 0)
    call = call_of(events, "t/2")
    assert json.loads(call.request)["temperature"] == 0.5
    assert (call.usage.prompt_tokens, call.usage.completion_tokens, call.ordinal) == (4, 2, 1)
    assert (call.started_at, call.ended_at) == (1_700_000_000_500_000_000, 1_700_000_001_000_000_000)
    assert json.loads(call.meta)["verifiers"] == {"usage": {"total_tokens": 6}}


def test_a_subagent_begins_at_a_root_that_a_call_spawned_and_returns_its_last_answer() -> None:
    nodes = (
        *CHAT[:3],
        node(None, "user", "look it up", [20]),
        answer(3, "found", [21], [22], **link(2, "subagent_call")),
        node(2, "user", "result", [30]),
        answer(5, "done", [31], [32], **link(4, "subagent_return")),
    )
    imported = read_data(as_lines(trace(*nodes)))
    child = next(agent for agent in imported.of("agent") if agent.role == "subagent")
    assert (child.parent_agent_id, child.spawned_by_call_id, child.depth) == ("t/main", "t/2", 1)
    assert json.loads(child.scope_prompt)["content"] == "look it up"
    assert json.loads(child.return_message)["content"] == "found"
    assert call_of(imported.events, "t/4").agent_id == child.id
    assert_builds(imported)


def test_a_compaction_that_a_context_resumed_from_is_accepted_and_another_is_rejected() -> None:
    nodes = (
        *CHAT[:3],
        node(2, "user", "summarise", [40]),
        answer(3, "S1", [41], [42], **link(2, "compaction_attempt")),
        answer(3, "S2", [41], [43], **link(2, "compaction_attempt")),
        node(None, "user", "S2, go on", [50]),
        answer(6, "on", [51], [52], **link(5, "compaction")),
    )
    imported = read_data(as_lines(trace(*nodes)))
    edits = {edit.status: edit for edit in imported.of("context_edit")}
    assert (edits["accepted"].author_call_id, edits["accepted"].after_call_id) == ("t/5", "t/7")
    assert (edits["rejected"].author_call_id, edits["rejected"].before_call_id) == ("t/4", "t/2")
    assert {call.agent_id for call in imported.of("call")} == {"t/main"}
    assert [call.id for call in imported.of("call") if call.purpose == "summarize"] == ["t/4", "t/5"]
    assert_builds(imported)


def test_an_episode_has_an_agent_for_each_of_its_traces() -> None:
    solver = trace(
        *CHAT, id="s", agent={"name": "solver", "trainable": True}, rewards={"ok": {"score": 1, "weight": 2}}
    )
    checker = trace(*CHAT[:3], id="c", agent={"name": "checker", "trainable": False}, metrics={"len": 3})
    run = {"type": "train", "id": "r", "work": {"type": "train", "step": 5, "policy": {"start": 4, "end": 4}}}
    episode = {"id": "e", "task": solver["task"], "group": {"id": "g"}, "run": run, "ok": True}
    imported = read_data(as_lines({**episode, "traces": [solver, checker]}))
    (event,) = imported.of("episode")
    assert (event.group_id, event.split, event.status, event.task_id) == ("g", "train", "ok", "h0")
    assert [(agent.id, agent.role, agent.trainable) for agent in imported.of("agent")] == [
        ("c/main", "checker", False),
        ("s/main", "solver", True),
    ]
    assert sorted(
        (one.name, one.value, one.weight, one.target.agent_id) for one in imported.of("reward")
    ) == [
        ("len", 3.0, 0.0, "c/main"),
        ("ok", 1.0, 2.0, "s/main"),
    ]
    assert_builds(imported)


def test_a_judge_is_another_agent_whose_calls_never_train() -> None:
    judged = {
        "name": "grade",
        "request": {"model": "j", "messages": [ASKED]},
        "response": {"message": SAID, "usage": {"prompt_tokens": 1, "completion_tokens": 1}, "parsed": 1},
    }
    events, _ = read_values(trace(*CHAT, info={"judge_calls": [judged]}))
    judge = next(agent for agent in of_kind(events, "agent") if agent.role == "judge")
    call = next(call for call in of_kind(events, "call") if call.agent_id == judge.id)
    assert (judge.trainable, call.purpose, call.model) == (False, "judge", "j")
    assert json.loads(call.meta)["verifiers"] == [{"name": "grade"}, {"parsed": 1}]


@pytest.mark.parametrize(
    "value",
    [
        trace(node(3, "user", "q")),
        trace(node(0, "user", "q")),
        trace(answer(None, "a", [], [-1])),  # type: ignore[arg-type]
        trace(*CHAT, calls=["x", {"node": 99}, {"node": 2}, {"node": 2}]),
        trace(*CHAT, rewards={"r": None, "s": 3}, metrics={"m": None}, info=[1], errors=["x"], timing="x"),
        trace("x", id=3, agent=3, task=3),  # type: ignore[arg-type]
        trace(answer(None, "a", [1], [2], mask=[True])),  # type: ignore[arg-type]
        result(prompt=3, completion={"a": 1}, error="x", metrics=[1]),
        result(trajectory=[{"prompt": [1], "completion": [2], "tokens": {"prompt_ids": "x"}}]),
    ],
)
def test_a_field_of_another_type_never_ends_the_import(value: Any) -> None:
    events, notes = read_values(trace(*CHAT, id="good"), value, format="verifiers")
    assert len(of_kind(events, "episode")) + len(notes.refused) == 2


def test_no_leaf_changes_without_a_trace() -> None:
    calls = [{"node": 2, "model": "m", "usage": {"prompt_tokens": 4}, "time": {"start": 1.0, "end": 0.0}}]
    full = trace(
        *CHAT,
        node(5, "tool", "x", [60]),
        calls=calls,
        metrics={"m": None, "n": 1},
        rewards={"r": {"score": 1.0, "weight": 1.0}, "s": None},
        timing={"start": 1.0},
        extra_usage=[{"prompt_tokens": 1}],
        stop_condition="done",
        ok=True,
    )
    assert_perturbation(as_lines(full), limit=40)
    assert_perturbation(as_lines(result(metrics={"turns": 2}, turns=2, timing={"total_ms": 3})), limit=50)


def test_split_and_repeated_and_grown_files_give_the_same() -> None:
    lines = [trace(*CHAT, id=name) for name in "ab"]
    assert_order_free(as_lines(lines[0]), as_lines(lines[1]), as_lines(result(), result()))
    assert_grows(as_lines(*lines, trace(*CHAT[:3], id="c")).splitlines())
    imported = read_data(as_lines(*lines))
    assert_builds(imported)
    # 2 traces of 2 + 1 + 1 sampled tokens.
    assert imported.report["sampled_tokens"] == 8
