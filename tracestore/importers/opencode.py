"""OpenCode sessions -> an episode for each root session; the sessions of its task tools are its sub-agents.

Two shapes hold the same records: `opencode export` writes one document `{info, messages: [{info, parts}]}`;
the storage folder has a file for each session, message (`sessionID`, `role`) and part (`sessionID`,
`messageID`, `type`). Ids ascend with time: files are put in order by them. A document keeps its own order.
Versions that keep their sessions in a database have only the export.

- A step is a model call: the parts of an assistant message from a `step-start` on. Newer versions write one
  step a message; a message without steps is one call. `step-finish` holds its tokens, cost and reason.
- The answer of the harness to a `subtask` part is an assistant message without a step: no model call.
- A `tool` part is a use and its result. The use is part of the answer, the result is read by the next call.
- `tokens.input` leaves cached ones out. `output` holds reasoning unless `total` says that it is apart.
- Sub-agents: `state.metadata.sessionId` of a `task` tool is the child session, whose `parentID` is the
  parent's. The episode is named by the root, up the parents as far as they are in the import.
- Compaction: a user message with a part `compaction{auto}`, answered by a message with `summary: true`, whose
  call read everything before it. The next context is these two messages, then `tail_start_id` on where the
  part names it. Versions without the part have the summary alone.
- `state.time.compacted` of a tool part: its output was cleared then; calls that began later read it without.
  This is the one place where times decide, because nothing else tells.
- Records are rewritten as they grow: the revision of an event is the size of its record.
- Not recorded: the system prompt, the tools' schemas, calls that write titles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers.documents import records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, guarded, known, number, text_or_none
from tracestore.importers.items import Item, count, gap, left, made, nanoseconds, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.spool import Spool
from tracestore.wire.agent import Agent
from tracestore.wire.call import Attempt, Call, CallError, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.tool_call import ToolCall

_PLACES = frozenset({"id", "sessionID", "messageID", "time"})
"""Fields of a part that say where it stands and not what it says."""
_WRITTEN = frozenset({"text", "reasoning", "tool", "file"})
_READ = frozenset({"text", "file", "agent", "subtask", "compaction"})
_KNOWN = _WRITTEN | _READ | {"step-start", "step-finish", "snapshot", "patch", "retry"}


def _is_export(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("info"), dict):
        return False
    messages = value.get("messages")
    return isinstance(messages, list) and all(
        isinstance(one, dict) and {"info", "parts"} <= one.keys() for one in messages[:3]
    )


def _stored(value: Any) -> str | None:
    """Which record of the storage folder this is."""
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        return None
    if {"sessionID", "messageID", "type"} <= value.keys():
        return "part"
    if {"sessionID", "role"} <= value.keys():
        return "message"
    if isinstance(value.get("time"), dict) and {"title", "version"} <= value.keys():
        return "session"
    return None


def _recognises(head: Head) -> bool:
    return len(head.records) == 1 and (_is_export(head.first) or _stored(head.first) is not None)


# --- Sessions --------------------------------------------------------------------------------------


@dataclass
class _Message:
    info: dict[str, Any]
    parts: list[dict[str, Any]]
    key: str
    """Its id, unique in the session."""
    at: str

    @property
    def size(self) -> int:
        """Characters of its record, which grows."""
        return min(len(raw([self.info, self.parts])), 2**31 - 1)


@dataclass
class _Document:
    """One session with its messages."""

    id: str
    info: dict[str, Any]
    messages: list[_Message]
    at: str


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls and context edits of the sources, one session at a time."""
    parents: dict[str, str] = {}
    exports = []
    spool = Spool()
    for source in sources:
        for record in records(source, notes=notes):
            value, kind = record.value, _stored(record.value)
            if _is_export(value):
                exports.append(source)
                _learn(value["info"], parents)
            elif kind is None:
                notes.refuse(record.at, "neither an export nor a record of the storage folder")
            else:
                if kind == "session":
                    _learn(value, parents)
                key = value["id"] if kind == "session" else value["sessionID"]
                spool.add(str(key), record, source=source.name)
    for source in dict.fromkeys(exports):
        for record in records(source, notes=Notes()):
            if _is_export(record.value):
                yield from _Session(_exported(record.value, record.at, notes), parents, notes).items()
    for key in list(spool.keys()):
        yield from _Session(_assembled(key, spool, notes), parents, notes).items()


def _learn(info: dict[str, Any], parents: dict[str, str]) -> None:
    own, parent = info.get("id"), info.get("parentID")
    if isinstance(own, str) and isinstance(parent, str) and parent:
        parents[safe_id(own)] = safe_id(parent)


def _exported(value: dict[str, Any], at: str, notes: Notes) -> _Document:
    info = value["info"]
    rest = {name: one for name, one in value.items() if name not in ("info", "messages")}
    notes.rows["opencode/session"] += 1
    seen: Counter[str] = Counter()
    messages = []
    for place, one in enumerate(value["messages"]):
        where = f"{at}, message {place}"
        told, parts = as_dict(one).get("info"), as_dict(one).get("parts")
        if not isinstance(told, dict) or not isinstance(parts, list):
            notes.refuse(where, "no message: it has info and parts")
            continue
        more = {name: two for name, two in one.items() if name not in ("info", "parts")}
        key = str(told.get("id") or place)
        seen[key] += 1
        key = key if seen[key] == 1 else f"{key}-{seen[key]}"
        messages.append(_message({**told, **more}, parts, key, where, notes))
    own = info.get("id")
    return _Document(
        safe_id(own) if isinstance(own, str) and own else "opencode", {**info, **rest}, messages, at
    )


def _message(info: dict[str, Any], parts: list[Any], key: str, at: str, notes: Notes) -> _Message:
    notes.rows[f"opencode/message/{info.get('role')}"] += 1
    good = []
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            notes.refuse(at, f"no part: {str(part)[:80]}")
            continue
        notes.rows[f"opencode/part/{part['type']}"] += 1
        if part["type"] not in _KNOWN:
            notes.leftover(f"opencode: part {part['type']}", part, at=at)
        good.append(part)
    return _Message(info, good, key, at)


def _assembled(key: str, spool: Spool, notes: Notes) -> _Document:
    """A session out of the files of the storage folder, whatever order they came in."""
    info: dict[str, Any] = {}
    messages: dict[str, tuple[dict[str, Any], str]] = {}
    parts: dict[str, dict[str, dict[str, Any]]] = {}
    at = key
    for _, record in spool.of(key):
        value, kind = record.value, _stored(record.value)
        if kind == "session":
            info, at = value, record.at
        elif kind == "message":
            messages[value["id"]] = (value, record.at)
        elif isinstance(value["messageID"], str):
            parts.setdefault(value["messageID"], {})[value["id"]] = value
    notes.rows["opencode/session"] += bool(info)
    if not info:
        notes.warn("messages of a session whose own file is not here")
    for lost in parts.keys() - messages.keys():
        notes.leftover("opencode: parts of a message that is not here", list(parts[lost].values()), at=at)
    found = [
        _message(told, [one for _, one in sorted(parts.get(name, {}).items())], name, where, notes)
        for name, (told, where) in sorted(messages.items())
    ]
    return _Document(safe_id(key), info, found, at)


# --- One session -----------------------------------------------------------------------------------


@dataclass
class _Session:
    document: _Document
    parents: dict[str, str]
    """Child session -> parent session, of the whole import."""
    notes: Notes
    context: list[dict[str, Any]] = field(default_factory=list)
    """What the next call reads, from the first message on."""
    ends: tuple[str, int] | None = None
    """(last call, length of the context after its answer); None: the next context is told as a whole."""
    results: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(place in the context, tool part) of the results that stand in it with their output."""
    waiting: list[Any] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    """Message -> where it begins in the context."""
    num_calls: int = 0
    before_last: str | None = None
    """The call before the last one."""
    open_edit: dict[str, Any] | None = None
    """A compaction or clearing that no call has followed yet."""
    subtasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """User message -> its subtask part."""
    compactions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """User message -> its compaction part."""

    @property
    def id(self) -> str:
        return self.document.id

    @property
    def parent(self) -> str | None:
        return self.parents.get(self.id)

    @property
    def episode_id(self) -> str:
        seen, at = {self.id}, self.id
        while at in self.parents and self.parents[at] not in seen:
            at = self.parents[at]
            seen.add(at)
        return at

    def items(self) -> Iterator[Item]:
        """Everything that the session tells."""
        body = []
        for message in self.document.messages:
            body += list(guarded(self._message(message), at=message.at, notes=self.notes))
        if self.open_edit is not None:
            body.append(self._edit(None))
        yield from guarded(self._head(), at=self.document.at, notes=self.notes)
        yield from body

    def _head(self) -> Iterator[Item]:
        info = dict(self.document.info)
        time = as_dict(info.get("time"))
        is_sub = self.episode_id != self.id
        ended = [as_dict(one.info.get("time")).get("completed") for one in self.document.messages]
        last = max((one for one in map(nanoseconds, ended) if one is not None), default=None)
        size = len(raw(info)) + sum(one.size for one in self.document.messages)
        revision = min(size, 2**31 - 1)
        # The root's own record says more, and replaces this.
        yield made(
            Episode,
            id=self.episode_id,
            phase="start",
            revision=None if is_sub else 1,
            started_at=None if is_sub else nanoseconds(time.get("created")),
        )
        tail = {name: one for name, one in (("session", info), ("rows", self.waiting)) if one}
        unread = self.context[self.ends[1] if self.ends else 0 :]
        tail |= {"unread": unread} if unread else {}
        if not is_sub:
            yield made(Episode, id=self.id, phase="end", revision=revision, ended_at=last)
        name = next((one.info["agent"] for one in self.document.messages if one.info.get("agent")), None)
        yield made(
            Agent,
            id=self.id,
            episode_id=self.episode_id,
            phase="end",
            revision=revision,
            parent_agent_id=self.parent,
            role="subagent" if is_sub else "main",
            depth=None if is_sub else 0,
            name=name if isinstance(name, str) else None,
            started_at=nanoseconds(time.get("created")) if is_sub else None,
            ended_at=last if is_sub else None,
            meta=left("opencode", tail),
        )
        yield gap(
            self.id,
            "system_prompt_not_recorded",
            "a session has neither system prompt nor tools",
            episode_id=self.episode_id,
            agent_id=self.id,
        )

    # --- Messages --------------------------------------------------------------------------------

    def _message(self, message: _Message) -> Iterator[Item]:
        role = message.info.get("role")
        self.places[str(message.info.get("id"))] = len(self.context)
        if role == "user":
            self._user(message)
        elif role == "assistant":
            yield from self._assistant(message)
        else:
            self.notes.leftover("opencode: message", [message.info, message.parts], at=message.at)

    def _user(self, message: _Message) -> None:
        said = [part for part in message.parts if part["type"] in _READ and part.get("ignored") is not True]
        self.context.append({"role": "user", "content": [_said(part) for part in said]})
        rest = [_rest(part) if part in said else part for part in message.parts]
        self.waiting.append(_kept(message.info, rest))
        own = str(message.info.get("id"))
        for part in said:
            if part["type"] == "subtask":
                self.subtasks[own] = part
            elif part["type"] == "compaction":
                self.compactions[own] = part

    def _assistant(self, message: _Message) -> Iterator[Item]:
        steps = _steps(message.parts)
        asked = str(message.info.get("parentID"))
        is_harness = asked in self.subtasks and not any(
            part["type"].startswith("step-") for part in message.parts
        )
        if is_harness:
            yield from self._harness(message, self.subtasks[asked])
            return
        for place, step in enumerate(steps):
            call_id = f"{self.id}/{message.key}" + (f"/{place}" if place else "")
            is_last = place == len(steps) - 1
            yield from self._step(message, step, call_id, is_first=place == 0, is_last=is_last)
        if message.info.get("summary") is True:
            yield from self._compacted(message, self.compactions.get(asked), f"{self.id}/{message.key}")

    def _harness(self, message: _Message, subtask: dict[str, Any]) -> Iterator[Item]:
        """What the harness wrote itself: a task that the user asked for."""
        written = [part for part in message.parts if part["type"] in _WRITTEN]
        self.context.append({"role": "assistant", "content": [_use(part) for part in written]})
        rest = [_rest(part) if part in written else part for part in message.parts]
        self.waiting.append(_kept(message.info, rest))
        for part in written:
            if part["type"] == "tool":
                yield from self._spawned(part, None, subtask.get("prompt"))
                self._result(part)

    def _spawned(self, part: dict[str, Any], call_id: str | None, prompt: Any) -> Iterator[Item]:
        metadata = as_dict(as_dict(part.get("state")).get("metadata"))
        child = metadata.get("sessionId") or metadata.get("sessionID")
        if part.get("tool") == "task" and isinstance(child, str) and child:
            yield made(
                Agent,
                id=safe_id(child),
                episode_id=self.episode_id,
                phase="start",
                parent_agent_id=self.id,
                role="subagent",
                spawned_by_call_id=call_id,
                spawned_by_tool_call_id=text_or_none(part.get("callID")) if call_id is not None else None,
                scope_prompt=raw(prompt) if isinstance(prompt, str) else None,
            )

    def _result(self, part: dict[str, Any]) -> None:
        """The next call reads what came of a tool use."""
        state = as_dict(part.get("state"))
        told: dict[str, Any] = {
            name: state[name] for name in ("output", "error", "attachments") if name in state
        }
        if told:
            self.results.append((len(self.context), part))
            self.context.append({"role": "tool", "callID": part.get("callID"), **told})

    # --- Calls -----------------------------------------------------------------------------------

    def _step(
        self, message: _Message, parts: list[dict[str, Any]], call_id: str, *, is_first: bool, is_last: bool
    ) -> Iterator[Item]:
        info = message.info
        time = as_dict(info.get("time"))
        yield from self._cleared(time.get("created"), call_id)
        if self.open_edit is not None:
            yield self._edit(call_id)
        written = [part for part in parts if part["type"] in _WRITTEN]
        finish = next((part for part in parts if part["type"] == "step-finish"), None)
        told = dict(finish or (info if is_first and is_last else {}))
        usage = _usage(told, self.notes)
        model = taken(dict(info), "modelID", str)
        error, status = _error(info) if is_last else (None, "ok")
        answer = {"role": "assistant", "content": [_use(part) for part in written]}
        reason = (finish or {}).get("reason") or (info.get("finish") if is_last else None)
        read = self.context[self.ends[1] if self.ends else 0 :]
        rest = [told if part is finish else _rest(part) if part in written else part for part in parts]
        rows = [*self.waiting, _kept(info if is_first else {}, rest)]
        self.waiting = []
        body: dict[str, Any] = {
            "message": raw(answer),
            "finish_reason": text_or_none(reason),
            "partial": True if status in ("aborted", "failed") else None,
        }
        yield made(
            Call,
            id=call_id,
            revision=message.size,
            episode_id=self.episode_id,
            agent_id=self.id,
            ordinal=self.num_calls,
            purpose="summarize" if info.get("summary") is True else None,
            model=model,
            request=raw(({"model": model} if model else {}) | {"messages": read}),
            context="delta" if self.ends else "whole",
            parent_call_id=self.ends[0] if self.ends else None,
            completions=(CompletionBody(**{k: v for k, v in body.items() if v is not None}),)
            if written
            else None,
            usage=usage,
            attempts=_attempts(parts),
            status=status,
            error=error,
            started_at=nanoseconds(time.get("created")) if is_first else None,
            ended_at=nanoseconds(time.get("completed")) if is_last else None,
            meta=left("opencode", {"rows": rows}),
        )
        self.num_calls += 1
        self.before_last = self.ends[0] if self.ends else None
        if written:
            self.context.append(answer)
            self.ends = (call_id, len(self.context))
        for place, part in enumerate(part for part in written if part["type"] == "tool"):
            state = as_dict(part.get("state"))
            yield self._tool_call(message, part, state, f"{call_id}/tool/{place}", call_id)
            yield from self._spawned(part, call_id, as_dict(state.get("input")).get("prompt"))
            self._result(part)

    def _tool_call(
        self, message: _Message, part: dict[str, Any], state: dict[str, Any], id_: str, call_id: str
    ) -> Item:
        time = as_dict(state.get("time"))
        error = state.get("error")
        status = state.get("status")
        arguments = state.get("raw") if status == "pending" and state.get("raw") else state.get("input")
        known = {"output", "error", "status", "input", "time"}
        rest = {name: one for name, one in state.items() if name not in known}
        rest |= {"time": time} if time else {}
        return made(
            ToolCall,
            id=id_,
            revision=message.size,
            episode_id=self.episode_id,
            call_id=call_id,
            tool_call_id=text_or_none(part.get("callID")),
            name=text_or_none(part.get("tool")),
            arguments=arguments if isinstance(arguments, str | None) else str(raw(arguments), "ascii"),
            result=raw(state["output"]) if state.get("output") is not None else None,
            status={"completed": "ok", "error": "failed"}.get(status) if isinstance(status, str) else None,
            error=error if isinstance(error, str) else None,
            started_at=nanoseconds(time.get("start")),
            ended_at=nanoseconds(time.get("end")),
            meta=left("opencode", {"state": {**rest, "status": status}} if rest or status else None),
        )

    # --- Edits -----------------------------------------------------------------------------------

    def _compacted(self, message: _Message, part: dict[str, Any] | None, call_id: str) -> Iterator[Item]:
        """The context after a summary: what asked for it, the summary, and what is kept."""
        if message.info.get("error") is not None or not self.ends:
            return
        summary = self.ends[1] - 1
        asked = self.places.get(str(message.info.get("parentID")), summary)
        tail = self.places.get(str((part or {}).get("tail_start_id")), asked)
        if self.open_edit is not None:
            yield self._edit(None)
        self.open_edit = {
            "id": f"{call_id}/compaction",
            "edit": "compaction",
            "trigger": "rule" if part is not None and part.get("auto") is True else None,
            "author": "policy",
            "author_call_id": call_id,
            "before_call_id": self.before_last,
            "at": nanoseconds(as_dict(message.info.get("time")).get("completed")),
            "status": "accepted",
        }
        kept = self.context[tail:asked]
        self.context = (
            [*self.context[asked : asked + 1], self.context[summary], *kept]
            if part
            else [self.context[summary]]
        )
        self.results, self.places, self.ends = [], {}, None

    def _cleared(self, began: Any, call_id: str) -> Iterator[Item]:
        """Tool results that a call reads without their output, because it was cleared before it began."""
        cleared = [
            (place, part)
            for place, part in self.results
            if isinstance(began, int)
            and isinstance(when := as_dict(as_dict(part.get("state")).get("time")).get("compacted"), int)
            and when <= began
        ]
        if not cleared:
            return
        if self.open_edit is not None:
            yield self._edit(None)
        for place, part in cleared:
            self.context[place] = {"role": "tool", "callID": part.get("callID"), "cleared": True}
        self.results = [one for one in self.results if one not in cleared]
        self.notes.infer("cleared tool results", evidence="time.compacted before the call began")
        self.open_edit = {
            "id": f"{call_id}/clearing",
            "edit": "tool_result_clearing",
            "trigger": "rule",
            "author": "harness",
            "before_call_id": self.ends[0] if self.ends else None,
            "status": "accepted",
        }
        self.ends = None

    def _edit(self, after: str | None) -> Item:
        fields, self.open_edit = self.open_edit or {}, None
        return made(
            ContextEdit,
            revision=1 if after is None else 2,
            episode_id=self.episode_id,
            agent_id=self.id,
            after_call_id=after,
            **fields,
        )


def _steps(parts: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The parts of each model call of a message; parts before the first step belong to it."""
    steps: list[list[dict[str, Any]]] = [[]]
    for part in parts:
        is_begun = any(one["type"] == "step-start" for one in steps[-1])
        if part["type"] == "step-start" and is_begun:
            steps.append([])
        steps[-1].append(part)
    return steps


def _said(part: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in part.items() if name not in _PLACES}


def _use(part: dict[str, Any]) -> dict[str, Any]:
    """A part as the model wrote it: of a tool the use without what came of it."""
    said = _said(part)
    if part["type"] != "tool":
        return said
    state = as_dict(part.get("state"))
    names = ("raw",) if state.get("status") == "pending" and state.get("raw") else ("input",)
    used = {name: state[name] for name in names if name in state}
    return {**said, "state": used} if isinstance(part.get("state"), dict) else said


def _rest(part: dict[str, Any]) -> dict[str, Any]:
    """What is left of a part that is said."""
    return {name: one for name, one in part.items() if name in _PLACES or name == "type"}


def _kept(info: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {**({"info": info} if info else {}), **({"parts": parts} if parts else {})}


def _usage(told: dict[str, Any], notes: Notes) -> Usage | None:
    """The usage of a step, taken out of what is left of it."""
    tokens = told.get("tokens")
    if not isinstance(tokens, dict):
        return None
    rest, cache = dict(tokens), dict(as_dict(tokens.get("cache")))
    fresh, output, reasoning = (count(rest, name) for name in ("input", "output", "reasoning"))
    read, written = count(cache, "read"), count(cache, "write")
    if not any((fresh, output, reasoning, read, written)):
        return None  # zeros: an answer that never finished
    parts = [fresh or 0, output or 0, read or 0, written or 0]
    is_apart = bool(reasoning) and (
        rest.get("total") == sum(parts) + (reasoning or 0) or (reasoning or 0) > (output or 0)
    )
    if reasoning:
        notes.infer(
            "reasoning in the output tokens", evidence="their total" if "total" in rest else "version"
        )
    cost = number(told.pop("cost", None))
    told["tokens"] = {**rest, "cache": cache} if cache else {k: v for k, v in rest.items() if k != "cache"}
    counts: dict[str, Any] = {
        "prompt_tokens": None if fresh is None else fresh + (read or 0) + (written or 0),
        "cached_tokens": read,
        "cache_write_tokens": written,
        "completion_tokens": None if output is None else output + (reasoning or 0) * is_apart,
        "reasoning_tokens": reasoning,
        "cost_usd": cost,
    }
    return known(Usage, **counts)


def _error(info: dict[str, Any]) -> tuple[CallError | None, str | None]:
    """(error, status) of the last call of a message."""
    error = info.get("error")
    if not isinstance(error, dict):
        is_done = as_dict(info.get("time")).get("completed") is not None or info.get("finish") is not None
        return None, "ok" if is_done else None
    data = as_dict(error.get("data"))
    code = data.get("statusCode")
    fields = {
        "type": text_or_none(error.get("name")),
        "message": text_or_none(data.get("message")),
        "status_code": code if isinstance(code, int) and not isinstance(code, bool) else None,
    }
    status = "aborted" if error.get("name") == "MessageAbortedError" else "failed"
    return CallError(**{name: one for name, one in fields.items() if one is not None}), status  # type: ignore[arg-type]


def _attempts(parts: list[dict[str, Any]]) -> tuple[Attempt, ...] | None:
    """The tries of a call that failed before it was made again."""
    found = []
    for part in parts:
        if part["type"] == "retry":
            data = as_dict(as_dict(part.get("error")).get("data"))
            when = nanoseconds(as_dict(part.get("time")).get("created"))
            code = data.get("statusCode")
            fields: dict[str, Any] = {
                "ended_at": when,
                "error": text_or_none(data.get("message")),
                "status_code": code if isinstance(code, int) else None,
            }
            found.append(Attempt(**{name: one for name, one in fields.items() if one is not None}))
    return tuple(found) or None


FORMAT = Format("opencode", "OpenCode exports and storage", _recognises, read)
