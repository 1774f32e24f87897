"""A request -> its messages, tools and parameters, each as the span that was posted.

Where the messages stand depends on the dialect:

    openai_chat          messages
    anthropic_messages   system, then messages
    openai_responses     instructions, then input
    text                 prompt

An answer may be several messages: a Responses answer is a list of items (reasoning, message,
function_call), and the next request sends each of them on its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from tracestore.graph.spans import Place, elements, first_byte, members
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect

PREVIEW_CHARACTERS = 80
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

# (field, role of what stands there without a role of its own), in the order in which the model reads them.
_CONTEXT_FIELDS: dict[Dialect, tuple[tuple[str, str | None], ...]] = {
    "openai_chat": (("messages", None),),
    "anthropic_messages": (("system", "system"), ("messages", None)),
    "openai_responses": (("instructions", "system"), ("input", "user")),
    "text": (("prompt", None),),
}
# Fields whose array is one value (a system prompt of blocks, a prompt of token ids), not a list of
# messages.
_ONE_MESSAGE = frozenset({"system", "instructions", "prompt"})

SAMPLING_PARAMETERS = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "n", "seed", "stop", "stop_sequences"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words"),
    *("response_format", "text", "structured_outputs", "grammar", "guided_json", "guided_regex"),
    *(
        "guided_choice",
        "guided_grammar",
        "regex",
        "ebnf",
        "json_schema",
        "tool_choice",
        "parallel_tool_calls",
    ),
    *("reasoning", "reasoning_effort", "thinking", "chat_template_kwargs", "logprobs", "top_logprobs"),
)
"""Request fields that change what is sampled or reported; the rest is routing and context."""


class Number(str):
    """A JSON number as it was spelled."""

    __slots__ = ()


_decode = json.JSONDecoder(parse_int=Number, parse_float=Number).decode


def parsed(message: bytes) -> Any:
    """The value of a message, with every number as it was spelled; NaN and the infinities are floats."""
    return _decode(message.decode("utf-8", "surrogatepass"))


class Message(NamedTuple):
    """One message of a context as posted, and the role that its place gives it where it states none."""

    raw: Raw
    role: str | None = None


class Part(NamedTuple):
    """Where one message stands in a request, in bytes."""

    start: int
    end: int
    role: str | None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool use inside a sampled message."""

    id: str | None
    """The model's own id; not unique across an episode."""
    name: str | None
    arguments: str
    """As sampled: the string, or the JSON text where the dialect has an object. Never repaired."""


@lru_cache(maxsize=2)
def _fields(request: bytes) -> Mapping[str, Place]:
    """The members of a request: whoever asks for its messages often asks for its tools next."""
    return members(request)


def message_parts(
    request: bytes, dialect: Dialect = "openai_chat", *, fields: Mapping[str, Place] | None = None
) -> tuple[Part, ...]:
    """The messages of a request by their place, in the order in which the model reads them.

    A field that should be an array of messages and is not is one message. A field that is null is none.

    Args:
        fields: the `members` of the request, where the caller has them.
    """
    if fields is None:
        fields = _fields(request)
    parts: list[Part] = []
    for name, role in _CONTEXT_FIELDS[dialect]:
        if name in fields:
            parts.extend(_parts_of(request, fields[name], role, one=name in _ONE_MESSAGE))
    return tuple(parts)


def _parts_of(request: bytes, place: Place, role: str | None, *, one: bool) -> Iterator[Part]:
    start, end = place
    if request[start:end] == b"null":
        return
    if one or request[start : start + 1] != b"[":
        yield Part(start, end, role)
        return
    for first, last in elements(request[start:end]):
        yield Part(start + first, start + last, None)


def messages_of(request: Raw | None, dialect: Dialect = "openai_chat") -> tuple[Message, ...]:
    """The messages of a request with the roles of their places; () without a request."""
    if request is None:
        return ()
    return tuple(
        Message(Raw(request[start:end]), role) for start, end, role in message_parts(request, dialect)
    )


def context_messages(request: Raw | None, dialect: Dialect = "openai_chat") -> tuple[Raw, ...]:
    """The messages of a request as posted, in the order in which the model reads them."""
    return tuple(message.raw for message in messages_of(request, dialect))


def answer_messages(message: Raw | None, dialect: Dialect = "openai_chat") -> tuple[Message, ...]:
    """A completion's message as the messages that the next request sends; () for None.

    A Responses answer (a list of items, or the response object with its `output`) is one message an item.
    In the other dialects it is one message, whatever its shape.
    """
    if message is None:
        return ()
    if dialect == "openai_responses":
        if first_byte(message) == b"{":
            fields = members(message)
            if "output" in fields and "call_id" not in fields:
                start, end = fields["output"]
                message = Raw(message[start:end])
        if first_byte(message) == b"[":
            return tuple(Message(Raw(message[start:end]), "assistant") for start, end in elements(message))
    return (Message(message, "assistant"),)


def request_tools(request: Raw | None) -> Raw | None:
    """The `tools` of a request as posted; None where there are none or null, which is not []."""
    if request is None:
        return None
    fields = _fields(request)
    if "tools" not in fields:
        return None
    start, end = fields["tools"]
    return None if request[start:end] == b"null" else Raw(request[start:end])


def request_params(request: Raw | None) -> dict[str, Any]:
    """The sampling parameters of a request, parsed for reading (see SAMPLING_PARAMETERS); nulls left
    out."""
    return {name: span.value() for name, span in request_param_spans(request).items()}


def request_param_spans(request: Raw | None) -> dict[str, Raw]:
    """The sampling parameters of a request, each as the span that was posted; nulls left out."""
    if request is None:
        return {}
    fields = members(request)
    spans = {name: Raw(request[slice(*fields[name])]) for name in SAMPLING_PARAMETERS if name in fields}
    return {name: span for name, span in spans.items() if span != b"null"}


def role_of(message: bytes, *, default: str | None = None) -> str | None:
    """The role of a message: as stated, else by the type of a Responses item, else that of its place."""
    return role_of_value(parsed(message) if first_byte(message) == b"{" else None, default=default)


def role_of_value(value: Any, *, default: str | None = None) -> str | None:
    """`role_of` for a message that is parsed already."""
    if not isinstance(value, dict):
        return default
    role, kind = value.get("role"), value.get("type")
    if isinstance(role, str) and type(role) is not Number:
        return role
    if isinstance(kind, str) and kind.endswith("_output"):
        return "tool"
    if isinstance(kind, str) and (kind == "reasoning" or kind.endswith("_call")):
        return "assistant"
    return default


def tool_uses(message: Raw | None, dialect: Dialect = "openai_chat") -> tuple[ToolUse, ...]:
    """The tool uses of a sampled message, in order; arguments as sampled, also where they do not parse."""
    found: list[ToolUse] = []
    for raw, _ in answer_messages(message, dialect):
        if first_byte(raw) == b"{":
            found.extend(_tool_uses(raw))
    return tuple(found)


def _tool_uses(message: bytes) -> Iterator[ToolUse]:
    fields = members(message)
    kind = _string(message, fields, "type")
    if kind is not None and kind.endswith("_call"):
        yield ToolUse(
            _string(message, fields, "call_id"), _string(message, fields, "name"), _arguments(message, fields)
        )
    for use in _each(message, fields, "tool_calls"):
        inner = members(use)
        body = next((use[slice(*inner[name])] for name in ("function", "custom") if name in inner), b"{}")
        named = members(body)
        # Inspect has the function's name as `function`, and its arguments beside it.
        yield ToolUse(
            _string(use, inner, "id"),
            _string(body, named, "name") or _string(use, inner, "function"),
            _arguments(body, named) if named else _arguments(use, inner),
        )
    for part in _each(message, fields, "parts"):  # Gemini
        inner = members(part)
        body = next((part[slice(*inner[n])] for n in ("functionCall", "function_call") if n in inner), b"{}")
        named = members(body)
        if named:
            yield ToolUse(_string(body, named, "id"), _string(body, named, "name"), _arguments(body, named))
    if "function_call" in fields and "tool_calls" not in fields:
        body = message[slice(*fields["function_call"])]
        named = members(body)
        if named:
            yield ToolUse(None, _string(body, named, "name"), _arguments(body, named))
    for block in _each(message, fields, "content"):
        inner = members(block)
        kind = _string(block, inner, "type")
        if kind is not None and kind.endswith("tool_use"):
            yield ToolUse(
                _string(block, inner, "id"), _string(block, inner, "name"), _arguments(block, inner)
            )


def _each(text: bytes, fields: dict[str, Place], name: str) -> Iterator[bytes]:
    """The objects of an array field."""
    if name in fields:
        array = text[slice(*fields[name])]
        for start, end in elements(array):
            if array[start : start + 1] == b"{":
                yield array[start:end]


def _string(text: bytes, fields: dict[str, Place], name: str) -> str | None:
    place = fields.get(name)
    if place is None or text[place[0] : place[0] + 1] != b'"':
        return None
    value = json.loads(text[slice(*place)])
    return value if isinstance(value, str) else None


def _arguments(text: bytes, fields: dict[str, Place]) -> str:
    for name in ("arguments", "input", "args"):
        if name in fields:
            as_string = _string(text, fields, name)
            return text[slice(*fields[name])].decode("utf-8") if as_string is None else as_string
    return ""


def result_ids(message: bytes) -> tuple[str, ...]:
    """The model's ids of the tool calls whose results a message carries, in order."""
    value = json.loads(message, parse_int=len, parse_float=len)
    content = value.get("content") if isinstance(value, dict) else None
    found: list[str] = []
    for part in (value, *(content if isinstance(content, list) else ())):
        if isinstance(part, dict):
            # A Responses call has a call_id too; only its output carries the result.
            is_output = str(part.get("type")).endswith("_output")
            names = ("tool_call_id", "tool_use_id", *(("call_id",) if is_output else ()))
            found += [part[name] for name in names if isinstance(part.get(name), str)]
    return tuple(found)


def text_of(message: bytes) -> str:
    """What a message says, as text for people: its content, its reasoning, and the results it carries.

    Lone surrogates and NUL, which no database column takes, are shown as U+FFFD; the bytes keep them.
    """
    return text_of_value(parsed(message))


def text_of_value(value: Any) -> str:
    """`text_of` for a message that is `parsed` already."""
    said: list[str] = []
    _say(value, said)
    return storable("\n".join(said))


def storable(text: str) -> str:
    """The text with U+FFFD instead of what no column takes."""
    return text if text.isascii() and "\x00" not in text else _UNSTORABLE.sub("\ufffd", text)


def preview(message: bytes) -> str:
    """The first PREVIEW_CHARACTERS of `text_of`."""
    return text_of(message)[:PREVIEW_CHARACTERS]


_TEXT_KEYS = (
    *("thinking", "reasoning", "reasoning_content", "summary"),
    *("content", "parts", "text", "refusal", "output"),
)


def _say(value: Any, said: list[str]) -> None:
    if isinstance(value, str):
        if value:
            said.append(value)
    elif isinstance(value, list):
        for item in value:
            _say(item, said)
    elif isinstance(value, dict):
        for key in _TEXT_KEYS:
            if key in value:
                _say(value[key], said)
