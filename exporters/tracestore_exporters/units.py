"""Graph -> units: each completion with its exact ids, and whatever else the model read beside the ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tracestore.graph.media import may_hold_media, media_parts
from tracestore.graph.messages import context_messages, request_tools
from tracestore.graph.model import CompletionKey, Graph
from tracestore.graph.runs import TokenRun
from tracestore.graph.tokens import prompt_run, sampled_run
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.canonical import canonical
from tracestore.wire.completion import CompletionFields

Inputs = tuple[tuple[int, str], ...]
"""What was read beside the ids: (token index in prompt ++ completion, role and hash), in order."""

_INPUT_ROLES = frozenset({"image", "audio", "video", "latent"})
_LAST = 2**31


@dataclass(slots=True, eq=False)
class Unit:
    """One completion with at least one token id."""

    place: tuple[int, str, int]
    """Index of its graph in the group, and its key."""
    key: CompletionKey
    agent: tuple[int, str]
    """Index of its graph, and the agent's id."""
    call: Call
    body: CompletionFields
    prompt: TokenRun | None
    """The ids the server read; None: unknown."""
    ids: np.ndarray
    """int32, sampled, at least one."""
    run: TokenRun | None
    """The prompt and the ids after it; None where the prompt is."""
    parent: CompletionKey | None
    """The completion its messages continue, answers of no tokens passed over; it may not be here."""
    exact: bool
    """Whether the messages of that completion stand in its context as they were sampled."""
    tools: bytes | None
    """Canonical JSON of the tools it was offered; None for none."""
    declared: Inputs
    """From blobs that name the call."""
    inline: tuple[str, ...]
    """Hashes of the media parts in the call's messages, in order."""
    inputs: Inputs = ()
    """Everything read beside the ids, the linked parent's included; set when the unit enters the forest."""
    extends: Unit | None = field(default=None, repr=False)
    """The completion whose prompt ++ ids its prompt continues; set when the unit enters the forest."""

    @property
    def episode(self) -> int:
        """Index of its graph in the group."""
        return self.place[0]

    @property
    def order(self) -> tuple[int, int, int, str, int]:
        """Order in which units enter the forest: what a prompt continues always comes before it."""
        length = _LAST if self.prompt is None else self.prompt.length
        ordinal = _LAST if self.call.ordinal is None else self.call.ordinal
        return length, self.place[0], ordinal, *self.key

    @property
    def full_length(self) -> int:
        """Tokens of prompt ++ completion."""
        return len(self.ids) if self.run is None else self.run.length

    def is_prefix_of(self, other: TokenRun) -> bool:
        """Whether prompt ++ completion is an exact prefix of other ids."""
        return self.run is not None and other.begins_with(self.run)


def units(graphs: Sequence[Graph]) -> list[Unit]:
    """Every completion of a group that has token ids, in forest order."""
    found = [unit for episode, graph in enumerate(graphs) for unit in _units_of(graph, episode)]
    return sorted(found, key=lambda unit: unit.order)


def _units_of(graph: Graph, episode: int) -> Iterator[Unit]:
    declared = _declared_inputs(graph)
    media, offered = _MediaParts(graph), _Tools(graph)
    for call_id, call in graph.calls.items():
        prompt: TokenRun | None = None
        shared: tuple[Any, ...] | None = None
        for key in graph.completions_of(call_id):
            body = graph.completions[key]
            if body.token_ids is None or len(body.token_ids) == 0 or key in graph.withheld:
                continue
            if shared is None:
                prompt = prompt_run(graph, call_id)
                shared = *_continued(graph, call_id), offered.of(call), media.of(call_id)
            parent, exact, tools, inline = shared
            own = declared.get((call_id, None), []) + declared.get((call_id, key[1]), [])
            yield Unit(
                place=(episode, *key),
                key=key,
                agent=(episode, call.agent_id),
                call=call,
                body=body,
                prompt=prompt,
                ids=body.token_ids.array,
                run=None if prompt is None else sampled_run(graph, key, prompt),
                parent=parent,
                exact=exact,
                tools=tools,
                declared=tuple(sorted(own)),
                inline=inline,
            )


def _continued(graph: Graph, call_id: str) -> tuple[CompletionKey | None, bool]:
    """(the nearest completion with tokens along the links, whether every link on the way is exact)."""
    exact = True
    seen: set[str] = set()
    while call_id in graph.links and call_id not in seen:
        seen.add(call_id)
        link = graph.links[call_id]
        exact = exact and link.exact
        if link.parent is None:
            break
        before = graph.completions.get(link.parent)
        if before is None or before.token_ids is None or len(before.token_ids):
            return link.parent, exact
        call_id = link.parent[0]
    return None, False


class _Tools:
    """The tools that calls offered, by value: spelling and an empty list make no other tools."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._of_outline: dict[bytes, Raw | None] = {}

    def of(self, call: Call) -> bytes | None:
        """A delta call that states no tools offers its parent's."""
        seen: set[str] = set()
        current: Call | None = call
        while current is not None and current.id not in seen:
            seen.add(current.id)
            tools = self._stated(current.id)
            if tools is not None:
                return _value(tools)
            if current.context != "delta" or current.parent_call_id is None:
                return None
            current = self._graph.calls.get(current.parent_call_id)
        return None

    def _stated(self, call_id: str) -> Raw | None:
        """The tools that a call's own request states, as posted."""
        outline = self._graph.outline(call_id)
        if outline is None:
            return None
        if outline not in self._of_outline:
            self._of_outline[outline] = request_tools(outline)
        return self._of_outline[outline]


@lru_cache(maxsize=256)
def _value(tools: Raw) -> bytes | None:
    value = canonical(tools)
    return None if value == b"[]" else value


def _declared_inputs(graph: Graph) -> dict[tuple[str, int | None], list[tuple[int, str]]]:
    """Inputs by (call, completion). One without a position could stand anywhere, so it stands at 0."""
    found: dict[tuple[str, int | None], list[tuple[int, str]]] = defaultdict(list)
    for blob in graph.blobs.values():
        is_input = blob.role in _INPUT_ROLES or (blob.role is None and blob.position is not None)
        if is_input and blob.call_id is not None:
            place = 0 if blob.position is None else blob.position
            found[blob.call_id, blob.completion].append((place, f"{blob.role}:{blob.hash}"))
    return found


class _MediaParts:
    """Hashes of the images, sounds, videos and files in the messages of calls; most graphs have none."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[str, tuple[str, ...]] = {}
        self._of_message: dict[Raw, tuple[str, ...]] = {}
        """A context holds the messages of the one before it."""

    def of(self, call_id: str) -> tuple[str, ...]:
        """Parts of the whole context of a call: of its parents too where it was posted as a delta."""
        chain: list[Call] = []
        seen: set[str] = set()
        current = self._graph.calls.get(call_id)
        while current is not None and current.id not in self._known and current.id not in seen:
            chain.append(current)
            seen.add(current.id)
            delta = current.context == "delta" and current.parent_call_id is not None
            current = self._graph.calls.get(current.parent_call_id or "") if delta else None
        parts = self._known.get(current.id, ()) if current is not None else ()
        for call in reversed(chain):
            parts = parts + self._own(call)
            self._known[call.id] = parts
        return self._known[call_id]

    def _own(self, call: Call) -> tuple[str, ...]:
        request = call.request
        if request is None or not may_hold_media(request):
            return ()
        found: tuple[str, ...] = ()
        for message in context_messages(request, call.dialect):
            if message not in self._of_message:
                self._of_message[message] = media_parts(message)
            found += self._of_message[message]
        return found


def resolve_inputs(unit: Unit, parent: Unit | None, *, continues: bool) -> Inputs:
    """What a unit read beside its ids, each at its place or at the first place where it may stand.

    Args:
        parent: the unit its link names, if it is here.
        continues: the unit's prompt starts with all of the parent's ids.

    A harness that declares an image once, at the call that first sends it, is understood: a call that
    declares nothing inside its parent's tokens has what the parent had there. Media that no blob places
    stand at 0, or behind the parent's tokens when the parent's media are the first of them: a lower bound,
    behind which tokens are shared only with calls that read the same.
    """
    if not unit.declared and not unit.inline and (parent is None or not parent.inputs):
        return ()
    inherited: Inputs = ()
    if parent is not None and continues and parent.inputs:
        behind = parent.full_length
        if not unit.declared or unit.declared[0][0] >= behind:
            inherited = tuple(item for item in parent.inputs if not item[1].startswith("inline:"))
    placed = tuple(sorted(inherited + unit.declared))
    if not _unplaced(unit, placed):
        return placed
    known, behind = 0, 0
    grown = parent is not None and unit.inline[: len(parent.inline)] == parent.inline
    if parent is not None and continues and unit.exact and grown:
        known, behind = len(parent.inline), parent.full_length
        placed += tuple(item for item in parent.inputs if item[1].startswith("inline:"))
    placed += tuple((behind, f"inline:{part}") for part in unit.inline[known:])
    return tuple(sorted(placed, key=lambda item: item[0]))


def _unplaced(unit: Unit, placed: Inputs) -> bool:
    """Whether messages hold media that no blob places."""
    carried = sum(not what.startswith(("latent:", "inline:")) for _, what in placed)
    return len(unit.inline) > carried


def has_unplaced_media(unit: Unit) -> bool:
    """Whether the unit was sampled after media that a shard cannot carry."""
    return any(what.startswith("inline:") for _, what in unit.inputs)


def first_latent(unit: Unit) -> int | None:
    """Token index of the first latent the unit read, if any."""
    return next((place for place, what in unit.inputs if what.startswith("latent:")), None)
