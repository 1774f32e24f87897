"""RAO in small: agents that craft, each in a workshop of its own, and start others side by side."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sample_traces.actor import Actor
from sample_traces.chat import Chat, Message, assistant, system, tool, tool_use, user
from sample_traces.rao.crafting import MOST_DEPTH, Action, Task, Workshop, read, task
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler
from sample_traces.side_by_side import Work, side_by_side
from sample_traces.system import System
from tracestore.client import Agent, Call, Episode

SEED, DEPTH = 12, 3
"""horn from bed glass, bed from book gold, book from wood coal, glass from gold clay."""
MOST_STEPS = 10
"""Answers of one agent."""
MOST_UNREAD = 2
"""Answers in a row that are no action."""
_HELP = "Answer with one step: gather, look, craft or delegate, and the items."
_UNREAD = "That is no step."


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Make an item three recipes deep; whoever delegates an item starts an agent that makes it.

    Reward: 1 when the main agent holds the item. Every other agent scores 1 when it holds its own: what it
    handed back is verified, whatever became of it.
    """
    order = task(random.Random(SEED), depth=DEPTH)
    main = _Crafting(episode, sampler, seed, order)
    side_by_side([main.work()])
    reward = float(main.workshop.is_done)
    main.end(score=None)
    episode.reward("made", reward, scorer="workshop", scorer_version="1", id=f"{episode.id}/reward")
    episode.end(main.status)
    return reward


class _Speaker(Actor):
    """An actor whose lines that are actions are tool calls."""

    def message(self, sampled: Sampled) -> Message:
        action = read(sampled.text)
        return assistant(sampled.text, [] if action is None else [_use(action)])


def _use(action: Action) -> dict[str, Any]:
    return tool_use(0, action.verb, {"items": action.items})


@dataclass
class _Crafting:
    """One agent with its workshop."""

    episode: Episode
    sampler: Sampler
    seed: int
    task: Task
    target: str | None = None
    parent: tuple[_Crafting, Call] | None = None
    name: str = "main"
    status: str = "budget_exhausted"
    names: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.workshop = Workshop(self.task, self.target or self.task.target)
        self.agent = self._agent()
        self.actor = _Speaker(self.agent, Chat(self.sampler), self.seed, temperature=0.8)
        self.actor.chat.begin([system(_HELP), user(self.workshop.order)])

    def _agent(self) -> Agent:
        played: dict[str, Any] = {"model": self.sampler.model_name, "policy": self.sampler.policy}
        played["scope_prompt"] = self.workshop.order
        name = f"{self.episode.id}/{self.name}"
        if self.parent is None:
            return self.episode.agent(name, **played)
        parent, call = self.parent
        return parent.agent.subagent(
            name, call=call[0], tool_call_id=tool_use(0, "delegate", {})["id"], **played
        )

    def work(self) -> Work:
        """Until the item is made, the steps are spent, or nothing that is said is a step."""
        unread = 0
        for _ in range(MOST_STEPS):
            call, said = self.actor.say(max_tokens=12)
            yield
            action = read(said.text)
            if action is None:
                unread += 1
                self.actor.chat.add(user(_UNREAD))
            else:
                unread = 0
                self._step(call, action)
            if self.workshop.is_done or unread == MOST_UNREAD:
                self.status = "ok" if self.workshop.is_done else "failed"
                return

    def _step(self, call: Call, action: Action) -> None:
        seen = self._delegate(call, action) if action.verb == "delegate" else self.workshop.act(action)
        use = _use(action)
        self.agent.tool_call(
            call,
            id=f"{call.id}/{use['id']}",
            tool_call_id=use["id"],
            name=action.verb,
            arguments=use["function"]["arguments"],
            result=seen,
            status="ok" if {"got", "from"} & set(seen.split()) else "failed",
        )
        self.actor.chat.add(tool(seen, use["id"]))

    def _delegate(self, call: Call, action: Action) -> str:
        """Agents for the items, at work at the same time; none sees what another does."""
        started = list(self._start(call, action))
        side_by_side(one.work() for one in started)
        for one in started:
            one.end(score=float(one.workshop.is_done))
        left = iter(started)
        made = [self._may_start(item) and next(left).workshop.is_done for item in action.items]
        return self.workshop.receive(action.items, made)

    def _start(self, call: Call, action: Action) -> Iterator[_Crafting]:
        for item in filter(self._may_start, action.items):
            self.names[item] += 1
            again = "" if self.names[item] == 1 else f"-{self.names[item]}"
            seed = self.seed + 100 * (1 + self.names.total())
            name = f"{self.name}/{item}{again}"
            yield _Crafting(self.episode, self.sampler, seed, self.task, item, (self, call), name)

    def _may_start(self, item: str) -> bool:
        return self.agent.depth < MOST_DEPTH and self.workshop.may_delegate(item)

    def end(self, *, score: float | None) -> None:
        """What it hands back, and what the verifier of its workshop says; a root's score is the reward."""
        made = self.workshop.target if self.workshop.is_done else None
        self.agent.end(self.status, return_message=made, score=score)


_NOTHING = ["I would buy it.", "It is in the shop."]

SCRIPTS = (
    # One of two delegated items comes back; the main agent makes the other itself.
    {
        "main": [
            *("delegate bed glass", "look bed", "look book", "gather wood coal", "craft book"),
            *("gather gold", "craft bed", "craft it"),
        ],
        "main/bed": ["craft it", *_NOTHING],
        "main/glass": ["gather gold clay", "craft it"],
    },
    # What lies two levels down is made, and nothing comes of it.
    {
        "main": ["delegate bed glass", *_NOTHING],
        "main/bed": ["delegate book", *_NOTHING],
        "main/bed/book": ["gather wood coal", "craft it"],
        "main/glass": _NOTHING,
    },
    # Alone, in one context.
    {
        "main": [
            *("look glass", "gather gold clay", "craft glass", "look bed", "look book", "gather wood coal"),
            *("craft book", "gather gold", "craft bed", "craft it"),
        ],
    },
    {"main": ["craft it", *_NOTHING]},
)

SYSTEM = System(task="horn", play=play, scripts=SCRIPTS)

if __name__ == "__main__":
    sys.exit(harness_main("rao"))
