"""Planned steps -> transformers' Trainer: its optimizer, schedule, callbacks and logs over our steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainingArguments

from tracestore.errors import TracestoreError
from tracestore.shards.read import Export
from tracestore.train.engine import Engine
from tracestore.train.filling import Filling
from tracestore.train.loader import Reading
from tracestore.train.losses import check_loss
from tracestore.train.losses.base import Objective, UnsuitableLoss
from tracestore.train.own_loop import PlannedStep, steps
from tracestore.train.probe import probe
from tracestore.train.step import gradients


class UnsuitableArguments(TracestoreError):
    """Arguments of the Trainer that a planned step leaves no room for."""


class RecordedTrainer(Trainer):
    """transformers' Trainer on an export, with the gradient of `tracestore train`.

    What the Trainer takes for a batch is a whole optimizer step: its groups, their credit and its
    micro-batches are planned before its first forward pass, and the loss it logs is the step's. So batch size
    and gradient accumulation mean nothing here: `filling` says how many groups a step takes. The model stays
    in eval mode, without dropout, as the recorded tokens were sampled.

    Example: `RecordedTrainer(model, export="export/", credit="rloo", args=TrainingArguments(max_steps=100))`
    """

    def __init__(
        self,
        model: Any,
        *,
        args: TrainingArguments,
        export: Export | str | Path,
        credit: str = "shared",
        reward_terms: Mapping[str, float] | None = None,
        objective: Objective | None = None,
        reading: Reading | None = None,
        filling: Filling | None = None,
        micro_batch_tokens: int = 8_192,
        **others: Any,
    ) -> None:
        """
        Args:
            args: `max_steps` says where training ends; the groups come again until then.
            objective: `clipped` (where none is given) or `reinforce`, without a reference model.
            others: further arguments of Trainer, such as `callbacks` and `optimizers`.

        Raises:
            UnsuitableArguments, UnknownLoss, UnsuitableLoss, and what `tracestore.train.batches` raises.
        """
        _check(args)
        self._objective = _checked(objective or Objective())
        super().__init__(model=model, args=args, **others)
        self._wanted: dict[str, Any] = {
            "export": export,
            "credit": credit,
            "reward_terms": reward_terms,
            "reading": replace(reading or Reading(), epochs=None),
            "filling": filling,
            "micro_batch_tokens": micro_batch_tokens,
        }
        self.engine = Engine(self.model)
        """`reasons` says why rows were computed instead of trees, if so."""
        probe(self.engine, seed=self._wanted["reading"].seed)

    def get_train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(_Steps(self._wanted), batch_size=None)

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """The loss of a planned step, whose gradients now stand in the model.

        Raises:
            NonFiniteStep: see `tracestore.train.step.gradients`.
        """
        self.engine.model.eval()
        step: PlannedStep = inputs["step"]
        seen = gradients(self.engine, step.plan, objective=self._objective)
        return torch.tensor(seen.loss, device=self.args.device)


class _Steps(IterableDataset[dict[str, Any]]):
    """Steps without end."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self._wanted = wanted

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for step in steps(**self._wanted):
            yield {"step": step}


def _check(args: TrainingArguments) -> None:
    wrong = {
        "max_steps": args.max_steps <= 0,
        "gradient_accumulation_steps": args.gradient_accumulation_steps != 1,
        "fp16": args.fp16,
        "bf16": args.bf16,
        "world_size": args.world_size > 1 or args.n_gpu > 1,
        "auto_find_batch_size": args.auto_find_batch_size,
    }
    found = {name: getattr(args, name) for name, is_wrong in wrong.items() if is_wrong}
    if found:
        raise UnsuitableArguments(
            **found,
            hint="max_steps=N, one process, no accumulation (micro_batch_tokens bounds memory), and the model"
            " loaded in the type that it is to be trained in",
        )


def _checked(objective: Objective) -> Objective:
    check_loss(objective.loss)
    if objective.loss not in ("clipped", "reinforce") or objective.needs_reference:
        hint = "clipped or reinforce without a reference; `tracestore train` has the others"
        raise UnsuitableLoss(loss=objective.loss, kl_weight=objective.kl_weight, hint=hint)
    return objective
