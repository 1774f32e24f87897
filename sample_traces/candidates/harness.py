"""Four alternatives from one prompt, one kept, then continued.

`play` opens a story in four ways and keeps what a rule scores best. `plan` draws four plans for a walk and
keeps one by search, by the policy's own choice or by a judge's marks.
"""

from __future__ import annotations

import re
import sys
from itertools import pairwise

from sample_traces.actor import act_as, finish, main_agent, numbers
from sample_traces.chat import assistant, system, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler
from sample_traces.system import System
from tracestore.client import Agent, Call, Episode

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


STOPS = {"bakery": 1, "bank": 2, "post": 7, "park": 8}
"""Where each stands on the street, in steps from home."""
SHORTEST = 8
SELECTORS = ("search", "policy", "judge")


def plan(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Plan a walk to four stops in four ways, keep one plan, walk.

    Who keeps one depends on the seed: a search by length, the policy, or a judge's marks.
    Reward: what the walk that is then said is worth; 0 where no plan was kept.
    """
    main = main_agent(episode, sampler)
    actor = act_as(main, sampler, seed, temperature=0.8)
    where = ", ".join(f"{stop} {place}" for stop, place in STOPS.items())
    actor.chat.begin([system(f"Plan a walk from 0. Stops: {where}."), user("Name the stops in your order.")])
    tries, drawn = actor.ask(n=NUM_CANDIDATES)
    selector = SELECTORS[seed % len(SELECTORS)]
    kept = _KEEP[selector](episode, main, sampler, tries, [sampled.text for sampled in drawn])
    if kept is None:
        return finish(episode, main, 0.0, status="failed")
    actor.go_on(tries, drawn, kept)
    actor.chat.add(user("Walk: name the stops again."))
    _, walked = actor.say()
    return finish(episode, main, _worth(walked.text))


def _by_search(episode: Episode, main: Agent, sampler: Sampler, tries: Call, plans: list[str]) -> int | None:
    scores = [_worth(text) for text in plans]
    kept = scores.index(max(scores))
    drafts = episode.candidates(tries, scores=scores, generator="policy", id=f"{tries.id}/plans")
    drafts.select([kept], selector="search", selector_version="length-1")
    return kept


def _by_policy(episode: Episode, main: Agent, sampler: Sampler, tries: Call, plans: list[str]) -> int | None:
    """The policy reads the plans and names one. What it says to choose is sampled, and trains.

    It gives no scores, so its candidates keep the episode's advantage: `shared`.
    """
    chooser = main.subagent(
        f"{episode.id}/chooser", call=tries, role="chooser", model=sampler.model_name, policy=sampler.policy
    )
    call, said = _asked(chooser, sampler, "select", "Which plan is shortest? Say its number.", plans)
    named = [number - 1 for number in numbers(said) if 1 <= number <= len(plans)][:1]
    chooser.end(return_message=assistant(said), finding_used=bool(named))
    episode.candidates(tries, generator="policy", id=f"{tries.id}/plans").select(
        named,
        selector="policy",
        selector_call=call,
        treatment="shared",
        reason=None if named else "no number",
    )
    return named[0] if named else None


def _by_judge(episode: Episode, main: Agent, sampler: Sampler, tries: Call, plans: list[str]) -> int | None:
    """A judge marks each plan from 0 to 10; its tokens never train."""
    judge = main.subagent(f"{episode.id}/judge", call=tries, role="judge", model=JUDGE, trainable=False)
    call, said = _asked(judge, sampler, "judge", "Mark each plan from 0 to 10.", plans)
    marks = [mark / 10 for mark in numbers(said) if mark <= 10][: len(plans)]
    is_whole = len(marks) == len(plans)
    judge.end("ok" if is_whole else "failed", return_message=assistant(said))
    kept = [marks.index(max(marks))] if is_whole else []
    episode.candidates(tries, generator="policy", id=f"{tries.id}/plans").select(
        kept,
        scores=marks if is_whole else None,
        selector="judge",
        selector_version=JUDGE,
        selector_call=call,
        reason=None if is_whole else "a mark is missing",
    )
    return kept[0] if kept else None


JUDGE = "street-judge"
_KEEP = {"search": _by_search, "policy": _by_policy, "judge": _by_judge}


def _asked(agent: Agent, sampler: Sampler, purpose: str, question: str, plans: list[str]) -> tuple[Call, str]:
    actor = act_as(agent, sampler, 0, temperature=0.8)
    listed = "\n".join(f"{place + 1}: {text}" for place, text in enumerate(plans))
    actor.chat.begin([system(question), user(listed)])
    call, sampled = actor.say(purpose=purpose, max_tokens=16)
    return call, sampled.text


def _worth(text: str) -> float:
    """1 for the shortest walk, a tenth less for each step more; 0 where a stop is missing or named twice."""
    named = re.findall("|".join(STOPS), text.lower())
    if sorted(named) != sorted(STOPS):
        return 0.0
    places = [0, *(STOPS[stop] for stop in named)]
    walked = sum(abs(there - here) for here, there in pairwise(places))
    return max(0, 10 + SHORTEST - walked) / 10


_PLANS = [
    "bakery, bank, park, post",
    "bakery, park, post, bank",
    "park, post, bank, bakery",
    "bakery, post, park, bank",
]
SCRIPTS = (
    {"main": [*_PLANS, "bakery, bank, park, post"]},
    {"main": [*_PLANS, "bakery, park, post, bank"], "chooser": ["Plan 2"]},
    {
        "main": [*_PLANS[:3], "park, post, bakery, bank", "park, post, bakery, bank"],
        "judge": ["6, 4, 2, 8"],
    },
)

SYSTEM = System(
    task="fox-river-moon",
    play=play,
    seeds=(0, 1, 2),
    scripts=SCRIPTS,
    tasks=("errand",) * len(SCRIPTS),
    scripted_play=plan,
)

if __name__ == "__main__":
    sys.exit(harness_main("candidates"))
