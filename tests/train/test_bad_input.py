"""What a run says of input that is damaged or of no use: an error, or a skip that is counted. Never a NaN."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.train.exports import export_of
from tests.train.models import tiny
from tests.train.rows import row
from tests.train.test_loop import group, recorded
from tracestore.cli import train
from tracestore.cli.common import UsageError
from tracestore.errors import TracestoreError
from tracestore.shards.manifest import (
    MANIFEST_NAME,
    ManifestCorrupt,
    NotAnExport,
    OtherSchema,
    write_manifest,
)
from tracestore.shards.read import Export, ShardCorrupt, ShardMissing
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.shards.write import file_sha256
from tracestore.train.credit import RULES, advantages
from tracestore.train.credit.base import Context, NonFiniteCredit
from tracestore.train.engine import OutsideModel
from tracestore.train.forest import MissingLogprobs
from tracestore.train.loader import PartMissing
from tracestore.train.loop import NothingToTrain
from tracestore.train.plan import SampleTooLong
from tracestore.train.step import NonFiniteStep


@pytest.fixture(scope="module")
def good() -> list[Row]:
    """Groups of which nothing is wrong."""
    return recorded(tiny("llama", attention="sdpa"), [group(0), group(1)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def run(export: Export, model: Path, *flags: str) -> None:
    parser = argparse.ArgumentParser()
    train.add_parser(parser.add_subparsers())
    out = str(model.parent / "out")
    wanted = [
        "train",
        str(export.path),
        "--model",
        str(model),
        "--out",
        out,
        "--json",
        "--groups-per-step",
        "1",
    ]
    assert train.run(parser.parse_args([*wanted, *flags])) == 0


def unsampled(one: Row) -> Row:
    """The group without a token that trains."""
    return replace(
        one, reason=np.where(one.reason == Reason.TRAINED, Reason.STALE, one.reason).astype(np.uint8)
    )


def with_logprobs(one: Row, value: float) -> Row:
    """The group with another logprob at one token that trains."""
    values = one.logprobs.copy()
    values[np.flatnonzero(one.reason == Reason.TRAINED)[3]] = value
    return replace(one, logprobs=values)


def without_logprob(one: Row) -> Row:
    has_logprob = one.has_logprob.copy()
    has_logprob[np.flatnonzero(one.reason == Reason.TRAINED)[3]] = False
    return replace(one, has_logprob=has_logprob)


def one_episode() -> Row:
    made = row([(-1, [1, 2], -1), (0, [3, 4], 0)], [(0, [0, 1], [0])], rewards=[1.0], group_id="single")
    return recorded(tiny("llama", attention="sdpa"), [made])[0]


# What is left out, and counted


@dataclass(frozen=True)
class Skip:
    bad: Callable[[], Row]
    notes: dict[str, int]
    steps: int
    """Of three groups, those that make a step: one whose advantages are all 0 does, and counts."""


SKIPPED = {
    "a group without spread": Skip(lambda: group(2, rewards=[1, 1, 1]), {"groups_without_spread": 1}, 3),
    "a singleton group": Skip(one_episode, {"singleton_groups": 1}, 3),
    "a row of which nothing trains": Skip(lambda: unsampled(group(2)), {"rows_without_targets": 1}, 2),
    "an episode without a reward": Skip(
        lambda: group(2, rewards=[1, 0, None]),
        {"ungraded_episodes": 1, "trained_tokens_without_advantage": 4},
        3,
    ),
    "a group without rewards": Skip(
        lambda: group(2, rewards=[None] * 3),
        {"ungraded_episodes": 3, "trained_tokens_without_advantage": 17, "rows_without_targets": 1},
        2,
    ),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_what_is_of_no_use_is_counted_and_the_rest_trains(
    name: str, good: list[Row], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = SKIPPED[name]
    run(export_of([good[0], case.bad(), good[1]], tmp_path / "export"), model)
    *steps, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert last["notes"] == case.notes
    assert last["steps"] == len(steps) == case.steps
    for step in steps:
        assert all(math.isfinite(v) for v in step.values() if isinstance(v, int | float))
    weights = load_file(tmp_path / "out" / "checkpoint" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())


@pytest.mark.parametrize(
    ("bad", "hint"),
    [
        (lambda: group(2, rewards=[None] * 3), "no episode has a reward"),
        (lambda: unsampled(group(2)), "conservation table"),
    ],
)
def test_an_export_of_nothing_else_is_an_error_that_says_why(
    bad: Callable[[], Row], hint: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(NothingToTrain, match=hint):
        run(export_of([bad()], tmp_path / "export"), model)


# What is an error


def truncated(export: Export) -> None:
    file = shard_of(export)
    file.write_bytes(file.read_bytes()[:-200])


def flipped(export: Export) -> None:
    file = shard_of(export)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncated_when_written(export: Export) -> None:
    """The manifest's checksum is that of the truncated file."""
    truncated(export)
    relabel(export)


def of_another_schema(export: Export) -> None:
    """A shard whose columns are another version's."""
    table = pa.table({"group_id": ["g"], "tokens": [[1, 2]]})
    with pa.OSFile(str(shard_of(export)), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    relabel(export)


def manifest_of_another_version(export: Export) -> None:
    file = export.path / MANIFEST_NAME
    value = json.loads(file.read_text())
    value["manifest"]["schema_version"] += 1
    file.write_text(json.dumps(value))


def edited_manifest(export: Export) -> None:
    file = export.path / MANIFEST_NAME
    file.write_text(file.read_text().replace('"default"', '"another"'))


def relabel(export: Export) -> None:
    """A manifest that says of the shard what it is now."""
    [shard] = export.manifest.shards
    file = shard_of(export)
    now = shard.model_copy(update={"sha256": file_sha256(file), "size": file.stat().st_size})
    write_manifest(export.path, export.manifest.model_copy(update={"shards": (now,)}))


def shard_of(export: Export) -> Path:
    return export.path / export.manifest.shards[0].file


DAMAGED: dict[str, tuple[Callable[[Export], None], type[TracestoreError], str]] = {
    "a truncated shard": (truncated, ShardCorrupt, "copy it again"),
    "a shard with one bit flipped": (flipped, ShardCorrupt, "expected=.*; copy it again"),
    "a shard that was truncated when it was written": (truncated_when_written, ShardCorrupt, "shard-00000"),
    "a shard of another schema": (of_another_schema, OtherSchema, "export again with this version"),
    "a manifest of another version": (
        manifest_of_another_version,
        OtherSchema,
        "export again with this version",
    ),
    "a manifest of other columns": (
        lambda export: write_manifest(
            export.path, export.manifest.model_copy(update={"schema_hash": "another"})
        ),
        OtherSchema,
        "export again with this version",
    ),
    "a manifest that was edited": (edited_manifest, ManifestCorrupt, "expected="),
    "a missing shard": (lambda export: shard_of(export).unlink(), ShardMissing, "copy the whole folder"),
    "an export that was never finished": (
        lambda export: (export.path / MANIFEST_NAME).unlink(),
        NotAnExport,
        "a manifest is written last",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_export_is_an_error_that_says_what_to_do(
    name: str, good: list[Row], model: Path, tmp_path: Path
) -> None:
    damage, error, said = DAMAGED[name]
    export = export_of(good, tmp_path / "export")
    damage(export)
    with pytest.raises(error, match=said):
        run(export, model)
    assert not (tmp_path / "out" / "checkpoint").exists()


RECOMPUTED = "recorded without any: train with recomputed old logprobs"
REFUSED: dict[str, tuple[Callable[[Row], Row], Sequence[str], type[TracestoreError], str]] = {
    "NaN for a logprob": (lambda one: with_logprobs(one, math.nan), (), MissingLogprobs, RECOMPUTED),
    "an infinite logprob": (lambda one: with_logprobs(one, -math.inf), (), MissingLogprobs, RECOMPUTED),
    "a missing logprob": (without_logprob, (), MissingLogprobs, "tokens=1"),
    "no logprobs": (lambda one: replace(one, logprobs=None), (), MissingLogprobs, "tokens=17"),
    "a logprob of another model": (
        lambda one: with_logprobs(one, -1e4),
        ("--loss", "reinforce"),
        NonFiniteStep,
        "is this the model that sampled the tokens",
    ),
    "a part of a group missing": (lambda one: replace(one, num_parts=2), (), PartMissing, r"parts=\[0\]"),
    "a reward that is no number": (
        lambda one: replace(one, rewards=tuple(replace(r, value=math.nan) for r in one.rewards)),
        (),
        NonFiniteCredit,
        "group-0",
    ),
    "a token of another vocabulary": (
        lambda one: replace(one, token_ids=one.token_ids + 1000),
        (),
        OutsideModel,
        "is this the model that sampled",
    ),
    "a sample longer than a micro-batch": (
        lambda one: one,
        ("--micro-batch-tokens", "5"),
        SampleTooLong,
        "raise the limit",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_that_cannot_be_trained_is_an_error_that_says_what_to_do(
    name: str, good: list[Row], model: Path, tmp_path: Path
) -> None:
    change, flags, error, said = REFUSED[name]
    with pytest.raises(error, match=said):
        run(export_of([change(good[0])], tmp_path / "export"), model, *flags)
    assert not (tmp_path / "out" / "checkpoint").exists()


@pytest.mark.parametrize("name", ["NaN for a logprob", "an infinite logprob", "a missing logprob"])
def test_recomputed_logprobs_train_what_was_recorded_without_one(
    name: str, good: list[Row], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = REFUSED[name][0]
    run(export_of([change(good[0])], tmp_path / "export"), model, "--old-logprobs", "recomputed")
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(map(math.isfinite, last["losses"]))
    assert last["trained_tokens"] == 17


def test_weights_that_are_no_numbers_are_an_error_before_a_step(
    good: list[Row], model: Path, tmp_path: Path
) -> None:
    file = model / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][0] = math.nan
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(NonFiniteStep):
        run(export_of(good, tmp_path / "export"), model)
    assert not (tmp_path / "out" / "checkpoint").exists()


def test_a_model_folder_that_is_not_there_is_named(good: list[Row], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        run(export_of(good, tmp_path / "export"), tmp_path / "nowhere")


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("bad", ["singleton", "even", "masked"])
def test_no_rule_makes_a_number_out_of_nothing(rule: str, bad: str) -> None:
    made = {
        "singleton": one_episode,
        "even": lambda: group(2, rewards=[1, 1, 1]),
        "masked": lambda: unsampled(group(2)),
    }
    spelled = {"pkpo": "pkpo:k=2", "parl": "parl:anneal_steps=10"}.get(rule, rule)
    try:
        given = advantages(made[bad](), rule=spelled, context=Context())
    except TracestoreError as error:
        assert error.hint  # noqa: PT017 - a rule may want what these rows lack, and says what
        return
    for value in given.values.values():
        assert np.isfinite(value).all()
        if bad == "even" and rule in {"shared", "shared-std", "rloo", "resum", "supo", "memagent"}:
            assert not np.any(value)
