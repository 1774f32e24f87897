"""Tree-GRPO: a leaf is compared with the leaves of its tree and with those of all trees of the group.

    A = A_intra + A_inter, each (r - mean(r)) / (std(r) + epsilon), ddof 1, over the tree's leaves, over all

Leaves and trees are those of `leaves`. A token that several leaves share gets the mean of their advantages.

Source: Tree-GRPO (arXiv 2509.21240): M trees of N expansions each, epsilon 1e-6 [V in the table of our
notes]. One leaf alone has mean 0 and std 1 there, so that A = r: `singleton=raw`, the default;
`singleton=zero` gives it 0.

Worked (epsilon 0), r = [[1, 0], [1, 1]]: intra: mean .5, std sqrt(.5) = .7071: [.7071, -.7071], and [0, 0]
since equal; inter: mean .75, std sqrt((3 * .0625 + .5625) / 3) = .5: [.5, -1.5, .5, .5]; sum [[1.2071,
-2.2071], [.5, .5]]. With epsilon 1e-6 the first two are 1.207105 and -2.207103.

Known traps: the paper trains a shared prefix once for each leaf; here it is trained once, or g/K times with
`tree_mean`, which the export says. The raw reward of a tree with one leaf is no advantage: it has no
baseline. Subagents are no leaves and get no advantage, counted as `samples_below_the_root_agent`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from tracestore.shards.row import Row
from tracestore.train.credit.base import Advantages, Context, finite, mean, std
from tracestore.train.credit.leaves import Leaf, leaves
from tracestore.train.credit.options import Options


class TreeGrpo(Options):
    """Options of tree-grpo."""

    epsilon: float = Field(1e-6, ge=0)
    singleton: Literal["raw", "zero"] = "raw"


def credit(row: Row, context: Context, options: TreeGrpo) -> Advantages:
    """A = A_intra + A_inter, see the module. Raises MissingFact, NonFiniteCredit."""
    found, notes = leaves(row, rule="tree-grpo")
    trees: dict[str, list[Leaf]] = {}
    for leaf in found:
        trees.setdefault(leaf.tree, []).append(leaf)
    inter = _standard(row, found, options)
    intra = {id(leaf): value for some in trees.values() for leaf, value in _standard(row, some, options)}
    notes["singleton_trees"] = sum(len(some) == 1 for some in trees.values())
    values = {
        (index, completion): intra[id(leaf)] + value
        for leaf, value in inter
        for index in leaf.samples
        for completion in row.samples[index].completions
    }
    return Advantages("tree-grpo", values, {name: count for name, count in notes.items() if count})


def _standard(row: Row, some: Sequence[Leaf], options: TreeGrpo) -> list[tuple[Leaf, float]]:
    values = [leaf.value for leaf in some]
    if len(values) == 1:
        return [(some[0], values[0] / (1.0 + options.epsilon) if options.singleton == "raw" else 0.0)]
    if not values or max(values) == min(values):
        return [(leaf, 0.0) for leaf in some]

    def shares(numbers: Sequence[float]) -> list[float]:
        center, unit = mean(numbers), std(numbers, ddof=1) + options.epsilon
        return [(number - center) / unit for number in numbers]

    hint = "scale the group's rewards down"
    return list(zip(some, finite(shares, values, group_id=row.group_id, hint=hint), strict=True))
