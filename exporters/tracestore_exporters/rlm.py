"""Graph -> the lines of an RLM logger file (github.com/alexzhang13/rlm): importing it gives the same calls.

    the episode         a `metadata` line, and `run_context` with its task where that is known
    main agent's calls  an `iteration` line each: its whole prompt, its response, its code blocks
    a tool call         a code block {code, result}: its arguments and its result
    an agent below      one of the `rlm_calls` of the block that spawned it: plain where it made one call and
                        ran nothing, else with its own iterations in `metadata`

What was recorded from such a file is written as it was. What the format has no name for stands beside it
under `tracestore`, which our importer lays over what it reads (see `tracestore.importers.rlm`): ids, token
ids and logprobs, policies, statuses, times, parameters, further completions; on the first line the events for
candidates, rewards, edits, gaps, groups, and whatever hangs from no call of the main agent's tree.

Settings of the harness that were not recorded (max_depth, max_iterations, environment_type, ...) are null.
Not in the file: the bytes of JSON texts (values are kept, white space and spelling are not), delta requests
(every call has its whole context), and payloads of blobs, whose references are carried.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from tracestore.graph.agents import AgentNode, agent_tree, calls_in_order
from tracestore.graph.messages import text_of
from tracestore.graph.model import Graph
from tracestore.importers import exact, rlm
from tracestore.importers.carried import KEY, difference
from tracestore.importers.items import raw
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.events import AnyEvent
from tracestore.wire.tool_call import ToolCall
from tracestore_exporters.writing import (
    Report,
    beside,
    carried,
    continued,
    messages,
    tools_by_call,
    whole_call,
    whole_request,
)

_SETTINGS = (
    *("root_model", "max_depth", "max_iterations", "backend", "backend_kwargs", "environment_type"),
    *("environment_kwargs", "other_backends"),
)
_RESULT: dict[str, Any] = {"stdout": "", "stderr": "", "locals": {}, "execution_time": None}
_DIGITS = re.compile(r"(\d+)")


def lines(graph: Graph, *, report: Report) -> list[dict[str, Any]]:
    """The lines of an episode's file as JSON values (write each with `items.raw`, which keeps odd numbers).

    Args:
        report: is added to.
    """
    return _Writer(graph, report).lines()


class _Writer:
    def __init__(self, graph: Graph, report: Report) -> None:
        self._graph = graph
        self._report = report
        self._tree = agent_tree(graph)
        self._tools = tools_by_call(graph)
        self._stands: list[tuple[dict[str, Any], str, AnyEvent]] = []
        """(record, name of its part, event that it stands for), in the order in which they are read."""
        self._written: set[str] = set()
        """Agents that have a place."""
        self._below: dict[str, list[AgentNode]] = defaultdict(list)
        """Call -> agents that it spawned, of those below its own agent."""
        for node in self._tree.values():
            call = graph.calls.get(node.spawn.call_id) if node.spawn is not None else None
            if call is not None and node.depth and node.parent_id == call.agent_id:
                self._below[call.id].append(node)

    def lines(self) -> list[dict[str, Any]]:
        roots = [node for node in self._tree.values() if node.depth == 0]
        mains = [node for node in roots if node.agent is not None and node.agent.role == "main"]
        main = next(iter(mains or roots), None)
        told = self._first(main) + ([] if main is None else self._iterations(main))
        self._complete(told)
        told[0][KEY]["events"] = [carried(event) for event in self._carried()]
        return told

    def _carried(self) -> Iterator[AnyEvent]:
        """Events that have no place of their own in the file."""
        for event in beside(self._graph):
            if event.kind != "episode":
                yield self._counted(event)
        self._report.lost.update("payload of a blob" for _ in self._graph.blobs)
        for key in self._graph.completions:
            if key[0] not in self._graph.calls:
                self._report.lost["completion of a call that has not come"] += 1
        for node in self._tree.values():
            if node.agent_id in self._written:
                continue
            if node.agent is not None:
                yield self._counted(node.agent)
            for call in calls_in_order(self._graph, node.agent_id):
                yield self._counted(whole_call(self._graph, call))
        for tool_call in self._graph.tool_calls.values():
            of = self._graph.calls.get(tool_call.call_id)
            if of is None or of.agent_id not in self._written or self._is_plain(of.agent_id):
                yield self._counted(tool_call)

    def _counted(self, event: AnyEvent) -> AnyEvent:
        self._report.carried[event.kind] += 1
        return event

    # Lines

    def _first(self, main: AgentNode | None) -> list[dict[str, Any]]:
        episode = self._graph.episode
        agent = None if main is None else main.agent
        recorded = {one["type"]: one for one in _recorded(episode) if isinstance(one.get("type"), str)}
        settings = dict.fromkeys(_SETTINGS) | {"root_model": None if agent is None else agent.model}
        began = _moment(None if episode is None else episode.started_at)
        line = {"type": "metadata", "timestamp": began} | settings | recorded.get("metadata", {})
        # None: no such event has come.
        line[KEY] = {"episode": None, "agent": None}
        self._stand(line, "episode", episode)
        self._stand(line, "agent", agent)
        if episode is None or episode.task is None:
            return [line]
        context = {"type": "run_context", "timestamp": began, "root_prompt": None}
        return [line, context | recorded.get("run_context", {}) | {"prompt": _value(episode.task)}]

    def _iterations(self, node: AgentNode) -> list[dict[str, Any]]:
        self._written.add(node.agent_id)
        calls = calls_in_order(self._graph, node.agent_id)
        return [self._iteration(node, calls, place) for place in range(len(calls))]

    def _iteration(self, node: AgentNode, calls: Sequence[Call], place: int) -> dict[str, Any]:
        call = calls[place]
        read = messages(self._graph, call.id)
        answer = self._graph.completions.get((call.id, continued(self._graph, calls, place)))
        returned = None if node.agent is None or place + 1 < len(calls) else node.agent.return_message
        line = {
            "type": "iteration",
            "iteration": place + 1,
            "timestamp": _moment(call.ended_at),
            "prompt": None if call.request is None else read,
            "response": None if answer is None else _said(answer.message),
            "final_answer": _value(returned),
            "iteration_time": _seconds(call),
        }
        (recorded,) = _recorded(call) or [{}]
        line |= {name: one for name, one in recorded.items() if name != "code_blocks"} | {KEY: {}}
        self._stand(line, "call", self._whole(call, read))
        return line | {"code_blocks": self._blocks(call)}

    def _blocks(self, call: Call) -> list[dict[str, Any]]:
        told = sorted(self._tools.get(call.id, ()), key=lambda one: _natural(one.id))
        below = sorted(self._below.get(call.id, ()), key=lambda one: _natural(one.agent_id))
        homes: list[list[AgentNode]] = [[] for _ in told]
        homeless: list[AgentNode] = []
        for node in below:
            home = [n for n, one in enumerate(told) if _spawned(one, node)] or ([0] if len(told) == 1 else [])
            (homes[home[0]] if home else homeless).append(node)
        blocks = [self._block(one, nodes) for one, nodes in zip(told, homes, strict=True)]
        if homeless:
            # Nobody knows by which block: one that only our importer knows to be none.
            block: dict[str, Any] = {"code": "", "result": dict(_RESULT), KEY: {"tool_call": None}}
            blocks.append(block)
            block["result"]["rlm_calls"] = [self._asked(node) for node in homeless]
        return blocks

    def _block(self, tool_call: ToolCall, below: Sequence[AgentNode]) -> dict[str, Any]:
        result = _value(tool_call.result)
        known = result if isinstance(result, dict) else {"stdout": result if isinstance(result, str) else ""}
        block: dict[str, Any] = {"code": tool_call.arguments, "result": _RESULT | known, KEY: {}}
        for record in _recorded(tool_call):
            block |= record
        self._stand(block, "tool_call", tool_call)
        block["result"]["rlm_calls"] = [self._asked(node) for node in below]
        return block

    def _asked(self, node: AgentNode) -> dict[str, Any]:
        """An agent as the block that spawned it logs it."""
        agent, calls = node.agent, calls_in_order(self._graph, node.agent_id)
        assert agent is not None, "only an agent whose event has come says which call spawned it"
        returned = _value(agent.return_message)
        told: dict[str, Any] = {
            "root_model": agent.model,
            "prompt": _value(agent.scope_prompt),
            "response": returned,
            "usage_summary": {"model_usage_summaries": {}},
            "execution_time": _seconds(agent),
        }
        told |= {"error": agent.error} if agent.error is not None else {}
        for record in _recorded(agent):
            told |= {name: one for name, one in record.items() if name not in ("run_metadata", "iterations")}
        told[KEY] = {} if calls else {"call": None}  # who iterated never made a plain call
        self._stand(told, "agent", agent)
        if not self._is_plain(node.agent_id):
            settings = dict.fromkeys(_SETTINGS) | {"root_model": agent.model}
            for record in _recorded(agent):
                settings |= record.get("run_metadata", {})
            told["metadata"] = {"run_metadata": settings, "iterations": self._iterations(node)}
            return told
        self._written.add(node.agent_id)
        (call,) = calls
        read = messages(self._graph, call.id)
        told["prompt"] = read[0] if call.dialect == "text" and len(read) == 1 else read
        told["usage_summary"] = {"model_usage_summaries": _usage(call)}
        if call.error is not None:
            error: dict[str, Any] = {"error": call.error.message, "error_type": call.error.type}
            error["status_code"] = call.error.status_code
            told |= {name: one for name, one in error.items() if one is not None}
        for record in _recorded(call):
            told |= record
        self._stand(told, "call", self._whole(call, read))
        return told

    def _is_plain(self, agent_id: str) -> bool:
        """Whether it is one call that asked nobody and ran nothing."""
        calls = calls_in_order(self._graph, agent_id)
        return (
            self._tree[agent_id].depth > 0
            and len(calls) == 1
            and not (self._tools.get(calls[0].id) or self._tree[agent_id].children)
        )

    def _whole(self, call: Call, read: Sequence[Any]) -> Call:
        fields = _fields(whole_call(self._graph, call))
        in_full = whole_request(self._graph, call, read)
        if in_full is not None and call.context == "delta":
            fields |= {"context": "whole", "request": raw(in_full)}
            self._report.written["delta request, with its whole context"] += 1
        return Call(**fields)

    # What the lines do not say

    def _stand(self, record: dict[str, Any], part: str, event: AnyEvent | None) -> None:
        if event is not None:
            self._stands.append((record, part, event))
            record[KEY][part] = {"id": event.id}
            self._report.written[event.kind] += 1

    def _complete(self, told: Sequence[dict[str, Any]]) -> None:
        """Read the lines as they are, and put beside each what it does not say of its event."""
        native = {(one.event.kind, one.event.id): one.event for one in rlm.events_of(told, notes=Notes())}
        for record, part, event in self._stands:
            found = difference(type(event)(**_fields(event)), native[event.kind, event.id])
            self._report.carried.update(f"{event.kind}: {name}" for name in found)
            record[KEY][part] |= found


def _recorded(event: AnyEvent | None) -> list[dict[str, Any]]:
    """What an event that was read from such a file kept of it."""
    meta = _value(None if event is None else event.meta)
    told = meta.get("rlm") if isinstance(meta, dict) else None
    return [one for one in (told if isinstance(told, list) else [told]) if isinstance(one, dict)]


def _fields(event: AnyEvent) -> dict[str, Any]:
    names = event.model_fields_set - {"phase", "revision"}
    return {name: getattr(event, name) for name in names}


def _value(span: Raw | None) -> Any:
    return None if span is None else exact.loads(bytes(span))


def _said(message: Raw | None) -> Any:
    """An answer as the logger has it: a text."""
    value = _value(message)
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) or message is None else text_of(bytes(message))


def _spawned(tool_call: ToolCall, node: AgentNode) -> bool:
    spawn = node.spawn
    if spawn is None or spawn.tool_call_id is None:
        return False
    return (tool_call.tool_call_id, tool_call.completion) == (spawn.tool_call_id, spawn.completion or 0)


def _usage(call: Call) -> dict[str, Any]:
    """The logger's count of one call by model; {} where nothing was counted."""
    if call.usage is None:
        return {}
    counts = {"total_input_tokens": call.usage.prompt_tokens}
    counts |= {"total_output_tokens": call.usage.completion_tokens}
    return {call.model or "unknown": {"total_calls": 1} | counts}


def _moment(nanoseconds: int | None) -> str | None:
    return None if nanoseconds is None else datetime.fromtimestamp(nanoseconds / 1e9, tz=UTC).isoformat()


def _seconds(event: Agent | Call) -> float | None:
    if event.started_at is None or event.ended_at is None:
        return None
    return (event.ended_at - event.started_at) / 1e9


def _natural(name: str) -> list[Any]:
    """A key by which block 10 stands behind block 9."""
    return [int(part) if place % 2 else part for place, part in enumerate(_DIGITS.split(name))]
