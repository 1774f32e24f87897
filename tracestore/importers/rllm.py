"""rLLM gateway stores (SQLite), their trace records, and episodes -> episodes of calls with token ids.

- Gateway store: tables `traces` (trace_id, data as JSON, created_at), `trace_sessions` (trace_id, session_id,
  run_id) and `runs`. A trace is one call; a session is an episode (of a run, where the run is named). The
  file is opened for reading only.
- Trace record, in the store or one a line. First version: `messages` (the whole prompt), `response_message`,
  `prompt_token_ids`, `completion_token_ids`, `logprobs`, `weight_version`, `finish_reason`, `raw_request`,
  `raw_response`. In cumulative mode the prompt's ids are kept as `prompt_delta_token_ids` after those of
  `parent_trace_id`: that is the call which this one continues. Later version: `endpoint`, `messages` or
  `prompt`, `tools`, `sampling_params`, `content`, `reasoning`, `tool_calls`, `usage`. Its answer is spelled
  out from its parts, which is inferred.
- Episode: {id, task, trajectories, is_correct, termination_reason, ...}. Each trajectory is an agent; its
  steps hold `chat_completions` (prompt and answer), `prompt_ids`, `response_ids`, `logprobs`,
  `weight_version`; steps of newer versions hold `input` and `output`. The part of an id before the colon
  names the task: episodes that share it are a group. A step's reward of 0 is what nobody set, and stays in
  `meta`. A trajectory may stand alone in a record.

Sessions do not say which agent called: interleaved conversations are told apart by their messages. Records
have no number; their clock is no order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from tracestore.importers import exact
from tracestore.importers.conversations import ANSWERS, tool_calls
from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Source, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, known, logprobs, number, token_ids
from tracestore.importers.items import Item, Names, left, made, nanoseconds, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.usage import of as usage_of
from tracestore.wire.agent import Agent
from tracestore.wire.arrays import TokenIds
from tracestore.wire.call import Call, Policy, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.group import Group
from tracestore.wire.reward import Reward, RewardTarget

_SQLITE = b"SQLite format 3\0"
_DIALECTS = {
    "responses": "openai_responses",
    "anthropic_messages": "anthropic_messages",
    "completions": "text",
}
_ENDED = {
    "env_done": "ok",
    "max_turns_exceeded": "budget_exhausted",
    "max_prompt_length_exceeded": "budget_exhausted",
    "max_response_length_exceeded": "budget_exhausted",
    "timeout": "timeout",
    "error": "failed",
}
_TRACES = """
    SELECT t.trace_id, t.data, s.session_id, {run_id} FROM traces t
    JOIN trace_sessions s ON s.trace_id = t.trace_id
    ORDER BY s.session_id, t.created_at, t.trace_id
"""


def _is_trace(value: Any) -> bool:
    if not isinstance(value, dict) or not {"trace_id", "session_id"} <= value.keys():
        return False
    return "response_message" in value or {"endpoint", "model", "messages"} <= value.keys()


def _is_trajectory(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and {"uid", "steps", "reward"} <= value.keys()
        and isinstance(value["steps"], list)
    )


def _is_episode(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("trajectories"), list) and "is_correct" in value


def _is_store(head: Head) -> bool:
    return head.data.startswith(_SQLITE) and b"trace_sessions" in head.data


def _recognises(head: Head) -> bool:
    return _is_store(head) or any(kind(head.first) for kind in (_is_trace, _is_episode, _is_trajectory))


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, groups, agents, calls, tool calls and rewards of the sources."""
    groups: dict[str, None] = {}
    for source in sources:
        if source.head().startswith(_SQLITE):
            yield from _store(source, notes)
            continue
        names = Names("rllm")
        for record in records(source, notes=notes):
            yield from guarded(_record(record, names, groups, notes), at=record.at, notes=notes)
    for group_id in groups:
        # No size: a file that has grown since must give the same event.
        yield made(Group, id=group_id, closed_by="event")


def _record(record: Record, names: Names, groups: dict[str, None], notes: Notes) -> Iterator[Item]:
    value = record.value
    if _is_trace(value):
        trace = as_dict(value)
        session_id = trace.pop("session_id")
        yield from _trace(trace, str(session_id), "", notes)
    elif _is_episode(value):
        notes.rows["rllm/episode"] += 1
        yield from _episode(as_dict(value), groups, notes)
    elif _is_trajectory(value):
        notes.rows["rllm/trajectory"] += 1
        trajectory = as_dict(value)
        episode_id = _own_id(trajectory, "uid", names)
        yield made(Episode, id=episode_id)
        yield from _trajectory(trajectory, episode_id, safe_id(f"{episode_id}/main"), "main", notes)
    else:
        notes.refuse(record.at, "no trace record, episode or trajectory")


def _own_id(record: dict[str, Any], name: str, names: Names) -> str:
    given = taken(record, name, str)
    return safe_id(given) if given else names.of(record)


# --- The gateway's store -----------------------------------------------------------------------------


def _store(source: Source, notes: Notes) -> Iterator[Item]:
    try:
        with source.file() as path, closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(trace_sessions)")}
            run_id = "s.run_id" if "run_id" in columns else "''"
            for number_, row in enumerate(connection.execute(_TRACES.format(run_id=run_id)), 1):
                at = f"{source.name}, trace {number_}"
                yield from guarded(_row(row, notes), at=at, notes=notes)
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone():
                for row in connection.execute("SELECT * FROM runs"):
                    notes.rows["rllm/run"] += 1
                    notes.leftover("rllm: run", [repr(cell) for cell in row], at=f"{source.name}, table runs")
    except sqlite3.Error as error:
        notes.refuse(source.name, f"no store of the gateway: {error}")


def _row(row: tuple[Any, ...], notes: Notes) -> Iterator[Item]:
    trace_id, data, session_id, run_id = row
    trace = as_dict(exact.loads(data))
    trace.setdefault("trace_id", trace_id)
    given = trace.pop("session_id", session_id)
    if given != session_id:
        trace["session_id"] = given
    yield from _trace(trace, str(session_id), run_id or "", notes)


def _trace(trace: dict[str, Any], session_id: str, run_id: str, notes: Notes) -> Iterator[Item]:
    notes.rows["rllm/trace"] += 1
    episode_id = safe_id(f"{run_id}/{session_id}" if run_id else session_id)
    agent_id = safe_id(f"{episode_id}/main")
    yield made(Episode, id=episode_id)
    yield made(Agent, id=agent_id, episode_id=episode_id, role="main", depth=0)
    notes.infer("one agent made all calls of a session", evidence="the store names none")
    call_id = safe_id(f"{episode_id}/{trace.pop('trace_id')}")
    answer = _later_answer(trace, notes) if "endpoint" in trace else taken(trace, "response_message", dict)
    model, version = taken(trace, "model", str), taken(trace, "weight_version", int)
    parent = taken(trace, "parent_trace_id", str)
    delta = trace.get("prompt_delta_token_ids")
    prompt: dict[str, Any] = {"prompt_token_ids": token_ids(trace.pop("prompt_token_ids", None))}
    if parent is not None and isinstance(delta, list) and prompt["prompt_token_ids"] is None:
        prompt = {"prompt_token_ids_delta": TokenIds.of(trace.pop("prompt_delta_token_ids"))}
    yield made(
        Call,
        id=call_id,
        episode_id=episode_id,
        agent_id=agent_id,
        model=model or None,
        policy=None if not model or version is None else Policy(name=model, version=version),
        endpoint=trace.get("endpoint") if isinstance(trace.get("endpoint"), str) else None,
        dialect=_DIALECTS.get(str(trace.get("endpoint")), "openai_chat"),
        request=raw(_request(trace)),
        parent_call_id=None if parent is None else safe_id(f"{episode_id}/{parent}"),
        completions=(
            known(
                CompletionBody,
                message=raw(answer) if answer else None,
                finish_reason=taken(trace, "finish_reason", str),
                token_ids=token_ids(trace.pop("completion_token_ids", None)),
                logprobs=logprobs(trace.pop("logprobs", None)),
            ),
        ),
        usage=_usage(trace),
        ended_at=nanoseconds(trace.get("timestamp")),
        **prompt,
        meta=left("rllm", {name: one for name, one in trace.items() if one not in (None, {}, [])}),
    )
    yield from tool_calls(answer, call_id=call_id, episode_id=episode_id)


def _request(trace: dict[str, Any]) -> dict[str, Any]:
    """The request as it was sent where it was kept, else of the parts that were."""
    sent = taken(trace, "raw_request", dict)
    messages, tools = trace.pop("messages", None), trace.pop("tools", None)
    if sent and messages is not None and sent.get("messages") != messages:
        trace["messages"] = messages
    if sent:
        return dict(sent) if not tools or sent.get("tools") == tools else sent | {"tools": tools}
    request = as_dict(trace.pop("sampling_params", None))
    if messages is not None:
        request["messages"] = messages
    if trace.get("prompt") is not None:
        request["prompt"] = trace.pop("prompt")
    return request | ({"tools": tools} if tools else {})


def _later_answer(trace: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """The answer of a record of the later version, from its parts."""
    notes.infer("an answer as one message", evidence="its content, reasoning and tool calls")
    answer = {"role": "assistant", "content": trace.pop("content", None)}
    for name, ours in (("reasoning", "reasoning_content"), ("tool_calls", "tool_calls")):
        one = trace.pop(name, None)
        if one:
            answer[ours] = one
    return answer


def _usage(trace: dict[str, Any]) -> Usage | None:
    counts = as_dict(trace.get("token_counts"))
    if counts:
        return usage_of(
            {"prompt_tokens": counts.get("prompt"), "completion_tokens": counts.get("completion")}
        )[0]
    known, uncounted = usage_of(trace.pop("usage", None))
    if uncounted:
        trace["usage"] = uncounted
    return known


# --- Episodes --------------------------------------------------------------------------------------


def _episode(rest: dict[str, Any], groups: dict[str, None], notes: Notes) -> Iterator[Item]:
    given = taken(rest, "id", str)
    if not given:
        raise ValueError("an episode without an id")
    episode_id = safe_id(given)
    task_id, colon, _ = given.rpartition(":")
    group_id = safe_id(f"rllm-task/{task_id}") if colon and task_id else None
    if group_id is not None:
        groups[group_id] = None
    task, reason = rest.pop("task", None), rest.get("termination_reason")
    trajectories = [as_dict(one) for one in rest.pop("trajectories")]
    correct = taken(rest, "is_correct", bool)
    yield made(
        Episode,
        id=episode_id,
        group_id=group_id,
        task_id=safe_id(task_id) if colon and task_id else None,
        task=None if task is None else raw(task),
        status=_ENDED.get(reason.lower().removeprefix("terminationreason."))
        if isinstance(reason, str)
        else None,
        stop_reason=taken(rest, "termination_reason", str),
        meta=left("rllm", {name: one for name, one in rest.items() if one not in (None, {}, [])}),
    )
    if correct is not None:
        yield _reward("is_correct", float(correct), {"episode_id": episode_id}, weight=0.0)
    for place, trajectory in enumerate(trajectories):
        uid = trajectory.pop("uid", None)
        agent_id = safe_id(f"{episode_id}/{uid if isinstance(uid, str) else place}")
        name = trajectory.get("name")
        role = name if len(trajectories) > 1 and isinstance(name, str) else "main"
        yield from _trajectory(trajectory, episode_id, agent_id, role, notes)


def _trajectory(
    rest: dict[str, Any], episode_id: str, agent_id: str, role: str, notes: Notes
) -> Iterator[Item]:
    steps = [as_dict(step) for step in as_list(rest.pop("steps", None))]
    task, output, name = rest.pop("task", None), rest.pop("output", None), taken(rest, "name", str)
    reward, signals = number(rest.get("reward")), as_dict(rest.pop("signals", None))
    rewards = []
    target = {"episode_id": episode_id} | ({} if role == "main" else {"agent_id": agent_id})
    if reward is not None:
        del rest["reward"]
        rewards.append(_reward("reward", reward, target))
    for signal in list(signals):
        value = number(signals[signal])
        if value is not None:
            del signals[signal]
            rewards.append(
                _reward(signal, value, {"episode_id": episode_id, "agent_id": agent_id}, weight=0.0)
            )
    items = [
        item for place, step in enumerate(steps) for item in _step(step, place, episode_id, agent_id, notes)
    ]
    yield made(
        Agent,
        id=agent_id,
        episode_id=episode_id,
        role=role,
        name=name,
        depth=0,
        scope_prompt=None if task is None else raw(task),
        return_message=None if output is None else raw(output),
        meta=left("rllm", {k: v for k, v in rest.items() if v not in (None, {}, [])} | signals),
    )
    yield from items
    yield from rewards


def _step(rest: dict[str, Any], place: int, episode_id: str, agent_id: str, notes: Notes) -> Iterator[Item]:
    notes.rows["rllm/step"] += 1
    step_id = taken(rest, "id", str)
    call_id = safe_id(f"{agent_id}/{step_id or place}")
    version = taken(rest, "weight_version", int)
    if version is not None:
        notes.infer("a policy called `policy`", evidence="a weight_version without a name")
    request, answer = _of_chat(rest) if rest.get("chat_completions") else _of_input(rest)
    reward = number(rest.get("reward"))
    if reward:
        del rest["reward"]
    text = isinstance(as_dict(request).get("prompt"), str)
    yield made(
        Call,
        id=call_id,
        episode_id=episode_id,
        agent_id=agent_id,
        ordinal=place,
        policy=None if version is None else Policy(name="policy", version=version),
        dialect="text" if text else "openai_chat",
        request=None if request is None else raw(request),
        prompt_token_ids=token_ids(rest.pop("prompt_ids", None)),
        completions=(
            known(
                CompletionBody,
                message=None if answer is None else raw(answer),
                token_ids=token_ids(rest.pop("response_ids", None)),
                logprobs=logprobs(rest.pop("logprobs", None)),
            ),
        ),
        meta=left("rllm", {name: one for name, one in rest.items() if one not in (None, {}, [])}),
    )
    yield from tool_calls(answer, call_id=call_id, episode_id=episode_id)
    if reward:
        yield _reward("step_reward", reward, {"episode_id": episode_id, "call_id": call_id})


def _of_chat(rest: dict[str, Any]) -> tuple[Any, Any]:
    """(request, answer) of a step that holds its prompt and answer as one list of messages."""
    chat = as_list(rest.pop("chat_completions"))
    if chat and as_dict(chat[-1]).get("role") in ANSWERS:
        return {"messages": chat[:-1]}, chat[-1]
    written = rest.pop("model_response", None)
    return {"messages": chat}, {"role": "assistant", "content": written} if written else None


def _of_input(rest: dict[str, Any]) -> tuple[Any, Any]:
    given, written = rest.pop("input", None), rest.pop("output", None)
    if isinstance(given, str):
        return {"prompt": given}, written
    if isinstance(given, list):
        return {"messages": given}, written
    return given, written


def _reward(name: str, value: float, target: dict[str, str], *, weight: float | None = None) -> Item:
    of = target.get("call_id") or target.get("agent_id") or target["episode_id"]
    return made(
        Reward,
        id=safe_id(f"{of}/reward/{name}"),
        target=known(RewardTarget, **target),
        name=name,
        value=value,
        weight=weight,
        scorer="environment",
    )


FORMAT = Format("rllm", "rLLM gateway stores and episodes", _recognises, read)
