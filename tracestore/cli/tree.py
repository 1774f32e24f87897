"""Graph -> text: the tree of an episode, one line per agent, call, edit and candidate set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tracestore.cli.common import printable
from tracestore.graph.model import Graph
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.candidate_set import CandidateSet
from tracestore.wire.completion import CompletionFields
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.reward import Reward, RewardTarget


@dataclass(eq=False)
class Line:
    """One line of the tree, what it hangs from and what hangs from it."""

    text: str
    above: Line | None = None
    below: list[Line] = field(default_factory=list)

    def hang(self, line: Line) -> None:
        line.above = self
        self.below.append(line)


def tree_lines(graph: Graph) -> Iterator[str]:
    """The lines of an episode's tree, the episode first, safe to print.

    A subagent hangs from the call that spawned it, else from its parent agent; one whose parent never came
    hangs from the episode. Calls stand in the order of their ordinals, those without one last.
    """
    waiting = [(_Tree(graph).root, "", "")]
    while waiting:
        line, lead, under = waiting.pop()
        yield lead + printable(line.text)
        corners = ["├─ "] * (len(line.below) - 1) + ["└─ "]
        children = [
            (child, under + corner, under + ("│  " if corner == "├─ " else "   "))
            for child, corner in zip(line.below, corners, strict=False)
        ]
        waiting += reversed(children)


class _Tree:
    """The lines of a graph, each hung once, whatever the graph lacks."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rewards: dict[tuple[str, str], list[Reward]] = defaultdict(list)
        for reward in graph.rewards.values():
            self.rewards[_rewarded(reward.target)].append(reward)
        self.root = Line(_episode_text(graph) + self._reward_text("episode", ""))
        self.agents = {agent.id: Line(self._agent_text(agent)) for agent in graph.agents.values()}
        self.calls = {call.id: Line(self._call_text(call)) for call in graph.calls.values()}
        self._hang_calls()
        self._hang_agents()
        self._hang_the_rest()
        self._hang_cycles()

    def _hang_calls(self) -> None:
        def place(call: Call) -> tuple[bool, int, str]:
            return call.ordinal is None, call.ordinal or 0, call.id

        for call in sorted(self.graph.calls.values(), key=place):
            if call.agent_id not in self.agents:
                self.agents[call.agent_id] = Line(f"agent {call.agent_id}  (not posted)")
                self.root.hang(self.agents[call.agent_id])
            self.agents[call.agent_id].hang(self.calls[call.id])

    def _hang_agents(self) -> None:
        for agent in self.graph.agents.values():
            above = self.calls.get(agent.spawned_by_call_id or "") or self.agents.get(
                agent.parent_agent_id or ""
            )
            (above or self.root).hang(self.agents[agent.id])

    def _hang_the_rest(self) -> None:
        for edit in self.graph.context_edits.values():
            above = self.calls.get(edit.before_call_id or "") or self.agents.get(edit.agent_id)
            (above or self.root).hang(Line(_edit_text(edit)))
        for candidates in self.graph.candidate_sets.values():
            members = [
                self.calls[member.call_id] for member in candidates.members if member.call_id in self.calls
            ]
            above = members[-1] if members else self.agents.get(candidates.agent_id or "")
            (above or self.root).hang(Line(self._set_text(candidates)))
        for gap in self.graph.gaps.values():
            self.root.hang(Line(f"gap  {gap.cause}"))

    def _hang_cycles(self) -> None:
        """Agents that spawned each other hang from no root; the first of a cycle moves to the episode."""
        hung = _below(self.root)
        for line in self.agents.values():
            if id(line) not in hung:
                assert line.above is not None, "a line that hangs from nothing is a root"
                line.above.below.remove(line)
                line.text += "  (spawned in a cycle)"
                self.root.hang(line)
                hung |= _below(line)

    def _agent_text(self, agent: Agent) -> str:
        facts = [
            agent.role if agent.role != agent.id else None,
            agent.model,
            agent.status,
            "not trained" if agent.trainable is False else None,
            None if agent.score is None else f"score={agent.score:g}",
            None if agent.finding_used is None else f"finding {'used' if agent.finding_used else 'ignored'}",
        ]
        return _joined(f"agent {agent.id}", facts) + self._reward_text("agent", agent.id)

    def _call_text(self, call: Call) -> str:
        facts = [
            call.purpose,
            call.status if call.status != "ok" else None,
            *(_answer_text(self.graph.completions[key]) for key in self.graph.completions_of(call.id)),
        ]
        return _joined(f"call {call.id}", facts) + self._reward_text("call", call.id)

    def _set_text(self, candidates: CandidateSet) -> str:
        kept = [
            place
            for selection in self.graph.candidate_selections.values()
            if selection.candidate_set_id == candidates.id
            for place in selection.selected
        ]
        fate = f"kept {', '.join(map(str, sorted(set(kept))))}" if kept else "none kept"
        count = f"{len(candidates.members)} candidates, {fate}"
        return f"set {candidates.id}  {count}" + self._reward_text("set", candidates.id)

    def _reward_text(self, what: str, name: str) -> str:
        return "".join(f"  {reward.name}={reward.value:g}" for reward in self.rewards[what, name])


def _rewarded(target: RewardTarget) -> tuple[str, str]:
    """The finest thing with a line of its own that a reward is for."""
    if target.candidate_set_id is not None:
        return "set", target.candidate_set_id
    if target.call_id is not None:
        return "call", target.call_id
    return ("episode", "") if target.agent_id is None else ("agent", target.agent_id)


def _below(top: Line) -> set[int]:
    """The identities of a line and of all that hangs from it."""
    seen: set[int] = set()
    waiting = [top]
    while waiting:
        line = waiting.pop()
        if id(line) not in seen:
            seen.add(id(line))
            waiting += line.below
    return seen


def _joined(name: str, facts: list[str | None]) -> str:
    return "  ".join([name, *(fact for fact in facts if fact)])


def _episode_text(graph: Graph) -> str:
    episode = graph.episode
    if episode is None:
        return "episode (not posted)"
    group = None if episode.group_id is None else f"group {episode.group_id}"
    task = None if episode.task_id is None else f"task {episode.task_id}"
    return _joined(f"episode {episode.id}", [episode.status, episode.split, group, task])


def _answer_text(answer: CompletionFields) -> str:
    count = None if answer.token_ids is None else len(answer.token_ids)
    tokens = None if count is None else f"{count:,} token{'' if count == 1 else 's'}"
    facts = [tokens, answer.finish_reason, "partial" if answer.partial else None]
    return "-> " + (", ".join(fact for fact in facts if fact) or "answered")


def _edit_text(edit: ContextEdit) -> str:
    sizes = None
    if edit.tokens_before is not None and edit.tokens_after is not None:
        sizes = f"{edit.tokens_before:,} -> {edit.tokens_after:,} tokens"
    return _joined(f"{edit.edit} {edit.id}", [edit.status, sizes, edit.author and f"by {edit.author}"])
