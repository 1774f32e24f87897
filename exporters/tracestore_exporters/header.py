"""Graphs -> the header of a row: who did what, what was chosen, what was rewarded.

Everything is an index into the tables of the row, so that credit needs no store. What an id names that was
never posted is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracestore.graph.messages import request_param_spans
from tracestore.graph.model import CompletionKey, Graph
from tracestore.shards.row import (
    AgentEntry,
    BlobEntry,
    CallEntry,
    CandidateSetEntry,
    CompletionEntry,
    EditEntry,
    EpisodeEntry,
    MemberEntry,
    RewardEntry,
)
from tracestore.wire.agent import Agent
from tracestore.wire.base import Raw
from tracestore.wire.candidate_set import CandidateSet, Treatment
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.reward import Reward
from tracestore_exporters.masks import Masks, selections_of, split_of
from tracestore_exporters.spec import Spec

_CARRIED_BLOBS = frozenset({"memory", "workspace"})
"""Roles of blobs that say nothing about tokens and stay in the store."""


@dataclass(frozen=True)
class Header:
    """The tables of a row, and where in them each recorded thing stands."""

    episodes: tuple[EpisodeEntry, ...]
    agents: tuple[AgentEntry, ...]
    calls: tuple[CallEntry, ...]
    completions: tuple[CompletionEntry, ...]
    candidate_sets: tuple[CandidateSetEntry, ...]
    edits: tuple[EditEntry, ...]
    rewards: tuple[RewardEntry, ...]
    blobs: tuple[BlobEntry, ...]
    agent_at: dict[tuple[int, str], int]
    """(episode, agent id) -> index."""
    completion_at: dict[tuple[int, str, int], int]
    """(episode, call id, completion) -> index."""


def header(graphs: Sequence[Graph], episode_ids: Sequence[str], masks: Sequence[Masks], spec: Spec) -> Header:
    """The header of a group. `graphs`, `episode_ids` and `masks` run in parallel, by episode id."""
    places, asked = _Places(graphs), _Asked()
    tables: dict[str, list[Any]] = {
        name: [] for name in ("agents", "calls", "sets", "edits", "rewards", "blobs")
    }
    completions: list[CompletionEntry] = []
    for number, graph in enumerate(graphs):
        part = _Part(graph, number, places, asked)
        tables["agents"] += part.agents()
        tables["calls"] += part.calls()
        completions += part.completions()
        tables["sets"] += part.candidate_sets(masks[number].treatments)
        tables["edits"] += part.edits()
        tables["rewards"] += part.rewards(spec)
        tables["blobs"] += part.blobs()
    return Header(
        episodes=_episodes(graphs, episode_ids, masks, spec),
        agents=tuple(tables["agents"]),
        calls=tuple(tables["calls"]),
        completions=tuple(completions),
        candidate_sets=tuple(tables["sets"]),
        edits=tuple(tables["edits"]),
        rewards=tuple(_numbered(tables["rewards"])),
        blobs=tuple(tables["blobs"]),
        agent_at=places.agent,
        completion_at=places.completion,
    )


def _episodes(
    graphs: Sequence[Graph], episode_ids: Sequence[str], masks: Sequence[Masks], spec: Spec
) -> tuple[EpisodeEntry, ...]:
    entries = []
    for number, (graph, episode_id, rules) in enumerate(zip(graphs, episode_ids, masks, strict=True)):
        episode = graph.episode
        entries.append(
            EpisodeEntry(
                episode_id=episode_id,
                status=None if episode is None else episode.status,
                split=split_of(graph, spec),
                task_id=None if episode is None else episode.task_id,
                forked_from_episode_id=None if episode is None else episode.forked_from_episode_id,
                ordinal=number,
                in_statistics=rules.of_episode is None,
            )
        )
    return tuple(entries)


class _Places:
    """Index of every recorded thing in the row's tables."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self.agent: dict[tuple[int, str], int] = {}
        self.call: dict[tuple[int, str], int] = {}
        self.completion: dict[tuple[int, str, int], int] = {}
        self.candidate_set: dict[tuple[int, str], int] = {}
        for number, graph in enumerate(graphs):
            for agent_id in agent_ids(graph):
                self.agent[number, agent_id] = len(self.agent)
            for call_id in graph.calls:
                self.call[number, call_id] = len(self.call)
                for key in graph.completions_of(call_id):
                    self.completion[(number, *key)] = len(self.completion)
            for set_id in graph.candidate_sets:
                self.candidate_set[number, set_id] = len(self.candidate_set)


def agent_ids(graph: Graph) -> list[str]:
    """Agents posted or named by a call, edit, candidate set or as a parent, sorted."""
    named = set(graph.agents)
    named |= {call.agent_id for call in graph.calls.values()}
    named |= {edit.agent_id for edit in graph.context_edits.values()}
    named |= {agent.parent_agent_id for agent in graph.agents.values() if agent.parent_agent_id is not None}
    named |= {one.agent_id for one in graph.candidate_sets.values() if one.agent_id is not None}
    return sorted(named)


class _Sampling(NamedTuple):
    """What a request asks of the sampler; fields as in `CallEntry`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    params: str | None = None


class _Asked:
    """What requests ask of the sampler; most of a group ask the same."""

    def __init__(self) -> None:
        self._known: dict[bytes | None, _Sampling] = {None: _Sampling()}

    def of(self, request: Raw | None) -> _Sampling:
        known = self._known.get(request)
        if known is None:
            known = self._known[request] = _sampling(request_param_spans(request))
        return known


def _sampling(spans: dict[str, Raw]) -> _Sampling:
    params = {name: spans[name].value() for name in ("temperature", "top_p", "top_k") if name in spans}
    return _Sampling(
        temperature=_number(params.get("temperature")),
        top_p=_number(params.get("top_p")),
        top_k=_whole(params.get("top_k")),
        params=_as_object(spans) if spans else None,
    )


class _Part:
    """One episode's share of the header."""

    def __init__(self, graph: Graph, number: int, places: _Places, asked: _Asked) -> None:
        self._graph = graph
        self._number = number
        self._places = places
        self._asked = asked

    def _agent(self, agent_id: str | None) -> int | None:
        return None if agent_id is None else self._places.agent.get((self._number, agent_id))

    def _call(self, call_id: str | None) -> int | None:
        return None if call_id is None else self._places.call.get((self._number, call_id))

    def _completion(self, key: CompletionKey | None) -> int | None:
        return None if key is None else self._places.completion.get((self._number, *key))

    def _must_agent(self, agent_id: str) -> int:
        return self._places.agent[self._number, agent_id]

    def agents(self) -> list[AgentEntry]:
        known = self._graph.agents
        return [self._one_agent(agent_id, known.get(agent_id)) for agent_id in agent_ids(self._graph)]

    def _one_agent(self, agent_id: str, agent: Agent | None) -> AgentEntry:
        # An agent that is only named: everything else about it is unknown.
        agent = agent or Agent(id=agent_id, episode_id="unknown")
        spawner = agent.spawned_by_call_id
        index = agent.spawned_by_completion
        if spawner is not None and index is None and len(self._graph.completions_of(spawner)) == 1:
            index = self._graph.completions_of(spawner)[0][1]
        return AgentEntry(
            agent_id=agent_id,
            episode=self._number,
            parent=self._agent(agent.parent_agent_id),
            role=agent.role,
            depth=agent.depth,
            stage=agent.stage,
            model=agent.model,
            checkpoint=agent.checkpoint,
            trainable=agent.trainable,
            score=agent.score,
            status=agent.status,
            spawned_by_call=self._call(spawner),
            spawned_by_completion=None
            if spawner is None or index is None
            else self._completion((spawner, index)),
            spawned_by_tool_call_id=agent.spawned_by_tool_call_id,
            finding_used=agent.finding_used,
        )

    def calls(self) -> list[CallEntry]:
        entries = []
        rendering = self._graph.rendering
        rendered: frozenset[str] = frozenset() if rendering is None else rendering.calls
        for call_id, call in self._graph.calls.items():
            asked = self._asked.of(self._graph.outline(call_id))
            link = self._graph.links[call_id]
            entries.append(
                CallEntry(
                    call_id=call_id,
                    episode=self._number,
                    agent=self._must_agent(call.agent_id),
                    ordinal=call.ordinal,
                    purpose=call.purpose,
                    model=call.model,
                    policy_name=None if call.policy is None else call.policy.name,
                    policy_version=None if call.policy is None else call.policy.version,
                    status=call.status,
                    logprobs_are=call.logprobs_are,
                    temperature=asked.temperature,
                    top_p=asked.top_p,
                    top_k=asked.top_k,
                    params=asked.params,
                    parent_completion=self._completion(link.parent),
                    link=link.how,
                    rendered=call_id in rendered,
                )
            )
        return entries

    def completions(self) -> list[CompletionEntry]:
        entries = []
        for call_id in self._graph.calls:
            for key in self._graph.completions_of(call_id):
                completion = self._graph.completions[key]
                ids = completion.token_ids
                entries.append(
                    CompletionEntry(
                        call=self._places.call[self._number, call_id],
                        index=key[1],
                        finish_reason=completion.finish_reason,
                        partial=completion.partial,
                        stop_token_stripped=completion.stop_token_stripped,
                        num_tokens=None if ids is None else len(ids),
                        tool_failed=self._graph.tool_failed(key),
                    )
                )
        return entries

    def candidate_sets(self, treatments: dict[str, Treatment]) -> list[CandidateSetEntry]:
        selections = selections_of(self._graph)
        entries = []
        for set_id, one in self._graph.candidate_sets.items():
            of_set = selections.get(set_id, [])
            last = of_set[-1] if of_set else None
            entries.append(
                CandidateSetEntry(
                    candidate_set_id=set_id,
                    episode=self._number,
                    agent=self._agent(one.agent_id),
                    generator=one.generator,
                    selector=None if last is None else last.selector,
                    selector_version=None if last is None else last.selector_version,
                    treatment=treatments[set_id],
                    members=self._members(one, of_set),
                )
            )
        return entries

    def _members(self, candidates: CandidateSet, selections: Sequence[Any]) -> tuple[MemberEntry, ...]:
        scores = {one.member: one.score for selection in selections for one in selection.scores or ()}
        selected = {index for selection in selections for index in selection.selected}
        named = [set(s.continued) for s in selections if s.continued is not None]
        continued = set().union(*named) if named else None
        return tuple(
            MemberEntry(
                completion=None if m.call_id is None else self._completion((m.call_id, m.completion)),
                agent=self._agent(m.agent_id),
                score=scores.get(index, m.score),
                selected=index in selected if selections else None,
                continued=None if continued is None else index in continued,
            )
            for index, m in enumerate(candidates.members)
        )

    def edits(self) -> list[EditEntry]:
        return [self._one_edit(edit) for edit in self._graph.context_edits.values()]

    def _one_edit(self, edit: ContextEdit) -> EditEntry:
        author = edit.author_call_id
        index = edit.author_completion
        if author is not None and index is None and len(self._graph.completions_of(author)) == 1:
            index = self._graph.completions_of(author)[0][1]
        replaced = edit.replaced_call_ids
        known = None if replaced is None else [self._call(call_id) for call_id in replaced]
        return EditEntry(
            edit_id=edit.id,
            episode=self._number,
            agent=self._must_agent(edit.agent_id),
            edit=edit.edit,
            trigger=edit.trigger,
            author=edit.author,
            author_completion=None if author is None or index is None else self._completion((author, index)),
            before_call=self._call(edit.before_call_id),
            after_call=self._call(edit.after_call_id),
            replaced=None if known is None else tuple(call for call in known if call is not None),
            tokens_before=edit.tokens_before,
            tokens_after=edit.tokens_after,
            status=edit.status,
        )

    def rewards(self, spec: Spec) -> list[RewardEntry]:
        return [
            self._one_reward(reward, spec.weight_of(reward))
            for reward in self._graph.rewards.values()
            if spec.carries(reward)
        ]

    def _one_reward(self, reward: Reward, weight: float | None) -> RewardEntry:
        target = reward.target
        named = None
        if target.call_id is not None and target.completion is not None:
            named = (target.call_id, target.completion)
        set_index = None
        if target.candidate_set_id is not None:
            set_index = self._places.candidate_set.get((self._number, target.candidate_set_id))
        return RewardEntry(
            reward_id=reward.id,
            target=target.finest,
            episode=self._number,
            agent=self._agent(target.agent_id),
            call=self._call(target.call_id),
            completion=self._completion(named),
            candidate_set=set_index,
            member=target.member,
            token_start=target.token_start,
            token_length=target.token_length,
            name=reward.name,
            value=reward.value,
            weight=weight,
            scorer=reward.scorer,
            scorer_version=reward.scorer_version,
            seq=0,
        )

    def blobs(self) -> list[BlobEntry]:
        return [
            BlobEntry(
                hash=blob.hash,
                role=blob.role,
                media_type=blob.media_type,
                dtype=blob.dtype,
                shape=blob.shape,
                episode=self._number,
                agent=self._agent(blob.agent_id),
                call=self._call(blob.call_id),
                completion=self._completion(
                    (blob.call_id, blob.completion)
                    if blob.call_id is not None and blob.completion is not None
                    else None
                ),
                position=blob.position,
            )
            for blob in self._graph.blobs.values()
            if blob.role not in _CARRIED_BLOBS
        ]


def _numbered(rewards: Sequence[RewardEntry]) -> list[RewardEntry]:
    """With `seq`, the place among the row's rewards by id."""
    rank = {id(one): n for n, one in enumerate(sorted(rewards, key=lambda r: (r.reward_id, r.episode)))}
    names = RewardEntry.__dataclass_fields__
    return [
        RewardEntry(**{name: getattr(one, name) for name in names} | {"seq": rank[id(one)]})
        for one in rewards
    ]


def _as_object(spans: dict[str, Raw]) -> str:
    """A JSON object of values as they were posted, whatever numbers they hold."""
    return "{" + ",".join(f'"{name}":{spans[name].decode("utf-8")}' for name in sorted(spans)) + "}"


def _number(value: Any) -> float | None:
    """A parameter as a number; what a harness wrote instead of one stands in `params` only."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 2**63 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None
