"""What a store takes grows with what is new, whatever stands in one message of it."""

from __future__ import annotations

import argparse
import base64
import inspect
import random
import typing
from collections.abc import Iterable, Iterator
from uuid import uuid4

import numpy as np
import pytest
from sqlalchemy import make_url

from tests.factories import answer, assistant, call, posted, raw, system, user
from tests.store.servers import postgresql
from tracestore.graph.messages import messages_of
from tracestore.store import Store
from tracestore.store.engine import connect
from tracestore.store.stats import stats
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent

_SOURCES = "".join(inspect.getsource(module) for module in (argparse, inspect, typing))
"""Text as agents read it."""

POISON = {
    "a lone surrogate": Raw(b'{"role":"user","content":"\\ud800 alone"}'),
    "NUL": Raw(b'{"role":"user","content":"before\\u0000after"}'),
    "10 MB": raw(user("x" * 10_000_000)),
}


def _text(rng: random.Random, size: int) -> str:
    start = rng.randrange(len(_SOURCES) - size)
    return _SOURCES[start : start + size]


def _steps(count: int, *, episode: str = "e", first: Raw | None = None, num_whole: int = 2) -> Iterator[Call]:
    """A chain of calls with token ids and logprobs of their answers.

    Args:
        first: the user message that all of them see.
        num_whole: how many post their whole context, and not what is new in it.
    """
    rng = random.Random(episode)
    context = new = [system(_text(rng, 2400)), user("The task.") if first is None else first]
    for number in range(count):
        said = assistant(_text(rng, 500))
        ids = [rng.randrange(50_000) for _ in range(60)]
        logprobs = [float(np.float32(-rng.random())) for _ in ids]
        is_whole = number < num_whole
        yield call(
            f"{episode}-{number}",
            context if is_whole else new,
            answer(said, ids=ids, logprobs=logprobs),
            episode=episode,
            parent=f"{episode}-{number - 1}" if number else None,
            delta=not is_whole,
        )
        new = [user(_text(rng, 1150))]
        context = [*context, said, *new]


def _bytes(store: Store) -> int:
    with store.read() as connection:
        found = stats(connection)["database_bytes"]
    assert found is not None
    return found


def _ingest(store: Store, events: Iterable[AnyEvent]) -> int:
    """Store events; how many bytes that takes."""
    before = _bytes(store)
    waiting = [posted(event) for event in events]
    for start in range(0, len(waiting), 20):
        outcomes = store.ingest("p", waiting[start : start + 20])
        assert {one.status for one in outcomes} == {"stored"}
    return _bytes(store) - before


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture
def on_postgresql(server: str) -> Iterator[Store]:
    """A database of its own."""
    name = f"storage_{uuid4().hex}"
    engine = connect(server).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    with Store.open(make_url(server).set(database=name).render_as_string(hide_password=False)) as opened:
        yield opened


@pytest.fixture
def grown(sqlite_store: Store) -> Store:
    """A store that has learnt what its contents are like: it does so once, in a thread."""
    store = sqlite_store
    for number in range(20):
        _ingest(store, _steps(100, episode=f"before{number}"))
        with store.read() as connection:
            if connection.exec_driver_sql("SELECT 1 FROM dictionary WHERE purpose IS NULL").scalar():
                return store
    raise AssertionError("no dictionary was trained")


def _told(calls: Iterable[Call]) -> int:
    """Bytes of unique messages, of the envelopes of calls, and of their tokens as base64."""
    unique: set[bytes] = set()
    rest = 0
    for one in calls:
        [body] = one.completions or ()
        assert one.request is not None
        assert body.message is not None
        assert body.token_ids is not None
        assert body.logprobs is not None
        unique |= {bytes(span) for span, _ in messages_of(one.request, one.dialect)}
        unique.add(bytes(body.message))
        bare = one.model_copy(update={"completions": (), "request": raw({"model": "m", "messages": []})})
        rest += len(encode(bare)) + sum(
            len(base64.b64encode(of.data)) for of in (body.token_ids, body.logprobs)
        )
    return sum(map(len, unique)) + rest


@pytest.mark.parametrize("poison", [None, *POISON])
def test_a_store_grows_with_the_steps_of_an_episode_and_takes_less_than_what_is_told(
    grown: Store, poison: str | None
) -> None:
    first = POISON[poison] if poison else None
    steps = list(_steps(800, first=first))
    half = _ingest(grown, steps[:400])
    whole = half + _ingest(grown, steps[400:])
    assert whole <= 2.05 * half
    # A poisoned message compresses as it may: the store is held against what is told beside it.
    assert whole <= 0.8 * (_told(steps) - len(first or b""))


def test_a_store_on_postgresql_grows_with_the_steps_of_an_episode(on_postgresql: Store) -> None:
    _ingest(on_postgresql, _steps(100, episode="before"))
    steps = list(_steps(800, first=POISON["NUL"]))
    half = _ingest(on_postgresql, steps[:400])
    assert half + _ingest(on_postgresql, steps[400:]) <= 2.05 * half


def test_posting_the_whole_context_with_every_call_takes_what_posting_the_new_takes(grown: Store) -> None:
    new = _ingest(grown, _steps(100, episode="new", num_whole=1))
    all_of_it = _ingest(grown, _steps(100, episode="all", num_whole=100))
    assert all_of_it <= 1.1 * new


@pytest.mark.parametrize("poison", [None, *POISON])
def test_rollouts_of_one_prompt_store_its_content_once(store: Store, poison: str | None) -> None:
    _check_prompt(store, poison)


@pytest.mark.parametrize("poison", [None, *POISON])
def test_rollouts_of_one_prompt_store_its_content_once_on_postgresql(
    on_postgresql: Store, poison: str | None
) -> None:
    _check_prompt(on_postgresql, poison)


def _check_prompt(store: Store, poison: str | None) -> None:
    prompt = POISON[poison] if poison else raw(user("The task of all."))
    calls = [
        call(f"c{number}", [system("s"), prompt], f"answer {number}", episode=f"e{number}")
        for number in range(16)
    ]
    store.ingest("p", [posted(one) for one in calls])
    with store.read() as connection:
        rows = connection.exec_driver_sql("SELECT role, size FROM content").all()
    # One system message, one prompt, sixteen answers.
    assert [len([role for role, _ in rows if role == name]) for name in ("system", "user", "assistant")] == [
        1,
        1,
        16,
    ]
    assert [size for role, size in rows if role == "user"] == [len(prompt)]
    assert all(store.context("p", one.id)[1] == prompt for one in calls)


@pytest.mark.parametrize("poison", POISON)
def test_what_goes_on_from_a_poisoned_message_is_read_as_any_other(store: Store, poison: str) -> None:
    first = POISON[poison]
    calls = list(_steps(4, first=first, num_whole=1))
    store.ingest("p", [posted(one) for one in calls])
    seen = store.context("p", "e-3")
    assert len(seen) == 8  # system and first; then an answer and a message for each of three steps
    assert seen[1] == first
    [branch] = store.branches("p", "e")
    assert (len(branch.messages), branch.end) == (9, ("e-3", 0))
