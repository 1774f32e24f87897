"""Real files with token ids, and every sample trace: stored, exported, verified, no sampled token lost.

The files that are not here go the same way in `test_real_files`, posted over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories import posted
from tests.fixtures import ATROPOS, COMPETITIVE, ROUND_TRIP, SAMPLED_TOKENS, fixture
from tests.importers.reading import read_paths
from tests.sample_traces.traces import NAMES, trace_events, trace_path
from tracestore.shards.manifest import Conservation
from tracestore.store.store import Store
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path_factory.mktemp('conserved')}/t.db") as opened:
        yield opened


def conserved(store: Store, path: Path, out: Path) -> Conservation:
    """The table of an export of a file, once `verify` has recomputed it from the store and the shards."""
    project = str(out.parent.name)
    outcomes = store.ingest(project, [posted(event) for event in read_paths(path).events])
    assert {outcome.status for outcome in outcomes} == {"stored"}
    table = export(store, project, out, Spec()).conservation
    report = verify_export(store, project, out)
    assert report.findings == []
    assert (report.sampled_tokens, report.trained_tokens) == (table.sampled_tokens, table.trained_tokens)
    return table


@pytest.mark.parametrize("name", sorted(SAMPLED_TOKENS.keys() - {ATROPOS, COMPETITIVE, ROUND_TRIP}))
def test_the_sampled_tokens_of_a_file_are_those_counted_and_all_train(
    name: str, store: Store, tmp_path: Path
) -> None:
    table = conserved(store, fixture(name), tmp_path / "out")
    sampled = SAMPLED_TOKENS[name]
    assert (table.sampled_tokens, table.trained_tokens, table.excluded) == (sampled, sampled, {})


@pytest.mark.parametrize("name", NAMES)
def test_every_sampled_token_of_a_sample_trace_trains(name: str, store: Store, tmp_path: Path) -> None:
    calls = [event for event in trace_events(name) if event.kind == "call"]
    sampled = sum(len(body.token_ids) for call in calls for body in call.completions)
    table = conserved(store, trace_path(name), tmp_path / "out")
    assert (table.sampled_tokens, table.trained_tokens, table.excluded) == (sampled, sampled, {})
