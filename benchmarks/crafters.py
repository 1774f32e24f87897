"""Agents that craft with a small model, alone or by delegating, a noisy teacher, and their record over HTTP.

The environment is that of `sample_traces/rao/crafting.py`; its words are token ids, so there is no text to be
tokenised. What an agent has read and said stays in its context until that is full, which ends it.

    make it from nail wood go -> gather wood end
    ... got wood go           -> delegate nail end     make it from iron salt go -> gather iron salt end
                                                       ... got iron got salt go  -> craft it end
    ... got nail go           -> craft it end

Every answer is one step of the environment, whoever gives it and whatever it says.
"""

# B contexts, T tokens, V vocabulary

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from sample_traces.rao.crafting import IT, MADE, MOST_ITEMS, RAW, VERBS, Action, Task, Workshop, read
from tracestore.client import Agent as RecordedAgent
from tracestore.client import Call, Client

WORDS = (*RAW, *MADE, *VERBS, IT, "make", "from", "got", "no", "what", "go", "end")
ID = {word: id_ for id_, word in enumerate(WORDS)}
GO, END = ID["go"], ID["end"]
MOST_SAMPLED = MOST_ITEMS + 2
"""Tokens of an answer: a verb, its items, and `end`."""
MOST_LEVELS, MOST_AGENTS = 12, 40
"""Of one episode; what is delegated beyond comes back as `no`."""
MODEL, POLICY = "tiny", "crafter"


@dataclass(frozen=True)
class Said:
    """One answer."""

    ids: list[int]
    logprobs: list[float]
    """Natural logarithms at temperature 1."""

    @property
    def action(self) -> Action | None:
        return read(text(self.ids[:-1])) if self.ids[-1] == END else None


@dataclass(frozen=True)
class Turn:
    """One model call."""

    read: int
    """Tokens of the context that it saw."""
    said: Said


@dataclass(frozen=True)
class Rules:
    """What agents can do."""

    context: int
    """Most tokens of an agent's context, its own answers included."""
    delegates: bool


@dataclass
class Crafter:
    """One agent at one item."""

    workshop: Workshop
    rules: Rules
    parent: Crafter | None = None
    context: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    subagents: list[tuple[int, Crafter]] = field(default_factory=list)
    """With the turn that started them."""
    is_over: bool = False
    num_agents: int = 1
    """Of the episode; counted at its root."""

    def __post_init__(self) -> None:
        self.context += [*ids(self.workshop.order), GO]

    @property
    def level(self) -> int:
        return 0 if self.parent is None else self.parent.level + 1

    @property
    def root(self) -> Crafter:
        return self if self.parent is None else self.parent.root

    @property
    def is_right(self) -> bool:
        return self.workshop.is_done

    @property
    def num_steps(self) -> int:
        """Of the environment, of this agent and all below it."""
        return len(self.turns) + sum(one.num_steps for _, one in self.subagents)

    @property
    def critical_steps(self) -> int:
        """Its answers, and behind each those of the longest subagent that it started, all of them at once."""
        longest: dict[int, int] = {}
        for turn, one in self.subagents:
            longest[turn] = max(longest.get(turn, 0), one.critical_steps)
        return len(self.turns) + sum(longest.values())

    def hear(self, said: Said) -> list[Crafter]:
        """Its next answer. Returns who speaks next because of it: itself, those it started, or who waited."""
        self.turns.append(Turn(len(self.context), said))
        self.context += said.ids
        action = said.action
        if action is None or (action.verb == "delegate" and not self.rules.delegates):
            return self._see("what")
        if action.verb != "delegate":
            return self._see(self.workshop.act(action))
        wanted = [item for item in action.items if self.workshop.may_delegate(item)]
        if self.level == MOST_LEVELS or self.root.num_agents + len(wanted) > MOST_AGENTS:
            wanted = []
        started = [self._start(item) for item in wanted]
        self.subagents += [(len(self.turns) - 1, one) for one in started]
        return started or self._see(self.workshop.receive(action.items, [False] * len(action.items)))

    def _start(self, item: str) -> Crafter:
        self.root.num_agents += 1
        return Crafter(Workshop(self.workshop.task, item), self.rules, parent=self)

    def _see(self, answer: str) -> list[Crafter]:
        """The environment's answer, unless it ends the agent: the item is made, or the context is full."""
        words = [*ids(answer), GO]
        self.is_over = self.is_right or len(self.context) + len(words) + MOST_SAMPLED > self.rules.context
        if not self.is_over:
            self.context += words
            return [self]
        return self.parent._join() if self.parent is not None else []

    def _join(self) -> list[Crafter]:
        """Go on when all that the last answer started are done."""
        last = len(self.turns) - 1
        started = [one for turn, one in self.subagents if turn == last]
        if not all(one.is_over for one in started):
            return []
        action = self.turns[-1].said.action
        assert action is not None
        left = iter(started)
        # An item that nobody could be asked for was not started.
        made = [self.workshop.may_delegate(item) and next(left).is_right for item in action.items]
        return self._see(self.workshop.receive(action.items, made))


class Speaker(Protocol):
    """Answers for agents, all at once."""

    def __call__(self, asked: Sequence[Crafter]) -> list[Said]: ...


def attempts(tasks: Sequence[Task], speaker: Speaker, rules: Rules) -> list[Crafter]:
    """One attempt at each task, at whose root is what it returns; agents that can speak, speak together."""
    roots = [Crafter(Workshop(task, task.target), rules) for task in tasks]
    asked = list(roots)
    while asked:
        asked = [then for one, said in zip(asked, speaker(asked), strict=True) for then in one.hear(said)]
    return roots


def everyone(roots: Sequence[Crafter]) -> Iterator[Crafter]:
    """The agents and all below them."""
    for one in roots:
        yield one
        yield from everyone([below for _, below in one.subagents])


def ids(words: str) -> list[int]:
    return [ID[word] for word in words.split()]


def text(ids_: Sequence[int]) -> str:
    return " ".join(WORDS[one] for one in ids_)


# --- Who speaks ---------------------------------------------------------------------------------------------


class Model:
    """Samples from a causal LM at temperature 1."""

    def __init__(self, model: Any, *, seed: int) -> None:
        self.model = model
        self._random = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def __call__(self, asked: Sequence[Crafter]) -> list[Said]:
        # Padded on the left, so that every context ends in the same column, and read once.
        width = max(len(one.context) for one in asked)
        ids_BT = torch.tensor([[GO] * (width - len(one.context)) + one.context for one in asked])
        seen_BT = torch.tensor([[0] * (width - len(one.context)) + [1] * len(one.context) for one in asked])
        position_BT = (seen_BT.cumsum(1) - 1).clamp(min=0)
        cache = None
        said = [Said([], []) for _ in asked]
        for _ in range(MOST_SAMPLED):
            out = self.model(
                input_ids=ids_BT,
                attention_mask=seen_BT,
                position_ids=position_BT,
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.cache
            logprobs_BV = torch.log_softmax(out.logits[:, -1], dim=-1)
            ids_BT = torch.multinomial(logprobs_BV.exp(), 1, generator=self._random)
            logprob_B = logprobs_BV.gather(1, ids_BT)[:, 0]
            for one, id_, logprob in zip(said, ids_BT[:, 0].tolist(), logprob_B.tolist(), strict=True):
                if not one.ids or one.ids[-1] != END:
                    one.ids.append(id_)
                    one.logprobs.append(logprob)
            if all(one.ids[-1] == END for one in said):
                break
            seen_BT = torch.cat([seen_BT, torch.ones_like(ids_BT)], dim=1)
            position_BT = position_BT[:, -1:] + 1
        return said


class Teacher:
    """Knows what to do next, and does something else in a share of the steps: what a model is taught before
    it learns from rewards."""

    def __init__(self, rng: random.Random, *, noise: float) -> None:
        self._rng = rng
        self._noise = noise

    def __call__(self, asked: Sequence[Crafter]) -> list[Said]:
        return [self._said(one) for one in asked]

    def _said(self, one: Crafter) -> Said:
        action = self._anything(one) if self._rng.random() < self._noise else best(one)
        said = [*ids(" ".join((action.verb, *action.items))), END]
        return Said(said, [0.0] * len(said))

    def _anything(self, one: Crafter) -> Action:
        """With items that it has read of."""
        verb = self._rng.choice(VERBS if one.rules.delegates else VERBS[:-1])
        items = sorted(
            {word for word in text(one.context).split() if word in RAW or word in MADE or word == IT}
        )
        most = MOST_ITEMS if verb in ("gather", "delegate") else 1
        return Action(verb, tuple(self._rng.sample(items, self._rng.randint(1, min(most, len(items))))))


def best(one: Crafter) -> Action:
    """The next step on the shortest way: gather what is raw, then have the rest delegated, or look it up and
    craft it first."""
    return _towards(one.workshop, one.workshop.target, delegates=one.rules.delegates)


def _towards(workshop: Workshop, item: str, *, delegates: bool) -> Action:
    missing = workshop.missing(item)
    made = [part for part in missing if part not in RAW]
    raw = tuple(part for part in missing if part in RAW)
    if delegates:
        if raw:
            return Action("gather", raw)
        return Action("delegate", tuple(made)) if made else Action("craft", (IT,))
    if made:
        # What lies below is crafted before the rest is gathered, so that nothing is used up on the way.
        first = made[0]
        return (
            _towards(workshop, first, delegates=False)
            if first in workshop.known
            else Action("look", (first,))
        )
    if raw:
        return Action("gather", raw)
    return Action("craft", (IT if item == workshop.target else item,))


# --- The record ---------------------------------------------------------------------------------------------


def record(
    client: Client, roots: Sequence[Crafter], *, group_id: str, version: int, split: str | None = None
) -> None:
    """The attempts at one task as a group of episodes, with everything that the rule `rao` asks for.

    Args:
        group_id: of the group, and of its task.
        version: of the policy that sampled them.
    """
    with client.group(group_id, size=len(roots), task_id=group_id) as group:
        for root in roots:
            episode = group.episode(task_id=group_id, split=split)
            main = episode.agent(role="main", model=MODEL, policy=(POLICY, version))
            _record_agent(main, root)
            episode.reward("made", float(root.is_right), scorer="workshop")
            episode.end(_status(root))


def _record_agent(agent: RecordedAgent, one: Crafter) -> None:
    """Its calls, behind each those of the agents it started, and its end."""
    call: Call | None = None
    known = 0  # tokens of its context so far
    for place, turn in enumerate(one.turns):
        new = one.context[known : turn.read]
        call = agent.call(
            messages=[{"role": "user", "content": text(new)}],
            params={"temperature": 1.0, "max_tokens": MOST_SAMPLED},
            completion=_answer(turn.said),
            delta=call is not None,
            parent=call,
            logprobs_are="raw",
            **{"prompt_token_ids" if call is None else "prompt_token_ids_delta": new},
        )
        known = turn.read + len(turn.said.ids)
        for below in (below for started, below in one.subagents if started == place):
            _record_agent(
                agent.subagent(
                    call=call, model=MODEL, policy=agent.policy, scope_prompt=below.workshop.order
                ),
                below,
            )
    made = one.workshop.target if one.is_right else None
    agent.end(_status(one), return_message=made, score=float(one.is_right))


def _answer(said: Said) -> Mapping[str, Any]:
    return {
        "message": {"role": "assistant", "content": text(said.ids)},
        "finish_reason": "stop" if said.ids[-1] == END else "length",
        "token_ids": said.ids,
        "logprobs": said.logprobs,
    }


def _status(one: Crafter) -> str:
    """An agent that has not made its item has filled its context."""
    return "ok" if one.is_right else "budget_exhausted"
