"""Analyst SQL runs in a child process, over one project, within its limits."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sqlalchemy import text

from tests import factories as make
from tests.factories import answer, assistant, call, posted, subagent, user
from tests.store.credits import given, kept, rule
from tracestore.store import Store
from tracestore.store.duck import (
    SqlCancelled,
    SqlFailed,
    SqlLimits,
    SqlQuery,
    SqlRefused,
    SqlResult,
    SqlTooSlow,
    database,
    run_sql,
)
from tracestore.store.duck_child import StoreUnreadable, _attach, _Copy, _load
from tracestore.store.engine import BadUrl
from tracestore.store.schema import view_statements
from tracestore.store.sql_formats import NotWritten, rows


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('duck') / 'its a store.db'}"
    events = [
        make.group("g"),
        make.episode(group_id="g", status="ok"),
        make.agent(),
        call("c0", [user("héllo")], answer("a", ids=[3, 4]), prompt_ids=[1, 2], ordinal=0),
        call("c1", [user("héllo"), assistant("a"), user("v")], "b", "c", ordinal=1),
        subagent("sub", spawned_by="c0", trainable=False),
        make.tool_call(),
        make.candidate_set("s", make.member("c1", 0), make.member("c1", 1)),
        make.selection("x", "s", 1),
        make.compaction(before_call_id="c0", replaced_call_ids=("c0",)),
        make.reward(value=0.1),
        make.reward("third", 1 / 3, call_id="c0"),
        make.gap(),
        make.consumption(),
        make.snapshot(),
        make.blob(call_id="c0"),
        call("orphan", [user("w")], parent="gone", delta=True),
    ]
    with Store.open(url) as store:
        assert {o.status for o in store.ingest("p", [posted(e) for e in events])} == {"stored"}
        kept(store, "p", rule(), [given(advantage_mean=1 / 3)])
        store.ingest("other", [posted(make.episode("secret"))])
    return url


def of_every_view(where: str = "") -> str:
    """One query of them all, since each child costs a second: whole rows as text."""
    parts = [f"SELECT '{name}', x::VARCHAR, project FROM {name} x {where}" for name in view_statements()]
    return " UNION ALL ".join(parts) + " ORDER BY 1, 2"


@pytest.fixture(scope="module")
def whole(url: str) -> SqlResult:
    return run_sql(url, "p", of_every_view())


def test_every_view_has_the_same_rows_as_on_sqlite(url: str, whole: SqlResult) -> None:
    with Store.open(url) as store, store.read() as connection:
        expected = {
            name: connection.execute(text(f"SELECT count(*) FROM {name} WHERE project = 'p'")).scalar()
            for name in view_statements()
        }
    assert Counter(row[0] for row in whole.rows) == expected
    assert all(expected.values())
    assert {row[2] for row in whole.rows} == {"p"}


def test_rows_are_counted_of_which_nothing_is_read(url: str, whole: SqlResult) -> None:
    counts = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM {name}" for name in view_statements())
    assert dict(run_sql(url, "p", counts).rows) == Counter(row[0] for row in whole.rows)


def test_a_wrong_name_is_told_with_the_right_ones(url: str) -> None:
    """Though no column but the wrong one would be copied."""
    with pytest.raises(SqlFailed, match="purpose"):
        run_sql(url, "p", "SELECT purpos FROM calls")


def test_rows_that_the_database_finds_by_an_id_are_those_of_the_whole_view(
    url: str, whole: SqlResult
) -> None:
    """To the last digit of 1 / 3, though SQLite hands them over as text."""
    assert any("0.3333333333333333" in row[1] for row in whole.rows if row[0] == "rewards")
    found = run_sql(url, "p", of_every_view("WHERE episode_id = 'e'"))
    assert found.rows == whole.rows
    assert run_sql(url, "p", of_every_view("WHERE episode_id = 'secret'")).rows == []


@pytest.mark.parametrize("kind", ["", "WITHOUT ROWID"])
def test_everything_is_copied_as_of_one_commit(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "t.db"
    write = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1], isolation_level=None).executescript(sys.argv[2])"
    )

    def written(sql: str) -> None:
        subprocess.run([sys.executable, "-c", write, str(file), sql], check=True)

    row = "INSERT INTO call SELECT 1, 1 + count(*) FROM call"
    written(
        "PRAGMA journal_mode = wal; CREATE TABLE project (project_id BIGINT, name TEXT);"
        "INSERT INTO project VALUES (1, 'p');"
        f"CREATE TABLE call (project_id BIGINT, key BIGINT, PRIMARY KEY (project_id, key)) {kind}; {row}"
    )
    with duckdb.connect() as connection:
        _load(connection, "sqlite")
        _attach(connection, "sqlite", str(file))
        connection.execute("BEGIN")
        copy = _Copy(connection, is_postgresql=False, project="p")
        written(row)
        copy.table("call", "key")
        assert connection.execute("FROM call").fetchall() == [(1,)]
        count = "FROM sqlite_query('store', 'SELECT count(*) FROM call')"
        assert connection.execute(count).fetchall() == [("1",)]


def test_values_come_back_as_they_are(url: str) -> None:
    got = run_sql(
        url,
        "p",
        "SELECT call_id, sum(sampled_tokens) OVER () AS n, started_at, link_exact, "
        "(SELECT value FROM rewards WHERE call_id IS NULL) AS r, "
        "(SELECT message_text(content_id) FROM contexts x "
        "WHERE x.call_id = c.call_id AND position = 0) AS t, "
        "(SELECT trainable FROM agents WHERE agent_id = 'sub') AS b FROM calls c ORDER BY ordinal LIMIT 2",
    )
    assert got.columns == ("call_id", "n", "started_at", "link_exact", "r", "t", "b")
    assert got.rows == [
        ("c0", 2, None, False, 0.1, "héllo", False),
        ("c1", 2, None, True, 0.1, "héllo", False),
    ]
    assert not got.truncated


def test_a_time_is_written_to_its_nanosecond_and_one_beyond_all_calendars_is_refused() -> None:
    def rows_of(sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect() as connection:
            return list(rows(connection.execute(sql).to_arrow_table()))

    assert rows_of("SELECT make_timestamp_ns(1700000000123456789), NULL::TIMESTAMP_NS") == [
        ("2023-11-14 22:13:20.123456789", None)
    ]
    for time_ in ("'infinity'::DATE", "to_timestamp(1700000000123456789 / 1e6)", "['infinity'::TIMESTAMP]"):
        with pytest.raises(NotWritten, match="cast it to VARCHAR"):
            rows_of(f"SELECT {time_}")


def test_rows_beyond_the_limit_are_said_to_be_missing(url: str) -> None:
    got = run_sql(url, "p", "SELECT * FROM range(50000)", limit_rows=3000)
    assert (len(got.rows), got.truncated) == (3000, True)


def test_what_is_refused_and_what_fails_say_why(url: str) -> None:
    with pytest.raises(SqlRefused, match="one SELECT"):
        run_sql(url, "p", "DROP TABLE call")
    with pytest.raises(SqlFailed, match="nope"):
        run_sql(url, "p", "SELECT nope FROM episodes")


def test_a_query_that_runs_too_long_is_ended(url: str) -> None:
    with pytest.raises(SqlTooSlow):
        run_sql(url, "p", "SELECT count(*) FROM range(1000000000) a, range(1000000) b", timeout_s=3)


def test_a_query_that_takes_too_much_memory_fails(url: str) -> None:
    sql = "SELECT list(a.range * 31 + b.range) FROM range(20000) a, range(20000) b"
    with pytest.raises(SqlFailed):
        run_sql(url, "p", sql, memory_mb=100)


def test_a_database_that_cannot_be_read_is_not_described(tmp_path: Path) -> None:
    """Whoever asks may be a tenant: no host, user or file of the database reaches them."""
    with pytest.raises(BadUrl):
        run_sql("mysql://localhost/x", "p", "SELECT 1")
    for url in (f"sqlite:///{tmp_path / 'missing.db'}", "postgresql://someone:secret@127.0.0.1:1/x"):
        with pytest.raises(SqlFailed, match="is the database there") as refusal:
            run_sql(url, "p", "SELECT * FROM calls")
        assert not {"missing", "secret", "someone"} & set(re.findall(r"\w+", str(refusal.value)))


def test_a_scanner_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("tracestore.store.duck_child.import_module", missing)
    with duckdb.connect() as connection, pytest.raises(StoreUnreadable, match="duckdb-extension-postgres-sc"):
        _load(connection, "postgres")


def test_the_process_of_a_query_loads_no_store() -> None:
    """Every query pays for what its process imports; SQLAlchemy and the wire's models take a second.

    pyarrow comes later, when it can come without numpy.
    """
    loaded = "sys.modules.keys() & {'sqlalchemy', 'pydantic', 'pyarrow', 'numpy', 'zstandard'}"
    script = f"import sys, tracestore.store.duck_child; print(*sorted({loaded}))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"


def test_an_answer_has_as_many_rows_as_it_may_have_bytes(url: str) -> None:
    """Rows of 1,000 characters, and room for 100,000 bytes: about a hundred of the thousand come back."""
    limits = SqlLimits(answer_bytes=100_000)
    sql = "SELECT repeat('x', 1000) AS x FROM range(1000)"
    found = SqlQuery(database(url, "p"), sql, limits=limits, as_="csv").answer()
    assert found.truncated
    assert 80 <= found.num_rows <= 100
    assert found.body.count(b"\n") == 1 + found.num_rows


def test_a_query_that_nobody_waits_for_is_never_started(url: str) -> None:
    query = SqlQuery(database(url, "p"), "SELECT 1", limits=SqlLimits())
    query.cancel()
    with pytest.raises(SqlCancelled):
        query.answer()


def test_the_child_ends_with_whoever_asked(url: str) -> None:
    """Though that process was killed, and could end nothing itself."""
    sql = "SELECT count(*) FROM range(1000000000) a, range(1000000) b"
    script = f"from tracestore.store.duck import run_sql; run_sql({url!r}, 'p', {sql!r})"
    with subprocess.Popen([sys.executable, "-c", script]) as asking:
        children = Path(f"/proc/{asking.pid}/task/{asking.pid}/children")
        deadline = time.monotonic() + 60
        while not (found := children.read_text().split()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child = Path(f"/proc/{found[0]}")
        # Once it has read the request, which names whom it belongs to.
        while len(list((child / "task").iterdir())) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        asking.kill()
    while _runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(process: Path) -> bool:
    try:
        return ") Z " not in (process / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
