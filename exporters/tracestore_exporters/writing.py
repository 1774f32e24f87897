"""Graph -> what the writers of other formats share: calls with all they hold, their messages, a report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracestore.graph.context import context
from tracestore.graph.model import CompletionKey, Graph
from tracestore.graph.tokens import prompt_ids
from tracestore.importers import exact
from tracestore.importers.carried import values_of
from tracestore.importers.items import raw
from tracestore.wire.arrays import TokenIds
from tracestore.wire.call import Call
from tracestore.wire.canonical import canonical
from tracestore.wire.completion import CompletionBody, CompletionFields
from tracestore.wire.events import AnyEvent
from tracestore.wire.tool_call import ToolCall

_LIST = {"openai_chat": "messages", "anthropic_messages": "messages", "openai_responses": "input"}
_ALONE = {"anthropic_messages": ("system",), "openai_responses": ("instructions",), "text": ("prompt",)}


@dataclass
class Report:
    """What a writer wrote, and where what the format has no name for went."""

    written: Counter[str] = field(default_factory=Counter)
    """Things said in the format's own words, by kind."""
    carried: Counter[str] = field(default_factory=Counter)
    """Things that stand under `tracestore`, where other readers do not look, by kind."""
    lost: Counter[str] = field(default_factory=Counter)
    """Things that are not in the file, by kind."""

    def facts(self) -> dict[str, dict[str, int]]:
        sides = {"written": self.written, "carried": self.carried, "lost": self.lost}
        return {
            name: {what: num for what, num in sorted(side.items()) if num} for name, side in sides.items()
        }


def episode_id(graph: Graph) -> str:
    """The id of a graph's episode, by its event or by those of its parts."""
    named = [agent.episode_id for agent in graph.agents.values()]
    named += [call.episode_id for call in graph.calls.values()]
    return graph.episode.id if graph.episode is not None else next(iter(named), "episode")


def messages(graph: Graph, call_id: str) -> list[Any]:
    """What a call saw, as JSON values in which numbers that Python would change are spans."""
    return [exact.loads(bytes(message.raw)) for message in context(graph, call_id)]


def is_same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same value."""
    return one == other and canonical(encoded(one)) == canonical(encoded(other))


def encoded(value: Any) -> bytes:
    """The JSON text of such a value."""
    return bytes(raw(value))


def whole_call(graph: Graph, call: Call) -> Call:
    """The call with its completions inside and its prompt's ids spelled out, where they are known."""
    fields = {
        name: getattr(call, name) for name in call.model_fields_set if name not in ("phase", "revision")
    }
    bodies = [_body(graph.completions[key]) for key in graph.completions_of(call.id)]
    if bodies:
        fields["completions"] = tuple(bodies)
    ids = prompt_ids(graph, call.id)
    if ids is not None:
        fields["prompt_token_ids"] = TokenIds.of(ids)
        fields.pop("prompt_token_ids_delta", None)
    return Call(**fields)


def _body(completion: CompletionFields) -> CompletionBody:
    names = CompletionBody.model_fields.keys() & completion.model_fields_set
    return CompletionBody(**{name: getattr(completion, name) for name in names})


def tools_by_call(graph: Graph) -> dict[str, list[ToolCall]]:
    """The tool calls of each call, by id."""
    found: dict[str, list[ToolCall]] = defaultdict(list)
    for tool_call in graph.tool_calls.values():
        found[tool_call.call_id].append(tool_call)
    return dict(found)


def continued(graph: Graph, calls: Sequence[Call], place: int) -> int:
    """Which completion of a call the next one of its agent builds on; the first where it builds on none."""
    if place + 1 < len(calls):
        parent = graph.links[calls[place + 1].id].parent
        if parent is not None and parent[0] == calls[place].id:
            return parent[1]
    return 0


def extends(
    graph: Graph, call: Call, before: CompletionKey | None, read: Sequence[Any], seen: Sequence[Any]
) -> bool:
    """Whether a call reads on where a completion ended: what it read begins with all that was seen there."""
    if before is None or graph.links[call.id].parent != before or call.id in graph.pending:
        return False
    if call.dialect == "text" and call.context == "whole":
        return False  # one prompt, which cannot be cut
    return len(read) >= len(seen) and all(is_same(*pair) for pair in zip(read, seen, strict=False))


def request_beside(call: Call, *, is_whole: bool) -> tuple[dict[str, Any] | None, int]:
    """(the request without its list of messages, how many of its messages stay in it).

    A system prompt beside the list, a prompt that is text, and an input that is no list stay in the request.
    Where the call is written as reading on, a whole request's own prompt is known from the first call.
    """
    if call.request is None:
        return None, 0
    request = exact.loads(bytes(call.request))
    if not isinstance(request, dict):
        return None, 0
    listed = _LIST.get(call.dialect)
    alone = [name for name in _ALONE.get(call.dialect, ()) if request.get(name) is not None]
    if listed is not None and request.get(listed) is not None and not isinstance(request[listed], list):
        alone.append(listed)
    dropped = {listed} if listed not in alone else set()
    if not is_whole and call.context == "whole":
        dropped |= set(alone)
        alone = []
    return {name: one for name, one in request.items() if name not in dropped}, len(alone)


def whole_request(graph: Graph, call: Call, read: Sequence[Any]) -> dict[str, Any] | None:
    """The request of a call with its whole context in it; None where it has none, or where no request of its
    dialect can say it (a prompt that was posted in pieces, a context that is not known).

    Args:
        read: its context.
    """
    if call.request is None:
        return None
    request = exact.loads(bytes(call.request))
    if not isinstance(request, dict) or call.context == "whole":
        return request if isinstance(request, dict) else None
    listed = _LIST.get(call.dialect)
    if listed is None or call.id in graph.pending:
        return None
    first = call
    while first.context == "delta":
        parent = graph.links[first.id].parent
        assert parent is not None, "a delta call without a parent is pending"
        first = graph.calls[parent[0]]
    at_root = exact.loads(bytes(first.request)) if first.request is not None else {}
    alone = {name: at_root[name] for name in _ALONE.get(call.dialect, ()) if at_root.get(name) is not None}
    others = {name: one for name, one in request.items() if name not in (listed, *alone)}
    return alone | {listed: list(read[len(alone) :])} | others


def beside(graph: Graph) -> Iterator[AnyEvent]:
    """The events that neither format has a shape for; they are carried whole."""
    for one in (graph.group, graph.episode):
        if one is not None:
            yield one
    for kind in (
        *(graph.context_edits, graph.candidate_sets, graph.candidate_selections, graph.rewards),
        *(graph.gaps, graph.snapshots, graph.blobs, graph.consumptions),
    ):
        yield from kind.values()


def carried(event: AnyEvent) -> dict[str, Any]:
    """An event as a JSON value, without its revision: a file that we write is complete."""
    return {name: one for name, one in values_of(event).items() if name != "revision"}
