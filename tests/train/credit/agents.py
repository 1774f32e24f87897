"""Rows of groups whose episodes are trees of agents, in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.train.rows import Segment, row
from tracestore.shards.row import AgentEntry, RewardEntry, Row
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context


@dataclass(frozen=True)
class Agent:
    """An agent, and what it sampled: one chain of completions (their numbers of tokens) for each sample."""

    episode: int = 0
    parent: int | None = None
    """Index among the agents."""
    chains: Sequence[Sequence[int]] = ((1,),)
    prompt: int = 2
    """Tokens before the first completion of each sample."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of its `AgentEntry`, where they differ."""
    purposes: Mapping[int, str] = field(default_factory=dict)
    """By place among its completions."""
    tools: Mapping[int, bool] = field(default_factory=dict)
    """Whether a tool call failed, by place among its completions."""


def agents_row(
    agents: Sequence[Agent],
    *,
    rewards: Sequence[Any] = (),
    said: Sequence[RewardEntry] = (),
    episode: Mapping[int, Mapping[str, Any]] | None = None,
) -> Row:
    """A group of such episodes. Between two completions of a chain stands one token of a tool result."""
    segments: list[Segment] = []
    samples: list[tuple[int, list[int], list[int]]] = []
    owners: list[int] = []
    calls: dict[int, dict[str, Any]] = {}
    tools: dict[int, bool] = {}
    completion = 0
    for index, agent in enumerate(agents):
        first = completion
        for chain in agent.chains:
            path = [len(segments)]
            segments.append((-1, [9] * agent.prompt, -1))
            own = []
            for place, count in enumerate(chain):
                if place:
                    segments.append((path[-1], [8], -1))
                    path.append(len(segments) - 1)
                segments.append((path[-1], list(range(10, 10 + count)), completion))
                path.append(len(segments) - 1)
                purpose = agent.purposes.get(completion - first, "act")
                calls[completion] = {
                    "agent": index,
                    "ordinal": completion - first,
                    "purpose": purpose,
                }
                if completion - first in agent.tools:
                    tools[completion] = agent.tools[completion - first]
                own.append(completion)
                completion += 1
            samples.append((agent.episode, path, own))
            owners.append(index)
    made = row(segments, samples, rewards=rewards, call=calls, episode=episode)
    return replace(
        made,
        agents=tuple(_entry(index, agent, agents) for index, agent in enumerate(agents)),
        samples=tuple(
            replace(sample, agent=owner) for sample, owner in zip(made.samples, owners, strict=True)
        ),
        completions=tuple(
            replace(entry, tool_failed=tools.get(index)) for index, entry in enumerate(made.completions)
        ),
        rewards=(*made.rewards, *said),
    )


def say(name: str, value: float, *, episode: int = 0, **target: int) -> RewardEntry:
    """A reward on an agent or a completion: `say("used", 1, agent=2)`."""
    places: dict[str, Any] = dict.fromkeys(
        ("agent", "call", "completion", "candidate_set", "member", "token_start", "token_length")
    )
    [finest] = [one for one in ("completion", "agent") if one in target][:1]
    if finest == "completion":
        target = {"call": target["completion"], **target}  # one call a completion in these rows
    spelled = "-".join(f"{one}{target[one]}" for one in sorted(target))
    return RewardEntry(
        reward_id=f"{name}-{spelled}",
        target=finest,
        episode=episode,
        name=name,
        value=float(value),
        weight=None,
        scorer="judge",
        scorer_version=None,
        seq=0,
        **(places | target),
    )


def by_agent(made: Row, rule: str, **context: Any) -> list[float | None]:
    """The advantage of each agent, whose completions must agree on it; None: it has none."""
    values = advantages(made, rule=rule, context=Context(**context)).values
    found: list[set[Any]] = [set() for _ in made.agents]
    for index, sample in enumerate(made.samples):
        for completion in sample.completions:
            found[sample.agent].add(values.get((index, completion)))
    assert all(len(one) == 1 for one in found)
    return [one.pop() for one in found]


def by_completion(made: Row, rule: str, **context: Any) -> list[Any]:
    """The advantage of each completion, in which all samples through it must agree: a number, or a list."""
    values = advantages(made, rule=rule, context=Context(**context)).values
    found: dict[int, Any] = {}
    for (_, completion), value in values.items():
        plain = value if isinstance(value, float) else value.tolist()
        assert found.setdefault(completion, plain) == plain
    return [found.get(index) for index in range(len(made.completions))]


def notes(made: Row, rule: str, **context: Any) -> dict[str, int]:
    return dict(advantages(made, rule=rule, context=Context(**context)).notes)


def _entry(index: int, agent: Agent, agents: Sequence[Agent]) -> AgentEntry:
    depth, above = 0, agent.parent
    while above is not None:
        depth, above = depth + 1, agents[above].parent
    values: dict[str, Any] = {
        "agent_id": f"agent-{index}",
        "episode": agent.episode,
        "parent": agent.parent,
        "role": "main" if agent.parent is None else "subagent",
        "depth": depth,
        "stage": None,
        "model": None,
        "checkpoint": None,
        "trainable": None,
        "score": None,
        "status": "ok",
        "spawned_by_call": None,
        "spawned_by_completion": None,
        "spawned_by_tool_call_id": None,
        "finding_used": None,
    }
    return AgentEntry(**(values | dict(agent.fields)))
