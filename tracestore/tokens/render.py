"""Graph without token ids -> the same graph with those of a chat template, each call marked.

    prompt ids of a call    = ids(template(context, and the beginning of an answer))
    ids of its completion   = ids of what template(context, answer) writes behind that, up to the end of turn

So everything that an exporter does with recorded ids it does with these. A call that continues another, and
whose text does so, begins with the other's ids; where the template rewrites earlier turns (it strips their
thinking, say), it does not, and a new sample begins there as it would for recorded ids.

Nothing is rendered beside recorded ids: a graph in which any call or completion has some stays as it is,
since nobody says that they are this tokenizer's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from tracestore.graph.context import authors_on_path
from tracestore.graph.messages import Message, answer_messages, messages_of, request_tools
from tracestore.graph.model import CompletionKey, Graph, NotRendered, Rendering
from tracestore.tokens.messages import (
    Said,
    TemplateMessage,
    TemplateTool,
    Unrenderable,
    conversation,
    joined,
)
from tracestore.wire.arrays import TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionFields

if TYPE_CHECKING:
    from tracestore.tokens.chat import Chat, Spoken

Entries: TypeAlias = "list[tuple[Said, CompletionKey | None]]"
"""A context: each message with the completion that wrote it, where items of an answer are joined by it."""

_CUT_OFF = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
"""Finish reasons of answers that nobody ended, in the words of the APIs."""


def has_recorded_ids(graph: Graph) -> bool:
    """Whether any id of a graph was recorded."""
    return any(
        call.prompt_token_ids is not None or call.prompt_token_ids_delta is not None
        for call in graph.calls.values()
    ) or any(completion.token_ids is not None for completion in graph.completions.values())


def rendered(graph: Graph, chat: Chat) -> Graph:
    """The graph with rendered ids; as it is, but for its `rendering`, where any ids were recorded.

    A rendered call keeps no usage: another tokenizer counted it.
    """
    if has_recorded_ids(graph):
        without = {key: NotRendered("recorded_ids_beside") for key in _without_ids(graph)}
        return replace(graph, rendering=Rendering(not_rendered=without))
    return _Renderer(graph, chat).graph()


def _without_ids(graph: Graph) -> Iterator[CompletionKey]:
    return (key for key, completion in graph.completions.items() if completion.token_ids is None)


@dataclass(frozen=True, slots=True)
class _Context:
    """What a call saw, read."""

    entries: Entries
    tools: Raw | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a call was answered to, rendered."""

    entries: Entries
    messages: list[TemplateMessage]
    tools: list[TemplateTool] | None
    left_out: frozenset[str]
    prompt: Spoken


class _Renderer:
    """One pass over a graph, parents before the calls that continue them."""

    def __init__(self, graph: Graph, chat: Chat) -> None:
        self._graph = graph
        self._chat = chat
        self._reader = chat.reader()
        self._now_ns = _began_ns(graph)
        self._contexts: dict[str, _Context | Unrenderable] = {}
        self._spoken: dict[CompletionKey, Spoken] = {}
        self._awaited = Counter(link.parent for link in graph.links.values() if link.parent is not None)
        self._calls: dict[str, Call] = {}
        self._completions: dict[CompletionKey, CompletionFields] = {}
        self._not_rendered: dict[CompletionKey, NotRendered] = {}
        self._left_out: dict[CompletionKey, frozenset[str]] = {}

    def graph(self) -> Graph:
        for call_id in _parents_first(self._graph):
            self._call(call_id)
        for key in _without_ids(self._graph):
            if key not in self._completions:
                # Its call has not come, or nothing of the call could be rendered.
                self._not_rendered.setdefault(key, NotRendered("context_unknown"))
        return replace(
            self._graph,
            calls=self._graph.calls | self._calls,
            completions=self._graph.completions | self._completions,
            rendering=Rendering(
                calls=frozenset(self._calls), not_rendered=self._not_rendered, left_out=self._left_out
            ),
        )

    def _call(self, call_id: str) -> None:
        keys = self._graph.completions_of(call_id)
        parent = self._graph.links[call_id].parent
        try:
            context = self._contexts[call_id] = self._context(self._graph.calls[call_id])
            asked = self._asked(context, parent) if keys else None
        except Unrenderable as why:
            self._contexts.setdefault(call_id, why)
            self._not_rendered.update((key, NotRendered(why.why, why.detail)) for key in keys)
            return
        finally:
            self._forget(parent)
        if asked is None:
            return
        for key in keys:
            self._completion(key, asked)
        if any(key in self._completions for key in keys):
            self._calls[call_id] = self._graph.calls[call_id].model_copy(
                update={"prompt_token_ids": TokenIds.of(asked.prompt.ids), "usage": None}
            )

    def _asked(self, context: _Context, parent: CompletionKey | None) -> _Asked:
        tools, left_out = self._tools(context.tools)
        messages = self._messages(context.entries)
        prompt = self._chat.prompt(
            messages,
            tools=tools,
            now_ns=self._now_ns,
            after=None if parent is None else self._spoken.get(parent),
        )
        left_out = left_out.union(*(said.left_out for said, _ in context.entries))
        return _Asked(context.entries, messages, tools, left_out, prompt)

    def _completion(self, key: CompletionKey, asked: _Asked) -> None:
        completion = self._graph.completions[key]
        try:
            answer, rest = _own_words(self._answer(key))
            said = self._chat.answer(
                asked.messages + self._messages(answer),
                prompt=asked.prompt,
                is_cut_off=(completion.finish_reason or "").lower() in _CUT_OFF,
                tools=asked.tools,
                now_ns=self._now_ns,
            )
        except Unrenderable as why:
            self._not_rendered[key] = NotRendered(why.why, why.detail)
            return
        self._completions[key] = completion.model_copy(update={"token_ids": TokenIds.of(said.ids)})
        left_out = asked.left_out.union(rest, self._unwritten(answer), *(said.left_out for said, _ in answer))
        if left_out:
            self._left_out[key] = left_out
        if self._awaited[key]:
            self._spoken[key] = asked.prompt.then(said)

    def _forget(self, parent: CompletionKey | None) -> None:
        """Lets go of a text once every call that continues it has been rendered."""
        if parent is not None:
            self._awaited[parent] -= 1
            if not self._awaited[parent]:
                self._spoken.pop(parent, None)

    def _context(self, call: Call) -> _Context:
        """What a call saw: of a delta call its parent's context and answer, and its own messages."""
        tools = request_tools(call.request)
        own = messages_of(call.request, call.dialect)
        if call.id in self._graph.pending:
            raise Unrenderable("context_unknown")
        if call.context != "delta":
            authors = authors_on_path(self._graph, call.id) if call.dialect == "openai_responses" else {}
            return _Context(
                [(said, authors.get(at)) for at, one in enumerate(own) for said in self._read(one, call)],
                tools,
            )
        parent = self._graph.links[call.id].parent
        assert parent is not None, "a delta call without a parent is pending"
        before = self._contexts[parent[0]]
        if isinstance(before, Unrenderable):
            raise Unrenderable(before.why, before.detail)
        entries = before.entries + self._answer(parent)
        entries += [(said, None) for one in own for said in self._read(one, call)]
        return _Context(entries, before.tools if tools is None else tools)

    def _answer(self, key: CompletionKey) -> Entries:
        """A completion as what stands behind its call's context; items that are one turn as one."""
        call = self._graph.calls[key[0]]
        message = self._graph.completions[key].message
        said = [said for one in answer_messages(message, call.dialect) for said in self._read(one, call)]
        if len(said) > 1 and all(one.joins for one in said):
            said = [joined(said)]
        return [(one, key) for one in said]

    def _read(self, message: Message, call: Call) -> tuple[Said, ...]:
        return self._reader.read(message, call.dialect)

    def _messages(self, entries: Entries) -> list[TemplateMessage]:
        """Template messages, if the template writes all that they hold."""
        messages = conversation(entries)
        writes = self._chat.writes
        if "tool_calls" not in writes and any("tool_calls" in message for message in messages):
            raise Unrenderable("template_writes_no_tool_calls")
        if "tool_results" not in writes and any(message["role"] == "tool" for message in messages):
            raise Unrenderable("template_writes_no_tool_results")
        return messages

    def _tools(self, tools: Raw | None) -> tuple[list[TemplateTool] | None, frozenset[str]]:
        if tools is None:
            return None, frozenset()
        functions, left_out = self._reader.tools(tools)
        if functions and "tools" not in self._chat.writes:
            left_out |= {"tools"}
        return functions or None, left_out

    def _unwritten(self, answer: Entries) -> frozenset[str]:
        """Thinking that was sampled and that this template does not write."""
        thought = any("reasoning_content" in said.message for said, _ in answer)
        return frozenset({"reasoning"} if thought and "reasoning" not in self._chat.writes else ())


def _own_words(answer: Entries) -> tuple[Entries, frozenset[str]]:
    """The message of an answer that was sampled, and what of it is left out behind that.

    Some formats write the results of tools into it, which nobody sampled, and go on.

    Raises:
        Unrenderable: no_message, or nothing of it is told.
    """
    if not answer:
        raise Unrenderable("no_message")
    (first, _), others = answer[0], answer[1:]
    if first.role != "assistant":
        raise Unrenderable("unknown_part", f"an answer of role {first.role}")
    if first.left_out and all(kind == "item" for kind, _ in first.atoms):
        raise Unrenderable("nothing_written", ", ".join(sorted(first.left_out)))
    goes_on = any(said.role == "assistant" for said, _ in others)
    return answer[:1], frozenset({"rest_of_answer"} if goes_on else ())


def _parents_first(graph: Graph) -> Iterator[str]:
    """Every call once, each behind the call it continues; depth-first, so that few texts are kept."""
    children: dict[str | None, list[str]] = defaultdict(list)
    for call_id, link in graph.links.items():
        parent = None if link.parent is None or link.parent[0] not in graph.calls else link.parent[0]
        children[parent].append(call_id)
    open_calls = children[None][::-1]
    while open_calls:
        call_id = open_calls.pop()
        yield call_id
        open_calls += reversed(children[call_id])


def _began_ns(graph: Graph) -> int | None:
    """When the episode began, as far as anything of it says."""
    if graph.episode is not None and graph.episode.started_at is not None:
        return graph.episode.started_at
    return min(
        (call.started_at for call in graph.calls.values() if call.started_at is not None), default=None
    )
