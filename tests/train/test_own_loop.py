"""A loop of one's own, or transformers' Trainer, trains as `tracestore train` does."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainingArguments

import tracestore.train
from tests.fixtures import REPO
from tests.laws.test_tree_equals_rows import float64_throughout
from tests.train.exports import export_of
from tests.train.models import tiny
from tests.train.test_loop import group, recorded
from tracestore.shards.read import Export
from tracestore.train.attention import TreeUnsupported
from tracestore.train.credit import UnknownRule
from tracestore.train.filling import Filling
from tracestore.train.loader import Reading
from tracestore.train.loop import NothingToTrain, Settings, train
from tracestore.train.losses.base import Objective, UnsuitableLoss
from tracestore.train.own_loop import MicroBatch, batches, padded_batches
from tracestore.train.plan import SampleTooLong
from tracestore.train.transformers import RecordedTrainer, UnsuitableArguments

DOCS = REPO / "docs" / "training.md"
TWO_GROUPS = Filling(groups_per_step=2)
LR = 1e-3


def model(dtype: torch.dtype = torch.float64) -> Any:
    return tiny("llama", dtype=dtype, attention="sdpa")


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """Ratios lie on both sides of both clips, and temperatures are not 1."""
    rng = np.random.default_rng(7)
    rows = [
        replace(one, calls=tuple(replace(c, logprobs_are="processed", temperature=0.7) for c in one.calls))
        for one in map(group, range(5))
    ]
    found = [
        replace(one, logprobs=one.logprobs + rng.uniform(-0.4, 0.4, len(one.logprobs)) * one.has_logprob)
        for one in recorded(model(), rows)
    ]
    return export_of(found, tmp_path / "export")


def plain_loop(of: Any, given: Iterator[MicroBatch]) -> list[float]:
    """Nothing but torch. Returns the loss of each step."""
    optimizer = torch.optim.AdamW(of.parameters(), lr=LR, weight_decay=0.0)
    losses = [0.0]
    for batch in given:
        with batch.attention(of):
            inputs = {"input_ids": batch.input_ids_BT, "position_ids": batch.position_ids_BT}
            logits = of(**inputs, attention_mask=batch.attention_mask_BT, use_cache=False).logits
        scaled = logits[batch.row_N, batch.previous_N] / batch.temperature_N[:, None]
        logprob = scaled.log_softmax(-1).gather(-1, batch.target_N[:, None])[:, 0]
        ratio = (logprob - batch.old_logprob_N).exp()
        gain = batch.plus_N * ratio.clamp(max=1.28) + batch.minus_N * ratio.clamp(min=0.8)
        loss = -gain.sum() / batch.denominator
        loss.backward()
        losses[-1] += float(loss.detach())
        if batch.ends_step:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(0.0)
    return losses[:-1]


def weights(of: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in of.parameters()])


@pytest.mark.parametrize("given", [batches, padded_batches])
@pytest.mark.parametrize("micro_batch_tokens", [1_000, 14])
def test_ten_lines_of_torch_train_as_the_trainer_does(
    export: Export, given: Callable[..., Iterator[MicroBatch]], micro_batch_tokens: int
) -> None:
    ours, theirs, before = model(), model(), weights(model())
    with float64_throughout():
        settings = Settings(credit="rloo", filling=TWO_GROUPS, lr=LR, grad_clip=None)
        done = train(ours, export, settings=settings)
        losses = plain_loop(
            theirs,
            given(export, credit="rloo", filling=TWO_GROUPS, micro_batch_tokens=micro_batch_tokens),
        )
    assert len(losses) == 3
    assert losses == pytest.approx([metrics.loss for metrics in done.metrics], rel=1e-9)
    moved = (weights(ours) - before).norm()
    assert moved > 0
    assert (weights(theirs) - weights(ours)).norm() <= 1e-8 * moved
    clipped = [metrics.clip_fraction for metrics in done.metrics]
    assert all(share is not None and 0 < share < 1 for share in clipped)


def test_the_loop_of_the_documentation_trains_as_the_trainer_does(export: Export) -> None:
    [code] = re.findall(
        r"```python\n(for batch in .*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert len(code.splitlines()) == 10
    ours, theirs, before = model(), model(), weights(model())
    train(ours, export, settings=Settings(credit="rloo", lr=LR, grad_clip=None))
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=LR, weight_decay=0.0)
    names = {"tracestore": tracestore, "model": theirs, "optimizer": optimizer}
    exec(code.replace("export/", str(export.path)), names)
    moved = (weights(ours) - before).norm()
    assert moved > 0
    assert (weights(theirs) - weights(ours)).norm() <= 1e-8 * moved


@pytest.mark.parametrize("given", [batches, padded_batches])
def test_a_micro_batch_gives_the_logprobs_that_were_recorded(
    given: Callable[..., Iterator[MicroBatch]], tmp_path: Path
) -> None:
    exact = export_of(recorded(model(torch.float32), [group(0)]), tmp_path / "export")
    of = model(torch.float32)
    for batch in given(exact, micro_batch_tokens=13):
        inputs = {"input_ids": batch.input_ids_BT, "position_ids": batch.position_ids_BT}
        with batch.attention(of), torch.no_grad():
            logits = of(**inputs, attention_mask=batch.attention_mask_BT, use_cache=False).logits
        assert torch.allclose(batch.logprobs(logits).double(), batch.old_logprob_N, atol=1e-5)


def test_micro_batches_hold_each_target_of_a_step_once_within_their_limit(export: Export) -> None:
    for given in (batches, padded_batches):
        found = list(given(export, filling=TWO_GROUPS, micro_batch_tokens=14))
        assert all(batch.input_ids_BT.numel() <= 14 for batch in found)
        ends = [number for number, batch in enumerate(found) if batch.ends_step]
        assert [found[end].step for end in ends] == [0, 1, 2]
        for number, denominator in enumerate([2 * 17, 2 * 17, 17]):
            of_step = [batch for batch in found if batch.step == number]
            assert {batch.denominator for batch in of_step} == {denominator}
            assert sum(len(batch.target_N) for batch in of_step) == denominator


def test_what_was_left_out_is_counted(tmp_path: Path) -> None:
    rows = [group(0), group(1, rewards=[1, 1, 1]), group(2, rewards=[1, 0, None])]
    *_, last = batches(export_of(rows, tmp_path / "export").path)
    assert last.notes == {
        "groups_without_spread": 1,
        "ungraded_episodes": 1,
        "trained_tokens_without_advantage": 4,
    }


def test_an_export_in_which_nothing_trains_is_an_error_even_without_end(tmp_path: Path) -> None:
    export = export_of([group(0, rewards=[None] * 3)], tmp_path / "export")
    for epochs in (1, None):
        with pytest.raises(NothingToTrain, match="ungraded_episodes"):
            next(batches(export, reading=Reading(epochs=epochs)))


def test_wrong_names_and_rows_that_are_too_long_are_errors(export: Export) -> None:
    with pytest.raises(UnknownRule):
        next(batches(export, credit="grpo"))
    with pytest.raises(SampleTooLong):
        next(padded_batches(export, micro_batch_tokens=5))


def test_a_model_that_computes_no_trees_says_so(export: Export) -> None:
    narrow = tiny("mistral", attention="sdpa", sliding_window=4)
    batch = next(batches(export))
    with pytest.raises(TreeUnsupported, match="local attention of 4"), batch.attention(narrow):
        narrow(input_ids=batch.input_ids_BT, position_ids=batch.position_ids_BT, use_cache=False)


def arguments(tmp_path: Path, **fields: Any) -> TrainingArguments:
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    rate = {"learning_rate": LR, "lr_scheduler_type": "constant", "optim": "adamw_torch"}
    return TrainingArguments(str(tmp_path / "trained"), **{**quiet, **rate, "max_steps": 4, **fields})


def test_the_trainer_of_transformers_trains_as_ours_does(export: Export, tmp_path: Path) -> None:
    ours, theirs = model(), model()
    settings = Settings(steps=4, filling=TWO_GROUPS, lr=LR, grad_clip=1.0)
    done = train(ours, export, settings=settings)
    trainer = RecordedTrainer(
        theirs,
        args=arguments(tmp_path, logging_steps=1),
        export=export,
        filling=TWO_GROUPS,
        micro_batch_tokens=14,
    )
    trainer.train()
    logged = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    # transformers holds what it logs in float32.
    assert logged == pytest.approx([metrics.loss for metrics in done.metrics], rel=1e-5, abs=1e-6)
    moved = (weights(ours) - weights(model())).norm()
    assert (weights(theirs) - weights(ours)).norm() <= 1e-5 * moved
    assert trainer.engine.reasons == {}


def test_the_trainer_of_transformers_goes_on_from_its_checkpoint(export: Export, tmp_path: Path) -> None:
    found = {}
    for stops, steps in (((), 4), ((2,), 4)):
        of = model()
        for stop in (*stops, steps):
            args = arguments(tmp_path, max_steps=stop, save_strategy="steps", save_steps=2)
            trainer = RecordedTrainer(of, args=args, export=export, filling=TWO_GROUPS)
            trainer.train(resume_from_checkpoint=bool(stops) and stop == steps)
        found[stops] = weights(of)
        shutil.rmtree(tmp_path / "trained")
    assert torch.equal(found[()], found[2,])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_steps": -1}, "max_steps=-1"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=2"),
        ({"bf16": True}, "bf16=True"),
    ],
)
def test_arguments_that_a_planned_step_leaves_no_room_for_are_refused(
    export: Export, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsuitableArguments, match=said):
        RecordedTrainer(model(), args=arguments(tmp_path, **fields), export=export)


def test_a_loss_that_needs_more_than_a_step_is_refused(export: Export, tmp_path: Path) -> None:
    for objective in (Objective(loss="gspo"), Objective(kl_weight=0.1)):
        with pytest.raises(UnsuitableLoss, match="clipped or reinforce"):
            RecordedTrainer(model(), args=arguments(tmp_path), export=export, objective=objective)


def test_the_package_names_them_and_loads_torch_only_when_they_are_used() -> None:
    assert tracestore.train.batches is batches
    assert tracestore.train.padded_batches is padded_batches
    assert tracestore.train.RecordedTrainer is RecordedTrainer
    with pytest.raises(AttributeError, match="nothing"):
        tracestore.train.nothing  # noqa: B018
    code = "import sys, tracestore, tracestore.train; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
