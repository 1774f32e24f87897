"""Files given as Python values, bytes or paths -> the events an importer makes of them, and their report."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from tests.fixtures import fixture
from tracestore.cli.fidelity import Fidelity
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.importers import formats
from tracestore.importers.documents import records
from tracestore.importers.notes import Notes
from tracestore.importers.sources import Source, sources
from tracestore.wire.canonical import canonical
from tracestore.wire.decode import decode_event
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent, episode_id_of, phase_of

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Imported:
    """What one import gave."""

    events: list[AnyEvent]
    """The newest revision of each (kind, id, phase), in order of that key."""
    notes: Notes

    def of(self, kind: str) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if event.kind == kind]

    @cached_property
    def report(self) -> dict[str, Any]:
        """The fidelity report."""
        fidelity = Fidelity(notes=self.notes)
        for event in self.events:
            fidelity.add(event)
        return fidelity.facts()

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """The graph of each episode, by its id."""
        by_episode: dict[str, list[AnyEvent]] = {}
        for event in self.events:
            episode_id = episode_id_of(event)
            if episode_id is not None:
                by_episode.setdefault(episode_id, []).append(event)
        return {episode_id: build(events) for episode_id, events in sorted(by_episode.items())}


def newest(events: Sequence[AnyEvent]) -> dict[Key, AnyEvent]:
    """The newest revision of each event. Two of one revision must say the same."""
    found: dict[Key, AnyEvent] = {}
    for event in events:
        key = (event.kind, event.id, phase_of(event))
        other = found.get(key)
        if other is None or (event.revision or 0) > (other.revision or 0):
            found[key] = event
        elif (event.revision or 0) == (other.revision or 0):
            assert canonical(encode(event)) == canonical(encode(other)), f"{key} is made twice, differently"
    return dict(sorted(found.items()))


def read_paths(*paths: Path | str, format: str = "auto") -> Imported:  # noqa: A002
    """What `tracestore import` reads of these paths. Each text is checked to say what its event says."""
    notes = Notes()
    found = sources([str(path) for path in paths], notes=notes)
    items = list(formats.read(found, format=format, notes=notes))
    assert all(decode_event(item.text) == item.event for item in items)
    return Imported(list(newest([item.event for item in items]).values()), notes)


def read_data(*files: bytes, format: str = "auto") -> Imported:  # noqa: A002
    """What is read of files with these contents."""
    notes = Notes()
    with _Written(files) as found:
        items = list(formats.read(found, format=format, notes=notes))
    assert all(decode_event(item.text) == item.event for item in items)
    return Imported(list(newest([item.event for item in items]).values()), notes)


def read_bytes(data: bytes, *, format: str = "auto") -> tuple[list[AnyEvent], Notes]:  # noqa: A002
    """The events of a file with this content, in the order in which they are made."""
    notes = Notes()
    with _Written([data]) as found:
        items = list(formats.read(found, format=format, notes=notes))
    assert all(decode_event(item.text) == item.event for item in items)
    return [item.event for item in items], notes


def read_values(*values: Any, format: str = "auto") -> tuple[list[AnyEvent], Notes]:  # noqa: A002
    """The events of a JSON-lines file of these values."""
    return read_bytes(as_lines(*values), format=format)


def read_file(path: Path) -> tuple[list[AnyEvent], Notes]:
    return read_bytes(path.read_bytes())


def read_fixtures(*names: str) -> Imported:
    """What is read of files beside the repository; skips where they are absent."""
    return read_paths(*(fixture(name) for name in names))


def as_lines(*values: Any) -> bytes:
    """A JSON-lines file of these values."""
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def of_kind(events: Sequence[AnyEvent], kind: str) -> list[Any]:
    return [event for event in events if event.kind == kind]


class _Written:
    """Contents as files, as long as they are read."""

    def __init__(self, files: Sequence[bytes]) -> None:
        self._files = files
        self._open: list[Any] = []

    def __enter__(self) -> list[Source]:
        for data in self._files:
            file = NamedTemporaryFile()
            file.write(data)
            file.flush()
            self._open.append(file)
        # The same names in every run: what was not understood shows them.
        paths = [Path(file.name) for file in self._open]
        return [
            Source(f"file-{number}", lambda path=path: path.open("rb"), size=len(data), path=path)
            for number, (path, data) in enumerate(zip(paths, self._files, strict=True))
        ]

    def __exit__(self, *exc: object) -> None:
        for file in self._open:
            file.close()


# --- Claims about whole files --------------------------------------------------------------------------


def same_events(one: Imported, other: Imported) -> bool:
    """Whether two imports give the same set of events."""
    return _texts(one) == _texts(other)


def _texts(imported: Imported) -> list[bytes]:
    return [canonical(encode(event)) for event in imported.events]


def assert_builds(imported: Imported) -> None:
    """Every episode's graph builds, no call waits for its parent, and every call's agent is there.

    Where spans above a call are missing, its agent is one of them.
    """
    agents = {agent.id for agent in imported.of("agent")}
    for call in imported.of("call"):
        if "orphan root" in imported.notes.inferred:
            break
        assert call.agent_id in agents, f"call {call.id} of agent {call.agent_id}, which is not there"
    for episode_id, graph in imported.graphs.items():
        assert graph.episode is not None, f"no episode event {episode_id}"
        assert not graph.pending, f"{episode_id}: calls without their parents: {sorted(graph.pending)[:3]}"


def assert_grows(lines: Sequence[bytes], *, format: str = "auto") -> None:  # noqa: A002
    """A file read after every line that it gained gives, in the end, what the whole file gives."""
    whole = read_data(b"\n".join(lines) + b"\n", format=format)
    seen: list[AnyEvent] = []
    for length in range(1, len(lines) + 1):
        seen += read_data(b"\n".join(lines[:length]) + b"\n", format=format).events
    grown = Imported(list(newest(seen).values()), whole.notes)
    assert _texts(grown) == _texts(whole)


def assert_order_free(*files: bytes) -> None:
    """Files in another order, and each of them twice, give the same events."""
    whole = read_data(*files)
    assert same_events(whole, read_data(*reversed(files)))
    assert same_events(whole, read_data(*files, *files))


def assert_perturbation(data: bytes, *, limit: int, seed: int = 0, format: str = "auto") -> None:  # noqa: A002
    """Changing any one leaf of a JSON(-lines) file changes the events, or what was not understood.

    Args:
        limit: leaves that are tried, evenly spread over the file.
    """
    notes = Notes()
    with _Written([data]) as found:
        read = list(records(found[0], notes=notes))
        name = format if format != "auto" else getattr(formats.recognised(found[0]), "name", "auto")
    values = [record.value for record in read]
    before = _fingerprint(_as_file(values), name)
    places = list(_leaves(values))
    rng = random.Random(seed)
    for path in rng.sample(places, min(limit, len(places))):
        changed = copy.deepcopy(values)
        _change(changed, path)
        after = _fingerprint(_as_file(changed), name)
        assert after != before, (
            f"a change at record {path[0]}, {'.'.join(map(str, path[1:]))} leaves no trace"
        )


def _as_file(values: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(value, default=str).encode() + b"\n" for value in values)


def _fingerprint(data: bytes, name: str) -> Any:
    imported = read_data(data, format=name)
    left = {what: (one.count, one.digest) for what, one in imported.notes.not_understood.items()}
    return _texts(imported), left, imported.notes.refused


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _leaves(one, (*path, name))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _leaves(one, (*path, index))
    else:
        yield path


def _change(values: Any, path: tuple[Any, ...]) -> None:
    for step in path[:-1]:
        values = values[step]
    old = values[path[-1]]
    if isinstance(old, bool):
        new: Any = not old
    elif isinstance(old, (int, float)):
        new = old + 1
    elif isinstance(old, str):
        new = old + "~"
    else:
        new = "~"
    values[path[-1]] = new
