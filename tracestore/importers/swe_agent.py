"""SWE-agent trajectories (`.traj`) -> an episode each, or one with its attempts as candidates.

{trajectory, history, info, environment, replay_config}; demonstrations may be the `history` alone.

- `trajectory` has a step for every answer of the model: {response, thought, action, observation, state,
  execution_time, query | messages}. `query` (from 1.1.0) is the exact request, in the form of `history`.
- `history` is the conversation: {role, content, agent, message_type, thought, action, tool_calls,
  tool_call_ids, is_demo}. A demonstration is read and never the model's, whatever its role. The last answer
  (submit) is often in no history, and neither are answers that were asked for again.
- A step is a call. Its answer is the message of the history with its content, else its `response`. Without a
  query its context is the history before it; history processors may have cut that, which a gap says. An
  answer that is in no history has the context of the next one that is; which retries it led to is not told.
- A step's action is a tool call; with function calling it has the model's id. Its result is `observation`;
  what the model read of it is the next message.
- Other agents' messages in one history (`agent`, versions before 1.0) are subagents' calls, by history alone.
- `info.exit_status`: submitted is ok; in "submitted (exit_cost)" the harness submitted after the limit that
  stands in the parentheses. cost, context and total time are budget_exhausted, command timeouts timeout,
  format failed, environment, api and other errors infra_error. `model_stats` are totals and stay with the
  episode.
- `attempts` (retry agents): each is an agent at depth 0 that begins anew; `info.best_attempt_idx` was chosen
  by a reviewer (score in `info.review`) whose calls are not recorded. The file repeats the best one at its
  top.
- There is no id: a trajectory is named by environment, replay_config, and history and steps up to the first
  answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, number
from tracestore.importers.items import Item, Names, gap, left, made, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet, Member, MemberScore
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.tool_call import ToolCall

_NAME = "swe-agent"
_PARTS = ("trajectory", "history", "info", "environment", "replay_config")
_ENDS = (
    ("command_timeout", "timeout"),
    ("total_execution_time", "budget_exhausted"),
    ("cost", "budget_exhausted"),
    ("context", "budget_exhausted"),
    ("format", "failed"),
    ("forfeit", "failed"),
    ("error", "infra_error"),
    ("api", "infra_error"),
    ("exit", "infra_error"),
)


def _is_trajectory(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("attempts"), list) and _is_trajectory((value["attempts"] or [None])[0]):
        return True
    steps, history = value.get("trajectory"), value.get("history")
    is_steps = isinstance(steps, list) and all(
        isinstance(one, dict) and "response" in one and "action" in one for one in steps
    )
    is_history = isinstance(history, list) and bool(history) and all(_is_item(one) for one in history)
    return is_history and (is_steps or "trajectory" not in value)


def _is_item(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and ("agent" in value or "is_demo" in value)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls and candidates of the sources."""
    for source in sources:
        names = Names(_NAME)
        for record in records(source, notes=notes):
            if _is_trajectory(record.value):
                notes.rows[f"{_NAME}/trajectory"] += 1
                yield from guarded(_episode(record, names, notes), at=record.at, notes=notes)
            else:
                notes.refuse(record.at, "no trajectory: it has trajectory and history, or attempts")


def _episode(record: Record, names: Names, notes: Notes) -> Iterator[Item]:
    value = dict(record.value)
    attempts = value.pop("attempts", None)
    parts = [as_dict(one) for one in attempts] if isinstance(attempts, list) and attempts else [value]
    name = names.of(_beginning(parts[0]))
    info = as_dict(value.get("info"))
    yield from _frame(name, value, parts, info)
    for place, part in enumerate(parts):
        attempt = _Attempt(name, f"attempt-{place}" if attempts else "main", part, notes, record.at)
        yield from attempt.items()
    if attempts:
        yield from _candidates(name, parts, info)
        _note_differing(value, parts, info, record.at, notes)


def _beginning(part: dict[str, Any]) -> Any:
    history = as_list(part.get("history"))
    first = next((place for place, one in enumerate(history) if _is_answer(one)), len(history))
    steps = as_list(part.get("trajectory"))[:1]
    return [part.get("environment"), part.get("replay_config"), history[: first + 1], steps]


def _frame(
    name: str, value: dict[str, Any], parts: list[dict[str, Any]], info: dict[str, Any]
) -> Iterator[Item]:
    problem = as_dict(_config(value).get("problem_statement") or _config(parts[0]).get("problem_statement"))
    instance, reason = problem.get("id"), info.get("exit_status")
    rest = {one: given for one, given in value.items() if one not in ("trajectory", "history")}
    num = sum(len(as_list(part.get(one))) for part in parts for one in ("trajectory", "history"))
    yield made(
        Episode, id=name, phase="start", task_id=safe_id(instance) if isinstance(instance, str) else None
    )
    yield made(
        Episode,
        id=name,
        phase="end",
        revision=num,
        status=_status(reason),
        stop_reason=reason if isinstance(reason, str) else None,
        meta=left(_NAME, rest),
    )


def _status(reason: Any) -> str | None:
    if not isinstance(reason, str) or not reason:
        return None
    return next((status for mark, status in _ENDS if mark in reason), "ok" if "submitted" in reason else None)


def _config(part: dict[str, Any]) -> dict[str, Any]:
    """`replay_config`, an object or its JSON text."""
    config = part.get("replay_config")
    try:
        return as_dict(json.loads(config)) if isinstance(config, str) else as_dict(config)
    except ValueError:
        return {}


def _is_answer(item: Any) -> bool:
    return isinstance(item, dict) and item.get("role") == "assistant" and not item.get("is_demo")


@dataclass
class _Turn:
    """An answer, and what was read before it."""

    read: list[dict[str, Any]]
    answer: dict[str, Any] | None
    """The message of the history; None where it is in none."""
    step: dict[str, Any] = field(default_factory=dict)


class _Attempt:
    """One run of the agent: the steps of a trajectory over their history."""

    def __init__(self, episode_id: str, name: str, part: dict[str, Any], notes: Notes, at: str) -> None:
        self.episode_id, self.notes, self.at = episode_id, notes, at
        self.agent_id = f"{episode_id}/{name}"
        self.is_attempt = name != "main"
        self.part = part
        self.history = [one for one in as_list(part.get("history")) if isinstance(one, dict)]
        self.steps = [one for one in as_list(part.get("trajectory")) if isinstance(one, dict)]
        given = as_dict(as_dict(_config(part).get("agent")).get("model")).get("name")
        self.model = given if isinstance(given, str) else None

    def items(self) -> Iterator[Item]:
        """The agent, the agents that share its history, their calls and tool calls."""
        for item in self.history:
            self.notes.rows[f"{_NAME}/history {item.get('role')}"] += 1
            self.notes.rows[f"{_NAME}/message {item.get('message_type')}"] += 1
            self.notes.rows[f"{_NAME}/demonstration"] += bool(item.get("is_demo"))
        self.notes.rows[f"{_NAME}/step"] += len(self.steps)
        own = next((item.get("agent") for item in self.history if not item.get("is_demo")), None)
        info = as_dict(self.part.get("info"))
        rest = {name: one for name, one in self.part.items() if name not in ("trajectory", "history")}
        is_named = isinstance(own, str)
        yield made(
            Agent,
            id=self.agent_id,
            episode_id=self.episode_id,
            role="main",
            name=own if is_named else None,
            depth=0,
            phase="start",
        )
        yield made(
            Agent,
            id=self.agent_id,
            episode_id=self.episode_id,
            phase="end",
            revision=len(self.steps) + len(self.history),
            model=self.model,
            status=_status(info.get("exit_status")) if self.is_attempt else None,
            meta=left(_NAME, rest) if self.is_attempt else None,
        )
        others = {str(item.get("agent")): None for item in self.history if item.get("agent") != own}
        mine = [item for item in self.history if item.get("agent") == own or item.get("is_demo")]
        turns, tail = self._turns(mine)
        yield from self._calls(self.agent_id, turns)
        if turns and not any("query" in step for step in self.steps):
            yield gap(
                self.agent_id,
                "requests_not_recorded",
                "steps without query: contexts are the history, which history processors may have cut",
                episode_id=self.episode_id,
                agent_id=self.agent_id,
            )
        for other in sorted(others):
            items = [
                item for item in self.history if str(item.get("agent")) == other and not item.get("is_demo")
            ]
            yield from self._other(other, items)
        for item in tail:
            self.notes.leftover(f"{_NAME}: message that no call saw", item, at=self.at)

    def _other(self, name: str, items: list[dict[str, Any]]) -> Iterator[Item]:
        agent_id = safe_id(f"{self.agent_id}/{name}")
        yield made(
            Agent,
            id=agent_id,
            episode_id=self.episode_id,
            role="subagent",
            name=name,
            depth=1,
            parent_agent_id=self.agent_id,
        )
        turns, tail = _by_history(items)
        yield from self._calls(agent_id, turns)
        for item in tail:
            self.notes.leftover(f"{_NAME}: message that no call saw", item, at=self.at)

    def _turns(self, history: list[dict[str, Any]]) -> tuple[list[_Turn], list[dict[str, Any]]]:
        """The steps with their messages; (turns, messages after the last answer)."""
        turns, tail = _by_history(history)
        if not self.steps:
            return turns, tail
        found: list[_Turn] = []
        waiting = iter(turns)
        ahead = next(waiting, None)
        for step in self.steps:
            if ahead is not None and _is_of(step, ahead.answer):
                found.append(_Turn(ahead.read, ahead.answer, step))
                ahead = next(waiting, None)
            else:
                read = ahead.read if ahead is not None else tail
                found.append(_Turn(read, None, step))
        if ahead is not None:
            # Answers of the history that no step tells: by history alone.
            found += [ahead, *waiting]
        elif any(turn.answer is None for turn in found[-1:]):
            tail = []
        return found, tail

    def _calls(self, agent_id: str, turns: list[_Turn]) -> Iterator[Item]:
        parent: str | None = None
        for ordinal, turn in enumerate(turns):
            call_id = f"{agent_id}/{ordinal}"
            step = dict(turn.step)
            query = step.pop("query", None)
            response = step.pop("response", None)
            answer = turn.answer or {"role": "assistant", "content": response}
            if response != answer.get("content"):
                step["response"] = response
            is_whole = isinstance(query, list) or parent is None
            if "query" in turn.step and not isinstance(query, list):
                step["query"] = query
            read = query if isinstance(query, list) else turn.read
            observation, action = step.pop("observation", None), step.pop("action", None)
            if action != answer.get("action") and turn.answer is not None:
                step["action"] = action
            if step.get("thought") == answer.get("thought") and turn.answer is not None:
                step.pop("thought", None)
            yield made(
                Call,
                id=call_id,
                episode_id=self.episode_id,
                agent_id=agent_id,
                ordinal=ordinal,
                purpose="act",
                model=self.model if agent_id == self.agent_id else None,
                request=raw({"messages": read}),
                context="whole" if is_whole else "delta",
                parent_call_id=None if is_whole else parent,
                completions=(CompletionBody(message=raw(answer)),),
                status="ok",
                meta=left(_NAME, step),
            )
            yield from self._tool_calls(call_id, turn, action, observation)
            if turn.answer is not None:
                parent = call_id

    def _tool_calls(self, call_id: str, turn: _Turn, action: Any, observation: Any) -> Iterator[Item]:
        """What was run: the tool use of the answer, or its action as text."""
        uses = [as_dict(one) for one in as_list(as_dict(turn.answer).get("tool_calls"))]
        action = action if action is not None else as_dict(turn.answer).get("action")
        if not uses and not (isinstance(action, str) and action):
            return
        for place, use in enumerate(uses or [{}]):
            function = as_dict(use.get("function"))
            arguments = function.get("arguments", action)
            tool_use, name = use.get("id"), function.get("name")
            result = observation if place == 0 and observation is not None else self._read(use)
            yield made(
                ToolCall,
                id=f"{call_id}/tool/{place}",
                revision=1 + (result is not None),
                episode_id=self.episode_id,
                call_id=call_id,
                tool_call_id=tool_use if isinstance(tool_use, str) else None,
                name=name if isinstance(name, str) else None,
                arguments=arguments if isinstance(arguments, str) else raw(arguments).decode(),
                result=None if result is None else raw(result),
            )

    def _read(self, use: dict[str, Any]) -> Any:
        """What the model read of a tool use, where no step says what came back."""
        for item in self.history:
            if use.get("id") is not None and use["id"] in as_list(item.get("tool_call_ids")):
                return item.get("content")
        return None


def _by_history(history: list[dict[str, Any]]) -> tuple[list[_Turn], list[dict[str, Any]]]:
    """(a turn for each answer, the messages after the last)."""
    turns: list[_Turn] = []
    read: list[dict[str, Any]] = []
    for item in history:
        if _is_answer(item):
            turns.append(_Turn(read, item))
            read = []
        else:
            read.append(item)
    return turns, read


def _is_of(step: dict[str, Any], answer: dict[str, Any] | None) -> bool:
    if answer is None:
        return False
    if answer.get("content") == step.get("response"):
        return True
    return bool(step.get("action")) and answer.get("action") == step["action"]


def _candidates(name: str, parts: list[dict[str, Any]], info: dict[str, Any]) -> Iterator[Item]:
    """The attempts as alternatives, and the one that was chosen."""
    members = tuple(Member(agent_id=f"{name}/attempt-{place}") for place in range(len(parts)))
    yield made(
        CandidateSet,
        id=f"{name}/attempts",
        revision=len(parts),
        episode_id=name,
        generator="retry agent",
        members=members,
    )
    scores = [number(as_dict(as_dict(part.get("info")).get("review")).get("accept")) for part in parts]
    given = [MemberScore(member=place, score=one) for place, one in enumerate(scores) if one is not None]
    best = info.get("best_attempt_idx")
    if type(best) is int and 0 <= best < len(parts):
        yield made(
            CandidateSelection,
            id=f"{name}/attempts/chosen",
            revision=len(parts),
            episode_id=name,
            candidate_set_id=f"{name}/attempts",
            selector="judge",
            selected=(best,),
            scores=tuple(given) or None,
        )
        yield gap(
            name,
            "reviewer_not_recorded",
            "the calls of the reviewer that chose an attempt are counted, not recorded",
            episode_id=name,
        )


def _note_differing(
    value: dict[str, Any], parts: list[dict[str, Any]], info: dict[str, Any], at: str, notes: Notes
) -> None:
    """The top of the file repeats the best attempt; where it does not, it is noted."""
    best = info.get("best_attempt_idx")
    same = parts[best] if type(best) is int and 0 <= best < len(parts) else {}
    for name in ("trajectory", "history"):
        if name in value and value[name] != same.get(name):
            notes.leftover(f"{_NAME}: {name} beside the attempts", value[name], at=at)


FORMAT = Format("swe-agent", "SWE-agent trajectories", lambda head: _is_trajectory(head.first), read)
