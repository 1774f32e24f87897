"""Rules -> text taken out of all that is stored, and out of all that comes.

    request   one transaction: from here on the rules hold for what comes
    redact    steps of the committer: the events of some episodes, read, redacted and written again
    sweep     contents that nothing refers to any more
    pack      what was compressed with dictionaries that were trained on the old text, compressed anew
    scrub     the database is written anew, so that no byte of the old text is left in its files

Like those of a deletion, the steps go on where they were when their process was killed. There are no rules
for stored text alone: the next request of the same agent would bring it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from sqlalchemy import Connection, func, literal, select, union_all

from tracestore.errors import TracestoreError
from tracestore.store import asked
from tracestore.store import tables as t
from tracestore.store.ingest import rewrite
from tracestore.store.pack import pack_again
from tracestore.store.replace import Scope
from tracestore.store.rules import Rule, read_rules, redact, written
from tracestore.store.store import Store
from tracestore.store.sweep import Taken, sweep
from tracestore.store.transaction import Transaction

State = Literal["redacting", "sweeping", "packing", "scrubbing", "done"]
EVENTS = 500
"""Events that a step looks at, unless one episode has more: ingest waits for it."""
_SCOPES = 100


class NoRedaction(TracestoreError):
    """No redaction has this number in this project"""

    status: ClassVar[int] = 404


@dataclass(frozen=True, slots=True)
class Redaction:
    """Rules, and how far they have come."""

    id: int
    rules: tuple[Rule, ...]
    reason: str | None
    asked_by: str | None
    state: State
    requested_at: int
    finished_at: int | None
    ended_at: int | None
    """None: the rules hold for what comes."""
    events: int
    """Stored events that changed."""
    values: int
    """Pieces of text that were replaced in them."""
    contents: int
    """Contents that were taken away."""


def facts(found: Redaction) -> dict[str, object]:
    """A redaction as plain values."""
    rules = [rule.model_dump(mode="json", exclude_none=True) for rule in found.rules]
    return asdict(found) | {"rules": rules}


Progress = Callable[[Redaction], None]


def add_rules(
    store: Store, project: str, rules: str, *, reason: str | None = None, asked_by: str | None = None
) -> Redaction:
    """Let rules hold in a project from now on, and ask that what is stored be redacted by them.

    Args:
        rules: a JSON array, see `store.rules`.

    Raises:
        BadRules: they cannot be used.
    """
    text = written(read_rules(rules))
    key = store.perform(project, lambda tx: _request(tx, text, reason, asked_by)).result()
    return redaction(store, project, key)


def end_rules(store: Store, project: str, key: int) -> Redaction:
    """Let the rules of a redaction hold no more for what comes; what they took does not come back.

    Raises:
        NoRedaction: there is none of this number.
    """
    if redaction(store, project, key).ended_at is None:
        store.perform(project, lambda tx: _update(tx, key, {"ended_at": tx.now})).result()
    return redaction(store, project, key)


def redaction(store: Store, project: str, key: int) -> Redaction:
    """How far a redaction has come.

    Raises:
        NoRedaction: there is none of this number.
    """
    found = asked.numbered(store, project, t.redaction, _read, key)
    if found is None:
        raise NoRedaction(id=key, project=project)
    return found


def redactions(
    store: Store, project: str, *, before: int | None = None, limit: int | None = None
) -> list[Redaction]:
    """The redactions of a project, the latest first.

    Args:
        before: those that were asked for before this number.
    """
    return asked.latest(store, project, t.redaction, _read, before=before, limit=limit)


def unfinished(store: Store) -> list[tuple[str, int]]:
    """(project, number) of the redactions that are not done."""
    return asked.unfinished(store, t.redaction)


def carry_out(store: Store, project: str, key: int, *, progress: Progress | None = None) -> Redaction:
    """Do what is left of a redaction, and return when it is done."""
    found = redaction(store, project, key)
    while found.state != "done":
        _STEPS[found.state](store, project, key)
        found = redaction(store, project, key)
        if progress is not None:
            progress(found)
    return found


def _read(connection: Connection, project_id: int, *where: Any, limit: int | None = None) -> list[Redaction]:
    c = t.redaction.c
    rows = connection.execute(
        select(t.redaction).where(c.project_id == project_id, *where).order_by(c.key.desc()).limit(limit)
    )
    return [
        Redaction(
            id=row.key,
            rules=read_rules(row.rules),
            reason=row.reason,
            asked_by=row.asked_by,
            state=row.state,
            requested_at=row.requested_at,
            finished_at=row.finished_at,
            ended_at=row.ended_at,
            events=row.num_events,
            values=row.num_values,
            contents=row.num_contents,
        )
        for row in rows
    ]


# --- Steps -----------------------------------------------------------------------------------------


def _request(tx: Transaction, rules: str, reason: str | None, asked_by: str | None) -> int:
    key = tx.new_key()
    nothing = dict.fromkeys(("after_key", "num_events", "num_values", "num_contents"), 0)
    row = {"project_id": tx.project_id, "key": key, "rules": rules, "reason": reason, "asked_by": asked_by}
    tx.connection.execute(
        t.redaction.insert().values(**row, **nothing, num_positions=1, state="redacting", requested_at=tx.now)
    )
    return key


def _update(tx: Transaction, key: int, values: dict[str, Any]) -> None:
    """Note what a step did, and that it takes a position."""
    c = t.redaction.c
    tx.connection.execute(
        t.redaction.update()
        .where(c.project_id == tx.project_id, c.key == key)
        .values(num_positions=c.num_positions + 1, **values)
    )


def _redact(store: Store, project: str, key: int) -> None:
    store.perform(project, lambda tx: _redact_some(tx, key)).result()


def _redact_some(tx: Transaction, key: int) -> None:
    c = t.redaction.c
    row = tx.connection.execute(select(t.redaction).where(c.project_id == tx.project_id, c.key == key)).one()
    rules = read_rules(row.rules)
    after, num_events, num_values, first_pos, looked_at = row.after_key, 0, 0, row.first_pos, 0
    scopes = _scopes(tx, after)
    for scope_key, scope in scopes:
        done = rewrite(tx, scope, partial(redact, rules=rules))
        if done is not None:
            num_events, num_values = num_events + done.events, num_values + done.values
            first_pos = min(done.first_pos, first_pos or done.first_pos)
        after, looked_at = scope_key, looked_at + _num_events(tx, scope_key)
        if looked_at >= EVENTS:
            break
    values: dict[str, Any] = {
        "after_key": after,
        "num_events": c.num_events + num_events,
        "num_values": c.num_values + num_values,
        "first_pos": first_pos,
    }
    if num_events:
        values["last_pos"] = tx.pos + 1
    if not scopes:
        values["state"] = "sweeping"
    _update(tx, key, values)


def _scopes(tx: Transaction, after: int) -> list[tuple[int, Scope]]:
    """The next episodes and groups; those that come later come redacted."""
    episode, group = t.episode.c, t.task_group.c
    rows = union_all(
        select(episode.key, literal("episode").label("kind"), episode.id).where(
            episode.project_id == tx.project_id, episode.key > after, episode.first_pos.is_not(None)
        ),
        select(group.key, literal("group"), group.id).where(
            group.project_id == tx.project_id, group.key > after, ~group.is_placeholder
        ),
    ).subquery()
    found = tx.connection.execute(select(rows).order_by(rows.c.key).limit(_SCOPES))
    return [(row.key, Scope(row.kind, row.id)) for row in found]


def _num_events(tx: Transaction, scope_key: int) -> int:
    raw = t.raw_event.c
    this = (raw.episode_key == scope_key) | (raw.entity_key == scope_key)
    query = select(func.count()).where(raw.project_id == tx.project_id, this)
    return tx.connection.execute(query).scalar_one()


def _sweep(store: Store, project: str, key: int) -> None:
    def counted(tx: Transaction, taken: Taken) -> None:
        _update(tx, key, {"num_contents": t.redaction.c.num_contents + taken.contents})

    sweep(store, project, counted)
    _go_on(store, project, key, state="packing")


def _pack(store: Store, project: str, key: int) -> None:
    changed = redaction(store, project, key).events
    if changed:
        pack_again(store, project, before=key, counted=lambda tx: _update(tx, key, {}))
    _go_on(store, project, key, state="scrubbing" if changed else "done")


def _scrub(store: Store, project: str, key: int) -> None:
    store.vacuum()
    _go_on(store, project, key, state="done")


def _go_on(store: Store, project: str, key: int, *, state: str) -> None:
    def step(tx: Transaction) -> None:
        _update(tx, key, {"state": state} | ({"finished_at": tx.now} if state == "done" else {}))

    store.perform(project, step).result()


_STEPS: dict[str, Callable[[Store, str, int], None]] = {
    "redacting": _redact,
    "sweeping": _sweep,
    "packing": _pack,
    "scrubbing": _scrub,
}
