"""Is the store what it says it is? Contents are hashed again, contexts, links and tokens derived again.

Nothing is taken from what ingest kept in memory: events are read back from rows, the graph is built from
them, and every stored place, link and token run is compared with it.

It goes piece by piece, and a cursor says how far it has come: on a large database a check that was broken off
goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from sqlalchemy import (
    CompoundSelect,
    Connection,
    Table,
    Text,
    bindparam,
    cast,
    exists,
    func,
    literal,
    select,
    union_all,
)

from tracestore.graph.build import build
from tracestore.graph.context import context
from tracestore.graph.model import CompletionKey, Graph
from tracestore.graph.tokens import completion_ids, prompt_ids
from tracestore.store import tables as t
from tracestore.store.codec import decompress
from tracestore.store.dictionary import Dictionaries
from tracestore.store.fields import PLACEHOLDERS, TABLES
from tracestore.store.load import came_at, load_events, path_contents, read_contents, read_paths
from tracestore.store.query import find_project
from tracestore.store.runs import read_chains, spell
from tracestore.store.store import Store

_CONTENTS_AT_ONCE = 5000
_ROWS_IN_HAND = 100
_DANGLING_AT_MOST = 100
"""Findings of the references of one table."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    name: str
    where: str
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one project; nothing, if all is well."""

    project: str
    problems: tuple[Finding, ...]
    num_events: int
    num_episodes: int
    num_contents: int

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.problems)


_Piece: TypeAlias = "tuple[int | None, int, Sequence[Finding]]"
"""Where the step goes on, how many things were looked at, what was found."""


class Cursor(NamedTuple):
    """How far a check has come: everything before it is checked."""

    step: str = "contents"
    after: int = -1
    """The last key, or the index of the last table, that was checked in this step."""


class Checked(NamedTuple):
    """What one piece of a check gave."""

    cursor: Cursor | None
    """Where to go on; None: that was all."""
    findings: tuple[Finding, ...]
    amount: int
    """How many contents, tables or episodes were looked at."""


def verify(store: Store, project: str) -> Report:
    """Check everything stored of a project."""
    problems = tuple(finding for checked in verify_from(store, project) for finding in checked.findings)
    return Report(project, problems, **counts(store, project))


def verify_from(store: Store, project: str, *, cursor: Cursor | None = None) -> Iterator[Checked]:
    """Check a project piece by piece, from a cursor on that an earlier run gave.

    Each piece is one transaction: what is written meanwhile waits for none, and memory holds a page of
    contents, or one episode. What was written before the cursor since then is not looked at.
    """
    at: Cursor | None = cursor or Cursor()
    while at is not None:
        with store.read() as connection:
            project_id = find_project(connection, project)
            if project_id is None:
                return
            checked = _Checker(connection, project_id).check(at)
        yield checked
        at = checked.cursor


def counts(store: Store, project: str) -> dict[str, int]:
    """How many events, episodes and contents there are to check."""
    with store.read() as connection:
        project_id = find_project(connection, project)
        if project_id is None:
            return {"num_events": 0, "num_episodes": 0, "num_contents": 0}
        checker = _Checker(connection, project_id)
        return {
            "num_events": checker.count(t.raw_event),
            "num_episodes": checker.count(t.episode, t.episode.c.first_pos.is_not(None)),
            "num_contents": checker.count(t.content),
        }


class _Checker:
    """Checks pieces of a project. A step gives None for `after` where it has come to its end."""

    def __init__(self, connection: Connection, project_id: int) -> None:
        self._connection = connection
        self._project_id = project_id

    def check(self, cursor: Cursor) -> Checked:
        """The piece that a cursor stands before."""
        steps = {
            "contents": self.contents,
            "positions": self.positions,
            "entities": self.entities,
            "foreign_keys": self.foreign_keys,
            "episodes": self.episodes,
        }
        after, amount, findings = steps[cursor.step](cursor.after)
        if after is not None:
            return Checked(Cursor(cursor.step, after), tuple(findings), amount)
        names = list(steps)
        following = names[names.index(cursor.step) + 1 :]
        return Checked(Cursor(following[0]) if following else None, tuple(findings), amount)

    def count(self, table: Table, *where: Any) -> int:
        query = select(func.count()).select_from(table).where(table.c.project_id == self._project_id, *where)
        return self._connection.execute(query).scalar_one()

    def contents(self, after: int) -> _Piece:
        """Every content hashes to its name."""
        c = t.content.c
        rows = self._connection.execute(
            select(c.key, c.sha256, c.size, c.codec, c.data, c.dictionary_key)
            .where(c.project_id == self._project_id, c.key > after)
            .order_by(c.key)
            .limit(_CONTENTS_AT_ONCE)
            .execution_options(yield_per=_ROWS_IN_HAND)
        )
        dictionaries = Dictionaries(self._connection, self._project_id)
        findings: list[Finding] = []
        last, amount = None, 0
        for row in rows:
            findings += self._content(row, dictionaries)
            last, amount = row.key, amount + 1
        return last, amount, findings

    def _content(self, row: Any, dictionaries: Dictionaries) -> Iterator[Finding]:
        where = f"content {row.key}"
        try:
            dictionary = dictionaries.get(row.dictionary_key)
            data = decompress(row.data, codec=row.codec, dictionary=dictionary)
        except Exception as error:  # noqa: BLE001 - whatever a broken frame raises
            yield Finding("content_unreadable", where, str(error))
            return
        if sha256(data).digest() != row.sha256:
            yield Finding("content_hash", where, "its bytes do not have its sha256")
        if len(data) != row.size:
            yield Finding("content_size", where, f"it has {len(data)} bytes, the row says {row.size}")

    def positions(self, _after: int) -> _Piece:
        """Commit positions are 1 to n, each that of an event, of one replaced or deleted, or of a step of a
        deletion or redaction."""
        p, raw = t.project.c, t.raw_event.c
        last = self._connection.execute(
            select(p.commit_seq).where(p.project_id == self._project_id)
        ).scalar_one()
        number, replaced, first, highest = self._connection.execute(
            select(
                func.count(),
                func.coalesce(func.sum(raw.num_replaced), 0),
                func.min(came_at()),
                func.max(raw.pos),
            ).where(raw.project_id == self._project_id)
        ).one()
        d, r = t.deletion.c, t.redaction.c
        redacting = self._connection.execute(
            select(func.coalesce(func.sum(r.num_positions), 0)).where(r.project_id == self._project_id)
        ).scalar_one()
        steps, erased = self._connection.execute(
            select(
                func.coalesce(func.sum(d.num_positions), 0), func.coalesce(func.sum(d.num_events), 0)
            ).where(d.project_id == self._project_id)
        ).one()
        steps += redacting
        is_whole = steps or not number or (first, highest) == (1, last)
        if number + replaced + steps + erased != last or not is_whole:
            detail = (
                f"{number} events and {replaced} that they replaced lie at positions {first} to {highest}, "
                f"{erased} were deleted, {steps} are of deletions and redactions, "
                f"the project counts to {last}"
            )
            return None, 0, [Finding("commit_positions", "project", detail)]
        return None, 0, []

    def entities(self, after: int) -> _Piece:
        """A row is either a placeholder or has an event, never both."""
        kinds = list(TABLES.items())
        if after + 1 == len(kinds):
            return None, 0, []
        kind, table = kinds[after + 1]
        raw = t.raw_event.c
        has_event = (
            select(raw.entity_key)
            .where(
                raw.project_id == self._project_id,
                raw.kind == kind,
                raw.entity_key == table.c.key,
            )
            .exists()
        )
        is_there = ~table.c.is_placeholder if kind in PLACEHOLDERS else table.c.id.is_not(None)
        wrong = select(table.c.id).where(
            table.c.project_id == self._project_id, is_there != has_event, table.c.id.is_not(None)
        )
        findings = [
            Finding("entity_without_event", f"{kind} {id_}", "its row and the event log disagree")
            for (id_,) in self._connection.execute(wrong)
        ]
        return after + 1, 1, findings

    def foreign_keys(self, after: int) -> _Piece:
        """Every row that is referred to is there. Both databases can be told to look the other way."""
        tables = sorted(t.metadata.tables.values(), key=attrgetter("name"))
        if after + 1 == len(tables):
            return None, 0, []
        search = _search_of_open_references(tables[after + 1])
        if search is None:
            return after + 1, 1, []
        rows = self._connection.execute(search, {"here": self._project_id})
        findings = [
            Finding(
                "foreign_key",
                f"{tables[after + 1].name} {' '.join(map(str, key))}",
                f"{column} {referred_to} is no row of {parent}",
            )
            for parent, column, referred_to, *key in rows
        ]
        return after + 1, 1, findings

    def episodes(self, after: int) -> _Piece:
        """What is derived and stored is what the events give when derived again."""
        episode = t.episode.c
        row = self._connection.execute(
            select(episode.key, episode.id)
            .where(
                episode.project_id == self._project_id,
                episode.first_pos.is_not(None),
                episode.key > after,
            )
            .order_by(episode.key)
            .limit(1)
        ).first()
        return (None, 0, []) if row is None else (row.key, 1, list(self._episode(row.key, row.id)))

    def _episode(self, key: int, id_: str) -> Iterator[Finding]:
        try:
            graph = build(load_events(self._connection, self._project_id, key))
        except Exception as error:  # noqa: BLE001 - whatever broken rows raise
            yield Finding("episode_unreadable", f"episode {id_}", f"{type(error).__name__}: {error}")
            return
        stored = _Stored(self._connection, self._project_id, key)
        for name, detail in stored.differences(graph):
            yield Finding(name, f"episode {id_}", detail)


@cache
def _search_of_open_references(table: Table) -> CompoundSelect[Any] | None:
    """A query, with the project as `here`: (table referred to, column, its value, *key of the row).

    Of each row that refers to no row; None for a table that refers to its project alone, which was looked up.
    """
    names = [column for column in table.primary_key.columns if column.name != "project_id"]
    searches = []
    for constraint in table.foreign_key_constraints:
        target = constraint.referred_table.alias()
        pairs = [(one.parent, target.c[one.column.name]) for one in constraint.elements]
        if len(pairs) == 1:
            continue
        column = pairs[-1][0]
        is_there = exists().where(*(here == there for here, there in pairs))
        searches.append(
            # As text: some references are numbers, some hashes.
            select(
                literal(constraint.referred_table.name), literal(column.name), cast(column, Text), *names
            ).where(table.c.project_id == bindparam("here"), column.is_not(None), ~is_there)
        )
    return union_all(*searches).limit(_DANGLING_AT_MOST) if searches else None


class _Stored:
    """The derived rows of one episode."""

    def __init__(self, connection: Connection, project_id: int, episode_key: int) -> None:
        self._connection = connection
        self._project_id = project_id
        here = (t.call.c.project_id == project_id, t.call.c.episode_key == episode_key)
        self._calls = connection.execute(select(t.call).where(*here)).all()
        self._call_ids = {row.key: row.id for row in self._calls}
        in_call = (t.completion.c.project_id == t.call.c.project_id) & (
            t.completion.c.call_key == t.call.c.key
        )
        self._answers = connection.execute(
            select(t.completion).select_from(t.completion.join(t.call, in_call)).where(*here)
        ).all()
        self._nodes = {
            row.key: row
            for row in connection.execute(
                select(t.node).where(t.node.c.project_id == project_id, t.node.c.episode_key == episode_key)
            )
        }

    def differences(self, graph: Graph) -> Iterator[tuple[str, str]]:
        """(name of the law that is broken, what differs)."""
        yield from self._places(graph)
        yield from self._contexts(graph)
        yield from self._links(graph)
        yield from self._tokens(graph)

    def _places(self, graph: Graph) -> Iterator[tuple[str, str]]:
        matches = {row.match_key for row in self._nodes.values()}
        if matches != graph.nodes.keys():
            missing, extra = len(graph.nodes.keys() - matches), len(matches - graph.nodes.keys())
            yield "nodes", f"{missing} nodes of the graph have no row, {extra} rows have no node"
        first: dict[bytes, int] = {}
        for key in sorted(self._nodes):
            row = self._nodes[key]
            twin = first.setdefault(row.match_key, key)
            if row.twin_of_key != (None if twin == key else twin):
                yield "twins", f"node {key} is a twin of {row.twin_of_key}, and should be one of {twin}"
        for row in self._calls:
            stored = None if row.prompt_node_key is None else self._nodes[row.prompt_node_key].match_key
            if not row.is_placeholder and stored != graph.prompt_node[row.id]:
                yield "prompt_node", f"call {row.id} stands at another node"
        for row in self._answers:
            stored = None if row.node_key is None else self._nodes[row.node_key].match_key
            if stored != graph.completion_node.get(self._name(row)):
                yield "completion_node", f"completion {self._name(row)} stands at another node"

    def _contexts(self, graph: Graph) -> Iterator[tuple[str, str]]:
        """The bytes on the path of each call are the bytes that it saw."""
        calls = [row for row in self._calls if not row.is_placeholder and row.id not in graph.pending]
        prompts = [row.prompt_node_key for row in calls if row.prompt_node_key is not None]
        nodes = read_paths(self._connection, self._project_id, prompts)
        keys = {node.content_key for node in nodes.values()}
        contents = read_contents(self._connection, self._project_id, keys)
        for row in calls:
            path = [contents[key].data for key in path_contents(nodes, row.prompt_node_key)]
            if path != [message.raw for message in context(graph, row.id)]:
                yield "context", f"the path of call {row.id} does not spell what the call saw"
            if row.context_messages != len(path):
                yield "context", f"call {row.id} saw {len(path)} messages, not {row.context_messages}"

    def _links(self, graph: Graph) -> Iterator[tuple[str, str]]:
        for row in self._calls:
            if row.is_placeholder:
                continue
            link = graph.links[row.id]
            name = None
            if row.link_call_key is not None:
                name = (self._call_ids.get(row.link_call_key), row.link_completion)
            if (name, row.link, row.link_exact) != (link.parent, link.how, link.exact):
                detail = f"call {row.id} is linked to {name} ({row.link}), not {link.parent} ({link.how})"
                yield "links", detail

    def _tokens(self, graph: Graph) -> Iterator[tuple[str, str]]:
        keys = {row.prompt_run_key for row in self._calls} | {row.run_key for row in self._answers}
        runs = read_chains(self._connection, self._project_id, keys - {None})
        counts = self._run_lengths(keys - {None})
        for row in self._calls:
            if row.prompt_run_key is None:
                continue
            ids = prompt_ids(graph, row.id)
            if (ids is None) != (counts[row.prompt_run_key] is None):
                yield "token_runs", f"whether the prompt ids of call {row.id} are known is not settled"
            elif ids is not None and spell(runs, row.prompt_run_key) != ids.tobytes():
                yield "token_runs", f"the run of call {row.id} does not spell its prompt ids"
            elif ids is not None and counts[row.prompt_run_key] != len(ids):
                yield "token_runs", f"the run of call {row.id} counts {counts[row.prompt_run_key]} ids"
        for row in self._answers:
            name = self._name(row)
            ids = completion_ids(graph, name)
            if (row.run_key is None) != (ids is None):
                yield "token_runs", f"completion {name} and its run disagree about its ids"
            if row.run_key is None or ids is None:
                continue
            prompt = prompt_ids(graph, name[0]) if name[0] in graph.calls else None
            whole = ids if prompt is None else np.concatenate([prompt, ids])
            if spell(runs, row.run_key) != whole.tobytes():
                yield "token_runs", f"the run of completion {name} does not spell prompt ++ completion"
            if counts[row.run_key] != (None if prompt is None else len(whole)):
                yield "token_runs", f"the run of completion {name} counts {counts[row.run_key]} ids"
            logprobs = graph.completions[name].logprobs
            if logprobs != runs[row.run_key].logprobs:
                yield "logprobs", f"the logprobs of completion {name} differ"

    def _run_lengths(self, keys: set[int]) -> dict[int, int | None]:
        run = t.token_run.c
        rows = self._connection.execute(
            select(run.key, run.num_tokens).where(run.project_id == self._project_id, run.key.in_(keys))
        )
        return {row.key: row.num_tokens for row in rows}

    def _name(self, row: Any) -> CompletionKey:
        return (self._call_ids[row.call_key], row.completion)
