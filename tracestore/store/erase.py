"""An episode -> nothing, some rows at a time. Any step may be the last: another process goes on from there.

What refers goes before what is referred to: first what was said of the episode (rewards, edits, tool calls),
then its calls with their answers and tokens, its agents, its places. Rows that other episodes may know become
placeholders, and they and the contents are noted for the sweep (`store.doomed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, func, insert, literal, select

from tracestore.store import tables as t
from tracestore.store.blobs import Blobs
from tracestore.store.chunks import chunks
from tracestore.store.doomed import SWEPT, note, references_of
from tracestore.store.transaction import Transaction

ROWS = 1_000
"""Rows of one table that a step takes: a few hundredths of a second, in which ingest waits."""

_LISTS: dict[Table, tuple[tuple[Table, str], ...]] = {
    t.context_edit: ((t.context_edit_member, "context_edit_key"),),
    t.candidate_selection: ((t.candidate_choice, "candidate_selection_key"),),
    t.candidate_set: ((t.candidate_member, "candidate_set_key"),),
    t.call: (
        *((t.call_attempt, "call_key"), (t.pending_message, "call_key")),
        *((t.redacted_ids, "call_key"),),
    ),
    t.completion: ((t.version_run, "completion_key"),),
    t.sample: ((t.sample_call, "sample_key"),),
}
"""The lists that rows of a table have, and the column that names the row a list is of."""

_SAID = (
    *(t.branch_credit, t.consumption, t.sample, t.blob_ref, t.gap, t.reward, t.candidate_selection),
    *(t.context_edit, t.tool_call),
)
"""What nothing else refers to, once its lists are gone."""
_KNOWN = {t.call: "call", t.agent: "agent", t.snapshot: "snapshot", t.candidate_set: "candidate_set"}
"""What other episodes may know."""


@dataclass(slots=True)
class Erased:
    """What one step took."""

    rows: int = 0
    events: int = 0
    """Positions that are empty now."""
    blobs: int = 0
    is_done: bool = False


def erase_some(
    tx: Transaction, episode_key: int, *, project: str, blobs: Blobs | None, asked_at: int
) -> Erased:
    """Take some rows of an episode.

    Args:
        asked_at: when the deletion was asked for, nanoseconds UTC. A blob that was sent since stays: an event
            that names it may be on its way.
    """
    return _Eraser(tx, episode_key, project, blobs, asked_at).step()


class _Eraser:
    def __init__(
        self, tx: Transaction, episode_key: int, project: str, blobs: Blobs | None, asked_at: int
    ) -> None:
        self._run = tx.connection.execute
        self._tx = tx
        self._here = tx.project_id
        self._episode = episode_key
        self._project = project
        self._blobs = blobs
        self._asked_at = asked_at
        self._erased = Erased()

    def step(self) -> Erased:
        for table in _SAID:
            if keys := self._some(table, table.c.episode_key == self._episode):
                self._said(table, keys)
                return self._erased
        if keys := self._some_completion_events():
            self._said(t.completion_event, keys)
            return self._erased
        for table, kind in _KNOWN.items():
            if keys := self._some(table, table.c.episode_key == self._episode):
                self._known(table, kind, keys)
                return self._erased
        if keys := self._some(t.node, t.node.c.episode_key == self._episode):
            self._delete(t.node, keys)
            return self._erased
        self._delete_where(t.edge, t.edge.c.episode_key == self._episode)
        self._log([self._episode])
        self._blank(t.episode, [self._episode])
        self._erased.is_done = True
        return self._erased

    # --- Which ------------------------------------------------------------------------------------

    def _some(self, table: Table, *where: ColumnElement[bool]) -> list[int]:
        query = select(table.c.key).where(table.c.project_id == self._here, *where).limit(ROWS)
        return sorted(self._run(query).scalars())

    def _some_completion_events(self) -> list[int]:
        event, answer, call = t.completion_event.c, t.completion.c, t.call.c
        rows = t.call.join(
            t.completion, (answer.project_id == call.project_id) & (answer.call_key == call.key)
        ).join(
            t.completion_event, (event.project_id == answer.project_id) & (event.completion_key == answer.key)
        )
        here = (call.project_id == self._here, call.episode_key == self._episode)
        return sorted(self._run(select(event.key).select_from(rows).where(*here).limit(ROWS)).scalars())

    # --- What goes --------------------------------------------------------------------------------

    def _said(self, table: Table, keys: Sequence[int]) -> None:
        hashes = self._hashes(keys) if table is t.blob_ref else []
        self._log(keys)
        self._edges(keys)
        self._delete(table, keys)
        self._forget_blobs(hashes)

    def _known(self, table: Table, kind: str, keys: Sequence[int]) -> None:
        if table is t.call:
            self._answers(keys)
        if kind in ("call", "agent"):
            self._bury(table, kind, keys)
        self._log(keys)
        self._edges(keys)
        self._blank(table, keys)

    def _answers(self, calls: Sequence[int]) -> None:
        for chunk in chunks(calls):
            answers = self._run(
                select(t.completion.c.key, t.completion.c.run_key).where(
                    t.completion.c.project_id == self._here, t.completion.c.call_key.in_(chunk)
                )
            ).all()
            prompts = self._run(
                select(t.call.c.prompt_run_key).where(
                    t.call.c.project_id == self._here, t.call.c.key.in_(chunk)
                )
            ).scalars()
            runs = {*prompts, *(row.run_key for row in answers)} - {None}
            self._delete(t.completion, [row.key for row in answers])
            self._delete(t.token_run, sorted(runs))

    def _bury(self, table: Table, kind: str, keys: Sequence[int]) -> None:
        """Leave tombstones of what can be read by its id."""
        stone = t.tombstone.c
        mine = (
            select(stone.deleted_at, stone.reason, stone.pos, stone.deletion_key)
            .join(t.episode, (t.episode.c.project_id == stone.project_id) & (t.episode.c.id == stone.id))
            .where(stone.project_id == self._here, stone.kind == "episode", t.episode.c.key == self._episode)
        )
        found = self._run(mine).one()
        columns = ("project_id", "kind", "id", "deleted_at", "reason", "pos", "deletion_key", "erased_at")
        there = select(stone.id).where(stone.project_id == self._here, stone.kind == kind)
        for chunk in chunks(keys):
            rows = select(
                table.c.project_id,
                literal(kind),
                table.c.id,
                *(literal(value, stone[name].type) for name, value in found._mapping.items()),
                literal(self._tx.now),
            ).where(
                table.c.project_id == self._here,
                table.c.key.in_(chunk),
                ~table.c.is_placeholder,
                table.c.id.not_in(there),
            )
            self._run(insert(t.tombstone).from_select(columns, rows))

    def _hashes(self, keys: Sequence[int]) -> list[str]:
        hashes: set[str] = set()
        for chunk in chunks(keys):
            this = (t.blob_ref.c.project_id == self._here, t.blob_ref.c.key.in_(chunk))
            hashes |= set(self._run(select(t.blob_ref.c.hash).where(*this)).scalars())
        return sorted(hashes)

    def _forget_blobs(self, hashes: Sequence[str]) -> None:
        """Take blobs to which nothing refers any more: first the bytes, which is done again after a kill."""
        for chunk in chunks(hashes):
            blob, ref = t.blob.c, t.blob_ref.c
            still = (ref.project_id == self._here, ref.hash.in_(chunk))
            for name in sorted(set(chunk) - set(self._run(select(ref.hash).where(*still)).scalars())):
                is_gone = self._blobs is None or self._blobs.remove(
                    self._project, name, sent_before=self._asked_at
                )
                self._run(t.blob.delete().where(blob.project_id == self._here, blob.hash == name))
                self._erased.blobs += is_gone

    # --- Rows -------------------------------------------------------------------------------------

    def _log(self, entities: Sequence[int]) -> None:
        raw = t.raw_event.c
        for chunk in chunks(entities):
            this = (raw.project_id == self._here, raw.entity_key.in_(chunk))
            counts = func.count() + func.coalesce(func.sum(raw.num_replaced), 0)
            self._erased.events += int(self._run(select(counts).where(*this)).scalar_one())
            self._delete_where(t.raw_event, raw.entity_key.in_(chunk))

    def _edges(self, owners: Sequence[int]) -> None:
        for chunk in chunks(owners):
            self._delete_where(t.edge, t.edge.c.episode_key == self._episode, t.edge.c.owner_key.in_(chunk))

    def _delete(self, table: Table, keys: Sequence[int]) -> None:
        for chunk in chunks(keys):
            for list_, column in _LISTS.get(table, ()):
                self._delete_where(list_, list_.c[column].in_(chunk))
            self._delete_where(table, table.c.key.in_(chunk))

    def _blank(self, table: Table, keys: Sequence[int]) -> None:
        """Make placeholders of rows, and note them: nobody may know them."""
        kept = ("project_id", "key", "id", "is_placeholder")
        nothing: dict[str, Any] = {column.name: None for column in table.columns if column.name not in kept}
        for chunk in chunks(keys):
            for list_, column in _LISTS.get(table, ()):
                self._delete_where(list_, list_.c[column].in_(chunk))
            this = (table.c.project_id == self._here, table.c.key.in_(chunk))
            self._note(table, *this)
            if table in SWEPT:
                note(self._tx.connection, table.c.key, table, *this, pos=self._tx.pos + 1)
            done = self._run(table.update().where(*this).values(**nothing, is_placeholder=True))
            self._erased.rows += done.rowcount

    def _delete_where(self, table: Table, *where: ColumnElement[bool]) -> None:
        this = (table.c.project_id == self._here, *where)
        self._note(table, *this)
        self._erased.rows += self._run(table.delete().where(*this)).rowcount

    def _note(self, table: Table, *where: ColumnElement[bool]) -> None:
        for column, target in references_of(table):
            note(self._tx.connection, column, target, *where, pos=self._tx.pos + 1)
