"""A model that gives the logprobs of a pack: on the tree while it can, else one flattened row at a time."""

# P positions with logits, N targets, T tokens, V vocabulary, D size of a hidden state

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch

from tracestore.errors import TracestoreError
from tracestore.train.attention import NAME, TreePlan, TreeUnsupported, attending, tree_plan
from tracestore.train.forest import Pack, Unit, pack
from tracestore.train.losses.logprobs import (
    Scores,
    by_parts,
    token_logprobs,
    token_logprobs_and_entropies,
)
from tracestore.train.plan import Cost, MicroBatch, Placing, chains
from tracestore.train.ranks import ALONE, Ranks
from tracestore.train.sharding import shard

POSITIONS_AT_ONCE = 1024
"""Positions whose logits stand in memory at once: 600 MB for a vocabulary of 150,000 in float32."""
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
Result = TypeVar("Result")
_Scoring = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Scores]


class OutsideModel(TracestoreError):
    """The model has no embedding for a token or a position of the export."""


class _Within(torch.nn.Module):
    """Runs any function of a model where the model's weights are gathered.

    FSDP gathers weights when the module that it wraps is called. The engine calls base model and output layer
    apart, so what it wraps is this.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


@dataclass
class _Met:
    """What engines over one model learn of it by computing."""

    window: int | None = None
    """Its narrowest sliding window."""


class Engine:
    """Runs a Hugging Face causal LM over packs.

    The tree is used while the model can; what it cannot, one row at a time with the attention the model came
    with computes, and `reasons` says why. Dropout is off: the recorded logprobs were sampled without it.
    """

    def __init__(
        self,
        model: Any,
        *,
        use_tree: bool = True,
        ranks: Ranks = ALONE,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        """
        Args:
            model: any causal LM of transformers; its gradients and mode are the caller's to reset.
            use_tree: False computes flattened rows only.
            ranks: over which the model is cut, in place.
            compute_dtype: of matrix products (autocast), where it is not that of the weights.
        """
        self.model = model
        self.use_tree = use_tree
        self.ranks = ranks
        self.compute_dtype = compute_dtype
        self.reasons: dict[str, int] = {}
        """Why rows were used instead of the tree, and for how many micro-batches."""
        self._stock = model.config._attn_implementation
        self._met = _Met()
        model.eval()
        self.within = _Within(model)
        self.placing = Placing()
        """How a step is shared by the ranks of this model."""
        if ranks.size > 1:
            self.placing = Placing(ranks.size, _cost(model), self._passes_of)
            self._head_is_plain = self._tried_head()  # of the whole model, and on all ranks at once
            shard(self.within, device=self.device, ranks=ranks.size)

    def alone(self, *, use_tree: bool = True) -> Engine:
        """An engine over the same model that shares no work: what it computes, every rank computes."""
        other = copy(self)
        other.ranks, other.placing = ALONE, Placing()
        other.use_tree, other.reasons = use_tree, {}
        return other

    def _passes_of(self, units: Sequence[Unit]) -> list[MicroBatch]:
        if self.use_tree and self._tree_problem(max(map(_longest_path, units))) is None:
            return [tuple(units)]
        return [(chain,) for whole in units for chain in chains(whole)]

    def _tree_problem(self, longest_path: int) -> str | None:
        """Why a tree with a path of so many tokens cannot be computed, as far as is known beforehand."""
        window = self._met.window
        if window is not None and window < longest_path:
            return f"a sliding window of {window} is shorter than the longest path of {longest_path} tokens"
        return _rope_problem(self.model.config, longest_path)

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

        One pass on the tree, or one per path; for an empty micro-batch one over a token that nobody asked
        for, whose pack has no units. Run backward on each before asking for the next.

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
        whole = pack(units, device=self.device) if units else _nothing(self.device)
        if self.use_tree:
            # Held until the backward pass is done: a layer computed again there asks for the same attention.
            with _attention(self.model, NAME):
                result = self._on_tree(whole, compute)
                if result is not None:
                    yield whole, result
                    return
        rows = [pack([chain], device=self.device) for one in units for chain in chains(one)]
        with _attention(self.model, self._stock):
            for row in rows or [whole]:
                yield row, self._checked(row, compute)

    def _on_tree(self, whole: Pack, compute: Callable[[Pack], Result]) -> Result | None:
        """None, with the reason counted, where the model computes no such tree."""
        problem = self._tree_problem(whole.plan.longest_path)
        if problem is None:
            if len(whole.logit_P) > POSITIONS_AT_ONCE:
                _ = self._head_is_plain  # tried out now: it runs the model, which no plan is for
            try:
                with attending(whole.plan) as active:
                    result = self._checked(whole, compute)
            except TreeUnsupported as error:
                if self.ranks.size > 1:
                    raise  # the other ranks do not know that this one needs more passes
                problem = str(error.values.get("reason", error))
            else:
                self._met.window = active.window
                return result
        self.reasons[problem] = self.reasons.get(problem, 0) + 1
        return None

    def _checked(self, batch: Pack, compute: Callable[[Pack], Result]) -> Result:
        self._check_ids(batch)
        try:
            result: Result = self.within(self._cast, compute, batch)
        except IndexError as error:  # learned position embeddings end somewhere
            raise OutsideModel(longest_path=batch.plan.longest_path, problem=str(error)) from error
        return result

    def _check_ids(self, batch: Pack) -> None:
        vocab_size = self.model.get_input_embeddings().weight.shape[0]
        largest = int(torch.maximum(batch.input_ids_T.max(), batch.target_N.max()))
        if largest >= vocab_size:
            hint = "is this the model that sampled the export?"
            raise OutsideModel(token_id=largest, vocab_size=vocab_size, hint=hint)

    def _cast(self, compute: Callable[[Pack], Result], batch: Pack) -> Result:
        with torch.autocast(self.device.type, self.compute_dtype, enabled=self.compute_dtype is not None):
            return compute(batch)

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
        is_plain: bool = self.within(self._tried_head)
        return is_plain

    def _tried_head(self) -> bool:
        with _attention(self.model, self._stock), torch.no_grad():
            return self._is_head_alone()

    def _is_head_alone(self) -> bool:
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        head, base = self.model.get_output_embeddings(), self.model.base_model
        if head is None or base is self.model:
            return False
        hidden = getattr(base(input_ids=ids, use_cache=False), "last_hidden_state", None)
        return hidden is not None and torch.equal(
            head(hidden), self.model(input_ids=ids, use_cache=False).logits
        )


def _nothing(device: torch.device) -> Pack:
    """One token and one target, of no unit: what is computed where there is nothing to compute."""
    zero, none = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.float64)
    return Pack(
        units=(),
        plan=tree_plan([-1], [1]),
        input_ids_T=zero,
        position_ids_T=zero,
        logit_P=zero,
        which_N=zero,
        target_N=zero,
        temperature_N=torch.ones(1, dtype=torch.float64, device=device),
        old_logprob_N=none.to(device),
        plus_N=none.to(device),
        minus_N=none.to(device),
    )


def _longest_path(one: Unit) -> int:
    start_U = one.forest.row.segments.start[one.segment_U]
    return int((one.forest.position_T[start_U] + one.length_U).max())


def _cost(model: Any) -> Cost:
    """Multiplications against those of one token through the layers' weights.

    2 D per layer for a query and a key (score and sum), V D for the logits of a position.
    """
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    ends = [model.get_input_embeddings(), *([] if head is None else [head])]
    of_ends = {id(p): p.numel() for end in ends for p in end.parameters()}
    weights = max(1, sum(p.numel() for p in model.parameters()) - sum(of_ends.values()))
    pair = 2 * config.hidden_size * config.num_hidden_layers / weights
    return Cost(pair=pair, logit=config.vocab_size * config.hidden_size / weights)


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
