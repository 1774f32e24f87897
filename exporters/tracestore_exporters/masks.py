"""Sampled tokens -> reasons: whether each is trained, and if not the first reason why.

Order of the questions: episode, agent, call, completion, token. Copies need no rule: a re-inserted summary,
a kept tail, a finding or a forked history stands in prompts, and only a completion's own segment is
sampled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tracestore.graph.model import CompletionKey, Graph
from tracestore.graph.tokens import is_ids_incomplete
from tracestore.shards.candidates import Worth, is_tie
from tracestore.shards.reasons import Reason
from tracestore.tokens.render import has_recorded_ids
from tracestore.wire.call import Call
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet, Treatment
from tracestore.wire.completion import CompletionFields
from tracestore.wire.reward import counted
from tracestore_exporters.spec import Spec, Split
from tracestore_exporters.units import Unit, first_latent, has_unplaced_media

SENTINELS = (-9999.0, -100.0)
"""Values that servers put where they have no logprob: vLLM clamps to -9999, MLX servers clip to -100. A token
sampled at exactly one of them does not happen."""

_BROKEN_FINISH = frozenset({"abort", "aborted", "error"})
_NOT_ACCEPTED = frozenset({"rejected", "cancelled", "failed"})


def usable_logprobs(values: np.ndarray, reported: np.ndarray) -> np.ndarray:
    """bool [T]: where a value can be a log-probability.

    Args:
        values: float [T], NaN allowed.
        reported: bool [T], where the server reported it.
    """
    usable: np.ndarray = np.isfinite(values)
    usable &= values > SENTINELS[0]
    usable &= values != SENTINELS[1]
    usable &= reported
    return usable


class Masks:
    """The rules of one episode under one spec."""

    def __init__(self, graph: Graph, spec: Spec) -> None:
        self._graph = graph
        self._spec = spec
        self.of_episode = episode_reason(graph, spec)
        self.treatments = treatments(graph, spec)
        self._paired = _paired(graph, spec, self.treatments) if spec.objective == "preference" else None
        self._rejected = _rejected(graph, spec, self.treatments)
        self._edits = _edit_reasons(graph)
        self._latents = {
            (blob.call_id, blob.completion) for blob in graph.blobs.values() if blob.role == "latent"
        }
        rules = (spec.policies, spec.policy_versions, spec.oldest_version)
        self.needs_logprobs = spec.objective == "rl"
        """Whether a token whose logprob says nothing does not train."""
        self._asks_versions = spec.objective == "rl" and any(rule is not None for rule in rules)

    def of_unit(self, unit: Unit) -> Reason | None:
        """Why none of a completion's tokens trains; None: that is asked of each."""
        return (
            self.of_episode or self._of_agent(unit.call) or self._of_call(unit) or self._of_completion(unit)
        )

    def of_text(self, key: CompletionKey) -> Reason | None:
        """Why a completion does not train as text, whatever its token ids and the media before it are."""
        call = self._graph.calls[key[0]]
        return (
            self.of_episode
            or self._of_agent(call)
            or self._of_answer(key, call)
            or self._of_choice(key)
            or self._of_latents(key)
        )

    def asks_logprobs(self, unit: Unit) -> bool:
        """Whether nothing but its logprob can keep a token of a completion from training."""
        return not (self._asks_versions or unit.inputs or unit.prompt is None or unit.prompt.length == 0)

    def of_tokens(self, unit: Unit, usable: np.ndarray) -> np.ndarray:
        """uint8 [T of the completion], where `of_unit` gives None.

        Args:
            usable: bool [T of the completion], see `usable_logprobs`.
        """
        completion = unit.body
        reasons = np.zeros(len(unit.ids), dtype=np.uint8)
        if self._spec.objective == "rl":
            if completion.logprobs is not None:
                reasons[~usable] = Reason.LOGPROB_INVALID
            for start, end, name, version in _version_runs(unit.call, completion, len(unit.ids)):
                reason = self._of_version(name, version)
                if reason is not None:
                    reasons[start:end] = reason
        prompt_length = 0 if unit.prompt is None else unit.prompt.length
        latent = first_latent(unit)
        if latent is not None:
            # Where it stands is told in recorded tokens: among those of a template it could be anywhere.
            latent = latent if self._graph.rendering is None else 0
            reasons[max(0, latent - prompt_length) :] = Reason.LATENT
        if prompt_length == 0:
            reasons[0] = Reason.NO_TARGET
        return reasons

    def _of_agent(self, call: Call) -> Reason | None:
        agent, spec = self._graph.agents.get(call.agent_id), self._spec
        if agent is not None and agent.trainable is False and spec.objective == "rl":
            return Reason.AGENT_NOT_TRAINABLE
        role = None if agent is None else agent.role
        return Reason.ROLE if spec.roles is not None and role not in spec.roles else None

    def _of_call(self, unit: Unit) -> Reason | None:
        reason = self._of_answer(unit.key, unit.call)
        if reason is None and (unit.prompt is None or is_ids_incomplete(self._graph, unit.call.id)):
            return Reason.IDS_INCOMPLETE
        return reason

    def _of_answer(self, key: CompletionKey, call: Call) -> Reason | None:
        completion = self._graph.completions[key]
        if not self._is_ours(call, completion):
            return Reason.OTHER_POLICY
        if not self._spec.trains_purpose(call.purpose):
            return Reason.PURPOSE
        broken = call.status in ("failed", "aborted") or call.phase == "start" or completion.partial is True
        if broken or completion.finish_reason in _BROKEN_FINISH:
            return Reason.CALL_INCOMPLETE
        return Reason.STALE_OBSERVATION if self._graph.is_stale(call.id) else None

    def _of_completion(self, unit: Unit) -> Reason | None:
        reason = self._of_choice(unit.key)
        return Reason.IMAGE_NOT_CARRIED if reason is None and has_unplaced_media(unit) else reason

    def _of_choice(self, key: CompletionKey) -> Reason | None:
        edit = self._edits.get(key)
        if edit is not None:
            return edit
        if key in self._rejected:
            return Reason.CANDIDATE_EXCLUDED
        if self._paired is not None and key not in self._paired:
            return Reason.NOT_PAIRED
        return None

    def _of_latents(self, key: CompletionKey) -> Reason | None:
        """Text leaves out what stood between its words: an answer to it was given to something else."""
        current: CompletionKey | None = key
        seen: set[str] = set()
        while self._latents and current is not None and current[0] not in seen:
            if current in self._latents or (current[0], None) in self._latents:
                return Reason.LATENT
            seen.add(current[0])
            link = self._graph.links.get(current[0])
            current = None if link is None else link.parent
        return None

    def _is_ours(self, call: Call, completion: CompletionFields) -> bool:
        """Whether a policy of the spec (for `sft`: a model of the spec) wrote it; see `spec`."""
        spec = self._spec
        if spec.objective != "rl":
            return spec.models is None or call.model in spec.models
        if spec.policies is not None:
            runs = completion.versions or ()
            names = {run.name for run in runs}
            if not names and call.policy is not None:
                names = {call.policy.name}
            return not names.isdisjoint(spec.policies)
        if call.policy is not None or completion.versions:
            return True
        agent = self._graph.agents.get(call.agent_id)
        declared = None if agent is None else agent.model
        return declared is None or call.model is None or _is_one_model(declared, call.model)

    def _of_version(self, name: str | None, version: int | None) -> Reason | None:
        """Why what a policy of this name and version sampled does not train, if so."""
        spec = self._spec
        if spec.policies is not None and name not in spec.policies:
            return Reason.OTHER_POLICY
        if spec.policy_versions is not None and version not in spec.policy_versions:
            return Reason.OTHER_POLICY
        oldest = spec.oldest_version
        return Reason.STALE if oldest is not None and (version is None or version < oldest) else None


def _is_one_model(one: str, other: str) -> bool:
    """Whether two names are of one model: equal, or one of them with a provider before it (`openai/m`)."""
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


def _version_runs(
    call: Call, completion: CompletionFields, length: int
) -> Iterator[tuple[int, int, str | None, int | None]]:
    """(start, end, policy, version) of the tokens that one version sampled; None: unknown."""
    runs = completion.versions
    if not runs:
        policy = call.policy
        yield 0, length, *((None, None) if policy is None else (policy.name, policy.version))
        return
    ends = [run.start for run in runs[1:]] + [length]
    for run, end in zip(runs, ends, strict=True):
        yield run.start, end, run.name, run.version


def episode_reason(graph: Graph, spec: Spec) -> Reason | None:
    """Why no token of an episode trains, if so."""
    rendering = graph.rendering
    if rendering is not None and not rendering.calls and not spec.keep_recorded and has_recorded_ids(graph):
        return Reason.OTHER_TOKENIZER
    episode = graph.episode
    if episode is not None and episode.inference_only:
        return Reason.INFERENCE_ONLY
    if episode is not None and episode.status == "infra_error":
        return Reason.INFRA_ERROR
    if (split_of(graph, spec) or "train") not in spec.splits:
        return Reason.SPLIT
    if not is_in_time(None if episode is None else episode.started_at, spec):
        return Reason.TIME
    if episode is not None and episode.status is not None and episode.status not in spec.statuses:
        return Reason.EPISODE_EXCLUDED
    return None


def split_of(graph: Graph, spec: Spec) -> Split | None:
    """The split of an episode: the one it names, but eval where the spec sets its task aside; None: unknown.

    The task is the episode's, else its group's; without either the group itself, or the episode.
    """
    episode = graph.episode
    named = None if episode is None else episode.split
    if spec.validation is None or named not in (None, "train"):
        return named
    group = graph.group
    known = (
        None if episode is None else episode.task_id,
        None if group is None else group.task_id,
        None if group is None else group.id,
        None if episode is None else episode.group_id,
        None if episode is None else episode.id,
    )
    task = next((one for one in known if one is not None), None)
    return "eval" if task is not None and spec.validation.holds(task) else named


def is_in_time(started_at: int | None, spec: Spec) -> bool:
    """Whether an episode that started then, or does not say when (None), is one that a spec asks for."""
    first, end = spec.started_from, spec.started_before
    if first is None and end is None:
        return True
    return started_at is not None and (first or 0) <= started_at and (end is None or started_at < end)


def selections_of(graph: Graph) -> Mapping[str, list[CandidateSelection]]:
    """Selections by candidate set, in order of their ids.

    One that selects a member which its set does not have is left out: what it meant to choose, and so what
    it rejects, is not known.
    """
    found: dict[str, list[CandidateSelection]] = defaultdict(list)
    for selection in graph.candidate_selections.values():
        candidates = graph.candidate_sets.get(selection.candidate_set_id)
        if candidates is not None and all(index < len(candidates.members) for index in selection.selected):
            found[selection.candidate_set_id].append(selection)
    return found


def treatments(graph: Graph, spec: Spec) -> dict[str, Treatment]:
    """Treatment of each candidate set: that of its last selection that names one, else the spec's."""
    chosen: dict[str, Treatment] = {}
    selections = selections_of(graph)
    for set_id in graph.candidate_sets:
        named = [s.treatment for s in selections.get(set_id, ()) if s.treatment is not None]
        chosen[set_id] = named[-1] if named else spec.treatment
    return chosen


def _rejected(graph: Graph, spec: Spec, chosen: Mapping[str, Treatment]) -> frozenset[CompletionKey]:
    """Completions that a set which masks them rejected and no other set selected."""
    rejected: set[CompletionKey] = set()
    kept: set[CompletionKey] = set()
    selections = selections_of(graph)
    for set_id, candidates in graph.candidate_sets.items():
        of_set = selections.get(set_id)
        if not of_set:
            continue
        selected = {index for selection in of_set for index in selection.selected}
        for index in range(len(candidates.members)):
            keys = set(member_completions(graph, candidates, index))
            if index in selected:
                kept |= keys
            elif spec.masks_rejected(chosen[set_id]):
                rejected |= keys
    return frozenset(rejected - kept)


def _paired(graph: Graph, spec: Spec, chosen: Mapping[str, Treatment]) -> frozenset[CompletionKey]:
    """Completions of the members of a set that make a pair: one was selected, the other was not, and nothing
    says that they are equally good."""
    selections = selections_of(graph)
    paired: set[CompletionKey] = set()
    for set_id, candidates in graph.candidate_sets.items():
        selected = {index for selection in selections.get(set_id, ()) for index in selection.selected}
        if chosen[set_id] == "exclude":
            continue
        worth = _worths(graph, spec, candidates, selections.get(set_id, ()))
        losers = [index for index in range(len(worth)) if index not in selected]
        pairs = [(one, other) for one in selected for other in losers if not is_tie(worth[one], worth[other])]
        for index in {member for pair in pairs for member in pair}:
            paired.update(member_completions(graph, candidates, index))
    return frozenset(paired)


def _worths(
    graph: Graph, spec: Spec, candidates: CandidateSet, selections: Sequence[CandidateSelection]
) -> list[Worth]:
    """Of each member: the last score that a selection gives it, else its own; and its rewards."""
    scores = {one.member: one.score for selection in selections for one in selection.scores or ()}
    terms: dict[int | None, list[float]] = defaultdict(list)
    for reward in graph.rewards.values():
        target = reward.target
        is_of_set = target.finest == "candidate" and target.candidate_set_id == candidates.id
        if is_of_set and spec.carries(reward):
            term = counted(reward.value, spec.weight_of(reward))
            terms[target.member] += [] if term is None else [term]
    return [
        (scores.get(index, member.score), sum(terms[index]) if terms[index] else None)
        for index, member in enumerate(candidates.members)
    ]


def member_completions(graph: Graph, candidates: CandidateSet, index: int) -> Iterator[CompletionKey]:
    """The completions of one member: one, or all that an agent and those below it sampled."""
    member = candidates.members[index]
    if member.call_id is not None:
        yield member.call_id, member.completion
        return
    assert member.agent_id is not None
    below = _descendants(graph, member.agent_id)
    for key in graph.completions:
        call = graph.calls.get(key[0])
        if call is not None and call.agent_id in below:
            yield key


def _descendants(graph: Graph, agent_id: str) -> set[str]:
    """An agent and all agents below it."""
    children: dict[str, list[str]] = defaultdict(list)
    for agent in graph.agents.values():
        if agent.parent_agent_id is not None:
            children[agent.parent_agent_id].append(agent.id)
    below: set[str] = set()
    open_ids = [agent_id]
    while open_ids:
        current = open_ids.pop()
        if current not in below:
            below.add(current)
            open_ids.extend(children[current])
    return below


def _edit_reasons(graph: Graph) -> dict[CompletionKey, Reason]:
    """Replacements that do not train: those not accepted by any edit, and those not the policy's own."""
    found: dict[CompletionKey, Reason] = {}
    accepted: set[CompletionKey] = set()
    for edit in graph.context_edits.values():
        if edit.author_call_id is None:
            continue
        if edit.author_completion is not None:
            keys: tuple[CompletionKey, ...] = ((edit.author_call_id, edit.author_completion),)
        else:
            keys = graph.completions_of(edit.author_call_id)
        for key in keys:
            if edit.author in ("other_model", "harness"):
                found[key] = Reason.OTHER_POLICY
            elif edit.status in _NOT_ACCEPTED:
                found.setdefault(key, Reason.EDIT_NOT_ACCEPTED)
            else:
                accepted.add(key)
    return {
        key: reason for key, reason in found.items() if reason is Reason.OTHER_POLICY or key not in accepted
    }
