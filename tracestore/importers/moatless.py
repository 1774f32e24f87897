"""moatless / swe-search transition files -> an episode whose search is a tree of calls with candidate sets.

One document: {initial_message, transitions, current_transition_id?, transition_rules, workspace, info}. A
transition is a state of the search {id, name, previous_state_id, origin_state_id?, snapshot, properties,
actions}:

- `previous_state_id` makes the tree; `origin_state_id` names the sibling that a state was expanded like. A
  state whose parent is not in the file is a root of its own, with a gap that says so.
- An action {request, response, completion} is one model call: `completion.input` is the exact context,
  `completion.response` what the server gave, `completion.usage` the tokens and the cost. The request is what
  was executed and the response what came of it: a tool call. More actions in a state are retries.
- A call continues the last call of the states above its own, where the messages say so.
- `properties.value_function_result` holds completions of a judge about the action before the state: calls of
  another agent, never of the policy. Its average is a reward of that action's call, with weight 0.
- States with one parent are the candidates that the search sampled there, told apart by their first calls.
  The one on the way to `current_transition_id` was selected, by the search; the others were rejected. Without
  a current state nothing is known of a selection. A state without a call is no candidate.
- `properties.visits` [{source_state_id, value}] are values that were propagated back through the state, also
  from states that are not in the file. They stay in `meta`, with the rest of each state: of the state's first
  call, or of the episode where it has none.
- `info` tells the totals and whether the task was resolved, which is the episode's reward.

The whole file is written again as the search goes on, so every event says of how much it was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracestore.importers import streams
from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, as_list, guarded, known, number
from tracestore.importers.items import Item, content_id, count, left, made, raw, safe_id, taken
from tracestore.importers.notes import Notes
from tracestore.importers.usage import counted
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet, Member
from tracestore.wire.episode import Episode
from tracestore.wire.gap import Gap
from tracestore.wire.reward import Reward, RewardTarget
from tracestore.wire.tool_call import ToolCall


def _is_search(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("transitions"), list):
        return False
    states = value["transitions"]
    return bool(states) and all(isinstance(one, dict) and {"id", "name"} <= one.keys() for one in states[:3])


def _recognises(head: Head) -> bool:
    return _is_search(head.first)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes with their agents, calls, executions, candidates and rewards."""
    for source in sources:
        for record in records(source, notes=notes):
            yield from guarded(_record(record, notes), at=record.at, notes=notes)


def _record(record: Record, notes: Notes) -> Iterator[Item]:
    if not _is_search(record.value):
        notes.refuse(record.at, "no search: it has transitions with an id and a name")
        return
    rest = as_dict(record.value)
    states = [_State(as_dict(state)) for state in rest.pop("transitions")]
    if len({state.id for state in states}) != len(states):
        raise ValueError("two states have one id")
    trace_id = as_dict(rest.get("info")).get("trace_id")
    named = isinstance(trace_id, str) and trace_id
    episode_id = safe_id(str(trace_id)) if named else content_id("moatless", rest.get("initial_message"))
    notes.rows["moatless/transition"] += len(states)
    yield from _Search(episode_id, rest, states, notes).items()


class _State:
    """One transition, with what it says of itself taken apart."""

    def __init__(self, rest: dict[str, Any]) -> None:
        self.id = rest["id"]
        if not isinstance(self.id, int) or isinstance(self.id, bool):
            raise ValueError(f"a state has the id {self.id!r}")
        parent = rest.get("previous_state_id")
        self.parent = parent if isinstance(parent, int) else None
        self.properties = as_dict(rest.pop("properties", None))
        value = as_dict(self.properties.get("value_function_result"))
        self.judged = [as_dict(one) for one in as_list(value.pop("completions", None))]
        self.value = number(value.get("average_reward"))
        self.num_visits = len(as_list(self.properties.get("visits")))
        if value or self.judged:
            self.properties["value_function_result"] = value
        self.actions = [as_dict(one) for one in as_list(rest.pop("actions", None))]
        self.rest = rest | {"properties": self.properties}

    @property
    def has_call(self) -> bool:
        return any("completion" in action and action["completion"] for action in self.actions)


@dataclass
class _Search:
    episode_id: str
    rest: dict[str, Any]
    states: list[_State]
    notes: Notes
    calls: dict[int, list[str]] = field(default_factory=dict)
    """State -> its calls."""
    ordinals: dict[str, int] = field(default_factory=dict)

    @property
    def revision(self) -> int:
        return len(self.states) + sum(state.num_visits + len(state.actions) for state in self.states)

    def _id(self, suffix: str) -> str:
        return safe_id(f"{self.episode_id}/{suffix}")

    def made(self, kind: Any, suffix: str, /, **fields: Any) -> Item:
        return made(kind, id=self._id(suffix), revision=self.revision, episode_id=self.episode_id, **fields)

    def items(self) -> Iterator[Item]:
        by_id = {state.id: state for state in self.states}
        without = {str(state.id): state.rest for state in self.states if not state.has_call}
        info = as_dict(self.rest.get("info"))
        model = as_dict(as_dict(self.rest.get("transition_rules")).get("global_params")).get("model")
        resolved = taken(info, "resolved", bool)
        shell = self.rest | ({"info": info} if info else {})
        asked = shell.pop("initial_message", None)
        task_id = info.get("instance_id")
        yield made(
            Episode,
            id=self.episode_id,
            revision=self.revision,
            task_id=safe_id(task_id) if isinstance(task_id, str) else None,
            task=None if asked is None else raw(asked),
            meta=left("moatless", shell | ({"states": without} if without else {})),
        )
        yield self.made(Agent, "main", role="main", depth=0, model=model if isinstance(model, str) else None)
        if any(state.judged for state in self.states):
            yield self.made(Agent, "judge", role="judge", trainable=False)
        for state in self.states:
            yield from self._state(state, by_id)
        yield from self._candidates(by_id)
        if resolved is not None:
            yield self._reward("resolved", float(resolved), known(RewardTarget, episode_id=self.episode_id))

    # --- Calls

    def _above(self, state: _State, by_id: dict[int, _State]) -> str | None:
        """The last call of the nearest state above that made one."""
        seen = {state.id}
        parent = by_id.get(state.parent) if state.parent is not None else None
        while parent is not None and parent.id not in seen:
            if self.calls.get(parent.id):
                return self.calls[parent.id][-1]
            seen.add(parent.id)
            parent = by_id.get(parent.parent) if parent.parent is not None else None
        return None

    def _state(self, state: _State, by_id: dict[int, _State]) -> Iterator[Item]:
        above = self._above(state, by_id)
        if state.parent is not None and state.parent not in by_id:
            self.notes.warn("a state whose parent is not in the file")
            detail = f"state {state.id}: its parent {state.parent} is not in the file"
            yield self.made(Gap, f"{state.id}/missing_parent", cause="missing_parent", detail=detail)
        rest: dict[str, Any] | None = {"state": state.rest}
        for place, action in enumerate(state.actions):
            completion = as_dict(action.pop("completion", None))
            if not completion:
                self.notes.leftover("moatless: action without a completion", action, at=f"state {state.id}")
                continue
            call_id = self._id(f"{state.id}/{place}")
            yield self._call(completion, f"{state.id}/{place}", "main", above, rest)
            self.calls.setdefault(state.id, []).append(call_id)
            yield self._execution(action, f"{state.id}/{place}", call_id)
            above, rest = call_id, None
        for place, judged in enumerate(state.judged):
            yield self._call(judged, f"{state.id}/value/{place}", "judge", None, None)
        before = self._above(state, by_id)
        if state.value is not None:
            target = known(RewardTarget, episode_id=self.episode_id, call_id=before)
            yield self._reward(f"{state.id}/value", state.value, target, weight=0.0)

    def _call(
        self,
        completion: dict[str, Any],
        suffix: str,
        agent: str,
        above: str | None,
        rest: dict[str, Any] | None,
    ) -> Item:
        ordinal = self.ordinals.get(agent, 0)
        self.ordinals[agent] = ordinal + 1
        response = as_dict(completion.pop("response", None))
        usage = as_dict(completion.pop("usage", None))
        counts: dict[str, Any] = {
            "prompt_tokens": count(usage, "prompt_tokens"),
            "completion_tokens": count(usage, "completion_tokens"),
            "cached_tokens": count(usage, "cached_tokens"),
            "cost_usd": number(usage.pop("completion_cost", None)),
        }
        bodies = tuple(map(streams.completion, streams.choices_of(response)))
        return self.made(
            Call,
            suffix,
            agent_id=self._id(agent),
            ordinal=ordinal,
            purpose="judge" if agent == "judge" else None,
            model=taken(completion, "model", str),
            provider_id=taken(response, "id", str),
            request=raw({"messages": completion.pop("input", None) or []}),
            parent_call_id=above,
            completions=bodies or None,
            usage=counted(**counts),
            meta=left("moatless", *_parts(rest, completion, response, usage)),
        )

    def _execution(self, action: dict[str, Any], suffix: str, call_id: str) -> Item:
        request, response = action.pop("request", None), action.pop("response", None)
        name = as_dict(request).get("action_name")
        return self.made(
            ToolCall,
            f"{suffix}/action",
            call_id=call_id,
            name=name if isinstance(name, str) else None,
            arguments=None if request is None else bytes(raw(request)).decode("utf-8"),
            result=None if response is None else raw(response),
            meta=left("moatless", action),
        )

    # --- Candidates

    def _candidates(self, by_id: dict[int, _State]) -> Iterator[Item]:
        kept = _path(self.rest.get("current_transition_id"), by_id)
        children: dict[int, list[int]] = {}
        for state in self.states:
            if state.parent is not None and self.calls.get(state.id):
                children.setdefault(state.parent, []).append(state.id)
        for parent, ids in sorted(children.items()):
            if len(ids) < 2:
                continue
            self.notes.infer("candidates of one point", evidence="states with one parent")
            members = tuple(Member(call_id=self.calls[one][0]) for one in ids)
            yield self.made(
                CandidateSet,
                f"{parent}/candidates",
                agent_id=self._id("main"),
                generator="search",
                members=members,
            )
            selected = tuple(place for place, one in enumerate(ids) if one in kept)
            if kept and (selected or parent in kept):
                self.notes.infer("which candidate was selected", evidence="the way to the current state")
                yield self.made(
                    CandidateSelection,
                    f"{parent}/selection",
                    candidate_set_id=self._id(f"{parent}/candidates"),
                    selector="search",
                    selected=selected,
                )

    def _reward(
        self, suffix: str, value: float, target: RewardTarget, *, weight: float | None = None
    ) -> Item:
        return made(
            Reward,
            id=self._id(f"reward/{suffix}"),
            revision=self.revision,
            target=target,
            name="value" if weight == 0 else suffix,
            value=value,
            weight=weight,
            scorer="value function" if weight == 0 else "environment",
        )


def _path(current: Any, by_id: dict[int, _State]) -> set[int]:
    """The states from the current one up to its root; empty where there is none."""
    found: set[int] = set()
    state = by_id.get(current) if isinstance(current, int) else None
    while state is not None and state.id not in found:
        found.add(state.id)
        state = by_id.get(state.parent) if state.parent is not None else None
    return found


def _parts(
    rest: dict[str, Any] | None, completion: dict[str, Any], response: dict[str, Any], usage: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """What is left of a completion, each part under its name."""
    parts = {"completion": completion, "response": response, "usage": usage}
    named = (rest or {}) | {
        name: {k: v for k, v in one.items() if v is not None} for name, one in parts.items()
    }
    kept = {name: one for name, one in named.items() if one}
    if kept:
        yield kept


FORMAT = Format("moatless", "moatless and swe-search transitions", _recognises, read)
