"""pi coding-agent sessions (JSON lines, one file a session) -> an episode of one agent.

The first row is the header `{type: session, id, version?, timestamp, cwd, branchedFrom? | parentSession?}`;
every other row is an entry. Version 1 (no `version`) has no ids: an entry follows the one before it. Since
version 2 entries have `id` and `parentId` and are a tree: a branch is a path from the root. Version 3 renames
the role hookMessage to custom.

- An assistant message is one model call: pi writes one a response, aborted and failed ones too. Its context
  is the messages on the path before it. `stopReason` says how it ended (stop, length, toolUse, aborted,
  error). Content that had come by then is kept as partial; the session goes on from it (whether a later
  request sent it depends on the version and is not recorded). An answer without content is a leaf.
- `message.timestamp` is when a call began, the row's `timestamp` when it was written. Usage of zeros in an
  aborted or failed answer is how pi says that nothing was counted.
- `partialJson` of a tool call is what had been sampled of its arguments: it stands as sampled, unrepaired.
- A result belongs to the call of its toolCallId. One that stands on a branch without that call (navigation
  while a tool ran) is the call's, and no part of that branch.
- `compaction{summary, firstKeptEntryId | firstKeptEntryIndex, tokensBefore}`: the next context is the
  summary and the messages from that entry on, which are sent again. The index counts rows from the header.
  The summary's own call is not recorded. `branch_summary{fromId, summary}` brings a left branch along.
- What pi adds around a summary is not in the file: it stands as a message of the role that pi has for it
  (compactionSummary, branchSummary, custom). bashExecution is a command of the user; the model
  reads it unless `excludeFromContext`.
- Entries that copy those of a parent session (`branchedFrom`, `parentSession`: its path, its file name ends
  with its id) are equal to them byte for byte. With the parent in the import they count once, there, and the
  first own call spells them out; without it they count here.
- The system prompt and the tools are in no file; neither are the requests' parameters beyond the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers.documents import records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, known, number
from tracestore.importers.items import (
    Item,
    content_id,
    count,
    gap,
    left,
    made,
    nanoseconds,
    raw,
    safe_id,
    taken,
)
from tracestore.importers.notes import Notes
from tracestore.importers.sources import Source
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, CallError, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.tool_call import ToolCall

_STATUS = {"stop": "ok", "length": "ok", "toolUse": "ok", "aborted": "aborted", "error": "failed"}
_SPOKEN = frozenset(
    {
        *("role", "content", "toolCallId", "toolName", "isError", "customType", "display", "summary"),
        *("fromId", "tokensBefore", "command", "output", "exitCode", "cancelled", "truncated"),
        "fullOutputPath",
    }
)
"""Fields of a message that are said; the rest is kept beside it."""
_ENTRIES = frozenset(
    {
        *("message", "compaction", "branch_summary", "custom_message", "thinking_level_change"),
        *("model_change", "custom", "label", "session_info"),
    }
)
_SESSION_ID = re.compile(r"_([0-9A-Za-z-]+)\.jsonl$")


def _recognises(head: Head) -> bool:
    first = head.first
    if not isinstance(first, dict) or first.get("type") != "session" or "id" not in first:
        return False
    return "cwd" in first or "modelId" in first or "version" in first


@dataclass(frozen=True, slots=True)
class _Context:
    """What the next call on a path reads: what a call read and wrote, then messages."""

    call: str | None = None
    own: tuple[Any, ...] = ()

    def then(self, message: Any) -> _Context:
        return _Context(self.call, (*self.own, message))


@dataclass(slots=True)
class _Entry:
    key: str
    """Its own id; in version 1 its row."""
    value: dict[str, Any]
    at: str
    parent: str | None
    is_copy: bool = False
    context: _Context | None = None
    """After it."""


@dataclass
class _File:
    """The rows of one session file."""

    header: dict[str, Any]
    entries: dict[str, _Entry]
    """In order of the file."""
    num_rows: int
    has_ids: bool
    by_row: list[str | None]

    @property
    def id(self) -> str:
        own = self.header.get("id")
        return safe_id(own) if isinstance(own, str) and own else content_id("pi", self.header)


def _file(source: Source, notes: Notes) -> _File:
    header: dict[str, Any] = {}
    entries: dict[str, _Entry] = {}
    by_row: list[str | None] = []
    previous: str | None = None
    has_ids = False
    for record in records(source, notes=notes):
        number = len(by_row)
        by_row.append(None)
        value = record.value
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            notes.refuse(record.at, "no entry of a session: it is an object with a type")
            continue
        notes.rows[f"pi/{value['type']}"] += 1
        if value["type"] == "session" and not header:
            header = value
            continue
        own = value.get("id")
        has_ids = has_ids or (isinstance(own, str) and "parentId" in value)
        key = safe_id(own) if has_ids and isinstance(own, str) and own else str(number)
        if key in entries:
            if entries[key].value == value:
                notes.warn("an entry that is in the file twice")
                continue
            key = f"{key}-{number}"
        parent = value.get("parentId") if has_ids else previous
        entries[key] = _Entry(key, value, record.at, safe_id(parent) if isinstance(parent, str) else None)
        by_row[number] = previous = key
    return _File(header, entries, len(by_row), has_ids, by_row)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, calls, tool calls and compactions of the sources, one session at a time."""
    by_id: dict[str, Source] = {}
    for source in sources:
        first = next((record.value for record in records(source, notes=Notes())), None)
        own = as_dict(first).get("id")
        if isinstance(own, str):
            by_id.setdefault(own, source)
    for source in sources:
        file = _file(source, notes)
        parent_id = _parent_id(file.header)
        parent = by_id.get(parent_id or "")
        origin = _file(parent, Notes()) if parent is not None and parent is not source else None
        yield from _Session(file, origin, parent_id, source.name, notes).items()


def _parent_id(header: dict[str, Any]) -> str | None:
    path = header.get("parentSession") or header.get("branchedFrom")
    found = _SESSION_ID.search(path) if isinstance(path, str) else None
    return found.group(1) if found and found.group(1) != header.get("id") else None


@dataclass
class _Use:
    """One tool use of a call."""

    id: str
    call_id: str
    block: dict[str, Any]
    at: str
    result: _Entry | None = None
    is_passed: bool = False
    """The session went on without its result."""


@dataclass
class _Session:
    file: _File
    origin: _File | None
    parent_id: str | None
    name: str
    notes: Notes
    uses: dict[str, list[_Use]] = field(default_factory=dict)
    """By the model's id of the tool use."""
    by_call: dict[str, list[_Use]] = field(default_factory=dict)
    waiting: list[Any] = field(default_factory=list)
    """What is left of entries that belong to no call yet."""
    unread: list[_Entry] = field(default_factory=list)
    num_calls: int = 0
    last_copied: str | None = None
    edits: list[tuple[_Entry, dict[str, Any]]] = field(default_factory=list)
    after: dict[str, str] = field(default_factory=dict)
    """Compaction -> the first call after it."""

    @property
    def id(self) -> str:
        return self.file.id

    def items(self) -> Iterator[Item]:
        """Episode, agent, calls, tool calls, compactions and gaps."""
        self._mark_copies()
        made_of_calls = []
        for entry in self.file.entries.values():
            made_of_calls += list(guarded(self._entry(entry), at=entry.at, notes=self.notes))
        yield from self._head()
        yield from made_of_calls
        for use in (use for uses in self.uses.values() for use in uses):
            yield from guarded(self._tool_call(use), at=use.at, notes=self.notes)
        for entry, fields in self.edits:
            yield from guarded(self._edit(entry, fields), at=entry.at, notes=self.notes)

    def _mark_copies(self) -> None:
        if self.origin is None:
            if self.parent_id is not None:
                self.notes.warn("a branch of a session that is not here: what it copied counts as its own")
            return
        theirs = {content_id("", entry.value): entry for entry in self.origin.entries.values()}
        for entry in self.file.entries.values():
            same = theirs.get(content_id("", entry.value))
            if same is None:
                break
            entry.is_copy = True
            if as_dict(entry.value.get("message")).get("role") == "assistant":
                self.last_copied = f"{self.origin.id}/{same.key}"
        self.notes.infer("entries of a parent session", evidence="equal to the parent's")

    def _head(self) -> Iterator[Item]:
        header = dict(self.file.header)
        began = nanoseconds(header.get("timestamp"))
        last = [nanoseconds(entry.value.get("timestamp")) for entry in self.file.entries.values()]
        fork: dict[str, Any] = {}
        if self.parent_id is not None:
            fork = {
                "forked_from_episode_id": safe_id(self.parent_id),
                "forked_from_call_id": self.last_copied,
            }
        revision = 2 * self.file.num_rows + (self.origin is not None)
        yield made(Episode, id=self.id, phase="start", started_at=began, meta=left("pi", header))
        yield made(
            Episode,
            id=self.id,
            phase="end",
            revision=revision,
            ended_at=max((time for time in last if time is not None), default=None),
            **fork,
        )
        unread = [entry.value for entry in self.unread]
        tail = {name: rows for name, rows in (("rows", self.waiting), ("unread", unread)) if rows}
        yield made(Agent, id=f"{self.id}/main", episode_id=self.id, phase="start", role="main", depth=0)
        yield made(
            Agent,
            id=f"{self.id}/main",
            episode_id=self.id,
            phase="end",
            revision=revision,
            meta=left("pi", tail),
        )
        yield self._gap("system_prompt_not_recorded", "a session has neither system prompt nor tools")

    # --- Entries ---------------------------------------------------------------------------------

    def _entry(self, entry: _Entry) -> Iterator[Item]:
        kind = entry.value["type"]
        context = self._before(entry)
        message = entry.value.get("message")
        if kind == "message" and isinstance(message, dict):
            if message.get("role") == "assistant":
                yield from self._assistant(entry, message, context)
            else:
                self._message(entry, message, context)
            return
        entry.context = context
        if kind == "compaction":
            self._compaction(entry, context)
        elif kind in ("branch_summary", "custom_message"):
            role = "branchSummary" if kind == "branch_summary" else "custom"
            said, rest = _said({**entry.value, "role": role})
            entry.context = context.then(said)
            self._waits(entry, rest)
        else:
            self._waits(entry, dict(entry.value))
            if kind not in _ENTRIES:
                self.notes.leftover(f"pi: entry {kind}", entry.value, at=entry.at)

    def _before(self, entry: _Entry) -> _Context:
        """The context that an entry goes on from."""
        if entry.parent is None:
            return _Context()
        parent = self.file.entries.get(entry.parent)
        if parent is None or parent.context is None:
            self.notes.warn("an entry whose parent is not before it in the file: it begins a context")
            return _Context()
        return parent.context

    def _message(self, entry: _Entry, message: dict[str, Any], context: _Context) -> None:
        said, rest = _said(message)
        self._waits(entry, {**_without(entry.value, "message"), "message": rest})
        if message.get("role") == "toolResult":
            is_here = self._result(entry, message)
            entry.context = context.then(said) if is_here else context
            return
        self._pass_uses(context.call)
        entry.context = context if message.get("excludeFromContext") is True else context.then(said)
        if entry.context is context:
            self.waiting[-1] = dict(entry.value)

    def _waits(self, entry: _Entry, rest: dict[str, Any]) -> None:
        if not entry.is_copy:
            self.waiting.append(rest)
            self.unread.append(entry)

    def _result(self, entry: _Entry, message: dict[str, Any]) -> bool:
        """Gives a result to its tool use; whether that is on the result's own path."""
        use_id = message.get("toolCallId")
        waiting = [use for use in self.uses.get(str(use_id), ()) if use.result is None]
        if waiting:
            waiting[0].result = entry
        at: _Entry | None = entry
        while at is not None:
            at = self.file.entries.get(at.parent or "")
            said = as_dict(at.value.get("message")) if at is not None else {}
            if any(as_dict(block).get("id") == use_id for block in as_list(said.get("content"))):
                return True
        if waiting:
            self.notes.warn("a tool result on a branch without its call: it is the call's")
            self.waiting[-1] = dict(entry.value)
        return not waiting

    def _pass_uses(self, call_id: str | None) -> None:
        """The path of a call goes on: what its tools have not returned by now was not waited for."""
        for use in self.by_call.get(call_id or "", ()):
            use.is_passed = use.is_passed or use.result is None

    def _compaction(self, entry: _Entry, context: _Context) -> None:
        value = dict(entry.value)
        summary = {
            "role": "compactionSummary",
            "summary": taken(value, "summary", str),
            "tokensBefore": value.get("tokensBefore"),
        }
        first = value.get("firstKeptEntryId")
        index = value.get("firstKeptEntryIndex")
        if isinstance(index, int) and 0 <= index < len(self.file.by_row):
            first = self.file.by_row[index]
        kept, calls = self._kept(entry, safe_id(first) if isinstance(first, str) else None)
        entry.context = _Context(None, (summary, *kept))
        if not entry.is_copy:
            before = context.call
            self.edits.append(
                (
                    entry,
                    {
                        "tokens_before": count(value, "tokensBefore"),
                        "before_call_id": before,
                        "kept_call_ids": tuple(calls) or None,
                        "meta": {**value, "kept_messages": len(kept)},
                        "summary": summary["summary"],
                    },
                )
            )

    def _kept(self, entry: _Entry, first: str | None) -> tuple[list[Any], list[str]]:
        """(messages that are sent again, calls whose messages they are), from the first kept entry on."""
        path: list[_Entry] = []
        at = self.file.entries.get(entry.parent or "")
        while at is not None and first is not None:
            path.append(at)
            if at.key == first:
                break
            at = self.file.entries.get(at.parent or "")
        else:
            return [], []
        messages, calls = [], []
        for one in reversed(path):
            message = one.value.get("message")
            role = {"branch_summary": "branchSummary", "custom_message": "custom"}.get(one.value["type"])
            if isinstance(message, dict) and message.get("excludeFromContext") is not True:
                if message.get("role") == "assistant" and not message.get("content"):
                    continue
                messages.append(_said(message)[0])
                if message.get("role") == "assistant" and not one.is_copy:
                    calls.append(f"{self.id}/{one.key}")
            elif role is not None:
                messages.append(_said({**one.value, "role": role})[0])
        return messages, calls

    # --- Calls -----------------------------------------------------------------------------------

    def _assistant(self, entry: _Entry, message: dict[str, Any], context: _Context) -> Iterator[Item]:
        said, rest = _said(message)
        content = message.get("content")
        if entry.is_copy:
            # Spelled out in the first own call.
            entry.context = context.then(said) if content else context
            return
        call_id = f"{self.id}/{entry.key}"
        self._pass_uses(context.call)
        entry.context = _Context(call_id) if content else context
        reason = taken(rest, "stopReason", str)
        status = _STATUS.get(reason or "")
        if status in ("aborted", "failed") and content:
            self.notes.infer("context after an answer that broke off", evidence="its place in the session")
        yield self._call(call_id, entry, said, rest, context, reason, status)
        for place, block in enumerate(
            block for block in as_list(content) if as_dict(block).get("type") == "toolCall"
        ):
            use = _Use(f"{call_id}/tool/{place}", call_id, block, entry.at)
            self.uses.setdefault(str(block.get("id")), []).append(use)
            self.by_call.setdefault(call_id, []).append(use)

    def _call(
        self,
        call_id: str,
        entry: _Entry,
        said: dict[str, Any],
        rest: dict[str, Any],
        context: _Context,
        reason: str | None,
        status: str | None,
    ) -> Item:
        model, error = taken(rest, "model", str), taken(rest, "errorMessage", str)
        began = nanoseconds(rest.get("timestamp"))
        usage = _usage(rest, is_counted=status not in ("aborted", "failed"))
        edit = next((edit for edit, _ in reversed(self.edits) if edit.context is not None), None)
        if edit is not None and context.call is None and context.own[:1] == (edit.context or context).own[:1]:
            self.after.setdefault(edit.key, call_id)
        body: dict[str, Any] = {
            "message": raw(said),
            "finish_reason": reason,
            "partial": status in ("aborted", "failed") or None,
        }
        request = ({"model": model} if model else {}) | {"messages": list(context.own)}
        rows = [*self.waiting, {**_without(entry.value, "message"), "message": rest}]
        self.waiting = []
        read = self._read(entry)
        self.unread = [one for one in self.unread if one.key not in read]
        ordinal, self.num_calls = self.num_calls, self.num_calls + 1
        return made(
            Call,
            id=call_id,
            episode_id=self.id,
            agent_id=f"{self.id}/main",
            ordinal=ordinal,
            model=model,
            request=raw(request),
            context="whole" if context.call is None else "delta",
            parent_call_id=context.call,
            completions=(CompletionBody(**{k: v for k, v in body.items() if v is not None}),)
            if said.get("content")
            else None,
            usage=usage,
            status=status,
            error=None if error is None else CallError(message=error),
            started_at=began,
            ended_at=nanoseconds(entry.value.get("timestamp")),
            meta=left("pi", {"rows": rows}),
        )

    def _read(self, entry: _Entry) -> set[str]:
        """The entries on the path of a call that it is the first to read."""
        found: set[str] = set()
        at = self.file.entries.get(entry.parent or "")
        while at is not None and at.value["type"] != "compaction" and at.key not in found:
            message = as_dict(at.value.get("message"))
            if message.get("role") == "assistant" and message.get("content"):
                break
            found.add(at.key)
            at = self.file.entries.get(at.parent or "")
        return found

    def _tool_call(self, use: _Use) -> Iterator[Item]:
        block, result = use.block, as_dict(use.result.value.get("message")) if use.result else {}
        partial = block.get("partialJson")
        arguments = block.get("arguments")
        is_error = result.get("isError")
        name, own = block.get("name"), block.get("id")
        yield made(
            ToolCall,
            id=use.id,
            revision=2 if use.result is not None else 1,
            episode_id=self.id,
            call_id=use.call_id,
            tool_call_id=own if isinstance(own, str) else None,
            name=name if isinstance(name, str) else None,
            arguments=partial
            if isinstance(partial, str)
            else None
            if arguments is None
            else str(raw(arguments), "ascii"),
            result=raw(result["content"]) if result.get("content") is not None else None,
            status={True: "failed", False: "ok"}.get(is_error) if isinstance(is_error, bool) else None,
            ended_at=nanoseconds(use.result.value.get("timestamp")) if use.result else None,
        )
        if use.result is None and use.is_passed:
            yield self._gap(
                "tool_result_missing", "the session goes on without it", use=use.id, call=use.call_id
            )

    def _edit(self, entry: _Entry, fields: dict[str, Any]) -> Iterator[Item]:
        after = self.after.get(entry.key)
        meta = fields.pop("meta")
        summary = fields.pop("summary")
        if after is None:
            meta["summary"] = summary
        yield made(
            ContextEdit,
            id=f"{self.id}/{entry.key}",
            revision=1 if after is None else 2,
            episode_id=self.id,
            agent_id=f"{self.id}/main",
            edit="compaction",
            at=nanoseconds(entry.value.get("timestamp")),
            after_call_id=after,
            status="accepted",
            meta=left("pi", meta),
            **fields,
        )

    def _gap(self, cause: str, detail: str, *, use: str | None = None, call: str | None = None) -> Item:
        return gap(
            use or self.id, cause, detail, episode_id=self.id, agent_id=f"{self.id}/main", call_id=call
        )


def _said(message: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what a message says, what else its record holds)."""
    said = {name: one for name, one in message.items() if name in _SPOKEN}
    return said, {name: one for name, one in message.items() if name not in _SPOKEN}


def _without(value: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: one for key, one in value.items() if key != name}


def _usage(rest: dict[str, Any], *, is_counted: bool) -> Usage | None:
    """The usage of a message, taken out of what is left of it."""
    value = as_dict(rest.get("usage"))
    if not value or not (is_counted or value.get("input") or value.get("output")):
        return None
    usage = dict(value)
    cost = dict(as_dict(usage.get("cost")))
    names = ("input", "output", "cacheRead", "cacheWrite")
    fresh, output, cached, written = (count(usage, name) for name in names)
    total = number(cost.pop("total", None))
    counts: dict[str, Any] = {
        "prompt_tokens": None if fresh is None else fresh + (cached or 0) + (written or 0),
        "cached_tokens": cached,
        "cache_write_tokens": written,
        "completion_tokens": output,
        "cost_usd": total,
    }
    rest["usage"] = {**usage, "cost": cost} if cost else usage
    return known(Usage, **counts)


FORMAT = Format("pi", "pi coding-agent sessions", _recognises, read)
