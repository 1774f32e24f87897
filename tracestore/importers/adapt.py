"""ADaPT results -> an episode for each task, with the tree of its executors.

One object {name of a task: result, "overall": totals}. Two shapes of a result:

- TextCraft {problem, commands, trace, plans, reward}. `plans` are lines in the order in which things
  happened: `TASK at depth 2, success: False` is an executor that tried a task, `['a', 'b'] at depth 3 and
  logic AND` the plan into which the task that failed last was decomposed. Executors are agents; the executor
  of a part belongs to the one whose task was decomposed. `trace` is a transcript: lines after the sign `> `
  are what the model wrote, the lines under them what it saw. Where there was one executor it is its own;
  else transcripts of some executors stand in it without a border, and it stays in `meta`.
- WebShop {problem, score, success, action_history}. Each action is a call; what the model saw is not kept.

Prompts, answers in full, plans as sampled and the other executors' transcripts are not in the file: a gap
says so. Which transcript lines are calls is inferred from the sign. Results have names and no ids: an episode
is named by its content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, number
from tracestore.importers.items import Item, content_id, gap, left, made, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.reward import Reward, RewardTarget

_TRIED = re.compile(r"(?P<task>.*) at depth (?P<depth>\d+), success: (?P<success>True|False)\Z", re.DOTALL)
_SPLIT = re.compile(r"(?P<parts>\[.*\]) at depth (?P<depth>\d+) and logic (?P<logic>\w+)\Z", re.DOTALL)
_SIGN = "\n> "


def _is_result(value: Any) -> bool:
    if not isinstance(value, dict) or "problem" not in value:
        return False
    return {"plans", "reward", "trace"} <= value.keys() or {"action_history", "score"} <= value.keys()


def _is_results(value: Any) -> bool:
    return isinstance(value, dict) and any(_is_result(one) for one in value.values())


def _recognises(head: Head) -> bool:
    return _is_results(head.first)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes with their executors, calls and rewards."""
    for source in sources:
        for record in records(source, notes=notes):
            if not _is_results(record.value):
                notes.refuse(record.at, "no results: each has a problem and plans or an action_history")
                continue
            for name, value in record.value.items():
                at = f"{record.at}, {name}"
                yield from guarded(_one(name, value, record, notes), at=at, notes=notes)


def _one(name: str, value: Any, record: Record, notes: Notes) -> Iterator[Item]:
    if not _is_result(value):
        kind = "totals" if name == "overall" else "no result of a task"
        notes.rows[f"adapt/{kind}"] += 1
        notes.leftover(f"adapt: {kind}", {name: value}, at=record.at)
        return
    notes.rows["adapt/result"] += 1
    rest = as_dict(value)
    problem = rest.pop("problem")
    result = _Result(content_id("adapt", [name, value]), problem, rest, notes)
    items = [*result.rewards(), *(result.plans() if "plans" in rest else result.actions())]
    yield made(
        Episode,
        id=result.episode_id,
        task_id=safe_id(name),
        task=raw(problem),
        status=result.status,
        meta=left("adapt", rest),
    )
    yield from items


@dataclass
class _Executor:
    """An agent that tried one task."""

    place: int
    task: str
    depth: int
    status: str
    parent: _Executor | None
    rest: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Result:
    episode_id: str
    problem: Any
    rest: dict[str, Any]
    notes: Notes
    status: str | None = None

    def _agent_id(self, executor: _Executor | None) -> str:
        return f"{self.episode_id}/{'main' if executor is None else executor.place}"

    def rewards(self) -> Iterator[Item]:
        success = taken(self.rest, "success", bool)
        self.status = {True: "ok", False: "failed"}.get(success) if success is not None else None
        for name in ("reward", "score"):
            value = number(self.rest.get(name))
            if value is not None:
                del self.rest[name]
                yield made(
                    Reward,
                    id=f"{self.episode_id}/{name}",
                    target=RewardTarget(episode_id=self.episode_id),
                    name=name,
                    value=value,
                    scorer="environment",
                )

    def actions(self) -> Iterator[Item]:
        """The calls of a result that keeps what was done."""
        history = self.rest.pop("action_history")
        yield self._agent(None, self.problem, "main", None, {})
        yield self._gap(None, "prompts and observations are not recorded")
        for ordinal, action in enumerate(as_list(history)):
            yield self._call(self._agent_id(None), ordinal, action, None)
        if not isinstance(history, list):
            self.rest["action_history"] = history

    def plans(self) -> Iterator[Item]:
        """The executors of a result that keeps its plan."""
        lines = self.rest.pop("plans")
        executors, unread = self._executors(as_list(lines))
        if unread or not isinstance(lines, list):
            self.rest["plans"] = unread or lines
        for executor in executors:
            role = "main" if executor.parent is None else "executor"
            yield self._agent(executor, executor.task, role, executor.status, executor.rest)
        if not executors:
            yield self._agent(None, self.problem, "main", None, {})
        first = executors[0] if executors else None
        yield self._gap(first, "prompts, plans as sampled and executors' own transcripts are not recorded")
        if len(executors) == 1:
            yield from self._transcript(taken(self.rest, "trace", str) or "", self._agent_id(first))

    def _executors(self, lines: list[Any]) -> tuple[list[_Executor], list[Any]]:
        """(executors in order, lines that say neither of an executor nor of a plan)."""
        found: list[_Executor] = []
        unread: list[Any] = []
        open_: dict[int, _Executor] = {}
        for line in lines:
            text = line if isinstance(line, str) else ""
            tried, split = _TRIED.match(text), _SPLIT.match(text)
            if tried:
                depth, status = int(tried["depth"]), "ok" if tried["success"] == "True" else "failed"
                parent = open_.get(depth)
                found.append(_Executor(len(found), tried["task"], depth, status, parent))
            elif split and found:
                # The task that failed last is decomposed: its parts are tried at the depth of the plan.
                owner = found[-1]
                owner.rest = {
                    "plan": split["parts"],
                    "plan_depth": int(split["depth"]),
                    "logic": split["logic"],
                }
                open_[int(split["depth"])] = owner
                self.notes.infer(
                    "whose task a plan decomposes", evidence="the executor that failed just before"
                )
            else:
                unread.append(line)
        return found, unread

    def _agent(self, executor: _Executor | None, task: Any, role: str, status: str | None, rest: Any) -> Item:
        parent = executor.parent if executor else None
        return made(
            Agent,
            id=self._agent_id(executor),
            episode_id=self.episode_id,
            role=role,
            parent_agent_id=None if parent is None else self._agent_id(parent),
            depth=executor.depth - 1 if executor and executor.depth else 0,
            scope_prompt=raw(task),
            status=status,
            meta=left("adapt", rest),
        )

    def _transcript(self, trace: str, agent_id: str) -> Iterator[Item]:
        seen: str | None = None
        for ordinal, part in enumerate(trace.split(_SIGN) if trace else []):
            self.notes.infer("the calls of a transcript", evidence="lines after the sign >")
            action, newline, observed = part.partition("\n")
            yield self._call(agent_id, ordinal, action, seen)
            seen = observed if newline else None
        if seen:
            self.rest["after_the_last_action"] = seen

    def _call(self, agent_id: str, ordinal: int, action: Any, seen: str | None) -> Item:
        return made(
            Call,
            id=f"{agent_id}/{ordinal}",
            episode_id=self.episode_id,
            agent_id=agent_id,
            ordinal=ordinal,
            dialect="text",
            request=None if seen is None else raw({"prompt": seen}),
            context="delta" if ordinal else "whole",
            parent_call_id=f"{agent_id}/{ordinal - 1}" if ordinal else None,
            completions=(CompletionBody(message=raw(action)),),
        )

    def _gap(self, executor: _Executor | None, detail: str) -> Item:
        return gap(
            self.episode_id,
            "missing_prompt",
            detail,
            episode_id=self.episode_id,
            agent_id=self._agent_id(executor),
        )


FORMAT = Format("adapt", "ADaPT results", _recognises, read)
