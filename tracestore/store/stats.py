"""Rows -> how much there is: rows and bytes per table, and what keeping each content once has saved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, Table, func, select, text

from tracestore.store import tables as t

COUNTED = {
    "groups": t.task_group,
    "episodes": t.episode,
    "agents": t.agent,
    "calls": t.call,
    "completions": t.completion,
    "contents": t.content,
    "nodes": t.node,
}
"""What is counted, by name. Things that others only refer to have a row too, and count."""

_AT_ONCE = 5000
_NODES = frozenset({"node", "pending_message"})
"""What refers to contents once for many calls: their bytes are counted along the contexts instead."""

Numbers = dict[str, int | float | None]


def stats(connection: Connection) -> dict[str, Any]:
    """Counts and bytes over all projects, then `tables` by name and `by_project`.

    `content_bytes` is what the messages, tools and parameters weigh as posted, each once;
    `posted_content_bytes` the same for every time one was sent: a message in the contexts of ten calls counts
    ten times; `dedup_ratio` the second through the first. `stored_content_bytes` is what they take
    compressed, `compression` that through `content_bytes`. `tokens` counts token ids, each once, and
    `token_bytes` what they and their logprobs take. Ratios of nothing are unknown. `database_bytes` is the
    file or database as a whole, without SQLite's write-ahead log.
    """
    rows = {table.name: _rows(connection, table) for table in t.metadata.tables.values()}
    posted = _posted_bytes(connection)
    stored = _content_bytes(connection)
    tokens = _tokens(connection)
    names = connection.execute(select(t.project.c.project_id, t.project.c.name).order_by(t.project.c.name))
    by_project: dict[str, Numbers] = {}
    for number, name in names:
        counts: Numbers = {what: rows[table.name].get(number, 0) for what, table in COUNTED.items()}
        once, packed = stored.get(number, (0, 0))
        num_tokens, token_bytes = tokens.get(number, (0, 0))
        by_project[name] = counts | {
            "posted_content_bytes": posted.get(number, 0),
            "content_bytes": once,
            "stored_content_bytes": packed,
            "tokens": num_tokens,
            "token_bytes": token_bytes,
        }
    whole = _sums(by_project)
    bytes_of = _table_bytes(connection)
    return {
        "projects": len(by_project),
        **_with_ratios(whole),
        "database_bytes": _database_bytes(connection),
        "tables": {
            name: {"rows": sum(found.values()), "bytes": bytes_of.get(name) if bytes_of else None}
            for name, found in sorted(rows.items())
        },
        "by_project": {name: _with_ratios(facts) for name, facts in by_project.items()},
    }


def _sums(by_project: Mapping[str, Numbers]) -> Numbers:
    names = [
        *COUNTED,
        "posted_content_bytes",
        "content_bytes",
        "stored_content_bytes",
        "tokens",
        "token_bytes",
    ]
    return {name: sum(facts[name] or 0 for facts in by_project.values()) for name in names}


def _with_ratios(facts: Numbers) -> Numbers:
    once = facts["content_bytes"]
    if not once:
        return facts | {"dedup_ratio": None, "compression": None}
    posted, packed = facts["posted_content_bytes"] or 0, facts["stored_content_bytes"] or 0
    return facts | {"dedup_ratio": round(posted / once, 4), "compression": round(packed / once, 4)}


def _rows(connection: Connection, table: Table) -> dict[int, int]:
    """Rows of a table by project."""
    number = table.c.project_id
    return {row[0]: row[1] for row in connection.execute(select(number, func.count()).group_by(number))}


def _content_bytes(connection: Connection) -> dict[int, tuple[int, int]]:
    """Bytes of contents by project: as posted, as stored."""
    c = t.content.c
    sizes = func.sum(c.size), func.sum(func.length(c.data))
    rows = connection.execute(select(c.project_id, *sizes).group_by(c.project_id))
    return {number: (int(once), int(packed)) for number, once, packed in rows}


def _tokens(connection: Connection) -> dict[int, tuple[int, int]]:
    """Token ids by project, each once, and the bytes of what holds them."""
    c = t.token_run.c
    number = func.sum(func.coalesce(c.num_ids, func.length(c.ids) / 4))
    columns = (c.ids, c.packed_ids, c.logprobs, c.logprobs_nulls)
    sizes = [func.coalesce(func.sum(func.length(column)), 0) for column in columns]
    rows = connection.execute(select(c.project_id, number, *sizes).group_by(c.project_id))
    return {project: (int(ids), sum(map(int, held))) for project, ids, *held in rows}


# What was posted: every content as often as something named it


def _posted_bytes(connection: Connection) -> dict[int, int]:
    """Bytes of contents by project, each as often as it was sent."""
    found: defaultdict[int, int] = defaultdict(int)
    for table in t.metadata.tables.values():
        if table.name in _NODES:
            continue
        for key in table.foreign_keys:
            if key.column.table is t.content and key.parent.name != "project_id":
                _add_named(connection, table, key.parent.name, found)
    _add_contexts(connection, found)
    return found


def _add_named(connection: Connection, table: Table, column: str, found: defaultdict[int, int]) -> None:
    c = t.content.c
    joined = table.join(t.content, (c.project_id == table.c.project_id) & (c.key == table.c[column]))
    query = select(table.c.project_id, func.sum(c.size)).select_from(joined).group_by(table.c.project_id)
    for number, size in connection.execute(query):
        found[number] += int(size)


def _add_contexts(connection: Connection, found: defaultdict[int, int]) -> None:
    """The messages that each call spelled out, read one episode at a time."""
    n, c, content = t.node.c, t.call.c, t.content.c
    in_content = (content.project_id == n.project_id) & (content.key == n.content_key)
    nodes = (
        select(n.project_id, n.episode_key, n.key, n.parent_key, n.depth, content.size)
        .select_from(t.node.join(t.content, in_content))
        .order_by(n.project_id, n.episode_key)
    )
    calls = (
        select(c.project_id, c.episode_key, c.prompt_node_key, c.own_messages)
        .where(c.prompt_node_key.is_not(None))
        .order_by(c.project_id, c.episode_key)
    )
    in_hand = {"yield_per": _AT_ONCE}
    # Nodes after the last call are not read, so their cursor must be closed.
    with (
        connection.execute(nodes, execution_options=in_hand) as some_nodes,
        connection.execute(calls, execution_options=in_hand) as some_calls,
    ):
        _add_episodes(some_nodes, some_calls, found)


def _add_episodes(nodes: Iterable[Any], calls: Iterable[Any], found: defaultdict[int, int]) -> None:
    place = attrgetter("project_id", "episode_key")
    episodes = groupby(nodes, key=place)
    current: tuple[int, int] = (-1, -1)
    rows: Iterator[Row[Any]] = iter(())
    for here, asked in groupby(calls, key=place):
        while current < here:
            current, rows = next(episodes)
        assert current == here, "a call stands at a node of its own episode"
        found[here[0]] += _spelled_out(rows, asked)


def _spelled_out(nodes: Iterator[Row[Any]], calls: Iterator[Row[Any]]) -> int:
    """Bytes of the last `own_messages` messages on the path of each call."""
    parents: dict[int, int | None] = {}
    up_to: dict[int | None, int] = {None: 0}
    for row in sorted(nodes, key=attrgetter("depth")):
        parents[row.key] = row.parent_key
        up_to[row.key] = up_to[row.parent_key] + row.size
    total = 0
    for call in calls:
        total += (
            up_to[call.prompt_node_key] - up_to[_before(parents, call.prompt_node_key, call.own_messages)]
        )
    return total


def _before(parents: Mapping[int, int | None], node: int, num_messages: int | None) -> int | None:
    """The node that many places above one; None above the root."""
    at: int | None = node
    for _ in range(num_messages or 0):
        if at is None:
            break
        at = parents[at]
    return at


# Bytes of the database


_POSTGRESQL_BYTES = """
SELECT c.relname, sum(pg_total_relation_size(part.relid))
  FROM pg_class c CROSS JOIN LATERAL pg_partition_tree(c.oid) part
 WHERE c.relkind = 'p' AND c.relnamespace = current_schema()::regnamespace
 GROUP BY c.relname
UNION ALL
SELECT relname, pg_total_relation_size(oid)
  FROM pg_class
 WHERE relkind = 'r' AND NOT relispartition AND relnamespace = current_schema()::regnamespace
"""


def _table_bytes(connection: Connection) -> dict[str, int] | None:
    """Bytes of each table with its indexes; None where this build of SQLite cannot tell."""
    if connection.dialect.name != "sqlite":
        return {name: int(size) for name, size in connection.execute(text(_POSTGRESQL_BYTES))}
    compiled = connection.execute(text("PRAGMA compile_options")).scalars()
    if "ENABLE_DBSTAT_VTAB" not in set(compiled):
        return None
    pages = (
        "SELECT m.tbl_name, sum(s.pgsize) FROM dbstat s JOIN sqlite_master m ON m.name = s.name"
        " WHERE s.aggregate = TRUE GROUP BY m.tbl_name"
    )
    return {name: int(size) for name, size in connection.execute(text(pages))}


# A partitioned table has no bytes of its own.
_POSTGRESQL_BYTES = """
SELECT c.relname,
       coalesce((SELECT sum(pg_total_relation_size(p.relid)) FROM pg_partition_tree(c.oid) p WHERE p.isleaf),
                pg_total_relation_size(c.oid))
  FROM pg_class c
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = current_schema()::regnamespace
"""


def _database_bytes(connection: Connection) -> int:
    if connection.dialect.name == "sqlite":
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one())
    return int(connection.execute(select(func.pg_database_size(func.current_database()))).scalar_one())
