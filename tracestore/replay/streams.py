"""A whole response -> the server-sent events that it amounts to, in each dialect.

Where the recording kept its events (Responses), or how they cut the answer, these are sent, in their order.
Else each text goes out as one piece: where the first server cut it was not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tracestore.importers.cuts import Cuts
from tracestore.replay.answers import encoded
from tracestore.replay.pieces import pieces_of
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect

_WHOLE = ("response.completed", "response.incomplete", "response.failed")
"""Events that carry the whole response."""
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
Event = tuple[str | None, Any]
"""(name, data); the name None where the dialect names no events."""


def stream_of(
    body: Mapping[str, Any],
    dialect: Dialect,
    *,
    with_usage: bool = True,
    recorded: Sequence[Mapping[str, Any]] = (),
    cut: Cuts | None = None,
) -> Iterator[bytes]:
    """The events of a response, each as it goes over the wire.

    Args:
        body: `answers.body_of`.
        with_usage: whether a chat stream ends with its usage, as the request asks for. Of a recorded one the
            place of an event that told nothing else stays empty.
        recorded: `answers.recorded_events`.
        cut: `answers.recorded_cuts`.
    """
    pieces = None if cut is None else pieces_of(body, dialect, cut)
    if recorded:
        events = _again(recorded, body)
    elif pieces is not None:
        events = _cut(pieces, body, dialect, with_usage)
    else:
        events = _STREAMS[dialect](body, with_usage)
    for name, data in events:
        if data is None:
            yield b""
            continue
        # A line ends an event's field. In JSON text it can only be white space.
        line = encoded(data).translate(_ONE_LINE)
        yield (b"" if name is None else f"event: {name}\n".encode()) + b"data: " + line + b"\n\n"
    if dialect in ("openai_chat", "text"):
        yield b"data: [DONE]\n\n"


def _cut(
    pieces: Sequence[dict[str, Any]], body: Mapping[str, Any], dialect: Dialect, with_usage: bool
) -> Iterator[Event]:
    is_named, is_told = dialect == "anthropic_messages", False
    for event in pieces:
        if "usage" in event and not is_named:
            is_told = True
            if not with_usage:
                event = {name: one for name, one in event.items() if name != "usage"}
                yield None, event if event["choices"] else None
                continue
        yield event["type"] if is_named else None, event
    if with_usage and not is_told and not is_named and "usage" in body:
        yield from list(_STREAMS[dialect](body, with_usage))[-1:]


def _again(recorded: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> Iterator[Event]:
    for event in recorded:
        is_last = event["type"] in _WHOLE and "response" not in event
        yield event["type"], {**event, "response": body} if is_last else event


def _chat(body: Mapping[str, Any], with_usage: bool) -> Iterator[Event]:
    head = {name: body[name] for name in body if name not in ("choices", "usage", "prompt_token_ids")}
    head["object"] = "chat.completion.chunk"
    prompt = {name: body[name] for name in ("prompt_token_ids",) if name in body}
    for choice in body["choices"]:
        message = choice["message"]
        delta = _delta(message.value() if isinstance(message, Raw) else message)
        given = {name: choice[name] for name in ("logprobs", "token_ids") if name in choice}
        yield (
            None,
            head
            | prompt
            | {"choices": [{"index": choice["index"], "delta": delta, **given, "finish_reason": None}]},
        )
        prompt = {}
    for choice in body["choices"]:
        ended = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
        yield None, head | {"choices": [ended]}
    if with_usage and "usage" in body:
        yield None, head | {"choices": [], "usage": body["usage"]}


def _delta(message: Any) -> Any:
    """A message as one piece of a stream, whose tool calls say where they belong."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    placed = [
        {"index": place, **call} if isinstance(call, dict) else call for place, call in enumerate(calls)
    ]
    return {**message, "tool_calls": placed}


def _text(body: Mapping[str, Any], with_usage: bool) -> Iterator[Event]:
    head = {name: body[name] for name in body if name not in ("choices", "usage")}
    for choice in body["choices"]:
        yield None, head | {"choices": [choice]}
    if with_usage and "usage" in body:
        yield None, head | {"choices": [], "usage": body["usage"]}


def _responses(body: Mapping[str, Any], with_usage: bool) -> Iterator[Event]:
    output = body["output"]
    items = (
        output.value()
        if isinstance(output, Raw)
        else [item.value() if isinstance(item, Raw) else item for item in output]
    )
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    events: list[tuple[str, dict[str, Any]]] = [
        (f"response.{state}", {"response": begun}) for state in ("created", "in_progress")
    ]
    for place, item in enumerate(items):
        events += _item_events(place, item)
    ended = "response.completed" if body["status"] == "completed" else "response.incomplete"
    for number, (kind, data) in enumerate([*events, (ended, {"response": body})]):
        yield kind, {"type": kind, "sequence_number": number, **data}


def _item_events(place: int, item: Any) -> list[tuple[str, dict[str, Any]]]:
    """What an item of the output begins with, what it says, and its end."""
    at = {"output_index": place}
    kind = item.get("type") if isinstance(item, dict) else None
    named = at | ({"item_id": item["id"]} if isinstance(item, dict) and "id" in item else {})
    said: list[tuple[str, dict[str, Any]]] = []
    begun = item
    if kind == "message" and isinstance(item.get("content"), list):
        begun = {**item, "status": "in_progress", "content": []}
        for number, part in enumerate(item["content"]):
            said += _part_events({**named, "content_index": number}, part)
    elif kind == "function_call":
        begun = {**item, "status": "in_progress", "arguments": ""}
        arguments = item.get("arguments", "")
        said = [
            ("response.function_call_arguments.delta", {**named, "delta": arguments}),
            (
                "response.function_call_arguments.done",
                {**named, "name": item.get("name"), "arguments": arguments},
            ),
        ]
    return [
        ("response.output_item.added", {**at, "item": begun}),
        *said,
        ("response.output_item.done", {**at, "item": item}),
    ]


def _part_events(at: dict[str, Any], part: Any) -> list[tuple[str, dict[str, Any]]]:
    is_text = isinstance(part, dict) and part.get("type") == "output_text"
    begun = {**part, "text": ""} if is_text else part
    found = [("response.content_part.added", {**at, "part": begun})]
    if is_text:
        found += [
            ("response.output_text.delta", {**at, "delta": part.get("text", ""), "logprobs": []}),
            ("response.output_text.done", {**at, "text": part.get("text", ""), "logprobs": []}),
        ]
    return [*found, ("response.content_part.done", {**at, "part": part})]


def _anthropic(body: Mapping[str, Any], with_usage: bool) -> Iterator[Event]:
    usage = body.get("usage") or {}
    begun = {**body, "content": [], "stop_reason": None, "stop_sequence": None}
    yield _named("message_start", message={**begun, "usage": {**usage, "output_tokens": 0}})
    content = body["content"]
    for place, block in enumerate(content.value() if isinstance(content, Raw) else content):
        empty, deltas = _pieces(block)
        yield _named("content_block_start", index=place, content_block=empty)
        for delta in deltas:
            yield _named("content_block_delta", index=place, delta=delta)
        yield _named("content_block_stop", index=place)
    ended = {name: body.get(name) for name in ("stop_reason", "stop_sequence")}
    yield _named("message_delta", delta=ended, usage={"output_tokens": usage.get("output_tokens", 0)})
    yield _named("message_stop")


def _named(kind: str, **data: Any) -> Event:
    return kind, {"type": kind, **data}


def _pieces(block: Any) -> tuple[Any, list[dict[str, Any]]]:
    """A block as it begins, and the deltas that fill it."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
        if "signature" in block:
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    if kind in ("tool_use", "server_tool_use"):
        given = block["input"]
        text = given if isinstance(given, str) else encoded(given).decode("utf-8")  # a text broke off
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    return block, []


_STREAMS: Mapping[Dialect, Callable[[Mapping[str, Any], bool], Iterator[Event]]] = {
    "openai_chat": _chat,
    "openai_responses": _responses,
    "anthropic_messages": _anthropic,
    "text": _text,
}
