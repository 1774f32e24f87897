"""Rows of one Codex thread -> its calls, tool calls, context edits and spawned agents.

A state machine over the rows in their order. What it makes of a row depends on the rows before it only, so a
file that grows gives what the whole file gives: the revision of an event is the last row that changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers import exact
from tracestore.importers.documents import Record
from tracestore.importers.guard import WRONG_SHAPE, as_list, guarded, problem_of, text_or_none
from tracestore.importers.items import Item, left, made, nanoseconds, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.usage import counted
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, CallError, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.gap import Gap
from tracestore.wire.tool_call import ToolCall

ROW_TYPES = frozenset(
    {
        *("session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state"),
        *("token_usage_record", "inter_agent_communication_metadata"),
    }
)
ITEM_TYPES = frozenset(
    {
        *("message", "agent_message", "reasoning", "function_call", "function_call_output"),
        *("custom_tool_call", "custom_tool_call_output", "local_shell_call", "local_shell_call_output"),
        *("web_search_call", "image_generation_call", "tool_search_call", "tool_search_output"),
        *("compaction", "compaction_summary", "context_compaction", "additional_tools"),
    }
)
_TOOL_USES = frozenset({"function_call", "custom_tool_call", "local_shell_call", "tool_search_call"})
_SUMMARIES = frozenset({"compaction", "compaction_summary", "context_compaction"})
_USAGE = (
    ("prompt_tokens", "input_tokens"),
    ("cached_tokens", "cached_input_tokens"),
    ("cache_write_tokens", "cache_write_input_tokens"),
    ("completion_tokens", "output_tokens"),
    ("reasoning_tokens", "reasoning_output_tokens"),
)
_TEXT_OF_EVENTS = ("message", "text", "last_agent_message")


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a rollout, whatever version wrote it."""

    number: int
    """Place among the rows of its file, from 0."""
    type: str
    payload: Any
    envelope: dict[str, Any]
    """Everything else of the record, its type and time included."""
    at: str

    @property
    def kind(self) -> str | None:
        """The payload's own type; a message may leave it out."""
        kind = self.payload.get("type") if isinstance(self.payload, dict) else None
        return kind if isinstance(kind, str) else None

    @property
    def time(self) -> int | None:
        return nanoseconds(self.envelope.get("timestamp"))

    @property
    def name(self) -> str:
        """As the report counts it."""
        has_kind = self.type in ("response_item", "event_msg") and self.kind is not None
        return f"codex/{self.type}/{self.kind}" if has_kind else f"codex/{self.type}"

    @property
    def is_item(self) -> bool:
        """Whether it is part of what the model reads or writes."""
        if self.type != "response_item" or not isinstance(self.payload, dict):
            return False
        return self.kind in ITEM_TYPES or (self.kind is None and "role" in self.payload)


def row_of(record: Record, number: int) -> Row | None:
    """The row of a record; None where it is none."""
    value = record.value
    if not isinstance(value, dict):
        return None
    if "payload" in value:
        envelope = {name: one for name, one in value.items() if name != "payload"}
        return Row(number, str(value.get("type")), value["payload"], envelope, record.at)
    if is_old_header(value):
        return Row(number, "session_meta", value, {}, record.at)
    if str(value.get("type")) in ITEM_TYPES:
        return Row(number, "response_item", value, {}, record.at)
    return Row(number, str(value.get("record_type") or value.get("type")), None, value, record.at)


def is_old_header(value: dict[str, Any]) -> bool:
    """Whether this is the first row of a version without envelopes."""
    return {"id", "timestamp"} <= value.keys() and bool({"instructions", "git"} & value.keys())


def is_sampled(item: dict[str, Any]) -> bool:
    """Whether the model wrote an item."""
    kind = str(item.get("type", "message"))
    if kind == "message":
        return item.get("role") == "assistant"
    return kind == "reasoning" or kind in _SUMMARIES or kind.endswith("_call")


@dataclass
class _Use:
    """One tool use of a call, and what came of it."""

    id: str
    call: _Called
    item: dict[str, Any]
    row: Row
    changed: int
    result: Row | None = None
    is_cancelled: bool = False


@dataclass
class _Called:
    """One call: what it read beyond the call before it, what it wrote, and the rows that say so."""

    id: str
    at: str
    """Place of its first row."""
    ordinal: int | None
    model: str | None
    changed: int
    """Number of the last row that changed it."""
    is_copy: bool
    parent: str | None = None
    read: list[Any] | None = None
    """None: nothing was written, so what it read is not known."""
    wrote: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    """What is left of its rows."""
    usage: Usage | None = None
    counted: Row | None = None
    purpose: str | None = None
    status: str | None = None
    error: str | None = None
    provider_id: str | None = None
    ended_at: int | None = None
    is_open: bool = True
    num_uses: int = 0
    items_seen: int = 0
    """Items of the thread up to its end."""


@dataclass
class _Edit:
    id: str
    row: Row
    is_copy: bool
    items: list[Any]
    leftover: dict[str, Any]
    before: str | None
    author_call: str | None
    author: str | None
    after: _Called | None = None


@dataclass
class Run:
    """The state of a thread; `take` its rows, then `finish`."""

    thread_id: str
    episode_id: str
    notes: Notes
    instructions: str | None = None
    """What every whole request begins with."""
    is_linked: bool = False
    """A fork beside its parent: what is made of it replaces what was made without."""
    calls: list[_Called] = field(default_factory=list)
    model: str | None = None
    first_model: str | None = None
    last_message: Any = None
    items_seen: int = 0
    num_copied_items: int = 0
    unread: list[Any] = field(default_factory=list)
    """Items that no call has read yet."""
    waiting: list[Any] = field(default_factory=list)
    """What is left of rows that belong to no call yet."""
    is_copying: bool = False
    header: Row | None = None
    """The session_meta of the thread itself, which is told elsewhere."""
    has_items: bool = True
    """False: no response_item is in the file, its messages are read from events."""

    _context: list[Any] = field(default_factory=list)
    _ends: list[tuple[str, int]] = field(default_factory=list)
    """(call, length of the context after its answer), for the calls that the context continues."""
    _turns: list[int] = field(default_factory=list)
    """Length of the context before each message of the user."""
    _in_turn: list[_Called] = field(default_factory=list)
    _uses: list[_Use] = field(default_factory=list)
    _open_uses: dict[str, list[_Use]] = field(default_factory=dict)
    _edits: list[_Edit] = field(default_factory=list)
    _spawns: dict[str, dict[str, Any]] = field(default_factory=dict)
    _gaps: dict[str, _Use] = field(default_factory=dict)
    _num_calls: int = 0
    _num_copied: int = 0
    _own_from: int = 0
    """Length of the context that was copied."""
    _total: dict[str, Any] | None = None
    _same: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The last payload of the types of rows that repeat themselves."""

    # --- Rows ------------------------------------------------------------------------------------

    def take(self, row: Row) -> None:
        """The next row. One of a shape that nobody expected is refused."""
        try:
            self._take(row)
        except WRONG_SHAPE as error:
            self.notes.refuse(row.at, f"not of the shape that rollouts have: {problem_of(error)}")

    def _take(self, row: Row) -> None:
        if row.is_item:
            self._item(row)
        elif row.type == "event_msg":
            self._event(row)
        elif row.type == "turn_context":
            self._turn_context(row)
        elif row.type == "compacted" and isinstance(row.payload, dict):
            self._compacted(row)
        elif row.type == "token_usage_record" and isinstance(row.payload, dict):
            self._usage_record(row)
        elif row is not self.header:
            # A later session_meta is that of the thread that this one came from, or of a resume.
            self._keep(row, self._whole(row))
            is_known = row.type in ROW_TYPES and row.type != "response_item"
            if not is_known and row.kind != "token_count":
                self.notes.leftover(f"codex: row {row.name[6:]}", self._whole(row), at=row.at)

    def end_copy(self) -> None:
        """What comes now is the thread's own. It continues no copied call: that is of another episode."""
        self._close()
        self.is_copying = False
        self._ends, self._in_turn, self._gaps = [], [], {}
        self._num_copied, self._own_from = self._num_calls, len(self._context)
        self.num_copied_items = self.items_seen
        self.waiting = []

    def finish(self) -> None:
        """No row follows."""
        self._close()
        self.unread = self._context[self._ends[-1][1] if self._ends else self._own_from :]

    def _item(self, row: Row) -> None:
        item = row.payload
        self.items_seen += 1
        if is_sampled(item):
            call = self._writing(row)
            call.wrote.append(item)
            call.rows.append(row.envelope)
            call.changed, call.ended_at = row.number, row.time if call.counted is None else call.ended_at
            call.items_seen = self.items_seen
            self._context.append(item)
            if str(item.get("type")) in _TOOL_USES:
                self._used(call, row)
            return
        self._close()
        self._context.append(item)
        self.waiting.append(row.envelope)
        if str(item.get("type")).endswith("_output"):
            self._answered(row)

    def _event(self, row: Row) -> None:
        handlers: dict[str, Callable[[Row], None]] = {
            "token_count": self._token_count,
            "task_started": self._turn_started,
            "turn_started": self._turn_started,
            "task_complete": self._turn_complete,
            "turn_complete": self._turn_complete,
            "turn_aborted": self._turn_aborted,
            "user_message": self._user_message,
            "agent_message": self._agent_message,
            "error": self._failed,
            "stream_error": self._failed,
            "thread_rolled_back": self._rolled_back,
            "collab_agent_spawn_end": self._spawn_event,
        }
        if isinstance(row.payload, dict) and row.kind in handlers:
            handlers[row.kind](row)
        else:
            self._keep(row, self._whole(row))

    def _turn_context(self, row: Row) -> None:
        self._close()
        model = row.payload.get("model") if isinstance(row.payload, dict) else None
        if isinstance(model, str):
            self.model = model
            self.first_model = self.first_model or model
        self._keep(row, self._changed(row))

    def _turn_started(self, row: Row) -> None:
        self._close()
        self._in_turn = []
        for use in [use for uses in self._open_uses.values() for use in uses]:
            self._gaps.setdefault(use.id, use)
        self._keep(row, self._whole(row))

    def _turn_complete(self, row: Row) -> None:
        self.last_message = row.payload.get("last_agent_message")
        self._settle(row, "ok")
        self._in_turn = []

    def _turn_aborted(self, row: Row) -> None:
        for use in [use for uses in self._open_uses.values() for use in uses]:
            use.is_cancelled, use.changed = True, row.number
        self._open_uses = {}
        self._settle(row, "aborted")
        self._in_turn = []

    def _settle(self, row: Row, status: str) -> None:
        """The last call of the turn has this status, if it has none yet; the row is kept with it."""
        call = self._in_turn[-1] if self._in_turn else None
        if call is None:
            self._close()
            self._keep(row, self._whole(row))
            return
        call.status = call.status or status
        call.rows.append(self._whole(row))
        call.changed = row.number
        self._close()

    def _failed(self, row: Row) -> None:
        call = self._latest
        if call is not None and call.is_open and call.wrote and call.counted is None:
            message = row.payload.get("message")
            call.error = message if isinstance(message, str) else None
            self._settle(row, "failed")
        else:
            self._keep(row, self._whole(row))

    def _user_message(self, row: Row) -> None:
        text = row.payload.get("message")
        if not self.has_items and isinstance(text, str):
            self._from_event(row, "user", "input_text", text)
        last = self._context[-1] if self._context else None
        follows = isinstance(last, dict) and last.get("role") == "user" and text in _texts([last])
        self._turns.append(len(self._context) - 1 if follows else len(self._context))
        self._keep(row, self._whole(row))

    def _agent_message(self, row: Row) -> None:
        text = row.payload.get("message")
        if not self.has_items and isinstance(text, str):
            self._from_event(row, "assistant", "output_text", text)
        self._keep(row, self._whole(row))

    def _from_event(self, row: Row, role: str, kind: str, text: str) -> None:
        self.notes.infer("messages of a file without response items", evidence=f"{row.kind} events")
        item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        self._item(Row(row.number, "response_item", item, {}, row.at))

    def _rolled_back(self, row: Row) -> None:
        self._close()
        self._keep(row, self._whole(row))
        num = row.payload.get("num_turns")
        if not isinstance(num, int) or num < 1 or not self._turns:
            return
        cut = self._turns[-min(num, len(self._turns))]
        unread = self._context[max(cut, self._ends[-1][1] if self._ends else self._own_from) :]
        self.waiting += [{"unread": unread}] if unread else []
        del self._turns[-min(num, len(self._turns)) :]
        del self._context[cut:]
        self._ends = [end for end in self._ends if end[1] <= cut]

    # --- Calls -----------------------------------------------------------------------------------

    @property
    def _latest(self) -> _Called | None:
        return self.calls[-1] if self.calls else None

    def _new(self, row: Row) -> _Called:
        self._close()
        call = _Called(
            id=f"{self.thread_id}/{self._num_calls}",
            at=row.at,
            ordinal=self._num_calls - self._num_copied,
            model=self.model,
            changed=row.number,
            is_copy=self.is_copying,
            rows=self.waiting,
            items_seen=self.items_seen,
        )
        self.waiting = []
        self._num_calls += 1
        self.calls.append(call)
        self._in_turn.append(call)
        return call

    def _writing(self, row: Row) -> _Called:
        """The call whose answer goes on, or begins, at this row."""
        call = self._latest
        if call is None or not call.is_open:
            call = self._new(row)
        if call.read is None:
            call.parent, start = self._ends[-1] if self._ends else (None, 0)
            call.read = self._context[start:]
            call.model = call.model or self.model
            call.rows += self.waiting
            self.waiting = []
            if self._edits and self._edits[-1].after is None:
                self._edits[-1].after = call
        return call

    def _close(self) -> None:
        call = self._latest
        if call is None or not call.is_open:
            return
        call.is_open = False
        if call.wrote:
            self._ends.append((call.id, len(self._context)))

    def _keep(self, row: Row, leftover: Any) -> None:
        """What is left of a row goes to the call that is being written, else to the next one."""
        call = self._latest
        if call is not None and call.is_open and call.wrote:
            call.rows.append(leftover)
            call.changed = row.number
        else:
            self.waiting.append(leftover)

    # --- Usage -----------------------------------------------------------------------------------

    def _token_count(self, row: Row) -> None:
        info = row.payload.get("info")
        total = info.get("total_token_usage") if isinstance(info, dict) else None
        if not isinstance(info, dict) or not isinstance(total, dict):
            self._keep(row, self._changed(row))
            return
        if _is_same(total, self._total):
            self.notes.infer("a token count that is no call", evidence="it repeats the total before it")
            self._keep(row, self._changed(row))
            return
        last = info.get("last_token_usage")
        model = info.get("model")
        self._counted(row, total, last if isinstance(last, dict) else None, model=model)

    def _usage_record(self, row: Row) -> None:
        usage, total = row.payload.get("usage"), row.payload.get("thread_token_usage")
        if not isinstance(usage, dict):
            self._keep(row, self._whole(row))
            return
        self._counted(row, total if isinstance(total, dict) else {}, usage, exactly=True)
        response = row.payload.get("response_id")
        if self._latest is not None and isinstance(response, str):
            self._latest.provider_id = response

    def _counted(
        self,
        row: Row,
        total: dict[str, Any],
        last: dict[str, Any] | None,
        *,
        model: Any = None,
        exactly: bool = False,
    ) -> None:
        before, self._total = self._total, total or self._total
        if before is None and last is not None and total and total != last and not exactly:
            self.notes.infer("usage from before the file", evidence="a first total beyond the last call's")
            if not any(call.wrote for call in self.calls):
                self._keep(row, self._changed(row))
                return
        usage = last if exactly or (before is None and last) else _rise(total, before, last, self.notes)
        call = self._answering(row)
        call.usage, call.counted = _usage(usage), row
        call.status, call.ended_at, call.changed = "ok", row.time, row.number
        call.model = model if isinstance(model, str) else call.model
        call.rows.append(self._changed(row))
        if call.wrote:
            self._close()

    def _answering(self, row: Row) -> _Called:
        """The call that a count is of: the one being written, the last one without a count, or a new one."""
        call = self._latest
        if call is not None and call.is_open and call.wrote:
            if call.counted is not None:
                self._split(call)
            return call
        late = self._in_turn[-1] if self._in_turn else None
        if late is not None and late.wrote and late.counted is None:
            return late
        return self._new(row)

    def _split(self, call: _Called) -> None:
        """A count that stood before a call's items, and was not its own, is of a call that wrote nothing."""
        assert call.counted is not None
        self.calls.insert(
            len(self.calls) - 1,
            _Called(
                id=f"{self.thread_id}/count-{call.counted.number}",
                at=call.counted.at,
                ordinal=None,
                model=call.model,
                changed=call.counted.number,
                is_copy=call.is_copy,
                usage=call.usage,
                counted=call.counted,
                status="ok",
                ended_at=call.counted.time,
                is_open=False,
            ),
        )

    # --- Tools -----------------------------------------------------------------------------------

    def _used(self, call: _Called, row: Row) -> None:
        use = _Use(f"{call.id}/tool/{call.num_uses}", call, row.payload, row, row.number)
        call.num_uses += 1
        self._uses.append(use)
        key = row.payload.get("call_id") or row.payload.get("id")
        if isinstance(key, str):
            self._open_uses.setdefault(key, []).append(use)

    def _answered(self, row: Row) -> None:
        uses = self._open_uses.get(row.payload.get("call_id"), [])
        if not uses:
            return
        use = uses.pop(0)
        if not uses:
            del self._open_uses[row.payload["call_id"]]
        use.result, use.changed = row, row.number
        if use.call.status is None:
            # The harness runs tools of complete answers only.
            use.call.status, use.call.changed = "ok", row.number
        if use.item.get("name") == "spawn_agent":
            told = _parsed(row.payload.get("output"))
            agent = told.get("agent_id") if isinstance(told, dict) else None
            if isinstance(agent, str) and agent:
                self._spawn(agent, use)

    def _spawn_event(self, row: Row) -> None:
        self._keep(row, self._whole(row))
        agent, call_id = row.payload.get("new_thread_id"), row.payload.get("call_id")
        use = next((use for use in reversed(self._uses) if use.item.get("call_id") == call_id), None)
        if isinstance(agent, str) and agent and use is not None:
            self._spawn(agent, use)

    def _spawn(self, agent: str, use: _Use) -> None:
        arguments = _parsed(use.item.get("arguments"))
        prompt = arguments.get("message") if isinstance(arguments, dict) else None
        if not use.call.is_copy:
            self._spawns[safe_id(agent)] = {
                "spawned_by_call_id": use.call.id,
                "spawned_by_tool_call_id": use.item.get("call_id"),
                "scope_prompt": raw(prompt) if isinstance(prompt, str) else None,
            }

    # --- Compactions -----------------------------------------------------------------------------

    def _compacted(self, row: Row) -> None:
        payload = dict(row.payload)
        summarizer = self._latest
        is_summarizer = summarizer is not None and summarizer.is_open and not summarizer.wrote
        self._close()
        if is_summarizer and summarizer is not None:
            summarizer.purpose, summarizer.changed = "summarize", row.number
        history = payload.pop("replacement_history", None)
        entries = payload.get("replacement_history_entries")
        if not isinstance(history, list) and isinstance(entries, list):
            history = [one.get("item", one) if isinstance(one, dict) else one for one in entries]
        items = history if isinstance(history, list) else self._summary(row, payload)
        unread = self._context[self._ends[-1][1] if self._ends else self._own_from :]
        by_server = any(isinstance(one, dict) and one.get("type") in _SUMMARIES for one in items)
        self._edits.append(
            _Edit(
                id=f"{self.thread_id}/compaction/{len(self._edits)}",
                row=row,
                is_copy=self.is_copying,
                items=items,
                leftover={
                    **row.envelope,
                    "payload": payload,
                    "replacement_items": len(items),
                    **({"unread": unread} if unread else {}),
                },
                before=self._ends[-1][0] if self._ends else None,
                author="policy" if not by_server and payload.get("message") else None,
                author_call=summarizer.id if is_summarizer and summarizer is not None else None,
            )
        )
        self._context, self._ends, self._turns, self._own_from = list(items), [], [], len(items)

    def _summary(self, row: Row, payload: dict[str, Any]) -> list[Any]:
        """The context after a compaction of a version that does not write it down: the summary at least."""
        self.notes.infer("context after a compaction", evidence="its summary; the rest of it is not recorded")
        text = payload.get("message")
        if not isinstance(text, str) or not text:
            return []
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]

    # --- What is left ----------------------------------------------------------------------------

    def _whole(self, row: Row) -> dict[str, Any]:
        return row.envelope if row.payload is None else {**row.envelope, "payload": row.payload}

    def _changed(self, row: Row) -> dict[str, Any]:
        """A row without the fields that are as in the row of its type before it; null: now absent."""
        if not isinstance(row.payload, dict):
            return self._whole(row)
        before = self._same.get(row.name, {})
        self._same[row.name] = row.payload
        new = {
            name: one
            for name, one in row.payload.items()
            if name not in before or not _equal(before[name], one)
        }
        gone = dict.fromkeys(before.keys() - row.payload.keys())
        return {**row.envelope, "payload": {**new, **gone}} if new or gone else row.envelope

    # --- Events ----------------------------------------------------------------------------------

    def revision(self, number: int) -> int:
        """The revision of an event that the row of this number was the last to change."""
        return 2 * (number + 1) + self.is_linked

    def events(self) -> Iterator[Item]:
        """The events of everything that is the thread's own."""
        for call in self.calls:
            if not call.is_copy:
                yield from self._made(self._call, call, call.at)
        for use in self._uses:
            if not use.call.is_copy:
                yield from self._made(self._tool_call, use, use.row.at)
        for edit in self._edits:
            if not edit.is_copy:
                yield from self._made(self._edit, edit, edit.row.at)
        for agent, fields in self._spawns.items():
            yield made(
                Agent,
                id=agent,
                episode_id=self.episode_id,
                phase="start",
                parent_agent_id=self.thread_id,
                role="subagent",
                **fields,
            )
        for use in self._gaps.values():
            if not use.call.is_copy:
                yield self._gap(
                    f"{use.id}/result", "tool_result_missing", "a new turn began before it", use.call.id
                )

    def _made(self, make: Callable[[Any], Item], thing: Any, at: str) -> Iterator[Item]:
        return guarded(map(make, (thing,)), at=at, notes=self.notes)

    def _call(self, call: _Called) -> Item:
        request: dict[str, Any] | None = None
        if call.read is not None:
            request = {"model": call.model} if call.model else {}
            if self.instructions is not None and call.parent is None:
                request["instructions"] = self.instructions
            request["input"] = call.read
        texts = _texts([*(call.read or ()), *call.wrote])
        body: dict[str, Any] = {"message": raw(call.wrote), "partial": call.status == "aborted" or None}
        return made(
            Call,
            id=call.id,
            revision=self.revision(call.changed),
            episode_id=self.episode_id,
            agent_id=self.thread_id,
            ordinal=call.ordinal,
            purpose=call.purpose,
            model=call.model,
            provider_id=call.provider_id,
            dialect="openai_responses",
            request=None if request is None else raw(request),
            context="whole" if call.parent is None else "delta",
            parent_call_id=call.parent,
            completions=(CompletionBody(**{k: v for k, v in body.items() if v is not None}),)
            if call.wrote
            else None,
            usage=call.usage,
            status=call.status,
            error=None if call.error is None else CallError(message=call.error),
            ended_at=call.ended_at,
            meta=left("codex", {"rows": [_without(row, texts) for row in call.rows]} if call.rows else None),
        )

    def _tool_call(self, use: _Use) -> Item:
        output = None if use.result is None else use.result.payload.get("output", use.result.payload)
        success = output.get("success") if isinstance(output, dict) else None
        exit_status = _exit_status(output)
        arguments = use.item.get("arguments", use.item.get("input", use.item.get("action")))
        is_done = use.result is not None
        return made(
            ToolCall,
            id=use.id,
            revision=self.revision(use.changed),
            episode_id=self.episode_id,
            call_id=use.call.id,
            tool_call_id=text_or_none(use.item.get("call_id") or use.item.get("id")),
            name=text_or_none(use.item.get("name")) or text_or_none(use.item.get("type")),
            arguments=arguments if isinstance(arguments, str | None) else str(raw(arguments), "ascii"),
            result=None if not is_done else raw(output),
            status="cancelled" if use.is_cancelled else {True: "ok", False: "failed"}.get(success),  # type: ignore[arg-type]
            exit_status=exit_status,
            started_at=use.row.time,
            ended_at=None if use.result is None else use.result.time,
        )

    def _edit(self, edit: _Edit) -> Item:
        after = edit.after if edit.after is not None and not edit.after.is_copy else None
        rest = dict(edit.leftover)
        if after is None:
            rest["replacement_history"] = edit.items
        return made(
            ContextEdit,
            id=edit.id,
            revision=self.revision(edit.row.number if after is None else edit.row.number + 1),
            episode_id=self.episode_id,
            agent_id=self.thread_id,
            edit="compaction",
            at=edit.row.time,
            author=edit.author,
            author_call_id=edit.author_call,
            before_call_id=edit.before,
            after_call_id=None if after is None else after.id,
            status="accepted",
            meta=left("codex", rest),
        )

    def _gap(self, id_: str, cause: str, detail: str, call_id: str | None = None) -> Item:
        return made(
            Gap,
            id=id_,
            episode_id=self.episode_id,
            agent_id=self.thread_id,
            call_id=call_id,
            cause=cause,
            detail=detail,
        )


def _rise(
    total: dict[str, Any], before: dict[str, Any] | None, last: dict[str, Any] | None, notes: Notes
) -> dict[str, Any]:
    """What a call used: by how much the total rose."""
    rise = {name: _int(total.get(name)) - _int((before or {}).get(name)) for name in total}
    if any(value < 0 for value in rise.values()):
        notes.warn("a total of tokens that falls: the usage is that of the last call")
        return last or {}
    if last is not None and any(rise.get(name) != _int(last.get(name)) for name in rise):
        notes.infer("usage of a call", evidence="the rise of the total, which is not last_token_usage")
    return rise


def _is_same(total: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Whether two totals are equal in what both state."""
    both = total.keys() & (before or {}).keys()
    return bool(both) and all(_equal(total[name], (before or {})[name]) for name in both)


def _usage(counts: dict[str, Any] | None) -> Usage | None:
    known = {
        ours: counts[theirs]
        for ours, theirs in _USAGE
        if counts and isinstance(counts.get(theirs), int) and counts[theirs] >= 0
    }
    return counted(**known)


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _equal(one: Any, other: Any) -> bool:
    # 1 == True and 1 == 1.0 in Python, not in JSON.
    return one == other and (isinstance(one, str) or repr(one) == repr(other))


def _parsed(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return exact.loads(text)
    except (ValueError, RecursionError):
        return None


def _exit_status(output: Any) -> int | None:
    """The exit status that versions of 2025 wrote into the text of an output."""
    if not isinstance(output, str) or not output.startswith("{"):
        return None
    told = _parsed(output)
    metadata = told.get("metadata") if isinstance(told, dict) else None
    status = metadata.get("exit_code") if isinstance(metadata, dict) else None
    return status if isinstance(status, int) and not isinstance(status, bool) else None


def _texts(items: list[Any]) -> set[str]:
    """The texts that items say."""
    found: set[str] = set()
    for item in items:
        if isinstance(item, dict):
            for part in (*as_list(item.get("content")), *as_list(item.get("summary"))):
                if isinstance(part, dict) and isinstance(part.get("text"), str):
                    found.add(part["text"])
    return found


def _without(row: Any, texts: set[str]) -> Any:
    """What is left of a row, without a text that an item says too."""
    payload = row.get("payload") if isinstance(row, dict) else None
    if not isinstance(payload, dict) or row.get("type") != "event_msg":
        return row
    told = [name for name in _TEXT_OF_EVENTS if isinstance(payload.get(name), str) and payload[name] in texts]
    return {**row, "payload": {k: v for k, v in payload.items() if k not in told}} if told else row
