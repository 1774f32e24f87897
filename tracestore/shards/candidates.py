"""A member of a candidate set -> the completions of its row that it stands for, and what it is worth."""

from __future__ import annotations

from tracestore.shards.row import MemberEntry, Row
from tracestore.wire.reward import counted

Worth = tuple[float | None, float | None]
"""(score, sum of value times weight of the rewards of the candidate itself that count); None: unknown."""


def worth(row: Row, candidate_set: int, member: int) -> Worth:
    """What is known of how good a member is.

    Args:
        candidate_set: index into the row's sets; `member` into the set's members.
    """
    terms = [
        term
        for reward in row.rewards
        if (reward.target, reward.candidate_set, reward.member) == ("candidate", candidate_set, member)
        and (term := counted(reward.value, reward.weight)) is not None
    ]
    return row.candidate_sets[candidate_set].members[member].score, sum(terms) if terms else None


def is_tie(one: Worth, other: Worth) -> bool:
    """Whether two members are known to be equally good: by score where both have one, else by reward."""
    for ours, theirs in zip(one, other, strict=True):
        if ours is not None and theirs is not None:
            return ours == theirs
    return False


def member_completions(row: Row, member: MemberEntry) -> set[int]:
    """Completions that are the member: its own one, or all that its agent and those below it sampled."""
    if member.completion is not None:
        return {member.completion}
    below = set() if member.agent is None else _agents_from(row, member.agent)
    return {
        index for index, completion in enumerate(row.completions) if row.calls[completion.call].agent in below
    }


def rejected_completions(row: Row) -> set[int]:
    """Completions that some set of a row rejected and no set selected."""
    members = [member for entry in row.candidate_sets for member in entry.members]
    sides: dict[bool, set[int]] = {True: set(), False: set()}
    for member in members:
        if member.selected is not None:
            sides[member.selected] |= member_completions(row, member)
    return sides[False] - sides[True]


def _agents_from(row: Row, top: int) -> set[int]:
    """An agent and all agents below it."""
    children: dict[int, list[int]] = {}
    for index, agent in enumerate(row.agents):
        if agent.parent is not None:
            children.setdefault(agent.parent, []).append(index)
    below: set[int] = set()
    waiting = [top]
    while waiting:
        agent_index = waiting.pop()
        if agent_index not in below:
            below.add(agent_index)
            waiting.extend(children.get(agent_index, ()))
    return below
