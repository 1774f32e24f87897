"""One project of a store as an analyst reads it: every view a method with filters, SQL, and episodes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from operator import index
from types import TracebackType
from typing import Any, Self, SupportsIndex

from tracestore.analysis.episode import Episode
from tracestore.analysis.frame import Frame, frame_of
from tracestore.errors import TracestoreError
from tracestore.store import Store, query, schema
from tracestore.store.duck import run_sql_arrow

LIMIT_ROWS = 1_000_000
TIMEOUT_S = 60.0


class UnknownView(TracestoreError):
    """There is no such view"""

    status = 404


class UnknownColumn(TracestoreError):
    """The view has no such column"""


class BadFilter(TracestoreError):
    """A column cannot be compared with this value"""


class Database:
    """An open store and the project that is read. `tracestore.open` makes it; close it, or use `with`.

    SQL runs in a child process (`store.duck`), so it disturbs no one who writes.
    """

    def __init__(self, url: str, *, project: str = "default") -> None:
        self.url = url if "://" in url else f"sqlite:///{url}"
        self.project = project
        self._store = Store.open(self.url, create=False)
        try:
            with self._store.read() as connection:
                query.require_project(connection, project)
        except BaseException:
            self._store.close()
            raise

    @cached_property
    def views(self) -> dict[str, tuple[str, ...]]:
        """The columns of each view; `store/views.sql` says what they mean."""
        with self._store.read() as connection:
            return {name: tuple(columns) for name, columns in schema.view_columns(connection).items()}

    def query(self, sql: str, *, limit_rows: int = LIMIT_ROWS, timeout_s: float = TIMEOUT_S) -> Frame:
        """The answer to one SELECT over the views.

        Raises:
            SqlRefused, SqlFailed, SqlTooSlow: see `store.duck.run_sql_arrow`.
        """
        found = run_sql_arrow(self.url, self.project, sql, limit_rows=limit_rows, timeout_s=timeout_s)
        return frame_of(found.table, truncated=found.truncated)

    def view(self, name: str, /, *, limit_rows: int = LIMIT_ROWS, **filters: Any) -> Frame:
        """The rows of a view, those alone whose columns have these values.

        A list of values means any of them, None what is unknown.

        Raises:
            UnknownView, UnknownColumn: the hint names those there are.
            BadFilter: a value that is no text, number, truth value, None or list of such.

        Example: `db.view("calls", purpose=["act", "summarize"], policy_version=3)`
        """
        columns = self.views.get(name)
        if columns is None:
            raise UnknownView(view=name, hint=f"there are {', '.join(self.views)}")
        for column in filters:
            if column not in columns:
                raise UnknownColumn(view=name, column=column, hint=f"it has {', '.join(columns)}")
        where = " AND ".join(_condition(column, value) for column, value in filters.items())
        sql = f"SELECT * FROM {name}" + (f" WHERE {where}" if where else "")
        return self.query(sql, limit_rows=limit_rows)

    def episodes(self, **filters: Any) -> Frame:
        """Attempts with status, reward and sizes."""
        return self.view("episodes", **filters)

    def agents(self, **filters: Any) -> Frame:
        """Who was spawned by whom, and what came of it."""
        return self.view("agents", **filters)

    def calls(self, **filters: Any) -> Frame:
        """Model calls with purpose, policy and usage."""
        return self.view("calls", **filters)

    def messages(self, **filters: Any) -> Frame:
        """Each message once for every place where it stands."""
        return self.view("messages", **filters)

    def contexts(self, call_id: str | Iterable[str] | None = None, **filters: Any) -> Frame:
        """What calls saw, message by message; of one call or of several, in order."""
        if call_id is not None:
            filters["call_id"] = call_id
        frame = self.view("contexts", **filters)
        return Frame(
            frame.table.sort_by([("call_id", "ascending"), ("position", "ascending")]), frame.truncated
        )

    def branches(self, **filters: Any) -> Frame:
        """Root-to-leaf paths, one row for each end."""
        return self.view("branches", **filters)

    def edges(self, **filters: Any) -> Frame:
        """How calls, agents, episodes and context edits relate."""
        return self.view("edges", **filters)

    def candidates(self, **filters: Any) -> Frame:
        """Sampled alternatives: scores, who was kept, by whom."""
        return self.view("candidates", **filters)

    def rewards(self, **filters: Any) -> Frame:
        """Rewards by target."""
        return self.view("rewards", **filters)

    def token_counts(self, **filters: Any) -> Frame:
        """Recorded tokens, each counted once."""
        return self.view("token_counts", **filters)

    def episode(self, episode_id: str) -> Episode:
        """One episode: its graph, and pictures of it.

        Raises:
            NotFound: no such episode.
        """
        return Episode(episode_id, self._store.load_graph(self.project, episode_id))

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        address = self._store.engine.url.render_as_string(hide_password=True)
        return f"<Database {address}, project {self.project}>"


def _condition(column: str, value: Any) -> str:
    if value is None:
        return f'"{column}" IS NULL'
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return f'"{column}" = {_literal(column, value)}'
    values = list(value)
    known = ", ".join(_literal(column, one) for one in values if one is not None)
    parts = [f'"{column}" IN ({known})'] if known else []
    parts += [f'"{column}" IS NULL'] if None in values else []
    return f"({' OR '.join(parts)})" if parts else "FALSE"


def _literal(column: str, value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, SupportsIndex):  # also the whole numbers of numpy
        return str(index(value))
    if isinstance(value, float) and math.isfinite(value):
        return float.__repr__(value)
    if isinstance(value, str) and "\x00" not in value:
        return "'" + value.replace("'", "''") + "'"
    raise BadFilter(column=column, value=value, hint="give a text, a finite number, True, False or None")
