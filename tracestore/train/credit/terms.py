"""Costs as rewards: what an episode used, times a weight, added to the reward of each graded episode.

`with_terms` gives the same row with one more episode reward a term, so that every rule works on the sum. A
term is a pure function of the row's header (`tokens`: and its segments) and counts each token once:

    length          sampled tokens of the episode's agents that may train, each completion once
    tokens          distinct tokens of the episode's samples, what they read included
    critical_steps  model calls when subagents run side by side
    calls           model calls of all agents

Source: length and critical steps as costs are common [D]; critical steps are Kimi K2.5's (arXiv 2602.02276).

Worked: a shared answer of 2 tokens, continued by answers of 3 and 1: length 2 + 3 + 1 = 6; a sum over the two
branches would say (2 + 3) + (2 + 1) = 8 and charge for the shared part twice.

Known traps: an ungraded episode stays ungraded. A term leaves the range in which a rule may expect rewards
(FoldGRPO clips to [0, 1]); PKPO's best of k is then the best of what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from tracestore.errors import TracestoreError
from tracestore.shards.row import RewardEntry, Row
from tracestore.train.credit.base import MissingFact, episode_rewards
from tracestore.train.credit.critical import episode_steps

Term = Callable[[Row], Mapping[int, int]]
"""Row -> episode -> how much of it the episode used; an episode that is missing used nothing."""


class UnknownTerm(TracestoreError):
    """No reward term has this name."""

    exit_code = 2


def length(row: Row) -> Mapping[int, int]:
    """Sampled tokens. Raises MissingFact for a completion without ids of an agent that may train."""
    found: Counter[int] = Counter()
    for completion in row.completions:
        call = row.calls[completion.call]
        if row.agents[call.agent].trainable is False:
            continue
        if completion.num_tokens is None:
            raise MissingFact(
                term="length",
                fact="token ids",
                call_id=call.call_id,
                hint="record its ids, or declare its agent as not trainable",
            )
        found[call.episode] += completion.num_tokens
    return found


def tokens(row: Row) -> Mapping[int, int]:
    """Distinct tokens. Raises MissingFact for a part of a group, which holds its own episodes' alone."""
    if row.num_parts > 1:
        raise MissingFact(
            term="tokens",
            fact="the tokens of all episodes",
            group_id=row.group_id,
            parts=row.num_parts,
            hint="export with a larger max_row_bytes, or take the term length",
        )
    of: dict[int, set[int]] = {}
    for sample in row.samples:
        of.setdefault(sample.episode, set()).update(sample.segments)
    lengths = row.segments.length.tolist()
    return {episode: sum(lengths[one] for one in segments) for episode, segments in of.items()}


def calls(row: Row) -> Mapping[int, int]:
    """Model calls of all agents."""
    return Counter(call.episode for call in row.calls)


TERMS: Mapping[str, Term] = {
    "length": length,
    "tokens": tokens,
    "critical_steps": episode_steps,
    "calls": calls,
}
"""What `--reward-term NAME=WEIGHT` can name."""


def check_terms(terms: Mapping[str, float]) -> None:
    """Raises UnknownTerm, naming those there are."""
    for name in terms:
        if name not in TERMS:
            raise UnknownTerm(term=name, hint=f"terms: {', '.join(sorted(TERMS))}")


def with_terms(row: Row, terms: Mapping[str, float]) -> Row:
    """The row with weight * amount of each term as a reward of each graded episode.

    Raises:
        UnknownTerm: no term has this name.
        MissingFact: the row does not hold what a term counts.
    """
    check_terms(terms)
    if not terms:
        return row
    graded = episode_rewards(row, range(len(row.episodes)))
    added: list[RewardEntry] = []
    for name, weight in terms.items():
        amounts = TERMS[name](row)
        added += [_reward(episode, name, amounts.get(episode, 0), weight) for episode in graded]
    return replace(row, rewards=(*row.rewards, *added))


def _reward(episode: int, name: str, amount: int, weight: float) -> RewardEntry:
    return RewardEntry(
        reward_id=f"term:{name}:{episode}",
        target="episode",
        episode=episode,
        agent=None,
        call=None,
        completion=None,
        candidate_set=None,
        member=None,
        token_start=None,
        token_length=None,
        name=name,
        value=float(amount),
        weight=weight,
        scorer="term",
        scorer_version=None,
        seq=-1,
    )
