"""Rows in a few words, and random ones, for the trainer's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracestore.shards.reasons import Reason
from tracestore.shards.row import (
    AgentEntry,
    CallEntry,
    CandidateSetEntry,
    CompletionEntry,
    EpisodeEntry,
    MemberEntry,
    RewardEntry,
    Row,
    Sample,
    Segments,
)

Segment = tuple[int, Sequence[int], int]
"""(parent or -1, token ids, completion or -1)."""


def row(
    segments: Sequence[Segment],
    samples: Sequence[tuple[int, Sequence[int], Sequence[int]]],
    *,
    rewards: Sequence[float | Sequence[tuple[float, float | None]] | None] = (),
    episode: Mapping[int, Mapping[str, Any]] | None = None,
    call: Mapping[int, Mapping[str, Any]] | None = None,
    cause: Mapping[int, str] | None = None,
    candidate_sets: Sequence[CandidateSetEntry] = (),
    group_id: str | None = "g",
) -> Row:
    """A group with one call per completion and one agent per episode.

    Args:
        samples: (episode, path of segments, chain of completions).
        rewards: per episode: None, one value, or (value, weight) pairs.
        episode, call: fields that differ, by index.
        cause: by sample; "root" where not given.
    """
    parents, ids, completions = zip(*segments, strict=True)
    lengths = np.asarray([len(tokens) for tokens in ids], dtype=np.int32)
    completion = np.asarray(completions, dtype=np.int32)
    completion_T = np.repeat(completion, lengths)
    parent = np.asarray(parents, dtype=np.int32)
    start = (np.cumsum(lengths) - lengths).astype(np.int64)
    reason = np.where(completion_T >= 0, Reason.TRAINED, Reason.UNSAMPLED).astype(np.uint8)
    for first in start[(parent < 0) & (completion >= 0)]:
        reason[first] = Reason.NO_TARGET
    num_episodes = max([len(rewards), *(one + 1 for one, _, _ in samples)])
    home = {c: e for e, _, chain in reversed(list(samples)) for c in chain}
    num_completions = int(completion.max(initial=-1)) + 1
    return Row(
        project="default",
        group_id=group_id,
        task_id=None,
        part=0,
        num_parts=1,
        closed_by="event",
        token_ids=np.concatenate([np.asarray(tokens, dtype=np.int32) for tokens in ids]),
        logprobs=np.where(completion_T >= 0, -1.0, 0.0).astype(np.float32),
        has_logprob=completion_T >= 0,
        reason=reason,
        segments=Segments(parent=parent, start=start, length=lengths, completion=completion),
        episodes=tuple(_episode(i, **(episode or {}).get(i, {})) for i in range(num_episodes)),
        agents=tuple(_agent(i) for i in range(num_episodes)),
        calls=tuple(_call(i, home.get(i, 0), **(call or {}).get(i, {})) for i in range(num_completions)),
        completions=tuple(
            CompletionEntry(i, 0, "stop", None, None, int(np.count_nonzero(completion_T == i)))
            for i in range(num_completions)
        ),
        policy_runs=(),
        samples=tuple(
            Sample(
                sample_id=f"call-{chain[-1] if chain else i}:0",
                episode=e,
                agent=e,
                segments=tuple(path),
                completions=tuple(chain),
                cause=(cause or {}).get(i, "root"),
                num_tokens=int(lengths[list(path)].sum()),
                num_owned=0,
            )
            for i, (e, path, chain) in enumerate(samples)
        ),
        candidate_sets=tuple(candidate_sets),
        rewards=tuple(_rewards(rewards)),
    )


def episodes_of_one_call(
    rewards: Sequence[float | Sequence[tuple[float, float | None]] | None], **fields: Any
) -> Row:
    """One prompt of two tokens and one completion of two tokens per episode."""
    count = len(rewards)
    segments: list[Segment] = [(-1, [1, 2], -1), *((0, [3 + i, 4 + i], i) for i in range(count))]
    return row(segments, [(i, [0, i + 1], [i]) for i in range(count)], rewards=rewards, **fields)


def candidates(
    treatment: str, scores: Sequence[float | None], *, selected: int | None = 0
) -> CandidateSetEntry:
    """Members are completions 0, 1, ..."""
    return CandidateSetEntry(
        candidate_set_id="set",
        episode=0,
        agent=None,
        generator=None,
        selector="policy",
        selector_version=None,
        treatment=treatment,
        members=tuple(
            MemberEntry(completion=i, agent=None, score=score, selected=i == selected, continued=None)
            for i, score in enumerate(scores)
        ),
    )


def random_row(seed: int, *, vocab: int) -> Row:
    """A random forest: several roots, nested branches, forks inside completions, single-token segments,
    excluded tokens, equal siblings, samples that merely read what another sampled, processed logprobs."""
    rng = np.random.default_rng(seed)
    segments: list[Segment] = []
    path: list[int] = []
    completions = 0
    for index in range(int(rng.integers(3, 12))):
        path = path[: int(rng.integers(0 if rng.random() < 0.15 else min(1, len(path)), len(path) + 1))]
        parent = path[-1] if path else -1
        tokens = rng.integers(0, vocab, int(rng.choice([1, 2, 3, 5, 9]))).tolist()
        above = segments[parent][2] if parent >= 0 else -1
        if above >= 0 and rng.random() < 0.25:
            completion = above  # a fork inside a completion: its tokens go on in a segment of their own
            if any(s[2] == above and i != parent for i, s in enumerate(segments)):
                completion = -1
        elif rng.random() < (0.75 if parent >= 0 else 0.2):
            completion, completions = completions, completions + 1
        else:
            completion = -1
        segments.append((parent, tokens, completion))
        path.append(index)
    inner = {parent for parent, _, _ in segments}
    samples = []
    for leaf in range(len(segments)):
        if leaf in inner:
            continue
        way = [leaf]
        while segments[way[-1]][0] >= 0:
            way.append(segments[way[-1]][0])
        way.reverse()
        # A sample reproduces a completion when all of it lies on the path, not when it reads its beginning.
        cut = {c for s, (_, _, c) in enumerate(segments) if s not in way}
        chain = list(dict.fromkeys(c for s in way if (c := segments[s][2]) >= 0 and c not in cut))
        if len(chain) > 1 and rng.random() < 0.2:
            chain = chain[1:]  # its first completion is another's: read, not reproduced
        samples.append((int(rng.integers(0, 3)), way, chain))
    calls = {
        c: {"logprobs_are": "processed", "temperature": float(rng.choice([0.7, 1.3]))}
        for c in range(completions)
        if rng.random() < 0.3
    }
    made = row(segments, samples, rewards=[0.0] * 3, call=calls)
    reason = made.reason.copy()
    reason[(reason == Reason.TRAINED) & (rng.random(len(reason)) < 0.1)] = Reason.STALE
    return replace(made, reason=reason)


def _episode(index: int, **fields: Any) -> EpisodeEntry:
    values: dict[str, Any] = {
        "episode_id": f"episode-{index}",
        "status": "ok",
        "split": None,
        "task_id": None,
        "forked_from_episode_id": None,
        "ordinal": index,
        "in_statistics": True,
    }
    return EpisodeEntry(**(values | fields))


def _agent(episode: int) -> AgentEntry:
    return AgentEntry(
        agent_id=f"agent-{episode}",
        episode=episode,
        parent=None,
        role="main",
        depth=0,
        stage=None,
        model=None,
        checkpoint=None,
        trainable=True,
        score=None,
        status=None,
        spawned_by_call=None,
        spawned_by_completion=None,
        spawned_by_tool_call_id=None,
        finding_used=None,
    )


def _call(index: int, episode: int, **fields: Any) -> CallEntry:
    values: dict[str, Any] = {
        "call_id": f"call-{index}",
        "episode": episode,
        "agent": episode,
        "ordinal": index,
        "purpose": "act",
        "model": None,
        "policy_name": "policy",
        "policy_version": 1,
        "status": "ok",
        "logprobs_are": "raw",
        "temperature": 1.0,
        "top_p": None,
        "top_k": None,
        "params": None,
        "parent_completion": None,
        "link": "none",
    }
    return CallEntry(**(values | fields))


def _rewards(rewards: Sequence[Any]) -> list[RewardEntry]:
    entries: list[RewardEntry] = []
    for episode, given in enumerate(rewards):
        pairs = [] if given is None else [(given, None)] if isinstance(given, (int, float)) else given
        for value, weight in pairs:
            entries.append(_reward(len(entries), episode, float(value), weight))
    return entries


def _reward(seq: int, episode: int, value: float, weight: float | None) -> RewardEntry:
    return RewardEntry(
        reward_id=f"reward-{seq}",
        target="episode",
        episode=episode,
        agent=None,
        call=None,
        completion=None,
        candidate_set=None,
        member=None,
        token_start=None,
        token_length=None,
        name="score",
        value=value,
        weight=weight,
        scorer=None,
        scorer_version=None,
        seq=seq,
    )
