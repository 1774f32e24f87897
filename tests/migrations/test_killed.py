"""An upgrade that is killed anywhere goes on, batch by batch, and nobody writes to what it has half done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DatabaseError

from tests import factories as make
from tests.factories import posted
from tests.migrations.old import Server, everything, old_file
from tests.store.servers import postgresql
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.engine import StoreUnavailable, connect
from tracestore.store.schema import WrongRevision
from tracestore_migrations import check, current, upgrade
from tracestore_migrations.migrate import Depended, Progress

_WRITES = ("CREATE", "ALTER", "DROP", "INSERT", "DELETE", "UPDATE")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgresql() as url:
        yield Server(url)


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Engine]:
    with opened(old_file("0003", tmp_path / "old.db")) as engine:
        yield engine


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    engine = connect(url)
    try:
        yield engine
    finally:
        engine.dispose()


def upgraded(url: str, *, rows_at_once: int = 1000) -> dict[str, list[object]]:
    """All that is in a database after its upgrade has ended, and the schema is the declared one."""
    with opened(url) as engine:
        upgrade(engine, rows_at_once=rows_at_once)
        assert check(engine) == []
        return everything(engine)


# SQLite: what a kill leaves is what is in the files at that moment


def images(engine: Engine, *, rows_at_once: int) -> dict[bytes, tuple[bytes, bytes]]:
    """The file and its log as every write of an upgrade finds them, each state once."""
    file = Path(str(engine.url.database))
    found: dict[bytes, tuple[bytes, bytes]] = {}

    def keep(*_: object) -> None:
        log = file.with_name(f"{file.name}-wal")
        image = file.read_bytes(), log.read_bytes() if log.exists() else b""
        found[sha256(image[0] + image[1]).digest()] = image

    event.listen(engine, "before_cursor_execute", keep)
    upgrade(engine, rows_at_once=rows_at_once)
    keep()
    event.remove(engine, "before_cursor_execute", keep)
    return found


def test_an_upgrade_killed_at_any_write_goes_on_to_the_same_rows(tmp_path: Path, old: Engine) -> None:
    expected = upgraded(old_file("0003", tmp_path / "whole.db"))
    found = images(old, rows_at_once=2)
    stood = set()
    for number, (file, log) in enumerate(found.values()):
        copy = tmp_path / f"copy-{number}.db"
        copy.write_bytes(file)
        copy.with_name(f"{copy.name}-wal").write_bytes(log)
        with opened(f"sqlite:///{copy}") as engine:
            stood.add(current(engine))
        assert upgraded(f"sqlite:///{copy}") == expected
    assert stood == {"0003", "0003 to 0004", "0004 to 0005", t.REVISION}


def test_an_upgrade_of_few_rows_is_one_transaction(tmp_path: Path, old: Engine) -> None:
    before = everything(old)
    for number, (file, log) in enumerate(list(images(old, rows_at_once=1000).values())[:-1]):
        copy = tmp_path / f"copy-{number}.db"
        copy.write_bytes(file)
        copy.with_name(f"{copy.name}-wal").write_bytes(log)
        with opened(f"sqlite:///{copy}") as engine:
            assert everything(engine) in (before, everything(old))


def test_no_transaction_of_an_upgrade_touches_more_rows_than_it_may(old: Engine) -> None:
    changed = [0]

    @event.listens_for(old, "after_cursor_execute")
    def count(_connection: object, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(("INSERT INTO raw_event", "DELETE FROM edge")):
            changed[-1] += cursor.rowcount  # type: ignore[attr-defined]

    event.listen(old, "commit", lambda _: changed.append(0))
    seen: list[Progress] = []
    upgrade(old, rows_at_once=2, heard=seen.append)
    assert max(changed) == 2
    # 6 events and 2 continuations
    assert sum(changed) == 6 + 2
    assert [one.num_rows for one in seen if one.step == "copy raw_event_before into raw_event"][-1] == 6


# Others


def half_upgraded(engine: Engine) -> None:
    """Begin an upgrade, which ends after its first transaction."""
    commits = 0

    def stop(_connection: object) -> None:
        nonlocal commits
        commits += 1
        if commits == 2:
            raise Stopped

    event.listen(engine, "commit", stop)
    with pytest.raises(Stopped):
        upgrade(engine, rows_at_once=1)
    event.remove(engine, "commit", stop)


class Stopped(Exception):
    """The upgrade ends here."""


def check_nobody_writes(engine: Engine) -> None:
    half_upgraded(engine)
    assert " to " in str(current(engine))
    assert check(engine)[0].startswith(f"revision: is {current(engine)}")
    with pytest.raises(WrongRevision, match=r" to .*tracestore db upgrade"):
        Store.open(engine.url.render_as_string(hide_password=False))
    # What a server of an older version does, whose store is open.
    for sql in ("UPDATE project SET commit_seq = 99", "INSERT INTO project VALUES (9, 'q', 0, 1, 0)"):
        told = pytest.raises((DatabaseError, StoreUnavailable), match="is being upgraded")
        with told, engine.begin() as connection:
            connection.execute(text(sql))
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE project SET commit_seq = commit_seq"))


def test_nobody_writes_to_a_database_between_two_revisions(old: Engine) -> None:
    check_nobody_writes(old)


def test_a_server_whose_database_was_upgraded_under_it_stores_nothing_and_says_why(store: Store) -> None:
    store.ingest("p", [posted(make.episode("e0"))])
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for project in ("p", "new"):
        with pytest.raises(WrongRevision, match="9999"):
            store.ingest(project, [posted(make.episode("e1"))])
    with store.engine.connect() as connection:
        assert connection.execute(text("SELECT id FROM episode")).scalars().all() == ["e0"]


def check_two_at_once(url: str, expected: dict[str, list[object]]) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(partial(upgraded, rows_at_once=1), [url, url]))
    assert found == [expected, expected]


def test_two_processes_that_upgrade_at_once_share_the_work(tmp_path: Path) -> None:
    expected = upgraded(old_file("0003", tmp_path / "whole.db"))
    check_two_at_once(old_file("0003", tmp_path / "shared.db"), expected)


# PostgreSQL


def test_postgresql_too_goes_on_keeps_writers_out_and_lets_two_share_the_work(server: Server) -> None:
    expected = upgraded(server.old("0003"))
    check_two_at_once(server.old("0003"), expected)
    with opened(server.old("0003")) as engine:
        check_nobody_writes(engine)
        assert everything(engine) == expected


def test_roles_keep_what_they_may_do_with_tables_and_views(server: Server) -> None:
    with opened(server.old("0003")) as engine:
        with engine.begin() as connection:
            for statement in (
                "CREATE ROLE analyst",
                "GRANT SELECT ON edges, calls TO analyst",
                "GRANT SELECT ON episodes TO PUBLIC",
                "GRANT INSERT, SELECT ON raw_event TO analyst WITH GRANT OPTION",
            ):
                connection.execute(text(statement))
        half_upgraded(engine)
        upgrade(engine)
        with engine.connect() as connection:
            rows = connection.execute(
                text(
                    "SELECT table_name, privilege_type, grantee, is_grantable"
                    " FROM information_schema.role_table_grants WHERE grantee IN ('analyst', 'PUBLIC')"
                    " AND table_schema = 'public' ORDER BY 1, 2"
                )
            )
            assert rows.all() == [
                ("calls", "SELECT", "analyst", "NO"),
                ("edges", "SELECT", "analyst", "NO"),
                ("episodes", "SELECT", "PUBLIC", "NO"),
                ("raw_event", "INSERT", "analyst", "YES"),
                ("raw_event", "SELECT", "analyst", "YES"),
            ]


# The process itself


KILLED = """
import os, signal, sys
from sqlalchemy import event
from tracestore.store.engine import StoreUnavailable, connect
from tracestore_migrations import upgrade

engine = connect(sys.argv[1])
seen = 0

@event.listens_for(engine, "after_cursor_execute")
def kill(connection, cursor, statement, *rest):
    global seen
    seen += statement.lstrip().startswith(tuple(sys.argv[4:]))
    if seen == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

upgrade(engine, rows_at_once=int(sys.argv[3]))
"""


def upgraded_and_killed(url: str, *, after: int, rows_at_once: int) -> bool:
    """Upgrade in a process that is killed after so many writes; whether it was."""
    command = [sys.executable, "-c", KILLED, url, str(after), str(rows_at_once), *_WRITES]
    code = subprocess.run(command, check=False, timeout=120).returncode
    assert code in (0, -9)
    return code == -9


def test_a_killed_process_leaves_a_database_that_goes_on(tmp_path: Path, server: Server) -> None:
    for url, copy in (
        (old_file("0003", tmp_path / "a.db"), old_file("0003", tmp_path / "b.db")),
        (server.old("0003"), server.old("0003")),
    ):
        expected = upgraded(url)
        assert upgraded_and_killed(copy, after=22, rows_at_once=1)
        assert upgraded(copy) == expected


def test_a_new_database_that_is_killed_half_made_is_empty(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    assert upgraded_and_killed(url, after=85, rows_at_once=1)
    with opened(url) as engine:
        assert everything(engine) == {}
    upgraded(url)


@pytest.mark.soak
@pytest.mark.parametrize("revision", ["0001", "0003", "0004"])
@pytest.mark.timeout(3600)
def test_an_upgrade_killed_after_every_few_writes_ends_with_the_same_rows(
    tmp_path: Path, server: Server, revision: str
) -> None:
    new: Callable[[], str]
    for new in (
        lambda: server.old(revision),
        lambda: old_file(revision, tmp_path / f"{os.urandom(4).hex()}.db"),
    ):
        expected = upgraded(new())
        after, killed = 1, True
        while killed:
            url = new()
            killed = upgraded_and_killed(url, after=after, rows_at_once=1)
            assert upgraded(url) == expected
            after += 2


def test_a_view_of_others_over_ours_is_named_and_nothing_has_happened_yet(server: Server) -> None:
    with opened(server.old("0003")) as engine:
        before = everything(engine)
        with engine.begin() as connection:
            connection.execute(text("CREATE VIEW mine AS SELECT call_id FROM calls"))
        with pytest.raises(Depended, match="mine"):
            upgrade(engine)
        with engine.begin() as connection:
            connection.execute(text("DROP VIEW mine"))
        assert everything(engine) == before
        upgrade(engine)
        assert check(engine) == []
