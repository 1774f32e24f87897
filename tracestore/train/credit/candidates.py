"""Candidate treatments: what replaces the episode's advantage on the candidates' own tokens, and only there.

shared     the episode's advantage, kept: the score-function gradient of E[R(sel(y_1..y_N))] credits every
           candidate that the policy sampled.
exclude    rejected candidates are not trained; the shard's reason bytes say so already.
negative   A_i = score_i - mean(scores).
runner_up  A = score - best other score for the selected one, 0 for the others: the baseline is what would
           have been selected without it. Never executed candidates have no reward of their own, so the
           selector's scores stand in for it.
pairs      a preference loss on the divergent suffixes; no policy gradient, so it is refused here.

Source: our derivation for shared and runner_up (both unbiased: checked by enumerating a small policy).

Worked: scores [.9, .4, .3, .4], the first selected, mean 2.0 / 4 = .5 -> negative [.4, -.1, -.2, -.1];
runner_up [.9 - .4, 0, 0, 0] = [.5, 0, 0, 0].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tracestore.errors import TracestoreError
from tracestore.shards.candidates import member_completions
from tracestore.shards.row import CandidateSetEntry, Row
from tracestore.train.credit.base import Advantages, finite


class UnsupportedTreatment(TracestoreError):
    """A policy-gradient loss cannot apply this candidate treatment."""


class MissingScore(TracestoreError):
    """A candidate treatment needs a score for every member."""


def treat(row: Row, advantages: Advantages) -> Advantages:
    """The same advantages, with those of treated candidates replaced in every sample that holds them.

    A candidate gets its own from the scores even where its episode has no reward.

    Raises:
        UnsupportedTreatment: the treatment is `pairs`, or one this version does not know.
        MissingScore: `negative` or `runner_up` without scores or without a selected member.
        NonFiniteCredit: scores so large that an advantage is no finite number.
    """
    values = dict(advantages.values)
    pairs = [(index, one) for index, sample in enumerate(row.samples) for one in sample.completions]
    for entry in row.candidate_sets:
        if entry.treatment in ("shared", "exclude"):
            continue
        for member, value in zip(entry.members, _member_advantages(entry), strict=True):
            own = member_completions(row, member)
            values.update({pair: value for pair in pairs if pair[1] in own})
    return replace(advantages, values=values)


def _member_advantages(entry: CandidateSetEntry) -> list[float]:
    if entry.treatment not in ("negative", "runner_up"):
        raise UnsupportedTreatment(
            candidate_set_id=entry.candidate_set_id,
            treatment=entry.treatment,
            hint="export with shared, negative, runner_up or exclude",
        )
    scores = [member.score for member in entry.members if member.score is not None]
    if len(scores) < len(entry.members):
        raise MissingScore(candidate_set_id=entry.candidate_set_id, treatment=entry.treatment)
    return finite(
        _minus_mean if entry.treatment == "negative" else partial(_runner_up, entry),
        scores,
        candidate_set_id=entry.candidate_set_id,
        hint="scale the set's scores down",
    )


def _minus_mean(scores: Sequence[float]) -> list[float]:
    mean = math.fsum(scores) / len(scores)
    return [score - mean if max(scores) != min(scores) else 0.0 for score in scores]


def _runner_up(entry: CandidateSetEntry, scores: Sequence[float]) -> list[float]:
    selected = [index for index, member in enumerate(entry.members) if member.selected]
    if len(selected) != 1 or len(scores) < 2:
        raise MissingScore(
            candidate_set_id=entry.candidate_set_id,
            treatment=entry.treatment,
            selected=len(selected),
            members=len(scores),
            hint="runner_up compares one selected member with at least one other",
        )
    [winner] = selected
    best_other = max(score for index, score in enumerate(scores) if index != winner)
    return [score - best_other if index == winner else 0.0 for index, score in enumerate(scores)]
