"""Prompt ids -> sampled ids and logprobs: who answers a harness.

`LocalSampler` draws from SmolLM2-135M-Instruct on the CPU, float32, with a KV cache, from the whole softmax
at the stated temperature (no top-k, no top-p), so that a recorded logprob is exactly what one forward pass
over the same ids gives again. `ScriptedSampler` says what it is told to, under the same model's ids and
logprobs. `sample_traces.remote` asks a server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import torch

from tracestore.errors import TracestoreError
from tracestore.train import smollm2

Script = Mapping[str, Sequence[str]]
"""Who speaks (an agent's id without that of its episode) -> what it says, in order.

A text that ends with `...` was cut at the token limit: no stop token follows its last word.
"""
LogprobsAre = Literal["raw", "processed"]


class ScriptEnded(TracestoreError):
    """A script has no more lines for who should speak."""


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


class Sampler(Protocol):
    """A policy with its tokenizer; the random state comes with each call."""

    @property
    def stop(self) -> int:
        """Id of the token that ends a message."""

    @property
    def model_name(self) -> str: ...

    @property
    def policy(self) -> dict[str, Any]:
        """Name and version of the policy that samples."""

    def render(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Ids of a conversation up to where the assistant speaks, by the model's own chat template."""

    def encode(self, text: str) -> list[int]:
        """Ids of template text such as `<|im_end|>`; never called on text that was sampled."""

    def decode(self, ids: Sequence[int]) -> str:
        """What ids say that another model sampled."""

    def sample(
        self,
        prompt: Sequence[int],
        *,
        speaker: str,
        seed: int,
        n: int = 1,
        max_tokens: int = 40,
        temperature: float = 1.0,
        logprobs_are: LogprobsAre = "processed",
        request: Mapping[str, Any] | None = None,
    ) -> list[Sampled]:
        """`n` completions of one prompt, drawn together.

        Args:
            prompt: ids [P] the model reads.
            speaker: who asks; a script has the lines of each.
            logprobs_are: "raw" records log_softmax(logits), "processed" log_softmax(logits / temperature).
            request: as the call records it; a replay answers by it.
        """


class Tokens:
    """Text and ids of a policy, by its tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def render(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        return list(
            self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        )

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))


class SmolLM2(Tokens):
    """The model and its tokenizer, loaded once for all samplers of a process."""

    model_name = smollm2.MODEL_NAME

    def __init__(self) -> None:
        smollm2.model_path(print)
        super().__init__(smollm2.load_tokenizer())
        self.stop = int(self.tokenizer.eos_token_id)
        self._read: dict[str, tuple[list[int], Any]] = {}

    @cached_property
    def model(self) -> Any:
        """Its weights, read when something is computed: a harness may need the tokenizer alone."""
        return smollm2.load_model()

    @property
    def policy(self) -> dict[str, Any]:
        return {"name": self.model_name, "version": 0}

    @torch.no_grad()
    def logits(self, prompt: Sequence[int], ids: Sequence[int], *, reader: str) -> torch.Tensor:
        """Logits [S, V] of the S tokens `ids` after a prompt.

        What one reader's last context and this one begin with in common is not computed again.
        """
        whole, (known, cache) = [*prompt, *ids], self._read.get(reader, ([], None))
        same = next((at for at, (a, b) in enumerate(zip(known, whole, strict=False)) if a != b), None)
        kept = min(min(len(known), len(whole)) if same is None else same, len(prompt) - 1)
        if kept < len(known):
            cache.crop(kept - len(known))
        out = self.model(
            torch.tensor([whole[kept:]]), cache=cache, use_cache=True, logits_to_keep=len(ids) + 1
        )
        self._read[reader] = whole, out.cache
        logits_SV: torch.Tensor = out.logits[0, :-1]
        return logits_SV


class LocalSampler(SmolLM2):
    """Draws from the model."""

    @torch.no_grad()
    def sample(
        self,
        prompt: Sequence[int],
        *,
        speaker: str,
        seed: int,
        n: int = 1,
        max_tokens: int = 40,
        temperature: float = 1.0,
        logprobs_are: LogprobsAre = "processed",
        request: Mapping[str, Any] | None = None,
    ) -> list[Sampled]:
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


class InPlaceOf(Tokens):
    """Speaks as a model would whose tokenizer, name and policy it has."""

    def __init__(self, base: SmolLM2) -> None:
        super().__init__(base.tokenizer)
        self.stop = base.stop
        self.model_name = base.model_name
        self.policy = base.policy


class ScriptedSampler(InPlaceOf):
    """Says the lines of a script; their ids and logprobs are the model's own.

    What a small model would not come to by itself can be recorded this way, with logprobs that one forward
    pass gives again: only the choice of the words is not the model's.
    """

    def __init__(self, base: SmolLM2, script: Script) -> None:
        super().__init__(base)
        self._base = base
        self._script = script
        self._said: dict[str, int] = defaultdict(int)

    def sample(
        self,
        prompt: Sequence[int],
        *,
        speaker: str,
        seed: int,
        n: int = 1,
        max_tokens: int = 40,
        temperature: float = 1.0,
        logprobs_are: LogprobsAre = "processed",
        request: Mapping[str, Any] | None = None,
    ) -> list[Sampled]:
        """The next `n` lines of the speaker. Lengths are the script's, whatever `max_tokens` says.

        Raises:
            ScriptEnded: there are fewer.
        """
        scale = temperature if logprobs_are == "processed" else 1.0
        return [self._spoken(prompt, speaker, scale) for _ in range(n)]

    def unsaid(self) -> dict[str, int]:
        """Lines that nobody asked for, by speaker: a script that is not played to its end is a wrong one."""
        left = {who: len(lines) - self._said[who] for who, lines in self._script.items()}
        return {who: count for who, count in left.items() if count}

    def _line(self, speaker: str) -> str:
        lines, place = self._script.get(speaker, ()), self._said[speaker]
        if place >= len(lines):
            raise ScriptEnded(
                speaker=speaker,
                lines=len(lines),
                speakers=sorted(self._script),
                hint="give the speaker another line in the system's script",
            )
        self._said[speaker] += 1
        return lines[place]

    def _spoken(self, prompt: Sequence[int], speaker: str, scale: float) -> Sampled:
        line = self._line(speaker)
        is_cut = line.endswith("...")
        ids = [*self.encode(line), *([] if is_cut else [self.stop])]
        logprob_SV = torch.log_softmax(self._base.logits(prompt, ids, reader=speaker) / scale, dim=-1)
        logprob_S = logprob_SV.gather(1, torch.tensor(ids)[:, None])[:, 0]
        return Sampled(
            ids=tuple(ids),
            logprobs=tuple(logprob_S.tolist()),
            text=line,
            finish_reason="length" if is_cut else "stop",
        )
