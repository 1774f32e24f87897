"""Two recordings -> where they first differ: two calls, contexts or branches, or episodes call by call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracestore.graph.messages import preview
from tracestore.replay.differences import ABSENT, Difference, first_difference, shared
from tracestore.replay.paths import Path, parting
from tracestore.replay.tape import Recorded, difference, nearest
from tracestore.wire.arrays import TokenIds
from tracestore.wire.completion import CompletionFields


@dataclass(frozen=True)
class Differing:
    """One thing in which two calls differ."""

    what: str
    """dialect, request, prompt tokens, outcome, answer 0, tokens of answer 0, calls; of contexts and branches
    messages, tokens."""
    calls: tuple[str | None, str | None]
    """Ids, those of branches with the completion that they end with (`c1/0`); None where a recording has no
    such call."""
    difference: Difference


def of_calls(one: Recorded, other: Recorded) -> Iterator[Differing]:
    """In what two calls differ, the request first."""
    calls = (one.call.id, other.call.id)
    if one.asked.dialect != other.asked.dialect:
        yield Differing("dialect", calls, Difference("", None, one.asked.dialect, other.asked.dialect))
        return
    found = difference(one.asked, other.asked)
    if found is not None:
        yield Differing("request", calls, found)
    read = _of_ids(one.call.prompt_token_ids, other.call.prompt_token_ids)
    if read is not None:
        yield Differing("prompt tokens", calls, read)
    ended = first_difference(_outcome(one), _outcome(other))
    if ended is not None:
        yield Differing("outcome", calls, ended)
    for index in range(max(len(one.completions), len(other.completions))):
        left, right = (
            side[index] if index < len(side) else None for side in (one.completions, other.completions)
        )
        found = first_difference(_said(left), _said(right))
        if found is not None:
            yield Differing(f"answer {index}", calls, found)
        sampled = _of_ids(*(None if side is None else side.token_ids for side in (left, right)))
        if sampled is not None:
            yield Differing(f"tokens of answer {index}", calls, sampled)


def of_episodes(one: Sequence[Recorded], other: Sequence[Recorded]) -> Iterator[Differing]:
    """In what two episodes differ: agent by agent, call by call in its order, as each agent asked.

    Agents are the same that have the same id but for their episode's. Of an origin beside a fork of it give
    what `from_parting` gives.
    """
    mine, theirs = _by_agent(one), _by_agent(other)
    for agent in [*mine, *(agent for agent in theirs if agent not in mine)]:
        left, right = mine.get(agent, []), theirs.get(agent, [])
        for place in range(max(len(left), len(right))):
            if place >= len(left) or place >= len(right):
                ids = [side[place].call.id if place < len(side) else None for side in (left, right)]
                shown = ["(nothing)" if id_ is None else id_ for id_ in ids]
                at = f"{agent}[{place}]"
                yield Differing("calls", (ids[0], ids[1]), Difference(at, None, shown[0], shown[1]))
                break
            yield from of_calls(left[place], right[place])


def from_parting(
    origin: Sequence[Recorded], fork: Sequence[Recorded], *, after: str | None
) -> list[Recorded]:
    """The calls of an origin beside which those of a fork stand: of each agent from where the fork leaves it.

    A fork holds what was asked since it left its origin, and nothing of what was answered before, so the
    calls of both are no pairs by their places. An agent that asked nothing in the fork has none.

    Args:
        after: the call of the origin that the fork names as its last one (`forked_from_call_id`). Agents
            whose call it is not leave the origin at the call that is most like their first one in the fork.
    """
    theirs = _by_agent(fork)
    found: list[Recorded] = []
    for agent, calls in _by_agent(origin).items():
        if agent not in theirs:
            continue
        start = next((place + 1 for place, one in enumerate(calls) if one.call.id == after), None)
        if start is None:
            near = nearest(theirs[agent][0].asked, calls)
            start = 0 if near is None else calls.index(near[0])
        found += calls[start:]
    return found


def of_paths(one: Path, other: Path, *, names: tuple[str, str]) -> Iterator[Differing]:
    """In what two contexts or branches differ: the first message, and the first token where ids are known."""
    found = parting(one, other)
    at, inner = found.messages, found.difference
    where = f"messages[{at}]"
    if inner is not None:
        path = f"{where}.{inner.path}" if inner.path else where
        yield Differing("messages", names, replace(inner, path=path))
    elif at < max(len(one.messages), len(other.messages)):
        shown = [
            preview(side.messages[at].raw) if at < len(side.messages) else ABSENT for side in (one, other)
        ]
        yield Differing("messages", names, Difference(where, None, *shown))
    ids = [side.ids.tolist() for side in (one, other) if side.ids is not None]
    if found.tokens is not None and found.tokens < max(map(len, ids)):
        shown = [str(side[found.tokens]) if found.tokens < len(side) else ABSENT for side in ids]
        yield Differing("tokens", names, Difference(f"[{found.tokens}]", None, *shown))


def _outcome(one: Recorded) -> dict[str, Any]:
    """How a call ended."""
    error = one.call.error
    return {
        "status": one.call.status,
        "error": None if error is None else {"type": error.type, "message": error.message},
        "finish_reason": [answer.finish_reason for answer in one.completions],
    }


def _said(answer: CompletionFields | None) -> Any:
    return None if answer is None or answer.message is None else answer.message.value()


def _by_agent(calls: Sequence[Recorded]) -> dict[str, list[Recorded]]:
    found: dict[str, list[Recorded]] = defaultdict(list)
    for one in calls:
        found[one.agent_names[-1] or one.call.agent_id].append(one)
    return found


def _of_ids(one: TokenIds | None, other: TokenIds | None) -> Difference | None:
    """The first token that differs, where both are known."""
    if one is None or other is None:
        return None
    left, right = one.array.tolist(), other.array.tolist()
    if left == right:
        return None
    place = shared(left, right)
    shown: list[Any] = [side[place] if place < len(side) else "(nothing)" for side in (left, right)]
    return Difference(f"[{place}]", None, *map(str, shown))
