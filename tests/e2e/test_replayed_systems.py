"""Each recorded harness, run again against its recording, records the same once more, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_traces.record import Recorder, play, replayed
from sample_traces.replayed import Diverged, ReplayedSampler
from sample_traces.sampler import SmolLM2
from sample_traces.systems import system
from tests.api.proxy.scripted import Running, running_proxy
from tests.factories import posted
from tests.sample_traces.traces import NAMES, SCRIPTED, scripted_path, trace_path
from tracestore.store.blobs import open_blobs
from tracestore.store.store import Store
from tracestore.wire.decode import decode_event

COMPUTED = {"recursive_mas"}
"""What its agents hand on is computed by their own models, and no request to a server."""
FILES = [
    *((name, trace_path(name), False) for name in NAMES),
    *((name, scripted_path(name), True) for name in SCRIPTED if name not in COMPUTED),
]


@pytest.fixture(scope="module")
def base() -> SmolLM2:
    return SmolLM2()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("replayed")
    with (
        Store.open(f"sqlite:///{folder}/t.db") as store,
        running_proxy(store, "http://127.0.0.1:1", blobs=open_blobs(str(folder / "blobs"))) as running,
    ):
        yield running


@pytest.mark.parametrize(
    ("name", "path", "is_scripted"), FILES, ids=lambda value: str(getattr(value, "name", value))
)
def test_the_second_recording_is_the_first(
    name: str, path: Path, is_scripted: bool, base: SmolLM2, server: Running
) -> None:
    lines = path.read_text().splitlines()
    project = f"{name}-{path.stem}"
    server.store.ingest(project, [posted(decode_event(line.encode())) for line in lines])
    url = server.url.removesuffix("/proxy")
    with Recorder(url, project=f"{project}-again") as client:
        again = replayed(base, name, url, project=project, is_scripted=is_scripted)
        play(name, system(name), client, again)
    assert client.lines == lines


def test_a_harness_that_says_something_else_is_told_where(base: SmolLM2, server: Running) -> None:
    lines = trace_path("linear").read_text().splitlines()
    server.store.ingest("changed", [posted(decode_event(line.encode())) for line in lines])
    url = server.url.removesuffix("/proxy")
    sampler = ReplayedSampler(base, url, project="changed", episode="linear-0")
    asked = {"model": base.model_name, "messages": [{"role": "system", "content": "Guess a number."}]}
    with pytest.raises(Diverged, match="the number") as diverged:
        sampler.sample([1], speaker="main", seed=0, request=asked)
    assert diverged.value.values["difference"]["byte"] == len("Guess ")
