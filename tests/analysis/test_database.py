"""A store in Python: frames of the views, filters, what is said where something is not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pyarrow as pa
import pytest

import tracestore
from tests import factories as make
from tests.databases import empty_store
from tests.factories import answer, assistant, call, posted, user
from tests.store.servers import postgresql
from tracestore.analysis.database import BadFilter, Database, UnknownColumn, UnknownView, _condition
from tracestore.analysis.extras import MissingPackage
from tracestore.analysis.frame import Frame, frame_of
from tracestore.store import Store
from tracestore.store.engine import BadUrl, NoStore
from tracestore.store.query import UnknownProject
from tracestore.store.store import NotFound

EVENTS = [
    make.episode("e'1", status="ok"),
    make.episode("e2"),
    make.agent(episode="e'1"),
    call("c0", [user("u")], answer("a", ids=[3, 4]), prompt_ids=[1, 2], ordinal=0, episode="e'1"),
    call("c1", [user("u"), assistant("a"), user("v")], "b", ordinal=1, episode="e'1"),
    make.reward(episode="e'1", value=0.5),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("analysis") / "it's a store.db"
    with Store.open(empty_store(file)) as store:
        store.ingest("p", [posted(event) for event in EVENTS])
    return file


@pytest.fixture(scope="module")
def db(file: Path) -> Iterator[Database]:
    with tracestore.open(str(file), project="p") as opened:
        yield opened


def test_importing_tracestore_loads_nothing_else() -> None:
    script = (
        "import sys; before = set(sys.modules); import tracestore; tracestore.open\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(names - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "['tracestore']\n"


def test_a_view_is_a_frame_of_typed_columns(db: Database) -> None:
    frame = db.episodes()
    assert frame.columns == db.views["episodes"]
    assert frame.arrow().schema.field("is_recorded").type == pa.bool_()
    assert frame.arrow().schema.field("started_at").type == pa.int64()  # though none is known
    found = dict(
        zip(frame.arrow()["episode_id"].to_pylist(), frame.arrow()["reward"].to_pylist(), strict=True)
    )
    assert found == {"e'1": 0.5, "e2": None}
    assert not frame.truncated


def test_whole_numbers_beside_nulls_stay_whole_numbers_in_pandas_and_polars(db: Database) -> None:
    sql = "SELECT episode_id, sum(sampled_tokens) AS tokens FROM episodes GROUP BY episode_id ORDER BY 1"
    frame = db.query(sql)
    assert frame.rows() == [("e'1", 2), ("e2", None)]
    table = frame.pandas()
    assert str(table["tokens"].dtype) == "int64[pyarrow]"
    assert table["tokens"].sum() == 2
    assert frame.polars().rows() == frame.rows()


def test_filters_take_values_lists_and_none(db: Database) -> None:
    assert [row[1] for row in db.episodes(status=None).rows()] == ["e2"]
    assert len(db.view("calls", call_id=["c1", "c0", "x"], episode_id="e'1", is_complete=True)) == 2


def test_the_context_of_a_call_comes_in_order(db: Database) -> None:
    frame = db.contexts("c1")
    assert frame.arrow().select(["position", "role", "preview"]).to_pylist() == [
        {"position": 0, "role": "user", "preview": "u"},
        {"position": 1, "role": "assistant", "preview": "a"},
        {"position": 2, "role": "user", "preview": "v"},
    ]


def test_rows_that_were_left_out_are_told(db: Database) -> None:
    frame = db.query("SELECT call_id FROM calls ORDER BY ordinal", limit_rows=1)
    assert (frame.rows(), frame.truncated) == ([("c0",)], True)
    assert "truncated" in repr(frame)
    assert "truncated" in frame._repr_html_()


def test_a_filter_is_data_and_never_sql() -> None:
    assert _condition("a", "x' OR '1'='1") == "\"a\" = 'x'' OR ''1''=''1'"
    assert _condition("a", [1, None, 2.5]) == '("a" IN (1, 2.5) OR "a" IS NULL)'
    assert _condition("a", [None]) == '("a" IS NULL)'
    assert _condition("a", []) == "FALSE"
    assert _condition("a", True) == '"a" = TRUE'
    # numpy's own numbers, as iterating over an array gives them
    assert _condition("a", numpy.array([1, 2])) == '("a" IN (1, 2))'
    assert _condition("a", numpy.array([0.5])) == '("a" IN (0.5))'
    for value in (float("nan"), b"x", "a\x00b", {}.keys, [[1]]):
        with pytest.raises(BadFilter):
            _condition("a", value)


def test_a_name_that_is_not_there_is_refused_with_those_that_are(db: Database) -> None:
    with pytest.raises(UnknownView, match="episodes, agents, calls"):
        db.view("raw_event")
    with pytest.raises(UnknownColumn, match="it has project, episode_id"):
        db.episodes(statu="ok")
    with pytest.raises(NotFound):
        db.episode("nowhere")


def test_what_cannot_be_opened_says_why(file: Path, tmp_path: Path) -> None:
    with pytest.raises(NoStore):
        tracestore.open(str(tmp_path / "absent.db"))
    with pytest.raises(UnknownProject, match="projects in this database: p"):
        tracestore.open(f"sqlite:///{file}")
    with pytest.raises(BadUrl):
        tracestore.open("http://127.0.0.1:8421")


@pytest.mark.parametrize("package", ["pandas", "polars", "networkx"])
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    package: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    frame, episode = Frame(pa.table({"a": [1]}), truncated=False), db.episode("e'1")
    ask = {"pandas": frame.pandas, "polars": frame.polars, "networkx": episode.networkx}[package]
    with pytest.raises(MissingPackage, match=rf"'{package}'; pip install \"tracestore\[analysis\]\""):
        ask()


def test_a_sum_beyond_64_bits_stays_exact() -> None:
    decimals = pa.decimal128(38, 0)
    table = pa.table({"small": pa.array([7, None], decimals), "large": pa.array([2**70, None], decimals)})
    assert frame_of(table, truncated=False).table.schema.types == [pa.int64(), decimals]


def test_a_frame_shows_its_first_rows_and_escapes_them() -> None:
    table = pa.table({"<b>": ["<script>", None, *["x"] * 30]})
    html = Frame(table, truncated=False)._repr_html_()
    assert html.count("<tr>") == 1 + 20
    assert "<th>&lt;b&gt;</th>" in html
    assert "<td>&lt;script&gt;</td>" in html
    assert "<td><i>NULL</i></td>" in html
    assert html.endswith("<p>32 rows, the first 20 shown</p>")


def test_views_and_graphs_are_read_from_postgresql_too(db: Database) -> None:
    with postgresql() as url:
        with Store.open(url) as store:
            store.ingest("p", [posted(event) for event in EVENTS])
        with tracestore.open(url, project="p") as there:
            assert there.views == db.views
            assert there.episode("e'1").graph() == db.episode("e'1").graph()
            assert there.episode("e'1").svg() == db.episode("e'1").svg()
