"""What other trainers are given has the gradient of ours: one rollout of four samples beside three of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, GRPOConfig, SFTConfig, SFTTrainer

from tests.tokens.folders import folder
from tests.train.exports import export_of
from tests.train.models import VOCAB, tiny
from tests.train.rows import candidates, row
from tracestore.shards.log import GroupName
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.train.couple import ready
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context, combine
from tracestore.train.engine import Engine
from tracestore.train.filling import Batch, Grown, grow, paired, supervised
from tracestore.train.forest import forest, recorded_targets, trained_targets
from tracestore.train.loader import BEGIN, Group
from tracestore.train.losses.base import Clip, Objective
from tracestore.train.plan import planned
from tracestore.train.recompute import logprobs
from tracestore.train.step import gradients
from tracestore.train.trl import NothingToEvaluate, OtherTemperature, RecordedDPOTrainer, RecordedGRPOTrainer
from tracestore_exporters import verl
from tracestore_exporters.convert import Target, convert
from tracestore_exporters.flat import MissingLogprob, NoAdvantages
from tracestore_exporters.padded import SeveralTemperatures
from tracestore_exporters.verl import NothingTrains

CLIP = Clip(eps_low=0.2, eps_high=0.28)
PAD = VOCAB - 1
Gradient = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def group(*, temperature: float = 1.0) -> Row:
    """Episode 0: two compactions and a branch (which shares a sampled answer) make four samples. Episodes 1
    to 3 are one sample each. A tool result stands inside the first."""
    rng = np.random.default_rng(3)
    ids = [rng.integers(0, PAD, n).tolist() for n in (6, 4, 3, 5, 2, 4, 7, 5, 6, 4, 3, 5, 4)]
    made = row(
        [
            (-1, ids[0], -1),
            (0, ids[1], 0),
            (1, ids[2], -1),
            (2, ids[3], 1),
            (1, ids[4], -1),
            (4, ids[5], 2),
            (0, ids[10], 5),
            (0, ids[11], 6),
            (0, ids[12], 7),
            (-1, ids[6], -1),
            (9, ids[7], 3),
            (-1, ids[8], -1),
            (11, ids[9], 4),
        ],
        [
            (0, [0, 1, 2, 3], [0, 1]),
            (0, [0, 1, 4, 5], [0, 2]),
            (1, [0, 6], [5]),
            (2, [0, 7], [6]),
            (3, [0, 8], [7]),
            (0, [9, 10], [3]),
            (0, [11, 12], [4]),
        ],
        rewards=[1.0, 0.0, 0.25, 0.5],
        cause={5: "compaction", 6: "compaction"},
        call={c: {"logprobs_are": "processed", "temperature": temperature} for c in range(8)},
    )
    return recorded(made)


def recorded(made: Row) -> Row:
    """Logprobs near those of the model, so that ratios lie on both sides of both clips."""
    grown = forest(made)
    found_T = logprobs(Engine(model()), grown, recorded_targets(grown), micro_batch_tokens=10_000)
    noise_T = np.random.default_rng(5).uniform(-0.4, 0.4, len(found_T))
    return replace(made, logprobs=np.nan_to_num(found_T + noise_T))


def model(dtype: torch.dtype = torch.float64) -> Any:
    return tiny("llama", dtype=dtype, attention="sdpa")


def written(made: Row, tmp_path: Path, to: Target, *, rule: str | None = "shared") -> Path:
    """An export of the row as `to`, with the advantages of a rule."""

    def credit(one: Row) -> Any:
        return combine(one, advantages(one, rule="shared", context=Context()))

    export = export_of([made], tmp_path / "export")
    convert(export, tmp_path / to, to=to, rule=rule, credit=None if rule is None else credit)
    return tmp_path / to


def flat(made: Row, tmp_path: Path) -> datasets.Dataset:
    return dataset(written(made, tmp_path, "flat"))


def dataset(at: Path) -> datasets.Dataset:
    return datasets.load_dataset("parquet", data_files=str(at / "*.parquet"), split="train")


def our_gradient(made: Row, of: Any) -> Gradient:
    """Of the one step that trains the row, by the trainer itself."""
    credit = combine(made, advantages(made, rule="shared", context=Context()))
    grown = forest(made)
    step = planned([(grown, trained_targets(grown, credit))], micro_batch_tokens=10_000)
    gradients(Engine(of), step, objective=Objective(clip=CLIP))
    return gradient_of(of)


def gradient_of(of: Any) -> Gradient:
    return {name: one.grad.clone() for name, one in of.named_parameters() if one.grad is not None}


def assert_equal(theirs: Gradient, ours: Gradient, *, tolerance: float) -> None:
    """||theirs - ours|| / ||ours|| over all parameters."""
    assert theirs.keys() == ours.keys()
    difference = sum(float((theirs[name] - ours[name]).double().square().sum()) for name in ours)
    whole = sum(float(ours[name].double().square().sum()) for name in ours)
    assert whole > 0
    assert (difference / whole) ** 0.5 <= tolerance


def clipped(logprob: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """PPO's loss of each token."""
    ratio = torch.exp(logprob - old)
    cut = ratio.clamp(1 - CLIP.eps_low, 1 + CLIP.eps_high)
    return -torch.minimum(ratio * advantage, cut * advantage)


def plain_gradient(records: list[dict[str, Any]], of: Any) -> Gradient:
    """One sequence after the other: `ids`, `mask`, `old`, `advantages` and `temperatures`, all [N]."""
    total = sum(sum(one["mask"]) for one in records)
    for one in records:
        ids = torch.tensor([one["ids"]])
        mask = torch.tensor(one["mask"])[1:]
        logits = of(input_ids=ids).logits[0, :-1] / torch.tensor(one["temperatures"])[1:, None]
        logprob = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        old = torch.tensor([value or 0.0 for value in one["old"]], dtype=torch.float64)[1:]
        loss = clipped(logprob, old, torch.tensor(one["advantages"], dtype=torch.float64)[1:])
        (loss[mask].sum() / total).backward()
    return gradient_of(of)


def test_the_rollouts_are_four_samples_beside_three_of_one(tmp_path: Path) -> None:
    episodes = flat(group(), tmp_path)["episode_id"]
    assert sorted(list(episodes).count(one) for one in set(episodes)) == [1, 1, 1, 4]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_flat_records_give_our_gradient(tmp_path: Path, temperature: float) -> None:
    made = group(temperature=temperature)
    theirs = plain_gradient(
        [
            {
                "ids": one["input_ids"],
                "mask": one["loss_mask"],
                "old": one["logprobs"],
                "advantages": one["advantages"],
                "temperatures": [temperature] * len(one["input_ids"]),
            }
            for one in flat(made, tmp_path)
        ],
        model(),
    )
    assert_equal(theirs, our_gradient(made, model()), tolerance=1e-6)


def test_prime_rl_lines_give_our_gradient(tmp_path: Path) -> None:
    made = group(temperature=0.7)
    text = (written(made, tmp_path, "prime-rl") / "shard-00000.jsonl").read_text()
    theirs = plain_gradient(
        [
            {
                "ids": one["token_ids"],
                "mask": one["advantages"][0]["mask"],
                "old": one["logprobs"],
                "advantages": one["advantages"][0]["values"],
                "temperatures": one["temperatures"],
            }
            for one in map(json.loads, text.splitlines())
        ],
        model(),
    )
    assert_equal(theirs, our_gradient(made, model()), tolerance=1e-6)


def test_a_verl_batch_gives_our_gradient(tmp_path: Path) -> None:
    made = group(temperature=0.7)
    batch = verl.batch(list(flat(made, tmp_path)), pad_token_id=PAD)
    given = {name: torch.from_numpy(values) for name, values in batch.tensors.items()}
    theirs = model()
    length = given["responses"].shape[1]
    logits = theirs(**{name: given[name] for name in ("input_ids", "attention_mask", "position_ids")}).logits
    logits = logits[:, -length - 1 : -1] / batch.meta_info["temperature"]
    logprob = logits.log_softmax(-1).gather(-1, given["responses"][..., None])[..., 0]
    loss = clipped(logprob, given["old_log_probs"].double(), given["advantages"].double())
    mask = given["response_mask"]
    ((loss * mask).sum() / mask.sum()).backward()  # token-mean
    assert_equal(gradient_of(theirs), our_gradient(made, model()), tolerance=1e-6)


def test_a_verl_batch_has_the_names_and_shapes_of_its_protocol(tmp_path: Path) -> None:
    batch = verl.batch(list(flat(group(), tmp_path)), pad_token_id=PAD)
    prompts, responses = batch.tensors["prompts"].shape[1], batch.tensors["responses"].shape[1]
    whole = {"input_ids", "attention_mask", "position_ids"}
    for name, values in batch.tensors.items():
        width = prompts + responses if name in whole else prompts if name == "prompts" else responses
        assert values.shape == (7, width), name
    assert set(batch.non_tensors["uid"]) == {"g"}
    assert batch.non_tensors["episode_uid"].tolist() == ["episode-0"] * 2 + [
        *(f"episode-{n}" for n in (1, 2, 3)),
        *["episode-0"] * 2,
    ]
    assert all(values.dtype == object for values in batch.non_tensors.values())
    first = batch.tensors["attention_mask"][:, prompts - 1 : prompts + 1]
    assert first.all()  # prompts end, and responses begin, where the two meet


def test_what_a_batch_lacks_is_told(tmp_path: Path) -> None:
    records = list(flat(group(), tmp_path))
    with pytest.raises(NoAdvantages, match="--advantages"):
        verl.batch([one | {"advantages": None} for one in records], pad_token_id=PAD)
    with pytest.raises(MissingLogprob, match="objective rl"):
        verl.batch([one | {"logprobs": [None] * len(one["logprobs"])} for one in records], pad_token_id=PAD)
    with pytest.raises(NothingTrains):
        verl.batch([one | {"loss_mask": [False] * len(one["logprobs"])} for one in records], pad_token_id=PAD)
    hot = [run | {"temperature": 1.5} for run in records[0]["completions"]]
    with pytest.raises(SeveralTemperatures, match=r"\[1.0, 1.5\]"):
        verl.batch([records[0] | {"completions": hot}, *records[1:]], pad_token_id=PAD)


def tokenizer(tmp_path: Path) -> Any:
    file = folder(tmp_path / "tokenizer") / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), pad_token="<|end|>", eos_token="<|im_end|>")


def wide(dtype: torch.dtype = torch.float32) -> Any:
    """A model with an embedding for the tokenizer's pad token too."""
    return tiny("llama", dtype=dtype, attention="sdpa", vocab_size=300)


class Stop(Exception):
    """The gradient is there; no weight is to change."""


def stopping(trainer_class: type) -> type:
    """A trainer that ends at its first optimizer step."""

    class Stopping(trainer_class):  # type: ignore[misc]
        def create_optimizer(self, *args: Any, **others: Any) -> Any:
            optimizer = super().create_optimizer(*args, **others)

            def step(*_: Any, **__: Any) -> None:
                raise Stop

            optimizer.step = step
            return optimizer

    return Stopping


def of_trl(tmp_path: Path) -> dict[str, Any]:
    return {
        "output_dir": str(tmp_path / "trained"),
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "max_grad_norm": 0.0,
        "disable_tqdm": True,
        "save_strategy": "no",
    }


def test_trl_grpo_on_recorded_samples_has_our_gradient(tmp_path: Path) -> None:
    made = recorded_by(wide(), group())
    theirs = wide()
    args = GRPOConfig(
        **of_trl(tmp_path),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,  # 8 places for 7 samples
        num_generations=2,
        epsilon=CLIP.eps_low,
        epsilon_high=CLIP.eps_high,
    )
    trainer = stopping(RecordedGRPOTrainer)(
        theirs, args=args, train_dataset=flat(made, tmp_path), processing_class=tokenizer(tmp_path)
    )
    with pytest.raises(Stop):
        trainer.train()
    assert_equal(gradient_of(theirs), our_gradient(made, wide()), tolerance=1e-5)


def recorded_by(of: Any, made: Row) -> Row:
    grown = forest(made)
    found_T = logprobs(Engine(of), grown, recorded_targets(grown), micro_batch_tokens=10_000)
    noise_T = np.random.default_rng(5).uniform(-0.4, 0.4, len(found_T))
    return replace(made, logprobs=np.nan_to_num(found_T + noise_T).astype(np.float32))


def test_trl_grpo_wants_advantages_the_temperature_of_the_recording_and_no_evaluation(tmp_path: Path) -> None:
    args = GRPOConfig(
        **of_trl(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=4, num_generations=2
    )
    records = flat(group(temperature=0.7), tmp_path)
    trainer = RecordedGRPOTrainer(
        wide(), args=args, train_dataset=records, processing_class=tokenizer(tmp_path)
    )
    with pytest.raises(OtherTemperature, match=r"recorded=0.7"):
        trainer.train()
    with pytest.raises(NothingToEvaluate):
        RecordedGRPOTrainer(wide(), args=args, train_dataset=records, eval_dataset=records)
    plain = dataset(written(group(), tmp_path / "plain", "flat", rule=None))
    with pytest.raises(NoAdvantages):
        RecordedGRPOTrainer(wide(), args=args, train_dataset=plain, processing_class=tokenizer(tmp_path))


def test_trl_sft_trains_the_tokens_of_the_mask_and_no_other(tmp_path: Path) -> None:
    made = group()
    records = dataset(written(made, tmp_path, "sft", rule=None))
    theirs = wide()
    args = SFTConfig(**of_trl(tmp_path), per_device_train_batch_size=7, max_length=None)
    trainer = stopping(SFTTrainer)(
        theirs, args=args, train_dataset=records, processing_class=tokenizer(tmp_path)
    )
    with pytest.raises(Stop):
        trainer.train()
    ours = wide()
    total = made.num_trained
    for one in records:
        ids, labels = torch.tensor([one["input_ids"]]), torch.tensor(one["labels"])[1:]
        logprob = ours(input_ids=ids).logits[0, :-1].log_softmax(-1)
        kept = labels >= 0
        assert labels[kept].tolist() == ids[0, 1:][kept].tolist()
        (-logprob[kept, labels[kept]].sum() / total).backward()
    assert sum(sum(label >= 0 for label in one["labels"]) for one in records) == total
    assert_equal(gradient_of(theirs), gradient_of(ours), tolerance=1e-5)
    by_us = wide()
    trained(by_us, supervised((grown(made),), ownership="train_once"), Objective(loss="sft"))
    assert_equal(gradient_of(theirs), gradient_of(by_us), tolerance=1e-5)


# TRL asks its reference model by the old name.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_trl_dpo_trains_pairs_of_ids_as_they_are(tmp_path: Path) -> None:
    made = row(
        [(-1, [1, 2], -1), (0, [3, 4, 5], 0), (0, [3, 6], 1)],
        [(0, [0, 1], [0]), (0, [0, 2], [1])],
        candidate_sets=[candidates("pairs", [0.9, 0.1])],
    )
    reason = made.reason.copy()
    reason[4] = Reason.STALE
    made = replace(made, reason=reason)
    records = dataset(written(made, tmp_path, "preference", rule=None))
    assert records[0]["chosen_mask"] == [True, False]
    theirs, reference = wide(), tiny("llama", seed=1, attention="sdpa", vocab_size=300)
    args = DPOConfig(**of_trl(tmp_path), per_device_train_batch_size=1, beta=0.5)
    trainer = stopping(RecordedDPOTrainer)(
        theirs,
        args=args,
        train_dataset=records,
        ref_model=reference,
        processing_class=tokenizer(tmp_path),
    )
    with pytest.raises(Stop):
        trainer.train()
    ours = wide()

    def log_ratio(ids: list[int], at: list[int]) -> torch.Tensor:
        both = []
        for one in (ours, reference):
            logprob = one(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            both.append(torch.stack([logprob[place - 1, ids[place]] for place in at]).sum())
        return both[0] - both[1].detach()

    # Prompt [1, 2, 3]; of the chosen [4, 5] only the 4 counts, of the rejected the 6.
    margin = log_ratio([1, 2, 3, 4, 5], [3]) - log_ratio([1, 2, 3, 6], [3])
    (-torch.nn.functional.logsigmoid(0.5 * margin)).backward()
    assert_equal(gradient_of(theirs), gradient_of(ours), tolerance=1e-5)
    by_us = wide()
    trained(by_us, paired((grown(made),)), Objective(loss="dpo", beta=0.5), reference=reference)
    assert_equal(gradient_of(theirs), gradient_of(by_us), tolerance=1e-5)


def grown(made: Row) -> Grown:
    return grow(Group(GroupName.of(made.group_id, "episode-0"), (("", made),), BEGIN, {}))


def trained(of: Any, batch: Batch, objective: Objective, *, reference: Any = None) -> None:
    """The gradient of the one step that trains the batch, by the trainer itself."""
    engine, other = Engine(of), None if reference is None else Engine(reference)
    whole = ready(batch, objective, engine=engine, reference=other, micro_batch_tokens=10_000)
    step = replace(planned(whole.work, micro_batch_tokens=10_000), denominator=whole.denominator)
    gradients(engine, step, objective=objective)
