"""Attributes of an OpenTelemetry span -> a `Span`, by the conventions in use.

    OpenTelemetry GenAI     gen_ai.operation.name; gen_ai.input.messages / gen_ai.output.messages /
                            gen_ai.system_instructions (v1.37 on); span events gen_ai.user.message ...,
                            gen_ai.choice (v1.30); gen_ai.content.prompt / .completion events; gen_ai.prompt
    OpenLLMetry             gen_ai.prompt.N.*, gen_ai.completion.N.*, llm.request.functions.N.*,
                            traceloop.span.kind, traceloop.entity.*
    OpenInference           openinference.span.kind, llm.input_messages.N.message.*, llm.output_messages.*,
                            llm.token_count.*, llm.tools.N.*, input.value / output.value
    Vercel AI SDK           ai.operationId, ai.prompt.messages, ai.response.*, ai.usage.*, ai.toolCall.*
    ours                    tracestore.* (see `carried`)

Counts stand as numbers or as text. `gen_ai.usage.input_tokens` includes cached ones. What a span repeats of
itself (input.value beside llm.input_messages) is kept in `meta`. A span without any of these marks is no
agent, call or tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracestore.importers import exact
from tracestore.importers.carried import KEY
from tracestore.importers.chat_shapes import Answer, Exchange, Spoken, as_text, exchange, parsed
from tracestore.importers.items import nanoseconds, taken
from tracestore.importers.spans import Kind, Score, Span, size
from tracestore.importers.usage import counted
from tracestore.wire.call import Usage

_OPERATIONS: dict[str, Kind] = {
    **dict.fromkeys(("chat", "text_completion", "generate_content"), "call"),
    "execute_tool": "tool",
    **dict.fromkeys(("invoke_agent", "create_agent", "invoke_workflow"), "agent"),
    **dict.fromkeys(("embeddings", "retrieval"), "other"),
}
_OPENINFERENCE: dict[str, Kind] = {"LLM": "call", "TOOL": "tool", "AGENT": "agent"}
_LANGFUSE: dict[str, Kind] = {"generation": "call", "tool": "tool", "agent": "agent"}
_USAGE = {
    "prompt_tokens": (
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.prompt_tokens",
        "llm.token_count.prompt",
        "ai.usage.inputTokens",
        "ai.usage.promptTokens",
    ),
    "cached_tokens": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "llm.token_count.prompt_details.cache_read",
        "ai.usage.cachedInputTokens",
    ),
    "cache_write_tokens": (
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
        "llm.token_count.prompt_details.cache_write",
    ),
    "completion_tokens": (
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "llm.token_count.completion",
        "ai.usage.outputTokens",
        "ai.usage.completionTokens",
    ),
    "reasoning_tokens": (
        "gen_ai.usage.reasoning.output_tokens",
        "gen_ai.usage.reasoning_tokens",
        "llm.token_count.completion_details.reasoning",
        "ai.usage.reasoningTokens",
    ),
}
_MODEL = (
    "gen_ai.response.model",
    "gen_ai.request.model",
    "llm.model_name",
    "ai.response.model",
    "ai.model.id",
)
_PARAMETERS = {
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.stop_sequences": "stop",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.choice.count": "n",
    "ai.settings.temperature": "temperature",
}
_ROLE_EVENTS = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}


def span_of(
    attributes: dict[str, Any],
    events: Sequence[dict[str, Any]] = (),
    **known: Any,
) -> Span:
    """A span by its attributes.

    Args:
        attributes: by name; they are taken apart, and what is left goes into the span's rest.
        events: of the span, each {"name", "attributes", ...}.
        known: fields of `Span` that the record states outside its attributes.
    """
    total = size(attributes) + sum(map(size, events))
    kind = kind_of(attributes)
    own = _own(attributes)
    left_events, spoken = _spoken_events(events)
    scores, left_events = _evaluations(left_events)
    said = _exchange(attributes, kind, spoken)
    fields: dict[str, Any] = {"kind": kind, "size": total, "own": own, "exchange": said, "scores": scores}
    fields["name"] = _first(attributes, ("gen_ai.agent.name", "agent.name"), str) if kind == "agent" else None
    fields["model"] = _first(attributes, _MODEL, str)
    if kind == "call":
        fields |= _of_call(attributes, known)
    elif kind == "tool":
        fields["tool"] = _tool(attributes, known.get("name"))
        fields["result"] = _result(attributes)
        fields["name"] = fields["tool"].name
    fields["is_compacted"] = attributes.get("gen_ai.conversation.compacted") is True
    if fields["is_compacted"]:
        del attributes["gen_ai.conversation.compacted"]
    named = known.pop("name", None)
    fields["name"] = fields["name"] or named
    rest = dict(known.pop("rest", {}))
    is_told = kind == "other" or (kind != "call" and named == fields["name"])
    rest |= {} if named is None or is_told else {"span_name": named}
    rest |= {"attributes": attributes} if attributes else {}
    rest |= {"events": left_events} if left_events else {}
    return Span(**(known | fields), rest=rest)


def kind_of(attributes: dict[str, Any]) -> Kind:
    """What a span is, by its attributes."""
    operation = attributes.get("gen_ai.operation.name")
    if isinstance(operation, str) and operation in _OPERATIONS:
        return _OPERATIONS[operation]
    marked = attributes.get("openinference.span.kind")
    if isinstance(marked, str):
        return _OPENINFERENCE.get(marked.upper(), "other")
    vercel = attributes.get("ai.operationId")
    if isinstance(vercel, str):
        made_call = vercel.endswith((".doGenerate", ".doStream"))
        return "call" if made_call else "tool" if vercel == "ai.toolCall" else "other"
    langfuse = attributes.get("langfuse.observation.type")
    if isinstance(langfuse, str):
        return _LANGFUSE.get(langfuse, "other")
    traceloop = attributes.get("traceloop.span.kind")
    if traceloop in ("agent", "tool"):
        return "agent" if traceloop == "agent" else "tool"
    if attributes.get("llm.request.type") in ("chat", "completion"):
        return "call"
    if "gen_ai.tool.name" in attributes and "gen_ai.request.model" not in attributes:
        return "tool"
    names = {name.split(".0.")[0] for name in attributes}
    is_call = {
        "gen_ai.prompt",
        "gen_ai.completion",
        "gen_ai.usage.output_tokens",
        "gen_ai.input.messages",
    } & names
    return "call" if is_call else "other"


def _own(attributes: dict[str, Any]) -> dict[str, Any]:
    """What our writer put beside a span: one JSON text a field."""
    prefix = f"{KEY}."
    names = [name for name in attributes if name.startswith(prefix)]
    return {name.removeprefix(prefix): parsed_any(attributes.pop(name)) for name in names}


def parsed_any(value: Any) -> Any:
    """A value of our own attributes: they are JSON texts, whatever they hold."""
    try:
        return exact.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


# --- Messages -------------------------------------------------------------------------------------------


def _exchange(attributes: dict[str, Any], kind: Kind, spoken: dict[str, list[Any]]) -> Exchange:
    """What was read and said; the first convention that tells holds, and the others stay attributes."""
    rest: dict[str, Any] = {}
    given = _first_value(
        spoken["given"],
        _popped(attributes, "gen_ai.input.messages"),
        _openinference(attributes, "llm.input_messages"),
        _indexed(attributes, "gen_ai.prompt"),
        _popped(attributes, "ai.prompt.messages"),
        _popped(attributes, "gen_ai.prompt"),
    )
    got = _first_value(
        spoken["got"],
        _popped(attributes, "gen_ai.output.messages"),
        _openinference(attributes, "llm.output_messages"),
        _indexed(attributes, "gen_ai.completion"),
        _vercel_answer(attributes),
        _popped(attributes, "gen_ai.completion"),
    )
    if kind in ("call", "agent"):
        values = ("input.value", "traceloop.entity.input", "input", "ai.prompt", "langfuse.observation.input")
        given = (
            given if given is not None else _first_value(*(lambda n=n: _pop(attributes, n) for n in values))
        )
        answers = ("output.value", "traceloop.entity.output", "output", "langfuse.observation.output")
        got = got if got is not None else _first_value(*(lambda n=n: _pop(attributes, n) for n in answers))
    said = exchange(given, got)
    if kind != "call":
        return said
    request = _request(attributes, said.request, said.dialect)
    answers_said = _finished(attributes, said.answers)
    return Exchange(request, said.dialect, answers_said, said.rest | rest)


def _pop(attributes: dict[str, Any], name: str) -> Any:
    return attributes.pop(name, None)


def _popped(attributes: dict[str, Any], name: str) -> Any:
    return lambda: _pop(attributes, name)


def _openinference(attributes: dict[str, Any], prefix: str) -> Any:
    return lambda: [_chat(one) for one in _under(attributes, prefix) or ()] or None


def _indexed(attributes: dict[str, Any], prefix: str) -> Any:
    return lambda: [_openllmetry(one) for one in _under(attributes, prefix) or ()] or None


def _first_value(*told: Any) -> Any:
    """The first that tells something; only what is used is taken out of the attributes."""
    for one in told:
        value = one() if callable(one) else one
        if value not in (None, [], ""):
            return value
    return None


def _under(attributes: dict[str, Any], prefix: str) -> list[Any] | None:
    """The list that is spread over `prefix.0.a.b`, `prefix.1...`; its attributes are taken."""
    start = f"{prefix}."
    tree: dict[str, Any] = {}
    for name in [name for name in attributes if name.startswith(start)]:
        path = name.removeprefix(start).split(".")
        if not path[0].isdigit():
            continue
        inner = tree
        for step in path[:-1]:
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                break
        else:
            inner[path[-1]] = attributes.pop(name)
    return _listed(tree) if tree else None


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(name.isdigit() for name in value):
        return [_listed(value[name]) for name in sorted(value, key=int)]
    return {name: _listed(one) for name, one in value.items()}


def _chat(value: Any) -> Any:
    """A message of OpenInference's attributes as a chat message."""
    if not isinstance(value, dict) or not isinstance(value.get("message"), dict):
        return value
    message = dict(value["message"])
    others = {name: one for name, one in value.items() if name != "message"}
    contents = message.pop("contents", None)
    uses = message.pop("tool_calls", None)
    if isinstance(contents, list):
        message["content"] = [_block(one) for one in contents]
    if isinstance(uses, list):
        message["tool_calls"] = [_chat_use(one) for one in uses]
    return message | others


def _block(value: Any) -> Any:
    body = value.get("message_content") if isinstance(value, dict) else None
    if not isinstance(body, dict):
        return value
    image = body.get("image")
    if isinstance(image, dict) and isinstance(image.get("image"), dict) and body.keys() <= {"type", "image"}:
        return {"type": "image_url", "image_url": image["image"]}
    return body | {name: one for name, one in value.items() if name != "message_content"}


def _chat_use(value: Any) -> Any:
    body = value.get("tool_call") if isinstance(value, dict) else None
    if not isinstance(body, dict) or not isinstance(body.get("function"), dict):
        return value
    function = dict(body["function"])
    if "arguments" in function:
        function["arguments"] = as_text(function["arguments"])
    return {"id": body.get("id"), "type": "function"} | body | {"function": function}


def _openllmetry(value: Any) -> Any:
    """A message of `gen_ai.prompt.N.*`: its tool calls are flat."""
    if not isinstance(value, dict):
        return value
    message = dict(value)
    uses = message.pop("tool_calls", None)
    if isinstance(message.get("content"), str):
        message["content"] = _blocks(message["content"])
    if isinstance(uses, list):
        message["tool_calls"] = [
            {"id": use.get("id"), "type": "function"}
            | {"function": {name: one for name, one in use.items() if name in ("name", "arguments")}}
            | {name: one for name, one in use.items() if name not in ("id", "name", "arguments")}
            if isinstance(use, dict)
            else use
            for use in uses
        ]
    return message


def _blocks(text: str) -> Any:
    """Content blocks that stand as JSON text; other text stays as it is."""
    value = parsed(text)
    is_blocks = (
        isinstance(value, list) and value and all(isinstance(one, dict) and "type" in one for one in value)
    )
    return value if is_blocks else text


def _vercel_answer(attributes: dict[str, Any]) -> Any:
    def told() -> Any:
        blocks: list[Any] = []
        for name, kind in (("ai.response.reasoning", "reasoning"), ("ai.response.text", "text")):
            if isinstance(attributes.get(name), str) and attributes[name]:
                blocks.append({"type": kind, "text": attributes.pop(name)})
        calls = parsed(attributes.get("ai.response.toolCalls"))
        if isinstance(calls, list):
            attributes.pop("ai.response.toolCalls")
            blocks += [{"type": "tool-call"} | one if isinstance(one, dict) else one for one in calls]
        if not blocks and isinstance(attributes.get("ai.response.object"), str):
            blocks.append({"type": "text", "text": attributes.pop("ai.response.object")})
        return [{"role": "assistant", "content": blocks}] if blocks else None

    return told


def _request(
    attributes: dict[str, Any], request: dict[str, Any] | None, dialect: str
) -> dict[str, Any] | None:
    """The request with what stands beside its messages: instructions, tools, parameters."""
    found = dict(request or {})
    system = parsed(attributes.get("gen_ai.system_instructions"))
    if system is not None and isinstance(found.get("messages"), list):
        attributes.pop("gen_ai.system_instructions")
        spoken = (
            exchange([{"role": "system", "parts": system}], None).request
            if isinstance(system, list)
            else None
        )
        first = spoken["messages"] if spoken else [{"role": "system", "content": system}]
        found["messages"] = [*first, *found["messages"]]
    tools = _tools(attributes)
    if tools is not None and "tools" not in found:
        found["tools"] = tools
    parameters = parsed(attributes.get("llm.invocation_parameters"))
    if isinstance(parameters, dict):
        attributes.pop("llm.invocation_parameters")
        found = (
            parameters | found
            if not found.keys() & parameters.keys()
            else found | {name: one for name, one in parameters.items() if name not in found}
        )
    for name, ours in _PARAMETERS.items():
        if attributes.get(name) is not None and ours not in found:
            found[ours] = attributes.pop(name)
    return found or None


def _tools(attributes: dict[str, Any]) -> Any:
    for name in ("gen_ai.tool.definitions", "ai.prompt.tools"):
        value = parsed(attributes.get(name))
        if isinstance(value, list) and value:
            attributes.pop(name)
            return [parsed(one) for one in value]
    functions = _under(attributes, "llm.request.functions")
    if functions:
        return [{"type": "function", "function": _function(one)} for one in functions]
    schemas = _under(attributes, "llm.tools")
    if schemas:
        return [_schema(one) for one in schemas]
    return None


def _function(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("parameters"), str):
        return value | {"parameters": parsed(value["parameters"])}
    return value


def _schema(value: Any) -> Any:
    tool = value.get("tool") if isinstance(value, dict) else None
    if isinstance(tool, dict) and tool.keys() == {"json_schema"} and value.keys() == {"tool"}:
        return parsed(tool["json_schema"])
    return value


def _finished(attributes: dict[str, Any], answers: Sequence[Answer]) -> tuple[Answer, ...]:
    """The answers with their finish reasons, where those stand apart."""
    if not answers or any(answer.finish_reason is not None for answer in answers):
        return tuple(answers)
    for name in ("gen_ai.response.finish_reasons", "ai.response.finishReason", "llm.finish_reason"):
        value = parsed(attributes.get(name))
        reasons = value if isinstance(value, list) else [value]
        if len(reasons) == len(answers) and all(isinstance(one, str) for one in reasons):
            attributes.pop(name)
            return tuple(Answer(one.message, why) for one, why in zip(answers, reasons, strict=True))
    return tuple(answers)


# --- Events of a span -----------------------------------------------------------------------------------


def _spoken_events(events: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """(events that say nothing of messages, {"given": messages, "got": answers} of those that do)."""
    given: list[Any] = []
    got: list[Any] = []
    others: list[dict[str, Any]] = []
    for event in events:
        name, attributes = str(event.get("name")), event.get("attributes")
        if not isinstance(attributes, dict):
            others.append(event)
            continue
        rest = dict(attributes)
        if name in _ROLE_EVENTS:
            given.append(_event_message(rest, _ROLE_EVENTS[name]))
        elif name == "gen_ai.choice":
            got.append(_event_choice(rest))
        elif name == "gen_ai.content.prompt" and "gen_ai.prompt" in rest:
            given += _as_list(parsed(rest.pop("gen_ai.prompt")))
        elif name == "gen_ai.content.completion" and "gen_ai.completion" in rest:
            got += _as_list(parsed(rest.pop("gen_ai.completion")))
        elif name == "gen_ai.client.inference.operation.details" and "gen_ai.input.messages" in rest:
            given += _as_list(parsed(rest.pop("gen_ai.input.messages")))
            got += _as_list(parsed(rest.pop("gen_ai.output.messages", [])))
        else:
            others.append(event)
            continue
        left = {key: one for key, one in event.items() if key not in ("name", "attributes")}
        left |= {"attributes": rest} if rest else {}
        if left:
            others.append({"name": name} | left)
    return others, {"given": given, "got": got}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _event_message(rest: dict[str, Any], role: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": taken(rest, "role", str) or role}
    if "content" in rest:
        message["content"] = _blocks(rest["content"]) if isinstance(rest["content"], str) else rest["content"]
        del rest["content"]
    uses = parsed(rest.get("tool_calls"))
    if isinstance(uses, list):
        del rest["tool_calls"]
        message["tool_calls"] = uses
    if role == "tool" and isinstance(rest.get("id"), str):
        message["tool_call_id"] = rest.pop("id")
    return message


def _event_choice(rest: dict[str, Any]) -> dict[str, Any]:
    choice = {name: rest.pop(name) for name in ("finish_reason", "index") if name in rest}
    message = parsed(rest.pop("message", None))
    if isinstance(message, str):
        message = {"content": message}
    spoken = {"role": "assistant"} | (message if isinstance(message, dict) else {})
    for name in ("content", "role", "tool_calls"):
        if name in rest:
            spoken[name] = parsed(rest.pop(name))
    return {"message": spoken} | choice


def _evaluations(events: Sequence[dict[str, Any]]) -> tuple[tuple[Score, ...], list[dict[str, Any]]]:
    scores, others = [], []
    for event in events:
        attributes = event.get("attributes")
        value = attributes.get("gen_ai.evaluation.score.value") if isinstance(attributes, dict) else None
        if event.get("name") == "gen_ai.evaluation.result" and isinstance(value, (int, float)):
            assert isinstance(attributes, dict)
            rest = {name: one for name, one in attributes.items() if name != "gen_ai.evaluation.score.value"}
            name = taken(rest, "gen_ai.evaluation.name", str) or "evaluation"
            others_said = {key: one for key, one in event.items() if key not in ("name", "attributes", "at")}
            scores.append(Score(name, float(value), at=event.get("at"), rest=rest | others_said))
        else:
            others.append(event)
    return tuple(scores), others


# --- Fields -----------------------------------------------------------------------------------------------


def _first(attributes: dict[str, Any], names: Sequence[str], *types: type) -> Any:
    for name in names:
        value = taken(attributes, name, *types)
        if value is not None:
            return value
    return None


def _of_call(attributes: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    started = known.get("started_at")
    first = attributes.get("ai.response.msToFirstChunk")
    first_at = None
    if isinstance(started, int) and isinstance(first, (int, float)) and not isinstance(first, bool):
        first_at = started + round(first * 1e6)
    return {
        "provider_id": _first(attributes, ("gen_ai.response.id", "ai.response.id", "llm.response.id"), str),
        "usage": usage_of(attributes),
        "first_token_at": first_at,
    }


def usage_of(attributes: dict[str, Any]) -> Usage | None:
    """Counts of one call, as numbers or as text."""
    found: dict[str, Any] = {}
    for field, names in _USAGE.items():
        for name in names:
            number = whole_number(attributes.get(name))
            if number is not None:
                del attributes[name]
                found[field] = number
                break
    for name in ("gen_ai.usage.cost", "llm.cost.total", "gen_ai.usage.total_cost"):
        cost = attributes.get(name)
        if isinstance(cost, (int, float)) and not isinstance(cost, bool):
            del attributes[name]
            found["cost_usd"] = float(cost)
            break
    return counted(**found)


def whole_number(value: Any) -> int | None:
    """A count: a number, or the digits of one."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _tool(attributes: dict[str, Any], span_name: Any) -> Spoken:
    name = _first(
        attributes, ("gen_ai.tool.name", "tool.name", "tool_call.function.name", "ai.toolCall.name"), str
    )
    name = name or _first(attributes, ("traceloop.entity.name",), str)
    names = ("gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id")
    use_id = _first(attributes, names, str)
    sources = (
        *(
            "gen_ai.tool.call.arguments",
            "tool_call.function.arguments",
            "ai.toolCall.args",
            "tool.parameters",
        ),
        *("input.value", "traceloop.entity.input", "input", "langfuse.observation.input"),
    )
    arguments = next((attributes.pop(one) for one in sources if attributes.get(one) is not None), None)
    return Spoken(use_id, name or span_name, None if arguments is None else as_text(arguments))


def _result(attributes: dict[str, Any]) -> Any:
    sources = (
        *("gen_ai.tool.call.result", "output.value", "ai.toolCall.result", "traceloop.entity.output"),
        *("output", "gen_ai.tool.message", "langfuse.observation.output"),
    )
    return next((attributes.pop(one) for one in sources if attributes.get(one) is not None), None)


def moment(value: Any) -> int | None:
    """A time of a span: nanoseconds as text, [seconds, nanoseconds], ISO 8601."""
    if isinstance(value, list) and len(value) == 2 and all(type(one) is int for one in value):
        return int(value[0] * 10**9 + value[1])
    return nanoseconds(int(value)) if isinstance(value, str) and value.isdecimal() else nanoseconds(value)
