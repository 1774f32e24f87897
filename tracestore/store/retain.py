"""Rules of how long what is kept -> what is due now -> deletions.

    [{"project": "tau", "older_than": "90d", "keep_graded": true},
     {"project": "*", "older_than": "14d", "take": "content"},
     {"project": "*", "older_than": "1d", "take": "blobs"}]

`content` takes what people and models wrote and keeps what is measured (`store.strip`); `blobs` takes those
that were sent and that no event ever named. An episode is as old as the last event that came of it. Each rule
stands for itself: an episode goes when one of them takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator
from sqlalchemy import select

from tracestore.errors import TracestoreError
from tracestore.settings import seconds_of
from tracestore.store import delete
from tracestore.store import tables as t
from tracestore.store.blobs import Blobs
from tracestore.store.delete import Deletion, Progress
from tracestore.store.rule_file import parsed, rules_of
from tracestore.store.store import Store


class BadRetention(TracestoreError):
    """These rules of retention cannot be used"""

    exit_code: ClassVar[int] = 2


class Retention(BaseModel):
    """What goes, and when."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    project: str
    """`*` for every project."""
    older_than: str
    """12h or 30d."""
    take: Literal["episodes", "content", "blobs"] = "episodes"
    keep_graded: bool = False
    """Leave out episodes that have a reward."""

    @model_validator(mode="after")
    def _can_be_used(self) -> Retention:
        if not seconds_of(self.older_than):
            raise ValueError("older_than is a time as 12h or 30d")
        if self.take == "blobs" and self.keep_graded:
            raise ValueError("keep_graded says something of episodes, not of blobs")
        return self

    @property
    def name(self) -> str:
        """The rule in a few words."""
        graded = ", without a reward" if self.keep_graded else ""
        return f"{self.take} older than {self.older_than}{graded}"

    def before(self, now: int) -> int:
        """The time before which it takes, nanoseconds UTC."""
        return now - (seconds_of(self.older_than) or 0) * 10**9


class Due(NamedTuple):
    """What a rule takes of a project now."""

    project: str
    rule: Retention
    episode_ids: tuple[str, ...]
    """None where it takes blobs: which, is found out when they are taken."""


def read_retention(text: str) -> tuple[Retention, ...]:
    """The rules of a JSON array.

    Raises:
        BadRetention: it is none, or a rule in it cannot be used.
    """
    hint = 'an array of {"project": ..., "older_than": "30d", "take": "episodes"}'
    values = parsed(text, wrong=BadRetention, hint=hint)
    return rules_of(values, Retention, wrong=BadRetention, hint=hint)


def due(store: Store, rules: Sequence[Retention], *, now: int) -> Iterator[Due]:
    """What the rules take at a time, nanoseconds UTC; projects that are deleted have nothing left.

    An episode that one rule takes whole is not told of again where another takes its content.
    """
    # What goes as a whole needs no stripping before.
    in_order = sorted(rules, key=lambda rule: rule.take != "episodes")
    for project in _projects(store):
        whole: set[str] = set()
        for rule in in_order:
            if rule.project not in ("*", project):
                continue
            if rule.take == "blobs":
                yield Due(project, rule, ())
                continue
            with_content = rule.take == "content"
            found = delete.old_episodes(
                store,
                project,
                before=rule.before(now),
                keep_graded=rule.keep_graded,
                with_content=with_content,
            )
            some = tuple(id_ for id_ in found if id_ not in whole)
            if not with_content:
                whole |= set(some)
            if some:
                yield Due(project, rule, some)


def retain(
    store: Store,
    rules: Sequence[Retention],
    *,
    now: int,
    blobs: Blobs | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[str, Deletion]]:
    """Delete what is due, and give each deletion when it is done."""
    for one in [*due(store, rules, now=now)]:
        if one.rule.take == "blobs" and not _has_unused(store, one, blobs, now):
            continue
        asked = _ask(store, one, now)
        yield one.project, delete.carry_out(store, one.project, asked.id, blobs=blobs, progress=progress)


def unused_blobs(store: Store, one: Due, blobs: Blobs, *, now: int) -> list[str]:
    """The blobs that a rule would take."""
    c = t.blob.c
    names = set(blobs.sent_before(one.project, one.rule.before(now)))
    with store.read() as connection:
        here = t.project.c.name == one.project
        named = select(c.hash).join(t.project, t.project.c.project_id == c.project_id).where(here)
        return sorted(names - set(connection.execute(named).scalars()))


def _has_unused(store: Store, one: Due, blobs: Blobs | None, now: int) -> bool:
    return blobs is not None and bool(unused_blobs(store, one, blobs, now=now))


def _ask(store: Store, one: Due, now: int) -> Deletion:
    if one.rule.take == "blobs":
        before = one.rule.before(now)
        return delete.delete_unused_blobs(store, one.project, before=before, name=one.rule.name)
    if one.rule.take == "content":
        return delete.delete_contents(store, one.project, one.episode_ids, name=one.rule.name)
    return delete.delete_episodes(store, one.project, one.episode_ids, what="age", name=one.rule.name)


def _projects(store: Store) -> list[str]:
    stone, project = t.tombstone.c, t.project.c
    gone = select(stone.project_id).where(stone.kind == "project")
    with store.read() as connection:
        query = select(project.name).where(project.project_id.not_in(gone)).order_by(project.name)
        return list(connection.execute(query).scalars())
