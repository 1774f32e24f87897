"""One row of a shard in memory: a group's token forest, its samples, and the header that credit needs.

The arrow of this module: samples -> row. A row holds each token once. Tokens lie in depth-first order of
`segments`; a sample is a path of segments from a root, and its position axis counts along that path.

    T tokens of the row, S segments
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Runs of tokens between two forks, depth-first, parents before children."""

    parent: np.ndarray
    """int32 [S], index of the segment before it; -1 for a root."""
    start: np.ndarray
    """int64 [S], first token of the segment on the row's token axis."""
    length: np.ndarray
    """int32 [S], at least 1."""
    completion: np.ndarray
    """int32 [S], index into `Row.completions` when its tokens were sampled; -1 when they were not."""

    def __len__(self) -> int:
        return len(self.parent)


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    episode_id: str
    status: str | None
    split: str | None
    task_id: str | None
    forked_from_episode_id: str | None
    ordinal: int
    """Place in the group, by episode id."""
    in_statistics: bool
    """False: leaves the group statistics (infra_error, or excluded by the spec). A fork stays in; whom it is
    compared with is told by `forked_from_episode_id`."""


@dataclass(frozen=True, slots=True)
class AgentEntry:
    agent_id: str
    episode: int
    parent: int | None
    role: str | None
    depth: int | None
    stage: int | None
    model: str | None
    checkpoint: str | None
    trainable: bool | None
    score: float | None
    status: str | None
    spawned_by_call: int | None
    spawned_by_completion: int | None
    """Index into `Row.completions`."""
    spawned_by_tool_call_id: str | None
    finding_used: bool | None


@dataclass(frozen=True, slots=True)
class CallEntry:
    call_id: str
    episode: int
    agent: int
    ordinal: int | None
    purpose: str | None
    model: str | None
    policy_name: str | None
    policy_version: int | None
    status: str | None
    logprobs_are: str | None
    """raw: before temperature and top-p/k; processed: after them (the trainer divides its logits too)."""
    temperature: float | None
    top_p: float | None
    top_k: int | None
    params: str | None
    """All sampling parameters as a JSON object with sorted keys."""
    parent_completion: int | None
    """The completion this call continues by its messages, whether or not the token ids agree."""
    link: str
    """How that is known: named, inferred, matched, ambiguous, none."""
    rendered: bool = False
    """Whether a chat template gave its ids; False: they are as recorded."""


@dataclass(frozen=True, slots=True)
class CompletionEntry:
    call: int
    index: int
    finish_reason: str | None
    partial: bool | None
    stop_token_stripped: bool | None
    num_tokens: int | None
    """None: the server gave no ids; 0: it sampled nothing."""
    tool_failed: bool | None = None
    """Whether one of its tool calls failed or timed out; None: of none of them an outcome is recorded."""


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """Which policy version sampled a run of tokens; tokens of an unknown policy are in no run."""

    start: int
    """On the row's token axis."""
    length: int
    name: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """A path of segments from a root: what one training row would hold."""

    sample_id: str
    """The last completion it reproduces, `call_id:index`; the same in every export."""
    episode: int
    agent: int
    segments: tuple[int, ...]
    completions: tuple[int, ...]
    """The chain of completions it reproduces, in order. A sampled segment on the path whose completion is not
    among these is context here (another agent's, or one across a boundary)."""
    cause: str
    """Why a sample begins here: root, subagent_root, compaction, fold, rewrite, truncation,
    tool_result_clearing, template_drift, tools_change, images_change, fork, unknown."""
    num_tokens: int
    num_owned: int
    """Trained tokens that belong to this sample: those of its completions that no earlier sample that trains
    holds."""
    reason: int = 0
    """Why none of it trains for its own sake (a `Reason`: too_long); 0: it trains. One that does not owns
    nothing, so that what it shares with a sample that does is trained there."""


@dataclass(frozen=True, slots=True)
class MemberEntry:
    completion: int | None
    agent: int | None
    score: float | None
    selected: bool | None
    """None: no selection is recorded."""
    continued: bool | None


@dataclass(frozen=True, slots=True)
class CandidateSetEntry:
    candidate_set_id: str
    episode: int
    agent: int | None
    generator: str | None
    selector: str | None
    selector_version: str | None
    treatment: str
    """The selection's, else the spec's: shared, negative, runner_up, pairs, exclude."""
    members: tuple[MemberEntry, ...]


@dataclass(frozen=True, slots=True)
class EditEntry:
    edit_id: str
    episode: int
    agent: int
    edit: str
    trigger: str | None
    author: str | None
    author_completion: int | None
    before_call: int | None
    after_call: int | None
    replaced: tuple[int, ...] | None
    """Calls whose messages the replacement stands for; None: unknown."""
    tokens_before: int | None
    tokens_after: int | None
    status: str | None


@dataclass(frozen=True, slots=True)
class RewardEntry:
    reward_id: str
    target: str
    """The finest thing named: tokens, completion, candidate, call, agent, episode."""
    episode: int
    agent: int | None
    call: int | None
    completion: int | None
    candidate_set: int | None
    member: int | None
    token_start: int | None
    """Inside the completion's token ids."""
    token_length: int | None
    name: str
    value: float
    weight: float | None
    scorer: str | None
    scorer_version: str | None
    seq: int
    """Place in the row, by reward id."""


@dataclass(frozen=True, slots=True)
class BlobEntry:
    """A payload by hash that a trainer needs beside the ids: an image, routed experts."""

    hash: str
    role: str | None
    media_type: str | None
    dtype: str | None
    shape: tuple[int, ...] | None
    episode: int
    agent: int | None
    call: int | None
    completion: int | None
    position: int | None
    """Token index in the call's prompt ++ completion at which it stands."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One group, or one part of a group that is larger than a row (`part` of `num_parts`).

    Parts cut by episode. Every part has the full header (episodes to rewards, blobs); segments, samples and
    policy runs are of the part's own episodes.
    """

    project: str
    group_id: str | None
    """None: an episode on its own."""
    task_id: str | None
    part: int
    num_parts: int
    closed_by: str | None
    """event, size, timeout, or episodes (the group states no end and no size: all its episodes have
    ended)."""
    token_ids: np.ndarray
    """int32 [T]."""
    logprobs: np.ndarray | None
    """float32 or float64 [T], log p(token | before) at the token's own index; None: no token has one."""
    has_logprob: np.ndarray
    """bool [T]; where False, `logprobs` is 0 and means nothing."""
    reason: np.ndarray
    """uint8 [T], `tracestore.shards.reasons.Reason`."""
    segments: Segments
    episodes: tuple[EpisodeEntry, ...]
    agents: tuple[AgentEntry, ...]
    calls: tuple[CallEntry, ...]
    completions: tuple[CompletionEntry, ...]
    policy_runs: tuple[PolicyRun, ...]
    samples: tuple[Sample, ...]
    candidate_sets: tuple[CandidateSetEntry, ...] = ()
    edits: tuple[EditEntry, ...] = ()
    rewards: tuple[RewardEntry, ...] = ()
    blobs: tuple[BlobEntry, ...] = field(default=())

    @property
    def num_trained(self) -> int:
        return int(np.count_nonzero(self.reason == 0))
