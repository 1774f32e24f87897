"""Cline and Roo Code task folders -> an episode of one agent for each task; Roo's subtasks are sub-agents.

A task is a folder named by its id. Its files are found by their content and belong together by their folder:

    api_conversation_history.json   the messages, as Anthropic has them: [{role, content, ts?, modelInfo?}]
    ui_messages.json                what the user saw: [{ts, type: say | ask, say, text}]
    task_metadata.json              {files_in_context, model_usage: [{model_id, ts}]}
    history_item.json               Roo: {id, task, rootTaskId?, parentTaskId?, tokensIn, totalCost}

- An assistant message is one model call; it has read the messages before it that were still sent.
- A row `say: api_req_started` is one request; its text is JSON with `tokensIn`, `tokensOut`, `cacheReads`,
  `cacheWrites`, `cost`, `cancelReason`. In Cline `conversationHistoryIndex` is the index of the message
  before the request's own: the answer is two further. Without it (Roo) the rows that were answered go with
  the answers in order, where there are as many of both. A request without an answer is a call of its own.
- `tokensIn` leaves cached tokens out, but in versions that state `apiProtocol` it holds them.
- `conversationHistoryDeletedRange: [first, last]` on the rows of a request: these messages were no longer
  sent. Roo marks the messages that a summary stands for (`condenseParent` -> `condenseId` of the message with
  `isSummary`), and those cut off (`truncationParent` -> `truncationId`). The next call spells its
  context out.
- Tools are called by tool_use blocks, or by XML tags in the text of an answer, which are recognised by the
  tools' names; the result is then the text `[name ...] Result:` of the message that follows.
- Files are rewritten as they grow: the revision of an event is the size of what it is made of.
- Not recorded: the system prompt, tools, and the edits that `context_history.json` makes to sent messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers import exact
from tracestore.importers.documents import records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, number, text_or_none
from tracestore.importers.items import Item, content_id, count, gap, left, made, nanoseconds, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.sources import Source
from tracestore.importers.usage import counted
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, CallError, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.tool_call import ToolCall

_TASK_ID = re.compile(r"[0-9]{10,16}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOOLS = (
    *("execute_command", "read_file", "write_to_file", "replace_in_file", "apply_diff", "insert_content"),
    *("search_and_replace", "search_files", "list_files", "list_code_definition_names", "browser_action"),
    *("use_mcp_tool", "access_mcp_resource", "ask_followup_question", "attempt_completion", "new_task"),
    *("plan_mode_respond", "switch_mode", "load_mcp_documentation", "fetch_instructions", "web_fetch"),
    *("codebase_search", "update_todo_list", "condense", "new_rule", "report_bug"),
)
_XML_USE = re.compile(rf"<({'|'.join(_TOOLS)})>.*?</\1>", re.DOTALL)
_OWN_TAGS = ("<task>", "<environment_details>", "<user_message>", "<feedback>")


def _kind(value: Any) -> str | None:
    """Which file of a task this is."""
    if isinstance(value, dict):
        if {"files_in_context", "model_usage"} & value.keys():
            return "metadata"
        return "item" if {"id", "task", "tokensIn", "tokensOut"} <= value.keys() else None
    first = value[0] if isinstance(value, list) and value else None
    if not isinstance(first, dict):
        return None
    if first.get("type") in ("say", "ask") and isinstance(first.get("ts"), int):
        return "ui"
    texts = [as_dict(block).get("text") for block in as_list(first.get("content"))]
    is_ours = any(isinstance(text, str) and any(tag in text for tag in _OWN_TAGS) for text in texts)
    return "history" if first.get("role") == "user" and is_ours else None


def _recognises(head: Head) -> bool:
    return len(head.records) == 1 and _kind(head.first) is not None


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls and context edits of the sources, one task at a time."""
    folders: dict[str, list[Source]] = {}
    for source in sources:
        folders.setdefault(source.name.replace("\\", "/").rpartition("/")[0], []).append(source)
    for folder, files in folders.items():
        task = _task(folder, files, notes)
        if task is not None:
            yield from task.items()


@dataclass
class _Request:
    """A row `api_req_started` and the rows that follow it."""

    row: dict[str, Any]
    told: dict[str, Any]
    """Its text, parsed."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    answer: int | None = None

    @property
    def is_failed(self) -> bool:
        return bool(self.told.get("cancelReason") or self.told.get("streamingFailedMessage"))

    @property
    def deleted(self) -> tuple[int, int] | None:
        """The range of messages that it did not send."""
        for row in reversed([self.row, *self.rows]):
            given = row.get("conversationHistoryDeletedRange")
            if isinstance(given, list) and len(given) == 2 and all(isinstance(one, int) for one in given):
                return given[0], given[1]
        return None


def _task(folder: str, files: list[Source], notes: Notes) -> _Task | None:
    found: dict[str, Any] = {}
    for source in files:
        for record in records(source, notes=notes):
            kind = _kind(record.value)
            if kind is None:
                notes.refuse(record.at, "no file of a task")
                continue
            notes.rows[f"cline/{kind}"] += 1
            found[kind] = record.value
    name = folder.rpartition("/")[2]
    seed = (found.get("history") or found.get("ui") or [None])[0]
    own = as_dict(found.get("item")).get("id")
    if _TASK_ID.fullmatch(name):
        task_id = name
    elif isinstance(own, str) and own:
        task_id = safe_id(own)
    elif seed is not None:
        task_id = content_id("cline", seed)
    else:
        for kind, value in found.items():
            notes.leftover(f"cline: {kind} of no task", value, at=folder)
        return None
    return _Task(
        id=task_id,
        at=folder or files[0].name,
        history=_objects(found.get("history"), "history", files[0].name, notes),
        ui=_objects(found.get("ui"), "ui", files[0].name, notes),
        item=as_dict(found.get("item")),
        metadata=as_dict(found.get("metadata")),
        notes=notes,
    )


def _objects(value: Any, kind: str, at: str, notes: Notes) -> list[dict[str, Any]]:
    good = []
    for place, one in enumerate(as_list(value)):
        if isinstance(one, dict):
            notes.rows[f"cline/{kind} {one.get('role') or one.get('say') or one.get('ask')}"] += 1
            good.append(one)
        else:
            notes.refuse(f"{at}, {kind} {place}", "no message: it is an object")
    return good


@dataclass
class _Task:
    id: str
    at: str
    history: list[dict[str, Any]]
    ui: list[dict[str, Any]]
    item: dict[str, Any]
    metadata: dict[str, Any]
    notes: Notes
    last: tuple[str, list[int]] | None = None
    """The last call, and the messages of its context and answer."""
    waiting: list[Any] = field(default_factory=list)
    num_calls: int = 0

    def items(self) -> Iterator[Item]:
        """Everything that a task tells."""
        before, requests = self._requests()
        self._match(requests)
        by_answer = {one.answer: one for one in requests if one.answer is not None}
        body: list[Item] = []
        read: set[int] = set()
        for index, message in enumerate(self.history):
            if message.get("role") == "assistant" and message.get("isSummary") is not True:
                request = by_answer.get(index)
                items = guarded(self._answer(index, request, read), at=self.at, notes=self.notes)
                body += list(items)
        for request in requests:
            if request.answer is None:
                body += list(guarded(self._unanswered(request), at=self.at, notes=self.notes))
        yield from guarded(self._head(before, read), at=self.at, notes=self.notes)
        yield from body

    def _requests(self) -> tuple[list[dict[str, Any]], list[_Request]]:
        """(rows before the first request, the requests)."""
        before: list[dict[str, Any]] = []
        requests: list[_Request] = []
        for row in self.ui:
            if row.get("say") == "api_req_started":
                requests.append(_Request(row, as_dict(_parsed(row.get("text")))))
            elif requests:
                requests[-1].rows.append(row)
            else:
                before.append(row)
        return before, requests

    def _match(self, requests: list[_Request]) -> None:
        """Which answer each request got."""
        answers = [n for n, one in enumerate(self.history) if one.get("role") == "assistant"]
        free = dict.fromkeys(answers)
        stated = [one for one in requests if isinstance(one.row.get("conversationHistoryIndex"), int)]
        for request in stated:
            place = request.row["conversationHistoryIndex"] + 2
            if place in free:
                request.answer = place
                del free[place]
        if stated:
            return
        open_ones = [one for one in requests if not one.is_failed]
        if open_ones and len(open_ones) == len(answers):
            self.notes.infer("request of an answer", evidence="order: as many requests as answers")
            for request, place in zip(open_ones, answers, strict=True):
                request.answer = place
        elif requests:
            self.notes.warn("requests that cannot be told to belong to an answer: calls of their own")

    def _head(self, before: list[dict[str, Any]], read: set[int]) -> Iterator[Item]:
        parent = self.item.get("parentTaskId")
        revision = min(len(raw([self.history, self.ui, self.item, self.metadata])), 2**31 - 1)
        times = [nanoseconds(row.get("ts")) for row in (*self.history, *self.ui)]
        known = [time for time in times if time is not None]
        unread = [one for n, one in enumerate(self.history) if n not in read]
        tail = {
            name: rows
            for name, rows in (
                ("ui", before),
                ("item", self.item),
                ("metadata", self.metadata),
                ("unread", unread),
                ("rows", self.waiting),
            )
            if rows
        }
        is_sub = self.episode_id != self.id
        yield made(Episode, id=self.episode_id, phase="start")
        if not is_sub:
            yield made(
                Episode,
                id=self.id,
                phase="end",
                revision=revision,
                started_at=min(known, default=None),
                ended_at=max(known, default=None),
            )
        yield made(
            Agent,
            id=self.id,
            episode_id=self.episode_id,
            phase="end",
            revision=revision,
            parent_agent_id=safe_id(parent) if is_sub and isinstance(parent, str) and parent else None,
            role="subagent" if is_sub else "main",
            depth=None if is_sub else 0,
            meta=left("cline", tail),
        )
        yield gap(
            self.id,
            "system_prompt_not_recorded",
            "a task folder has neither system prompt nor tools",
            episode_id=self.episode_id,
            agent_id=self.id,
        )

    @property
    def episode_id(self) -> str:
        parent, root = (self.item.get(name) for name in ("parentTaskId", "rootTaskId"))
        return next((safe_id(one) for one in (root, parent) if isinstance(one, str) and one), self.id)

    # --- Calls -----------------------------------------------------------------------------------

    def _sent(self, index: int, request: _Request | None) -> list[int]:
        """The messages that the answer at an index has read."""
        deleted = request.deleted if request is not None else None
        gone = {
            one.get(key)
            for one in self.history[:index]
            for key, mark in (("condenseId", "isSummary"), ("truncationId", "isTruncationMarker"))
            if one.get(mark) is True and isinstance(one.get(key), str)
        }
        sent = []
        for place, one in enumerate(self.history[:index]):
            is_deleted = deleted is not None and deleted[0] <= place <= deleted[1]
            is_hidden = bool({one.get("condenseParent"), one.get("truncationParent")} & gone)
            if not is_deleted and not is_hidden and one.get("isTruncationMarker") is not True:
                sent.append(place)
        return sent

    def _answer(self, index: int, request: _Request | None, read: set[int]) -> Iterator[Item]:
        message = self.history[index]
        call_id = f"{self.id}/{index}-{content_id('', message.get('content'))[1:9]}"
        sent = self._sent(index, request)
        last_id, last = self.last or (None, [])
        is_next = self.last is not None and sent[: len(last)] == last
        if self.last is not None and not is_next:
            yield self._edit(call_id, sent, last)
        own = sent[len(last) :] if is_next else sent
        read |= {*own, index}
        rows = [_rest(self.history[place]) for place in own] + [_rest(message)]
        told, usage = self._usage(request)
        model = as_dict(message.get("modelInfo")).get("modelId") or self._only_model()
        model = model if isinstance(model, str) else None
        status = None if request is None else "aborted" if request.is_failed else "ok"
        body: dict[str, Any] = {
            "message": raw(_said(message)),
            "partial": True if status == "aborted" else None,
        }
        ui = [] if request is None else [{**request.row, "text": told}, *request.rows]
        yield made(
            Call,
            id=call_id,
            revision=_size([message, ui]),
            episode_id=self.episode_id,
            agent_id=self.id,
            ordinal=self.num_calls,
            model=model,
            dialect="anthropic_messages",
            request=raw(
                ({"model": model} if model else {})
                | {"messages": [_said(self.history[place]) for place in own]}
            ),
            context="delta" if is_next else "whole",
            parent_call_id=last_id if is_next else None,
            completions=(CompletionBody(**{k: v for k, v in body.items() if v is not None}),),
            usage=usage,
            status=status,
            started_at=None if request is None else nanoseconds(request.row.get("ts")),
            ended_at=nanoseconds(message.get("ts")),
            meta=left("cline", {"rows": rows, **({"ui": ui} if ui else {})}),
        )
        self.num_calls += 1
        self.last = (call_id, [*sent, index])
        after = self.history[index + 1] if index + 1 < len(self.history) else {}
        yield from self._tools(message, after if after.get("role") == "user" else {}, call_id)

    def _unanswered(self, request: _Request) -> Iterator[Item]:
        """A request that got no answer, or one that cannot be told."""
        told, usage = self._usage(request)
        reason = request.told.get("streamingFailedMessage") or request.told.get("cancelReason")
        is_user = request.told.get("cancelReason") == "user_cancelled"
        yield made(
            Call,
            id=f"{self.id}/request-{request.row.get('ts')}",
            revision=_size([request.row, request.rows]),
            episode_id=self.episode_id,
            agent_id=self.id,
            usage=usage,
            dialect="anthropic_messages",
            status=("aborted" if is_user else "failed") if request.is_failed else None,
            error=CallError(message=reason) if isinstance(reason, str) and not is_user else None,
            started_at=nanoseconds(request.row.get("ts")),
            meta=left("cline", {"ui": [{**request.row, "text": told}, *request.rows]}),
        )

    def _usage(self, request: _Request | None) -> tuple[Any, Usage | None]:
        """(what is left of a request's text, its usage)."""
        if request is None:
            return None, None
        if not request.told:
            return request.row.get("text"), None
        told = dict(request.told)
        fresh, output = count(told, "tokensIn"), count(told, "tokensOut")
        cached, written = count(told, "cacheReads"), count(told, "cacheWrites")
        apart = 0 if "apiProtocol" in told else (cached or 0) + (written or 0)
        return told, counted(
            prompt_tokens=None if fresh is None else fresh + apart,
            cached_tokens=cached,
            cache_write_tokens=written,
            completion_tokens=output,
            cost_usd=number(told.pop("cost", None)),
        )

    def _only_model(self) -> str | None:
        """The model of a task that used one only."""
        used = {as_dict(one).get("model_id") for one in as_list(self.metadata.get("model_usage"))}
        model = next(iter(used)) if len(used) == 1 else None
        if isinstance(model, str):
            self.notes.infer("model of a call", evidence="the only one of the task's metadata")
            return model
        return None

    def _edit(self, call_id: str, sent: list[int], last: list[int]) -> Item:
        before = self.last[0] if self.last is not None else None
        is_summary = any(self.history[n].get("isSummary") is True for n in sent if n not in last)
        return made(
            ContextEdit,
            id=f"{call_id}/context",
            episode_id=self.episode_id,
            agent_id=self.id,
            edit="compaction" if is_summary else "truncation",
            author=None if is_summary else "harness",
            before_call_id=before,
            after_call_id=call_id,
            status="accepted",
        )

    # --- Tools -----------------------------------------------------------------------------------

    def _tools(self, message: dict[str, Any], after: dict[str, Any], call_id: str) -> Iterator[Item]:
        blocks = [as_dict(block) for block in as_list(message.get("content"))]
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        results = [as_dict(block) for block in as_list(after.get("content"))]
        for place, use in enumerate(uses):
            result = next((one for one in results if one.get("tool_use_id") == use.get("id")), None)
            is_error = result.get("is_error") if result is not None else None
            yield self._tool_call(
                f"{call_id}/tool/{place}",
                call_id,
                tool_call_id=text_or_none(use.get("id")),
                name=text_or_none(use.get("name")),
                arguments=str(raw(use["input"]), "ascii") if "input" in use else None,
                result=None if result is None else raw(result.get("content", "")),
                status="failed" if is_error is True else None,
            )
        if uses:
            return
        content = message.get("content")
        text = content if isinstance(content, str) else "".join(str(one.get("text") or "") for one in blocks)
        for place, found in enumerate(_XML_USE.finditer(text)):
            name = found.group(1)
            self.notes.infer("a tool call", evidence="its XML tags in the answer")
            answer = [one["text"] for one in results if str(one.get("text")).startswith(f"[{name}")]
            yield self._tool_call(
                f"{call_id}/tool/{place}",
                call_id,
                name=name,
                arguments=found.group(0),
                result=raw(answer[0]) if answer else None,
            )

    def _tool_call(self, id_: str, call_id: str, **fields: Any) -> Item:
        return made(
            ToolCall,
            id=id_,
            revision=1 if fields.get("result") is None else 2,
            episode_id=self.episode_id,
            call_id=call_id,
            **fields,
        )


def _said(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in ("role", "content") if name in message}


def _rest(message: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in message.items() if name not in ("role", "content")}


def _parsed(text: Any) -> Any:
    try:
        return exact.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _size(value: Any) -> int:
    return min(len(raw(value)), 2**31 - 1)


FORMAT = Format("cline", "Cline and Roo Code task folders", _recognises, read)
