"""What a key may do and until when, and that nothing in the database gives a key away."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from tests.factories import episode, posted
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.engine import writer
from tracestore.store.keys import (
    DeadKey,
    InvalidKey,
    NewKey,
    Right,
    UnknownKey,
    close_session,
    create_key,
    find_key,
    find_session,
    has_keys,
    hash_of,
    is_key,
    list_keys,
    open_session,
    revoke_key,
    rotate_key,
)


@pytest.fixture
def connection(store: Store) -> Iterator[Connection]:
    with writer(store.engine).begin() as connection:
        yield connection


def made(
    connection: Connection,
    *scopes: Right,
    project: str = "p",
    name: str = "n",
    expires_at: int | None = None,
    now: int = 100,
) -> NewKey:
    return create_key(
        connection, project, name=name, scopes=frozenset(scopes or ("read",)), expires_at=expires_at, now=now
    )


def test_only_the_hash_of_a_key_is_stored(connection: Connection) -> None:
    new = made(connection)
    assert re.fullmatch(r"ts_[0-9A-Za-z]{8}_[0-9A-Za-z]{43}", new.text)
    assert is_key(new.text)
    [row] = connection.execute(select(t.api_key)).mappings()
    secret = new.text.rpartition("_")[2]
    assert row["hash"] == hash_of(new.text)
    assert secret not in str(dict(row))
    assert secret not in repr(new.key)


def test_a_key_names_its_project_by_itself(connection: Connection) -> None:
    one, other = made(connection, project="one"), made(connection, project="other")
    for new, project in ((one, "one"), (other, "other")):
        found = find_key(connection, hash_of(new.text))
        assert found == new.key
        assert found.project == project
    assert find_key(connection, hash_of("ts_another")) is None


def test_a_hash_is_there_once_over_all_projects(connection: Connection) -> None:
    new = made(connection, project="one")
    made(connection, project="other")
    with pytest.raises(IntegrityError), connection.begin_nested():
        connection.execute(t.api_key.update().values(hash=new.key.hash))


def test_admin_may_do_everything_and_another_scope_only_itself(connection: Connection) -> None:
    assert made(connection, "read").key.rights == {"read"}
    assert made(connection, "write", "read").key.rights == {"read", "write"}
    admin = made(connection, "admin", "read").key
    assert (admin.scopes, admin.rights) == (("admin",), {"read", "write", "admin"})


def test_a_key_is_live_until_the_moment_it_expires(connection: Connection) -> None:
    key = made(connection, expires_at=200, now=100).key
    assert [key.is_live(now=now) for now in (100, 199, 200, 201)] == [True, True, False, False]
    assert made(connection).key.is_live(now=2**63 - 1)


def test_a_revoked_key_stays_in_the_list_and_its_project_never_becomes_open_again(
    connection: Connection,
) -> None:
    assert not has_keys(connection)
    new = made(connection, now=100)
    assert revoke_key(connection, "p", new.key.prefix, now=150).revoked_at == 150
    assert revoke_key(connection, "p", new.key.prefix, now=160).revoked_at == 150
    [key] = list_keys(connection, "p")
    assert not key.is_live(now=150)
    assert has_keys(connection)


def test_the_old_key_lives_on_for_the_grace_and_the_new_one_as_long_as_the_old_was_made_for(
    connection: Connection,
) -> None:
    old = made(connection, "write", name="rollouts", expires_at=1_100, now=100)
    new = rotate_key(connection, "p", old.key.prefix, grace=50, now=900)
    before, after = list_keys(connection, "p")
    assert before.expires_at == 900 + 50
    # 1,100 - 100 = 1,000 from 900 on
    assert (after.expires_at, after.name, after.scopes) == (1_900, "rollouts", ("write",))
    assert after == new.key


def test_a_rotation_never_lengthens_the_life_of_the_old_key(connection: Connection) -> None:
    old = made(connection, expires_at=1_000, now=100)
    rotate_key(connection, "p", old.key.prefix, grace=500, now=900)
    assert [key.expires_at for key in list_keys(connection, "p")] == [1_000, 1_800]
    endless = made(connection, project="q", now=100)
    rotate_key(connection, "q", endless.key.prefix, grace=500, now=900)
    assert [key.expires_at for key in list_keys(connection, "q")] == [1_400, None]


def test_a_dead_key_is_not_rotated_and_an_unknown_one_is_told(connection: Connection) -> None:
    dead = made(connection, expires_at=200, now=100)
    with pytest.raises(DeadKey):
        rotate_key(connection, "p", dead.key.prefix, grace=50, now=200)
    with pytest.raises(UnknownKey):
        revoke_key(connection, "p", "nothing", now=100)
    with pytest.raises(UnknownKey):  # of another project
        revoke_key(connection, "q", dead.key.prefix, now=100)


def test_a_key_without_a_scope_a_future_or_a_usable_name_is_not_made(connection: Connection) -> None:
    with pytest.raises(InvalidKey):
        create_key(connection, "p", name="n", scopes=frozenset(), expires_at=None, now=100)
    for wrong in ({"expires_at": 100}, {"name": ""}, {"name": "a\nb"}, {"project": "x" * 129}):
        with pytest.raises(InvalidKey):
            made(connection, **wrong)  # type: ignore[arg-type]
    assert not has_keys(connection)


def test_a_project_that_a_key_made_takes_events_and_one_with_events_takes_keys(store: Store) -> None:
    store.ingest("q", [posted(episode("e"))])
    for project in ("p", "q"):
        with writer(store.engine).begin() as connection:
            made(connection, project=project)
        for status in ("stored", "duplicate"):
            assert [o.status for o in store.ingest(project, [posted(episode("e2"))])] == [status]
    assert len({(row.project_id, row.name) for row in rows(store)}) == 2
    assert store.load("q", "e")


def rows(store: Store) -> list[object]:
    with store.read() as connection:
        return list(connection.execute(select(t.project.c.project_id, t.project.c.name)))


def test_a_session_stands_for_its_key_until_it_is_closed_or_over(connection: Connection) -> None:
    key = made(connection).key
    text = open_session(connection, key, expires_at=200, now=100)
    assert find_session(connection, hash_of(text), now=199) == key
    assert find_session(connection, hash_of(text), now=200) is None
    assert find_session(connection, hash_of("another"), now=199) is None
    revoke_key(connection, "p", key.prefix, now=150)
    found = find_session(connection, hash_of(text), now=160)
    assert found is not None
    assert not found.is_live(now=160)
    close_session(connection, hash_of(text))
    assert find_session(connection, hash_of(text), now=160) is None


def test_sessions_that_are_over_are_deleted_when_the_next_one_is_opened(connection: Connection) -> None:
    key, other = made(connection).key, made(connection, project="q").key
    open_session(connection, key, expires_at=200, now=100)
    open_session(connection, other, expires_at=200, now=100)
    open_session(connection, key, expires_at=400, now=300)
    # One of p is deleted, that of the other project is not ours to touch.
    assert sorted(connection.execute(select(t.session.c.expires_at)).scalars()) == [200, 400]
