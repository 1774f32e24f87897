"""Connections keep their promises, and URLs that cannot are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, ProgrammingError

from tracestore.store import Store, tables
from tracestore.store.engine import BadUrl, NoStore, StoreUnavailable, connect, writer
from tracestore.store.schema import WrongRevision


def test_sqlite_syncs_every_commit_and_holds_foreign_keys(sqlite_store: Store) -> None:
    with sqlite_store.read() as connection:
        pragmas = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    full = 2
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": full,
        "foreign_keys": 1,
        "busy_timeout": 30_000,
    }


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/db", "no url"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        connect(url)


@pytest.mark.parametrize("name", ["text", ".", "none/s.db"])
def test_a_place_that_cannot_be_a_database_is_said_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(StoreUnavailable) as error:
        Store.open(f"sqlite:///{tmp_path}/{name}")
    assert error.value.values["url"] == f"sqlite:///{tmp_path}/{name}"
    assert error.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_server_that_does_not_answer_is_said_without_the_password() -> None:
    with pytest.raises(StoreUnavailable, match=r"u:\*\*\*@127.0.0.1:1/x") as error:
        connect("postgresql://u:secret@127.0.0.1:1/x")
    assert "secret" not in str(error.value)


def test_a_wrong_statement_is_not_blamed_on_the_database(store: Store) -> None:
    with store.read() as connection, pytest.raises((OperationalError, ProgrammingError), match="nowhere"):
        connection.execute(text("SELECT * FROM nowhere"))


def test_a_file_is_made_only_where_it_may_be(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    with pytest.raises(NoStore):
        Store.open(f"sqlite:///{file}", create=False)
    assert not file.exists()
    Store.open(f"sqlite:///{file}").close()
    Store.open(f"sqlite:///{file}", create=False).close()


def test_a_database_of_something_else_is_not_touched(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"
    with connect(url).begin() as connection:
        connection.execute(text("CREATE TABLE theirs (x)"))
    with pytest.raises(NoStore):
        Store.open(url)
    with connect(url).connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM sqlite_master")).scalar() == 1


def test_another_revision_is_refused_with_what_to_do(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"
    Store.open(url).close()
    with connect(url).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(WrongRevision, match="tracestore db upgrade") as error:
        Store.open(url)
    assert error.value.values == {"found": "9999", "expected": tables.REVISION}


def test_opening_a_store_does_not_wait_for_who_is_writing(store: Store) -> None:
    with writer(store.engine).begin() as connection:
        connection.execute(text("UPDATE project SET commit_seq = commit_seq"))
        Store.open(str(store.engine.url)).close()
