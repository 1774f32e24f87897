"""A model that gives the logprobs of a pack: on the tree while it can, else one flattened row at a time."""

# P positions with logits, N targets, T tokens, V vocabulary, D size of a hidden state

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import torch

from tracestore.errors import TracestoreError
from tracestore.train.attention import NAME, TreePlan, TreeUnsupported, attending
from tracestore.train.forest import Pack, Unit, pack
from tracestore.train.losses.logprobs import (
    Scores,
    by_parts,
    token_logprobs,
    token_logprobs_and_entropies,
)
from tracestore.train.plan import chains

POSITIONS_AT_ONCE = 1024
"""Positions whose logits stand in memory at once: 600 MB for a vocabulary of 150,000 in float32."""
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
Result = TypeVar("Result")
_Scoring = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Scores]


class OutsideModel(TracestoreError):
    """The model has no embedding for a token or a position of the export."""


class Engine:
    """Runs a Hugging Face causal LM over packs.

    The tree is used while the model can; what it cannot, one row at a time with the attention the model came
    with computes, and `reasons` says why. Dropout is off: the recorded logprobs were sampled without it.
    """

    def __init__(self, model: Any, *, use_tree: bool = True) -> None:
        """
        Args:
            model: any causal LM of transformers; its gradients and mode are the caller's to reset.
            use_tree: False computes flattened rows only.
        """
        self.model = model
        self.use_tree = use_tree
        self.reasons: dict[str, int] = {}
        """Why rows were used instead of the tree, and for how many micro-batches."""
        self._stock = model.config._attn_implementation
        model.eval()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def flatten(self, reason: str) -> None:
        """From now on compute flattened rows, because of `reason`."""
        self.use_tree = False
        self.reasons.setdefault(reason, 0)

    def passes(self, units: Sequence[Unit]) -> Iterator[tuple[Pack, torch.Tensor]]:
        """Forward passes that together give the logprob of every target of a micro-batch, [N] each.

        One pass on the tree, or one per path. Run backward on each before asking for the next.

        Raises:
            OutsideModel: a token id or a position that the model does not know.
        """
        for batch, (logprob_N,) in self._passes(units, lambda batch: self._scores(batch, _logprobs_alone)):
            yield batch, logprob_N

    def passes_with_entropy(self, units: Sequence[Unit]) -> Iterator[tuple[Pack, Scores]]:
        """The same, (logprobs, entropies), [N] each: the entropy of the distribution that a target is of."""
        yield from self._passes(units, lambda batch: self._scores(batch, token_logprobs_and_entropies))

    def hidden(self, units: Sequence[Unit]) -> Iterator[tuple[Pack, torch.Tensor]]:
        """The same passes' last hidden states [P, D] at `Pack.logit_P`, behind which the targets stand."""
        yield from self._passes(units, self._hidden)

    def _passes(
        self, units: Sequence[Unit], compute: Callable[[Pack], Result]
    ) -> Iterator[tuple[Pack, Result]]:
        if self.use_tree:
            whole = pack(units, device=self.device)
            try:
                result = self._on_tree(whole, compute)
            except TreeUnsupported as error:
                reason = str(error.values.get("reason", error))
                self.reasons[reason] = self.reasons.get(reason, 0) + 1
            else:
                yield whole, result
                return
        for whole_unit in units:
            for chain in chains(whole_unit):
                row = pack([chain], device=self.device)
                with _attention(self.model, self._stock):
                    result = self._checked(row, compute)
                yield row, result

    def _on_tree(self, whole: Pack, compute: Callable[[Pack], Result]) -> Result:
        if len(whole.logit_P) > POSITIONS_AT_ONCE:
            _ = self._head_is_plain  # tried out now: it runs the model, which no plan is for
        with computing(self.model, whole.plan):
            return self._checked(whole, compute)

    def _checked(self, batch: Pack, compute: Callable[[Pack], Result]) -> Result:
        self._check_ids(batch)
        try:
            return compute(batch)
        except IndexError as error:  # learned position embeddings end somewhere
            raise OutsideModel(longest_path=batch.plan.longest_path, problem=str(error)) from error

    def _check_ids(self, batch: Pack) -> None:
        vocab_size = self.model.get_input_embeddings().weight.shape[0]
        largest = int(torch.maximum(batch.input_ids_T.max(), batch.target_N.max()))
        if largest >= vocab_size:
            hint = "is this the model that sampled the export?"
            raise OutsideModel(token_id=largest, vocab_size=vocab_size, hint=hint)

    def _scores(self, batch: Pack, scoring: _Scoring) -> Scores:
        """The vocabulary is multiplied with only where a target follows, by models that can."""
        if len(batch.logit_P) > POSITIONS_AT_ONCE and self._head_is_plain:
            head = self.model.get_output_embeddings()
            return by_parts(scoring, head, self._hidden(batch), batch, part=POSITIONS_AT_ONCE)
        logits: torch.Tensor = self.model(**_inputs(batch), logits_to_keep=batch.logit_P).logits[0]
        logits_PV = logits if len(logits) == len(batch.logit_P) else logits[batch.logit_P]
        return scoring(logits_PV, batch.which_N, batch.target_N, batch.temperature_N)

    def _hidden(self, batch: Pack) -> torch.Tensor:
        hidden_PD: torch.Tensor = self.model.base_model(**_inputs(batch)).last_hidden_state[0, batch.logit_P]
        return hidden_PD

    @cached_property
    def _head_is_plain(self) -> bool:
        """Whether the logits are the output layer's product and nothing more (no cap, no scale), tried out on
        this very model."""
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        head, base = self.model.get_output_embeddings(), self.model.base_model
        if head is None or base is self.model:
            return False
        with torch.no_grad():
            hidden = getattr(base(input_ids=ids, use_cache=False), "last_hidden_state", None)
            if hidden is None:
                return False
            return torch.equal(head(hidden), self.model(input_ids=ids, use_cache=False).logits)


def _logprobs_alone(
    logits_PV: torch.Tensor, which_N: torch.Tensor, target_N: torch.Tensor, temperature_N: torch.Tensor
) -> Scores:
    return (token_logprobs(logits_PV, which_N, target_N, temperature_N),)


def _inputs(batch: Pack) -> dict[str, Any]:
    return {
        "input_ids": batch.input_ids_T[None],
        "position_ids": batch.position_ids_T[None],
        "use_cache": False,
    }


@contextmanager
def computing(model: Any, plan: TreePlan) -> Iterator[None]:
    """Inside, a forward pass of the model computes the tokens of this plan, each over its own path.

    Raises:
        TreeUnsupported: it cannot.
    """
    problem = _rope_problem(model.config, plan.longest_path)
    if problem:
        raise TreeUnsupported(reason=problem)
    with _attention(model, NAME), attending(plan):
        yield


@contextmanager
def _attention(model: Any, name: str) -> Iterator[None]:
    before = model.config._attn_implementation
    if before != name:
        model.set_attn_implementation(name)
    try:
        yield
    finally:
        if before != name:
            model.set_attn_implementation(before)


def _rope_problem(config: Any, longest_path: int) -> str | None:
    """Rotary frequencies that depend on the length of the row would be those of the longest path for all."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {entry.get("rope_type") for entry in (rope, *rope.values()) if isinstance(entry, dict)}
    limit = rope.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None)
    if kinds & set(_LENGTH_DEPENDENT_ROPE) and (limit is None or longest_path > limit):
        return f"rotary frequencies that change beyond {limit} tokens, met by a path of {longest_path}"
    return None
