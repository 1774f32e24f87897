"""A row -> flat samples, one record each: whole token lists with their mask, for trainers without a forest.

    T tokens of the row, N tokens of one sample

The position of a token is its index. Each trained token is in the mask of one sample, its owner, so the masks
of an export add up to its trained tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tracestore.errors import TracestoreError
from tracestore.shards.reasons import Reason, label_of
from tracestore.shards.rewards import reward_terms
from tracestore.shards.row import Row
from tracestore.shards.views import FlatSample, Ownership, flattened, owners, weights

_READ = frozenset({"image", "audio", "video", "latent"})
"""Roles of blobs that a model reads beside its tokens."""


class MixedAdvantage(TracestoreError):
    """Samples that share a token disagree on the sign of its advantage, and a clipped loss with one number a
    token cannot say so."""


class NonFiniteReward(TracestoreError):
    """The rewards of an episode have no finite sum."""


class MissingLogprob(TracestoreError):
    """A trained token has no recorded logprob, and the loss compares with it."""


class NoAdvantages(TracestoreError):
    """The records have no advantages."""

    exit_code = 2


class TokenAdvantages(Protocol):
    """What a credit rule says of a row's tokens (`tracestore.train.credit.base.TokenCredit`)."""

    @property
    def plus_T(self) -> np.ndarray: ...  # noqa: N802

    @property
    def minus_T(self) -> np.ndarray: ...  # noqa: N802

    @property
    def has_T(self) -> np.ndarray: ...  # noqa: N802


@dataclass(frozen=True)
class Options:
    """What a record depends on besides its row."""

    ownership: Ownership = "train_once"
    """As the manifest of the export says."""
    objective: str = "rl"
    """What the export trains, as its spec says."""
    credit: Callable[[Row], TokenAdvantages] | None = None
    """A rule that gives advantages; None: there are none."""


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def _structs(**kinds: pa.DataType) -> pa.DataType:
    return _list(pa.struct([pa.field(name, kind) for name, kind in kinds.items()]))


_DOCS: list[tuple[str, pa.DataType, str]] = [
    ("sample_id", pa.string(), "the last completion it reproduces; the same in every export"),
    ("group_id", pa.string(), "null: an episode on its own"),
    ("task_id", pa.string(), "the task of the group, else of the episode"),
    ("episode_id", pa.string(), ""),
    ("status", pa.string(), "of the episode"),
    ("split", pa.string(), "of the episode, as recorded or set aside by the spec"),
    ("in_statistics", pa.bool_(), "false: the episode is not compared with others of its group"),
    ("agent_id", pa.string(), ""),
    ("role", pa.string(), "of the agent"),
    ("cause", pa.string(), "why the sample begins"),
    ("excluded", pa.string(), "why nothing of it trains for its own sake; null: it trains"),
    ("input_ids", _list(pa.int32()), "the tokens; the position of each is its index"),
    ("loss_mask", _list(pa.bool_()), "trained, and owned by this sample"),
    ("weight", _list(pa.float32()), "how much a token of the mask counts; 0 outside"),
    ("logprobs", _list(pa.float64()), "log p(token | before) at the token's own index; null where none"),
    ("advantages", _list(pa.float64()), "by --advantages RULE, times weight, 0 outside the mask; else null"),
    ("reward", pa.float64(), "of the episode, composed: sum of value times weight; null: ungraded"),
    (
        "rewards",
        _structs(target=pa.string(), name=pa.string(), value=pa.float64(), weight=pa.float64()),
        "every reward of the episode, unmixed",
    ),
    (
        "policy_versions",
        _structs(start=pa.int64(), length=pa.int64(), name=pa.string(), version=pa.int64()),
        "which policy version sampled which tokens; unknown ones are in no run",
    ),
    (
        "completions",
        _structs(
            start=pa.int64(),
            length=pa.int64(),
            call_id=pa.string(),
            index=pa.int32(),
            finish_reason=pa.string(),
            logprobs_are=pa.string(),
            temperature=pa.float64(),
            top_p=pa.float64(),
            top_k=pa.int32(),
            rendered=pa.bool_(),
        ),
        "which completion sampled which tokens, those that are context here included",
    ),
    (
        "blobs",
        _structs(hash=pa.string(), role=pa.string(), media_type=pa.string(), position=pa.int64()),
        "payloads that the ids do not hold; position: index into input_ids",
    ),
]

SCHEMA = pa.schema([pa.field(name, kind, metadata={"what": what}) for name, kind, what in _DOCS])
"""The same in every file, whatever its first rows lack."""


def records(row: Row, options: Options) -> Iterator[dict[str, Any]]:
    """Every sample of a row as a record with the fields of `SCHEMA`, token lists as arrays [N].

    `logprobs` is NaN where there is none.

    Raises:
        MixedAdvantage: one number a token cannot say what the rule gives.
        NonFiniteReward: the rewards of an episode overflow.
    """
    tokens = _Tokens(row, options)
    owner_S = owners(row)
    for index in range(len(row.samples)):
        flat = flattened(row, index, owner=owner_S)
        yield _header(row, flat) | tokens.of(flat) | _runs_of(row, flat, tokens.policy_T)


def usable(row: Row, options: Options, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """The records that a trainer of text alone can train on.

    Args:
        left_out: told the others, by why: `nothing_trains`, or `needs_blobs` where the ids are not all that
            the model saw.
    """
    for record in records(row, options):
        if not record["loss_mask"].any():
            left_out["nothing_trains"] += 1
        elif needs_blobs(record["blobs"]):
            left_out["needs_blobs"] += 1
        else:
            yield record


def needs_blobs(blobs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a model reads some of a sample's blobs beside its tokens."""
    return any(blob["role"] in _READ or blob["position"] is not None for blob in blobs)


def blobs_of(row: Row, flat: FlatSample) -> list[dict[str, Any]]:
    """What the sample's calls read and its completions carry, each once."""
    chain = set(flat.sample.completions)
    calls = {row.completions[completion].call for completion in chain}
    found = {
        (blob.position, blob.hash, blob.role): {
            "hash": blob.hash,
            "role": blob.role,
            "media_type": blob.media_type,
            "position": blob.position,
        }
        for blob in row.blobs
        if blob.call in calls and (blob.completion is None or blob.completion in chain)
    }
    return list(found.values())


def temperatures(record: Mapping[str, Any]) -> np.ndarray:
    """float64 [N], what logits are divided by before a logprob compares to the recorded one: 1 where nothing
    was sampled, or where the recorded ones are raw."""
    values = np.ones(len(record["input_ids"]), dtype=np.float64)
    for run in record["completions"]:
        if run["logprobs_are"] == "processed" and run["temperature"] is not None and run["temperature"] > 0:
            values[run["start"] : run["start"] + run["length"]] = run["temperature"]
    return values


class _Tokens:
    """Arrays on the row's token axis, made once for all its samples."""

    def __init__(self, row: Row, options: Options) -> None:
        self._weight_T = weights(row, options.ownership).astype(np.float32)
        self._logprob_T = np.full(len(row.token_ids), np.nan)
        if row.logprobs is not None:
            self._logprob_T[row.has_logprob] = row.logprobs[row.has_logprob]
        self.policy_T = np.full(len(row.token_ids), -1, dtype=np.int64)
        for index, run in enumerate(row.policy_runs):
            self.policy_T[run.start : run.start + run.length] = index
        self._credit = None if options.credit is None else options.credit(row)
        if self._credit is not None:
            mixed_T = (self._credit.plus_T > 0) & (self._credit.minus_T < 0)
            if bool((mixed_T & (row.reason == Reason.TRAINED)).any()):
                raise MixedAdvantage(group_id=row.group_id, hint="train it with `tracestore train`")

    def of(self, flat: FlatSample) -> dict[str, Any]:
        at, mask_N, advantages = flat.token_index, flat.mask, None
        if self._credit is not None:
            # What no rule gives an advantage is not trained, which is not the advantage 0.
            mask_N = mask_N & self._credit.has_T[at]
            advantages = np.where(mask_N, (self._credit.plus_T + self._credit.minus_T)[at], 0.0)
        return {
            "input_ids": flat.token_ids,
            "loss_mask": mask_N,
            "weight": np.where(mask_N, self._weight_T[at], np.float32(0)),
            "logprobs": self._logprob_T[at],
            "advantages": advantages,
        }


def _header(row: Row, flat: FlatSample) -> dict[str, Any]:
    sample = flat.sample
    episode, agent = row.episodes[sample.episode], row.agents[sample.agent]
    return {
        "sample_id": sample.sample_id,
        "group_id": row.group_id,
        "task_id": row.task_id if row.task_id is not None else episode.task_id,
        "episode_id": episode.episode_id,
        "status": episode.status,
        "split": episode.split,
        "in_statistics": episode.in_statistics,
        "agent_id": agent.agent_id,
        "role": agent.role,
        "cause": sample.cause,
        "excluded": None if sample.reason == Reason.TRAINED else label_of(sample.reason),
        "reward": _composed(row, sample.episode),
        "rewards": [
            {"target": one.target, "name": one.name, "value": one.value, "weight": one.weight}
            for one in row.rewards
            if one.episode == sample.episode
        ],
        "blobs": blobs_of(row, flat),
    }


def _composed(row: Row, episode: int) -> float | None:
    terms = reward_terms(row, [episode])[episode]
    try:
        return math.fsum(terms) if terms else None
    except (OverflowError, ValueError) as error:  # finite terms with no finite sum; inf beside -inf
        raise NonFiniteReward(
            episode_id=row.episodes[episode].episode_id, hint="correct its rewards or their weights"
        ) from error


def _runs_of(row: Row, flat: FlatSample, policy_T: np.ndarray) -> dict[str, Any]:
    policies = [
        {"start": start, "length": length, "name": run.name, "version": run.version}
        for start, length, index in _runs(policy_T[flat.token_index])
        for run in [row.policy_runs[index]]
    ]
    completions = []
    for start, length, index in _runs(flat.completion):
        entry = row.completions[index]
        call = row.calls[entry.call]
        completions.append(
            {
                "start": start,
                "length": length,
                "call_id": call.call_id,
                "index": entry.index,
                "finish_reason": entry.finish_reason,
                "logprobs_are": call.logprobs_are,
                "temperature": call.temperature,
                "top_p": call.top_p,
                "top_k": call.top_k,
                "rendered": call.rendered,
            }
        )
    return {"policy_versions": policies, "completions": completions}


def _runs(values: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(start, length, value) of each run of equal values that are not negative."""
    bounds = np.flatnonzero(np.diff(values)) + 1
    starts = [0, *bounds.tolist()]
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        if end > start and values[start] >= 0:
            yield start, end - start, int(values[start])
