"""Whether agents that delegate learn what one agent alone cannot: crafting deeper than a context holds.

    python benchmarks/crafting.py [--seeds N] [--interactions N] [--context N] [--small]

A decoder of 0.1 M weights plays `sample_traces/rao/crafting.py` in two arms: `recursive` may delegate an item
to a subagent that has a context of its own, `single` does everything itself. Both have the same limit on a
context, the same number of steps of the environment to learn from, the same tasks, and the credit rule `rao`
(whose tree has one agent where nothing is delegated). Each round is recorded over HTTP, stored, exported as
it comes and trained on, as in `learning.py`. The last line of the output is one JSON object; the figure is
written as SVG. `--from FILE ...` puts results of single seeds and arms together instead of running.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# A second thread costs more than it saves for a model this small; before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from crafters import END, WORDS, Crafter, Model, Rules, Teacher, attempts, everyone, record
from crafting_figure import figure
from learning import pipeline, small_decoder

from sample_traces.rao.crafting import task
from tracestore.client import Client
from tracestore.shards.read import open_export
from tracestore.store.duck import run_sql
from tracestore.train.filling import Filling
from tracestore.train.loader import Reading
from tracestore.train.loop import Settings, train
from tracestore.train.metrics import StepMetrics

Figures = dict[str, Any]

ARMS = {"recursive": True, "single": False}
"""Arm -> whether its agents may delegate."""
FIGURE = Path(__file__).with_name("crafting.svg")
_IDLE_S, _LOOK_S = 120.0, 0.1
_LESSON_AGENTS, _LESSON_RATE, _LESSON_WARMUP = 24, 1e-2, 20
_EVAL = "eval"
"""Project of the episodes that say how good the model is: the exporter does not see it."""


@dataclass(frozen=True)
class Plan:
    """What a run does."""

    interactions: int
    """Steps of the environment to learn from: answers of all agents, in each arm."""
    context: int
    """Most tokens of an agent's context."""
    depths: tuple[int, ...]
    """Of the tasks that train."""
    eval_depths: tuple[int, ...]
    eval_tasks: int
    """For each depth; one episode each."""
    groups: int
    """Tasks of a round, for each depth."""
    rollouts: int
    """Episodes of a group."""
    lessons: int
    """Optimizer steps in which the model imitates a teacher before it learns from rewards."""
    noise: float
    """Share of the teacher's steps that are anything."""
    credit: str
    lr: float
    warmup_steps: int


class Spent(Exception):
    """All interactions were used."""


def main() -> None:
    args = _arguments()
    results = [json.loads(file.read_text().splitlines()[-1]) for file in args.results or ()]
    result = together(results) if results else _run(args)
    args.figure.write_text(figure(result), encoding="utf-8")
    print(json.dumps(result))


def _run(args: argparse.Namespace) -> Figures:
    plan = _plan(args)
    before, begin = os.getloadavg()[0], time.monotonic()
    runs = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for arm in args.arms:
            runs.append(learned(plan, arm, seed))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "load_average_before": round(before, 2),
        "load_average_after": round(os.getloadavg()[0], 2),
        "parameters": sum(p.numel() for p in decoder(plan, 0).parameters()),
        **asdict(plan),
        "seconds": round(time.monotonic() - begin, 1),
        "means": by_arm(runs),
        "runs": runs,
    }


def together(results: Sequence[Figures]) -> Figures:
    """One result of several that were run by one plan."""
    plan = [{name: one[name] for name in Plan.__dataclass_fields__} for one in results]
    if plan.count(plan[0]) != len(plan):
        raise SystemExit("the results are not of one plan: run the seeds with the same options")
    runs = sorted((run for one in results for run in one["runs"]), key=lambda run: (run["seed"], run["arm"]))
    return results[0] | {
        "load_average_before": min(one["load_average_before"] for one in results),
        "load_average_after": max(one["load_average_after"] for one in results),
        "seconds": max(one["seconds"] for one in results),
        "means": by_arm(runs),
        "runs": runs,
    }


def by_arm(runs: Sequence[Figures]) -> Figures:
    arms = [arm for arm in ARMS if any(run["arm"] == arm for run in runs)]
    return {arm: means([run for run in runs if run["arm"] == arm]) for arm in arms}


def means(runs: Sequence[Figures]) -> Figures:
    """By depth, over the seeds."""
    return {
        when: {
            depth: {name: _mean([run[when][depth][name] for run in runs]) for name in of_depth}
            for depth, of_depth in runs[0][when].items()
        }
        for when in ("taught", "trained")
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known), 4) if known else None


def learned(plan: Plan, arm: str, seed: int) -> Figures:
    """One arm with one seed: a new store, a new model, taught and then trained."""
    begin, used = time.monotonic(), time.process_time()
    rules = Rules(plan.context, delegates=ARMS[arm])
    model = decoder(plan, seed)
    taught_loss = teach(model, random.Random(f"lessons {seed}"), plan, rules)
    before = tried(model, plan, rules, seed=seed)
    taught = by_depth(before, plan, [{"success": float(root.is_right)} for root in before])
    print(f"{arm} {seed}  taught {taught}", file=sys.stderr, flush=True)
    metrics: list[StepMetrics] = []
    with tempfile.TemporaryDirectory(prefix="tracestore-bench-") as name, pipeline(Path(name)) as (url, out):
        database = f"sqlite:///{Path(name) / 'store.db'}"
        with Client(url) as client:
            harness = Harness(client, model, plan, rules, seed=seed)
            harness.round()

            def on_step(done: StepMetrics) -> None:
                metrics.append(done)
                print(_line(arm, seed, harness, done), file=sys.stderr, flush=True)
                if harness.interactions[-1] >= plan.interactions:
                    raise Spent
                harness.round()

            _until_spent(
                lambda: train(model, open_export(out), settings=_settings(plan, seed), on_step=on_step)
            )
        after = tried(model, plan, rules, seed=seed)
        trained = by_depth(after, plan, stored(after, url, database, version=len(metrics)))
    return {
        "arm": arm,
        "seed": seed,
        "lesson_loss": round(taught_loss, 4),
        "steps": len(metrics),
        "episodes": len(harness.success) * plan.groups * len(plan.depths) * plan.rollouts,
        "interactions": harness.interactions,
        "success": [round(one, 4) for one in harness.success],
        "tokens": sum(one.tokens for one in metrics),
        "trained_tokens": sum(one.trained_tokens for one in metrics),
        "max_logprob_diff": max((d for m in metrics if (d := m.max_logprob_diff) is not None), default=None),
        "taught": taught,
        "trained": trained,
        "seconds": round(time.monotonic() - begin, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }


def _until_spent(work: Callable[[], object]) -> None:
    try:
        work()
    except Spent:
        return
    raise RuntimeError(f"nothing came for {_IDLE_S} s")


def _settings(plan: Plan, seed: int) -> Settings:
    return Settings(
        credit=plan.credit,
        # More than there can be: the interactions say when it ends.
        steps=plan.interactions,
        reading=Reading(seed=seed, follow=True, idle_s=_IDLE_S, poll_s=_LOOK_S),
        filling=Filling(groups_per_step=plan.groups * len(plan.depths)),
        lr=plan.lr,
        warmup_steps=plan.warmup_steps,
        policy_version=0,
        max_staleness=0,
    )


def _line(arm: str, seed: int, harness: Harness, metrics: StepMetrics) -> str:
    return (
        f"{arm} {seed}  round {metrics.step}  {harness.interactions[-1]:,} interactions"
        f"  success {harness.success[-1]:.3f} {harness.by_depth}  loss {metrics.loss:+.4f}"
        f"  grad norm {metrics.grad_norm:.3f}  {metrics.trained_tokens:,} tokens trained"
        f"  {metrics.seconds:.1f} s (sampled and recorded in {harness.seconds[-1]:.1f} s)"
    )


# --- The harness --------------------------------------------------------------------------------------------


@dataclass
class Harness:
    """Samples rounds with the weights of the moment and records them."""

    client: Client
    model: Any
    plan: Plan
    rules: Rules
    seed: int
    success: list[float] = field(default_factory=list)
    """Share of the episodes of each round that made their item."""
    interactions: list[int] = field(default_factory=list)
    """Steps of the environment up to the end of each round."""
    by_depth: list[float] = field(default_factory=list)
    """Success of the last round at each depth."""
    seconds: list[float] = field(default_factory=list)
    """To sample and record a round, until it is on the server's disk."""

    def __post_init__(self) -> None:
        self._rng = random.Random(f"tasks {self.seed}")
        self._sampler = Model(self.model, seed=self.seed)

    def round(self) -> None:
        """Groups for new tasks of every depth."""
        begin = time.monotonic()
        plan, version = self.plan, len(self.success)
        tasks = [task(self._rng, depth=depth) for depth in plan.depths for _ in range(plan.groups)]
        roots = attempts([one for one in tasks for _ in range(plan.rollouts)], self._sampler, self.rules)
        for number in range(len(tasks)):
            own = roots[number * plan.rollouts : (number + 1) * plan.rollouts]
            record(self.client, own, group_id=f"round-{version}-task-{number}", version=version)
        self.client.flush()
        before = self.interactions[-1] if self.interactions else 0
        self.interactions.append(before + sum(root.num_steps for root in roots))
        self.success.append(statistics.fmean(root.is_right for root in roots))
        of_depth = plan.groups * plan.rollouts
        self.by_depth = [
            round(statistics.fmean(one.is_right for one in roots[place : place + of_depth]), 2)
            for place in range(0, len(roots), of_depth)
        ]
        self.seconds.append(time.monotonic() - begin)


def tried(model: Any, plan: Plan, rules: Rules, *, seed: int) -> list[Crafter]:
    """One attempt at each of some tasks of every depth, in the order of the depths, at temperature 1."""
    rng = random.Random(f"eval {seed}")
    tasks = [task(rng, depth=depth) for depth in plan.eval_depths for _ in range(plan.eval_tasks)]
    return attempts(tasks, Model(model, seed=seed + 1_000), rules)


def by_depth(roots: Sequence[Crafter], plan: Plan, measured: Sequence[dict[str, float]]) -> Figures:
    """Depth -> means over its episodes of what was measured of each."""
    places = range(0, len(roots), plan.eval_tasks)
    return {
        str(depth): {
            name: round(statistics.fmean(one[name] for one in measured[place : place + plan.eval_tasks]), 4)
            for name in measured[0]
        }
        for depth, place in zip(plan.eval_depths, places, strict=True)
    }


def stored(roots: Sequence[Crafter], url: str, database: str, *, version: int) -> list[dict[str, float]]:
    """Records the attempts in a project of their own, and asks the store what each came to."""
    with Client(url, project=_EVAL) as client:
        for number, root in enumerate(roots):
            record(client, [root], group_id=str(number), version=version, split="eval")
        client.flush()
    asked = run_sql(database, _EVAL, _BY_EPISODE)
    found = {
        int(row[0]): dict(zip(asked.columns[1:], map(float, row[1:]), strict=True)) for row in asked.rows
    }
    # The view `critical_steps` looks twelve levels down, and a tree may be deeper.
    return [found[number] | {"critical_steps": root.critical_steps} for number, root in enumerate(roots)]


_BY_EPISODE = """
SELECT e.task_id, e.reward AS success, e.num_calls AS calls, e.num_agents AS agents, t.tokens
  FROM episodes e
  JOIN (SELECT episode_id, sum(new_prompt_tokens + sampled_tokens) AS tokens
          FROM token_counts GROUP BY episode_id) t ON t.episode_id = e.episode_id
"""


def decoder(plan: Plan, seed: int) -> Any:
    """A word is read and said by the same weights, which begin large: it learns to copy in seconds then."""
    config = {"tie_word_embeddings": True, "initializer_range": 0.1}
    return small_decoder(seed, words=len(WORDS), end=END, positions=plan.context, **config)


def teach(model: Any, rng: random.Random, plan: Plan, rules: Rules) -> float:
    """Imitate a noisy teacher at the depths that train: how to speak, and roughly what.

    Returns:
        The last loss.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LESSON_RATE, weight_decay=0.0)
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / _LESSON_WARMUP, max(0.1, 1 - step / plan.lessons))
    )
    teacher = Teacher(rng, noise=plan.noise)
    loss = torch.zeros(())
    for _ in range(plan.lessons):
        agents: list[Crafter] = []
        while len(agents) < _LESSON_AGENTS:
            agents += everyone(attempts([task(rng, depth=rng.choice(plan.depths))], teacher, rules))
        loss = imitation(model, agents[:_LESSON_AGENTS])
        loss.backward()
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
    return float(loss.detach())


def imitation(model: Any, agents: Sequence[Crafter]) -> torch.Tensor:
    """Mean cross-entropy of what they said."""
    # B agents, T tokens of the longest context
    length = max(len(one.context) for one in agents)
    ids_BT = torch.full((len(agents), length), END)
    said_BT = torch.zeros(len(agents), length, dtype=torch.bool)
    for row, one in enumerate(agents):
        ids_BT[row, : len(one.context)] = torch.tensor(one.context)
        for turn in one.turns:
            said_BT[row, turn.read : turn.read + len(turn.said.ids)] = True
    # Padded on the right: what a token sees lies to its left.
    logits_BTV = model(input_ids=ids_BT[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits_BTV[said_BT[:, 1:]], ids_BT[:, 1:][said_BT[:, 1:]])


def _plan(args: argparse.Namespace) -> Plan:
    return Plan(
        interactions=args.interactions,
        context=args.context,
        depths=tuple(args.depths),
        eval_depths=tuple(args.eval_depths),
        eval_tasks=args.eval_tasks,
        groups=args.groups,
        rollouts=args.rollouts,
        lessons=args.lessons,
        noise=args.noise,
        credit=args.credit,
        lr=args.lr,
        warmup_steps=args.warmup,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs of each arm (default: 3)")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS], help="which (default: both)")
    parser.add_argument("--first-seed", type=int, default=0, help="the others follow it (default: 0)")
    parser.add_argument(
        "--interactions", type=int, default=24_000, help="steps of the environment (default: 24,000)"
    )
    parser.add_argument("--context", type=int, default=64, help="tokens of a context (default: 64)")
    parser.add_argument(
        "--depths", type=int, nargs="+", default=[1, 2, 3], help="that train (default: 1 2 3)"
    )
    parser.add_argument(
        "--eval-depths",
        type=int,
        nargs="+",
        default=[*range(1, 11)],
        help="that are tried (default: 1 to 10)",
    )
    parser.add_argument("--eval-tasks", type=int, default=12, help="of each depth (default: 12)")
    parser.add_argument("--groups", type=int, default=2, help="tasks of a round at each depth (default: 2)")
    parser.add_argument("--rollouts", type=int, default=8, help="episodes of a group (default: 8)")
    parser.add_argument("--lessons", type=int, default=800, help="steps of imitation (default: 800)")
    parser.add_argument("--noise", type=float, default=0.6, help="of the teacher (default: 0.6)")
    parser.add_argument("--credit", default="rao:lambda=0", help="credit rule (default: rao:lambda=0)")
    parser.add_argument("--lr", type=float, default=1e-3, help="AdamW learning rate (default: 1e-3)")
    parser.add_argument("--warmup", type=int, default=5, help="steps in which it rises (default: 5)")
    parser.add_argument(
        "--figure", type=Path, default=FIGURE, help="where to draw (default: beside this file)"
    )
    parser.add_argument("--from", dest="results", type=Path, nargs="+", help="results to put together")
    parser.add_argument("--small", action="store_true", help="one seed, few interactions: does it run?")
    args = parser.parse_args()
    if args.small:
        args.seeds, args.interactions, args.lessons, args.eval_tasks = 1, 50, 10, 2
        args.groups, args.rollouts, args.eval_depths = 1, 2, [1, 4]
    return args


if __name__ == "__main__":
    main()
