"""Events of OpenHands V1 (software-agent-sdk) -> what is read, said and run, by the rules of its `View`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tracestore.importers.guard import as_dict, as_list
from tracestore.importers.items import Item, made, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.openhands_view import Action, Conversation, Entry, Event, text_of
from tracestore.importers.usage import of as usage_of
from tracestore.wire.agent import Agent

_REASONING = ("responses_reasoning_item", "reasoning_details")


class ConversationV1(Conversation):
    """A conversation of V1."""

    def __init__(self, name: str, notes: Notes) -> None:
        super().__init__(name, notes)
        self.batches: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """ActionEvents by the response that they come from."""
        self.parents: dict[Any, Any] = {}
        self.tip: Any = None
        self.totals: dict[str, dict[str, Any]] = {}
        self.grown: dict[str, Any] = {}
        """Usage by which the totals grew since the last call."""

    def items(self, events: list[Event], state: Event | None, *, row: Event | None = None) -> Iterator[Item]:
        """Every event of the conversation; the actions of one response are one answer."""
        for event in events:
            if event.value.get("kind") == "ActionEvent":
                self.batches[str(event.value.get("llm_response_id"))].append(event.value)
        yield from super().items(events, state, row=row)

    def one(self, value: dict[str, Any], at: str) -> Iterator[Item]:
        """The wire events of one event, in its place of the tree."""
        self._step_to(value)
        yield from self._v1(value, at)

    def _step_to(self, value: dict[str, Any]) -> None:
        """Follow `parent_id`: where it is not the event before, the view is that of the parent."""
        parent, name = value.get("parent_id"), value.get("id")
        if parent is not None and parent != self.tip and parent in self.parents:
            path, step = {parent}, parent
            while self.parents.get(step) is not None and self.parents[step] not in path:
                path.add(step := self.parents[step])
            self.main.view = [entry for entry in self.main.view if entry.event_id in path]
            self.main.last = None
            self.notes.infer("a conversation that went back", evidence="parent_id")
        elif parent is None:
            parent = self.tip
        self.parents[name] = parent
        self.tip = name

    def _v1(self, value: dict[str, Any], at: str) -> Iterator[Item]:
        kind, name = value["kind"], value["id"]
        if kind == "ActionEvent":
            yield from self._v1_action(name, value)
        elif kind == "MessageEvent" and isinstance(value.get("llm_message"), dict):
            yield from self._v1_message(name, value)
        elif kind in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation"):
            yield from self._v1_observation(name, value)
        elif kind == "Condensation":
            forgotten = set(taken(value, "forgotten_event_ids", list) or [])
            self.notes.infer("context after a condensation", evidence="forgotten_event_ids, summary_offset")
            yield from self.condensed(value | {"forgotten_event_ids": sorted(forgotten)}, forgotten)
        elif kind == "SystemPromptEvent":
            parts = [
                value.pop(one) for one in ("system_prompt", "dynamic_context") if value.get(one) is not None
            ]
            self.tools = taken(value, "tools", list)
            self.read(name, {"role": "system", "content": parts}, value)
        elif kind == "CondensationSummaryEvent":
            self.read(name, {"role": "user", "content": value.pop("summary", None)}, value)
        else:
            if kind == "ConversationStateUpdateEvent":
                self._updated(value)
            self.notes.leftover(f"openhands: event {kind}", value, at=at)

    def _v1_action(self, name: str, value: dict[str, Any]) -> Iterator[Item]:
        response = taken(value, "llm_response_id", str)
        batch = self.batches[str(response)] if response is not None else [value]
        call_id = safe_id(f"{self.id}/{response or name}")
        is_first = batch[0]["id"] == name
        message: dict[str, Any] = {"role": "assistant", "content": value.get("thought")}
        for one in ("thought", "reasoning_content", "thinking_blocks", *_REASONING):
            if is_first and (one == "thought" or value.get(one)):
                message |= {one: value.pop(one)} if one != "thought" else {"content": value.pop(one, None)}
        use = as_dict(value.get("tool_call"))
        tool_use, tool = text_of(use, "id") or text_of(value, "tool_call_id"), text_of(use, "name")
        tool = tool or text_of(value, "tool_name")
        arguments = use.get("arguments")
        if is_first:
            message["tool_calls"] = [_chat_use(as_dict(one.get("tool_call"))) for one in batch]
            usage = self._grown()
            yield self.say(call_id, name, message, {}, revision=len(batch), provider_id=response, **usage)
        else:
            self.thread.view.append(Entry(name, None, call_id))
        value["tool_call"] = {k: v for k, v in use.items() if k not in ("id", "name", "arguments")}
        for one, same in (("tool_call_id", tool_use), ("tool_name", tool)):
            if value.get(one) == same:
                value.pop(one, None)
        action = Action(safe_id(f"{self.id}/tool/{name}"), call_id, tool_use, tool)
        text = (
            arguments
            if isinstance(arguments, str)
            else None
            if arguments is None
            else raw(arguments).decode()
        )
        self.tool(name, action, arguments=text, rest=value)
        for task, prompt in _tasks(value.get("action")):
            yield made(
                Agent,
                id=safe_id(f"{action.id}/{task}"),
                episode_id=self.id,
                phase="start",
                role="subagent",
                name=task,
                depth=1,
                parent_agent_id=self.main.agent_id,
                spawned_by_call_id=call_id,
                spawned_by_tool_call_id=tool_use,
                scope_prompt=raw(prompt),
            )
            action.agents.append(safe_id(f"{action.id}/{task}"))
            self.gap(
                "subagent_not_recorded", "its conversation is in files of its own", place=f"{name}/{task}"
            )

    def _v1_message(self, name: str, value: dict[str, Any]) -> Iterator[Item]:
        message = value.pop("llm_message")
        if value.get("source") == "agent":
            response = taken(value, "llm_response_id", str)
            usage = self._grown()
            yield self.say(
                safe_id(f"{self.id}/{response or name}"), name, message, value, provider_id=response, **usage
            )
            return
        more = taken(value, "extended_content", list)
        if more:
            message = message | {"content": [*as_list(message.get("content")), *more]}
        self.read(name, message, value)

    def _v1_observation(self, name: str, value: dict[str, Any]) -> Iterator[Item]:
        observation = as_dict(value.pop("observation", None))
        error = taken(value, "error", str) or taken(value, "rejection_reason", str)
        content = (
            observation.pop("content", None) if "content" in observation else observation.pop("output", error)
        )
        more = taken(value, "extended_content", list)
        said = [*content, *more] if more and isinstance(content, list) else content
        use, tool = text_of(value, "tool_call_id"), text_of(value, "tool_name")
        message = {"role": "tool", "tool_call_id": use, "name": tool, "content": said}
        action = self.actions.get(value.get("action_id")) or self.actions.get(("use", use))
        rest = value | ({"observation": observation} if observation else {})
        if action is None:
            self.grown = {}  # of the call that is missing
            self.gap("call_not_recorded", f"the result of {tool} is there, its call is not", place=name)
            self.read(name, message, rest)
            return
        self.read(name, message, {})
        is_error = observation.get("is_error") is True or value["kind"] == "AgentErrorEvent"
        status = "failed" if is_error else "timeout" if observation.get("timeout") is True else "ok"
        if value["kind"] == "UserRejectObservation":
            status = "cancelled"
        exit_code = observation.get("exit_code")
        self.result(
            action,
            said,
            rest,
            status=status,
            error=error,
            exit_status=exit_code if type(exit_code) is int else None,
        )
        for agent_id in action.agents:
            yield made(
                Agent,
                id=agent_id,
                episode_id=self.id,
                phase="end",
                return_message=None if content is None else raw(content),
                status="failed" if is_error else "ok",
            )

    def _grown(self) -> dict[str, Any]:
        """Usage and model of the call that comes now, where the totals told them just before."""
        grown, self.grown = self.grown, {}
        if grown:
            self.notes.infer("usage of a call", evidence="totals before and after it, per_turn_token")
        return grown

    def _updated(self, value: dict[str, Any]) -> None:
        """A state update: the status, or totals of usage by which the next call's is known."""
        if value.get("key") == "execution_status":
            self.status = value.get("value")
        metrics = as_dict(as_dict(value.get("value")).get("usage_to_metrics"))
        for name, one in metrics.items():
            total = as_dict(as_dict(one).get("accumulated_token_usage"))
            before, self.totals[name] = self.totals.get(name, {}), total
            grown = {k: v - before.get(k, 0) for k, v in total.items() if type(v) is int}
            tokens = grown.get("prompt_tokens", 0) + grown.get("completion_tokens", 0)
            if name != "condenser" and 0 < tokens == total.get("per_turn_token") and min(grown.values()) >= 0:
                self.grown = {"usage": usage_of(grown)[0], "model": text_of(as_dict(one), "model_name")}


def _chat_use(use: dict[str, Any]) -> dict[str, Any]:
    """A tool use as the tool sends it to the provider."""
    function = {"name": use.get("name"), "arguments": use.get("arguments")}
    return {"id": use.get("id"), "type": "function", "function": function}


def _tasks(action: Any) -> Iterator[tuple[str, str]]:
    """(name, prompt) of the subagents that a V1 action starts."""
    action = as_dict(action)
    if action.get("kind") == "TaskAction" and isinstance(action.get("prompt"), str):
        yield str(action.get("subagent_type", "task")), action["prompt"]
    elif action.get("kind") == "DelegateAction":
        for name, prompt in as_dict(action.get("tasks")).items():
            yield name, str(prompt)
