"""fast-rlm logs (JSON lines) -> an episode for each root run, an agent for each run below it.

A row is {level, time, run_id, parent_run_id?, depth, step?, event_type, ...}:

- `execution_result` with code, output, hasError, reasoning and usage is one step: a model call that wrote
  the code, and its execution. Step 0 is no call: the harness itself prints how the context begins (usage 0).
- `code_generated` is a step whose code ended the run (FINAL), or that held no code; there is no output.
- `final_result` ends a run. It has no parent_run_id in logs of early 2026: the run's other rows have.

Rows are written when a step is done, so the rows of a child stand before the row of the step that called it:
the step whose row comes next after the child's first row is taken to have spawned it, which is inferred. A
run without a final result is unfinished, whatever its parent did. A run whose parent is not in the log keeps
its episode under the name of that parent.

Prompts and answers are not recorded as sent. Known of a context is the output of each step (cut to the
limit, as the model saw it); of an answer its reasoning and its code, without the text around it. Both are
imported as far as that goes, with a gap that says so. Model names, parameters and parallel groups are not in
the log (newer versions write parallel_group_id, which stays in `meta`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, guarded, known, number
from tracestore.importers.items import Item, count, gap, left, made, nanoseconds, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.spool import Spool
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.tool_call import ToolCall

_EVENTS = frozenset({"execution_result", "code_generated", "final_result"})
_COUNTED = (
    ("prompt_tokens", "prompt_tokens"),
    ("cached_tokens", "cached_tokens"),
    ("completion_tokens", "completion_tokens"),
    ("reasoning_tokens", "reasoning_tokens"),
)


def _is_row(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("event_type"), str):
        return False
    return value["event_type"] in _EVENTS and isinstance(value.get("run_id"), str) and "depth" in value


class _Place(NamedTuple):
    """Where a row stands among the rows of its episode, which may lie in several files."""

    first_time: int
    """Of the first row of its file: a log that goes on in another file goes on there later."""
    first_text: bytes
    line: int


@dataclass
class _Run:
    """One run, by the rows that are there."""

    run_id: str
    parent_id: str | None = None
    depth: int | None = None
    steps: dict[int, Record] = field(default_factory=dict)
    places: dict[int, _Place] = field(default_factory=dict)
    """step -> its place in the log."""
    finals: list[Record] = field(default_factory=list)
    num_rows: int = 0
    times: list[int] = field(default_factory=list)
    first_place: _Place | None = None

    def add(self, record: Record, place: _Place) -> None:
        row = record.value
        self.num_rows += 1
        self.first_place = place if self.first_place is None else min(place, self.first_place)
        parent, depth, step = row.get("parent_run_id"), row.get("depth"), row.get("step")
        self.parent_id = parent if isinstance(parent, str) else self.parent_id
        self.depth = depth if isinstance(depth, int) and not isinstance(depth, bool) else self.depth
        moment = nanoseconds(row.get("time"))
        self.times += [] if moment is None else [moment]
        if row["event_type"] == "final_result":
            self.finals.append(record)
        elif not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ValueError(f"the step is {step!r}")
        elif step in self.steps:
            raise ValueError(f"step {step} of run {self.run_id} is there twice, differently")
        else:
            self.steps[step], self.places[step] = record, place


def _recognises(head: Head) -> bool:
    return _is_row(head.first)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes with their agents, calls and executions."""
    spool, parents = Spool(), dict[str, str]()
    for source in sources:
        for record in records(source, notes=notes):
            if not _is_row(record.value):
                notes.refuse(record.at, "no row of a fast-rlm log (run_id, depth, event_type)")
                continue
            row = record.value
            parent = row.get("parent_run_id")
            if isinstance(parent, str):
                parents[row["run_id"]] = parent
            spool.add(row["run_id"], record, source=source.name)
    episodes: dict[str, list[str]] = {}
    for run_id in spool.keys():  # noqa: SIM118 - a spool is no dict
        episodes.setdefault(_root(run_id, parents), []).append(run_id)
    for root_id, run_ids in sorted(episodes.items()):
        yield from _episode(root_id, _runs(run_ids, spool, notes), notes)


def _root(run_id: str, parents: dict[str, str]) -> str:
    seen = {run_id}
    while run_id in parents and parents[run_id] not in seen:
        run_id = parents[run_id]
        seen.add(run_id)
    return run_id


def _runs(run_ids: list[str], spool: Spool, notes: Notes) -> dict[str, _Run]:
    """The runs of an episode. A row that is in two files is one row."""
    rows = {run_id: list(spool.of(run_id)) for run_id in run_ids}
    firsts: dict[str, Record] = {}
    for name, record in itertools.chain.from_iterable(rows.values()):
        firsts[name] = min(record, firsts.get(name, record), key=lambda one: one.line)
    runs: dict[str, _Run] = {}
    seen: set[bytes] = set()
    for run_id in run_ids:
        runs[run_id] = run = _Run(run_id)
        placed = [(_place(record, firsts[name]), record) for name, record in rows[run_id]]
        for place, record in sorted(placed, key=lambda one: one[0]):
            if record.text in seen:
                continue
            seen.add(record.text)
            notes.rows[f"fast-rlm/{record.value['event_type']}"] += 1
            try:
                run.add(record, place)
            except ValueError as error:
                notes.refuse(record.at, error)
    return runs


def _place(record: Record, first: Record) -> _Place:
    begun = nanoseconds(first.value.get("time"))
    return _Place(2**63 if begun is None else begun, first.text, record.line)


def _episode(root_id: str, runs: dict[str, _Run], notes: Notes) -> Iterator[Item]:
    episode_id = safe_id(root_id)
    root = runs.get(root_id)
    yield made(
        Episode,
        id=episode_id,
        revision=sum(run.num_rows for run in runs.values()),
        status="ok" if root is not None and root.finals else None,
        started_at=min((moment for run in runs.values() for moment in run.times), default=None),
    )
    for run in runs.values():
        at = next(iter([*run.steps.values(), *run.finals])).at if run.steps or run.finals else root_id
        yield from guarded(_run(run, runs, episode_id, notes), at=at, notes=notes)


def _run(run: _Run, runs: dict[str, _Run], episode_id: str, notes: Notes) -> Iterator[Item]:
    parent = runs.get(run.parent_id or "")
    spawned = _spawning_step(run, parent, notes)
    final = as_dict(run.finals[-1].value) if run.finals else {}
    result = final.get("result")
    if run.depth and run.finals and "parent_run_id" not in final:
        notes.warn("a final result without the id of the run's parent")
    yield made(
        Agent,
        id=safe_id(run.run_id),
        revision=run.num_rows + (parent.num_rows if parent else 0),
        episode_id=episode_id,
        parent_agent_id=None if run.parent_id is None else safe_id(run.parent_id),
        spawned_by_call_id=spawned,
        role="subagent" if run.parent_id else "main",
        depth=run.depth,
        return_message=None if result is None else raw(result),
        status="ok" if run.finals else None,
        started_at=min(run.times, default=None),
        ended_at=max(run.times, default=None) if run.finals else None,
        meta=left("fast_rlm", *_of_agent(run)),
    )
    yield gap(
        run.run_id,
        "missing_prompt",
        "prompts and answers are not recorded as sent: outputs, reasoning and code are",
        episode_id=episode_id,
        agent_id=safe_id(run.run_id),
    )
    before: int | None = None
    for step in sorted(run.steps):
        if step:
            yield from _step(run, step, before, episode_id)
            notes.infer("what a call read and wrote", evidence="the outputs and the code of its run's steps")
        before = step


def _of_agent(run: _Run) -> Iterator[dict[str, Any]]:
    """What the rows say that make no call: step 0, and the final result beside its result."""
    if 0 in run.steps:
        yield {"step 0": _rest(run, run.steps[0])}
    for place, final in enumerate(run.finals, 1):
        rest = _rest(run, final)
        rest.pop("event_type")
        if place == len(run.finals):
            rest.pop("result", None)
        yield rest


def _rest(run: _Run, record: Record) -> dict[str, Any]:
    """A row without what holds for the whole run."""
    row = as_dict(record.value)
    of_run = {"run_id": run.run_id, "parent_run_id": run.parent_id, "depth": run.depth}
    return {name: one for name, one in row.items() if name not in of_run or one != of_run[name]}


def _spawning_step(run: _Run, parent: _Run | None, notes: Notes) -> str | None:
    """The call whose step had not been written when the child's first row was."""
    began = run.first_place
    if parent is None or began is None:
        return None
    later = [step for step, place in parent.places.items() if place > began]
    if not later:
        return None
    notes.infer("the step that spawned a run", evidence="the first row of its parent after the run began")
    return safe_id(f"{parent.run_id}/{min(later)}")


def _step(run: _Run, step: int, before: int | None, episode_id: str) -> Iterator[Item]:
    row = _rest(run, run.steps[step])
    call_id = safe_id(f"{run.run_id}/{step}")
    code, reasoning = taken(row, "code", str), taken(row, "reasoning", str)
    output, moment = row.pop("output", None), nanoseconds(row.get("time"))
    usage, counted = _usage(as_dict(row.pop("usage", None)))
    if moment is not None:
        del row["time"]
    del row["step"]
    has_error = taken(row, "hasError", bool)
    answer = {"role": "assistant", "content": code} | ({"reasoning": reasoning} if reasoning else {})
    yield made(
        Call,
        id=call_id,
        episode_id=episode_id,
        agent_id=safe_id(run.run_id),
        ordinal=step - 1,
        request=raw({"messages": _read(run, before)}),
        context="delta" if before else "whole",
        parent_call_id=safe_id(f"{run.run_id}/{before}") if before else None,
        completions=(known(CompletionBody, message=raw(answer)),),
        usage=usage,
        ended_at=moment,
        meta=left("fast_rlm", row, counted),
    )
    if code:
        yield made(
            ToolCall,
            id=f"{call_id}/repl",
            episode_id=episode_id,
            call_id=call_id,
            name="repl",
            arguments=code,
            result=None if output is None else raw(output),
            status={True: "failed", False: "ok"}.get(has_error) if has_error is not None else None,
        )


def _read(run: _Run, before: int | None) -> list[dict[str, Any]]:
    """What the step before put into the context, as far as it is known."""
    if before is None:
        return []
    output = run.steps[before].value.get("output")
    return [] if output is None else [{"role": "user", "content": output}]


def _usage(usage: dict[str, Any]) -> tuple[Usage | None, dict[str, Any]]:
    """(what was counted, the rest). All zeros is how the harness says that the server counted nothing."""
    if not any(usage.get(name) for name in ("prompt_tokens", "completion_tokens")):
        return None, {"usage": usage} if usage else {}
    counts: dict[str, Any] = {ours: count(usage, theirs) for ours, theirs in _COUNTED}
    cost = number(usage.get("cost"))
    if cost is not None:
        del usage["cost"]
    return known(Usage, **counts, cost_usd=cost), {"usage": usage} if usage else {}


FORMAT = Format("fast-rlm", "fast-rlm logs", _recognises, read)
