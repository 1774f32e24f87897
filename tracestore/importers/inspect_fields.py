"""Fields of Inspect's records -> values of ours: ids, statuses, usage, requests, scores."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from tracestore.importers.guard import number
from tracestore.importers.inspect_scopes import text_of
from tracestore.importers.items import count, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.usage import counted
from tracestore.wire.base import Raw
from tracestore.wire.call import Usage
from tracestore.wire.completion import CompletionBody

_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_LIMITS = {"time": "timeout", "operator": "cancelled"}


def id_of(*parts: object) -> str:
    """An id of these parts, joined by slashes."""
    return safe_id("/".join(map(str, parts)))


def fingerprint(value: Any) -> bytes:
    """Equal for values that are written alike, key order and kinds of number included."""
    return blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def seconds_of(created: Any) -> int:
    """A time as seconds since 1970, for its order only; 0 where it is none."""
    try:
        moment = datetime.fromisoformat(created)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return min(max(int(moment.timestamp()), 0), 2**31 - 2)
    except (TypeError, ValueError, OverflowError):
        return 0


def status_of(
    sample: dict[str, Any], error: Any, limit: dict[str, Any] | None
) -> tuple[str | None, str | None]:
    """(status of the episode, reason of its stop)."""
    if sample.get("invalidation"):
        return "invalid", None
    if error is not None:
        return "infra_error", None
    if limit is not None:
        kind = limit.pop("type", None)
        return _LIMITS.get(str(kind), "budget_exhausted"), f"limit: {kind}"
    return ("ok" if "epoch" in sample else None), None


def request_of(messages: list[Any], model: str | None, event: dict[str, Any]) -> Raw:
    """The request in Inspect's form: config's parameters beside the messages."""
    config = taken(event, "config", dict) or {}
    shared = {name: event.pop(name) for name in ("tools", "tool_choice") if event.get(name) is not None}
    clash = {name: config.pop(name) for name in ("messages", "model", *shared) if name in config}
    if clash:
        event["config"] = clash
    return raw({"messages": messages} | ({"model": model} if model else {}) | shared | config)


def tool_uses(message: Any) -> list[dict[str, Any]]:
    """The tool uses of an assistant message that have an id."""
    uses = message.get("tool_calls") if isinstance(message, dict) else None
    return [
        use
        for use in (uses if isinstance(uses, list) else [])
        if isinstance(use, dict) and isinstance(use.get("id"), str)
    ]


def tool_status(error: dict[str, Any] | None, event: dict[str, Any]) -> str | None:
    """How a tool call ended; None while it runs."""
    kind = None if error is None else error.get("type")
    if kind in ("timeout", "cancelled"):
        return str(kind)
    if error is not None or event.get("failed") is True:
        return "failed"
    return None if event.get("pending") else "ok"


def said_by(body: CompletionBody) -> str | None:
    """The content of an answer where it is plain text."""
    content = None if body.message is None else body.message.value().get("content")
    return content if isinstance(content, str) else None


def body_of(fields: dict[str, Any]) -> CompletionBody:
    """A completion of the fields that are known."""
    return CompletionBody(**{name: one for name, one in fields.items() if one is not None})


def provider_id_of(call: Any) -> str | None:
    """The provider's id of a response."""
    response = call.get("response") if isinstance(call, dict) else None
    return text_of(response, "id") if isinstance(response, dict) else None


def usage_of(output: dict[str, Any], notes: Notes) -> Usage | None:
    """The usage of an output, taken; its total stays."""
    usage = taken(output, "usage", dict)
    if usage is None:
        return None
    total = usage.get("total_tokens")
    prompt, sampled = count(usage, "input_tokens"), count(usage, "output_tokens")
    cached, written = count(usage, "input_tokens_cache_read"), count(usage, "input_tokens_cache_write")
    apart = (cached or 0) + (written or 0)
    if prompt is not None and apart and total == prompt + (sampled or 0) + apart:
        notes.infer("prompt tokens with the cached ones", evidence="total_tokens counts them apart")
        prompt += apart
    cost = number(usage.get("total_cost"))
    if cost is not None:
        del usage["total_cost"]
    given: dict[str, Any] = {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "cache_write_tokens": written,
        "completion_tokens": sampled,
        "reasoning_tokens": count(usage, "reasoning_tokens"),
        "cost_usd": cost,
    }
    if usage:
        output["usage"] = usage
    return counted(**given)


def numbers(name: str, value: Any) -> Iterator[tuple[str, float | None]]:
    """(name, number) of a score's value; None where a part is no number."""
    if isinstance(value, dict):
        for part, one in value.items():
            yield from numbers(f"{name}/{part}", one)
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from numbers(f"{name}/{place}", one)
    elif isinstance(value, str):
        yield name, _LETTERS.get(value)
    else:
        yield name, float(value) if isinstance(value, bool) else number(value)
