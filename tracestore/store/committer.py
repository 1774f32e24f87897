"""The one thread that writes: it takes all that waits, commits it at once, then answers everybody.

An answer means that the events are on disk. Under load a commit (one sync of the log) serves many posts;
alone, a post waits for nothing but its own.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.exc import OperationalError, ProgrammingError

from tracestore.errors import TracestoreError
from tracestore.store import tables as t
from tracestore.store.engine import Contended, StoreUnavailable, writer
from tracestore.store.ingest import Outcome, apply
from tracestore.store.prepare import Prepared
from tracestore.store.rules import NO_RULES, Rules
from tracestore.store.schema import VERSION, WrongRevision, require_revision
from tracestore.store.transaction import FIRST_KEY, Memory, Transaction

_log = logging.getLogger("tracestore.store")
T = TypeVar("T")

MAX_EVENTS = 2_000
"""Events of one transaction, unless one post alone holds more."""
MAX_BYTES = 64 * 2**20
_REMEMBERED_PROJECTS = 8
_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The longest pause before each further try of a transaction that the database gave up on."""
_DATABASE_FAILED = (StoreUnavailable, OperationalError, WrongRevision)
"""Full, locked, gone, upgraded, or without our tables: it is not the event's fault."""


class StoreClosed(TracestoreError):
    """The store is closed"""

    status = 503


@dataclass(slots=True)
class _Post:
    """Events of one call of `Store.ingest`."""

    project: str
    events: Sequence[Prepared]
    done: Future[list[Outcome]] = field(default_factory=Future)

    @property
    def size(self) -> int:
        return sum(one.size for one in self.events)


@dataclass(slots=True)
class _Work:
    """Something else than events that is written, in a transaction of its own."""

    project: str
    do: Callable[[Transaction], Any]
    done: Future[Any] = field(default_factory=Future)


@dataclass(slots=True)
class _Upkeep:
    """Something that other writers must wait for, and no transaction of ours."""

    do: Callable[[Engine], None]
    done: Future[Any] = field(default_factory=Future)


class Committer:
    def __init__(self, engine: Engine) -> None:
        self._engine = writer(engine)
        self._posts: queue.SimpleQueue[_Post | _Work | _Upkeep | None] = queue.SimpleQueue()
        self._memories: dict[str, Memory] = {}
        self._rules: dict[str, Rules] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="tracestore-committer", daemon=True)
        self._thread.start()

    def submit(self, project: str, events: Sequence[Prepared]) -> Future[list[Outcome]]:
        """Hand events over; done when they are on disk, and not to be cancelled. Any thread may call."""
        post = _Post(project, events)
        self._put(post)
        return post.done

    def perform(self, project: str, do: Callable[[Transaction], T]) -> Future[T]:
        """Hand over what takes rows of a project away: between two transactions of events, in its own.

        It takes one commit position, so that every process forgets what it remembers of the project. Foreign
        keys are not checked: the work leaves none open that it did not find open.
        """
        work = _Work(project, do)
        self._put(work)
        return work.done

    def pause(self, do: Callable[[Engine], None]) -> Future[None]:
        """Hand over what takes the database for itself: posts wait for it here, and not in vain there."""
        upkeep = _Upkeep(do)
        self._put(upkeep)
        return upkeep.done

    def rules(self, project: str) -> Rules:
        """The rules of a project as they were last heard of; `apply` sees to it that those that hold do."""
        return self._rules.get(project, NO_RULES)

    def _put(self, item: _Post | _Work | _Upkeep) -> None:
        # As if it ran already: a future that its holder could cancel would have no place for the outcome.
        item.done.set_running_or_notify_cancel()
        with self._lock:
            if self._is_closed:
                raise StoreClosed()
            self._posts.put(item)

    def close(self) -> None:
        """Commit what was handed over, and stop."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._posts.put(None)
        self._thread.join()

    def _run(self) -> None:
        item = self._posts.get()
        while item is not None:
            if isinstance(item, _Work):
                self._perform(item)
                item = self._posts.get()
            elif isinstance(item, _Upkeep):
                self._keep_up(item)
                item = self._posts.get()
            else:
                posts, after = self._gather(item)
                self._commit(posts)
                item = after[0] if after else self._posts.get()

    def _keep_up(self, upkeep: _Upkeep) -> None:
        try:
            upkeep.do(self._engine)
        except Exception as error:  # noqa: BLE001 - whoever asked waits for whatever comes
            upkeep.done.set_exception(error)
        else:
            upkeep.done.set_result(None)

    def _gather(self, post: _Post) -> tuple[list[_Post], list[_Work | _Upkeep | None]]:
        """The post and what waits behind it, up to the limits of one transaction; and what is no post."""
        posts, events, size = [post], len(post.events), post.size
        while events < MAX_EVENTS and size < MAX_BYTES:
            try:
                after = self._posts.get_nowait()
            except queue.Empty:
                break
            if not isinstance(after, _Post):
                return posts, [after]
            posts.append(after)
            events += len(after.events)
            size += after.size
        return posts, []

    def _perform(self, work: _Work) -> None:
        try:
            result = self._again_where_contended(lambda: self._work(work))
        except Exception as error:  # noqa: BLE001 - whoever asked waits for whatever comes
            work.done.set_exception(error)
        else:
            work.done.set_result(result)
        finally:
            self._memories.pop(work.project, None)
            self._rules.pop(work.project, None)

    def _work(self, work: _Work) -> Any:
        with _without_foreign_keys(self._engine) as connection:
            transaction = self._begin(connection, work.project, time.time_ns())
            result = work.do(transaction)
            transaction.pos += 1
            transaction.finish()
        return result

    def _commit(self, posts: Sequence[_Post]) -> None:
        try:
            outcomes = self._write(posts)
        except Exception as error:  # noqa: BLE001 - a poster waits for whatever comes
            self._memories.clear()
            if len(posts) > 1:
                # One of them broke the transaction: each gets its own, and only that one fails.
                for post in posts:
                    self._commit([post])
            elif isinstance(error, _DATABASE_FAILED):
                posts[0].done.set_exception(error)
            else:
                self._commit_apart(posts[0])
            return
        for post, result in zip(posts, outcomes, strict=True):
            post.done.set_result(result)

    def _commit_apart(self, post: _Post) -> None:
        """Each event in a transaction of its own, so that one the database refuses fails alone."""
        outcomes: list[Outcome] = []
        for index, prepared in enumerate(post.events):
            event = prepared.event
            try:
                [[outcome]] = self._write([_Post(post.project, [prepared])])
                outcomes.append(replace(outcome, index=index))
            except _DATABASE_FAILED as error:
                post.done.set_exception(error)
                return
            except Exception as error:  # noqa: BLE001 - told to the poster, and to the log with its trace
                self._memories.clear()
                _log.exception("%s %s could not be stored", event.kind, event.id)
                problem = f"it could not be stored: {type(error).__name__}"
                outcomes.append(Outcome(index, event.kind, event.id, "error", problem))
        post.done.set_result(outcomes)

    def _write(self, posts: Sequence[_Post]) -> list[list[Outcome]]:
        """One transaction over posts of any projects."""
        return self._again_where_contended(lambda: self._try(posts))

    def _again_where_contended(self, write: Callable[[], T]) -> T:
        """A transaction, begun anew where another writer was in its way."""
        for most_s in _PAUSES_S:
            try:
                return write()
            except Contended as error:
                self._memories.clear()
                _log.warning("%s; trying again", error)
                # Writers that were in each other's way must not come back at the same moment.
                time.sleep(random.uniform(0, most_s))
        return write()

    def _try(self, posts: Sequence[_Post]) -> list[list[Outcome]]:
        now = time.time_ns()
        outcomes: dict[str, list[Outcome]] = {}
        with self._engine.begin() as connection:
            transactions: dict[str, Transaction] = {}
            # In order of name: two servers on one PostgreSQL then never wait for each other in a circle.
            for project in sorted({post.project for post in posts}):
                transactions[project] = self._begin(connection, project, now)
            for project, transaction in transactions.items():
                # All posts of a project as one batch: what it refers to is looked up once.
                events = [event for post in posts if post.project == project for event in post.events]
                outcomes[project] = apply(transaction, events)
                transaction.finish()
        for project, transaction in transactions.items():
            transaction.memory.commit_seq = transaction.pos
            transaction.memory.trim()
            self._memories[project] = transaction.memory
        while len(self._memories) > _REMEMBERED_PROJECTS:
            del self._memories[next(iter(self._memories))]
        return _by_post(posts, outcomes)

    def _begin(self, connection: Connection, project: str, now: int) -> Transaction:
        """Lock the project's row, which is made on first use, and find out where it stands."""
        p = t.project.c
        found = connection.execute(
            select(p.project_id, p.commit_seq, p.next_key, VERSION).where(p.name == project).with_for_update()
        ).one_or_none()
        if found is not None:
            project_id, commit_seq, next_key, revision = found
            # Another process may have upgraded the database since this one opened it.
            require_revision(revision)
        else:
            require_revision(connection.execute(select(VERSION)).scalar())
            project_id = (connection.execute(select(func.max(p.project_id))).scalar() or 0) + 1
            commit_seq, next_key = 0, FIRST_KEY
            row = {"project_id": project_id, "name": project, "commit_seq": 0, "next_key": next_key}
            connection.execute(t.project.insert().values(**row, created_at=now))
        memory = self._memories.pop(project, None)
        # Another process wrote, so what is remembered may be wrong.
        if memory is None or memory.commit_seq != commit_seq or memory.project_id != project_id:
            memory = Memory.of(project_id, commit_seq)
            memory.learn_life(connection)
            self._rules[project] = memory.rules
        return Transaction(connection, memory, next_key=next_key, now=now)


@contextmanager
def _without_foreign_keys(engine: Engine) -> Iterator[Connection]:
    """A transaction of a writer that looks for no references to the rows that go.

    To look for them is a walk through every table that might hold one, for every row: no index leads from a
    content to what refers to it. Whoever takes rows away has found out before, for all of them at once.
    """
    is_sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        if is_sqlite:
            # Within a transaction it would do nothing, and SQLAlchemy begins one with its first statement.
            driver.execute("PRAGMA foreign_keys = OFF")
        try:
            with connection.begin():
                if not is_sqlite:
                    _let_triggers_rest(connection)
                yield connection
        finally:
            if is_sqlite:
                driver.execute("PRAGMA foreign_keys = ON")


def _let_triggers_rest(connection: Connection) -> None:
    try:
        with connection.begin_nested():
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
    except ProgrammingError:
        # A step that leaves a reference open until the next one is then refused by the database.
        _log.warning("deletion needs GRANT SET ON PARAMETER session_replication_role TO this role")


def _by_post(posts: Sequence[_Post], outcomes: Mapping[str, Sequence[Outcome]]) -> list[list[Outcome]]:
    """The outcomes of each post, counted from its first event, out of those of each project."""
    starts = dict.fromkeys(outcomes, 0)
    found = []
    for post in posts:
        start = starts[post.project]
        end = starts[post.project] = start + len(post.events)
        mine = outcomes[post.project][start:end]
        found.append(
            [replace(outcome, index=index) for index, outcome in enumerate(mine)] if start else [*mine]
        )
    return found
