"""Codex rollouts (JSON lines, one file a thread) -> an episode of its calls; sub-agents join their root's.

A row is `{timestamp, type, payload}`; versions before September 2025 wrote bare items after a first row
`{id, timestamp, instructions, git}`. Types seen: session_meta, response_item, event_msg, turn_context,
compacted, token_usage_record, world_state.

- `response_item` is canonical: what was sent to the model and what it wrote. `event_msg` tells the same again
  for people (user_message, agent_message, agent_reasoning); its text is kept in `meta` only where it differs.
  A file without one response_item is read from these events, which is noted as inferred.
- Where a call ends is not written down. A call is a run of items that the model wrote (assistant messages,
  reasoning, `*_call`); it ends at a token count that rises, else at an observation (an output, a message of
  the user or the harness), a turn's begin or end, or a compaction. Older versions wrote the count of a call
  before its items: so it is read where the first count of the file stands before the first such item.
- `token_count.info.total_token_usage` is cumulative and repeated (after a call, and at the next rate limits):
  equal totals are no call. The usage of a call is the rise of the total; where the total falls, or begins
  with more than one call's, it is `last_token_usage`. A rise without items is a call without a recorded
  answer (before `compacted`: the one that wrote the summary). Day totals are by the time of the count.
- `compacted` replaces the context by `replacement_history`; the next call spells it out. Without one (older
  versions) only the summary is known, which is a gap. Earlier turns stay. `thread_rolled_back` cuts the
  context at an earlier user message: the next call branches off the call before it.
- Sub-agents: `source.subagent.thread_spawn.parent_thread_id`, `parent_thread_id`; the parent's side is the
  output of `spawn_agent` (`agent_id`) or `collab_agent_spawn_end` (`new_thread_id`). The episode is that of
  the root: `session_id` where the file names it, else up the parents as far as they are in the import.
- Forks (`forked_from_id`) copy the history of their parent with new times, its session_meta included; the
  first session_meta is the file's own. The copied prefix is found by comparing content with the parent where
  that is in the import. Where it is not, turn ids tell (UUIDv7: a turn older than the fork was copied), which
  is noted; without older turn ids nothing is dropped. Copied calls are not posted again: the first call of
  the fork spells their history out. `history_base` inherits a prefix without copying it.
- Hosted tools (web_search_call) run inside the response: items of the message, no tool calls of the harness.
- Unknown: the tools and parameters of the requests, begin times of calls, whether an unfinished call was
  interrupted when no turn_aborted says so (its status stays unknown).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tracestore.importers.codex_run import (
    ITEM_TYPES,
    ROW_TYPES,
    Row,
    Run,
    is_old_header,
    is_sampled,
    row_of,
)
from tracestore.importers.documents import records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict
from tracestore.importers.items import Item, content_id, gap, left, made, nanoseconds, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.sources import Source
from tracestore.wire.agent import Agent
from tracestore.wire.episode import Episode

_HEAD_ROWS = 20
"""Rows within which the first session_meta stands."""
_FRESH = frozenset({"id", "turn_id", "timestamp", "started_at", "completed_at"})
"""Fields that a copy has anew."""


def _recognises(head: Head) -> bool:
    rows = [value for value in head.records if isinstance(value, dict)]
    if any(str(row.get("type")) in ROW_TYPES and isinstance(row.get("payload"), dict) for row in rows):
        return True
    return bool(rows) and is_old_header(rows[0]) and all(map(_is_old, rows[1:]))


def _is_old(value: dict[str, Any]) -> bool:
    return str(value.get("type")) in ITEM_TYPES or "record_type" in value


# --- Threads ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Thread:
    """What the first session_meta of a file says of where it belongs."""

    id: str
    source: Source
    parent: str | None = None
    """Thread that spawned it."""
    origin: str | None = None
    """Thread that it is a fork of."""
    root: str | None = None
    """Thread whose session it is in, where the file says so."""
    base: int | None = None
    """Rows of the origin that it inherits without copying them (`history_base`)."""
    spawn: dict[str, Any] = field(default_factory=dict)
    """How it was spawned."""
    is_spawned: bool = False
    born_ms: int | None = None
    """When it was made, in milliseconds since 1970."""


def _thread(source: Source) -> _Thread | None:
    first: Row | None = None
    for number, record in enumerate(records(source, notes=Notes())):
        row = row_of(record, number)
        if row is not None and row.type == "session_meta" and isinstance(row.payload, dict):
            return _of_meta(row.payload, source)
        first = first or row
        if number >= _HEAD_ROWS:
            break
    if first is None:
        return None
    return _Thread(content_id("codex", [first.envelope, first.payload]), source)


def _of_meta(meta: dict[str, Any], source: Source) -> _Thread:
    own = meta.get("id")
    source_of = meta.get("source")
    subagent = source_of.get("subagent") if isinstance(source_of, dict) else None
    spawn = as_dict(as_dict(subagent).get("thread_spawn"))
    base = as_dict(meta.get("history_base"))
    end = base.get("end_ordinal_exclusive")

    def another(*values: Any) -> str | None:
        return next((safe_id(one) for one in values if isinstance(one, str) and one and one != own), None)

    parent = another(spawn.get("parent_thread_id"), meta.get("parent_thread_id"))
    began = nanoseconds(meta.get("timestamp"))
    return _Thread(
        id=safe_id(own) if isinstance(own, str) and own else content_id("codex", meta),
        source=source,
        parent=parent,
        origin=another(meta.get("forked_from_id"), base.get("thread_id")),
        root=another(meta.get("session_id")) if parent else None,
        base=end if isinstance(end, int) else None,
        spawn=spawn or ({"name": subagent} if isinstance(subagent, str) else {}),
        is_spawned=parent is not None or subagent is not None,
        born_ms=_uuid_ms(own) or (None if began is None else began // 10**6),
    )


def _uuid_ms(value: Any) -> int | None:
    """The milliseconds since 1970 that a UUIDv7 begins with."""
    text = value.replace("-", "") if isinstance(value, str) else ""
    if len(text) != 32 or text[12] != "7":
        return None
    try:
        return int(text[:12], 16)
    except ValueError:
        return None


# --- Reading ---------------------------------------------------------------------------------------


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls and context edits of the sources, one thread at a time."""
    together = _Import(notes)
    for source in sources:
        thread = _thread(source)
        if thread is None:
            notes.refuse(source.name, "no row of a rollout in it")
        else:
            together.threads.append(thread)
            together.by_id.setdefault(thread.id, thread)
    for thread in together.threads:
        yield from together.events(thread)


@dataclass
class _Import:
    """The threads of one import."""

    notes: Notes
    threads: list[_Thread] = field(default_factory=list)
    by_id: dict[str, _Thread] = field(default_factory=dict)
    cache: dict[str, list[Row]] = field(default_factory=dict)
    """Rows of the last thread that another one was compared with: many come from one."""

    def events(self, thread: _Thread) -> Iterator[Item]:
        """Everything that one thread tells."""
        rows = _rows(thread.source, self.notes)
        for row in rows:
            self.notes.rows[row.name] += 1
        origin, num_copied = self._copied(thread, rows)
        run = self._run(thread, rows, num_copied, self.notes, is_linked=origin is not None)
        yield from self._head(thread, rows, num_copied, run)
        yield from run.events()

    def _run(
        self, thread: _Thread, rows: Sequence[Row], num_copied: int, notes: Notes, *, is_linked: bool
    ) -> Run:
        header = next((row for row in rows if row.type == "session_meta"), None)
        told = as_dict(header.payload) if header is not None else {}
        instructions = as_dict(told.get("base_instructions")).get("text")
        run = Run(
            thread.id,
            self._root(thread),
            notes,
            instructions=instructions if isinstance(instructions, str) else None,
            is_linked=is_linked,
            header=header,
            has_items=any(row.is_item for row in rows),
        )
        inherited = self._inherited(thread, frozenset())
        if inherited or num_copied:
            run.is_copying = True
            for row in (*inherited, *rows[:num_copied]):
                run.take(row)
            run.end_copy()
        for row in rows[num_copied:]:
            run.take(row)
        run.finish()
        return run

    def _rows_of(self, thread: _Thread) -> list[Row]:
        if thread.id not in self.cache:
            rows = _rows(thread.source, Notes())
            self.cache.clear()
            self.cache[thread.id] = rows
        return self.cache[thread.id]

    def _root(self, thread: _Thread) -> str:
        """The thread that the episode is named by."""
        seen, at = {thread.id}, thread
        while at.parent is not None and at.parent not in seen:
            if at.root is not None or at.parent not in self.by_id:
                return at.root or at.parent
            seen.add(at.parent)
            at = self.by_id[at.parent]
        return at.id

    # --- Copied history --------------------------------------------------------------------------

    def _inherited(self, thread: _Thread, seen: frozenset[str]) -> list[Row]:
        """The rows that a thread goes on from without having copied them."""
        origin = self.by_id.get(thread.origin or "")
        if thread.base is None or origin is None or thread.id in seen:
            return []
        theirs = [row for row in self._rows_of(origin) if _ordinal(row) < thread.base]
        return self._inherited(origin, seen | {thread.id}) + theirs

    def _copied(self, thread: _Thread, rows: Sequence[Row]) -> tuple[_Thread | None, int]:
        """(the thread that it copied from, where that is here; how many of its rows are copies)."""
        if thread.base is not None:
            return self.by_id.get(thread.origin or ""), 0
        for name in (thread.origin, thread.parent):
            origin = self.by_id.get(name or "")
            num = 0 if origin is None else _shared_prefix(rows, self._rows_of(origin))
            if num:
                self.notes.infer("copied history", evidence="equal content in the thread that it is from")
            if num:
                return origin, num
        num = self._older(thread, rows) if thread.origin is not None else 0
        return self.by_id.get(thread.origin or ""), num

    def _older(self, thread: _Thread, rows: Sequence[Row]) -> int:
        """How many rows are of turns that began before the fork; its parent is not here to compare."""
        num = _older_rows(rows, thread.born_ms)
        if not num:
            self.notes.warn("a fork whose copied history cannot be told: it counts as its own")
            return 0
        self.notes.infer("copied history", evidence="turn ids older than the fork")
        for row in rows[1:num]:
            if not row.is_item:
                self.notes.leftover("codex: copied history", [row.envelope, row.payload], at=row.at)
        return num

    def _call_at(self, thread: _Thread, num_items: int) -> str | None:
        """The last call that ends within the first items of a thread."""
        rows = self._rows_of(thread)
        quiet = _Import(Notes(), by_id=self.by_id, cache=self.cache)
        origin, num_copied = quiet._copied(thread, rows)
        run = quiet._run(thread, rows, num_copied, Notes(), is_linked=False)
        ended = [call for call in run.calls if call.wrote and call.items_seen <= num_items]
        if not ended:
            return None
        if not ended[-1].is_copy:
            return ended[-1].id
        return None if origin is None else self._call_at(origin, num_items)

    def _fork(self, thread: _Thread, run: Run) -> dict[str, Any]:
        """What an episode says of where it forked."""
        if thread.origin is None:
            return {}
        origin = self.by_id.get(thread.origin)
        if origin is None:
            return {"forked_from_episode_id": thread.origin}
        return {
            "forked_from_episode_id": self._root(origin),
            "forked_from_call_id": self._call_at(origin, run.num_copied_items),
        }

    # --- Episode and agent -----------------------------------------------------------------------

    def _head(self, thread: _Thread, rows: Sequence[Row], num_copied: int, run: Run) -> Iterator[Item]:
        episode_id = run.episode_id
        is_part = episode_id != thread.id
        last = run.revision(len(rows) - 1)
        times = [row.time for row in rows[num_copied:] if row.time is not None]
        header = next((row for row in rows if row.type == "session_meta"), None)
        meta = as_dict(header.payload) if header is not None else {}
        began = nanoseconds(meta.get("timestamp"))
        own: dict[str, Any] = {} if header is None else {**header.envelope, "payload": header.payload}
        if is_part:
            # The root's own file says more, and replaces this.
            yield made(Episode, id=episode_id, phase="start")
        else:
            yield made(
                Episode,
                id=episode_id,
                phase="start",
                revision=1 if header is not None else None,
                started_at=began,
                meta=left("codex", own),
            )
            yield made(
                Episode,
                id=episode_id,
                phase="end",
                revision=last,
                ended_at=max(times, default=None),
                **self._fork(thread, run),
            )
        tail: dict[str, Any] = {"session_meta": own} if is_part else {}
        tail |= {name: one for name, one in (("unread", run.unread), ("rows", run.waiting)) if one}
        if num_copied:
            tail |= {"copied_rows": num_copied, "copied_sha256": _digest(rows[:num_copied])}
        depth = thread.spawn.get("depth")
        yield made(
            Agent,
            id=thread.id,
            episode_id=episode_id,
            phase="end",
            revision=last,
            parent_agent_id=thread.parent if is_part else None,
            role="subagent" if thread.is_spawned else "main",
            name=_name(thread.spawn),
            depth=depth if isinstance(depth, int) and depth >= 0 else 1 if is_part else 0,
            model=run.first_model,
            return_message=raw(run.last_message) if is_part and run.last_message is not None else None,
            started_at=began if is_part else None,
            ended_at=max(times, default=None) if is_part else None,
            meta=left("codex", tail),
        )
        if run.instructions is None:
            yield self._gap(thread, run, "system_prompt_not_recorded", "the file has no base_instructions")
        if thread.base is not None and thread.origin not in self.by_id:
            yield self._gap(thread, run, "missing_prompt", "the history it goes on from is in another file")

    def _gap(self, thread: _Thread, run: Run, cause: str, detail: str) -> Item:
        return gap(thread.id, cause, detail, episode_id=run.episode_id, agent_id=thread.id)


def _rows(source: Source, notes: Notes) -> list[Row]:
    found: list[Row] = []
    for record in records(source, notes=notes):
        row = row_of(record, len(found))
        if row is None:
            notes.refuse(record.at, "no row of a rollout: it is no object")
        else:
            found.append(row)
    return found


def _ordinal(row: Row) -> int:
    stated = row.envelope.get("ordinal")
    return stated if isinstance(stated, int) else row.number


def _name(spawn: dict[str, Any]) -> str | None:
    names = (spawn.get(name) for name in ("agent_nickname", "agent_role", "agent_path", "name"))
    return next((name for name in names if isinstance(name, str) and name), None)


# --- Comparing -------------------------------------------------------------------------------------


def _shared_prefix(ours: Sequence[Row], theirs: Sequence[Row]) -> int:
    """How many of our first rows are copies of theirs, by content; 0 where no answer is among them.

    What the model reads and writes has to be equal row by row. Events between may be left out of a copy, and
    the session_meta of a file never counts.
    """
    wanted = [(row, _key(row)) for row in theirs if row.type != "session_meta"]
    at, copied, num_sampled = 0, 0, 0
    for row in ours:
        if row.type == "session_meta":
            continue
        key = _key(row)
        is_history = row.is_item or row.type == "compacted"
        found = _find(wanted, at, key)
        if found is None:
            if is_history:
                break
            continue
        at = found + 1
        if is_history:
            num_sampled += row.is_item and is_sampled(row.payload)
            copied = row.number + 1
        elif row.number == copied:
            copied = row.number + 1
    return copied if num_sampled else 0


def _find(wanted: Sequence[tuple[Row, str]], at: int, key: str) -> int | None:
    """The place of a row among theirs, from `at` on, without passing what the model reads or writes."""
    for place in range(at, len(wanted)):
        row, other = wanted[place]
        if other == key:
            return place
        if row.is_item or row.type == "compacted":
            return None
    return None


def _key(row: Row) -> str:
    payload = row.payload
    if isinstance(payload, dict):
        payload = {name: one for name, one in payload.items() if name not in _FRESH}
    return content_id("row", [row.type, payload])


def _older_rows(rows: Sequence[Row], born_ms: int | None) -> int:
    """How many first rows are of turns older than the fork; 0 where no turn id is."""
    is_older = False
    for row in rows:
        turn_ms = _uuid_ms(as_dict(row.payload).get("turn_id"))
        if turn_ms is None or born_ms is None:
            continue
        if turn_ms >= born_ms:
            return _turn_begin(rows, row.number) if is_older else 0
        is_older = True
    return len(rows) if is_older else 0


def _turn_begin(rows: Sequence[Row], number: int) -> int:
    """The first row of the turn that a row is in: its context and its message stand before its first id."""
    while number > 0 and rows[number - 1].is_item and not is_sampled(rows[number - 1].payload):
        if str(rows[number - 1].kind).endswith("_output"):
            break
        number -= 1
    return number


def _digest(rows: Sequence[Row]) -> str:
    digest = sha256()
    for row in rows:
        digest.update(raw([row.envelope, row.payload]))
    return digest.hexdigest()


FORMAT = Format("codex", "Codex rollouts", _recognises, read)
