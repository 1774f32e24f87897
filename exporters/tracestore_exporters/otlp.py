"""Graph -> an OTLP request in JSON (resourceSpans): importing it gives the same calls, tokens and agents.

An episode is a trace whose id is made of the episode's. Spans, with the GenAI semantic conventions:

    the episode    episode                carries what is nobody's in particular
    an agent       invoke_agent NAME      below the tool that spawned it, else below its parent
    a call         chat MODEL             below its agent: gen_ai.input.messages (its whole context),
                                          gen_ai.output.messages, finish reasons, usage, tool definitions
    a tool call    execute_tool NAME      below the call
    a reward       event gen_ai.evaluation.result on the span of what it scores

What GenAI has no name for stands in `tracestore.*` attributes, each the JSON text of a value, which our
importer lays over what it reads: token ids and logprobs (base64), messages that parts do not give back as
they are, other parts of requests, ids, ordinals, policies, statuses; `tracestore.events` on the first span
holds the events for candidates, edits, gaps, groups, rewards. The report counts what went there.

Not in the file: the bytes of JSON texts (values are kept, white space and spelling are not), delta requests
(every call has its whole context), and payloads of blobs, whose references are carried. Unknown times are
left out, which strict collectors refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from tracestore.graph.agents import agent_tree, calls_in_order
from tracestore.graph.messages import text_of
from tracestore.graph.model import Graph
from tracestore.importers import exact, otlp
from tracestore.importers.carried import KEY, difference
from tracestore.importers.chat_shapes import to_parts, uses_of
from tracestore.importers.items import raw
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.events import AnyEvent
from tracestore.wire.reward import Reward
from tracestore.wire.tool_call import ToolCall
from tracestore_exporters.writing import (
    Report,
    beside,
    carried,
    encoded,
    episode_id,
    messages,
    tools_by_call,
    whole_call,
    whole_request,
)

_CLIENT, _INTERNAL = 3, 1
_PARAMETERS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}


def request(graphs: Iterable[Graph], *, report: Report) -> dict[str, Any]:
    """One OTLP request with a trace for each graph, as JSON values (write it with `items.raw`).

    Args:
        report: is added to.
    """
    spans = [span for graph in graphs for span in _Writer(graph, report).spans()]
    return _wrapped(spans)


def _wrapped(spans: list[dict[str, Any]]) -> dict[str, Any]:
    scope = {"scope": {"name": "tracestore"}, "spans": spans}
    service = {"key": "service.name", "value": {"stringValue": "tracestore"}}
    return {"resourceSpans": [{"resource": {"attributes": [service]}, "scopeSpans": [scope]}]}


class _Writer:
    def __init__(self, graph: Graph, report: Report) -> None:
        self._graph = graph
        self._report = report
        self._tree = agent_tree(graph)
        self._episode_id = episode_id(graph)
        self._tools = tools_by_call(graph)
        self._events: dict[str, AnyEvent] = {}
        """The event that a span stands for, by the span's id."""
        self._spans: dict[str, dict[str, Any]] = {}

    def spans(self) -> list[dict[str, Any]]:
        root = self._span("episode", "episode", None, kind=_INTERNAL)
        self._put(root, "episode_id", self._episode_id)
        for agent_id in self._tree:
            for call in calls_in_order(self._graph, agent_id):
                self._call(call)
        homeless = [one for one in self._graph.tool_calls.values() if one.call_id not in self._graph.calls]
        for agent_id in self._tree:
            self._agent(agent_id)
        for reward in self._graph.rewards.values():
            self._reward(reward)
        carry = [*beside(self._graph), *homeless]
        self._put(root, "events", [carried(event) for event in carry])
        self._report.carried.update(event.kind for event in carry)
        self._report.lost.update("payload of a blob" for _ in self._graph.blobs)
        self._complete()
        return list(self._spans.values())

    def _complete(self) -> None:
        """Read the spans as they are, and put beside each what it does not say of its event."""
        spans = list(self._spans.values())
        read = otlp.events_of(_wrapped(spans), at="what is written", notes=Notes())
        native = {(item.event.kind, item.event.id): item.event for item in read}
        for span_id, event in self._events.items():
            for name, value in difference(event, native[event.kind, event.id]).items():
                self._put(self._spans[span_id], name, value)
                self._report.carried[f"{event.kind}: {name}"] += 1

    # Spans

    def _span(
        self, what: str, name: str, parent: str | None, *, of: str = "", **fields: Any
    ) -> dict[str, Any]:
        span_id = _id(f"{what}/{of}", 16)
        span = {
            "traceId": _id(self._episode_id, 32),
            "spanId": span_id,
            "name": name,
            **fields,
            "attributes": [],
        }
        self._spans[span_id] = span | ({"parentSpanId": parent} if parent is not None else {})
        return self._spans[span_id]

    def _put(self, span: dict[str, Any], name: str, value: Any) -> None:
        span["attributes"].append({"key": f"{KEY}.{name}", "value": {"stringValue": encoded(value).decode()}})

    def _stands_for(self, span: dict[str, Any], event: AnyEvent) -> None:
        self._events[span["spanId"]] = event
        self._put(span, "id", event.id)
        self._report.written[event.kind] += 1

    def _agent(self, agent_id: str) -> None:
        node = self._tree[agent_id]
        agent = node.agent
        parent = _id("episode/", 16)
        if node.depth and node.parent_id is not None:
            parent = _id(f"agent/{node.parent_id}", 16)
        if node.spawn is not None:
            wanted = node.spawn.tool_call_id
            tools = self._tools.get(node.spawn.call_id, ())
            spawning = [_id(f"tool/{one.id}", 16) for one in tools if one.tool_call_id == wanted is not None]
            parent = next((one for one in spawning if one in self._spans), parent)
        name = (agent.name if agent is not None else None) or agent_id
        span = self._span("agent", f"invoke_agent {name}", parent, of=agent_id, kind=_INTERNAL)
        attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
        if agent is None:
            self._report.lost["that an agent's event has not come"] += 1
            self._put(span, "id", agent_id)
        else:
            attributes |= {"gen_ai.request.model": agent.model} if agent.model is not None else {}
            _time(span, agent)
            self._stands_for(span, Agent(**_fields(agent)))
        span["attributes"] += _attributes(attributes)

    def _call(self, call: Call) -> None:
        name = f"chat {call.model}" if call.model is not None else "chat"
        span = self._span("call", name, _id(f"agent/{call.agent_id}", 16), of=call.id, kind=_CLIENT)
        read = messages(self._graph, call.id)
        whole = whole_call(self._graph, call)
        fields = _fields(whole)
        in_full = whole_request(self._graph, call, read)
        if in_full is not None and call.context == "delta":
            fields |= {"context": "whole", "request": raw(in_full)}
            self._report.written["delta request, with its whole context"] += 1
        answers = [_read(one.message) for one in whole.completions or ()]
        attributes: dict[str, Any] = {"gen_ai.operation.name": "chat"}
        attributes |= {"gen_ai.request.model": call.model} if call.model is not None else {}
        attributes |= {"gen_ai.response.id": call.provider_id} if call.provider_id is not None else {}
        attributes |= _request_attributes(in_full or {})
        if read:
            attributes["gen_ai.input.messages"] = _text([_in_parts(one) for one in read])
        if answers:
            reasons = [one.finish_reason for one in whole.completions or ()]
            said = [_finished(_in_parts(one), why) for one, why in zip(answers, reasons, strict=True)]
            attributes["gen_ai.output.messages"] = _text(said)
        span["attributes"] += _attributes(attributes | _usage(call))
        _time(span, call)
        self._uses(call, span, answers)
        self._stands_for(span, Call(**fields))

    def _uses(self, call: Call, span: dict[str, Any], answers: list[Any]) -> None:
        """Spans for the tool calls of a call, each with the tool use of an answer that it carried out."""
        free = {
            f"{completion}.{place}": use
            for completion, answer in enumerate(answers)
            for place, use in enumerate(uses_of(_from_parts(answer)))
        }
        for tool_call in self._tools.get(call.id, ()):
            wanted, start = tool_call.tool_call_id, f"{tool_call.completion}."
            fits = (at for at, use in free.items() if use.id == wanted is not None and at.startswith(start))
            where = next(fits, None)
            free.pop(where or "", None)
            self._tool_call(tool_call, span["spanId"], where)
        if free:
            self._put(span, "without", sorted(free))

    def _tool_call(self, tool_call: ToolCall, parent: str, where: str | None) -> None:
        name = f"execute_tool {tool_call.name}" if tool_call.name is not None else "execute_tool"
        span = self._span("tool", name, parent, of=tool_call.id, kind=_INTERNAL)
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool_call.name,
            "gen_ai.tool.call.id": tool_call.tool_call_id,
            "gen_ai.tool.call.arguments": tool_call.arguments,
        }
        result = _read(tool_call.result)
        if result is not None:
            attributes["gen_ai.tool.call.result"] = result if isinstance(result, str) else _text(result)
        span["attributes"] += _attributes({key: one for key, one in attributes.items() if one is not None})
        _time(span, tool_call)
        self._put(span, "use", where)
        self._stands_for(span, ToolCall(**_fields(tool_call)))

    def _reward(self, reward: Reward) -> None:
        """For other readers; ours takes the event that is carried whole."""
        target = reward.target
        names = [f"call/{target.call_id}", f"agent/{target.agent_id}", "episode/"]
        span = next(self._spans[_id(name, 16)] for name in names if _id(name, 16) in self._spans)
        attributes = {"gen_ai.evaluation.name": reward.name, "gen_ai.evaluation.score.value": reward.value}
        event: dict[str, Any] = {"name": "gen_ai.evaluation.result", "attributes": _attributes(attributes)}
        event |= {"timeUnixNano": str(reward.at)} if reward.at is not None else {}
        span.setdefault("events", []).append(event)
        self._report.written["reward"] += 1


def _id(name: str, digits: int) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def _text(value: Any) -> str:
    return encoded(value).decode("ascii")


def _read(span: Raw | None) -> Any:
    return None if span is None else exact.loads(bytes(span))


def _fields(event: AnyEvent) -> dict[str, Any]:
    return {
        name: getattr(event, name) for name in event.model_fields_set if name not in ("phase", "revision")
    }


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(one)} for name, one in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}


def _time(span: dict[str, Any], event: Agent | Call | ToolCall) -> None:
    """Times and status, as far as they are known."""
    for name, moment in (("startTimeUnixNano", event.started_at), ("endTimeUnixNano", event.ended_at)):
        if moment is not None:
            span[name] = str(moment)
    if event.status is not None:
        message = (
            event.error if isinstance(event.error, str) else event.error.message if event.error else None
        )
        code = {"code": 1 if event.status == "ok" else 2}
        span["status"] = code | ({"message": message} if message else {})


def _in_parts(message: Any) -> dict[str, Any]:
    """A message as GenAI has it: as it is where that loses nothing, else in words."""
    parts = to_parts(message)
    if parts is not None:
        return parts
    role = message.get("role") if isinstance(message, dict) else None
    said = [] if message is None else [{"type": "text", "content": text_of(encoded(message))}]
    return {"role": role if isinstance(role, str) else "user", "parts": said}


def _from_parts(answer: Any) -> Any:
    """An answer as the importer reads it back."""
    return answer if to_parts(answer) is not None else None


def _finished(message: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return message | ({} if reason is None else {"finish_reason": reason})


def _request_attributes(request: dict[str, Any]) -> dict[str, Any]:
    found = {
        name: request[ours]
        for ours, name in _PARAMETERS.items()
        if isinstance(request.get(ours), (int, float)) and not isinstance(request[ours], bool)
    }
    if isinstance(request.get("tools"), list) and request["tools"]:
        found["gen_ai.tool.definitions"] = _text(request["tools"])
    return found


def _usage(call: Call) -> dict[str, Any]:
    if call.usage is None:
        return {}
    names = {
        "gen_ai.usage.input_tokens": call.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": call.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.usage.cached_tokens,
        "gen_ai.usage.cache_write.input_tokens": call.usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": call.usage.reasoning_tokens,
        "gen_ai.usage.cost": call.usage.cost_usd,
    }
    return {name: one for name, one in names.items() if one is not None}
