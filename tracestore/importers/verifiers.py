"""verifiers results and traces (JSON lines) -> episodes; a trace's message graph becomes calls and agents.

Two formats of one tool:

results.jsonl (before v1). A line is a rollout: `prompt` and `completion` (lists of messages, or texts),
`reward`, `metrics`, `info`, `task`, `answer`, `example_id`, `timing`, `token_usage`, `error`,
`stop_condition`. Metrics are repeated beside `metrics` at the top of the line. Where `trajectory` was saved,
its steps hold each call's whole prompt, its answer and its ids (`tokens`: prompt_ids, completion_ids,
completion_logprobs); else every assistant message of `completion` is a call. Tool uses of a message may be
JSON texts. Lines of one `example_id` with one prompt are a group; a line has no id of its own.

traces.jsonl (v1). A line is a trace, or an episode with `traces` of several agents:

- `nodes` [{parent, message, sampled, token_ids, mask, logprobs, semantic_parents}]: each message once, linked
  to the one before it. `token_ids` are what the message adds; put together along a path they are what the
  model saw. The mask is true where a token was sampled: what stands before that in a sampled node is the
  generation prompt, which the call read.
- A sampled node is a call. It continues the nearest sampled node above it. `calls` [{node, model, sampling,
  endpoint, finish_reason, usage, time, error}] tell more; one without a node is a call that failed, whose
  request is not kept.
- `semantic_parents` [{node, type}] of a node, as the harness tells them: `subagent_call` (a new agent begins,
  spawned there), `subagent_return` (its answer is read here), `compaction_attempt` (this call summarises) and
  `compaction` (this context begins with that summary). An attempt that nothing resumed from was rejected. A
  root without such a link is the same agent again: its context was replaced by nobody knows what.
- `rewards` {name: {score, weight}}, `metrics` (weight 0), `info.judge_calls` (calls of a judge, never of the
  policy). `tools` are those of the last request: that all had them is inferred.
- `stop_condition` max_turns and max_*_tokens: the budget was exhausted. `ok` with anything else is success.

Nothing says at which message a trace's tools changed, nor what a failed call had asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracestore.importers.conversations import history, tool_calls
from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, known, logprobs, number, token_ids
from tracestore.importers.items import (
    Item,
    Names,
    content_id,
    count,
    gap_of_main,
    left,
    made,
    nanoseconds,
    raw,
    safe_id,
    taken,
)
from tracestore.importers.notes import Notes
from tracestore.importers.usage import counted
from tracestore.importers.verifiers_graph import Graph
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.group import Group
from tracestore.wire.reward import Reward, RewardTarget

_RESULT = frozenset({"prompt", "completion", "reward"})
_RESULT_MARKS = frozenset({"example_id", "generation_ms", "stop_condition", "is_completed", "scoring_ms"})
_BUDGETS = frozenset({"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens"})


def _is_result(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= _RESULT and bool(value.keys() & _RESULT_MARKS)


def _is_trace(value: Any) -> bool:
    return (
        isinstance(value, dict) and isinstance(value.get("nodes"), list) and {"task", "agent"} <= value.keys()
    )


def _is_episode(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("traces"), list):
        return False
    return all(map(_is_trace, value["traces"])) and {"id", "task"} <= value.keys()


def _recognises(head: Head) -> bool:
    return _is_result(head.first) or _is_trace(head.first) or _is_episode(head.first)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, groups, agents, calls and rewards of the sources."""
    groups: dict[str, None] = {}
    for source in sources:
        names = Names("verifiers")
        for record in records(source, notes=notes):
            yield from guarded(_record(record, names, groups, notes), at=record.at, notes=notes)
    for group_id in groups:
        # No size: a file that has grown since must give the same event.
        yield made(Group, id=group_id, closed_by="event")


def _record(record: Record, names: Names, groups: dict[str, None], notes: Notes) -> Iterator[Item]:
    value = record.value
    if _is_result(value):
        notes.rows["verifiers/result"] += 1
        yield from _result(as_dict(value), names.of(value), groups, notes)
    elif _is_episode(value):
        notes.rows["verifiers/episode"] += 1
        yield from _episode(as_dict(value), groups, notes)
    elif _is_trace(value):
        trace = as_dict(value)
        episode_id = _id_of(trace)
        yield from _shell(trace, episode_id, {}, groups)
        yield from _trace(trace, episode_id, role="main", policy=None, notes=notes)
    else:
        notes.refuse(record.at, "no result (prompt, completion, reward) and no trace (nodes, task, agent)")


# --- Results before v1 -----------------------------------------------------------------------------


def _result(rest: dict[str, Any], episode_id: str, groups: dict[str, None], notes: Notes) -> Iterator[Item]:
    example_id, prompt = rest.get("example_id"), rest.pop("prompt")
    group_id = None
    if example_id is not None:
        group_id = content_id("verifiers-example", [example_id, rest.get("task"), prompt])
        groups[group_id] = None
    rewards = list(_result_rewards(rest, episode_id))
    agent_id = f"{episode_id}/main"
    tools = rest.pop("tool_defs", None) or rest.pop("oai_tools", None)
    shared = {"tools": tools} if tools else {}
    steps = rest.get("trajectory")
    if isinstance(steps, list) and steps and all(_is_step(step) for step in steps):
        del rest["trajectory"]
        rest["prompt"] = prompt
        items = [one for place, step in enumerate(steps) for one in _step(step, place, episode_id, shared)]
    else:
        completion = rest.pop("completion")
        text = isinstance(prompt, str) and isinstance(completion, str)
        if text:
            items = [_text_call(prompt, completion, episode_id)]
        else:
            items, unread = history(
                _messages(prompt),
                _messages(completion),
                episode_id=episode_id,
                agent_id=agent_id,
                shared=shared,
            )
            if unread:
                rest["messages_after_the_last_answer"] = unread
        if not items:
            items = [gap_of_main(episode_id, "no_calls", "the completion has no answer of the model")]
    error = as_dict(rest.get("error")).get("error_chain_str")
    yield made(
        Episode,
        id=episode_id,
        group_id=group_id,
        task_id=None if example_id is None else safe_id(f"example-{example_id}"),
        status=_result_status(rest),
        error=error if isinstance(error, str) else None,
        stop_reason=taken(rest, "stop_condition", str),
        meta=left("verifiers", rest),
    )
    yield made(Agent, id=agent_id, episode_id=episode_id, role="main", depth=0)
    yield from items
    yield from rewards


def _messages(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}]
    return as_list(value)


def _result_status(rest: dict[str, Any]) -> str | None:
    if rest.get("error"):
        return "failed"
    if rest.get("stop_condition") in _BUDGETS:
        return "budget_exhausted"
    return "ok" if rest.get("is_completed") is True else None


def _result_rewards(rest: dict[str, Any], episode_id: str) -> Iterator[Item]:
    metrics = as_dict(rest.get("metrics"))
    given: list[tuple[str, dict[str, Any], float | None]] = [("reward", rest, None)]
    given += [(name, metrics, 0.0) for name in list(metrics)]
    for name, of, weight in given:
        value = number(of.get(name))
        if value is None:
            continue
        if of is metrics and rest.get(name) == of[name]:
            rest.pop(name, None)  # said twice
        del of[name]
        yield _reward(name, value, weight, episode_id, None, metric=of is metrics)
    if isinstance(rest.get("metrics"), dict):
        rest["metrics"] = metrics


def _text_call(prompt: str, completion: str, episode_id: str) -> Item:
    return made(
        Call,
        id=f"{episode_id}/main/0",
        episode_id=episode_id,
        agent_id=f"{episode_id}/main",
        ordinal=0,
        dialect="text",
        request=raw({"prompt": prompt}),
        completions=(CompletionBody(message=raw(completion)),),
    )


def _is_step(step: Any) -> bool:
    return isinstance(step, dict) and isinstance(step.get("prompt"), list) and "completion" in step


def _step(given: dict[str, Any], place: int, episode_id: str, shared: dict[str, Any]) -> Iterator[Item]:
    step = as_dict(given)
    tokens = as_dict(step.pop("tokens", None))
    prompt, completion = step.pop("prompt"), _messages(step.pop("completion"))
    answer = known(
        CompletionBody,
        message=raw(completion[0]) if completion else None,
        token_ids=token_ids(tokens.pop("completion_ids", None)),
        logprobs=logprobs(tokens.pop("completion_logprobs", None)),
    )
    call_id = f"{episode_id}/main/{place}"
    prompt_ids = tokens.pop("prompt_ids", None)
    if tokens:
        step["tokens"] = tokens
    if len(completion) > 1:
        step["completion_after_the_answer"] = completion[1:]
    yield made(
        Call,
        id=call_id,
        episode_id=episode_id,
        agent_id=f"{episode_id}/main",
        ordinal=place,
        request=raw({**shared, "messages": prompt}),
        prompt_token_ids=token_ids(prompt_ids),
        completions=(answer,),
        meta=left("verifiers", step),
    )
    if completion:
        yield from tool_calls(completion[0], call_id=call_id, episode_id=episode_id)


# --- Traces (v1) -----------------------------------------------------------------------------------


def _id_of(trace: dict[str, Any]) -> str:
    given = taken(trace, "id", str)
    return safe_id(given) if given else content_id("verifiers", trace)


def _episode(rest: dict[str, Any], groups: dict[str, None], notes: Notes) -> Iterator[Item]:
    episode_id = _id_of(rest)
    traces = [as_dict(trace) for trace in rest.pop("traces")]
    yield from _shell({}, episode_id, rest, groups)
    policy = _policy(as_dict(rest.get("run")))
    for trace in traces:
        name = as_dict(trace.get("agent")).get("name")
        role = "main" if len(traces) == 1 or not isinstance(name, str) else name
        yield from _trace(trace, episode_id, role=role, policy=policy, notes=notes)


def _policy(run: dict[str, Any]) -> int | None:
    """The version that sampled all of it, where there was one."""
    span = as_dict(as_dict(run.get("work")).get("policy"))
    start, end = span.get("start"), span.get("end")
    return start if isinstance(start, int) and start == end else None


def _shell(
    trace: dict[str, Any], episode_id: str, given: dict[str, Any], groups: dict[str, None]
) -> Iterator[Item]:
    """The episode event of an episode's record, or of a trace that stands alone (whose fields it takes)."""
    of = given or trace
    task = as_dict(of.get("task"))
    key = task.get("key") or task.get("hash")
    group = as_dict(of.get("group")).get("id")
    group_id = safe_id(group) if isinstance(group, str) and group else None
    if group_id is not None:
        groups[group_id] = None
    errors = as_list(of.get("errors"))
    message = as_dict(errors[-1]).get("message") if errors else None
    run = as_dict(of.get("run"))
    kinds = {run.get("type"), as_dict(run.get("work")).get("type")}
    meta = {name: value for name, value in given.items() if name not in ("task",) and value is not None}
    yield made(
        Episode,
        id=episode_id,
        group_id=group_id,
        task_id=safe_id(key) if isinstance(key, str) else None,
        task=raw(of["task"]),
        split="eval" if "eval" in kinds else "train" if "train" in kinds else None,
        status=_status(of),
        error=message if isinstance(message, str) else None,
        stop_reason=of["stop_condition"] if isinstance(of.get("stop_condition"), str) else None,
        started_at=nanoseconds(as_dict(of.get("timing")).get("start")),
        meta=left("verifiers", meta),
    )


def _status(of: dict[str, Any]) -> str | None:
    if of.get("stop_condition") in _BUDGETS:
        return "budget_exhausted"
    if of.get("ok") is True:
        return "ok"
    return "failed" if of.get("errors") or of.get("is_completed") is True else None


def _trace(
    rest: dict[str, Any], episode_id: str, *, role: str, policy: int | None, notes: Notes
) -> Iterator[Item]:
    notes.rows["verifiers/trace"] += 1
    trace_id = _id_of(rest) if "id" in rest else episode_id
    agent_id = safe_id(f"{trace_id}/main")
    agent = as_dict(rest.get("agent"))
    model = as_dict(agent.get("config")).get("model")
    tools = rest.pop("tools", None)
    if tools:
        notes.infer("the tools of a request", evidence="the tools of the trace's last request")
    graph = Graph(
        trace_id=trace_id,
        episode_id=episode_id,
        agent_id=agent_id,
        nodes=[as_dict(node) for node in rest.pop("nodes")],
        calls=[as_dict(call) for call in as_list(rest.pop("calls", None))],
        tools=tools or None,
        policy=policy,
        notes=notes,
    )
    items = [*graph.items(), *_judges(rest, trace_id, episode_id)]
    rewards = list(_rewards(rest, trace_id, episode_id, None if role == "main" else agent_id))
    unplaced = {name: value for name, value in rest.items() if name != "task" and value is not None}
    yield made(
        Agent,
        id=agent_id,
        episode_id=episode_id,
        role=role,
        name=agent["name"] if isinstance(agent.get("name"), str) else None,
        depth=0,
        model=model if isinstance(model, str) else None,
        trainable=agent["trainable"] if isinstance(agent.get("trainable"), bool) else None,
        return_message=raw(rest["root_reply"]) if rest.get("root_reply") else None,
        meta=left("verifiers", unplaced | graph.unplaced()),
    )
    yield from items
    yield from rewards


def _rewards(rest: dict[str, Any], trace_id: str, episode_id: str, agent_id: str | None) -> Iterator[Item]:
    rewards, metrics = as_dict(rest.get("rewards")), as_dict(rest.get("metrics"))
    for name, given in list(rewards.items()):
        one = as_dict(given)
        value, weight = number(one.pop("score", None)), number(one.pop("weight", None))
        if value is not None and not one:
            del rewards[name]
            yield _reward(name, value, weight, episode_id, agent_id, of=trace_id)
    for name, given in list(metrics.items()):
        value = number(given)
        if value is not None:
            del metrics[name]
            yield _reward(name, value, 0.0, episode_id, agent_id, of=trace_id, metric=True)
    rest["rewards"], rest["metrics"] = rewards or None, metrics or None


def _reward(
    name: str,
    value: float,
    weight: float | None,
    episode_id: str,
    agent_id: str | None,
    *,
    of: str | None = None,
    metric: bool = False,
) -> Item:
    return made(
        Reward,
        id=safe_id(f"{of or episode_id}/{'metric' if metric else 'reward'}/{name}"),
        target=known(RewardTarget, episode_id=episode_id, agent_id=agent_id),
        name=name,
        value=value,
        weight=weight,
        scorer="environment",
    )


def _judges(rest: dict[str, Any], trace_id: str, episode_id: str) -> Iterator[Item]:
    info = as_dict(rest.get("info"))
    calls = [as_dict(call) for call in as_list(info.pop("judge_calls", None))]
    if not calls:
        return
    rest["info"] = info or None
    agent_id = safe_id(f"{trace_id}/judge")
    yield made(Agent, id=agent_id, episode_id=episode_id, role="judge", trainable=False)
    for place, call in enumerate(calls):
        response = as_dict(call.pop("response", None))
        message, usage = response.pop("message", None), as_dict(response.pop("usage", None))
        request = call.pop("request", None)
        model = as_dict(request).get("model")
        yield made(
            Call,
            id=safe_id(f"{agent_id}/{place}"),
            episode_id=episode_id,
            agent_id=agent_id,
            ordinal=place,
            purpose="judge",
            model=model if isinstance(model, str) else None,
            request=None if request is None else raw(request),
            completions=None if message is None else (CompletionBody(message=raw(message)),),
            usage=_usage(usage),
            meta=left("verifiers", call, response, usage),
        )


def _usage(usage: dict[str, Any]) -> Usage | None:
    return counted(**{name: count(usage, name) for name in ("prompt_tokens", "completion_tokens")})


FORMAT = Format("verifiers", "verifiers results and v1 traces", _recognises, read)
