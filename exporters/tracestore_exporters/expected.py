"""Graphs -> what each sampled token of a shard should say, by rules written a second time.

For `verify`: nothing of the exporter's masks is used, but for one thing: where an episode holds images or
latents, which of its tokens they exclude is asked of the exporter itself.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracestore.graph.model import CompletionKey, Graph
from tracestore.graph.tokens import prompt_ids
from tracestore.shards.reasons import Reason
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet
from tracestore.wire.completion import CompletionFields
from tracestore.wire.reward import Reward
from tracestore_exporters.rows import GroupInfo, plan_row
from tracestore_exporters.spec import RewardChoice, Spec

_MEDIA = re.compile(rb'image|audio|video|screenshot|"document"|file"|\\u00')
"""In every request that holds media, whether its part types are spelt in letters or in JSON escapes."""


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """One completion as the store has it."""

    prompt: np.ndarray | None
    ids: np.ndarray
    logprobs: np.ndarray
    """float64, 0 where there is no usable value."""
    has_logprob: np.ndarray
    reason: np.ndarray
    policies: list[tuple[str, int | None] | None]
    """For each token the policy and version that sampled it; None: unknown."""


def expected_of_group(graphs: Mapping[str, Graph], spec: Spec) -> dict[tuple[str, str, int], Expected]:
    """Every placeable completion of a group: those with ids whose call is recorded, but those withheld."""
    found: dict[tuple[str, str, int], Expected] = {}
    for episode_id, graph in graphs.items():
        rules = _Rules(graph, spec)
        overruled = _media_reasons(graph, spec, episode_id)
        for key, completion in graph.completions.items():
            if completion.token_ids is None or len(completion.token_ids) == 0 or key[0] not in graph.calls:
                continue
            if key in graph.withheld:
                continue
            prompt = prompt_ids(graph, key[0])
            reason = overruled.get(key)
            if reason is None:
                reason = rules.reason(key, completion, prompt)
            has, values = _logprobs(completion)
            policies = _policies(graph, key, completion)
            found[(episode_id, *key)] = Expected(
                prompt, completion.token_ids.array, values, has, reason, policies
            )
    return found


def _policies(
    graph: Graph, key: CompletionKey, completion: CompletionFields
) -> list[tuple[str, int | None] | None]:
    """Who sampled each token: the version that began last, else the call's policy."""
    assert completion.token_ids is not None
    policy = graph.calls[key[0]].policy
    current = None if policy is None or completion.versions else (policy.name, policy.version)
    named = [current] * len(completion.token_ids)
    for run in completion.versions or ():
        named[run.start :] = [(run.name, run.version)] * len(named[run.start :])
    return named


def _logprobs(completion: CompletionFields) -> tuple[np.ndarray, np.ndarray]:
    """(has a usable value, values as float64)."""
    length = 0 if completion.token_ids is None else len(completion.token_ids)
    if completion.logprobs is None:
        return np.zeros(length, dtype=bool), np.zeros(length)
    values = completion.logprobs.array.astype(np.float64)
    nulls = set(completion.logprobs.nulls)
    # -9999 and lower: vLLM's clamp. -100: the floor of MLX servers. Neither is a probability.
    has = np.asarray(
        [
            i not in nulls and -9999 < value < np.inf and value != -100
            for i, value in enumerate(values.tolist())
        ],
        dtype=bool,
    )
    return has, np.where(has, values, 0.0)


class _Rules:
    """Why a token trains or not, said a second time, from the entities alone."""

    def __init__(self, graph: Graph, spec: Spec) -> None:
        self._graph = graph
        self._spec = spec
        self._stale = {
            gap.call_id for gap in graph.gaps.values() if gap.cause == Reason.STALE_OBSERVATION.label
        }
        self._banned = dict(self._edits()) | dict(self._candidates())
        # An edit's verdict is asked before a candidate set's.
        self._banned |= dict(self._edits())

    def reason(
        self, key: CompletionKey, completion: CompletionFields, prompt: np.ndarray | None
    ) -> np.ndarray:
        assert completion.token_ids is not None
        length = len(completion.token_ids)
        whole = self._whole(key, completion, prompt)
        if whole is not None:
            return np.full(length, whole, dtype=np.uint8)
        reasons = np.zeros(length, dtype=np.uint8)
        if self._spec.objective == "rl":
            if completion.logprobs is not None:
                reasons[~_logprobs(completion)[0]] = Reason.LOGPROB_INVALID
            for place, sampled_by in enumerate(_policies(self._graph, key, completion)):
                reason = self._of_policy(sampled_by)
                if reason is not None:
                    reasons[place] = reason
        if prompt is not None and len(prompt) == 0:
            reasons[0] = Reason.NO_TARGET
        return reasons

    def _of_policy(self, sampled_by: tuple[str, int | None] | None) -> Reason | None:
        """Whether a token's policy and version are among those of the spec, and recent enough."""
        spec = self._spec
        name, version = (None, None) if sampled_by is None else sampled_by
        named = spec.policies is None or name in spec.policies
        versioned = spec.policy_versions is None or version in spec.policy_versions
        if not (named and versioned):
            return Reason.OTHER_POLICY
        if spec.current_version is None or spec.max_staleness is None:
            return None
        is_recent = version is not None and spec.current_version - version <= spec.max_staleness
        return None if is_recent else Reason.STALE

    def _split(self) -> str:
        """train, eval or test: as named, but eval for a task that the spec sets aside."""
        graph, validation = self._graph, self._spec.validation
        episode, group = graph.episode, graph.group
        named = (None if episode is None else episode.split) or "train"
        if validation is None or named != "train":
            return named
        of_episode = () if episode is None else (episode.group_id, episode.id)
        tasks = [
            *([] if episode is None else [episode.task_id]),
            *([] if group is None else [group.task_id, group.id]),
            *of_episode,
        ]
        tasks = [task for task in tasks if task is not None]
        if not tasks:
            return named
        text = f"{validation.salt}\0{tasks[0]}".encode("utf-8", "surrogatepass")
        return "eval" if int(hashlib.sha256(text).hexdigest()[:16], 16) / 2**64 < validation.share else named

    def _in_time(self) -> bool:
        spec, episode = self._spec, self._graph.episode
        began = None if episode is None else episode.started_at
        if spec.started_from is None and spec.started_before is None:
            return True
        too_early = spec.started_from is not None and (began is None or began < spec.started_from)
        too_late = spec.started_before is not None and (began is None or began >= spec.started_before)
        return not too_early and not too_late

    def _whole(
        self, key: CompletionKey, completion: CompletionFields, prompt: np.ndarray | None
    ) -> Reason | None:
        """The reason that holds for all of a completion; questions in the documented order."""
        graph, spec = self._graph, self._spec
        call = graph.calls[key[0]]
        agent = graph.agents.get(call.agent_id)
        episode = graph.episode
        auxiliary = call.purpose in ("judge", "verify", "title")
        purposes = spec.purposes
        listed = purposes is not None and (call.purpose or "act") in purposes
        status = None if episode is None else episode.status
        role = None if agent is None else agent.role
        rendering = graph.rendering
        as_recorded = rendering is not None and call.id not in rendering.calls
        questions = (
            (as_recorded and not spec.keep_recorded, Reason.OTHER_TOKENIZER),
            (episode is not None and episode.inference_only is True, Reason.INFERENCE_ONLY),
            (status == "infra_error", Reason.INFRA_ERROR),
            (self._split() not in spec.splits, Reason.SPLIT),
            (not self._in_time(), Reason.TIME),
            (status is not None and status not in spec.statuses, Reason.EPISODE_EXCLUDED),
            (
                spec.objective == "rl" and agent is not None and agent.trainable is False,
                Reason.AGENT_NOT_TRAINABLE,
            ),
            (spec.roles is not None and role not in spec.roles, Reason.ROLE),
            (not self._authored(key, completion), Reason.OTHER_POLICY),
            (not listed if purposes is not None else auxiliary, Reason.PURPOSE),
            (self._is_broken(key, completion), Reason.CALL_INCOMPLETE),
            (key[0] in self._stale, Reason.STALE_OBSERVATION),
            (prompt is None or self._has_missing_ids(key[0]), Reason.IDS_INCOMPLETE),
        )
        return next((reason for holds, reason in questions if holds), None) or self._banned.get(key)

    def _authored(self, key: CompletionKey, completion: CompletionFields) -> bool:
        """Whether the spec's policy (or model) wrote any of it."""
        call, spec = self._graph.calls[key[0]], self._spec
        if spec.objective != "rl":
            return spec.models is None or (call.model is not None and call.model in spec.models)
        named = [run.name for run in completion.versions or ()]
        if not named and call.policy is not None:
            named = [call.policy.name]
        if spec.policies is not None:
            return any(name in spec.policies for name in named)
        agent = self._graph.agents.get(call.agent_id)
        if named or agent is None or agent.model is None or call.model is None:
            return True
        # litellm's "openai/m" is the provider's "m".
        shorter, longer = (name.split("/") for name in sorted((agent.model, call.model), key=len))
        return longer[-len(shorter) :] == shorter

    def _is_broken(self, key: CompletionKey, completion: CompletionFields) -> bool:
        call = self._graph.calls[key[0]]
        return (
            call.status in ("failed", "aborted")
            or call.phase == "start"
            or completion.partial is True
            or completion.finish_reason in ("abort", "aborted", "error")
        )

    def _has_missing_ids(self, call_id: str) -> bool:
        answers = [c for (owner, _), c in self._graph.completions.items() if owner == call_id]
        if any(answer.token_ids is None for answer in answers):
            return True
        usage = self._graph.calls[call_id].usage
        if usage is None or usage.completion_tokens is None:
            return False
        fewest = sum(len(answer.token_ids or ()) for answer in answers)
        most = fewest + sum(answer.stop_token_stripped is True for answer in answers)
        return usage.completion_tokens < fewest or usage.completion_tokens > most

    def _edits(self) -> Iterator[tuple[CompletionKey, Reason]]:
        by_completion: dict[CompletionKey, list[tuple[str | None, str | None]]] = defaultdict(list)
        for edit in self._graph.context_edits.values():
            for key in self._graph.completions:
                own = key[0] == edit.author_call_id
                if own and edit.author_completion in (None, key[1]):
                    by_completion[key].append((edit.author, edit.status))
        for key, verdicts in by_completion.items():
            if any(author in ("other_model", "harness") for author, _ in verdicts):
                yield key, Reason.OTHER_POLICY
            elif all(status in ("rejected", "cancelled", "failed") for _, status in verdicts):
                yield key, Reason.EDIT_NOT_ACCEPTED

    def _candidates(self) -> Iterator[tuple[CompletionKey, Reason]]:
        graph = self._graph
        kept: set[CompletionKey] = set()
        dropped: set[CompletionKey] = set()
        paired: set[CompletionKey] = set()
        for set_id, one in graph.candidate_sets.items():
            verdicts = [
                s
                for s in graph.candidate_selections.values()
                if s.candidate_set_id == set_id and max(s.selected, default=0) < len(one.members)
            ]
            if not verdicts:
                continue
            stated = [v.treatment for v in sorted(verdicts, key=lambda v: v.id) if v.treatment is not None]
            imitates = self._spec.objective == "sft"
            by_default = self._spec.candidates or {True: "exclude", False: "shared"}[imitates]
            treatment = stated[-1] if stated else by_default
            is_masked = treatment != "shared" if imitates else treatment == "exclude"
            chosen = {index for verdict in verdicts for index in verdict.selected}
            in_pairs: set[int] = (
                set() if treatment == "exclude" else set(self._differing(one, verdicts, chosen))
            )
            for index, member in enumerate(one.members):
                if member.call_id is not None:
                    keys = {(member.call_id, member.completion)}
                else:
                    keys = {key for key in graph.completions if self._is_under(key[0], member.agent_id)}
                if index in in_pairs:
                    paired |= keys
                if index in chosen:
                    kept |= keys
                elif is_masked:
                    dropped |= keys
        for key in dropped - kept:
            yield key, Reason.CANDIDATE_EXCLUDED
        if self._spec.objective == "preference":
            for key in set(graph.completions) - paired - (dropped - kept):
                yield key, Reason.NOT_PAIRED

    def _differing(
        self, one: CandidateSet, verdicts: Sequence[CandidateSelection], chosen: set[int]
    ) -> Iterator[int]:
        """Members that somebody on the other side of the choice is not known to equal."""
        known: list[tuple[float | None, float | None]] = []
        for index, member in enumerate(one.members):
            said = [
                s.score
                for v in sorted(verdicts, key=lambda v: v.id)
                for s in v.scores or ()
                if s.member == index
            ]
            known.append((said[-1] if said else member.score, self._reward_of(one.id, index)))
        for index, mine in enumerate(known):
            others = [theirs for place, theirs in enumerate(known) if (place in chosen) != (index in chosen)]
            # The first of score and reward that both have decides.
            facts = [
                [(a, b) for a, b in zip(mine, other, strict=True) if None not in (a, b)] for other in others
            ]
            if any(not both or both[0][0] != both[0][1] for both in facts):
                yield index

    def _reward_of(self, set_id: str, member: int) -> float | None:
        """The composed reward of a candidate itself; None: it has none that the spec carries and counts."""
        total: float | None = None
        for _, reward in sorted(self._graph.rewards.items()):
            is_its = reward.target.completion is None and reward.target.candidate_set_id == set_id
            if is_its and reward.target.member == member:
                weight = self._weight(reward)
                if weight != 0:
                    total = (total or 0) + reward.value * weight
        return total

    def _weight(self, reward: Reward) -> float:
        """How much a reward counts under the spec; 0: not at all."""
        recorded = 1.0 if reward.weight is None else reward.weight
        if self._spec.rewards is None:
            return recorded
        stated = self._spec.rewards.get(reward.name, 0.0)
        if isinstance(stated, RewardChoice):
            if stated.scorer is not None and stated.scorer != reward.scorer:
                return 0.0
            if stated.version is not None and stated.version != reward.scorer_version:
                return 0.0
            stated = stated.weight
        return recorded if stated is None else stated

    def _is_under(self, call_id: str, agent_id: str | None) -> bool:
        """Whether a call belongs to an agent or to one below it."""
        call = self._graph.calls.get(call_id)
        current = None if call is None else call.agent_id
        seen: set[str] = set()
        while current is not None and current not in seen:
            if current == agent_id:
                return True
            seen.add(current)
            agent = self._graph.agents.get(current)
            current = None if agent is None else agent.parent_agent_id
        return False


def _media_reasons(graph: Graph, spec: Spec, episode_id: str) -> dict[CompletionKey, np.ndarray]:
    """The exporter's own reasons, for an episode in which images or latents stand; {} for all others."""
    has_blobs = any(blob.role in ("image", "audio", "video", "latent") for blob in graph.blobs.values())
    has_parts = any(_MEDIA.search(call.request or b"") for call in graph.calls.values())
    if not has_blobs and not has_parts:
        return {}
    row = plan_row([graph], spec, GroupInfo(project="", episode_ids=(episode_id,)))
    found: dict[CompletionKey, list[np.ndarray]] = defaultdict(list)
    segments = row.segments
    for completion, start, length in zip(
        segments.completion.tolist(), segments.start.tolist(), segments.length.tolist(), strict=True
    ):
        if completion >= 0:
            entry = row.completions[completion]
            key = row.calls[entry.call].call_id, entry.index
            found[key].append(row.reason[start : start + length])
    return {key: np.concatenate(pieces) for key, pieces in found.items()}
