"""API keys and what is left of them in the database: a hash, what they may do, and until when.

A key opens one project. Its text is `ts_` + a prefix that may be shown + `_` + 256 random bits; only its
sha256 is stored, so whoever reads the database cannot call the server. A key is live until it expires or is
revoked; its row stays, because a server with keys must never become one without.

A browser session stands for a key: it ends when its key does, or earlier. Times are nanoseconds UTC.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Row, func, select

from tracestore.errors import TracestoreError
from tracestore.ids import id_problem
from tracestore.store import tables as t
from tracestore.store.query import find_project
from tracestore.store.transaction import FIRST_KEY

Right = Literal["read", "write", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)
_ALPHABET = string.ascii_letters + string.digits
_PREFIX_LENGTH = 8
_SECRET_LENGTH = 43
"""62^43 > 2^256."""
_KEY = re.compile(rf"ts_[0-9A-Za-z]{{{_PREFIX_LENGTH}}}_[0-9A-Za-z]{{{_SECRET_LENGTH}}}")


class InvalidKey(TracestoreError):
    """Such a key cannot be made"""

    status = 422
    exit_code = 2


class UnknownKey(TracestoreError):
    """This project has no key with this prefix"""

    status = 404


class DeadKey(TracestoreError):
    """The key has expired or was revoked"""

    status = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What is known of a key; the key itself is not."""

    project: str
    prefix: str
    """Names the key where it may be seen: in lists, and to revoke it. Unique in its project."""
    name: str
    """What it is for, in its owner's words."""
    scopes: tuple[Right, ...]
    """As it was made; `rights` are what they come to."""
    hash: bytes
    created_at: int
    expires_at: int | None
    """None: never."""
    revoked_at: int | None

    @property
    def rights(self) -> frozenset[Right]:
        """What the key may do. Admin may do everything."""
        return frozenset(RIGHTS if "admin" in self.scopes else self.scopes)

    def is_live(self, *, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made. Its text is known here and nowhere else."""

    text: str
    key: Key


def is_key(text: str) -> bool:
    """Whether a text has the form of a key of ours; says nothing of whether there is such a key."""
    return _KEY.fullmatch(text) is not None


def hash_of(text: str) -> bytes:
    """What is stored of a key, or of a session's cookie. 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def create_key(
    connection: Connection,
    project: str,
    *,
    name: str,
    scopes: Set[Right],
    expires_at: int | None,
    now: int,
) -> NewKey:
    """Make a key, and its project if there is none yet.

    Args:
        connection: of a writing transaction, which the caller commits.
        scopes: at least one; beside admin the others mean nothing and are left out.

    Raises:
        InvalidKey: without a scope, expired already, or with a name or project that is no id.
    """
    for what, value in (("project", project), ("name", name)):
        if problem := id_problem(value):
            raise InvalidKey(**{what: value}, hint=problem)
    if not scopes:
        raise InvalidKey(name=name, hint=f"a key has one of the scopes {', '.join(RIGHTS)}, or several")
    if expires_at is not None and expires_at <= now:
        raise InvalidKey(expires_at=expires_at, hint="a key expires in the future")
    prefix = _random(_PREFIX_LENGTH)
    text = f"ts_{prefix}_{_random(_SECRET_LENGTH)}"
    kept = ("admin",) if "admin" in scopes else tuple(right for right in RIGHTS if right in scopes)
    facts: dict[str, Any] = {
        "prefix": prefix,
        "name": name,
        "hash": hash_of(text),
        "created_at": now,
        "expires_at": expires_at,
        "revoked_at": None,
    }
    connection.execute(
        t.api_key.insert().values(
            project_id=_project_id(connection, project, now=now), scopes=" ".join(kept), **facts
        )
    )
    return NewKey(text=text, key=Key(project=project, scopes=kept, **facts))


def list_keys(connection: Connection, project: str) -> list[Key]:
    """Every key that a project ever had, dead ones too, in the order in which they were made."""
    query = _keys().where(t.project.c.name == project).order_by(t.api_key.c.created_at, t.api_key.c.prefix)
    return [_key(row) for row in connection.execute(query)]


def revoke_key(connection: Connection, project: str, prefix: str, *, now: int) -> Key:
    """End a key now. One that was revoked already stays as it is.

    Raises:
        UnknownKey: the project has none with this prefix.
    """
    key = _named(connection, project, prefix)
    if key.revoked_at is None:
        _change(connection, key, revoked_at=now)
    return _named(connection, project, prefix)


def rotate_key(connection: Connection, project: str, prefix: str, *, grace: int, now: int) -> NewKey:
    """Make a key like an old one, which expires after `grace` nanoseconds, or earlier if it did so anyway.

    The new key lives as long as the old one was made for.

    Raises:
        UnknownKey: the project has none with this prefix.
        DeadKey: the old one has ended; a new one is made with `create_key`.
    """
    old = _named(connection, project, prefix)
    if not old.is_live(now=now):
        raise DeadKey(prefix=prefix, hint="make a new one with `tracestore keys create`")
    lifetime = None if old.expires_at is None else old.expires_at - old.created_at
    new = create_key(
        connection,
        project,
        name=old.name,
        scopes=frozenset(old.scopes),
        expires_at=None if lifetime is None else now + lifetime,
        now=now,
    )
    end = now + grace
    _change(connection, old, expires_at=end if old.expires_at is None else min(end, old.expires_at))
    return new


def has_keys(connection: Connection) -> bool:
    """Whether any project ever had a key. It never becomes false again."""
    return connection.execute(select(t.api_key.c.prefix).limit(1)).first() is not None


def find_key(connection: Connection, hash_: bytes) -> Key | None:
    """The key with this hash, live or not; it names its project."""
    row = connection.execute(_keys().where(t.api_key.c.hash == hash_)).one_or_none()
    return None if row is None else _key(row)


def open_session(connection: Connection, key: Key, *, expires_at: int, now: int) -> str:
    """The random name of a new session for a key, of which the hash is stored.

    Sessions of the project that have expired are deleted.
    """
    project_id = find_project(connection, key.project)
    s = t.session
    connection.execute(s.delete().where(s.c.project_id == project_id, s.c.expires_at <= now))
    text = _random(_SECRET_LENGTH)
    row = {"project_id": project_id, "hash": hash_of(text), "key_prefix": key.prefix}
    connection.execute(s.insert().values(**row, created_at=now, expires_at=expires_at))
    return text


def find_session(connection: Connection, hash_: bytes, *, now: int) -> Key | None:
    """The key that a session stands for, live or not; None for a session that is over or never was."""
    s, k = t.session.c, t.api_key.c
    of_key = (s.project_id == k.project_id) & (s.key_prefix == k.prefix)
    query = _keys(of_key).where(s.hash == hash_, s.expires_at > now)
    row = connection.execute(query).one_or_none()
    return None if row is None else _key(row)


def close_session(connection: Connection, hash_: bytes) -> None:
    """End a session, if there is one."""
    connection.execute(t.session.delete().where(t.session.c.hash == hash_))


_COLUMNS = ("prefix", "name", "scopes", "hash", "created_at", "expires_at", "revoked_at")


def _keys(of_session: ColumnElement[bool] | None = None) -> Any:
    found = t.api_key.join(t.project, t.project.c.project_id == t.api_key.c.project_id)
    if of_session is not None:
        found = found.join(t.session, of_session)
    return select(t.project.c.name.label("project"), *(t.api_key.c[name] for name in _COLUMNS)).select_from(
        found
    )


def _key(row: Row[Any]) -> Key:
    facts = dict(row._mapping)
    return Key(scopes=tuple(facts.pop("scopes").split()), **facts)


def _named(connection: Connection, project: str, prefix: str) -> Key:
    query = _keys().where(t.project.c.name == project, t.api_key.c.prefix == prefix)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise UnknownKey(project=project, prefix=prefix, hint="`tracestore keys list` shows them")
    return _key(row)


def _change(connection: Connection, key: Key, **values: int) -> None:
    k = t.api_key
    project_id = find_project(connection, key.project)
    connection.execute(
        k.update().where(k.c.project_id == project_id, k.c.prefix == key.prefix).values(**values)
    )


def _project_id(connection: Connection, name: str, *, now: int) -> int:
    found = find_project(connection, name)
    if found is not None:
        return found
    project_id = (connection.execute(select(func.max(t.project.c.project_id))).scalar() or 0) + 1
    row = {"project_id": project_id, "name": name, "commit_seq": 0, "next_key": FIRST_KEY}
    connection.execute(t.project.insert().values(**row, created_at=now))
    return project_id


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
