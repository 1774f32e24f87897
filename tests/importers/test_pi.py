from __future__ import annotations

import json
from typing import Any

from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_grows,
    assert_order_free,
    assert_perturbation,
    read_data,
    read_fixtures,
)

BEGAN = 1_767_225_600_000


def stamp(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}.000Z"


def header(id_: str = "s1", **more: Any) -> dict[str, Any]:
    return {"type": "session", "id": id_, "timestamp": stamp(0), "cwd": "/w", **more}


def entry(second: int, message: dict[str, Any], **ids: Any) -> dict[str, Any]:
    timed = {**message, "timestamp": BEGAN + 1_000 * second - 500}
    return {"type": "message", "timestamp": stamp(second), "message": timed, **ids}


def user(second: int, text: str, **ids: Any) -> dict[str, Any]:
    return entry(second, {"role": "user", "content": [{"type": "text", "text": text}]}, **ids)


def answer(second: int, *blocks: Any, stop: str = "stop", ids: Any = None, **more: Any) -> dict[str, Any]:
    usage = {"input": 3, "output": 5, "cacheRead": 100, "cacheWrite": 20, "totalTokens": 128}
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": one} if isinstance(one, str) else one for one in blocks],
        "api": "anthropic-messages",
        "provider": "anthropic",
        "model": "m1",
        "usage": {**usage, "cost": {"input": 0.25, "total": 0.5}},
        "stopReason": stop,
        **more,
    }
    return entry(second, message, **(ids or {}))


def use(id_: str, **more: Any) -> dict[str, Any]:
    return {"type": "toolCall", "id": id_, "name": "read", "arguments": {"path": "a"}, **more}


def result(second: int, id_: str, text: str = "seen", **ids: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    told = {"role": "toolResult", "toolCallId": id_, "toolName": "read", "content": content, "isError": False}
    return entry(second, told, **ids)


def read(*rows: dict[str, Any]) -> Imported:
    imported = read_data(as_lines(*rows))
    assert_builds(imported)
    return imported


def calls_of(imported: Imported) -> list[Any]:
    return sorted(imported.of("call"), key=lambda call: call.ordinal)


def messages(call: Any) -> list[Any]:
    told: list[Any] = json.loads(call.request)["messages"]
    return told


def texts(call: Any) -> list[str]:
    return [one.get("summary") or one["content"][0].get("text") for one in messages(call)]


SESSION = [
    header(),
    user(1, "look"),
    answer(2, "well", use("t1"), stop="toolUse"),
    result(3, "t1"),
    answer(4, "done"),
    user(5, "again"),
    answer(6, "still"),
]


def test_an_assistant_message_is_a_call_that_read_what_came_before_it() -> None:
    imported = read(*SESSION)
    first, second, third = calls_of(imported)
    assert [texts(call) for call in (first, second, third)] == [["look"], ["seen"], ["again"]]
    assert (third.parent_call_id, third.context) == (second.id, "delta")
    assert first.usage.prompt_tokens == 3 + 100 + 20
    assert (first.usage.cached_tokens, first.usage.cache_write_tokens) == (100, 20)
    assert (first.usage.completion_tokens, first.usage.cost_usd) == (5, 0.5)
    assert (first.started_at, first.ended_at) == ((BEGAN + 1_500) * 10**6, (BEGAN + 2_000) * 10**6)
    (tool,) = imported.of("tool_call")
    assert (tool.call_id, tool.arguments, tool.status) == (first.id, '{"path":"a"}', "ok")
    assert "timestamp" not in json.loads(first.completions[0].message)


def test_a_compaction_sends_the_summary_and_the_kept_tail_again() -> None:
    compaction = {
        "type": "compaction",
        "timestamp": stamp(7),
        "summary": "so far",
        # Rows are counted from the header: row 5 is the second message of the user.
        "firstKeptEntryIndex": 5,
        "tokensBefore": 128,
    }
    imported = read(*SESSION, compaction, user(8, "go on"), answer(9, "on"))
    calls = calls_of(imported)
    (edit,) = imported.of("context_edit")
    assert texts(calls[3]) == ["so far", "again", "still", "go on"]
    assert (calls[3].context, calls[2].context) == ("whole", "delta")
    assert (edit.before_call_id, edit.after_call_id) == (calls[2].id, calls[3].id)
    assert (edit.kept_call_ids, edit.tokens_before) == ((calls[2].id,), 128)
    assert_grows([as_lines(one).strip() for one in [*SESSION, compaction, user(8, "go on"), answer(9, "on")]])


def test_an_aborted_answer_keeps_its_content_and_usage() -> None:
    cut = use("t2", partialJson='{"path": "/w')
    imported = read(
        *SESSION, user(7, "more"), answer(8, "I wi", cut, stop="aborted", errorMessage="aborted.")
    )
    call = calls_of(imported)[-1]
    assert (call.status, call.completions[0].partial, call.error.message) == ("aborted", True, "aborted.")
    assert call.usage.prompt_tokens == 123
    (tool,) = [one for one in imported.of("tool_call") if one.tool_call_id == "t2"]
    # As sampled, never repaired.
    assert (tool.arguments, tool.result) == ('{"path": "/w', None)


def test_an_answer_without_content_is_a_leaf_and_its_zeros_are_unknown() -> None:
    zeros = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0}
    empty = answer(8, stop="error", errorMessage="400 bad", usage=zeros)
    imported = read(*SESSION, user(7, "more"), empty, user(9, "now"), answer(10, "yes"))
    failed, last = calls_of(imported)[-2:]
    assert (failed.status, failed.completions, failed.usage) == ("failed", None, None)
    assert last.parent_call_id == failed.parent_call_id == calls_of(imported)[2].id
    assert texts(last) == ["more", "now"]


def ids(own: str, parent: str | None) -> dict[str, Any]:
    return {"id": own, "parentId": parent}


TREE = [
    header(version=3),
    user(1, "look", **ids("e1", None)),
    answer(2, use("t1"), stop="toolUse", ids=ids("e2", "e1")),
    user(3, "other", **ids("e3", "e1")),
    answer(4, "there", ids=ids("e4", "e3")),
    result(5, "t1", **ids("e5", "e4")),
    user(6, "so", **ids("e6", "e5")),
    answer(7, "yes", ids=ids("e7", "e6")),
]


def test_entries_with_ids_are_a_tree_and_each_branch_its_own_context() -> None:
    imported = read(*TREE)
    first, second, third = calls_of(imported)
    assert texts(second) == ["look", "other"]
    assert third.parent_call_id == second.id
    assert first.id == "s1/e2"


def test_a_result_that_landed_on_another_branch_stays_with_its_call() -> None:
    imported = read(*TREE)
    (tool,) = imported.of("tool_call")
    assert (tool.call_id, json.loads(tool.result)[0]["text"]) == ("s1/e2", "seen")
    assert texts(calls_of(imported)[2]) == ["so"]
    assert "a tool result on a branch without its call: it is the call's" in imported.notes.warnings


def test_a_branch_summary_and_a_compaction_by_id_are_read_on() -> None:
    rows = [
        *TREE[:5],
        {
            "type": "branch_summary",
            "timestamp": stamp(5),
            "fromId": "e2",
            "summary": "left",
            **ids("b1", "e4"),
        },
        {"type": "label", "timestamp": stamp(5), "targetId": "e4", "label": "x", **ids("l1", "b1")},
        user(6, "so", **ids("e6", "l1")),
        answer(7, "yes", ids=ids("e7", "e6")),
        {
            "type": "compaction",
            "timestamp": stamp(8),
            "summary": "all",
            "firstKeptEntryId": "e6",
            "tokensBefore": 9,
            **ids("c1", "e7"),
        },
        answer(9, "end", ids=ids("e9", "c1")),
    ]
    calls = calls_of(read(*rows))
    assert texts(calls[2]) == ["left", "so"]
    assert [one["role"] for one in messages(calls[2])] == ["branchSummary", "user"]
    assert texts(calls[3]) == ["all", "so", "yes"]


def test_a_session_that_branched_off_another_counts_its_copied_entries_once() -> None:
    branch = [
        header("s2", parentSession="/p/2026-01-01T00-00-00-000Z_s1.jsonl"),
        *SESSION[1:5],
        user(7, "differently"),
        answer(8, "so"),
    ]
    both = read_data(as_lines(*SESSION), as_lines(*branch))
    assert_builds(both)
    assert len(both.of("call")) == 3 + 1
    (own,) = [call for call in both.of("call") if call.episode_id == "s2"]
    assert texts(own) == ["look", "well", "seen", "done", "differently"]
    end = next(one for one in both.of("episode") if one.forked_from_episode_id)
    assert (end.id, end.forked_from_episode_id, end.forked_from_call_id) == ("s2", "s1", "s1/4")
    assert_order_free(as_lines(*SESSION), as_lines(*branch))
    assert len(read_data(as_lines(*branch)).of("call")) == 3


def test_a_result_that_never_came_is_a_gap_once_the_session_goes_on() -> None:
    open_ = read(*SESSION[:3])
    assert "tool_result_missing" not in {gap.cause for gap in open_.of("gap")}
    passed = read(*SESSION[:3], user(4, "never mind"))
    assert "tool_result_missing" in {gap.cause for gap in passed.of("gap")}


def test_a_session_that_grows_gives_what_the_whole_gives() -> None:
    assert_grows([as_lines(one).strip() for one in SESSION])
    assert_grows([as_lines(one).strip() for one in TREE])


def test_every_field_of_a_session_leaves_a_trace() -> None:
    assert_perturbation(
        as_lines(*SESSION, {"type": "custom", "timestamp": stamp(9), "data": {"a": 1}}), limit=20
    )
    assert_perturbation(as_lines(*TREE), limit=12)


def test_a_real_session_builds_and_compacts_twice() -> None:
    imported = read_fixtures("pi/badlogic__pi-mono/before-compaction.jsonl")
    assert_builds(imported)
    edits = sorted(imported.of("context_edit"), key=lambda edit: edit.at)
    kept = [len(edit.kept_call_ids or ()) for edit in edits]
    assert len(edits) == 2
    assert all(kept)
