"""Rewards of a whole group -> an advantage for every completion of every sample. One file a family.

A rule is a pure function `credit(row, context, options) -> Advantages`. `advantages` applies a rule as it is
spelled (`rao:lambda=0.4`) and then the row's candidate treatments; `combine` spreads the result over tokens
that several samples share. `terms` are costs, added to the rewards before a rule sees them.
docs/credit.md says which facts each rule reads and how a harness records them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tracestore.errors import TracestoreError
from tracestore.shards.row import Row
from tracestore.train.credit import (
    compaction_rl,
    foldgrpo,
    mem1,
    own,
    parl,
    pkpo,
    rao,
    rloo,
    shared,
    tree_grpo,
    tree_rl,
    used,
)
from tracestore.train.credit.base import Advantages, Context
from tracestore.train.credit.candidates import treat
from tracestore.train.credit.options import Options, read, split
from tracestore.train.credit.terms import with_terms


@dataclass(frozen=True)
class Rule:
    """A family under a name."""

    credit: Callable[[Row, Context, Any], Advantages]
    options: type[Options] = Options
    told: Mapping[str, Any] = field(default_factory=dict)
    """What this name sets; another rule's name with other options is an alias of it."""
    counts: Callable[[Row], Mapping[int, int]] | None = None
    """What a row adds to `Context.batch_counts`; None: the rule needs none."""


RULES: Mapping[str, Rule] = {
    "shared": Rule(shared.credit),
    "shared-std": Rule(shared.credit_std, shared.Std),
    "rloo": Rule(rloo.credit),
    "own": Rule(own.credit),
    "used": Rule(used.credit),
    "pkpo": Rule(pkpo.credit, pkpo.PassK),
    "foldgrpo": Rule(foldgrpo.credit, foldgrpo.Fold),
    "compaction-rl": Rule(compaction_rl.credit, compaction_rl.Compaction),
    "mem1": Rule(mem1.credit, mem1.Mem1),
    "parl": Rule(parl.credit, parl.Parl),
    "rao": Rule(rao.credit, rao.Rao, counts=rao.counts),
    "tree-grpo": Rule(tree_grpo.credit, tree_grpo.TreeGrpo),
    "treerl": Rule(tree_rl.credit, tree_rl.TreeRl),
    "supo": Rule(shared.credit_std, shared.Std, told={"mask_exhausted": True}),
    "resum": Rule(shared.credit_std, shared.Std),
    "memagent": Rule(shared.credit),
}
"""What `--credit RULE` can name."""


class UnknownRule(TracestoreError):
    """No credit rule has this name."""

    exit_code = 2


@dataclass(frozen=True)
class Chosen:
    """A rule and its options, checked."""

    name: str
    rule: Rule
    options: Options

    def told(self) -> dict[str, Any]:
        """Name and every option, for the header of a run."""
        return {"rule": self.name, "options": self.options.told()}

    def spelled(self) -> str:
        """As `choose` reads it, with every option: two rules are the same where this is."""
        words = {True: "yes", False: "no"}
        options = [
            f"{name}={words[value] if isinstance(value, bool) else value}"
            for name, value in self.options.told().items()
        ]
        return f"{self.name}:{','.join(options)}" if options else self.name


@lru_cache(maxsize=64)
def choose(spelled: str) -> Chosen:
    """`rao`, or `rao:lambda=0.4,depth_weights=no`.

    Raises:
        UnknownRule: naming those there are.
        BadOption: the rule has no such option, lacks one that has no default, or cannot take the value.
    """
    name, given = split(spelled)
    if name not in RULES:
        raise UnknownRule(rule=name, hint=f"rules: {', '.join(sorted(RULES))}")
    rule = RULES[name]
    return Chosen(name, rule, read(rule.options, {**rule.told, **given}, rule=name))


def advantages(row: Row, *, rule: str, context: Context) -> Advantages:
    """What a rule gives to the samples of a row, candidate treatments included.

    Args:
        rule: as `choose` reads it.

    Raises:
        UnknownRule, BadOption: see `choose`.
        UnknownTerm: see `tracestore.train.credit.terms`.
        NonFiniteCredit: a composed reward or an advantage is no finite number.
        MissingFact: the row does not hold what the rule needs.
        MissingCounts, MissingValues: the context does not.
        UnsupportedTreatment, MissingScore: see `tracestore.train.credit.candidates`.
    """
    chosen = choose(rule)
    paid = with_terms(row, context.reward_terms)
    return treat(paid, chosen.rule.credit(paid, context, chosen.options))


def counted(rows: Iterable[Row], *, rule: str) -> dict[int, int] | None:
    """`Context.batch_counts` of a batch: what its rows add, summed.

    None, without reading a row, for a rule that needs no counts.

    Raises:
        UnknownRule, BadOption, MissingFact: as `advantages`.
    """
    counts = choose(rule).rule.counts
    if counts is None:
        return None
    total: Counter[int] = Counter()
    for row in rows:
        total.update(counts(row))
    return dict(total)
