"""The nodes of a verifiers trace -> agents, calls, tool calls and context edits. Facts: `verifiers`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tracestore.importers.conversations import Results, tool_calls
from tracestore.importers.guard import as_dict, as_list, known, logprobs, token_ids
from tracestore.importers.items import Item, count, gap, left, made, nanoseconds, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.usage import counted
from tracestore.wire.agent import Agent
from tracestore.wire.arrays import TokenIds
from tracestore.wire.call import Call, CallError, Policy
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit

_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
_CONTINUES = ("compaction", "continuation", "compaction_attempt", "agent_message")
"""Links whose target goes on as the agent of their source, where it is a root."""


@dataclass
class Graph:
    """One trace. Indexes are places in `nodes`."""

    trace_id: str
    episode_id: str
    agent_id: str
    """The root agent."""
    nodes: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    tools: Any
    policy: int | None
    notes: Notes
    read: set[int] = field(default_factory=set)
    """Nodes that stand in some call's own messages."""
    ordinals: dict[str, int] = field(default_factory=dict)

    def items(self) -> Iterator[Item]:
        """Agents below the root one, calls, tool calls, edits and gaps."""
        self._check()
        yield from self._agents()
        results = Results.of(node.get("message") for node in self.nodes)
        told: set[int] = set()
        for call in self.calls:
            place = taken(call, "node", int)
            if place is not None and self._is_call(place) and place not in told:
                told.add(place)
                yield from self._call(place, call, results)
            else:
                # A second record of one node is another attempt: it is kept whole.
                yield self._failed(call | ({} if place is None else {"node": place}))
        for place in range(len(self.nodes)):
            if self._is_call(place) and place not in told:
                yield from self._call(place, {}, results)
        yield from self._edits()
        without = sum(self._is_call(place) and self._ids(place) is None for place in range(len(self.nodes)))
        if without and any(node.get("token_ids") for node in self.nodes):
            yield self._gap("no_token_ids", f"{without} calls")
        if not self.ordinals:
            yield self._gap("no_calls", "the trace has no sampled node")

    def unplaced(self) -> dict[str, Any]:
        """Nodes that no call read."""
        rest = {
            str(place): node
            for place, node in enumerate(self.nodes)
            if place not in self.read and not self._is_call(place)
        }
        return {"unread_nodes": rest} if rest else {}

    # --- Structure

    def _check(self) -> None:
        for place in range(len(self.nodes)):
            given, parent = self.nodes[place].get("parent"), self._parent(place)
            if given is not None and (parent is None or not 0 <= parent < place):
                raise ValueError(f"node {place} has the parent {given!r}, which is no node before it")

    def _parent(self, place: int) -> int | None:
        parent = self.nodes[place].get("parent")
        return parent if isinstance(parent, int) and not isinstance(parent, bool) else None

    def _is_call(self, place: int) -> bool:
        return 0 <= place < len(self.nodes) and self.nodes[place].get("sampled") is True

    def _call_id(self, place: int) -> str:
        return safe_id(f"{self.trace_id}/{place}")

    def _above(self, place: int) -> tuple[int | None, list[int]]:
        """(nearest sampled node above, nodes between, in order)."""
        between: list[int] = []
        parent = self._parent(place)
        while parent is not None and not self._is_call(parent):
            between.append(parent)
            parent = self._parent(parent)
        return parent, between[::-1]

    @cached_property
    def _links(self) -> dict[int, list[tuple[str, int]]]:
        """place -> (type, source) of what it follows from, as far as both are calls."""
        found: dict[int, list[tuple[str, int]]] = {}
        for place, node in enumerate(self.nodes):
            for given in as_list(node.get("semantic_parents")):
                link = as_dict(given)
                source, kind = link.get("node"), link.get("type")
                if isinstance(source, int) and isinstance(kind, str) and self._is_call(source):
                    found.setdefault(place, []).append((kind, source))
        return found

    def _sources(self, place: int, *kinds: str) -> list[int]:
        return [source for kind, source in self._links.get(place, ()) if kind in kinds]

    @cached_property
    def _agent_of(self) -> list[str]:
        """The agent of each sampled node; of other nodes the root one."""
        agents = [self.agent_id] * len(self.nodes)
        for place in range(len(self.nodes)):
            if not self._is_call(place):
                continue
            above, _ = self._above(place)
            earlier = [source for source in self._sources(place, *_CONTINUES) if source < place]
            if self._sources(place, "subagent_call"):
                agents[place] = safe_id(f"{self.trace_id}/agent/{place}")
            elif above is not None:
                agents[place] = agents[above]
            elif earlier:
                agents[place] = agents[earlier[0]]
        return agents

    def _agents(self) -> Iterator[Item]:
        depths = {self.agent_id: 0}
        for place in range(len(self.nodes)):
            spawned = self._sources(place, "subagent_call") if self._is_call(place) else []
            if not spawned:
                continue
            agent_id, parent_id = self._agent_of[place], self._agent_of[spawned[0]]
            depth = depths.get(parent_id)
            if depth is not None:
                depths[agent_id] = depth + 1
            _, between = self._above(place)
            scope = self.nodes[between[-1]].get("message") if between else None
            returned = [
                source
                for target in self._links
                for source in self._sources(target, "subagent_return")
                if self._agent_of[source] == agent_id
            ]
            cancelled = any(self._sources(target, "subagent_cancel") for target in self._of(agent_id))
            yield made(
                Agent,
                id=agent_id,
                episode_id=self.episode_id,
                role="subagent",
                depth=depths.get(agent_id),
                parent_agent_id=parent_id,
                spawned_by_call_id=self._call_id(spawned[0]),
                scope_prompt=None if scope is None else raw(scope),
                return_message=raw(self.nodes[returned[-1]].get("message")) if returned else None,
                status="cancelled" if cancelled else None,
            )

    def _of(self, agent_id: str) -> list[int]:
        return [place for place, one in enumerate(self._agent_of) if one == agent_id and self._is_call(place)]

    # --- Tokens

    def _ids(self, place: int) -> tuple[list[Any], list[Any]] | None:
        """(ids of a sampled node before its first sampled token, the rest); None where it has none."""
        ids, mask = self.nodes[place].get("token_ids"), self.nodes[place].get("mask")
        if (
            not isinstance(ids, list)
            or not isinstance(mask, list)
            or len(ids) != len(mask)
            or True not in mask
        ):
            return None
        first = mask.index(True)
        last = len(mask) - mask[::-1].index(True)
        return ids[:first], ids[first:last]

    def _tail(self, place: int) -> list[Any]:
        """Ids of a sampled node after its last sampled token, which the next call read."""
        mask = self.nodes[place]["mask"]
        tail: list[Any] = self.nodes[place]["token_ids"][len(mask) - mask[::-1].index(True) :]
        return tail

    def _prompt_ids(self, place: int) -> dict[str, TokenIds | None]:
        """Ids that a call read: what it read beyond its parent, where the parent's are known."""
        own = self._ids(place)
        if own is None:
            return {}
        above, between = self._above(place)
        read = [one for node in between for one in as_list(self.nodes[node].get("token_ids"))]
        if above is not None and self._ids(above) is not None:
            return {"prompt_token_ids_delta": TokenIds.of([*self._tail(above), *read, *own[0]])}
        if above is not None:
            return {}
        return {"prompt_token_ids": token_ids([*read, *own[0]])}

    # --- Calls

    def _call(self, place: int, told: dict[str, Any], results: Results) -> Iterator[Item]:
        node = dict(self.nodes[place])
        above, between = self._above(place)
        agent_id = self._agent_of[place]
        ordinal = self.ordinals.get(agent_id, 0)
        self.ordinals[agent_id] = ordinal + 1
        ids = self._ids(place)
        message = node.pop("message", None)
        answer = known(
            CompletionBody,
            message=None if message is None else raw(message),
            finish_reason=taken(told, "finish_reason", str) or taken(node, "finish_reason", str),
            token_ids=None if ids is None else token_ids(ids[1]),
            logprobs=logprobs(node.pop("logprobs", None)) if ids is not None else None,
        )
        for name in ("parent", "sampled"):
            node.pop(name, None)
        if ids is not None:
            del node["token_ids"]
            if all(node["mask"][len(ids[0]) : len(ids[0]) + len(ids[1])]):
                del node["mask"]
        yield made(
            Call,
            id=self._call_id(place),
            episode_id=self.episode_id,
            agent_id=agent_id,
            ordinal=ordinal,
            purpose="summarize" if self._sources(place, "compaction_attempt") else None,
            request=raw(self._request(between, told)),
            context="whole" if above is None else "delta",
            parent_call_id=None if above is None else self._call_id(above),
            completions=(answer,),
            **self._prompt_ids(place),
            **self._told(told),
            meta=left("verifiers", *self._rest(between), {k: v for k, v in node.items() if v}, told),
        )
        yield from tool_calls(
            message, call_id=self._call_id(place), episode_id=self.episode_id, results=results
        )

    def _request(self, between: list[int], told: dict[str, Any]) -> dict[str, Any]:
        sampling = as_dict(told.pop("sampling", None))
        request = sampling | {"messages": [self.nodes[one].get("message") for one in between]}
        return request | ({"tools": self.tools} if self.tools else {})

    def _rest(self, between: list[int]) -> Iterator[dict[str, Any]]:
        """What the nodes say that a call read, beside their messages and ids, each once."""
        for place in between:
            if place in self.read:
                continue
            self.read.add(place)
            node = {
                name: one
                for name, one in self.nodes[place].items()
                if one and name not in ("parent", "message", "sampled", "token_ids")
            }
            if isinstance(node.get("mask"), list) and not any(node["mask"]):
                del node["mask"]
            if node:
                yield {"node": place} | node

    def _told(self, told: dict[str, Any]) -> dict[str, Any]:
        """Fields of a call event from the trace's record of the call, taken out of it."""
        time, usage, error = (as_dict(told.pop(name, None)) for name in ("time", "usage", "error"))
        counts = {name: count(usage, name) for name in _COUNTS}
        failed = {
            name: one
            for name, kind in (("type", str), ("message", str), ("status_code", int))
            if (one := taken(error, name, kind)) is not None
        }
        times = nanoseconds(time.get("start")), nanoseconds(time.get("end"))
        model = taken(told, "model", str)
        told.update({name: one for name, one in (("usage", usage), ("error", error)) if one})
        if time and None in times:
            told["time"] = time
        version = self.policy
        return {
            "model": model,
            "policy": None if version is None or model is None else Policy(name=model, version=version),
            "endpoint": taken(told, "endpoint", str),
            "usage": counted(**counts),
            "started_at": times[0],
            "ended_at": times[1],
            "status": "failed" if failed else None,
            "error": CallError(**failed) if failed else None,
        }

    def _failed(self, told: dict[str, Any]) -> Item:
        ordinal = self.ordinals.get(self.agent_id, 0)
        self.ordinals[self.agent_id] = ordinal + 1
        sampling = as_dict(told.pop("sampling", None))
        return made(
            Call,
            id=safe_id(f"{self.trace_id}/attempt/{ordinal}"),
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            ordinal=ordinal,
            **self._told(told),
            meta=left("verifiers", told, {"sampling": sampling} if sampling else None),
        )

    # --- Edits

    def _edits(self) -> Iterator[Item]:
        attempts = {place for place in self._links if self._sources(place, "compaction_attempt")}
        for place in sorted(self._links):
            for source in self._sources(place, "compaction"):
                yield self._edit(source, place, "accepted")
        used = {source for place in self._links for source in self._sources(place, "compaction")}
        for place in sorted(attempts - used):
            yield self._edit(place, None, "rejected")

    def _edit(self, author: int, after: int | None, status: str) -> Item:
        before = self._sources(author, "compaction_attempt")
        suffix = "" if after is None else f"/{after}"
        return made(
            ContextEdit,
            id=safe_id(f"{self.trace_id}/compaction/{author}{suffix}"),
            episode_id=self.episode_id,
            agent_id=self._agent_of[author],
            edit="compaction",
            author="policy",
            author_call_id=self._call_id(author),
            before_call_id=self._call_id(before[0]) if before else None,
            after_call_id=None if after is None else self._call_id(after),
            status=status,
        )

    def _gap(self, cause: str, detail: str) -> Item:
        return gap(self.trace_id, cause, detail, episode_id=self.episode_id, agent_id=self.agent_id)
