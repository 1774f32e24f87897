"""Chat messages -> calls: a history whose calls continue each other; tool uses with their results.

`history` is for formats that keep a history and no requests. Every message that the model wrote is a call;
what stands between two of them is what the second one read beyond the first. Messages stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers.chat_shapes import uses_of
from tracestore.importers.guard import as_dict
from tracestore.importers.items import Item, made, raw, safe_id
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.tool_call import ToolCall

ANSWERS = frozenset({"assistant", "agent", "model"})
"""Roles of messages that a model wrote."""


@dataclass
class Results:
    """What tools gave back, by the id of the tool use. Ids may repeat: results go to their uses in order."""

    waiting: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, messages: Iterable[Any]) -> Results:
        """The results among messages: role tool, with tool_call_id."""
        found = cls()
        for message in messages:
            one = as_dict(message)
            if one.get("role") == "tool" and isinstance(one.get("tool_call_id"), str):
                found.waiting.setdefault(one["tool_call_id"], []).append(one.get("content"))
        return found

    def take(self, use_id: Any) -> list[Any]:
        """[the next result of a use], or [] where none came."""
        waiting = self.waiting.get(use_id) if isinstance(use_id, str) else None
        return [waiting.pop(0)] if waiting else []


def history(
    prompt: list[Any],
    written: list[Any],
    *,
    episode_id: str,
    agent_id: str,
    shared: Mapping[str, Any] | None = None,
    call: Mapping[str, Any] | None = None,
) -> tuple[list[Item], list[Any]]:
    """(calls and tool calls, messages after the last answer, which no call read).

    Args:
        prompt: messages before the first answer; answers among them were given and not sampled here.
        written: the rest of the chat.
        shared: what every request has beside its messages.
        call: fields that every call event has.
    """
    items: list[Item] = []
    results = Results.of([*prompt, *written])
    read, ordinal = list(prompt), 0
    for message in written:
        if as_dict(message).get("role") not in ANSWERS:
            read.append(message)
            continue
        call_id = safe_id(f"{agent_id}/{ordinal}")
        items.append(
            made(
                Call,
                id=call_id,
                episode_id=episode_id,
                agent_id=agent_id,
                ordinal=ordinal,
                request=raw({**(shared or {}), "messages": read}),
                context="delta" if ordinal else "whole",
                parent_call_id=safe_id(f"{agent_id}/{ordinal - 1}") if ordinal else None,
                completions=(CompletionBody(message=raw(message)),),
                **(call or {}),
            )
        )
        items += tool_calls(message, call_id=call_id, episode_id=episode_id, results=results)
        read, ordinal = [], ordinal + 1
    return items, read


def tool_calls(
    message: Any, *, call_id: str, episode_id: str, completion: int = 0, results: Results | None = None
) -> Iterator[Item]:
    """The tool uses of an answer in any of our dialects, each with what came back, where that is known."""
    of_call = call_id if completion == 0 else f"{call_id}/{completion}"
    for place, use in enumerate(uses_of(message)):
        result = results.take(use.id) if results is not None else []
        yield made(
            ToolCall,
            id=safe_id(f"{of_call}/tool/{place}"),
            episode_id=episode_id,
            call_id=call_id,
            completion=completion or None,
            tool_call_id=use.id,
            name=use.name,
            arguments=use.arguments,
            result=raw(result[0]) if result else None,
        )
