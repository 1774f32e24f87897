"""Law 7 for every loss and every term: what a cut tree gives is what its samples give, one by one.

The rows' side holds every sample's graph at once, each a plain row under the model's stock attention, and
writes the loss down as its paper does. On the tree's side a loss that couples tokens (a ratio of a sample, a
margin of a pair) is cut over several micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.test_tree_equals_rows import flat_grad, float64_throughout, prepared, temperatures
from tests.train.models import VOCAB, tiny
from tests.train.rows import random_row, row
from tracestore.shards.row import CandidateSetEntry, MemberEntry, Row
from tracestore.shards.views import flattened
from tracestore.train.couple import ready
from tracestore.train.credit.base import Context
from tracestore.train.engine import Engine
from tracestore.train.filling import Batch, Grown, credited, paired, supervised
from tracestore.train.forest import Forest, Targets, forest
from tracestore.train.loader import BEGIN, Group
from tracestore.train.losses.base import Clip, Objective
from tracestore.train.losses.denominators import Denominator, Work, shared_out
from tracestore.train.plan import planned
from tracestore.train.step import gradients

CLIP = Clip(eps_low=0.2, eps_high=0.28)
SEEDS = ((0, 1), (4, 7))
"""Of the two groups of a step."""


@dataclass(frozen=True)
class Token:
    """A trained token of a sample that owns it, as a plain row gives it."""

    logprob: torch.Tensor
    entropy: torch.Tensor
    reference: torch.Tensor
    old: float
    plus: float
    minus: float


Samples = list[list[Token]]
"""Per sample of a group, its owned tokens; samples without any are left out."""


def models() -> tuple[Any, Any]:
    return tiny("llama", dtype=torch.float64), tiny("llama", dtype=torch.float64, seed=1)


def on_rows(model: Any, reference: Any, grown: Forest, targets: Targets) -> Samples:
    place = {token: n for n, token in enumerate(targets.token_N.tolist())}
    row, found = grown.row, []
    for index in range(len(row.samples)):
        flat = flattened(row, index)
        wanted = [(n, t) for n, t in enumerate(flat.token_index.tolist()) if flat.mask[n] and t in place]
        if not wanted:
            continue
        temperature_N = (
            temperatures(row, flat.completion)
            if grown.temperature is None
            else torch.full((len(flat.token_ids),), grown.temperature, dtype=torch.float64)
        )
        log_p_NV = distributions(model, flat.token_ids, temperature_N)
        with torch.no_grad():
            reference_NV = distributions(reference, flat.token_ids, temperature_N)
        entropy_N = -(log_p_NV.exp() * log_p_NV).sum(-1)
        found.append(
            [
                Token(
                    logprob=log_p_NV[n - 1, flat.token_ids[n]],
                    entropy=entropy_N[n - 1],
                    reference=reference_NV[n - 1, flat.token_ids[n]],
                    old=float(targets.old_logprob_N[place[t]]),
                    plus=float(targets.plus_N[place[t]]),
                    minus=float(targets.minus_N[place[t]]),
                )
                for n, t in wanted
            ]
        )
    return found


def distributions(model: Any, token_ids: np.ndarray, temperature_N: torch.Tensor) -> torch.Tensor:
    """[N - 1, V], log p of what follows each token but the last."""
    ids = torch.as_tensor(token_ids.astype(np.int64))
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits / temperature_N[1:, None], -1)


def mean(groups: Sequence[Samples], loss_of: Callable[[list[Token]], list[torch.Tensor]], kind: str) -> Any:
    """The losses of all tokens, averaged as a denominator says."""
    per_sample = [[torch.stack(loss_of(sample)) for sample in group] for group in groups]
    if kind == "token":
        return torch.cat([losses for group in per_sample for losses in group]).mean()
    if kind == "sequence":
        return torch.stack([losses.mean() for group in per_sample for losses in group]).mean()
    return torch.stack([torch.cat(group).mean() for group in per_sample]).mean()


def clipped(sample: list[Token]) -> list[torch.Tensor]:
    return [gain(torch.exp(t.logprob - t.old), t) for t in sample]


def gain(ratio: torch.Tensor, token: Token) -> torch.Tensor:
    return -(
        token.plus * ratio.clamp(max=1 + CLIP.eps_high) + token.minus * ratio.clamp(min=1 - CLIP.eps_low)
    )


def sequence_clipped(sample: list[Token]) -> list[torch.Tensor]:
    log_ratio = torch.stack([t.logprob - t.old for t in sample]).mean().detach()
    return [gain(torch.exp(log_ratio + t.logprob - t.logprob.detach()), t) for t in sample]


def with_terms(sample: list[Token], objective: Objective) -> list[torch.Tensor]:
    losses = []
    for token, loss in zip(sample, clipped(sample), strict=True):
        d = token.logprob - token.reference
        kl = torch.exp(-d) - 1 + d if objective.kl == "k3" else 0.5 * d.square()  # gradient d grad logprob
        losses.append(loss + objective.kl_weight * kl - objective.entropy_weight * token.entropy)
    return losses


def on_tree(
    batch: Batch,
    objective: Objective,
    model: Any,
    reference: Any,
    *,
    tokens: int,
    use_tree: bool = True,
) -> tuple[float, int]:
    """Runs backward over micro-batches of so many tokens; the loss, and the number of micro-batches."""
    engine, other = Engine(model, use_tree=use_tree), Engine(reference, use_tree=use_tree)
    whole = ready(batch, objective, engine=engine, reference=other, micro_batch_tokens=tokens)
    step = replace(planned(whole.work, micro_batch_tokens=tokens), denominator=whole.denominator)
    stats = gradients(engine, step, objective=objective)
    assert not engine.reasons, "the tree was refused"
    return stats.loss, len(step.micro_batches)


def assert_equal_on_any_cut(
    batch: Batch, objective: Objective, model: Any, reference: Any, *, g_rows: torch.Tensor, loss: float
) -> None:
    longest = max(int(grown.position_T.max()) + 1 for grown, _ in batch.work)
    cuts = []
    for tokens in (10_000, longest, longest + 9):
        found, micro_batches = on_tree(batch, objective, model, reference, tokens=tokens)
        cuts.append(micro_batches)
        assert (flat_grad(model) - g_rows).norm() <= 1e-9 * g_rows.norm()
        if not (objective.kl_weight and objective.kl == "k1"):  # whose value is not what its gradient is of
            assert abs(found - loss) <= 1e-9 * max(1.0, abs(loss))
    assert cuts[0] == 1 < cuts[1]


def credited_work(seeds: tuple[int, int], model: Any) -> list[Work]:
    return [(grown, targets) for _, _, grown, targets in (prepared(seed, model) for seed in seeds)]


def batch_of(work: Sequence[Work], denominator: Denominator) -> Batch:
    shared, count = shared_out([[one] for one in work], denominator)
    return Batch((), shared, count, {})


@pytest.mark.parametrize(
    ("loss", "kind"),
    [("clipped", "sequence"), ("clipped", "group"), ("gspo", "token"), ("gspo", "sequence")],
)
def test_ratios_of_tokens_and_of_samples_under_every_denominator(loss: str, kind: Any) -> None:
    objective = Objective(loss=loss, clip=CLIP)
    with float64_throughout():
        model, reference = models()
        for seeds in SEEDS:
            work = credited_work(seeds, model)
            groups = [on_rows(model, reference, *one) for one in work]
            value = mean(groups, clipped if loss == "clipped" else sequence_clipped, kind)
            value.backward()
            assert_equal_on_any_cut(
                batch_of(work, Denominator(kind)),
                objective,
                model,
                reference,
                g_rows=flat_grad(model),
                loss=float(value.detach()),
            )


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_divergence_and_entropy(estimator: Any) -> None:
    objective = Objective(clip=CLIP, kl_weight=0.7, kl=estimator, entropy_weight=0.3)
    with float64_throughout():
        model, reference = models()
        for seeds in SEEDS:
            work = credited_work(seeds, model)
            groups = [on_rows(model, reference, *one) for one in work]
            value = mean(groups, lambda sample: with_terms(sample, objective), "sequence")
            value.backward()
            assert_equal_on_any_cut(
                batch_of(work, Denominator("sequence")),
                objective,
                model,
                reference,
                g_rows=flat_grad(model),
                loss=float(value.detach()),
            )


def test_under_tree_mean_the_terms_too_are_the_mean_of_the_branches() -> None:
    # Two samples share the completion [3, 4] and have one token of their own each: weights 1, 1, 1/2, 1/2.
    segments = [(-1, [1, 2], -1), (0, [3, 4], 0), (1, [5], 1), (1, [6], 2)]
    made = row(segments, [(0, [0, 1, 2], [0, 1]), (0, [0, 1, 3], [0, 2])], rewards=[1.0])
    objective = Objective(clip=CLIP, kl_weight=0.7, kl="k3", entropy_weight=0.3)
    with float64_throughout():
        model, reference = models()
        batch = credited((grown_group(made),), rule="shared", context=Context(), ownership="tree_mean")
        [(_, targets)] = batch.work
        assert targets.more["term"].tolist() == [1.0, 1.0, 0.5, 0.5]
        # A group of one has no advantage: the terms are all there is.
        assert np.concatenate([targets.plus_N, targets.minus_N]).tolist() == [0.0] * 8
        branches = []
        for path in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6]):
            now_NV, then_NV = (
                distributions(one, np.asarray(path), torch.ones(5, dtype=torch.float64))[1:]
                for one in (model, reference)
            )
            d_N = (now_NV - then_NV.detach())[range(3), path[2:]]
            entropy_N = -(now_NV.exp() * now_NV).sum(-1)
            branches.append((0.7 * (torch.exp(-d_N) - 1 + d_N) - 0.3 * entropy_N).sum())
        value = (branches[0] + branches[1]) / 2 / 4  # over the four tokens that train
        value.backward()
        g_rows = flat_grad(model)
        found, _ = on_tree(batch, objective, model, reference, tokens=100)
        assert found == pytest.approx(float(value.detach()), rel=1e-9)
        assert (flat_grad(model) - g_rows).norm() <= 1e-9 * g_rows.norm()


def grown_group(row: Row) -> Grown:
    return Grown(Group(None, (("", row),), BEGIN, {}), (forest(row),))  # type: ignore[arg-type]


def test_cross_entropy_at_temperature_one() -> None:
    objective = Objective(loss="sft")
    with float64_throughout():
        model, reference = models()
        groups = tuple(grown_group(random_row(seed, vocab=VOCAB)) for seed in SEEDS[0])
        batch = supervised(groups, ownership="train_once")
        value = mean(
            [on_rows(model, reference, *one) for one in batch.work],
            lambda sample: [-t.logprob for t in sample],
            "token",
        )
        value.backward()
        assert_equal_on_any_cut(
            batch, objective, model, reference, g_rows=flat_grad(model), loss=float(value.detach())
        )


def with_candidates(row: Row, seed: int) -> Row:
    """Sets of two or three of the row's completions, whatever their places, one of them selected."""
    rng = np.random.default_rng(seed)
    count = len(row.completions)
    sets = []
    for number in range(4):
        members = rng.choice(count, size=min(count, int(rng.integers(2, 4))), replace=False).tolist()
        sets.append(
            CandidateSetEntry(
                candidate_set_id=f"set-{number}",
                episode=0,
                agent=None,
                generator=None,
                selector=None,
                selector_version=None,
                treatment="pairs",
                members=tuple(
                    MemberEntry(completion=one, agent=None, score=None, selected=not place, continued=None)
                    for place, one in enumerate(members)
                ),
            )
        )
    return replace(row, candidate_sets=tuple(sets))


def dpo_on_rows(model: Any, reference: Any, row: Row, objective: Objective) -> list[torch.Tensor]:
    """The loss of each pair of completions that differ and train."""
    losses = []
    for entry in row.candidate_sets:
        sides = [side(model, reference, row, member) for member in entry.members]
        for other in sides[1:]:
            if sides[0] is None or other is None:
                continue
            (won, won_ids, won_trained), (lost, lost_ids, lost_trained) = sides[0], other
            if won_ids == lost_ids:
                continue
            first = next(
                (i for i, (a, b) in enumerate(zip(won_ids, lost_ids, strict=False)) if a != b),
                min(len(won_ids), len(lost_ids)) - 1,
            )
            mine = [won[n - 1] for n in won_trained if n >= first]
            theirs = [lost[n - 1] for n in lost_trained if n >= first]
            if mine and theirs:
                margin = objective.beta * (torch.stack(mine).sum() - torch.stack(theirs).sum())
                smooth = objective.label_smoothing
                losses.append(
                    -(1 - smooth) * torch.log(torch.sigmoid(margin))
                    - smooth * torch.log(torch.sigmoid(-margin))
                )
    return losses


def side(model: Any, reference: Any, row: Row, member: MemberEntry) -> Any:
    """Log-ratios of all tokens but the first up to a completion's end, the ids, its own trained places."""
    holds = [i for i, one in enumerate(row.samples) if member.completion in one.completions]
    if not holds:
        return None
    flat = flattened(row, holds[0])
    own = [n for n, c in enumerate(flat.completion.tolist()) if c == member.completion]
    ids = flat.token_ids[: own[-1] + 1]
    ones = torch.ones(len(ids), dtype=torch.float64)
    log_p, log_q = distributions(model, ids, ones), distributions(reference, ids, ones).detach()
    at = torch.as_tensor(ids[1:].astype(np.int64))[:, None]
    log_ratio = (log_p - log_q).gather(-1, at)[:, 0]
    return log_ratio, ids.tolist(), [n for n in own if flat.reason[n] == 0]


def test_preference_pairs_on_their_divergent_suffixes() -> None:
    objective = Objective(loss="dpo", beta=0.4, label_smoothing=0.1)
    with float64_throughout():
        model, reference = models()
        for seeds in SEEDS:
            rows = [with_candidates(random_row(seed, vocab=VOCAB), seed) for seed in seeds]
            losses = [loss for row in rows for loss in dpo_on_rows(model, reference, row, objective)]
            value = torch.stack(losses).mean()
            value.backward()
            batch = paired(tuple(map(grown_group, rows)))
            assert batch.denominator == len(losses) > 1
            assert_equal_on_any_cut(
                batch, objective, model, reference, g_rows=flat_grad(model), loss=float(value.detach())
            )


def test_a_samples_ratio_is_the_papers_where_its_tokens_have_one_advantage() -> None:
    """Autograd through -min(s A, clip(s) A) itself, with s over the tokens that a sample owns."""
    rng = np.random.default_rng(0)
    with float64_throughout():
        model, reference = models()
        for seed in range(40):
            _, _, grown, targets = prepared(seed, model)
            samples = on_rows(model, reference, grown, targets)
            owners = grown.owner_S[grown.segment_T[targets.token_N]]
            if len(samples) < 3:
                continue
            sizes = [float(rng.normal()) for _ in samples]
            advantage = dict(zip(sorted(set(owners.tolist())), sizes, strict=True))
            a_N = np.array([advantage[owner] for owner in owners.tolist()])
            targets = replace(targets, plus_N=np.maximum(a_N, 0), minus_N=np.minimum(a_N, 0))
            losses = []
            for sample, a in zip(samples, sizes, strict=True):
                s = torch.exp(torch.stack([t.logprob - t.old for t in sample]).mean())
                losses.append(-torch.minimum(s * a, s.clamp(1 - CLIP.eps_low, 1 + CLIP.eps_high) * a))
            value = torch.stack(losses).mean()
            value.backward()
            g_rows = flat_grad(model)
            batch = batch_of([(grown, targets)], Denominator("sequence"))
            found, _ = on_tree(batch, Objective(loss="gspo", clip=CLIP), model, reference, tokens=10_000)
            assert (flat_grad(model) - g_rows).norm() <= 1e-9 * g_rows.norm()
            assert math.isclose(found, float(value.detach()), rel_tol=1e-9)
            return
        raise AssertionError("no forest with three samples")


def test_a_model_without_trees_computes_a_coupled_loss_on_single_paths() -> None:
    with float64_throughout():
        model, reference = models()
        batch = batch_of(credited_work(SEEDS[0], model), Denominator("sequence"))
        objective = Objective(loss="gspo", clip=CLIP, kl_weight=0.1)
        loss, _ = on_tree(batch, objective, model, reference, tokens=10_000)
        g_tree = flat_grad(model)
        found, _ = on_tree(batch, objective, model, reference, tokens=10_000, use_tree=False)
        assert (flat_grad(model) - g_tree).norm() <= 1e-9 * g_tree.norm()
        assert math.isclose(found, loss, rel_tol=1e-9)
