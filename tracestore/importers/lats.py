"""LATS programming logs (JSON lines) -> an episode for each task, with its first and its chosen attempt.

A line is a task of the benchmark with what Reflexion writes too (see `reflexion`): `implementations`,
`reflections`, `test_feedback`, `is_solved`, `solution`, `acc`. The mark of a search is "MCTS reflections",
the last of its reflections.

- `implementations` are the first attempt and the one that the search chose: two candidates, of which the
  second was selected. That is inferred from their places. The other nodes of the tree are not in the log,
  only the reflections on those that failed, in the order in which they were made: a gap says so.
- `test_feedback` is of the first attempt and of the node that was expanded last. It stays in `meta`.
- A task that the first attempt solved has its benchmark fields and `acc`: no call of it is recorded.

Prompts are not recorded. What the search of other benchmarks logs (HotPotQA, WebShop) is text for people, and
not read. Tasks have names and no ids: an episode is named by its content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracestore.importers.documents import records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded
from tracestore.importers.items import Item, Names, gap_of_main, made, raw, taken
from tracestore.importers.notes import Notes
from tracestore.importers.reflexion import TREE_MARK, is_run, shell
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet, Member
from tracestore.wire.completion import CompletionBody

_AT_ONCE = frozenset({"prompt", "entry_point", "test", "acc"})


def _is_searched(value: Any) -> bool:
    return is_run(value) and TREE_MARK in value["reflections"]


def _is_task(value: Any) -> bool:
    return is_run(value) or (isinstance(value, dict) and value.keys() >= _AT_ONCE)


def _recognises(head: Head) -> bool:
    # Reflexion and its relatives write every task with its attempts.
    solved_at_once = _is_task(head.first) and not is_run(head.first)
    return _is_task(head.first) and (solved_at_once or any(map(_is_searched, head.records)))


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes with their attempts, reflections, candidates and rewards."""
    for source in sources:
        names = Names("lats")
        for record in records(source, notes=notes):
            if not _is_task(record.value):
                notes.refuse(record.at, "no task of a run: it has prompt, test, acc or implementations")
                continue
            notes.rows["lats/task"] += 1
            items = _task(as_dict(record.value), names.of(record.value), notes)
            yield from guarded(items, at=record.at, notes=notes)


def _task(rest: dict[str, Any], episode_id: str, notes: Notes) -> Iterator[Item]:
    written, thoughts = as_list(rest.pop("implementations", None)), as_list(rest.pop("reflections", None))
    if TREE_MARK in thoughts:
        thoughts = [one for one in thoughts if one != TREE_MARK]
        rest["reflections_end_with"] = TREE_MARK
    yield from shell(rest, episode_id, "lats", rest.pop("prompt"), taken(rest, "is_solved", bool))
    yield made(Agent, id=f"{episode_id}/main", episode_id=episode_id, role="main", depth=0)
    detail = "the nodes of the search are not in the log" if written else "no attempt is in the log"
    yield gap_of_main(episode_id, "unrecorded_candidates" if written else "no_calls", detail)
    for place, text in enumerate(written):
        yield _call(f"{episode_id}/attempt/{place}", episode_id, "act", text)
    for place, text in enumerate(thoughts):
        yield _call(f"{episode_id}/reflection/{place}", episode_id, "reflect", text)
    if len(written) > 1:
        notes.infer("which attempt the search chose", evidence="it comes last")
        yield from _candidates(episode_id, len(written))


def _candidates(episode_id: str, num: int) -> Iterator[Item]:
    yield made(
        CandidateSet,
        id=f"{episode_id}/candidates",
        episode_id=episode_id,
        agent_id=f"{episode_id}/main",
        members=tuple(Member(call_id=f"{episode_id}/attempt/{place}") for place in range(num)),
    )
    yield made(
        CandidateSelection,
        id=f"{episode_id}/selection",
        episode_id=episode_id,
        candidate_set_id=f"{episode_id}/candidates",
        selector="search",
        selected=(num - 1,),
    )


def _call(call_id: str, episode_id: str, purpose: str, text: Any) -> Item:
    return made(
        Call,
        id=call_id,
        episode_id=episode_id,
        agent_id=f"{episode_id}/main",
        purpose=purpose,
        completions=(CompletionBody(message=raw({"role": "assistant", "content": text})),),
    )


FORMAT = Format("lats", "LATS programming logs", _recognises, read)
