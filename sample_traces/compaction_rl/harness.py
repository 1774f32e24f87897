"""Long work in a short context: before it is full, the policy writes down where it stands and goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sample_traces.actor import Actor, act_as, finish, main_agent, numbers
from sample_traces.chat import Message, system, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler
from sample_traces.system import System
from tracestore.client import Call, Episode

CONTEXT = 160
"""Tokens of the window, where the paper has 65,536."""
RESERVE = 25
"""With less room than this it compacts: 10,240 / 65,536 of the window."""
KEPT_STEPS = 2
MAX_COMPACTIONS, MAX_STEPS = 3, 14

DRAWERS = {1: 20, 2: 35, 3: 70, 4: 15, 5: 40, 6: 25, 7: 30}
ANSWER = max(DRAWERS.values())
_HEAD = [
    system("Say the number of a drawer to open it, or say which number is the largest."),
    user("There are drawers 1 to 7. What is the largest number in them?"),
]
_SUMMARIZE = user("Write down what matters.")


@dataclass(frozen=True)
class Step:
    """An answer and what the environment said to it, kept or dropped together."""

    call: Call
    sampled: Sampled
    message: Message
    observation: Message


@dataclass
class Window:
    """What stands in the context behind the task."""

    actor: Actor
    steps: list[Step] = field(default_factory=list)
    num_compactions: int = 0
    on_next: Callable[[Call], None] | None = None
    """Waits for the first call that reads a new window."""

    @property
    def room(self) -> int:
        return CONTEXT - len(self.actor.chat.ids)

    def begin(self, resume: Sequence[Message] = (), tail: Sequence[Step] = ()) -> None:
        """A new window; the ids of the steps in it are those that were sampled."""
        chat = self.actor.chat
        chat.begin([*_HEAD, *resume])
        for step in tail:
            chat.answered(step.sampled, step.message)
            chat.add(step.observation)
        self.steps = [*tail]

    def ask(self) -> tuple[Call, Sampled]:
        call, said = self.actor.say(max_tokens=32)
        if self.on_next is not None:
            self.on_next(call)
            self.on_next = None
        return call, said

    def add(self, step: Step) -> None:
        self.actor.chat.add(step.observation)
        self.steps.append(step)

    def compact(self) -> bool:
        """The policy sums the window up, and a new one begins with that and the last steps.

        Fewer steps are kept where these do not fit. Returns False where the budget is spent: no compaction is
        left, or no room for a summary, or too little behind it.
        """
        actor, old, room = self.actor, self.steps, self.room
        actor.chat.undo_add()
        actor.chat.add(old[-1].observation, _SUMMARIZE)
        if self.num_compactions == MAX_COMPACTIONS or self.room < 1:
            return False
        self.num_compactions += 1
        summary, drawn = actor.ask(purpose="summarize", max_tokens=self.room)
        resume = user(f"You wrote: {drawn[0].text}")
        tail = next((tail for tail in _tails(old) if self._fits(resume, tail)), None)
        kept = [step.call for step in tail or ()]
        tokens_after = CONTEXT - self.room

        def record(after: Call | None) -> None:
            actor.agent.compaction(
                id=f"{summary.id}/compaction",
                summary=summary[0],
                trigger="rule",
                before=old[-1].call,
                after=after,
                replaced=[step.call for step in old if step.call not in kept],
                kept=kept,
                tokens_before=CONTEXT - room,
                tokens_after=tokens_after,
                status="failed" if tail is None else "accepted",
                reason=f"{room} of {CONTEXT} tokens left",
            )

        actor.last = None
        if tail is None:
            record(None)
        else:
            self.on_next = record
        return tail is not None

    def _fits(self, resume: Message, tail: Sequence[Step]) -> bool:
        self.begin([resume], tail)
        return self.room >= RESERVE


def _tails(steps: Sequence[Step]) -> list[Sequence[Step]]:
    """The last steps, as many as are kept, then fewer, then none."""
    return [steps[len(steps) - k :] for k in range(min(KEPT_STEPS, len(steps)), -1, -1)]


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Open drawers one after the other, and say the largest number in them.

    Reward: 1 when right. An episode that runs out of steps or compactions is `budget_exhausted` with 0, and
    trains.
    """
    _title(episode, sampler, seed)
    main = main_agent(episode, sampler)
    window = Window(act_as(main, sampler, seed, temperature=1.0))
    window.begin()
    for _ in range(MAX_STEPS):
        call, said = window.ask()
        named = numbers(said.text)[-1:]
        if named and "largest" in said.text:
            return finish(episode, main, float(named == [ANSWER]))
        holds = DRAWERS.get(named[0]) if named else None
        observation = "There is no such drawer." if holds is None else f"It holds {holds}."
        main.tool_call(
            call,
            id=f"{call.id}/open",
            name="open",
            arguments=said.text,
            result=observation,
            status="failed" if holds is None else "ok",
        )
        window.add(Step(call, said, window.actor.message(said), user(observation)))
        if window.room < RESERVE and not window.compact():
            break
    return finish(episode, main, 0.0, status="budget_exhausted")


def _title(episode: Episode, sampler: Sampler, seed: int) -> None:
    """A call beside the work, as tools make them for their lists: recorded, never trained."""
    titles = episode.agent(f"{episode.id}/title", role="title", model=sampler.model_name, trainable=False)
    actor = act_as(titles, sampler, seed)
    actor.chat.begin([user("Title of: open drawers")])
    actor.say(purpose="title", max_tokens=8)
    titles.end()


SCRIPTS = (
    {
        "main": ["1", "2", "3", "4", "5", "The largest of the five is 70", "6", "The largest number is 70"],
        "title": ["Drawers"],
    },
    {
        "main": [
            *("1", "1", "2", "1", "2", "The largest number so far is 35"),
            *("1", "2", "The largest number so far is 35"),
            *("1", "2", "The largest number so far is 35"),
            *("2", "1"),
        ],
        "title": ["Drawers"],
    },
    {"main": ["3", "70 is the largest"], "title": ["Opening drawers"]},
    {
        "main": [
            "I have to begin somewhere, so out of all the drawers that are there "
            "in the room I will first open drawer 4",
            "That is not much, and there are many more drawers here "
            "that I have not seen yet, so I open drawer 5",
            "Drawer 5 has 40",
            "The largest is 40",
        ],
        "title": ["Largest number"],
    },
)

SYSTEM = System(task="largest-drawer", play=play, scripts=SCRIPTS)

if __name__ == "__main__":
    sys.exit(harness_main("compaction_rl"))
