"""A request -> one that makes a server return token ids and logprobs; its answer -> without them.

    vLLM      return_token_ids: prompt_token_ids, and token_ids of each choice
    SGLang    return_input_ids_in_sglext, return_output_ids_in_sglext: sglext {input_ids, output_ids};
              return_token_ids too, but a streamed chat with it is refused
    both      logprobs: the logprob of each sampled token, raw or processed as the server is set

Only bytes that must change do. A field that the harness sent itself with a value of its own stays, and so
does what it brings. In the answer the fields that were asked for in secret become `null`, as both servers
and OpenAI write them when nobody asked; `sglext` loses what was added to it. A chunk of a stream that came
for their sake alone is left out.

Servers that know none of the fields ignore them or refuse the request: `LADDER` says what to try next. In
the end the request goes out as the harness wrote it.

Sources: vLLM's and SGLang's protocols for OpenAI Chat Completions and Completions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracestore.graph.spans import elements, members
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect

_VLLM: Mapping[str, bytes] = {"return_token_ids": b"true"}
_SGLANG: Mapping[str, bytes] = {"return_input_ids_in_sglext": b"true", "return_output_ids_in_sglext": b"true"}
LADDER: Mapping[Dialect, tuple[Mapping[str, bytes], ...]] = {
    "openai_chat": ({"logprobs": b"true", **_VLLM, **_SGLANG}, {"logprobs": b"true", **_SGLANG}, {}),
    "text": ({"logprobs": b"1", **_VLLM}, {}),
}
"""What to add to a request of a dialect: first this, after a refusal that, in the end nothing."""
REFUSALS = (400, 422)
"""Statuses by which servers refuse fields that they do not know."""
_UNSET = (b"null", b"false", b"0")
_NULLED = {
    "logprobs": ("logprobs",),
    "return_token_ids": ("token_ids", "prompt_token_ids"),
}
"""Field of a request -> fields of a choice that it brings."""
_EXTENDED = {"return_input_ids_in_sglext": "input_ids", "return_output_ids_in_sglext": "output_ids"}
_COMMA = re.compile(rb"\s*,\s*")
_MAX_EVENT_BYTES = 16 * 2**20

Edit = tuple[int, int, bytes]
"""Start and end of what is replaced, and by what."""


def injected(body: bytes, wanted: Mapping[str, bytes]) -> tuple[bytes, dict[str, Any]]:
    """(a request body with the wanted fields, those that were added).

    A body that is no JSON object stays as it is.

    Example: b'{"model":"m"}', {"logprobs": b"true"} -> b'{"model":"m","logprobs":true}', {"logprobs": True}
    """
    if not wanted or not _is_object(body):
        return body, {}
    fields = members(body)
    edits: list[Edit] = []
    added: dict[str, Any] = {}
    more = b""
    for name, value in wanted.items():
        place = fields.get(name)
        if place is None:
            more += b',"' + name.encode("ascii") + b'":' + value
        elif body[slice(*place)] in _UNSET:
            edits.append((*place, value))
        else:
            continue
        added[name] = json.loads(value)
    if more:
        end = max((end for _, end in fields.values()), default=body.index(b"{") + 1)
        edits.append((end, end, more if fields else more[1:]))
    return _edited(body, edits), added


def is_streamed(body: bytes) -> bool:
    """Whether a request asks for a stream."""
    fields = members(body) if _is_object(body) else {}
    return "stream" in fields and body[slice(*fields["stream"])] == b"true"


def stripped(body: bytes, added: Mapping[str, Any]) -> bytes:
    """A response body without what the added fields brought."""
    return _edited(body, list(_edits(body, added))) if _is_object(body) else body


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def _edited(text: bytes, edits: Sequence[Edit]) -> bytes:
    """A text with parts of it replaced; where one lies inside another, the outer one holds."""
    parts, done = [], 0
    for start, end, by in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
        if start >= done:
            parts += [text[done:start], by]
            done = end
    return b"".join([*parts, text[done:]])


def _edits(body: bytes, added: Mapping[str, Any]) -> Iterator[Edit]:
    fields = members(body)
    names = [name for asked in added for name in _NULLED.get(asked, ())]
    if "return_token_ids" in added:
        yield from _nulled(body, fields, ("prompt_token_ids",))
    if "choices" in fields:
        start, end = fields["choices"]
        for first, last in elements(body[start:end]):
            choice = body[start + first : start + last]
            for low, high, by in _nulled(choice, members(choice), names):
                yield start + first + low, start + first + high, by
    extended = [inner for asked, inner in _EXTENDED.items() if asked in added]
    if extended and "sglext" in fields:
        yield from _shortened(body, fields, extended)


def _nulled(text: bytes, fields: Mapping[str, tuple[int, int]], names: Sequence[str]) -> Iterator[Edit]:
    for name in names:
        if name in fields:
            yield (*fields[name], b"null")


def _shortened(body: bytes, fields: Mapping[str, tuple[int, int]], names: Sequence[str]) -> Iterator[Edit]:
    """Take members out of `sglext`, and itself where nothing else is in it."""
    start, end = fields["sglext"]
    inner = members(body[start:end])
    if inner and not inner.keys() - set(names):
        yield _removal(body, fields, "sglext")
        return
    kept = [
        (name, body[start + low : start + high]) for name, (low, high) in inner.items() if name not in names
    ]
    if len(kept) < len(inner):
        text = b",".join(Raw.of(name) + b":" + value for name, value in kept)
        yield start, end, b"{" + text + b"}"


def _removal(body: bytes, fields: Mapping[str, tuple[int, int]], name: str) -> Edit:
    """A member with one of the commas around it."""
    ends = [end for _, end in fields.values()]
    place = list(fields).index(name)
    if place > 0:
        return ends[place - 1], ends[place], b""
    comma = _COMMA.match(body, ends[0])
    return body.index(b"{") + 1, ends[0] if comma is None else comma.end(), b""


# --- Streams ---------------------------------------------------------------------------------------

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\r?\n|\r\r")
_DATA = re.compile(rb"(?:\A|(?<=[\r\n]))data: ?([^\r\n]*)")


class StrippedStream:
    """Server-sent events without what the added fields brought, event by event as they become whole."""

    def __init__(self, added: Mapping[str, Any]) -> None:
        self._added = added
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What may be passed on after this chunk."""
        self._held += chunk
        passed: list[bytes] = []
        done = 0
        for match in _BLANK_LINE.finditer(self._held):
            passed.append(self._event(self._held[done : match.end()]))
            done = match.end()
        self._held = self._held[done:]
        if len(self._held) > _MAX_EVENT_BYTES:
            passed.append(self.end())
        return b"".join(passed)

    def end(self) -> bytes:
        """What is left when the stream has ended: an event that was cut."""
        held, self._held = self._held, b""
        return held

    def _event(self, event: bytes) -> bytes:
        found = list(_DATA.finditer(event))
        if len(found) != 1 or not _is_object(found[0][1]):
            return event
        data = found[0][1]
        text = stripped(data, self._added)
        if text == data:
            return event
        if _says_nothing(text):
            return b""
        start, end = found[0].span(1)
        return event[:start] + text + event[end:]


def _says_nothing(chunk: bytes) -> bool:
    """Whether a chunk has no delta, no end, no usage, and nothing else that another would not have."""
    value = json.loads(chunk)
    choices = value.get("choices")
    if not isinstance(choices, list) or value.get("usage") or "sglext" in value or value.get("error"):
        return False
    return all(_is_empty(choice) for choice in choices)


def _is_empty(choice: Any) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
        return False
    delta = choice.get("delta")
    return delta == {} or (delta is None and choice.get("text") == "")
