"""Law 4: every sampled token is trained exactly once or excluded with a counted reason."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.exporters.memory import MemorySource
from tests.exporters.trees import Tree, trees
from tests.factories import answer, call, completion, posted, user
from tests.strategies import Recording, recordings
from tracestore.shards.manifest import Manifest
from tracestore.shards.read import open_export
from tracestore.shards.reasons import Reason
from tracestore.shards.views import flat_samples
from tracestore.store.rules import Rule
from tracestore.store.store import Store
from tracestore.wire.call import Call
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec, Validation
from tracestore_exporters.verify import verify_export

_ANY: dict[str, st.SearchStrategy[Any]] = {
    "candidates": st.sampled_from([None, "shared", "exclude", "negative"]),
    "purposes": st.sampled_from([None, ("act",)]),
    "roles": st.sampled_from([None, None, ("main",)]),
    "validation": st.sampled_from([None, Validation(share=0.5), Validation(share=0.5, salt="other")]),
    "started_from": st.sampled_from([None, None, 6]),
    "started_before": st.sampled_from([None, None, 2**62]),
    "max_tokens": st.sampled_from([None, 1, 3, 6]),
    "beyond_max": st.sampled_from(["exclude", "cut"]),
    "ownership": st.sampled_from(["train_once", "tree_mean"]),
    "max_row_bytes": st.sampled_from([2**28, 60]),
    "shard_rows": st.sampled_from([1, 64]),
    "redaction": st.sampled_from([None, None, None, (Rule(name="w", pattern="go"),)]),
}
_RL = st.fixed_dictionaries(
    {
        "policies": st.sampled_from([None, None, ("p",)]),
        "policy_versions": st.sampled_from([None, None, (3,)]),
        "max_staleness": st.sampled_from([None, 0, 2]),
    }
).map(lambda drawn: drawn | {"current_version": None if drawn["max_staleness"] is None else 4})
SPECS = st.builds(
    lambda objective, any_, rl: Spec(objective=objective, **any_, **(rl if objective == "rl" else {})),
    st.sampled_from(["rl", "rl", "sft", "preference"]),
    st.fixed_dictionaries(_ANY),
    _RL,
)

_numbers = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conservation")


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{folder}/t.db") as opened:
        yield opened


def num_sampled(events: Sequence[AnyEvent]) -> int:
    """Sampled tokens, counted in the events themselves."""
    calls = [event for event in events if isinstance(event, Call)]
    return sum(len(body.token_ids or ()) for call in calls for body in call.completions or ())


def check(manifest: Manifest, out: Path, sampled: int) -> None:
    """The table against the events, and the shards against the table."""
    table = manifest.conservation
    assert table.sampled_tokens == sampled
    assert table.sampled_tokens == table.trained_tokens + sum(table.excluded.values())
    masked, trained = 0, 0
    for row in open_export(out).rows():
        trained += row.num_trained
        times: Counter[int] = Counter()
        for flat in flat_samples(row):
            assert not flat.mask[flat.completion < 0].any()
            times.update(flat.token_index[flat.mask].tolist())
        masked += len(times)
        assert set(times.values()) <= {1}
        assert (row.reason[list(times)] == Reason.TRAINED).all()
    assert masked == trained == table.trained_tokens


def test_what_follows_a_completion_whose_call_has_not_come_is_excluded_by_name(
    store: Store, folder: Path
) -> None:
    """1 token of c1, whose prompt ids follow a call that is not there, and the 1 early token itself."""
    name = f"p{next(_numbers)}"
    child = call("c1", [user("v")], answer("b", ids=[4]), parent="c0", prompt_ids_delta=[3], status="ok")
    events = [child, completion("c0", 0, answer("a", ids=[2]))]
    store.ingest(name, [posted(event) for event in events])
    manifest = export(store, name, folder / name, Spec())
    check(manifest, folder / name, 2)
    assert manifest.conservation.excluded == {"ids_incomplete": 1, "call_incomplete": 1}
    assert verify_export(store, name, folder / name).findings == []


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recording=recordings(), spec=SPECS)
def test_every_sampled_token_of_a_recorded_episode_is_trained_once_or_has_a_reason(
    recording: Recording, spec: Spec, store: Store, folder: Path
) -> None:
    _post_export_and_check(store, recording, spec, folder)


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recording=recordings(), spec=SPECS)
def test_the_same_holds_for_a_store_on_postgresql(
    recording: Recording, spec: Spec, on_postgresql: Store, folder: Path
) -> None:
    _post_export_and_check(on_postgresql, recording, spec, folder)


def _post_export_and_check(store: Store, recording: Recording, spec: Spec, folder: Path) -> None:
    name = f"p{next(_numbers)}"
    store.ingest(name, [posted(event) for event in recording.events])
    manifest = export(store, name, folder / name, spec)
    check(manifest, folder / name, num_sampled(recording.events))
    assert verify_export(store, name, folder / name).findings == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), spec=SPECS)
def test_every_sampled_token_of_a_group_of_colliding_ids_is_trained_once_or_has_a_reason(
    tree: Tree, spec: Spec, folder: Path
) -> None:
    _export_and_check(tree, spec, folder)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), spec=SPECS)
def test_the_same_holds_for_ten_thousand_groups(tree: Tree, spec: Spec, folder: Path) -> None:
    _export_and_check(tree, spec, folder)


def _export_and_check(tree: Tree, spec: Spec, folder: Path) -> None:
    source, out = MemorySource(tree.events), folder / f"t{next(_numbers)}"
    manifest = export(source, "p", out, spec)
    check(manifest, out, num_sampled(tree.events))
    assert verify_export(source, "p", out).findings == []
    shutil.rmtree(out)
