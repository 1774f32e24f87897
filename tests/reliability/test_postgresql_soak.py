"""Eight writers, an exporter that follows and a deleter on one PostgreSQL: nothing is lost, nothing hangs."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select

from tests import factories as make
from tests.factories import answer, assistant, call, user
from tests.reliability.recordings import figure
from tests.store.servers import postgresql_store
from tracestore.errors import TracestoreError
from tracestore.shards.read import open_export
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.delete import carry_out, delete_episode, unfinished
from tracestore.store.doomed import references_to
from tracestore.store.verify import verify
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

WRITERS, EPISODES, TASKS = 8, 25, 5
"""Processes, rollouts of each, tasks that all of them share."""

_WRITER = """
import random, sys, time
from tests.factories import posted
from tests.reliability.test_postgresql_soak import rollout
from tracestore.store import Store
from tracestore.store.transaction import Transaction

url, number, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(number)
finish = Transaction.finish

def finish_late(tx):
    finish(tx)
    time.sleep(rng.choice((0, 0, 0.001, 0.02)))  # everything is written, and nothing committed

Transaction.finish = finish_late
with Store.open(url, create=False) as store:
    for n in range(count):
        events = rollout(f"e{number}.{n}", rng)
        for half in (events[: len(events) // 2], events[len(events) // 2 :]):
            statuses = {one.status for one in store.ingest("p", [posted(event) for event in half])}
            # Deleted half way: whoever posts on is told so.
            assert statuses <= {"stored", "duplicate", "deleted"}, statuses
            if "deleted" in statuses:
                break
        print(f"e{number}.{n}", flush=True)
"""


def rollout(name: str, rng: random.Random) -> list[AnyEvent]:
    """An episode of three calls; its task is one of few, which all writers share, its words are any."""
    task, said = f"task {rng.randrange(TASKS)}", [str(rng.randrange(50)) for _ in range(3)]
    ids = [rng.randrange(1000) for _ in range(6)]
    events: list[AnyEvent] = [
        make.episode(name, status="ok"),
        make.agent(f"{name}/main", episode=name),
    ]
    context = [user(task)]
    for turn, word in enumerate(said):
        prompt = list(range(3)) + [token for n in range(turn) for token in (ids[n], 7)]
        events.append(
            call(
                f"{name}/c{turn}",
                context,
                answer(word, ids=[ids[turn]]),
                episode=name,
                agent=f"{name}/main",
                prompt_ids=prompt,
                ordinal=turn,
                status="ok",
            )
        )
        context = [*context, assistant(word), user(f"on {turn}")]
    return [*events, make.reward(f"{name}/r", episode=name, value=rng.random())]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_exported_and_deleted_are_what_was_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    done = threading.Event()
    with postgresql_store() as url, Store.open(url) as store, ThreadPoolExecutor() as threads:
        beside = [
            threads.submit(_follow, url, tmp_path / "follow", done),
            threads.submit(_delete_some, url, acknowledged, done),
        ]
        try:
            list(threads.map(lambda number: _write(url, number, acknowledged), range(WRITERS)))
        finally:
            done.set()
        num_exports, num_asked = [one.result() for one in beside]
        figure(f"{len(acknowledged)} episodes, {num_exports} exports beside, {num_asked} deletions")
        assert len(acknowledged) == WRITERS * EPISODES
        assert num_exports > 2
        assert unfinished(store) == []
        manifest = export(store, "p", tmp_path / "last", Spec())
        exported = _exported(tmp_path / "last")
        deleted = {one["id"] for one in store.tombstones("p", snapshot=store.snapshot("p"))}
        assert exported | deleted == set(acknowledged)
        assert exported & deleted == set()
        assert len(deleted) == num_asked > 0
        table = manifest.conservation
        assert table.sampled_tokens == table.trained_tokens == 3 * len(exported)
        assert verify_export(store, "p", tmp_path / "last").findings == []
        assert verify(store, "p").problems == ()
        assert _dangling(store) == set()


def _write(url: str, number: int, acknowledged: list[str]) -> None:
    command = [sys.executable, "-c", _WRITER, url, str(number), str(EPISODES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            acknowledged.append(line.strip())
    assert process.returncode == 0


def _follow(url: str, folder: Path, done: threading.Event) -> int:
    """Export one snapshot after the other; what one holds, the next holds or names as deleted."""
    before: set[str] = set()
    number = 0
    with Store.open(url, create=False) as store:
        while not done.is_set():
            try:
                manifest = export(store, "p", folder / str(number), Spec())
            except TracestoreError as error:  # deleted while it was read, or nothing is there yet
                if error.status not in (404, 410):
                    raise
                done.wait(0.05)
                continue
            exported = _exported(folder / str(number))
            assert before <= exported | {stone["id"] for stone in manifest.tombstones}
            before, number = exported, number + 1
    return number


def _delete_some(url: str, acknowledged: list[str], done: threading.Event) -> int:
    """Delete two of five episodes soon after they were acknowledged."""
    rng, seen, asked = random.Random(0), 0, 0
    with Store.open(url, create=False) as store:
        while not (done.is_set() and seen == len(acknowledged)):
            if seen == len(acknowledged):
                done.wait(0.01)
                continue
            name, seen = acknowledged[seen], seen + 1
            if rng.random() < 0.4:
                found = delete_episode(store, "p", name)
                assert carry_out(store, "p", found.id).state == "done"
                asked += 1
    return asked


def _exported(folder: Path) -> set[str]:
    return {one.episode_id for row in open_export(folder).rows() for one in row.episodes}


def _dangling(store: Store) -> set[int]:
    """Contents to which nothing refers."""
    with store.read() as connection:
        keys = set(connection.execute(select(t.content.c.key)).scalars())
        for _, column in references_to(t.content):
            keys -= set(connection.execute(select(column)).scalars())
    return keys
