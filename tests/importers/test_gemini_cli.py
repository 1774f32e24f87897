from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_grows,
    assert_perturbation,
    newest,
    read_data,
    read_paths,
    same_events,
)

HEAD = {
    "sessionId": "g1",
    "projectHash": "h",
    "startTime": "2026-01-01T00:00:00.000Z",
    "lastUpdated": "2026-01-01T00:00:01.000Z",
}


def stamp(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}.000Z"


def user(second: int, text: str, id_: str | None = None) -> dict[str, Any]:
    return {
        "id": id_ or f"m{second}",
        "timestamp": stamp(second),
        "type": "user",
        "content": [{"text": text}],
    }


def answer(second: int, text: str, *uses: dict[str, Any], **more: Any) -> dict[str, Any]:
    tokens = {"input": 100, "output": 5, "cached": 40, "thoughts": 7, "tool": 0, "total": 112}
    told = {"id": f"m{second}", "timestamp": stamp(second), "type": "gemini", "content": text}
    return {
        **told,
        "thoughts": [],
        "tokens": tokens,
        "model": "g",
        **({"toolCalls": list(uses)} if uses else {}),
        **more,
    }


def use(id_: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "name": "read", "args": {"path": "a"}, "timestamp": stamp(3), **more}


def ran(id_: str, output: str = "seen", **more: Any) -> dict[str, Any]:
    response = {"functionResponse": {"id": id_, "name": "read", "response": {"output": output}}}
    return use(id_, status="success", result=[response], **more)


MESSAGES = [
    user(1, "look"),
    answer(2, "well", ran("t1")),
    answer(4, "done"),
    user(5, "again"),
    answer(6, "still"),
]


def read(*rows: dict[str, Any]) -> Imported:
    imported = read_data(as_lines(*rows))
    assert_builds(imported)
    return imported


def document(*messages: dict[str, Any], second: int = 1) -> bytes:
    return json.dumps({**HEAD, "lastUpdated": stamp(second), "messages": list(messages)}).encode()


def calls_of(imported: Imported) -> list[Any]:
    return sorted(imported.of("call"), key=lambda call: (call.agent_id, call.ordinal))


def messages(call: Any) -> list[Any]:
    told: list[Any] = json.loads(call.request)["messages"]
    return told


def test_a_message_of_the_model_is_a_call_that_reads_what_its_tools_gave_before() -> None:
    imported = read_data(document(*MESSAGES))
    assert_builds(imported)
    first, second, third = calls_of(imported)
    assert messages(first) == [{"role": "user", "content": [{"text": "look"}]}]
    assert messages(second) == [{"role": "user", "content": ran("t1")["result"]}]
    assert (third.parent_call_id, third.model) == (second.id, "g")
    assert (first.usage.prompt_tokens, first.usage.cached_tokens) == (100, 40)
    assert (first.usage.completion_tokens, first.usage.reasoning_tokens) == (5 + 7, 7)
    written = json.loads(first.completions[0].message)
    assert written["toolCalls"] == [{"id": "t1", "name": "read", "args": {"path": "a"}}]
    (tool,) = imported.of("tool_call")
    assert (tool.status, json.loads(tool.result)) == ("ok", ran("t1")["result"])


def test_rows_of_one_id_are_one_message_and_the_last_holds() -> None:
    early = answer(2, "well", use("t1"), tokens=None)
    rows = [HEAD, user(1, "look"), early, answer(2, "well", ran("t1")), *MESSAGES[2:]]
    imported = read(*rows)
    assert len(imported.of("call")) == 3
    whole = read_data(document(*MESSAGES))
    assert [call.usage for call in calls_of(imported)] == [call.usage for call in calls_of(whole)]
    kept = json.loads(calls_of(imported)[0].meta)["gemini_cli"]["rows"]
    assert [one["superseded"]["tokens"] for one in kept if "superseded" in one] == [None]
    assert_grows([as_lines(one).strip() for one in rows])


def test_a_rewind_branches_off_the_call_before_the_message() -> None:
    rows = [HEAD, *MESSAGES, {"$rewindTo": "m5"}, user(7, "else"), answer(8, "so")]
    calls = calls_of(read(*rows))
    assert calls[3].parent_call_id == calls[1].id
    assert messages(calls[3]) == [{"role": "user", "content": [{"text": "else"}]}]


def test_a_history_with_a_summary_in_place_of_messages_is_a_compaction() -> None:
    summary = user(7, "<state_snapshot>", "s1")
    rows = [
        HEAD,
        *MESSAGES,
        {"$set": {"messages": [summary, MESSAGES[4]]}},
        user(8, "go on"),
        answer(9, "on"),
    ]
    imported = read(*rows)
    calls = calls_of(imported)
    (edit,) = imported.of("context_edit")
    assert (edit.edit, edit.before_call_id, edit.after_call_id) == ("compaction", calls[2].id, calls[3].id)
    assert calls[3].context == "whole"
    assert [one["content"] for one in messages(calls[3])] == [
        [{"text": "<state_snapshot>"}],
        "still",
        [{"text": "go on"}],
    ]


def test_a_history_whose_results_changed_is_a_clearing() -> None:
    masked = [MESSAGES[0], answer(2, "well", ran("t1", "masked")), *MESSAGES[2:]]
    imported = read(HEAD, *MESSAGES, {"$set": {"messages": masked}}, user(8, "go on"), answer(9, "on"))
    (edit,) = imported.of("context_edit")
    assert edit.edit == "tool_result_clearing"
    assert json.loads(imported.of("tool_call")[0].result) == ran("t1")["result"]
    assert "masked" in json.dumps(messages(calls_of(imported)[3]))


def test_a_chat_of_a_sub_agent_joins_its_parent(tmp_path: Path) -> None:
    chats = tmp_path / "chats"
    (chats / "g1").mkdir(parents=True)
    parent = [HEAD, user(1, "look"), answer(2, "", ran("t1", agentId="c1"))]
    child = [{**HEAD, "sessionId": "c1", "kind": "subagent"}, user(2, "find"), answer(3, "here")]
    (chats / "session-2026-01-01T00-00-g1.jsonl").write_bytes(as_lines(*parent))
    (chats / "g1" / "c1.jsonl").write_bytes(as_lines(*child))
    imported = read_paths(tmp_path)
    assert_builds(imported)
    (graph,) = imported.graphs.values()
    agent = graph.agents["c1"]
    assert (agent.role, agent.parent_agent_id, agent.spawned_by_call_id) == ("subagent", "g1", "g1/m2")


def test_a_document_that_grew_replaces_what_was_told_before() -> None:
    before = read_data(document(user(1, "look"), answer(2, "well", use("t1", status="executing"))))
    after = read_data(document(*MESSAGES, second=9))
    merged = newest([*before.events, *after.events])
    assert same_events(Imported(list(merged.values()), after.notes), after)


HISTORY = [
    {"role": "user", "parts": [{"text": "setup"}]},
    {"role": "model", "parts": [{"text": "Got it. Thanks for the context!"}]},
    {"role": "user", "parts": [{"text": "look"}]},
    {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {"path": "a"}}}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": "seen"}}}]},
    {"role": "model", "parts": [{"text": "done"}]},
]


def test_a_checkpoint_is_a_history_and_its_greeting_was_not_sampled() -> None:
    imported = read_data(json.dumps(HISTORY).encode())
    assert_builds(imported)
    first, second = calls_of(imported)
    assert (messages(first), messages(second)) == (HISTORY[:3], [HISTORY[4]])
    (tool,) = imported.of("tool_call")
    assert (tool.name, json.loads(tool.result)) == ("read", {"output": "seen"})
    longer = read_data(json.dumps([*HISTORY, {"role": "user", "parts": [{"text": "more"}]}]).encode())
    assert {call.id for call in longer.of("call")} == {first.id, second.id}
    restored = json.dumps(
        {"clientHistory": HISTORY, "commitHash": "c", "toolCall": {"name": "edit"}}
    ).encode()
    assert {call.id for call in read_data(restored).of("call")} == {first.id, second.id}


def test_every_field_of_a_chat_leaves_a_trace() -> None:
    again = answer(2, "well", ran("t1"))
    rows = [HEAD, user(1, "look"), answer(2, "well", use("t1")), again, *MESSAGES[2:]]
    more = [{"$set": {"summary": "s"}}, {"$rewindTo": "m5"}, {"$set": {"messages": [user(7, "s", "s1")]}}]
    info = {"id": "i", "timestamp": stamp(9), "type": "info", "content": "note"}
    assert_perturbation(as_lines(*rows, *more, info, user(9, "x")), limit=35)
    assert_perturbation(document(*MESSAGES), limit=15)
    assert_perturbation(json.dumps(HISTORY).encode(), limit=8)
