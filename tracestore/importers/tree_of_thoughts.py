"""Tree of Thoughts breadth-first logs -> an episode for each puzzle, its thoughts as candidates of each step.

One list of puzzles {idx, steps, ys, infos, usage_so_far}. A step {step, x, ys, new_ys, values, select_new_ys}
grows every partial solution of `ys` into those of `new_ys`, values each, and keeps `select_new_ys`. A partial
solution is the whole text so far.

- Model calls are not recorded: neither what was asked nor whether one answer held several thoughts. For
  every partial solution that was grown there is one call, whose completions are the thoughts that begin with
  it, in their order: that is inferred. What a completion says is the text beyond the partial solution. A gap
  says so.
- The candidates of a step are all its thoughts, with their values as scores; equal ones stay several. Where a
  kept text stands for several equal thoughts, the one of the highest value was kept (a repeated thought is
  valued 0).
- `infos` [{r}] are the rewards of the last kept thoughts, in their order.
- `usage_so_far` is a running total over puzzles: it stays in `meta`.

Puzzles have an index and no id: they are named by their content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers.documents import records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, known, number
from tracestore.importers.items import Item, Names, gap, left, made, raw
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet, Member
from tracestore.wire.completion import CompletionBody
from tracestore.wire.episode import Episode
from tracestore.wire.reward import Reward, RewardTarget

_STEP = frozenset({"ys", "new_ys", "values", "select_new_ys"})


def _is_puzzle(value: Any) -> bool:
    steps = value.get("steps") if isinstance(value, dict) else None
    if not isinstance(steps, list) or not steps:
        return False
    return all(isinstance(step, dict) and step.keys() >= _STEP for step in steps)


def _puzzles(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _recognises(head: Head) -> bool:
    return any(map(_is_puzzle, _puzzles(head.first)[:1]))


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes with their calls, candidates and rewards."""
    for source in sources:
        names = Names("tree-of-thoughts")
        for record in records(source, notes=notes):
            for place, puzzle in enumerate(_puzzles(record.value)):
                at = f"{record.at}, puzzle {place}"
                yield from guarded(_record(puzzle, names, at, notes), at=at, notes=notes)


def _record(puzzle: Any, names: Names, at: str, notes: Notes) -> Iterator[Item]:
    if not _is_puzzle(puzzle):
        notes.refuse(at, "no puzzle: it has steps with ys, new_ys, values and select_new_ys")
        return
    notes.rows["tree-of-thoughts/puzzle"] += 1
    yield from _Puzzle(names.of(puzzle), as_dict(puzzle), notes).items()


@dataclass(frozen=True)
class _Step:
    """One step, checked."""

    before: list[str]
    thoughts: list[str]
    values: list[float]
    kept: list[str]
    rest: dict[str, Any]

    @classmethod
    def of(cls, place: int, given: dict[str, Any]) -> _Step:
        rest = dict(given)
        before, thoughts, values, kept = (
            rest.pop(name) for name in ("ys", "new_ys", "values", "select_new_ys")
        )
        scores = [number(value) for value in values]
        if not all(isinstance(text, str) for text in [*before, *thoughts, *kept]):
            raise ValueError(f"step {place}: ys, new_ys and select_new_ys are texts")
        if len(scores) != len(thoughts) or None in scores:
            raise ValueError(f"step {place}: there is no value for each thought")
        return cls(before, thoughts, [score for score in scores if score is not None], kept, rest)

    def grown(self) -> dict[int, list[int]]:
        """Place in `before` -> the thoughts that grew from it. Both are in the same order."""
        found: dict[int, list[int]] = {}
        place = 0
        for index, thought in enumerate(self.thoughts):
            places = [*range(place, len(self.before)), *range(place)]
            place = next((one for one in places if thought.startswith(self.before[one])), -1)
            if place < 0:
                raise ValueError(f"thought {index} grew from none of the step's partial solutions")
            found.setdefault(place, []).append(index)
        return found

    def selected(self) -> list[int]:
        """The thoughts that were kept, in the order in which they were."""
        by_value = sorted(range(len(self.thoughts)), key=lambda index: -self.values[index])
        chosen: list[int] = []
        for text in self.kept:
            same = [index for index in by_value if self.thoughts[index] == text and index not in chosen]
            if not same:
                raise ValueError("a kept text is none of the step's thoughts")
            chosen.append(same[0])
        return chosen


@dataclass
class _Puzzle:
    episode_id: str
    rest: dict[str, Any]
    notes: Notes
    ends: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """A kept partial solution -> the (call, completion) of each time it was kept."""

    @property
    def agent_id(self) -> str:
        return f"{self.episode_id}/main"

    def items(self) -> Iterator[Item]:
        steps = [_Step.of(place, step) for place, step in enumerate(self.rest.pop("steps"))]
        asked = steps[0].rest.get("x")
        items = [item for place, step in enumerate(steps) for item in self._step(place, step, asked)]
        items += self._rewards(len(steps) - 1, steps[-1])
        yield made(
            Episode,
            id=self.episode_id,
            task=None if asked is None else raw(asked),
            meta=left("tree_of_thoughts", self.rest),
        )
        yield made(Agent, id=self.agent_id, episode_id=self.episode_id, role="main", depth=0)
        yield gap(
            self.episode_id,
            "missing_prompt",
            "the calls that sampled and valued thoughts are not recorded",
            episode_id=self.episode_id,
            agent_id=self.agent_id,
        )
        yield from items

    def _step(self, place: int, step: _Step, asked: Any) -> Iterator[Item]:
        members: dict[int, Member] = {}
        for before, found in step.grown().items():
            self.notes.infer("a call for each partial solution", evidence="the thoughts that begin with it")
            call_id = f"{self.episode_id}/{place}/{before}"
            yield self._call(call_id, step, before, found, asked)
            for index, one in enumerate(found):
                members[one] = Member(call_id=call_id, completion=index, score=step.values[one])
        selected = step.selected()
        if members:
            yield from self._candidates(place, step, members, selected, asked)
        self.ends = {}
        for one in selected:
            end = (str(members[one].call_id), members[one].completion)
            self.ends.setdefault(step.thoughts[one], []).append(end)

    def _candidates(
        self, place: int, step: _Step, members: dict[int, Member], selected: list[int], asked: Any
    ) -> Iterator[Item]:
        known_already = {"x": asked, "step": place}
        rest = {name: one for name, one in step.rest.items() if known_already.get(name) != one}
        yield made(
            CandidateSet,
            id=f"{self.episode_id}/{place}/candidates",
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            members=tuple(members[one] for one in range(len(step.thoughts))),
            meta=left("tree_of_thoughts", rest),
        )
        yield made(
            CandidateSelection,
            id=f"{self.episode_id}/{place}/selection",
            episode_id=self.episode_id,
            candidate_set_id=f"{self.episode_id}/{place}/candidates",
            selector="search",
            selected=tuple(selected),
        )

    def _call(self, call_id: str, step: _Step, before: int, found: list[int], asked: Any) -> Item:
        text = step.before[before]
        ends = self.ends.get(text, [])
        # Of equal partial solutions the first grows from the first that was kept.
        parent = ends[min(step.before[:before].count(text), len(ends) - 1)] if ends else None
        is_first = parent is None and asked is not None
        said = [{"role": "assistant", "content": step.thoughts[one][len(text) :]} for one in found]
        return made(
            Call,
            id=call_id,
            episode_id=self.episode_id,
            agent_id=self.agent_id,
            request=raw({"messages": [{"role": "user", "content": asked}] if is_first else []}),
            context="whole" if parent is None else "delta",
            parent_call_id=None if parent is None else parent[0],
            parent_completion=None if parent is None else parent[1],
            completions=tuple(known(CompletionBody, message=raw(one)) for one in said),
        )

    def _rewards(self, place: int, last: _Step) -> Iterator[Item]:
        """Rewards of the last kept thoughts, taken out of the puzzle where it has one for each."""
        infos = [as_dict(info) for info in as_list(self.rest.get("infos"))]
        if self.rest.get("ys") != last.kept or len(infos) != len(last.kept):
            return
        del self.rest["ys"]
        for member, info in zip(last.selected(), infos, strict=True):
            value = number(info.get("r"))
            if value is None:
                continue
            del info["r"]
            yield made(
                Reward,
                id=f"{self.episode_id}/reward/{member}",
                target=RewardTarget(
                    episode_id=self.episode_id,
                    candidate_set_id=f"{self.episode_id}/{place}/candidates",
                    member=member,
                ),
                name="r",
                value=value,
                scorer="environment",
            )
        self.rest["infos"] = infos
        if not any(infos):
            del self.rest["infos"]


FORMAT = Format("tree-of-thoughts", "Tree of Thoughts breadth-first logs", _recognises, read)
