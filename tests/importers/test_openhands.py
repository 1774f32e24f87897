"""OpenHands conversations: folders of single events, streams, and rows of an evaluation."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_grows,
    assert_perturbation,
    read_data,
    read_paths,
    same_events,
)

# --- V1 ---------------------------------------------------------------------------------------------


def event(kind: str, id: str, source: str = "environment", **more: Any) -> dict[str, Any]:  # noqa: A002
    return {"id": id, "timestamp": "2026-01-01T00:00:00", "source": source, "kind": kind, **more}


def text(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


def action(id: str, tool_use: str, *, response: str, thought: str = "", **more: Any) -> dict[str, Any]:  # noqa: A002
    return event(
        "ActionEvent",
        id,
        "agent",
        thought=text(thought) if thought else [],
        tool_name="terminal",
        tool_call_id=tool_use,
        tool_call={
            "id": tool_use,
            "name": "terminal",
            "arguments": '{"command": "ls"}',
            "origin": "completion",
        },
        llm_response_id=response,
        **({"action": {"kind": "TerminalAction", "command": "ls"}} | more),
    )


def observed(id: str, tool_use: str, words: str, **more: Any) -> dict[str, Any]:  # noqa: A002
    return event(
        "ObservationEvent",
        id,
        tool_name="terminal",
        tool_call_id=tool_use,
        observation={"content": text(words), "is_error": False, "exit_code": 0, **more},
        action_id=f"a-{tool_use}",
    )


def totals(id: str, prompt: int, sampled: int, turn: int) -> dict[str, Any]:  # noqa: A002
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "per_turn_token": turn,
        "cache_read_tokens": 0,
    }
    metrics = {"default": {"model_name": "m1", "accumulated_token_usage": usage}}
    return event("ConversationStateUpdateEvent", id, key="stats", value={"usage_to_metrics": metrics})


SYSTEM = event(
    "SystemPromptEvent", "s", "agent", system_prompt=text("You help.")[0], tools=[{"name": "terminal"}]
)
ASKED = event("MessageEvent", "u", "user", llm_message={"role": "user", "content": text("List files.")})
TALK = (
    SYSTEM,
    ASKED,
    totals("t1", 100, 10, 110),
    action("a-1", "1", response="r1", thought="I look."),
    observed("o-1", "1", "a.txt"),
    totals("t2", 250, 30, 170),
    event(
        "MessageEvent",
        "m",
        "agent",
        llm_message={"role": "assistant", "content": text("a.txt")},
        llm_response_id="r2",
    ),
)


def read(*events: dict[str, Any]) -> Imported:
    imported = read_data(as_lines(*events))
    assert_builds(imported)
    return imported


def test_a_conversation_has_a_call_for_each_response_with_what_its_totals_grew_by() -> None:
    imported = read(*TALK)
    first, second = imported.of("call")
    assert first.request.value() == {
        "messages": [
            {"role": "system", "content": text("You help.")},
            {"role": "user", "content": text("List files.")},
        ],
        "tools": [{"name": "terminal"}],
    }
    assert first.completions[0].message.value()["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    ]
    assert (second.context, second.parent_call_id) == ("delta", first.id)
    assert second.request.value()["messages"][0]["content"] == text("a.txt")
    assert (first.usage.prompt_tokens, first.usage.completion_tokens, first.model) == (100, 10, "m1")
    assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (150, 20)  # 250 - 100, 30 - 10
    (call,) = imported.of("tool_call")
    assert (call.tool_call_id, call.status, call.exit_status) == ("1", "ok", 0)
    assert [gap.cause for gap in imported.of("gap")] == ["requests_not_recorded"]


def test_totals_that_the_turn_does_not_confirm_are_nobodys() -> None:
    (call,) = read(SYSTEM, ASKED, totals("t1", 100, 10, 60), action("a-1", "1", response="r1")).of("call")
    assert call.usage is None


def test_a_conversation_grows_event_by_event() -> None:
    assert_grows([json.dumps(one).encode() for one in TALK])


def test_no_value_of_a_conversation_changes_without_a_trace() -> None:
    assert_perturbation(as_lines(*TALK), limit=40)


def test_actions_of_one_response_are_one_call_with_two_tool_calls() -> None:
    imported = read(
        SYSTEM,
        ASKED,
        action("a-1", "1", response="r1", thought="Both."),
        action("a-2", "2", response="r1"),
        observed("o-2", "2", "two"),
        observed("o-1", "1", "one"),
    )
    (call,) = imported.of("call")
    assert [use["id"] for use in call.completions[0].message.value()["tool_calls"]] == ["1", "2"]
    assert {one.tool_call_id: one.result.value() for one in imported.of("tool_call")} == {
        "1": text("one"),
        "2": text("two"),
    }


def test_a_result_whose_action_is_missing_is_read_and_told_as_a_gap() -> None:
    imported = read(SYSTEM, ASKED, observed("o-9", "9", "lost"), action("a-1", "1", response="r1"))
    assert {gap.cause for gap in imported.of("gap")} == {"requests_not_recorded", "call_not_recorded"}
    assert imported.of("call")[0].request.value()["messages"][-1]["tool_call_id"] == "9"


def test_errors_and_refusals_end_a_tool_call() -> None:
    error = event(
        "AgentErrorEvent", "e", "agent", tool_name="terminal", tool_call_id="1", error="no such tool"
    )
    refused = event(
        "UserRejectObservation",
        "r",
        tool_name="terminal",
        tool_call_id="2",
        rejection_reason="no",
        action_id="a-2",
    )
    imported = read(
        SYSTEM, ASKED, action("a-1", "1", response="r1"), error, action("a-2", "2", response="r2"), refused
    )
    assert [(one.status, one.error) for one in imported.of("tool_call")] == [
        ("failed", "no such tool"),
        ("cancelled", "no"),
    ]


def test_after_a_condensation_a_call_sees_the_summary_and_what_was_kept() -> None:
    condensation = event(
        "Condensation",
        "c",
        forgotten_event_ids=["a-1", "o-1"],
        summary="It listed a.txt.",
        summary_offset=2,
        llm_response_id="rc",
    )
    imported = read(*TALK, condensation, action("a-2", "2", response="r3"))
    main = [call for call in imported.of("call") if call.purpose == "act"]
    assert [message["content"] for message in main[2].request.value()["messages"]] == [
        text("You help."),
        text("List files."),
        "It listed a.txt.",
        text("a.txt"),
    ]
    assert main[2].context == "whole"
    (edit,) = imported.of("context_edit")
    assert (edit.before_call_id, edit.after_call_id) == (main[1].id, main[2].id)
    assert (edit.replaced_call_ids, edit.kept_call_ids) == ((main[0].id,), (main[1].id,))
    (summary,) = [call for call in imported.of("call") if call.purpose == "summarize"]
    assert edit.author_call_id == summary.id
    assert summary.request is None
    assert_grows(
        [json.dumps(one).encode() for one in (*TALK, condensation, action("a-2", "2", response="r3"))]
    )


def test_an_event_whose_parent_is_further_up_goes_back_there() -> None:
    back = action("a-2", "2", response="r3") | {"parent_id": "u"}
    chain = [one | {"parent_id": before["id"]} for before, one in pairwise(TALK)]
    imported = read(TALK[0], *chain, back)
    last = imported.of("call")[-1]
    assert last.context == "whole"
    assert [message["role"] for message in last.request.value()["messages"]] == ["system", "user"]
    assert imported.notes.inferred["a conversation that went back"] == {"parent_id": 1}


def test_a_task_starts_a_subagent_whose_own_conversation_is_a_gap() -> None:
    started = {"kind": "TaskAction", "prompt": "Find it.", "subagent_type": "explorer"}
    imported = read(
        SYSTEM,
        ASKED,
        action("a-1", "1", response="r1", action=started),
        observed("o-1", "1", "Found.", task_id="t"),
    )
    subagent = imported.graphs[imported.of("episode")[0].id].agents
    agent: Any
    (agent,) = [one for one in subagent.values() if one.role == "subagent"]
    assert (agent.name, agent.scope_prompt.value(), agent.return_message.value()) == (
        "explorer",
        "Find it.",
        text("Found."),
    )
    assert agent.spawned_by_tool_call_id == "1"
    assert "subagent_not_recorded" in {gap.cause for gap in imported.of("gap")}


def _folder(root: Path, *events: dict[str, Any], state: bool = True) -> Path:
    folder = root / "0123456789abcdef0123456789abcdef"
    (folder / "events").mkdir(parents=True, exist_ok=True)
    if state:
        llm = {"llm": {"model": "m1"}}
        given = {"id": "01234567-89ab-cdef-0123-456789abcdef", "agent": llm, "execution_status": "finished"}
        (folder / "base_state.json").write_text(json.dumps(given | {"persistence_dir": "/x"}))
    for place, one in enumerate(events):
        (folder / "events" / f"event-{place:05d}-{one['id']}.json").write_text(json.dumps(one, indent=1))
    return folder


def test_a_folder_of_single_events_is_one_conversation(tmp_path: Path) -> None:
    folder = _folder(tmp_path, *TALK)
    imported = read_paths(folder)
    assert_builds(imported)
    assert {one.id for one in imported.of("episode")} == {"01234567-89ab-cdef-0123-456789abcdef"}
    assert [one.status for one in imported.of("episode") if one.phase == "end"] == ["ok"]
    assert len(imported.of("call")) == 2
    files = sorted(path for path in folder.rglob("*.json"))
    assert same_events(imported, read_paths(*reversed(files), *files))


def test_a_folder_read_early_without_its_state_is_the_same_conversation(tmp_path: Path) -> None:
    early = read_paths(_folder(tmp_path, *TALK[:4], state=False))
    whole = read_paths(_folder(tmp_path, *TALK))
    grown = {(one.kind, one.id, getattr(one, "phase", "")) for one in early.events}
    assert grown <= {(one.kind, one.id, getattr(one, "phase", "")) for one in whole.events}


# --- V0 ---------------------------------------------------------------------------------------------


def response(id: str, *uses: str, content: str | None = None) -> dict[str, Any]:  # noqa: A002
    calls = [
        {
            "id": use,
            "type": "function",
            "function": {"name": "execute_bash", "arguments": '{"command": "ls"}'},
        }
        for use in uses
    ]
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    usage = {"prompt_tokens": 50, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 40}}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return {"id": id, "model": "m0", "choices": [choice], "usage": usage}


def ran(id: int, use: str, answer: dict[str, Any], **more: Any) -> dict[str, Any]:  # noqa: A002
    metadata = {"tool_call_id": use, "function_name": "execute_bash", "model_response": answer}
    given = {"action": "run", "args": {"command": "ls", "thought": ""}, "tool_call_metadata": metadata}
    return {
        "id": id,
        "timestamp": "2025-01-01T00:00:00",
        "source": "agent",
        "message": "Running",
        **given,
        **more,
    }


def came(id: int, cause: int, content: str, **more: Any) -> dict[str, Any]:  # noqa: A002
    given = {"observation": "run", "content": content, "extras": {"metadata": {"exit_code": 1}}}
    return {"id": id, "timestamp": "2025-01-01T00:00:01", "source": "agent", "cause": cause, **given, **more}


STREAM = (
    {"id": 0, "source": "agent", "action": "system", "args": {"content": "You help.", "tools": [{"x": 1}]}},
    {"id": 1, "source": "user", "action": "message", "args": {"content": "List files."}},
    {"id": 2, "source": "environment", "observation": "agent_state_changed", "content": "", "extras": {}},
    ran(3, "c1", response("r1", "c1", "c2")),
    ran(4, "c2", response("r1", "c1", "c2")),
    came(5, 3, "a.txt"),
    came(6, 4, "b.txt"),
    {"id": 7, "source": "agent", "action": "message", "args": {"content": "Two files."}},
)


def test_a_stream_keeps_the_responses_of_the_provider_verbatim() -> None:
    imported = read(*STREAM)
    first, second = sorted(imported.of("call"), key=lambda call: call.ordinal)
    assert first.completions[0].message.value() == response("r1", "c1", "c2")["choices"][0]["message"]
    assert (first.provider_id, first.model, first.completions[0].finish_reason) == ("r1", "m0", "tool_calls")
    assert (first.usage.prompt_tokens, first.usage.cached_tokens) == (50, 40)
    assert [message["role"] for message in second.request.value()["messages"]] == ["tool", "tool"]
    assert [(one.tool_call_id, one.exit_status) for one in imported.of("tool_call")] == [("c1", 1), ("c2", 1)]
    assert imported.report["calls"] == 2


def test_a_stream_grows_event_by_event_and_as_single_files(tmp_path: Path) -> None:
    assert_grows([json.dumps(one).encode() for one in STREAM])
    folder = tmp_path / "sessions" / "abc" / "events"
    folder.mkdir(parents=True)
    for one in STREAM:
        (folder / f"{one['id']}.json").write_text(json.dumps(one))
    single = read_paths(folder)
    (folder.parent / "event_cache").mkdir()
    (folder.parent / "event_cache" / "0-5.json").write_text(json.dumps(STREAM[:5]))
    assert same_events(single, read_paths(folder.parent))
    assert len(single.of("call")) == 2


def test_no_value_of_a_stream_changes_without_a_trace() -> None:
    assert_perturbation(as_lines(*STREAM), limit=40)


def test_another_answer_under_the_same_id_is_another_call() -> None:
    imported = read(*STREAM[:4], came(4, 3, "a.txt"), ran(5, "c9", response("r1", "c9")))
    assert len(imported.of("call")) == 2


def test_what_lies_between_delegation_and_return_is_the_subagents() -> None:
    delegation = ran(
        3,
        "d1",
        response("r1", "d1"),
        action="delegate",
        args={"agent": "Browser", "inputs": {"task": "find"}},
    )
    imported = read(
        *STREAM[:3],
        delegation,
        {"id": 4, "source": "user", "action": "message", "args": {"content": "TASK: find"}},
        ran(5, "c1", response("r2", "c1")),
        came(6, 5, "page"),
        {
            "id": 7,
            "source": "agent",
            "cause": 3,
            "observation": "delegate",
            "content": "found",
            "extras": {"outputs": {"x": 1}},
        },
        ran(8, "c2", response("r3", "c2")),
    )
    name = imported.of("episode")[0].id
    agents = [call.agent_id.removeprefix(f"{name}/") for call in imported.of("call")]
    assert sorted(agents) == ["delegate/3", "main", "main"]
    child: Any
    (child,) = [one for one in imported.graphs[name].agents.values() if one.role == "subagent"]
    assert (child.name, child.depth, child.return_message.value()) == ("Browser", 1, {"x": 1})
    assert child.spawned_by_tool_call_id == "d1"
    last = max(imported.of("call"), key=lambda call: (call.agent_id.endswith("main"), call.ordinal))
    assert [message["content"] for message in last.request.value()["messages"]] == ["found"]


def test_a_range_of_forgotten_events_leaves_the_context() -> None:
    condensation = {
        "id": 8,
        "source": "agent",
        "action": "condensation",
        "args": {
            "forgotten_events_start_id": 3,
            "forgotten_events_end_id": 6,
            "summary": "Two files.",
            "summary_offset": 2,
        },
    }
    imported = read(*STREAM, condensation, ran(9, "c3", response("r4", "c3")))
    last = max(imported.of("call"), key=lambda call: call.ordinal)
    assert [message["content"] for message in last.request.value()["messages"]] == [
        "You help.",
        "List files.",
        "Two files.",
        "Two files.",
    ]
    assert imported.report["compactions"] == 1


def test_an_action_of_a_version_without_function_calls_is_its_own_answer() -> None:
    given = {"action": "run", "args": {"command": "ls", "thought": "I look."}}
    imported = read(*STREAM[:2], {"id": 2, "source": "agent", **given}, came(3, 2, "a.txt"))
    (call,) = imported.of("call")
    assert call.completions[0].message.value() == {"role": "assistant", "content": "I look.", **given}
    assert imported.of("tool_call")[0].name == "run"
    assert "an answer" in imported.notes.inferred


def test_a_row_of_an_evaluation_is_an_episode_with_its_reward() -> None:
    rows: list[dict[str, Any]] = [
        {"instance_id": "django-1", "history": [*STREAM], "test_result": {"report": {"resolved": True}}},
        {"instance_id": "django-2", "history": [*STREAM[:4]], "error": "container died"},
    ]
    imported = read(*rows)
    ends = {one.id: one for one in imported.of("episode") if one.phase == "end"}
    starts = {one.id: one.task_id for one in imported.of("episode") if one.phase == "start"}
    assert sorted(starts.values()) == ["django-1", "django-2"]
    (reward,) = imported.of("reward")
    assert (starts[reward.target.episode_id], reward.value) == ("django-1", 1.0)
    assert {starts[name]: end.status for name, end in ends.items()} == {
        "django-1": None,
        "django-2": "infra_error",
    }
    pairs: list[dict[str, Any]] = [{"instance_id": "django-1", "history": [[STREAM[3], STREAM[5]]]}]
    assert len(read(*pairs).of("tool_call")) == 1


def test_what_is_no_event_is_refused_with_its_place() -> None:
    imported = read_data(as_lines(*STREAM[:2], {"what": 1}, *STREAM[3:]))
    assert len(imported.of("call")) == 2
    assert "line 3" in imported.notes.refused[0]
