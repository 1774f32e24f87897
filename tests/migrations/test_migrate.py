"""Law 10: the migrated schema is the declared one, from an empty database or half way, on both databases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.factories import call, posted, user
from tests.migrations.old import EVENTS, RELEASED, Server, everything, old_file
from tests.store.servers import postgresql
from tracestore.graph.build import build
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.engine import NoStore, connect, writer
from tracestore.store.schema import WrongRevision, set_plan_statistics, view_statements
from tracestore.store.verify import verify
from tracestore_migrations import check, current, open_store, upgrade
from tracestore_migrations.migrate import scripts_of_this_package


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = connect(f"sqlite:///{tmp_path / 'store.db'}")
    yield engine
    engine.dispose()


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
    before = everything(engine)
    upgrade(engine)
    assert everything(engine) == before


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
def test_a_schema_that_differs_is_told(store: Store, sql: str, problem: str) -> None:
    with store.engine.begin() as connection:
        for statement in sql.split("; "):
            connection.execute(text(statement))
    assert any(line.startswith(problem) for line in check(store.engine)), check(store.engine)


def test_a_constraint_that_is_gone_is_told(store: Store) -> None:
    with store.engine.begin() as connection:
        sql = connection.execute(text("SELECT sql FROM sqlite_master WHERE name = 'gap'")).scalar_one()
        connection.execute(text("DROP VIEW gaps"))
        connection.execute(text("DROP TABLE gap"))
        # The constraints of a table come in any order.
        connection.execute(text(re.sub(r",\s*CONSTRAINT uq_gap_id UNIQUE \(project_id, id\)", "", sql)))
    assert any("lacks CONSTRAINT uq_gap_id UNIQUE" in line for line in check(store.engine))


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


def test_a_database_of_a_newer_version_is_refused_and_left_alone(store: Store) -> None:
    with writer(store.engine).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    before = everything(store.engine)
    with pytest.raises(WrongRevision, match="backup"):
        upgrade(store.engine)
    with pytest.raises(WrongRevision, match="9999"):
        open_store(str(store.engine.url))
    assert everything(store.engine) == before


# From the revisions that were released, with rows in them


@pytest.mark.parametrize("revision", RELEASED)
def test_the_rows_of_every_revision_stay_and_may_be_replaced(tmp_path: Path, revision: str) -> None:
    url = old_file(revision, tmp_path / "old.db")
    engine = connect(url)
    assert current(engine) == revision
    assert check(engine) != []
    upgrade(engine)
    assert check(engine) == []
    engine.dispose()
    _check_upgraded(url)


def test_every_index_of_an_upgraded_store_has_statistics(tmp_path: Path, store: Store) -> None:
    engine = connect(old_file("0004", tmp_path / "old.db"))
    with engine.begin() as connection:
        set_plan_statistics(connection)
    upgrade(engine)
    statistics = text("SELECT tbl, idx, stat FROM sqlite_stat1")
    with engine.connect() as upgraded, store.engine.connect() as fresh:
        found, expected = (set(one.execute(statistics).all()) for one in (upgraded, fresh))
    assert found == expected
    engine.dispose()


def test_indexes_that_someone_dropped_or_made_do_not_stop_an_upgrade(tmp_path: Path) -> None:
    engine = connect(old_file("0003", tmp_path / "old.db"))
    with writer(engine).begin() as connection:
        for statement in (
            "DROP INDEX ix_call_parent",
            "DROP INDEX ix_raw_event_episode",
            "CREATE INDEX ix_call_link ON call (project_id, link_call_key) WHERE link_call_key IS NOT NULL",
        ):
            connection.execute(text(statement))
    upgrade(engine)
    assert check(engine) == []
    engine.dispose()


def _check_upgraded(url: str) -> None:
    with open_store(url) as store:
        assert store.load_graph("p", "e") == build(EVENTS)
        assert {o.status for o in store.ingest("p", [posted(one) for one in EVENTS])} == {"duplicate"}
        newer = call("c1", [user("w")], "c", revision=1)
        assert [o.status for o in store.ingest("p", [posted(newer)])] == ["stored"]
        assert store.load_graph("p", "e") == build([*EVENTS, newer])
        assert verify(store, "p").problems == ()


def test_postgresql_has_the_same_schema_and_the_same_law() -> None:
    with postgresql() as url:
        _check_on_postgresql(Server(url).empty())


@pytest.mark.parametrize(
    "revision",
    # The oldest goes through all revisions, and the newest is what most databases have.
    [RELEASED[0], *(pytest.param(one, marks=pytest.mark.soak) for one in RELEASED[1:-1]), RELEASED[-1]],
)
def test_the_rows_of_every_revision_stay_on_postgresql_too(revision: str) -> None:
    with postgresql() as url:
        old = Server(url).old(revision)
        engine = connect(old)
        upgrade(engine)
        assert check(engine) == []
        engine.dispose()
        _check_upgraded(old)


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
