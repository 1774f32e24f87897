from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.test_tree_equals_rows import float64_throughout
from tests.train.exports import export_of
from tests.train.models import VOCAB, tiny
from tests.train.rows import episodes_of_one_call, random_row, row
from tests.train.test_loop import ONE_GROUP, Stopped, group, recorded, stop_after
from tracestore.shards.log import GroupName
from tracestore.shards.read import Export
from tracestore.shards.row import Row
from tracestore.shards.views import flattened
from tracestore.train.checkpoint import checkpoint_in
from tracestore.train.consumption import Consumed
from tracestore.train.credit.base import Advantages, Context, WrongLength, returns
from tracestore.train.credit.gae import MissingValues
from tracestore.train.critic import Critic, CriticSettings
from tracestore.train.engine import Engine
from tracestore.train.filling import credited, grow
from tracestore.train.forest import Forest, Targets, forest, trainable_targets
from tracestore.train.loader import BEGIN, Group
from tracestore.train.loop import Settings, train
from tracestore.train.losses.base import Objective, UnsuitableLoss
from tracestore.train.model import load_model
from tracestore.train.plan import planned

ALONE = Settings(
    credit="mem1:lambda=0.95",
    critic=CriticSettings(lr=1e-2, pretrain_steps=2),
    lr=1e-3,
    steps=4,
    filling=ONE_GROUP,
)


def agent_of_episodes(index: int) -> Row:
    """A group whose episodes are sequences: the calls of episode 0 follow each other."""
    return group(index, rewards=[1.0, 0.0, 0.5])


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return export_of(recorded(tiny("llama"), [agent_of_episodes(i) for i in range(3)]), tmp_path / "export")


def told(grown: Forest, critic: Critic, seed: int) -> Targets:
    """The forest's targets with random returns, one of them unknown, and the critic's own values."""
    targets = trainable_targets(grown)
    return_N = np.random.default_rng(seed).normal(size=len(targets))
    return_N[0] = np.nan
    value_T = critic.values(grown, micro_batch_tokens=10_000)
    return targets.given(**{"return": return_N, "value_before": value_T[targets.token_N]})


def with_a_head(critic: Critic) -> Critic:
    torch.manual_seed(3)
    torch.nn.init.normal_(critic.head.weight)
    torch.nn.init.normal_(critic.head.bias)
    return critic


def gradient(critic: Critic) -> torch.Tensor:
    grad = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in critic.parameters]
    )
    critic.optimizer.zero_grad(set_to_none=True)
    return grad


def rows_loss(critic: Critic, grown: Forest, targets: Targets) -> torch.Tensor:
    """The mean value loss, one plain row after the other."""
    place = {token: n for n, token in enumerate(targets.token_N.tolist())}
    losses: dict[int, torch.Tensor] = {}
    for index in range(len(grown.row.samples)):
        flat = flattened(grown.row, index)
        ids = torch.as_tensor(flat.token_ids.astype(np.int64))[None]
        states = critic.trunk.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        for n, token in enumerate(flat.token_index.tolist()):
            if token in place:
                value = critic.head(states[n - 1])[0]
                losses[place[token]] = 0.5 * (value - float(targets.more["return"][place[token]])) ** 2
    known = [loss for n, loss in losses.items() if np.isfinite(targets.more["return"][n])]
    return torch.stack(known).mean()


@pytest.mark.parametrize("trains_trunk", [True, False])
def test_values_and_their_gradient_on_a_cut_tree_are_those_of_plain_rows(trains_trunk: bool) -> None:
    with float64_throughout():
        model = tiny("llama", dtype=torch.float64)
        critic = with_a_head(Critic(Engine(model), CriticSettings(), trains_trunk=trains_trunk))
        for seed in (0, 4):
            grown = forest(random_row(seed, vocab=VOCAB))
            targets = told(grown, critic, seed)
            wanted = rows_loss(critic, grown, targets)
            wanted.backward()
            g_rows = gradient(critic)
            model.zero_grad(set_to_none=True)
            longest = int(grown.position_T.max()) + 1
            for tokens in (10_000, longest):
                step = planned([(grown, targets)], micro_batch_tokens=tokens)
                assert critic.gradients(step) == pytest.approx(float(wanted.detach()), rel=1e-9)
                assert (gradient(critic) - g_rows).norm() <= 1e-9 * g_rows.norm()
            assert trains_trunk or all(p.grad is None for p in model.parameters())


def test_a_new_critic_says_zero_and_learns_the_returns() -> None:
    model = tiny("llama", attention="sdpa")
    critic = Critic(Engine(model), CriticSettings(lr=3e-2, epochs=4), trains_trunk=False)
    grown = forest(random_row(4, vocab=VOCAB))
    targets = told(grown, critic, 0)
    assert set(targets.more["value_before"].tolist()) == {0.0}
    before = [p.detach().clone() for p in model.parameters()]
    losses = []
    for _ in range(8):
        targets = targets.given(value_before=critic.values(grown, micro_batch_tokens=10_000)[targets.token_N])
        stats = critic.learn(planned([(grown, targets)], micro_batch_tokens=10_000), grad_clip=None)
        losses.append(stats.value_loss)
    assert losses[-1] < 0.5 * losses[0]
    assert stats.explained_variance is not None
    assert stats.explained_variance > 0.5
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_first_the_critic_learns_alone_and_then_the_policy_with_its_values(
    export: Export, tmp_path: Path
) -> None:
    model, heard = tiny("llama"), list[Consumed]()
    before = [p.detach().clone() for p in model.parameters()]
    alone = train(model, export, settings=replace(ALONE, steps=2, policy_version=7), sink=heard.extend)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert [(m.loss, m.grad_norm, m.ratio_mean) for m in alone.metrics] == [(None, None, None)] * 2
    assert [m.trained_tokens for m in alone.metrics] == [17, 17]
    assert heard == []
    both = train(model, export, settings=ALONE, sink=heard.extend)
    values = [m.value_loss for m in both.metrics]
    assert values[:2] == [m.value_loss for m in alone.metrics]
    assert values[1] != values[0]
    assert all(m.loss is not None for m in both.metrics[2:])
    assert {record.step for record in heard} == {2, 3}
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("own_model", [True, False])
def test_a_stopped_run_with_a_critic_goes_on_bit_for_bit(
    export: Export, tmp_path: Path, own_model: bool
) -> None:
    def critic() -> Any:
        return tiny("llama", seed=1) if own_model else None

    settings = replace(ALONE, steps=5, checkpoint_every=3, critic=replace(ALONE.critic, epochs=2, clip=0.5))
    straight = train(tiny("llama"), export, settings=settings, critic=critic())
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        train(tiny("llama"), export, settings=settings, critic=critic(), out=out, on_step=stop_after(4))
    checkpoint = checkpoint_in(out)
    assert (checkpoint.folder / "critic" / "model.safetensors").is_file() == own_model
    rest = train(
        load_model(checkpoint.folder),
        export,
        settings=settings,
        critic=load_model(checkpoint.folder / "critic") if own_model else None,
        resume=checkpoint,
    )
    assert [(m.loss, m.value_loss, m.critic_grad_norm) for m in rest.metrics] == [
        (m.loss, m.value_loss, m.critic_grad_norm) for m in straight.metrics[3:]
    ]


def test_a_critic_and_the_rules_that_ask_for_one_go_together(export: Export) -> None:
    with pytest.raises(MissingValues, match="--critic head"):
        train(tiny("llama"), export, settings=replace(ALONE, critic=None))
    with pytest.raises(UnsuitableLoss, match="compaction-rl or mem1"):
        train(tiny("llama"), export, settings=replace(ALONE, credit="shared"))
    with pytest.raises(UnsuitableLoss, match="leave out --critic"):
        train(tiny("llama"), export, settings=replace(ALONE, objective=Objective(loss="sft")))


def test_the_metrics_file_says_what_the_critic_did(export: Export, tmp_path: Path) -> None:
    train(tiny("llama"), export, settings=replace(ALONE, credit="compaction-rl"), out=tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] is None for line in lines] == [True, True, False, False]
    assert all(line["value_loss"] > 0 for line in lines)


def test_a_rule_is_given_the_critics_values_and_the_critic_the_rules_returns() -> None:
    made = episodes_of_one_call([1, 0])
    grown = grow(Group(GroupName("group", "g"), (("", made),), BEGIN, {}))
    value_T = np.array([np.nan, np.nan, 0.25, 0.5, 0.25, 0.5])
    batch = credited(
        (grown,), rule="mem1", context=Context(), ownership="train_once", values=lambda _: value_T
    )
    [(_, targets)] = batch.work
    # gamma and lambda 1: A = R - V, and the return is R
    assert (targets.plus_N + targets.minus_N).tolist() == pytest.approx([0.75, 0.5, -0.25, -0.5])
    assert targets.more["return"].tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0])
    assert targets.more["value_before"].tolist() == [0.25, 0.5, 0.25, 0.5]


def test_the_return_of_a_token_is_the_mean_over_the_samples_through_it() -> None:
    # A fork inside completion 0 cuts it into two segments; sample 1 merely reads its beginning.
    made = row(
        [(-1, [1], -1), (0, [2, 3], 0), (1, [4], 0), (1, [5], 1)],
        [(0, [0, 1, 2], [0]), (1, [0, 1, 2], [0]), (1, [0, 1, 3], [1])],
    )
    told = {(0, 0): np.array([1.0, 2.0, 3.0]), (1, 0): np.array([3.0, 4.0, 5.0])}
    found_T = returns(made, Advantages("test", {}, returns=told))
    # (1 + 3) / 2, (2 + 4) / 2, (3 + 5) / 2; the rule said nothing of the prompt and of completion 1
    np.testing.assert_array_equal(found_T, [np.nan, 2.0, 3.0, 4.0, np.nan])
    with pytest.raises(WrongLength):
        returns(made, Advantages("test", {}, returns={(0, 0): np.zeros(2)}))
