"""What is read back is what was posted, now and as it was at an older snapshot."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from tests import factories as make
from tests.databases import NAMED_EVENTS
from tests.factories import answer, assistant, call, posted, raw, user
from tests.strategies import deliveries, episodes, split_up
from tracestore.graph.build import build
from tracestore.graph.context import context
from tracestore.graph.merge import merge_phases
from tracestore.store import NotFound, Store
from tracestore.wire.arrays import Logprobs
from tracestore.wire.base import Raw
from tracestore.wire.call import Attempt, Call, CallError, Policy, Usage
from tracestore.wire.canonical import canonical
from tracestore.wire.completion import CompletionBody, VersionRun
from tracestore.wire.decode import decode_event
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent


def round_trip(store: Store, event: AnyEvent) -> AnyEvent:
    [outcome] = store.ingest("p", [posted(event)])
    assert outcome.status == "stored"
    return next(got for got in store.load("p", "e") if (got.kind, got.id) == (event.kind, event.id))


EVERY_FIELD: list[AnyEvent] = [
    make.episode(
        group_id="g",
        task_id="t",
        task=raw({"q": 1}),
        revision=3,
        split="eval",
        status="infra_error",
        error="x",
        stop_reason="y",
        forked_from_episode_id="e0",
        forked_from_call_id="c9",
        inference_only=True,
        started_at=1,
        ended_at=2,
        meta=raw([1]),
    ),
    make.subagent(
        "sub",
        spawned_by=("c0", 1),
        name="n",
        depth=1,
        stage=0,
        scope_prompt=raw("do"),
        model="m",
        checkpoint="ck",
        trainable=False,
        score=0.25,
        return_message=raw("done"),
        finding_used=True,
        snapshot_id="m1",
        status="ok",
        error="e",
        started_at=1,
        ended_at=2,
    ),
    call(
        "c0",
        [user("u")],
        CompletionBody(
            message=raw(assistant("hi")),
            finish_reason="stop",
            token_ids=[5, 6, 7],  # type: ignore[arg-type]
            logprobs=Logprobs.of([-0.1, None, -9999.0]),
            top_logprobs=raw([{}]),
            versions=(
                VersionRun(start=0, name="p", version=1),
                VersionRun(start=2, name="p", version=2),
            ),
            partial=True,
            stop_token_stripped=False,
        ),
        CompletionBody(),
        prompt_ids=[1, 2],
        ordinal=3,
        purpose="act",
        model="m",
        policy=Policy(name="p", version=-1),
        provider_id="id",
        endpoint="ep",
        dialect="openai_chat",
        logprobs_are="processed",
        non_finite=True,
        usage=Usage(prompt_tokens=2, cached_tokens=0, cost_usd=0.5),
        attempts=(Attempt(status_code=500, error="x"), Attempt(started_at=1, ended_at=2)),
        status="aborted",
        error=CallError(type="t", message="m", status_code=429),
        started_at=1,
        ended_at=3,
        first_token_at=2,
    ),
    make.tool_call(
        "x1",
        completion=1,
        arguments="{",
        result=raw("r"),
        status="failed",
        error="e",
        exit_status=-9,
        started_at=1,
        ended_at=2,
    ),
    make.compaction(
        trigger="tool_call",
        trigger_call_id="c0",
        trigger_tool_call_id="t1",
        author="policy",
        author_call_id="c0",
        author_completion=0,
        before_call_id="c0",
        after_call_id="c1",
        replaced_call_ids=("c0", "c5"),
        kept_call_ids=(),
        tokens_before=9,
        tokens_after=3,
        status="rejected",
        reason="r",
        at=7,
    ),
    make.candidate_set(
        "set1", make.member("c0", 1, score=0.5), make.member(agent="sub"), generator="policy", at=1
    ),
    make.selection(
        "sel1",
        "set1",
        1,
        0,
        continued=(),
        scores={1: 0.5, 0: 0.25},
        selector="judge",
        selector_version="v",
        selector_call_id="c0",
        treatment="pairs",
        reason="r",
    ),
    make.reward(
        "r1",
        -0.5,
        call_id="c0",
        completion=0,
        token_start=1,
        token_length=2,
        weight=0.5,
        scorer="s",
        scorer_version="1",
        at=3,
    ),
    make.gap(agent_id="main", call_id="c0", detail="d", at=1, revision=0),
    make.snapshot(agent_id="main", parent_hash="h0", wave=0, commit_order=2, frozen=True),
    make.blob(
        role="latent",
        media_type="x/y",
        dtype="float32",
        shape=(4, 0),
        size=0,
        agent_id="a",
        call_id="c",
        completion=1,
        position=5,
    ),
    make.blob("scalar", shape=()),
    make.consumption(completion=1, step=2**62),
]


@pytest.mark.parametrize("event", EVERY_FIELD, ids=lambda event: f"{event.kind}")
def test_every_field_comes_back(store: Store, event: AnyEvent) -> None:
    got = round_trip(store, event)
    assert got == event
    assert encode(got) == encode(event)


def test_what_was_left_out_stays_left_out(store: Store) -> None:
    event = make.agent("a")
    got = round_trip(store, event)
    assert got.model_fields_set - {"kind"} == {"id", "episode_id"}


def test_a_null_that_was_posted_comes_back_as_one(store: Store) -> None:
    text = (
        b'{"v":1,"kind":"call","id":"c","episode_id":"e","agent_id":"a",'
        b'"model":null,"usage":{"cost_usd":null}}'
    )
    store.ingest("p", [(decode_event(text), text)])
    [got] = store.load("p", "e")
    assert canonical(encode(got)) == canonical(text)


@settings(max_examples=25)
@given(data=st.data())
def test_an_older_snapshot_is_what_was_committed_up_to_it(shared: Store, data: st.DataObject) -> None:
    _load_an_older_snapshot(shared, data)


@settings(max_examples=4)
@given(data=st.data())
def test_an_older_snapshot_is_what_was_committed_up_to_it_on_postgresql(
    on_postgresql: Store, data: st.DataObject
) -> None:
    _load_an_older_snapshot(on_postgresql, data)


def _load_an_older_snapshot(store: Store, data: st.DataObject) -> None:
    parts = data.draw(split_up(data.draw(episodes(max_calls=4))))
    project = uuid4().hex
    for batch in data.draw(deliveries(parts)):
        store.ingest(project, [posted(event) for event in batch])
    order = _in_commit_order(store, project, parts)
    at = data.draw(st.integers(1, len(order)))
    before = [event for event in order[:at] if event.kind != "group"]
    if not before:
        with pytest.raises(NotFound):
            store.load(project, "e", snapshot=at)
        return
    got = [event for event in store.load(project, "e", snapshot=at) if event.kind != "group"]
    assert build(got) == build(before)


def _in_commit_order(store: Store, project: str, events: list[AnyEvent]) -> list[AnyEvent]:
    by_name = {(e.kind, e.id, getattr(e, "phase", "whole")): e for e in events}
    with store.read() as connection:
        rows = connection.execute(
            text(
                f"SELECT r.kind, r.id, r.phase FROM ({NAMED_EVENTS}) r JOIN project p USING (project_id)"
                " WHERE p.name = :project ORDER BY r.pos"
            ),
            {"project": project},
        ).all()
    return [by_name[tuple(row)] for row in rows]  # type: ignore[index]


@settings(max_examples=25)
@given(data=st.data())
def test_requests_and_contexts_are_read_byte_for_byte_without_their_episode(
    shared: Store, data: st.DataObject
) -> None:
    _read_requests_and_contexts(shared, data)


@settings(max_examples=4)
@given(data=st.data())
def test_requests_and_contexts_are_read_byte_for_byte_without_their_episode_on_postgresql(
    on_postgresql: Store, data: st.DataObject
) -> None:
    _read_requests_and_contexts(on_postgresql, data)


def _read_requests_and_contexts(store: Store, data: st.DataObject) -> None:
    events = data.draw(episodes(max_calls=6))
    project = uuid4().hex
    store.ingest(project, [posted(event) for event in events])
    graph = build(merge_phases([event]) for event in events if event.kind != "group")
    for event in events:
        if isinstance(event, Call):
            assert store.request(project, event.id) == event.request
            if event.id in graph.pending:
                continue
            assert store.context(project, event.id) == [m.raw for m in context(graph, event.id)]


def test_what_is_not_there_is_said_to_be_missing(store: Store, tmp_path: Path) -> None:
    for read in (store.load, store.request, store.context):
        with pytest.raises(NotFound):
            read("p", "nothing")
    store.ingest("p", [posted(call("c1", [user("v")], parent="c0", delta=True))])
    with pytest.raises(NotFound, match="parent"):
        store.context("p", "c1")
    with pytest.raises(NotFound):
        store.request("p", "c0")


def test_the_group_comes_with_the_episodes_that_name_it(store: Store) -> None:
    events = [make.group("g", size=2), make.episode("e", group_id="g"), make.episode("f", group_id="g")]
    store.ingest("p", [posted(event) for event in events])
    assert [event.kind for event in store.load("p", "f")] == ["episode", "group"]
    assert store.load_graph("p", "e").group == events[0]


def test_message_text_is_a_function_of_our_connections_to_sqlite(sqlite_store: Store) -> None:
    store = sqlite_store
    store.ingest("p", [posted(call("c0", [user("héllo"), Raw(rb'{"role":"tool","content":"\ud83d"}')]))])
    with store.read() as connection:
        rows = connection.execute(
            text("SELECT message_text(content_id), text_lossy FROM contexts ORDER BY position")
        ).all()
        assert [tuple(row) for row in rows] == [("héllo", 0), ("�", 1)]
        assert connection.execute(text("SELECT message_text(1), message_text(NULL)")).one() == (None, None)


def test_an_answer_without_ids_has_no_ids_and_not_zero_of_them(store: Store) -> None:
    event = call("c0", [user("u")], answer("a"), answer("b", ids=[]))
    got = round_trip(store, event)
    assert isinstance(got, Call)
    assert got.completions is not None
    assert [body.token_ids for body in got.completions] == [None, event.completions[1].token_ids]  # type: ignore[index]
