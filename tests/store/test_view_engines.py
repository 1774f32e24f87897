"""One query file gives the same rows on SQLite, PostgreSQL and DuckDB over either of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from sqlalchemy import text

from tests import factories as make
from tests.databases import empty_store
from tests.factories import answer, assistant, call, posted, subagent, user
from tests.sample_traces.traces import NAMES, trace_path
from tests.store.credits import given, kept, rule
from tests.store.servers import postgresql
from tracestore.store import Store
from tracestore.store.duck import _column_types
from tracestore.store.duck_child import _parsed, _select_list, _sql
from tracestore.store.schema import view_statements
from tracestore.store.sql_columns import columns_of, narrowed
from tracestore.wire.completion import VersionRun
from tracestore.wire.decode import decode_event
from tracestore.wire.events import AnyEvent
from tracestore_migrations import open_store

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
Rows = list[tuple[Any, ...]]


class Answer(NamedTuple):
    columns: list[str]
    rows: Rows


Ask = Callable[[str], Answer]


def example_queries() -> list[str]:
    """The queries of the README."""
    section = README.partition("## A question for every view")[2].partition("```sql\n")[2].partition("```")[0]
    return [part.strip() for part in section.split(";") if part.strip()]


QUERIES = [*example_queries(), *(f"SELECT * FROM {name}" for name in view_statements())]


def hand_worked() -> list[AnyEvent]:
    """Something of every kind, with text that sorts and compares differently by locale."""
    first, second = user("Ünï"), user("v")
    return [
        make.group("g"),
        make.episode(group_id="g", status="ok"),
        make.agent(),
        call("c0", [first], answer("a", ids=[4, 5]), prompt_ids=[1, 2, 3], ordinal=0),
        call(
            "c1",
            [first, assistant("a"), second],
            answer("b", ids=[10], versions=(VersionRun(start=0, name="policy", version=2),)),
            answer("B", ids=[11, 12]),
            answer("b", ids=[13]),
            prompt_ids=[1, 2, 3, 4, 5, 6, 7],
            ordinal=1,
        ),
        call("C2", [first, user("summary")], "d", ordinal=2),
        subagent("sub", spawned_by="c0", trainable=False, status="ok"),
        subagent("Sub", spawned_by="c1", phase="start"),
        make.tool_call(status="failed"),
        make.candidate_set("s", make.member("c1", 0, score=0.25), make.member("c1", 1)),
        make.selection("x", "s", 1, scores={1: 0.75}, selector="judge"),
        make.compaction(before_call_id="c1", after_call_id="C2", replaced_call_ids=("c0", "c1")),
        make.reward(value=0.1),
        make.reward("r2", value=-0.5, call_id="c1", completion=1),
        make.reward("r3", value=-0.5, name="noted", weight=0.0),
        make.gap(),
        make.consumption(step=3),
        make.snapshot("m0", "h0", wave=0, frozen=True),
        make.snapshot("M1", "h1", parent_hash="h0", wave=1, agent_id="main"),
        make.blob("b0", "a" * 64, call_id="c0", media_type="image/png", size=70, shape=(2, 3)),
        make.blob("B1", "a" * 64, call_id="C2"),
        call("orphan", [user("w")], parent="gone", delta=True, status="failed"),
    ]


def fill(store: Store) -> None:
    outcomes = store.ingest("p", [posted(event) for event in hand_worked()])
    for name in NAMES:
        lines = trace_path(name).read_bytes().splitlines()
        outcomes += store.ingest("p", [(decode_event(line), line) for line in lines])
    assert {outcome.status for outcome in outcomes} == {"stored"}
    kept(store, "p", rule(reward_terms="length=-0.1"), [given(), given(sample="C2:0", reward=None)])
    kept(store, "p", rule("rloo"), [given(agent="nobody", advantage_min=None)])


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ask]]:
    """Name of an engine -> what answers a query on it, all over the same events."""
    file = tmp_path_factory.mktemp("views") / "store.db"
    url = empty_store(file)
    with Store.open(url) as store:
        fill(store)
    # DuckDB must not open a file that this process opens through sqlite3.
    copied = shutil.copyfile(file, file.with_name("copy.db"))
    with postgresql() as server, Store.open(url) as small, open_store(server) as large:
        fill(large)
        yield {
            "sqlite": natively(small),
            "postgresql": natively(large),
            "duckdb over sqlite": on_duckdb("sqlite", str(copied)),
            "duckdb over postgresql": on_duckdb("postgres", server),
        }


def natively(store: Store) -> Ask:
    def ask(sql: str) -> Answer:
        with store.read() as connection:
            found = connection.execute(text(sql))
            return Answer(list(found.keys()), [tuple(row) for row in found])

    return ask


def on_duckdb(kind: str, where: str) -> Ask:
    """The views over copies of narrow columns, since DuckDB must not recurse over an attached database."""
    connection = duckdb.connect()
    with as_file(files(f"duckdb_extension_{kind}_scanner") / "extensions") as folder:
        (library,) = folder.glob("*/*.duckdb_extension")
        connection.execute(f"LOAD '{library}'")
    connection.execute(f"ATTACH '{where}' AS store (TYPE {kind}, READ_ONLY)")
    for table, types in _column_types().items():
        connection.execute(f"CREATE TABLE {table} AS SELECT {_select_list(types)} FROM store.{table}")
    connection.execute("DETACH store")
    for statement in view_statements().values():
        connection.execute(statement)

    def ask(sql: str) -> Answer:
        found = connection.execute(sql)
        return Answer([column[0] for column in found.description or ()], found.fetchall())

    return ask


def in_order(answer: Answer, sql: str) -> Answer:
    return answer if "ORDER BY" in sql else Answer(answer.columns, sorted(answer.rows, key=_as_text))


def _as_text(row: tuple[Any, ...]) -> list[str]:
    # A claim is True on PostgreSQL and 1 on SQLite.
    return [str(int(value) if isinstance(value, bool) else value) for value in row]


@pytest.mark.parametrize("sql", QUERIES)
def test_the_same_query_gives_the_same_columns_and_rows_on_every_engine(
    engines: dict[str, Ask], sql: str
) -> None:
    found = {name: in_order(ask(sql), sql) for name, ask in engines.items()}
    expected = found.pop("sqlite")
    assert expected.rows or "context_tokens >" in sql
    for name, got in found.items():
        assert got == expected, name


@pytest.mark.parametrize("name", view_statements())
def test_a_view_without_some_of_its_columns_has_the_same_rows(engines: dict[str, Ask], name: str) -> None:
    ask = engines["duckdb over sqlite"]
    body = view_statements()[name].partition(" AS\n")[2]
    with duckdb.connect() as parser:
        view = _parsed(parser, body)
    some = columns_of(view)[1::2]
    for columns in (some, some[:1]):
        with duckdb.connect() as parser:
            sql = _sql(parser, narrowed(view, columns))
        listed = f"SELECT {', '.join(map(_quoted, columns))} FROM"
        assert in_order(ask(f"{listed} ({sql})"), "") == in_order(ask(f"{listed} {name}"), "")


def _quoted(name: str) -> str:
    return f'"{name}"'


def test_every_view_has_an_example() -> None:
    asked = {name for sql in example_queries() for name in re.findall(r"FROM\s+(\w+)", sql)}
    assert asked == set(view_statements())


def test_no_example_is_longer_than_ten_lines() -> None:
    assert [sql for sql in example_queries() if sql.count("\n") > 10] == []
