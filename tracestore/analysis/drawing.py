"""Graph -> the boxes and arrows of a picture: one row for each agent, call and context edit.

Agents stand depth first, a subagent one lane to the right of the call that spawned it. A picture has at most
`max_boxes` boxes. A larger episode is folded in steps, each only if the one before was not enough: runs of
calls to which nothing else is tied become one box, then the calls of all subagents disappear into their
agents, then what does not fit is left out and counted in a last box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from tracestore.analysis.network import chosen_members
from tracestore.graph.agents import AgentNode, agent_tree
from tracestore.graph.model import Graph
from tracestore.wire.call import Call
from tracestore.wire.context_edit import ContextEdit

MAX_BOXES = 200

Kind = Literal["episode", "agent", "call", "edit", "folded"]
Name = tuple[str, str]


class Box(NamedTuple):
    """One row of the picture."""

    name: Name
    kind: Kind
    label: str
    detail: str
    """The full id, and what a label has no room for."""
    lane: int
    is_rejected: bool = False
    """A candidate that was not chosen, or an edit that was not accepted."""


class Arrow(NamedTuple):
    """What leads from one box to another."""

    start: Name
    end: Name
    kind: Literal["made", "continuation", "drift", "spawn", "edit", "summary"]
    """drift: a continuation whose text is not word for word what was answered."""


class Drawing(NamedTuple):
    """A picture before it has coordinates."""

    boxes: tuple[Box, ...]
    """Top to bottom."""
    arrows: tuple[Arrow, ...]
    num_folded: int
    """Boxes that a picture of everything would have on top."""


def drawing(graph: Graph, episode_id: str, *, max_boxes: int = MAX_BOXES) -> Drawing:
    """What to draw of an episode."""
    assert max_boxes >= 1
    everything = _Rows(graph, episode_id).boxes
    boxes, shown_as = everything, {box.name: box.name for box in everything}
    if len(boxes) > max_boxes:
        boxes, shown_as = _fold_runs(graph, boxes, shown_as)
    if len(boxes) > max_boxes:
        boxes, shown_as = _fold_subagents(graph, boxes, shown_as)
    if len(boxes) > max_boxes:
        boxes, shown_as = _cut(boxes, shown_as, max_boxes)
    arrows = dict.fromkeys(
        Arrow(shown_as[start], shown_as[end], kind)
        for start, end, kind in _arrows(graph)
        if start in shown_as and end in shown_as and shown_as[start] != shown_as[end]
    )
    return Drawing(tuple(boxes), tuple(arrows), len(everything) - len(boxes))


# --- Rows ----------------------------------------------------------------------------------------------


class _Rows:
    """Every box of an episode, in the order of the rows."""

    def __init__(self, graph: Graph, episode_id: str) -> None:
        self._graph = graph
        self._tree = agent_tree(graph)
        self._rejected, self._kept = _candidates(graph)
        self._calls: dict[str, list[Call]] = defaultdict(list)
        for call in sorted(
            graph.calls.values(), key=lambda one: (one.ordinal is None, one.ordinal or 0, one.id)
        ):
            self._calls[call.agent_id].append(call)
        self._edits: dict[Name, list[ContextEdit]] = defaultdict(list)
        self._rewards: dict[Name, list[str]] = defaultdict(list)
        self._know_edits()
        self._know_rewards(episode_id)
        self.boxes = [self._episode(episode_id)]
        for edit in self._edits["episode", ""]:
            self.boxes.append(_edit_box(edit, 0))
        for agent_id, node in self._tree.items():
            if node.depth == 0:
                self._add(agent_id)

    def _know_edits(self) -> None:
        for edit in self._graph.context_edits.values():
            named = [self._graph.calls.get(id_ or "") for id_ in (edit.author_call_id, edit.before_call_id)]
            own = [call for call in named if call is not None and call.agent_id == edit.agent_id]
            place: Name = ("agent", edit.agent_id) if edit.agent_id in self._tree else ("episode", "")
            self._edits[("call", own[0].id) if own else place].append(edit)

    def _know_rewards(self, episode_id: str) -> None:
        for reward in self._graph.rewards.values():
            target = reward.target
            place = ("episode", episode_id) if target.agent_id is None else ("agent", target.agent_id)
            if target.call_id is not None:
                place = ("call", target.call_id)
            self._rewards[place].append(f"{reward.name}={reward.value:g}")

    def _add(self, root: str) -> None:
        """The rows of an agent and of all below it; episodes are deeper than Python's stack."""
        waiting: list[Iterator[Box | str]] = [self._of_agent(root)]
        while waiting:
            item = next(waiting[-1], None)
            if item is None:
                waiting.pop()
            elif isinstance(item, str):
                waiting.append(self._of_agent(item))
            else:
                self.boxes.append(item)

    def _of_agent(self, agent_id: str) -> Iterator[Box | str]:
        """Boxes, and between them the ids of the agents whose boxes stand there."""
        node = self._tree[agent_id]
        spawned: dict[str, list[str]] = defaultdict(list)
        for child in node.children:
            spawn = self._tree[child].spawn
            spawned["" if spawn is None else spawn.call_id].append(child)
        yield self._agent(node)
        for call in self._calls[agent_id]:
            yield self._call(call, node.depth)
            for edit in self._edits["call", call.id]:
                yield _edit_box(edit, node.depth)
            yield from spawned.pop(call.id, ())
        for edit in self._edits["agent", agent_id]:
            yield _edit_box(edit, node.depth)
        for children in spawned.values():  # whose spawning call is not known, or another agent's
            yield from children

    def _episode(self, episode_id: str) -> Box:
        episode = self._graph.episode
        facts = ["not posted"] if episode is None else [episode.status, episode.split, episode.stop_reason]
        return self._box(("episode", episode_id), "episode", ["episode", episode_id], facts, lane=0)

    def _agent(self, node: AgentNode) -> Box:
        agent = node.agent
        if agent is None:
            return self._box(("agent", node.agent_id), "agent", ["agent"], ["not posted"], lane=node.depth)
        title = [agent.role or "agent", agent.name]
        score = None if agent.score is None else f"score={agent.score:g}"
        facts = [agent.model, agent.status, score, "not trained" if agent.trainable is False else None]
        return self._box(("agent", agent.id), "agent", title, facts, lane=node.depth)

    def _call(self, call: Call, lane: int) -> Box:
        title = ["call", None if call.ordinal is None else str(call.ordinal)]
        status = call.status if call.status != "ok" else None
        facts = [call.purpose, status, *self._answers(call.id)]
        is_rejected = call.id in self._rejected
        return self._box(("call", call.id), "call", title, facts, lane=lane, is_rejected=is_rejected)

    def _answers(self, call_id: str) -> list[str | None]:
        answers = [self._graph.completions[key] for key in self._graph.completions_of(call_id)]
        counts = [len(answer.token_ids) for answer in answers if answer.token_ids is not None]
        reason = answers[0].finish_reason if len(answers) == 1 else None
        kept = ", ".join(map(str, self._kept.get(call_id, ())))
        return [
            f"{len(answers)} answers" if len(answers) > 1 else None,
            f"kept {kept}" if kept and len(answers) > 1 else None,
            f"{sum(counts):,} tokens" if counts else None,
            reason if reason != "stop" else None,
        ]

    def _box(
        self,
        name: Name,
        kind: Kind,
        title: Iterable[str | None],
        facts: Iterable[str | None],
        *,
        lane: int,
        is_rejected: bool = False,
    ) -> Box:
        known = [fact for fact in (*facts, *self._rewards[name]) if fact]
        label = " · ".join([" ".join(part for part in title if part), *known])
        return Box(name, kind, label, f"{name[0]} {name[1]}: {label}", lane, is_rejected)


def _edit_box(edit: ContextEdit, lane: int) -> Box:
    sizes = None
    if edit.tokens_before is not None and edit.tokens_after is not None:
        sizes = f"{edit.tokens_before:,} → {edit.tokens_after:,} tokens"
    author = None if edit.author is None else f"by {edit.author}"
    label = " · ".join(part for part in (edit.edit, edit.status, sizes, author) if part)
    is_rejected = edit.status not in (None, "accepted")
    return Box(("edit", edit.id), "edit", label, f"context edit {edit.id}: {label}", lane, is_rejected)


def _candidates(graph: Graph) -> tuple[set[str], dict[str, list[int]]]:
    """Calls that are candidates and of which no answer was chosen; of the others, which answers were."""
    chosen = chosen_members(graph)
    kept: dict[str, set[int]] = defaultdict(set)
    for found in graph.candidate_sets.values():
        for index, member in enumerate(found.members):
            if member.call_id is not None and found.id in chosen:
                kept[member.call_id] |= {member.completion} if index in chosen[found.id] else set()
    return (
        {call_id for call_id, answers in kept.items() if not answers},
        {call_id: sorted(answers) for call_id, answers in kept.items() if answers},
    )


# --- Arrows --------------------------------------------------------------------------------------------


def _arrows(graph: Graph) -> Iterator[Arrow]:
    follow_an_edit = {edit.after_call_id for edit in graph.context_edits.values()}
    for call in graph.calls.values():
        link = graph.links[call.id]
        if link.parent is not None:
            kind: Literal["continuation", "drift"] = "continuation" if link.exact else "drift"
            yield Arrow(("call", link.parent[0]), ("call", call.id), kind)
        elif call.id not in follow_an_edit:
            yield Arrow(("agent", call.agent_id), ("call", call.id), "made")
    for agent_id, node in agent_tree(graph).items():
        if node.spawn is not None and node.spawn.call_id in graph.calls:
            yield Arrow(("call", node.spawn.call_id), ("agent", agent_id), "spawn")
        elif node.parent_id is not None:
            yield Arrow(("agent", node.parent_id), ("agent", agent_id), "spawn")
    for edit in graph.context_edits.values():
        if edit.before_call_id is not None:
            yield Arrow(("call", edit.before_call_id), ("edit", edit.id), "edit")
        if edit.author_call_id not in (None, edit.before_call_id):
            yield Arrow(("call", edit.author_call_id or ""), ("edit", edit.id), "summary")
        if edit.after_call_id is not None:
            yield Arrow(("edit", edit.id), ("call", edit.after_call_id), "edit")


# --- Folding -------------------------------------------------------------------------------------------

_Shown = dict[Name, Name]
"""What there is -> the box that stands for it."""


def _fold_runs(graph: Graph, boxes: list[Box], shown_as: _Shown) -> tuple[list[Box], _Shown]:
    """Two and more calls in a row, each going on from the one before, become one box."""
    tied = _tied(graph)
    folded, shown = [], dict(shown_as)
    for is_plain, group in groupby(boxes, key=lambda box: box.kind == "call" and box.name not in tied):
        run = list(group)
        if is_plain and len(run) > 1:
            first = run[0]
            label = f"… {len(run):,} calls"
            detail = f"{label}: {first.detail} to {run[-1].detail}"
            folded.append(Box(("folded", first.name[1]), "folded", label, detail, first.lane))
            shown.update((box.name, folded[-1].name) for box in run)
        else:
            folded += run
    return folded, shown


def _tied(graph: Graph) -> set[Name]:
    """Calls that a picture should show: ends of arrows other than "continues the only one before"."""
    tied: set[Name] = set()
    num_next: dict[Name, int] = defaultdict(int)
    for start, end, kind in _arrows(graph):
        num_next[start] += 1
        if kind != "continuation":
            tied |= {start, end}
    tied |= {name for name, count in num_next.items() if count > 1}
    tied |= {("call", call_id) for call_id in graph.calls if ("call", call_id) not in num_next}
    for found in graph.candidate_sets.values():
        tied |= {("call", member.call_id) for member in found.members if member.call_id is not None}
    return tied


def _fold_subagents(graph: Graph, boxes: list[Box], shown_as: _Shown) -> tuple[list[Box], _Shown]:
    """Agents below the roots keep one box each, which says how many calls it stands for."""
    num_calls: dict[str, int] = defaultdict(int)
    for call in graph.calls.values():
        num_calls[call.agent_id] += 1
    kept: list[Box] = []
    hidden: _Shown = {}
    agent: Box | None = None
    stack: dict[int, Box] = {}
    for box in boxes:
        if box.kind == "agent":
            if box.lane:
                box = box._replace(label=f"{box.label} · {num_calls[box.name[1]]:,} calls")
            stack[box.lane] = box
            kept.append(box)
            continue
        agent = stack.get(box.lane)
        if box.lane and agent is not None:
            hidden[box.name] = agent.name
        else:
            kept.append(box)
    return kept, {name: hidden.get(shown, shown) for name, shown in shown_as.items()}


def _cut(boxes: list[Box], shown_as: _Shown, max_boxes: int) -> tuple[list[Box], _Shown]:
    kept = boxes[: max_boxes - 1]
    names = {box.name for box in kept}
    label = f"… {len(boxes) - len(kept):,} more, not drawn"
    kept.append(Box(("folded", ""), "folded", label, label, 0))
    return kept, {name: shown for name, shown in shown_as.items() if shown in names}
