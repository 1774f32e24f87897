"""A search over steps: several are drawn from one state, and all are tried."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from sample_traces.actor import Actor, act_as, finish, main_agent
from sample_traces.chat import system, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler
from sample_traces.system import System
from tracestore.client import Call, Completion, Episode

START, GOAL = 2, 10
SHAPES = {"reach": (1, 2), "near": (2, 2)}
"""Task -> how many answers are drawn at each depth. `reach` has one chain that forks at its last step."""
TASKS = ("reach", "reach", "near")
_STEP = re.compile(r"([+*-])\s*(\d{1,3})")


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Come from 2 to 10 in two steps, each an operation on the number, trying all that was drawn.

    A leaf is worth 1 at the goal. Elsewhere it is worth 0 in `reach`; in `near`, an eighth less for each
    number that it is away.
    A step is worth the mean of its leaves, and of the steps drawn from one state the best is kept.
    Reward: the best leaf.
    """
    task = TASKS[seed % len(TASKS)]
    main = main_agent(episode, sampler)
    tree = _Tree(episode, act_as(main, sampler, seed, temperature=1.0), task)
    tree.actor.chat.begin([system(f"Reach {GOAL}. Say one step, as +3 or *2."), user(f"You are at {START}.")])
    return finish(episode, main, max(tree.grow(START)))


@dataclass
class _Tree:
    episode: Episode
    actor: Actor
    task: str

    def grow(self, number: int, depth: int = 0) -> list[float]:
        """Draws the steps from one state and tries each. Returns what the leaves below are worth."""
        shape, chat = SHAPES[self.task], self.actor.chat
        call, drawn = self.actor.ask(n=shape[depth], max_tokens=12)
        messages, ids = list(chat.messages), chat.ids
        leaves: list[list[float]] = []
        continued = []
        for index, sampled in enumerate(drawn):
            chat.messages, chat.ids = list(messages), ids
            self.actor.go_on(call, drawn, index)
            reached = self._take(call[index], sampled, number)
            if reached is None or depth + 1 == len(shape):
                leaves.append([self._grade(call[index], reached)])
                continue
            continued.append(index)
            chat.add(user(f"You are at {reached}."))
            leaves.append(self.grow(reached, depth + 1))
        if len(drawn) > 1:
            self._keep(call, [sum(below) / len(below) for below in leaves], continued)
        return [value for below in leaves for value in below]

    def _take(self, answer: Completion, sampled: Sampled, number: int) -> int | None:
        """Where a step leads; None for what is no step."""
        said = _STEP.search(sampled.text)
        reached = None
        if said is not None:
            by = int(said[2])
            reached = {"+": number + by, "-": number - by, "*": number * by}[said[1]]
        self.actor.agent.tool_call(
            answer,
            id=f"{answer.call.id}/{answer.index}/step",
            name="step",
            arguments=said[0] if said else sampled.text,
            result="That is no step." if reached is None else f"You are at {reached}.",
            status="failed" if reached is None else "ok",
        )
        return reached

    def _grade(self, answer: Completion, reached: int | None) -> float:
        away = 8 if reached is None else abs(GOAL - reached)
        value = float(away == 0) if self.task == "reach" else max(0.0, 1 - away / 8)
        self.episode.reward(
            "reached",
            value,
            answer,
            scorer="rule",
            scorer_version="1",
            id=f"{answer.call.id}/{answer.index}/reached",
        )
        return value

    def _keep(self, call: Call, values: list[float], continued: list[int]) -> None:
        steps = self.episode.candidates(call, scores=values, generator="policy", id=f"{call.id}/steps")
        steps.select(
            [values.index(max(values))],
            selector="search",
            selector_version="mean-of-leaves",
            continued=continued or None,
        )


SCRIPTS = (
    {"main": ["take +3", "take *2", "take +3"]},
    {"main": ["take *2", "take +6", "take +6"]},
    {"main": ["take +3", "take *3", "take *2", "take +1", "take -2", "take +10"]},
)

SYSTEM = System(task="reach", play=play, scripts=SCRIPTS, tasks=TASKS)

if __name__ == "__main__":
    sys.exit(harness_main("tree_search"))
