"""What a step divides its losses by, over the whole step and settled before its first backward pass.

`token`     sum over trained tokens / trained tokens: every token weighs the same.
`sequence`  mean over a sample's owned tokens, then over samples: every sample weighs the same.
`group`     mean over a group's tokens, then over groups: every task weighs the same.
`constant`  sum over trained tokens / (length * episodes), with a length of the user's: no answer's own
            length divides it, and an episode in four samples counts as much as one in one piece.

Tokens with advantage 0 count in all of them, and so do samples and groups of nothing but such tokens. What
has no trained token counts in none.

Source: token: DAPO (arXiv 2503.14476), section 3.3; sequence: GRPO (arXiv 2402.03300); constant: Dr. GRPO
(arXiv 2503.20783), there of the longest answer.

Worked: one group, two episodes, of one sample each with 1 and 3 owned tokens of loss 4 and 1, 1, 1. token:
7 / 4 = 1.75; sequence: (4 / 1 + 3 / 3) / 2 = 2.5; group: 7 / 4; constant of length 2: 7 / (2 * 2) = 1.75.

Known traps: under `sequence` an episode that a compaction cut into two samples weighs twice; under `token`
a long one weighs more than a short one."""

# N targets

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracestore.train.forest import Forest, Targets

Kind = Literal["token", "sequence", "group", "constant"]
Work = tuple[Forest, Targets]


@dataclass(frozen=True)
class Denominator:
    """What a step's losses are divided by."""

    kind: Kind = "token"
    length: int = 1
    """constant: tokens that an episode's sum is divided by."""


def shared_out(groups: Sequence[Sequence[Work]], denominator: Denominator) -> tuple[tuple[Work, ...], int]:
    """The same targets with what each weighs, and the number that the step's sum is divided by.

    The number is a sum over groups: of a step in several processes, it is the sum of theirs.

    Args:
        groups: of each group of the step, its forests with their targets.
    """
    found = [_shared_out(group, denominator) for group in groups]
    return tuple(one for work, _ in found for one in work), sum(count for _, count in found)


def _shared_out(group: Sequence[Work], denominator: Denominator) -> tuple[tuple[Work, ...], int]:
    tokens = sum(len(targets) for _, targets in group)
    match denominator.kind:
        case "token":
            return tuple(group), tokens
        case "group":
            return _weighed(group, [np.full(len(targets), 1.0 / max(tokens, 1)) for _, targets in group]), (
                1 if tokens else 0
            )
        case "constant":
            shares = [np.full(len(targets), 1.0 / denominator.length) for _, targets in group]
            return _weighed(group, shares), len(_episodes(group))
        case "sequence":
            shares, samples = [], 0
            for grown, targets in group:
                _, of_N, tokens_M = np.unique(
                    owners_of(grown, targets), return_inverse=True, return_counts=True
                )
                shares.append(1.0 / tokens_M[of_N.reshape(-1)])
                samples += len(tokens_M)
            return _weighed(group, shares), samples


def owners_of(grown: Forest, targets: Targets) -> np.ndarray:
    """int64 [N], the sample that owns each target."""
    owner_N: np.ndarray = grown.owner_S[grown.segment_T[targets.token_N]]
    return owner_N


def _weighed(group: Sequence[Work], shares: Sequence[np.ndarray]) -> tuple[Work, ...]:
    return tuple(
        (grown, targets.given(share=share)) for (grown, targets), share in zip(group, shares, strict=True)
    )


def _episodes(group: Sequence[Work]) -> set[int]:
    """Episodes of the group with a target; the header is the same in every part."""
    return {
        grown.row.samples[owner].episode
        for grown, targets in group
        for owner in np.unique(owners_of(grown, targets)).tolist()
    }
