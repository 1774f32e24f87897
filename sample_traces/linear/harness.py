"""A chain of turns with an environment that answers."""

from __future__ import annotations

import sys

from sample_traces.actor import act_as, finish, main_agent, numbers
from sample_traces.chat import assistant, system, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampler
from sample_traces.system import System
from tracestore.client import Episode

SECRET = 3
MAX_GUESSES = 4


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Find a number between 1 and 9 in four guesses; after each the environment says where it lies.

    Reward: 1 when found. Every prompt extends the one before it, so an episode is one sample.
    """
    main = main_agent(episode, sampler)
    actor = act_as(main, sampler, seed, temperature=0.8)
    actor.chat.begin(
        [
            system("Guess the number. Answer with one number."),
            user("It is between 1 and 9."),
            assistant("7"),
            user("Too high. It is between 1 and 6."),
        ]
    )
    low, high = 1, 6
    for turn in range(MAX_GUESSES):
        call, drawn = actor.ask(max_tokens=16)
        guess = next(iter(numbers(actor.go_on(call, drawn).text)), None)
        if guess is None:
            verdict = "That is no number."
        elif guess == SECRET:
            verdict = "Correct."
        else:
            low, high = (max(low, guess + 1), high) if guess < SECRET else (low, min(high, guess - 1))
            verdict = "Too low." if guess < SECRET else "Too high."
        main.tool_call(
            call,
            id=f"{call.id}/guess",
            name="guess",
            arguments="" if guess is None else str(guess),
            result=verdict,
            status="failed" if guess is None else "ok",
        )
        if guess == SECRET:
            return finish(episode, main, 1.0)
        if turn + 1 < MAX_GUESSES:
            actor.chat.add(user(f"{verdict} It is between {low} and {high}."))
    return finish(episode, main, 0.0, status="budget_exhausted")


SCRIPTS = (
    {"main": ["5", "It is 3"]},
    {"main": ["5", "4", "2", "1"]},
    {"main": ["I do not know.", "6", "5", "4"]},
    {"main": ["3"]},
)

SYSTEM = System(task="guess-3", play=play, seeds=(0, 2, 3, 5), scripts=SCRIPTS)

if __name__ == "__main__":
    sys.exit(harness_main("linear"))
