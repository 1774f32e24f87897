"""Units -> a forest that holds each token once.

A radix trie over the ids of every prompt of a group. Prompts descend as far as their ids (and the images
among them) agree, and what is left becomes a new segment. Sampled tokens always make a segment of their
own: two equal answers to one prompt stay two, each with its own logprobs. What a call continues is read off
the way down.

    "nodes" here are segments of the trie; a position counts the tokens before it on the path
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracestore_exporters.units import Inputs, Unit, resolve_inputs


class Node:
    """Tokens `start` to `end` of a path; `tokens[i - base]` is the id at position i."""

    __slots__ = ("base", "children", "end", "ends", "inputs", "parent", "start", "tokens", "unit")

    def __init__(
        self,
        *,
        parent: Node | None,
        tokens: np.ndarray,
        base: int,
        start: int,
        end: int,
        inputs: Inputs,
        unit: Unit | None,
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.base = base
        self.start = start
        self.end = end
        self.inputs = inputs
        """Of the whole path to its end."""
        self.unit = unit
        """Whose sampled tokens these are; None: not sampled."""
        self.ends = unit is not None
        """Whether the unit's last token is here."""
        self.children: dict[int, list[Node]] = {}
        """By first token: several where answers begin alike or images differ."""

    @property
    def ids(self) -> np.ndarray:
        return self.tokens[self.start - self.base : self.end - self.base]

    def up(self) -> Iterator[Node]:
        """This node and its ancestors, the virtual root left out."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def add(self, child: Node) -> None:
        self.children.setdefault(int(child.tokens[child.start - child.base]), []).append(child)


@dataclass(frozen=True, slots=True)
class Place:
    """A point of the forest: `position` tokens along the path through `node`."""

    node: Node
    position: int


@dataclass(frozen=True, slots=True)
class Drift:
    """What stopped a prompt from continuing a unit: the same ids, but other tools or images."""

    unit: Unit
    what: str
    """tools_change or images_change."""


class Forest:
    """Filled once, in unit order; `extends` and `drifts` tell how the units hang together."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.root = _root()
        self.end_of: dict[tuple[int, str, int], Node] = {}
        """By (episode, call id, index): the node with the unit's last token."""
        self.drifts: dict[tuple[int, str, int], Drift] = {}
        self._of_agent: dict[tuple[int, str], tuple[list[int], list[Unit]]] = {}
        """Units by agent in order of their full length, with these lengths."""
        self._by_key: dict[tuple[int, str, int], Unit] = {unit.place: unit for unit in units}
        previous: tuple[Unit, Node] | None = None
        for unit in units:
            at = self._insert_prompt(unit, previous)
            previous = unit, at
            self._insert_completion(unit, at)

    def parent_of(self, unit: Unit) -> Unit | None:
        """The unit that the link names, if it is in the forest."""
        return None if unit.parent is None else self._by_key.get((unit.episode, *unit.parent))

    def preorder(self) -> list[Node]:
        """Every segment, depth-first, parents before children, children in order of arrival."""
        order: list[Node] = []
        stack = _reversed_children(self.root)
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(_reversed_children(node))
        return order

    def take_apart(self) -> None:
        """Let parents go of their children: a circle stays in memory until Python looks for such."""
        for node in [self.root, *self.preorder()]:
            node.children = {}

    def _insert_prompt(self, unit: Unit, previous: tuple[Unit, Node] | None) -> Node:
        """The node that ends exactly where the unit's prompt ends."""
        if unit.prompt is None:
            return self.root
        parent = self.parent_of(unit)
        continues = parent is not None and parent.is_prefix_of(unit.prompt)
        unit.inputs = resolve_inputs(unit, parent, continues=continues)
        if previous is not None and _same_prompt(previous[0], unit):
            unit.extends = previous[0].extends
            self._copy_drift(previous[0], unit)
            return previous[1]
        start = self._end_behind(parent, unit) if parent is not None and continues else None
        place = self._descend(unit, start or self._nearest(unit) or self.root)
        self._connect(unit, place, parent=parent if continues else None)
        node = place.node if place.position == place.node.end else _split(place)
        if place.position < unit.prompt.length:
            tokens, base = unit.prompt.from_(place.position)
            rest = Node(
                parent=node,
                tokens=tokens,
                base=base,
                start=place.position,
                end=unit.prompt.length,
                inputs=unit.inputs,
                unit=None,
            )
            node.add(rest)
            return rest
        return node

    def _end_behind(self, before: Unit, unit: Unit) -> Node | None:
        """The end of a unit whose ids the prompt continues, when the inputs agree up to there."""
        end = self.end_of[before.place]
        if _first_difference(end.inputs, unit.inputs, 0, end.end) is not None:
            return None
        return end

    def _nearest(self, unit: Unit) -> Node | None:
        """The end of the longest unit of the same agent that the prompt continues; of equal ones the first.

        An agent mostly continues what it sampled last, so this finds in one comparison what a descent from
        the root finds at the end of the whole context.
        """
        assert unit.prompt is not None
        lengths, before = self._of_agent.get(unit.agent, ((), ()))
        found: Node | None = None
        for at in range(bisect_right(lengths, unit.prompt.length) - 1, -1, -1):
            if found is not None and lengths[at] < found.end:
                break
            if before[at].is_prefix_of(unit.prompt):
                found = self._end_behind(before[at], unit) or found
        return found

    def _insert_completion(self, unit: Unit, at: Node) -> None:
        node = Node(
            parent=at,
            tokens=unit.ids,
            base=at.end,
            start=at.end,
            end=at.end + len(unit.ids),
            inputs=unit.inputs,
            unit=unit,
        )
        at.add(node)
        self.end_of[unit.place] = node
        if unit.prompt is not None:
            lengths, before = self._of_agent.setdefault(unit.agent, ([], []))
            place = bisect_right(lengths, node.end)
            lengths.insert(place, node.end)
            before.insert(place, unit)

    def _connect(self, unit: Unit, place: Place, *, parent: Unit | None) -> None:
        """Finds the nearest completion of the same agent that the prompt holds whole."""
        for node in place.node.up():
            before = node.unit
            if before is None or not node.ends or node.end > place.position or before.agent != unit.agent:
                continue
            if before.tools == unit.tools:
                unit.extends = before
            else:
                self.drifts[unit.place] = Drift(before, "tools_change")
            return
        if parent is not None and parent.agent == unit.agent:
            self.drifts[unit.place] = Drift(parent, "images_change")

    def _copy_drift(self, source: Unit, unit: Unit) -> None:
        drift = self.drifts.get(source.place)
        if drift is not None:
            self.drifts[unit.place] = drift

    def _descend(self, unit: Unit, start: Node) -> Place:
        """As far down as the prompt's ids and inputs agree, from a node whose end the prompt has reached.

        Where several children begin alike, this episode's are tried, else all; the longest agreement wins,
        and of equal ones the first.
        """
        assert unit.prompt is not None
        ids, base = unit.prompt.from_(start.end)
        best = Place(start, start.end)
        open_nodes = [start]
        while open_nodes:
            node = open_nodes.pop()
            if node.end > best.position:
                best = Place(node, node.end)
            if node.end == unit.prompt.length:
                continue
            whole: list[Node] = []
            for child in node.children.get(int(ids[node.end - base]), ()):
                reached = node.end + _agreement(child, unit, ids, base)
                if reached == child.end:
                    whole.append(child)
                elif reached > best.position:
                    best = Place(child, reached)
            own = [child for child in whole if child.unit is not None and child.unit.episode == unit.episode]
            open_nodes.extend(reversed(own or whole))
        return best


def _root() -> Node:
    return Node(parent=None, tokens=np.zeros(0, np.int32), base=0, start=0, end=0, inputs=(), unit=None)


def _reversed_children(node: Node) -> list[Node]:
    if len(node.children) == 1:
        return next(iter(node.children.values()))[::-1]
    return [child for alike in node.children.values() for child in alike][::-1]


def _same_prompt(before: Unit, unit: Unit) -> bool:
    """Whether two answers of one call share their prompt and all that was read with it."""
    return before.call is unit.call and before.inputs == unit.inputs


def _agreement(node: Node, unit: Unit, ids: np.ndarray, base: int) -> int:
    """How many tokens of a node the prompt repeats, before the first other id or input.

    Args:
        ids: of the prompt, from position `base` on.
    """
    own = node.ids
    start = node.start - base
    length = min(len(own), len(ids) - start)
    different = own[:length] != ids[start : start + length]
    first = int(different.argmax()) if length else 0
    agreed = first if length and different[first] else length
    if node.inputs or unit.inputs:
        input_at = _first_difference(node.inputs, unit.inputs, node.start, node.start + agreed)
        if input_at is not None:
            agreed = input_at - node.start
    return agreed


def _first_difference(left: Inputs, right: Inputs, start: int, end: int) -> int | None:
    """The first position in [start, end) at which two lists of inputs differ."""
    if left is right or left == right:
        return None
    ours = [item for item in left if start <= item[0] < end]
    theirs = [item for item in right if start <= item[0] < end]
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            return min(one[0], other[0])
    if len(ours) == len(theirs):
        return None
    shorter = min(len(ours), len(theirs))
    return (ours if len(ours) > shorter else theirs)[shorter][0]


def _split(place: Place) -> Node:
    """Cuts a node in two at a position inside it; the lower part keeps the node's identity."""
    node, position = place.node, place.position
    upper = Node(
        parent=node.parent,
        tokens=node.tokens,
        base=node.base,
        start=node.start,
        end=position,
        inputs=node.inputs,
        unit=node.unit,
    )
    upper.ends = False
    assert node.parent is not None
    alike = node.parent.children[int(node.tokens[node.start - node.base])]
    alike[alike.index(node)] = upper
    node.start = position
    node.parent = upper
    upper.add(node)
    return upper
