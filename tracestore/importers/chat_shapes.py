"""What tracing tools write for a model's input and output -> a request and its answers in our dialects.

    {"messages": [...], ...}            an OpenAI or Anthropic request, kept as it is
    {"input": ..., "model" | "instructions"}   an OpenAI Responses request, kept as it is
    [{"role", "content"}, ...]          messages
    [{"role", "parts"}, ...]            OpenTelemetry GenAI messages: parts become content and tool calls
    {"lc": 1, "kwargs": {...}}          LangChain messages, alone, in lists, in lists of lists
    {"contents": [...]}                 a Gemini request: its contents are the messages
    {"choices"}, {"output"}, {"generations"}, {"content": [...]}, {"candidates"}   answers
    text                                a prompt, or an answer of the assistant

Values that stand as JSON text inside a string are read as what they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers import exact
from tracestore.importers.items import raw
from tracestore.wire.call import Dialect

_LANGCHAIN_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
_LANGCHAIN_NAMESPACES = (["langchain", "schema", "messages"], ["langchain_core", "messages"])
_RESPONSES_ITEMS = frozenset(
    {"function_call", "function_call_output", "reasoning", "message", "item_reference"}
)


@dataclass(frozen=True)
class Answer:
    """One completion."""

    message: Any
    finish_reason: str | None = None


@dataclass(frozen=True)
class Exchange:
    """What was sent to a model, and what came back."""

    request: dict[str, Any] | None = None
    dialect: Dialect = "openai_chat"
    answers: tuple[Answer, ...] = ()
    rest: dict[str, Any] = field(default_factory=dict)
    """What neither the request nor the answers hold."""


def exchange(given: Any, got: Any) -> Exchange:
    """The exchange of an input value and an output value, either of them None where it was not recorded."""
    rest: dict[str, Any] = {}
    dialect, request = _request(parsed(given), rest)
    answers, answered_in = _answers(parsed(got), rest)
    if answered_in is not None and answered_in != dialect:
        dialect, request = _in_dialect(answered_in, dialect, request)
    return Exchange(request, dialect, tuple(answers), rest)


def parsed(value: Any) -> Any:
    """A value that may stand as JSON text in a string; text that is no object or array stays text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return exact.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _in_dialect(
    wanted: Dialect, dialect: Dialect, request: dict[str, Any] | None
) -> tuple[Dialect, dict[str, Any] | None]:
    """A request as far as it can be said in the dialect of its answer."""
    if request is None:
        return wanted, None
    if wanted == "openai_responses" and dialect == "openai_chat" and "messages" in request:
        others = {name: value for name, value in request.items() if name != "messages"}
        return wanted, {"input": request["messages"]} | others
    if wanted == "anthropic_messages" and dialect == "openai_chat":
        return wanted, request
    return dialect, request


# --- Requests ----------------------------------------------------------------------------------------


def _request(value: Any, rest: dict[str, Any]) -> tuple[Dialect, dict[str, Any] | None]:
    if value is None:
        return "openai_chat", None
    if isinstance(value, dict):
        return _request_object(value, rest)
    if isinstance(value, list):
        if any(_is_item(one) for one in value):
            return "openai_responses", {"input": value}
        return _dialect_of(value), {"messages": messages(value, rest)}
    return "text", {"prompt": value}


def _request_object(value: dict[str, Any], rest: dict[str, Any]) -> tuple[Dialect, dict[str, Any]]:
    if isinstance(value.get("messages"), list):
        spoken = messages(value["messages"], rest)
        request = {name: spoken if name == "messages" else one for name, one in value.items()}
        return ("anthropic_messages" if "system" in value else _dialect_of(spoken)), request
    if "input" in value and ("model" in value or "instructions" in value):
        return "openai_responses", value
    if isinstance(value.get("contents"), list):
        others = {name: one for name, one in value.items() if name != "contents"}
        return "openai_chat", {"messages": value["contents"]} | others
    prompts = value.get("prompts")
    if isinstance(prompts, list) and len(prompts) == 1:
        others = {name: one for name, one in value.items() if name != "prompts"}
        return "text", {"prompt": prompts[0]} | others
    if "prompt" in value:
        return "text", value
    if _is_message(value) or _is_langchain(value):
        return _dialect_of([value]), {"messages": messages([value], rest)}
    # Nothing tells what the model read of it: it is kept as one message.
    return "openai_chat", {"messages": [{"role": "user", "content": value}]}


def _is_item(value: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind in _RESPONSES_ITEMS and "kwargs" not in value and (kind != "message" or "content" in value)


def _dialect_of(values: Sequence[Any]) -> Dialect:
    """anthropic_messages where blocks of tool use or results stand in the content."""
    for value in values:
        content = value.get("content") if isinstance(value, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") in ("tool_use", "tool_result", "thinking"):
                return "anthropic_messages"
    return "openai_chat"


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _is_langchain(value: Any) -> bool:
    return isinstance(value, dict) and (
        (isinstance(value.get("kwargs"), dict) and isinstance(value.get("id"), list))
        or (value.get("type") in _LANGCHAIN_ROLES and "content" in value and "role" not in value)
        or (isinstance(value.get("data"), dict) and value.get("type") in ("human", "ai", "system", "tool"))
    )


def messages(values: Sequence[Any], rest: dict[str, Any]) -> list[Any]:
    """Messages in the shape of a chat request; what has no place in it goes to `rest`."""
    if len(values) == 1 and isinstance(values[0], list):
        return messages(values[0], rest)
    spoken: list[Any] = []
    for value in values:
        if _is_langchain(value):
            spoken.append(_langchain(value, rest))
        elif isinstance(value, dict) and isinstance(value.get("parts"), list) and _has_typed_parts(value):
            spoken += _from_parts(value)
        else:
            spoken.append(value)
    return spoken


# --- GenAI parts ---------------------------------------------------------------------------------------


def _has_typed_parts(value: dict[str, Any]) -> bool:
    return all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in value["parts"])


def _from_parts(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of one GenAI message: results of tools are messages of their own."""
    message = {name: one for name, one in value.items() if name not in ("parts", "finish_reason")}
    said: list[Any] = []
    results: list[dict[str, Any]] = []
    for part in value["parts"]:
        kind = part["type"]
        keys = part.keys() - {"type"}
        if kind == "text" and keys == {"content"}:
            said.append({"type": "text", "text": part["content"]})
        elif kind == "reasoning" and keys == {"content"} and "reasoning_content" not in message:
            message["reasoning_content"] = part["content"]
        elif kind == "tool_call" and keys <= {"id", "name", "arguments"} and "name" in keys:
            message.setdefault("tool_calls", []).append(_chat_use(part))
        elif kind == "tool_call_response" and keys in ({"id", "response"}, {"id", "result"}):
            results.append(_chat_result(part))
        else:
            said.append(part)
    if len(said) == 1 and said[0].keys() == {"type", "text"} and said[0]["type"] == "text":
        message["content"] = said[0]["text"]
    elif said:
        message["content"] = said
    is_said = said or message.keys() - {"role"} or not results
    return [*([message] if is_said else []), *results]


def _chat_use(part: dict[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": part["name"]}
    if "arguments" in part:
        function["arguments"] = as_text(part["arguments"])
    use = {"type": "function", "function": function}
    return {"id": part["id"]} | use if part.get("id") is not None else use


def _chat_result(part: dict[str, Any]) -> dict[str, Any]:
    content = part["response"] if "response" in part else part["result"]
    return {"role": "tool", "tool_call_id": part["id"], "content": content}


def to_parts(message: Any) -> dict[str, Any] | None:
    """A chat message as a GenAI message, the inverse of reading one; None where that loses something."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return None
    rest = dict(message)
    role, content = rest.pop("role"), rest.pop("content", None)
    if role == "tool" and isinstance(rest.get("tool_call_id"), str) and len(rest) == 1:
        part = {"type": "tool_call_response", "id": rest["tool_call_id"], "response": content}
        candidate = {"role": role, "parts": [part]}
    else:
        candidate = {"role": role, "parts": _parts(rest, content)} | rest
    return candidate if _has_typed_parts(candidate) and _from_parts(candidate) == [message] else None


def _parts(rest: dict[str, Any], content: Any) -> list[Any]:
    parts: list[Any] = []
    if isinstance(rest.get("reasoning_content"), str):
        parts.append({"type": "reasoning", "content": rest.pop("reasoning_content")})
    if isinstance(content, str):
        parts.append({"type": "text", "content": content})
    for block in content if isinstance(content, list) else ():
        is_text = isinstance(block, dict) and block.keys() == {"type", "text"} and block["type"] == "text"
        parts.append({"type": "text", "content": block["text"]} if is_text else block)
    uses = rest.get("tool_calls")
    if isinstance(uses, list) and all(isinstance(use, dict) for use in uses):
        del rest["tool_calls"]
        for use in uses:
            function = use.get("function") if isinstance(use.get("function"), dict) else {}
            part = {"type": "tool_call", "id": use.get("id")} | function
            parts.append({name: one for name, one in part.items() if one is not None})
    return parts


# --- LangChain -----------------------------------------------------------------------------------------


def _langchain(value: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """A LangChain message; its bookkeeping goes to the rest."""
    outer = dict(value)
    named = value["id"] if isinstance(value.get("id"), list) else []
    kind = str(named[-1]) if named else ""
    body = outer.pop("kwargs", None) or outer.pop("data", None)
    kwargs = dict(body) if isinstance(body, dict) else outer
    said = outer.pop("type", None)
    said = kwargs.pop("type", said) if said in (None, "constructor") else said
    role = _LANGCHAIN_ROLES.get(str(said)) or _role_of_class(kind) or (str(said) if said else "unknown")
    if said is not None and said != role and str(said) not in _LANGCHAIN_ROLES:
        kwargs["type"] = said
    message: dict[str, Any] = {"role": role}
    if "content" in kwargs:
        message["content"] = kwargs.pop("content")
    for name in ("name", "tool_call_id"):
        if kwargs.get(name) is not None:
            message[name] = kwargs.pop(name)
    uses = kwargs.pop("tool_calls", None)
    if isinstance(uses, list) and uses:
        message["tool_calls"] = [_langchain_use(use) for use in uses]
    if kwargs is not outer and (outer.get("lc"), _role_of_class(kind)) == (1, role):
        for name in ("lc", "id") if named[:-1] in _LANGCHAIN_NAMESPACES else ():
            outer.pop(name)
    left = {name: one for name, one in (kwargs | (outer if outer is not kwargs else {})).items() if one}
    if left:
        rest.setdefault("messages", []).append(left)
    return message


def _role_of_class(name: str) -> str | None:
    stem = name.removesuffix("Chunk").removesuffix("Message").lower()
    return {"human": "user", "ai": "assistant"}.get(stem, stem or None)


def _langchain_use(use: Any) -> Any:
    if not isinstance(use, dict) or "args" not in use:
        return use
    others = {name: one for name, one in use.items() if name not in ("args", "name", "type", "id")}
    if use.get("type") not in (None, "tool_call"):
        others["type"] = use["type"]
    function = {"name": use.get("name"), "arguments": as_text(use["args"])}
    return {"id": use.get("id"), "type": "function", "function": function} | others


def as_text(value: Any) -> str:
    """Arguments as the text that a chat message holds."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except TypeError:  # a number that Python would write otherwise
        return raw(value).decode("ascii")


# --- Answers -------------------------------------------------------------------------------------------


def _answers(value: Any, rest: dict[str, Any]) -> tuple[list[Answer], Dialect | None]:
    """(answers, the dialect they are in; None: that of the request)."""
    if value is None:
        return [], None
    if isinstance(value, dict):
        return _answer_object(value, rest)
    if isinstance(value, list):
        if any(_is_item(one) for one in value):
            return [Answer(value)], "openai_responses"
        return [answer for one in value for answer in _answers(one, rest)[0]], None
    return [Answer({"role": "assistant", "content": value})], None


def _answer_object(value: dict[str, Any], rest: dict[str, Any]) -> tuple[list[Answer], Dialect | None]:
    others = dict(value)
    if isinstance(value.get("choices"), list):
        choices = others.pop("choices")
        _keep(rest, "response", others)
        return [_choice(one, rest) for one in choices], None
    if isinstance(value.get("generations"), list):
        generations = others.pop("generations")
        _keep(rest, "response", others)
        return list(_generations(generations, rest)), None
    if isinstance(value.get("output"), list) and "role" not in value:
        output = others.pop("output")
        _keep(rest, "response", others)
        return [Answer(output)], "openai_responses"
    if isinstance(value.get("candidates"), list):
        candidates = others.pop("candidates")
        _keep(rest, "response", others)
        return [_candidate(one, rest) for one in candidates], None
    return [_one_answer(value, rest)], None


def _one_answer(value: dict[str, Any], rest: dict[str, Any]) -> Answer:
    if _is_langchain(value):
        return Answer(_langchain(value, rest))
    others = dict(value)
    reason = next(
        (name for name in ("finish_reason", "stop_reason") if isinstance(value.get(name), str)), None
    )
    finish = others.pop(reason) if reason is not None else None
    if isinstance(value.get("parts"), list) and _is_message(value) and _has_typed_parts(value):
        spoken = _from_parts(value)
        return Answer(spoken[0] if len(spoken) == 1 else spoken, finish)
    if isinstance(value.get("message"), dict) and "role" not in value:
        _keep(rest, "response", {name: one for name, one in others.items() if name != "message"})
        return Answer(messages([value["message"]], rest)[0], finish)
    if isinstance(value.get("messages"), list) and value["messages"] and "role" not in value:
        *before, last = messages(value["messages"], rest)
        others.pop("messages")
        _keep(rest, "response", others | ({"messages": before} if before else {}))
        return Answer(last, finish)
    if isinstance(value.get("content"), list) and value.get("type") == "message":
        message = {"role": value.get("role", "assistant"), "content": others.pop("content")}
        others.pop("role", None)
        _keep(rest, "response", others)
        return Answer(message, finish)
    if isinstance(value.get("text"), str) and "role" not in value:
        text = others.pop("text")
        _keep(rest, "response", others)
        return Answer({"role": "assistant", "content": text}, finish)
    return Answer(value if reason is None else others, finish)


def _choice(value: Any, rest: dict[str, Any]) -> Answer:
    if not isinstance(value, dict):
        return Answer(value)
    others = dict(value)
    finish = others.pop("finish_reason") if isinstance(value.get("finish_reason"), str) else None
    message = others.pop("message") if "message" in others else None
    if message is None and isinstance(value.get("text"), str):
        message = {"role": "assistant", "content": others.pop("text")}
    _keep(rest, "choices", others)
    return Answer(messages([message], rest)[0] if isinstance(message, dict) else message, finish)


def _candidate(value: Any, rest: dict[str, Any]) -> Answer:
    if not isinstance(value, dict):
        return Answer(value)
    others = dict(value)
    reason = next(
        (name for name in ("finishReason", "finish_reason") if isinstance(value.get(name), str)), None
    )
    finish = others.pop(reason) if reason is not None else None
    content = others.pop("content", None)
    _keep(rest, "candidates", others)
    return Answer(content, finish)


def _generations(values: Sequence[Any], rest: dict[str, Any]) -> Iterator[Answer]:
    for value in values:
        if isinstance(value, list):
            yield from _generations(value, rest)
        elif isinstance(value, dict):
            others = dict(value)
            info = others.get("generation_info") if isinstance(others.get("generation_info"), dict) else {}
            assert isinstance(info, dict)
            message, text = others.pop("message", None), others.get("text")
            if isinstance(message, dict):
                spoken = messages([message], rest)[0]
                if isinstance(spoken, dict) and text == spoken.get("content"):
                    del others["text"]
            else:
                spoken = {"role": "assistant", "content": others.pop("text", None)}
            _keep(rest, "generations", others)
            finish = info.get("finish_reason")
            yield Answer(spoken, finish if isinstance(finish, str) else None)
        else:
            yield Answer(value)


def _keep(rest: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    left = {key: one for key, one in value.items() if one is not None}
    if left:
        rest.setdefault(name, []).append(left)


# --- Tool uses and results -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spoken:
    """A tool use in a message."""

    id: str | None
    name: str | None
    arguments: str | None


def uses_of(message: Any) -> list[Spoken]:
    """The tool uses of an answer, whatever its dialect, in order."""
    if isinstance(message, list):
        return [use for item in message for use in uses_of(item)]
    if not isinstance(message, dict):
        return []
    found = []
    if message.get("type") in ("function_call", "custom_tool_call"):
        arguments = message.get("arguments", message.get("input"))
        found.append(_spoken(message.get("call_id"), message.get("name"), arguments))
    for given in message["tool_calls"] if isinstance(message.get("tool_calls"), list) else ():
        use = parsed(given)  # some files hold them as JSON text
        if isinstance(use, dict):
            named = (use[name] for name in ("function", "custom") if isinstance(use.get(name), dict))
            body = next(named, use)
            arguments = body.get("arguments", body.get("input", body.get("args")))
            found.append(_spoken(use.get("id"), body.get("name"), arguments))
    for name in ("content", "parts"):
        for block in message[name] if isinstance(message.get(name), list) else ():
            found += _block_use(block)
    return found


def _block_use(block: Any) -> list[Spoken]:
    if not isinstance(block, dict):
        return []
    kind = block.get("type")
    if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
        return [_spoken(block.get("id"), block.get("name"), block.get("input"))]
    if kind == "tool-call":
        arguments = block.get("input", block.get("args"))
        return [_spoken(block.get("toolCallId"), block.get("toolName"), arguments)]
    called = block.get("functionCall", block.get("function_call"))
    if isinstance(called, dict):
        return [_spoken(called.get("id"), called.get("name"), called.get("args"))]
    return []


def _spoken(use_id: Any, name: Any, arguments: Any) -> Spoken:
    return Spoken(
        use_id if isinstance(use_id, str) else None,
        name if isinstance(name, str) else None,
        None if arguments is None else as_text(arguments),
    )


def results_in(request: dict[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """(the model's id of a tool use, its result) for each result that a request carries."""
    for name in ("messages", "input") if request else ():
        assert request is not None
        for message in request[name] if isinstance(request.get(name), list) else ():
            if isinstance(message, dict):
                yield from _results(message)


def _results(message: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(message.get("tool_call_id"), str):
        yield message["tool_call_id"], message.get("content")
    if message.get("type") == "function_call_output" and isinstance(message.get("call_id"), str):
        yield message["call_id"], message.get("output")
    for block in message["content"] if isinstance(message.get("content"), list) else ():
        if isinstance(block, dict) and isinstance(block.get("tool_use_id"), str):
            yield block["tool_use_id"], block.get("content")
        if isinstance(block, dict) and block.get("type") == "tool-result":
            yield str(block.get("toolCallId")), block.get("output", block.get("result"))
