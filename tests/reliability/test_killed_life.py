"""Deletion and redaction killed with SIGKILL, at points all over their steps: the next process ends them."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.factories import posted
from tests.store.servers import postgresql
from tests.store.test_blobs import named, put
from tracestore.store import Store, delete, erase, pack, redact
from tracestore.store.blobs import open_blobs
from tracestore.store.committer import Committer
from tracestore.store.tombstones import Deleted
from tracestore.store.transaction import Transaction
from tracestore.store.verify import verify
from tracestore.wire.events import AnyEvent

SECRET = "sk-SECRET0123456789"
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return empty_store(tmp_path / "store.db")
    found: str = request.getfixturevalue("server")
    return found


def story(number: int) -> list[AnyEvent]:
    name = f"e{number}"
    first = make.call(
        f"{name}-c0",
        [make.system("shared by all"), make.user(f"{name}: my key is {SECRET}")],
        make.answer(make.assistant("ok", tool_calls=[make.tool_use("run", SECRET)]), ids=[5, 6]),
        episode=name,
        agent=f"{name}-a",
        prompt_ids=[1, 2, number],
    )
    then = make.call(
        f"{name}-c1",
        [make.tool("done")],
        make.answer(f"{name} is done", ids=[9]),
        episode=name,
        agent=f"{name}-a",
        parent=first.id,
        delta=True,
    )
    of_all = make.blob(f"{name}-b0", named(b"of all"), episode=name)
    own = make.blob(f"{name}-b1", named(name.encode()), episode=name)
    return [make.episode(name), make.agent(f"{name}-a", episode=name), first, then, of_all, own]


def dies_at(left: int) -> None:
    """Let this process kill itself at the n-th point: before a step writes, before it commits, after."""
    points = left

    def around(whole: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            nonlocal points
            result = None if before else whole(*args, **more)
            points -= 1
            if points < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*args, **more) if before else result

        return wrapped

    Transaction.finish = around(around(Transaction.finish, before=True), before=False)  # type: ignore[method-assign]
    Committer._work = around(Committer._work, before=False)  # type: ignore[method-assign]


def carry_out(url: str, place: str, left: int) -> None:
    erase.ROWS, redact.EVENTS, pack.ROWS = 2, 3, 3
    blobs = open_blobs(place)
    with Store.open(url) as store:
        dies_at(left)
        for project, key in delete.unfinished(store):
            delete.carry_out(store, project, key, blobs=blobs)
        for project, key in redact.unfinished(store):
            redact.carry_out(store, project, key)
    os._exit(0)


def killed_until_done(url: str, place: str, dice: random.Random, *, kills: int, longest: int) -> int:
    """How often a process was killed before one came to the end."""
    for number in range(kills + 1):
        left = dice.randint(0, longest) if number < kills else 10**9
        child = FORK.Process(target=carry_out, args=(url, place, left))
        child.start()
        child.join(120)
        if child.exitcode == 0:
            return number
        assert child.exitcode == -signal.SIGKILL
    raise AssertionError("the last one is not killed")


@contextmanager
def asked_for(url: str, place: str, project: str) -> Iterator[None]:
    """Five episodes; two of them are to go, and the rest to be redacted."""
    blobs = open_blobs(place)
    for data in (b"of all", *(f"e{number}".encode() for number in range(5))):
        put(blobs, data, project=project)
    with Store.open(url) as store:
        events = [event for number in range(5) for event in story(number)]
        assert {o.status for o in store.ingest(project, list(map(posted, events)))} == {"stored"}
        delete.delete_episodes(store, project, ["e1", "e3"], what="age", name="a rule")
        redact.add_rules(store, project, json.dumps([{"name": "key", "pattern": "sk-[A-Z0-9]+"}]))
    yield
    with Store.open(url) as store:
        assert verify(store, project).problems == ()
        for number in range(5):
            if number in (1, 3):
                with pytest.raises(Deleted):
                    store.load(project, f"e{number}")
            else:
                assert len(store.load(project, f"e{number}")) == 6
                assert {o.status for o in store.ingest(project, list(map(posted, story(number))))} == {
                    "duplicate"
                }
        [deletion] = delete.deletions(store, project)
        [redaction] = redact.redactions(store, project)
        # Of three episodes both calls lost ids or text: the second read what the first did.
        assert (deletion.episodes_erased, redaction.events, redaction.values) == (2, 3, 6)
    there = {number: blobs.size(project, named(f"e{number}".encode())) for number in range(5)}
    assert there == {0: 2, 1: None, 2: 2, 3: None, 4: 2}
    assert blobs.size(project, named(b"of all")) == 6
    if url.startswith("sqlite"):
        folder = Path(url.removeprefix("sqlite:///")).parent
        assert not any(
            SECRET.encode() in file.read_bytes() for file in folder.glob("store.db*") if file.is_file()
        )


def test_what_was_killed_again_and_again_ends_as_if_it_never_was(url: str, tmp_path: Path) -> None:
    place = str(tmp_path / "blobs")
    with asked_for(url, place, "p"):
        assert killed_until_done(url, place, random.Random(7), kills=12, longest=40) > 3


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_killed_at_every_few_points(url: str, tmp_path: Path, seed: int) -> None:
    place = str(tmp_path / "blobs")
    with asked_for(url, place, f"p{seed}"):
        assert killed_until_done(url, place, random.Random(seed), kills=80, longest=9) > 10
