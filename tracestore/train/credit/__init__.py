"""Rewards of a whole group -> an advantage for every completion of every sample. One file a family.

A rule is a pure function `credit(row, context) -> Advantages`. `advantages` applies a rule by its name and
then the row's candidate treatments; `combine` spreads the result over tokens that several samples share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tracestore.errors import TracestoreError
from tracestore.shards.row import Row
from tracestore.train.credit import pkpo, rloo, shared
from tracestore.train.credit.base import Advantages, Context
from tracestore.train.credit.candidates import treat

RULES: Mapping[str, Callable[[Row, Context], Advantages]] = {
    "shared": shared.credit,
    "rloo": rloo.credit,
    "pkpo": pkpo.credit,
}
"""What `--credit RULE` can name."""


class UnknownRule(TracestoreError):
    """No credit rule has this name."""

    exit_code = 2


def check_rule(rule: str) -> None:
    """Raises UnknownRule, naming those there are, unless `rule` is one."""
    if rule not in RULES:
        raise UnknownRule(rule=rule, hint=f"rules: {', '.join(sorted(RULES))}")


def advantages(row: Row, *, rule: str, context: Context) -> Advantages:
    """What a rule gives to the samples of a row, candidate treatments included.

    Raises:
        UnknownRule: no rule has this name.
        NonFiniteCredit: a composed reward or an advantage is no finite number.
        MissingPassK: `pkpo` without `context.pass_k`.
        UnsupportedTreatment, MissingScore: see `tracestore.train.credit.candidates`.
    """
    check_rule(rule)
    return treat(row, RULES[rule](row, context))
