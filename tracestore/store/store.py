"""A store: one database, one committer, and everything that is read from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, select

from tracestore.errors import TracestoreError
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.store import query, schema
from tracestore.store import tables as t
from tracestore.store.branches import BranchPath, branch_paths
from tracestore.store.committer import Committer
from tracestore.store.engine import connect, read, vacuum, writer
from tracestore.store.ingest import Outcome
from tracestore.store.load import load_context, load_entity, load_events
from tracestore.store.prepare import prepare
from tracestore.store.requests import RequestMemory
from tracestore.store.textless import Places, TextlessReader, is_unchanged, read_places
from tracestore.store.tombstones import require_content, require_not_deleted, tombstones
from tracestore.store.transaction import Transaction
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.events import AnyEvent

T = TypeVar("T")


class NotFound(TracestoreError):
    """Nothing of that id is stored in this project"""

    status = 404


class Store:
    """One open database. Any number of threads may read and ingest."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._committer = Committer(engine)
        self._requests = RequestMemory()
        self._textless: dict[int, TextlessReader] = {}

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Self:
        """Open a store.

        Args:
            url: `sqlite:///FILE` or `postgresql://...`.
            create: make the schema in a database that is empty.

        Raises:
            BadUrl: no such kind of database.
            NoStore: the database holds no store, and is not empty or may not be filled.
            WrongRevision: `tracestore db upgrade` is due.
        """
        engine = connect(url, create=create)
        try:
            with engine.connect() as connection:
                is_ready = schema.is_ready(connection)
            if not is_ready:
                with writer(engine).begin() as connection:
                    schema.lock(connection)
                    if create and schema.is_empty(connection):
                        schema.create(connection)
                    schema.require(connection)
                    schema.set_plan_statistics(connection)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    @property
    def revision(self) -> str:
        """Revision of the schema."""
        return t.REVISION

    def ingest(self, project: str, items: Sequence[tuple[AnyEvent, bytes]]) -> list[Outcome]:
        """Store events, each with its posted text, and return when they are on disk.

        Outcomes come in the order of the items; an event that is refused costs the others nothing.
        """
        return self.submit(project, items).result() if items else []

    def submit(self, project: str, items: Sequence[tuple[AnyEvent, bytes]]) -> Future[list[Outcome]]:
        """`ingest` for who does not want to wait in a thread: at least one event; done when they are on disk.

        The future is not to be cancelled.
        """
        rules = self._committer.rules(project)
        prepared = [prepare(event, text, requests=self._requests, rules=rules) for event, text in items]
        return self._committer.submit(project, prepared)

    def perform(self, project: str, do: Callable[[Transaction], T]) -> Future[T]:
        """Take rows away between two transactions of events (`Committer.perform`)."""
        return self._committer.perform(project, do)

    def vacuum(self) -> None:
        """Write the database anew without what is free in it (`engine.vacuum`), while posts wait."""
        self._committer.pause(vacuum).result()

    def read(self) -> Connection:
        """A connection for reading; it sees one state of the database from its first statement on."""
        return read(self.engine)

    def load(self, project: str, episode_id: str, *, snapshot: int | None = None) -> list[AnyEvent]:
        """The events of an episode and its group, start and end merged, in the order they first came.

        Args:
            snapshot: a commit position; later events are left out.

        Raises:
            NotFound: no such episode (then).
            SnapshotGone: an event of it that had come then was replaced since.
            Deleted: it was, or its project.
        """
        with self.read() as connection:
            project_id = query.find_project(connection, project)
            key = None
            if project_id is not None:
                require_not_deleted(connection, project_id, "episode", episode_id)
                key = connection.execute(
                    select(t.episode.c.key).where(
                        t.episode.c.project_id == project_id, t.episode.c.id == episode_id
                    )
                ).scalar()
            events = [] if key is None else load_events(connection, project_id or 0, key, snapshot=snapshot)
        if not events:
            raise NotFound(episode_id=episode_id, project=project)
        return events

    def load_graph(self, project: str, episode_id: str, *, snapshot: int | None = None) -> Graph:
        """`graph.build` of what `load` gives."""
        return build(self.load(project, episode_id, snapshot=snapshot))

    def training_graphs(
        self, project: str, episode_ids: Sequence[str], *, snapshot: int | None = None
    ) -> list[Graph]:
        """The graphs of episodes as far as token ids need them, in their order: see `graph.model.Textless`.

        An episode of which that is not all (`store.textless` says when) comes as `load_graph` gives it, and
        what that raises is raised.
        """
        with self.read() as connection:
            project_id = query.find_project(connection, project)
            at = query.snapshot(connection, project) if snapshot is None else snapshot
            found: dict[str, Graph] = {}
            if project_id is not None:
                reader = self._textless.setdefault(project_id, TextlessReader(project_id))
                places_of = partial(self._places, project, at)
                found = reader.graphs(connection, episode_ids, snapshot=at, places_of=places_of)
        return [
            found[id_] if id_ in found else self.load_graph(project, id_, snapshot=at) for id_ in episode_ids
        ]

    def _places(self, project: str, snapshot: int, episode_id: str) -> Places:
        """Where the messages of an episode stood; read now, though something may have come since."""
        with self.read() as connection:
            project_id = query.find_project(connection, project)
            if project_id is not None and is_unchanged(connection, project_id, episode_id, snapshot=snapshot):
                return read_places(connection, project_id, episode_id)
        graph = self.load_graph(project, episode_id, snapshot=snapshot)
        return Places(graph.nodes, graph.prompt_node, graph.completion_node)

    def request(self, project: str, call_id: str) -> Raw | None:
        """The request of a call, byte for byte as it was posted; None where it was posted without.

        Raises:
            NotFound: no such call.
            Deleted: it was, or its episode, or its project, or their content.
        """
        with self.read() as connection:
            project_id = query.find_project(connection, project)
            if project_id is not None:
                require_not_deleted(connection, project_id, "call", call_id)
                require_content(connection, project_id, call_id)
            call = None if project_id is None else load_entity(connection, project_id, "call", call_id)
        if not isinstance(call, Call):
            raise NotFound(call_id=call_id, project=project)
        return call.request

    def context(self, project: str, call_id: str) -> list[Raw]:
        """The messages a call saw, in order and byte for byte, without reading the rest of its episode.

        Raises:
            NotFound: no such call, or its context is not known because its parent has not come.
            Deleted: it was, or its episode, or its project, or their content.
        """
        with self.read() as connection:
            project_id = query.find_project(connection, project)
            if project_id is not None:
                require_not_deleted(connection, project_id, "call", call_id)
                require_content(connection, project_id, call_id)
            found = None if project_id is None else load_context(connection, project_id, call_id)
        if found is None:
            raise NotFound(
                call_id=call_id,
                project=project,
                hint="the call, or a parent that its context begins with, has not come",
            )
        return found

    def branches(self, project: str, episode_id: str) -> list[BranchPath]:
        """Every branch of an episode, without its messages: none where nothing of it has come."""
        with self.read() as connection:
            e, p = t.episode.c, t.project.c
            row = connection.execute(
                select(e.project_id, e.key)
                .select_from(t.episode.join(t.project, p.project_id == e.project_id))
                .where(p.name == project, e.id == episode_id)
            ).one_or_none()
            return [] if row is None else list(branch_paths(connection, row.project_id, row.key))

    def snapshot(self, project: str) -> int:
        """The commit position up to which everything is there; give it to `load` and `groups` later."""
        with self.read() as connection:
            return query.snapshot(connection, project)

    def groups(self, project: str, *, snapshot: int | None = None) -> list[query.GroupRef]:
        """Every group that has an episode, in the order in which their first episode came.

        Raises:
            SnapshotGone: an event that had come at the snapshot was replaced since.
        """
        with self.read() as connection:
            at = query.snapshot(connection, project) if snapshot is None else snapshot
            return list(query.groups(connection, project, at=at))

    def tombstones(self, project: str, *, snapshot: int) -> tuple[dict[str, Any], ...]:
        """The episodes that were deleted by a snapshot."""
        with self.read() as connection:
            project_id = query.find_project(connection, project)
            return () if project_id is None else tombstones(connection, project_id, at=snapshot)

    def close(self) -> None:
        """Commit what is in hand and close the database."""
        self._committer.close()
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
