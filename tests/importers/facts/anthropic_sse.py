from __future__ import annotations

from typing import Any

from tests.importers.facts import _exchanges as x

facts = x.of_a_stream

NOT_OURS: dict[str, str] = {}
_BOTH = "the last event counts the output alone; the input was counted by the first, and both are the call's"
_FOLDER = "cassettes/anthropics__anthropic-sdk-python/tests/lib/streaming/fixtures/"
_CACHE = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {
    (f"{_FOLDER}{name}_response.txt", "last_usage"): (
        {"input_tokens": read, "output_tokens": written} | cache,
        _BOTH,
    )
    for name, read, written, cache in (
        ("basic", 11, 6, {}),
        ("compaction", 30, 8, {}),
        ("fallback_credit", 25, 8, {}),
        ("fallback", 25, 8, {}),
        ("incomplete_partial_json", 450, 124, _CACHE),
        ("refusal", 20, 0, {}),
        ("tool_use", 377, 65, _CACHE),
    )
}
