"""Graphs -> what there is of the things that a spec names, and notes on what of the spec is not there.

A name that nothing has selects nothing, and says so nowhere else: a misspelt reward leaves every episode
ungraded, a misspelt policy trains nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracestore.graph.model import Graph
from tracestore.wire.reward import Reward
from tracestore_exporters.masks import episode_reason, is_in_time, split_of
from tracestore_exporters.spec import AUXILIARY, Spec

LISTED = 10
"""Names that a note lists, the most frequent first."""

_UNITS = {
    "rewards": "episode",
    "scorers": "episode",
    "policies": "call",
    "policy_versions": "call",
    "models": "call",
    "purposes": "call",
    "roles": "agent",
    "splits": "episode",
    "statuses": "episode",
}
_STATED = ("policies", "models", "purposes", "roles")
"""Lists of a spec of which every name is told that nothing has. Of versions some need not be there: they may
state a window."""


@dataclass
class Inventory:
    """What some graphs hold; inventories add up in any order. What a thing does not say is not counted."""

    rewards: Counter[str] = field(default_factory=Counter)
    """Episodes by the names of their rewards, whatever of them is rewarded."""
    scorers: Counter[str] = field(default_factory=Counter)
    """Episodes by name, scorer and version of their rewards, of names for which the spec asks for them."""
    carried: Counter[str] = field(default_factory=Counter)
    """Episodes by the names of those of their rewards that the spec carries."""
    policies: Counter[str] = field(default_factory=Counter)
    """Calls, as for all of their kind."""
    policy_versions: Counter[int] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    purposes: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    """Agents."""
    splits: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    """Episodes; those that broke (infra_error) left out."""
    episodes: int = 0
    without_status: int = 0
    in_time: int = 0
    dated: int = 0
    """Episodes that say when they started."""
    first_start: int | None = None
    last_start: int | None = None
    may_train: int = 0
    """Episodes of closed groups that the spec does not exclude whole."""
    lacking: Counter[str] = field(default_factory=Counter)
    """Of these, by reward of the spec: those without it."""

    def __iadd__(self, other: Inventory) -> Inventory:
        for name in (*_UNITS, "carried", "lacking"):
            getattr(self, name).update(getattr(other, name))
        for name in ("episodes", "without_status", "in_time", "dated", "may_train"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        starts = [one for one in (self.first_start, other.first_start) if one is not None]
        ends = [one for one in (self.last_start, other.last_start) if one is not None]
        self.first_start, self.last_start = min(starts, default=None), max(ends, default=None)
        return self


def inventory(graphs: Iterable[Graph], spec: Spec, *, is_closed: bool) -> Inventory:
    """Of a group. Rewards may still come to an open one, so it lacks none."""
    found = Inventory()
    for graph in graphs:
        _add_episode(found, graph, spec)
        _add_calls(found, graph)
        found.roles.update(agent.role for agent in graph.agents.values() if agent.role is not None)
        found.rewards.update({reward.name for reward in graph.rewards.values()})
        found.scorers.update(
            {_by(reward) for reward in graph.rewards.values() if _is_chosen(reward.name, spec)}
        )
        carried = {reward.name for reward in graph.rewards.values() if spec.carries(reward)}
        found.carried.update(carried)
        if is_closed and episode_reason(graph, spec) is None:
            found.may_train += 1
            found.lacking.update(name for name in spec.rewards or () if name not in carried)
    return found


def _is_chosen(name: str, spec: Spec) -> bool:
    """Whether a spec says whose rewards of a name it carries."""
    choice = spec.choice_of(name)
    return choice is not None and (choice.scorer, choice.version) != (None, None)


def _by(reward: Reward) -> str:
    return _spelled(reward.name, reward.scorer, reward.scorer_version)


def _spelled(name: str, scorer: str | None, version: str | None) -> str:
    """A kind of reward as it is told, and as it sorts."""
    parts = [repr(name)]
    parts += [] if scorer is None else [f"by {scorer!r}"]
    parts += [] if version is None else [f"version {version!r}"]
    return " ".join(parts)


def _add_episode(found: Inventory, graph: Graph, spec: Spec) -> None:
    status, started_at = (
        (None, None) if graph.episode is None else (graph.episode.status, graph.episode.started_at)
    )
    found.episodes += 1
    found.splits[split_of(graph, spec) or "train"] += 1
    found.in_time += is_in_time(started_at, spec)
    if status is None:
        found.without_status += 1
    elif status != "infra_error":
        found.statuses[status] += 1
    if started_at is not None:
        found += Inventory(dated=1, first_start=started_at, last_start=started_at)


def _add_calls(found: Inventory, graph: Graph) -> None:
    calls = graph.calls
    found.purposes.update("act" if call.purpose is None else call.purpose for call in calls.values())
    found.models.update(call.model for call in calls.values() if call.model is not None)
    # A policy that changed inside an answer has further names and versions; most calls have one of each.
    changed: dict[str, set[tuple[str, int | None]]] = defaultdict(set)
    for key, body in graph.completions.items():
        if body.versions and key[0] in calls:
            changed[key[0]] |= {(run.name, run.version) for run in body.versions}
    one = Counter(
        (call.policy.name, call.policy.version)
        for call_id, call in calls.items()
        if call.policy is not None and call_id not in changed
    )
    for (name, version), number in one.items():
        found.policies[name] += number
        if version is not None:
            found.policy_versions[version] += number
    for call_id, named in changed.items():
        policy = calls[call_id].policy
        if policy is not None:
            named.add((policy.name, policy.version))
        found.policies.update({name for name, _ in named})
        found.policy_versions.update({version for _, version in named if version is not None})


def misses(there: Inventory, spec: Spec) -> Iterator[str]:
    """What a spec names and nothing has, and how many episodes lack a reward of the spec."""
    if spec.rewards is not None and there.episodes:
        missing = [name for name in spec.rewards if name not in there.rewards]
        if missing:
            yield _missing("rewards", missing, there.rewards)
        for name in spec.rewards:
            if name in missing:
                continue
            choice = spec.choice_of(name)
            asked = repr(name) if choice is None else _spelled(name, choice.scorer, choice.version)
            if name not in there.carried:
                known = Counter({by: n for by, n in there.scorers.items() if by.startswith(repr(name))})
                yield f"rewards: {asked} is not there; {_there('scorers', known)}"
            elif there.lacking[name]:
                number = f"{there.lacking[name]} of {_count(there.may_train, 'episode')}"
                yield f"rewards: {number} have no {asked}"
    if "infra_error" in spec.statuses:
        yield "statuses: infra_error never trains, whatever a spec says"
    for field_name in _STATED:
        stated: Sequence[str] = getattr(spec, field_name) or ()
        missing = [name for name in stated if name not in getattr(there, field_name)]
        if missing and there.episodes:
            yield _missing(field_name, missing, getattr(there, field_name))


def unmatched(there: Inventory, spec: Spec) -> Iterator[str]:
    """What there is for each filter that matched nothing, beside what `misses` tells."""
    versions = there.policy_versions
    if spec.policy_versions is not None and versions.keys().isdisjoint(spec.policy_versions):
        yield _missing("policy_versions", spec.policy_versions, versions)
    oldest, newest = spec.oldest_version, max(versions, default=None)
    if oldest is not None and (newest is None or newest < oldest):
        known = "no call states one" if newest is None else f"the newest there is {newest}"
        yield f"max_staleness: versions from {oldest} on train; {known}"
    if spec.purposes is None and not any(map(spec.trains_purpose, there.purposes)) and there.purposes:
        all_but = f"{', '.join(AUXILIARY[:-1])} and {AUXILIARY[-1]}"
        yield f"purposes: all but {all_but} train; {_there('purposes', there.purposes)}"
    if there.splits.keys().isdisjoint(spec.splits):
        yield _missing("splits", spec.splits, there.splits)
    statuses = [status for status in spec.statuses if status != "infra_error"]
    if (
        statuses
        and there.statuses
        and not there.without_status
        and there.statuses.keys().isdisjoint(statuses)
    ):
        yield _missing("statuses", statuses, there.statuses)
    if there.in_time == 0:
        when = f": from {there.first_start} to {there.last_start}" if there.dated else ""
        dated = f"{there.dated} of {_count(there.episodes, 'episode')} say when they started{when}"
        yield f"started_from, started_before: {dated}"


def _missing(field_name: str, names: Sequence[object], there: Mapping[Any, int]) -> str:
    verb = "is" if len(names) == 1 else "are"
    missing = _listed([repr(name) for name in names])
    return f"{field_name}: {missing} {verb} not there; {_there(field_name, there)}"


def _there(field_name: str, there: Mapping[Any, int]) -> str:
    if not there:
        return "there are none"
    ordered = sorted(there.items(), key=lambda item: (-item[1], item[0]))
    unit = _UNITS[field_name]
    spelled = str if field_name == "scorers" else repr
    return f"there are {_listed([f'{spelled(name)} ({_count(number, unit)})' for name, number in ordered])}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
