"""Google ADK sessions: agents by author, transfers, branches, and what was sent where it is logged."""

from __future__ import annotations

import json
from typing import Any

from tests.importers.reading import (
    Imported,
    assert_builds,
    assert_perturbation,
    newest,
    read_data,
    same_events,
)


def event(
    id: str,  # noqa: A002
    author: str,
    *parts: dict[str, Any],
    role: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    content = {"role": role or ("user" if author == "user" else "model"), "parts": [*parts]}
    return {
        "id": id,
        "author": author,
        "invocation_id": "i1",
        "timestamp": 1734292270.5,
        "content": content,
        **more,
    }


def called(name: str, **args: Any) -> dict[str, Any]:
    return {"function_call": {"id": f"fc-{name}", "name": name, "args": args}}


def answered(name: str, **response: Any) -> dict[str, Any]:
    return {"function_response": {"id": f"fc-{name}", "name": name, "response": response}}


ASK, TALK = {"text": "What is the weather?"}, {"text": "Sunny."}
USAGE = {
    "prompt_token_count": 50,
    "candidates_token_count": 6,
    "thoughts_token_count": 4,
    "total_token_count": 60,
}
EVENTS = (
    event("e1", "user", ASK),
    event("e2", "root", called("weather", city="Rome"), usage_metadata=USAGE),
    event("e3", "root", answered("weather", sky="clear"), role="user"),
    event("e4", "root", TALK),
)


def session(*events: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "s1", "app_name": "app", "user_id": "u", "state": {}, "events": [*events], **more}


def read(value: dict[str, Any]) -> Imported:
    imported = read_data(json.dumps(value).encode())
    assert_builds(imported)
    return imported


def test_a_session_is_an_episode_with_a_call_for_each_answer_of_the_model() -> None:
    imported = read(session(*EVENTS))
    first, second = imported.of("call")
    assert first.request.value()["messages"] == [EVENTS[0]["content"]]
    assert first.completions[0].message.value() == EVENTS[1]["content"]
    # 6 of the answer and 4 thought
    assert (first.usage.prompt_tokens, first.usage.completion_tokens, first.usage.reasoning_tokens) == (
        50,
        10,
        4,
    )
    assert (second.context, second.request.value()["messages"]) == ("delta", [EVENTS[2]["content"]])
    (tool,) = imported.of("tool_call")
    assert (tool.tool_call_id, tool.name, tool.arguments) == ("fc-weather", "weather", '{"city":"Rome"}')
    assert tool.result.value() == {"sky": "clear"}
    assert [gap.cause for gap in imported.of("gap")] == ["requests_not_recorded"]


def test_camel_case_says_the_same() -> None:
    part = {"functionCall": {"name": "f", "args": {}}}
    back = {"functionResponse": {"name": "f", "response": {"x": 1}}}
    one = event("e2", "root", part) | {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2}}
    imported = read(session(EVENTS[0], one, event("e3", "root", back, role="user")))
    assert imported.of("call")[0].usage.completion_tokens == 2
    assert imported.of("tool_call")[0].result.value() == {"x": 1}


def test_a_logged_request_is_the_exact_context() -> None:
    contents = [{"role": "user", "parts": [{"text": "As it was sent."}]}]
    log = {
        "event_id": "e2",
        "model_request": {
            "model": "gemini",
            "contents": contents,
            "config": {"system_instruction": "Be brief."},
        },
        "model_response": {"candidates": [{"content": EVENTS[1]["content"], "finish_reason": "STOP"}]},
    }
    imported = read(session(*EVENTS[:2], event_logs=[log]))
    (call,) = imported.of("call")
    assert call.request.value() == {
        "messages": contents,
        "model": "gemini",
        "config": {"system_instruction": "Be brief."},
    }
    assert (call.model, call.completions[0].finish_reason) == ("gemini", "STOP")
    assert not imported.of("gap")
    assert imported.notes.not_understood["adk: event that no call saw"].count == 1  # the user's, as it stands


def test_an_agent_that_was_transferred_to_is_a_subagent_of_the_one_that_did() -> None:
    imported = read(
        session(
            EVENTS[0],
            event("e2", "root", called("transfer_to_agent", agent_name="helper")),
            event(
                "e3",
                "root",
                answered("transfer_to_agent"),
                role="user",
                actions={"transfer_to_agent": "helper"},
            ),
            event("e4", "helper", TALK),
            event("e5", "late", TALK, branch="root.helper.late"),
        )
    )
    agents = {agent.name: agent for agent in imported.of("agent")}
    assert (agents["helper"].parent_agent_id, agents["helper"].spawned_by_call_id) == ("s1/main", "s1/e2")
    assert (agents["late"].parent_agent_id, agents["late"].depth) == ("s1/agent/helper", 2)
    assert imported.notes.inferred["parent of an agent"] == {"a transfer names it": 1, "branch": 1}


def test_an_agent_of_a_branch_does_not_see_its_peers() -> None:
    imported = read(
        session(
            EVENTS[0],
            event("e2", "root", {"text": "Go."}),
            event("e3", "left", {"text": "L"}, branch="root.left"),
            event("e4", "right", {"text": "R"}, branch="root.right"),
            event("e5", "left", {"text": "L2"}, branch="root.left"),
        )
    )
    texts = {
        call.id: [part["text"] for message in call.request.value()["messages"] for part in message["parts"]]
        for call in imported.of("call")
    }
    assert texts["s1/e4"] == ["What is the weather?", "Go."]
    assert texts["s1/e5"] == []  # a delta: nothing new in its branch


def test_failed_and_interrupted_answers_are_told() -> None:
    failed = {"id": "e2", "author": "root", "error_code": "SAFETY", "error_message": "blocked"}
    cut = event("e3", "root", TALK, interrupted=True)
    first, second = read(session(EVENTS[0], failed, cut)).of("call")
    assert (first.status, first.error.type, first.completions) == ("failed", "SAFETY", None)
    assert (second.status, second.completions[0].partial) == ("aborted", True)


def test_a_compaction_stands_for_the_events_of_its_time() -> None:
    summary = {"role": "model", "parts": [{"text": "They spoke of weather."}]}
    compaction = {
        "start_timestamp": 1734292270.0,
        "end_timestamp": 1734292271.0,
        "compacted_content": summary,
    }
    later: dict[str, Any] = {"timestamp": 1734292280.0}
    imported = read(
        session(
            *EVENTS,
            event("c1", "user", actions={"compaction": compaction}, **later),
            event("e5", "user", {"text": "And tomorrow?"}, **later),
            event("e6", "root", {"text": "Rain."}, **later),
        )
    )
    call = max(imported.of("call"), key=lambda one: one.ordinal)
    assert call.context == "whole"
    assert [message["parts"][0]["text"] for message in call.request.value()["messages"]] == [
        "They spoke of weather.",
        "And tomorrow?",
    ]
    (edit,) = imported.of("context_edit")
    assert (edit.before_call_id, edit.after_call_id) == ("s1/e4", "s1/e6")


def test_a_rewind_takes_back_an_invocation() -> None:
    again = event(
        "e5", "user", {"text": "Again."}, actions={"rewind_before_invocation_id": "i1"}, invocation_id="i2"
    )
    imported = read(session(*EVENTS, again, event("e6", "root", TALK, invocation_id="i2")))
    call = max(imported.of("call"), key=lambda one: one.ordinal)
    assert (call.context, call.request.value()["messages"]) == ("whole", [again["content"]])


def test_a_session_that_grew_ends_as_the_whole_one() -> None:
    seen: list[Any] = []
    for num in range(1, len(EVENTS) + 1):
        seen += read(session(*EVENTS[:num])).events
    assert same_events(
        Imported(list(newest(seen).values()), read(session(*EVENTS)).notes), read(session(*EVENTS))
    )


def test_no_value_of_a_session_changes_without_a_trace() -> None:
    assert_perturbation(json.dumps(session(*EVENTS, last_update_time=1.5)).encode(), limit=40)
