"""Recorded answers of Gemini CLI (JSON lines) -> an episode of calls without their requests.

Gemini CLI records its model's answers with `--record-responses` and plays them back with
`--fake-responses`. A line is `{method, response}`:

    generateContent         the response: {candidates, usageMetadata, modelVersion?, responseId?}
    generateContentStream   a list of such responses, the chunks of one answer
    countTokens, embedContent   no answers of a model: noted, and no call

- A line is one model call. Its message is the content of its candidate, the parts of all chunks in their
  order; chunks are not joined into longer texts. A candidate is a completion.
- Usage is that of the last chunk that states one; earlier chunks state what was known by then (prompt counts
  of a first chunk are estimates). Reasoning (`thoughtsTokenCount`) is part of the completion's tokens.
- No request is in the file, and whether two lines belong to one conversation is not said: each call stands
  alone, the prompts are a gap. Nor are there times.
- Ids are made of content: an episode of its first line, a call of the lines up to its own. Recordings that
  begin alike share those calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracestore.importers import usage
from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded
from tracestore.importers.items import Item, content_id, gap_of_main, left, made, raw
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.tool_call import ToolCall

_ANSWERS = frozenset({"generateContent", "generateContentStream"})


def _is_line(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("method"), str) and "response" in value


def _recognises(head: Head) -> bool:
    return _is_line(head.first) and not {"request", "url"} & head.first.keys()


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """An episode, its calls and tool calls for each source."""
    for source in sources:
        episode_id = chain = ""
        ordinal = 0
        for record in records(source, notes=notes):
            if not _is_line(record.value):
                notes.refuse(record.at, "no recorded answer: it has a method and a response")
                continue
            notes.rows[f"gemini-responses/{record.value['method']}"] += 1
            chain = content_id("gemini", [chain, record.value])
            if not episode_id:
                episode_id = chain
                yield from _episode(episode_id)
            if record.value["method"] in _ANSWERS:
                items = _call(record, episode_id, f"{episode_id}/{chain[7:]}", ordinal, notes)
                yield from guarded(items, at=record.at, notes=notes)
                ordinal += 1
            else:
                name = f"gemini-responses: {record.value['method']}"
                notes.leftover(name, record.value, at=record.at)


def _episode(episode_id: str) -> Iterator[Item]:
    yield made(Episode, id=episode_id)
    yield made(Agent, id=f"{episode_id}/main", episode_id=episode_id, role="main", depth=0)
    yield gap_of_main(episode_id, "missing_prompt", "answers are recorded without their requests")


def _call(record: Record, episode_id: str, call_id: str, ordinal: int, notes: Notes) -> Iterator[Item]:
    line = dict(record.value)
    response = line.pop("response")
    chunks = [dict(chunk) for chunk in (response if isinstance(response, list) else [response])]
    answers: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        chunk["candidates"] = [_joined(candidate, answers) for candidate in as_list(chunk.get("candidates"))]
    counted = _usage(chunks)
    yield made(
        Call,
        id=call_id,
        episode_id=episode_id,
        agent_id=f"{episode_id}/main",
        ordinal=ordinal,
        model=_last(chunks, "modelVersion"),
        provider_id=_last(chunks, "responseId"),
        endpoint=line["method"],
        completions=tuple(_completion(answer) for _, answer in sorted(answers.items())) or None,
        usage=counted,
        status="ok" if any(answer["reason"] for answer in answers.values()) else None,
        meta=left("gemini_responses", {**line, "chunks": chunks}),
    )
    for index, answer in sorted(answers.items()):
        uses = [one["functionCall"] for one in answer["parts"] if isinstance(one.get("functionCall"), dict)]
        for place, use in enumerate(uses):
            yield made(
                ToolCall,
                id=f"{call_id}/tool/{index}.{place}",
                episode_id=episode_id,
                call_id=call_id,
                completion=index,
                tool_call_id=use["id"] if isinstance(use.get("id"), str) else None,
                name=use["name"] if isinstance(use.get("name"), str) else None,
                arguments=str(raw(use["args"]), "ascii") if "args" in use else None,
            )


def _joined(candidate: dict[str, Any], answers: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """What is left of a candidate when its parts have gone to its answer."""
    rest = dict(candidate)
    index = rest.get("index", 0)
    answer = answers.setdefault(index if isinstance(index, int) else 0, {"parts": [], "reason": None})
    content = dict(as_dict(rest.pop("content", None)))
    parts = content.pop("parts", None)
    if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
        answer["parts"] += parts
        rest["num_parts"] = len(parts)
    elif parts is not None:
        content["parts"] = parts
    if isinstance(rest.get("finishReason"), str):
        answer["reason"] = rest["finishReason"]
    answer["role"] = content.get("role")
    return {**rest, **({"content": content} if content else {})}


def _completion(answer: dict[str, Any]) -> CompletionBody:
    fields: dict[str, Any] = {
        "message": raw({"role": answer["role"] or "model", "parts": answer["parts"]}),
        "finish_reason": answer["reason"],
    }
    return CompletionBody(**{name: one for name, one in fields.items() if one is not None})


def _usage(chunks: list[dict[str, Any]]) -> Usage | None:
    """The usage of the last chunk that states one, taken out of it."""
    chunk = next((one for one in reversed(chunks) if isinstance(one.get("usageMetadata"), dict)), None)
    if chunk is None:
        return None
    found, chunk["usageMetadata"] = usage.of_gemini(chunk["usageMetadata"])
    return found


def _last(chunks: list[dict[str, Any]], name: str) -> str | None:
    told = [chunk[name] for chunk in chunks if isinstance(chunk.get(name), str) and chunk[name]]
    return told[-1] if told else None


FORMAT = Format("gemini-responses", "recorded answers of Gemini CLI", _recognises, read)
