from __future__ import annotations

from typing import Any

from tests.importers.facts import _exchanges as x

facts = x.of_a_stream

NOT_OURS: dict[str, str] = {}
_FOLDER = "cassettes/vercel__ai/packages/"
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {
    (f"{_FOLDER}anthropic/src/__fixtures__/spliced-message-start.chunks.txt", "last_usage"): (
        {"input_tokens": 17, "output_tokens": 65},
        "the last event counts the output alone; the input was counted by the first",
    ),
    (f"{_FOLDER}deepseek/src/chat/__fixtures__/deepseek-tool-call.chunks.txt", "last_usage"): (
        {"prompt_tokens": 339, "completion_tokens": 83, "total_tokens": 422},
        "hits of the prompt cache are cached_tokens; the misses are the rest, and stay in meta",
    ),
}
