"""Upgrade a database, say where it stands, and check that it is what the tables declare."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tracestore.errors import TracestoreError
from tracestore.store import Store, schema
from tracestore.store.engine import connect, writer
from tracestore.store.tables import REVISION
from tracestore_migrations.catalogue import Catalogue, differences, read_catalogue
from tracestore_migrations.grants import give
from tracestore_migrations.place import Place, enter, leave, set_revision
from tracestore_migrations.steps import ROWS_AT_ONCE, steps_of

_STILL_DEPENDED_ON = "2BP01"
"""PostgreSQL, appendix A: dependent_objects_still_exist."""
_PAUSE_S = 0.01
"""Between two transactions of an upgrade: another process that waits for its turn gets it."""


class Progress(NamedTuple):
    """What an upgrade has just done."""

    revision: str
    """The one that it is on the way to."""
    step: str
    num_rows: int
    """Rows of this step that are done."""
    num_new_rows: int
    """Those of the last batch."""


Heard = Callable[[Progress], None]


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


class Depended(TracestoreError):
    """Something else in this database depends on a view or table that an upgrade makes anew"""

    exit_code: ClassVar[int] = 2


def upgrade(
    engine: Engine, *, rows_at_once: int = ROWS_AT_ONCE, heard: Heard = lambda progress: None
) -> None:
    """Run the migrations that a database lacks, or go on where a run before was killed.

    A transaction, schema changes included, ends where it has touched `rows_at_once` rows: killed, the one in
    hand has not happened. Of two processes at once each does what the other has not done yet.

    Raises:
        WrongRevision: the database is of a newer version. There is no way back from a migration but a backup
            that was made before it.
        Depended: views of others, over ours or over our tables.
    """
    with engine.connect() as connection:
        is_done = schema.is_ready(connection)
    while not is_done:
        try:
            is_done = _advance(engine, rows_at_once=rows_at_once, heard=heard)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _STILL_DEPENDED_ON:
                raise
            raise Depended(
                error=str(error.orig).strip(),
                hint="drop it, run the upgrade again, and make it again afterwards",
            ) from None
        if not is_done:
            time.sleep(_PAUSE_S)


def _advance(engine: Engine, *, rows_at_once: int, heard: Heard) -> bool:
    """One transaction of an upgrade; whether it was the last one."""
    # The write lock is taken first, so of two servers that start together one migrates and one waits.
    with writer(engine).begin() as connection:
        place = enter(connection)
        before, left = place.done, rows_at_once
        with Operations.context(MigrationContext.configure(connection)):
            for script in _following(before):
                while place.done != script.revision:
                    if left <= 0:
                        leave(connection, place, following=script.revision)
                        return False
                    place, name, batch, total = _take(connection, place, script, limit=left)
                    left -= batch
                    heard(Progress(script.revision, name, total, batch))
        if place.done != before:
            schema.replace_views(connection)
            give(connection, place.given)
        # What a migration made anew has none.
        schema.set_plan_statistics(connection)
    return True


def _following(revision: str | None) -> list[Script]:
    """The migrations after a revision, in order."""
    scripts = scripts_of_this_package()
    ordered = list(reversed(list(scripts.walk_revisions())))
    known = [script.revision for script in ordered]
    if revision is None:
        return ordered
    if revision not in known:
        raise schema.WrongRevision(
            found=revision,
            expected=scripts.get_current_head(),
            hint="install the newer tracestore that made it, or bring back a backup from before its upgrade:"
            " no database is downgraded",
        )
    return ordered[known.index(revision) + 1 :]


def _take(connection: Connection, place: Place, script: Script, *, limit: int) -> tuple[Place, str, int, int]:
    """Do one batch; where that leads, the name of its step, its rows, and those of the step so far."""
    steps = steps_of(script.module)
    names = [step.name for step in steps]
    index = 0 if place.step is None else names.index(place.step)
    batch = steps[index].run(connection, place.marker, limit)
    _look_at_references(connection)
    total = place.num_rows + batch.num_rows
    if batch.marker is not None:
        after = place._replace(step=names[index], marker=batch.marker, num_rows=total)
    elif index + 1 < len(steps):
        after = Place(place.done, names[index + 1], given=place.given)
    else:
        set_revision(connection, script.revision)
        after = Place(script.revision, given=place.given)
    return after, names[index], batch.num_rows, total


def _look_at_references(connection: Connection) -> None:
    """Let PostgreSQL check deferred foreign keys now: it alters no table of which it still has to."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
        connection.exec_driver_sql("SET CONSTRAINTS ALL DEFERRED")


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
        revision, found = schema.revision(connection), read_catalogue(connection)
    is_known = revision in (None, REVISION)
    other = [] if is_known else [f"revision: is {revision}, and this version reads {REVISION}"]
    return other + differences(found, _declared(engine))


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
