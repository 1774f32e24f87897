"""Several attempts at one task: each an episode of its own, or all in one, and a judge keeps one."""

from __future__ import annotations

import sys

from sample_traces.actor import act_as, finish, main_agent, numbers
from sample_traces.chat import assistant, system, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampler
from sample_traces.system import System
from tracestore.client import Agent, Episode

FACTORS = (17, 6)
N = 4
JUDGE = "product-judge"


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """The first four episodes are an attempt each; the next makes four attempts and keeps one."""
    return one_of_n(episode, sampler, seed) if seed < N else best_of_n(episode, sampler, seed)


def one_of_n(episode: Episode, sampler: Sampler, seed: int) -> float:
    """An attempt: a product, and a second look at it. Reward: 1 if the second answer is right."""
    main = main_agent(episode, sampler)
    return finish(episode, main, _is_right(_attempt(main, sampler, seed)))


def best_of_n(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Four attempts by agents that do not see each other; a judge marks their answers, the best is kept.

    Each attempt is checked as well, which nobody tells the judge. Reward: 1 if the kept answer is right.
    """
    tries: list[Agent] = []
    answers: list[str] = []
    for place in range(N):
        agent = episode.agent(
            f"{episode.id}/try{place}", role="attempt", model=sampler.model_name, policy=sampler.policy
        )
        tries.append(agent)
        answers.append(_attempt(agent, sampler, seed + 100 * place))
        agent.end(return_message=assistant(answers[-1]))
    judge = episode.agent(f"{episode.id}/judge", role="judge", model=JUDGE, trainable=False)
    marks = act_as(judge, sampler, seed, temperature=0.8)
    listed = "\n".join(f"{place + 1}: {answer}" for place, answer in enumerate(answers))
    marks.chat.begin([system(f"Mark each answer to {_asked()} from 0 to 10."), user(listed)])
    call, said = marks.say(purpose="judge", max_tokens=24)
    scores = [mark / 10 for mark in numbers(said.text) if mark <= 10][:N]
    kept = [scores.index(max(scores))] if len(scores) == N else []
    judge.end("ok" if kept else "failed")
    attempts = episode.candidates(tries, generator="policy", id=f"{episode.id}/attempts")
    attempts.select(
        kept,
        scores=scores if kept else None,
        selector="judge",
        selector_version=JUDGE,
        selector_call=call,
        reason=None if kept else "a mark is missing",
    )
    right = [_is_right(answer) for answer in answers]
    for place, value in enumerate(right):
        episode.reward(
            "right",
            value,
            attempts[place],
            scorer="rule",
            scorer_version="1",
            id=f"{attempts.id}/{place}/right",
        )
    reward = right[kept[0]] if kept else 0.0
    status = "ok" if kept else "failed"
    episode.reward("task", reward, scorer="rule", scorer_version="1", id=f"{episode.id}/reward")
    episode.end(status)
    return reward


def _attempt(agent: Agent, sampler: Sampler, seed: int) -> str:
    actor = act_as(agent, sampler, seed, temperature=0.8)
    actor.chat.begin([system("Answer with a number."), user(f"What is {_asked()}?")])
    actor.say(max_tokens=16)
    actor.chat.add(user("Are you sure? Say the number again."))
    _, sampled = actor.say(max_tokens=16)
    return sampled.text


def _asked() -> str:
    return f"{FACTORS[0]} * {FACTORS[1]}"


def _is_right(answer: str) -> float:
    return float(numbers(answer)[-1:] == [FACTORS[0] * FACTORS[1]])


SCRIPTS = (
    {"main": ["112", "It is 112"]},
    {"main": ["96", "No, 102"]},
    {"main": ["92", "92"]},
    {"main": ["I guess 100", "100"]},
    {
        "try0": ["112", "112"],
        "try1": ["100", "It is 102"],
        "try2": ["102", "102"],
        "try3": ["76", "67"],
        "judge": ["3, 8, 5, 0"],
    },
)

SYSTEM = System(task="product", play=play, scripts=SCRIPTS, tasks=("product",) * N + ("kept-product",))

if __name__ == "__main__":
    sys.exit(harness_main("best_of_n"))
