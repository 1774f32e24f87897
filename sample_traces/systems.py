"""Four small harnesses around a small real model, each recording one kind of trace through the client.

Each plays one episode of a task whose reward a few lines of Python check. The model is far too small to be
good at any of it, which is the point: some attempts succeed and some do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sample_traces.chat import Chat, Message, assistant, system, tool, user
from sample_traces.sampler import MODEL_NAME, POLICY, Sampled, Sampler
from tracestore.client import Agent, Call, Completion, Episode

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class System:
    """One harness and the group of episodes that is recorded with it."""

    task: str
    """Id of the task that all episodes of the group attempt."""
    play: Callable[[Episode, Sampler, int], float]
    """(episode, sampler, seed) -> reward, recording on the way."""
    seeds: tuple[int, ...]
    """One episode each; chosen by hand so that the rewards of a group differ."""


def numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(text)]


@dataclass
class Actor:
    """An agent with its context: asks the model, records the call, remembers the answer."""

    agent: Agent
    chat: Chat
    seed: int
    temperature: float
    logprobs_are: str = "processed"
    last: Call | Completion | None = None
    """What the next call continues; None at the beginning of a context."""
    num_calls: int = 0

    def ask(self, *, purpose: str = "act", n: int = 1, max_tokens: int = 40) -> tuple[Call, list[Sampled]]:
        """One call with `n` answers; the caller says which one the context goes on with."""
        drawn = self.chat.sampler.sample(
            self.chat.ids,
            seed=1000 * self.seed + self.num_calls,
            n=n,
            max_tokens=max_tokens,
            temperature=self.temperature,
            logprobs_are=self.logprobs_are,  # type: ignore[arg-type]
        )
        params: dict[str, Any] = {"temperature": self.temperature, "max_tokens": max_tokens, "logprobs": True}
        call = self.agent.call(
            id=f"{self.agent.id}/{self.num_calls}",
            messages=self.chat.messages,
            params=params | ({"n": n} if n > 1 else {}),
            completions=[_body(sampled, self.message(sampled)) for sampled in drawn],
            prompt_token_ids=self.chat.ids,
            parent=self.last,
            purpose=purpose,
            logprobs_are=self.logprobs_are,
            usage={
                "prompt_tokens": len(self.chat.ids),
                "completion_tokens": sum(len(sampled.ids) for sampled in drawn),
            },
        )
        self.num_calls += 1
        return call, drawn

    def go_on(self, call: Call, drawn: list[Sampled], index: int = 0) -> Sampled:
        """The context continues with this answer."""
        sampled = drawn[index]
        self.chat.answered(sampled, self.message(sampled))
        self.last = call[index]
        return sampled

    def message(self, sampled: Sampled) -> Message:
        """The assistant message of an answer, as the inference server parses it."""
        return assistant(sampled.text)


def _body(sampled: Sampled, message: Message) -> Mapping[str, Any]:
    return {
        "message": message,
        "finish_reason": "tool_calls" if message.get("tool_calls") else sampled.finish_reason,
        "token_ids": list(sampled.ids),
        "logprobs": list(sampled.logprobs),
    }


def _actor(agent: Agent, sampler: Sampler, seed: int, *, temperature: float, raw: bool = False) -> Actor:
    logprobs_are = "raw" if raw else "processed"
    return Actor(agent, Chat(sampler), seed, temperature=temperature, logprobs_are=logprobs_are)


def _main(episode: Episode) -> Agent:
    return episode.agent(f"{episode.id}/main", model=MODEL_NAME, policy=POLICY)


# linear: a chain of turns with an environment that answers

SECRET = 3
MAX_GUESSES = 4


def linear(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Find a number between 1 and 9 in four guesses; after each the environment says where it lies.

    Reward: 1 when found. Every prompt extends the one before it, so an episode is one sample.
    """
    main = _main(episode)
    actor = _actor(main, sampler, seed, temperature=0.8)
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
            return _finish(episode, main, 1.0)
        if turn + 1 < MAX_GUESSES:
            actor.chat.add(user(f"{verdict} It is between {low} and {high}."))
    return _finish(episode, main, 0.0, status="budget_exhausted")


# compaction: a full context is replaced by what the policy wrote down

ADD = (4, 2, 3, 5)
CONTEXT_LIMIT = 105
_SHOWN = [
    system("Keep a running total."),
    user("Add 2."),
    assistant("0 + 2 = 2"),
    user("Add 3."),
    assistant("2 + 3 = 5"),
]


def compaction(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Keep a running total; a context of more than 105 tokens is written down and begun anew.

    Reward: the share of turns whose stated total is right. The summary is the policy's own and trains; the
    copy of it in the next context does not.
    """
    main = _main(episode)
    actor = _actor(main, sampler, seed, temperature=0.7, raw=True)
    actor.chat.begin([*_SHOWN, user(f"Add {ADD[0]}.")])
    total, right, edit, since = 5, 0, None, []
    for place, number in enumerate(ADD):
        call, drawn = actor.ask(max_tokens=24)
        if edit is not None:
            edit(call)
            edit = None
        since.append(call)
        total += number
        right += numbers(actor.go_on(call, drawn).text)[-1:] == [total]
        if place + 1 == len(ADD):
            break
        actor.chat.add(user(f"Add {ADD[place + 1]}."))
        if len(actor.chat.ids) > CONTEXT_LIMIT:
            edit = _compact(actor, since, next_number=ADD[place + 1])
            since = []
    return _finish(episode, main, right / len(ADD))


def _compact(actor: Actor, since: list[Call], *, next_number: int) -> Callable[[Call], None]:
    """Write the total down and begin a new context with it.

    Returns what records the edit, to be called with the first call that sees the new context.
    """
    actor.chat.undo_add()
    actor.chat.add(user("What is the total so far?"))
    before = len(actor.chat.ids)
    summary, drawn = actor.ask(purpose="summarize", max_tokens=24)
    written = drawn[0].text
    actor.chat.begin([*_SHOWN, user(f"Before: {written} Add {next_number}.")])
    actor.last = None
    after = len(actor.chat.ids)

    def record(first: Call) -> None:
        actor.agent.compaction(
            id=f"{summary.id}/compaction",
            summary=summary[0],
            trigger="rule",
            before=since[-1],
            after=first,
            replaced=since,
            tokens_before=before,
            tokens_after=after,
        )

    return record


# subagents: two questions asked by tool calls, answered by agents with contexts of their own

LEFT, RIGHT = (2, 2), (6, 3)
_EXAMPLES = (((3, 4), (5, 1)), ((2, 7), (1, 4)))


def subagents(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Add four numbers: the main agent asks two questions, a subagent answers each, the main agent adds.

    Reward: a quarter for each of the two right questions, a half for the right sum. A subagent scores
    1 when it answered the question it was asked.
    """
    main = _main(episode)
    actor = _Asking(main, Chat(sampler), seed, temperature=0.5)
    actor.chat.begin([*_worked_examples(), user(_task(LEFT, RIGHT))])
    plan, drawn = actor.ask()
    uses = actor.message(drawn[0]).get("tool_calls", [])
    actor.go_on(plan, drawn)
    helpers = [
        (use, *_answer(episode, main, plan, use, place, sampler, seed)) for place, use in enumerate(uses)
    ]
    if not helpers:
        return _finish(episode, main, 0.0, status="failed")
    actor.chat.add(*[tool(finding, use["id"]) for use, _, finding in helpers])
    call, drawn = actor.ask(max_tokens=24)
    final = actor.go_on(call, drawn).text
    for use, helper, finding in helpers:
        asked = use["function"]["arguments"]
        main.tool_call(
            plan,
            id=f"{plan.id}/{use['id']}",
            tool_call_id=use["id"],
            name="ask",
            arguments=asked,
            result=finding,
        )
        found = numbers(finding)[-1:]
        helper.end(
            return_message=assistant(finding),
            score=float(found == [sum(numbers(_question(use)))]),
            finding_used=bool(found) and found[0] in numbers(final),
        )
    right = sum(_sum_of(pair) in map(_question, uses) for pair in (LEFT, RIGHT))
    return _finish(episode, main, right / 4 + (numbers(final)[-1:] == [sum(LEFT + RIGHT)]) / 2)


class _Asking(Actor):
    """A main agent whose lines that end in a question mark are tool calls."""

    def message(self, sampled: Sampled) -> Message:
        questions = [line.strip() for line in sampled.text.split("\n") if line.strip().endswith("?")][:2]
        return assistant(sampled.text, [_use(place, question) for place, question in enumerate(questions)])


def _use(place: int, question: str) -> dict[str, Any]:
    return {
        "id": f"ask_{place}",
        "type": "function",
        "function": {"name": "ask", "arguments": json.dumps({"question": question})},
    }


def _question(use: Mapping[str, Any]) -> str:
    return str(json.loads(use["function"]["arguments"])["question"])


def _sum_of(pair: tuple[int, int]) -> str:
    return f"What is {pair[0]} + {pair[1]}?"


def _answer(
    episode: Episode,
    main: Agent,
    plan: Call,
    use: Mapping[str, Any],
    place: int,
    sampler: Sampler,
    seed: int,
) -> tuple[Agent, str]:
    question = _question(use)
    helper = main.subagent(
        f"{episode.id}/sub{place}",
        call=plan[0],
        tool_call_id=use["id"],
        model=MODEL_NAME,
        policy=POLICY,
        stage=0,
        scope_prompt=question,
    )
    actor = _actor(helper, sampler, seed + 100 * (place + 1), temperature=0.8)
    actor.chat.begin(
        [system("Answer with a number."), user("What is 2 + 5?"), assistant("7"), user(question)]
    )
    call, drawn = actor.ask(max_tokens=16)
    return helper, actor.go_on(call, drawn).text


def _task(left: tuple[int, int], right: tuple[int, int]) -> str:
    return f"{left[0]} and {left[1]}, {right[0]} and {right[1]}"


def _worked_examples() -> list[Message]:
    messages = [system("Split a task into two questions, then add the answers.")]
    for left, right in _EXAMPLES:
        questions = [_sum_of(left), _sum_of(right)]
        messages += [
            user(_task(left, right)),
            assistant("\n".join(questions), [_use(i, question) for i, question in enumerate(questions)]),
            tool(str(sum(left)), "ask_0"),
            tool(str(sum(right)), "ask_1"),
            assistant(f"{sum(left)} + {sum(right)} = {sum(left + right)}"),
        ]
    return messages


# candidates: four openings, one kept by a rule, then continued

NUM_CANDIDATES = 4


def candidates(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Open a story in four ways, keep the one that fits the task best, go on with it.

    A rule scores the openings: half a point for "fox", half for "river", nothing if the token limit cut it.
    Reward: the mean of the kept opening's score and 1 if the next sentence is whole and holds "moon".
    """
    main = _main(episode)
    actor = _actor(main, sampler, seed, temperature=0.8)
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
    return _finish(episode, main, (scores[kept] + _fits(drawn[0], "moon")) / 2)


def _fits(sampled: Sampled, *words: str) -> float:
    if sampled.finish_reason == "length":
        return 0.0
    return sum(word in sampled.text.lower() for word in words) / len(words)


def _finish(episode: Episode, main: Agent, reward: float, *, status: str = "ok") -> float:
    main.end(status)
    episode.reward("task", reward, scorer="rule", scorer_version="1", id=f"{episode.id}/reward")
    episode.end(status)
    return reward


SYSTEMS: Mapping[str, System] = {
    "linear": System("guess-3", linear, (0, 2, 3, 5)),
    "compaction": System("running-total", compaction, (0, 1, 2)),
    "subagents": System("two-sums", subagents, (0, 2, 4)),
    "candidates": System("fox-river-moon", candidates, (0, 1, 2)),
}
"""What is recorded, in the order of a first reading."""
