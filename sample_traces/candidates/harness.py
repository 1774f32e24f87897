"""Four openings from one prompt, one kept by a rule, then continued."""

from __future__ import annotations

import sys

from sample_traces.actor import act_as, finish, main_agent
from sample_traces.chat import system, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler
from sample_traces.system import System
from tracestore.client import Episode

NUM_CANDIDATES = 4


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Open a story in four ways, keep the one that fits the task best, go on with it.

    A rule scores the openings: half a point for "fox", half for "river", nothing if the token limit cut it.
    Reward: the mean of the kept opening's score and 1 if the next sentence is whole and holds "moon".
    """
    main = main_agent(episode, sampler)
    actor = act_as(main, sampler, seed, temperature=0.8)
    actor.chat.begin(
        [
            system("You write one short sentence at a time."),
            user('Begin a story about a fox. Use the word "river".'),
        ]
    )
    tries, drawn = actor.ask(n=NUM_CANDIDATES, max_tokens=32)
    scores = [_fits(sampled, "fox", "river") for sampled in drawn]
    kept = scores.index(max(scores))
    openings = episode.candidates(tries, scores=scores, generator="policy", id=f"{tries.id}/openings")
    openings.select([kept], scores=scores, selector="search", selector_version="words-1")
    actor.go_on(tries, drawn, kept)
    actor.chat.add(user('Go on. Use the word "moon".'))
    call, drawn = actor.ask(max_tokens=32)
    actor.go_on(call, drawn)
    return finish(episode, main, (scores[kept] + _fits(drawn[0], "moon")) / 2)


def _fits(sampled: Sampled, *words: str) -> float:
    if sampled.finish_reason == "length":
        return 0.0
    return sum(word in sampled.text.lower() for word in words) / len(words)


SYSTEM = System(task="fox-river-moon", play=play, seeds=(0, 1, 2))

if __name__ == "__main__":
    sys.exit(harness_main("candidates"))
