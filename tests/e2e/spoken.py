"""A chat request -> the same asked in each dialect by its official client, and what a server of it answers.

A conversation is said in the dialect as its users say it, an answer as its servers give it. What the client
has read is given back as the chat message that it is, so that it can be held against the recorded one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anthropic
import openai

from tests.api.proxy.scripted import Said, sse
from tracestore.replay.streams import stream_of

Message = dict[str, Any]
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


@dataclass(frozen=True)
class Spoken:
    """How one dialect asks and answers."""

    connected: Callable[[str], Any]
    """The official client for a server."""
    ask: Callable[[Any, Mapping[str, Any], Sequence[int], bool, dict[str, str]], list[Message]]
    """(client, chat request, ids of its prompt, whether as a stream, headers) -> messages of the answer."""
    answer: Callable[[Sequence[Mapping[str, Any]], bool], Said]
    """(recorded chat choices, whether as a stream) -> the response."""
    has_n: bool
    """Whether one request may ask for several answers."""


def pieces(text: str) -> list[str]:
    """A text as a server streams it: word by word."""
    return [word for word in text.replace(" ", "\0 ").split("\0") if word]


def said(message: Mapping[str, Any]) -> Message:
    """What a chat message says, the arguments of its tools as values."""
    uses = [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in _uses(message)]
    return {
        "content": message.get("content") or "",
        "uses": [(id_, name, json.loads(text)) for id_, name, text in uses],
    }


def _uses(message: Mapping[str, Any]) -> Sequence[Any]:
    return message.get("tool_calls") or ()


def _sent(body: Any, *, as_stream: Iterator[bytes] | None) -> Said:
    return Said(json.dumps(body).encode()) if as_stream is None else sse(*as_stream)


def _data(*events: Any, done: bool = False) -> Iterator[bytes]:
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        yield f"{name}data: {json.dumps(event)}\n\n".encode()
    if done:
        yield b"data: [DONE]\n\n"


# --- Chat Completions ---------------------------------------------------------------------------------------


def _chat_ask(
    client: openai.OpenAI, request: Mapping[str, Any], prompt: Sequence[int], stream: bool, headers: Any
) -> list[Message]:
    if not stream:
        answer = client.chat.completions.create(**request, extra_headers=headers)
        return [one.message.to_dict() for one in answer.choices]
    with client.chat.completions.stream(**request, extra_headers=headers) as events:
        return [one.message.to_dict() for one in events.get_final_completion().choices]


def _chat_answer(choices: Sequence[Mapping[str, Any]], stream: bool) -> Said:
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    if not stream:
        return _sent(head | {"choices": list(choices), "usage": USAGE}, as_stream=None)
    chunks = []
    for choice in choices:
        texts, uses = pieces(choice["message"]["content"]), _uses(choice["message"])
        deltas: list[Any] = [{"role": "assistant", "content": ""}, *({"content": one} for one in texts)]
        deltas += [{"tool_calls": [{"index": place, **use}]} for place, use in enumerate(uses)]
        chunks += [_chunk(head, choice, {"delta": delta}) for delta in deltas]
        # A server that gives ids gives them with its last words.
        given = {name: choice[name] for name in ("token_ids", "logprobs") if name in choice}
        chunks.append(_chunk(head, choice, {"delta": {}, **given, "finish_reason": choice["finish_reason"]}))
    return _sent(None, as_stream=_data(*chunks, done=True))


def _chunk(head: Mapping[str, Any], choice: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    kind = {"object": "chat.completion.chunk"} if "delta" in one else {}
    return {**head, **kind, "choices": [{"index": choice["index"], "finish_reason": None, **one}]}


# --- Completions --------------------------------------------------------------------------------------------


def _text_ask(
    client: openai.OpenAI, request: Mapping[str, Any], prompt: Sequence[int], stream: bool, headers: Any
) -> list[Message]:
    params: Any = {
        name: request[name] for name in ("model", "n", "temperature", "max_tokens") if name in request
    }
    params |= {"prompt": list(prompt), "extra_headers": headers}
    if not stream:
        return [_read_text(one.text) for one in client.completions.create(**params).choices]
    texts: dict[int, str] = {}
    for chunk in client.completions.create(**params, stream=True):
        for one in chunk.choices:
            texts[one.index] = texts.get(one.index, "") + one.text
    return [_read_text(texts[index]) for index in sorted(texts)]


def _read_text(text: str) -> Message:
    """This dialect has texts alone: the message is written as one."""
    message: Message = json.loads(text)
    return message


def _text_answer(choices: Sequence[Mapping[str, Any]], stream: bool) -> Said:
    head = {"id": "t", "object": "text_completion", "created": 1, "model": "m"}
    texts = [json.dumps(one["message"]) for one in choices]
    if not stream:
        given = [
            {"index": place, "text": text, "logprobs": None, "finish_reason": one["finish_reason"]}
            for place, (text, one) in enumerate(zip(texts, choices, strict=True))
        ]
        return _sent(head | {"choices": given, "usage": USAGE}, as_stream=None)
    chunks = []
    for choice, text in zip(choices, texts, strict=True):
        chunks += [_chunk(head, choice, {"text": one}) for one in pieces(text)]
        chunks.append(_chunk(head, choice, {"text": "", "finish_reason": choice["finish_reason"]}))
    return _sent(None, as_stream=_data(*chunks, done=True))


# --- Responses ----------------------------------------------------------------------------------------------


def _responses_ask(
    client: openai.OpenAI, request: Mapping[str, Any], prompt: Sequence[int], stream: bool, headers: Any
) -> list[Message]:
    asked: Any = {
        "model": request["model"],
        "input": [item for one in request["messages"] for item in _items(one)],
        "extra_headers": headers,
    }
    if "max_tokens" in request:
        asked |= {"max_output_tokens": request["max_tokens"], "temperature": request["temperature"]}
    if "tools" in request:
        asked["tools"] = [{"type": "function", **one["function"]} for one in request["tools"]]
    if stream:
        ends = ("response.completed", "response.incomplete")  # the client's own helper knows the first alone
        told: Any = list(client.responses.create(**asked, stream=True))
        [answer] = [event.response for event in told if event.type in ends]
    else:
        answer = client.responses.create(**asked)
    uses = [one for one in answer.output if one.type == "function_call"]
    return [_message(answer.output_text, [(one.call_id, one.name, one.arguments) for one in uses])]


def _message(content: str, uses: Sequence[tuple[str, str, str]]) -> Message:
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
        for id_, name, text in uses
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        output = {"call_id": message["tool_call_id"], "output": message["content"]}
        yield {"type": "function_call_output", **output}
        return
    yield {"role": message["role"], "content": message["content"]}
    for one in _uses(message):
        yield {"type": "function_call", "call_id": one["id"], **one["function"]}


def _responses_answer(choices: Sequence[Mapping[str, Any]], stream: bool) -> Said:
    [choice] = choices
    text = {"type": "output_text", "text": choice["message"]["content"], "annotations": []}
    output: list[Any] = [
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    ]
    for place, one in enumerate(_uses(choice["message"])):
        item = {"type": "function_call", "id": f"f{place}", "call_id": one["id"], "status": "completed"}
        output.append(item | one["function"])
    is_cut = choice["finish_reason"] == "length"
    body = {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    return _sent(body, as_stream=stream_of(body, "openai_responses") if stream else None)


# --- Messages -----------------------------------------------------------------------------------------------


def _anthropic_ask(
    client: anthropic.Anthropic,
    request: Mapping[str, Any],
    prompt: Sequence[int],
    stream: bool,
    headers: Any,
) -> list[Message]:
    listed = [one for one in request["messages"] if one["role"] != "system"]
    asked: Any = {
        "model": request["model"],
        "max_tokens": request.get("max_tokens", 40),
        "system": [_block(one["content"]) for one in request["messages"] if one["role"] == "system"],
        "messages": [_turn(one) for one in listed],
        "extra_headers": headers,
    }
    if "temperature" in request:
        asked["extra_body"] = {"temperature": request["temperature"]}
    if "tools" in request:
        asked["tools"] = [
            {
                "name": one["function"]["name"],
                "input_schema": one["function"].get("parameters", {"type": "object"}),
            }
            for one in request["tools"]
        ]
    if stream:
        with client.messages.stream(**asked) as events:
            answer: Any = events.get_final_message()
    else:
        answer = client.messages.create(**asked)
    uses = [(one.id, one.name, json.dumps(one.input)) for one in answer.content if one.type == "tool_use"]
    texts = [one.text for one in answer.content if one.type == "text"]
    return [_message("".join(texts), uses)]


def _block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        result = {"tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [{"type": "tool_result", **result}]}
    return {"role": message["role"], "content": [_block(message["content"]), *map(_use, _uses(message))]}


def _use(one: Mapping[str, Any]) -> dict[str, Any]:
    called = one["function"]
    return {
        "type": "tool_use",
        "id": one["id"],
        "name": called["name"],
        "input": json.loads(called["arguments"]),
    }


def _anthropic_answer(choices: Sequence[Mapping[str, Any]], stream: bool) -> Said:
    [choice] = choices
    blocks = [_block(choice["message"]["content"]), *map(_use, _uses(choice["message"]))]
    reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(choice["finish_reason"], "end_turn")
    head = {"id": "a", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    usage = {"input_tokens": 7, "output_tokens": 3}
    if not stream:
        return _sent(head | {"content": blocks, "stop_reason": reason, "usage": usage}, as_stream=None)
    events: list[Any] = [
        {"type": "message_start", "message": head | {"content": [], "stop_reason": None, "usage": usage}}
    ]
    for index, block in enumerate(blocks):
        is_text = block["type"] == "text"
        texts = pieces(block["text"] if is_text else json.dumps(block["input"]))
        empty = {"text": ""} if is_text else {"input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": block | empty})
        for text in texts:
            delta = (
                {"type": "text_delta", "text": text}
                if is_text
                else {"type": "input_json_delta", "partial_json": text}
            )
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 3}})
    return _sent(None, as_stream=_data(*events, {"type": "message_stop"}))


def _openai(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="sk", max_retries=0)


def _anthropic(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="sk", max_retries=0)


SPOKEN: Mapping[str, Spoken] = {
    "openai_chat": Spoken(_openai, _chat_ask, _chat_answer, has_n=True),
    "text": Spoken(_openai, _text_ask, _text_answer, has_n=True),
    "openai_responses": Spoken(_openai, _responses_ask, _responses_answer, has_n=False),
    "anthropic_messages": Spoken(_anthropic, _anthropic_ask, _anthropic_answer, has_n=False),
}
