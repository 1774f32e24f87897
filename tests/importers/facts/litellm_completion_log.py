from __future__ import annotations

from collections import Counter
from typing import Any

from tests.importers.reading import Imported


def facts(imported: Imported) -> dict[str, Any]:
    (call,) = imported.of("call")
    request = call.request.value()
    return {
        "messages": len(request["messages"]),
        "roles": dict(Counter(message["role"] for message in request["messages"])),
        "tools": len(request.get("tools") or ()),
        "model": call.model,
        "choices": len(call.completions),
        "response_tool_calls": len(imported.of("tool_call")),
        "usage": _stated(call),
        "cost": call.usage.cost_usd,
    }


def _stated(call: Any) -> dict[str, int]:
    """Usage under the names of Anthropic or of DeepSeek, which counts its misses too: those are in meta."""
    usage = call.usage
    left = call.meta.value()["chat"].get("answer", {}).get("usage", {})
    cache = {
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
    }
    if "prompt_cache_miss_tokens" in left:
        cache = {
            "prompt_cache_hit_tokens": usage.cached_tokens,
            "prompt_cache_miss_tokens": left["prompt_cache_miss_tokens"],
        }
    return {
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **cache,
    }


NOT_OURS = {"keys": "names of the log's own fields; those with no place of ours are in the call's meta"}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}
