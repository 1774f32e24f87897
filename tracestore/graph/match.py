"""When two messages are the same message, however their clients spell them.

A client that echoes an assistant message rarely sends the bytes it received: SDK models add keys with
null, empty lists and ids of their own, reorder keys, and wrap text in blocks. The match hash is of the
message's JSON value after these differences are gone. It serves linking only: what a call saw is read
from its own bytes.

What is taken away, and why:

- key order, white space, escapes, spelling of numbers: the hash is of the value. Numbers compare exactly.
- a key whose value is null: `model_dump()` of the SDKs writes every optional field.
- `annotations`, `citations`, `tool_calls`, `images`, `reasoning_details`, `thinking_blocks`,
  `provider_specific_fields` when empty, `content` when it is [] or, in an assistant message, "": SDKs,
  gateways and `content or ""` write them for "none".
- `logprobs`, `parsed`, `parsed_arguments`, `cache_control` anywhere, `index` of a tool call: response
  data, helper results, cache hints and stream bookkeeping; the model reads none of them.
- `id` and `status` of the message itself: Responses items and Anthropic messages carry the provider's id,
  which clients keep or drop. The id of an `item_reference` is its content and stays; so do the ids of
  tool calls.
- `type: "message"`, and with it the rest of Anthropic's response envelope (model, stop_reason, usage, ...).
- `audio` but for its id: a response holds the data, the echo names it.
- `input_text` and `output_text` are `text`, and a list of one plain text block is that text. Several
  blocks stay several: where one ends is something the model may see.
- `reasoning_content` is `reasoning` (two names in the wild for one thing), and it is part of the value: a
  message whose thinking was stripped is another message. Empty reasoning is none.

What never goes: roles, tool call ids, and the payloads of tools. `arguments` are compared as the string
they are, never parsed; inside an `input` or `arguments` object, and inside content that is an object,
nothing is removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

from tracestore.graph.messages import Message, Number, parsed, role_of_value
from tracestore.wire.canonical import canonical

HASH_BYTES = 16

_DERIVED = frozenset({"logprobs", "parsed", "parsed_arguments", "cache_control"})
_PAYLOAD = frozenset({"input", "arguments"})
_OPTIONAL = frozenset(
    {
        *("annotations", "citations", "tool_calls", "images", "reasoning_details", "thinking_blocks"),
        *("provider_specific_fields", "content"),
    }
)
_ENVELOPE = (
    *("model", "stop_reason", "stop_sequence", "stop_details", "usage", "container", "context_management"),
)
_TEXT_TYPES = ("text", "input_text", "output_text")
_ITEM_STATUS = ("completed", "in_progress", "incomplete")


# Messages repeat with every call that sends its whole context. Keys are digests: the cache holds no
# message.
_cache: dict[bytes, bytes] = {}
_CACHED_MESSAGES = 65_536


def match_hash(message: bytes, *, role: str | None = None, value: Any = None) -> bytes:
    """16 bytes that are equal for two spellings of one message, see the rules above.

    Args:
        message: JSON text of one message as it stands in a request, or as a completion.
        role: what its place says it is, for a message that does not say so itself (a bare string, say).
        value: the message `parsed`, where the caller has it.
    """
    digest = blake2b(message, digest_size=HASH_BYTES, salt=(role or "").encode()[:16]).digest()
    known = _cache.get(digest)
    if known is None:
        if len(_cache) >= _CACHED_MESSAGES:
            _cache.clear()
        known = _cache[digest] = _hash(_message_value(parsed(message) if value is None else value, role))
    return known


def node_key(parent: bytes | None, match: bytes) -> bytes:
    """The key of the message that follows `parent` (None: begins a context): a hash of the path to it."""
    return blake2b((parent or b"") + match, digest_size=HASH_BYTES).digest()


def node_keys(messages: Iterable[Message], *, after: bytes | None = None) -> list[bytes]:
    """The key of each of some messages that follow each other.

    Args:
        after: key of the message before the first; None: they begin a context.
    """
    keys: list[bytes] = []
    for message in messages:
        after = node_key(after, match_hash(message.raw, role=message.role))
        keys.append(after)
    return keys


def _message_value(value: Any, role: str | None) -> dict[str, Any]:
    """The value that is hashed: a message with the differences of spelling taken away."""
    stated = role_of_value(value, default=role)
    if not isinstance(value, dict):
        value = {"content": value}
    value = _plain(value)
    # A role that is a number says nothing, but stays what it is.
    if stated is not None and not isinstance(value.get("role"), (Number, float)):
        value["role"] = stated
    return _without_envelope(value)


def _without_envelope(message: dict[str, Any]) -> dict[str, Any]:
    kind = message.get("type")
    if kind != "item_reference":
        message.pop("id", None)
    if message.get("status") in _ITEM_STATUS:
        del message["status"]
    if kind == "message":
        del message["type"]
        for key in _ENVELOPE:
            message.pop(key, None)
    if message.get("role") == "assistant" and message.get("content") == "":
        del message["content"]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            call.pop("index", None)
    audio = message.get("audio")
    if isinstance(audio, dict) and "id" in audio:
        message["audio"] = {"id": audio["id"]}
    return _one_reasoning(message)


def _one_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    for key in ("reasoning", "reasoning_content"):
        if message.get(key) == "":
            del message[key]
    if "reasoning_content" in message and message.get("reasoning") in (None, message["reasoning_content"]):
        message["reasoning"] = message.pop("reasoning_content")
    return message


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """A message, content block or tool call without what stands for "nothing"."""
    kept: dict[str, Any] = {}
    for key, item in value.items():
        if item is None or key in _DERIVED or (key in _OPTIONAL and item in ([], {})):
            continue
        if key in ("content", "output"):
            item = _plain_content(item)
        elif key not in _PAYLOAD:
            item = _plain_item(item)
        kept[key] = item
    if kept.get("type") in _TEXT_TYPES and "text" in kept:
        kept["type"] = "text"
    return kept


def _plain_item(value: Any) -> Any:
    if isinstance(value, dict):
        return _plain(value)
    return [_plain_item(item) for item in value] if isinstance(value, list) else value


def _plain_content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    blocks = [_plain_item(block) for block in content]
    if len(blocks) == 1 and isinstance(blocks[0], dict):
        block = blocks[0]
        if block.keys() == {"type", "text"} and block["type"] == "text" and type(block["text"]) is str:
            return block["text"]
    return blocks


def _hash(value: Any) -> bytes:
    parts: list[bytes] = []
    _feed(value, parts.append)
    return blake2b(b"".join(parts), digest_size=HASH_BYTES).digest()


def _feed(value: Any, write: Callable[[bytes], None]) -> None:
    """Write a value so that no two values give the same bytes: every text with its length before it."""
    if isinstance(value, dict):
        write(b"{%d:" % len(value))
        for key in sorted(value):
            _feed_text(key, write)
            item = value[key]
            (_feed_text if type(item) is str else _feed)(item, write)
    elif isinstance(value, list):
        write(b"[%d:" % len(value))
        for item in value:
            _feed(item, write)
    elif type(value) is Number or isinstance(value, float):
        digits = canonical(value.encode() if isinstance(value, str) else json.dumps(value).encode())
        write(b"#%d:%b" % (len(digits), digits))
    elif isinstance(value, str):
        _feed_text(value, write)
    else:
        write(repr(value).encode())


def _feed_text(value: str, write: Callable[[bytes], None]) -> None:
    text = value.encode("utf-8", "surrogatepass")
    write(b"s%d:" % len(text))
    write(text)
