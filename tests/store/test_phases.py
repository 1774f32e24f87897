"""Halves of events and posts of completions that come apart: after a restart, in odd orders, in part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest
from sqlalchemy import select

from tests import factories as make
from tests.databases import DATABASES, store_on
from tests.factories import answer, call, completion, posted, user
from tracestore.graph.build import build
from tracestore.graph.merge import merge
from tracestore.graph.model import Graph
from tracestore.store import Outcome, Store
from tracestore.store import tables as t
from tracestore.store.verify import verify
from tracestore.wire.base import Raw
from tracestore.wire.call import Attempt, Call, CallError, Policy, Usage
from tracestore.wire.completion import CompletionBody, VersionRun
from tracestore.wire.decode import decode_event
from tracestore.wire.events import AnyEvent


@dataclass(frozen=True)
class Project:
    """One project of an open store."""

    store: Store
    name: str

    def ingest(self, *events: AnyEvent) -> list[str]:
        return [outcome.status for outcome in self.outcomes(*events)]

    def outcomes(self, *events: AnyEvent) -> list[Outcome]:
        return self.store.ingest(self.name, [posted(event) for event in events])

    def graph(self) -> Graph:
        return self.store.load_graph(self.name, "e")

    def problems(self) -> tuple[object, ...]:
        return verify(self.store, self.name).problems


@pytest.fixture(scope="module", params=DATABASES)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One for all tests: each has a project of its own."""
    with store_on(request.param, tmp_path_factory.mktemp("phases") / "store.db") as opened:
        yield opened


@pytest.fixture
def project(shared: Store) -> Project:
    return Project(shared, uuid4().hex)


@contextmanager
def another_process(project: Project) -> Iterator[Project]:
    """The project as one sees it who remembers nothing."""
    with Store.open(project.store.engine.url.render_as_string(hide_password=False)) as store:
        yield Project(store, project.name)


# What the first half refers to


FIRST_AND_SECOND = [
    (call("c1", [user("v")], parent="c0", phase="start"), call("c1", None, "a", phase="end")),
    (
        make.subagent("sub", spawned_by="c0", parent="main", phase="start"),
        make.agent("sub", phase="end", status="ok"),
    ),
    (
        make.episode(phase="start", forked_from_episode_id="e0", forked_from_call_id="c0", group_id="g"),
        make.episode(phase="end", status="ok"),
    ),
]


@pytest.mark.parametrize(("start", "end"), FIRST_AND_SECOND)
def test_a_second_half_is_stored_after_a_restart(project: Project, start: AnyEvent, end: AnyEvent) -> None:
    assert project.ingest(call("c0", [user("u")], phase="start"), start) == ["stored", "stored"]
    with another_process(project) as again:
        assert again.ingest(end) == ["stored"]
    assert project.problems() == ()


@pytest.mark.parametrize(("start", "end"), FIRST_AND_SECOND)
def test_two_processes_may_post_the_halves_in_turn(project: Project, start: AnyEvent, end: AnyEvent) -> None:
    with another_process(project) as other:
        assert project.ingest(call("c0", [user("u")], phase="start"), start) == ["stored", "stored"]
        assert other.ingest(make.gap()) == ["stored"]
        assert project.ingest(make.reward()) == ["stored"]
        assert other.ingest(end) == ["stored"]
        assert project.ingest(call("c0", None, "a", phase="end")) == ["stored"]
    assert project.problems() == ()


# Deltas


def test_a_start_after_its_end_and_a_restart_may_say_that_the_call_is_a_delta(project: Project) -> None:
    parent, end = call("c0", [user("u")], "a"), call("c1", None, "b", phase="end")
    start = call("c1", [user("v")], parent="c0", delta=True, phase="start")
    assert project.ingest(parent, end) == ["stored", "stored"]
    with another_process(project) as again:
        assert again.ingest(start) == ["stored"]
    assert project.graph() == build([parent, start, end])
    assert len(project.store.context(project.name, "c1")) == 3
    assert project.problems() == ()


@pytest.mark.parametrize("is_start_first", [True, False])
def test_an_end_may_say_that_it_is_a_delta_and_leave_the_parent_to_the_start(
    project: Project, is_start_first: bool
) -> None:
    parent = call("c0", [user("u")], "a")
    start = call("c1", [user("v")], parent="c0", phase="start")
    end = Call(id="c1", episode_id="e", agent_id="main", phase="end", context="delta", status="ok")
    halves = [start, end] if is_start_first else [end, start]
    assert project.ingest(parent, halves[0]) == ["stored", "stored"]
    assert project.graph() == build([parent, halves[0]])
    assert project.ingest(halves[1]) == ["stored"]
    assert project.graph() == build([parent, start, end])
    assert project.problems() == ()


# Completions that come before their call


def test_a_child_of_a_call_that_only_has_a_completion_so_far_is_stored_and_read(project: Project) -> None:
    child = call("c1", [user("v")], "b", parent="c0", prompt_ids_delta=[3])
    delta = call("c2", [user("w")], "c", parent="c0", delta=True)
    early = completion("c0", 0, answer("a", ids=[2]))
    assert project.ingest(child, delta, early) == ["stored"] * 3
    assert project.graph() == build([child, delta, early])
    assert project.problems() == ()
    late = call("c0", [user("u")], prompt_ids=[1])
    assert project.ingest(late) == ["stored"]
    assert project.graph() == build([child, delta, early, late])
    assert project.problems() == ()


# Requests


def test_a_parameter_of_any_number_of_digits_is_stored(project: Project) -> None:
    request = Raw(b'{"messages":[],"top_k":' + b"9" * 5000 + b',"seed":1}')
    assert project.ingest(call("c0", request)) == ["stored"]
    assert project.store.request(project.name, "c0") == request


# Fields named twice


def test_another_spelling_of_an_opaque_field_is_refused_and_the_first_bytes_stay(project: Project) -> None:
    first, again = (Raw(b'{"messages":[],"temperature":%s}' % number) for number in (b"1.0", b"1"))
    assert project.ingest(call("c0", first, phase="start")) == ["stored"]
    at = project.store.snapshot(project.name)
    [outcome] = project.outcomes(call("c0", again, "a", phase="end"))
    assert outcome.status == "conflict"
    assert "request" in (outcome.problem or "")
    assert project.ingest(call("c0", first, "a", phase="end")) == ["stored"]
    assert project.store.request(project.name, "c0") == first
    assert project.store.load(project.name, "e", snapshot=at) == [call("c0", first, phase="start")]


def test_another_spelling_of_a_message_is_refused_and_the_first_bytes_stay(project: Project) -> None:
    first, again = Raw(b'{"content":"a","n":1.0}'), Raw(b'{"content":"a","n":1}')
    assert project.ingest(call("c0", [user("u")], answer(first))) == ["stored"]
    assert project.ingest(completion("c0", 0, answer(again))) == ["conflict"]
    assert project.ingest(completion("c0", 0, answer(first))) == ["stored"]
    assert project.graph().completions["c0", 0].message == first


def test_a_retry_in_another_spelling_is_a_duplicate_and_the_first_bytes_stay(project: Project) -> None:
    spellings = [b"1.0", b"1"]
    for text, status in zip(spellings, ["stored", "duplicate"], strict=True):
        event = (
            b'{"v":1,"kind":"call","id":"c0","episode_id":"e","agent_id":"a","request":{"seed":%s}}' % text
        )
        [outcome] = project.store.ingest(project.name, [(decode_event(event), event)])
        assert outcome.status == status
    assert project.store.request(project.name, "c0") == b'{"seed":1.0}'


PARTS = [
    (
        {"usage": Usage(prompt_tokens=3)},
        {"usage": Usage(prompt_tokens=3, completion_tokens=1)},
    ),
    ({"usage": Usage(prompt_tokens=3)}, {"usage": Usage(cached_tokens=2)}),
    ({"usage": Usage()}, {"usage": None}),
    ({"error": CallError(type="t")}, {"error": CallError(message="m", type=None)}),
    ({"policy": Policy(name="a")}, {"policy": Policy(name="a", version=2)}),
    (
        {"attempts": (Attempt(started_at=1), Attempt(started_at=5, ended_at=None))},
        {"attempts": (Attempt(started_at=1, ended_at=2), Attempt(ended_at=9))},
    ),
    (
        {"completions": (CompletionBody(message=Raw(b'"a"')), CompletionBody(message=Raw(b'"b"')))},
        {
            "completions": (
                answer(Raw(b'"a"'), ids=[1, 2], versions=(VersionRun(start=0, name="p", version=1),)),
                CompletionBody(finish_reason="stop"),
            )
        },
    ),
]


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("early", "late"), PARTS)
def test_halves_may_each_tell_part_of_a_nested_object(
    project: Project, early: dict[str, object], late: dict[str, object], is_reversed: bool
) -> None:
    fields = {"id": "c0", "episode_id": "e", "agent_id": "main"}
    halves = [
        Call.model_validate({**fields, **early, "phase": "start"}),
        Call.model_validate({**fields, **late, "phase": "end"}),
    ]
    if is_reversed:
        halves.reverse()
    assert project.ingest(halves[0]) == ["stored"]
    at = project.store.snapshot(project.name)
    assert project.ingest(halves[1]) == ["stored"]
    assert project.graph() == build(halves)
    assert project.store.load(project.name, "e", snapshot=at) == [halves[0]]
    assert merge(project.store.load(project.name, "e")) == merge(halves) == merge(halves[::-1])
    assert project.problems() == ()


def test_parts_of_a_nested_object_that_differ_are_a_conflict(project: Project) -> None:
    assert project.ingest(call("c0", (), phase="start", usage=Usage(prompt_tokens=3))) == ["stored"]
    assert project.ingest(call("c0", None, phase="end", usage=Usage(prompt_tokens=4))) == ["conflict"]


def test_parts_of_a_completion_that_do_not_fit_are_a_conflict(project: Project) -> None:
    without, with_logprobs = answer("a", ids=[1, 2], logprobs=()), answer("a", ids=[1, 2])
    assert project.ingest(call("c0", (), without, phase="start")) == ["stored"]
    assert project.ingest(call("c0", None, answer("a", ids=[1]), phase="end")) == ["conflict"]
    assert project.ingest(call("c0", None, with_logprobs, phase="end")) == ["stored"]
    versions = (VersionRun(start=0, name="p", version=1),)
    more = answer("a", ids=[1, 2], logprobs=(), versions=versions)
    assert project.ingest(completion("c0", 0, more)) == ["stored"]
    assert project.ingest(completion("c0", 0, answer("a", ids=[1]), id="other")) == ["conflict"]
    assert project.problems() == ()


# What a reward is for


@pytest.mark.parametrize(
    ("fields", "finest"),
    [
        ({}, "episode"),
        ({"agent_id": "main"}, "agent"),
        ({"call_id": "c0"}, "call"),
        ({"call_id": "c0", "candidate_set_id": "s", "member": 0}, "candidate"),
        ({"call_id": "c0", "completion": 0, "candidate_set_id": "s", "member": 0}, "completion"),
        ({"call_id": "c0", "completion": 0, "token_start": 0, "token_length": 1}, "tokens"),
    ],
)
def test_a_reward_is_for_the_finest_thing_its_target_names(
    project: Project, fields: dict[str, object], finest: str
) -> None:

    event = make.reward(uuid4().hex, 1.0, **fields)
    assert project.ingest(event) == ["stored"]
    assert event.target.finest == finest
    with project.store.read() as connection:
        assert connection.execute(
            select(t.reward.c.target).where(t.reward.c.id == event.id)
        ).scalars().all() == [finest]
