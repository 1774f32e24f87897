"""Inspect logs (`.eval` zips and JSON) -> one episode a sample and epoch, with its agents, calls and scores.

Seen: log versions 1 to 4, packages 0.3.41 (2024) to 0.3.154 and the pools, branches and chunked samples of
2026. Where the parts of a log lie, and how references are put back, is told in `inspect_files`.

- A sample is {id, epoch, input, target, messages, output, scores, events ...}. Its `uuid` (from 0.3.70) is
  the episode's id; a log that is retried copies finished samples with theirs. Without it the id is made of
  `eval.eval_id` (before 2025 `run_id`), `task_id`, sample id and epoch. Epochs of one sample id under one
  `eval.task_id` are a group: it stays the same over retries of a log. `eval` goes into the episode's meta,
  and that of the latest log (`created`) holds, its finished header before the one written at the start. What
  else a header says (plan, results, totals) is of the run, not of a sample: it is noted, not stored.
- Every `model` event is a call: its whole input in Inspect's own message form (roles as in OpenAI chat;
  `tool_calls` have `function` and `arguments` side by side), `output.choices` its completions, the sampling
  parameters from `config`. `call` (what went to the provider and came back; newer logs keep only the first
  few) stays in meta, its messages cut to those that the agent's call before it did not send.
- Where an input begins with the input and the answer of the agent's call before, it is posted as a delta.
- `usage.input_tokens` holds cached tokens with OpenAI and leaves them out with Anthropic; `total_tokens`
  tells which. `retries` counts tries that nothing else is told of. `cache: "read"` was answered without the
  model.
- Agents: spans (`span_begin.type`, `parent_id`; each event names its `span_id`), before May 2025 `step`
  events and `events` nested in `tool` and `subtask` events. Inside a scorer the model is a judge. An `agent`
  span is an agent; the only one that stands directly under the solvers is main, like the solvers themselves.
  A tool or subtask in which the model is called is one. `tool.agent_span_id` names the agent that a tool call
  spawned; older logs do not say: then it is the k-th tool call of that name in that span for the k-th tool
  span. A span of type `branch` is an agent of role branch; its `branch` event names the `anchor` after which
  it left its parent.
- `compaction` {type: summary, edit or trim, tokens_before, tokens_after}: between the agent's calls before
  and after it. Which messages were replaced is not said, nor who wrote the summary.
- `tool` {id, function, arguments, result, error {type, message}}: the model's call of that id in the agent.
- `scores` {name: {value ...}} are rewards: numbers, and Inspect's letters C = 1, P = 0.5, I = N = 0; a dict
  or list one for each part. Text is no number and NaN is none: it stays in meta.
- `error` ended the sample by an exception: infra_error, with its text. `limit.type`: time is timeout,
  operator cancelled, any other budget_exhausted.
- Without model events (logs of 2024 and before, `log_realtime` off) each assistant message is a call whose
  context is what stands before it; `output.usage` is that of the last.
- State, store, sandbox, span and other events are noted verbatim: nothing in a trace stands for them.
- A document of events alone ({"events": [...]}, or a list) is one episode, named by its content.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import guarded
from tracestore.importers.inspect_fields import (
    body_of,
    fingerprint,
    id_of,
    numbers,
    provider_id_of,
    request_of,
    said_by,
    seconds_of,
    status_of,
    tool_status,
    tool_uses,
    usage_of,
)
from tracestore.importers.inspect_files import (
    Log,
    Sample,
    events_of,
    is_log,
    is_sample,
    is_transcript,
    logs,
    resolved,
)
from tracestore.importers.inspect_scopes import Event, Scope, flat, scopes_of, text_of, tool_of_span
from tracestore.importers.items import Item, content_id, count, left, made, nanoseconds, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.sources import is_inspect_log
from tracestore.wire.agent import Agent
from tracestore.wire.base import Raw
from tracestore.wire.call import Call, CallError
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.gap import Gap
from tracestore.wire.group import Group
from tracestore.wire.reward import Reward, RewardTarget
from tracestore.wire.tool_call import ToolCall

_NAME = "inspect"
_CUT_LOG = re.compile(rb'[\s\xef\xbb\xbf]*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:')
"""How a JSON log begins: known even where it was cut off before its `eval`."""
_EDITS = {"summary": "compaction", "edit": "tool_result_clearing", "trim": "truncation"}
_PLAIN = frozenset({"solvers", "solver", "init", None})
_WIRE_MESSAGES = ("messages", "contents", "input", "inputs")
"""Where the requests of the providers have their messages."""


def _recognises(head: Head) -> bool:
    return (
        is_inspect_log(head.members)
        or is_log(head.first)
        or is_sample(head.first)
        or is_transcript(head.first)
        or _CUT_LOG.match(head.data) is not None
    )


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Groups, episodes, agents, calls, tool calls, context edits and rewards of the sources."""
    for log in logs(sources, notes=notes):
        yield from _log(log, notes)


def _log(log: Log, notes: Notes) -> Iterator[Item]:
    header = dict(log.header)
    spec = taken(header, "eval", dict) or {}
    dataset = spec.get("dataset")
    ids = dataset.pop("sample_ids", None) if isinstance(dataset, dict) else None
    if log.header:
        status = header.get("status") if log.is_finished else "started"
        notes.rows[f"inspect/log version {header.get('version')}, {status}"] += 1
        rest = header if ids is None else header | {"sample_ids": ids}
        notes.leftover("inspect: what a log says of its run", rest, at=log.at)
    num, groups = 0, set[str]()
    for sample in log.samples:
        num += 1
        notes.rows["inspect/sample"] += 1
        yield from guarded(_sample(spec, log.is_finished, sample, groups, notes), at=sample.at, notes=notes)
    if log.is_finished and log.header:
        for group_id in sorted(groups):
            yield made(Group, id=group_id, phase="end", closed_by="event")
    if num == 0 and spec:
        notes.leftover("inspect: eval of a log without samples", spec, at=log.at)


def _sample(
    spec: dict[str, Any], is_finished: bool, sample: Sample, groups: set[str], notes: Notes
) -> Iterator[Item]:
    episode = _Episode(spec, is_finished, sample, notes)
    yield from episode.items()
    if episode.group_id is not None and episode.group_id not in groups:
        groups.add(episode.group_id)
        yield made(Group, id=episode.group_id, task_id=episode.task_id, phase="start")


# --- One sample ---------------------------------------------------------------------------------------


@dataclass
class _Actor:
    """An agent, while its calls are read."""

    id: str
    role: str
    depth: int
    scope: str | None = None
    parent: str | None = None
    call_ids: list[str] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    last: _Said | None = None


class _Said(NamedTuple):
    """A call, as the agent's next one is compared with it."""

    call_id: str
    messages: list[bytes]
    answers: list[bytes]
    sent: dict[str, Any]
    """Fingerprints of what went to the provider, by field; a list of them for the messages."""


class _Tool(NamedTuple):
    """A tool event, for the agent that it spawned."""

    call_id: str | None
    completion: int
    tool_call_id: str | None
    arguments: Raw | None
    result: Raw | None


class _Episode:
    """The wire events of one sample."""

    def __init__(self, spec: dict[str, Any], is_finished: bool, sample: Sample, notes: Notes) -> None:
        self.spec, self.at, self.notes = spec, sample.at, notes
        self.sample = resolved(sample, notes=notes)
        self.id = self._named()
        self.group_id, self.task_id = self._group()
        # A retried log copies finished samples: what the latest log says of its run holds.
        self.revision = seconds_of(spec.get("created")) + int(is_finished) if spec else None
        self.main = _Actor(id_of(self.id, "main"), "main", 0)
        self.actors: dict[str, _Actor] = {}
        """Agents other than main, by scope."""
        self.events = list(flat(events_of(self.sample), notes, sample.at))
        self.scopes = scopes_of(self.events)
        self.tool_of_span = tool_of_span(self.events, self.scopes)
        self.tool_of_agent: dict[str, str] = {}
        self.main_scope = self._main_scope()
        self.known: set[bytes] = set()
        """Fingerprints of the messages and outputs that stand in a call."""
        self.prints: dict[int, tuple[Any, bytes]] = {}
        self.uses: dict[str, list[tuple[_Actor, str, int]]] = defaultdict(list)
        """Tool uses by the model's id: whose, in which call, in which completion."""
        self.tools: dict[str, _Tool] = {}
        self.anchors: dict[str, str | None] = {}
        self.branched_at: dict[str, str | None] = {}
        self.edits: list[tuple[str, _Actor, int, dict[str, Any]]] = []

    def _named(self) -> str:
        sample = self.sample
        if isinstance(sample.get("uuid"), str):
            return safe_id(sample["uuid"])
        if "id" not in sample:
            return content_id(_NAME, sample)
        run = self.spec.get("eval_id") or self.spec.get("run_id") or _NAME
        return id_of(run, self.spec.get("task_id", ""), sample["id"], sample.get("epoch", ""))

    def _group(self) -> tuple[str | None, str | None]:
        if "id" not in self.sample or "task_id" not in self.spec:
            return None, None
        name, task = self.sample["id"], self.spec.get("task")
        return id_of(_NAME, self.spec["task_id"], name), None if task is None else id_of(task, name)

    def items(self) -> Iterator[Item]:
        """Every event of the sample."""
        said: list[Item] = []
        for event in self.events:
            said += guarded(self._one(event), at=f"{self.at}, event {event.key}", notes=self.notes)
        messages = taken(self.sample, "messages", list) or []
        self.notes.rows["inspect/message"] += len(messages)
        if not any(actor.call_ids for actor in (self.main, *self.actors.values())):
            said += self._history(messages)
        for place, message in enumerate(messages):
            if fingerprint(message) not in self.known:
                self.notes.leftover(
                    "inspect: message that no call saw", message, at=f"{self.at}, message {place}"
                )
        rewards = list(self._rewards())
        yield self._episode()
        yield from self._agents()
        yield from said
        yield from self._context_edits()
        yield from rewards

    def _episode(self) -> Item:
        sample = self.sample
        events_of(sample).clear()  # each of them was read
        if fingerprint(sample.get("output")) in self.known:
            del sample["output"]
        task = {name: sample.pop(name) for name in ("id", "input", "target", "choices") if name in sample}
        error, limit = taken(sample, "error", dict, str), taken(sample, "limit", dict)
        status, reason = status_of(sample, error, limit)
        text = taken(error, "message", str) if isinstance(error, dict) else error
        sample |= {"error": error} if isinstance(error, dict) and error else {}
        sample |= {"limit": limit} if limit else {}
        return made(
            Episode,
            id=self.id,
            revision=self.revision,
            group_id=self.group_id,
            task_id=self.task_id,
            task=raw(task) if task else None,
            status=status,
            error=text,
            stop_reason=reason,
            started_at=nanoseconds(sample.get("started_at")),
            ended_at=nanoseconds(sample.get("completed_at")),
            meta=left(_NAME, ({"eval": self.spec} if self.spec else {}) | sample),
        )

    # --- Agents ---

    def _upwards(self, scope: str | None) -> Iterator[tuple[str, Scope]]:
        seen = set()
        while scope is not None and scope in self.scopes and scope not in seen:
            seen.add(scope)
            yield scope, self.scopes[scope]
            scope = self.scopes[scope].parent

    def _main_scope(self) -> str | None:
        """The agent span that is the main agent: the only one directly under the solvers."""
        top = [
            name
            for name, scope in self.scopes.items()
            if scope.kind == "agent" and all(one.kind in _PLAIN for _, one in self._upwards(scope.parent))
        ]
        return top[0] if len(top) == 1 else None

    def _actor(self, scope: str | None, *, calls: bool) -> _Actor:
        """The agent that acts in a scope.

        Args:
            calls: it calls the model there, so that a tool, a subtask or a scorer is an agent too.
        """
        for name, one in self._upwards(scope):
            if name == self.main_scope:
                return self.main
            if name in self.actors:
                return self.actors[name]
            if calls and one.kind in ("scorer", "scorers"):
                return self._new(name, "judge", None)
            if one.kind == "branch":
                return self._new(name, "branch", self._actor(one.parent, calls=False))
            if one.kind == "agent" or (calls and one.kind in ("tool", "subtask")):
                return self._new(name, "subagent", self._actor(one.parent, calls=False))
        return self.main

    def _new(self, scope: str, role: str, parent: _Actor | None) -> _Actor:
        depth, parent_id = (0, None) if parent is None else (parent.depth + 1, parent.id)
        self.actors[scope] = _Actor(id_of(self.id, scope), role, depth, scope, parent_id)
        return self.actors[scope]

    def _agents(self) -> Iterator[Item]:
        for name, scope in self.scopes.items():
            if scope.kind in ("agent", "branch"):
                self._actor(name, calls=False)
        self.main.scope = self.main_scope
        acting = {actor.scope for actor in self.actors.values()} | {self.main_scope}
        for actor in (self.main, *self.actors.values()):
            yield self._agent(actor)
        for name, scope in self.scopes.items():
            if scope.begin and name not in acting:
                self.notes.leftover(f"inspect: event {scope.begin['event']}", scope.begin, at=self.at)

    def _agent(self, actor: _Actor) -> Item:
        scope = self.scopes.get(actor.scope or "") or Scope(None, None, None, {}, None)
        told = {"event", "name", "type", *(() if actor is self.main else ("id",))}
        begin = {name: one for name, one in scope.begin.items() if name not in told}
        if scope.started_at is not None:
            begin.pop("timestamp", None)
        tool = self.tools.get(self._spawning(actor) or "") or _Tool(None, 0, None, None, None)
        return made(
            Agent,
            id=actor.id,
            episode_id=self.id,
            role=actor.role,
            name=scope.name,
            depth=actor.depth,
            parent_agent_id=actor.parent,
            spawned_by_call_id=tool.call_id or self.branched_at.get(actor.scope or ""),
            spawned_by_completion=tool.completion or None,
            spawned_by_tool_call_id=tool.tool_call_id,
            scope_prompt=tool.arguments,
            return_message=tool.result,
            model=next(iter(actor.models)) if len(actor.models) == 1 else None,
            trainable=False if actor.role == "judge" else None,
            started_at=scope.started_at,
            ended_at=scope.ended_at,
            meta=left(_NAME, begin),
        )

    def _spawning(self, actor: _Actor) -> str | None:
        """The key of the tool event that spawned an agent."""
        if actor.scope in self.tool_of_agent:
            return self.tool_of_agent[actor.scope]
        for name, scope in self._upwards(actor.scope):
            if scope.kind == "tool":
                if name in self.tool_of_span:
                    self.notes.infer("tool call that spawned an agent", evidence="order of tools and spans")
                return self.tool_of_span.get(name, name)
            if name != actor.scope and scope.kind in ("agent", "branch"):
                return None
        return None

    # --- Events ---

    def _one(self, event: Event) -> Iterator[Item]:
        key, within, value = event
        kind = value["event"]
        scope = value.get("span_id") if value.get("span_id") in self.scopes else within
        if kind == "model":
            yield self._call(key, self._actor(scope, calls=True), value)
        elif kind == "tool":
            yield from self._tool(key, self._actor(scope, calls=False), value)
        elif kind == "compaction":
            actor = self._actor(scope, calls=False)
            self.edits.append((key, actor, len(actor.call_ids), value))
        elif kind not in ("span_begin", "step") or value.get("action") == "end":
            actor = self._actor(scope, calls=False)
            last = actor.call_ids[-1] if actor.call_ids else None
            if kind == "anchor" and isinstance(value.get("anchor_id"), str):
                self.anchors[value["anchor_id"]] = last
            elif kind == "branch" and actor.scope is not None:
                self.branched_at[actor.scope] = self.anchors.get(str(value.get("from_anchor")))
            elif kind == "score" and value.get("intermediate") is True:
                yield from self._intermediate(key, actor, value)
            self.notes.leftover(f"inspect: event {kind}", value, at=f"{self.at}, event {key}")

    def _call(self, key: str, actor: _Actor, event: dict[str, Any]) -> Item:
        call_id = id_of(self.id, text_of(event, "uuid") or key)
        messages = taken(event, "input", list) or []
        output = taken(event, "output", dict) or {}
        prints = [self._print(message) for message in messages]
        self.known |= {fingerprint(output), *prints}
        answers, bodies, choices = self._answers(actor, call_id, output)
        before, sent = actor.last, self._sent(event, actor)
        parent = _continued(before, prints)
        actor.last = _Said(call_id, prints, answers, sent)
        actor.call_ids.append(call_id)
        model, error = taken(event, "model", str), taken(event, "error", str) or taken(output, "error", str)
        actor.models |= {model} if model else set()
        begun, ended = nanoseconds(event.get("timestamp")), nanoseconds(event.get("completed"))
        usage = usage_of(output, self.notes)
        if len(bodies) == 1 and output.get("completion") == said_by(bodies[0]):
            output.pop("completion", None)
        rest = {name: one for name, one in (("output", output), ("choices", choices)) if any(one)}
        if before is not None and parent is not None:
            messages = messages[len(before.messages) + 1 :]
        request = request_of(messages, model, event)
        for name in ("event", *(("timestamp",) if begun else ()), *(("completed",) if ended else ())):
            event.pop(name, None)
        return made(
            Call,
            id=call_id,
            episode_id=self.id,
            agent_id=actor.id,
            ordinal=len(actor.call_ids) - 1,
            purpose="judge" if actor.role == "judge" else "act",
            model=model,
            provider_id=provider_id_of(event.get("call")),
            request=request,
            context="whole" if parent is None else "delta",
            parent_call_id=None if before is None or parent is None else before.call_id,
            parent_completion=parent or None,
            completions=tuple(bodies) or None,
            usage=usage,
            status="failed" if error else ("ok" if not event.get("pending") else None),
            error=CallError(message=error) if error else None,
            started_at=begun,
            ended_at=ended,
            meta=left(_NAME, event | rest),
        )

    def _print(self, message: Any) -> bytes:
        """The fingerprint of a message; one that comes from a pool is the same object in every call."""
        known = self.prints.get(id(message))
        if known is None:
            # The message is held too: while it lives, no other object has its id.
            known = self.prints[id(message)] = message, fingerprint(message)
        return known[1]

    def _answers(
        self, actor: _Actor, call_id: str, output: dict[str, Any]
    ) -> tuple[list[bytes], list[CompletionBody], list[Any]]:
        """(fingerprints of the answers, completions, what is left of the choices)."""
        answers, bodies, rest = [], [], []
        for index, choice in enumerate(taken(output, "choices", list) or []):
            choice = dict(choice) if isinstance(choice, dict) else {"choice": choice}
            message = taken(choice, "message", dict)
            answers.append(fingerprint(message))
            for use in tool_uses(message):
                self.uses[use["id"]].append((actor, call_id, index))
            logprobs = taken(choice, "logprobs", dict)
            fields = {
                "message": None if message is None else raw(message),
                "finish_reason": taken(choice, "stop_reason", str),
                "top_logprobs": None if logprobs is None else raw(logprobs),
            }
            bodies.append(body_of(fields))
            rest.append(choice)
        self.known |= set(answers)
        return answers, bodies, rest

    def _sent(self, event: dict[str, Any], actor: _Actor) -> dict[str, Any]:
        """Cut what went to the provider to what the agent's call before did not send; fingerprints of all.

        A field that is the same is named in `as_before`; of the messages, how many were sent before.
        """
        call = event.get("call")
        request = call.get("request") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(request, dict):
            return {}
        before = actor.last.sent if actor.last is not None else {}
        kept, same, prints = dict(request), {}, dict[str, Any]()
        for name, one in request.items():
            if name in _WIRE_MESSAGES and isinstance(one, list):
                prints[name] = [fingerprint(message) for message in one]
                num = _common(prints[name], before.get(name))
                kept[name], same[name] = one[num:], num
            else:
                prints[name] = fingerprint(one)
                if prints[name] == before.get(name):
                    del kept[name]
                    same[name] = True
        event["call"] = call | {"request": kept} | ({"as_before": same} if any(same.values()) else {})
        return prints

    def _tool(self, key: str, actor: _Actor, event: dict[str, Any]) -> Iterator[Item]:
        tool_call_id, name = text_of(event, "id"), text_of(event, "function")
        uses = self.uses.get(tool_call_id or "", [])
        own = [use for use in uses if use[0] is actor] or uses
        arguments, result = event.get("arguments"), event.get("result")
        tool = _Tool(
            own[-1][1] if own else None,
            own[-1][2] if own else 0,
            tool_call_id,
            None if arguments is None else raw(arguments),
            None if result is None else raw(result),
        )
        self.tools[key] = tool
        if isinstance(event.get("agent_span_id"), str):
            self.tool_of_agent[event["agent_span_id"]] = key
        if tool.call_id is None:
            self.notes.leftover(
                "inspect: tool event that no call asked for", event, at=f"{self.at}, event {key}"
            )
            return
        error = taken(event, "error", dict)
        begun, ended = nanoseconds(event.get("timestamp")), nanoseconds(event.get("completed"))
        gone = ["event", "id", "function", "arguments", "result"]
        gone += [*(["timestamp"] if begun else []), *(["completed"] if ended else [])]
        yield made(
            ToolCall,
            id=id_of(self.id, text_of(event, "uuid") or key),
            episode_id=self.id,
            call_id=tool.call_id,
            completion=tool.completion,
            tool_call_id=tool_call_id,
            name=name,
            arguments=None if tool.arguments is None else tool.arguments.decode("utf-8"),
            result=tool.result,
            status=tool_status(error, event),
            error=None if error is None else taken(error, "message", str),
            started_at=begun,
            ended_at=ended,
            meta=left(_NAME, {name: one for name, one in event.items() if name not in gone}, error),
        )

    def _context_edits(self) -> Iterator[Item]:
        for key, actor, place, event in self.edits:
            ids, kind = actor.call_ids, event.pop("type", "summary")
            at = nanoseconds(event.get("timestamp"))
            if kind not in _EDITS:
                event["type"] = kind
            del event["event"]
            yield made(
                ContextEdit,
                id=id_of(self.id, text_of(event, "uuid") or key),
                episode_id=self.id,
                agent_id=actor.id,
                edit=_EDITS.get(kind, "compaction"),
                trigger="rule",
                before_call_id=ids[place - 1] if place else None,
                after_call_id=ids[place] if place < len(ids) else None,
                tokens_before=count(event, "tokens_before"),
                tokens_after=count(event, "tokens_after"),
                status="accepted",
                at=at,
                meta=left(_NAME, event),
            )

    # --- Samples without model events ---

    def _history(self, messages: list[Any]) -> Iterator[Item]:
        """A call for each assistant message of the final conversation."""
        results = {
            message["tool_call_id"]: message
            for message in messages
            if isinstance(message, dict) and isinstance(message.get("tool_call_id"), str)
        }
        read: list[Any] = []
        for place, message in enumerate(messages):
            if isinstance(message, dict) and message.get("role") == "assistant":
                is_last = all(one.get("role") != "assistant" for one in messages[place + 1 :])
                yield from self._past_call(read, message, results, is_last=is_last)
                read = []
            else:
                read.append(message)
        if self.main.call_ids:
            self.notes.infer("a call for each assistant message", evidence="a sample without model events")
        elif messages:
            yield made(
                Gap,
                id=id_of(self.id, "no_calls"),
                episode_id=self.id,
                agent_id=self.main.id,
                cause="no_calls",
                detail=f"{len(messages)} messages, none of the model",
            )

    def _past_call(
        self, read: list[Any], message: dict[str, Any], results: dict[str, Any], *, is_last: bool
    ) -> Iterator[Item]:
        ids = self.main.call_ids
        call_id, parent = id_of(self.id, len(ids)), ids[-1] if ids else None
        ids.append(call_id)
        self.known |= {fingerprint(one) for one in (*read, message)}
        output = self.sample.get("output") if is_last else None
        output = output if isinstance(output, dict) else {}
        choices = output.get("choices")
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else {}
        reason = choice.get("stop_reason") if choice.get("message") == message else None
        model = text_of(self.spec, "model")
        self.main.models |= {model} if model else set()
        fields = {"message": raw(message), "finish_reason": reason}
        yield made(
            Call,
            id=call_id,
            episode_id=self.id,
            agent_id=self.main.id,
            ordinal=len(ids) - 1,
            purpose="act",
            model=model,
            request=raw({"messages": read}),
            context="whole" if parent is None else "delta",
            parent_call_id=parent,
            completions=(body_of(fields),),
            usage=usage_of(dict(output), self.notes),
            status="ok",
        )
        for place, use in enumerate(tool_uses(message)):
            result = results.get(use["id"], {})
            error = result.get("error") if isinstance(result.get("error"), dict) else None
            content = result.get("content")
            yield made(
                ToolCall,
                id=id_of(call_id, "tool", place),
                episode_id=self.id,
                call_id=call_id,
                tool_call_id=use["id"],
                name=text_of(use, "function"),
                arguments=None if "arguments" not in use else raw(use["arguments"]).decode("utf-8"),
                result=None if content is None else raw(content),
                status=tool_status(error, result) if result else None,
                error=None if error is None else text_of(error, "message"),
            )

    # --- Scores ---

    def _rewards(self) -> Iterator[Item]:
        scores = taken(self.sample, "scores", dict) or {}
        single = taken(self.sample, "score", dict)
        given = scores | ({"score": single} if single is not None else {})
        rest = {}
        for name, score in given.items():
            made_here = list(self._scored(name, score, f"score/{name}", RewardTarget(episode_id=self.id)))
            yield from made_here
            if not made_here:
                rest[name] = score
        if rest:
            self.sample["scores"] = rest

    def _scored(
        self, name: str, score: Any, place: str, target: RewardTarget, *, weight: float | None = None
    ) -> Iterator[Item]:
        record = dict(score) if isinstance(score, dict) else {"value": score}
        value = record.get("value")
        parts = [part for part in numbers(name, value) if part[1] is not None]
        if parts and not isinstance(value, (str, dict, list)):
            del record["value"]
        if parts and isinstance(value, str):
            self.notes.infer("a score as a number", evidence="Inspect's letters: C=1, P=0.5, I=N=0")
        for index, (part, number) in enumerate(parts):
            yield made(
                Reward,
                id=id_of(self.id, place, *part.split("/")[1:])
                if index or "/" in part
                else id_of(self.id, place),
                target=target,
                name=part,
                value=number,
                weight=weight,
                scorer=name,
                meta=left(_NAME, record) if index == 0 else None,
            )

    def _intermediate(self, key: str, actor: _Actor, event: dict[str, Any]) -> Iterator[Item]:
        """A score on the way: recorded, and no part of the episode's reward."""
        name = text_of(event, "scorer") or "intermediate"
        target = RewardTarget(episode_id=self.id, agent_id=actor.id)
        yield from self._scored(name, event.get("score"), f"score/{key}/{name}", target, weight=0.0)


def _continued(before: _Said | None, messages: list[bytes]) -> int | None:
    """The completion of the call before that this context continues; None where it does not."""
    if before is None:
        return None
    num = len(before.messages)
    if len(messages) <= num or messages[:num] != before.messages or messages[num] not in before.answers:
        return None
    return before.answers.index(messages[num])


def _common(one: list[bytes], other: Any) -> int:
    if not isinstance(other, list):
        return 0
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


FORMAT = Format("inspect", "Inspect logs (.eval and JSON)", _recognises, read)
