from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.importers.reading import (
    Imported,
    assert_builds,
    assert_perturbation,
    newest,
    read_data,
    read_paths,
    same_events,
)

BEGAN = 1_767_225_600_000
TASK = str(BEGAN)


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}], **more}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], **more}


READ_FILE = "I look.\n<read_file>\n<path>a</path>\n</read_file>"
HISTORY = [
    user("<task>\nlook\n</task>"),
    answer(READ_FILE),
    user("[read_file for 'a'] Result:\nseen"),
    answer("second"),
    user("more"),
    answer("third"),
]


def said(second: int, say: str, text: str = "", **more: Any) -> dict[str, Any]:
    return {"ts": BEGAN + 1_000 * second, "type": "say", "say": say, "text": text, **more}


def request(second: int, index: int | None, **told: Any) -> dict[str, Any]:
    numbers = {"tokensIn": 10, "tokensOut": 5, "cacheReads": 100, "cacheWrites": 20, "cost": 0.5, **told}
    place = {} if index is None else {"conversationHistoryIndex": index}
    return said(second, "api_req_started", json.dumps({"request": "r", **numbers}), **place)


UI = [
    said(0, "text", "look"),
    request(1, -1),
    said(2, "text", "I look."),
    request(3, 1, tokensIn=30),
    request(5, 3, tokensIn=50),
    said(6, "completion_result", "third"),
]


def folder(path: Path, task: str = TASK, **files: Any) -> Path:
    (path / task).mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (path / task / f"{name}.json").write_text(json.dumps(value))
    return path


def read(path: Path, **files: Any) -> Imported:
    imported = read_paths(folder(path, **files))
    assert_builds(imported)
    assert imported.notes.refused == []
    return imported


def calls_of(imported: Imported) -> list[Any]:
    answered = [call for call in imported.of("call") if call.ordinal is not None]
    return sorted(answered, key=lambda call: (call.agent_id, call.ordinal))


def texts(call: Any) -> list[str]:
    return [one["content"][0]["text"] for one in json.loads(call.request)["messages"]]


def test_an_answer_is_a_call_and_its_request_tells_the_usage(tmp_path: Path) -> None:
    imported = read(tmp_path, api_conversation_history=HISTORY, ui_messages=UI)
    first, second, third = calls_of(imported)
    assert {call.episode_id for call in (first, second, third)} == {TASK}
    assert [texts(call) for call in (first, second, third)] == [
        [HISTORY[0]["content"][0]["text"]],
        [HISTORY[2]["content"][0]["text"]],
        ["more"],
    ]
    assert [call.usage.prompt_tokens for call in (first, second, third)] == [130, 150, 170]
    assert (first.usage.cached_tokens, first.usage.cost_usd) == (100, 0.5)
    assert (first.dialect, first.started_at) == ("anthropic_messages", (BEGAN + 1_000) * 10**6)
    assert (third.parent_call_id, third.context) == (second.id, "delta")


def test_a_tool_written_in_tags_is_a_tool_call_with_its_result(tmp_path: Path) -> None:
    imported = read(tmp_path, api_conversation_history=HISTORY)
    (tool,) = imported.of("tool_call")
    assert (tool.name, tool.arguments) == ("read_file", READ_FILE.partition("\n")[2])
    assert json.loads(tool.result) == "[read_file for 'a'] Result:\nseen"


def test_a_tool_use_block_is_paired_by_id(tmp_path: Path) -> None:
    use = {"type": "tool_use", "id": "u1", "name": "read_file", "input": {"path": "a"}}
    result = {"type": "tool_result", "tool_use_id": "u1", "content": "seen", "is_error": True}
    history = [HISTORY[0], {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    (tool,) = read(tmp_path, api_conversation_history=history).of("tool_call")
    assert (tool.tool_call_id, tool.arguments, tool.status) == ("u1", '{"path":"a"}', "failed")
    assert json.loads(tool.result) == "seen"


def test_a_deleted_range_is_a_truncation(tmp_path: Path) -> None:
    deleted = {"conversationHistoryDeletedRange": [2, 3]}
    ui = [*UI[:5], {**UI[5], **deleted}]
    imported = read(tmp_path, api_conversation_history=HISTORY, ui_messages=ui)
    first, second, third = calls_of(imported)
    (edit,) = imported.of("context_edit")
    assert (edit.edit, edit.before_call_id, edit.after_call_id) == ("truncation", second.id, third.id)
    assert (third.context, texts(third)) == ("whole", [texts(first)[0], READ_FILE, "more"])


def test_a_summary_of_roo_hides_what_it_stands_for(tmp_path: Path) -> None:
    gone = [{**one, "condenseParent": "s1"} for one in HISTORY[:4]]
    summary = user("so far", isSummary=True, condenseId="s1")
    history = [*gone, summary, user("more"), answer("third")]
    imported = read(tmp_path, api_conversation_history=history)
    calls = calls_of(imported)
    (edit,) = imported.of("context_edit")
    assert (edit.edit, edit.after_call_id) == ("compaction", calls[2].id)
    assert (calls[2].context, texts(calls[2])) == ("whole", ["so far", "more"])


def test_without_indexes_as_many_requests_as_answers_go_together_in_order(tmp_path: Path) -> None:
    cancelled = request(2, None, cancelReason="user_cancelled", tokensIn=7)
    ui = [
        request(1, None, apiProtocol="anthropic", tokensIn=200),
        cancelled,
        request(3, None),
        request(5, None),
    ]
    imported = read(tmp_path, api_conversation_history=HISTORY, ui_messages=ui)
    assert calls_of(imported)[0].usage.prompt_tokens == 200
    (lost,) = [call for call in imported.of("call") if call.ordinal is None]
    assert (lost.status, lost.usage.prompt_tokens, lost.completions) == ("aborted", 127, None)
    assert "request of an answer" in imported.notes.inferred


def test_the_only_model_of_a_task_is_that_of_its_calls(tmp_path: Path) -> None:
    metadata = {"files_in_context": [], "model_usage": [{"ts": BEGAN, "model_id": "m1"}]}
    imported = read(tmp_path, api_conversation_history=HISTORY, task_metadata=metadata)
    assert {call.model for call in calls_of(imported)} == {"m1"}


def test_a_subtask_of_roo_is_a_sub_agent_of_its_parent(tmp_path: Path) -> None:
    child = "00000000-0000-7000-8000-000000000001"
    item = {"id": child, "task": "t", "tokensIn": 1, "tokensOut": 1, "parentTaskId": TASK, "rootTaskId": TASK}
    folder(tmp_path, child, api_conversation_history=HISTORY[:2], history_item=item)
    imported = read(tmp_path, api_conversation_history=HISTORY)
    (graph,) = imported.graphs.values()
    assert (graph.agents[child].role, graph.agents[child].parent_agent_id) == ("subagent", TASK)
    assert graph.agents[TASK].role == "main"


def test_a_history_without_a_folder_is_a_task_of_its_own() -> None:
    imported = read_data(json.dumps(HISTORY).encode())
    assert_builds(imported)
    assert len(imported.of("call")) == 3


def test_a_task_that_grew_replaces_what_was_told_before(tmp_path: Path) -> None:
    before = read(tmp_path, api_conversation_history=HISTORY[:2], ui_messages=UI[:3])
    after = read(tmp_path, api_conversation_history=HISTORY, ui_messages=UI)
    merged = newest([*before.events, *after.events])
    assert same_events(Imported(list(merged.values()), after.notes), after)


def test_every_field_of_a_task_leaves_a_trace() -> None:
    assert_perturbation(json.dumps(HISTORY).encode(), limit=20, format="cline")
    assert_perturbation(json.dumps(UI).encode(), limit=30, format="cline")
