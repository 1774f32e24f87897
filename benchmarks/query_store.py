"""A few episodes as a server stores them, multiplied by SQL -> a store of a million messages, in a minute.

Every shape is ingested once through `Store.ingest`. Then whole episodes are written again under other ids and
at later times: rows of other keys and positions that refer to the same contents, which is what the committer
writes when somebody posts the same rollouts under new names (a test holds the two against each other). For
PostgreSQL the finished rows are copied over. Every shape holds messages that no column can hold or that are
thousands of times as long as others, for they are to slow down nothing.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Boolean, Table
from workload import Kind, unpacked, workload

from tracestore.store import Store
from tracestore.store.engine import connect
from tracestore.store.tables import metadata
from tracestore.wire.decode import decode_body

PROJECT = "default"
TREE, RARE = "bench-tree", "cancelled"
BRANCHES = "bench-beam"
SECOND_NS = 10**9

_BEGIN_NS = 1_780_000_000_000_000_000
_LAST_NS = 2_000_000_000_000_000_000
_ROLLOUTS = 8
_EPISODES_OF_A_LIST = 20
_CALLS_OF_AN_AGENT = 32
_BEAM, _BEAM_EPISODES = 8, 16
_EVENTS_A_POST = 500

_SHARED = {"project", "api_key", "session", "tombstone", "redaction"}
_CONTENTS = {"field_set", "dictionary", "content", "blob"}
"""What copies of an episode have in common."""
_TIMES = {"at", "started_at", "ended_at", "first_token_at"}
_POSITIONS = {"pos", "end_pos", "first_pos"}

Event = dict[str, Any]

POISON: dict[str, Event] = {
    "a lone surrogate": {"role": "user", "content": "\ud800 alone"},
    "NUL": {"role": "user", "content": "before\0after"},
    "10 MB": {"role": "user", "content": "x" * 10_000_000},
}
_CALLS_OF_THE_LONG = 500


def long_call(poison: str | None = None) -> str:
    """The call that sees 1,000 messages, or 1,001 with a poisoned one among them."""
    return f"{_long(poison)}-{_CALLS_OF_THE_LONG - 1}"


def _long(poison: str | None) -> str:
    return "bench-long" if poison is None else f"bench-long with {poison}"


@dataclass(frozen=True)
class Sizes:
    """How much of each shape a store holds."""

    messages: int
    """Of rollouts of 66 calls, not counting the other shapes."""
    is_clean: bool = False
    """Whether there is no poisoned message."""

    @property
    def tree_calls(self) -> int:
        return min(32_000, self.messages)

    @property
    def branch_calls(self) -> int:
        return min(10_000, self.messages)

    @property
    def episodes(self) -> int:
        """Of the listing, each of one call."""
        return min(100_000, 2 * self.messages)


def make(file: Path, sizes: Sizes) -> None:
    """Write a store of all shapes into a new file."""
    poison = {} if sizes.is_clean else POISON
    for kind in (None, *poison):
        ingest(file, long_episode(kind))
    ingest(file, tree(sizes.tree_calls, list(poison.values())))
    ingest(file, beams(sizes.branch_calls, list(poison.values())))
    rollouts = written(file, lambda: ingest_rollouts(file, "ids_delta"))
    multiply(file, rollouts, copies=_copies(sizes.messages, rollouts.num_nodes))
    episodes = written(file, lambda: ingest(file, listed(list(poison.values()))))
    multiply(file, episodes, copies=_copies(sizes.episodes, _EPISODES_OF_A_LIST))
    # At the end of the list: a filter for it looks through everything that has no index.
    ingest(file, [_event("episode", "bench-rare", status=RARE, task_id=RARE, started_at=_LAST_NS)])


def _copies(wanted: int, have: int) -> int:
    """How many more of `have` make `wanted`."""
    return max(0, -(-wanted // have) - 1)


# --- The shapes ---------------------------------------------------------------------------------------------


def long_episode(poison: str | None = None) -> Iterator[Event]:
    """One agent whose last call sees 1,000 messages, and a poisoned one."""
    episode = _long(poison)
    yield _event("episode", episode)
    yield _event("agent", f"{episode}-main", episode_id=episode, role="main")
    for number in range(_CALLS_OF_THE_LONG):
        new = [_said("user", f"step {number}", 900)]
        if number == 0:
            new.insert(0, _said("system", "You work alone.", 3000))
            new += [] if poison is None else [POISON[poison]]
        yield _call(
            episode,
            f"{episode}-main",
            number,
            new,
            parent=number - 1 if number else None,
            answers=[_said("assistant", f"answer {number}", 600)],
        )


def tree(num_calls: int, first: Sequence[Event] = ()) -> Iterator[Event]:
    """One episode: a main agent and its subagents, each of 32 calls; its first call sees `first` too."""
    yield _event("episode", TREE)
    for start in range(0, num_calls, _CALLS_OF_AN_AGENT):
        agent = f"{TREE}-agent-{start // _CALLS_OF_AN_AGENT:05d}"
        parent = {"parent_agent_id": f"{TREE}-agent-00000", "role": "subagent"} if start else {"role": "main"}
        yield _event("agent", agent, episode_id=TREE, **parent)
        for number in range(start, min(start + _CALLS_OF_AN_AGENT, num_calls)):
            yield _call(
                TREE,
                agent,
                number,
                [*([] if number else first), _said("user", f"step {number}", 80)],
                parent=number - 1 if number > start else None,
                answers=[_said("assistant", f"answer {number}", 80)],
            )


def beams(num_calls: int, first: Sequence[Event] = ()) -> Iterator[Event]:
    """A group of 16 episodes, each a beam search of width 8 that goes on from the better of two answers; the
    first call of each sees `first` too."""
    yield _event("group", BRANCHES, size=_BEAM_EPISODES)
    for index in range(_BEAM_EPISODES):
        episode = f"{BRANCHES}-{index:02d}"
        yield _event("episode", episode, group_id=BRANCHES)
        yield _event("agent", f"{episode}-main", episode_id=episode, role="main")
        for number in range(-(-num_calls // _BEAM_EPISODES)):
            yield _call(
                episode,
                f"{episode}-main",
                number,
                [*([] if number else first), _said("user", f"step {index} {number}", 60)],
                parent=number - _BEAM if number >= _BEAM else None,
                answers=[_said("assistant", f"answer {index} {number} {one}", 60) for one in range(2)],
            )


def listed(asked: Sequence[Event] = ()) -> Iterator[Event]:
    """Twenty short episodes in five groups; one failed and was `asked` more than the others."""
    for number in range(_EPISODES_OF_A_LIST):
        episode = f"bench-list-{number:02d}"
        yield _event(
            "episode",
            episode,
            group_id=f"bench-group-{number % 5}",
            task_id=f"task-{number % 5}",
            split="eval" if number % 4 == 0 else "train",
            started_at=_BEGIN_NS + number,
            **({"status": "failed", "error": "\ud800 and \0"} if number == 7 else {"status": "ok"}),
        )
        question = [*(asked if number == 7 else ()), _said("user", f"question {number % 5}", 200)]
        answer = [_said("assistant", f"answer {number}", 100)]
        yield _call(episode, f"{episode}-main", 0, question, parent=None, answers=answer)


def _event(kind: str, id_: str, **fields: Any) -> Event:
    return {"v": 1, "kind": kind, "id": id_, **fields}


def _call(
    episode: str,
    agent: str,
    number: int,
    new: Sequence[Event],
    *,
    parent: int | None,
    answers: Sequence[Event],
) -> Event:
    """A call that says what is new after its parent."""
    follows = {} if parent is None else {"parent_call_id": f"{episode}-{parent}", "context": "delta"}
    return _event(
        "call",
        f"{episode}-{number}",
        episode_id=episode,
        agent_id=agent,
        ordinal=number,
        model="policy-7b",
        policy={"name": "policy-7b", "version": 3},
        started_at=_BEGIN_NS + number * SECOND_NS,
        request={"model": "policy-7b", "messages": list(new)},
        completions=[{"message": answer, "finish_reason": "stop"} for answer in answers],
        status="ok",
        **follows,
        **({} if parent is None or len(answers) == 1 else {"parent_completion": 0}),
    )


def _said(role: str, about: str, size: int) -> Event:
    """A message of about so many letters, of words that are drawn by what it is about."""
    rng = random.Random(about)
    words = " ".join(rng.choice(_WORDS) for _ in range(size // 6))
    return {"role": role, "content": f"{about}: {words}"}


_WORDS = re.findall(r"\w+", json.decoder.__doc__ or "") + re.findall(r"\w+", random.__doc__ or "")


def ingest(file: Path, events: Iterable[Event]) -> None:
    """Post events through `Store.ingest`, some at a time."""
    with Store.open(f"sqlite:///{file}") as store:
        lines: list[bytes] = []
        for event in events:
            lines.append(json.dumps(event).encode())
            if len(lines) == _EVENTS_A_POST:
                _post(store, b"\n".join(lines))
                lines.clear()
        if lines:
            _post(store, b"\n".join(lines))


def ingest_rollouts(file: Path, kind: Kind) -> None:
    """Post eight rollouts of the ingest workload."""
    with Store.open(f"sqlite:///{file}") as store:
        for frame in workload(_ROLLOUTS).batches(kind):
            _post(store, unpacked(frame))


def _post(store: Store, body: bytes) -> None:
    items = decode_body(body, content_type="application/x-ndjson")
    outcomes = store.ingest(PROJECT, [(one.event, one.text) for one in items if one.event is not None])
    if len(outcomes) < len(items) or any(one.status != "stored" for one in outcomes):
        raise RuntimeError(f"not everything was stored: {outcomes}")


# --- Copies -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """Whole episodes and groups that were written one after another: rows of these keys, events of these
    positions."""

    project_id: int
    keys: range
    positions: range
    num_nodes: int


def written(file: Path, write: Callable[[], None]) -> Base:
    """What `write` adds to the project, of which something is there already or not."""
    _, key, position = _where(file)
    write()
    project_id, next_key, last = _where(file)
    keys = range(key, next_key)
    with closing(sqlite3.connect(file)) as connection:
        sql = "SELECT count(*) FROM node WHERE project_id = ? AND key >= ? AND key < ?"
        (num_nodes,) = connection.execute(sql, (project_id, keys.start, keys.stop)).fetchone()
    return Base(project_id, keys, range(position + 1, last + 1), num_nodes)


def _where(file: Path) -> tuple[int, int, int]:
    """The project's number, its next key and its last position."""
    with Store.open(f"sqlite:///{file}"), closing(sqlite3.connect(file)) as connection:
        sql = "SELECT project_id, next_key, commit_seq FROM project WHERE name = ?"
        return connection.execute(sql, (PROJECT,)).fetchone() or (1, 1, 0)


def multiply(file: Path, base: Base, *, copies: int) -> None:
    """Write the episodes of a base again, which nothing was written after: copy n has `+n` behind every id
    and lies n seconds later."""
    with closing(sqlite3.connect(file)) as connection:
        for table in metadata.tables.values():
            if table.name not in _SHARED | _CONTENTS:
                began = time.perf_counter()
                rows = connection.total_changes
                connection.execute(*_copy(table, base, copies))
                rows = connection.total_changes - rows
                seconds = time.perf_counter() - began
                print(f"store: {rows:,} rows of {table.name} in {seconds:.1f} s", file=sys.stderr)
        connection.execute(
            "UPDATE project SET next_key = next_key + ?, commit_seq = commit_seq + ? WHERE project_id = ?",
            (copies * len(base.keys), copies * len(base.positions), base.project_id),
        )
        connection.commit()


def _copy(table: Table, base: Base, copies: int) -> tuple[str, dict[str, int]]:
    """The statement that writes the copies of a table's rows, copy by copy."""
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    values = ", ".join(_copied(table, column.name) for column in table.columns)
    by = _owner(table)
    rows = base.positions if by == "pos" else base.keys
    sql = (
        "WITH RECURSIVE copy (nth) AS (SELECT 1 WHERE :copies > 0 UNION ALL"
        " SELECT nth + 1 FROM copy WHERE nth < :copies)"
        f' INSERT INTO "{table.name}" ({columns}) SELECT {values} FROM copy CROSS JOIN "{table.name}"'
        f' WHERE project_id = :project_id AND "{by}" >= :first AND "{by}" < :end ORDER BY nth, "{by}"'
    )
    return sql, {
        "copies": copies,
        "project_id": base.project_id,
        "first": rows.start,
        "end": rows.stop,
        "keys": len(base.keys),
        "positions": len(base.positions),
        "second": SECOND_NS,
    }


def _owner(table: Table) -> str:
    """The column that tells which rows of a table belong to a base."""
    if table.name == "raw_event":
        return "pos"
    names = [column.name for column in table.primary_key.columns]
    return next(name for name in names if name == "key" or name.endswith("_key"))


def _copied(table: Table, name: str) -> str:
    """What stands in a column of a copy. NULL stays NULL, whatever is added to it."""
    if name == "id":
        return "id || '+' || nth"
    if name in _TIMES:
        return f"{name} + nth * :second"
    if name in _POSITIONS:
        return f"{name} + nth * :positions"
    referred = {key.column.table.name for key in table.columns[name].foreign_keys}
    is_key = name in ("key", "entity_key", "owner_key") or bool(referred - _SHARED - _CONTENTS)
    return f'"{name}" + nth * :keys' if is_key and name != "project_id" else f'"{name}"'


# --- PostgreSQL ---------------------------------------------------------------------------------------------


def copy_to_postgresql(file: Path, url: str) -> None:
    """Put every row of a SQLite store into an empty PostgreSQL database."""
    Store.open(url).close()
    engine = connect(url, create=False)
    with closing(sqlite3.connect(file)) as source, engine.connect() as target:
        driver: Any = target.connection.driver_connection
        with driver.cursor() as cursor:
            # The rows are those of a store whose foreign keys hold.
            cursor.execute("SET session_replication_role = replica")
            for table in metadata.tables.values():
                _copy_table(source, cursor, table)
            driver.commit()
            driver.autocommit = True
            cursor.execute("VACUUM ANALYZE")
            driver.autocommit = False
    engine.dispose()


def _copy_table(source: sqlite3.Connection, cursor: Any, table: Table) -> None:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    flags = [isinstance(column.type, Boolean) for column in table.columns]
    with cursor.copy(f'COPY "{table.name}" ({names}) FROM STDIN') as copy:
        for row in source.execute(f'SELECT {names} FROM "{table.name}"'):
            copy.write_row(
                [
                    bool(value) if is_flag and value is not None else value
                    for value, is_flag in zip(row, flags, strict=True)
                ]
            )
