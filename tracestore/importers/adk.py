"""Google ADK sessions (JSON) -> one episode, with an agent for each author.

{id, app_name, user_id, state, events, last_update_time}; keys in snake or camel case. Sessions of 2024 have
`context`, `past_events`, `event_logs` too. An event is {id, invocation_id, author, content {role, parts},
timestamp, actions, branch, partial, usage_metadata, finish_reason, error_code ...}.

- An event of an agent with content of role `model` is a call; one with `function_response` parts (role user)
  brings results of the tools, in order of the calls where they have no id. Author `user` is the user.
- What was sent is in `event_logs` only ({event_id, model_request {model, contents, config}, model_response}):
  then the call has those contents. Otherwise its context is what the session held before, as it stands there;
  how the tool shows one agent what another said is not recorded, and a gap says so.
- The first agent that speaks is main. Another one is its subagent: of the agent that handed over to it
  (`actions.transfer_to_agent`, or a call of transfer_to_agent or transfer_to_other_agent), else of the one
  before it in `branch` (`a.b.c`), else of the last that handed over: a workflow agent runs its parts and says
  nothing itself.
- Of events with `branch`, an agent sees those of its own branch and of the branches above.
- `partial: true` events are pieces of the whole one that follows: noted. `actions.compaction`
  {start_timestamp, end_timestamp, compacted_content} replaces the events of that time by its content;
  `actions.rewind_before_invocation_id` takes back that invocation and all after it.
- candidates_token_count leaves out thoughts_token_count: a call sampled both. prompt_token_count holds cached
  ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded
from tracestore.importers.items import Item, gap, left, made, nanoseconds, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.usage import counted
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, CallError, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.tool_call import ToolCall

_NAME = "adk"
_HANDOVERS = ("transfer_to_agent", "transfer_to_other_agent")


def _get(record: dict[str, Any], name: str) -> Any:
    """A field under its snake or camel case name."""
    return record.get(name, record.get(_camel(name)))


def _pop(record: dict[str, Any], name: str) -> Any:
    value = record.pop(name, None)
    other = record.pop(_camel(name), None)
    return other if value is None else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _is_event(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("author"), str) and "id" in value


def _is_session(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("events"), list) or "id" not in value:
        return False
    events = value["events"]
    return all(map(_is_event, events)) if events else _get(value, "app_name") is not None


def _recognises(head: Head) -> bool:
    return _is_session(head.first)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls and context edits of the sources."""
    for source in sources:
        for record in records(source, notes=notes):
            if _is_session(record.value):
                notes.rows["adk/session"] += 1
                yield from guarded(_Session(record, notes).items(), at=record.at, notes=notes)
            else:
                notes.refuse(record.at, "no session: it has an id, and events with authors")


class _Entry(NamedTuple):
    """What one event adds to the context."""

    content: Any
    invocation: Any
    branch: str | None
    at: float | None


@dataclass
class _Actor:
    id: str
    depth: int
    parent: str | None = None
    spawned_by: str | None = None
    call_ids: list[str] = field(default_factory=list)
    last: str | None = None
    """Its last call that was answered."""
    seen: list[_Entry] = field(default_factory=list)
    """The context of that call, its answer included."""


class _Use(NamedTuple):
    """A function call that waits for its response."""

    fields: dict[str, Any]
    rest: list[dict[str, Any]]


class _Session:
    def __init__(self, record: Record, notes: Notes) -> None:
        self.value, self.at, self.notes = dict(record.value), record.at, notes
        self.id = safe_id(str(self.value.pop("id")))
        self.events = [as_dict(one) for one in self.value.pop("events")]
        self.logs: dict[Any, dict[str, Any]] = {}
        others = []
        for one in as_list(_pop(self.value, "event_logs")):
            name = _get(as_dict(one), "event_id")
            if isinstance(name, str) and name not in self.logs:
                self.logs[name] = as_dict(one)
            else:
                others.append(one)
        if others:
            self.value["event_logs"] = others
        self.actors: dict[str, _Actor] = {}
        self.view: list[_Entry] = []
        self.waiting: list[tuple[Any, dict[str, Any]]] = []
        """(content, what else its event says) that no call has seen yet."""
        self.uses: dict[str, dict[str, Any]] = {}
        self.open: dict[str, list[str]] = defaultdict(list)
        """Tool calls without a result, by the model's id, or by name."""
        self.handed_over: _Actor | None = None
        self.targets: dict[str, tuple[_Actor, str | None]] = {}
        self.edits: list[dict[str, Any]] = []
        self.has_guessed = False

    def items(self) -> Iterator[Item]:
        """Every event of the session."""
        said: list[Item] = []
        for place, event in enumerate(self.events):
            self.notes.rows[f"adk/event {event.get('author')}"] += 1
            said += guarded(self._one(event), at=f"{self.at}, event {place}", notes=self.notes)
        for log in self.logs.values():
            self.notes.leftover("adk: log of an event that is no call", log, at=self.at)
        for content, rest in self.waiting:
            self.notes.leftover("adk: event that no call saw", rest | {"content": content}, at=self.at)
        begun = nanoseconds(self.events[0].get("timestamp")) if self.events else None
        yield made(Episode, id=self.id, phase="start", started_at=begun)
        yield made(
            Episode,
            id=self.id,
            phase="end",
            revision=len(self.events),
            meta=left(_NAME, self.value),
        )
        yield from said
        for fields in self.uses.values():
            yield made(ToolCall, **fields | {"meta": left(_NAME, *fields["meta"])})
        for edit in self.edits:
            yield made(ContextEdit, **edit)
        if self.has_guessed:
            yield gap(
                self.id,
                "requests_not_recorded",
                "no event_logs: contexts are the session's events, as they stand",
                episode_id=self.id,
            )

    def _one(self, event: dict[str, Any]) -> Iterator[Item]:
        event = dict(event)
        actions = as_dict(event.get("actions"))
        content = as_dict(event.get("content"))
        author = event["author"]
        if event.get("partial") is True:
            self.notes.leftover("adk: partial event", event, at=self.at)
            return
        if _get(actions, "rewind_before_invocation_id") is not None:
            self._rewind(_get(actions, "rewind_before_invocation_id"))
        if isinstance(actions.get("compaction"), dict):
            self._compact(event, actions["compaction"])
            return
        is_answer = author != "user" and (content.get("role") == "model" or not content)
        if is_answer and (content or _get(event, "error_code") is not None):
            yield from self._call(event, content, author)
        else:
            event.pop("content", None)
            self._read(event, content)
        target = _get(actions, "transfer_to_agent")
        if isinstance(target, str) and author in self.actors:
            self._hand_over(self.actors[author], target)

    # --- Agents ---

    def _actor(self, author: str, branch: Any) -> Iterator[Item]:
        if author in self.actors:
            return
        parent, call_id, how = self._parent(author, branch)
        is_main = not self.actors
        depth = 0 if parent is None else parent.depth + 1
        name = f"{self.id}/main" if is_main else safe_id(f"{self.id}/agent/{author}")
        self.actors[author] = _Actor(name, depth, None if parent is None else parent.id, call_id)
        if how is not None:
            self.notes.infer("parent of an agent", evidence=how)
        yield made(
            Agent,
            id=name,
            episode_id=self.id,
            role="main" if is_main else "subagent",
            name=author,
            depth=depth,
            parent_agent_id=None if parent is None else parent.id,
            spawned_by_call_id=call_id,
        )

    def _parent(self, author: str, branch: Any) -> tuple[_Actor | None, str | None, str | None]:
        """(parent, the call that handed over, by what evidence)."""
        if not self.actors:
            return None, None, None
        if author in self.targets:
            return *self.targets[author], "a transfer names it"
        above = branch.split(".") if isinstance(branch, str) else []
        for name in reversed(above[:-1] if above[-1:] == [author] else above):
            if name in self.actors:
                return self.actors[name], None, "branch"
        if self.handed_over is not None:
            return self.handed_over, self.handed_over.call_ids[-1], "the last agent that handed over"
        return next(iter(self.actors.values())), None, "the first agent of the session"

    def _hand_over(self, actor: _Actor, target: str) -> None:
        self.handed_over = actor
        self.targets.setdefault(target, (actor, actor.call_ids[-1] if actor.call_ids else None))

    # --- Calls ---

    def _call(self, event: dict[str, Any], content: dict[str, Any], author: str) -> Iterator[Item]:
        yield from self._actor(author, event.get("branch"))
        actor, name = self.actors[author], str(event["id"])
        call_id = safe_id(f"{self.id}/{name}")
        log = self.logs.pop(event["id"], {})
        request, context, parent = self._request(actor, event, log)
        response = as_dict(_get(log, "model_response"))
        usage = _usage(event) or _usage(response)
        reason = _get(event, "finish_reason") or next(
            (_get(as_dict(one), "finish_reason") for one in as_list(response.get("candidates"))), None
        )
        error = _get(event, "error_message"), _get(event, "error_code")
        is_failed = error[1] is not None
        rest = {one: given for one, given in event.items() if one not in ("content", "author", "id")}
        if log:
            rest["event_log"] = _said_twice(log, content)
        body: dict[str, Any] = {"message": raw(content) if content else None}
        body |= {"finish_reason": reason if isinstance(reason, str) else None}
        body |= {"partial": True if event.get("interrupted") is True else None}
        read = self._seen(request["messages"])
        yield made(
            Call,
            id=call_id,
            episode_id=self.id,
            agent_id=actor.id,
            ordinal=len(actor.call_ids),
            purpose="act",
            model=_text(as_dict(_get(log, "model_request")), "model") or _text(event, "model_version"),
            request=raw(request),
            context=context,
            parent_call_id=parent,
            completions=(CompletionBody(**{one: given for one, given in body.items() if given is not None}),)
            if content
            else None,
            usage=usage,
            status="failed" if is_failed else "aborted" if event.get("interrupted") is True else "ok",
            error=CallError(type=str(error[1]), message=_as_text(error[0])) if is_failed else None,
            ended_at=nanoseconds(event.get("timestamp")),
            meta=left(_NAME, rest | ({"read": read} if read else {})),
        )
        actor.call_ids.append(call_id)
        if content:
            self.view.append(self._entry(event, content))
            actor.last, actor.seen = call_id, self._visible(event.get("branch"))
        for edit in self.edits:
            if edit["agent_id"] == actor.id and "after_call_id" not in edit:
                edit |= {"after_call_id": call_id, "revision": 2}
        for place, part in enumerate(as_list(content.get("parts"))):
            use = as_dict(_get(as_dict(part), "function_call"))
            if use:
                self._use(call_id, place, use, actor)

    def _request(
        self, actor: _Actor, event: dict[str, Any], log: dict[str, Any]
    ) -> tuple[dict[str, Any], str, str | None]:
        """(request, context, parent call)."""
        asked = dict(as_dict(_get(log, "model_request")))
        contents = asked.pop("contents", None)
        if isinstance(contents, list):
            return {"messages": contents, **asked}, "whole", None
        self.has_guessed = True
        visible = self._visible(event.get("branch"))
        num = len(actor.seen)
        if actor.last is not None and visible[:num] == actor.seen:
            return {"messages": [one.content for one in visible[num:]]}, "delta", actor.last
        return {"messages": [one.content for one in visible]}, "whole", None

    def _entry(self, event: dict[str, Any], content: Any) -> _Entry:
        at = event.get("timestamp")
        branch = event.get("branch")
        return _Entry(
            content,
            _get(event, "invocation_id"),
            branch if isinstance(branch, str) else None,
            float(at) if isinstance(at, (int, float)) else None,
        )

    def _visible(self, branch: Any) -> list[_Entry]:
        """What an agent of a branch sees: its own branch and those above it."""
        if not isinstance(branch, str):
            return list(self.view)
        return [one for one in self.view if one.branch is None or f"{branch}.".startswith(f"{one.branch}.")]

    def _use(self, call_id: str, place: int, use: dict[str, Any], actor: _Actor) -> None:
        name, tool_use, args = _text(use, "name"), _text(use, "id"), use.get("args")
        key = f"{call_id}/tool/{place}"
        self.uses[key] = {
            "id": safe_id(key),
            "revision": 1,
            "episode_id": self.id,
            "call_id": call_id,
            "tool_call_id": tool_use,
            "name": name,
            "arguments": None if args is None else raw(args).decode(),
            "meta": [],
        }
        self.open[tool_use or f"name {name}"].append(key)
        target = as_dict(args).get("agent_name")
        if name in _HANDOVERS and isinstance(target, str):
            self._hand_over(actor, target)

    def _read(self, event: dict[str, Any], content: dict[str, Any]) -> None:
        """An event that calls read: of the user, or with results of tools."""
        rest = {name: one for name, one in event.items() if name != "actions" or one}
        for part in as_list(content.get("parts")):
            response = as_dict(_get(as_dict(part), "function_response"))
            if not response:
                continue
            waiting = self.open.get(response.get("id") or "") or self.open.get(f"name {response.get('name')}")
            if not waiting:
                self.notes.leftover("adk: result without its call", response, at=self.at)
                continue
            given = response.get("response")
            result = None if given is None else raw(given)
            failed = "error" in as_dict(given)
            fields = self.uses[waiting.pop(0)]
            fields |= {"revision": 2, "result": result, "status": "failed" if failed else "ok"}
            fields["ended_at"] = nanoseconds(event.get("timestamp"))
            fields["meta"], rest = [*fields["meta"], rest], {}
        self.waiting.append((content, rest))
        if content:
            self.view.append(self._entry(event, content))

    def _seen(self, messages: list[Any]) -> list[dict[str, Any]]:
        """What else the events say whose contents are among these messages; those that are not wait on."""
        seen = [any(content == one for one in messages) for content, _ in self.waiting]
        rests = [rest for (_, rest), is_seen in zip(self.waiting, seen, strict=True) if is_seen and rest]
        self.waiting = [one for one, is_seen in zip(self.waiting, seen, strict=True) if not is_seen]
        return rests

    # --- Context edits ---

    def _rewind(self, invocation: Any) -> None:
        gone = next((place for place, one in enumerate(self.view) if one.invocation == invocation), None)
        if gone is not None:
            self.view = self.view[:gone]
            self.notes.infer("a conversation that went back", evidence="rewind_before_invocation_id")

    def _compact(self, event: dict[str, Any], compaction: dict[str, Any]) -> None:
        start, end = _get(compaction, "start_timestamp"), _get(compaction, "end_timestamp")
        summary = _get(compaction, "compacted_content")
        is_inside = [
            one.at is not None and isinstance(start, (int, float)) and start <= one.at <= end
            for one in self.view
        ]
        place = is_inside.index(True) if True in is_inside else len(self.view)
        kept = [one for one, inside in zip(self.view, is_inside, strict=True) if not inside]
        self.view = [*kept[:place], self._entry(event, summary), *kept[place:]]
        for actor in self.actors.values():
            last = actor.call_ids[-1] if actor.call_ids else None
            self.edits.append(
                {
                    "id": safe_id(f"{actor.id}/compaction/{event['id']}"),
                    "revision": 1,
                    "episode_id": self.id,
                    "agent_id": actor.id,
                    "edit": "compaction",
                    "trigger": "rule",
                    "before_call_id": last,
                    "status": "accepted",
                    "at": nanoseconds(event.get("timestamp")),
                    "meta": left(_NAME, event),
                }
            )
        if not self.actors:
            self.notes.leftover("adk: compaction before any call", event, at=self.at)


def _text(record: dict[str, Any], name: str) -> str | None:
    value = _get(record, name)
    return value if isinstance(value, str) else None


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)


def _said_twice(log: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """An event's log without its request, and without the answer where the event has the same."""
    rest = {one: given for one, given in log.items() if one not in ("model_request", "modelRequest")}
    response = dict(as_dict(_get(log, "model_response")))
    candidates = as_list(response.get("candidates"))
    if candidates and as_dict(candidates[0]).get("content") == content:
        first = {one: given for one, given in candidates[0].items() if one != "content"}
        response["candidates"] = [first, *candidates[1:]]
        rest = {one: given for one, given in rest.items() if one not in ("model_response", "modelResponse")}
        rest["model_response"] = response
    return rest


def _usage(record: dict[str, Any]) -> Usage | None:
    given = as_dict(_get(record, "usage_metadata"))
    sampled, thoughts = _get(given, "candidates_token_count"), _get(given, "thoughts_token_count")
    counts = {
        "prompt_tokens": _get(given, "prompt_token_count"),
        "cached_tokens": _get(given, "cached_content_token_count"),
        "completion_tokens": sampled + thoughts
        if type(sampled) is int and type(thoughts) is int
        else sampled,
        "reasoning_tokens": thoughts,
    }
    return counted(**{name: one for name, one in counts.items() if type(one) is int and one >= 0})


FORMAT = Format("adk", "Google ADK sessions", _recognises, read)
