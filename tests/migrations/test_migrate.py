"""Law 10: the migrated schema is the declared one, from an empty database or half way, on both databases."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, column, event, inspect, make_url, select, text
from sqlalchemy import table as sql_table

from tests import factories as make
from tests.databases import NAMED_EVENTS
from tests.factories import answer, assistant, call, posted, user
from tests.store.servers import postgresql
from tracestore.graph.build import build
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.engine import NoStore, connect, writer
from tracestore.store.runs import unpack_ids
from tracestore.store.schema import WrongRevision, set_plan_statistics, view_statements
from tracestore.store.verify import verify
from tracestore_migrations import check, current, open_store, upgrade
from tracestore_migrations.catalogue import read_catalogue
from tracestore_migrations.migrate import scripts_of_this_package

EVENTS = [
    make.episode(),
    make.agent(),
    call("c0", [user("u\x00\ud83d")], answer("a", ids=[3]), prompt_ids=[1, 2]),
    call("c1", [user("u\x00\ud83d"), assistant("a"), user("v")], "b"),
    make.reward(),
]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = connect(f"sqlite:///{tmp_path / 'store.db'}")
    yield engine
    engine.dispose()


def tables_of(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT name FROM sqlite_master")).scalars())


def test_the_head_of_the_migrations_is_the_revision_the_code_reads() -> None:
    assert scripts_of_this_package().get_current_head() == t.REVISION


def test_the_migrated_schema_is_the_declared_one(engine: Engine) -> None:
    upgrade(engine)
    assert check(engine) == []
    assert current(engine) == t.REVISION


def test_the_schema_that_open_makes_is_the_declared_one_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    Store.open(url).close()
    engine = connect(url)
    assert check(engine) == []
    assert current(engine) == t.REVISION
    engine.dispose()


def test_an_upgrade_of_what_is_up_to_date_changes_nothing(engine: Engine) -> None:
    upgrade(engine)
    upgrade(engine)
    assert check(engine) == []


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("DROP VIEW gaps", "gaps: is missing"),
        ("CREATE TABLE more (x)", "more: is not declared"),
        ("DROP INDEX ix_call_agent", "call: lacks CREATE INDEX ix_call_agent"),
        ("ALTER TABLE gap ADD COLUMN more TEXT", "gap: has undeclared more TEXT"),
        ("DROP VIEW gaps; CREATE VIEW gaps AS SELECT 1 AS one", "gaps: lacks CREATE VIEW gaps"),
    ],
)
def test_a_schema_that_differs_is_told(engine: Engine, sql: str, problem: str) -> None:
    upgrade(engine)
    with engine.begin() as connection:
        for statement in sql.split("; "):
            connection.execute(text(statement))
    assert any(line.startswith(problem) for line in check(engine)), check(engine)


def test_a_constraint_that_is_gone_is_told(engine: Engine) -> None:
    upgrade(engine)
    with engine.begin() as connection:
        sql = connection.execute(text("SELECT sql FROM sqlite_master WHERE name = 'gap'")).scalar_one()
        connection.execute(text("DROP VIEW gaps"))
        connection.execute(text("DROP TABLE gap"))
        connection.execute(text(sql.replace("CONSTRAINT uq_gap_id UNIQUE (project_id, id), ", "")))
    assert any("lacks CONSTRAINT uq_gap_id UNIQUE" in line for line in check(engine))


def test_a_store_that_migrations_made_works(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = connect(url)
    upgrade(engine)
    engine.dispose()
    with open_store(url) as store:
        store.ingest("p", [posted(one) for one in EVENTS])
        assert store.load_graph("p", "e") == build(EVENTS)


def test_a_missing_or_empty_database_is_an_error_where_none_may_be_made(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    for _ in range(2):
        with pytest.raises(NoStore):
            open_store(f"sqlite:///{file}", create=False)
        file.touch()
    open_store(f"sqlite:///{file}").close()


KILLED = """
import os, signal, sys
from sqlalchemy import event
from tracestore.store.engine import connect
from tracestore_migrations import upgrade

engine = connect(sys.argv[1])
seen = 0

@event.listens_for(engine, "after_cursor_execute")
def kill(connection, cursor, statement, *rest):
    global seen
    seen += statement.lstrip().startswith(("CREATE", "ALTER", "DROP"))
    if seen == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

upgrade(engine)
"""


def upgrade_and_be_killed(engine: Engine, after: int) -> None:
    command = [sys.executable, "-c", KILLED, str(engine.url), str(after)]
    assert subprocess.run(command, check=False, timeout=120).returncode == -9


@pytest.mark.parametrize("after", [1, 30, 85])
def test_an_upgrade_killed_half_way_has_done_nothing_and_runs_again(engine: Engine, after: int) -> None:
    upgrade_and_be_killed(engine, after)
    assert tables_of(engine) == []
    upgrade(engine)
    assert check(engine) == []


# From the revisions that were released, with rows in them


def make_store_of(engine: Engine, revision: str, source: Engine) -> None:
    """A store as that revision had it, with the rows of a newer one as far as it knows their columns."""
    with writer(engine).begin() as connection:
        scripts = scripts_of_this_package()
        steps = {"fn": lambda current, _context: scripts._upgrade_revs(revision, current)}
        context = MigrationContext.configure(connection, opts=steps)
        with Operations.context(context):
            context.run_migrations()
        schema = inspect(connection)
        columns = {
            name: {column["name"] for column in schema.get_columns(name)} for name in schema.get_table_names()
        }
        with source.connect() as rows:
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


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'filled.db'}") as store:
        store.ingest("p", [posted(one) for one in EVENTS])
        yield store


def test_the_rows_of_the_first_revision_stay_and_may_be_replaced(engine: Engine, filled: Store) -> None:
    make_store_of(engine, "0001", filled.engine)
    assert current(engine) == "0001"
    upgrade_and_be_killed(engine, 4)
    assert current(engine) == "0001"
    assert "raw_event: lacks revision BIGINT" in check(engine)
    upgrade(engine)
    assert check(engine) == []
    _check_upgraded(str(engine.url))


RELEASED = [script.revision for script in reversed(list(scripts_of_this_package().walk_revisions()))][:-1]


@pytest.mark.parametrize("revision", RELEASED)
def test_the_rows_of_every_revision_stay_and_may_be_replaced(
    engine: Engine, filled: Store, revision: str
) -> None:
    make_store_of(engine, revision, filled.engine)
    assert current(engine) == revision
    upgrade(engine)
    assert check(engine) == []
    _check_upgraded(str(engine.url))


class Stopped(Exception):
    """The upgrade ends here."""


def stop_after(engine: Engine, number: int) -> Callable[[], None]:
    """Make the writing statement of this number the last one that runs; gives what undoes that."""
    seen = 0

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal seen
        writes = statement.lstrip().startswith(("CREATE", "ALTER", "DROP", "INSERT", "DELETE", "UPDATE"))
        seen += writes and "sqlite_stat1" not in statement
        if seen == number:
            raise Stopped

    event.listen(engine, "after_cursor_execute", count)
    return lambda: event.remove(engine, "after_cursor_execute", count)


def upgrade_stopped_everywhere(engine: Engine) -> int:
    """Upgrade, stopped after each of its writes, which leaves all as it was; how many there are."""
    before = everything(engine)
    for number in range(1, 1000):
        undo = stop_after(engine, number)
        try:
            upgrade(engine)
        except Stopped:
            continue
        finally:
            undo()
            if current(engine) != t.REVISION:
                assert everything(engine) == before
        return number - 1
    raise AssertionError("it never ends")


def everything(engine: Engine) -> dict[str, list[object]]:
    """The schema of a database and all its rows."""
    with engine.connect() as connection:
        found: dict[str, list[object]] = {
            name: sorted(lines) for name, lines in read_catalogue(connection).items()
        }
        for name in inspect(connection).get_table_names():
            found[f"rows of {name}"] = sorted(map(repr, connection.execute(text(f'SELECT * FROM "{name}"'))))
    return found


def test_an_upgrade_stopped_after_any_write_has_done_nothing(engine: Engine, filled: Store) -> None:
    make_store_of(engine, "0004", filled.engine)
    assert upgrade_stopped_everywhere(engine) >= 20
    assert check(engine) == []
    _check_upgraded(str(engine.url))


def test_a_database_of_a_newer_version_is_refused_and_left_alone(engine: Engine) -> None:
    upgrade(engine)
    with writer(engine).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    before = everything(engine)
    with pytest.raises(WrongRevision, match="backup"):
        upgrade(engine)
    with pytest.raises(WrongRevision, match="9999"):
        open_store(str(engine.url))
    assert everything(engine) == before


def test_every_index_of_an_upgraded_store_has_statistics(engine: Engine, filled: Store) -> None:
    make_store_of(engine, "0004", filled.engine)
    with engine.begin() as connection:
        set_plan_statistics(connection)
    upgrade(engine)
    statistics = text("SELECT tbl, idx, stat FROM sqlite_stat1")
    with engine.connect() as upgraded, filled.engine.connect() as fresh:
        found, expected = (set(one.execute(statistics).all()) for one in (upgraded, fresh))
    assert found == expected


def _check_upgraded(url: str) -> None:
    with open_store(url) as store:
        assert store.load_graph("p", "e") == build(EVENTS)
        assert {o.status for o in store.ingest("p", [posted(one) for one in EVENTS])} == {"duplicate"}
        newer = call("c1", [user("w")], "c", revision=1)
        assert [o.status for o in store.ingest("p", [posted(newer)])] == ["stored"]
        assert store.load_graph("p", "e") == build([*EVENTS, newer])
        assert verify(store, "p").problems == ()


def test_postgresql_has_the_same_schema_and_the_same_law(filled: Store) -> None:
    with postgresql() as url:
        _check_on_postgresql(url)
        for revision in RELEASED:
            _check_upgrade_on_postgresql(_another_database(url, f"of_{revision}"), revision, filled)


def _check_upgrade_on_postgresql(url: str, revision: str, filled: Store) -> None:
    engine = connect(url)
    make_store_of(engine, revision, filled.engine)
    upgrade(engine)
    assert check(engine) == []
    engine.dispose()
    _check_upgraded(url)


def _another_database(url: str, name: str) -> str:
    engine = connect(url)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return make_url(url).set(database=name).render_as_string(hide_password=False)


def _check_on_postgresql(url: str) -> None:
    engine = connect(url)
    upgrade(engine)
    assert check(engine) == []
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX ix_call_agent"))
        connection.execute(text("DROP TABLE edge_7"))
    assert [line.partition(" CREATE")[0] for line in check(engine)] == [
        "call: lacks",
        "edge: lacks partition edge_7 FOR VALUES WITH (modulus 8, remainder 7)",
    ]
    engine.dispose()
    with open_store(url) as store:
        for one in reversed(EVENTS):
            assert [o.status for o in store.ingest("p", [posted(one)])] == ["stored"]
            assert [o.status for o in store.ingest("p", [posted(one)])] == ["duplicate"]
        assert store.load_graph("p", "e") == build(EVENTS)
        assert verify(store, "p").problems == ()
        with store.read() as connection:
            for name in view_statements():
                connection.execute(text(f"SELECT * FROM {name}")).all()
