"""The linked rows of one Claude Code session -> the wire events of one episode (facts: `claude_code`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tracestore.importers.claude_code_rows import (
    MAIN,
    NAME,
    Row,
    Session,
    Unit,
    begins_context,
    blocks_of,
    place_of,
    text_of,
)
from tracestore.importers.guard import as_dict, guarded, number
from tracestore.importers.items import Item, count, gap, left, made, nanoseconds, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.usage import counted
from tracestore.wire.agent import Agent
from tracestore.wire.base import Raw
from tracestore.wire.call import Attempt, Call, CallError, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.gap import Gap
from tracestore.wire.tool_call import ToolCall

META = "claude_code"
SPAWNERS = ("Task", "Agent")
_COMPACTED = ("compactMetadata", "compact_metadata")
"""Names of what a boundary tells, in sessions and in streams of messages."""
_INTERRUPTED = "[Request interrupted by user"
_UNFINISHED = ("async_launched", "teammate_spawned", "remote_launched")
"""Statuses of a tool result that comes before its agent has finished."""


def call_id(unit: Unit) -> str:
    """The id of a call, the same from whichever session it is named."""
    return safe_id("/".join(part for part in (unit.session, _thread_name(unit.thread), unit.key) if part))


def _tool_id(unit: Unit, use_id: str) -> str:
    return safe_id(f"{call_id(unit)}/{use_id}")


def _thread_name(thread: str) -> str:
    return f"agent-{thread}" if thread != MAIN else ""


def agent_id(session: str, thread: str) -> str:
    """The id of an agent: `<session>/main`, `<session>/agent-<id>`."""
    return safe_id(f"{session}/{_thread_name(thread) or 'main'}")


@dataclass(eq=False)
class Spawned:
    """What is told of an agent beside its own rows. Where it was spawned, by a call of this session."""

    thread: str
    use: tuple[Unit, dict[str, Any]] | None = None
    answer: tuple[Row, dict[str, Any]] | None = None
    """The tool result that it came back with, and its row."""
    about: dict[str, Any] | None = None
    """Its `.meta.json`."""
    journal: dict[str, Any] | None = None
    """The `result` of a workflow's journal."""

    @property
    def parent(self) -> str:
        """The thread of the agent that spawned it: the main one where nothing says."""
        return MAIN if self.use is None else self.use[0].thread


@dataclass
class Conversion:
    """One session on its way to events."""

    session: Session
    notes: Notes
    _first_of_context: dict[int, Unit] = field(default_factory=dict)
    """id of the row where a context begins, or results were cleared -> the first call that saw it."""
    _ordinals: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _answers: dict[str, list[tuple[Row, dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    """Tool use id -> the results of it."""
    _readings: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    """id of a call -> rows that carry its results, or stand beside them."""
    _children: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    """id of a row -> the rows that name it as their parent."""
    _placed_beside: set[int] = field(default_factory=set)
    """ids of the main thread's rows that a call in another file was the first to take."""

    @cached_property
    def _main_files(self) -> frozenset[str]:
        return frozenset(row.file for row in self.session.rows if row.thread == MAIN)

    def items(self) -> Iterator[Item]:
        """All events of the session."""
        session, name = self.session, self.session.id
        yield made(Episode, id=name, phase="start")
        yield made(Agent, id=agent_id(name, MAIN), episode_id=name, phase="start", role="main", depth=0)
        self._index()
        own = [unit for unit in session.units if unit.session == name]
        if own:
            yield self._gap("system_prompt_not_recorded", "system prompt and tools are not in these files")
        if any("content" not in row.message for unit in own for row in unit.rows):
            yield self._gap("messages_not_recorded", "answers are there without their content")
        for tool in self._tool_ends():
            yield from guarded(tool, at=name, notes=self.notes)
        for unit in own:
            yield from guarded(self._call(unit), at=unit.first.at, notes=self.notes)
        yield from self._edits()
        yield from self._agents()
        yield from self._ends()

    def _gap(self, cause: str, detail: str) -> Item:
        name = self.session.id
        return made(Gap, id=safe_id(f"{name}/{cause}"), episode_id=name, cause=cause, detail=detail)

    def _index(self) -> None:
        for row in self.session.rows:
            # What a boundary says goes to its edit, and not to the call that reads on.
            row.is_placed = row.is_boundary or row.is_clearing
            if row.parent is not None:
                self._children[id(row.parent)].append(row)
            for result in row.results:
                use = result.get("tool_use_id")
                if isinstance(use, str):
                    self._answers[use].append((row, result))
                    if use in self.session.by_use:
                        self._readings[id(self.session.by_use[use])].append(row)
            source = text_of(row.value, "sourceToolUseID")
            if source in self.session.by_use and not row.results and row.kind == "message":
                self._readings[id(self.session.by_use[source])].append(row)

    # --- Calls ---------------------------------------------------------------------------------------------

    def _call(self, unit: Unit) -> Iterator[Item]:
        session, name = self.session, self.session.id
        parent, read, is_whole = self._context(unit)
        is_file_beside = unit.first.file not in self._main_files
        for row in read:
            is_beside = is_file_beside and row.thread == MAIN
            row.is_read = row.is_read or not is_beside
            if is_beside and not row.is_placed:
                self._placed_beside.add(id(row))
        said = [row.message for row in read if row.kind == "message"]
        identity = call_id(unit)
        ordinal = self._ordinals[unit.thread]
        self._ordinals[unit.thread] += 1
        asides = [self._rest(row) for row in read if self._place(row)]
        answer = _Answer.of(unit, self._rest)
        stop = self._interruption(unit)
        retries = [row for row in read if row.value.get("subtype") == "api_error"]
        first, last = unit.first, unit.rows[-1]
        yield made(
            Call,
            id=identity,
            revision=self._revision(unit, stop),
            episode_id=name,
            agent_id=agent_id(name, unit.thread),
            ordinal=ordinal,
            purpose="summarize" if unit.thread in session.summarizers else "act",
            model=answer.model,
            provider_id=text_of(first.message, "id"),
            dialect="anthropic_messages",
            request=raw({"messages": self._whole(unit) if is_whole else said}),
            context="whole" if is_whole else "delta",
            parent_call_id=None if is_whole or parent is None else call_id(parent),
            completions=None if unit.is_failed else (answer.body(is_partial=stop is not None),),
            usage=answer.usage,
            attempts=(*map(_attempt, retries), Attempt()) if retries else None,
            status=_status(unit, answer, is_interrupted=stop is not None),
            error=_error(first) if unit.is_failed else None,
            started_at=first.time,
            ended_at=last.time,
            meta=left(META, {"answer": answer.rest, **({"read": asides} if asides else {})}),
        )
        for row in unit.rows:
            row.is_placed = True
        for place, (row, use) in enumerate(unit.uses):
            yield self._tool_start(unit, row, use, place)

    def _revision(self, unit: Unit, stop: Row | None) -> int:
        """How many rows a call is made of, those before it included."""
        return unit.first.depth + len(unit.rows) + (stop is not None)

    def _context(self, unit: Unit) -> tuple[Unit | None, list[Row], bool]:
        """(the call that it continues, the rows read after that one's answer, whether it is no delta).

        Of a call that is no delta: the rows of its whole context, answers left out.
        """
        rows: list[Row] = []
        parent = None
        for row in self.session.lineage(unit.first):
            if row.unit is not None and not row.unit.is_failed and row.unit is not unit:
                parent = row.unit
                break
            if row.kind != "failure":
                rows.append(row)
        rows.reverse()
        if parent is not None:
            rows = self._with_results(parent, rows, unit)
        is_new = parent is None or parent.session != self.session.id or self._is_sent_again(parent, unit)
        if not is_new and not any(row.is_clearing for row in rows):
            return parent, rows, False
        path = [row for row in self.session.lineage(unit.first) if row.kind in ("message", "aside")][::-1]
        there = {id(row) for row in path}
        path += [row for row in rows if id(row) not in there]
        for row in path:
            if row.is_clearing or begins_context(row):
                self._first_of_context.setdefault(id(row), unit)
        return parent, path, True

    def _is_sent_again(self, parent: Unit, unit: Unit) -> bool:
        """Whether an answer stands in a context because a compaction kept it."""
        return any(
            kept.boundary.index < unit.first.index and any(id(row) in kept.ids for row in parent.rows)
            for kept in self.session.kept
        )

    def _with_results(self, parent: Unit, rows: list[Row], unit: Unit) -> list[Row]:
        """The rows between two calls with the results of parallel tool uses, which hang beside the chain."""
        there = {id(row) for row in rows}
        missing = [
            row
            for row in self._readings[id(parent)]
            if id(row) not in there and row.index < unit.first.index and row.thread == unit.thread
        ]
        missing = list({id(row): row for row in missing}.values())
        return sorted([*rows, *missing], key=lambda row: row.index) if missing else rows

    def _whole(self, unit: Unit) -> list[Any]:
        """A context from its beginning: messages and answers, results that were cleared without content."""
        path = list(self.session.lineage(unit.first))[::-1]
        cleared, gone = _cleared(path)
        parts: list[tuple[Unit | None, list[Row]]] = [(None, [])]
        done: set[int] = set()
        for row in path:
            if row.unit is None or row.unit is unit or row.unit.is_failed:
                parts[-1][1].append(row)
            elif id(row.unit) not in done:
                done.add(id(row.unit))
                parts.append((row.unit, []))
        messages: list[Any] = []
        for answered, rows in parts:
            if answered is not None:
                messages.append(_Answer.of(answered, lambda row: {}).message)
                rows = self._with_results(answered, rows, unit)
            read = [row for row in rows if row.kind == "message" and row.uuid not in gone]
            messages += [_without(row.message, cleared) for row in read]
        return messages

    def _interruption(self, unit: Unit) -> Row | None:
        """The row that says that the user stopped this answer; None where it was complete by then."""
        last = unit.rows[-1]
        if unit.is_failed or any(text_of(row.message, "stop_reason") for row in unit.rows) or unit.uses:
            return None
        following = next((row for row in self._children[id(last)] if row.kind == "message"), None)
        if following is None or not _first_text(following.message).startswith(_INTERRUPTED):
            return None
        self.notes.infer("an aborted call", evidence="the interruption after its answer")
        return following

    # --- What is kept beside the messages ------------------------------------------------------------------

    def _rest(self, row: Row, *, message: Any = None) -> dict[str, Any]:
        """A row without its message, and without what its place says."""
        is_aside = row.kind in ("aside", "link")
        rest = {name: value for name, value in row.value.items() if is_aside or name != "message"}
        if rest.get("sessionId") == self.session.id:
            del rest["sessionId"]
        if message:
            rest["message"] = message
        return rest

    def _place(self, row: Row) -> bool:
        """Whether a row has no place yet; it has one from now on. Copied rows have theirs elsewhere."""
        is_new = not row.is_placed and row.origin is None and row.kind not in ("link", "answer")
        row.is_placed = row.is_placed or is_new
        return is_new

    # --- Tool calls ----------------------------------------------------------------------------------------

    def _tool_start(self, unit: Unit, row: Row, use: dict[str, Any], place: int) -> Item:
        use_id, given = text_of(use, "id"), use.get("input")
        return made(
            ToolCall,
            id=_tool_id(unit, use_id or str(place)),
            phase="start",
            episode_id=self.session.id,
            call_id=call_id(unit),
            tool_call_id=use_id,
            name=text_of(use, "name"),
            arguments=given if isinstance(given, str) else None if given is None else raw(given).decode(),
            started_at=row.time,
        )

    def _tool_ends(self) -> Iterator[Iterator[Item]]:
        for use_id, answers in self._answers.items():
            unit = self.session.by_use.get(use_id)
            if unit is not None and unit.session == self.session.id:
                yield self._tool_end(unit, use_id, *answers[0])

    def _tool_end(self, unit: Unit, use_id: str, row: Row, result: dict[str, Any]) -> Iterator[Item]:
        content = result.get("content")
        is_error = result.get("is_error")
        yield made(
            ToolCall,
            id=_tool_id(unit, use_id),
            phase="end",
            episode_id=self.session.id,
            call_id=call_id(unit),
            tool_call_id=use_id,
            result=None if content is None else raw(content),
            status="failed" if is_error is True else "ok",
            ended_at=row.time,
            meta=left(META, self._rest(row)) if self._place(row) else None,
        )

    # --- Compactions ---------------------------------------------------------------------------------------

    def _edits(self) -> Iterator[Item]:
        summaries: dict[int, Row] = {}
        for row in self.session.rows:
            if row.is_summary and row.parent is not None and row.parent.is_boundary:
                summaries.setdefault(id(row.parent), row)
        for row in self.session.rows:
            if row.origin is not None:
                continue
            if row.is_boundary or (row.before is not None and row.is_summary):
                yield from guarded(self._compaction(row, summaries.get(id(row))), at=row.at, notes=self.notes)
            elif row.before is not None:
                yield from guarded(self._emptying(row), at=row.at, notes=self.notes)
            elif row.is_clearing:
                yield from guarded(self._clearing(row), at=row.at, notes=self.notes)

    def _edit(self, row: Row, **fields: Any) -> Item:
        before = self.session.unit_before(row.before if row.before is not None else row.parent)
        after = self._first_of_context.get(id(row))
        name = self.session.id
        return made(
            ContextEdit,
            id=safe_id(f"{name}/edit/{row.uuid or row.index}"),
            episode_id=name,
            agent_id=agent_id(name, row.thread),
            at=row.time,
            before_call_id=None if before is None else call_id(before),
            after_call_id=None if after is None else call_id(after),
            status="accepted",
            **fields,
        )

    def _compaction(self, row: Row, summary: Row | None) -> Iterator[Item]:
        rest = self._rest(row)
        name = next((one for one in _COMPACTED if one in rest), _COMPACTED[0])
        metadata = as_dict(rest.pop(name, None))
        before, after = (
            _counted(metadata, one) for one in (("preTokens", "pre_tokens"), ("postTokens", "post_tokens"))
        )
        if metadata:
            rest[name] = metadata
        kept = next((kept for kept in self.session.kept if kept.boundary is row), None)
        units = [] if kept is None else [one.unit for one in kept.rows if one.unit is not None]
        author = self._summary_call(row)
        has_call = id(row) in self._first_of_context
        yield self._edit(
            row,
            edit="compaction",
            trigger="rule" if metadata.get("trigger") == "auto" else None,
            tokens_before=before,
            tokens_after=after,
            author_call_id=None if author is None else call_id(author),
            kept_call_ids=None if kept is None else tuple(dict.fromkeys(map(call_id, units))),
            revision=row.depth + (summary is not None) + (author is not None) + 2 * has_call,
            meta=left(META, rest) if row.is_boundary else None,
        )

    def _summary_call(self, row: Row) -> Unit | None:
        """The recorded call that wrote a summary: it continues the last call before the compaction."""
        before = self.session.unit_before(row.before)
        if before is None:
            return None
        for unit in self.session.units:
            if unit.thread in self.session.summarizers and self._context(unit)[0] is before:
                self.notes.infer(
                    "the call that wrote a summary", evidence="it continues the last call before"
                )
                return unit
        return None

    def _emptying(self, row: Row) -> Iterator[Item]:
        has_call = id(row) in self._first_of_context
        yield self._edit(row, edit="truncation", author="harness", revision=row.depth + has_call)

    def _clearing(self, row: Row) -> Iterator[Item]:
        metadata = as_dict(row.value.get("microcompactMetadata"))
        before, saved = count(metadata, "preTokens"), count(metadata, "tokensSaved")
        after = None if before is None or saved is None or saved > before else before - saved
        has_call = id(row) in self._first_of_context
        yield self._edit(
            row,
            edit="tool_result_clearing",
            trigger="rule" if metadata.get("trigger") == "auto" else None,
            author="harness",
            tokens_before=before,
            tokens_after=after,
            revision=row.depth + has_call,
            meta=left(META, self._rest(row)),
        )

    # --- Agents --------------------------------------------------------------------------------------------

    def _agents(self) -> Iterator[Item]:
        rows: dict[str, list[Row]] = defaultdict(list)
        for row in self.session.rows:
            if row.thread != MAIN:
                rows[row.thread].append(row)
        for thread, own in rows.items():
            yield from guarded(self._agent_start(thread, own), at=own[0].at, notes=self.notes)
            yield from self._without_prompt(thread, own)
        yield from self._without_prompt(MAIN, [row for row in self.session.rows if row.thread == MAIN])
        spawned = self._spawned(rows)
        for one in spawned.values():
            ended = self._agent_end(one, depth=_depth(one, spawned))
            yield from guarded(ended, at=one.thread, notes=self.notes)

    def _agent_start(self, thread: str, rows: list[Row]) -> Iterator[Item]:
        asked = next((row for row in rows if row.kind == "message"), None)
        scope = None if asked is None or asked is not rows[0] else asked.message.get("content")
        yield made(
            Agent,
            id=agent_id(self.session.id, thread),
            phase="start",
            revision=len(rows),
            episode_id=self.session.id,
            role="summarizer" if thread in self.session.summarizers else "subagent",
            scope_prompt=None if scope is None else raw(scope),
            started_at=rows[0].time,
            meta=self._unread(rows),
        )

    def _without_prompt(self, thread: str, rows: list[Row]) -> Iterator[Item]:
        """A gap where the first answer of an agent answers nothing that is there."""
        first = next((row for row in rows if row.unit is not None), None)
        if first is None or any(row.kind == "message" for row in self.session.lineage(first)):
            return
        name, agent = self.session.id, agent_id(self.session.id, thread)
        yield gap(
            agent,
            "missing_prompt",
            "what the first answer answers is not in the file",
            episode_id=name,
            agent_id=agent,
        )

    def _unread(self, rows: list[Row]) -> Raw | None:
        """What no call in the main thread's files read: messages after the last one, ends of branches.

        Calls in other files do not count: those files may be imported later, or apart.
        """
        unread = []
        for row in rows:
            if row.origin is not None or row.kind == "link":
                continue
            if not row.is_placed or id(row) in self._placed_beside:
                unread.append(self._rest(row, message=row.value.get("message")))
            elif row.kind == "message" and not row.is_read:
                unread.append({name: row.value[name] for name in ("uuid", "message") if name in row.value})
        return left(META, {"unread": unread} if unread else None)

    def _spawned(self, rows: dict[str, list[Row]]) -> dict[str, Spawned]:
        """Every agent but the main one, with what its parent's rows and its sidecars say."""
        found = {thread: Spawned(thread) for thread in rows}
        self._from_results(found)
        self._from_progress(found)
        self._from_sidecars(found)
        self._by_prompt(found, rows)
        return found

    def _used(self, use_id: Any) -> tuple[Unit, dict[str, Any]] | None:
        """The call and the block of a tool use; None where it is not there."""
        unit = self.session.by_use.get(use_id) if isinstance(use_id, str) else None
        return None if unit is None else (unit, next(u for _, u in unit.uses if u.get("id") == use_id))

    def _from_results(self, found: dict[str, Spawned]) -> None:
        for row in self.session.rows:
            told = as_dict(row.value.get("toolUseResult"))
            thread = text_of(told, "agentId") or text_of(told, "agent_id")
            results = row.results if thread is not None and row.origin is None else []
            use = self._used(results[0].get("tool_use_id")) if len(results) == 1 else None
            if thread is not None and use is not None:
                one = found.setdefault(thread, Spawned(thread))
                one.use, one.answer = one.use or use, (row, results[0])

    def _from_progress(self, found: dict[str, Spawned]) -> None:
        for row in self.session.rows:
            if row.kind != "link":
                continue
            one = found.get(text_of(as_dict(row.value.get("data")), "agentId") or "")
            if one is not None and one.use is None:
                one.use = self._used(row.value.get("parentToolUseID"))

    def _from_sidecars(self, found: dict[str, Spawned]) -> None:
        for name, record in self.session.sidecars:
            place, value = place_of(name), record.value
            thread = text_of(value, "agentId") or place.agent
            if thread is None or value.get("type") == "started":
                self.notes.leftover(f"{NAME}: what is told of an agent", value, at=record.at)
                continue
            one = found.setdefault(thread, Spawned(thread))
            if value.get("type") == "result":
                one.journal = value
            else:
                one.about = value
            placed = {"agentId", "result", "type"} if one.journal is value else {"agentType"}
            use = self._used(value.get("toolUseId"))
            if use is not None:
                placed.add("toolUseId")
                one.use = one.use or use
            rest = {field: given for field, given in value.items() if field not in placed}
            if rest:
                self.notes.leftover(f"{NAME}: what is told of an agent", rest, at=record.at)
        self._from_workflows(found)

    def _from_workflows(self, found: dict[str, Spawned]) -> None:
        """Agents that lie in the folder of a workflow are of the tool use that ran it."""
        runs: dict[str, tuple[Unit, dict[str, Any]]] = {}
        for row in self.session.rows:
            run = text_of(as_dict(row.value.get("toolUseResult")), "runId")
            use = self._used(row.results[0].get("tool_use_id")) if run is not None and row.results else None
            if run is not None and use is not None:
                runs.setdefault(run, use)
        for row in self.session.rows if runs else ():
            workflow = place_of(row.file).workflow
            one = found.get(row.thread)
            if one is not None and one.use is None and workflow in runs:
                self.notes.infer("the tool use that spawned an agent", evidence="the folder of its workflow")
                one.use = runs[workflow]

    def _by_prompt(self, found: dict[str, Spawned], rows: dict[str, list[Row]]) -> None:
        """Agents that nothing links to a tool use: by the prompt they were given, else by what was open."""
        taken = {id(one.use[1]) for one in found.values() if one.use is not None}
        free = [
            (unit, use)
            for unit in self.session.units
            for _, use in unit.uses
            if use.get("name") in SPAWNERS and unit.session == self.session.id and id(use) not in taken
        ]
        open_ = [one for one in found.values() if one.use is None and one.thread in rows]
        open_ = [one for one in open_ if one.thread not in self.session.summarizers]
        for one in open_:
            prompt = _first_text(rows[one.thread][0].message)
            match = next(
                (f for f in free if prompt and prompt == as_dict(f[1].get("input")).get("prompt")), None
            )
            if match is not None:
                self._give(one, match, evidence="its prompt")
                free.remove(match)
        for one in open_:
            start = rows[one.thread][0].index
            waiting = [f for f in free if f[0].first.index < start and self._is_open(f[1], start)]
            if one.use is None and len(waiting) == 1 and not text_of(rows[one.thread][0].value, "agentId"):
                self._give(one, waiting[0], evidence="the only one without a result then")
                free.remove(waiting[0])

    def _give(self, one: Spawned, match: tuple[Unit, dict[str, Any]], *, evidence: str) -> None:
        self.notes.infer("the tool use that spawned an agent", evidence=evidence)
        one.use = match
        answers = self._answers.get(str(match[1].get("id")))
        one.answer = answers[0] if answers else None

    def _is_open(self, use: dict[str, Any], index: int) -> bool:
        return all(row.index > index for row, _ in self._answers.get(str(use.get("id")), ()))

    def _agent_end(self, one: Spawned, *, depth: int | None) -> Iterator[Item]:
        name = self.session.id
        unit, use = one.use or (None, {})
        given = as_dict(use.get("input"))
        if unit is None:
            self.notes.infer("the parent of an agent", evidence="it is of the session")
        row, result = one.answer or (None, {})
        told = (
            {} if row is None else as_dict(row.value.get("toolUseResult", row.value.get("tool_use_result")))
        )
        has_returned = row is not None and told.get("status") not in _UNFINISHED
        finding = result.get("content") if has_returned else (one.journal or {}).get("result")
        status = None
        if has_returned:
            status = "failed" if result.get("is_error") is True else "ok"
        elif one.journal is not None:
            status = "ok"
        yield made(
            Agent,
            id=agent_id(name, one.thread),
            phase="end",
            revision=8 * (row is not None)
            + 4 * (unit is not None)
            + 2 * (one.journal is not None)
            + (one.about is not None),
            episode_id=name,
            parent_agent_id=agent_id(name, one.parent),
            depth=depth,
            spawned_by_call_id=None if unit is None else call_id(unit),
            spawned_by_tool_call_id=use.get("id"),
            name=text_of(one.about or {}, "agentType") or text_of(given, "subagent_type"),
            return_message=None if finding is None else raw(finding),
            status=status,
            ended_at=row.time if row is not None and has_returned else None,
        )

    # --- Ends ----------------------------------------------------------------------------------------------

    def _ends(self) -> Iterator[Item]:
        for row in self.session.rows:
            if row.kind == "link" and row.origin is None:
                self.notes.leftover(f"{NAME}: row {row.value.get('type')}", row.value, at=row.at)
            if row.origin is not None:
                self.notes.leftover(f"{NAME}: row copied from another session", row.value, at=row.at)
        rows = [row for row in self.session.rows if row.thread == MAIN]
        if not rows:
            return
        times = [time for time in (row.time for row in rows if row.origin is None) if time is not None]
        span = {"started_at": min(times, default=None), "ended_at": max(times, default=None)}
        origin, last = self._fork(rows)
        yield made(
            Episode,
            id=self.session.id,
            phase="end",
            revision=len(rows),
            forked_from_episode_id=origin,
            forked_from_call_id=None if last is None else call_id(last),
            **span,
        )
        yield made(
            Agent,
            id=agent_id(self.session.id, MAIN),
            episode_id=self.session.id,
            phase="end",
            revision=self._told(rows),
            meta=self._unread(rows),
            **self._outcome(rows),
            **span,
        )

    def _outcome(self, rows: list[Row]) -> dict[str, Any]:
        """Fields of the main agent's end that its rows state; a session states none."""
        return {}

    def _told(self, rows: list[Row]) -> int:
        """Revision of what no call read: rows in the main thread's files come and go with it."""
        return sum(row.file in self._main_files for row in self.session.rows if not row.is_carried)

    def _fork(self, rows: list[Row]) -> tuple[str | None, Unit | None]:
        """The session that this one continues, and the last call whose history it shares."""
        for unit in self.session.units:
            before = self.session.unit_before(unit.first.parent) if unit.session == self.session.id else None
            if before is not None and before.session != self.session.id:
                return before.session, before
        shared = [
            unit for unit in self.session.units if unit.session != self.session.id and not unit.is_failed
        ]
        origin = next((row.origin for row in rows if row.origin is not None), None)
        return (origin, None) if not shared else (shared[-1].session, shared[-1])


# --- Values ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answer:
    """The fragments of one message, put together."""

    message: dict[str, Any]
    model: str | None
    finish_reason: str | None
    usage: Usage | None
    rest: list[dict[str, Any]]
    """What is left of each row."""

    @classmethod
    def of(cls, unit: Unit, rest_of: Any) -> _Answer:
        """The union of their blocks; usage and stop reason of the last row that has them."""
        rows = unit.rows
        content, dropped = _joined([row.message for row in rows])
        model = next((m for row in reversed(rows) if (m := text_of(row.message, "model"))), None)
        stop = next((row for row in reversed(rows) if text_of(row.message, "stop_reason")), None)
        counted = next((row for row in reversed(rows) if isinstance(row.message.get("usage"), dict)), None)
        usage: Usage | None = None
        rest: list[dict[str, Any]] = []
        for row, again in zip(rows, dropped, strict=True):
            of_message = dict(row.message)
            of_row = rest_of(row)
            of_message.pop("content", None)
            if again:
                of_message["content"] = again
            for name, value in (
                ("role", "assistant"),
                ("id", text_of(unit.first.message, "id")),
                ("model", model),
            ):
                if of_message.get(name) == value and value is not None:
                    del of_message[name]
            if row is stop:
                del of_message["stop_reason"]
            if row is counted and not unit.is_failed:
                fields = dict(of_message.pop("usage"))
                usage = _usage(fields, of_row)
                if fields:
                    of_message["usage"] = fields
            rest.append({**of_row, **({"message": of_message} if of_message else {})})
        message = {"role": "assistant", **({} if content is None else {"content": content})}
        reason = None if stop is None else text_of(stop.message, "stop_reason")
        return cls(message, model, reason, usage, rest)

    def body(self, *, is_partial: bool) -> CompletionBody:
        """The one completion of the call; without a message where the file has no content."""
        fields: dict[str, Any] = {"finish_reason": self.finish_reason, "partial": is_partial or None}
        if "content" in self.message:
            fields["message"] = raw(self.message)
        return CompletionBody(**{name: value for name, value in fields.items() if value is not None})


def _joined(messages: list[dict[str, Any]]) -> tuple[Any, list[list[Any]]]:
    """(the content of all fragments, of each fragment the blocks that an earlier one has too)."""
    contents = [message.get("content") for message in messages]
    if len(contents) == 1 and not isinstance(contents[0], list):
        return contents[0], [[]]
    blocks: list[Any] = []
    dropped: list[list[Any]] = []
    for content in contents:
        own = content if isinstance(content, list) else [] if content is None else [_as_block(content)]
        before = list(blocks)
        dropped.append([block for block in own if block in before])
        blocks += [block for block in own if block not in before]
    return (blocks if any(content is not None for content in contents) else None), dropped


def _as_block(content: Any) -> Any:
    return {"type": "text", "text": content} if isinstance(content, str) else content


def _usage(fields: dict[str, Any], row: dict[str, Any]) -> Usage | None:
    """Usage of the provider's fields, which are taken. Its input tokens leave out the cached ones."""
    fresh, written = count(fields, "input_tokens"), count(fields, "cache_creation_input_tokens")
    cached, sampled = count(fields, "cache_read_input_tokens"), count(fields, "output_tokens")
    cost = number(row.get("costUSD"))
    if cost is not None:
        del row["costUSD"]
    return counted(
        prompt_tokens=None if fresh is None else fresh + (written or 0) + (cached or 0),
        cached_tokens=cached,
        cache_write_tokens=written,
        completion_tokens=sampled,
        cost_usd=cost,
    )


def _depth(one: Spawned, spawned: dict[str, Spawned]) -> int | None:
    """How far an agent is below the main one; None where its parents go round."""
    depth = 1
    while one.parent != MAIN:
        depth += 1
        if depth > len(spawned) or one.parent not in spawned:
            return None
        one = spawned[one.parent]
    return depth


def _status(unit: Unit, answer: _Answer, *, is_interrupted: bool) -> str | None:
    """Versions that write no stop reason do not say whether an answer is complete."""
    if unit.is_failed:
        return "failed"
    if is_interrupted:
        return "aborted"
    return "ok" if answer.finish_reason is not None else None


def _error(row: Row) -> CallError:
    kind, code = row.value.get("error"), row.value.get("apiErrorStatus")
    fields: dict[str, Any] = {
        "type": kind if isinstance(kind, str) else None,
        "message": _first_text(row.message) or None,
        "status_code": code if isinstance(code, int) and not isinstance(code, bool) else None,
    }
    return CallError(**{name: value for name, value in fields.items() if value is not None})


def _attempt(row: Row) -> Attempt:
    error = as_dict(row.value.get("error"))
    code = error.get("status")
    fields: dict[str, Any] = {
        "ended_at": nanoseconds(row.value.get("timestamp")),
        "status_code": code if isinstance(code, int) and not isinstance(code, bool) else None,
        "error": text_of(row.value, "content") or text_of(error, "message"),
    }
    return Attempt(**{name: value for name, value in fields.items() if value is not None})


def _first_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return next((b["text"] for b in blocks_of(message) if isinstance(b.get("text"), str)), "")


def _counted(metadata: dict[str, Any], names: tuple[str, ...]) -> int | None:
    return next((found for name in names if (found := count(metadata, name)) is not None), None)


def _cleared(path: list[Row]) -> tuple[set[str], set[str]]:
    """(ids of the tool uses whose results were cleared, uuids of attachments that were) on a path."""
    results: set[str] = set()
    attachments: set[str] = set()
    for row in path:
        if row.is_clearing:
            metadata = as_dict(row.value.get("microcompactMetadata"))
            for found, name in ((results, "compactedToolIds"), (attachments, "clearedAttachmentUUIDs")):
                ids = metadata.get(name)
                found.update(one for one in ids if isinstance(one, str)) if isinstance(ids, list) else None
    return results, attachments


def _without(message: dict[str, Any], cleared: set[str]) -> dict[str, Any]:
    """A message whose cleared tool results have no content: what stands in its place is not recorded."""
    if not cleared or not isinstance(message.get("content"), list):
        return message
    blocks = [
        {name: value for name, value in block.items() if name != "content"}
        if isinstance(block, dict)
        and block.get("type") == "tool_result"
        and text_of(block, "tool_use_id") in cleared
        else block
        for block in message["content"]
    ]
    return {**message, "content": blocks}
