"""Analyst SQL runs in a child process, over one project, within its limits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from tests import factories as make
from tests.factories import answer, assistant, call, posted, subagent, user
from tracestore.store import Store
from tracestore.store.duck import SqlFailed, SqlRefused, SqlTooSlow, run_sql
from tracestore.store.engine import BadUrl
from tracestore.store.schema import view_statements


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
        make.compaction(before_call_id="c0"),
        make.reward(value=0.1),
        make.gap(),
        make.consumption(),
        call("orphan", [user("w")], parent="gone", delta=True),
    ]
    with Store.open(url) as store:
        assert {o.status for o in store.ingest("p", [posted(e) for e in events])} == {"stored"}
        store.ingest("other", [posted(make.episode("secret"))])
    return url


def test_every_view_has_the_same_rows_as_on_sqlite(url: str) -> None:
    """One query reads them all, since each child costs a second: a checksum of the whole of every view."""
    names = sorted(view_statements())
    parts = [f"SELECT '{name}', count(*), string_agg(project, '') FROM {name}" for name in names]
    got = run_sql(url, "p", " UNION ALL ".join(parts) + " ORDER BY 1")
    with Store.open(url) as store, store.read() as connection:
        expected = [
            (name, connection.execute(text(f"SELECT count(*) FROM {name} WHERE project = 'p'")).scalar())
            for name in names
        ]
    assert [row[:2] for row in got.rows] == expected
    assert all(row[1] > 0 for row in got.rows)
    assert {character for row in got.rows for character in row[2]} == {"p"}


def test_values_come_back_as_they_are(url: str) -> None:
    got = run_sql(
        url,
        "p",
        "SELECT call_id, sum(sampled_tokens) OVER () AS n, started_at, link_exact, "
        "(SELECT value FROM rewards) AS r, "
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


def test_the_process_of_a_query_loads_no_store() -> None:
    """Every query pays for what its process imports; SQLAlchemy and the wire's models take a second."""
    loaded = "sys.modules.keys() & {'sqlalchemy', 'pydantic'}"
    script = f"import sys, tracestore.store.duck_child; print(*sorted({loaded}))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"
