"""States -> what the rest of an episode is worth, for credit rules that run along time.

A critic is a scalar head on the last hidden state before each token: of the policy itself, whose weights it
then leaves alone, or of a model of its own, which it trains with it. It reads the same trees as the policy,
each shared token once. It begins as V = 0.
"""

# P positions with hidden states, N targets, T tokens of a row, D size of a hidden state

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tracestore.train.engine import Engine
from tracestore.train.forest import Forest, Pack, Unit, trainable_targets
from tracestore.train.losses.value import value_loss
from tracestore.train.plan import Step, in_passes_of
from tracestore.train.ranks import Ranks
from tracestore.train.recompute import at_targets
from tracestore.train.sharding import full_state, load_full_state
from tracestore.train.step import NonFiniteStep, grad_norm


@dataclass(frozen=True)
class CriticSettings:
    """How a critic learns."""

    lr: float = 3e-6
    clip: float | None = None
    """How far a value may move in a step; None: any distance."""
    epochs: int = 1
    """Optimizer steps of the critic on the tokens of one step of the policy."""
    pretrain_steps: int = 0
    """First steps of the run in which the critic learns and the policy does not."""


@dataclass(frozen=True)
class CriticStats:
    """What the critic made of a step, before it learned from it but for the norm."""

    value_loss: float
    """Mean over the targets that have a return."""
    explained_variance: float | None
    """1 - Var(R - V) / Var(R): 1 is perfect, 0 no better than a constant; None where returns are equal."""
    grad_norm: float
    """Of the last epoch, before the clip."""


class Critic:
    """A head, the model below it, and their optimizer."""

    def __init__(self, trunk: Engine, settings: CriticSettings, *, trains_trunk: bool) -> None:
        """
        Args:
            trunk: gives the hidden states.
            trains_trunk: False where it is the policy's.
        """
        self.trunk = trunk
        self.settings = settings
        self.trains_trunk = trains_trunk
        weight = trunk.model.get_input_embeddings().weight
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        size = trunk.model.config.get_text_config().hidden_size
        self.head = torch.nn.Linear(size, 1, dtype=dtype, device=trunk.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.below = [p for p in trunk.model.base_model.parameters() if trains_trunk and p.requires_grad]
        # Apart: with several ranks those below lie in pieces, and every rank has the whole head.
        groups = [{"params": one} for one in (list(self.head.parameters()), self.below) if one]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.lr, weight_decay=0.0)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All that learn, the head's first."""
        return [*self.head.parameters(), *self.below]

    def values(self, grown: Forest, *, micro_batch_tokens: int) -> np.ndarray:
        """float64 [T], the value of the state before each token that trains, NaN elsewhere. No gradients.

        Ranks share the work, and all of them get the whole answer.
        """
        targets = trainable_targets(grown)
        if not len(targets):
            return np.full(grown.num_tokens, np.nan)
        return at_targets(self.trunk, self._passes, grown, targets, micro_batch_tokens=micro_batch_tokens)

    @property
    def _ranks(self) -> Ranks:
        return self.trunk.ranks

    def learn(self, step: Step, *, grad_clip: float | None) -> CriticStats:
        """Takes the critic's optimizer steps on a step whose targets carry `return` and `value`.

        Raises:
            NonFiniteStep: a loss or a gradient is no finite number; the weights are as before this epoch.
        """
        step = in_passes_of(step, self.trunk.placing)
        told = [one.targets.more for units in step.micro_batches for one in units]
        return_N = np.concatenate([more["return"] for more in told])
        value_N = np.concatenate([more["value_before"] for more in told])
        known_N = np.isfinite(return_N)
        count = int(np.count_nonzero(known_N))
        losses = []
        norm = 0.0
        for _ in range(self.settings.epochs if count else 0):
            losses.append(self._backward(step, count))
            norm = self._apply(grad_clip)
        return CriticStats(
            value_loss=losses[0] if losses else 0.0,
            explained_variance=_explained(value_N[known_N], return_N[known_N]),
            grad_norm=norm,
        )

    def gradients(self, step: Step) -> float:
        """Adds the gradient of a step's mean value loss; returns the loss."""
        told = [one.targets.more["return"] for units in step.micro_batches for one in units]
        return self._backward(step, int(np.count_nonzero(np.isfinite(np.concatenate(told)))))

    def _backward(self, step: Step, count: int) -> float:
        total = 0.0
        for units in step.by_rank[self._ranks.rank]:
            for pack, value_N in self._passes(units):
                if not pack.units:
                    (value_N.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
                    continue
                dtype = value_N.dtype
                known_N = torch.isfinite(pack.more["return"])
                loss_N = value_loss(
                    value_N[known_N],
                    pack.more["value_before"][known_N].to(dtype),
                    pack.more["return"][known_N].to(dtype),
                    clip=self.settings.clip,
                )
                part = loss_N.sum() / count
                total += float(part.detach())
                part.backward()  # type: ignore[no-untyped-call]
        total = sum(self._ranks.gathered(total))
        # Only now: a rank that stopped on its own would leave the others waiting for its part of a layer.
        if not math.isfinite(total):
            raise NonFiniteStep(value_loss=total, hint="lower --critic-lr, or look at the rewards")
        self._sum_head()
        return total

    def _sum_head(self) -> None:
        """The head's gradients of all ranks, in order of rank; those below are summed where they lie."""
        if self._ranks.size > 1:
            for parameter in self.head.parameters():
                grads = self._ranks.gathered(parameter.grad)
                parameter.grad = torch.stack([g for g in grads if g is not None]).sum(0)

    def _apply(self, grad_clip: float | None) -> float:
        norm = math.hypot(*(grad_norm(some) for some in (self.head.parameters(), self.below)))
        if not math.isfinite(norm):
            raise NonFiniteStep(critic_grad_norm=norm, hint="lower --critic-lr, or look at the rewards")
        if grad_clip is not None:
            for some in (self.head.parameters(), self.below):
                torch.nn.utils.clip_grads_with_norm_(some, grad_clip, torch.tensor(norm))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _passes(self, units: Sequence[Unit]) -> Iterator[tuple[Pack, torch.Tensor]]:
        """[N], the value before each target of a micro-batch."""
        for pack, hidden_PD in self._hidden(units):
            value_P = self.head(hidden_PD.to(self.head.weight.dtype))[:, 0]
            yield pack, value_P[pack.which_N]

    def _hidden(self, units: Sequence[Unit]) -> Iterator[tuple[Pack, torch.Tensor]]:
        if self.trains_trunk:
            yield from self.trunk.hidden(units)
            return
        with torch.no_grad():
            found = list(self.trunk.hidden(units))
        yield from found

    def state(self) -> dict[str, Any]:
        """What `load` reads, besides the weights of a trunk of its own."""
        return {"head": self.head.state_dict(), "optimizer": full_state(self.optimizer)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Stand where a critic stood that said this."""
        self.head.load_state_dict(state["head"])
        load_full_state(self.optimizer, state["optimizer"])


def _explained(value_N: np.ndarray, return_N: np.ndarray) -> float | None:
    spread = float(np.var(return_N)) if len(return_N) else 0.0
    return 1.0 - float(np.var(return_N - value_N)) / spread if spread > 0 else None
