"""What recordings of HTTP exchanges and provider answers hold, from the events made of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.importers.reading import Imported


def event_types(imported: Imported) -> dict[str, int]:
    rows = {
        name.partition("/")[2]: num
        for name, num in imported.notes.rows.items()
        if name.startswith("stream event/")
    }
    return {name: num for name, num in rows.items() if num and name != "unread"}


def http(call: Any) -> dict[str, Any]:
    return dict(call.meta.value()["http"]) if call.meta is not None else {}


def is_streamed(call: Any) -> bool:
    kinds = http(call).get("response_headers", {})
    kind = next((value for name, value in kinds.items() if name.lower() == "content-type"), "")
    return "event-stream" in str(kind)


def messages(call: Any) -> list[Any]:
    return [body.message.value() for body in call.completions or () if body.message is not None]


def num_items(call: Any) -> int:
    """Choices of a chat completion, blocks of an Anthropic message, items of a response."""
    found = messages(call)
    if call.dialect == "anthropic_messages":
        return sum(len(message["content"]) for message in found)
    if call.dialect == "openai_responses":
        return sum(len(message) for message in found)
    return len(found)


def stated_usage(call: Any) -> dict[str, int]:
    """Usage as the provider states it: Anthropic's parts of the prompt, Gemini's of the answer, totals."""
    usage = call.usage
    if usage is None:
        return {}
    if call.dialect == "anthropic_messages":
        read = usage.prompt_tokens - (usage.cached_tokens or 0) - (usage.cache_write_tokens or 0)
        stated = {
            "input_tokens": read,
            "output_tokens": usage.completion_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
        }
        return {name: value for name, value in stated.items() if value is not None}
    names = (
        ("input_tokens", "output_tokens")
        if call.dialect == "openai_responses"
        else ("prompt_tokens", "completion_tokens")
    )
    both = (usage.prompt_tokens, usage.completion_tokens)
    if "generateContent" in str(call.endpoint):
        said = usage.completion_tokens - (usage.reasoning_tokens or 0)
        return {
            "promptTokenCount": usage.prompt_tokens,
            "candidatesTokenCount": said,
            "thoughtsTokenCount": usage.reasoning_tokens,
            "totalTokenCount": sum(both),
        }
    return dict(zip(names, both, strict=True)) | {"total_tokens": sum(both)}


def total(parts: Iterator[dict[str, int]]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for part in parts:
        counted.update(part)
    return dict(counted)


def host(call: Any) -> str:
    return str(urlsplit(call.endpoint).hostname).split(".")[-2]


def of_a_stream(imported: Imported) -> dict[str, Any]:
    """The facts of a file that is one stream."""
    (call,) = imported.of("call")
    types = event_types(imported)
    return {
        "events": sum(types.values()),
        "event_types": types,
        "unparsed_lines": imported.notes.rows["stream event/unread"],
        "last_usage": stated_usage(call),
    }


def num_received(calls: list[Any], text: str) -> int:
    """How often a piece of JSON stands in what came back: answers, and what is left of responses."""
    spans = [
        span for call in calls for span in (call.meta, *(body.message for body in call.completions or ()))
    ]
    return sum(json.dumps(span.value()).count(text) for span in spans if span is not None)


def num_sent(calls: list[Any], text: str) -> int:
    """The same in requests."""
    return sum(json.dumps(call.request.value()).count(text) for call in calls if call.request is not None)
