"""What a provider counts of a call -> `Usage` in our terms, and what of it has no place there.

    OpenAI       prompt_tokens, completion_tokens (Responses: input_tokens, output_tokens); cached tokens are
                 a part of the prompt's, reasoning a part of the completion's, both under `..._details`
    LiteLLM      the same, and the providers' own names for cached tokens beside them; harnesses that copy
                 them write cache_read_tokens, cache_write_tokens and reasoning_tokens
    Anthropic    input_tokens, cache_creation_input_tokens and cache_read_input_tokens are disjoint: the model
                 read their sum. Reasoning is output_tokens_details.thinking_tokens
    Gemini       thoughtsTokenCount is counted beside candidatesTokenCount; we count it in

Source: the providers' API references.
"""

from __future__ import annotations

import copy
from typing import Any

from tracestore.importers.guard import number
from tracestore.importers.items import count
from tracestore.wire.call import Usage

Counted = tuple[Usage | None, dict[str, Any]]
"""(usage, what has no place in it). No usage where nothing is counted."""

_READ_FROM_CACHE = ("cache_read_input_tokens", "cache_read_tokens", "prompt_cache_hit_tokens")
_WRITTEN_TO_CACHE = ("cache_creation_input_tokens", "cache_write_tokens")
_OF_PROMPT = ("prompt_tokens", "input_tokens")
_OF_COMPLETION = ("completion_tokens", "output_tokens")


def counted(**counts: Any) -> Usage | None:
    """The usage of the counts that are known; None where none is."""
    given = {name: one for name, one in counts.items() if one is not None}
    return Usage(**given) if given else None


def of(value: Any, *, cost: Any = None) -> Counted:
    """The usage in an OpenAI, LiteLLM or Anthropic `usage`, which stays as it is.

    Args:
        cost: dollars, where something beside the usage states them.
    """
    given = copy.deepcopy(value) if isinstance(value, dict) else {}
    is_openai = "input_tokens_details" in given or "total_tokens" in given
    fields = _openai(given) if is_openai or given.get("input_tokens") is None else _anthropic(given)
    found = counted(**fields, cost_usd=number(cost))
    if not isinstance(value, dict):
        return found, {} if value is None else {"value": value}
    return found, {name: one for name, one in given.items() if one not in (None, {})}


def of_gemini(value: Any) -> Counted:
    """The usage in Gemini's `usageMetadata`."""
    if not isinstance(value, dict):
        return None, {} if value is None else {"value": value}
    given = dict(value)
    said, thought = count(given, "candidatesTokenCount"), count(given, "thoughtsTokenCount")
    fields = {
        "prompt_tokens": count(given, "promptTokenCount"),
        "cached_tokens": count(given, "cachedContentTokenCount"),
        "completion_tokens": None if said is None and thought is None else (said or 0) + (thought or 0),
        "reasoning_tokens": thought,
    }
    _drop_sum(given, "totalTokenCount", fields)
    return counted(**fields), given


def _anthropic(given: dict[str, Any]) -> dict[str, int | None]:
    read, cached = count(given, "input_tokens"), count(given, "cache_read_input_tokens")
    written = count(given, "cache_creation_input_tokens")
    return {
        "prompt_tokens": None if read is None else read + (cached or 0) + (written or 0),
        "cached_tokens": cached,
        "cache_write_tokens": written,
        "completion_tokens": count(given, "output_tokens"),
        "reasoning_tokens": _detail(given, "output_tokens", "thinking_tokens"),
    }


def _openai(given: dict[str, Any]) -> dict[str, int | None]:
    cached = _of_details(given, _OF_PROMPT, "cached_tokens")
    thought = _of_details(given, _OF_COMPLETION, "reasoning_tokens")
    fields = {
        "prompt_tokens": _first(given, *_OF_PROMPT),
        "cached_tokens": _agreed(given, cached, _READ_FROM_CACHE),
        "cache_write_tokens": _agreed(given, None, _WRITTEN_TO_CACHE),
        "completion_tokens": _first(given, *_OF_COMPLETION),
        "reasoning_tokens": _agreed(given, thought, ("reasoning_tokens",)),
    }
    _drop_sum(given, "total_tokens", fields)
    return fields


def _drop_sum(given: dict[str, Any], name: str, fields: dict[str, int | None]) -> None:
    """Take out a total that says nothing that the parts do not."""
    parts = [one for one in (fields["prompt_tokens"], fields["completion_tokens"]) if one is not None]
    if parts and type(given.get(name)) is int and given[name] == sum(parts):
        del given[name]


def _agreed(given: dict[str, Any], known: int | None, names: tuple[str, ...]) -> int | None:
    """A count that has several names: other names that say the same are no more than that."""
    for name in names:
        if known is None:
            known = count(given, name)
        elif type(given.get(name)) is int and given[name] == known:
            del given[name]
    return known


def _first(given: dict[str, Any], *names: str) -> int | None:
    return next((found for name in names if (found := count(given, name)) is not None), None)


def _of_details(given: dict[str, Any], names: tuple[str, ...], part: str) -> int | None:
    return next((found for name in names if (found := _detail(given, name, part)) is not None), None)


def _detail(given: dict[str, Any], name: str, part: str) -> int | None:
    details = given.get(f"{name}_details")
    return count(details, part) if isinstance(details, dict) else None
