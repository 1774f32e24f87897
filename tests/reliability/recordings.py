"""Events by the thousand: small episodes as bodies, and what must be there when they were acknowledged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests import factories as make
from tests.databases import NAMED_EVENTS
from tests.factories import posted, user
from tracestore.store import Store
from tracestore.store.verify import verify
from tracestore.wire.events import AnyEvent

Name = tuple[str, str]
"""Kind and id of an event."""


def conversation(episode: str, *, turns: int, size: int = 200) -> list[AnyEvent]:
    """An episode of one agent whose calls each post the whole context so far, `size` bytes more a turn."""
    events: list[AnyEvent] = [make.episode(episode), make.agent(f"{episode}/main", episode=episode)]
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        messages.append(user(f"{episode} {turn} ".ljust(size, "x")))
        said = f"{episode} says {turn}"
        events.append(
            make.call(
                f"{episode}/{turn}",
                messages,
                make.answer(said, ids=[turn, 1]),
                episode=episode,
                agent=f"{episode}/main",
                ordinal=turn,
            )
        )
        messages.append(make.assistant(said))
    return events


def array(events: Iterable[AnyEvent]) -> bytes:
    """The body that posts them together."""
    return b"[" + b",".join(posted(event)[1] for event in events) + b"]"


def names(events: Iterable[AnyEvent]) -> set[Name]:
    return {(event.kind, event.id) for event in events}


def statuses(answer: dict[str, Any]) -> dict[Name, str]:
    """What became of each event of a post."""
    return {(item["kind"], item["id"]): item["status"] for item in answer["items"]}


def stored(database: Path) -> set[Name]:
    """Every event in a SQLite store that is sound in itself and in all that was recorded.

    Raises:
        AssertionError: the file is damaged, `verify` finds something, or an event is there twice.
    """
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = connection.execute(f"SELECT project_id, kind, id, phase FROM ({NAMED_EVENTS})").fetchall()
        projects = [name for (name,) in connection.execute("SELECT name FROM project")]
    assert len(rows) == len(set(rows))
    with Store.open(f"sqlite:///{database}", create=False) as store:
        problems = [problem for project in projects for problem in verify(store, project).problems]
    assert problems == []
    return {(kind, id_) for _, kind, id_, _ in rows}


def lines(events: Sequence[AnyEvent]) -> bytes:
    """The body that posts them one a line."""
    return b"\n".join(posted(event)[1] for event in events)


def figure(text: str) -> None:
    """Say what was measured; pytest shows it with -s."""
    print(text)  # noqa: T201
