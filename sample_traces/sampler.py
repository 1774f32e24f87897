"""Prompt ids -> sampled ids and logprobs: SmolLM2-135M-Instruct on the CPU, float32, with a KV cache.

Tokens are drawn from the whole softmax at the stated temperature (no top-k, no top-p), so that a recorded
logprob is exactly what one forward pass over the same ids gives again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tracestore.train import smollm2

MODEL_NAME = smollm2.MODEL_NAME
POLICY = {"name": MODEL_NAME, "version": 0}


@dataclass(frozen=True)
class Sampled:
    """One completion as an inference server would give it."""

    ids: tuple[int, ...]
    """Sampled ids, the stop token included."""
    logprobs: tuple[float, ...]
    """float32 values, as long as `ids`."""
    text: str
    """What the ids say, without the stop token."""
    finish_reason: Literal["stop", "length"]


class Sampler:
    """The model, its tokenizer and nothing else; the random state comes with each call."""

    def __init__(self) -> None:
        self.model = smollm2.load_model(print)
        self.tokenizer = smollm2.load_tokenizer()
        self.stop = int(self.tokenizer.eos_token_id)

    def render(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Ids of a conversation up to where the assistant speaks, by the model's own chat template."""
        return list(
            self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        )

    def encode(self, text: str) -> list[int]:
        """Ids of template text such as `<|im_end|>`; never called on text that was sampled."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    @torch.no_grad()
    def sample(
        self,
        prompt: Sequence[int],
        *,
        seed: int,
        n: int = 1,
        max_tokens: int = 40,
        temperature: float = 1.0,
        logprobs_are: Literal["raw", "processed"] = "processed",
    ) -> list[Sampled]:
        """`n` completions of one prompt, drawn together.

        Args:
            prompt: ids [P] the model reads.
            logprobs_are: "raw" records log_softmax(logits), "processed" log_softmax(logits / temperature).
        """
        generator = torch.Generator().manual_seed(seed)
        # N completions, T tokens, V vocabulary
        ids_NT = torch.zeros(n, 0, dtype=torch.long)
        logprob_NT = torch.zeros(n, 0)
        step_NT = torch.tensor([list(prompt)] * n)
        cache = None
        while ids_NT.shape[1] < max_tokens and not bool((ids_NT == self.stop).any(1).all()):
            out = self.model(step_NT, cache=cache, use_cache=True, logits_to_keep=1)
            cache = out.cache
            raw_NV = torch.log_softmax(out.logits[:, -1], dim=-1)
            processed_NV = torch.log_softmax(out.logits[:, -1] / temperature, dim=-1)
            step_NT = torch.multinomial(processed_NV.exp(), 1, generator=generator)
            recorded_NV = raw_NV if logprobs_are == "raw" else processed_NV
            ids_NT = torch.cat([ids_NT, step_NT], dim=1)
            logprob_NT = torch.cat([logprob_NT, recorded_NV.gather(1, step_NT)], dim=1)
        return [self._cut(ids, logprobs) for ids, logprobs in zip(ids_NT, logprob_NT, strict=True)]

    def _cut(self, ids_T: torch.Tensor, logprobs_T: torch.Tensor) -> Sampled:
        ids = [int(token) for token in ids_T]
        stopped = self.stop in ids
        length = ids.index(self.stop) + 1 if stopped else len(ids)
        return Sampled(
            ids=tuple(ids[:length]),
            logprobs=tuple(float(value) for value in logprobs_T[:length]),
            text=self.tokenizer.decode(ids[: length - stopped]),
            finish_reason="stop" if stopped else "length",
        )
