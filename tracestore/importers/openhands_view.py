"""An OpenHands conversation, event by event -> its view, and the wire events that follow from it.

The view is what the next call of the acting agent sees. V0 and V1 tell it in other words (`openhands_v0`,
`openhands_v1`): what an event says, they read, say, run or condense here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tracestore.importers.guard import as_dict, guarded
from tracestore.importers.items import Item, count, left, made, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.gap import Gap
from tracestore.wire.reward import Reward, RewardTarget
from tracestore.wire.tool_call import ToolCall

NAME = "openhands"
_STATUS = {"finished": "ok", "error": "failed", "stuck": "failed", "deleting": "cancelled"}


class Event(NamedTuple):
    value: dict[str, Any]
    at: str


class Entry(NamedTuple):
    """A place of the view: what one event adds to the context."""

    event_id: Any
    message: Any
    """None: the event is in the view and says nothing of its own."""
    call_id: str | None = None


@dataclass
class Thread:
    """One agent, and what its next call will see."""

    agent_id: str
    depth: int
    view: list[Entry] = field(default_factory=list)
    unread: list[Any] = field(default_factory=list)
    """Messages since its last call."""
    waiting: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    """(message, what else its event says) that no call has seen yet."""
    last: str | None = None
    """The call that the next one continues; None: the next one is whole."""
    before: str | None = None
    """The last call, also across a condensation."""
    num_calls: int = 0


@dataclass(frozen=True)
class Action:
    """A tool use, for its result."""

    id: str
    """Of the tool call event."""
    call_id: str
    use: str | None
    """The model's id of the tool use."""
    name: str | None
    metadata: Any = None
    agents: list[str] = field(default_factory=list)
    """Subagents that it started."""


class Conversation(ABC):
    """The wire events of one conversation."""

    def __init__(self, name: str, notes: Notes) -> None:
        self.id, self.notes = name, notes
        self.main = Thread(f"{name}/main", 0)
        self.open = [self.main]
        """The agents that are at work (V0 delegates inside one stream); the last one acts."""
        self.threads = [self.main]
        self.condenser: Thread | None = None
        self.tools: Any = None
        self.actions: dict[Any, Action] = {}
        """By event id, and by the model's id of the tool use."""
        self.status: Any = None
        self.edits: list[dict[str, Any]] = []
        self.tool_calls: dict[str, dict[str, Any]] = {}
        self.gaps: dict[str, Item] = {}

    def items(self, events: list[Event], state: Event | None, *, row: Event | None = None) -> Iterator[Item]:
        """Every event of the conversation."""
        said: list[Item] = []
        for event in events:
            said += guarded(self.one(dict(event.value), event.at), at=event.at, notes=self.notes)
        yield from self._frame(len(events), state, row)
        yield from said
        yield from guarded(self._made(), at=self.id, notes=self.notes)
        yield from self.gaps.values()
        for thread in self.threads:
            for message, rest in thread.waiting:
                self.notes.leftover(
                    "openhands: message that no call saw", rest | {"message_read": message}, at=self.id
                )

    @abstractmethod
    def one(self, value: dict[str, Any], at: str) -> Iterator[Item]:
        """The wire events of one event; it may take the record apart."""

    @property
    def thread(self) -> Thread:
        """The agent that acts."""
        return self.open[-1]

    def _frame(self, num: int, state: Event | None, row: Event | None) -> Iterator[Item]:
        """Episode and main agent, each with an end that grows with the conversation."""
        value = as_dict(state.value if state is not None else None)
        given = as_dict(row.value if row is not None else None)
        status = self.status if state is None else value.get("execution_status", value.get("agent_status"))
        error = taken(given, "error", str)
        end = _STATUS.get(str(status)) if error is None else "infra_error"
        task = {name: given.pop(name) for name in ("instruction", "instance") if name in given}
        instance = text_of(given, "instance_id")
        revision = num + (state is not None)
        if self.main.num_calls:
            self.gap("requests_not_recorded", "contexts are rebuilt from events by the rules of the tool")
        yield made(
            Episode,
            id=self.id,
            phase="start",
            task_id=None if instance is None else safe_id(instance),
            task=raw(task) if task else None,
        )
        yield made(
            Episode,
            id=self.id,
            phase="end",
            revision=revision,
            status=end,
            error=error,
            meta=left(NAME, {"base_state": value} if value else None, given),
        )
        main = {"id": self.main.agent_id, "episode_id": self.id}
        yield made(Agent, **main, phase="start", role="main", depth=0)
        model = text_of(as_dict(as_dict(value.get("agent")).get("llm")), "model")
        yield made(Agent, **main, phase="end", revision=revision, model=model, status=end)
        yield from self._rewards(given)

    def _rewards(self, row: dict[str, Any]) -> Iterator[Item]:
        result = as_dict(row.get("test_result"))
        for place in (row, as_dict(row.get("report")), as_dict(result.get("report")), result):
            if isinstance(place.get("resolved"), bool):
                yield made(
                    Reward,
                    id=f"{self.id}/resolved",
                    target=RewardTarget(episode_id=self.id),
                    name="resolved",
                    value=float(place["resolved"]),
                    scorer="environment",
                )
                return

    def gap(self, cause: str, detail: str, *, place: str = "", thread: Thread | None = None) -> None:
        name = safe_id("/".join(part for part in (self.id, cause, place) if part))
        self.gaps[name] = made(
            Gap,
            id=name,
            episode_id=self.id,
            agent_id=(thread or self.main).agent_id,
            cause=cause,
            detail=detail,
        )

    # --- The view ---

    def read(self, event_id: Any, message: Any, rest: dict[str, Any]) -> None:
        thread = self.thread
        thread.view.append(Entry(event_id, message))
        thread.unread.append(message)
        thread.waiting.append((message, rest))

    def say(
        self,
        call_id: str,
        event_id: Any,
        message: Any,
        rest: dict[str, Any],
        *,
        reason: Any = None,
        **fields: Any,
    ) -> Item:
        """A call of the acting agent, with what it saw; its answer enters the view."""
        thread = self.thread
        is_delta = thread.last is not None
        seen = thread.unread if is_delta else [one.message for one in thread.view if one.message is not None]
        read = [one for _, one in thread.waiting if one]
        parent, thread.num_calls = thread.last, thread.num_calls + 1
        thread.last = thread.before = call_id
        thread.unread, thread.waiting = [], []
        thread.view.append(Entry(event_id, message, call_id))
        for edit in self.edits:
            if edit["agent_id"] == thread.agent_id and "after_call_id" not in edit:
                edit |= {"after_call_id": call_id, "revision": 2}
        body = {"message": raw(message), "finish_reason": reason if isinstance(reason, str) else None}
        return made(
            Call,
            id=call_id,
            episode_id=self.id,
            agent_id=thread.agent_id,
            ordinal=thread.num_calls - 1,
            purpose="act",
            request=raw({"messages": seen} | ({"tools": self.tools} if self.tools else {})),
            context="delta" if is_delta else "whole",
            parent_call_id=parent,
            completions=(body_of(body),),
            status="ok",
            meta=left(NAME, rest | ({"read": read} if read else {})),
            **fields,
        )

    def tool(self, event_id: Any, action: Action, *, arguments: str | None, rest: dict[str, Any]) -> None:
        """A tool call, as its action tells it."""
        self.actions[event_id] = action
        if action.use is not None:
            self.actions["use", action.use] = action
        self.tool_calls[action.id] = {
            "id": action.id,
            "revision": 1,
            "episode_id": self.id,
            "call_id": action.call_id,
            "tool_call_id": action.use,
            "name": action.name,
            "arguments": arguments,
            "meta": [rest],
        }

    def result(self, action: Action, result: Any, rest: dict[str, Any], **fields: Any) -> None:
        """The result of a tool call; a second one is noted."""
        known = self.tool_calls[action.id]
        if known["revision"] == 2:
            self.notes.leftover("openhands: another result of a tool call", {**rest, **fields}, at=self.id)
            return
        known["meta"].append(rest)
        known |= {"revision": 2, "result": None if result is None else raw(result), **fields}

    def _made(self) -> Iterator[Item]:
        """What took several events to tell."""
        for fields in self.tool_calls.values():
            yield made(ToolCall, **fields | {"meta": left(NAME, *fields["meta"])})
        for edit in self.edits:
            yield made(ContextEdit, **edit)

    def condensed(self, value: dict[str, Any], forgotten: set[Any]) -> Iterator[Item]:
        """A condensation: the view without what is forgotten, and with the summary."""
        thread, name = self.thread, value["id"]
        summary, offset = taken(value, "summary", str), count(value, "summary_offset")
        calls = [one.call_id for one in thread.view if one.call_id is not None]
        gone = {one.call_id for one in thread.view if one.event_id in forgotten}
        edit: dict[str, Any] = {
            "id": safe_id(f"{self.id}/condensation/{name}"),
            "revision": 1,
            "episode_id": self.id,
            "agent_id": thread.agent_id,
            "edit": "truncation" if summary is None else "compaction",
            "trigger": "rule",
            "author": "harness" if summary is None else None,
            "before_call_id": thread.before,
            "replaced_call_ids": tuple(call for call in calls if call in gone),
            "kept_call_ids": tuple(call for call in calls if call not in gone),
            "status": "accepted",
        }
        thread.view = [one for one in thread.view if one.event_id not in forgotten]
        thread.last, thread.unread = None, []
        if summary is not None:
            entry = Entry(name, {"role": "user", "content": summary})
            thread.view.insert(len(thread.view) if offset is None else offset, entry)
        response = taken(value, "llm_response_id", str)
        if response is not None and summary is not None:
            edit["author_call_id"] = safe_id(f"{self.id}/{response}")
            yield from self._summarize(edit["author_call_id"], response, summary)
        edit["meta"] = left(NAME, value)
        self.edits.append(edit)

    def _summarize(self, call_id: str, response: str, summary: str) -> Iterator[Item]:
        """The call that wrote a summary: its answer is known, its prompt is not."""
        if self.condenser is None:
            self.condenser = Thread(f"{self.id}/condenser", 0)
            name = {"role": "harness", "name": "condenser", "depth": 0}
            yield made(Agent, id=self.condenser.agent_id, episode_id=self.id, **name)
            self.gap("missing_prompt", "what the condenser read is not recorded", thread=self.condenser)
        self.condenser.num_calls += 1
        yield made(
            Call,
            id=call_id,
            episode_id=self.id,
            agent_id=self.condenser.agent_id,
            ordinal=self.condenser.num_calls - 1,
            purpose="summarize",
            provider_id=response,
            completions=(body_of({"message": raw({"role": "assistant", "content": summary})}),),
            status="ok",
        )


def text_of(record: dict[str, Any], name: str) -> str | None:
    """A field that is text; None where it is none."""
    value = record.get(name)
    return value if isinstance(value, str) else None


def body_of(fields: dict[str, Any]) -> CompletionBody:
    """A completion of the fields that are known."""
    return CompletionBody(**{name: one for name, one in fields.items() if one is not None})
