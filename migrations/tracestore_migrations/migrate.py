"""Upgrade a database, say where it stands, and check that it is what the tables declare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from tracestore.store import Store, schema
from tracestore.store.engine import connect, writer
from tracestore_migrations.catalogue import Catalogue, differences, read_catalogue


def open_store(url: str, *, create: bool = True) -> Store:
    """Bring a database up to date and open it.

    Args:
        create: make the schema where there is none; without it a missing or empty database is an error.

    Raises:
        BadUrl, NoStore, WrongRevision: see `Store.open`.
    """
    engine = connect(url, create=create)
    try:
        if current(engine) is not None:
            upgrade(engine)
    finally:
        engine.dispose()
    return Store.open(url, create=create)


def upgrade(engine: Engine) -> None:
    """Run the migrations that a database lacks.

    All of them are one transaction, DDL included: killed half way, nothing has happened.

    Raises:
        WrongRevision: the database is of a newer version. There is no way back from a migration but a backup
            that was made before it.
    """
    # The write lock is taken first, so of two servers that start together one migrates and one waits.
    with writer(engine).begin() as connection:
        before = schema.revision(connection)
        scripts = scripts_of_this_package()
        _require_known(scripts, before)

        def pending(revision: Any, _context: Any) -> Any:
            return scripts._upgrade_revs("head", revision)

        context = MigrationContext.configure(connection, opts={"fn": pending})
        with Operations.context(context):
            context.run_migrations()
        if schema.revision(connection) != before:
            schema.replace_views(connection)
        # What a migration made anew has none.
        schema.set_plan_statistics(connection)


def _require_known(scripts: ScriptDirectory, revision: str | None) -> None:
    known = {script.revision for script in scripts.walk_revisions()}
    if revision is not None and revision not in known:
        raise schema.WrongRevision(
            found=revision,
            expected=scripts.get_current_head(),
            hint="install the newer tracestore that made it, or bring back a backup from before its upgrade:"
            " no database is downgraded",
        )


def scripts_of_this_package() -> ScriptDirectory:
    """The migrations, in order."""
    return ScriptDirectory(str(Path(__file__).parent))


def current(engine: Engine) -> str | None:
    """The revision a database is at; None for one without a store."""
    with engine.connect() as connection:
        return schema.revision(connection)


def check(engine: Engine) -> list[str]:
    """How the schema of a database differs from the declared one, in words; [] for a match."""
    with engine.connect() as connection:
        found = read_catalogue(connection)
    return differences(found, _declared(engine))


def _declared(engine: Engine) -> Catalogue:
    """The catalogue of the declared schema, made on the same kind of database."""
    if engine.dialect.name == "sqlite":
        in_memory = sa.create_engine("sqlite://")
        with in_memory.begin() as connection:
            schema.create(connection)
            found = read_catalogue(connection)
        in_memory.dispose()
        return found
    return _declared_on_postgresql(engine)


def _declared_on_postgresql(engine: Engine) -> Catalogue:
    with engine.connect() as connection, connection.begin() as transaction:
        _enter(connection, "tracestore_declared")
        schema.create(connection)
        found = read_catalogue(connection)
        transaction.rollback()
    return found


def _enter(connection: Connection, name: str) -> None:
    connection.execute(text(f"CREATE SCHEMA {name}"))
    connection.execute(text(f"SET LOCAL search_path TO {name}"))
