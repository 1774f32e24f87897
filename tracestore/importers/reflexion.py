"""Reflexion logs -> an episode for each task: attempts, what their tests said, and reflections between them.

Two shapes:

- A programming run, one task a line: the benchmark's own fields (name, prompt, entry_point, test, ...) with
  `implementations`, `test_feedback`, `reflections`, `is_solved`, `solution`, `acc`. An implementation is the
  code that was cut out of an answer; after each comes the feedback of its tests and, where they failed and
  another attempt followed, a reflection. With one implementation more than reflections they alternate; in
  other numbers (several passes) their order is unknown, and stated as a gap.
- ALFWorld: a list of {name, memory, is_success}, one file for each trial. `memory` holds the reflections that
  the trial began with or made; the actions are in text logs beside it.

Both kinds of text were sampled by the policy; what it was asked is not recorded, which a gap says. `acc` is a
running mean over the file and stays in `meta`. Tasks have names and no ids: an episode is named by its
content. Logs of LATS look alike and are told apart by what they put among the reflections (see `lats`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded
from tracestore.importers.items import Item, Names, gap_of_main, left, made, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.reward import Reward, RewardTarget
from tracestore.wire.tool_call import ToolCall

TREE_MARK = "MCTS reflections"
"""What LATS appends to the reflections of every task that it searched."""


def is_run(value: Any) -> bool:
    """Whether this is a task of a programming run, of Reflexion or of LATS."""
    if not isinstance(value, dict) or not {"prompt", "reflections", "implementations"} <= value.keys():
        return False
    return isinstance(value["reflections"], list) and isinstance(value["implementations"], list)


def _is_trial(value: Any) -> bool:
    return isinstance(value, dict) and {"name", "memory", "is_success"} <= value.keys()


def _each(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _recognises(head: Head) -> bool:
    if is_run(head.first):
        return not any(is_run(one) and TREE_MARK in one["reflections"] for one in head.records)
    return isinstance(head.first, list) and any(map(_is_trial, head.first[:1]))


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes with their attempts, reflections and rewards."""
    for source in sources:
        names = Names("reflexion")
        for record in records(source, notes=notes):
            for one in _each(record.value):
                yield from guarded(_record(one, record, names, notes), at=record.at, notes=notes)


def _record(value: Any, record: Record, names: Names, notes: Notes) -> Iterator[Item]:
    if is_run(value):
        notes.rows["reflexion/task"] += 1
        yield from run(as_dict(value), names.of(value), "reflexion", notes)
    elif _is_trial(value):
        notes.rows["reflexion/trial"] += 1
        yield from _trial(as_dict(value), names.of(value))
    else:
        notes.refuse(record.at, "no task (prompt, reflections, implementations) and no trial (name, memory)")


def run(rest: dict[str, Any], episode_id: str, form: str, notes: Notes) -> Iterator[Item]:
    """The events of a task of a programming run, the fields taken out of it."""
    written, thoughts = rest.pop("implementations"), rest.pop("reflections")
    feedback = as_list(rest.get("test_feedback"))
    alternate = len(written) == len(thoughts) + 1 and len(feedback) <= len(written)
    calls = [("act", text) for text in written] + [("reflect", text) for text in thoughts]
    if alternate:
        notes.infer("the order of attempts and reflections", evidence="their numbers")
        calls = [pair for place in range(len(written)) for pair in _attempt(place, written, thoughts)]
    agent_id = f"{episode_id}/main"
    items = [_call(episode_id, place, *call, ordered=alternate) for place, call in enumerate(calls)]
    if alternate and isinstance(rest.get("test_feedback"), list):
        del rest["test_feedback"]
        items += [_tests(episode_id, 2 * place, text) for place, text in enumerate(feedback)]
    if not alternate:
        items.append(
            gap_of_main(episode_id, "unknown_order", f"{len(written)} attempts, {len(thoughts)} reflections")
        )
    yield from shell(rest, episode_id, form, rest.pop("prompt"), taken(rest, "is_solved", bool))
    yield made(Agent, id=agent_id, episode_id=episode_id, role="main", depth=0)
    yield gap_of_main(
        episode_id, "missing_prompt", "what the model was asked is not recorded, nor its whole answers"
    )
    yield from items


def _attempt(place: int, written: list[Any], thoughts: list[Any]) -> Iterator[tuple[str, Any]]:
    yield "act", written[place]
    if place < len(thoughts):
        yield "reflect", thoughts[place]


def shell(rest: dict[str, Any], episode_id: str, form: str, task: Any, solved: bool | None) -> Iterator[Item]:
    """The episode and its reward."""
    name = rest.get("name")
    yield made(
        Episode,
        id=episode_id,
        task_id=safe_id(name) if isinstance(name, str) and name else None,
        task=None if task is None else raw(task),
        status={True: "ok", False: "failed"}[solved] if solved is not None else None,
        meta=left(form, rest),
    )
    if solved is not None:
        yield made(
            Reward,
            id=f"{episode_id}/is_solved",
            target=RewardTarget(episode_id=episode_id),
            name="is_solved",
            value=float(solved),
            scorer="environment",
        )


def _call(episode_id: str, place: int, purpose: str, text: Any, *, ordered: bool) -> Item:
    return made(
        Call,
        id=f"{episode_id}/{place}",
        episode_id=episode_id,
        agent_id=f"{episode_id}/main",
        ordinal=place if ordered else None,
        purpose=purpose,
        completions=(CompletionBody(message=raw({"role": "assistant", "content": text})),),
    )


def _tests(episode_id: str, place: int, feedback: Any) -> Item:
    return made(
        ToolCall,
        id=f"{episode_id}/{place}/tests",
        episode_id=episode_id,
        call_id=f"{episode_id}/{place}",
        name="tests",
        result=raw(feedback),
    )


def _trial(rest: dict[str, Any], episode_id: str) -> Iterator[Item]:
    memory = taken(rest, "memory", list) or []
    yield from shell(rest, episode_id, "reflexion", None, taken(rest, "is_success", bool))
    yield made(Agent, id=f"{episode_id}/main", episode_id=episode_id, role="main", depth=0)
    yield gap_of_main(episode_id, "no_calls", "the actions of a trial are not in its results")
    for place, text in enumerate(memory):
        yield _call(episode_id, place, "reflect", text, ordered=True)


FORMAT = Format("reflexion", "Reflexion logs", _recognises, read)
