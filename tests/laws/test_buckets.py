"""Two exporters to one place in a bucket, in any order of their requests: what stands is of one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import factories as make
from tests.exporters.buckets import PREFIX, Killed, Turns, memory_bucket
from tests.exporters.memory import MemorySource
from tracestore.shards.manifest import MANIFEST_NAME, Manifest, parse_manifest
from tracestore.wire.events import AnyEvent
from tracestore_exporters import bucket
from tracestore_exporters.export import export
from tracestore_exporters.place import InUse, NotEmpty
from tracestore_exporters.spec import Spec

Objects = dict[str, tuple[bytes, dict[str, str]]]
SPEC = Spec(shard_rows=1)


def source(name: str) -> MemorySource:
    """Two episodes. What is called otherwise is the same for who asks, and another plan."""
    events: list[AnyEvent] = []
    for one in (f"{name}1", f"{name}2"):
        answer = make.answer(None, ids=[ord(letter) for letter in one])
        events += [make.episode(one), make.call(f"{one}c", None, answer, prompt_ids=[1], episode=one)]
    return MemorySource(events)


@cache
def whole(name: str) -> Manifest:
    """The export of a source, made undisturbed."""
    with TemporaryDirectory() as folder:
        return export(source(name), "p", Path(folder) / "out", SPEC)


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, bucket.Bucket]]:
    """The bucket as each place of `s3://...` reaches it."""
    found: dict[str, bucket.Bucket] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket, "open_bucket", found.__getitem__)
        patch.setattr(bucket, "_opened", found.__getitem__)
        patch.setattr("tracestore_exporters.export._LOOK_AT_ONCE", 1)
        yield found


def stands(objects: Objects) -> Manifest | None:
    """The manifest that stands, each of its shards there as it says."""
    if PREFIX + MANIFEST_NAME not in objects:
        return None
    manifest = parse_manifest(objects[PREFIX + MANIFEST_NAME][0], path="here")
    for shard in manifest.shards:
        assert hashlib.sha256(objects[PREFIX + shard.file][0]).hexdigest() == shard.sha256
    return manifest


def exporter(
    clients: dict[str, Any], objects: Objects, name: str, where: str, ask: Callable[[], None]
) -> Any:
    clients[where] = memory_bucket(objects, ask)
    return lambda: export(source(name), "p", where, SPEC)


ORDERS: dict[str, st.SearchStrategy[Any]] = {
    "names": st.sampled_from(["aa", "ab"]),
    "schedule": st.lists(st.integers(0, 1), max_size=80),
    "killed": st.none() | st.tuples(st.integers(0, 1), st.integers(0, 40)),
}
"""Whether both have one plan, who is next, and after how many of its requests one is killed."""


@settings(max_examples=15)
@given(**ORDERS)
def test_what_stands_in_a_bucket_is_whole_and_of_one_exporter(
    clients: dict[str, Any], names: str, schedule: list[int], killed: tuple[int, int] | None
) -> None:
    holds(clients, names, schedule, killed)


@pytest.mark.soak
@settings(max_examples=1000)
@given(**ORDERS)
def test_what_stands_in_a_bucket_is_whole_and_of_one_exporter_in_a_thousand_orders(
    clients: dict[str, Any], names: str, schedule: list[int], killed: tuple[int, int] | None
) -> None:
    holds(clients, names, schedule, killed)


def holds(clients: dict[str, Any], names: str, schedule: list[int], killed: tuple[int, int] | None) -> None:
    objects: Objects = {}
    turns = Turns(schedule, killed=killed)
    outcomes = turns.run(
        [
            exporter(clients, objects, name, f"s3://{number}", partial(turns.ask, number))
            for number, name in enumerate(names)
        ]
    )
    made = stands(objects)
    assert made in (None, *map(whole, names))
    for outcome in outcomes:
        assert isinstance(outcome, (Manifest, InUse, NotEmpty, Killed)), outcome
        # Who finds that the other one has just made what was asked for takes it.
        assert outcome == made or not isinstance(outcome, Manifest)
    if not any(isinstance(outcome, Killed) for outcome in outcomes):
        assert made is not None
        named = {MANIFEST_NAME, *(shard.file for shard in made.shards)}
        assert {key.removeprefix(PREFIX) for key in objects} == named
    if made is None:  # whoever was killed, a command that is given again ends it
        again = exporter(clients, objects, names[killed[0] if killed else 0], "s3://again", lambda: None)
        assert again() == stands(objects)
