"""Why a token of a shard is trained or not: one byte per token, 0 = trained."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """The first reason that applies, in the order in which `tracestore_exporters.masks` asks.

    The numbers are part of the shard format: they are never reused and never change their meaning.
    """

    TRAINED = 0
    """Sampled by the policy, complete, and owned by one sample of the row."""
    UNSAMPLED = 1
    """Prompt, template scaffold, tool result, or a copy of something sampled elsewhere."""
    NO_TARGET = 2
    """Sampled at position 0: nothing stands before it, so it has no conditional probability."""
    AGENT_NOT_TRAINABLE = 3
    """The harness declared the agent's tokens as not trainable."""
    PURPOSE = 4
    """A call of a purpose outside the spec: a judge, a verifier, a title."""
    OTHER_POLICY = 5
    """Not sampled by a policy (for `sft`: a model) of the spec."""
    CALL_INCOMPLETE = 6
    """The call failed, was aborted, or has not ended."""
    INFRA_ERROR = 7
    """The episode broke for a reason that is not the policy's; it leaves the group statistics too."""
    SPLIT = 8
    """The episode belongs to a split outside the spec (eval, test)."""
    INFERENCE_ONLY = 9
    """The episode was recorded for reading."""
    CANDIDATE_EXCLUDED = 10
    """A rejected candidate of a set whose treatment is `exclude`; for `sft` of any that is not `shared`."""
    IDS_INCOMPLETE = 11
    """The ids are not all of it: fewer or more than the usage says, or the prompt's ids are unknown."""
    LOGPROB_INVALID = 12
    """`rl` only: the recorded logprob is null, not finite, or a server's sentinel."""
    EDIT_NOT_ACCEPTED = 13
    """The text of a context edit that was rejected, cancelled or failed."""
    STALE = 14
    """Sampled by a policy version too far behind."""
    TOO_LONG = 15
    """In no sample short enough for the spec, or beyond the limit of all that hold it."""
    GROUP_OPEN = 16
    """The group is not closed: exported later, in no shard now."""
    EPISODE_EXCLUDED = 17
    """The episode ended in a status outside the spec (cancelled, interrupted, invalid)."""
    LATENT = 18
    """Conditioned on a latent that has no token ids."""
    LATE = 19
    """Recorded after its group had been exported."""
    IMAGE_NOT_CARRIED = 20
    """Conditioned on an image that stands inline in a message: no blob says where, so no shard carries it."""
    OTHER_TOKENIZER = 21
    """Recorded ids in an export of rendered text: they may be of another tokenizer."""
    TIME = 22
    """The episode started outside the spec's time, or does not say when."""
    ROLE = 23
    """The agent has no role of the spec."""
    NOT_PAIRED = 24
    """`preference` only: no candidate of which one on the other side of the choice is not known to be equally
    good."""
    REDACTED = 25
    """Its ids, or those before it, spell what a rule of the spec takes out, or text that was not recorded:
    they are in no shard. Asked before all others."""
    STALE_OBSERVATION = 26
    """The call read what an environment had answered to something else than was sampled before it."""

    @property
    def label(self) -> str:
        """The name used in tables and JSON: `candidate_excluded`."""
        return self.name.lower()


def label_of(reason: int) -> str:
    """Name of a reason byte, also of one that this version does not know."""
    try:
        return Reason(reason).label
    except ValueError:
        return f"unknown_{reason}"
