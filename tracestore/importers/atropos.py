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
- Tokens after the last run were read by no call; they are stated as a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracestore.importers.documents import Document, Item, Names, Notes, made, parsed, raw
from tracestore.wire.agent import Agent
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.gap import Gap
from tracestore.wire.group import Group
from tracestore.wire.reward import Reward, RewardTarget

NOT_TRAINED = -100
_AGENT_ROLES = frozenset({"agent", "assistant"})
_PARALLEL = ("tokens", "masks", "scores")
_READ = frozenset({*_PARALLEL, "messages", "inference_logprobs"})


def is_group(value: Any) -> bool:
    """Whether a parsed document looks like a scored group."""
    return isinstance(value, dict) and value.keys() >= set(_PARALLEL)


def events(documents: Iterable[Document], *, notes: Notes) -> Iterator[Item]:
    """Groups, episodes, calls and rewards of the documents.

    A document whose parallel lists differ in length is refused whole: no sequence in it can be trusted.
    """
    names = Names("atropos")
    for document in documents:
        value = parsed(document, notes)
        if value is None:
            continue
        problem = _problem(value)
        if problem:
            notes.refused.append(f"line {document.number}: {problem}")
            continue
        yield from _group(value, names.of(value), notes)


def _problem(value: Any) -> str | None:
    if not is_group(value):
        return "no scored group: it has tokens, masks and scores"
    num = len(value["tokens"])
    for name in (*_PARALLEL, *(name for name in ("messages", "inference_logprobs") if value.get(name))):
        if not isinstance(value[name], list) or len(value[name]) != num:
            return f"{name} is not a list of {num} entries, one for each sequence"
    for index, (tokens, mask) in enumerate(zip(value["tokens"], value["masks"], strict=True)):
        if len(tokens) != len(mask):
            return f"sequence {index} has {len(tokens)} tokens and a mask of {len(mask)}"
    for index, logprobs in enumerate(value.get("inference_logprobs") or ()):
        if len(logprobs) != len(value["tokens"][index]):
            return f"sequence {index} has {len(logprobs)} logprobs for its tokens"
    return None


def _group(value: dict[str, Any], group_id: str, notes: Notes) -> Iterator[Item]:
    num = len(value["tokens"])
    shared, of_sequence = _rest(value, num, notes)
    yield made(Group, id=group_id, size=num, closed_by="event", meta=raw({"atropos": shared}))
    for index in range(num):
        sequence = _Sequence(
            episode_id=f"{group_id}/{index}",
            tokens=value["tokens"][index],
            mask=value["masks"][index],
            messages=(value.get("messages") or [None] * num)[index],
            logprobs=(value.get("inference_logprobs") or [None] * num)[index],
        )
        meta = {name: values[index] for name, values in of_sequence.items()}
        yield made(
            Episode,
            id=sequence.episode_id,
            group_id=group_id,
            meta=raw({"atropos": meta}) if meta else None,
        )
        yield made(Agent, id=sequence.agent_id, episode_id=sequence.episode_id, role="main", depth=0)
        yield from sequence.calls(notes)
        yield made(
            Reward,
            id=f"{sequence.episode_id}/score",
            target=RewardTarget(episode_id=sequence.episode_id),
            name="score",
            value=float(value["scores"][index]),
            scorer="environment",
        )


def _rest(value: dict[str, Any], num: int, notes: Notes) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Everything else the line says: (of the group, of each sequence). Per-token lists are noted instead."""
    shared: dict[str, Any] = {}
    of_sequence: dict[str, list[Any]] = {}
    for name, one in value.items():
        if name in _READ or one is None:
            continue
        if not isinstance(one, list):
            shared[name] = one
        elif len(one) == num and not any(isinstance(entry, list) for entry in one):
            of_sequence[name] = one
        else:
            notes.not_understood[name] += 1
    return shared, of_sequence


@dataclass(frozen=True)
class _Sequence:
    episode_id: str
    tokens: list[int]
    mask: list[int]
    messages: list[Any] | None
    logprobs: list[float] | None

    @property
    def agent_id(self) -> str:
        return f"{self.episode_id}/main"

    def calls(self, notes: Notes) -> Iterator[Item]:
        """A call for each run, each extending the one before it."""
        runs = _runs(self.mask)
        places = self._places(runs)
        said = 0
        for ordinal, ((start, end), place) in enumerate(zip(runs, places, strict=True)):
            if self.mask[start:end] != self.tokens[start:end]:
                notes.warnings["a mask is not the token id where it trains"] += 1
            if place is not None and self._role(place) not in _AGENT_ROLES:
                notes.warnings[f"the mask trains a message of role {self._role(place)!r}"] += 1
            yield self._call(ordinal, start, end, said, place)
            said = said if place is None else place + 1
        if any(place is None for place in places):
            notes.warnings["which message a run of tokens stands for is not known"] += 1
            yield self._gap("messages_not_aligned", f"{len(runs)} runs, {len(self.messages or ())} messages")
        tail = len(self.tokens) - (runs[-1][1] if runs else 0)
        if tail:
            notes.warnings["tokens after the last sampled run"] += tail
            yield self._gap("unsampled_tail", f"{tail} tokens after the last sampled one")

    def _call(self, ordinal: int, start: int, end: int, said: int, place: int | None) -> Item:
        messages = self.messages or []
        request = {"messages": messages[said:place]} if place is not None else None
        message = messages[place] if place is not None else None
        logprobs = None if self.logprobs is None else Logprobs.of(self.logprobs[start:end])
        body: dict[str, Any] = {
            "message": None if message is None else raw(message),
            "token_ids": TokenIds.of(self.tokens[start:end]),
            "logprobs": logprobs,
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
            completions=(CompletionBody(**{k: v for k, v in body.items() if v is not None}),),
        )

    def _places(self, runs: list[tuple[int, int]]) -> list[int | None]:
        """The message that each run is, as far as the file lets one know."""
        messages = self.messages or []
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
        message = (self.messages or [])[index]
        return message.get("role") if isinstance(message, dict) else None

    def _gap(self, cause: str, detail: str) -> Item:
        return made(
            Gap,
            id=f"{self.episode_id}/{cause}",
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            cause=cause,
            detail=detail,
        )


def _runs(mask: list[int]) -> list[tuple[int, int]]:
    """Maximal runs of unmasked tokens as (start, end). Example: [-100, 5, 6, -100, 7] -> [(1, 3), (4, 5)]."""
    is_trained = np.asarray(mask) != NOT_TRAINED
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_trained, [False]))))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]
