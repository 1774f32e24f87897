"""A recorded call -> the body that answers it again, in the dialect in which it was asked.

What the call keeps of its response is put back where the dialect has it: messages as they were given, byte
for byte, ids and logprobs as vLLM names them, counts, and what else the response said (`meta.http.response`).
`importers.streams` reads of the body what was recorded of the first one; a law in the tests holds that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, count
from typing import Any

from tracestore.graph.spans import first_byte, members
from tracestore.importers import cuts
from tracestore.importers.cuts import Cuts
from tracestore.replay.tape import NotReplayable, Recorded
from tracestore.wire.base import Raw
from tracestore.wire.call import Call, Dialect, Usage
from tracestore.wire.completion import CompletionFields


def body_of(recorded: Recorded) -> dict[str, Any]:
    """The whole response; a message in it is `Raw` where it was kept.

    Raises:
        NotReplayable: the call failed, broke off, or its answer was not recorded.
    """
    call, completions = recorded.call, recorded.completions
    if call.error is not None and not completions:
        raise NotReplayable(
            call_id=call.id,
            error=call.error.message,
            hint="no answer came when it was recorded; the error is all there is to send again",
        )
    if not completions or any(one.message is None for one in completions):
        raise NotReplayable(call_id=call.id, hint="its answer was not recorded")
    if any(one.partial for one in completions):
        raise NotReplayable(
            call_id=call.id, hint="its stream broke off: what had come is in the store, a whole answer is not"
        )
    rest = _rest(call)
    return {
        **_BODIES[call.dialect](call, completions),
        **(_unsaid(call) if rest is None else _said(rest)),
    }


def whole_of(recorded: Recorded) -> bytes:
    """The response as it goes over the wire at once.

    Raises:
        NotReplayable: as `body_of`; or the arguments of a tool use broke off, and this dialect has them as a
            value: only a stream can send them again.
    """
    body = body_of(recorded)
    content = body.get("content") if recorded.call.dialect == "anthropic_messages" else None
    for block in content.value() if isinstance(content, Raw) else content or []:
        if isinstance(block, dict) and isinstance(block.get("input"), str):
            raise NotReplayable(
                call_id=recorded.call.id,
                tool=block.get("name"),
                arguments=block["input"],
                hint="its tool arguments broke off and are no value; ask for a stream: there they are a text",
            )
    return encoded(body)


def error_of(recorded: Recorded) -> tuple[int, dict[str, Any]] | None:
    """Status and body of a call that the server refused; None for any other."""
    call, error = recorded.call, recorded.call.error
    if error is None or error.status_code is None or recorded.completions:
        return None
    said = {"type": error.type, "message": error.message}
    if call.dialect == "anthropic_messages":
        return error.status_code, {"type": "error", "error": said}
    return error.status_code, {"error": said}


def encoded(body: Any) -> bytes:
    """JSON text; `Raw` stands in it as it is."""
    for number in count():
        spans: list[Raw] = []
        mark = f"\0{number}\0"
        # All is written at once, with a mark where a span stands; one that a text holds as well is no mark.
        text = json.JSONEncoder(
            separators=(",", ":"), check_circular=False, default=partial(_marked, spans, mark)
        ).encode(body)
        parts = text.encode("ascii").split(json.dumps(mark).encode("ascii"))
        if len(parts) == len(spans) + 1:
            break
    return b"".join(chain.from_iterable(zip(parts, [*spans, b""], strict=True)))


def _marked(spans: list[Raw], mark: str, value: Any) -> str:
    if not isinstance(value, Raw):
        raise TypeError(f"{type(value).__name__} is no JSON")
    spans.append(value)
    return mark


def _said(rest: Mapping[str, Any]) -> dict[str, Any]:
    """What a response said beside what the call has fields for; of a stream, what every chunk said."""
    placed = ("object", "choices", "usage", "events", "chunks", "every_chunk")
    every = rest.get("every_chunk")
    said = {**(every if isinstance(every, dict) else {}), **rest}
    return {name: value for name, value in said.items() if name not in placed}


def _rest(call: Call) -> dict[str, Any] | None:
    """What the recording kept of a response beside the call's fields; None where it was recorded by parts."""
    meta = call.meta.value() if call.meta is not None else None
    http = meta.get("http") if isinstance(meta, dict) else None
    if not isinstance(http, dict):
        return None
    rest = http.get("response")
    return rest if isinstance(rest, dict) else {}


def recorded_cuts(call: Call) -> Cuts | None:
    """How the stream of a call was cut; None where that was not kept."""
    return cuts.read(_stream(call))[0]


def times_of(call: Call, *, num_events: int) -> list[float]:
    """When each of so many events is sent, in seconds after the request, as when they were recorded; 0 of all
    where it was not kept of each."""
    found = cuts.read(_stream(call))[1]
    return [0.0] * num_events if found is None or len(found) != num_events else [ms / 1000 for ms in found]


def _stream(call: Call) -> Any:
    meta = call.meta.value() if call.meta is not None else None
    return meta.get(cuts.KEPT_AS) if isinstance(meta, dict) else None


def recorded_events(call: Call) -> list[dict[str, Any]]:
    """The events of a Responses stream as they came, where the recording kept them; the last one without the
    response that it carried."""
    events = (_rest(call) or {}).get("events") if call.dialect == "openai_responses" else None
    if not isinstance(events, list):
        return []
    return events if all(isinstance(one, dict) and "type" in one for one in events) else []


def _unsaid(call: Call) -> dict[str, Any]:
    """Fields that a client of the dialect may insist on, of a call that was recorded by its parts."""
    at = (call.started_at or 0) // 10**9
    if call.dialect == "anthropic_messages":
        return {"stop_sequence": None}
    if call.dialect == "openai_responses":
        more: dict[str, Any] = {
            "incomplete_details": None,
            "error": None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        return {"created_at": at, **more}
    return {"created": at}


def _chat(call: Call, completions: Sequence[CompletionFields]) -> dict[str, Any]:
    choices = [
        {"index": index, "message": one.message, "finish_reason": one.finish_reason or "stop"} | _sampled(one)
        for index, one in enumerate(completions)
    ]
    return _head(call, "chatcmpl", "chat.completion") | {
        "choices": choices,
        **_counts(call.usage, _openai_usage),
        **_prompt(call),
    }


def _text(call: Call, completions: Sequence[CompletionFields]) -> dict[str, Any]:
    choices = [
        {"index": index, "text": one.message, "finish_reason": one.finish_reason or "stop"} | _sampled(one)
        for index, one in enumerate(completions)
    ]
    return _head(call, "cmpl", "text_completion") | {
        "choices": choices,
        **_counts(call.usage, _openai_usage),
        **_prompt(call),
    }


def _head(call: Call, prefix: str, kind: str) -> dict[str, Any]:
    return {
        "id": call.provider_id or f"{prefix}-{call.id}",
        "object": kind,
        "model": call.model,
    }


def _sampled(one: CompletionFields) -> dict[str, Any]:
    """Ids and logprobs of a choice, as far as they were recorded."""
    found: dict[str, Any] = {"logprobs": one.top_logprobs}
    if one.token_ids is not None:
        ids = one.token_ids.array.tolist()
        found["token_ids"] = ids
        if one.logprobs is not None and one.top_logprobs is None:
            found["logprobs"] = {"content": _logprobs(ids, one.logprobs.array.tolist())}
    return found


def _logprobs(ids: Sequence[int], values: Sequence[float]) -> Raw:
    """A token each, as text: as values they would be most of what there is to write."""
    texts = json.dumps(values, separators=(",", ":"))[1:-1].split(",") if values else []
    tokens = (
        f'{{"token":"token_id:{id_}","logprob":{value},"bytes":null,"top_logprobs":[]}}'
        for id_, value in zip(ids, texts, strict=True)
    )
    return Raw(f"[{','.join(tokens)}]".encode("ascii"))


def _prompt(call: Call) -> dict[str, Any]:
    return {} if call.prompt_token_ids is None else {"prompt_token_ids": call.prompt_token_ids.array.tolist()}


def _counts(usage: Usage | None, written: Callable[[Usage], dict[str, Any]]) -> dict[str, Any]:
    return {} if usage is None else {"usage": written(usage)}


def _openai_usage(usage: Usage) -> dict[str, Any]:
    return _known(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=_sum(usage.prompt_tokens, usage.completion_tokens),
        prompt_tokens_details=_known(cached_tokens=usage.cached_tokens) or None,
        completion_tokens_details=_known(reasoning_tokens=usage.reasoning_tokens) or None,
        cache_creation_input_tokens=usage.cache_write_tokens,
    )


def _responses_usage(usage: Usage) -> dict[str, Any]:
    return _known(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=_known(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=_known(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=_sum(usage.prompt_tokens, usage.completion_tokens),
        cache_creation_input_tokens=usage.cache_write_tokens,
    )


def _anthropic_usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's three counts of what was read are disjoint."""
    read = usage.prompt_tokens
    if read is not None:
        read -= (usage.cached_tokens or 0) + (usage.cache_write_tokens or 0)
    return _known(
        input_tokens=read,
        cache_read_input_tokens=usage.cached_tokens,
        cache_creation_input_tokens=usage.cache_write_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=_known(thinking_tokens=usage.reasoning_tokens) or None,
    )


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _responses(call: Call, completions: Sequence[CompletionFields]) -> dict[str, Any]:
    (one,) = completions
    reason = {"length": "max_output_tokens"}.get(one.finish_reason or "", one.finish_reason)
    is_whole = reason in (None, "completed", "stop")
    output = one.message.value() if one.message is not None else []
    return {
        "id": call.provider_id or f"resp_{call.id}",
        "object": "response",
        "model": call.model,
        "status": "completed" if is_whole else "incomplete",
        **({} if is_whole else {"incomplete_details": {"reason": reason}}),
        "output": one.message if isinstance(output, list) else [one.message],
        **_counts(call.usage, _responses_usage),
    }


def _anthropic(call: Call, completions: Sequence[CompletionFields]) -> dict[str, Any]:
    (one,) = completions
    message = one.message or Raw(b"{}")
    place = members(message).get("content")
    content = None if place is None else Raw(message[slice(*place)])
    if content is not None and first_byte(content) == b'"':
        content = Raw.of([{"type": "text", "text": content.value()}])
    return {
        "id": call.provider_id or f"msg_{call.id}",
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": [] if content is None or content == b"null" else content,
        "stop_reason": one.finish_reason,
        **_counts(call.usage, _anthropic_usage),
    }


_BODIES: Mapping[Dialect, Callable[[Call, Sequence[CompletionFields]], dict[str, Any]]] = {
    "openai_chat": _chat,
    "openai_responses": _responses,
    "anthropic_messages": _anthropic,
    "text": _text,
}
