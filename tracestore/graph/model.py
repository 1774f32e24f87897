"""The message graph of one episode as frozen values.

Contexts form a trie of messages. A node's key hashes the path to it, so two calls that saw the same
messages share the node whatever the order in which they came, and a trie built twice has the same keys.
The message that a call sampled is named by its (call, index), not by its node: equal siblings are several
completions at one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Literal

from tracestore.graph.runs import TokenRun
from tracestore.wire.agent import Agent
from tracestore.wire.base import Raw
from tracestore.wire.blob import Blob
from tracestore.wire.call import Call
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet
from tracestore.wire.completion import CompletionFields
from tracestore.wire.consumption import Consumption
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.gap import STALE_OBSERVATION, Gap
from tracestore.wire.group import Group
from tracestore.wire.reward import Reward
from tracestore.wire.snapshot import Snapshot
from tracestore.wire.tool_call import ToolCall

CompletionKey = tuple[str, int]
"""(call id, index among the call's completions)."""


@dataclass(frozen=True, slots=True)
class Node:
    """A message at one place of the trie."""

    key: bytes
    """16 bytes: `match.node_key(parent, match_hash)`."""
    parent: bytes | None
    """Key of the message before it; None for the first of a context."""
    match_hash: bytes | None
    """Hash of the message's value, see `match.match_hash`; None in a graph without texts."""
    depth: int
    """Messages before it on its path."""
    role: str | None
    """None where neither the message nor its position says."""


@dataclass(frozen=True, slots=True)
class Link:
    """Which completion a call continues, and how that is known."""

    parent: CompletionKey | None
    how: Literal["named", "inferred", "matched", "ambiguous", "none"]
    """named: the call says so. inferred: it names the call, and equal siblings or the context tell which
    completion. matched: the only completion at the deepest such node of its context. ambiguous: several
    fit at the deepest node, where the message is therefore only observed; `parent` is the one found above
    it, if any. none: it continues nothing that is here."""
    exact: bool
    """Whether the parent's completion stands in the call's context, message for message. False after text
    drift (stripped thinking, a rewritten answer), and for a completion without a message."""


@dataclass(frozen=True, slots=True)
class NotRendered:
    """Why an answer got no ids from a chat template."""

    why: str
    """A label that is counted: media, template_refused, not_a_continuation, ..."""
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a chat template made of a graph without token ids (see `tracestore.tokens.render`)."""

    calls: frozenset[str] = frozenset()
    """Calls whose ids it gave; those of all others are as recorded."""
    not_rendered: Mapping[CompletionKey, NotRendered] = field(default_factory=dict)
    """Completions that have no ids still."""
    left_out: Mapping[CompletionKey, frozenset[str]] = field(default_factory=dict)
    """Rendered completions, and what of their context or answer the text does not say."""


@dataclass(frozen=True, slots=True)
class Textless:
    """What a graph that was read without its texts says instead of them.

    Its calls have no request and no ids, and its completions no message. No call of it is pending, and no
    message of it holds an image, a sound, a video or a file.
    """

    outlines: Mapping[str, Raw]
    """The requests of calls, `null` where their messages stood; those without a request are missing."""
    prompts: Mapping[str, TokenRun]
    """The ids that calls read; those that were not recorded are missing."""
    sampled: Mapping[CompletionKey, TokenRun]
    """Prompt and completion of each answer whose prompt is known."""
    tool_failed: Mapping[CompletionKey, bool] = field(default_factory=dict)
    """What `Graph.tool_failed` says, where it says something."""
    stale: frozenset[str] = frozenset()
    """Calls of which `Graph.is_stale` holds."""


def failed_tools(said: Iterable[tuple[CompletionKey, str | None]]) -> dict[CompletionKey, bool]:
    """Completion -> whether a tool call of it failed or timed out, from the status of each tool call.

    A tool call that was cancelled, or whose outcome is not known, says nothing.
    """
    found: dict[CompletionKey, bool] = {}
    for key, status in said:
        if status in ("ok", "failed", "timeout"):
            found[key] = found.get(key, False) or status != "ok"
    return found


@dataclass(frozen=True)
class Graph:
    """Everything recorded of one episode; equal for equal sets of events. Dicts are in key order."""

    group: Group | None
    """The episode's group, where its event was among the events."""
    episode: Episode | None
    """None: only its parts have come."""
    agents: dict[str, Agent]
    calls: dict[str, Call]
    """Their `completions` are None: those of a call and those posted on their own stand in
    `completions`."""
    completions: dict[CompletionKey, CompletionFields]
    tool_calls: dict[str, ToolCall]
    context_edits: dict[str, ContextEdit]
    candidate_sets: dict[str, CandidateSet]
    candidate_selections: dict[str, CandidateSelection]
    rewards: dict[str, Reward]
    gaps: dict[str, Gap]
    snapshots: dict[str, Snapshot]
    blobs: dict[str, Blob]
    consumptions: dict[str, Consumption]
    nodes: Mapping[bytes, Node]
    prompt_node: Mapping[str, bytes | None]
    """Last message of a call's context; None for an empty context and for a pending call."""
    completion_node: Mapping[CompletionKey, bytes]
    """Last message of a completion. Missing where it has none, or its call's context is not known yet."""
    links: dict[str, Link]
    pending: frozenset[str]
    """Delta calls whose context is not known: the parent, or the completion they continue, has not come."""
    rendering: Rendering | None = None
    """None: every id is as recorded."""
    textless: Textless | None = None
    """None: it has all its texts."""
    withheld: frozenset[CompletionKey] = frozenset()
    """Completions whose ids, or those of what they read, are not to be handed on."""

    def outline(self, call_id: str) -> Raw | None:
        """The request of a call, for what it says beside its messages, which may be left out of it.

        Raises:
            KeyError: no such call.
        """
        if self.textless is not None:
            return self.textless.outlines.get(call_id)
        return self.calls[call_id].request

    def tool_failed(self, key: CompletionKey) -> bool | None:
        """Whether a tool call of a completion failed or timed out; None: no outcome of one is known."""
        known = self._tool_failed if self.textless is None else self.textless.tool_failed
        return known.get(key)

    def is_stale(self, call_id: str) -> bool:
        """Whether a call read what an environment had answered to something else than was sampled before it.

        A gap says so (`wire.gap.STALE_OBSERVATION`).
        """
        return call_id in (self._stale if self.textless is None else self.textless.stale)

    @cached_property
    def _stale(self) -> frozenset[str]:
        gaps = (gap for gap in self.gaps.values() if gap.cause == STALE_OBSERVATION)
        return frozenset(gap.call_id for gap in gaps if gap.call_id is not None)

    @cached_property
    def _tool_failed(self) -> dict[CompletionKey, bool]:
        said = (((one.call_id, one.completion), one.status) for one in self.tool_calls.values())
        return failed_tools(said)

    def path(self, key: bytes | None) -> tuple[Node, ...]:
        """The nodes from the root to a key, both included; () for None."""
        return tuple(self.up(key))[::-1]

    def up(self, key: bytes | None) -> Iterator[Node]:
        """The nodes from a key to its root."""
        while key is not None:
            node = self.nodes[key]
            yield node
            key = node.parent

    def completions_of(self, call_id: str) -> tuple[CompletionKey, ...]:
        """The call's completions that have come, by index."""
        return self._by_call.get(call_id, ())

    @cached_property
    def _by_call(self) -> dict[str, tuple[CompletionKey, ...]]:
        return {
            call_id: tuple(keys)
            for call_id, keys in groupby(sorted(self.completions), key=lambda key: key[0])
        }
