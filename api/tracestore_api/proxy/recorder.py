"""Captures -> the store, behind the harness's back: one thread, a bounded queue, and gaps for what is lost.

A harness never waits for the recorder and never fails because of it. Captures wait in memory, up to
`max_bytes`; one that finds no room is lost, and so is one that the store has refused for `patience_s`
seconds. What is lost is counted, logged, and stated as a gap as soon as the store takes events again.

The starts of groups, episodes and agents are stored GRACE_S after they were first named, if nobody has
posted them by then: a harness that posts events itself says more of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from sqlalchemy import Table, func, select

from tracestore.ids import new_id
from tracestore.importers.items import Item, gap, made, raw
from tracestore.store import tables as t
from tracestore.store.engine import StoreUnavailable
from tracestore.store.query import find_project
from tracestore.store.store import Store
from tracestore.wire.episode import Episode
from tracestore.wire.events import episode_id_of
from tracestore.wire.limits import Limits
from tracestore_api.proxy.calls import Calls
from tracestore_api.proxy.capture import Capture
from tracestore_api.proxy.lineage import Lineage, Recent

GRACE_S = 3.0
LINGER_S = 0.05
"""How long the first of a batch waits for others: what is recorded competes with what passes."""
_BATCH = 64
_REMEMBERED_STARTS = 50_000
_MAX_LOST = 10_000
"""Losses that are told one by one; the others are told as a number."""
_MAX_DETAIL = 300
"""Characters."""
_BACKOFF_S = (0.1, 0.5, 2.0, 5.0)
_TABLES: dict[str, Table] = {"group": t.task_group, "episode": t.episode, "agent": t.agent}
_log = logging.getLogger("tracestore.proxy")


@dataclass(frozen=True)
class _Lost:
    """A call that passed and is not recorded."""

    project: str
    episode_id: str | None
    call_id: str
    cause: str
    detail: str


@dataclass(frozen=True)
class _Following:
    """Events that are stored behind what was offered before them."""

    project: str
    items: Sequence[Item]
    stored: Callable[[], None]


@dataclass(frozen=True)
class _Start:
    """A start event that waits for somebody to post it."""

    project: str
    item: Item
    due: float


class Recorder:
    """Records captures; any thread may offer them, one of its own stores them."""

    def __init__(
        self,
        store: Store,
        *,
        limits: Limits,
        max_bytes: int,
        patience_s: float = 30.0,
        grace_s: float = GRACE_S,
    ) -> None:
        """
        Args:
            limits: what one event may be.
            max_bytes: of captures that wait.
            patience_s: how long a store that fails is tried again with the same captures.
            grace_s: how long somebody else may take to post the start of an episode or agent.
        """
        self._store = store
        self._calls = Calls(Lineage(self._next_ordinal), limits=limits)
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._grace_s = grace_s
        self._waiting: deque[Capture | _Following] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_busy = False
        self._has_lost = False
        self._give_up_at = float("inf")
        self._lost: deque[_Lost] = deque()
        self._untold: Counter[str] = Counter()
        """Of each project; the same of the counts."""
        self._unplaced = new_id()
        self._starts: deque[_Start] = deque(maxlen=_REMEMBERED_STARTS)
        self._started: Recent[tuple[str, str, str], bool] = Recent(_REMEMBERED_STARTS)
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in ("recorded", "lost", "gaps")}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to record."""
        self._thread = threading.Thread(target=self._run, name="tracestore-recorder", daemon=True)
        self._thread.start()

    def offer(self, capture: Capture) -> None:
        """Record a capture, when there is time. Never waits."""
        with self._changed:
            has_room = self._bytes + capture.size <= self._max_bytes
            if has_room:
                self._bytes += capture.size
                self._waiting.append(capture)
                self._changed.notify_all()
        if not has_room:
            self._lose(capture, "recording_queue_full", f"over {self._max_bytes:,} bytes wait to be recorded")

    def follow(self, project: str, items: Sequence[Item], stored: Callable[[], None]) -> None:
        """Store events behind the captures that were offered before. Never waits.

        Args:
            stored: called when they are, by another thread; not where the store failed for too long.
        """
        with self._changed:
            self._waiting.append(_Following(project, items, stored))
            self._changed.notify_all()

    def close(self, *, patience_s: float = 10.0) -> None:
        """Record what waits, for so many seconds at most where the store fails, and stop."""
        with self._changed:
            self._is_closing = True
            self._give_up_at = time.monotonic() + patience_s
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def settle(self) -> None:
        """Return when everything offered before is recorded, or lost."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_busy)

    def status(self, project: str) -> dict[str, int]:
        """Calls of a project recorded and lost, gaps stored for the lost ones, and what waits now."""
        with self._changed:
            waiting = [one for one in self._waiting if isinstance(one, Capture)]
            sizes = [one.size for one in waiting if one.project == project]
            lost = sum(one.project == project for one in self._lost)
            return {
                **{name: counts[project] for name, counts in self._counts.items()},
                "waiting": len(sizes),
                "waiting_bytes": sum(sizes),
                "gaps_waiting": lost + self._untold[project],
            }

    # --- The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch = self._next()
            if batch:
                self._record(batch)
            with self._changed:
                is_last = self._is_closing and not self._waiting
            self._tell_losses()
            self._store_starts(all_of_them=is_last)
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                if is_last and not self._waiting:
                    break
        if self._lost or self._untold:
            _log.error("%d calls that passed are neither recorded nor stated as gaps", self._num_untold())

    def _next(self) -> list[Capture | _Following]:
        """What waits; nothing where something else is due."""
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self._waiting) or self._has_lost or self._is_closing, timeout=self._sleep_s()
            )
            self._has_lost = False
            if self._waiting and not self._is_closing:
                self._changed.wait_for(
                    lambda: len(self._waiting) >= _BATCH or self._is_closing, timeout=LINGER_S
                )
            self._is_busy = True
            return [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]

    def _sleep_s(self) -> float | None:
        due = [start.due for start in self._starts]
        now = time.monotonic()
        waits = [max(0.0, min(due) - now)] if due else []
        return min([*waits, _BACKOFF_S[-1]]) if self._lost or self._untold or due else None

    def _record(self, batch: Sequence[Capture | _Following]) -> None:
        items: dict[str, list[Item]] = defaultdict(list)
        made_of: dict[str, list[tuple[Capture, list[Item]]]] = defaultdict(list)
        following: dict[str, list[_Following]] = defaultdict(list)
        for one in batch:
            if isinstance(one, _Following):
                items[one.project] += one.items
                following[one.project].append(one)
            elif events := self._made(one):
                # What of it somebody has posted otherwise stands as it was posted.
                items[one.project] += [*one.starts, *events]
                made_of[one.project].append((one, events))
        for project, listed in items.items():
            if self._store_items(project, listed, made_of[project]):
                for one in following[project]:
                    one.stored()
        with self._changed:
            self._bytes -= sum(one.size for one in batch if isinstance(one, Capture))

    def _made(self, capture: Capture) -> list[Item]:
        try:
            found = self._calls.of(capture)
        except Exception as error:  # noqa: BLE001 - one call that cannot be read must not end the recording
            _log.exception("a call that passed could not be read")
            self._lose(capture, "recording_failed", f"it could not be read: {type(error).__name__}")
            return []
        due = time.monotonic() + self._grace_s
        for item in found.starts:
            name = (capture.project, item.event.kind, item.event.id)
            if not self._started.get(name):
                self._started.put(name, True)
                self._starts.append(_Start(capture.project, item, due))
        return found.items

    def _store_items(
        self, project: str, items: list[Item], made_of: Sequence[tuple[Capture, list[Item]]]
    ) -> bool:
        """Store the events of some captures, or lose them; whether the store took some."""
        try:
            problems = self._stored(project, items)
        except Exception as error:  # noqa: BLE001 - a store fails in as many ways as there are databases
            # Where the database lies is not for every tenant.
            what = error.title if isinstance(error, StoreUnavailable) else f"{type(error).__name__}: {error}"
            detail = f"the store failed: {what}"
            for capture, events in made_of:
                self._lose(capture, "recording_failed", detail, events)
            return False
        for capture, events in made_of:
            told = [problems[id(item)] for item in events if id(item) in problems]
            if told:
                self._lose(capture, "recording_refused", "; ".join(told), events)
            else:
                with self._changed:
                    self._counts["recorded"][project] += 1
        return True

    def _stored(self, project: str, items: Sequence[Item]) -> dict[int, str]:
        """Store events, trying again while the store fails; what it refused, by the identity of the item."""
        until = time.monotonic() + self._patience_s
        for wait_s in chain(_BACKOFF_S, repeat(_BACKOFF_S[-1])):
            try:
                outcomes = self._store.ingest(project, [(item.event, item.text) for item in items])
            except Exception:
                if time.monotonic() + wait_s > min(until, self._give_up_at):
                    raise
                _log.warning(
                    "the store failed; %d events wait and are tried again", len(items), exc_info=True
                )
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing, timeout=wait_s)
                continue
            return {
                id(item): f"{outcome.kind} {outcome.id}: {outcome.problem}"
                for item, outcome in zip(items, outcomes, strict=True)
                if outcome.status not in ("stored", "duplicate")
            }
        raise AssertionError("the last wait has no end")

    # --- Losses -----------------------------------------------------------------------------------

    def _lose(self, capture: Capture, cause: str, detail: str, events: Sequence[Item] = ()) -> None:
        """
        Args:
            events: of the capture, where they could be made.
        """
        call_id = next((item.event.id for item in events if item.event.kind == "call"), capture.call_id)
        _log.warning("call %s passed and is not recorded: %s (%s)", call_id, cause, detail)
        episode = episode_id_of(events[0].event) if events else capture.names.get("episode")
        lost = _Lost(capture.project, episode, call_id, cause, detail[:_MAX_DETAIL])
        with self._changed:
            self._counts["lost"][lost.project] += 1
            self._has_lost = True
            if len(self._lost) < _MAX_LOST:
                self._lost.append(lost)
            else:
                self._untold[lost.project] += 1
            self._changed.notify_all()

    def _num_untold(self) -> int:
        return len(self._lost) + self._untold.total()

    def _tell_losses(self) -> None:
        """State what was lost as gaps, if the store takes them."""
        with self._changed:
            lost, untold = list(self._lost), self._untold.copy()
        if not lost:
            return
        by_project: dict[str, list[Item]] = defaultdict(lambda: [self._episode_of_gaps()])
        for one in lost:
            by_project[one.project].append(self._gap(one))
        for project, num in untold.items():
            more = f"{num:,} more calls passed and are not recorded"
            by_project[project].append(gap(new_id(), "recording_failed", more, episode_id=self._unplaced))
        for project, items in by_project.items():
            try:
                self._store.ingest(project, [(item.event, item.text) for item in items])
            except Exception:  # noqa: BLE001 - the store is still away; they wait
                return
        with self._changed:
            for one in lost:
                self._lost.popleft()
                self._counts["gaps"][one.project] += 1
            self._untold -= untold

    def _gap(self, lost: _Lost) -> Item:
        named = lost.episode_id is not None
        detail = lost.detail if named else f"{lost.detail}; it named no episode"
        return gap(lost.call_id, lost.cause, detail, episode_id=lost.episode_id or self._unplaced)

    def _episode_of_gaps(self) -> Item:
        said = {"proxy": {"made": ["id"], "holds": "gaps of calls that named no episode"}}
        return made(Episode, id=self._unplaced, phase="start", inference_only=True, meta=raw(said))

    # --- Starts -----------------------------------------------------------------------------------

    def _store_starts(self, *, all_of_them: bool) -> None:
        """Store the starts that are due and that nobody has posted."""
        now = time.monotonic()
        due = [start for start in self._starts if all_of_them or start.due <= now]
        for project in sorted({start.project for start in due}):
            listed = [start.item for start in due if start.project == project]
            try:
                posted = self._posted(project, listed)
                missing = [item for item in listed if (item.event.kind, item.event.id) not in posted]
                self._store.ingest(project, [(item.event, item.text) for item in missing])
            except Exception:  # noqa: BLE001 - the store is away; they wait
                return
        for _ in due:
            self._starts.popleft()

    def _posted(self, project: str, items: Iterable[Item]) -> set[tuple[str, str]]:
        """Which of these somebody has posted."""
        found: set[tuple[str, str]] = set()
        with self._store.read() as connection:
            project_id = find_project(connection, project)
            for item in items:
                table, id_ = _TABLES[item.event.kind], item.event.id
                query = select(table.c.pos).where(table.c.project_id == project_id, table.c.id == id_)
                if connection.execute(query).scalar() is not None:
                    found.add((item.event.kind, id_))
        return found

    def _next_ordinal(self, project: str, agent_id: str) -> int | None:
        """What follows the highest ordinal among an agent's stored calls; None while the store is away."""
        try:
            with self._store.read() as connection:
                project_id = find_project(connection, project)
                of_agent = select(t.agent.c.key).where(
                    t.agent.c.project_id == project_id, t.agent.c.id == agent_id
                )
                calls = t.call.c
                query = select(func.max(calls.ordinal)).where(
                    calls.project_id == project_id, calls.agent_key == of_agent.scalar_subquery()
                )
                last: int | None = connection.execute(query).scalar()
        except Exception:  # noqa: BLE001 - a call is recorded without it
            return None
        return 0 if last is None else last + 1
