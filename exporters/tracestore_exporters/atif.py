"""Graph -> an ATIF trajectory (v1.8): importing it gives the same calls, contexts, tokens and agents.

The episode's main agent is the trajectory; `session_id` is the episode's id, `trajectory_id` the agent's.
Every other agent is embedded in its parent's `subagent_trajectories`, and its parent's step refers to it.

    a message of a context     a step: user, system, or agent with is_copied_context
    a call                     an agent step: text, reasoning, tool calls, metrics with token ids and logprobs
    results of its tools       the step's observation
    a context that does not    a system step, after a context edit with extra.context_management, then the
    read on                    whole new context as copied steps

What ATIF has no name for stands under `extra.tracestore`, which our importer lays over what it reads (see
`tracestore.importers.atif`): messages that a step does not give back as they are, requests without their
messages, ids, ordinals, purposes, policies, statuses, times, further completions, tool executions, and the
events for candidates, rewards, edits, gaps, groups. The report counts what went there.

Not in the file: the bytes of JSON texts (values are kept, white space and spelling are not), and payloads of
blobs, whose references are carried. Both are counted as lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tracestore.graph.agents import AgentNode, agent_tree, calls_in_order
from tracestore.graph.messages import answer_messages, role_of_value, text_of, tool_uses
from tracestore.graph.model import CompletionKey, Graph
from tracestore.importers import exact
from tracestore.importers.atif_steps import ROLES, step_of
from tracestore.importers.carried import KEY, difference
from tracestore.importers.items import raw
from tracestore.wire.agent import Agent
from tracestore.wire.arrays import Logprobs
from tracestore.wire.base import Raw
from tracestore.wire.call import Call, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.tool_call import ToolCall
from tracestore_exporters.writing import (
    Report,
    beside,
    carried,
    continued,
    encoded,
    episode_id,
    extends,
    is_same,
    messages,
    request_beside,
    tools_by_call,
    whole_call,
)

VERSION = "ATIF-v1.8"
_SOURCES = {role: source for source, role in ROLES.items()}


def trajectory(graph: Graph, *, report: Report) -> dict[str, Any]:
    """The trajectory of an episode as JSON values (write it with `items.raw`, which keeps odd numbers).

    Args:
        report: is added to.
    """
    return _Writer(graph, report).document()


class _Writer:
    def __init__(self, graph: Graph, report: Report) -> None:
        self._graph = graph
        self._report = report
        self._tree = agent_tree(graph)
        self._tool_calls = tools_by_call(graph)
        self._events: list[dict[str, Any]] = []
        self._episode_id = episode_id(graph)

    def document(self) -> dict[str, Any]:
        for event in beside(self._graph):
            self._carry(event)
        self._report.lost.update("payload of a blob" for _ in self._graph.blobs)
        for key in self._graph.completions:
            if key[0] not in self._graph.calls:
                self._report.lost["completion of a call that has not come"] += 1
        roots = [node for node in self._tree.values() if node.depth == 0]
        mains = [node for node in roots if node.agent is not None and node.agent.role == "main"]
        main = next(iter(mains or roots), None)
        others = [node for node in roots if node is not main]
        document = self._agent(main, [node.agent_id for node in others])
        for tool_call in self._graph.tool_calls.values():
            if tool_call.call_id not in self._graph.calls:
                self._carry(tool_call)
        document["extra"][KEY]["events"] = self._events
        return document

    def _carry(self, event: Any) -> None:
        self._events.append(carried(event))
        self._report.carried[event.kind] += 1

    def _agent(self, node: AgentNode | None, others: Sequence[str] = ()) -> dict[str, Any]:
        agent_id = "main" if node is None else node.agent_id
        agent = None if node is None else node.agent
        steps = _Steps(self._graph, self._report, agent_id, self._tool_calls)
        for tool_call in steps.write():
            self._carry(tool_call)
        children = (() if node is None else node.children) + tuple(others)
        self._refer(steps, children)
        named = {"name": (agent.name or agent.role if agent else None) or "agent", "version": "unknown"}
        named |= {"model_name": agent.model} if agent is not None and agent.model is not None else {}
        document: dict[str, Any] = {
            "schema_version": VERSION,
            "session_id": self._episode_id,
            "trajectory_id": agent_id,
            "agent": named,
            "steps": steps.numbered(),
            "final_metrics": steps.totals() | {"total_steps": len(steps.steps)},
            "extra": {KEY: {"agent": self._given(agent, agent_id)}},
        }
        if children:
            document["subagent_trajectories"] = [self._agent(self._tree[child]) for child in children]
        self._report.written["agent"] += 1
        return document

    def _given(self, agent: Agent | None, agent_id: str) -> dict[str, Any]:
        """The agent's own event; of one that is only named, its id."""
        if agent is None:
            self._report.lost["that an agent's event has not come"] += 1
            return {"id": agent_id, "episode_id": self._episode_id}
        return {name: one for name, one in carried(agent).items() if name not in ("v", "kind")}

    def _refer(self, steps: _Steps, children: Sequence[str]) -> None:
        """References from the step that spawned an agent, where it is one of this trajectory."""
        for child in children:
            spawn = self._tree[child].spawn
            step = steps.by_call.get(spawn.call_id) if spawn is not None else None
            if step is None or spawn is None:
                continue
            ref = {"trajectory_id": child, "session_id": self._episode_id, "extra": {KEY: {"agent": True}}}
            results = step.setdefault("observation", {}).setdefault("results", [])
            of_tool = [one for one in results if one.get("source_call_id") == spawn.tool_call_id is not None]
            if not of_tool:
                of_tool = [{"extra": {KEY: {"is_ref": True}}}]
                results += of_tool
            of_tool[0].setdefault("subagent_trajectory_ref", []).append(ref)


class _Steps:
    """The steps of one agent."""

    def __init__(
        self, graph: Graph, report: Report, agent_id: str, tool_calls: dict[str, list[ToolCall]]
    ) -> None:
        self.steps: list[dict[str, Any]] = []
        self.by_call: dict[str, dict[str, Any]] = {}
        self._graph = graph
        self._report = report
        self._calls = calls_in_order(graph, agent_id)
        self._tool_calls = tool_calls
        self._edits = {edit.after_call_id: edit for edit in graph.context_edits.values()}

    def write(self) -> list[ToolCall]:
        """Write all steps; what is returned has no place in them."""
        homeless: list[ToolCall] = []
        seen: list[Any] = []
        before: CompletionKey | None = None
        for place, call in enumerate(self._calls):
            read = messages(self._graph, call.id)
            completion = continued(self._graph, self._calls, place)
            reads_on = extends(self._graph, call, before, read, seen)
            new = read[len(seen) :] if reads_on else read
            beside_list, num_alone = request_beside(call, is_whole=not reads_on)
            if reads_on:
                new = self._observe(self.steps[-1], new, num_alone)
            elif place:
                self._boundary(call)
            self._context(new, num_alone, is_copied=place > 0 and not reads_on)
            homeless += self._call(call, completion, beside_list, before if reads_on else None)
            before = (call.id, completion)
            answer = self._graph.completions.get(before)
            seen = read + _answers(answer.message if answer else None, call)
            if call.id in self._graph.pending:
                before = None
        if not self.steps:
            self.steps.append(_own({"source": "system", "message": "no model call is recorded"}, messages=[]))
        return homeless

    def numbered(self) -> list[dict[str, Any]]:
        return [{"step_id": place} | step for place, step in enumerate(self.steps, 1)]

    def totals(self) -> dict[str, Any]:
        """Sums over the agent's own steps; sub-agents are not counted in."""
        sums: dict[str, Any] = {}
        names = {
            name: f"total_{name}"
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
        }
        for step in self.steps:
            for name, total in names.items():
                if (number := step.get("metrics", {}).get(name)) is not None:
                    sums[total] = sums.get(total, 0) + number
        return sums

    # Contexts

    def _boundary(self, call: Call) -> None:
        step: dict[str, Any] = {"source": "system", "message": "the context begins anew"}
        edit = self._edits.get(call.id)
        if edit is not None:
            step["extra"] = {"context_management": {"type": edit.edit, "boundary": "replace"}}
            self._report.written["context edit"] += 1
        self.steps.append(_own(step, boundary=True))

    def _context(self, new: list[Any], num_alone: int, *, is_copied: bool) -> None:
        place = 0
        while place < len(new):
            step, num = _context_step(new[place:], num_alone=max(num_alone - place, 0))
            if is_copied or step["source"] == "agent":
                step["is_copied_context"] = True
            given = [] if place < num_alone else new[place : place + num]
            told = step_of(step)
            if [told.message, *told.observed] != given:
                step = _own(step, messages=given)
                self._report.carried["message"] += len(given)
            self._report.written["message"] += num
            self.steps.append(step)
            place += num

    def _observe(self, step: dict[str, Any], new: list[Any], num_alone: int) -> list[Any]:
        """Put the results of a call's tools into its step; the rest of the new messages is returned."""
        if num_alone:
            return new
        ids = [use.get("tool_call_id") for use in step.get("tool_calls", ())]
        num = 0
        while (
            num < len(new)
            and _result_id(new[num]) in ids
            and _result_id(new[num]) not in map(_result_id, new[:num])
        ):
            num += 1
        results = [{"source_call_id": _result_id(one)} | _content(one) for one in new[:num]]
        if results:
            step.setdefault("observation", {}).setdefault("results", []).extend(results)
        if step_of(step).observed != new[:num]:
            _own(step, observed=new[:num])
            self._report.carried["message"] += num
        self._report.written["message"] += num
        return new[num:]

    # Calls

    def _call(
        self, call: Call, completion: int, request: dict[str, Any] | None, before: CompletionKey | None
    ) -> list[ToolCall]:
        """Write the step of a call; what is returned are its tool calls that have no place in it.

        Args:
            completion: the answer that the step shows.
            request: the request without the messages that stand in steps.
            before: what the call reads on from; None where its context begins anew.
        """
        whole = whole_call(self._graph, call)
        bodies = whole.completions or ()
        body = bodies[completion] if completion < len(bodies) else None
        step = _answer_step(body, call)
        metrics, native = _metrics(whole, body)
        step |= {"model_name": call.model} if call.model is not None else {}
        step |= {"metrics": metrics} if metrics else {}
        if call.ended_at is not None:
            step["timestamp"] = datetime.fromtimestamp(call.ended_at / 1e9, tz=UTC).isoformat()
        native |= {"id": call.id, "episode_id": call.episode_id, "agent_id": call.agent_id}
        native |= {"model": call.model} if call.model is not None else {}
        native |= (
            {"context": "whole"} if before is None else {"context": "delta", "parent_call_id": before[0]}
        )
        own: dict[str, Any] = {} if request is None else {"request": request}
        if body is not None:
            spoken, said = step_of(step).message, _read(body.message)
            sampled = native.pop("sampled") | ({} if body.message is None else {"message": raw(spoken)})
            native["completions"] = (CompletionBody(),) * completion + (CompletionBody(**sampled),)
            own |= {"completion": completion} | ({"is_silent": True} if body.message is None else {})
            self._report.carried["answer"] += body.message is not None and not is_same(spoken, said)
            self._report.carried["further completion"] += len(bodies) - 1
        fields = {name: getattr(whole, name) for name in whole.model_fields_set if name != "request"}
        if before is not None:
            fields |= {"context": "delta", "parent_call_id": before[0], "parent_completion": before[1]}
        elif call.id not in self._graph.pending:
            fields["context"] = "whole"
        own |= difference(Call(**fields), Call(**native)) | {"id": call.id}
        self.steps.append(_own(step, call=own))
        self.by_call[call.id] = step
        self._report.written["call"] += 1
        return self._tools(call, completion, step)

    def _tools(self, call: Call, completion: int, step: dict[str, Any]) -> list[ToolCall]:
        mine = list(self._tool_calls.get(call.id, ()))
        for place, use in enumerate(step.get("tool_calls", ())):
            fits = [
                one for one in mine if (one.completion, one.tool_call_id) == (completion, use["tool_call_id"])
            ]
            native = _native_tool(call, use, place)
            own = difference(_told(fits[0]), native) if fits else {"is_absent": True}
            if fits:
                mine.remove(fits[0])
                self._report.written["tool call"] += 1
                # The observation comes with the next call's context: a result is said here all the same.
                own |= {"id": fits[0].id}
                if fits[0].result is not None:
                    own["result"] = exact.loads(bytes(fits[0].result))
            use.setdefault("extra", {})[KEY] = own
        return mine


def _told(tool_call: ToolCall) -> ToolCall:
    names = tool_call.model_fields_set - {"phase", "revision", "result"}
    return ToolCall(**{name: getattr(tool_call, name) for name in names})


def _native_tool(call: Call, use: dict[str, Any], place: int) -> ToolCall:
    spoken = step_of({"source": "agent", "tool_calls": [use]}).uses[0]
    fields: dict[str, Any] = {"tool_call_id": spoken.id, "name": spoken.name, "arguments": spoken.arguments}
    known = {name: one for name, one in fields.items() if one is not None}
    return ToolCall(id=f"{call.id}/tool/{place}", episode_id=call.episode_id, call_id=call.id, **known)


def _own(step: dict[str, Any], **fields: Any) -> dict[str, Any]:
    step.setdefault("extra", {}).setdefault(KEY, {}).update(fields)
    return step


def _read(span: Raw | None) -> Any:
    return None if span is None else exact.loads(bytes(span))


def _answers(message: Raw | None, call: Call) -> list[Any]:
    return [exact.loads(bytes(one.raw)) for one in answer_messages(message, call.dialect)]


# --- Messages -> steps -------------------------------------------------------------------------------------


def _context_step(left: Sequence[Any], *, num_alone: int) -> tuple[dict[str, Any], int]:
    """(a step for the first message, how many messages it stands for): results follow their tool calls."""
    message = left[0]
    role = role_of_value(message, default="system" if num_alone else "user")
    if role != "assistant":
        source = _SOURCES.get(role or "", "system" if role == "developer" else "user")
        return {"source": source, "message": _said(message)}, 1
    step = _spoken(message, text=raw(message))
    ids = [use["tool_call_id"] for use in step.get("tool_calls", ())]
    num = 1
    while num < len(left) and _result_id(left[num]) in ids:
        num += 1
    results = [{"source_call_id": _result_id(one)} | _content(one) for one in left[1:num]]
    return (step | {"observation": {"results": results}} if results else step), num


def _answer_step(body: CompletionBody | None, call: Call) -> dict[str, Any]:
    if body is None or body.message is None:
        return {"source": "agent", "message": ""}
    return _spoken(_read(body.message), text=body.message, call=call)


def _spoken(message: Any, *, text: Raw, call: Call | None = None) -> dict[str, Any]:
    """An agent step of an assistant message, as far as ATIF can say it."""
    fields = message if isinstance(message, dict) else {}
    step: dict[str, Any] = {"source": "agent", "message": _said(message)}
    if isinstance(fields.get("reasoning_content"), str):
        step["reasoning_content"] = fields["reasoning_content"]
    uses = [
        {"tool_call_id": use.id or f"call-{place}", "function_name": use.name or "unknown"}
        | {"arguments": _object(use.arguments)}
        for place, use in enumerate(tool_uses(text, call.dialect if call else "openai_chat"))
    ]
    return step | ({"tool_calls": uses} if uses else {})


def _said(message: Any) -> Any:
    """Text or parts of a message: its own content where ATIF takes it, else what it says in words."""
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content and all(_is_part(one) for one in content):
        return content
    return text_of(encoded(message))


def _is_part(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if value.get("type") == "text":
        return value.keys() == {"type", "text"}
    return value.get("type") in ("image", "audio") and isinstance(value.get("source"), dict)


def _content(message: Any) -> dict[str, Any]:
    return {"content": _said(message)} if isinstance(message, dict) and "content" in message else {}


def _result_id(message: Any) -> str | None:
    """The tool call that a chat message is the result of."""
    if isinstance(message, dict) and message.get("role") == "tool":
        found = message.get("tool_call_id")
        return found if isinstance(found, str) else None
    return None


def _object(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


# --- Metrics -------------------------------------------------------------------------------------------


def _metrics(call: Call, body: CompletionBody | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """(metrics of a step, the fields of a call that are read back from them)."""
    metrics: dict[str, Any] = {}
    native: dict[str, Any] = {"sampled": {}} if body is not None else {}
    if call.usage is not None:
        names = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
        told = {name: one for name in names if (one := getattr(call.usage, name)) is not None}
        metrics |= told
        native |= {"usage": Usage(**told)} if told else {}
    if call.prompt_token_ids is not None:
        metrics["prompt_token_ids"] = call.prompt_token_ids.json()
        native["prompt_token_ids"] = call.prompt_token_ids
    if body is not None and body.token_ids is not None:
        metrics["completion_token_ids"] = body.token_ids.json()
        native["sampled"]["token_ids"] = body.token_ids
        if body.logprobs is not None and _is_listable(body.logprobs):
            metrics["logprobs"] = body.logprobs.json()
            native["sampled"]["logprobs"] = body.logprobs
    return metrics, native


def _is_listable(logprobs: Logprobs) -> bool:
    """Whether a list of numbers gives them back bit for bit."""
    return not logprobs.nulls and logprobs.is_finite and Logprobs.of(logprobs.json()) == logprobs
