"""Crafting in words: raw items are gathered, others crafted by recipes, in a workshop of each agent's own.

    make it from nail wood      gather wood      -> got wood
                                look nail        -> nail from iron salt
                                delegate nail    -> got nail      (an agent with a workshop of its own)
                                craft it         -> the order is done

A recipe names two items; crafting uses them up. The depth of an item is how many crafts deep its recipes
nest, that of a raw one is 0. Recipes are made from a seed and are new in every task, so none can be learned
by heart: an agent reads that of its own item, which it knows as `it`, in its order, and others by `look`.
What an agent has made goes into the workshop of the one that delegated it, and nothing else does.

The idea is TextCraft's (ADaPT, Prasad et al. 2024), with the depth that RAO (arXiv 2605.06639) gave it; the
items, the recipes and the rules are our own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RAW = ("clay", "coal", "gold", "iron", "reed", "salt", "sand", "wood")
MADE = (
    *("axe", "bag", "bed", "bell", "belt", "boat", "book", "bow", "box", "bread", "brick", "broom", "cake"),
    *(
        "cap",
        "cart",
        "chain",
        "chair",
        "clock",
        "coat",
        "coin",
        "comb",
        "cup",
        "desk",
        "dish",
        "door",
        "drum",
    ),
    *("fan", "flag", "fork", "glass", "glove", "hat", "horn", "kite", "lamp", "lock", "mat", "nail", "pen"),
    "rope",
)
IT = "it"
"""An agent's own item, in its own words."""
VERBS = ("gather", "look", "craft", "delegate")
_ITEMS = {IT, *RAW, *MADE}
MOST_ITEMS = 2
"""Of one action, and of one recipe."""
MOST_DEPTH = 10
_MOST_BESIDE = 2
"""Depth of the other item of a recipe, beside the one that makes it as deep as it is: at most 35 of the 40
names are needed then."""
_RAW_BESIDE = 0.6
"""Share of recipes whose other item is raw."""


@dataclass(frozen=True)
class Task:
    """An item to make, and the recipes of all that it takes."""

    target: str
    recipes: Mapping[str, tuple[str, ...]]
    """Item -> what it is crafted from; a raw item has none."""

    def depth(self, item: str | None = None) -> int:
        """How many crafts deep the recipes of an item nest (default: of the target)."""
        parts = self.recipes.get(self.target if item is None else item, ())
        return 1 + max(map(self.depth, parts)) if parts else 0

    @property
    def num_crafts(self) -> int:
        """Crafts that it takes: every made item is part of one recipe alone."""
        return len(self.recipes)


def task(rng: random.Random, *, depth: int) -> Task:
    """A random one of this depth.

    Raises:
        ValueError: depth is not 1 to 10.
    """
    if not 1 <= depth <= MOST_DEPTH:
        raise ValueError(f"depth {depth}: choose 1 to {MOST_DEPTH}")
    names = rng.sample(MADE, len(MADE))
    recipes: dict[str, tuple[str, ...]] = {}

    def item(depth: int) -> str:
        if depth == 0:
            return rng.choice(RAW)
        name = names.pop()
        is_raw = depth == 1 or rng.random() < _RAW_BESIDE
        parts = [item(depth - 1), item(0 if is_raw else rng.randint(1, min(depth - 1, _MOST_BESIDE)))]
        rng.shuffle(parts)
        recipes[name] = tuple(parts)
        return name

    return Task(item(depth), recipes)


@dataclass(frozen=True)
class Action:
    """One step of an agent."""

    verb: str
    items: tuple[str, ...]


def read(text: str) -> Action | None:
    """What an answer asks for; None: it is no action."""
    verb, *items = text.split() or [""]
    most = MOST_ITEMS if verb in ("gather", "delegate") else 1
    if verb not in VERBS or not 1 <= len(items) <= most or not all(one in _ITEMS for one in items):
        return None
    return Action(verb, tuple(items))


@dataclass
class Workshop:
    """Where one agent makes one item."""

    task: Task
    target: str
    held: Counter[str] = field(default_factory=Counter)
    known: list[str] = field(default_factory=list)
    """Items whose recipes the agent was told, in this order."""

    def __post_init__(self) -> None:
        self.known.append(self.target)

    @property
    def order(self) -> str:
        """The task in words."""
        return " ".join(("make", IT, "from", *self.task.recipes[self.target]))

    @property
    def is_done(self) -> bool:
        """What verifies an agent: it holds the item that it was to make."""
        return self.held[self.target] > 0

    def missing(self, item: str) -> list[str]:
        """What its recipe takes and does not lie here, in no order."""
        return list((Counter(self.task.recipes[item]) - self.held).elements())

    def act(self, action: Action) -> str:
        """The environment's answer to gather, look and craft."""
        if action.verb == "gather":
            self.held.update(one for one in action.items if one in RAW)
            return _got(action.items, [one in RAW for one in action.items])
        (said,) = action.items
        item = self.target if said == IT else said
        if item not in self.task.recipes:
            return f"no {said}"
        if action.verb == "look":
            self.known.append(item)
            return " ".join((said, "from", *self.task.recipes[item]))
        assert action.verb == "craft", action
        if self.missing(item):
            return f"no {said}"
        self.held = self.held - Counter(self.task.recipes[item]) + Counter([item])
        return f"got {said}"

    def may_delegate(self, item: str) -> bool:
        """Whether another agent can be asked for it: an item with a recipe that is not one's own task."""
        return item in self.task.recipes and item != self.target

    def receive(self, items: Sequence[str], made: Sequence[bool]) -> str:
        """The answer to delegate: what subagents made lies here now."""
        self.held.update(one for one, is_made in zip(items, made, strict=True) if is_made)
        return _got(items, made)


def _got(items: Sequence[str], made: Sequence[bool]) -> str:
    return " ".join(f"{'got' if is_made else 'no'} {one}" for one, is_made in zip(items, made, strict=True))
