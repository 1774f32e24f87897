"""Events of OpenHands V0 -> what is read, said and run, by the rules of its conversation memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracestore.importers import litellm
from tracestore.importers.guard import as_dict, as_list
from tracestore.importers.items import Item, made, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.openhands_view import Action, Conversation, Entry, Thread, text_of
from tracestore.importers.usage import of as usage_of
from tracestore.wire.agent import Agent

_NO_VIEW = frozenset({"null", "agent_state_changed", "change_agent_state", "loop_recovery", None})
"""V0 actions and observations that are in no view."""
_NOT_SAID = _NO_VIEW | {"recall", "condensation_request", "pause", "resume", "stop"}
"""V0 actions that no model wrote."""


class ConversationV0(Conversation):
    """A conversation of V0."""

    def __init__(self, name: str, notes: Notes) -> None:
        super().__init__(name, notes)
        self.responses: dict[str, Any] = {}
        """Responses that are a call, by their id."""

    def one(self, value: dict[str, Any], at: str) -> Iterator[Item]:
        """The wire events of one event."""
        if "action" in value:
            yield from self._v0_action(value, at)
        elif value.get("observation") == "delegate" and len(self.open) > 1:
            yield from self._v0_returned(value)
        else:
            self._v0_observation(value, at)

    def _v0_action(self, value: dict[str, Any], at: str) -> Iterator[Item]:
        kind, name, args = value.get("action"), value.get("id"), as_dict(value.get("args"))
        if kind == "system":
            self.tools = taken(args, "tools", list) or self.tools
            self.read(name, {"role": "system", "content": args.pop("content", None)}, value | {"args": args})
        elif kind == "condensation":
            self.notes.infer("context after a condensation", evidence="forgotten events, summary_offset")
            yield from self.condensed(value | args, _forgotten(args))
        elif kind in _NOT_SAID or value.get("source") not in ("agent", "user"):
            if kind not in _NO_VIEW:
                self.thread.view.append(Entry(name, None))
            self.notes.leftover(f"openhands: action {kind}", value, at=at)
        elif value.get("source") == "user":
            said = (
                {"content": args.pop("content", None)}
                if kind == "message"
                else {"action": kind, "args": args}
            )
            rest = (
                value | {"args": args}
                if kind == "message"
                else {k: v for k, v in value.items() if k != "args"}
            )
            self.read(name, {"role": "user", **said}, rest)
        else:
            yield from self._v0_said(kind, name, args, value)

    def _v0_said(self, kind: Any, name: Any, args: dict[str, Any], value: dict[str, Any]) -> Iterator[Item]:
        """An action of the agent: a call, or one more tool use of a call that is there already."""
        metadata = as_dict(value.get("tool_call_metadata"))
        response = taken(metadata, "model_response", dict)
        response_id = text_of(response or {}, "id")
        known = self.responses.get(response_id or "")
        # An id is a provider's word: with another answer it is another call.
        is_known = known is not None and response is not None and known["choices"] == response.get("choices")
        call_id = safe_id(f"{self.id}/{response_id if response_id and (is_known or not known) else name}")
        use, tool = taken(metadata, "tool_call_id", str), taken(metadata, "function_name", str)
        if response is None and kind == "message":
            message = {"role": "assistant", "content": args.pop("content", None)}
            yield self.say(call_id, name, message, value | {"args": args})
            return
        arguments: Any = raw(args).decode()
        if response is None:
            message = {"role": "assistant", "content": args.get("thought"), "action": kind, "args": args}
            self.notes.infer("an answer", evidence="the action made of it; the text itself is not recorded")
            yield self.say(call_id, name, message, {})
        else:
            answer = litellm.answer(response)
            message = answer.message or {"role": "assistant", "content": None}
            if is_known:
                self.thread.view.append(Entry(name, None, call_id))
                metadata |= {} if known == response else {"model_response": response}
            else:
                yield self._v0_call(call_id, name, message, answer, value)
                self.responses[response_id or call_id] = {"choices": None} | response
            uses = {one.get("id"): one for one in map(as_dict, as_list(message.get("tool_calls")))}
            arguments = as_dict(uses.get(use, {}).get("function")).get("arguments", arguments)
        given = as_dict(value.pop("tool_call_metadata", None))
        action = Action(safe_id(f"{self.id}/tool/{name}"), call_id, use, tool or str(kind), given)
        text = arguments if isinstance(arguments, str) else raw(arguments).decode()
        self.tool(name, action, arguments=text, rest=value | {"tool_call_metadata": metadata})
        if kind == "delegate":
            yield self._delegated(name, action, args)

    def _v0_call(
        self, call_id: str, name: Any, message: dict[str, Any], answer: litellm.Answer, value: dict[str, Any]
    ) -> Item:
        usage = answer.usage
        for one in map(as_dict, as_list(as_dict(value.get("llm_metrics")).get("token_usages"))):
            if usage is None and one.get("response_id") == answer.provider_id is not None:
                usage, _ = usage_of(one)
        return self.say(
            call_id,
            name,
            message,
            {"response": answer.rest} if answer.rest else {},
            reason=answer.finish_reason,
            provider_id=answer.provider_id,
            model=answer.model,
            usage=usage,
        )

    def _delegated(self, name: Any, action: Action, args: dict[str, Any]) -> Item:
        parent = self.thread
        thread = Thread(safe_id(f"{self.id}/delegate/{name}"), parent.depth + 1)
        self.open.append(thread)
        self.threads.append(thread)
        return made(
            Agent,
            id=thread.agent_id,
            episode_id=self.id,
            phase="start",
            role="subagent",
            name=text_of(args, "agent"),
            depth=thread.depth,
            parent_agent_id=parent.agent_id,
            spawned_by_call_id=action.call_id,
            spawned_by_tool_call_id=action.use,
            scope_prompt=None if "inputs" not in args else raw(args["inputs"]),
        )

    def _v0_returned(self, value: dict[str, Any]) -> Iterator[Item]:
        thread = self.open.pop()
        extras = as_dict(value.get("extras"))
        finding = extras.get("outputs") or value.get("content")
        yield made(
            Agent,
            id=thread.agent_id,
            episode_id=self.id,
            phase="end",
            return_message=None if finding is None else raw(finding),
        )
        self._v0_observation(value, "")

    def _v0_observation(self, value: dict[str, Any], at: str) -> None:
        kind, name = value.get("observation"), value.get("id")
        action = self.actions.get(value.get("cause"))
        if action is None and kind in (*_NO_VIEW, "recall", "success"):
            if kind not in _NO_VIEW:
                self.thread.view.append(Entry(name, None))
            self.notes.leftover(f"openhands: observation {kind}", value, at=at)
            return
        content = value.pop("content", None)
        if action is None:
            self.read(name, {"role": "user", "content": content}, value)
            return
        message: dict[str, Any] = {"role": "user", "content": content}
        if action.use is not None:
            message = {"role": "tool", "tool_call_id": action.use, "name": action.name, "content": content}
        self.read(name, message, {})
        if value.get("tool_call_metadata") == action.metadata:
            value.pop("tool_call_metadata", None)
        extras = as_dict(value.get("extras"))
        exit_code = as_dict(extras.get("metadata")).get("exit_code", extras.get("exit_code"))
        status = {"error": "failed", "user_rejected": "cancelled"}.get(str(kind), "ok")
        self.result(
            action, content, value, status=status, exit_status=exit_code if type(exit_code) is int else None
        )


def _forgotten(args: dict[str, Any]) -> set[Any]:
    ids = args.get("forgotten_event_ids")
    if isinstance(ids, list):
        return {one for one in ids if isinstance(one, (int, str))}
    start, end = args.get("forgotten_events_start_id"), args.get("forgotten_events_end_id")
    return set(range(start, end + 1)) if type(start) is int and type(end) is int else set()
