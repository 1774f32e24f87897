"""The rows of a log are those of a batch export of the same snapshot, without what came late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import factories as make
from tests.databases import NAMED_EVENTS, store_on
from tests.exporters.stores import prefixed
from tests.exporters.trees import trees
from tests.factories import posted
from tests.strategies import Batch, deliveries, recordings, split_up
from tracestore.shards.batch import content_hash, to_batch
from tracestore.shards.files import Folder
from tracestore.shards.log import GroupName, Log
from tracestore.shards.read import Export, open_export
from tracestore.store.rules import Rule
from tracestore.store.store import Store
from tracestore.wire.call import Call
from tracestore.wire.completion import Completion
from tracestore.wire.events import AnyEvent, episode_id_of, phase_of
from tracestore_exporters.export import export
from tracestore_exporters.follow import Follower, following
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

SPECS = [
    Spec(),
    Spec(),
    Spec(objective="sft", shard_rows=1),
    Spec(max_row_bytes=30, rewards={"reward": 2.0}, candidates="exclude"),
    Spec(objective="sft", redaction=(Rule(name="w", pattern="go"),)),
]
_numbers = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("follow")


@pytest.fixture(scope="module")
def stores(folder: Path) -> Iterator[tuple[Store, Store]]:
    with store_on("sqlite", folder / "one.db") as one, store_on("sqlite", folder / "two.db") as two:
        yield one, two


@st.composite
def arrivals(draw: st.DrawFn) -> list[Batch]:
    """The events of a group and of an episode beside it, as they may come, with rewards that are late if they
    can be."""
    tree = draw(trees(max_episodes=2, max_calls=4))
    beside = [prefixed(event, "beside") for event in draw(recordings(max_calls=3)).events]
    scored = [
        make.reward(f"again-{episode_id}", draw(st.floats(0, 1)), episode=episode_id)
        for episode_id in tree.episode_ids
    ]
    return draw(deliveries(draw(split_up([*tree.events, *beside, *scored]))))


_MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(_MANY, max_examples=4)
@given(batches=arrivals(), spec=st.sampled_from(SPECS), data=st.data())
def test_followed_rows_are_those_of_a_batch_export_without_what_came_late(
    batches: Sequence[Batch],
    spec: Spec,
    data: st.DataObject,
    stores: tuple[Store, Store],
    folder: Path,
) -> None:
    _check(batches, spec, data, *stores, folder)


@pytest.mark.soak
@settings(_MANY, max_examples=150)
@given(batches=arrivals(), spec=st.sampled_from(SPECS), data=st.data())
def test_they_are_over_many_orders_of_arrival(
    batches: Sequence[Batch],
    spec: Spec,
    data: st.DataObject,
    stores: tuple[Store, Store],
    folder: Path,
) -> None:
    _check(batches, spec, data, *stores, folder)


@pytest.mark.soak
@settings(_MANY, max_examples=15)
@given(batches=arrivals(), spec=st.sampled_from(SPECS), data=st.data())
def test_they_are_on_postgresql(
    batches: Sequence[Batch],
    spec: Spec,
    data: st.DataObject,
    stores: tuple[Store, Store],
    on_postgresql: Store,
    folder: Path,
) -> None:
    _check(batches, spec, data, on_postgresql, stores[1], folder)


def _check(
    batches: Sequence[Batch], spec: Spec, data: st.DataObject, store: Store, other: Store, folder: Path
) -> None:
    name = f"p{next(_numbers)}"
    out = folder / name
    with ExitStack() as stack:
        # As much as a look takes: all that came, or one event after the other.
        most = data.draw(st.sampled_from([20_000, 3, 1]))
        follower = _begun(stack, store, name, out / "follow", spec, most)
        for batch in batches:
            outcomes = store.ingest(name, [posted(event) for event in batch])
            assert {outcome.status for outcome in outcomes} <= {"stored", "duplicate"}
            # A look may close what nobody said has ended; another process may go on.
            follower.step(is_last=data.draw(st.booleans()))
            if data.draw(st.booleans()):
                stack.close()
                follower = _begun(stack, store, name, out / "follow", spec, most)
        while follower.step(is_last=True).is_news:
            pass
        assert follower.step(is_last=True).entry is None
    log = Log.open(out / "follow")
    came = _positions(store, name)
    events = list({(e.kind, e.id, phase_of(e)): e for batch in batches for e in batch}.values())
    in_time = [event for event in events if not _is_late(event, came, log)]
    other.ingest(name, [posted(event) for event in in_time])
    export(other, name, out / "batch", spec)
    followed = open_export(out / "follow")
    assert _contents(followed) == _contents(open_export(out / "batch"))
    assert followed.manifest.rows == len(list(followed.rows()))
    assert sum(len(row.samples) for row in followed.rows()) == followed.manifest.samples
    assert verify_export(store, name, out / "follow").findings == []
    assert all(entry.adds.holds and entry.conservation.holds for entry in Log.read(Folder(out / "follow"))[1])
    if log.snapshot == store.snapshot(name):
        assert followed.manifest.conservation.sampled_tokens == _num_sampled(events)


def _num_sampled(events: Sequence[AnyEvent]) -> int:
    calls = [body for event in events if isinstance(event, Call) for body in event.completions or ()]
    alone = [event for event in events if isinstance(event, Completion)]
    return sum(len(body.token_ids or ()) for body in (*calls, *alone))


def _begun(stack: ExitStack, store: Store, name: str, out: Path, spec: Spec, most: int) -> Follower:
    return stack.enter_context(following(store, name, out, spec, most=most))


def _positions(store: Store, project: str) -> dict[tuple[str, str, str], int]:
    """(kind, id, phase) -> the commit position at which it came."""
    query = f"SELECT n.kind, n.id, n.phase, n.pos FROM ({NAMED_EVENTS}) n JOIN project p USING (project_id)"
    with store.read() as connection:
        rows = connection.exec_driver_sql(f"{query} WHERE p.name = '{project}'")
        return {(kind, id_, phase): pos for kind, id_, phase, pos in rows}


def _is_late(event: AnyEvent, came: dict[tuple[str, str, str], int], log: Log) -> bool:
    """Whether its group was written before it came, and it is none of what goes into rows all the same."""
    pos = came[event.kind, event.id, phase_of(event)]
    if event.kind == "group":
        group = log.groups.get(GroupName("group", event.id))
        return group is not None and pos > group.base
    episode_id = episode_id_of(event)
    assert episode_id is not None
    if episode_id in log.group_of:
        is_said = event.kind in ("reward", "candidate_set", "candidate_selection")
        return not is_said and pos > log.groups[log.group_of[episode_id]].base
    return any(episode_id in late.episode_ids for late in log.late.values())


def _contents(found: Export) -> set[tuple[str | None, tuple[str, ...], int, str]]:
    """Every row by its group, its part and its content; twice in an export is a failure."""
    rows = [
        (
            row.group_id,
            tuple(one.episode_id for one in row.episodes),
            row.part,
            content_hash([to_batch(row)]),
        )
        for row in found.rows()
    ]
    assert len(rows) == len(set(rows))
    return set(rows)
