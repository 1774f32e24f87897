"""Rows that were compressed with old dictionaries -> the same bytes, compressed with new ones.

A dictionary is made of pieces of what it was trained on, so after a redaction it may hold what was taken out:
words of messages, and runs of token ids. (Dictionaries of logprobs hold nothing of either.) The new one is
trained on what is there now; where that is too little, rows are compressed without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import zstandard
from sqlalchemy import ColumnElement, Connection, Table, bindparam, func, select

from tracestore.store import tables as t
from tracestore.store.codec import Compressor, decompress
from tracestore.store.dictionary import DICTIONARY_BYTES, SAMPLE_BYTES, SAMPLES, Dictionaries, Purpose
from tracestore.store.query import find_project
from tracestore.store.runs import halves, planes, unpack_ids
from tracestore.store.store import Store
from tracestore.store.transaction import Transaction

ROWS = 1_000
"""Rows of a step."""

Counted = Callable[[Transaction], None]
"""Notes, in the transaction of each step, that it took a commit position."""


def pack_again(store: Store, project: str, *, before: int, counted: Counted) -> None:
    """Replace the dictionaries that were trained before a redaction, and take them away.

    Args:
        before: the number of that redaction: keys count up.
    """
    for purpose, table in _TABLES.items():
        with store.read() as connection:
            project_id = find_project(connection, project) or 0
            old = _dictionaries(connection, project_id, purpose, t.dictionary.c.key < before)
        if not old:
            continue
        store.perform(project, partial(_train, purpose=purpose, before=before, counted=counted)).result()
        after: int | None = 0
        while after is not None:
            step = partial(_pack_some, table=table, purpose=purpose, old=old, after=after, counted=counted)
            after = store.perform(project, step).result()
        store.perform(project, partial(_forget, old=old, counted=counted)).result()


_TABLES: dict[Purpose, Table] = {None: t.content, "ids": t.token_run}


def _dictionaries(
    connection: Connection, project_id: int, purpose: Purpose, *where: ColumnElement[bool]
) -> list[int]:
    c = t.dictionary.c
    this = (c.project_id == project_id, c.purpose.is_not_distinct_from(purpose), *where)
    return list(connection.execute(select(c.key).where(*this).order_by(c.key)).scalars())


def _train(tx: Transaction, *, purpose: Purpose, before: int, counted: Counted) -> None:
    """A dictionary of what is there now, unless one was made since."""
    counted(tx)
    if _dictionaries(tx.connection, tx.project_id, purpose, t.dictionary.c.key > before):
        return
    table = _TABLES[purpose]
    samples: list[bytes | bytearray | memoryview] = [*_samples(tx, table)]
    try:
        made = zstandard.train_dictionary(DICTIONARY_BYTES[purpose], samples).as_bytes()
    except zstandard.ZstdError:  # too few, or they have nothing in common
        return
    row = {"key": tx.new_key(), "data": made, "trained_at": tx.now, "purpose": purpose}
    tx.buffer.insert(t.dictionary, row)


def _samples(tx: Transaction, table: Table) -> list[bytes]:
    """As many as a dictionary is trained on, from all over the table."""
    c = table.c
    here = c.project_id == tx.project_id
    count = tx.connection.execute(select(func.count()).select_from(table).where(here)).scalar_one()
    step = max(1, count // SAMPLES)
    numbered = select(c.key, func.row_number().over(order_by=c.key).label("place")).where(here).subquery()
    some = select(numbered.c.key).where(numbered.c.place % step == 0).limit(SAMPLES)
    read = _reader(tx.connection, tx.project_id, table)
    rows = tx.connection.execute(select(table).where(here, c.key.in_(some))).all()
    least, most = SAMPLE_BYTES
    return [data for data in map(read, rows) if least <= len(data) <= most]


def _pack_some(
    tx: Transaction, *, table: Table, purpose: Purpose, old: Sequence[int], after: int, counted: Counted
) -> int | None:
    """Some rows from a key on; the key to go on after, None at the end."""
    counted(tx)
    c = table.c
    rows = tx.connection.execute(
        select(table)
        .where(c.project_id == tx.project_id, c.key > after, c.dictionary_key.in_(old))
        .order_by(c.key)
        .limit(ROWS)
    ).all()
    if not rows:
        return None
    new = next(
        (key for key in reversed(_dictionaries(tx.connection, tx.project_id, purpose)) if key not in old),
        None,
    )
    read = _reader(tx.connection, tx.project_id, table)
    contents = [read(row) for row in rows]
    if table is t.token_run and new is None:
        contents = [planes(_ids(data)) for data in contents]
    compressor = Compressor(Dictionaries(tx.connection, tx.project_id).get(new))
    packed = compressor.compress_all(contents)
    values: list[dict[str, Any]] = []
    for row, (codec, data) in zip(rows, packed, strict=True):
        if table is t.content:
            dictionary = new if codec == "zstd" else None
            values.append({"this": row.key, "codec": codec, "data": data, "dictionary_key": dictionary})
        else:
            values.append({"this": row.key, "packed_ids": data, "dictionary_key": new})
    this = table.update().where(c.project_id == tx.project_id, c.key == bindparam("this"))
    tx.connection.execute(this, values)
    last: int = rows[-1].key
    return last


def _reader(connection: Connection, project_id: int, table: Table) -> Callable[[Any], bytes]:
    """What gives the bytes of a row that a dictionary is for."""
    dictionaries = Dictionaries(connection, project_id)

    def read(row: Any) -> bytes:
        dictionary = dictionaries.get(row.dictionary_key)
        if table is t.content:
            return decompress(row.data, codec=row.codec, dictionary=dictionary)
        if row.num_ids is None:
            return halves(row.ids)
        return halves(unpack_ids(row.packed_ids, row.num_ids, dictionary=dictionary).tobytes())

    return read


def _ids(data: bytes) -> bytes:
    """Token ids out of their halves."""
    count = len(data) // 4
    return unpack_ids(data, count, dictionary=b"").tobytes()


def _forget(tx: Transaction, *, old: Sequence[int], counted: Counted) -> None:
    counted(tx)
    c = t.dictionary.c
    tx.connection.execute(t.dictionary.delete().where(c.project_id == tx.project_id, c.key.in_(old)))
