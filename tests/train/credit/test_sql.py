"""Law 6: the advantages of every rule equal those of an independent SQL computation on the same export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.credit.agents import Agent, agents_row, say
from tests.train.credit.sql import RULES, Key, by_sql, critic, tables
from tests.train.exports import export_of
from tests.train.rows import Segment, row
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.train.credit import RULES as ALL
from tracestore.train.credit import advantages, counted
from tracestore.train.credit.base import Context

_REWARDS = (0.0, 1.0, 0.1, 0.75, -0.5)
STEPS = (0, 5, 8)
"""Before, while and after something is annealed."""


def trees_of_agents(rng: np.random.Generator, group_id: str) -> Row:
    """Episodes that are trees of agents: several samples, excluded tokens, forks, missing rewards, facts."""
    number = int(rng.integers(1, 5))
    agents: list[Agent] = []
    said = []
    completions = 0
    episode: dict[int, dict[str, Any]] = {}
    for index in range(number):
        episode[index] = {"status": str(rng.choice(["ok", "ok", "failed", "budget_exhausted"]))}
        if rng.random() < 0.1:
            episode[index] = {"status": "infra_error", "in_statistics": False}
        if index and rng.random() < 0.3:
            episode[index]["forked_from_episode_id"] = "episode-0"
        first = len(agents)
        for place in range(int(rng.integers(1, 5))):
            parent = None if place == 0 else int(rng.integers(first, len(agents)))
            chains = [
                [int(rng.integers(1, 4)) for _ in range(int(rng.integers(1, 4)))]
                for _ in range(int(rng.integers(1, 3)))
            ]
            broken = place and rng.random() < 0.05
            fields: dict[str, Any] = {
                "score": float(rng.choice(_REWARDS)),
                "finding_used": bool(rng.random() < 0.5),
                "status": "interrupted" if broken else str(rng.choice(["ok", "failed"])),
            }
            if parent is not None:
                own = [c for c in range(completions) if rng.random() < 0.5]
                fields["spawned_by_completion"] = int(rng.choice(own)) if own else None
                said.append(say("in_scope", int(rng.random() < 0.5), episode=index, agent=len(agents)))
                if rng.random() < 0.3:
                    said.append(say("used", float(rng.random()), episode=index, agent=len(agents)))
                if rng.random() < 0.3:
                    said += [
                        say(name, float(rng.choice(_REWARDS)), episode=index, agent=len(agents))
                        for name in ("em", "style")
                    ]
            size = sum(map(len, chains))
            agents.append(
                Agent(
                    index,
                    parent=parent,
                    chains=chains,
                    prompt=int(rng.integers(1, 12)),
                    fields=fields,
                    purposes={i: "summarize" for i in range(size) if rng.random() < 0.3},
                    tools={i: bool(rng.random() < 0.5) for i in range(size) if rng.random() < 0.4},
                )
            )
            completions += size
    rewards = [_rewards(rng) for _ in range(number)]
    made = agents_row(agents, rewards=rewards, said=said, episode=episode)
    reason = made.reason.copy()
    reason[(reason == Reason.TRAINED) & (rng.random(len(reason)) < 0.15)] = Reason.STALE
    return replace(made, group_id=group_id, reason=reason)


def _rewards(rng: np.random.Generator) -> Any:
    if rng.random() < 0.15:
        return None
    return [
        (float(rng.choice(_REWARDS)), None if rng.random() < 0.5 else max(0.0, float(rng.random()) - 0.2))
        for _ in range(int(rng.integers(1, 3)))
    ]


def branching(rng: np.random.Generator, group_id: str) -> Row:
    """Episodes that branch: shared answers, tool results between, forks inside answers; rewards on
    branches or on the whole."""
    segments: list[Segment] = [(-1, [1, 2], -1)]
    samples: list[tuple[int, list[int], list[int]]] = []
    completions = 0

    def grow(episode: int, path: list[int], chain: list[int], depth: int) -> None:
        nonlocal completions
        way = list(path)
        if depth and rng.random() < 0.4:
            segments.append((way[-1], [7], -1))
            way.append(len(segments) - 1)
        completion, completions = completions, completions + 1
        segments.append((way[-1], [3] * int(rng.integers(1, 4)), completion))
        way.append(len(segments) - 1)
        if rng.random() < 0.2:  # the answer goes on behind a fork inside it
            fork = len(segments) - 1
            segments.append((fork, [4], completion))
            inner = [*way, len(segments) - 1]
            _leaf_or_more(episode, inner, [*chain, completion], depth)
            forced, completions = completions, completions + 1
            segments.append((fork, [5, 6], forced))
            samples.append((episode, [*way, len(segments) - 1], [*chain, forced]))
            return
        _leaf_or_more(episode, way, [*chain, completion], depth)

    def _leaf_or_more(episode: int, way: list[int], chain: list[int], depth: int) -> None:
        children = 0 if depth == 2 else int(rng.integers(0, 4))
        if not children:
            samples.append((episode, way, chain))
        for _ in range(children):
            grow(episode, way, chain, depth + 1)

    number = int(rng.integers(1, 4))
    for index in range(number):
        for _ in range(int(rng.integers(1, 3))):
            grow(index, [0], [], 0)
    fields: dict[int, dict[str, Any]] = {}
    if number > 1 and rng.random() < 0.5:
        fields[1] = {"forked_from_episode_id": "episode-0"}
    whole = [_rewards(rng) if rng.random() < 0.4 else None for _ in range(number)]
    made = row(segments, samples, rewards=whole, episode=fields, group_id=group_id)
    said = [
        say("em", float(rng.choice(_REWARDS)), episode=sample.episode, completion=sample.completions[-1])
        for sample in made.samples
        if whole[sample.episode] is None
    ]
    return replace(made, rewards=(*made.rewards, *said))


def by_rules(rows: Sequence[Row], rule: str, *, step: int = 0) -> dict[Key, float]:
    """What the rule says, token by token where it says that."""
    counts = counted(rows, rule=rule)
    found: dict[Key, float] = {}
    for one in rows:
        assert one.group_id is not None
        values = critic(one.group_id, len(one.token_ids))
        context = Context(step=step, batch_counts=counts, values=values)
        for (sample, completion), value in advantages(one, rule=rule, context=context).values.items():
            if isinstance(value, float):
                found[one.group_id, sample, completion, None] = value
                continue
            found |= {(one.group_id, sample, completion, t): v for t, v in enumerate(value.tolist())}
    return found


def trained_alone(rows: Sequence[Row], found: dict[Key, float]) -> dict[Key, float]:
    """Without the tokens that do not train, of which a rule along time says nothing."""
    trained: set[tuple[str | None, int, int]] = set()
    for one in rows:
        done: dict[int, int] = {}
        segments = one.segments
        for start, length, completion in zip(
            segments.start.tolist(), segments.length.tolist(), segments.completion.tolist(), strict=True
        ):
            before = done.get(completion, 0)
            done[completion] = before + length
            trained |= {
                (one.group_id, completion, before + i)
                for i in range(length)
                if one.reason[start + i] == Reason.TRAINED
            }
    return {key: value for key, value in found.items() if (key[0], key[2], key[3]) in trained}


def agree(rows: Sequence[Row], rules: Sequence[str], folder: Path) -> None:
    connection = tables(export_of(rows, folder, rows_per_shard=len(rows)))
    for rule in rules:
        for step in STEPS if rule.startswith("parl") else (0,):
            found = by_rules(rows, rule, step=step)
            if rule.startswith(("mem1", "compaction-rl")):
                found = trained_alone(rows, found)
            expected = by_sql(connection, rule, step=step)
            assert found.keys() == expected.keys(), rule
            assert found == pytest.approx(expected, rel=0, abs=1e-9), rule


OF_BRANCHES = ("tree-grpo", "treerl")
OF_AGENTS = tuple(rule for rule in RULES if rule not in OF_BRANCHES)


def test_every_rule_has_a_query() -> None:
    assert {rule.partition(":")[0] for rule in RULES} == set(ALL)


# Most of a run is files and the database's own: few examples of many groups each.
@settings(max_examples=2)
@given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=16, max_size=16, unique=True))
def test_rules_over_agents_give_what_sql_says(
    seeds: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [trees_of_agents(np.random.default_rng(seed), f"g{i}") for i, seed in enumerate(seeds)]
    agree(rows, OF_AGENTS, tmp_path_factory.mktemp("sql") / "x")


@settings(max_examples=2)
@given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=16, max_size=16, unique=True))
def test_rules_over_branches_give_what_sql_says(
    seeds: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [branching(np.random.default_rng(seed), f"g{i}") for i, seed in enumerate(seeds)]
    agree(rows, (*OF_BRANCHES, "shared", "rloo"), tmp_path_factory.mktemp("sql") / "x")


@pytest.mark.soak
@settings(max_examples=100, deadline=None)
@given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=16, max_size=16, unique=True))
def test_rules_give_what_sql_says_at_length(
    seeds: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for make, rules in ((trees_of_agents, OF_AGENTS), (branching, OF_BRANCHES)):
        rows = [make(np.random.default_rng(seed), f"g{i}") for i, seed in enumerate(seeds)]
        agree(rows, rules, tmp_path_factory.mktemp("sql") / "x")
