"""The episodes that other tests are made from can be posted, and reach what they are meant to reach."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from tests.factories import posted
from tests.scenarios import SCENARIOS
from tests.strategies import Recording, episodes, recordings
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.wire.decode import decode_event
from tracestore.wire.events import AnyEvent


@settings(max_examples=40)
@given(episodes(max_calls=5))
def test_every_event_can_be_posted(events: list[AnyEvent]) -> None:
    for event in events:
        assert decode_event(posted(event)[1]) == event


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_can_be_posted(name: str) -> None:
    for event in SCENARIOS[name]().events:
        assert decode_event(posted(event)[1]) == event


REACHED: dict[str, Callable[[Recording, Graph], bool]] = {
    "equal siblings": lambda r, g: len(set(g.completion_node.values())) < len(g.completion_node),
    "delta contexts": lambda r, g: any(c.context == "delta" for c in g.calls.values()),
    "delta token ids": lambda r, g: any(c.prompt_token_ids_delta is not None for c in g.calls.values()),
    "matched links": lambda r, g: any(link.how == "matched" for link in g.links.values()),
    "inferred links": lambda r, g: any(link.how == "inferred" for link in g.links.values()),
    "ambiguous links": lambda r, g: any(link.how == "ambiguous" for link in g.links.values()),
    "text drift": lambda r, g: bool(r.is_drifted),
    "subagents that call": lambda r, g: any(c.agent_id != "main" for c in g.calls.values()),
    "compactions": lambda r, g: bool(g.context_edits),
    "forks": lambda r, g: (
        len({link.parent for link in g.links.values() if link.parent})
        < sum(link.parent is not None for link in g.links.values())
    ),
    "doubles among logprobs": lambda r, g: any(
        c.logprobs is not None and c.logprobs.dtype == "float64" for c in g.completions.values()
    ),
    "rewards": lambda r, g: bool(g.rewards),
}


def test_recordings_reach_what_they_are_meant_to() -> None:
    reached: set[str] = set()

    @settings(max_examples=150, derandomize=True, database=None)
    @given(recordings())
    def look(recording: Recording) -> None:
        graph = build(recording.events)
        reached.update(what for what, is_reached in REACHED.items() if is_reached(recording, graph))

    look()
    assert reached == REACHED.keys()
