from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.train.exports import add_entry, export_of, followed
from tests.train.models import VOCAB, tiny
from tests.train.rows import episodes_of_one_call, row
from tracestore.shards.read import Export, ShardCorrupt, open_export
from tracestore.shards.row import PolicyRun, Row
from tracestore.train.checkpoint import NoCheckpoint, OtherRun, checkpoint_in
from tracestore.train.consumption import Consumed
from tracestore.train.credit import UnknownRule
from tracestore.train.engine import Engine
from tracestore.train.filling import Filling
from tracestore.train.forest import MissingLogprobs, forest, recorded_targets
from tracestore.train.loader import Reading
from tracestore.train.loop import LogprobDrift, NothingToTrain, Settings, train
from tracestore.train.losses.base import Objective, UnknownLoss
from tracestore.train.metrics import StepMetrics
from tracestore.train.model import load_model
from tracestore.train.recompute import logprobs
from tracestore.train.schedule import ScheduleWithoutEnd
from tracestore.train.step import NonFiniteStep

ONE_GROUP = Filling(groups_per_step=1)


def group(index: int, *, rewards: Sequence[float | None] = (1.0, 0.0, 0.5)) -> Row:
    """Three episodes over one prompt; the first one goes on after a branch point."""
    rng = np.random.default_rng(index)
    ids = [rng.integers(0, VOCAB, n).tolist() for n in (5, 4, 3, 2, 6, 4)]
    made = row(
        [(-1, ids[0], -1), (0, ids[1], 0), (1, ids[2], 1), (1, ids[3], -1), (0, ids[4], 2), (0, ids[5], 3)],
        [(0, [0, 1, 2], [0, 1]), (0, [0, 1, 3], [0]), (1, [0, 4], [2]), (2, [0, 5], [3])],
        rewards=rewards,
        group_id=f"group-{index}",
        cause={1: "compaction"},
    )
    # Ids are unique in a project.
    calls = tuple(replace(c, call_id=f"{index}-{c.call_id}") for c in made.calls)
    episodes = tuple(replace(e, episode_id=f"{index}-{e.episode_id}") for e in made.episodes)
    return replace(made, calls=calls, episodes=episodes)


def recorded(model: Any, rows: Sequence[Row]) -> list[Row]:
    """The rows with the logprobs that the model gives now."""
    engine = Engine(model)
    result = []
    for made in rows:
        grown = forest(made)
        found_T = logprobs(engine, grown, recorded_targets(grown), micro_batch_tokens=10_000)
        result.append(replace(made, logprobs=np.nan_to_num(found_T)))
    return result


@pytest.fixture
def export(tmp_path: Path) -> Export:
    model = tiny("llama", attention="sdpa")
    return export_of(recorded(model, [group(i) for i in range(5)]), tmp_path / "export")


def test_every_group_is_trained_once_and_the_denominator_counts_every_trained_token(export: Export) -> None:
    done = train(
        tiny("llama", attention="sdpa"), export, settings=Settings(filling=Filling(max_tokens_per_step=50))
    )
    assert len(done.metrics) == 3  # 21 computed tokens a group: two groups a step
    assert (
        sum(m.trained_tokens for m in done.metrics) == export.manifest.conservation.trained_tokens == 5 * 17
    )
    assert done.rows_reasons == {}
    assert done.checkpoint is None


def test_the_importance_ratio_is_one_at_step_zero(export: Export) -> None:
    first = train(tiny("llama", attention="sdpa"), export, settings=Settings(steps=1)).metrics[0]
    assert first.ratio_mean == pytest.approx(1.0, abs=1e-5)
    assert first.clip_fraction == 0.0
    assert first.max_logprob_diff is not None
    assert first.max_logprob_diff < 1e-5


def test_training_raises_what_was_better_than_its_group_and_lowers_what_was_worse(export: Export) -> None:
    model = tiny("llama", attention="sdpa")
    before = {row.group_id: row for row in export.rows()}
    train(model, export, settings=Settings(steps=3, lr=3e-3))
    for after in recorded(model, list(before.values())):
        change_T = after.logprobs - before[after.group_id].logprobs
        assert change_T[14:20].sum() < 0  # episode 1, reward 0 against a mean of .5
        assert change_T[[5, 6, 7, 8, 9, 10, 11]].sum() > 0  # episode 0, reward 1


def test_micro_batches_packing_and_cuts_change_no_weight(export: Export) -> None:
    weights = []
    for micro_batch_tokens in (1_000, 40, 13):
        model = tiny("llama", dtype=torch.float64, attention="sdpa")
        train(
            model,
            export,
            settings=Settings(steps=2, lr=1e-3, micro_batch_tokens=micro_batch_tokens),
        )
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    # The library's float32 norms keep float64 models from agreeing further.
    assert (weights[1] - weights[0]).norm() <= 1e-6 * weights[0].norm()
    assert (weights[2] - weights[0]).norm() <= 1e-6 * weights[0].norm()


def test_a_micro_batch_smaller_than_a_step_leaves_its_steps_losses_and_gradients_as_they_are(
    export: Export,
) -> None:
    found, weights = [], []
    for micro_batch_tokens in (1_000, 42, 21, 13):
        model = tiny("llama", dtype=torch.float64, attention="sdpa")
        # 21 computed tokens a group, 13 on its longest path: two groups a step, each cut in the last run
        settings = Settings(
            filling=Filling(max_tokens_per_step=42), micro_batch_tokens=micro_batch_tokens, lr=1e-3
        )
        done = train(model, export, settings=settings).metrics
        found.append([(m.trained_tokens, m.loss, m.grad_norm) for m in done])
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert [trained for trained, _, _ in found[0]] == [2 * 17, 2 * 17, 17]
    assert all((other - weights[0]).norm() <= 1e-6 * weights[0].norm() for other in weights[1:])
    for other in found[1:]:
        assert np.asarray(other) == pytest.approx(np.asarray(found[0]), rel=1e-5, abs=1e-7)


def test_a_model_without_trees_trains_on_rows_with_the_same_gradient_and_says_why(export: Export) -> None:
    # A window shorter than some paths, but not than any context a trained token needs to see in full.
    on_tree = train(tiny("mistral", attention="sdpa", sliding_window=64), export, settings=Settings(steps=1))
    narrow = tiny("mistral", attention="sdpa", sliding_window=4)
    on_rows = train(narrow, export, settings=Settings(steps=1))
    assert on_tree.rows_reasons == {}
    assert ["4 is shorter than the longest path" in reason for reason in on_rows.rows_reasons] == [True]
    assert on_rows.metrics[0].trained_tokens == on_tree.metrics[0].trained_tokens


def test_equal_seeds_give_equal_runs_and_other_seeds_another_order(export: Export) -> None:
    runs = [
        train(
            tiny("llama"), export, settings=Settings(lr=1e-3, filling=ONE_GROUP, reading=Reading(seed=seed))
        )
        for seed in (0, 0, 1)
    ]
    losses = [[m.loss for m in run.metrics] for run in runs]
    assert losses[0] == losses[1]
    orders = [[m.groups for m in run.metrics] for run in runs]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == [(f"group-{i}",) for i in range(5)]


def test_recomputed_old_logprobs_leave_out_what_the_sampler_did_differently(tmp_path: Path) -> None:
    model = tiny("llama", attention="sdpa")
    rows = recorded(model, [group(0)])
    off = replace(rows[0], logprobs=rows[0].logprobs + 0.1 * rows[0].has_logprob)
    export = export_of([off], tmp_path / "export")
    found = {
        old: train(
            tiny("llama", attention="sdpa"), export, settings=Settings(steps=2, lr=1e-9, old_logprobs=old)
        )
        for old in ("recorded", "recomputed")
    }
    assert found["recorded"].metrics[0].ratio_mean == pytest.approx(np.exp(-0.1), abs=1e-4)
    assert found["recomputed"].metrics[0].ratio_mean == pytest.approx(1.0, abs=1e-5)
    # The drift is against the recorded ones either way.
    assert found["recomputed"].metrics[0].max_logprob_diff == pytest.approx(0.1, abs=1e-4)


def test_a_trained_token_without_logprob_trains_with_recomputed_ones_only(tmp_path: Path) -> None:
    made = replace(group(0), logprobs=None, has_logprob=np.zeros(24, dtype=bool))
    export = export_of([made], tmp_path / "export")
    with pytest.raises(MissingLogprobs):
        train(tiny("llama"), export, settings=Settings(steps=1))
    done = train(tiny("llama"), export, settings=Settings(steps=1, old_logprobs="recomputed"))
    assert done.metrics[0].max_logprob_diff is None


def test_metrics_say_what_each_kind_of_sample_was_credited(export: Export) -> None:
    step = train(tiny("llama"), export, settings=Settings(steps=1)).metrics[0]
    # rewards 1, 0, .5: advantages +.5 on 4 + 3 tokens, -.5 on 6, 0 on 4; the compaction's sample owns nothing
    assert step.advantage_by_cause == {
        "root": {"tokens": 85, "mean": pytest.approx(0.5 / 17), "mean_abs": pytest.approx(6.5 / 17)}
    }
    assert step.zero_advantage_tokens == 5 * 4


def test_what_was_not_trained_is_counted(tmp_path: Path) -> None:
    rows = [group(0), group(1, rewards=[1, 1, 1]), group(2, rewards=[1, 0, None])]
    done = train(tiny("llama"), export_of(rows, tmp_path / "export"), settings=Settings())
    assert done.notes == {
        "groups_without_spread": 1,
        "ungraded_episodes": 1,
        "trained_tokens_without_advantage": 4,
    }


def test_an_export_without_any_reward_is_an_error(tmp_path: Path) -> None:
    export = export_of([group(0, rewards=[None] * 3)], tmp_path / "export")
    with pytest.raises(NothingToTrain, match="ungraded_episodes"):
        train(tiny("llama"), export, settings=Settings())


def test_a_step_that_is_no_finite_number_changes_no_weight_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    made = group(0)
    logprobs = np.where(made.has_logprob, -1e4, 0.0)  # ratio exp(1e4) on a negative advantage
    export = export_of([replace(made, logprobs=logprobs)], tmp_path / "export")
    model = tiny("llama")
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(NonFiniteStep, match="max_logprob_diff"):
        train(model, export, settings=Settings(), out=tmp_path / "out")
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not (tmp_path / "out" / "checkpoint").exists()


def test_a_checkpoint_loads_in_transformers_and_a_new_one_replaces_it(export: Export, tmp_path: Path) -> None:
    out, source = tmp_path / "out", tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    model = tiny("llama", attention="sdpa")
    for _ in range(2):
        done = train(model, export, settings=Settings(lr=1e-3), run="r", out=out, tokenizer_from=source)
    assert done.checkpoint == out / "checkpoint"
    assert (done.checkpoint / "model.safetensors").is_file()
    loaded = AutoModelForCausalLM.from_pretrained(done.checkpoint)
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])
    state = torch.load(done.checkpoint / "optimizer.pt", weights_only=True)
    assert len(state["optimizer"]["state"]) == len(list(model.parameters()))
    assert json.loads((done.checkpoint / "trainer.json").read_text())["steps"] == 1
    assert (done.checkpoint / "tokenizer.json").is_file()
    assert sorted(p.name for p in out.iterdir()) == ["checkpoint", "metrics.jsonl"]
    [line] = (out / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["trained_tokens"] == 85


def test_the_sink_hears_of_every_trained_completion_with_ids_that_a_second_telling_repeats(
    export: Export,
) -> None:
    heard: list[list[Consumed]] = [[], []]
    for records in heard:
        train(
            tiny("llama"),
            export,
            settings=Settings(filling=Filling(max_tokens_per_step=50)),
            run="run-1",
            sink=records.extend,
        )
    assert heard[0] == heard[1]
    assert len({record.id for record in heard[0]}) == len(heard[0]) == 5 * 4
    assert sum(record.tokens for record in heard[0]) == 85
    assert {record.step for record in heard[0]} == {0, 1, 2}
    one = next(record for record in heard[0] if record.call_id == "2-call-0")
    assert (one.episode_id, one.completion, one.tokens, one.run) == ("2-episode-0", 0, 4, "run-1")
    assert one.sample_id == "call-1:0"  # the first sample that holds it owns it
    assert one.shard == "shard-00000.arrow"
    assert one.export_hash == export.manifest.manifest_hash


def test_another_run_has_other_consumption_ids(export: Export) -> None:
    heard: list[Consumed] = []
    for name in ("run-1", "run-2"):
        train(tiny("llama"), export, settings=Settings(), run=name, sink=heard.extend)
    assert len({record.id for record in heard}) == 2 * 5 * 4


def test_unknown_names_are_refused_before_anything_is_loaded(export: Export) -> None:
    with pytest.raises(UnknownRule):
        train(None, export, settings=Settings(credit="grpo"))
    with pytest.raises(UnknownLoss):
        train(None, export, settings=Settings(objective=Objective(loss="ppo")))


def test_a_damaged_shard_is_an_error(export: Export) -> None:
    file = export.path / export.manifest.shards[0].file
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ShardCorrupt):
        train(tiny("llama"), export, settings=Settings())


def test_parts_of_a_group_stay_together_and_use_the_whole_groups_statistics(tmp_path: Path) -> None:
    whole = episodes_of_one_call([1, 0])
    parts = []
    for part in range(2):
        segments = whole.segments
        one = row(
            [(-1, [1, 2], -1), (0, [3 + part, 4 + part], part)], [(part, [0, 1], [part])], rewards=[1, 0]
        )
        parts.append(replace(one, part=part, num_parts=2, completions=whole.completions, calls=whole.calls))
        assert len(segments) == 3
    export = export_of([group(9), *parts, group(8)], tmp_path / "export", rows_per_shard=4)
    heard: list[Consumed] = []
    done = train(tiny("llama"), export, settings=Settings(), sink=heard.extend)
    assert done.metrics[0].zero_advantage_tokens == 2 * 4  # only the even episodes of the two other groups


class Stopped(Exception):
    """Stands in for the end of the machine."""


def stop_after(steps: int) -> Callable[[StepMetrics], None]:
    def on_step(metrics: StepMetrics) -> None:
        if metrics.step + 1 == steps:
            raise Stopped

    return on_step


LONG = Settings(
    steps=9,
    lr=3e-3,
    schedule="cosine",
    warmup_steps=2,
    weight_decay=0.1,
    filling=ONE_GROUP,
    reading=Reading(seed=5, epochs=None, replacement=True, max_reuse=4),
    checkpoint_every=2,
)


@pytest.mark.parametrize("old_logprobs", ["recorded", "recomputed"])
@pytest.mark.parametrize("stopped", [1, 3, 6])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    export: Export, tmp_path: Path, stopped: int, old_logprobs: Literal["recorded", "recomputed"]
) -> None:
    settings = replace(LONG, old_logprobs=old_logprobs)
    straight, out = tiny("llama"), tmp_path / "out"
    whole = train(straight, export, settings=settings, out=tmp_path / "straight")
    with pytest.raises(Stopped):
        train(tiny("llama"), export, settings=settings, out=out, on_step=stop_after(stopped))
    if stopped == 1:  # before the first checkpoint there is nothing to go on from
        with pytest.raises(NoCheckpoint, match="--out"):
            checkpoint_in(out)
        return
    checkpoint = checkpoint_in(out)
    model = load_model(checkpoint.folder)
    rest = train(model, export, settings=settings, out=out, resume=checkpoint)
    before = (stopped - 1) // 2 * 2  # it stops behind a step and before the checkpoint of that step
    assert [m.step for m in rest.metrics] == list(range(before, 9))
    assert [(m.loss, m.groups, m.grad_norm) for m in rest.metrics] == [
        (m.loss, m.groups, m.grad_norm) for m in whole.metrics[before:]
    ]
    assert rest.notes == whole.notes
    for name, value in straight.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(9))
    assert [line["loss"] for line in lines] == [m.loss for m in whole.metrics]


def test_a_checkpoint_is_gone_on_from_with_its_own_settings_and_export_only(
    export: Export, tmp_path: Path
) -> None:
    model = tiny("llama")
    train(model, export, settings=replace(LONG, steps=1, schedule="constant"), out=tmp_path / "out")
    checkpoint = checkpoint_in(tmp_path / "out")
    with pytest.raises(OtherRun, match=r"lr 0\.003 there, 0\.1 here"):
        train(model, export, settings=replace(LONG, schedule="constant", lr=0.1), resume=checkpoint)
    other = export_of([group(7)], tmp_path / "other")
    with pytest.raises(OtherRun, match="export"):
        train(model, other, settings=replace(LONG, schedule="constant"), resume=checkpoint)
    more = train(model, export, settings=replace(LONG, steps=3, schedule="constant"), resume=checkpoint)
    assert [m.step for m in more.metrics] == [1, 2]


def test_a_checkpoint_that_was_being_replaced_when_the_machine_stopped_is_found(
    export: Export, tmp_path: Path
) -> None:
    done = train(tiny("llama"), export, settings=Settings(steps=1), out=tmp_path)
    assert done.checkpoint is not None
    done.checkpoint.rename(tmp_path / ".checkpoint.old")
    assert checkpoint_in(tmp_path).state["steps"] == 1
    train(tiny("llama"), export, settings=Settings(steps=2), out=tmp_path)
    assert checkpoint_in(tmp_path).state["steps"] == 2
    assert sorted(p.name for p in tmp_path.iterdir() if "checkpoint" in p.name) == ["checkpoint"]


def test_a_step_takes_so_many_groups_however_large_and_the_rest_is_a_smaller_one(export: Export) -> None:
    done = train(tiny("llama"), export, settings=Settings(filling=Filling(groups_per_step=2)))
    assert [len(m.groups) for m in done.metrics] == [2, 2, 1]


def test_a_group_larger_than_a_step_is_trained_in_one(export: Export) -> None:
    done = train(
        tiny("llama"),
        export,
        settings=Settings(filling=Filling(max_tokens_per_step=5), micro_batch_tokens=15),
    )
    assert [m.trained_tokens for m in done.metrics] == [17] * 5


def test_groups_without_spread_are_replaced_by_others_and_counted(tmp_path: Path) -> None:
    even = {1, 2, 4}
    rows = [group(i, rewards=[1, 1, 1] if i in even else [1, 0, 0.5]) for i in range(6)]
    export = export_of(rows, tmp_path / "export")
    settings = Settings(filling=Filling(groups_per_step=3, refill=True))
    done = train(tiny("llama"), export, settings=settings)
    assert [sorted(m.groups) for m in done.metrics] == [["group-0", "group-3", "group-5"]]
    assert done.notes["groups_refilled"] == 3


def test_an_export_in_which_no_group_has_spread_ends_a_run_that_replaces_them(tmp_path: Path) -> None:
    export = export_of([group(i, rewards=[1, 1, 1]) for i in range(3)], tmp_path / "export")
    settings = Settings(steps=5, filling=Filling(groups_per_step=1, refill=True))
    with pytest.raises(NothingToTrain, match="no group has spread"):
        train(tiny("llama"), export, settings=settings)


def versions(made: Row, version_of: Mapping[int, int]) -> Row:
    """The row with the policy version of each of its completions."""
    segments = made.segments
    runs = [
        PolicyRun(int(segments.start[s]), int(segments.length[s]), "policy", version_of[c])
        for s, c in enumerate(segments.completion.tolist())
        if c in version_of
    ]
    return replace(made, policy_runs=tuple(runs))


def test_tokens_of_a_policy_too_far_behind_do_not_train_and_are_counted_at_each_step(tmp_path: Path) -> None:
    # completions of 4, 3, 6 and 4 trained tokens; the last one's policy is not known
    rows = [versions(group(i), {0: 7, 1: 6, 2: 5}) for i in range(2)]
    export = export_of(rows, tmp_path / "export")
    done = train(
        tiny("llama"),
        export,
        settings=Settings(policy_version=7, max_staleness=1, filling=ONE_GROUP),
    )
    # step 0: version 7 may be 6 or later; step 1: the weights are version 8, so 7 or later
    assert [m.trained_tokens for m in done.metrics] == [17 - 6, 17 - 6 - 3]
    assert [m.staleness for m in done.metrics] == [{"0": 4, "1": 3}, {"1": 4}]
    assert done.notes["stale_tokens"] == 6 + 9


def test_a_run_stops_when_the_model_has_drifted_from_what_was_recorded(tmp_path: Path) -> None:
    made = recorded(tiny("llama", attention="sdpa"), [group(0)])[0]
    off = replace(made, logprobs=made.logprobs + 0.1 * made.has_logprob)
    export = export_of([off], tmp_path / "export")
    with pytest.raises(LogprobDrift, match=r"mean_logprob_diff=0\.(1|09999)"):
        train(tiny("llama", attention="sdpa"), export, settings=Settings(stop_at_drift=0.05))
    done = train(tiny("llama", attention="sdpa"), export, settings=Settings(stop_at_drift=0.2))
    assert done.metrics[0].mean_logprob_diff == pytest.approx(0.1, abs=1e-4)


def test_the_rate_rises_and_falls_as_the_schedule_says(export: Export) -> None:
    settings = Settings(steps=4, lr=0.4, schedule="linear", warmup_steps=2, filling=ONE_GROUP)
    done = train(tiny("llama"), export, settings=settings)
    # 2 steps up from 0: 0, .2; then down to 0 over the other 2: .4, .2
    assert [m.lr for m in done.metrics] == pytest.approx([0.0, 0.2, 0.4, 0.2])
    with pytest.raises(ScheduleWithoutEnd, match="--steps"):
        train(tiny("llama"), export, settings=Settings(schedule="cosine"))


def test_an_export_that_goes_on_is_followed_and_gone_on_with(tmp_path: Path) -> None:
    log = followed(tmp_path / "export")
    add_entry(log, [group(0), group(1)])
    settings = Settings(filling=ONE_GROUP, reading=Reading(follow=True, idle_s=0), lr=1e-3)
    out = tmp_path / "out"
    first = train(tiny("llama"), open_export(log.folder), settings=settings, out=out)
    assert len(first.metrics) == 2
    add_entry(log, [group(2)])
    checkpoint = checkpoint_in(out)
    model = load_model(checkpoint.folder)
    rest = train(model, open_export(log.folder), settings=settings, out=out, resume=checkpoint)
    assert [(m.step, m.groups) for m in rest.metrics] == [(2, ("group-2",))]


def test_no_step_takes_groups_of_two_epochs(export: Export) -> None:
    done = train(tiny("llama"), export, settings=Settings(steps=2))
    assert [sorted(m.groups) for m in done.metrics] == [[f"group-{i}" for i in range(5)]] * 2


def test_a_checkpoint_is_on_disk_before_it_takes_its_name(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    lacking: list[set[str]] = []
    fsync, rename = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def checked_rename(source: Path, target: Path) -> None:
        lacking.append({str(path) for path in (source, *source.rglob("*"))} - synced)
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", checked_rename)
    train(tiny("llama"), export, settings=Settings(steps=1), out=tmp_path.resolve())
    assert lacking == [set()]
