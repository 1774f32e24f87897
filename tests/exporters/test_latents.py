"""Latents of a store: whole episodes or none, each that is left out with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tests.exporters.memory import MemorySource
from tracestore.shards.latents import read_latents
from tracestore.store.blobs import open_blobs
from tracestore.store.rules import Rule
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import BeyondLatest
from tracestore_exporters.interchange import SpecNotFollowed
from tracestore_exporters.latents import _LeftOut, export_latents, latent_episode
from tracestore_exporters.spec import Spec

PAYLOAD = bytes(24)
HASH = "a" * 64
"""Of the latent; `payload` below does not look at what it hashes to."""
TENSOR = {"hash": HASH, "dtype": "float32", "shape": (3, 2)}


def events(**changes: Mapping[str, Any] | None) -> list[AnyEvent]:
    """Planner -> solver, one round.

    Args:
        changes: by id of an event, fields in place of its own; None leaves it out.
    """
    made = {
        "e": lambda **f: make.episode("e", status="ok", **f),
        "planner": lambda **f: make.agent("planner", name="planner", **{"checkpoint": "mp", **f}),
        "solver": lambda **f: make.agent("solver", **f),
        "p0": lambda **f: make.call(
            "p0",
            [make.user("u")],
            make.answer(None, finish_reason="latent"),
            **{"agent": "planner", "prompt_ids": [1, 2], "ordinal": 0, **f},
        ),
        "s0": lambda **f: make.call(
            "s0",
            [make.user("v")],
            f.pop("answer", make.answer("a", ids=[8, 9])),
            **{"agent": "solver", "prompt_ids": [3, 4, 5], "ordinal": 0, **f},
        ),
        "out": lambda **f: make.blob("out", **{"role": "latent_output", "call_id": "p0", **TENSOR, **f}),
        "in": lambda **f: make.blob(
            "in", **{"role": "latent", "call_id": "s0", "agent_id": "planner", "position": 3, **TENSOR, **f}
        ),
        "link": lambda **f: make.blob("link", **{"role": "link", "call_id": "s0", "hash": "b" * 64, **f}),
    }
    return [
        build(**(changes.get(name) or {}))
        for name, build in made.items()
        if changes.get(name, {}) is not None
    ]


def found(given: list[AnyEvent], payload: Callable[[str], bytes | None] = lambda name: PAYLOAD) -> Any:
    return latent_episode(MemorySource(given).load_graph("p", "e"), payload)


def test_a_transfer_is_two_steps_and_unknown_hashes_stay_unknown() -> None:
    first, last = found(events()).steps
    assert (first.call_id, first.agent, first.round, first.model) == ("p0", "planner", 0, "mp")
    assert (first.prompt_ids, first.reads, first.token_ids) == ((1, 2), None, None)
    assert (first.latent.shape, first.latent.data, first.latent_hash) == ((3, 2), PAYLOAD, HASH)
    assert (last.call_id, last.agent, last.model) == ("s0", "solver", None)
    assert (last.reads.step, last.reads.position, last.reads.link) == (0, 3, "b" * 64)
    assert (last.latent, last.token_ids) == (None, (8, 9))
    assert found(events(link=None)).steps[1].reads.link is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"in": None}, "no_latent"),
        ({"out": None}, "no_source_of_a_latent"),
        ({"in": {"agent_id": "solver"}}, "no_source_of_a_latent"),
        ({"in": {"position": None}}, "no_position_of_a_latent"),
        ({"in": {"position": 4}}, "a_latent_behind_the_prompt"),
        ({"out": {"dtype": "int8"}, "in": {"dtype": "int8"}}, "no_dtype_and_shape_of_a_latent"),
        ({"in": {"shape": None}}, "no_dtype_and_shape_of_a_latent"),
        ({"in": {"shape": (6,)}}, "no_dtype_and_shape_of_a_latent"),
        ({"in": {"shape": (0, 2)}}, "no_dtype_and_shape_of_a_latent"),
        ({"in": {"shape": (4, 2)}}, "a_payload_of_another_shape"),
        ({"p0": {"prompt_ids": None}}, "no_prompt_ids"),
        ({"s0": {"ordinal": None}}, "no_ordinal"),
        ({"s0": {"answer": make.answer("a")}}, "no_token_ids"),
    ],
)
def test_an_episode_that_cannot_be_computed_again_says_why(
    changes: Mapping[str, Mapping[str, Any] | None], reason: str
) -> None:
    with pytest.raises(_LeftOut, match=f"^{reason}$"):
        found(events(**changes))


def test_two_sources_two_latents_and_a_circle_are_never_guessed_at() -> None:
    again = make.call("p1", None, make.answer(None), agent="planner", prompt_ids=[1], ordinal=1)
    twice = make.blob("out2", role="latent_output", call_id="p1", **TENSOR)
    with pytest.raises(_LeftOut, match=r"^several_sources_of_a_latent$"):
        found([*events(), again, twice])
    with pytest.raises(_LeftOut, match=r"^several_latents_of_a_call$"):
        found([*events(), make.blob("in2", role="latent", call_id="s0", agent_id="planner", **TENSOR)])
    back = {**TENSOR, "hash": "c" * 64}
    round_ = [
        make.blob("out3", role="latent_output", call_id="s0", **back),
        make.blob("in3", role="latent", call_id="p0", agent_id="solver", **back),
    ]
    with pytest.raises(_LeftOut, match=r"^latents_go_round$"):
        found([*events(), *round_])
    with pytest.raises(_LeftOut, match=r"^no_payload$"):
        found(events(), payload=lambda name: None)


def test_what_was_left_out_is_counted_and_an_eval_episode_is(tmp_path: Path) -> None:
    manifest = export_latents(MemorySource(events()), None, "p", tmp_path / "a", Spec())
    assert manifest.left_out == {"no_payload": 1}
    held = MemorySource(events(e={"split": "eval"}))
    assert export_latents(held, None, "p", tmp_path / "b", Spec()).left_out == {"split": 1}
    assert read_latents(tmp_path / "b")[1] == []


def test_a_payload_that_was_damaged_is_as_one_that_did_not_come(tmp_path: Path) -> None:
    blobs = open_blobs(str(tmp_path / "blobs"))
    file = tmp_path / "file"
    file.write_bytes(PAYLOAD)
    blobs.keep("p", HASH, file)
    manifest = export_latents(MemorySource(events()), blobs, "p", tmp_path / "out", Spec())
    assert manifest.left_out == {"no_payload": 1}


def test_what_a_spec_asks_in_vain_is_refused(tmp_path: Path) -> None:
    source = MemorySource(events())
    rules = (Rule(name="r", pattern="x"),)
    with pytest.raises(SpecNotFollowed, match="redaction"):
        export_latents(source, None, "p", tmp_path / "out", Spec(redaction=rules))
    with pytest.raises(BeyondLatest):
        export_latents(source, None, "p", tmp_path / "out", Spec(), snapshot=10**6)
