"""Facts of ATIF trajectories: the trajectory of the file, and those that are its sub-agents'."""

from __future__ import annotations

import json
from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}

_PHOENIX = "atif/arize-ai__phoenix-client/"
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {
    (f"{_PHOENIX}harbor_terminus2_sub_summary.json", "tool_calls"): (
        0,
        "both stand in copied steps, which another trajectory made",
    ),
    (f"{_PHOENIX}harbor_terminus2_sub_answers.json", "tool_calls"): (
        0,
        "both stand in copied steps, which another trajectory made",
    ),
}


def facts(imported: Imported) -> dict[str, Any]:
    rows = imported.notes.rows
    main = _of(imported, "main", "")
    embedded = rows["atif/embedded trajectory"]
    below = [_of(imported, "subagent", "sub-agent ")] if rows["atif/sub-agent trajectory"] else []
    return main | {
        "embedded_subagents": embedded,
        "embedded": below if embedded else [],
        "parent": main,
        "child": below[0] if below else None,
    }


def _of(imported: Imported, role: str, rows_of: str) -> dict[str, Any]:
    ids = {agent.id for agent in imported.of("agent") if agent.role == role}
    agent = next(one for one in imported.of("agent") if one.id in ids and one.phase == "end")
    calls = sorted(
        (call for call in imported.of("call") if call.agent_id in ids), key=lambda call: call.ordinal or 0
    )
    sampled = [body for call in calls for body in call.completions]
    rows = {
        name.removeprefix("atif/"): num
        for name, num in imported.notes.rows.items()
        if name.startswith(f"atif/{rows_of}")
    }
    sources = {
        name.removeprefix(f"{rows_of}step "): num
        for name, num in rows.items()
        if name.startswith(f"{rows_of}step ") and not name.endswith(("llm_call_count", "a model call"))
    }
    dispatched = [gap for gap in imported.of("gap") if gap.cause == "tool_call_without_model_call"]
    left = _left(agent)
    return {
        "schema_version": left.get("schema_version"),
        "session_id": left.get("session_id"),
        "agent": agent.name,
        "steps": sum(sources.values()),
        "sources": sources,
        "tool_calls": len(
            {one.id for one in imported.of("tool_call") if one.call_id in {c.id for c in calls}}
        )
        + sum(gap.agent_id in ids for gap in dispatched),
        "observation_results": rows.get(f"{rows_of}observation result", 0),
        "subagent_refs": len({one.id for one in imported.of("agent") if one.parent_agent_id in ids}),
        "embedded_subagents": 0,
        "copied_context_steps": rows.get(f"{rows_of}copied step", 0),
        "prompt_token_ids": sum(len(call.prompt_token_ids or ()) for call in calls),
        "completion_token_ids": sum(len(body.token_ids or ()) for body in sampled),
        "logprobs": sum(len(body.logprobs or ()) for body in sampled),
        "metrics_sum": _usage(calls),
        "final_metrics": left.get("final_metrics"),
        "continued": left.get("continued_trajectory_ref"),
        "multimodal_steps": _multimodal(calls),
        # The manifest counts those with llm_call_count under this name: 0 where 4 steps are copied.
        "steps_with_is_copied_or_llm_call_count": rows.get(f"{rows_of}step with llm_call_count", 0),
    }


def _left(agent: Any) -> dict[str, Any]:
    rest = json.loads(agent.meta)["atif"]
    listed: list[dict[str, Any]] = rest if isinstance(rest, list) else [rest]
    return {name: one for part in reversed(listed) for name, one in part.items()}


def _usage(calls: list[Any]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd"):
        known = [one for call in calls if call.usage and (one := getattr(call.usage, name)) is not None]
        if known:
            sums[name] = round(sum(known), 10)
    return sums


def _multimodal(calls: list[Any]) -> int:
    """Messages with a part that is no text."""
    messages = [message for call in calls for message in json.loads(call.request)["messages"]]
    messages += [json.loads(body.message) for call in calls for body in call.completions]
    contents = [message.get("content") for message in messages]
    return sum(isinstance(one, list) and any(part["type"] != "text" for part in one) for one in contents)
