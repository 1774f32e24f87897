"""The declared schema in an empty database, and whether a database is at the revision this code reads."""

from __future__ import annotations

import re
from importlib import resources

from sqlalchemy import Connection, inspect, text

from tracestore.errors import TracestoreError
from tracestore.store.engine import NoStore
from tracestore.store.tables import REVISION, metadata


class WrongRevision(TracestoreError):
    """The database is at another revision than this version of tracestore"""

    status = 503


def view_statements(sql: str | None = None) -> dict[str, str]:
    """CREATE VIEW statements by view name, comments left out, in the order of `views.sql`."""
    if sql is None:
        sql = resources.files("tracestore.store").joinpath("views.sql").read_text(encoding="utf-8")
    bare = re.sub(r"^\s*--.*$\n?", "", sql, flags=re.MULTILINE)
    statements = [part.strip() for part in bare.split(";") if part.strip()]
    names = [re.match(r"CREATE VIEW (\w+)", statement) for statement in statements]
    return {name[1]: statement for name, statement in zip(names, statements, strict=True) if name}


def create(connection: Connection) -> None:
    """Make every table and view, and note the revision. The database must be empty.

    The migrations make the same schema step by step (`tracestore_migrations.check`).
    """
    metadata.create_all(connection)
    for statement in view_statements().values():
        connection.execute(text(statement))
    # As Alembic itself makes it.
    connection.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": REVISION})


def is_empty(connection: Connection) -> bool:
    return not inspect(connection).get_table_names()


def revision(connection: Connection) -> str | None:
    """The revision a database says it is at; None when it says nothing."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def require(connection: Connection) -> None:
    """Refuse a database that this code cannot read.

    Raises:
        NoStore: it holds no tracestore.
        WrongRevision: it is older or newer than this code.
    """
    found = revision(connection)
    if found is None:
        raise NoStore(hint="make one with `tracestore db upgrade`")
    if found != REVISION:
        raise WrongRevision(
            found=found,
            expected=REVISION,
            hint="run `tracestore db upgrade`, or a newer tracestore if the database is ahead",
        )
