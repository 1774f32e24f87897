"""The trajectories of one ATIF agent, in order -> its calls, tool calls, context edits and gaps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from tracestore.importers import carried
from tracestore.importers.atif_documents import Document, embedded, is_trajectory, ref_key_of
from tracestore.importers.atif_steps import (
    Result,
    Step,
    left_of,
    own_part,
    sampled_of,
    step_of,
    token_ids_of,
    usage_of,
)
from tracestore.importers.guard import problem_of, text_or_none
from tracestore.importers.items import Item, count, left, made, nanoseconds, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.spans import size
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.gap import Gap
from tracestore.wire.tool_call import ToolCall

_SUMMARIZES = re.compile(r"summar|compact", re.IGNORECASE)
_EDITS = {"truncation": "truncation", "tool_result_clearing": "tool_result_clearing", "rewrite": "rewrite"}


@dataclass
class _Edit:
    """A context edit whose next call has not come."""

    fields: dict[str, Any]
    spelled_out: bool = False
    """Whether copied steps show the new context."""


@dataclass
class Reading:
    """One agent, its trajectories in order."""

    head: Document
    notes: Notes
    _unread: list[Any] = field(default_factory=list)
    """Messages that no call has read yet."""
    _left: list[dict[str, Any]] = field(default_factory=list)
    """What is left of steps that are no calls, for the next event."""
    _documents: list[dict[str, Any]] = field(default_factory=list)
    """What is left of the trajectories."""
    _unread_steps: list[Any] = field(default_factory=list)
    _is_fresh: bool = True
    _has_called: bool = False
    _edit: _Edit | None = None
    _last_call_id: str | None = None
    _num_calls: int = 0
    _is_whole_chain: bool = True
    _values: int = 0
    _ended_at: int | None = None
    _fields: dict[str, Any] = field(default_factory=dict)
    _own: dict[str, Any] = field(default_factory=dict)
    _agent: dict[str, Any] = field(default_factory=dict)
    _at: str = ""
    _refs: set[str] = field(default_factory=set)
    _sums: dict[str, int] = field(default_factory=lambda: {"prompt_tokens": 0, "completion_tokens": 0})

    @property
    def _ids(self) -> dict[str, Any]:
        return {"episode_id": self.head.episode_id, "agent_id": self.head.agent_id}

    def trajectory(self, document: Document, value: dict[str, Any], at: str) -> Iterator[Item]:
        """The events of one trajectory but for the agent's end."""
        rest = {name: one for name, one in value.items() if name not in ("steps", "subagent_trajectories")}
        inside = value.get("subagent_trajectories")
        odd = [one for one in inside if not is_trajectory(one)] if isinstance(inside, list) else inside
        rest |= {"subagent_trajectories": odd} if odd else {}
        self._at = at
        self._own = own_part(rest)
        self._agent = dict(taken(rest, "agent", dict) or {})
        self._fields = {
            "name": taken(self._agent, "name", str),
            "model": taken(self._agent, "model_name", str),
        }
        self._count_document(document, value)
        if document is self.head:
            self._is_whole_chain = document.place == 0
            yield from self._beginning()
        if document.place:
            yield from self._continued(document)
        tools = taken(self._agent, "tool_definitions", list)
        tag = f"{document.place}/" if document.place else ""
        for place, step in enumerate(value["steps"]):
            if not isinstance(step, dict):
                self.notes.refuse(at, f"step {place + 1} is no object")
                continue
            self._values += size(step)
            try:
                named = {name: one for name, one in step.items() if (name, one) != ("step_id", place + 1)}
                yield from self._step(f"{self.head.agent_id}/{tag}{place + 1}", named, tools)
            except ValidationError as error:
                self.notes.refuse(at, f"step {place + 1}: {problem_of(error)}")
                self.notes.leftover("atif: step that makes no event", step, at=at)
        self._documents.append(rest | ({"agent": self._agent} if self._agent else {}))
        yield from carried.events(self._own.get("events"), at=at, notes=self.notes)
        if self._edit is not None and document.continued is not None:
            self._edit.fields["id"] = self._continuation_edit(document.place + 1)
        yield from self._missing_tokens(value)

    def _count_document(self, document: Document, value: dict[str, Any]) -> None:
        role = "sub-agent " if document.depth else ""
        self.notes.rows[f"atif/{role}trajectory"] += 1
        self.notes.rows["atif/embedded trajectory"] += document.embedded_in is not None
        for step in value["steps"]:
            if isinstance(step, dict):
                source = step.get("source") if isinstance(step.get("source"), str) else "unknown"
                self.notes.rows[f"atif/{role}step {source}"] += 1
                if step.get("is_copied_context") is True:
                    self.notes.rows[f"atif/{role}copied step"] += 1
                if step.get("llm_call_count") is not None:
                    self.notes.rows[f"atif/{role}step with llm_call_count"] += 1
                if step.get("llm_call_count") == 0:
                    self.notes.rows[f"atif/{role}step without a model call"] += 1

    # The agent

    def _beginning(self) -> Iterator[Item]:
        """The agent's start; of a sub-agent the reference to it tells that, else nothing does."""
        head, own = self.head, self._own.get("agent")
        if isinstance(own, dict):
            given = {"v": 1, "kind": "agent"} | own
            yield from carried.events([given], at=self._at, notes=self.notes)
        elif head.parent is None or head.ref_key is None:
            parent = {} if head.parent is None else {"parent_agent_id": head.parent.agent_id}
            yield made(
                Agent,
                id=head.agent_id,
                episode_id=head.episode_id,
                phase="start",
                **parent,
                role="subagent" if parent else "main",
                depth=head.depth,
            )

    def ending(self) -> Iterator[Item]:
        """What is known once all steps are read."""
        yield from self._edited(None)
        if isinstance(self._own.get("agent"), dict):
            return  # our writer's agent is whole
        unread = {"steps_after_the_last_call": self._unread_steps} if self._unread_steps else None
        yield made(
            Agent,
            id=self.head.agent_id,
            episode_id=self.head.episode_id,
            phase="end",
            revision=self._values,
            ended_at=self._ended_at,
            **self._fields,
            meta=left("atif", *self._documents, *self._left, unread),
        )

    # Steps

    def _step(self, step_id: str, value: dict[str, Any], tools: list[Any] | None) -> Iterator[Item]:
        step = step_of(value)
        own = own_part(step.rest)
        managed = step.rest.get("extra") if isinstance(step.rest.get("extra"), dict) else {}
        marks = managed.get("context_management") if isinstance(managed, dict) else None
        role = "sub-agent " if self.head.depth else ""
        self.notes.rows[f"atif/{role}observation result"] += len(step.results)
        if value.get("is_copied_context") is True:
            self._copied(step, own)
        elif own.get("boundary") is True:
            self._reset([])
            yield from self._referred(step, None)
        elif isinstance(marks, dict) or self._is_summarization(value, step):
            yield from self._managed(step_id, step, marks if isinstance(marks, dict) else {})
            own = {"messages": []}  # the edit says what the step says
        elif self._is_call(value):
            yield from self._call(step_id, step, own, tools)
            return
        else:
            yield from self._dispatched(step_id, value, step)
            self._unread += _messages(step, own)
            yield from self._referred(step, None)
        self._keep(value, step, own)

    def _keep(self, value: dict[str, Any], step: Step, own: dict[str, Any]) -> None:
        """Hold what no message says until the next event, and the step itself in case none reads it."""
        rest = left_of(step)
        unlinked = [result.content for result in step.results if result.content is not None]
        if rest:
            self._left.append(rest)
        if not own:
            self._unread_steps.append(step.message | ({"observed": unlinked} if unlinked else {}))

    def _is_call(self, value: dict[str, Any]) -> bool:
        number = value.get("llm_call_count")
        if number == 0 and not isinstance(number, bool):
            return False
        if value.get("source") == "agent":
            return True
        marked = value.get("source") not in ("user", "system") and (number or value.get("metrics"))
        if marked:
            self.notes.infer(
                "model call", evidence="llm_call_count or metrics on a step of an unknown source"
            )
        return bool(marked)

    def _is_summarization(self, value: dict[str, Any], step: Step) -> bool:
        refs = [ref for result in step.results for ref in result.refs]
        told = [str(ref.get(name)) for ref in refs for name in ("session_id", "trajectory_path")]
        told += [value["message"]] if refs and isinstance(value.get("message"), str) else []
        found = value.get("source") == "system" and any(_SUMMARIZES.search(text) for text in told)
        if found:
            self.notes.infer("compaction", evidence="a system step that refers to summarizing sub-agents")
        return found

    def _copied(self, step: Step, own: dict[str, Any]) -> None:
        if self._has_called:
            self._reset([])
        if self._edit is not None:
            self._edit.spelled_out = True
        self._unread += _messages(step, own)

    def _reset(self, messages: list[Any]) -> None:
        """Begin the context anew; what no call has read of the old one is kept beside the next event."""
        if self._unread_steps:
            self._left.append({"steps_before_the_edit": self._unread_steps})
        self._unread, self._unread_steps = list(messages), []
        self._is_fresh, self._has_called = True, False

    def _dispatched(self, step_id: str, value: dict[str, Any], step: Step) -> Iterator[Item]:
        if value.get("source") != "agent":
            return
        for place, use in enumerate(step.uses):
            yield made(
                Gap,
                id=safe_id(f"{step_id}/tool/{place}"),
                revision=self._values,
                **self._ids,
                cause="tool_call_without_model_call",
                detail=f"{use.name} ({use.id}): llm_call_count is 0",
            )

    # Context edits

    def _managed(self, step_id: str, step: Step, marks: dict[str, Any]) -> Iterator[Item]:
        yield from self._edited(None)
        rest = dict(marks)
        kind, boundary = taken(rest, "type", str), taken(rest, "boundary", str)
        edit = _EDITS.get(kind or "", "compaction")
        if kind is not None and kind not in ("compaction", *_EDITS):
            rest["type"] = kind
        before, after = count(rest, "tokens_before"), count(rest, "tokens_after")
        rest["step"] = step.message
        self._edit = _Edit(
            {"id": safe_id(f"{step_id}/edit"), "edit": edit, "tokens_before": before, "tokens_after": after}
            | {"before_call_id": self._last_call_id, "meta": left("atif", rest)}
        )
        extra = step.rest.get("extra")
        if isinstance(extra, dict):
            del step.rest["extra"]
            kept = {name: one for name, one in extra.items() if name != "context_management"}
            step.rest.update({"extra": kept} if kept else {})
        if boundary in (None, "replace"):
            self._reset([one for one in step.observed if "content" in one])
        else:
            rest["boundary"] = boundary
            self._edit.fields["meta"] = left("atif", rest)
            self._edit.spelled_out = True
            self._unread += step.observed
        yield from self._referred(step, None)

    def _continued(self, document: Document) -> Iterator[Item]:
        """A continuation is a compaction; the mark may stand at the end of the trajectory before it."""
        edit_id = self._continuation_edit(document.place)
        if self._edit is None or self._edit.fields["id"] != edit_id:
            yield from self._edited(None)
            fields = {"id": edit_id, "edit": "compaction", "before_call_id": self._last_call_id}
            self._edit = _Edit(fields)
        self._reset([])

    def _continuation_edit(self, place: int) -> str:
        return safe_id(f"{self.head.agent_id}/{place}/edit")

    def _edited(self, call_id: str | None) -> Iterator[Item]:
        """The edit before a call (or before the end), and what the file does not show of it."""
        edit, self._edit = self._edit, None
        if edit is None:
            return
        yield made(
            ContextEdit,
            **edit.fields,
            **self._ids,
            revision=self._values,
            after_call_id=call_id,
            status="accepted",
        )
        if call_id is not None and not edit.spelled_out:
            yield made(
                Gap,
                id=safe_id(f"{edit.fields['id']}/context"),
                **self._ids,
                call_id=call_id,
                cause="missing_prompt",
                detail="what was kept of the context before the edit is not in the file",
            )

    # Calls

    def _call(self, step_id: str, step: Step, own: dict[str, Any], tools: list[Any] | None) -> Iterator[Item]:
        given = own.get("call")
        call_id = text_or_none(given.get("id")) if isinstance(given, dict) else None
        call_id = call_id or safe_id(step_id)
        uses = [own_part(use.extra) for use in step.uses]
        rest = left_of(step)
        yield from self._edited(call_id)
        if isinstance(given, dict):
            yield self._given_call(call_id, step, rest, given)
        else:
            yield self._native_call(call_id, step, rest, tools)
        yield from self._tool_calls(call_id, step, uses)
        if (number := rest.get("llm_call_count")) is not None and not isinstance(given, dict):
            yield made(
                Gap,
                id=safe_id(f"{call_id}/calls"),
                revision=self._values,
                **self._ids,
                call_id=call_id,
                cause="several_calls_in_one_step",
                detail=f"{number} model calls are one step of the file",
            )
        self._last_call_id = call_id
        self._num_calls += 1
        self._is_fresh, self._has_called = False, True
        observed = own.get("observed")
        self._unread = observed if isinstance(observed, list) else step.observed
        self._unread_steps = [] if isinstance(given, dict) else _unlinked(step)
        yield from self._referred(step, call_id)

    def _native_call(self, call_id: str, step: Step, rest: dict[str, Any], tools: list[Any] | None) -> Item:
        self._ended_at = _taken_time(rest, "timestamp") or self._ended_at
        if rest.get("llm_call_count") == 1:
            del rest["llm_call_count"]
        fields = self._metered(rest, is_one_call="llm_call_count" not in rest)
        effort = taken(rest, "reasoning_effort", str, float)
        request = {"messages": self._unread}
        request |= {} if tools is None else {"tools": tools}
        request |= {} if effort is None else {"reasoning_effort": effort}
        kept, self._left = self._left, []
        return made(
            Call,
            id=call_id,
            revision=self._values,
            **self._ids,
            ordinal=self._num_calls if self._is_whole_chain else None,
            model=taken(rest, "model_name", str) or self._fields["model"],
            ended_at=self._ended_at,
            request=raw(request),
            **self._placed(),
            prompt_token_ids=fields["prompt"],
            completions=(CompletionBody(message=raw(step.message), **fields["sampled"]),),
            usage=fields["usage"],
            status="ok",
            meta=left("atif", rest, *kept),
        )

    def _given_call(self, call_id: str, step: Step, rest: dict[str, Any], given: dict[str, Any]) -> Item:
        """A call as our writer knew it: what the step says, and what stands beside it."""
        own = dict(given)
        fields = self._metered(rest, is_one_call=True)
        place, is_silent = own.pop("completion", None), own.pop("is_silent", False)
        sampled = fields["sampled"] | ({} if is_silent else {"message": raw(step.message)})
        bodies = [CompletionBody()] * place + [CompletionBody(**sampled)] if isinstance(place, int) else []
        request = None if "request" not in own else raw(_in_place(self._unread, own))
        self._left = []
        item = made(
            Call,
            id=call_id,
            **self._ids,
            model=taken(rest, "model_name", str),
            request=request,
            **self._placed(),
            prompt_token_ids=fields["prompt"],
            completions=tuple(bodies) or None,
            usage=fields["usage"],
        )
        return carried.completed(item, own, at=self._at, notes=self.notes)

    def _placed(self) -> dict[str, Any]:
        if self._is_fresh:
            return {"context": "whole"}
        return {"context": "delta", "parent_call_id": self._last_call_id}

    def _metered(self, rest: dict[str, Any], *, is_one_call: bool) -> dict[str, Any]:
        """The usage and the token ids of a step; what is left of its metrics stays."""
        metrics = dict(taken(rest, "metrics", dict) or {})
        for name in self._sums:
            number = metrics.get(name)
            self._sums[name] += number if isinstance(number, int) else 0
        found = {
            "usage": usage_of(metrics),
            "prompt": token_ids_of(metrics, "prompt_token_ids") if is_one_call else None,
            "sampled": sampled_of(metrics) if is_one_call else {},
        }
        rest |= {"metrics": metrics} if metrics else {}
        return found

    def _tool_calls(self, call_id: str, step: Step, own: list[dict[str, Any]]) -> Iterator[Item]:
        results: dict[int, Result] = {}
        for result in step.results:
            if result.use is not None:
                results.setdefault(result.use, result)
        for place, use in enumerate(step.uses):
            fields: dict[str, Any] = {
                "id": safe_id(f"{call_id}/tool/{place}"),
                "episode_id": self.head.episode_id,
                "call_id": call_id,
                "tool_call_id": use.id,
            }
            answer = results.get(place)
            told = {} if answer is None or answer.content is None else {"result": raw(answer.content)}
            if own[place].get("is_absent") is True:
                continue
            if own[place]:
                item = made(ToolCall, **fields, name=use.name, arguments=use.arguments, **told)
                yield carried.completed(item, own[place], at=self._at, notes=self.notes)
                continue
            yield made(
                ToolCall,
                **fields,
                phase="start",
                revision=self._values,
                name=use.name,
                arguments=use.arguments,
            )
            if answer is not None:
                if answer.is_inferred:
                    self.notes.infer("tool call of a result", evidence="one tool call, one result")
                yield made(ToolCall, **fields, phase="end", revision=self._values, **told)

    def _referred(self, step: Step, call_id: str | None) -> Iterator[Item]:
        """The sub-agents that a step refers to."""
        for result in step.results:
            for ref in result.refs:
                key = ref_key_of(ref, self.head)
                if key is None or key in self._refs:
                    self._left.append({"subagent_trajectory_ref": ref})
                    continue
                self._refs.add(key)
                if (
                    own_part(ref).get("agent") is not True
                ):  # else the trajectory says itself where it comes from
                    self._left.append({"subagent_trajectory_ref": ref})
                    yield self._spawned(key, step, result, call_id)

    def _spawned(self, key: str, step: Step, result: Result, call_id: str | None) -> Item:
        tool = step.uses[result.use].id if result.use is not None else None
        return made(
            Agent,
            id=safe_id(f"{self.head.episode_id}/{key}"),
            episode_id=self.head.episode_id,
            phase="start",
            parent_agent_id=self.head.agent_id,
            spawned_by_call_id=call_id,
            spawned_by_tool_call_id=tool,
            role="subagent",
            depth=self.head.depth + 1,
            revision=self._values,
        )

    def _missing_tokens(self, value: dict[str, Any]) -> Iterator[Item]:
        """More tokens in the totals than in the steps, where nothing else was counted in."""
        totals = value.get("final_metrics")
        others = self.head.refs or value.get("continued_trajectory_ref") or self.head.continuation
        if not isinstance(totals, dict) or others or embedded(value) or self.head.before is not None:
            return
        missing = {}
        for name, known in self._sums.items():
            total = totals.get(f"total_{name}")
            if isinstance(total, int) and total > known:
                missing[name] = total - known
        if missing and self._num_calls:
            detail = ", ".join(f"{number} {name}" for name, number in missing.items())
            yield made(
                Gap,
                id=safe_id(f"{self.head.agent_id}/totals"),
                revision=self._values,
                **self._ids,
                cause="unrecorded_calls",
                detail=f"final_metrics count {detail} that no step shows",
            )


def _messages(step: Step, own: dict[str, Any]) -> list[Any]:
    given = own.get("messages")
    if isinstance(given, list):
        return given
    # A step may say nothing: it is then no message.
    said = [step.message] if len(step.message) > 1 else []
    return said + step.observed


def _unlinked(step: Step) -> list[Any]:
    """What a step's observation says beside its tool calls; those hold their own results."""
    seen: set[int] = set()
    told = []
    for result in step.results:
        if (result.use is None or result.use in seen) and result.content is not None:
            told.append({"observed": result.content})
        seen.add(-1 if result.use is None else result.use)
    return told


def _in_place(messages: list[Any], own: dict[str, Any]) -> dict[str, Any]:
    """The messages where the dialect of our writer's call has them; what it holds itself stays there."""
    name = {"openai_responses": "input", "text": None}.get(str(own.get("dialect")), "messages")
    return {} if name is None or name in own["request"] else {name: messages}


def _taken_time(rest: dict[str, Any], name: str) -> int | None:
    moment = nanoseconds(rest.get(name))
    if moment is not None:
        del rest[name]
    return moment
