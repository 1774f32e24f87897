"""Flat records -> TRL's trainers: GRPO with an advantage per token, DPO on tokens that are given.

Nothing is generated, rendered or tokenised: what was sampled is trained as it was sampled. TRL's own
SFTTrainer takes the records of `tracestore convert --to sft` without help.
"""

# B samples, P tokens of the longest prompt, R tokens of the longest response, N tokens of one sample

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from trl import DPOTrainer, GRPOConfig, GRPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.utils import RepeatSampler

from tracestore.errors import TracestoreError
from tracestore_exporters.flat import NoAdvantages
from tracestore_exporters.padded import one_temperature, padded

_READ = ("sample_id", "input_ids", "loss_mask", "logprobs", "advantages", "completions")


class OtherTemperature(TracestoreError):
    """The recorded logprobs were taken at another temperature than the trainer's."""


class NothingToEvaluate(TracestoreError):
    """Recorded samples say nothing of how good the trained model is."""


class RecordedGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPO on recorded samples, with the advantages of a credit rule in place of TRL's own.

    The ratio's denominator is the recorded logprob. With `loss_type="dapo"` (TRL's default) and `beta=0` the
    loss of an optimizer step is the sum over its trained tokens, divided by their number, as ours is.

    A step reads `per_device_train_batch_size * gradient_accumulation_steps` samples a process; to complete
    the last one, samples without a trained token are added. `num_generations` says nothing here, but TRL
    wants it to divide that number.
    """

    def __init__(self, model: Any, *, args: GRPOConfig, train_dataset: Dataset, **others: Any) -> None:
        """
        Args:
            train_dataset: rows of `tracestore convert --to flat --advantages RULE`.
            others: further arguments of GRPOTrainer, such as `processing_class`, but no `eval_dataset`.

        Raises:
            NoAdvantages: the records were made without a rule, or none of them trains.
            NothingToEvaluate: an `eval_dataset` is given.
        """
        if others.get("eval_dataset") is not None:
            raise NothingToEvaluate(hint="generate answers with the trained model, and score these")
        ready = _in_whole_batches(train_dataset.select_columns(list(_READ)), args.generation_batch_size)
        super().__init__(model=model, reward_funcs=_no_reward, args=args, train_dataset=ready, **others)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        return RepeatSampler(
            data_source=self.train_dataset if dataset is None else dataset,
            mini_repeat_count=1,
            batch_size=self.args.generation_batch_size,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            shuffle=self.shuffle_dataset,
            seed=self.args.seed,
        )

    def _generate_and_score_completions(self, inputs: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch as it was recorded.

        Raises:
            MissingLogprob, SeveralTemperatures: see `tracestore_exporters.padded`.
            OtherTemperature: see the class.
        """
        made = padded(inputs, pad_token_id=self._tokenizer.pad_token_id)
        trains = bool(made.loss_mask.any())
        if trains and (recorded := one_temperature(made)) != self.temperature:
            raise OtherTemperature(
                recorded=recorded, trainer=self.temperature, hint="GRPOConfig(temperature=...) as recorded"
            )
        device = self.accelerator.device
        tensors = {
            "prompt_ids": made.prompt_ids,
            "prompt_mask": made.prompt_mask,
            "completion_ids": made.response_ids,
            "completion_mask": made.response_mask,
            "tool_mask": made.loss_mask,
            "old_per_token_logps": made.logprobs,
            "advantages": made.advantages,
        }
        batch = {name: torch.as_tensor(values, device=device) for name, values in tensors.items()}
        batch["num_items_in_batch"] = self.accelerator.gather(batch["tool_mask"].sum()).sum()
        return batch


class RecordedDPOTrainer(DPOTrainer):  # type: ignore[misc]
    """DPO on pairs of token ids: rows of `tracestore convert --to preference`, as they are.

    Tokens of a suffix that no model sampled count neither for nor against.
    """

    _signature_columns: list[str]

    def __init__(self, model: Any, *, args: Any, processing_class: Any, **others: Any) -> None:
        collator = _PairCollator(
            pad_token_id=processing_class.pad_token_id,
            max_length=args.max_length,
            truncation_mode=args.truncation_mode,
            pad_to_multiple_of=args.pad_to_multiple_of,
        )
        others = {"data_collator": collator} | others
        super().__init__(model=model, args=args, processing_class=processing_class, **others)

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns = [*self._signature_columns, "chosen_mask", "rejected_mask"]


class _PairCollator(DataCollatorForPreference):  # type: ignore[misc]
    """TRL's collator, with the records' own masks."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super().torch_call(examples)
        masks = [
            [False] * len(one["prompt_ids"]) + one[f"{side}_mask"]
            for side in ("chosen", "rejected")
            for one in examples
        ]
        completion_mask = output["completion_mask"]
        for place, mask in enumerate(masks):
            kept = mask if self.max_length is None else self._cut(mask)
            completion_mask[place, : len(kept)] *= torch.tensor(kept, dtype=completion_mask.dtype)
        return output

    def _cut(self, mask: list[bool]) -> list[bool]:
        first = self.truncation_mode == "keep_start"
        return mask[: self.max_length] if first else mask[-self.max_length :]


def _in_whole_batches(records: Dataset, size: int) -> Dataset:
    """The records that train, and so many that do not that every batch is whole."""
    if len(records) and records[0]["advantages"] is None:
        raise NoAdvantages(hint="tracestore convert EXPORT --to flat --advantages RULE")
    trains = records.filter(lambda record: any(record["loss_mask"]))
    if not len(trains):
        raise NoAdvantages(records=len(records), hint="none of them has a token to train")
    missing = -len(trains) % size
    if not missing:
        return trains
    silent = trains.select([0] * missing).map(
        lambda record: {"loss_mask": [False] * len(record["loss_mask"])}, features=trains.features
    )
    return concatenate_datasets([trains, silent])


def _no_reward(**_: Any) -> list[float]:
    raise AssertionError("nothing is generated, so nothing is scored")
