"""Rows -> how much there is: counts per kind, and what keeping each content once has saved."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from tracestore.store import tables as t

COUNTED = {
    "projects": t.project,
    "groups": t.task_group,
    "episodes": t.episode,
    "agents": t.agent,
    "calls": t.call,
    "completions": t.completion,
    "contents": t.content,
    "nodes": t.node,
}
"""What is counted, by name. Things that others only refer to have a row too, and count."""


def stats(connection: Connection) -> dict[str, int | None]:
    """Counts over all projects, and bytes.

    `content_bytes` is what the messages, tools and parameters weigh as posted, each once;
    `stored_content_bytes` what they take compressed; `database_bytes` the file or database as a whole,
    without SQLite's write-ahead log.
    """
    facts: dict[str, int | None] = {
        name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for name, table in COUNTED.items()
    }
    posted, stored = connection.execute(
        select(
            func.coalesce(func.sum(t.content.c.size), 0),
            func.coalesce(func.sum(func.length(t.content.c.data)), 0),
        )
    ).one()
    facts |= {"content_bytes": int(posted), "stored_content_bytes": int(stored)}
    facts["database_bytes"] = _database_bytes(connection)
    return facts


def _database_bytes(connection: Connection) -> int:
    if connection.dialect.name == "sqlite":
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one())
    return int(connection.execute(select(func.pg_database_size(func.current_database()))).scalar_one())
