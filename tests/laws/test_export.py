"""Laws 5 and 8: a sample reproduces a recorded context; an export is a function of snapshot and spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.exporters.memory import MemorySource
from tests.exporters.stores import grouped
from tests.exporters.test_export import episode
from tests.exporters.trees import Tree, trees
from tests.factories import group, posted
from tests.scenarios import SCENARIOS
from tests.strategies import Recording, recordings
from tracestore.shards.manifest import read_manifest
from tracestore.shards.read import open_export
from tracestore.shards.views import flat_samples
from tracestore.store.store import Store
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import Task, cut_shard, export
from tracestore_exporters.parts import Part
from tracestore_exporters.plan import PlannedShard
from tracestore_exporters.spec import Spec

_numbers = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def stores(folder: Path) -> Iterator[tuple[Store, Store]]:
    with Store.open(f"sqlite:///{folder}/one.db") as one, Store.open(f"sqlite:///{folder}/two.db") as two:
        yield one, two


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recording=recordings(), data=st.data())
def test_another_order_of_arrival_gives_the_same_manifest_hash(
    recording: Recording, data: st.DataObject, stores: tuple[Store, Store], folder: Path
) -> None:
    _export_from_both(*stores, recording, data.draw(st.permutations(recording.events)), folder)


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recording=recordings(), data=st.data())
def test_sqlite_and_postgresql_give_the_same_manifest_hash(
    recording: Recording, data: st.DataObject, stores: tuple[Store, Store], on_postgresql: Store, folder: Path
) -> None:
    shuffled = data.draw(st.permutations(recording.events))
    _export_from_both(stores[0], on_postgresql, recording, shuffled, folder)


def _export_from_both(
    one: Store, two: Store, recording: Recording, shuffled: Sequence[AnyEvent], folder: Path
) -> None:
    name = f"p{next(_numbers)}"
    one.ingest(name, [posted(event) for event in recording.events])
    for event in shuffled:
        two.ingest(name, [posted(event)])
    first = export(one, name, folder / name / "one", Spec())
    again = export(one, name, folder / name / "again", Spec())
    second = export(two, name, folder / name / "two", Spec())
    assert first.manifest_hash == again.manifest_hash == second.manifest_hash
    for shard in first.shards:
        files = {(folder / name / which / shard.file).read_bytes() for which in ("one", "again", "two")}
        assert len(files) == 1


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), data=st.data())
def test_the_order_of_events_never_shows_in_a_shard(tree: Tree, data: st.DataObject, folder: Path) -> None:
    out = folder / f"t{next(_numbers)}"
    shuffled = data.draw(st.permutations(tree.events))
    first = export(MemorySource(tree.events), "p", out / "one", Spec())
    second = export(MemorySource(shuffled), "p", out / "two", Spec())
    assert first.manifest_hash == second.manifest_hash


CUT = st.builds(
    Spec,
    objective=st.sampled_from(["rl", "sft"]),
    shard_rows=st.integers(1, 4),
    max_row_bytes=st.sampled_from([2**28, 30]),
    max_tokens=st.sampled_from([None, 2]),
    compression=st.sampled_from(["zstd", "none"]),
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=CUT, data=st.data())
def test_shards_made_in_any_order_and_in_several_runs_are_those_of_one_run(
    spec: Spec, data: st.DataObject, folder: Path
) -> None:
    """What several workers do, and runs that are broken off."""
    grouped_ones = [event for name in "ab" for event in episode(name)]
    source = MemorySource(
        grouped_ones + [event for name in "cdefg" for event in episode(name, group_id=None)]
    )
    out = folder / f"r{next(_numbers)}"
    whole = export(source, "p", out / "one", spec)
    left = 0

    def in_any_order(
        task: Task, shards: Sequence[PlannedShard], *, advance: Callable[[int], None], lock: int | None
    ) -> Iterator[Part]:
        for shard in data.draw(st.permutations(shards)):
            yield cut_shard(source, task, shard, advance=advance)

    def breaks_off(_done: int, _total: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    for groups in data.draw(st.lists(st.integers(1, 7), max_size=3)):
        left = groups
        with suppress(KeyboardInterrupt):
            export(source, "p", out / "many", spec, engine=in_any_order, progress=breaks_off)
        if (out / "many").exists():
            break
    else:
        export(source, "p", out / "many", spec, engine=in_any_order)
    assert read_manifest(out / "many") == whole
    for path in (out / "one").iterdir():
        assert (out / "many" / path.name).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in out.iterdir()) == ["many", "one"]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recording=recordings())
def test_a_sample_is_a_recorded_prompt_and_the_answer_to_it(
    recording: Recording, stores: tuple[Store, Store], folder: Path
) -> None:
    name = f"s{next(_numbers)}"
    stores[0].ingest(name, [posted(event) for event in recording.events])
    export(stores[0], name, folder / name, Spec(objective="sft"))
    calls = recording.calls
    for row in open_export(folder / name).rows():
        for flat in flat_samples(row):
            entry = row.completions[flat.sample.completions[-1]]
            call_id = row.calls[entry.call].call_id
            body = (calls[call_id].completions or ())[entry.index]
            assert body.token_ids is not None
            prompt = recording.prompt_ids[call_id] or ()
            assert flat.token_ids.tolist() == [*prompt, *body.token_ids.json()]
            if body.logprobs is not None:
                tail = flat.has_logprob[len(prompt) :]
                kept = np.zeros(0) if flat.logprobs is None else flat.logprobs[len(prompt) :][tail]
                recorded = body.logprobs.array.astype(kept.dtype)[tail]
                assert kept.tobytes() == recorded.tobytes()


def test_compression_and_file_size_change_the_files_and_not_what_they_hold(folder: Path) -> None:
    events = [group("g")]
    for name in ("one", "two", "three"):
        events += grouped(SCENARIOS["compaction"](), prefix=name)
    source = MemorySource(events)
    specs = {"zstd": Spec(), "lz4": Spec(compression="lz4"), "many": Spec(shard_rows=1)}
    made = {name: export(source, "p", folder / name, spec) for name, spec in specs.items()}
    assert made["zstd"].shards[0].content_hash == made["lz4"].shards[0].content_hash
    assert made["zstd"].shards[0].sha256 != made["lz4"].shards[0].sha256
    rows = {name: [row.samples for row in open_export(folder / name).rows()] for name in specs}
    assert rows["zstd"] == rows["lz4"] == rows["many"]
    assert len({manifest.manifest_hash for manifest in made.values()}) == 3
