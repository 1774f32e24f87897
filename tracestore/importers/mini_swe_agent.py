"""mini-swe-agent trajectories (`*.traj.json`) -> an episode each: one linear conversation.

`trajectory_format` "mini-swe-agent-1" and "-1.x": {info {exit_status, submission, model_stats, config,
mini_version}, messages, instance_id?}. Before that (and for tests of its own) the bare list of messages,
known by the command that ends a run, which stands in its first messages.

- A message is what the provider gets, but for `extra`, which is the harness's own. An assistant message is a
  call; its context is everything before it. With the Responses API it is the response object (`object:
  "response"`), whose `output` items the next request sends.
- `extra` of an answer (version 1.1): `response` (the provider's, with usage), `cost`, `timestamp`, and
  `actions` {command, tool_call_id}; of what came back: `returncode`, `raw_output`, `exception_info`,
  `timestamp`. The results of several actions are tool messages by id, or one message each in order.
- Without `actions`, an answer with exactly one fenced block of bash ran it: that is the rule of the harness.
- A message of role `exit` ends the run; it is not sent. `exit_status`: Submitted is ok, LimitsExceeded
  budget_exhausted, format errors failed, an interruption cancelled, any other exception an infra_error.
- `model_stats` are totals of the run and stay with the episode. There is no id but the instance's: the
  episode is named by it and the conversation up to the first answer, whose times tell runs of one instance
  apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tracestore.importers import litellm
from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, guarded
from tracestore.importers.items import Item, Names, left, made, nanoseconds, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.usage import of as usage_of
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.tool_call import ToolCall

_NAME = "mini-swe-agent"
_ENDS = ("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "MINI_SWE_AGENT_FINAL_OUTPUT")
_FENCE = re.compile(r"```(?:mswea_bash_command|bash)\s*\n(.*?)\n```", re.DOTALL)
_STATUS = {
    "Submitted": "ok",
    "submitted": "ok",
    "LimitsExceeded": "budget_exhausted",
    "FormatError": "failed",
    "RepeatedFormatError": "failed",
    "UserInterruption": "cancelled",
    "KeyboardInterrupt": "cancelled",
}


def _is_trajectory(value: Any) -> bool:
    stated = value.get("trajectory_format") if isinstance(value, dict) else None
    return isinstance(stated, str) and stated.startswith(_NAME)


def _is_bare(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(one, dict) and "role" in one for one in value):
        return False
    return any(end in str(one.get("content")) for one in value[:2] for end in _ENDS)


def _recognises(head: Head) -> bool:
    return _is_trajectory(head.first) or _is_bare(head.first)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, calls and tool calls of the sources."""
    for source in sources:
        names = Names(_NAME)
        for record in records(source, notes=notes):
            if _is_trajectory(record.value) or _is_bare(record.value):
                notes.rows[f"{_NAME}/trajectory"] += 1
                yield from guarded(_trajectory(record, names, notes), at=record.at, notes=notes)
            else:
                notes.refuse(record.at, "no trajectory: it has trajectory_format, or is a list of messages")


def _trajectory(record: Record, names: Names, notes: Notes) -> Iterator[Item]:
    value = {"messages": record.value} if isinstance(record.value, list) else dict(record.value)
    messages = taken(value, "messages", list) or []
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(f"message {place} is no object")
        notes.rows[f"{_NAME}/message {_role(message)}"] += 1
    first = next((place for place, one in enumerate(messages) if _is_answer(one)), len(messages))
    instance = value.get("instance_id")
    name = names.of([instance, messages[: first + 1]])
    yield from _frame(name, value, messages)
    yield from _calls(name, value, messages, record.at, notes)


def _role(message: dict[str, Any]) -> str:
    return str(message.get("role") or message.get("type") or message.get("object"))


def _is_answer(message: dict[str, Any]) -> bool:
    return message.get("role") == "assistant" or message.get("object") == "response"


def _frame(name: str, value: dict[str, Any], messages: list[dict[str, Any]]) -> Iterator[Item]:
    info = as_dict(value.get("info"))
    exits = [message for message in messages if message.get("role") == "exit"]
    reason = info.get("exit_status") or as_dict(as_dict(exits[-1] if exits else None).get("extra")).get(
        "exit_status"
    )
    instance = value.get("instance_id")
    yield made(
        Episode, id=name, phase="start", task_id=safe_id(instance) if isinstance(instance, str) else None
    )
    yield made(
        Episode,
        id=name,
        phase="end",
        revision=len(messages),
        status=_STATUS.get(reason, "infra_error") if isinstance(reason, str) and reason else None,
        stop_reason=reason if isinstance(reason, str) else None,
        meta=left(_NAME, value | ({"exit": exits} if exits else {})),
    )
    yield made(Agent, id=f"{name}/main", episode_id=name, role="main", depth=0, model=_model(value))


def _model(value: dict[str, Any]) -> str | None:
    config = as_dict(as_dict(as_dict(value.get("info")).get("config")).get("model"))
    model = config.get("model_name")
    return model if isinstance(model, str) else None


def _calls(
    name: str, value: dict[str, Any], messages: list[dict[str, Any]], at: str, notes: Notes
) -> Iterator[Item]:
    """A call for each answer, each continuing the one before it, and what it ran."""
    conversation = _Conversation(name, value, any(one.get("object") == "response" for one in messages), notes)
    read: list[dict[str, Any]] = []
    spoken = [place for place, one in enumerate(messages) if _is_answer(one)]
    for place, end in zip(spoken, [*spoken[1:], len(messages)], strict=True):
        before = messages[:place] if not conversation.num else read
        read = [one for one in messages[place + 1 : end] if one.get("role") != "exit"]
        yield conversation.call(before, messages[place])
        yield from conversation.tool_calls(messages[place], read)
    for message in read if spoken else messages:
        notes.leftover(f"{_NAME}: message that no call saw", message, at=at)


class _Conversation:
    def __init__(self, name: str, value: dict[str, Any], is_responses: bool, notes: Notes) -> None:
        self.name, self.model, self.notes = name, _model(value), notes
        self.is_responses = is_responses
        self.num = 0
        self.told: list[dict[str, Any]] = []
        """Messages whose `extra` stands in a tool call."""

    def call(self, read: list[dict[str, Any]], message: dict[str, Any]) -> Item:
        extra = as_dict(message.get("extra"))
        response = taken(extra, "response", dict)
        answer = litellm.answer(response or {})
        cost = extra.get("cost")
        said = {name: one for name, one in message.items() if name != "extra"}
        rest: dict[str, Any] = {"extra": extra} if extra else {}
        if response is not None:
            # The message of the response is the message, spelled once more.
            kept = (
                answer.rest if answer.message == _plain(said) else {**answer.rest, "message": answer.message}
            )
            rest["response"] = {name: one for name, one in kept.items() if one is not None}
        told = [as_dict(one.get("extra")) for one in read if not any(one is other for other in self.told)]
        rest |= {"read": [one for one in told if one]} if any(told) else {}
        seen = [{name: one for name, one in item.items() if name != "extra"} for item in read]
        body: dict[str, Any] = {"message": raw(said), "finish_reason": answer.finish_reason}
        usage, _ = usage_of((response or {}).get("usage") or said.get("usage"), cost=cost)
        self.num += 1
        return made(
            Call,
            id=f"{self.name}/{self.num - 1}",
            episode_id=self.name,
            agent_id=f"{self.name}/main",
            ordinal=self.num - 1,
            purpose="act",
            model=answer.model or self.model,
            provider_id=answer.provider_id,
            dialect="openai_responses" if self.is_responses else "openai_chat",
            request=raw({"input" if self.is_responses else "messages": seen}),
            context="delta" if self.num > 1 else "whole",
            parent_call_id=f"{self.name}/{self.num - 2}" if self.num > 1 else None,
            completions=(CompletionBody(**{name: one for name, one in body.items() if one is not None}),),
            usage=usage,
            status="ok",
            ended_at=nanoseconds(extra.get("timestamp")),
            meta=left(_NAME, rest),
        )

    def tool_calls(self, message: dict[str, Any], after: list[dict[str, Any]]) -> Iterator[Item]:
        """What the harness ran of an answer, each with the message that brought its result."""
        by_id = {one.get("tool_call_id") or one.get("call_id"): one for one in after}
        in_order = [one for one in after if one.get("role") == "user"]
        for place, (command, use, is_stated) in enumerate(self._actions(message)):
            result = by_id.get(use) if use is not None else (in_order.pop(0) if in_order else None)
            extra: dict[str, Any] = {}
            if result is not None:
                self.told.append(result)
                extra = as_dict(result.get("extra"))
            if not is_stated:
                self.notes.infer("a command that ran", evidence="the only bash block of its answer")
            content = None if result is None else result.get("content", result.get("output"))
            code = extra.get("returncode")
            yield made(
                ToolCall,
                id=f"{self.name}/{self.num - 1}/tool/{place}",
                revision=1 + (result is not None),
                episode_id=self.name,
                call_id=f"{self.name}/{self.num - 1}",
                tool_call_id=use,
                name="bash",
                arguments=command,
                result=None if content is None else raw(content),
                status=None if result is None else "failed" if extra.get("exception_info") else "ok",
                exit_status=code if type(code) is int else None,
                ended_at=nanoseconds(extra.get("timestamp")),
                meta=left(_NAME, extra),
            )

    def _actions(self, message: dict[str, Any]) -> Iterator[tuple[str, str | None, bool]]:
        """(command, the model's id of the tool use, whether the file states it)."""
        stated = as_dict(message.get("extra")).get("actions")
        if isinstance(stated, list):
            for one in map(as_dict, stated):
                use = one.get("tool_call_id")
                yield str(one.get("command", one.get("action"))), use if isinstance(use, str) else None, True
            return
        content = message.get("content")
        blocks = _FENCE.findall(content) if isinstance(content, str) else []
        if len(blocks) == 1:
            yield blocks[0].strip(), None, False


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in message.items() if name != "extra"}


FORMAT = Format("mini-swe-agent", "mini-swe-agent trajectories", _recognises, read)
