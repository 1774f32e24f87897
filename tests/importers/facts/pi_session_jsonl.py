"""Facts of pi sessions, from the events of an import and its report."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}
_FILE = "pi/badlogic__pi-mono/before-compaction.jsonl"
_FOLDER = "/Users/user/.pi/agent/sessions/--Users-user-workspaces-pi-mono--"
_REPLACED = "counted before personal details in the file were replaced"
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {
    (_FILE, "compactions"): (
        [
            {"tokensBefore": 175004, "firstKeptEntryIndex": 293, "summary_chars": 4247},
            {"tokensBefore": 185014, "firstKeptEntryIndex": 551, "summary_chars": 3625},
        ],
        _REPLACED,
    ),
    (_FILE, "header"): (
        {
            "id": "ffae836b-9420-4060-ac13-7745215f90ff",
            "version": None,
            "branchedFrom": f"{_FOLDER}/2025-12-09T00-52-54-397Z_d97339c6-6c10-4827-846b-9ff1d9c3dc37.jsonl",
        },
        _REPLACED,
    ),
}


def facts(imported: Imported) -> dict[str, Any]:
    rows = {name.removeprefix("pi/"): count for name, count in imported.notes.rows.items()}
    calls, tools, edits = (imported.of(kind) for kind in ("call", "tool_call", "context_edit"))
    edits = sorted(edits, key=lambda edit: edit.at)
    header = json.loads(imported.of("episode")[-1].meta)["pi"]
    roles = Counter(message["role"] for message in _messages(imported))
    return {
        "lines": sum(rows.values()),
        "bad_lines": imported.notes.refused,
        "row_types": rows,
        "roles": {**roles, "assistant": len(calls)},
        "model_calls": len(calls),
        "stop_reasons": dict(Counter(_reason(call) for call in calls)),
        "tool_calls": len(tools),
        "tool_results": sum(tool.result is not None for tool in tools),
        "tool_errors": sum(tool.status == "failed" for tool in tools),
        "tool_calls_without_result": sum(tool.result is None for tool in tools),
        "compactions": [
            {
                "tokensBefore": edit.tokens_before,
                "firstKeptEntryIndex": json.loads(edit.meta)["pi"]["firstKeptEntryIndex"],
                "summary_chars": len(_summary(imported, edit)),
            }
            for edit in edits
        ],
        "images": sum(
            block.get("type") == "image"
            for message in _messages(imported)
            for block in message.get("content", ())
            if isinstance(block, dict)
        ),
        "models": sorted({call.model for call in calls}),
        "usage_sum": _usage(calls),
        "header": {
            "id": imported.of("episode")[-1].id,
            "version": header.get("version"),
            "branchedFrom": header.get("branchedFrom"),
        },
    }


def _request(call: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(call.request)["messages"]
    return messages


def _messages(imported: Imported) -> Any:
    """Every message once that no call wrote; of the calls after a compaction what is new."""
    agent = imported.of("agent")[0]
    unread = json.loads(agent.meta)["pi"].get("unread", ()) if agent.meta else ()
    yield from (entry["message"] for entry in unread if entry["type"] == "message")
    kept = {
        _summary(imported, edit): json.loads(edit.meta)["pi"]["kept_messages"]
        for edit in imported.of("context_edit")
    }
    seen: set[str] = set()
    for call in sorted(imported.of("call"), key=lambda call: call.ordinal):
        messages = _request(call)
        summary = messages[0].get("summary") if messages else None
        for message in messages[kept[summary] + 1 if summary in kept else 0 :]:
            # A call whose answer was empty is no parent: the next one tells its messages again.
            text = json.dumps(message)
            if text not in seen:
                yield message
            seen = seen | {text} if not call.completions else set()


def _summary(imported: Imported, edit: Any) -> str:
    call = next(call for call in imported.of("call") if call.id == edit.after_call_id)
    return str(_request(call)[0]["summary"])


def _reason(call: Any) -> str:
    # An answer without content has no completion to end; its status tells.
    told = {"aborted": "aborted", "failed": "error"}.get(call.status)
    return told or str(call.completions[0].finish_reason)


def _usage(calls: list[Any]) -> dict[str, int]:
    usage = [call.usage for call in calls if call.usage is not None]
    fresh = sum(one.prompt_tokens - one.cached_tokens - one.cache_write_tokens for one in usage)
    totals = {
        "input": fresh,
        "output": sum(one.completion_tokens for one in usage),
        "cacheRead": sum(one.cached_tokens for one in usage),
        "cacheWrite": sum(one.cache_write_tokens for one in usage),
    }
    return {**totals, "totalTokens": sum(totals.values())}
