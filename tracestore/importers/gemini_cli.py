"""Gemini CLI chats and checkpoints -> an episode of one agent; chats of its sub-agents join it.

`~/.gemini/tmp/<project hash>/chats/session-*.json` is one document `{sessionId, projectHash, startTime,
lastUpdated, messages: [...], summary?, kind?}`, rewritten as it grows. Since 2026 it is `.jsonl`: a row with
the same fields but no messages, then a row for each message; a message that changes is written again with its
id; `{$set: {...}}` changes the fields, and `$set.messages` the whole history; `{$rewindTo: id}` takes that
message and all after it out of the history.

- A message of type `gemini` is one model call: `content` (text or parts), `thoughts`, `tokens`, `model`, and
  `toolCalls` with `args` and, when they have run, `result` (the parts that are sent next), `status`. The tool
  calls of a later answer that has neither text nor thoughts are added to the message before it: such calls
  cannot be told apart. Types info, warning and error are for the user and sent to nobody.
- `tokens{input, output, cached, thoughts, tool, total}`: input holds cached ones, thoughts are not in output.
  Zero is also what is written for a count that was not told: only input and output are taken as zero.
- The last row of a message holds; what earlier ones said differently is kept in `meta`.
- `$set.messages` that leaves messages out and brings new ones is a compaction (its call is not recorded);
  where messages stay and say something else, tool results were masked. The next call spells its context out.
- After `$rewindTo` the next call branches off the call before that message.
- Sub-agents (`kind: subagent`) lie in a folder named by the session of their parent, which is the only place
  that names it. `toolCalls[].agentId` of the parent is the session of the child.
- A message and its events have as their revision the size of its record, which grows.

A checkpoint (`/chat save`, `checkpoint-*.json`: a list of `{role, parts}`, or `{history: [...]}`;
`clientHistory` of the restore files) is a history without ids, times or usage. An answer of role `model` is a
call, except the greeting that Gemini CLI puts there itself. Ids are made of content: the episode of the
history up to the first answer, a call of that up to its own, so a longer checkpoint of one chat adds to it.

The system prompt, the tools and parameters are in neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, text_or_none
from tracestore.importers.items import Item, content_id, count, gap, left, made, nanoseconds, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.sources import Source
from tracestore.importers.usage import counted
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.tool_call import ToolCall

_GREETING = "Got it. Thanks for the context!"
_STATUS = {"success": "ok", "error": "failed", "cancelled": "cancelled"}
_FOR_USERS = frozenset({"info", "error", "warning"})


def _is_session(value: Any) -> bool:
    return isinstance(value, dict) and {"sessionId", "projectHash"} <= value.keys()


def _history(value: Any) -> list[dict[str, Any]] | None:
    """The contents of a checkpoint; None where it is none."""
    if isinstance(value, dict):
        value = value.get("clientHistory", value.get("history"))
    is_history = (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and one.get("role") in ("user", "model") for one in value)
        and all(isinstance(one.get("parts"), list) for one in value)
    )
    return value if is_history else None


def _recognises(head: Head) -> bool:
    if _is_session(head.first):
        return True
    return len(head.records) == 1 and _history(head.first) is not None


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls and context edits of the sources, one file at a time."""
    for source in sources:
        rows = list(records(source, notes=notes))
        if rows and not _is_session(rows[0].value):
            for record in rows:
                yield from guarded(_checkpoint(record, notes), at=record.at, notes=notes)
            continue
        yield from _Chat(source, notes).items(rows)


# --- Chats -----------------------------------------------------------------------------------------


@dataclass
class _Message:
    """A message of a chat: its last record, and what the records before it said."""

    id: str
    record: dict[str, Any]
    at: str
    before: list[dict[str, Any]] = field(default_factory=list)

    def again(self, record: dict[str, Any]) -> None:
        """It is written anew."""
        self.before.append(self.record)
        self.record = record

    @property
    def size(self) -> int:
        """Characters of its record, which grows."""
        return min(len(raw(self.record)), 2**31 - 1)

    @property
    def superseded(self) -> list[dict[str, Any]]:
        """What earlier records said that the last one does not."""
        said = [
            {name: one for name, one in old.items() if name not in self.record or self.record[name] != one}
            for old in self.before
        ]
        return [one for one in said if one]


@dataclass(frozen=True)
class _Step:
    """One thing that happened to a chat: a message came, or the history was cut or replaced."""

    message: _Message | None = None
    rewind: str | None = None
    history: tuple[_Message, ...] | None = None
    row: dict[str, Any] = field(default_factory=dict)
    number: int = 0


@dataclass
class _Chat:
    source: Source
    notes: Notes
    fields: dict[str, Any] = field(default_factory=dict)
    """What the chat says of itself; the last word holds."""
    steps: list[_Step] = field(default_factory=list)
    messages: dict[str, _Message] = field(default_factory=dict)
    size: int = 0
    """Bytes of its rows."""
    others: list[Any] = field(default_factory=list)
    """Rows that change fields of the chat, verbatim."""

    context: list[tuple[str, Any]] = field(default_factory=list)
    """(message it is of, what is sent)."""
    ends: list[tuple[str, int]] = field(default_factory=list)
    waiting: list[Any] = field(default_factory=list)
    edit: dict[str, Any] | None = None
    num_calls: int = 0
    lost: list[Any] = field(default_factory=list)
    """What was sent to no call before it left the history."""

    @property
    def id(self) -> str:
        return safe_id(str(self.fields.get("sessionId")))

    @property
    def parent(self) -> str | None:
        folder = PurePosixPath(self.source.name.replace("\\", "/")).parent.name
        is_named = self.fields.get("kind") == "subagent" and folder not in ("", ".", "chats")
        return safe_id(folder) if is_named else None

    @property
    def episode_id(self) -> str:
        return self.parent or self.id

    def items(self, rows: list[Record]) -> Iterator[Item]:
        """Everything that a chat tells."""
        for record in rows:
            self._row(record)
        body: list[Item] = []
        for step in self.steps:
            at = step.message.at if step.message is not None else self.source.name
            body += list(guarded(self._step(step), at=at, notes=self.notes))
        if self.edit is not None:
            body.append(self._edited(None))
        yield from guarded(self._head(), at=self.source.name, notes=self.notes)
        yield from body

    # --- Rows ------------------------------------------------------------------------------------

    def _row(self, record: Record) -> None:
        value = record.value
        self.size += len(record.text)
        if not isinstance(value, dict):
            self.notes.refuse(record.at, "no row of a chat: it is an object")
        elif isinstance(value.get("$rewindTo"), str):
            self.notes.rows["gemini-cli/$rewindTo"] += 1
            self.steps.append(_Step(rewind=value["$rewindTo"], row=value))
        elif isinstance(value.get("$set"), dict):
            self.notes.rows["gemini-cli/$set"] += 1
            self._set(value, record.at)
        elif _is_session(value):
            self.notes.rows["gemini-cli/session"] += 1
            messages = value.get("messages")
            told = {name: one for name, one in value.items() if name != "messages"}
            self.fields |= told if isinstance(messages, list) else value
            for one in as_list(messages):
                self._said(one, record.at)
        else:
            self._said(value, record.at)

    def _set(self, value: dict[str, Any], at: str) -> None:
        told = dict(value["$set"])
        messages = told.pop("messages", None)
        self.fields |= told
        self.others.append({**value, "$set": told})
        if isinstance(messages, list):
            history = tuple(
                _Message(str(one.get("id")), one, at) for one in messages if isinstance(one, dict)
            )
            self.steps.append(_Step(history=history, number=len(self.steps)))

    def _said(self, value: Any, at: str) -> None:
        own = value.get("id") if isinstance(value, dict) else None
        if not isinstance(own, str) or not isinstance(value.get("type"), str):
            self.notes.refuse(at, "no message: it has an id and a type")
            return
        self.notes.rows[f"gemini-cli/{value['type']}"] += 1
        if own in self.messages:
            self.messages[own].again(value)
            return
        self.messages[own] = message = _Message(own, value, at)
        self.steps.append(_Step(message=message))

    # --- Episode and agent -----------------------------------------------------------------------

    def _head(self) -> Iterator[Item]:
        is_sub = self.parent is not None
        updated = nanoseconds(self.fields.get("lastUpdated"))
        revision = min(self.size, 2**31 - 1)
        began = nanoseconds(self.fields.get("startTime"))
        yield made(Episode, id=self.episode_id, phase="start")
        if not is_sub:
            yield made(
                Episode, id=self.id, phase="end", revision=revision, started_at=began, ended_at=updated
            )
        start = self.ends[-1][1] if self.ends else 0
        unread = [*self.lost, *(said for _, said in self.context[start:])]
        tail = {
            "session": self.fields,
            **{
                name: rows
                for name, rows in (("sets", self.others), ("rows", self.waiting), ("unread", unread))
                if rows
            },
        }
        kind = self.fields.get("kind")
        yield made(
            Agent,
            id=self.id,
            episode_id=self.episode_id,
            phase="end",
            revision=revision,
            parent_agent_id=self.parent,
            role="subagent" if kind == "subagent" else "main",
            depth=None if kind == "subagent" else 0,
            started_at=began if is_sub else None,
            ended_at=updated if is_sub else None,
            meta=left("gemini_cli", tail),
        )
        yield gap(
            self.id,
            "system_prompt_not_recorded",
            "a chat has neither system prompt nor tools",
            episode_id=self.episode_id,
            agent_id=self.id,
        )

    # --- History ---------------------------------------------------------------------------------

    def _step(self, step: _Step) -> Iterator[Item]:
        if step.rewind is not None:
            self._rewound(step.rewind, step.row)
        elif step.history is not None:
            yield from self._replaced(step)
        elif step.message is not None:
            yield from self._message(step.message)

    def _rewound(self, message_id: str, row: dict[str, Any]) -> None:
        self.waiting.append(row)
        cut = next((n for n, (name, _) in enumerate(self.context) if name == message_id), 0)
        read = self.ends[-1][1] if self.ends else 0
        self.lost += [said for _, said in self.context[max(cut, read) :]]
        del self.context[cut:]
        self.ends = [end for end in self.ends if end[1] <= cut]

    def _replaced(self, step: _Step) -> Iterator[Item]:
        """The history is another one: what went and what came tells why."""
        history = step.history or ()
        sent = [(one.id, said) for one in history for said in _sent(one.record, self.messages.get(one.id))]
        if [said for _, said in sent] == [said for _, said in self.context]:
            return
        before = {name for name, _ in self.context}
        is_shorter = not before <= {one.id for one in history}
        if self.edit is not None:
            yield self._edited(None)
        read = self.ends[-1][1] if self.ends else 0
        self.lost += [said for _, said in self.context[read:]]
        self.edit = {
            "id": f"{self.id}/history/{step.number}",
            "edit": "compaction" if is_shorter else "tool_result_clearing",
            "author": None if is_shorter else "harness",
            "before_call_id": self.ends[-1][0] if self.ends else None,
            "status": "accepted",
            "meta": left("gemini_cli", {"messages": [one.record for one in history]}),
        }
        self.notes.infer(
            "compaction" if is_shorter else "cleared tool results",
            evidence="a new history without some messages" if is_shorter else "the same messages, changed",
        )
        self.context, self.ends = sent, []

    def _edited(self, after: str | None) -> Item:
        fields, self.edit = self.edit or {}, None
        return made(
            ContextEdit,
            revision=1 if after is None else 2,
            episode_id=self.episode_id,
            agent_id=self.id,
            after_call_id=after,
            **fields,
        )

    # --- Calls -----------------------------------------------------------------------------------

    def _message(self, message: _Message) -> Iterator[Item]:
        record = message.record
        if record["type"] == "gemini":
            yield from self._call(message)
            return
        rest = {name: one for name, one in record.items() if name != "content"}
        if record["type"] in _FOR_USERS:
            self.waiting.append(record)
        else:
            if record["type"] != "user":
                self.notes.leftover(f"gemini-cli: message {record['type']}", record, at=message.at)
            self.context.append((message.id, {"role": "user", "content": record.get("content")}))
            self.waiting.append(rest)
        self.waiting += [{"superseded": one} for one in message.superseded]

    def _call(self, message: _Message) -> Iterator[Item]:
        record = message.record
        call_id = f"{self.id}/{safe_id(message.id)}"
        if self.edit is not None:
            yield self._edited(call_id)
        parent, start = self.ends[-1] if self.ends else (None, 0)
        answer = _answer(record)
        model = record.get("model") if isinstance(record.get("model"), str) else None
        rest = {name: one for name, one in record.items() if name not in ("content", "thoughts", "toolCalls")}
        tokens = as_dict(record.get("tokens"))
        usage = _usage(tokens)
        if isinstance(record.get("tokens"), dict):
            rest["tokens"] = tokens
        if not _is_list_of_objects(record.get("toolCalls")) and "toolCalls" in record:
            rest["toolCalls"] = record["toolCalls"]
        rows = [*self.waiting, rest, *({"superseded": one} for one in message.superseded)]
        self.waiting = []
        yield made(
            Call,
            id=call_id,
            revision=message.size,
            episode_id=self.episode_id,
            agent_id=self.id,
            ordinal=self.num_calls,
            model=model,
            request=raw(
                ({"model": model} if model else {}) | {"messages": [said for _, said in self.context[start:]]}
            ),
            context="delta" if parent else "whole",
            parent_call_id=parent,
            completions=(CompletionBody(message=raw(answer)),),
            usage=usage,
            ended_at=nanoseconds(record.get("timestamp")),
            meta=left("gemini_cli", {"rows": rows}),
        )
        self.num_calls += 1
        self.context.append((message.id, answer))
        self.ends.append((call_id, len(self.context)))
        self.context += [(message.id, said) for said in _results(record)]
        for place, use in enumerate(_uses(record)):
            yield from self._tool_call(message, use, f"{call_id}/tool/{place}", call_id)

    def _tool_call(self, message: _Message, use: dict[str, Any], id_: str, call_id: str) -> Iterator[Item]:
        rest = {name: one for name, one in use.items() if name not in ("id", "name", "args", "result")}
        status = use.get("status")
        yield made(
            ToolCall,
            id=id_,
            revision=message.size,
            episode_id=self.episode_id,
            call_id=call_id,
            tool_call_id=text_or_none(use.get("id")),
            name=text_or_none(use.get("name")),
            arguments=None if use.get("args") is None else str(raw(use["args"]), "ascii"),
            result=None if use.get("result") is None else raw(use["result"]),
            status=_STATUS.get(status) if isinstance(status, str) else None,
            ended_at=nanoseconds(use.get("timestamp")) if status in _STATUS else None,
            meta=left("gemini_cli", rest),
        )
        child = use.get("agentId")
        if isinstance(child, str) and child:
            yield made(
                Agent,
                id=safe_id(child),
                episode_id=self.episode_id,
                phase="start",
                parent_agent_id=self.id,
                role="subagent",
                spawned_by_call_id=call_id,
                spawned_by_tool_call_id=text_or_none(use.get("id")),
                scope_prompt=None if use.get("args") is None else raw(use["args"]),
            )


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _uses(record: dict[str, Any]) -> list[dict[str, Any]]:
    uses = record.get("toolCalls")
    return uses if isinstance(uses, list) and _is_list_of_objects(uses) else []


def _answer(record: dict[str, Any]) -> dict[str, Any]:
    """A message as the model wrote it: its tool calls without what came of them."""
    answer: dict[str, Any] = {"role": "model"}
    answer |= {name: record[name] for name in ("content", "thoughts") if name in record}
    if uses := _uses(record):
        answer["toolCalls"] = [
            {name: use[name] for name in ("id", "name", "args") if name in use} for use in uses
        ]
    return answer


def _results(record: dict[str, Any]) -> list[Any]:
    """What the next call reads of the tools of a message."""
    return [
        {"role": "user", "content": use["result"]} for use in _uses(record) if use.get("result") is not None
    ]


def _sent(record: dict[str, Any], known: _Message | None) -> list[Any]:
    """What a message of a replaced history sends."""
    if record.get("type") == "gemini":
        return [_answer(record), *_results(record)]
    if record.get("type") in _FOR_USERS:
        return []
    return [{"role": "user", "content": record.get("content")}]


def _usage(tokens: dict[str, Any]) -> Usage | None:
    """The usage of a message, taken out of its tokens."""
    fresh = {name: tokens.get(name) for name in ("cached", "thoughts")}
    sent, sampled = count(tokens, "input"), count(tokens, "output")
    cached, thoughts = (count(tokens, name) if fresh[name] else None for name in ("cached", "thoughts"))
    return counted(
        prompt_tokens=sent,
        cached_tokens=cached,
        completion_tokens=None if sampled is None else sampled + (thoughts or 0),
        reasoning_tokens=thoughts,
    )


# --- Checkpoints -----------------------------------------------------------------------------------


def _checkpoint(record: Record, notes: Notes) -> Iterator[Item]:
    history = _history(record.value)
    if history is None:
        notes.refuse(record.at, "neither a chat nor a checkpoint")
        return
    notes.rows["gemini-cli/checkpoint"] += 1
    value = dict(record.value) if isinstance(record.value, dict) else {}
    value.pop("clientHistory" if "clientHistory" in value else "history", None)
    answers = [n for n, one in enumerate(history) if one["role"] == "model" and not _is_greeting(one)]
    first = history[: answers[0] + 1] if answers else history
    episode_id = content_id("gemini", first)
    agent_id = f"{episode_id}/main"
    yield made(Episode, id=episode_id, phase="start")
    yield made(Agent, id=agent_id, episode_id=episode_id, phase="start", role="main", depth=0)
    unread = history[answers[-1] + 1 if answers else 0 :]
    yield made(
        Agent,
        id=agent_id,
        episode_id=episode_id,
        phase="end",
        revision=len(history),
        meta=left("gemini_cli", {**value, **({"unread": unread} if unread else {})}),
    )
    parent, start = None, 0
    for ordinal, place in enumerate(answers):
        call_id = f"{episode_id}/{content_id('', history[: place + 1])[1:]}"
        yield made(
            Call,
            id=call_id,
            episode_id=episode_id,
            agent_id=agent_id,
            ordinal=ordinal,
            request=raw({"messages": history[start:place]}),
            context="delta" if parent else "whole",
            parent_call_id=parent,
            completions=(CompletionBody(message=raw(history[place])),),
        )
        yield from _parts(history, place, episode_id, call_id)
        parent, start = call_id, place + 1


def _is_greeting(content: dict[str, Any]) -> bool:
    return [as_dict(part).get("text") for part in content["parts"]] == [_GREETING]


def _parts(history: list[dict[str, Any]], place: int, episode_id: str, call_id: str) -> Iterator[Item]:
    """The tool calls of an answer, with the results that the next content brings, by id, else by order."""
    uses = [
        part["functionCall"]
        for part in history[place]["parts"]
        if isinstance(as_dict(part).get("functionCall"), dict)
    ]
    after = history[place + 1]["parts"] if place + 1 < len(history) else []
    results = [
        part["functionResponse"] for part in after if isinstance(as_dict(part).get("functionResponse"), dict)
    ]
    for number, use in enumerate(uses):
        key = "id" if use.get("id") is not None else "name"
        result = next((one for one in results if one.get(key) == use.get(key)), None)
        if result is not None:
            results.remove(result)
        yield made(
            ToolCall,
            id=f"{call_id}/tool/{number}",
            revision=1 if result is None else 2,
            episode_id=episode_id,
            call_id=call_id,
            tool_call_id=text_or_none(use.get("id")),
            name=text_or_none(use.get("name")),
            arguments=None if "args" not in use else str(raw(use["args"]), "ascii"),
            result=None if result is None or "response" not in result else raw(result["response"]),
        )


FORMAT = Format("gemini-cli", "Gemini CLI chats and checkpoints", _recognises, read)
