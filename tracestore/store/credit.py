"""What a credit rule gave the branches of an export -> rows that analysts read as the view `credit`.

All that one rule gave at one step is a version: a whole number that counts up in the project, so that the
latest word on a branch is the one of the highest version. To keep the same again stores nothing; where the
same rule gives other numbers (its code has changed, an episode was brought back), it is another version. It
takes no commit position: nothing of the traces is another than before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from sqlalchemy import ColumnElement, Connection, func, select

from tracestore.errors import TracestoreError
from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.engine import writer
from tracestore.store.query import find_project, require_project
from tracestore.store.store import Store
from tracestore.store.tombstones import require_not_deleted

_AT_ONCE = 5_000
_SAID = (
    *("sample_id", "cause", "reward", "advantage_min", "advantage_mean", "advantage_max"),
    *("tokens", "notes"),
)
"""What is said of a branch, under the same name in its row."""


class OtherStore(TracestoreError):
    """None of the export's episodes is in this project of this store"""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Rule:
    """Who gave it: two are the same rule where all of this is equal."""

    export_hash: str
    """Of the export, as it is registered."""
    rows_hash: str
    """Of the rows that the rule read: another one each time an export that goes on has grown."""
    rule: str
    """With every option, defaults included: `rao:lambda=0.4,depth_weights=yes`."""
    reward_terms: str | None
    """Costs in the rewards that it read: `length=-0.001`; None: there were none."""
    step: int
    """Optimizer step, for what is annealed."""


@dataclass(frozen=True, slots=True)
class Given:
    """What one branch got."""

    episode_id: str
    agent_id: str
    sample_id: str
    cause: str
    """Why the branch begins."""
    reward: float | None
    """None: its episode is ungraded."""
    advantage_min: float | None
    """None: no token of it has an advantage, which is not 0."""
    advantage_mean: float | None
    advantage_max: float | None
    tokens: int
    """Tokens with an advantage."""
    notes: str | None
    """Why it has none."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What came of it."""

    version: int
    """Under which it stands."""
    branches: int
    """Rows that are new: 0 where it was kept before."""
    gone: int
    """Branches of episodes that were deleted since the export."""


def keep(store: Store, project: str, rule: Rule, given: Sequence[Given]) -> Kept:
    """Keep what a rule gave; where that was kept, nothing.

    Raises:
        UnknownProject: nothing was ever posted to it.
        Deleted: the project was deleted.
        OtherStore: the export is of another store.
    """
    p, c = t.project.c, t.branch_credit.c
    with store.read() as connection:
        require_project(connection, project)
        require_not_deleted(connection, find_project(connection, project) or 0, "project", project)
    with writer(store.engine).begin() as connection:
        project_id, key = connection.execute(
            select(p.project_id, p.next_key).where(p.name == project).with_for_update()
        ).one()
        here = c.project_id == project_id
        same = (
            here,
            c.export_hash == rule.export_hash,
            c.rows_hash == rule.rows_hash,
            c.rule == rule.rule,
            c.reward_terms.is_not_distinct_from(rule.reward_terms),
            c.step == rule.step,
        )
        before = connection.execute(select(func.max(c.version)).where(*same)).scalar()
        episodes = _keys(connection, project_id, {one.episode_id for one in given})
        there = [one for one in given if one.episode_id in episodes]
        if before is not None and _stands(connection, [here, c.version == before], there):
            return Kept(int(before), 0, len(given) - len(there))
        if given and not there:
            raise OtherStore(
                project=project, export_hash=rule.export_hash, hint="name the store that it was made of: --db"
            )
        version = 1 + (connection.execute(select(func.max(c.version)).where(here)).scalar() or 0)
        agents = _agents(connection, project_id, {one.agent_id for one in there})
        of_rule = asdict(rule) | {"project_id": project_id, "version": version, "written_at": time.time_ns()}
        rows = [
            of_rule
            | {name: value for name, value in asdict(one).items() if name not in ("episode_id", "agent_id")}
            | {
                "key": key + place,
                "episode_key": episodes[one.episode_id],
                "agent_key": agents.get(one.agent_id),
            }
            for place, one in enumerate(there)
        ]
        for start in range(0, len(rows), _AT_ONCE):
            connection.execute(t.branch_credit.insert(), rows[start : start + _AT_ONCE])
        this = t.project.update().where(p.project_id == project_id)
        connection.execute(this.values(next_key=key + len(there)))
    return Kept(version, len(there), len(given) - len(there))


def _stands(connection: Connection, version: Sequence[ColumnElement[bool]], given: Iterable[Given]) -> bool:
    """Whether a version says the same of the same branches."""
    columns = [t.branch_credit.c[name] for name in _SAID]
    kept = {tuple(row) for row in connection.execute(select(*columns).where(*version))}
    return kept == {tuple(getattr(one, name) for name in _SAID) for one in given}


def _keys(connection: Connection, project_id: int, ids: Iterable[str]) -> dict[str, int]:
    """Keys of the episodes that are there and not deleted."""
    e = t.episode.c
    found: dict[str, int] = {}
    for chunk in chunks(sorted(ids)):
        here = (e.project_id == project_id, e.id.in_(chunk), e.first_pos.is_not(None))
        found |= {row.id: row.key for row in connection.execute(select(e.id, e.key).where(*here))}
    return found


def _agents(connection: Connection, project_id: int, ids: Iterable[str]) -> dict[str, int]:
    a = t.agent.c
    found: dict[str, int] = {}
    for chunk in chunks(sorted(ids)):
        here = (a.project_id == project_id, a.id.in_(chunk))
        found |= {row.id: row.key for row in connection.execute(select(a.id, a.key).where(*here))}
    return found
