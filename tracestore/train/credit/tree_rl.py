"""TreeRL: a node of the tree gets how much it raised the mean value of what came after it.

    R(n) = [(V(n) - V(root)) + (V(n) - V(parent of n))] / sqrt(|L(n)|)

L(n) are the leaves below n and V(n) is their mean value; the root is the prompt of the whole group, its
leaves are all. A node is a run of sampled tokens with the same leaves below it, so that tokens between two
forks are one node however many tool results stand between them, and a fork inside an answer cuts it.

Source: TreeRL (Hou et al., ACL 2025, arXiv 2506.11902) [V in the table of our notes]. Taking the group's
prompt as the root, where there are several trees, is ours [D]. `leaf_values=rloo` replaces each leaf's value
by what it is above the mean of the others, which is n / (n - 1) times every R. No mean over tokens is taken
off.

Worked: V_root = .5, a node of two leaves 1 and .5, V = .75: (.25 + .25) / sqrt(2) = .3536; its leaves
(.5 + .25) / 1 = .75 and (0 - .25) / 1 = -.25.

Known traps: 1 / sqrt(|L|) answers that the paper trains a node once for each of its leaves; here each token
counts once (`train_once`). Tokens that all leaves share get exactly 0. Subagents are no nodes and get no
advantage, counted as `samples_below_the_root_agent`."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from tracestore.shards.row import Row
from tracestore.train.credit.base import Advantages, Context, NonFiniteCredit, mean
from tracestore.train.credit.leaves import Leaf, leaves
from tracestore.train.credit.options import Options


class TreeRl(Options):
    """Options of treerl."""

    leaf_values: Literal["raw", "rloo"] = "raw"


def credit(row: Row, context: Context, options: TreeRl) -> Advantages:
    """R(n) on the tokens of each node, see the module. Raises MissingFact, NonFiniteCredit."""
    found, notes = leaves(row, rule="treerl")
    if len(found) == 1:
        notes["singleton_groups"] += 1
    values = _values(found, options)
    of_segment = _segment_rewards(row, found, values)
    if not all(map(math.isfinite, of_segment.values())):
        raise NonFiniteCredit(rule="treerl", group_id=row.group_id, hint="scale the group's rewards down")
    cut: dict[int, list[int]] = {}
    for segment, completion in enumerate(row.segments.completion.tolist()):
        if completion >= 0:
            cut.setdefault(completion, []).append(segment)
    lengths = row.segments.length
    given: dict[tuple[int, int], float | np.ndarray] = {}
    for index in (one for leaf in found for one in leaf.samples):
        for completion in row.samples[index].completions:
            parts = cut.get(completion, [])
            rewards = [of_segment[segment] for segment in parts]
            given[index, completion] = np.repeat(rewards, lengths[parts]) if parts else 0.0
    return Advantages("treerl", given, {name: count for name, count in notes.items() if count})


def _values(found: list[Leaf], options: TreeRl) -> list[float]:
    values = [leaf.value for leaf in found]
    if options.leaf_values == "raw" or len(values) < 2:
        return values
    return [value - mean(values[:i] + values[i + 1 :]) for i, value in enumerate(values)]


def _segment_rewards(row: Row, found: list[Leaf], values: list[float]) -> dict[int, float]:
    """Sampled segment with a leaf below it -> R of its node."""
    below: dict[int, set[int]] = {}
    for number, leaf in enumerate(found):
        for index in leaf.samples:
            for segment in row.samples[index].segments:
                below.setdefault(segment, set()).add(number)
    everything = frozenset(range(len(found)))
    # For each segment: leaves and V of its node, and V of the node above.
    node: dict[int, tuple[frozenset[int], float, float]] = {}
    root = (everything, mean(values), mean(values)) if values else (everything, 0.0, 0.0)
    rewards: dict[int, float] = {}
    for segment, parent in enumerate(row.segments.parent.tolist()):
        above = node.get(parent, root)
        here = frozenset(below.get(segment, ()))
        if row.segments.completion[segment] < 0 or not here or here == above[0]:
            node[segment] = above  # read, not sampled, or the same node going on
        else:
            node[segment] = (here, mean([values[one] for one in sorted(here)]), above[1])
        leaves_here, value, value_above = node[segment]
        if here:
            rewards[segment] = ((value - root[1]) + (value - value_above)) / math.sqrt(len(leaves_here))
    return rewards
