"""The parts of the crafting benchmark: agents and their rules, what is sampled, recorded and drawn."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_traces.rao.crafting import MOST_DEPTH, Task, task
from tests.client.fake import fake_server
from tracestore.client import Client
from tracestore.shards.read import open_export
from tracestore.store.duck import run_sql
from tracestore.store.store import Store
from tracestore.train.credit import advantages, counted
from tracestore.train.credit.base import Context
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_migrations import open_store

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
HORN = Task(
    "horn",
    {"horn": ("bed", "glass"), "bed": ("book", "gold"), "book": ("wood", "coal"), "glass": ("gold", "clay")},
)


@pytest.fixture(scope="module")
def benchmark() -> Any:
    """The module, and by it those it imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        patch.setenv("OMP_NUM_THREADS", "1")  # it would set it, and leave it
        import crafting  # type: ignore[import-not-found]

        return crafting


@pytest.fixture(scope="module")
def crafters(benchmark: Any) -> Any:
    import crafters  # type: ignore[import-not-found]

    return crafters


def best(crafters: Any, *, noise: float = 0.0, seed: int = 0) -> Any:
    return crafters.Teacher(random.Random(seed), noise=noise)


def test_agents_that_delegate_craft_side_by_side(crafters: Any) -> None:
    [root] = crafters.attempts([HORN], best(crafters), crafters.Rules(context=80, delegates=True))
    assert [crafters.text(one.context) for one in crafters.everyone([root])] == [
        "make it from bed glass go delegate bed glass end got bed got glass go craft it end",
        "make it from book gold go gather gold end got gold go delegate book end got book go craft it end",
        "make it from wood coal go gather wood coal end got wood got coal go craft it end",
        "make it from gold clay go gather gold clay end got gold got clay go craft it end",
    ]
    assert root.is_right
    # 2 + 3 + 2 + 2 answers; the glass (2) is made while the bed is (3, and 2 for its book).
    assert (root.num_steps, root.critical_steps) == (9, 2 + 3 + 2)


def test_one_agent_alone_looks_recipes_up_and_crafts_from_below(crafters: Any) -> None:
    [root] = crafters.attempts([HORN], best(crafters), crafters.Rules(context=100, delegates=False))
    assert [crafters.text(turn.said.ids[:-1]) for turn in root.turns] == [
        *("look bed", "look book", "gather wood coal", "craft book", "gather gold", "craft bed"),
        *("look glass", "gather gold clay", "craft glass", "craft it"),
    ]
    assert root.is_right
    assert root.critical_steps == root.num_steps == 10


def test_who_may_not_delegate_is_not_understood(crafters: Any) -> None:
    rules = crafters.Rules(context=15, delegates=False)

    def delegate(asked: Any) -> list[Any]:
        return [crafters.Said([*crafters.ids("delegate bed"), crafters.END], [0.0] * 3) for _ in asked]

    [root] = crafters.attempts([HORN], delegate, rules)
    assert (
        crafters.text(root.context) == "make it from bed glass go delegate bed end what go delegate bed end"
    )
    assert not root.is_right


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    depth=st.integers(1, MOST_DEPTH),
    noise=st.floats(0, 1),
    context=st.integers(20, 90),
    delegates=st.booleans(),
)
def test_no_context_is_longer_than_the_limit_and_no_episode_has_too_many_agents(
    crafters: Any, seed: int, depth: int, noise: float, context: int, delegates: bool
) -> None:
    rules = crafters.Rules(context=context, delegates=delegates)
    teacher = best(crafters, noise=noise, seed=seed)
    [root] = crafters.attempts([task(random.Random(seed), depth=depth)], teacher, rules)
    agents = list(crafters.everyone([root]))
    assert all(one.is_over for one in agents)
    assert max(len(one.context) for one in agents) <= context
    assert len(agents) == root.num_agents <= (crafters.MOST_AGENTS if delegates else 1)
    assert max(one.level for one in agents) <= crafters.MOST_LEVELS
    assert root.critical_steps <= root.num_steps == sum(len(one.turns) for one in agents)


def test_a_sampled_logprob_is_that_of_the_context_alone(benchmark: Any, crafters: Any) -> None:
    """Contexts of several lengths are read together."""
    model = benchmark.small_decoder(0, words=len(crafters.WORDS), end=crafters.END, positions=80)
    tasks = [task(random.Random(seed), depth=3) for seed in range(3)]
    roots = crafters.attempts(tasks, crafters.Model(model, seed=0), crafters.Rules(80, delegates=True))
    turns = [(one, turn) for one in crafters.everyone(roots) for turn in one.turns]
    assert len({turn.read for _, turn in turns}) > 3
    for one, turn in turns:
        ids = torch.tensor([one.context[: turn.read] + turn.said.ids])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(input_ids=ids).logits[0], dim=-1)
        again = logprobs[turn.read - 1 : -1].gather(1, ids[0, turn.read :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(turn.said.logprobs), again, rtol=0, atol=1e-5)


def test_a_record_has_what_the_rule_asks_for(crafters: Any, tmp_path: Path) -> None:
    rules = crafters.Rules(context=80, delegates=True)
    [right] = crafters.attempts([HORN], best(crafters), rules)
    [wrong] = crafters.attempts([HORN], best(crafters, noise=1.0), crafters.Rules(20, delegates=False))
    assert not wrong.is_right
    with fake_server() as fake:
        with Client(fake.url) as client:
            crafters.record(client, [right, wrong], group_id="g", version=3)
        events = [(item.event, item.text) for request in fake.requests for item in request.items]
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store: Store = open_store(url)
    try:
        assert {one.status for one in store.ingest("default", events)} == {"stored"}
        export(store, "default", tmp_path / "export", Spec())
    finally:
        store.close()
    (row,) = open_export(tmp_path / "export").rows()
    agents = [*crafters.everyone([right]), wrong]
    assert row.num_trained == sum(len(turn.said.ids) for one in agents for turn in one.turns)
    assert len(row.samples) == len(agents)
    assert counted([row], rule="rao") == {0: 2, 1: 2, 2: 1}
    given = advantages(row, rule="rao:lambda=0,depth_weights=no", context=Context())
    # Each against the reward of the other root: all agents of the first tree are right, 1 - 0.
    assert sorted({float(value) for value in given.values.values()}) == [-1.0, 1.0]
    steps = run_sql(url, "default", "SELECT critical_steps FROM critical_steps WHERE parent_agent_id IS NULL")
    assert {row[0] for row in steps.rows} == {right.critical_steps, wrong.critical_steps}


def test_the_model_imitates_what_was_said_and_nothing_else(benchmark: Any, crafters: Any) -> None:
    """Other words in the place of what the workshop says, at the end of a context, change no loss."""
    model = benchmark.small_decoder(0, words=len(crafters.WORDS), end=crafters.END, positions=80)
    rules = crafters.Rules(context=80, delegates=True)
    agents = list(crafters.everyone(crafters.attempts([HORN], best(crafters), rules)))
    before = benchmark.imitation(model, agents)
    assert benchmark.imitation(model, [*agents, *agents]).item() == pytest.approx(before.item(), abs=1e-5)
    for one in agents:
        one.context += crafters.ids("no what")
    assert benchmark.imitation(model, agents).item() == pytest.approx(before.item(), abs=1e-5)


def test_a_result_is_drawn(benchmark: Any) -> None:
    depths = {"1": 1.0, "4": 0.5}
    runs = [
        {
            "arm": arm,
            "seed": 0,
            "interactions": [10, 20],
            "success": [0.0, 1.0],
            "taught": {depth: {"success": value / 2} for depth, value in depths.items()},
            "trained": {
                depth: {"success": value, "tokens": 20.0, "critical_steps": 3.0}
                for depth, value in depths.items()
            },
        }
        for arm in benchmark.ARMS
    ]
    result = {
        "parameters": 100,
        "context": 80,
        "depths": [1],
        "runs": runs,
        "means": benchmark.by_arm(runs),
    }
    assert result["means"]["single"]["taught"]["4"] == {"success": 0.25}
    drawn = ElementTree.fromstring(benchmark.figure(result))
    curves = [one for one in drawn.iter() if one.tag.endswith("polyline")]
    # Two runs; by depth two arms, and for success before and after.
    assert len(curves) == 2 + 4 + 2 + 2


def test_results_of_single_seeds_are_put_together_if_their_plan_is_one(benchmark: Any) -> None:
    plan = dict.fromkeys(benchmark.Plan.__dataclass_fields__, 1)
    times = {"load_average_before": 1.0, "load_average_after": 2.0, "seconds": 3.0}

    def of(seed: int, success: float) -> dict[str, Any]:
        measured = {"taught": {"1": {"success": 0.0}}, "trained": {"1": {"success": success}}}
        runs = [{"arm": arm, "seed": seed, **measured} for arm in benchmark.ARMS]
        return {**plan, **times, "runs": runs}

    result = benchmark.together([of(1, 1.0), of(0, 0.5)])
    assert [run["seed"] for run in result["runs"]] == [0, 0, 1, 1]
    assert result["means"]["recursive"]["trained"]["1"] == {"success": 0.75}
    with pytest.raises(SystemExit, match="not of one plan"):
        benchmark.together([of(0, 1.0), of(1, 1.0) | {"lr": 2}])


def test_a_curve_is_smoothed_over_what_came_before(benchmark: Any) -> None:
    from crafting_figure import smoothed  # type: ignore[import-not-found]

    assert smoothed([1.0, 0.0, 0.5], over=2) == [1.0, 0.5, 0.25]
