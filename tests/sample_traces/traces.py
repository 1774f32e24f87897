"""The recorded sample traces, by system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.exporters.planned import planned
from tests.fixtures import REPO
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.shards.row import Row
from tracestore.wire.decode import decode_event
from tracestore.wire.events import AnyEvent, episode_id_of

NAMES = ("candidates", "compaction", "linear", "subagents")
"""Those that a model sampled."""
SCRIPTED = tuple(sorted(path.parent.name for path in (REPO / "sample_traces").glob("*/demo.toml")))
"""Those that a script speaks, for `tracestore demo --system`."""


def trace_path(name: str) -> Path:
    return REPO / "sample_traces" / name / "trace.jsonl"


def scripted_path(name: str) -> Path:
    """The scripted recording: a file of its own where `trace.jsonl` was sampled."""
    own = trace_path(name).with_name("scripted.jsonl")
    return own if own.exists() else trace_path(name)


def scripted_events(name: str) -> list[AnyEvent]:
    return [decode_event(line) for line in scripted_path(name).read_bytes().splitlines()]


def trace_events(name: str) -> list[AnyEvent]:
    return [decode_event(line) for line in trace_path(name).read_bytes().splitlines()]


def episodes_of(events: Sequence[AnyEvent]) -> list[list[AnyEvent]]:
    """The events of each episode, its group's included."""
    shared = [event for event in events if episode_id_of(event) is None]
    episodes: dict[str, list[AnyEvent]] = defaultdict(list)
    for event in events:
        episode_id = episode_id_of(event)
        if episode_id is not None:
            episodes[episode_id].append(event)
    return [[*shared, *members] for members in episodes.values()]


def graphs_of(events: Sequence[AnyEvent]) -> list[Graph]:
    """A graph for each episode."""
    return [build(one) for one in episodes_of(events)]


def row_of(events: Sequence[AnyEvent]) -> Row:
    """What the default spec exports of one group."""
    return planned(*episodes_of(events))
