"""Nine call patterns through a real store and real shards: in each, nothing is lost, doubled or wrong.

lost: sampled, trained in no sample. dup: trained in more than one. wrong: trained, never sampled there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.exporters.stores import rows_of, stored
from tests.scenarios import SCENARIOS
from tracestore.shards.views import flat_samples
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

Token = tuple[str, int, int, int]
"""(call id, completion, index in the completion, token id)"""


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize(
    ("is_named", "database"), [(False, "sqlite"), (True, "sqlite"), (False, "postgresql")]
)
def test_nothing_is_lost_doubled_or_wrong(name: str, is_named: bool, database: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]()
    scenario = scenario.named if is_named else scenario
    with stored(tmp_path, scenario.events, database=database) as store:
        export(store, "p", tmp_path / "out", Spec())
        assert verify_export(store, "p", tmp_path / "out").findings == []
    sampled = {
        (call.id, index, place, token)
        for call in scenario.calls
        for index, body in enumerate(call.completions or ())
        for place, token in enumerate(body.token_ids.json() if body.token_ids else ())
    }
    trained = _trained(tmp_path / "out")
    lost = sampled - trained.keys()
    wrong = trained.keys() - sampled
    doubled = {token for token, times in trained.items() if times > 1}
    assert (lost, doubled, wrong) == (set(), set(), set())
    assert len(sampled) == scenario.sampled_tokens


def _trained(folder: Path) -> Counter[Token]:
    """How often each token is trained over the flattened samples of an export."""
    found: Counter[Token] = Counter()
    for row in rows_of(folder):
        for flat in flat_samples(row):
            seen: Counter[int] = Counter()
            for token, completion, is_trained in zip(
                flat.token_ids.tolist(), flat.completion.tolist(), flat.mask.tolist(), strict=True
            ):
                place = seen[completion]
                seen[completion] += 1
                if is_trained:
                    entry = row.completions[completion] if completion >= 0 else None
                    call_id = row.calls[entry.call].call_id if entry else "(not sampled)"
                    found[call_id, entry.index if entry else -1, place, token] += 1
    return found
