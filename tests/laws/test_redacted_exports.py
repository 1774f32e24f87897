"""Rules of a spec: an export is that of the redacted texts, and no id in it spells what they took."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.exporters.memory import MemorySource
from tests.laws.test_conservation import check, num_sampled
from tests.strategies import Recording, recordings
from tracestore.graph.build import build
from tracestore.shards.read import open_export
from tracestore.store.rules import Rule, redact
from tracestore_exporters.export import export
from tracestore_exporters.redaction import redacted
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

WORD = "go"
RULES = (
    Rule(name="w", pattern=WORD),
    Rule(name="a", path="**.arguments"),
    Rule(name="s", path="error"),
)
_numbers = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("redacted")


@settings(max_examples=40)
@given(recording=recordings(max_calls=5))
def test_a_redacted_graph_is_that_of_the_redacted_events(recording: Recording) -> None:
    events = [event if (found := redact(event, RULES)) is None else found.event for event in recording.events]
    found = redacted(build(recording.events), RULES)
    assert replace(found, withheld=frozenset()) == build(events)


@settings(max_examples=25)
@given(recording=recordings(max_calls=5))
def test_rules_that_find_nothing_change_nothing(recording: Recording) -> None:
    graph = build(recording.events)
    found = redacted(graph, (Rule(name="n", pattern="never said"),))
    assert replace(found, withheld=frozenset()) == graph
    with_text = {key for key, body in graph.completions.items() if body.message is not None}
    # What a call reads without a text is withheld, and so is every prompt that begins with it.
    if all(recording.contexts[call_id] for call_id, ids in recording.prompt_ids.items() if ids):
        assert not found.withheld & with_text


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recording=recordings(max_calls=6))
def test_no_token_of_a_shard_was_sampled_before_or_behind_a_match(recording: Recording, folder: Path) -> None:
    out = folder / f"r{next(_numbers)}"
    source = MemorySource(recording.events)
    spec = Spec(objective="sft", redaction=RULES[:1])
    manifest = export(source, "p", out, spec)
    check(manifest, out, num_sampled(recording.events))
    assert verify_export(source, "p", out).findings == []
    calls = recording.calls
    for row in open_export(out).rows():
        for completion in set(row.segments.completion.tolist()) - {-1}:
            entry = row.completions[completion]
            call_id = row.calls[entry.call].call_id
            answer = (calls[call_id].completions or ())[entry.index]
            texts = [*recording.contexts[call_id], answer.message or b"null"]
            assert not any(WORD in said for text in texts for said in _strings(json.loads(text)))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, str):
        yield value
