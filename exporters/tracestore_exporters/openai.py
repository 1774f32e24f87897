"""Graph -> OpenAI's supervised fine-tuning lines: `{messages, tools?}`, one for each branch that teaches.

A line is a branch of the episode, from its first message to its last answer that trains. Answers that train
have `weight` 1 in the first line that holds them and 0 in all others, so each is trained once. What else is
answered on a line has 0: whatever the spec, of objective `sft`, leaves out of shards (other writers, failed
calls, judges, rejected edits and candidates, other splits).

Contexts of any dialect become chat messages (`tracestore.tokens.messages`). Arguments of tool calls are
objects written anew: their values are kept, white space is not. Counted as lost are answers that do not
train, by reason, and what these messages cannot say: reasoning, tools that are no functions, and whole lines
(media, a tool call without an id).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from tracestore.graph.branches import Branch, branches
from tracestore.graph.context import ContextMessage, answer_in_context, context
from tracestore.graph.messages import Message, request_tools
from tracestore.graph.model import CompletionKey, Graph
from tracestore.shards.reasons import Reason
from tracestore.tokens.messages import Reader, Said, TemplateMessage, Unrenderable, conversation
from tracestore_exporters.masks import Masks
from tracestore_exporters.spec import Spec
from tracestore_exporters.writing import Report, encoded


def examples(graph: Graph, *, spec: Spec, report: Report) -> Iterator[dict[str, Any]]:
    """The lines of an episode.

    Args:
        spec: of objective `sft`.
        report: is added to: `answer` (trained once) and `line` as written, what is lost by kind.
    """
    return _Writer(graph, spec, report).examples()


def left_waiting(graph: Graph, *, report: Report) -> None:
    """Count the answers of an episode whose group is open: their lines may still change."""
    report.lost[_lost(Reason.GROUP_OPEN)] += len(graph.completions)


def _lost(reason: Reason) -> str:
    return f"answer: {reason.label}"


class _Writer:
    def __init__(self, graph: Graph, spec: Spec, report: Report) -> None:
        self._graph = graph
        self._report = report
        self._reader = Reader(None)
        self._reasons = Masks(graph, spec)
        self._taught: set[CompletionKey] = set()

    def examples(self) -> Iterator[dict[str, Any]]:
        reasons = {key: self._reason(key) for key in self._graph.completions}
        teaches = {key for key, reason in reasons.items() if reason is None}
        self._report.lost.update(_lost(reason) for reason in reasons.values() if reason is not None)
        for branch in branches(self._graph):
            new = [key for key in branch.completions if key in teaches and key not in self._taught]
            if not new:
                continue
            try:
                line = self._line(branch, frozenset(new))
            except Unrenderable as error:
                self._report.lost[f"line: {error.why}"] += 1
                continue
            self._taught.update(new)
            self._report.written.update({"line": 1, "answer": len(new)})
            yield line
        self._report.lost["answer"] += len(teaches - self._taught)

    def _reason(self, key: CompletionKey) -> Reason | None:
        return self._reasons.of_text(key) if key[0] in self._graph.calls else Reason.CALL_INCOMPLETE

    def _line(self, branch: Branch, new: frozenset[CompletionKey]) -> dict[str, Any]:
        """
        Raises:
            Unrenderable: something on it has no place in a chat message.
        """
        said = list(context(self._graph, branch.end_call_id))
        if branch.end is not None:
            said += answer_in_context(self._graph, branch.end)
        messages, last = [], 0
        for author, run in groupby(self._read(said, branch.end_call_id), key=lambda one: one[1]):
            for message in conversation(list(run)):
                teaches = author in new and message["role"] == "assistant"
                messages.append(self._message(message, teaches=teaches))
                last = len(messages) if teaches else last
        line: dict[str, Any] = {"messages": messages[:last]}
        if not last:
            raise Unrenderable("no_message")
        tools = self._tools(branch.end_call_id)
        return line | ({"tools": tools} if tools else {})

    def _read(
        self, said: Sequence[ContextMessage], call_id: str
    ) -> Iterator[tuple[Said, CompletionKey | None]]:
        dialect = self._graph.calls[call_id].dialect
        for one in said:
            role = None if one.node is None else self._graph.nodes[one.node].role
            for message in self._reader.read(Message(one.raw, role), dialect):
                yield message, one.author

    def _message(self, message: TemplateMessage, *, teaches: bool) -> dict[str, Any]:
        role = message["role"]
        made: dict[str, Any] = {"role": role, "content": message["content"]}
        if role == "tool":
            made["tool_call_id"] = _id(message.get("tool_call_id"))
        if role != "assistant":
            return made
        if "tool_calls" in message:
            made["content"] = message["content"] or None
            made["tool_calls"] = [_tool_call(one) for one in message["tool_calls"]]
        if teaches and "reasoning_content" in message:
            self._report.lost["reasoning"] += 1
        return made | {"weight": int(teaches)}

    def _tools(self, call_id: str) -> list[dict[str, Any]]:
        """The tools of a call, of a delta call those that its ancestors were given."""
        call = self._graph.calls[call_id]
        tools = request_tools(call.request)
        while tools is None and call.context == "delta":
            parent = self._graph.links[call.id].parent
            assert parent is not None, "a delta call without a parent is pending"
            call = self._graph.calls[parent[0]]
            tools = request_tools(call.request)
        if tools is None:
            return []
        functions, left_out = self._reader.tools(tools)
        self._report.lost.update(f"{what} that are no functions" for what in left_out)
        return functions


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else encoded(dict(arguments)).decode()
    function = {"name": call["function"]["name"], "arguments": text}
    return {"id": _id(call.get("id")), "type": "function", "function": function}


def _id(id_: Any) -> str:
    if not isinstance(id_, str):
        raise Unrenderable("tool_call_without_an_id")
    return id_
