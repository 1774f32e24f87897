"""The same SQL over PostgreSQL: the rows of SQLite, one project, texts in full, nothing written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from sqlalchemy import make_url

from tests import factories as make
from tests.factories import answer, assistant, call, posted, subagent, user
from tests.serving import running_server
from tests.store.credits import given, kept, rule
from tests.store.servers import postgresql
from tracestore.store import Store
from tracestore.store.duck import SqlRefused, run_sql
from tracestore.store.schema import view_statements
from tracestore_migrations import open_store

LONG = "v " * 300 + "\\.\t\r\n'\""
"""With what a text protocol could trip over."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


def test_every_view_has_the_rows_of_sqlite(server: str, tmp_path: Path) -> None:
    events = [
        make.group("g"),
        make.episode(group_id="g", status="ok"),
        make.agent(),
        call("c0", [user("h\\é\tl\nl'o")], answer("a", ids=[3, 4]), prompt_ids=[1, 2], ordinal=0),
        call("c1", [user("h\\é\tl\nl'o"), assistant("a"), user(LONG)], "b", "c", ordinal=1),
        subagent("sub", spawned_by="c0", trainable=False),
        make.tool_call(),
        make.candidate_set("s", make.member("c1", 0), make.member("c1", 1)),
        make.selection("x", "s", 1),
        make.compaction(before_call_id="c0", replaced_call_ids=("c0",)),
        make.reward(value=1 / 3),
        make.gap(),
        make.consumption(),
        make.snapshot(),
        make.blob(call_id="c0"),
        call("orphan", [user("w")], parent="gone", delta=True),
    ]
    name = "it's"
    urls = [f"sqlite:///{tmp_path / 't.db'}", make_url(server).render_as_string(hide_password=False)]
    for url in urls:
        with Store.open(url) as store:
            store.ingest("other", [posted(make.episode("secret")), posted(make.agent(episode="secret"))])
            assert {o.status for o in store.ingest(name, [posted(e) for e in events])} == {"stored"}
            kept(store, name, rule(), [given(advantage_mean=1 / 3)])
    # One query, as each child costs a second. The numbers of the store stand in other columns than names.
    columns = "COLUMNS(c -> NOT ends_with(c, '_id') OR c = 'episode_id')"

    def of_every_view(where: str) -> str:
        parts = [
            f"SELECT '{view}' AS v, x::VARCHAR AS r FROM (SELECT {columns} FROM {view} {where}) x"
            for view in view_statements()
        ]
        texts = "SELECT 'text', message_text(content_id) FROM contexts WHERE call_id = 'c1'"
        return " UNION ALL ".join([*parts, texts]) + " ORDER BY 1, 2"

    sqlite, postgres = (run_sql(url, name, of_every_view("")).rows for url in urls)
    assert postgres == sqlite
    # The server itself finds the rows of one episode, which here are all.
    assert run_sql(urls[1], name, of_every_view("WHERE episode_id = 'e'")).rows == sqlite
    assert {row[0] for row in sqlite} == {*view_statements(), "text"}
    assert LONG in {row[1] for row in sqlite}
    assert not any("secret" in row[1] for row in sqlite)


def test_the_route_answers_over_postgresql_as_over_sqlite(server: str, tmp_path: Path) -> None:
    with open_store(server) as store:
        store.ingest("default", [posted(make.episode("e1", task_id="a, b")), posted(make.episode("e2"))])
        store.ingest("elsewhere", [posted(make.episode("secret"))])
    with running_server(tmp_path / "t.db", url=server) as serving:

        def ask(query: str) -> requests.Response:
            return requests.post(f"{serving.url}/v1/sql", json={"query": query}, timeout=60)

        answer = ask("SELECT episode_id, task_id FROM episodes ORDER BY episode_id")
        refused = ask("SELECT * FROM postgres_query('store', 'SELECT 1')")
        maps = Path(f"/proc/{serving.pid}/maps").read_text()
    assert answer.json() == {
        "columns": ["episode_id", "task_id"],
        "rows": [["e1", "a, b"], ["e2", None]],
        "truncated": False,
    }
    assert (refused.status_code, refused.json()["type"]) == (400, "urn:tracestore:problem:sql-refused")
    assert "duckdb" not in maps


def test_the_server_cannot_be_asked_past_the_views(server: str) -> None:
    for sql in (
        "SELECT * FROM postgres_query('store', 'SELECT 1')",
        "SELECT * FROM store.public.project",
        "SELECT * FROM project",
    ):
        with pytest.raises(SqlRefused):
            run_sql(server, "default", sql)
