"""What a run does with each loss, the reference model and the denominators."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.exports import export_of
from tests.train.models import tiny
from tests.train.rows import candidates, episodes_of_one_call
from tests.train.test_loop import ONE_GROUP, Stopped, group, recorded, stop_after
from tracestore.shards.read import Export
from tracestore.shards.row import Row
from tracestore.train.checkpoint import checkpoint_in
from tracestore.train.couple import OtherVocabulary
from tracestore.train.filling import Filling, truncated
from tracestore.train.forest import Targets, forest
from tracestore.train.loop import NothingToTrain, Settings, check_settings, train
from tracestore.train.losses.base import MissingReference, Objective, UnsuitableLoss
from tracestore.train.losses.denominators import Denominator
from tracestore.train.model import load_model

DPO = Settings(objective=Objective(loss="dpo"), lr=3e-3)


def model(**fields: Any) -> Any:
    return tiny("llama", attention="sdpa", **fields)


def pairs_of(index: int) -> Row:
    """Episode 0's answer was selected, and the two others' were not."""
    made = group(index, rewards=[None] * 3)
    return replace(made, candidate_sets=(candidates("pairs", [1, 0, 0, 0]),))


def without_logprobs(made: Row) -> Row:
    return replace(made, logprobs=None, has_logprob=np.zeros(len(made.token_ids), dtype=bool))


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return export_of(recorded(model(), [group(i) for i in range(3)]), tmp_path / "export")


def test_cross_entropy_asks_for_no_reward_and_no_logprob(tmp_path: Path) -> None:
    rows = [without_logprobs(group(i, rewards=[None] * 3)) for i in range(3)]
    export = export_of(rows, tmp_path / "export")
    done = train(model(), export, settings=Settings(objective=Objective(loss="sft"), steps=4, lr=3e-3))
    first, last = done.metrics[0], done.metrics[-1]
    assert first.trained_tokens == first.denominator == 3 * 17
    assert last.loss < first.loss - 0.1
    assert (first.ratio_mean, first.clip_fraction, first.max_logprob_diff) == (None, None, None)
    assert (first.zero_advantage_tokens, first.advantage_by_cause) == (0, {})


def test_what_was_selected_becomes_likelier_than_what_was_not(tmp_path: Path) -> None:
    export = export_of([without_logprobs(pairs_of(i)) for i in range(2)], tmp_path / "export")
    done = train(model(), export, settings=replace(DPO, steps=4), reference=model())
    first, last = done.metrics[0], done.metrics[-1]
    assert first.denominator == 2 * 3
    assert first.loss == pytest.approx(np.log(2), abs=1e-5)  # the policy is its reference: -log sigmoid(0)
    assert last.loss < first.loss
    assert last.preferred == 1.0


def test_an_export_without_a_pair_says_why(tmp_path: Path) -> None:
    made = replace(pairs_of(0), candidate_sets=(candidates("pairs", [1, 0], selected=None),))
    with pytest.raises(NothingToTrain, match=r"sets_without_a_choice.*no candidate set has a selected"):
        train(model(), export_of([made], tmp_path / "export"), settings=DPO, reference=model())


def test_a_reference_is_asked_for_and_has_the_models_vocabulary(export: Export) -> None:
    for objective in (Objective(loss="dpo"), Objective(kl_weight=0.1)):
        with pytest.raises(MissingReference, match="--reference"):
            train(model(), export, settings=Settings(objective=objective))
    with pytest.raises(OtherVocabulary, match="reference_vocab_size=70"):
        train(
            model(),
            export,
            settings=Settings(objective=Objective(kl_weight=0.1)),
            reference=model(vocab_size=70),
        )


@pytest.mark.parametrize(
    ("settings", "objective", "hint"),
    [
        (Settings(importance_cap=2.0), None, "--old-logprobs recomputed"),
        (Settings(objective=Objective(loss="sft"), filling=Filling(refill=True)), None, "--refill"),
        (
            Settings(objective=Objective(loss="sft"), importance_cap=2.0, old_logprobs="recomputed"),
            None,
            "--importance-cap",
        ),
        (replace(DPO, denominator=Denominator("sequence")), None, "divides by its pairs"),
        (Settings(objective=Objective(loss="sft")), "rl", "--objective sft"),
        (DPO, "sft", "--objective preference"),
    ],
)
def test_settings_that_do_not_go_together_say_what_to_do(
    settings: Settings, objective: str | None, hint: str
) -> None:
    with pytest.raises(UnsuitableLoss, match=hint):
        check_settings(settings, objective=objective, reference=object())


@pytest.mark.parametrize("kind", ["token", "sequence", "group", "constant"])
def test_a_group_without_spread_counts_in_every_denominator(tmp_path: Path, kind: Any) -> None:
    rows = recorded(model(), [group(0), group(1, rewards=[1, 1, 1])])
    settings = Settings(denominator=Denominator(kind, length=10), steps=1)
    step = train(model(), export_of(rows, tmp_path / "export"), settings=settings).metrics[0]
    assert step.trained_tokens == 2 * 17
    assert step.zero_advantage_tokens == 4 + 17
    # three samples of a group own a token; three episodes
    assert step.denominator == {"token": 2 * 17, "sequence": 2 * 3, "group": 2, "constant": 2 * 3}[kind]


def test_the_divergence_is_zero_while_the_policy_is_its_reference(export: Export) -> None:
    objective = Objective(kl_weight=0.1, entropy_weight=0.01)
    done = train(model(), export, settings=Settings(objective=objective, steps=3, lr=3e-3), reference=model())
    first, last = done.metrics[0], done.metrics[-1]
    assert first.kl == pytest.approx(0.0, abs=1e-6)
    assert last.kl is not None
    assert last.kl > 1e-4
    assert first.entropy is not None
    assert 0 < first.entropy < np.log(61)


def test_entropy_that_is_rewarded_rises(export: Export) -> None:
    objective = Objective(entropy_weight=1.0)
    done = train(model(), export, settings=Settings(objective=objective, steps=4, lr=3e-3))
    first, last = done.metrics[0].entropy, done.metrics[-1].entropy
    assert first is not None
    assert last is not None
    assert last > first + 0.01


def test_a_stopped_run_with_a_reference_and_a_ratio_by_sample_goes_on_bit_for_bit(
    export: Export, tmp_path: Path
) -> None:
    settings = Settings(
        objective=Objective(loss="gspo", kl_weight=0.1, entropy_weight=0.01),
        denominator=Denominator("sequence"),
        old_logprobs="recomputed",
        importance_cap=2.0,
        steps=4,
        lr=3e-3,
        filling=ONE_GROUP,
        checkpoint_every=2,
    )
    whole = train(tiny("llama"), export, settings=settings, reference=tiny("llama", seed=1))
    with pytest.raises(Stopped):
        train(
            tiny("llama"),
            export,
            settings=settings,
            reference=tiny("llama", seed=1),
            out=tmp_path,
            on_step=stop_after(3),
        )
    checkpoint = checkpoint_in(tmp_path)
    rest = train(
        load_model(checkpoint.folder),
        export,
        settings=settings,
        reference=tiny("llama", seed=1),
        resume=checkpoint,
    )
    assert [(m.loss, m.kl, m.entropy, m.grad_norm) for m in rest.metrics] == [
        (m.loss, m.kl, m.entropy, m.grad_norm) for m in whole.metrics[2:]
    ]


def test_what_the_sampler_made_likelier_than_the_trainer_weighs_less() -> None:
    call = {1: {"logprobs_are": "processed", "top_p": 0.5, "temperature": 1.0}}
    made = episodes_of_one_call([1, 0], call=call)
    made = replace(made, logprobs=np.array([0, 0, -1.5, -0.5, -3.0, -3.0]))
    targets = Targets(np.arange(2, 6), np.full(4, 2.0), np.full(4, -4.0), np.full(4, -1.0))
    notes: Counter[str] = Counter()
    found = truncated(forest(made), targets, cap=1.5, notes=notes)
    # min(e^.5, 1.5) = 1.5, e^-.5 = .6065; of the second call a part of the vocabulary was cut off: 1
    assert found.plus_N.tolist() == pytest.approx([3.0, 1.2131, 2.0, 2.0], abs=1e-4)
    assert found.minus_N.tolist() == pytest.approx([-6.0, -2.4261, -4.0, -4.0], abs=1e-4)
    assert +notes == {"tokens_over_importance_cap": 1, "tokens_without_importance_weight": 2}
