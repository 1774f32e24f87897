"""verify finds what was tampered with, and nothing where nothing was."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests import factories as make
from tests.databases import tamper
from tests.factories import answer, assistant, call, posted, user
from tests.store.servers import postgresql
from tracestore.store import Store
from tracestore.store.engine import writer
from tracestore.store.verify import verify, verify_from


@pytest.fixture
def filled(store: Store) -> Store:
    events = [
        make.episode(),
        make.agent(),
        call("c0", [user("u" * 99)], answer("a", ids=[3, 4]), prompt_ids=[1, 2], ordinal=0),
        call(
            "c1",
            [user("u" * 99), assistant("a"), user("v")],
            answer("b", ids=[6]),
            prompt_ids=[1, 2, 3, 4, 5],
            ordinal=1,
        ),
        make.reward(),
    ]
    outcomes = store.ingest("p", [posted(event) for event in events])
    assert {outcome.status for outcome in outcomes} == {"stored"}
    return store


def test_a_sound_store_has_no_findings(filled: Store) -> None:
    report = verify(filled, "p")
    assert list(report) == []
    assert (report.num_events, report.num_episodes, report.num_contents) == (5, 1, 5)


def test_a_project_that_is_not_there_has_none_either(store: Store) -> None:
    assert verify(store, "nothing").problems == ()


TAMPERED = [
    ("UPDATE content SET size = size + 1 WHERE role = 'user'", "content_size"),
    ("UPDATE content SET data = x'00', codec = 'raw' WHERE role = 'user' AND size > 99", "content_hash"),
    ("UPDATE content SET data = x'00' WHERE codec = 'zstd'", "content_unreadable"),
    ("DELETE FROM raw_event WHERE kind = 'reward'", "commit_positions"),
    ("DELETE FROM raw_event WHERE kind = 'reward'", "entity_without_event"),
    ("UPDATE project SET commit_seq = 7", "commit_positions"),
    ("UPDATE node SET match_key = x'00112233445566778899aabbccddeeff' WHERE depth = 2", "nodes"),
    ("UPDATE node SET twin_of_key = key WHERE depth = 2", "twins"),
    ("UPDATE call SET prompt_node_key = (SELECT min(key) FROM node) WHERE id = 'c1'", "nodes"),
    ("UPDATE completion SET node_key = (SELECT min(key) FROM node)", "completion_node"),
    ("UPDATE call SET link = 'named' WHERE id = 'c1'", "links"),
    ("UPDATE call SET link_call_key = NULL WHERE id = 'c1'", "links"),
    ("UPDATE call SET link_completion = 7 WHERE id = 'c1'", "links"),
    ("UPDATE token_run SET base_length = base_length - 1 WHERE base_length = 4", "token_runs"),
    ("UPDATE token_run SET num_tokens = 1 + num_tokens WHERE base_length = 4", "token_runs"),
    ("UPDATE reward SET episode_key = 5", "foreign_key"),
]


@pytest.mark.parametrize(("sql", "name"), TAMPERED)
def test_what_is_tampered_with_is_found(filled: Store, sql: str, name: str) -> None:
    tamper(filled, sql)
    assert name in {finding.name for finding in verify(filled, "p")}


def test_a_check_goes_on_from_any_cursor_and_finds_what_the_whole_finds(filled: Store) -> None:
    with writer(filled.engine).begin() as connection:
        connection.execute(text("UPDATE content SET size = size + 1 WHERE role = 'user'"))
        connection.execute(text("UPDATE call SET link = 'named' WHERE id = 'c1'"))
    pieces = list(verify_from(filled, "p"))
    whole = [finding for piece in pieces for finding in piece.findings]
    assert {finding.name for finding in whole} == {"content_size", "links"}
    assert pieces[-1].cursor is None
    # On PostgreSQL, where a piece takes longer, from every seventh.
    every = 1 if filled.engine.dialect.name == "sqlite" else 7
    for number, piece in list(enumerate(pieces[:-1], start=1))[::every]:
        rest = [
            finding for later in verify_from(filled, "p", cursor=piece.cursor) for finding in later.findings
        ]
        assert rest == [finding for later in pieces[number:] for finding in later.findings]


def test_contents_are_read_a_page_at_a_time(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracestore.store.verify._CONTENTS_AT_ONCE", 2)
    amounts = [piece.amount for piece in verify_from(filled, "p") if piece.cursor is not None]
    # 5 contents: 2, 2, 1, and the page that is empty; then what else there is.
    assert amounts[:4] == [2, 2, 1, 0]


def test_what_is_posted_during_a_check_neither_waits_nor_is_found_fault_with(filled: Store) -> None:
    for number, piece in enumerate(verify_from(filled, "p")):
        assert piece.findings == ()
        posted_now = filled.ingest("p", [posted(make.reward(f"late {number}"))])
        assert [outcome.status for outcome in posted_now] == ["stored"]


def test_a_reference_to_nothing_is_found_on_postgresql_too() -> None:
    with postgresql() as url, Store.open(url) as store:
        store.ingest("p", [posted(make.episode()), posted(make.agent()), posted(make.reward())])
        assert verify(store, "p").problems == ()
        with store.engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.execute(text("UPDATE reward SET agent_key = 77"))
        [finding] = [one for one in verify(store, "p") if one.name == "foreign_key"]
        assert finding.where.startswith("reward ")
        assert finding.detail == "agent_key 77 is no row of agent"
