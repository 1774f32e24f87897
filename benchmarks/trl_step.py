"""The loss of TRL's GRPOTrainer on samples that are given: what its step costs on the rows of a tree."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from tracestore.train.losses.base import Clip

Sample = tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, torch.Tensor]


def loss_of(model: Any, rows: Sequence[Sample], *, clip: Clip) -> torch.Tensor:
    """One micro-batch with every sample padded to the longest prompt and the longest answer."""
    trainer = _trainer(model, clip)
    prompts = [int(at[0]) for _, at, *_ in rows]
    answers = [len(ids) - prompt for (ids, *_), prompt in zip(rows, prompts, strict=True)]
    prompt_ids, prompt_mask = _zeros(rows, max(prompts)), _zeros(rows, max(prompts))
    completion_ids, completion_mask, tool_mask = (_zeros(rows, max(answers)) for _ in range(3))
    old = torch.zeros((len(rows), max(answers)), dtype=torch.float32)
    advantages = torch.zeros_like(old)
    for index, ((ids, at, _, advantage, recorded), prompt) in enumerate(zip(rows, prompts, strict=True)):
        prompt_ids[index, max(prompts) - prompt :], prompt_mask[index, max(prompts) - prompt :] = (
            ids[:prompt],
            1,
        )
        answer = len(ids) - prompt
        completion_ids[index, :answer], completion_mask[index, :answer] = ids[prompt:], 1
        tool_mask[index, at - prompt] = 1
        old[index, at - prompt] = recorded.float()
        advantages[index, at - prompt] = advantage
    return trainer._compute_loss(  # type: ignore[no-any-return]
        model,
        {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "tool_mask": tool_mask,
            "old_per_token_logps": old,
            "advantages": advantages,
            "num_items_in_batch": tool_mask.sum(),
        },
    )


def _zeros(rows: Sequence[Sample], width: int) -> torch.Tensor:
    return torch.zeros((len(rows), width), dtype=torch.int64)


@cache
def _trainer(model: Any, clip: Clip) -> GRPOTrainer:
    """A trainer that is never run: only its loss is asked for."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"<pad>": 0}, unk_token="<pad>")), pad_token="<pad>"
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="tracestore-bench-"),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=2,
        num_generations=2,
        epsilon=clip.eps_low,
        epsilon_high=clip.eps_high,
        beta=0.0,
        report_to=[],
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda **_: [0.0],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "x"}, {"prompt": "y"}]),
        processing_class=tokenizer,
    )
