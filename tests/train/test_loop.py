from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.train.exports import export_of
from tests.train.models import VOCAB, tiny
from tests.train.rows import episodes_of_one_call, row
from tracestore.shards.read import Export, ShardCorrupt
from tracestore.shards.row import Row
from tracestore.train.consumption import Consumed
from tracestore.train.credit import UnknownRule
from tracestore.train.engine import Engine
from tracestore.train.forest import MissingLogprobs, forest, recorded_targets
from tracestore.train.loader import shuffled_rows
from tracestore.train.loop import NothingToTrain, Settings, train
from tracestore.train.losses import UnknownLoss
from tracestore.train.recompute import logprobs
from tracestore.train.step import NonFiniteStep


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
    done = train(tiny("llama", attention="sdpa"), export, settings=Settings(max_tokens_per_step=50))
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
    before = {row.group_id: row for _, row in shuffled_rows(export, seed=0, epoch=0)}
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
        settings = Settings(max_tokens_per_step=42, micro_batch_tokens=micro_batch_tokens, lr=1e-3)
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
    losses = [
        [m.loss for m in train(tiny("llama"), export, settings=Settings(steps=4, lr=1e-3, seed=s)).metrics]
        for s in (0, 0)
    ]
    assert losses[0] == losses[1]
    orders = {
        tuple(row.group_id for _, row in shuffled_rows(export, seed=seed, epoch=0)) for seed in range(6)
    }
    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {tuple(f"group-{i}" for i in range(5))}


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
    assert len(state["state"]) == len(list(model.parameters()))
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
            tiny("llama"), export, settings=Settings(max_tokens_per_step=50), run="run-1", sink=records.extend
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
        train(None, export, settings=Settings(loss="ppo"))


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
    order = [(row.group_id, row.part) for _, row in shuffled_rows(export, seed=1, epoch=0)]
    assert order.index(("g", 1)) == order.index(("g", 0)) + 1
    heard: list[Consumed] = []
    done = train(tiny("llama"), export, settings=Settings(), sink=heard.extend)
    assert done.metrics[0].zero_advantage_tokens == 2 * 4  # only the even episodes of the two other groups
