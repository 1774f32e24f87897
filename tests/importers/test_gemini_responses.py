from __future__ import annotations

import json
from typing import Any

from tests.importers.reading import (
    as_lines,
    assert_builds,
    assert_grows,
    assert_perturbation,
    read_data,
    read_fixtures,
)

FOLDER = "gemini_cli/google-gemini__gemini-cli/packages/sdk/test-data/"


def chunk(*parts: dict[str, Any], finish: str | None = None, **usage: int) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "usageMetadata": usage}


def line(*chunks: dict[str, Any], method: str = "generateContentStream") -> dict[str, Any]:
    return {"method": method, "response": list(chunks)}


STREAM = line(
    chunk({"text": "BAN"}, promptTokenCount=103, totalTokenCount=103),
    chunk({"text": "ANA"}, finish="STOP", promptTokenCount=71, candidatesTokenCount=3, thoughtsTokenCount=4),
)
USE = line(chunk({"functionCall": {"name": "add", "args": {"a": 5}}}, finish="STOP", promptTokenCount=9))
COUNT = {"method": "countTokens", "response": {"totalTokens": 5}}


def test_a_line_is_a_call_of_all_its_chunks_and_the_last_usage_holds() -> None:
    imported = read_data(as_lines(STREAM, USE, COUNT))
    assert_builds(imported)
    first, second = sorted(imported.of("call"), key=lambda call: call.ordinal)
    assert json.loads(first.completions[0].message) == {
        "role": "model",
        "parts": [{"text": "BAN"}, {"text": "ANA"}],
    }
    assert (first.completions[0].finish_reason, first.status, first.request) == ("STOP", "ok", None)
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (71, 3 + 4)
    assert second.usage.completion_tokens is None
    (tool,) = imported.of("tool_call")
    assert (tool.call_id, tool.name, tool.arguments) == (second.id, "add", '{"a":5}')
    assert [gap.cause for gap in imported.of("gap")] == ["missing_prompt"]
    assert list(imported.notes.not_understood) == ["gemini-responses: countTokens"]


def test_several_candidates_are_several_completions() -> None:
    two = {
        "candidates": [
            {"index": n, "content": {"role": "model", "parts": [{"text": str(n)}]}} for n in range(2)
        ]
    }
    (call,) = read_data(as_lines({"method": "generateContent", "response": two})).of("call")
    assert [json.loads(one.message)["parts"][0]["text"] for one in call.completions] == ["0", "1"]


def test_a_recording_that_grows_and_lines_of_a_wrong_shape() -> None:
    assert_grows([as_lines(one).strip() for one in (STREAM, USE, STREAM)])
    bad = [{"method": "generateContent", "response": 7}, {"method": 1}]
    imported = read_data(as_lines(STREAM, *bad))
    assert (len(imported.of("call")), len(imported.notes.refused)) == (1, 2)


def test_every_field_of_a_recording_leaves_a_trace() -> None:
    assert_perturbation(as_lines(STREAM, USE, COUNT), limit=60)


def test_a_real_recording_has_a_tool_call_in_every_second_answer() -> None:
    imported = read_fixtures(f"{FOLDER}tool-success.json")
    assert_builds(imported)
    assert (len(imported.of("call")), len(imported.of("tool_call"))) == (8, 4)
