"""Message streams of the Claude Agent SDK and of `claude -p --output-format stream-json` -> an episode a run.

Facts, from recordings of versions 1.0.100 to 2.1.84 and from the SDK's documentation:

- A message is `{type, session_id, uuid, parent_tool_use_id, message, ...}`; `type` is system (`subtype` init,
  compact_boundary, task_started, api_retry, ...), assistant, user, result, stream_event, tool_progress,
  rate_limit_event and others. They come as JSON lines (what the command prints), as a YAML or JSON document
  `{messages: [...]}` (recordings of tests), or there each inside `{direction: send | recv, message}`.
- Run: the messages of one `session_id` in one file. What an SDK sends is of session "default": it is of the
  session around it. A session that is resumed in another file is another run, since nothing orders the two;
  and a run is never the session as Claude Code itself writes it (`claude_code`), which has more.
- Calls are made of assistant messages as in `claude_code`: those of one `message.id` are fragments. Order is
  the order of the stream; each agent has its own, by `parent_tool_use_id`, the tool use that spawned it.
- Usage: a message is printed when its first block is complete, with the usage of that moment, so without a
  stop reason its output tokens are none of the call's; they stay in meta. The last count comes with the
  `message_delta` of stream events, where these are printed (`--include-partial-messages`), else only in
  the total of `result`: a gap.
- Stream events say again what the messages say. What came of a message that never did is in the call, which
  was aborted; of all of them the call's meta has number and digest.
- The user's prompt is printed only where the SDK recorded what it sent, or `--replay-user-messages` was on:
  else a gap. System prompt and tools are not there, only the tools' names (init).
- `result` ends a turn: status, text and totals of the main agent are those of the last one.
- control_request and control_response are the SDK's own talk with the command: noted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tracestore.importers import streams
from tracestore.importers.cassettes import from_yaml
from tracestore.importers.claude_code_events import Conversion, Spawned
from tracestore.importers.claude_code_rows import MAIN, Row, Session, Unit, kind_of, text_of, units_of
from tracestore.importers.documents import MAX_RECORD_BYTES, Record, records
from tracestore.importers.exchanges import as_json
from tracestore.importers.format import Format, Head, Source, Sources
from tracestore.importers.guard import as_dict, as_list
from tracestore.importers.items import Item, content_id, made, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.sources import DAMAGED
from tracestore.importers.spool import Spool
from tracestore.wire.encode import encode
from tracestore.wire.gap import Gap

_NAME = "claude-agent-sdk"
_CONTROL = ("control_request", "control_response", "control_cancel_request", "keep_alive")
_NO_SESSION = ("", "default")
_YAML = re.compile(rb"(?:\s|---.*\n|#.*\n)*messages:\s*\n\s*- ")
_YAML_MARKS = (b"type: control_response", b"subtype: init", b"type: stream_event", b"type: system")
_STATUSES = {
    "success": "ok",
    "error_max_turns": "budget_exhausted",
    "error_max_budget_usd": "budget_exhausted",
}
"""Subtype of a result -> how its agent ended. Other errors are failures."""


# --- Recognition -----------------------------------------------------------------------------------


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str) or "sessionId" in value:
        return False
    kind = value["type"]
    if kind in ("control_request", "control_response"):
        return "request" in value or "response" in value
    if not isinstance(value.get("session_id"), str):
        return False
    if kind in ("user", "assistant"):
        return isinstance(value.get("message"), dict)
    return kind in ("result", "stream_event") or (kind == "system" and "subtype" in value)


def _is_recording(value: Any) -> bool:
    messages = as_list(as_dict(value).get("messages"))
    return any(_is_message(_unwrapped(one)) for one in messages[:20])


def _unwrapped(value: Any) -> Any:
    """A message of a recording that tells its direction."""
    if isinstance(value, dict) and "direction" in value and isinstance(value.get("message"), dict):
        return {**value["message"], **{name: one for name, one in value.items() if name != "message"}}
    return value


def _recognises(head: Head) -> bool:
    if _YAML.match(head.data):
        return any(mark in head.data for mark in _YAML_MARKS)
    return _is_recording(head.first) or any(map(_is_message, head.records))


# --- Reading ---------------------------------------------------------------------------------------


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """The episodes of the sources, one run at a time."""
    for source in sources:
        shelf = Spool()
        runs = _Runs()
        for record in _messages(source, notes):
            for run, one in runs.of(record):
                shelf.add(run, one, source=source.name)
        for run, one in runs.ended():
            shelf.add(run, one, source=source.name)
        for run in shelf.keys():  # noqa: SIM118 - a Spool is no mapping
            yield from _Run(run, notes).items([record for _, record in shelf.of(run)])


def _messages(source: Source, notes: Notes) -> Iterator[Record]:
    for record in _records(source, notes):
        if not _is_recording(record.value):
            yield record
            continue
        for one in record.value["messages"]:
            message = _unwrapped(one)
            yield replace(record, value=message, text=bytes(raw(message)))
        rest = {name: one for name, one in record.value.items() if name != "messages"}
        if rest:
            notes.leftover(f"{_NAME}: head of a recording", rest, at=record.at)


def _records(source: Source, notes: Notes) -> Iterator[Record]:
    if source.head().lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n")[:1] in (b"{", b"["):
        yield from records(source, notes=notes)
        return
    try:
        with source.open() as stream:
            text = stream.read(MAX_RECORD_BYTES + 1)
        if len(text) > MAX_RECORD_BYTES:
            raise ValueError(f"longer than {MAX_RECORD_BYTES:,} bytes")
        value = as_json(from_yaml(text))
        yield Record(value, source.name, 1, bytes(raw(value)))
    except RecursionError:
        notes.refuse(source.name, "nested too deeply")
    except ValueError as error:
        notes.refuse(source.name, error)
    except DAMAGED as error:
        notes.refuse(source.name, f"damaged: {error}")


@dataclass
class _Runs:
    """Gives each message of a file to its run: what names no session is of the one before, or the first."""

    current: str | None = None
    _waiting: list[Record] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    """Session -> the id of its run."""

    def of(self, record: Record) -> Iterator[tuple[str, Record]]:
        """(run, message) of this one, and of those that waited for it."""
        session = record.value.get("session_id") if isinstance(record.value, dict) else None
        if not isinstance(session, str) or session in _NO_SESSION:
            if self.current is None:
                self._waiting.append(record)
            else:
                yield self.current, record
            return
        if session not in self._names:
            first = self._waiting[0] if self._waiting else record
            self._names[session] = safe_id(f"{session}/{content_id('run', first.value)}")
        self.current = self._names[session]
        yield from ((self.current, one) for one in (*self._waiting, record))
        self._waiting = []

    def ended(self) -> Iterator[tuple[str, Record]]:
        """The messages of a file that names no session."""
        if self._waiting:
            run = content_id(_NAME, self._waiting[0].value)
            yield from ((run, one) for one in self._waiting)


# --- Runs ------------------------------------------------------------------------------------------


@dataclass
class _Streamed:
    """The stream events of one message."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    index: int = 0
    """Place of the last one."""
    at: str = ""

    @property
    def events(self) -> list[dict[str, Any]]:
        return [as_dict(row.get("event")) for row in self.rows]


class _Run:
    """The messages of one run on their way to rows."""

    def __init__(self, run: str, notes: Notes) -> None:
        self._id = run
        self._notes = notes
        self._rows: list[tuple[int, Row]] = []
        self._streams: dict[tuple[str, str], _Streamed] = {}
        self._open: dict[str, _Streamed] = {}
        """Thread -> the message that is being streamed in it."""
        self._values: dict[str, Any] = {}

    def items(self, messages: list[Record]) -> Iterator[Item]:
        """The events of the run."""
        for index, record in enumerate(messages):
            self._take(index, record)
        counts: dict[int, int] = {}
        for (thread, message_id), streamed in self._streams.items():
            row = self._fragment(thread, message_id, streamed)
            counts[id(row)] = len(streamed.rows)
            self._rows.append((streamed.index, row))
        rows = [row for _, row in sorted(self._rows, key=lambda one: one[0])]
        if not rows:
            return
        self._notes.infer("the order of an agent's messages", evidence="their order in the stream")
        units, by_use = units_of(self._id, _chained(rows))
        by_uuid = {row.uuid: row for row in rows if row.uuid is not None}
        session = Session(self._id, rows, units, by_uuid, by_use)
        yield from _Conversion(session, self._notes, counts=counts).items()
        yield from self._gaps(units)

    def _gaps(self, units: list[Unit]) -> Iterator[Item]:
        first = next((unit for unit in units if unit.thread == MAIN), None)
        if first is not None and not any(
            row.kind == "message" and row.thread == MAIN and row.index < first.first.index
            for _, row in self._rows
        ):
            yield self._gap("missing_prompt", "what the user asked is not in the stream")
        streamed = {message_id for _, message_id in self._streams}
        if any(
            unit.key not in streamed and all(row.message.get("stop_reason") is None for row in unit.rows)
            for unit in units
            if not unit.is_failed
        ):
            yield self._gap("usage_not_recorded", "output tokens of the calls; the result has their total")

    def _gap(self, cause: str, detail: str) -> Item:
        gap_id = safe_id(f"{self._id}/{cause}")
        return made(Gap, id=gap_id, episode_id=self._id, cause=cause, detail=detail)

    def _take(self, index: int, record: Record) -> None:
        value = record.value
        if not isinstance(value, dict):
            self._notes.refuse(record.at, "no message: it is no object")
            self._notes.leftover(f"{_NAME}: no message", value, at=record.at)
            return
        kind, label = value.get("type"), _label(value)
        self._notes.rows[f"{_NAME}/{label}"] += 1
        is_wrong = kind in ("user", "assistant") and not isinstance(value.get("message"), dict)
        if is_wrong:
            self._notes.refuse(record.at, "a message without content")
        if is_wrong or kind in _CONTROL or not isinstance(kind, str):
            self._notes.leftover(f"{_NAME}: {label}", value, at=record.at)
        elif kind == "stream_event":
            self._stream(index, record)
        elif self._is_new(record):
            thread = text_of(value, "parent_tool_use_id") or MAIN
            is_failed = kind == "assistant" and isinstance(value.get("error"), str)
            row_kind = "failure" if is_failed else kind_of(value)
            self._rows.append((index, Row(_at_its_start(value), record.at, row_kind, thread=thread)))

    def _is_new(self, record: Record) -> bool:
        """Whether a message was not there before: what is sent may be printed again."""
        uuid = text_of(record.value, "uuid")
        if uuid is None or uuid not in self._values:
            self._values[uuid or ""] = record.value
            return True
        if self._values[uuid] != record.value:
            self._notes.leftover(f"{_NAME}: another message of a known uuid", record.value, at=record.at)
        return False

    def _stream(self, index: int, record: Record) -> None:
        value = record.value
        event, thread = as_dict(value.get("event")), text_of(value, "parent_tool_use_id") or MAIN
        if event.get("type") == "message_start":
            message_id = text_of(as_dict(event.get("message")), "id") or content_id("message", value)
            self._open[thread] = self._streams.setdefault((thread, message_id), _Streamed())
        if thread not in self._open:
            self._notes.leftover(f"{_NAME}: stream event of no message", value, at=record.at)
            return
        streamed = self._open[thread]
        streamed.rows.append(value)
        streamed.index, streamed.at = index, record.at

    def _fragment(self, thread: str, message_id: str, streamed: _Streamed) -> Row:
        """What the stream events of a message say beyond its messages, as one more fragment of it."""
        answer = streams.assembled(streamed.events)
        message: dict[str, Any] = {"id": message_id, "role": "assistant"}
        choice = answer.choices[0] if answer is not None and answer.choices else None
        if choice is not None:
            message["content"] = choice.message["content"][self._num_told(thread, message_id) :]
            message |= {"stop_reason": choice.finish_reason} if choice.finish_reason is not None else {}
        ends = [event for event in streamed.events if event.get("type") == "message_delta"]
        starts = [as_dict(event.get("message")) for event in streamed.events[:1]]
        if starts and starts[0].get("model") is not None:
            message["model"] = starts[0]["model"]
        if ends and isinstance(ends[-1].get("usage"), dict):
            message["usage"] = {**as_dict(starts[0].get("usage")), **ends[-1]["usage"]}
        told = {"num": len(streamed.rows), "digest": content_id("events", streamed.rows)}
        value: dict[str, Any] = {"type": "assistant", "message": message, "stream_events": told}
        if choice is None or choice.partial:
            value["is_cut"] = True
        return Row(value, streamed.at, "answer", thread=thread)

    def _num_told(self, thread: str, message_id: str) -> int:
        """How many blocks of a message its messages have."""
        return sum(
            len(as_list(row.message.get("content")))
            for _, row in self._rows
            if row.thread == thread and row.message.get("id") == message_id
        )


def _label(value: dict[str, Any]) -> str:
    kind, subtype = value.get("type"), value.get("subtype")
    name = kind if isinstance(kind, str) else "(no type)"
    return f"{name} {subtype}" if kind == "system" and isinstance(subtype, str) else name


def _at_its_start(value: dict[str, Any]) -> dict[str, Any]:
    """An assistant message whose count of output tokens is that of the moment when it began, set apart."""
    message = as_dict(value.get("message"))
    usage = message.get("usage")
    if (
        value.get("type") != "assistant"
        or message.get("stop_reason") is not None
        or "output_tokens" not in as_dict(usage)
    ):
        return value
    rest = as_dict(usage)
    so_far = rest.pop("output_tokens")
    return {**value, "message": {**message, "usage": rest}, "output_tokens_so_far": so_far}


def _chained(rows: list[Row]) -> list[Row]:
    """Link every row to the one before it in its thread; a boundary begins a new context."""
    last: dict[str, Row] = {}
    depths: dict[str, int] = defaultdict(int)
    for index, row in enumerate(rows):
        row.index = index
        before = last.get(row.thread)
        if row.is_boundary:
            row.before = before
        else:
            row.parent = before
        depths[row.thread] += 1
        row.depth = depths[row.thread]
        last[row.thread] = row
    return rows


@dataclass
class _Conversion(Conversion):
    """A run as a session of Claude Code: only what a stream tells otherwise is told here."""

    counts: dict[int, int] = field(default_factory=dict)
    """id of the row made of a message's stream events -> how many they are."""

    def _num_streamed(self, unit: Unit) -> int:
        return sum(self.counts.get(id(row), 0) for row in unit.rows)

    def _revision(self, unit: Unit, stop: Row | None) -> int:
        return unit.first.depth + len(unit.rows) + self._num_streamed(unit)

    def _told(self, rows: list[Row]) -> int:
        return len(rows)

    def _interruption(self, unit: Unit) -> Row | None:
        last = unit.rows[-1]
        return last if last.value.get("is_cut") is True else None

    def _tool_start(self, unit: Unit, row: Row, use: dict[str, Any], place: int) -> Item:
        item = super()._tool_start(unit, row, use, place)
        if not self._num_streamed(unit):
            return item
        # Its arguments may be cut: the more events it is made of, the truer it is.
        event = item.event.model_copy(update={"revision": self._num_streamed(unit)})
        return Item(event, encode(event, arrays="base64"))

    def _from_results(self, found: dict[str, Spawned]) -> None:
        for thread, one in found.items():
            one.use = self._used(thread)
            answers = self._answers.get(thread)
            one.answer = answers[0] if answers else None

    def _outcome(self, rows: list[Row]) -> dict[str, Any]:
        results = [row.value for row in rows if row.value.get("type") == "result"]
        if not results:
            return {}
        last = results[-1]
        is_failed = last.get("is_error") is True or last.get("subtype") != "success"
        status = _STATUSES.get(str(last.get("subtype")), "failed")
        text = text_of(last, "result")
        errors = [one for one in as_list(last.get("errors")) if isinstance(one, str)]
        return {
            "status": "failed" if is_failed and status == "ok" else status,
            "return_message": None if text is None or is_failed else raw(text),
            "error": ("; ".join(errors) or text or text_of(last, "subtype")) if is_failed else None,
        }


FORMAT = Format(_NAME, "message streams of the Claude Agent SDK and of claude -p", _recognises, read)
