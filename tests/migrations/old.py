"""Databases as released revisions had them, with rows in them, made once and copied."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from uuid import uuid4

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, column, inspect, make_url, select, text
from sqlalchemy import table as sql_table

from tests import factories as make
from tests.databases import NAMED_EVENTS
from tests.factories import answer, assistant, call, posted, user
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.engine import connect, writer
from tracestore.store.runs import unpack_ids
from tracestore_migrations.catalogue import read_catalogue
from tracestore_migrations.migrate import scripts_of_this_package
from tracestore_migrations.place import set_revision
from tracestore_migrations.steps import steps_of

EVENTS = [
    make.episode(),
    make.agent(),
    call("c0", [user("u\x00\ud83d")], answer("a", ids=[3]), prompt_ids=[1, 2]),
    call("c1", [user("u\x00\ud83d"), assistant("a"), user("v")], answer("b")),
    call("c2", [user("u\x00\ud83d"), assistant("a"), user("v"), assistant("b"), user("w")], "c"),
    make.reward(),
]
_SCRIPTS = list(reversed(list(scripts_of_this_package().walk_revisions())))
RELEASED = [script.revision for script in _SCRIPTS][:-1]


def old_file(revision: str, file: Path) -> str:
    """Put a SQLite store there as that revision had it; its URL."""
    file.write_bytes(_made(revision))
    return f"sqlite:///{file}"


@cache
def _made(revision: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "old.db"
        engine = connect(f"sqlite:///{file}")
        fill(engine, revision)
        engine.dispose()
        return file.read_bytes()


@contextmanager
def _of_today() -> Iterator[Engine]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(f"sqlite:///{folder}/store.db") as store,
    ):
        store.ingest("p", [posted(one) for one in EVENTS])
        yield store.engine


def fill(engine: Engine, revision: str) -> None:
    """Make an empty database a store of that revision, with rows of today as far as it has their columns."""
    with writer(engine).begin() as connection, _of_today() as source, source.connect() as rows:
        _make_schema(connection, revision)
        schema = inspect(connection)
        columns = {
            name: {column["name"] for column in schema.get_columns(name)} for name in schema.get_table_names()
        }
        ids = {key: id_ for _, _, _, id_, _, key in rows.execute(text(NAMED_EVENTS))}
        for name, table in t.metadata.tables.items():
            if name not in columns:
                continue
            into = sql_table(name, *map(column, sorted(columns[name])))
            for row in rows.execute(select(table)).mappings():
                known = {key: value for key, value in row.items() if key in columns[name]}
                if name == "raw_event" and "id" in columns[name]:
                    known["id"] = ids[row["entity_key"]]
                    known["text_hash"] = row["text_hash"] * 2
                if name == "token_run" and "packed_ids" not in known:
                    known["ids"] = unpack_ids(row["packed_ids"], row["num_ids"]).tobytes()
                connection.execute(into.insert().values(known))
        if revision < "0004":
            _add_continuations(connection)


def _make_schema(connection: Connection, revision: str) -> None:
    with Operations.context(MigrationContext.configure(connection)):
        for script in _SCRIPTS:
            if script.revision <= revision:
                for step in steps_of(script.module):
                    assert step.run(connection, None, 1).marker is None, "the tables are empty"
    set_revision(connection, revision)


def _add_continuations(connection: Connection) -> None:
    """The edges that calls had before 0004, one for each link."""
    connection.execute(
        text(
            "INSERT INTO edge"
            " (project_id, kind, owner_key, position, episode_key, from_call_key, to_call_key)"
            " SELECT project_id, 'continuation', key, 0, episode_key, link_call_key, key FROM call"
            " WHERE link_call_key IS NOT NULL"
        )
    )


def everything(engine: Engine) -> dict[str, list[object]]:
    """The schema of a database and all its rows."""
    with engine.connect() as connection:
        found: dict[str, list[object]] = {
            name: sorted(lines) for name, lines in read_catalogue(connection).items()
        }
        for name in inspect(connection).get_table_names():
            found[f"rows of {name}"] = sorted(map(repr, connection.execute(text(f'SELECT * FROM "{name}"'))))
    return found


class Server:
    """A PostgreSQL server of the tests, with a database of every released revision to copy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: dict[str, str] = {}
        # Others may use the server, and there is one name space.
        self._names = (f"migrated_{uuid4().hex}_{number}" for number in count())

    def old(self, revision: str) -> str:
        """The URL of a new database as that revision had it, with rows."""
        if revision not in self._made:
            url = self._create()
            engine = connect(url)
            fill(engine, revision)
            engine.dispose()
            self._made[revision] = str(make_url(url).database)
        return self._create(template=self._made[revision])

    def empty(self) -> str:
        """The URL of a new database."""
        return self._create()

    def _create(self, template: str = "template0") -> str:
        name = next(self._names)
        engine = connect(self.url)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
        engine.dispose()
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)
