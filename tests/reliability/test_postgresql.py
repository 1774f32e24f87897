"""Several servers on one PostgreSQL: what it gives up on is tried again, and 2xx rows are there once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection as Sql

from tests import factories as make
from tests.factories import answer, assistant, call, posted, user
from tests.reliability.recordings import Name, array, conversation, names, statuses
from tests.reliability.test_writers import at_once
from tests.serving import Connection, running_server
from tests.store.servers import postgresql
from tracestore.store import Store
from tracestore.store.engine import StoreFull
from tracestore.store.verify import verify
from tracestore.wire.events import AnyEvent


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgresql() as url:
        Store.open(url).close()
        yield url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


@pytest.fixture
def sql(store: Store) -> Iterator[Sql]:
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


def positions(store: Store, project: str) -> list[int]:
    with store.read() as connection:
        rows = connection.execute(
            sa.text(
                "SELECT r.pos FROM raw_event r JOIN project p USING (project_id)"
                " WHERE p.name = :project ORDER BY r.pos"
            ),
            {"project": project},
        )
        return [pos for (pos,) in rows]


def conversation_on(shared: list[str], *, name: str) -> list[AnyEvent]:
    """An episode whose messages are those of all the others, in an order of its own, and one that is not."""
    messages = [user(text) for text in shared]
    return [
        make.episode(name),
        call(f"{name}/c0", [*messages, user(name)], answer("ok", ids=[1]), episode=name),
        call(f"{name}/c1", [*messages, user(name), assistant("ok"), user("on")], "well", episode=name),
    ]


def test_two_servers_and_many_writers_store_every_acknowledged_event_once_at_dense_positions(
    url: str, store: Store, tmp_path: Path
) -> None:
    """phoenix#8879: writers in opposite orders deadlocked, and what was answered 200 was not there."""
    texts = [f"a message that many share {n}" for n in range(12)]
    acknowledged: dict[Name, list[str]] = {}
    refused: list[object] = []
    lock = threading.Lock()
    with (
        running_server(tmp_path / "one", url=url) as one,
        running_server(tmp_path / "two", url=url) as two,
    ):

        def client(number: int) -> None:
            with Connection((one, two)[number % 2].url) as connection:
                for n in range(6):
                    order = texts[n:] + texts[:n] if number % 2 else list(reversed(texts))
                    own = conversation_on(order, name=f"e{number}.{n}")
                    common = make.episode(f"common{n}", task_id="t")
                    status, found = connection.post("/v1/events", array([*own, common]))
                    with lock:
                        if status != 200:
                            refused.append(found)
                            continue
                        for name, said in statuses(found).items():
                            acknowledged.setdefault(name, []).append(said)

        at_once(6, client)
    assert refused == []
    assert [said for said in acknowledged.values() if sorted(said).count("stored") != 1] == []
    assert len(acknowledged) == 6 * 6 * 3 + 6
    assert positions(store, "default") == list(range(1, len(acknowledged) + 1))
    assert verify(store, "default").problems == ()
    for log in tmp_path.glob("*.log"):
        assert "Traceback" not in log.read_text()


@contextmanager
def failing(sql: Sql, *, sqlstate: str, times: int, at_commit: bool = False) -> Iterator[None]:
    """The next `times` transactions that store events fail so, when they insert or when they commit."""
    kind = "CONSTRAINT TRIGGER" if at_commit else "TRIGGER"
    when = "AFTER" if at_commit else "BEFORE"
    how = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW" if at_commit else "FOR EACH STATEMENT"
    # A sequence is not rolled back, so it counts the attempts.
    sql.exec_driver_sql("CREATE SEQUENCE attempts")
    sql.exec_driver_sql(
        "CREATE FUNCTION give_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF nextval('attempts') <= {times} THEN"
        f" RAISE EXCEPTION 'injected' USING ERRCODE = '{sqlstate}'; END IF;"
        " RETURN NULL; END $$"
    )
    sql.exec_driver_sql(f"CREATE {kind} give_up {when} INSERT ON raw_event {how} EXECUTE FUNCTION give_up()")
    try:
        yield
        assert sql.exec_driver_sql("SELECT last_value FROM attempts").scalar_one() >= times
    finally:
        sql.exec_driver_sql("DROP TRIGGER give_up ON raw_event")
        sql.exec_driver_sql("DROP FUNCTION give_up()")
        sql.exec_driver_sql("DROP SEQUENCE attempts")


@pytest.mark.parametrize("at_commit", [False, True], ids=["while-inserting", "at-commit"])
@pytest.mark.parametrize("sqlstate", ["40P01", "40001"], ids=["deadlock", "serialization-failure"])
def test_what_postgresql_gave_up_on_is_tried_again_and_nobody_hears_of_it(
    store: Store, sql: Sql, sqlstate: str, at_commit: bool
) -> None:
    project = f"{sqlstate}-{at_commit}"
    events = conversation("e", turns=2)
    with failing(sql, sqlstate=sqlstate, times=2, at_commit=at_commit):
        outcomes = store.ingest(project, [posted(event) for event in events])
    assert [outcome.status for outcome in outcomes] == ["stored"] * len(events)
    assert positions(store, project) == list(range(1, len(events) + 1))
    assert verify(store, project).problems == ()


def test_a_postgresql_without_space_is_full_and_goes_on_later(store: Store, sql: Sql) -> None:
    events = [posted(event) for event in conversation("e", turns=1)]
    with failing(sql, sqlstate="53100", times=1), pytest.raises(StoreFull, match="free some space") as error:
        store.ingest("full", events)
    assert error.value.status == 507
    assert {outcome.status for outcome in store.ingest("full", events)} == {"stored"}
    assert verify(store, "full").problems == ()


def test_a_server_whose_connections_were_cut_serves_again_and_lost_nothing_it_answered(
    url: str, store: Store, sql: Sql, tmp_path: Path
) -> None:
    """PostgreSQL restarted, a proxy between, an administrator: the pool then holds dead connections."""
    acknowledged: set[Name] = set()
    headers = {"X-Tracestore-Project": "cut"}
    of_this_process = [pid for (pid,) in sql.exec_driver_sql("SELECT pid FROM pg_stat_activity")]
    with running_server(tmp_path / "one", url=url) as server, Connection(server.url) as connection:
        for n in range(9):
            if n % 3 == 1:
                sql.execute(
                    sa.text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> ALL(:kept)"
                    ),
                    {"kept": of_this_process},
                )
            events = conversation(f"e{n}", turns=1)
            status, found = connection.post("/v1/events", array(events), headers)
            assert status in (200, 503), found
            if status == 503:
                status, found = connection.post("/v1/events", array(events), headers)
            assert status == 200, found
            acknowledged |= names(events)
            assert connection.get("/v1/meta")[0] == 200
    assert len(positions(store, "cut")) == len(acknowledged)
    assert verify(store, "cut").problems == ()
