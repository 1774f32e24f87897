"""Where an upgrade stands that has not ended, kept in the database itself; until it ends, nobody else writes.

While an upgrade is under way the revision of the database reads `0004 to 0005`, which no version of
tracestore takes for its own, so none opens it. What is open already, of whatever version, is kept from
writing by triggers on `project`, which every write of events changes.
"""

from __future__ import annotations

import json
from typing import NamedTuple, Self

from sqlalchemy import Connection, inspect, text

from tracestore.store import schema
from tracestore_migrations.grants import Grant, grants
from tracestore_migrations.steps import Marker

_TABLE = "upgrade_under_way"
_TO = " to "
_TOLD = "this database is being upgraded: stop this server and start it with the version that upgrades it"


class Place(NamedTuple):
    """How far an upgrade has come."""

    done: str | None
    """The last revision that is whole; None: of an empty database."""
    step: str | None = None
    """Name of the step in hand of the revision after it; None: its first one."""
    marker: Marker | None = None
    num_rows: int = 0
    """Rows of this step that are done."""
    given: tuple[Grant, ...] = ()
    """Privileges from before the upgrade, also those of tables and views that have been made anew since."""

    @classmethod
    def read(cls, connection: Connection) -> Self:
        found = schema.revision(connection)
        if found is None or _TO not in found:
            return cls(found, given=tuple(grants(connection)))
        step, facts = connection.execute(text(f"SELECT step, facts FROM {_TABLE}")).one()
        known = json.loads(facts)
        given = tuple(Grant(*one) for one in known["given"])
        return cls(found.partition(_TO)[0], step, known["marker"], known["num_rows"], given)


def leave(connection: Connection, place: Place, *, following: str) -> None:
    """Note where the next transaction goes on, and keep others from writing until then."""
    set_revision(connection, f"{place.done}{_TO}{following}")
    connection.execute(text(f"CREATE TABLE {_TABLE} (step TEXT, facts TEXT NOT NULL)"))
    facts = {"marker": place.marker, "num_rows": place.num_rows, "given": place.given}
    connection.execute(
        text(f"INSERT INTO {_TABLE} VALUES (:step, :facts)"), {"step": place.step, "facts": json.dumps(facts)}
    )
    for statement in _CLOSE[connection.dialect.name]:
        connection.exec_driver_sql(statement)


def enter(connection: Connection) -> Place:
    """Where to go on. Until the transaction ends, no other one writes, and none upgrades."""
    schema.lock(connection)
    place = Place.read(connection)
    if place.done is not None:
        if connection.dialect.name == "postgresql":
            # Whoever writes has ended; whoever wants to waits, and then sees the revision that we leave.
            connection.exec_driver_sql("LOCK TABLE project IN ACCESS EXCLUSIVE MODE")
        if inspect(connection).has_table(_TABLE):
            connection.exec_driver_sql(f"DROP TABLE {_TABLE}")
            for statement in _OPEN[connection.dialect.name]:
                connection.exec_driver_sql(statement)
    return place


def set_revision(connection: Connection, revision: str) -> None:
    """Say that a database is at this revision."""
    schema.make_version_table(connection)
    connection.execute(text("DELETE FROM alembic_version"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": revision})


_CLOSE = {
    "sqlite": [
        f"CREATE TRIGGER upgrade_under_way_{event.lower()} BEFORE {event} ON project"
        f" BEGIN SELECT RAISE(ABORT, '{_TOLD}'); END"
        for event in ("INSERT", "UPDATE")
    ],
    "postgresql": [
        "CREATE FUNCTION upgrade_under_way() RETURNS trigger LANGUAGE plpgsql AS"
        # cannot_connect_now: what a server says that starts or stops.
        f" $$ BEGIN RAISE EXCEPTION USING ERRCODE = '57P03', MESSAGE = '{_TOLD}'; END $$",
        "CREATE TRIGGER upgrade_under_way BEFORE INSERT OR UPDATE ON project"
        " FOR EACH STATEMENT EXECUTE FUNCTION upgrade_under_way()",
    ],
}
_OPEN = {
    "sqlite": ["DROP TRIGGER upgrade_under_way_insert", "DROP TRIGGER upgrade_under_way_update"],
    "postgresql": ["DROP TRIGGER upgrade_under_way ON project", "DROP FUNCTION upgrade_under_way"],
}
