"""The agents of the learning benchmark, recorded by the client and exported, and what two rules give them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.fake import fake_server
from tracestore.client import Client
from tracestore.shards.read import open_export
from tracestore.shards.row import Row
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_migrations import open_store

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    """The module, and by it those it imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        patch.setenv("OMP_NUM_THREADS", "1")  # it would set it, and leave it
        import learning  # type: ignore[import-not-found]

        return learning


def scripted(module: Any, words: Sequence[str]) -> Any:
    """A sampler that says these words in order."""
    left = iter(words)

    def sample(prompts: Sequence[list[int]]) -> list[Any]:
        said = [[module.ID[next(left)], module.ID["end"]] for _ in prompts]
        return [module.Sampled(ids, [-0.5, -0.25]) for ids in said]

    return sample


def exported(module: Any, roots: Sequence[Any], folder: Path) -> Row:
    """The one group that the client's events make."""
    with fake_server() as fake:
        with Client(fake.url) as client:
            module.record(client, roots, group_id="g", version=3)
        events = [(item.event, item.text) for request in fake.requests for item in request.items]
    store = open_store(f"sqlite:///{folder / 'store.db'}")
    try:
        assert {one.status for one in store.ingest("default", events)} == {"stored"}
        export(store, "default", folder / "export", Spec())
    finally:
        store.close()
    (row,) = open_export(folder / "export").rows()
    return row


@pytest.fixture(scope="module")
def group(benchmark: Any, tmp_path_factory: pytest.TempPathFactory) -> Row:
    """max(max(3, 5), min(5, 4)), twice: one root hears 5 and 4 and says 5, the other 2 and 4 and says 4."""
    import delegation  # type: ignore[import-not-found]

    node = delegation.Expression(
        "max", (delegation.Expression("max", (3, 5)), delegation.Expression("min", (5, 4)))
    )
    words = ["delegate", "delegate", "5", "4", "2", "4", "5", "4"]
    roots = delegation.attempts([node, node], scripted(delegation, words))
    assert [root.is_right for root in roots] == [True, False]
    return exported(delegation, roots, tmp_path_factory.mktemp("group"))


def test_all_that_the_agents_said_trains_and_nothing_else(group: Row) -> None:
    assert group.num_trained == 2 * 4 * 2  # episodes, answers, tokens: a word and its end
    assert [one.cause for one in group.samples].count("root") == 2  # its second call goes on from its first
    assert {run.version for run in group.policy_runs} == {3}


def test_a_subagent_whose_finding_was_ignored_gets_less_under_the_local_rule(group: Row) -> None:
    # rewards 1 and 0, mean .5
    assert of_subagents(group, "shared") == {
        (1.0, True): 0.5,
        (1.0, False): 0.5,
        (0.0, True): -0.5,
        (0.0, False): -0.5,
    }
    assert of_subagents(group, "used") == {
        (1.0, True): 0.5,
        (1.0, False): 0.0,
        (0.0, True): -0.5,
        (0.0, False): 0.0,
    }
    # right, right, right (4) and wrong (2): mean .75
    assert of_subagents(group, "own") == {
        (1.0, True): 0.25,
        (1.0, False): 0.25,
        (0.0, True): 0.25,
        (0.0, False): -0.75,
    }


def of_subagents(row: Row, rule: str) -> dict[tuple[float, bool | None], float]:
    """(reward of its episode, whether its finding was used) -> advantage of a subagent."""
    reward = {one.episode: one.value for one in row.rewards if one.target == "episode"}
    found = {}
    for (sample, _), value in advantages(row, rule=rule, context=Context()).values.items():
        agent = row.agents[row.samples[sample].agent]
        if agent.parent is not None:
            found[reward[agent.episode], agent.finding_used] = float(value)
    return found


def test_the_benchmark_reports_what_the_better_episodes_subagents_get(benchmark: Any, group: Row) -> None:
    one = {"mean": 0.5, "completions": 1}
    assert benchmark.by_finding([group], rules=("shared", "used")) == {
        "shared": {"used": one, "ignored": one},
        "used": {"used": one, "ignored": {"mean": 0.0, "completions": 1}},
    }


@given(seed=st.integers(0, 2**32), depth=st.integers(1, 3), value=st.integers(0, 5))
def test_an_expression_comes_to_the_value_it_was_made_for(
    benchmark: Any, seed: int, depth: int, value: int
) -> None:
    assert benchmark.expression(random.Random(seed), depth=depth, value=value).value == value
