"""The declared schema in an empty database, and whether a database is at the revision this code reads."""

from __future__ import annotations

import re
from importlib import resources

from sqlalchemy import Connection, MetaData, Text, column, inspect, select, text
from sqlalchemy import table as sql_table

from tracestore.errors import TracestoreError
from tracestore.store.engine import NoStore
from tracestore.store.tables import PARTITIONS, REVISION, metadata

VERSION = select(column("version_num", Text)).select_from(sql_table("alembic_version")).scalar_subquery()
"""The revision of a database, as a value of a query."""


class WrongRevision(TracestoreError):
    """The database is at another revision than this version of tracestore"""

    status = 503


def view_statements(sql: str | None = None) -> dict[str, str]:
    """CREATE VIEW statements by view name, comments left out, in the order of `views.sql`."""
    if sql is None:
        sql = resources.files("tracestore.store").joinpath("views.sql").read_text(encoding="utf-8")
    bare = re.sub(r"^\s*--.*$\n?", "", _each_level(sql), flags=re.MULTILINE)
    statements = [part.strip() for part in bare.split(";") if part.strip()]
    names = [re.match(r"CREATE VIEW (\w+)", statement) for statement in statements]
    return {name[1]: statement for name, statement in zip(names, statements, strict=True) if name}


def _each_level(sql: str) -> str:
    """What stands between `-- For level N to 1:` and `-- End.` once for each level; `{below}` is one more."""

    def repeated(found: re.Match[str]) -> str:
        return "".join(
            found[2].replace("{level}", str(level)).replace("{below}", str(level + 1))
            for level in range(int(found[1]), 0, -1)
        )

    return re.sub(r"^ *-- For level (\d+) to 1:\n(.*?)^ *-- End\.\n", repeated, sql, flags=re.M | re.S)


def view_columns(connection: Connection) -> dict[str, list[str]]:
    """Columns of every view, in the order of `views.sql`."""
    found = inspect(connection)
    return {view: [column["name"] for column in found.get_columns(view)] for view in view_statements()}


def create(connection: Connection) -> None:
    """Make every table and view, and note the revision. The database must be empty.

    The migrations make the same schema step by step (`tracestore_migrations.check`).
    """
    # On a copy: for PostgreSQL, SQLAlchemy takes circular foreign keys out of the tables for good, and a
    # SQLite database made later by the same process would lack them.
    fresh = MetaData(naming_convention=metadata.naming_convention)
    for table in metadata.tables.values():
        table.to_metadata(fresh)
    fresh.create_all(connection)
    _make_partitions(connection)
    replace_views(connection)
    make_version_table(connection)
    connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": REVISION})


def _make_partitions(connection: Connection) -> None:
    if connection.dialect.name != "postgresql":
        return
    for table in metadata.tables.values():
        if table.dialect_kwargs.get("postgresql_partition_by"):
            for number in range(PARTITIONS):
                of = f"PARTITION OF {table.name} FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {number})"
                connection.execute(text(f"CREATE TABLE {table.name}_{number} {of}"))


def make_version_table(connection: Connection) -> None:
    """The table that says the revision, as Alembic itself makes it, where there is none."""
    connection.execute(
        text(
            "CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )


def lock(connection: Connection) -> None:
    """Wait until nobody else makes or changes the schema, and keep others from it until the transaction ends.

    On SQLite a `writer` is alone anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(
            text("SELECT pg_advisory_xact_lock(hashtext('tracestore'), hashtext(current_schema()))")
        )


def replace_views(connection: Connection) -> None:
    """Make the declared views, in place of those of their names.

    Views hold no rows, so no migration keeps a copy of them.
    """
    for name, statement in view_statements().items():
        connection.execute(text(f"DROP VIEW IF EXISTS {name}"))
        connection.execute(text(statement))


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
    require_revision(found)


def require_revision(found: str | None) -> None:
    """Refuse a revision that this code does not read.

    Raises:
        WrongRevision: it is older or newer, or between two while an upgrade is under way.
    """
    if found != REVISION:
        raise WrongRevision(
            found=found,
            expected=REVISION,
            hint="run `tracestore db upgrade`, or a newer tracestore if the database is ahead",
        )


def is_ready(connection: Connection) -> bool:
    """Whether a database can be used as it is, so that opening it need not wait for whoever is writing."""
    return revision(connection) == REVISION and (
        connection.dialect.name != "sqlite" or inspect(connection).has_table("sqlite_stat1")
    )


def set_plan_statistics(connection: Connection) -> None:
    """Tell SQLite's planner how tables look that are full, before they are.

    Without statistics it takes any indexed column for selective, `project_id` too, and walks whole projects.
    Fixed ones also keep plans the same from the first row to the billionth. PostgreSQL keeps its own.
    """
    if connection.dialect.name != "sqlite":
        return
    connection.execute(text("ANALYZE sqlite_schema"))  # makes the table of statistics where there is none
    for table in metadata.tables.values():
        # Those of an older version may be others, or of an index that is gone.
        connection.execute(text("DELETE FROM sqlite_stat1 WHERE tbl = :table"), {"table": table.name})
        for name, columns, is_unique in _indexes(connection, table.name):
            rows = _statistics(columns, is_unique=is_unique)
            connection.execute(
                text("INSERT INTO sqlite_stat1 VALUES (:table, :index, :rows)"),
                {"table": table.name, "index": name, "rows": rows},
            )
    connection.execute(text("ANALYZE sqlite_schema"))  # reads them


def _indexes(connection: Connection, table: str) -> list[tuple[str, list[str], bool]]:
    """(name, columns, whether it is unique) of every index; a clustered table's has the name of the table."""
    found = []
    for _, name, is_unique, origin, _ in connection.execute(text(f"PRAGMA index_list({table})")).all():
        columns = [row[2] for row in connection.execute(text(f"PRAGMA index_info({name})"))]
        is_clustered = origin == "pk" and _is_clustered(connection, table)
        found.append((table if is_clustered else name, columns, bool(is_unique)))
    return found


def _is_clustered(connection: Connection, table: str) -> bool:
    return bool(
        connection.execute(
            text("SELECT wr FROM pragma_table_list WHERE name = :name"), {"name": table}
        ).scalar()
    )


_MANY = 1_000_000
_ALIKE = {"project_id": _MANY, "kind": _MANY // 5, "status": _MANY // 5, "split": _MANY // 3}
_FEW = 20
_ROWS = 10 * _MANY
"""Of a table. SQLite expects 2^20 rows of a recursive query; before it looks up so many in a table that it
takes for a smaller one, it reads that whole table into a Bloom filter, also for a path of a few messages."""


def _statistics(columns: list[str], *, is_unique: bool) -> str:
    """Rows of the table, then rows that are alike in the first column, in the first two, ..."""
    alike = [_ALIKE.get(column, _FEW) for column in columns]
    if is_unique:
        alike[-1] = 1
    return " ".join(map(str, [_ROWS, *alike]))
