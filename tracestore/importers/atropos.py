"""Atropos scored groups, one JSON object a line -> a group with one episode for each of its sequences.

A line is a `ScoredDataGroup`: parallel lists `tokens`, `masks`, `scores` and, where the environment keeps
them, `messages` and `inference_logprobs`, one entry a sequence.

- `masks[i][t]` is -100 where token t is not trained, else the token id itself. The mask is all the file says
  about who sampled what, so each maximal run of unmasked tokens is the completion of a call whose prompt is
  everything before it. Several runs in one sequence are calls that extend each other.
- Which message a run stands for is not written down. With as many runs as messages of the agent's role they
  go together in order; a single run that ends the sequence is the last message. Otherwise the message is
  unknown. Some environments end with an observation and train on it: that is imported as the file says, with
  a warning.
- `scores[i]` is the episode's reward. Values of `inference_logprobs` count inside runs only (1.0 elsewhere).
- Which policy sampled is not in the file, nor are sampling parameters: both stay unknown.
- Tokens after the last run were read by no call; they are stated as a gap and kept in `meta`.
- Everything else (advantages, overrides, images, ...) is kept in `meta`: of the episode where a list has one
  entry a sequence, else of the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, known, logprobs, number
from tracestore.importers.items import Item, Names, gap, left, made, raw
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.arrays import TokenIds
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.group import Group
from tracestore.wire.reward import Reward, RewardTarget

NOT_TRAINED = -100
_AGENT_ROLES = frozenset({"agent", "assistant"})
_PARALLEL = ("tokens", "masks", "scores")
_READ = frozenset({*_PARALLEL, "messages", "inference_logprobs"})


def _is_group(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= set(_PARALLEL)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Groups, episodes, calls and rewards of the sources.

    A record whose parallel lists differ in length is refused whole: no sequence in it can be trusted.
    """
    for source in sources:
        names = Names("atropos")
        for record in records(source, notes=notes):
            notes.rows["atropos/group"] += 1
            yield from guarded(_record(record, names, notes), at=record.at, notes=notes)


def _record(record: Record, names: Names, notes: Notes) -> Iterator[Item]:
    problem = _problem(record.value)
    if problem:
        notes.refuse(record.at, problem)
    else:
        yield from _group(record.value, names.of(record.value), notes)


def _problem(value: Any) -> str | None:
    if not _is_group(value):
        return "no scored group: it has tokens, masks and scores"
    lists = [*_PARALLEL, *(name for name in ("messages", "inference_logprobs") if value.get(name))]
    num = len(value["tokens"]) if isinstance(value["tokens"], list) else 0
    for name in lists:
        if not isinstance(value[name], list) or len(value[name]) != num:
            return f"{name} is not a list of {num} entries, one for each sequence"
    for index, (tokens, mask) in enumerate(zip(value["tokens"], value["masks"], strict=True)):
        if not isinstance(tokens, list) or not isinstance(mask, list):
            return f"sequence {index} has no lists of tokens and mask"
        if len(tokens) != len(mask):
            return f"sequence {index} has {len(tokens)} tokens and a mask of {len(mask)}"
    for index, given in enumerate(value.get("inference_logprobs") or ()):
        if len(as_list(given)) != len(value["tokens"][index]):
            return f"sequence {index} has {len(as_list(given))} logprobs for its tokens"
    return None


def _group(value: dict[str, Any], group_id: str, notes: Notes) -> Iterator[Item]:
    num = len(value["tokens"])
    shared, of_sequence = _rest(value, num)
    yield made(Group, id=group_id, size=num or None, closed_by="event", meta=left("atropos", shared))
    said = value.get("messages") or [None] * num
    for index in range(num):
        sequence = _Sequence(
            episode_id=f"{group_id}/{index}",
            tokens=value["tokens"][index],
            mask=value["masks"][index],
            messages=as_list(said[index]),
            logprobs=(value.get("inference_logprobs") or [None] * num)[index],
        )
        score = number(value["scores"][index])
        rest = {name: values[index] for name, values in of_sequence.items()} | sequence.unplaced()
        if score is None and value["scores"][index] is not None:
            rest["score"] = value["scores"][index]
        if not isinstance(said[index], list) and said[index] is not None:
            rest["messages"] = said[index]
        yield made(Episode, id=sequence.episode_id, group_id=group_id, meta=left("atropos", rest))
        yield made(Agent, id=sequence.agent_id, episode_id=sequence.episode_id, role="main", depth=0)
        yield from sequence.calls(notes)
        if score is not None:
            yield made(
                Reward,
                id=f"{sequence.episode_id}/score",
                target=RewardTarget(episode_id=sequence.episode_id),
                name="score",
                value=score,
                scorer="environment",
            )


def _rest(value: dict[str, Any], num: int) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Everything else the line says: (of the group, of each sequence)."""
    given = {name: one for name, one in value.items() if name not in _READ and one is not None}
    of_sequence = {name: one for name, one in given.items() if isinstance(one, list) and len(one) == num}
    return {name: one for name, one in given.items() if name not in of_sequence}, of_sequence


@dataclass(frozen=True)
class _Sequence:
    episode_id: str
    tokens: list[int]
    mask: list[int]
    messages: list[Any]
    logprobs: list[Any] | None

    @property
    def agent_id(self) -> str:
        return f"{self.episode_id}/main"

    def unplaced(self) -> dict[str, Any]:
        """What no call of this sequence holds."""
        runs = _runs(self.mask)
        places = self._places(runs)
        last = places[-1] if places else None
        end = runs[-1][1] if runs else 0
        outside = [
            one for one, mark in zip(self.logprobs or (), self.mask, strict=False) if mark == NOT_TRAINED
        ]
        is_plain = all(
            mark in (NOT_TRAINED, token) for mark, token in zip(self.mask, self.tokens, strict=True)
        )
        rest = {
            "messages": self.messages if last is None else self.messages[last + 1 :],
            "tokens": self.tokens[end:],
            "logprobs_outside": outside if any(one != outside[0] for one in outside) else outside[:1],
            "mask": [] if is_plain else self.mask,
        }
        return {name: one for name, one in rest.items() if one}

    def calls(self, notes: Notes) -> Iterator[Item]:
        """A call for each run, each extending the one before it."""
        runs = _runs(self.mask)
        places = self._places(runs)
        said = 0
        for _ in runs:
            notes.infer("where a call begins and ends", evidence="the runs of unmasked tokens")
        for ordinal, ((start, end), place) in enumerate(zip(runs, places, strict=True)):
            if self.mask[start:end] != self.tokens[start:end]:
                notes.warn("a mask is not the token id where it trains")
            if place is not None and self._role(place) not in _AGENT_ROLES:
                notes.warn(f"the mask trains a message of role {self._role(place)!r}")
            yield self._call(ordinal, start, end, said, place)
            said = said if place is None else place + 1
        if any(place is None for place in places):
            notes.warn("which message a run of tokens stands for is not known")
            yield self._gap("messages_not_aligned", f"{len(runs)} runs, {len(self.messages)} messages")
        tail = len(self.tokens) - (runs[-1][1] if runs else 0)
        if tail:
            notes.warnings["tokens after the last sampled run"] += tail
            yield self._gap("unsampled_tail", f"{tail} tokens after the last sampled one")

    def _call(self, ordinal: int, start: int, end: int, said: int, place: int | None) -> Item:
        request = {"messages": self.messages[said:place]} if place is not None else None
        message = self.messages[place] if place is not None else None
        body: dict[str, Any] = {
            "message": None if message is None else raw(message),
            "token_ids": TokenIds.of(self.tokens[start:end]),
            "logprobs": logprobs((self.logprobs or [])[start:end]),
        }
        return made(
            Call,
            id=f"{self.episode_id}/{ordinal}",
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            ordinal=ordinal,
            request=None if request is None else raw(request),
            context="delta" if ordinal else "whole",
            parent_call_id=f"{self.episode_id}/{ordinal - 1}" if ordinal else None,
            prompt_token_ids=TokenIds.of(self.tokens[:start]),
            completions=(known(CompletionBody, **body),),
        )

    def _places(self, runs: list[tuple[int, int]]) -> list[int | None]:
        """The message that each run is, as far as the file lets one know."""
        messages = self.messages
        unknown: list[int | None] = [None] * len(runs)
        if not messages or not runs:
            return unknown
        last = len(messages) - 1
        is_last = runs[-1][1] == len(self.tokens)
        if len(runs) == 1 and is_last:
            return [last]
        spoken: list[int | None] = [i for i in range(len(messages)) if self._role(i) in _AGENT_ROLES]
        aligned = len(spoken) == len(runs) and (not is_last or spoken[-1] == last)
        return spoken if aligned else unknown

    def _role(self, index: int) -> str | None:
        role = as_dict(self.messages[index]).get("role")
        return role if isinstance(role, str) else None

    def _gap(self, cause: str, detail: str) -> Item:
        return gap(self.episode_id, cause, detail, episode_id=self.episode_id, agent_id=self.agent_id)


def _runs(mask: list[int]) -> list[tuple[int, int]]:
    """Maximal runs of unmasked tokens as (start, end). Example: [-100, 5, 6, -100, 7] -> [(1, 3), (4, 5)]."""
    is_trained = np.asarray(mask) != NOT_TRAINED
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_trained, [False]))))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


FORMAT = Format("atropos", "Atropos scored groups", lambda head: _is_group(head.first), read)
