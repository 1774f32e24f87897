"""Records of one Claude Code session -> its rows in order, each in the thread of its agent, linked to the row
before it.

A file tells the links by `parentUuid`. Where it does not (see `claude_code`), they are concluded, and every
conclusion is noted with its evidence. A row's parent, thread and place depend on earlier rows alone, so that
a file that grows changes none of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Literal

from tracestore.importers.documents import Record
from tracestore.importers.items import content_id, nanoseconds, safe_id
from tracestore.importers.notes import Notes

MAIN = ""
"""Thread of the main agent; the others have the id of their agent."""
SYNTHETIC = "<synthetic>"
"""Model of messages that the harness wrote itself."""
_CLEAR = "<command-name>/clear</command-name>"
_ACOMPACT = "acompact"
MIN_COPIED_SHARE = 0.9

Kind = Literal["message", "answer", "failure", "aside", "link"]


@dataclass(eq=False, slots=True)
class Row:
    """One row of a session."""

    value: dict[str, Any]
    at: str
    kind: Kind
    """message: the model reads it. answer: a fragment of what it wrote. failure: of a call that failed.
    aside: the harness' own, kept beside the call that it stands before. link: a place in the chain alone,
    whose words go to the notes."""
    thread: str = MAIN
    index: int = 0
    parent: Row | None = None
    before: Row | None = None
    """Of a row where a new context begins: the last one of the old context."""
    depth: int = 0
    """Rows above it, those of earlier contexts included."""
    origin: str | None = None
    """The session that this row was copied from; None: it is of its own session."""
    unit: Unit | None = None
    """The call that an answer or a failure is of."""
    is_carried: bool = False
    """It came inside a progress row."""
    is_placed: bool = False
    """What it says beside its message stands in an event."""
    is_read: bool = False
    """Its message stands in a call."""

    @property
    def file(self) -> str:
        return self.at.rsplit(", line ", 1)[0]

    @property
    def uuid(self) -> str | None:
        return text_of(self.value, "uuid")

    @property
    def message(self) -> dict[str, Any]:
        message = self.value.get("message")
        return message if isinstance(message, dict) else {}

    @property
    def time(self) -> int | None:
        return nanoseconds(self.value.get("timestamp"))

    @property
    def is_boundary(self) -> bool:
        return self.kind == "aside" and self.value.get("subtype") == "compact_boundary"

    @property
    def is_clearing(self) -> bool:
        return self.kind == "aside" and self.value.get("subtype") == "microcompact_boundary"

    @property
    def is_summary(self) -> bool:
        return self.kind == "message" and self.value.get("isCompactSummary") is True

    @property
    def is_clear(self) -> bool:
        content = self.message.get("content")
        return self.kind == "message" and isinstance(content, str) and content.startswith(_CLEAR)

    @property
    def results(self) -> list[dict[str, Any]]:
        """The tool results that it carries."""
        return [b for b in blocks_of(self.message) if b.get("type") == "tool_result"]


@dataclass(eq=False, slots=True)
class Unit:
    """One model call: the rows that share its message id, which are fragments of one answer."""

    key: str
    thread: str
    session: str
    """The session that it was made in."""
    rows: list[Row]
    is_failed: bool = False

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def uses(self) -> list[tuple[Row, dict[str, Any]]]:
        """Its tool uses, each once, with the row that each stands in."""
        found: list[tuple[Row, dict[str, Any]]] = []
        for row in self.rows:
            for block in blocks_of(row.message):
                if block.get("type") == "tool_use" and all(block != known for _, known in found):
                    found.append((row, block))
        return found


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows that a compaction sent again after its summary, as its boundary says."""

    boundary: Row
    anchor: Row
    """The row that they follow in the new context."""
    rows: tuple[Row, ...]
    """In order."""
    ids: frozenset[int]
    """id of each of them."""


@dataclass
class Thread:
    """What is known of one agent's rows while they are linked in order."""

    last: Row | None = None
    is_linked: bool = False
    """A row of it named its parent."""
    has_loose_answer: bool = False
    """An answer of it named none: this writer does not tell links."""
    open: Row | None = None
    """The newest summary or boundary, as long as no message follows it."""


@dataclass
class Session:
    """The rows of one session, linked."""

    id: str
    rows: list[Row]
    units: list[Unit]
    by_uuid: dict[str, Row]
    by_use: dict[str, Unit]
    """Tool use id -> the call that it is of."""
    kept: list[Kept] = field(default_factory=list)
    summarizers: frozenset[str] = frozenset()
    """Threads that wrote a summary of the main thread."""
    sidecars: list[tuple[str, Record]] = field(default_factory=list)
    """(file, record) of what tells about agents beside their rows."""

    def lineage(self, row: Row) -> Iterator[Row]:
        """The rows before a row as the model read them, newest first, up to where its context begins.

        A boundary that kept rows sends them again: for rows after it they follow its anchor.
        """
        segments = [kept for kept in self.kept if kept.boundary.index < row.index]
        seen: set[int] = set()
        current = row.parent
        while current is not None and id(current) not in seen:
            kept = next((k for k in reversed(segments) if current is k.anchor or id(current) in k.ids), None)
            if kept is not None:
                segments = [other for other in segments if other.boundary.index < kept.boundary.index]
                place = len(kept.rows) if current is kept.anchor else kept.rows.index(current) + 1
                for again in reversed(kept.rows[:place]):
                    seen.add(id(again))
                    yield again
                current = kept.anchor
            seen.add(id(current))
            yield current
            if begins_context(current):
                return
            current = current.parent

    def unit_before(self, row: Row | None) -> Unit | None:
        """The newest call that answered, at or before a row."""
        if row is None:
            return None
        for one in chain((row,), self.lineage(row)):
            if one.unit is not None and not one.unit.is_failed:
                return one.unit
        return None


def begins_context(row: Row) -> bool:
    """Whether the model reads nothing of what stands before a row."""
    return row.is_boundary or row.before is not None


def text_of(value: dict[str, Any], name: str) -> str | None:
    """A field that is a non-empty string; None otherwise."""
    text = value.get(name)
    return text if isinstance(text, str) and text else None


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The content blocks of a message; none where its content is text."""
    content = message.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


# --- Files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """What the path of a file says."""

    folder: str | None
    """The path of its session's file without `.jsonl`, for a file under `<session>/subagents`."""
    agent: str | None
    """`agent-<id>.jsonl` (or its `.meta.json`) names its agent."""
    workflow: str | None
    """`subagents/workflows/<id>` names the workflow that ran it."""

    @property
    def session(self) -> str | None:
        return None if self.folder is None else PurePosixPath(self.folder).name


@lru_cache(maxsize=64)
def place_of(name: str) -> Place:
    """What a file's name says: `.../<session>/subagents/[workflows/<id>/]agent-<id>.jsonl`."""
    path = PurePosixPath(name.replace("\\", "/"))
    agent = path.name.split(".")[0].removeprefix("agent-") if path.name.startswith("agent-") else None
    parts = path.parts
    if "subagents" not in parts[1:-1]:
        return Place(None, agent, None)
    at = len(parts) - 1 - parts[::-1].index("subagents")
    workflow = parts[at + 2] if parts[at + 1] == "workflows" and len(parts) > at + 3 else None
    return Place(str(PurePosixPath(*parts[:at])), agent, workflow)


def is_sidecar(value: Any) -> bool:
    """Whether a record tells about an agent and is no row: a `.meta.json`, or a line of a journal."""
    if not isinstance(value, dict) or "message" in value or "uuid" in value:
        return False
    is_meta = isinstance(value.get("agentType"), str) and "type" not in value
    return is_meta or (value.get("type") in ("started", "result") and {"key", "agentId"} <= value.keys())


def in_order(files: Iterable[Sequence[tuple[str, Record]]]) -> list[tuple[str, Record]]:
    """The records of several files of one session, whatever the order in which the files came.

    A file with earlier rows goes first, and what is at its end continues in the next.
    """

    def key(file: Sequence[tuple[str, Record]]) -> tuple[int, bytes]:
        times = (nanoseconds(r.value.get("timestamp")) for _, r in file if isinstance(r.value, dict))
        return next((time for time in times if time is not None), 2**63), file[0][1].text

    return [one for file in sorted((file for file in files if file), key=key) for one in file]


# --- Rows --------------------------------------------------------------------------------------------------


def kind_of(value: dict[str, Any]) -> Kind:
    """What a row is, by its type; by the role of its message where it states none."""
    message = value.get("message")
    role = message.get("role") if isinstance(message, dict) else None
    kind = value.get("type", role)
    if kind == "progress":
        return "link"
    if not isinstance(message, dict) or kind not in ("user", "assistant"):
        return "aside"
    if kind == "user":
        return "message"
    if value.get("isApiErrorMessage") is True:
        return "failure"
    return "message" if message.get("model") == SYNTHETIC else "answer"


def _carried(value: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    """The row inside an `agent_progress` row, and its agent."""
    data = value.get("data")
    if value.get("type") != "progress" or not isinstance(data, dict) or data.get("type") != "agent_progress":
        return None
    inner, agent = data.get("message"), text_of(data, "agentId")
    if agent is None or not isinstance(inner, dict) or not isinstance(inner.get("message"), dict):
        return None
    return inner, agent


class _Rows:
    """Records -> rows, each once."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._loose: Counter[tuple[str, bytes]] = Counter()
        self._seen_loose: set[tuple[bytes, int]] = set()
        self._values: dict[str, Any] = {}
        self._rows: list[Row] = []
        self.sidecars: list[tuple[str, Record]] = []

    def add(self, name: str, record: Record) -> None:
        value = record.value
        if is_sidecar(value):
            self.sidecars.append((name, record))
        elif self._is_new(name, record):
            row = Row(value, record.at, kind_of(value), thread=self._stated_thread(name, value))
            self._rows.append(row)
            inner = _carried(value)
            if inner is not None:
                carried = Row(inner[0], record.at, kind_of(inner[0]), thread=inner[1], is_carried=True)
                self._rows.append(carried)

    def _is_new(self, name: str, record: Record) -> bool:
        uuid = text_of(record.value, "uuid")
        if uuid is None:
            self._loose[name, record.text] += 1
            mark = (record.text, self._loose[name, record.text])
            is_new = mark not in self._seen_loose
            self._seen_loose.add(mark)
            return is_new
        if uuid not in self._values:
            self._values[uuid] = record.value
            return True
        if self._values[uuid] != record.value:
            self._notes.warn("two rows of one uuid: the first holds")
            self._notes.leftover(f"{NAME}: another row of a known uuid", record.value, at=record.at)
        return False

    @staticmethod
    def _stated_thread(name: str, value: dict[str, Any]) -> str:
        place = place_of(name)
        in_folder = place.folder is not None
        is_side = value.get("isSidechain") is True or in_folder
        return (text_of(value, "agentId") or place.agent or _UNSTATED) if is_side else MAIN

    def done(self) -> list[Row]:
        """The rows, those of progress rows left out where a file of the agent has them."""
        said = {(row.thread, _signature(row)) for row in self._rows if not row.is_carried}
        kept: list[Row] = []
        for row in self._rows:
            if row.is_carried:
                if row.uuid in self._values or (row.thread, _signature(row)) in said:
                    continue
                if row.uuid is not None:
                    self._values[row.uuid] = row.value
            row.index = len(kept)
            kept.append(row)
        return kept


NAME = "claude-code"
_UNSTATED = "?"
"""Thread of a sidechain row that names no agent, until it is found by its parents."""


def _signature(row: Row) -> str:
    """What tells the same message in two threads: its id, else its content."""
    return text_of(row.message, "id") or content_id("message", row.message.get("content"))


def _threads(rows: list[Row], by_uuid: dict[str, Row]) -> None:
    """Give sidechain rows that name no agent the thread of their parent; a root begins one."""
    for row in rows:
        if row.thread != _UNSTATED:
            continue
        parent = by_uuid.get(text_of(row.value, "parentUuid") or "")
        inherited = parent.thread if parent is not None and parent.thread not in (MAIN, _UNSTATED) else None
        row.thread = inherited or row.uuid or content_id("row", row.value)


def _summarizers(rows: list[Row], by_uuid: dict[str, Row], notes: Notes) -> tuple[list[Row], frozenset[str]]:
    """The rows without those that an `agent-acompact-*` thread copied from the main thread.

    Such a thread re-emits the conversation and asks for a summary. It is taken for one where at least
    MIN_COPIED_SHARE of its messages before its own question are messages of the main thread.
    """
    found = set()
    dropped: set[int] = set()
    for thread in sorted({row.thread for row in rows if row.thread.startswith(_ACOMPACT)}):
        originals: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row.thread == MAIN and row.kind in ("message", "answer"):
                originals[_signature(row)].append(row)
        spoken = [row for row in rows if row.thread == thread and row.kind in ("message", "answer")]
        copies: list[tuple[Row, Row]] = []
        for row in spoken:
            same = originals[_signature(row)]
            if same:
                copies.append((row, same[0] if row.kind == "answer" and len(same) == 1 else same.pop(0)))
        copied = {id(row) for row, _ in copies}
        last = max((place for place, row in enumerate(spoken) if id(row) in copied), default=-1)
        if last < 0 or len(copies) < MIN_COPIED_SHARE * (last + 1):
            continue
        notes.infer("a compaction's own thread", evidence="its messages are those of the main thread")
        found.add(thread)
        for row, original in copies:
            notes.leftover(f"{NAME}: row copied for a compaction", row.value, at=row.at)
            dropped.add(id(row))
            if row.uuid is not None:
                by_uuid[row.uuid] = original
    return [row for row in rows if id(row) not in dropped], frozenset(found)


def units_of(session: str, rows: list[Row]) -> tuple[list[Unit], dict[str, Unit]]:
    """The calls of the rows, in order of their first, and tool use id -> its call."""
    units: dict[tuple[str, str], Unit] = {}
    by_use: dict[str, Unit] = {}
    loose: Counter[str] = Counter()
    for row in rows:
        if row.kind not in ("answer", "failure"):
            continue
        key = row.uuid if row.kind == "failure" else text_of(row.message, "id") or row.uuid
        if key is None:
            key = content_id("answer", row.value)
            loose[key] += 1
            key = key if loose[key] == 1 else f"{key}-{loose[key]}"
        unit = units.get((row.thread, key))
        if unit is None:
            made_in = session if row.origin is None else row.origin
            unit = units[row.thread, key] = Unit(
                key, row.thread, made_in, [], is_failed=row.kind == "failure"
            )
        unit.rows.append(row)
        row.unit = unit
        for block in blocks_of(row.message):
            if block.get("type") == "tool_use" and isinstance(block.get("id"), str):
                by_use.setdefault(block["id"], unit)
    return list(units.values()), by_use


# --- Links -------------------------------------------------------------------------------------------------

Donor = Callable[[str], Row | None]
"""uuid -> the row of it in another session that lies in the same file."""


def linked(
    session: str,
    records: Iterable[tuple[str, Record]],
    *,
    copied: dict[str, str],
    donor: Donor,
    notes: Notes,
) -> Session:
    """The rows of a session, from its records in order.

    Args:
        copied: uuid -> the session that its row was copied from.
        donor: finds a parent that is a row of another session.
    """
    collected = _Rows(notes)
    for name, record in records:
        collected.add(name, record)
    rows = collected.done()
    by_uuid = {row.uuid: row for row in rows if row.uuid is not None}
    _threads(rows, by_uuid)
    for row in rows:
        row.origin = _origin(row, copied)
    rows, summarizers = _summarizers(rows, by_uuid, notes)
    units, by_use = units_of(session, rows)
    found = Session(
        session, rows, units, by_uuid, by_use, summarizers=summarizers, sidecars=collected.sidecars
    )
    _Linking(found, donor=donor, notes=notes).run()
    return found


def _origin(row: Row, copied: dict[str, str]) -> str | None:
    source = row.value.get("forkedFrom")
    stated = text_of(source, "sessionId") if isinstance(source, dict) else None
    return (
        None
        if row.thread != MAIN
        else (None if stated is None else safe_id(stated)) or copied.get(row.uuid or "")
    )


class _Linking:
    """Gives every row its parent, in order."""

    def __init__(self, session: Session, *, donor: Donor, notes: Notes) -> None:
        self._session = session
        self._donor = donor
        self._notes = notes
        self._threads: dict[str, Thread] = defaultdict(Thread)

    def run(self) -> None:
        for row in self._session.rows:
            thread = self._threads[row.thread]
            if row.is_boundary:
                row.before = self._logical_parent(row, thread)
                thread.open = row
            else:
                row.parent = self._parent(row, thread)
                self._open_contexts(row, thread)
            thread.last = row
            if row.is_boundary:
                kept = self._kept(row)
                if kept is not None:
                    self._session.kept.append(kept)
        self._cut_circles()
        self._depths()

    def _named(self, value: Any) -> Row | None:
        return self._session.by_uuid.get(value) if isinstance(value, str) else None

    def _logical_parent(self, row: Row, thread: Thread) -> Row | None:
        for name in ("logicalParentUuid", "parentUuid"):
            known = self._named(row.value.get(name))
            if known is not None and known is not row:
                return known
        if thread.last is not None:
            self._notes.infer("what a compaction followed", evidence="order of the rows")
        return thread.last

    def _parent(self, row: Row, thread: Thread) -> Row | None:
        name = row.value.get("parentUuid")
        known = self._named(name)
        if known is not None and known is not row:
            thread.is_linked = True
            return known
        if isinstance(name, str):
            elsewhere = self._donor(name)
            if elsewhere is not None:
                self._notes.infer("the session that a row continues", evidence="its parent's uuid")
                return elsewhere
            self._notes.warn("a row whose parent is not in the file")
        return self._concluded(row, thread, is_missing=isinstance(name, str))

    def _concluded(self, row: Row, thread: Thread, *, is_missing: bool) -> Row | None:
        """The parent of a row that names none that is there."""
        for result in row.results:
            unit = self._session.by_use.get(str(result.get("tool_use_id")))
            if unit is not None and unit.thread == row.thread and unit.first.index < row.index:
                self._notes.infer("parent of a row", evidence="the tool use that it answers")
                return [one for one in unit.rows if one.index < row.index][-1]
        is_answer = row.kind in ("answer", "failure")
        is_loose = "parentUuid" not in row.value or (not thread.is_linked and thread.has_loose_answer)
        if is_answer and not is_missing:
            thread.has_loose_answer = True
        if thread.last is not None and (is_missing or is_answer or is_loose):
            self._notes.infer(
                "parent of a row",
                evidence="order of the progress rows" if row.is_carried else "order of the rows",
            )
            return thread.last
        return None

    def _open_contexts(self, row: Row, thread: Thread) -> None:
        """Note where a new context begins, and hold the first message after a compaction to its summary."""
        if row.kind not in ("message", "answer"):
            return
        if row.is_summary:
            boundary = thread.open if thread.open is not None and thread.open.is_boundary else None
            if boundary is not None:
                row.parent = boundary
            elif row.parent is None or not any(begins_context(r) for r in self._near(row)):
                row.before = row.parent or thread.last
            thread.open = row
        elif row.is_clear and self._session.unit_before(row.parent) is not None:
            self._notes.infer("an emptied context", evidence="the /clear command")
            row.before = row.parent
        elif thread.open is not None and not row.results:
            if all(one is not thread.open for one in self._session.lineage(row)):
                self._notes.warn("the message after a compaction is linked before it")
                self._notes.infer("parent of a row", evidence="order of the rows after a compaction")
                row.parent = thread.open
            thread.open = None

    def _near(self, row: Row) -> Iterator[Row]:
        """The rows right before one that say nothing to the model, and the first that does."""
        for one in self._session.lineage(row):
            yield one
            if one.kind not in ("aside", "link"):
                return

    def _kept(self, row: Row) -> Kept | None:
        """What a boundary says it kept; None where it does not say, or names rows that are not there."""
        metadata = row.value.get("compactMetadata")
        stated = metadata if isinstance(metadata, dict) else {}
        listed, segment = stated.get("preservedMessages"), stated.get("preservedSegment")
        if isinstance(listed, dict) and isinstance(listed.get("uuids"), list):
            rows = [self._named(uuid) for uuid in listed["uuids"]]
            return self._kept_of(row, listed, rows)
        if isinstance(segment, dict):
            head, tail = self._named(segment.get("headUuid")), self._named(segment.get("tailUuid"))
            found: list[Row | None] = []
            for one in () if tail is None else chain((tail,), self._session.lineage(tail)):
                found.append(one)
                if one is head:
                    return self._kept_of(row, segment, found[::-1])
            self._notes.warn("a compaction kept rows that are not in the file")
        return None

    def _kept_of(self, row: Row, stated: dict[str, Any], rows: list[Row | None]) -> Kept | None:
        known = [one for one in rows if one is not None]
        if len(known) < len(rows) or not known:
            self._notes.warn("a compaction kept rows that are not in the file")
            return None
        # The anchor is mostly the summary, which comes after the boundary: it is looked up when it has come.
        anchor = self._named(stated.get("anchorUuid"))
        return Kept(
            row, row if anchor is None or anchor in known else anchor, tuple(known), frozenset(map(id, known))
        )

    def _cut_circles(self) -> None:
        """Rows that name each other as parents: the first of them is a root."""
        done: set[int] = set()
        for row in self._session.rows:
            path: dict[int, Row] = {}
            current: Row | None = row
            while current is not None and id(current) not in done and id(current) not in path:
                path[id(current)] = current
                current = _above(current)
            if current is not None and id(current) in path:
                ring = list(path.values())[list(path).index(id(current)) :]
                first = min(ring, key=lambda one: one.index)
                first.parent = first.before = None
                self._notes.warn("rows that name each other as parents")
            done.update(path)

    def _depths(self) -> None:
        """Count the rows above each."""
        for row in self._session.rows:
            path = []
            current: Row | None = row
            while current is not None and current.depth == 0:
                path.append(current)
                current = _above(current)
            for one in reversed(path):
                above = _above(one)
                one.depth = 1 if above is None else above.depth + 1


def _above(row: Row) -> Row | None:
    return row.parent or row.before
