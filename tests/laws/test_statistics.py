"""Law 6: advantages equal those of an independent SQL computation over the store's views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from tests.exporters.stores import grouped
from tests.factories import answer, call, episode, group, posted, reward, user
from tests.scenarios import SCENARIOS
from tracestore.shards.read import open_export
from tracestore.store.store import Store
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec

Rewards = Sequence[tuple[float, float | None]]
"""(value, weight) pairs."""

ADVANTAGES = """
WITH graded AS (
  SELECT coalesce(e.group_id, e.episode_id) AS peers, e.forked_from_episode_id AS origin, e.episode_id,
         sum(r.value * coalesce(r.weight, 1)) AS reward
    FROM episodes e
    JOIN rewards r ON r.project = e.project AND r.episode_id = e.episode_id AND r.target = 'episode'
     AND (r.weight IS NULL OR r.weight <> 0)
   WHERE e.project = :project
     AND coalesce(e.status, 'ok') IN ('ok', 'failed', 'budget_exhausted', 'timeout')
     AND coalesce(e.split, 'train') = 'train'
     AND NOT coalesce(e.inference_only, FALSE)
   GROUP BY peers, origin, e.episode_id
)
SELECT episode_id,
       reward - avg(reward) OVER peer AS shared,
       CASE WHEN count(*) OVER peer = 1 THEN 0
            ELSE reward - (sum(reward) OVER peer - reward) / (count(*) OVER peer - 1) END AS rloo,
       (SELECT sum(CASE WHEN o.reward > graded.reward THEN o.reward ELSE graded.reward END) FROM graded o
         WHERE o.peers = graded.peers AND o.episode_id <> graded.episode_id
           AND coalesce(o.origin, '') = coalesce(graded.origin, ''))
         / (count(*) OVER peer * (count(*) OVER peer - 1) / 2.0) AS pkpo
  FROM graded
WINDOW peer AS (PARTITION BY peers, origin)
"""

SCALARS = ("pkpo", "rloo", "shared")
"""Rules that give all of an episode one number."""
SPELLED = {"pkpo": "pkpo:k=2"}

_numbers = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("statistics")


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{folder}/t.db") as opened:
        yield opened


@dataclass(frozen=True)
class Attempt:
    """One episode and its rewards."""

    name: str
    rewards: Rewards
    group_id: str | None = "g"
    status: str = "ok"
    origin: str | None = None
    split: str | None = None
    inference_only: bool | None = None
    is_compacted: bool = False

    def events(self) -> list[AnyEvent]:
        if self.is_compacted:
            # Of the scenario's events, those of its episode itself are said below.
            made = grouped(SCENARIOS["compaction"](), prefix=self.name)
            inner = [one for one in made if one.kind not in ("episode", "reward")]
            name = next(one.id for one in made if one.kind == "episode")
        else:
            name = f"{self.name}/e"
            ids = [50, 51, len(self.name)]
            inner = [
                call(f"{name}/c", [user("u")], answer("hi", ids=ids), prompt_ids=[1, 2, 3], episode=name)
            ]
        whole = episode(
            name,
            group_id=self.group_id,
            status=self.status,
            split=self.split,
            forked_from_episode_id=None if self.origin is None else f"{self.origin}/e",
            inference_only=self.inference_only,
        )
        given = [
            reward(f"{name}/r{i}", value, name=f"part{i}", episode=name, weight=weight)
            for i, (value, weight) in enumerate(self.rewards)
        ]
        return [whole, *inner, *given]


def recorded(store: Store, attempts: Sequence[Attempt]) -> str:
    """A project of its own that holds the attempts."""
    project = f"p{next(_numbers)}"
    events = [group("g", closed_by="event"), *(one for attempt in attempts for one in attempt.events())]
    outcomes = store.ingest(project, [posted(event) for event in events])
    assert {outcome.status for outcome in outcomes} == {"stored"}
    return project


def by_sql(store: Store, project: str, rule: str) -> dict[str, float]:
    with store.read() as connection:
        rows = connection.execute(text(ADVANTAGES), {"project": project}).mappings().all()
    return {row["episode_id"]: row[rule] for row in rows if row[rule] is not None}


def by_export(store: Store, project: str, out: Path, rule: str, spec: Spec) -> dict[str, float]:
    """The advantage of each episode, which all completions of all its samples must have."""
    export(store, project, out, spec)
    found: dict[str, set[float]] = {}
    for row in open_export(out).rows():
        values = advantages(row, rule=SPELLED.get(rule, rule), context=Context()).values
        for (sample, _), value in values.items():
            episode_id = row.episodes[row.samples[sample].episode].episode_id
            assert not isinstance(value, np.ndarray)
            found.setdefault(episode_id, set()).add(value)
        # An episode has an advantage on all of its samples or on none.
        pairs = {(i, one) for i, sample in enumerate(row.samples) for one in sample.completions}
        graded = {row.samples[sample].episode for sample, _ in values}
        assert values.keys() == {pair for pair in pairs if row.samples[pair[0]].episode in graded}
    assert all(len(one) == 1 for one in found.values())
    return {episode_id: one.pop() for episode_id, one in found.items()}


def agree(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return dict(one) == pytest.approx(dict(other), rel=0, abs=1e-12)


ATTEMPTS = (
    Attempt("a", [(1.0, 0.5), (0.3, 0.25), (0.1, None)], is_compacted=True),
    Attempt("b", [(0.7, None)], status="failed"),
    Attempt("c", [(1.0, 0.5), (-2.0, 0.125)], status="budget_exhausted"),
    Attempt("d", [(0.2, 1.0)]),
    Attempt("ungraded", []),
    Attempt("noted", [(40.0, 0.0)]),
    Attempt("broken", [(50.0, None)], status="infra_error"),
    Attempt("held-out", [(60.0, None)], split="eval"),
    Attempt("fork-1", [(1.0, None)], origin="b"),
    Attempt("fork-2", [(0.0, None)], origin="b"),
    Attempt("fork-3", [(100.0, None)], origin="b", status="cancelled"),
    Attempt("fork-4", [(100.0, None)], origin="b", inference_only=True),
    Attempt("fork-5", [(0.4, 0.5)], origin="d"),
    Attempt("alone", [(0.9, None)], group_id=None),
)


@pytest.mark.parametrize("rule", SCALARS)
def test_advantages_are_what_sql_over_the_views_computes(rule: str, store: Store, folder: Path) -> None:
    project = recorded(store, ATTEMPTS)
    found = by_export(store, project, folder / project, rule, Spec())
    # Of fork-5, and of the one on its own, there are no two: pkpo of the best of two has nothing to say.
    assert len(found) == 4 + 3 + 1 - 2 * (rule == "pkpo")
    assert agree(found, by_sql(store, project, rule))
    # a: .5 + .075 + .1 = .675, b: .7, c: .5 - .25 = .25, d: .2; their sum is 1.825
    # .7 is the best of all three pairs that it is in, of C(4, 2) = 6
    of_b = {"shared": 0.7 - 1.825 / 4, "rloo": 0.7 - (1.825 - 0.7) / 3, "pkpo": 3 * 0.7 / 6}
    assert found["b/e"] == pytest.approx(of_b[rule], abs=1e-12)
    assert found["fork-1/e"] == {"shared": 0.5, "rloo": 1.0, "pkpo": 1.0}[rule]


@pytest.mark.parametrize("rule", SCALARS)
def test_splitting_an_episode_or_the_export_changes_no_advantage(
    rule: str, store: Store, folder: Path
) -> None:
    project = recorded(store, ATTEMPTS)
    specs = {"whole": Spec(), "files": Spec(shard_rows=1), "parts": Spec(max_row_bytes=1)}
    found = {
        name: by_export(store, project, folder / project / name, rule, spec) for name, spec in specs.items()
    }
    assert found["whole"] == found["files"] == found["parts"]
    # A part holds the samples of its own episodes, so there are more rows than the two groups.
    rows = {name: list(open_export(folder / project / name).rows()) for name in specs}
    assert [len(rows[name]) for name in specs] == [2, 2, len(ATTEMPTS)]
    in_pieces = [
        s for row in rows["whole"] for s in row.samples if row.episodes[s.episode].episode_id == "a/e"
    ]
    assert len(in_pieces) == 2

    in_one = [Attempt("a", ATTEMPTS[0].rewards), *ATTEMPTS[1:]]
    other = recorded(store, in_one)
    assert by_export(store, other, folder / other, rule, Spec()) == found["whole"]


ANY_REWARDS = st.lists(
    st.tuples(st.floats(-2, 2, width=32), st.none() | st.just(0.0) | st.floats(0, 1, width=32)), max_size=3
)
ANY_ATTEMPT = st.builds(
    Attempt,
    name=st.just("x"),
    rewards=ANY_REWARDS,
    group_id=st.sampled_from(["g", "g", "g", None]),
    status=st.sampled_from(["ok", "ok", "failed", "infra_error", "cancelled"]),
    origin=st.sampled_from([None, None, "e0", "elsewhere"]),
    split=st.sampled_from([None, "train", "eval"]),
    inference_only=st.sampled_from([None, False, True]),
    is_compacted=st.booleans(),
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attempts=st.lists(ANY_ATTEMPT, min_size=2, max_size=6), rule=st.sampled_from(SCALARS))
def test_advantages_of_any_group_are_what_sql_computes(
    attempts: list[Attempt], rule: str, store: Store, folder: Path
) -> None:
    named = [replace(attempt, name=f"e{number}") for number, attempt in enumerate(attempts)]
    project = recorded(store, named)
    found = by_export(store, project, folder / project, rule, Spec())
    assert agree(found, by_sql(store, project, rule))
