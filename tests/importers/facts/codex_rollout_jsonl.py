"""Facts of Codex rollouts, from the events of an import and its report."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}

_CALLS_TEST = "codex/wesm__agentsview/function_calls.jsonl"
_CCUSAGE = (
    "codex/ryoppippi__ccusage/apps/ccusage/test/fixtures/codex/sessions/project-alpha/session-alpha.jsonl"
)
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {
    (_CALLS_TEST, "tool_calls"): (2, "two uses of one id are two tool calls"),
    (_CALLS_TEST, "tool_calls_without_output"): (2, "two uses of one id are two tool calls"),
    (_CCUSAGE, "models"): (["gpt-5.2-codex", "gpt-5.3-codex"], "the second count names its own model"),
}


def facts(imported: Imported) -> dict[str, Any]:
    rows = {name.removeprefix("codex/"): count for name, count in imported.notes.rows.items()}
    types: Counter[str] = Counter()
    for name, count in rows.items():
        types[name.partition("/")[0]] += count
    calls, tools, edits = (imported.of(kind) for kind in ("call", "tool_call", "context_edit"))
    items = list(_items(imported))
    kinds = Counter(item.get("type") for item in items)
    outputs = sum(count for kind, count in kinds.items() if str(kind).endswith("_output"))
    answered = sum(tool.result is not None for tool in tools)
    repeated = imported.notes.inferred.get("a token count that is no call", Counter())
    totals = [total for call in sorted(calls, key=lambda call: call.ordinal) for total in _totals(call)]
    return {
        "lines": sum(types.values()),
        "bad_lines": imported.notes.refused,
        "row_types": dict(types),
        "payload_types": {name: count for name, count in rows.items() if "/" in name},
        "messages": kinds["message"],
        "message_roles": dict(Counter(item["role"] for item in items if item.get("type") == "message")),
        "reasoning_items": kinds["reasoning"],
        "tool_calls": len(tools),
        "tool_outputs": outputs,
        "tool_calls_without_output": sum(tool.result is None for tool in tools),
        "outputs_without_call": outputs - answered,
        "token_count_events": sum(count for name, count in rows.items() if name.endswith("/token_count")),
        "token_count_consecutive_duplicates": sum(repeated.values()),
        "distinct_token_snapshots": len({json.dumps(total) for total in totals}),
        "last_total_token_usage": totals[-1] if totals else None,
        "compactions": len(edits),
        "compaction_replacement_items": [_rest(edit)["replacement_items"] for edit in edits],
        "turns_started": rows.get("event_msg/task_started", 0),
        "turns_completed": rows.get("event_msg/task_complete", 0),
        "turns_aborted": rows.get("event_msg/turn_aborted", 0),
        "models": sorted({call.model for call in calls if call.model}),
        "session_meta": rows.get("session_meta", 0),
    }


def _rest(event: Any) -> dict[str, Any]:
    rest: dict[str, Any] = {} if event.meta is None else json.loads(event.meta)["codex"]
    return rest


def _items(imported: Imported) -> Any:
    """Every item once: what calls read beyond the ones before them, what they wrote, what nobody read."""
    edits = {edit.after_call_id: _rest(edit) for edit in imported.of("context_edit")}
    for call in imported.of("call"):
        read = [] if call.request is None else json.loads(call.request)["input"]
        yield from read[edits.get(call.id, {}).get("replacement_items", 0) :]
        for body in call.completions or ():
            yield from json.loads(body.message)
    for edit in imported.of("context_edit"):
        yield from _rest(edit).get("unread", ())
    for agent in imported.of("agent"):
        yield from _rest(agent).get("unread", ()) if _is_fresh(imported) else ()


def _is_fresh(imported: Imported) -> bool:
    """Whether what is unread is more than the replacement of a compaction that no call followed."""
    return all(edit.after_call_id is not None for edit in imported.of("context_edit"))


def _totals(call: Any) -> list[dict[str, Any]]:
    """The cumulative counts among the rows of a call."""
    infos = [(row.get("payload") or {}).get("info") or {} for row in _rest(call).get("rows", ())]
    return [info["total_token_usage"] for info in infos if "total_token_usage" in info]
