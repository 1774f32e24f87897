"""Claude Code sessions (JSON lines under `~/.claude/projects`) -> one episode a session, with its sub-agents.

Facts, from files of versions 1.0.17 to 2.1.198 and from readers of others:

- A row is `{type, uuid, parentUuid, sessionId, timestamp, isSidechain, message, ...}`; `type` is user,
  assistant, system, attachment, progress, summary, file-history-snapshot, queue-operation and others. Files
  of 2025 lack some of these, hand-made ones most. One document `{loglines: [...]}` is an export of rows.
- Session: `sessionId`; a row without one is of the session that the row before it names, else of one named
  after its file and first row. `<session>/subagents/agent-<id>.jsonl` is of the session that its path names.
- Call: the assistant rows of one `message.id`, each with some of the blocks. Its blocks are the union of
  theirs, usage and stop reason those of the last row that has them, its begin the time of the first row (when
  the request went out is not recorded). `input_tokens` leaves out cached ones; ours counts them. Most 2.0 and
  2.1 versions write no stop reason: then status is unknown, and `aborted` where the row after a text says so.
- Context: the chain of `parentUuid`, and the results of parallel tool uses, which hang beside it. Only new
  messages are posted, the whole at a root, after a compaction and where results were cleared. Children of one
  row that differ are branches (rewinds); parallel results, progress and system rows are none. System prompt
  and tools are in no file: a gap.
- No parent: an absent `parentUuid`, one whose row is not there, and one that is null on an answer (or on a
  file where none is used) go to the call whose tool use they answer, else to the row before: inferred. Null
  on a message of a file that links its rows is a root.
- `isApiErrorMessage` (model `<synthetic>`) is a failed call, and no later call reads it. Other synthetic
  messages are messages of the harness. `system/api_error` rows before a call are its failed attempts.
- Sub-agents: (1) until 1.0.x rows with `isSidechain` in the main file, without an id, matched to Task calls
  by prompt, else as the only open one: inferred; (2) `agent-<id>.jsonl`, linked by `toolUseResult.agentId` of
  the result, `.meta.json` {agentType, toolUseId, spawnDepth}, or the prompt; (3) 2.1.17-2.1.37 also
  `progress` rows with `data.type` agent_progress, `data.agentId`, `parentToolUseID` and a whole row inside,
  which are dropped where the agent's file is there; (4) workflows: `subagents/workflows/<run>/`, linked by
  `toolUseResult.runId`; `journal.jsonl` has their results. An agent's start is told by its own rows, its end
  by its parent's, so that either may come later.
- Compaction: `system/compact_boundary` {trigger, preTokens; preservedSegment or preservedMessages in later
  versions}, parent null (or the row before), `logicalParentUuid` (which may be of no row here), then the
  summary `isCompactSummary`; before 2.0 the summary alone. What was kept is unknown unless the boundary names
  it. Who wrote the summary is not recorded, except as `agent-acompact-*`: a thread that repeats the main one
  (>= 90 % of its messages) and asks for it; its copies are no calls. Below that it is a sub-agent.
- A first message after a compaction that is linked before it continues the summary: inferred.
- `microcompact_boundary` {compactedToolIds, clearedAttachmentUUIDs, tokensSaved}: later contexts have these
  results without content, since what stands in their place is not recorded. `/clear` empties a context.
- Copies: a row of a known uuid is the same row (a second /compact appends the history again). A session whose
  first rows are those of another (resumed in versions of 2025, forked, `sessionKind` bg) continues it: the
  copied rows are not imported again, the first own call spells its context out, and the episode names the
  call it forks from. `forkedFrom` on the rows says so; else the session with the longest common beginning
  that went on earlier, if it is the only one: inferred, and only within one import. The same holds where a
  row's parent is of another session in the same file.
- Rows without a place among calls (summary, snapshots, queue, progress) are in the report, verbatim. The
  fields of the others are in `meta` of the event made of them: `answer`, `read` (before a call), `unread`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from tracestore.importers.claude_code_events import Conversion
from tracestore.importers.claude_code_rows import (
    NAME,
    Row,
    Session,
    in_order,
    is_sidecar,
    linked,
    place_of,
    text_of,
)
from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Source, Sources
from tracestore.importers.items import Item, content_id, nanoseconds, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.spool import Spool

_SPOKEN = ("user", "assistant")
_MARKS = frozenset({"parentUuid", "isSidechain", "sessionId", "uuid", "timestamp", "isMeta", "requestId"})


# --- Recognition -------------------------------------------------------------------------------------------


def _is_row(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    kind, message = value.get("type"), value.get("message")
    if kind in _SPOKEN:
        if not isinstance(message, dict) or message.get("role", kind) != kind or "session_id" in value:
            return False
        return not message.keys() - {"usage"} or bool(_MARKS & value.keys())
    if kind == "summary":
        return "leafUuid" in value or ("message" in value and "sessionId" in value)
    if kind == "file-history-snapshot":
        return "snapshot" in value
    if kind == "queue-operation":
        return "sessionId" in value
    if kind is None:
        return isinstance(message, dict) and "role" in message and "sessionId" in value
    return isinstance(kind, str) and {"uuid", "sessionId", "timestamp"} <= value.keys()


def _is_run(value: Any) -> bool:
    """What a workflow leaves behind: `workflows/<run>.json`."""
    return isinstance(value, dict) and "workflowProgress" in value and isinstance(value.get("runId"), str)


def _is_export(value: Any) -> bool:
    rows = value.get("loglines") if isinstance(value, dict) else None
    return isinstance(rows, list) and any(_is_row(row) for row in rows)


def _recognises(head: Head) -> bool:
    if _is_export(head.first) or _is_run(head.first):
        return True
    return any(_is_row(value) or is_sidecar(value) for value in head.records)


# --- Sessions ----------------------------------------------------------------------------------------------


@dataclass
class _Shelf:
    """The records of an import by session."""

    notes: Notes

    def __post_init__(self) -> None:
        self.spool = Spool()
        self._sessions: dict[str, set[str]] = defaultdict(set)
        """Session -> keys of the spool that hold its records."""
        self._of_file: dict[str, str] = {}
        """Path of a file without its suffix -> the session of its first row."""
        self._folders: dict[str, set[str]] = defaultdict(set)
        """Path of a session's file, from the folder of its sub-agents -> keys of the spool."""
        self._beside: dict[str, set[str]] = defaultdict(set)
        """Session -> sessions that lie in the same file."""
        self._beginnings: dict[str, set[str]] = defaultdict(set)
        """The first row of a session in a file -> the sessions that begin with it."""

    def put(self, source: Source) -> None:
        """Keep the records of a file."""
        place = place_of(source.name)
        current: str | None = None
        begun: set[str] = set()
        for record in _rows_of(source, self.notes):
            value = record.value
            if place.folder is None and isinstance(value, dict) and not is_sidecar(value):
                session = text_of(value, "sessionId")
                current = safe_id(session) if session is not None else current
            if not self._is_kept(record):
                if current is not None:
                    self._sessions[current].add(current)
                continue
            if place.folder is not None:
                key = f"{place.folder}\0"
                if place.folder not in self._folders and text_of(value, "sessionId") is None:
                    self.notes.infer("the session of rows that name none", evidence="their folder")
                self._folders[place.folder].add(key)
            elif is_sidecar(value):
                self.notes.leftover(f"{NAME}: sidecar of no session", value, at=record.at)
                continue
            else:
                if current is None:
                    current = safe_id(content_id(PurePosixPath(source.name).stem or NAME, value))
                    self.notes.infer("the session of rows that name none", evidence="their file")
                key = current
                self._of_file.setdefault(_without_suffix(source.name), key)
                self._sessions[key].add(key)
                if key not in begun and value.get("isSidechain") is not True:
                    begun.add(key)
                    if text_of(value, "uuid") is not None and text_of(value, "sessionId") is not None:
                        self._beginnings[_mark(value)].add(key)
            self.spool.add(key, record, source=source.name)
        for session in begun:
            self._beside[session] |= begun - {session}

    def _is_kept(self, record: Record) -> bool:
        """Whether a record is a row that has a place in a session; what is not is noted, whole."""
        value = record.value
        if not isinstance(value, dict):
            self.notes.refuse(record.at, "no row: it is no object")
            self.notes.leftover(f"{NAME}: no row", raw(value).decode(), at=record.at)
            return False
        is_wrong = value.get("type") in _SPOKEN and not isinstance(value.get("message"), dict)
        self.notes.rows[f"{NAME}/{_label(value)}"] += 1
        if is_wrong:
            self.notes.refuse(record.at, "a row whose message is no object")
        elif is_sidecar(value) or "message" in value or "uuid" in value:
            return True
        self.notes.leftover(f"{NAME}: row {_label(value)}", value, at=record.at)
        return False

    def settle(self) -> None:
        """Give the files of sub-agents to the session of the file that their folder belongs to."""
        for folder, keys in self._folders.items():
            session = self._of_file.get(folder, safe_id(PurePosixPath(folder).name))
            self._sessions[session] |= keys

    def sessions(self) -> list[str]:
        return sorted(self._sessions)

    def records_of(self, session: str) -> list[tuple[str, Record]]:
        """(file, record) of a session, in order."""
        files: dict[str, list[tuple[str, Record]]] = defaultdict(list)
        for key in sorted(self._sessions[session]):
            for name, record in self.spool.of(key):
                files[name].append((name, record))
        return in_order(files.values())

    def beside(self, session: str) -> list[str]:
        return sorted(self._beside[session])

    def families(self) -> list[list[str]]:
        """Sessions that begin with the same row."""
        return [sorted(family) for family in self._beginnings.values() if len(family) > 1]


def _rows_of(source: Source, notes: Notes) -> Iterator[Record]:
    for record in records(source, notes=notes):
        value = record.value
        if not _is_export(value):
            yield record
            continue
        for row in value["loglines"]:
            yield replace(record, value=row, text=bytes(raw(row)))
        rest = {name: one for name, one in value.items() if name != "loglines"}
        if rest:
            notes.leftover(f"{NAME}: export", rest, at=record.at)


def _mark(value: dict[str, Any]) -> str:
    """What a row and its copy in another session share: its uuid and its message."""
    return content_id("row", [value.get("uuid"), value.get("message")])


def _label(value: dict[str, Any]) -> str:
    """Type and subtype of a row, for the report."""
    kind, subtype = value.get("type"), value.get("subtype")
    name = kind if isinstance(kind, str) else "agent" if is_sidecar(value) else "(no type)"
    return f"{name} {subtype}" if kind == "system" and isinstance(subtype, str) else name


def _without_suffix(name: str) -> str:
    return str(PurePosixPath(name.replace("\\", "/")).with_suffix(""))


# --- Copies ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Beginning:
    """A session's main rows in order."""

    session: str
    uuids: list[str]
    marks: list[str]
    times: list[int | None]
    """When each was written."""
    is_background: bool
    """Its rows say that it was sent to the background."""

    def common(self, other: _Beginning) -> int:
        """How many rows the two have in common from the beginning."""
        pairs = zip(self.marks, other.marks, strict=False)
        return next(
            (n for n, (one, two) in enumerate(pairs) if one != two), min(len(self.uuids), len(other.uuids))
        )

    def continues(self, other: _Beginning) -> bool:
        """Whether this one is the copy: it went on, and the other did not or did so before."""
        shared = self.common(other)
        is_marked = self.is_background and not other.is_background
        has_own, have_others = len(self.uuids) > shared, len(other.uuids) > shared
        if has_own and have_others:
            mine, others = self.times[shared], other.times[shared]
            return is_marked if mine is None or others is None or mine == others else others < mine
        return not (other.is_background and not self.is_background) if has_own else is_marked


def _beginning(shelf: _Shelf, session: str) -> _Beginning:
    rows: dict[str, dict[str, Any]] = {}
    is_background = False
    for _, record in shelf.records_of(session):
        is_background = is_background or record.value.get("sessionKind") == "bg"
        uuid = text_of(record.value, "uuid")
        if uuid is not None and record.value.get("isSidechain") is not True:
            rows.setdefault(uuid, record.value)
    times = [nanoseconds(row.get("timestamp")) for row in rows.values()]
    return _Beginning(session, list(rows), list(map(_mark, rows.values())), times, is_background)


def _copies(shelf: _Shelf, notes: Notes) -> dict[str, dict[str, str]]:
    """Session -> uuid of each row that it copied -> the session that it was copied from."""
    found: dict[str, dict[str, str]] = {}
    for family in shelf.families():
        beginnings = {session: _beginning(shelf, session) for session in family}
        origins: dict[str, tuple[str, int]] = {}
        for session in family:
            origin = _origin(beginnings[session], list(beginnings.values()), notes)
            if origin is not None:
                origins[session] = origin
        for session, (origin_of, shared) in origins.items():
            found[session] = dict.fromkeys(beginnings[session].uuids[:shared], origin_of)
    return found


def _origin(copy: _Beginning, family: list[_Beginning], notes: Notes) -> tuple[str, int] | None:
    """(the session that one continues, rows in common); None for an original, and where several fit."""
    others = [other for other in family if other is not copy and copy.continues(other)]
    longest = max((copy.common(other) for other in others), default=0)
    nearest = [other for other in others if copy.common(other) == longest]
    # One that copied these rows itself is not where they are from.
    firsts = [one for one in nearest if not any(one.continues(two) for two in nearest if two is not one)]
    if len(firsts) != 1:
        if others:
            notes.warn("a session whose beginning several others have: nothing of it was left out")
        return None
    notes.infer("the session that one continues", evidence="the longest common beginning, row by row")
    return firsts[0].session, longest


# --- Reading -----------------------------------------------------------------------------------------------


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """The episodes of the sources, one session at a time."""
    shelf = _Shelf(notes)
    for source in sources:
        shelf.put(source)
    shelf.settle()
    copies = _copies(shelf, notes)
    for session in shelf.sessions():
        yield from Conversion(_linked(shelf, session, copies, notes), notes).items()


def _linked(shelf: _Shelf, session: str, copies: dict[str, dict[str, str]], notes: Notes) -> Session:
    donors: list[Session] = []

    def donor(uuid: str) -> Row | None:
        if not donors:
            donors.extend(_donor(shelf, other, copies) for other in shelf.beside(session))
        return next((one.by_uuid[uuid] for one in donors if uuid in one.by_uuid), None)

    return linked(
        session, shelf.records_of(session), copied=copies.get(session, {}), donor=donor, notes=notes
    )


def _donor(shelf: _Shelf, session: str, copies: dict[str, dict[str, str]]) -> Session:
    """The rows of a session that another one continues. They are noted where the session itself is read."""
    found = linked(
        session,
        shelf.records_of(session),
        copied=copies.get(session, {}),
        donor=lambda _: None,
        notes=Notes(),
    )
    for row in found.rows:
        row.origin = row.origin or session
    return found


FORMAT = Format(NAME, "Claude Code sessions", _recognises, read)
