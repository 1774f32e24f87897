"""A model's answer by itself (a stream, its chunks, a response body) -> a call without its request.

    event: message_start            server-sent events, as they came over the wire
    data: {...}

    {"type": "message_start", ...}  the data of the events, one a line
    {"choices": [{"delta": ...}]}   chunks of a chat completion, one a line
    {"type": "message", "content"}  a whole answer, as Anthropic, OpenAI Chat or OpenAI Responses give it

A file is one answer, unless each of its lines is a whole one. The requests are not there, which is stated as
a gap. A stream that ends early is a call that was aborted, with what had come.

Ids are made of the whole content, since answers of tests often share the provider's: a stream that was read
while it was still being written is another one when it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tracestore.importers.documents import MAX_RECORD_BYTES, records
from tracestore.importers.exchanges import Exchange, conversation
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, guarded
from tracestore.importers.items import Item
from tracestore.importers.notes import Notes
from tracestore.importers.sources import DAMAGED, Source
from tracestore.importers.streams import streamed, whole

_STREAM_STARTS = ("message_start", "response.created", "content_block_start")
_EVENTS = re.compile(rb"(?:\s|(?::|event:|id:|retry:)[^\r\n]*[\r\n])*data:\s*[{\[]")
""""data:" alone may begin any YAML."""


def _recognises(head: Head) -> bool:
    if _EVENTS.match(head.data.removeprefix(b"\xef\xbb\xbf")):
        return True
    first = head.first
    return isinstance(first, dict) and (_is_chunk(first) or _is_answer(first))


def _is_chunk(value: dict[str, Any]) -> bool:
    choices = value.get("choices")
    is_delta = isinstance(choices, list) and all(isinstance(one, dict) and "delta" in one for one in choices)
    is_chat = is_delta and (bool(choices) or str(value.get("object")).endswith("chunk"))
    candidates = value.get("candidates")
    is_gemini = isinstance(candidates, list) and all("finishReason" not in as_dict(one) for one in candidates)
    return is_chat or is_gemini or value.get("type") in _STREAM_STARTS


def _is_answer(value: dict[str, Any]) -> bool:
    return (
        "messages" not in value
        and "request" not in value
        and whole(value) is not None
        and "error" not in value
    )


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """An episode with its calls for each source."""
    for source in sources:
        exchanges = [Exchange(response=body) for body in _bodies(source, notes)]
        notes.rows["provider-answers/answer"] += len(exchanges)
        yield from guarded(conversation(exchanges, prefix="answer", notes=notes), at=source.name, notes=notes)


def _bodies(source: Source, notes: Notes) -> Iterator[Any]:
    """The answers in a source: whole ones, or the text of its stream."""
    if source.head().lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
        text = _text(source, notes)
        if text is not None:
            yield text
        return
    chunks: list[str] = []
    for record in records(source, notes=notes):
        value = record.value
        if isinstance(value, dict) and not chunks and not _is_chunk(value) and _is_answer(value):
            yield value
        else:
            chunks.append(record.text.decode("utf-8"))
    if chunks and streamed(chunks) is None:
        notes.leftover("provider-answers: records that make no answer", "\n".join(chunks), at=source.name)
    elif chunks:
        yield "\n".join(f"data: {chunk}\n" for chunk in chunks)


def _text(source: Source, notes: Notes) -> str | None:
    try:
        with source.open() as stream:
            data = stream.read(MAX_RECORD_BYTES + 1)
    except DAMAGED as error:
        notes.refuse(source.name, f"damaged: {error}")
        return None
    if len(data) > MAX_RECORD_BYTES:
        notes.refuse(source.name, f"longer than {MAX_RECORD_BYTES:,} bytes")
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        notes.refuse(source.name, f"no UTF-8 at byte {error.start}: {error.reason}")
        return None


FORMAT = Format(
    "provider-answers", "answers of model providers: streams, chunks, response bodies", _recognises, read
)
