"""Agent Lightning dumps (events, spans, rollouts, attempts) -> an episode for each attempt of a rollout.

Records stand one a line, in lists, or in lists under a name (`rollouts`, `attempts`, `spans`, `events`):

- Event (1.0): {event_type, rollout_id, attempt_id, timestamp, data}. `model_request` is a call:
  `data.request` as it went to the server, `data.response` as it came back, with `prompt_token_ids` and, for
  each choice, `token_ids` and logprobs where the server gave them; `model_version` is the policy's version.
  `reward` is a reward of the episode. The timestamp is when the answer was stored. Every event is a call of
  its own: equal prompts are not merged (the store's own query drops all but the last one).
- Span (before 1.0): OpenTelemetry with rollout_id, attempt_id and `sequence_id`, which orders the spans of
  an attempt. A span with `gen_ai.prompt.*`/`gen_ai.completion.*` or token ids among its attributes is a call;
  a child with `tool.*` attributes is a tool call; `agentlightning.reward` (or an attribute `reward`) is a
  reward.
- Rollout: {rollout_id, input, status, ...}, Attempt: {rollout_id, attempt_id, status, ...}: they say what was
  asked and how it ended. A rollout names its attempt in `status.last_attempt_id` (1.0), else it is told apart
  by its attempts' records.

Requests are whole, and nothing says which call continues which: the graph finds that by their messages.
Events have no number, and their clock is no order. Which agent made a call is not in the file: one is
assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers.conversations import tool_calls
from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, known, number, token_ids
from tracestore.importers.items import Item, Names, left, made, nanoseconds, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.spool import Spool
from tracestore.importers.streams import choices_of, completion
from tracestore.importers.usage import of as usage_of
from tracestore.wire.agent import Agent
from tracestore.wire.arrays import TokenIds
from tracestore.wire.call import Call, CallError, Policy
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.reward import Reward, RewardTarget
from tracestore.wire.tool_call import ToolCall

_LISTS = ("rollouts", "attempts", "spans", "events")
_STATUS = {
    "succeeded": "ok",
    "failed": "failed",
    "timeout": "timeout",
    "unresponsive": "infra_error",
    "cancelled": "cancelled",
}
_DEFAULT_ATTEMPT = "0"
_PROMPT_IDS = ("prompt_token_ids", "llm.hosted_vllm.prompt_token_ids")
_ANSWER_IDS = ("response_token_ids", "llm.hosted_vllm.response_token_ids")


def _kind(value: Any) -> str | None:
    if not isinstance(value, dict) or not isinstance(value.get("rollout_id"), str):
        return None
    if "event_type" in value and "attempt_id" in value:
        return "event"
    if "span_id" in value and "attributes" in value:
        return "span"
    if "attempt_id" in value and "status" in value:
        return "attempt"
    return "rollout" if "input" in value and "status" in value else None


def _each(value: Any) -> list[Any]:
    """The records in a JSON value: itself, or what it lists."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict) and _kind(value) is None:
        return [one for name in _LISTS for one in as_list(value.get(name))]
    return [value]


def _recognises(head: Head) -> bool:
    return any(_kind(one) is not None for one in _each(head.first)[:3])


@dataclass
class _Told:
    """What the rollout and attempt records say of one rollout."""

    rollouts: list[Record] = field(default_factory=list)
    attempts: dict[str, list[Record]] = field(default_factory=dict)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes with their agent, calls, tool calls and rewards."""
    told: dict[str, _Told] = {}
    spool = Spool()
    for source in sources:
        for record in records(source, notes=notes):
            for one in _each(record.value):
                text = record.text if one is record.value else bytes(raw(one))
                _sort(Record(one, record.at, record.line, text), told, spool, source.name, notes)
            if isinstance(record.value, dict) and _kind(record.value) is None:
                rest = {name: one for name, one in record.value.items() if name not in _LISTS}
                if rest or not any(name in record.value for name in _LISTS):
                    notes.leftover("agent-lightning: beside the records", rest, at=record.at)
    yield from _rollouts(told, notes)
    for key in spool.keys():  # noqa: SIM118 - a spool is no dict
        rollout_id, _, attempt_id = key.partition("\n")
        yield from _attempt(rollout_id, attempt_id, list(spool.of(key)), notes)


def _sort(record: Record, told: dict[str, _Told], spool: Spool, source: str, notes: Notes) -> None:
    kind = _kind(record.value)
    if kind is None:
        notes.leftover("agent-lightning: no event, span, attempt or rollout", record.value, at=record.at)
        return
    notes.rows[f"agent-lightning/{kind}"] += 1
    rollout_id, attempt_id = record.value["rollout_id"], record.value.get("attempt_id")
    if kind == "rollout":
        told.setdefault(rollout_id, _Told()).rollouts.append(record)
    elif not isinstance(attempt_id, str):
        notes.refuse(record.at, f"{kind} without an attempt_id")
    elif kind == "attempt":
        told.setdefault(rollout_id, _Told()).attempts.setdefault(attempt_id, []).append(record)
    else:
        spool.add(f"{rollout_id}\n{attempt_id}", record, source=source)


# --- How a rollout ended -----------------------------------------------------------------------------


def _episode_id(rollout_id: str, attempt_id: str) -> str:
    return safe_id(f"{rollout_id}/{attempt_id}")


def _rollouts(told: dict[str, _Told], notes: Notes) -> Iterator[Item]:
    for rollout_id, one in sorted(told.items()):
        # A later dump tells more of the same rollout: the newest version of it holds.
        rollout = max(one.rollouts, key=_version, default=None)
        attempts: dict[str, Record | None] = {
            name: max(found, key=_version) for name, found in one.attempts.items()
        }
        if rollout is not None and not attempts:
            last = as_dict(rollout.value["status"]).get("last_attempt_id")
            attempts = {last if isinstance(last, str) else _DEFAULT_ATTEMPT: None}
        for attempt_id, attempt in attempts.items():
            for record in filter(None, (attempt or rollout,)):
                items = _ended(rollout_id, attempt_id, rollout, attempt)
                yield from guarded(items, at=record.at, notes=notes)


def _version(record: Record) -> tuple[int, bytes]:
    status = as_dict(record.value.get("status"))
    version = status.get("version")
    ended = record.value.get("end_time") is not None
    return (version if isinstance(version, int) else int(ended)), record.text


def _ended(
    rollout_id: str, attempt_id: str, rollout: Record | None, attempt: Record | None
) -> Iterator[Item]:
    of_rollout, of_attempt = (as_dict(one.value if one else None) for one in (rollout, attempt))
    given = of_rollout.get("input")
    task = None if given is None else raw(of_rollout.pop("input"))
    status = as_dict(of_rollout.get("status"))
    state = of_attempt.get("status") or status.get("state") or of_rollout.get("status")
    error = status.get("error_message")
    is_train, mode = of_rollout.get("is_train"), of_rollout.get("mode")
    times = of_attempt or of_rollout
    for one in (of_rollout, of_attempt):
        for name in ("rollout_id", "attempt_id"):
            one.pop(name, None)
    revision = sum(_version(one)[0] for one in (rollout, attempt) if one is not None)
    yield _start(rollout_id, attempt_id)
    yield made(
        Episode,
        id=_episode_id(rollout_id, attempt_id),
        phase="end",
        revision=max(revision, 0),
        task=task,
        split="train"
        if is_train is True or mode == "train"
        else "eval"
        if is_train is False or mode
        else None,
        status=_STATUS.get(state) if isinstance(state, str) else None,
        error=error if isinstance(error, str) else None,
        started_at=nanoseconds(times.get("start_time")) or nanoseconds(status.get("created_at")),
        ended_at=nanoseconds(times.get("end_time")),
        meta=left("agent_lightning", of_rollout, of_attempt),
    )


def _start(rollout_id: str, attempt_id: str) -> Item:
    return made(Episode, id=_episode_id(rollout_id, attempt_id), phase="start")


# --- What happened in an attempt -----------------------------------------------------------------------


def _attempt(
    rollout_id: str, attempt_id: str, found: list[tuple[str, Record]], notes: Notes
) -> Iterator[Item]:
    episode_id = _episode_id(rollout_id, attempt_id)
    yield _start(rollout_id, attempt_id)
    yield made(Agent, id=safe_id(f"{episode_id}/main"), episode_id=episode_id, role="main", depth=0)
    notes.infer("one agent made all calls of an attempt", evidence="the file names none")
    names: dict[str, Names] = {}
    spans = {record.value.get("span_id") for _, record in found if _is_call(record.value)}
    for source, record in found:
        value = as_dict(record.value)
        if _kind(value) == "span":
            items = _span(value, episode_id, spans, record.at, notes)
        else:
            # Per file: a copy of a file names the same things, and equal events of one file are several.
            name = names.setdefault(source, Names("event")).of(value)
            items = _event(value, name, episode_id, record.at, notes)
        yield from guarded(items, at=record.at, notes=notes)


def _event(value: dict[str, Any], name: str, episode_id: str, at: str, notes: Notes) -> Iterator[Item]:
    kind, data = value.get("event_type"), as_dict(value.pop("data", None))
    for field_name in ("event_type", "rollout_id", "attempt_id"):
        value.pop(field_name, None)
    moment = nanoseconds(value.get("timestamp"))
    if moment is not None:
        del value["timestamp"]
    event_id = safe_id(f"{episode_id}/{name}")
    if kind == "model_request":
        yield from _request(value, data, event_id, episode_id, moment)
    elif kind == "reward" and number(data.get("value")) is not None:
        source = taken(data, "source", str)
        yield made(
            Reward,
            id=event_id,
            target=RewardTarget(episode_id=episode_id),
            name="reward",
            value=number(data.pop("value")),
            scorer=source,
            at=moment,
            meta=left("agent_lightning", data, value),
        )
    else:
        notes.leftover(f"agent-lightning: event {kind}", [value, data, moment], at=at)


def _request(
    value: dict[str, Any], data: dict[str, Any], call_id: str, episode_id: str, moment: int | None
) -> Iterator[Item]:
    request, response = data.pop("request", None), data.get("response")
    model, version = taken(data, "model", str), taken(data, "model_version", int)
    rest = as_dict(response)
    prompt_ids = token_ids(rest.pop("prompt_token_ids", None))
    bodies = tuple(map(completion, choices_of(rest)))
    prompt_ids = prompt_ids or _of_choice(rest)
    provider_id, (usage, uncounted) = taken(rest, "id", str), usage_of(rest.pop("usage", None))
    if uncounted:
        rest["usage"] = uncounted
    if isinstance(response, dict):
        del data["response"]
    if rest:
        data["response"] = rest
    failed = data.get("status") == "error"
    status_code = data.get("http_status") if isinstance(data.get("http_status"), int) else None
    yield made(
        Call,
        id=call_id,
        episode_id=episode_id,
        agent_id=safe_id(f"{episode_id}/main"),
        model=model,
        policy=None if model is None or version is None else Policy(name=model, version=version),
        provider_id=provider_id,
        dialect="text" if isinstance(request, dict) and "prompt" in request else "openai_chat",
        request=None if request is None else raw(request),
        prompt_token_ids=prompt_ids,
        completions=bodies or None,
        usage=usage,
        status="failed" if failed else "ok" if data.get("status") == "ok" else None,
        error=known(CallError, status_code=status_code) if failed and status_code is not None else None,
        ended_at=moment,
        meta=left("agent_lightning", data, value),
    )
    for body in bodies[:1]:
        message = None if body.message is None else body.message.value()
        yield from tool_calls(message, call_id=call_id, episode_id=episode_id)


def _of_choice(response: dict[str, Any]) -> TokenIds | None:
    """The prompt's ids, which the completions API gives with each choice."""
    choices = as_list(response.get("choices"))
    return token_ids(as_dict(choices[0]).get("prompt_token_ids")) if choices else None


# --- Spans -----------------------------------------------------------------------------------------


def _is_call(value: Any) -> bool:
    attributes = as_dict(as_dict(value).get("attributes"))
    return any(
        name.startswith(("gen_ai.prompt.", "gen_ai.completion.")) or name in (*_PROMPT_IDS, *_ANSWER_IDS)
        for name in attributes
    )


def _span(span: dict[str, Any], episode_id: str, calls: set[Any], at: str, notes: Notes) -> Iterator[Item]:
    attributes = as_dict(span.pop("attributes"))
    span_id, parent_id = span.get("span_id"), span.get("parent_id")
    event_id = safe_id(f"{episode_id}/{span_id}")
    reward = _reward_of(attributes)
    tool = nested(attributes, "tool")
    if _is_call({"attributes": attributes}):
        yield _span_call(span, attributes, event_id, episode_id)
    elif reward is not None:
        yield made(
            Reward,
            id=event_id,
            target=RewardTarget(episode_id=episode_id),
            name=reward[0],
            value=reward[1],
            at=nanoseconds(span.get("end_time")),
            meta=left("agent_lightning", span, attributes),
        )
    elif isinstance(tool, dict) and tool.get("name") and parent_id in calls:
        call = as_dict(tool.get("call"))
        result = tool.get("result")
        yield made(
            ToolCall,
            id=event_id,
            episode_id=episode_id,
            call_id=safe_id(f"{episode_id}/{parent_id}"),
            tool_call_id=call["id"] if isinstance(call.get("id"), str) else None,
            name=tool["name"] if isinstance(tool["name"], str) else None,
            arguments=tool["parameters"] if isinstance(tool.get("parameters"), str) else None,
            result=None if result is None else raw(result),
            started_at=nanoseconds(span.get("start_time")),
            ended_at=nanoseconds(span.get("end_time")),
            meta=left("agent_lightning", span, attributes),
        )
    else:
        notes.leftover(f"agent-lightning: span {span.get('name')}", span | {"attributes": attributes}, at=at)


def _span_call(span: dict[str, Any], attributes: dict[str, Any], call_id: str, episode_id: str) -> Item:
    prompt, written = nested(attributes, "gen_ai.prompt"), nested(attributes, "gen_ai.completion")
    prompt_ids, answer_ids = _ids(attributes, _PROMPT_IDS), _ids(attributes, _ANSWER_IDS)
    given = as_list(written)
    bodies = [known(CompletionBody, message=raw(one)) for one in given]
    if answer_ids is not None and len(bodies) < 2:
        message = bodies[0].message if bodies else None
        bodies = [known(CompletionBody, message=message, token_ids=answer_ids)]
    model = attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model")
    provider_id = attributes.get("gen_ai.response.id")
    usage, _ = usage_of(
        {
            name: attributes.get(f"gen_ai.usage.{name}")
            for name in ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
        }
    )
    rest = {
        name: one
        for name, one in attributes.items()
        if not name.startswith(("gen_ai.prompt.", "gen_ai.completion."))
        and name not in (*_PROMPT_IDS, *_ANSWER_IDS)
    }
    return made(
        Call,
        id=call_id,
        episode_id=episode_id,
        agent_id=safe_id(f"{episode_id}/main"),
        ordinal=taken(span, "sequence_id", int),
        model=model if isinstance(model, str) else None,
        provider_id=provider_id if isinstance(provider_id, str) else None,
        request=raw({"messages": prompt}) if isinstance(prompt, list) else None,
        prompt_token_ids=prompt_ids,
        completions=tuple(bodies) or None,
        usage=usage,
        status="failed" if as_dict(span.get("status")).get("status_code") == "ERROR" else None,
        started_at=nanoseconds(span.get("start_time")),
        ended_at=nanoseconds(span.get("end_time")),
        meta=left("agent_lightning", span, rest, None if isinstance(prompt, list) else as_dict(prompt)),
    )


def _ids(attributes: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((found for name in names if (found := token_ids(attributes.get(name))) is not None), None)


def _reward_of(attributes: dict[str, Any]) -> tuple[str, float] | None:
    """(name, value) of the first reward among a span's attributes, which lose its value."""
    for name in ("agentlightning.reward.0.value", "reward"):
        value = number(attributes.get(name))
        if value is not None:
            del attributes[name]
            given = taken(attributes, "agentlightning.reward.0.name", str)
            return given or "reward", value
    return None


def nested(attributes: dict[str, Any], prefix: str) -> Any:
    """Attributes with dotted names below a prefix as the object or list that they spell.

    Example: {"p.0.role": "user", "p.0.content": "q"} -> [{"role": "user", "content": "q"}]
    """
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        if not name.startswith(f"{prefix}."):
            continue
        *steps, last = name[len(prefix) + 1 :].split(".")
        place = tree
        for step in steps:
            inner = place.setdefault(step, {})
            place = inner if isinstance(inner, dict) else place.setdefault(f"{step}.", {})
        place[last] = value
    return _listed(tree)


def _listed(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    inner = {name: _listed(value) for name, value in tree.items()}
    if inner and all(name.isdigit() for name in inner):
        return [inner[name] for name in sorted(inner, key=int)]
    return inner


FORMAT = Format("agent-lightning", "Agent Lightning events and spans", _recognises, read)
