"""Two questions asked by tool calls, answered by agents with contexts of their own.

In `mixed` another model answers the second question of every other episode.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sample_traces.actor import Actor, act_as, finish, main_agent, numbers
from sample_traces.chat import Chat, Message, assistant, system, tool, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler
from sample_traces.system import System
from tracestore.client import Agent, Call, Episode

LEFT, RIGHT = (2, 2), (6, 3)
OTHER = {"model": "helper-1b", "policy": {"name": "helper-1b", "version": 3}}
"""Another model than the one that trains."""
_EXAMPLES = (((3, 4), (5, 1)), ((2, 7), (1, 4)))


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Add four numbers: the main agent asks two questions, a subagent answers each, the main agent adds.

    Reward: a quarter for each of the two right questions, a half for the right sum. A subagent scores
    1 when it answered the question it was asked.
    """
    return _add(episode, sampler, seed, (_same(sampler), _same(sampler)))


def mixed(episode: Episode, sampler: Sampler, seed: int) -> float:
    """As `play`, the second question of odd episodes answered by a model that is not trained."""
    return _add(episode, sampler, seed, (_same(sampler), OTHER if seed % 2 else _same(sampler)))


def _same(sampler: Sampler) -> Mapping[str, Any]:
    return {"model": sampler.model_name, "policy": sampler.policy}


def _add(episode: Episode, sampler: Sampler, seed: int, models: Sequence[Mapping[str, Any]]) -> float:
    main = main_agent(episode, sampler)
    actor = _Asking(main, Chat(sampler), seed, temperature=0.5)
    actor.chat.begin([*_worked_examples(), user(_task(LEFT, RIGHT))])
    plan, drawn = actor.ask()
    uses = actor.message(drawn[0]).get("tool_calls", [])
    actor.go_on(plan, drawn)
    helpers = [
        (use, *_answer(episode, main, plan, use, place, sampler, seed, models[place]))
        for place, use in enumerate(uses)
    ]
    if not helpers:
        return finish(episode, main, 0.0, status="failed")
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
    return finish(episode, main, right / 4 + (numbers(final)[-1:] == [sum(LEFT + RIGHT)]) / 2)


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
    model: Mapping[str, Any],
) -> tuple[Agent, str]:
    question = _question(use)
    helper = main.subagent(
        f"{episode.id}/sub{place}",
        call=plan[0],
        tool_call_id=use["id"],
        stage=0,
        scope_prompt=question,
        **model,
    )
    actor = act_as(helper, sampler, seed + 100 * (place + 1), temperature=0.8)
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


_ASKED = "What is 2 + 2?\nWhat is 6 + 3?"
SCRIPTS = (
    # The second finding is wrong, and the main agent does not use it.
    {"main": [_ASKED, "4 + 9 = 13"], "sub0": ["4"], "sub1": ["10"]},
    # Other questions than those of the task, and a wrong sum.
    {"main": ["What is 2 + 6?\nWhat is 2 + 3?", "8 + 5 = 12"], "sub0": ["8"], "sub1": ["5"]},
    {"main": ["It is 12."]},
    {"main": [_ASKED, "4 + 9 = 13"], "sub0": ["4"], "sub1": ["9"]},
)

SYSTEM = System(task="two-sums", play=play, seeds=(0, 2, 4), scripts=SCRIPTS, scripted_play=mixed)

if __name__ == "__main__":
    sys.exit(harness_main("subagents"))
