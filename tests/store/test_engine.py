"""Connections keep their promises, and URLs that cannot are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from tracestore.store import Store, tables
from tracestore.store.engine import BadUrl, NoStore, connect
from tracestore.store.schema import WrongRevision


def test_sqlite_syncs_every_commit_and_holds_foreign_keys(store: Store) -> None:
    with store.read() as connection:
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
