"""What the manifest counts of Claude Code sessions, from the events and the report."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {
    "uuid_rows": "how many lines of a log have an id; a line that is there twice is one row",
    "distinct_uuids": "ids of log lines; messages, calls and edits are what a graph has",
    "roots": "log lines without a parent, whatever they are; where a context begins shows in the calls",
    "fork_points": "log lines with several children, parallel results and progress rows among them",
    "fork_points_user_assistant": "the same without other rows: parallel results are no branches",
}
_PATH = "claude_code/"
_NO_IDS = "its answers have neither message ids nor uuids: each row is a call, not all of them one"
_NO_JSON = "a debug log of text lines: no format knows it, and the report says so once for the file"
_SAMPLE = f"{_PATH}simonw__claude-code-transcripts/tests/sample_session.json"
_TRANSCRIPT = f"{_PATH}ryoppippi__ccusage/apps/ccusage/test/test-transcript.jsonl"
_DEBUG = f"{_PATH}kylesnowschwartz__tail-claude/debug-sample.txt"
_PROJECTS = f"{_PATH}ryoppippi__ccusage/apps/ccusage/test/fixtures/claude/projects/"
_ALPHA = f"{_PROJECTS}project-alpha/session-alpha/chat.jsonl"
_BETA = f"{_PROJECTS}project-beta/session-beta/chat.jsonl"
_NO_TYPE = "rows without a type are answers by the role of their message: calls with their usage"
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {
    (_SAMPLE, "model_calls"): (15, _NO_IDS),
    (_SAMPLE, "max_rows_for_one_model_call"): (1, _NO_IDS),
    (_TRANSCRIPT, "model_calls"): (2, _NO_IDS),
    (_TRANSCRIPT, "max_rows_for_one_model_call"): (1, _NO_IDS),
    (_TRANSCRIPT, "usage_last_row_per_message_id"): (
        {
            "input_tokens": 1000 + 2000,
            "output_tokens": 50 + 100,
            "cache_creation_input_tokens": 100 + 200,
            "cache_read_input_tokens": 500 + 800,
        },
        _NO_IDS,
    ),
    (_DEBUG, "lines"): (0, _NO_JSON),
    (_DEBUG, "bad_lines"): ([], _NO_JSON),
    (_ALPHA, "model_calls"): (3, _NO_TYPE),
    (_ALPHA, "max_rows_for_one_model_call"): (1, _NO_TYPE),
    (_ALPHA, "usage_last_row_per_message_id"): (
        {
            "input_tokens": 100 + 200 + 300,
            "output_tokens": 50 + 75 + 125,
            "cache_creation_input_tokens": 25 + 50 + 0,
            "cache_read_input_tokens": 10 + 20 + 40,
        },
        _NO_TYPE,
    ),
    (_BETA, "model_calls"): (2, _NO_TYPE),
    (_BETA, "max_rows_for_one_model_call"): (1, _NO_TYPE),
    (_BETA, "usage_last_row_per_message_id"): (
        {
            "input_tokens": 50 + 80,
            "output_tokens": 25 + 35,
            "cache_creation_input_tokens": 5 + 10,
            "cache_read_input_tokens": 15 + 25,
        },
        _NO_TYPE,
    ),
}


def facts(imported: Imported) -> dict[str, Any]:
    """The counted facts of the manifest."""
    return {
        **_of_rows(imported),
        **_of_calls(imported),
        **_of_messages(imported),
        **_of_edits(imported),
        "sessions": len({episode.id for episode in imported.of("episode")})
        - sum(imported.notes.inferred.get("the session of rows that name none", {}).values()),
        "dangling_parents": imported.notes.warnings["a row whose parent is not in the file"]
        + sum(imported.notes.inferred.get("the session that a row continues", {}).values()),
    }


def _of_rows(imported: Imported) -> dict[str, Any]:
    types: Counter[str] = Counter()
    subtypes: Counter[str] = Counter()
    for name, number in imported.notes.rows.items():
        kind, _, subtype = name.removeprefix("claude-code/").partition(" ")
        if kind == "(no":
            types["None"] += number
            continue
        types[kind] += number
        if kind == "system" and subtype:
            subtypes[subtype] += number
    bad = [
        int(match.group(1)) for one in imported.notes.refused if (match := re.search(r"line (\d+): no ", one))
    ]
    rows = list(_rests(imported))
    return {
        "lines": sum(types.values()) + len(bad),
        "bad_lines": bad,
        "row_types": dict(types),
        "system_subtypes": dict(subtypes),
        "assistant_rows": types["assistant"],
        "summary_rows": types["summary"],
        "agent_progress_rows": {} if not types["progress"] else _progress(imported),
        "sidechain_rows": sum(row.get("isSidechain") is True for row in rows),
        "meta_rows": sum(row.get("isMeta") is True for row in rows),
        "agent_ids": len({row["agentId"] for row in rows if row.get("isSidechain") and "agentId" in row}),
        "versions": sorted({row["version"] for row in rows if "version" in row}),
    }


def _progress(imported: Imported) -> dict[str, int]:
    """Rows of each agent that came inside progress rows."""
    inline = {call.id: call.agent_id for call in _inline_calls(imported)}
    found: Counter[str] = Counter()
    for event in imported.events:
        agent = event.id if event.kind == "agent" else inline.get(getattr(event, "call_id", event.id))
        if agent is not None and agent in inline.values():
            rows = [row for row in _rows_of(event) if "type" in row]
            found[agent.rpartition("/agent-")[2]] += len(rows)
    return dict(found)


def _meta(event: Any) -> dict[str, Any]:
    return {} if event.meta is None else json.loads(event.meta)["claude_code"]


def _rests(imported: Imported) -> Iterator[dict[str, Any]]:
    """Every row that has a place, as it is kept beside its message."""
    for event in imported.events:
        yield from _rows_of(event)


def _rows_of(event: Any) -> Iterator[dict[str, Any]]:
    meta = _meta(event)
    if event.kind in ("tool_call", "context_edit") and meta:
        yield meta
    for name in ("answer", "read", "unread"):
        yield from meta.get(name, ())


def _is_inline(call: Any) -> bool:
    """Whether its rows came inside progress rows, which name neither a sidechain nor a parent."""
    return not call.agent_id.endswith("/main") and not any(
        "isSidechain" in row or "sessionId" in row or "agentId" in row for row in _meta(call)["answer"]
    )


def _inline_calls(imported: Imported) -> list[Any]:
    return [call for call in imported.of("call") if _is_inline(call)]


def _of_calls(imported: Imported) -> dict[str, Any]:
    calls = imported.of("call")
    inline = {call.id for call in _inline_calls(imported)}
    answered = [call for call in calls if call.status != "failed" and call.id not in inline]
    failed = [call for call in calls if call.status == "failed"]
    tools = [tool for tool in imported.of("tool_call") if tool.phase == "start"]
    ended = {tool.id for tool in imported.of("tool_call") if tool.phase == "end"}
    own = [tool for tool in tools if tool.call_id not in inline]
    models = {call.model for call in calls if call.model is not None}
    said = [m["model"] for m in _contexts(imported) if m.get("role") == "assistant" and "model" in m]
    return {
        "model_calls": len(answered),
        "max_rows_for_one_model_call": max((len(_meta(call)["answer"]) for call in answered), default=0),
        "synthetic_assistant_rows": len(failed) + said.count("<synthetic>"),
        "api_error_rows": len(failed),
        "tool_calls": len(own),
        "tool_use_blocks": len(own),
        "tool_calls_without_result": sum(tool.id not in ended for tool in own),
        "task_calls": sum(tool.name in ("Task", "Agent") for tool in own),
        "models": sorted({*models, *said}),
        "usage_last_row_per_message_id": _usage(answered),
        "inline_subagent_model_calls": len(inline),
        "inline_subagent_tool_calls": len(tools) - len(own),
        "inline_subagent_usage": _usage([call for call in calls if call.id in inline]),
    }


def _usage(calls: list[Any]) -> dict[str, int]:
    """Sums in the provider's words: its input tokens leave out the cached ones."""
    found: Counter[str] = Counter()
    for call in calls:
        usage = call.usage
        if usage is None:
            continue
        fields = {
            "input_tokens": None
            if usage.prompt_tokens is None
            else usage.prompt_tokens - (usage.cached_tokens or 0) - (usage.cache_write_tokens or 0),
            "output_tokens": usage.completion_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
        }
        for name, value in fields.items():
            if value is not None:
                found[name] += value
    return dict(found)


def _contexts(imported: Imported) -> list[dict[str, Any]]:
    """Every message that is no answer of a call, once: those that a call read, and those that none did."""
    found: list[dict[str, Any]] = []
    for call in imported.of("call"):
        if _is_inline(call):
            continue
        found += json.loads(call.request)["messages"]
    for agent in imported.of("agent"):
        found += [row["message"] for row in _meta(agent).get("unread", ()) if "message" in row]
    return list({json.dumps(message): message for message in found}.values())


def _of_messages(imported: Imported) -> dict[str, Any]:
    results: dict[str, dict[str, Any]] = {}
    images = 0
    for message in _contexts(imported):
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") == "tool_result":
                results[block["tool_use_id"]] = block
            images += isinstance(block, dict) and block.get("type") == "image"
    kinds: Counter[str] = Counter()
    for call in (call for call in imported.of("call") if not _is_inline(call)):
        for body in call.completions or ():
            content = None if body.message is None else json.loads(body.message).get("content")
            kinds.update(str(block.get("type")) for block in content or () if isinstance(block, dict))
    return {
        "tool_results": len(results),
        "tool_errors": sum(block.get("is_error") is True for block in results.values()),
        "images": images,
        "thinking_blocks": kinds["thinking"],
        "redacted_thinking_blocks": kinds["redacted_thinking"],
    }


def _of_edits(imported: Imported) -> dict[str, Any]:
    edits = sorted(imported.of("context_edit"), key=lambda edit: edit.at or 0)
    boundaries = [edit for edit in edits if _meta(edit).get("subtype") == "compact_boundary"]
    summaries = sum(row.get("isCompactSummary") is True for row in _rests(imported))
    return {
        "compact_boundaries": len(boundaries),
        "compact_pre_tokens": [edit.tokens_before for edit in boundaries],
        "compact_triggers": [_meta(edit)["compactMetadata"]["trigger"] for edit in boundaries],
        "microcompact_boundaries": sum(edit.edit == "tool_result_clearing" for edit in edits),
        "compact_summaries": summaries,
    }
