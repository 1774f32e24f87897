"""A task that is solved by delegating, agents that try it with a small model, and their record over HTTP.

A task is a nested expression of max and min over small digits. An agent reads one node of it: the
operation, and for each operand its digit or that it is a part. What a part holds, only a subagent reads: one
is started for each part if the agent says `delegate`, and what they find comes back to it.

    max part part go                      -> delegate end
        max 3 5 go                        -> 5 end
        min 5 4 go                        -> 4 end
    max part part go delegate end found 5 4 go -> 5 end

The agent at the root is right if its last word is the value of the expression, so every answer can be
checked, and so can that of every subagent. The words are token ids; there is no text to be tokenised.
"""

# B prompts of equal length, T tokens, V vocabulary

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from tracestore.client import Agent as RecordedAgent
from tracestore.client import Call, Client

DIGITS = 6
WORDS = (*map(str, range(DIGITS)), "max", "min", "part", "go", "found", "delegate", "end", "nothing")
ID = {word: id_ for id_, word in enumerate(WORDS)}
OPERANDS = 2
MOST_SAMPLED = 2
"""Tokens of an answer: a word and `end`."""
MODEL, POLICY = "tiny", "actor"


@dataclass(frozen=True)
class Expression:
    """A node: an operation on digits and parts."""

    operation: str
    operands: tuple[int | Expression, ...]

    @property
    def parts(self) -> tuple[Expression, ...]:
        return tuple(one for one in self.operands if isinstance(one, Expression))

    @property
    def value(self) -> int:
        values = [one.value if isinstance(one, Expression) else one for one in self.operands]
        return max(values) if self.operation == "max" else min(values)


def expression(rng: random.Random, *, depth: int, value: int | None = None) -> Expression:
    """A random one. Every digit is as likely its value: guessing the most frequent gains nothing.

    Args:
        depth: levels of agents that it takes; 1 has digits only.
        value: what it is to come to.
    """
    value = rng.randrange(DIGITS) if value is None else value
    operation = rng.choice(("max", "min"))
    others = range(value + 1) if operation == "max" else range(value, DIGITS)
    values = [value, *(rng.choice(others) for _ in range(OPERANDS - 1))]
    rng.shuffle(values)
    if depth == 1:
        return Expression(operation, tuple(values))
    return Expression(operation, tuple(expression(rng, depth=depth - 1, value=one) for one in values))


@dataclass(frozen=True)
class Sampled:
    """What a model said to a prompt."""

    ids: list[int]
    logprobs: list[float]
    """Natural logarithms at temperature 1."""

    @property
    def word(self) -> str | None:
        """The one word that it said; None: it said no word, or did not end."""
        return WORDS[self.ids[0]] if len(self.ids) == MOST_SAMPLED and self.ids[1] == ID["end"] else None


class Sampler(Protocol):
    """Answers prompts of token ids."""

    def __call__(self, prompts: Sequence[list[int]]) -> list[Sampled]: ...


@dataclass
class Attempt:
    """An agent at one node: what it was asked and said, and those it started."""

    node: Expression
    prompts: list[list[int]]
    answers: list[Sampled] = field(default_factory=list)
    subagents: list[Attempt] = field(default_factory=list)

    @property
    def finding(self) -> int | None:
        """Its last word, where that is a digit."""
        word = self.answers[-1].word
        return int(word) if word is not None and word.isdigit() else None

    @property
    def is_right(self) -> bool:
        return self.finding == self.node.value

    def uses(self, subagent: Attempt) -> bool:
        """Whether its answer is what the subagent found."""
        return subagent.finding is not None and subagent.finding == self.finding


def attempts(nodes: Sequence[Expression], sampler: Sampler) -> list[Attempt]:
    """One attempt at each node; all agents of a level say their next words together."""
    made = [Attempt(node, [first_prompt(node)]) for node in nodes]
    _answer(made, sampler)
    delegating = [one for one in made if one.answers[0].word == "delegate" and one.node.parts]
    if delegating:
        found = iter(attempts([part for one in delegating for part in one.node.parts], sampler))
        for one in delegating:
            one.subagents = [next(found) for _ in one.node.parts]
            one.prompts.append([*one.prompts[0], *one.answers[0].ids, *_findings(one.subagents)])
        _answer(delegating, sampler)
    return made


def first_prompt(node: Expression) -> list[int]:
    operands = (ID["part"] if isinstance(one, Expression) else one for one in node.operands)
    return [ID[node.operation], *operands, ID["go"]]


def _findings(subagents: Sequence[Attempt]) -> list[int]:
    found = (ID["nothing"] if one.finding is None else one.finding for one in subagents)
    return [ID["found"], *found, ID["go"]]


def _answer(asked: Sequence[Attempt], sampler: Sampler) -> None:
    for one, answer in zip(asked, sampler([one.prompts[-1] for one in asked]), strict=True):
        one.answers.append(answer)


def everyone(roots: Sequence[Attempt]) -> Iterator[Attempt]:
    """The attempts and all below them."""
    for one in roots:
        yield one
        yield from everyone(one.subagents)


class Model:
    """Samples from a causal LM at temperature 1."""

    def __init__(self, model: Any, *, seed: int) -> None:
        self.model = model
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, prompts: Sequence[list[int]]) -> list[Sampled]:
        found = [Sampled([], []) for _ in prompts]
        for _ in range(MOST_SAMPLED):
            by_length: dict[int, list[int]] = {}
            for index, prompt in enumerate(prompts):
                if ID["end"] not in found[index].ids:
                    by_length.setdefault(len(prompt) + len(found[index].ids), []).append(index)
            for indices in by_length.values():
                self._one_more([prompts[i] for i in indices], [found[i] for i in indices])
        return found

    @torch.no_grad()
    def _one_more(self, prompts: Sequence[list[int]], found: Sequence[Sampled]) -> None:
        ids_BT = torch.tensor([[*prompt, *one.ids] for prompt, one in zip(prompts, found, strict=True)])
        logits_BV = self.model(input_ids=ids_BT, use_cache=False, logits_to_keep=1).logits[:, -1]
        logprobs_BV = torch.log_softmax(logits_BV.float(), dim=-1)
        next_B = torch.multinomial(logprobs_BV.exp(), 1, generator=self._random)
        for one, id_, logprob in zip(
            found, next_B[:, 0].tolist(), logprobs_BV.gather(1, next_B)[:, 0].tolist(), strict=True
        ):
            one.ids.append(id_)
            one.logprobs.append(logprob)


class Guesser:
    """Delegates what it cannot read, and says one of the digits it read by chance: what a model is taught
    before it learns from rewards."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __call__(self, prompts: Sequence[list[int]]) -> list[Sampled]:
        return [Sampled([self._word(prompt), ID["end"]], [0.0, 0.0]) for prompt in prompts]

    def _word(self, prompt: list[int]) -> int:
        read = [id_ for id_ in prompt if id_ < DIGITS]
        return self._rng.choice(read) if read else ID["delegate"]


# --- The record --------------------------------------------------------------------------------------------


def record(client: Client, roots: Sequence[Attempt], *, group_id: str, version: int) -> None:
    """The attempts at one task as a group of episodes, with everything a credit rule may ask for.

    Args:
        version: of the policy that sampled them.
    """
    with client.group(group_id, size=len(roots), task_id=group_id) as group:
        for root in roots:
            with group.episode(task_id=group_id) as episode:
                main = episode.agent(role="main", model=MODEL, policy=(POLICY, version))
                _record_agent(main, root, is_used=None)
                episode.reward("right", float(root.is_right))


def _record_agent(agent: RecordedAgent, attempt: Attempt, *, is_used: bool | None) -> None:
    """Its calls, behind the first one those of the agents it started, and its end."""
    messages: list[Mapping[str, str]] = []
    call: Call | None = None
    known = 0  # tokens of its context so far
    for prompt, answer in zip(attempt.prompts, attempt.answers, strict=True):
        asked = {"role": "user", "content": _text(prompt[known:])}
        said = {"role": "assistant", "content": _text(answer.ids)}
        recorded = agent.call(
            messages=[*messages, asked],
            params={"temperature": 1.0, "max_tokens": MOST_SAMPLED},
            completion={
                "message": said,
                "finish_reason": "stop" if answer.ids[-1] == ID["end"] else "length",
                "token_ids": answer.ids,
                "logprobs": answer.logprobs,
            },
            prompt_token_ids=prompt,
            parent=call,
            logprobs_are="raw",
        )
        if call is None:
            for one in attempt.subagents:
                helper = agent.subagent(call=recorded, model=MODEL, policy=agent.policy)
                _record_agent(helper, one, is_used=attempt.uses(one))
        call, known = recorded, len(prompt) + len(answer.ids)
        messages += [asked, said]
    agent.end(
        return_message=None if attempt.finding is None else str(attempt.finding),
        finding_used=is_used,
        score=float(attempt.is_right),
    )


def _text(ids: Sequence[int]) -> str:
    return " ".join(WORDS[one] for one in ids)
