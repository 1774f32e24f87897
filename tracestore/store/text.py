"""What the bytes of a content say to a person."""

from __future__ import annotations

from typing import Any, NamedTuple

from tracestore.graph.messages import (
    PREVIEW_CHARACTERS,
    parsed,
    storable,
    text_of,
    text_of_value,
    tool_uses,
)
from tracestore.graph.ordinary import Ordinary
from tracestore.graph.spans import first_byte, members
from tracestore.wire.base import Raw

REPLACED = "�"


class Described(NamedTuple):
    """The columns of a content row that are read off its bytes."""

    tool_name: str | None
    preview: str
    text_lossy: bool


def readable(data: bytes) -> str:
    """The text of a JSON content; where it says nothing (tools, a skeleton), the bytes themselves."""
    try:
        return text_of(data) or data.decode("utf-8", "replace")
    except ValueError:
        return data.decode("utf-8", "replace")


def describe_message(message: bytes, value: Any = None) -> Described:
    """Columns for a message: the first tool it calls, or the tool it answers where it names it.

    Args:
        value: the message `parsed`, where the caller has it.
    """
    text = text_of_value(parsed(message) if value is None else value)
    return Described(_tool_name(message), text[:PREVIEW_CHARACTERS], REPLACED in text)


def describe_ordinary(message: bytes, said: Ordinary) -> Described:
    """`describe_message` for what was read already."""
    text = storable(said.text)
    tool_name = said.uses[0].name if said.uses else said.name if b"tool" in message else None
    return Described(tool_name, text[:PREVIEW_CHARACTERS], REPLACED in text)


def describe_json(data: bytes) -> Described:
    """Columns for any other JSON: its beginning as it stands."""
    text = data[: 4 * PREVIEW_CHARACTERS].decode("utf-8", "replace")[:PREVIEW_CHARACTERS]
    return Described(None, text, False)


def may_use_tools(message: bytes) -> bool:
    """False for a message in which no tool use can stand; far cheaper than looking for one."""
    return b"_call" in message or b"functionCall" in message or b"tool_use" in message or b"\\u" in message


def _tool_name(message: bytes) -> str | None:
    uses = tool_uses(Raw(message)) if may_use_tools(message) else ()
    if uses:
        return uses[0].name
    if b"tool" not in message or first_byte(message) != b"{":
        return None
    fields = members(message)
    if "name" not in fields:
        return None
    name = Raw(message[slice(*fields["name"])]).value()
    return name if isinstance(name, str) else None
