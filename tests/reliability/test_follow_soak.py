"""Writers in processes of their own, a follower that is killed again and again, a reader beside: what was
followed is what was posted, each group once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.factories import answer, assistant, call, posted, user
from tests.reliability.recordings import array, figure
from tests.serving import Connection, running_server
from tests.store.servers import postgresql_store
from tracestore.shards.batch import content_hash, to_batch
from tracestore.shards.files import Folder
from tracestore.shards.log import GroupName, Log, is_followed
from tracestore.shards.read import News, open_export
from tracestore.shards.row import Row
from tracestore.store import Store
from tracestore.store.transaction import Transaction
from tracestore.wire.call import Call
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.follow import following, looks
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

FORK = multiprocessing.get_context("fork")
SPEC = Spec(shard_rows=4)
PROJECT = "default"
AHEAD = 4
"""Posts of a writer for each entry."""
Post = Callable[[list[AnyEvent]], None]
Posting = Callable[[random.Random], AbstractContextManager[Post]]


def rollout(name: str, group: str, dice: random.Random) -> list[AnyEvent]:
    """An episode of up to three calls; its end comes last."""
    events: list[AnyEvent] = [make.episode(name, group_id=group, phase="start")]
    context, ids = [user(f"task of {group}")], [1, 2]
    for turn in range(dice.randint(1, 3)):
        sampled = [dice.randrange(1000) for _ in range(dice.randint(1, 4))]
        said = answer(f"says {turn}", ids=sampled)
        events.append(
            call(f"{name}/{turn}", context, said, episode=name, agent=f"{name}/main", prompt_ids=ids)
        )
        context, ids = [*context, assistant(f"says {turn}"), user("on")], [*ids, *sampled, 7]
    return [*events, make.episode(name, status="ok", phase="end")]


def batches(number: int, *, writers: int, groups: int) -> list[list[AnyEvent]]:
    """All that a writer posts, in order: groups of its own, its share of those of all, and what is late."""
    dice = random.Random(number)
    made: list[list[AnyEvent]] = []
    for n in range(groups):
        own = f"g{number}.{n}"
        made.append([make.group(own, size=2), make.group(f"all.{n}", size=writers)])
        for name, group in ((f"{own}/a", own), (f"{own}/b", own), (f"{own}/all", f"all.{n}")):
            events = rollout(name, group, dice)
            cut = dice.randint(0, len(events))
            made += [events[:cut], events[cut:]]
            if dice.random() < 0.5:
                made.append([make.reward(f"{name}/r", dice.random(), episode=name)])
        if dice.random() < 0.3:
            made.append(rollout(f"{own}/late", own, dice))
        if dice.random() < 0.3:
            more = answer("more", ids=[5, 6])
            made.append([call(f"{own}/a/late", [user("u")], more, episode=f"{own}/a", agent=f"{own}/a/main")])
    return [batch for batch in made if batch]


def num_sampled(events: list[AnyEvent]) -> int:
    bodies = [body for event in events if isinstance(event, Call) for body in event.completions or ()]
    return sum(len(body.token_ids or ()) for body in bodies)


def _write(posting: Posting, out: Path, number: int, writers: int, groups: int) -> None:
    dice = random.Random(number)
    with posting(dice) as post:
        for done, batch in enumerate(batches(number, writers=writers, groups=groups)):
            for _ in range(150):  # a harness that waits for what is behind, and not for ever
                if done <= AHEAD * (1 + _num_entries(out)):
                    break
                time.sleep(0.02)
            post(batch)
    os._exit(0)


def _num_entries(out: Path) -> int:
    return sum(1 for _ in out.glob("log/[0-9]*.json"))


def _follow(url: str, out: Path) -> None:
    with Store.open(url, create=False) as store, following(store, PROJECT, out, SPEC) as follower:
        for _ in looks(follower, interval_s=0.01):
            pass


def over_http(url: str) -> Posting:
    @contextmanager
    def posting(_: random.Random) -> Iterator[Post]:
        with Connection(url) as connection:

            def post(events: list[AnyEvent]) -> None:
                status, found = connection.post("/v1/events", array(events))
                # A group of all is stored by whoever comes first.
                assert (status, found["stored"] + found["duplicate"]) == (200, len(events)), found

            yield post

    return posting


def into(url: str) -> Posting:
    """Into the database, each transaction a while between its last write and its commit."""

    @contextmanager
    def posting(dice: random.Random) -> Iterator[Post]:
        finish = Transaction.finish

        def finish_late(tx: Transaction) -> None:
            finish(tx)
            time.sleep(dice.choice((0, 0, 0.001, 0.02)))

        Transaction.finish = finish_late  # type: ignore[method-assign]
        with Store.open(url, create=False) as store:

            def post(events: list[AnyEvent]) -> None:
                outcomes = store.ingest(PROJECT, [posted(event) for event in events])
                assert {one.status for one in outcomes} <= {"stored", "duplicate"}

            yield post

    return posting


class _Reader:
    """Takes every entry once, and drops the rows that it is told count no more."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._last = 0
        self._rows: dict[GroupName, list[str]] = {}

    def read(self) -> None:
        if is_followed(Folder(self._out)):
            for news in open_export(self._out).follow(after=self._last, idle_s=0):
                self._take(news)

    def _take(self, news: News) -> None:
        assert news.entry.number == self._last + 1
        self._last += 1
        for stone in news.entry.tombstones:
            self._rows.pop(stone.name, None)
        for row in news.rows():
            self._rows.setdefault(_name(row), []).append(content_hash([to_batch(row)]))

    @property
    def rows(self) -> list[str]:
        return sorted(one for rows in self._rows.values() for one in rows)


def _name(row: Row) -> GroupName:
    return GroupName.of(row.group_id, row.episodes[0].episode_id)


def follow_beside(url: str, posting: Posting, folder: Path, *, writers: int, groups: int) -> None:
    """Let them all run, and check what is there in the end."""
    out, dice = folder / "out", random.Random(0)
    reader = _Reader(out)
    writing = [FORK.Process(target=_write, args=(posting, out, n, writers, groups)) for n in range(writers)]
    for process in writing:
        process.start()
    num_kills = 0
    while any(process.is_alive() for process in writing) or num_kills < 3:
        follower = FORK.Process(target=_follow, args=(url, out))
        follower.start()
        _wait_for(out, dice.randint(0, 2), writing, follower)
        follower.kill()
        follower.join()
        assert follower.exitcode == -signal.SIGKILL
        num_kills += 1
        reader.read()
    assert {process.exitcode for process in writing} == {0}
    with Store.open(url, create=False) as store:
        with following(store, PROJECT, out, SPEC) as last:
            list(looks(last, interval_s=0.001, until_idle_s=0.001))
        reader.read()
        _check(store, out, reader, folder / "batch")
    log, entries = Log.read(Folder(out))
    events = [
        e for n in range(writers) for batch in batches(n, writers=writers, groups=groups) for e in batch
    ]
    assert log.manifest().conservation.sampled_tokens == num_sampled(events)
    late = log.manifest().conservation.excluded.get("late", 0)
    figure(f"{len(entries)} entries, {num_kills} kills, {len(log.groups)} groups, {late} late tokens")


def _wait_for(out: Path, entries: int, writing: Sequence[BaseProcess], follower: BaseProcess) -> None:
    """Let a follower write so many entries, or as many as there are still writers for, and a bit more."""
    goal = _num_entries(out) + entries
    while _num_entries(out) < goal and any(process.is_alive() for process in writing):
        follower.join(0.01)
        assert follower.exitcode is None
    follower.join(0.02)


def _check(store: Store, out: Path, reader: _Reader, batch: Path) -> None:
    followed, log = open_export(out), Log.open(out)
    whole = export(store, PROJECT, batch, SPEC)
    here: dict[GroupName, list[str]] = {}
    for row in followed.rows():
        here.setdefault(_name(row), []).append(content_hash([to_batch(row)]))
    there = {_name(row): [content_hash([to_batch(row)])] for row in open_export(batch).rows()}
    assert here.keys() == there.keys()
    late = {name for name, one in log.late.items() if one.conservation.sampled_tokens or one.episode_ids}
    assert {name: rows for name, rows in here.items() if name not in late} == {
        name: rows for name, rows in there.items() if name not in late
    }
    assert verify_export(store, PROJECT, out).findings == []
    assert reader.rows == sorted(one for rows in here.values() for one in rows)
    written = [(group.name, group.revision) for entry in Log.read(Folder(out))[1] for group in entry.groups]
    assert len(written) == len(set(written))
    assert {path.name for path in out.glob("*shard*")} == set(log.shards)
    assert followed.manifest.conservation.sampled_tokens == whole.conservation.sampled_tokens


def test_writers_beside_a_follower_that_is_killed(tmp_path: Path) -> None:
    """Three processes on one file, and less of it."""
    url = empty_store(tmp_path / "t.db")
    follow_beside(url, into(url), tmp_path, writers=3, groups=2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_eight_writers_on_sqlite(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "t.db")
    with running_server(tmp_path / "t.db") as server:
        follow_beside(url, over_http(server.url), tmp_path, writers=8, groups=12)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_eight_writers_on_postgresql(tmp_path: Path) -> None:
    with postgresql_store() as url:
        follow_beside(url, into(url), tmp_path, writers=8, groups=4)
