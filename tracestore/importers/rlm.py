"""RLM logger files (JSON lines) -> an episode for each completion, with agents for what its code called.

The file of one RLM object holds a `metadata` line (root_model, max_depth, backend, ...), in newer versions a
`run_context` line {prompt, root_prompt}, then an `iteration` line each {iteration, prompt, response,
code_blocks, final_answer, iteration_time}.

- An iteration is a call; its prompt is the whole list of messages. The list is what the harness held when it
  wrote the line, which is what it sent unless it had changed it since.
- A code block {code, result{stdout, stderr, locals, execution_time, rlm_calls}} is a tool call `repl`, named
  `code/PLACE` by us: the model gives its blocks no ids. Each of its `rlm_calls` is a call by an agent below,
  spawned by that tool call: with `metadata` {run_metadata, iterations} one that iterated itself (rlm_query),
  without it one plain call (llm_query). Their order in time is unknown: a block may run them side by side.
- Iterations of an agent below are written when it is done. In version 0.1.3 all of them hold the one list to
  which its turns were added: what was sent ends before the iteration's own answer (`_sent`). Inferred.
- A prompt shorter than the one before it means that the history was compacted: inferred. The call that wrote
  the summary is not logged, and stated as a gap.
- A line of metadata or run_context after iterations begins another episode. There are no ids: episodes are
  named by the content of their first line, which holds the time at which it was written.
- `usage_summary` of a call below counts by model; it is the call's usage where it counts one call.

Times have no zone: they stay in `meta`. Token ids, logprobs and the usage of iterations are never logged.

Files that our exporter wrote have beside these, under `tracestore`, what the format has no name for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers.carried import KEY, completed, events
from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Source, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, known
from tracestore.importers.items import Item, content_id, count, left, made, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, CallError, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.gap import Gap
from tracestore.wire.tool_call import ToolCall

_BEGINS = ("metadata", "run_context")


def _kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind == "metadata" and {"root_model", "max_depth", "environment_type"} <= value.keys():
        return "metadata"
    if kind == "run_context" and "prompt" in value:
        return "run_context"
    return (
        "iteration" if kind == "iteration" and {"prompt", "response", "code_blocks"} <= value.keys() else None
    )


def _recognises(head: Head) -> bool:
    return _kind(head.first) is not None


@dataclass
class _Completion:
    """The lines of one episode."""

    first: list[Record] = field(default_factory=list)
    """Its metadata and run_context."""
    iterations: list[Record] = field(default_factory=list)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes with their agents, calls and executions."""
    for source in sources:
        for completion in _completions(source, notes):
            at = (completion.first or completion.iterations)[0].at
            first = [record.value for record in completion.first]
            others = [record.value for record in completion.iterations]
            yield from guarded(_episode(first, others, at, notes), at=at, notes=notes)


def _completions(source: Source, notes: Notes) -> Iterator[_Completion]:
    one = _Completion()
    for record in records(source, notes=notes):
        kind = _kind(record.value)
        if kind is None:
            notes.refuse(record.at, "no metadata, run_context or iteration of an RLM logger")
            continue
        notes.rows[f"rlm/{kind}"] += 1
        is_second_context = kind == "run_context" and any(_kind(r.value) == kind for r in one.first)
        if kind in _BEGINS and (one.iterations or is_second_context):
            yield one
            one = _Completion()
        (one.first if kind in _BEGINS else one.iterations).append(record)
    if one.first or one.iterations:
        yield one


def events_of(lines: Sequence[Any], *, notes: Notes) -> Iterator[Item]:
    """The events of the lines of one episode."""
    first = [line for line in lines if _kind(line) in _BEGINS]
    others = [line for line in lines if _kind(line) == "iteration"]
    yield from _episode(first, others, "lines in memory", notes)


def _episode(before: Sequence[Any], others: Sequence[Any], at: str, notes: Notes) -> Iterator[Item]:
    """
    Args:
        before: its metadata and run_context; `others`: its iterations.
    """
    first = [as_dict(value) for value in before]
    own = next((_own(value) for value in first if KEY in value), None)
    episode_id = _named(own, "episode", content_id("rlm", (*before, *others)[0]))
    metadata = next((value for value in first if value["type"] == "metadata"), {})
    context = next((value for value in first if value["type"] == "run_context"), {})
    model, task = metadata.get("root_model"), context.pop("prompt", None)
    iterations = [as_dict(value) for value in others]
    answer = next((one["final_answer"] for one in iterations if one.get("final_answer") is not None), None)
    # A file that goes on says more; one that we wrote is whole.
    revision = len(first) + len(iterations) if own is None else None
    episode = made(
        Episode,
        id=episode_id,
        revision=revision,
        task=None if task is None else raw(task),
        status=None if answer is None else "ok",
        meta=left("rlm", *first) if own is None else None,
    )
    agent_id = _named(own, "agent", f"{episode_id}/main")
    agent = made(
        Agent,
        id=agent_id,
        revision=revision,
        episode_id=episode_id,
        role="main",
        depth=0,
        model=model if isinstance(model, str) else None,
        return_message=None if answer is None else raw(answer),
        status=None if answer is None else "ok",
    )
    yield from _laid(episode, own, "episode", at, notes)
    yield from _laid(agent, own, "agent", at, notes)
    if own is not None:
        yield from events(own.get("events"), at=at, notes=notes)
    run = _Run(episode_id, agent_id, 0, model if isinstance(model, str) else None, at, notes)
    yield from run.items(iterations, are_ours=own is not None)


def _own(record: dict[str, Any]) -> dict[str, Any] | None:
    """What our exporter put into a record, taken out of it; None where it is no record of ours."""
    return as_dict(record.pop(KEY)) if KEY in record else None


def _named(own: dict[str, Any] | None, what: str, usual: str) -> str:
    name = as_dict((own or {}).get(what)).get("id")
    return name if isinstance(name, str) else usual


def _laid(item: Item, own: dict[str, Any] | None, what: str, at: str, notes: Notes) -> Iterator[Item]:
    """An event as our exporter completed it; none where it says that there is none."""
    fields = (own or {}).get(what, {})
    if fields is not None:
        yield completed(item, fields, at=at, notes=notes)


@dataclass(frozen=True)
class _Run:
    """One agent that iterates."""

    episode_id: str
    agent_id: str
    depth: int
    model: str | None
    at: str
    """Place of the episode in its file."""
    notes: Notes

    def items(self, iterations: list[dict[str, Any]], *, are_ours: bool) -> Iterator[Item]:
        """Calls, executions, agents below and compactions.

        Args:
            are_ours: our exporter wrote them: what it does not say is not inferred.
        """
        before: int | None = None
        sent = [one.get("prompt") for one in iterations] if are_ours else self._sent(iterations)
        for ordinal, iteration in enumerate(iterations):
            prompt = iteration.get("prompt")
            length = len(prompt) if isinstance(prompt, list) else None
            if before is not None and length is not None and length < before and not are_ours:
                yield from self._compaction(ordinal)
            before = length
            yield from self._iteration(ordinal, {**iteration, "prompt": sent[ordinal]})

    def _sent(self, iterations: list[dict[str, Any]]) -> list[Any]:
        """The prompt of each iteration without what was added to its list after it was sent.

        Prompts that read on have the answer of an iteration first behind its prompt. Where the next prompt
        begins with this one and does not, this one's list holds the answer already, and ends before it.
        """
        logged = [one.get("prompt") for one in iterations]
        sent: list[Any] = []
        begin, was_cut = 0, False
        for place, (iteration, prompt) in enumerate(zip(iterations, logged, strict=True)):
            answer = {"role": "assistant", "content": iteration.get("response")}
            later = logged[place + 1] if place + 1 < len(logged) else None
            is_same = place > 0 and prompt == logged[place - 1]
            begin, was_cut = (begin, was_cut) if is_same else (0, False)
            if not isinstance(prompt, list) or not (_holds(prompt, later, answer) or was_cut):
                sent.append(prompt)
                continue
            end = next((at for at in range(begin, len(prompt)) if prompt[at] == answer), None)
            sent.append(prompt if end is None else prompt[:end])
            begin, was_cut = (begin, was_cut) if end is None else (end + 1, True)
            if end is not None:
                self.notes.infer("what an iteration sent", evidence="its list goes on with its own answer")
        return sent

    def _call_id(self, ordinal: int) -> str:
        return safe_id(f"{self.agent_id}/{ordinal}")

    def _compaction(self, ordinal: int) -> Iterator[Item]:
        self.notes.infer("a compaction", evidence="the next prompt is shorter")
        yield made(
            ContextEdit,
            id=safe_id(f"{self.agent_id}/compaction/{ordinal}"),
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            edit="compaction",
            before_call_id=self._call_id(ordinal - 1),
            after_call_id=self._call_id(ordinal),
        )
        yield made(
            Gap,
            id=safe_id(f"{self.agent_id}/unrecorded_summary/{ordinal}"),
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            call_id=self._call_id(ordinal),
            cause="unrecorded_summary_call",
        )

    def _iteration(self, ordinal: int, rest: dict[str, Any]) -> Iterator[Item]:
        call_id = self._call_id(ordinal)
        own = _own(rest)
        call_id = _named(own, "call", call_id)
        prompt, response = rest.pop("prompt", None), rest.pop("response", None)
        blocks = as_list(rest.pop("code_blocks", None))
        if rest.get("type") == "iteration":
            del rest["type"]
        call = made(
            Call,
            id=call_id,
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            ordinal=ordinal,
            model=self.model,
            **_asked(prompt),
            completions=_answered(response),
            meta=left("rlm", {name: one for name, one in rest.items() if one is not None})
            if own is None
            else None,
        )
        yield from _laid(call, own, "call", self.at, self.notes)
        for place, block in enumerate(blocks):
            yield from self._block(as_dict(block), place, call_id)

    def _block(self, block: dict[str, Any], place: int, call_id: str) -> Iterator[Item]:
        own, name = _own(block), f"code/{place}"
        code, result = taken(block, "code", str), as_dict(block.pop("result", None))
        below = as_list(result.pop("rlm_calls", None))
        tool_call = made(
            ToolCall,
            id=safe_id(f"{call_id}/{name}"),
            episode_id=self.episode_id,
            call_id=call_id,
            tool_call_id=name,
            name="repl",
            arguments=code,
            result=raw(result) if result else None,
            meta=left("rlm", block),
        )
        yield from _laid(tool_call, own, "tool_call", self.at, self.notes)
        for number, call in enumerate(below):
            yield from self._below(as_dict(call), f"{call_id}/{name}/{number}", name, call_id)

    def _below(self, call: dict[str, Any], name: str, block: str, call_id: str) -> Iterator[Item]:
        own = _own(call)
        agent_id, model = _named(own, "agent", safe_id(name)), taken(call, "root_model", str)
        inner = as_dict(call.pop("metadata", None))
        iterations = [as_dict(one) for one in as_list(inner.pop("iterations", None))]
        prompt, response = call.pop("prompt", None), call.pop("response", None)
        error = {
            "type": taken(call, "error_type", str),
            "message": taken(call, "error", str),
            "status_code": taken(call, "status_code", int),
        }
        failed = any(one is not None for one in error.values())
        usage, summary = _usage(as_dict(call.pop("usage_summary", None)))
        plain = not iterations
        rest = [inner] if plain else [inner, call, summary]
        agent = made(
            Agent,
            id=agent_id,
            episode_id=self.episode_id,
            parent_agent_id=self.agent_id,
            spawned_by_call_id=call_id,
            spawned_by_tool_call_id=block,
            role="sub_lm" if plain else "subagent",
            depth=self.depth + 1,
            model=model,
            scope_prompt=None if prompt is None or plain else raw(prompt),
            return_message=None if response is None else raw(response),
            status="failed" if failed else "ok" if response is not None else None,
            error=error["message"],
            meta=left("rlm", *rest) if own is None else None,
        )
        yield from _laid(agent, own, "agent", self.at, self.notes)
        if not plain:
            below = _Run(self.episode_id, agent_id, self.depth + 1, model, self.at, self.notes)
            yield from below.items(iterations, are_ours=own is not None)
            return
        only = made(
            Call,
            id=safe_id(f"{agent_id}/0"),
            episode_id=self.episode_id,
            agent_id=agent_id,
            ordinal=0,
            model=model,
            **_asked(prompt),
            completions=_answered(response) if not failed else None,
            usage=usage,
            status="failed" if failed else None,
            error=known(CallError, **error) if failed else None,
            meta=left("rlm", call, summary) if own is None else None,
        )
        yield from _laid(only, own, "call", self.at, self.notes)


def _holds(prompt: Any, later: Any, answer: dict[str, Any]) -> bool:
    """Whether a prompt that the later one begins with is not followed there by its own answer."""
    if not isinstance(prompt, list) or not isinstance(later, list) or later[: len(prompt)] != prompt:
        return False
    return len(later) == len(prompt) or later[len(prompt)] != answer


def _asked(prompt: Any) -> dict[str, Any]:
    """Request and dialect: messages, or the one text that is sent."""
    if prompt is None:
        return {}
    if isinstance(prompt, list):
        return {"request": raw({"messages": prompt})}
    return {"request": raw({"prompt": prompt}), "dialect": "text"}


def _answered(response: Any) -> tuple[CompletionBody, ...] | None:
    if response is None:
        return None
    message = {"role": "assistant", "content": response} if isinstance(response, str) else response
    return (CompletionBody(message=raw(message)),)


def _usage(summary: dict[str, Any]) -> tuple[Usage | None, dict[str, Any]]:
    """(usage where the summary counts one call, the summary)."""
    kept = {"usage_summary": summary} if summary else {}
    models = list(as_dict(summary.get("model_usage_summaries")).values())
    one = as_dict(models[0]) if len(models) == 1 else {}
    if one.get("total_calls") != 1:
        return None, kept
    counts: dict[str, Any] = {
        "prompt_tokens": count(one, "total_input_tokens"),
        "completion_tokens": count(one, "total_output_tokens"),
    }
    return known(Usage, **counts), kept


FORMAT = Format("rlm", "RLM logger files", _recognises, read)
