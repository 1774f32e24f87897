"""Wire events -> graph. A pure function of the set of events: order, batches and repeats change nothing.

    c0: [s, u] -> a        c1: [s, u, a, t] -> b        nodes: s - u - a - t - b,  c1 continues (c0, 0)

First phases become entities (`merge`), then every context becomes a path of nodes, parents before the
delta calls that build on them, and last every call gets the link to the completion that it continues
(`links`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tracestore.errors import TracestoreError
from tracestore.graph.links import named_parent, resolve_links
from tracestore.graph.match import match_hash, node_key
from tracestore.graph.merge import Merged, merge
from tracestore.graph.messages import Message, answer_messages, messages_of, role_of
from tracestore.graph.model import CompletionKey, Graph, Link, Node
from tracestore.wire.call import Call
from tracestore.wire.events import AnyEvent, episode_id_of

__all__ = ["Graph", "Link", "Node", "SeveralEpisodes", "build"]


class SeveralEpisodes(TracestoreError):
    """A graph is of one episode and its group"""


def build(events: Iterable[AnyEvent]) -> Graph:
    """The graph of one episode's events; the event of its group may be among them.

    Raises:
        FieldConflict: two events of one kind and id name a field with different values.
        SeveralEpisodes: the events belong to more than one episode, or to more than one group.
    """
    events = list(events)
    _check_one_episode(events)
    merged = merge(events)
    trie = _Trie(merged)
    trie.place_all()
    calls: dict[str, Call] = merged.of("call")
    return Graph(
        group=next(iter(merged.of("group").values()), None),
        episode=next(iter(merged.of("episode").values()), None),
        agents=merged.of("agent"),
        calls=calls,
        completions=merged.completions,
        tool_calls=merged.of("tool_call"),
        context_edits=merged.of("context_edit"),
        candidate_sets=merged.of("candidate_set"),
        candidate_selections=merged.of("candidate_selection"),
        rewards=merged.of("reward"),
        gaps=merged.of("gap"),
        snapshots=merged.of("snapshot"),
        blobs=merged.of("blob"),
        consumptions=merged.of("consumption"),
        nodes=dict(sorted(trie.nodes.items())),
        prompt_node={call_id: trie.prompt_node.get(call_id) for call_id in calls},
        completion_node=dict(sorted(trie.completion_node.items())),
        links=resolve_links(
            calls=calls,
            completions=merged.completions,
            nodes=trie.nodes,
            prompt_node=trie.prompt_node,
            completion_node=trie.completion_node,
        ),
        pending=frozenset(calls.keys() - trie.prompt_node.keys()),
    )


def _check_one_episode(events: Sequence[AnyEvent]) -> None:
    episodes = sorted({id_ for event in events if (id_ := episode_id_of(event)) is not None})
    groups = sorted({event.id for event in events if event.kind == "group"})
    for what, ids in (("episodes", episodes), ("groups", groups)):
        if len(ids) > 1:
            raise SeveralEpisodes(**{what: ids[:3]}, hint="build one graph for each episode")


class _Trie:
    """Contexts as paths of nodes: a call gets its path once all that its context begins with has one."""

    def __init__(self, merged: Merged) -> None:
        self.nodes: dict[bytes, Node] = {}
        self.prompt_node: dict[str, bytes | None] = {}
        self.completion_node: dict[CompletionKey, bytes] = {}
        self._calls: dict[str, Call] = merged.of("call")
        self._completions = merged.completions
        self._answers: dict[str, list[CompletionKey]] = defaultdict(list)
        for key in merged.completions:
            self._answers[key[0]].append(key)
        # The last path of each agent: its next call mostly begins with the same bytes.
        self._last: dict[str, tuple[tuple[Message, ...], list[bytes]]] = {}

    def place_all(self) -> None:
        waiting: dict[str, list[Call]] = defaultdict(list)
        ready: list[Call] = []
        for call in sorted(self._calls.values(), key=_by_agent):
            if call.context == "whole":
                self._place_whole(call)
                ready.append(call)
            elif call.parent_call_id is not None:
                waiting[call.parent_call_id].append(call)
        # A stack, since a chain of delta calls is as deep as the episode is long. Calls in a circle of
        # parents are never reached and stay pending.
        while ready:
            parent = ready.pop()
            for call in waiting.pop(parent.id, ()):
                if self._place_delta(call):
                    ready.append(call)

    def _place_whole(self, call: Call) -> None:
        messages = messages_of(call.request, call.dialect)
        seen, path = self._last.get(call.agent_id, ((), []))
        same = 0
        for message, before in zip(messages, seen, strict=False):
            if message != before:
                break
            same += 1
        keys = path[:same]
        for message in messages[same:]:
            keys.append(self._step(keys[-1] if keys else None, message))
        self._last[call.agent_id] = (messages, keys)
        self._place(call, keys[-1] if keys else None)

    def _place_delta(self, call: Call) -> bool:
        parent = named_parent(
            call, self._answers[call.parent_call_id or ""], self.completion_node, self.nodes, None
        ).parent
        if parent is None:
            return False
        start = self.completion_node.get(parent, self.prompt_node[parent[0]])
        self._place(call, self._walk(start, messages_of(call.request, call.dialect)))
        return True

    def _place(self, call: Call, prompt: bytes | None) -> None:
        self.prompt_node[call.id] = prompt
        for key in self._answers[call.id]:
            messages = answer_messages(self._completions[key].message, call.dialect)
            node = self._walk(prompt, messages)
            if messages and node is not None:
                self.completion_node[key] = node

    def _walk(self, start: bytes | None, messages: Sequence[Message]) -> bytes | None:
        for message in messages:
            start = self._step(start, message)
        return start

    def _step(self, parent: bytes | None, message: Message) -> bytes:
        match = match_hash(message.raw, role=message.role)
        key = node_key(parent, match)
        if key not in self.nodes:
            depth = 0 if parent is None else self.nodes[parent].depth + 1
            role = role_of(message.raw, default=message.role)
            self.nodes[key] = Node(key=key, parent=parent, match_hash=match, depth=depth, role=role)
        return key


def _by_agent(call: Call) -> tuple[str, int, str]:
    return call.agent_id, -1 if call.ordinal is None else call.ordinal, call.id
