"""Whether what is recorded, exported and credited makes a model learn: mean reward over an online run.

    python benchmarks/learning.py [--seeds N] [--rounds N] [--credit RULE] [--small]

A decoder of 0.1 M weights, taught to speak but not to answer, tries tasks of `delegation.py`. In each round
its agents are recorded over HTTP by `tracestore.client`, `tracestore serve` stores them, `tracestore export
--follow` writes them into shards, and `tracestore.train` makes one optimizer step of them; the next round is
sampled with the weights after it. The last line of the output is one JSON object, what is going on is told on
stderr.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A second thread costs more than it saves for a model this small; before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from delegation import ID, WORDS, Guesser, Model, attempts, everyone, expression, record
from processes import running
from transformers import LlamaConfig, LlamaForCausalLM

from tracestore.client import Client
from tracestore.shards.files import Folder
from tracestore.shards.log import is_followed
from tracestore.shards.read import open_export
from tracestore.shards.row import Row
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context
from tracestore.train.filling import Filling
from tracestore.train.loader import Reading
from tracestore.train.loop import Settings, train
from tracestore.train.metrics import StepMetrics

Figures = dict[str, Any]

_CLI = (sys.executable, "-m", "tracestore.cli.main")
_START_S, _IDLE_S = 120.0, 120.0
_LOOK_S = 0.1
"""Between two looks of the exporter at the store, and of the trainer at the export."""
_LESSONS, _LESSON_RATE = 80, 3e-3


@dataclass(frozen=True)
class Plan:
    """What a run does."""

    rounds: int
    groups: int
    """Tasks of a round."""
    rollouts: int
    """Episodes of a group."""
    depth: int
    """Levels of agents."""
    credit: str
    lr: float
    warmup_steps: int


def main() -> None:
    args = _arguments()
    plan = Plan(
        rounds=args.rounds,
        groups=args.groups,
        rollouts=args.rollouts,
        depth=args.depth,
        credit=args.credit,
        lr=args.lr,
        warmup_steps=args.warmup,
    )
    before = round(os.getloadavg()[0], 2)
    runs = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        runs.append(learned(plan, seed=seed))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    gains = [run["last_fifth"] - run["first_fifth"] for run in runs]
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "load_average_before": before,
        "load_average_after": round(os.getloadavg()[0], 2),
        "parameters": sum(p.numel() for p in small_decoder(0).parameters()),
        **vars(plan),
        "smallest_gain": round(min(gains), 4),
        "seeds": runs,
    }
    print(json.dumps(result))


def learned(plan: Plan, *, seed: int) -> Figures:
    """One online run, from a new store and a new model."""
    begin = time.monotonic()
    model = small_decoder(seed)
    teach(model, random.Random(seed), depth=plan.depth)
    with tempfile.TemporaryDirectory(prefix="tracestore-bench-") as name, pipeline(Path(name)) as (url, out):
        with Client(url) as client:
            harness = Harness(client, model, plan, seed=seed)
            harness.round()

            def on_step(metrics: StepMetrics) -> None:
                print(_line(seed, harness, metrics), file=sys.stderr, flush=True)
                if metrics.step + 1 < plan.rounds:
                    harness.round()

            done = train(model, open_export(out), settings=_settings(plan, seed), on_step=on_step)
        if len(done.metrics) < plan.rounds:
            raise RuntimeError(f"after {len(done.metrics)} steps nothing came for {_IDLE_S} s")
        paid = by_finding(open_export(out).rows(), rules=("shared", "used"))
    fifth = max(1, plan.rounds // 5)
    return {
        "seed": seed,
        "first_fifth": round(statistics.fmean(harness.rewards[:fifth]), 4),
        "last_fifth": round(statistics.fmean(harness.rewards[-fifth:]), 4),
        "rewards": [round(reward, 3) for reward in harness.rewards],
        "steps": len(done.metrics),
        "episodes": plan.rounds * plan.groups * plan.rollouts,
        "calls": harness.num_calls,
        "tokens": sum(m.tokens for m in done.metrics),
        "trained_tokens": sum(m.trained_tokens for m in done.metrics),
        "staleness": _total(m.staleness for m in done.metrics),
        "max_logprob_diff": max(
            (d for m in done.metrics if (d := m.max_logprob_diff) is not None), default=None
        ),
        "notes": done.notes,
        "flattened_rows": done.rows_reasons,
        "advantage_of_subagents": paid,
        "seconds": round(time.monotonic() - begin, 1),
    }


def _settings(plan: Plan, seed: int) -> Settings:
    return Settings(
        credit=plan.credit,
        steps=plan.rounds,
        # Nothing is read ahead: the next round is there only after the step.
        reading=Reading(seed=seed, follow=True, idle_s=_IDLE_S, poll_s=_LOOK_S),
        filling=Filling(groups_per_step=plan.groups),
        lr=plan.lr,
        warmup_steps=plan.warmup_steps,
        policy_version=0,
        max_staleness=0,
    )


def _line(seed: int, harness: Harness, metrics: StepMetrics) -> str:
    right = harness.subagents_right[-1]
    return (
        f"seed {seed}  round {metrics.step}  reward {harness.rewards[-1]:.3f}"
        f"  subagents right {'none' if right is None else f'{right:.3f}'}  loss {metrics.loss:+.4f}"
        f"  grad norm {metrics.grad_norm:.3f}  {metrics.trained_tokens:,} tokens trained"
        f"  {metrics.seconds:.1f} s (sampled and recorded in {harness.seconds[-1]:.1f} s)"
    )


def _total(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in counts:
        for key, value in one.items():
            found[key] = found.get(key, 0) + value
    return found


# --- The harness --------------------------------------------------------------------------------------------


@dataclass
class Harness:
    """Samples rounds with the weights of the moment and records them."""

    client: Client
    model: Any
    plan: Plan
    seed: int
    rewards: list[float] = field(default_factory=list)
    """Mean over the episodes of each round."""
    subagents_right: list[float | None] = field(default_factory=list)
    """Share of the subagents of each round that found what their part comes to; None: nobody delegated."""
    seconds: list[float] = field(default_factory=list)
    """To sample and record a round, until it is on the server's disk."""
    num_calls: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(f"tasks {self.seed}")
        self._sampler = Model(self.model, seed=self.seed)

    def round(self) -> None:
        """One group for each of some new tasks."""
        begin = time.monotonic()
        plan, version = self.plan, len(self.rewards)
        tasks = [expression(self._rng, depth=plan.depth) for _ in range(plan.groups)]
        roots = attempts([task for task in tasks for _ in range(plan.rollouts)], self._sampler)
        for number in range(plan.groups):
            own = roots[number * plan.rollouts : (number + 1) * plan.rollouts]
            record(self.client, own, group_id=f"round-{version}-task-{number}", version=version)
        self.client.flush()
        helpers = [one for root in roots for one in everyone(root.subagents)]
        self.rewards.append(statistics.fmean(root.is_right for root in roots))
        self.subagents_right.append(statistics.fmean(one.is_right for one in helpers) if helpers else None)
        self.num_calls += sum(len(one.answers) for one in everyone(roots))
        self.seconds.append(time.monotonic() - begin)


def small_decoder(
    seed: int, *, words: int = len(WORDS), end: int = ID["end"], positions: int = 64, **config: Any
) -> Any:
    """Two layers with random weights.

    Args:
        words: of its vocabulary, of which `end` ends an answer.
        positions: most tokens of a context.
        config: further fields of its configuration.
    """
    torch.manual_seed(seed)
    llama = LlamaConfig(
        vocab_size=words,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=None,
        **config,
    )
    return LlamaForCausalLM(llama).eval()


def teach(model: Any, rng: random.Random, *, depth: int) -> None:
    """Imitate who delegates what it cannot read and answers by chance: how to speak, not what."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LESSON_RATE, weight_decay=0.0)
    for _ in range(_LESSONS):
        roots = attempts([expression(rng, depth=depth) for _ in range(32)], Guesser(rng))
        spoken = [pair for one in everyone(roots) for pair in zip(one.prompts, one.answers, strict=True)]
        by_length: dict[int, list[tuple[list[int], list[int]]]] = {}
        for prompt, answer in spoken:
            by_length.setdefault(len(prompt), []).append((prompt, answer.ids))
        loss = torch.zeros(())
        for same in by_length.values():
            ids = torch.tensor([prompt + said for prompt, said in same])
            said = ids[:, len(same[0][0]) :]
            logits = model(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=said.shape[1]).logits
            loss = loss + torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), said.flatten(), reduction="sum"
            )
        (loss / sum(len(answer.ids) for _, answer in spoken)).backward()
        optimizer.step()
        optimizer.zero_grad()


# --- The pipeline -------------------------------------------------------------------------------------------


@contextmanager
def pipeline(folder: Path) -> Iterator[tuple[str, Path]]:
    """A server on a new store and an exporter that follows it: where to post, and where shards come."""
    database, out, log = f"sqlite:///{folder / 'store.db'}", folder / "export", folder / "log"
    serve = [*_CLI, "serve", "--json", "--port", "0", "--db", database]
    follow = [*_CLI, "export", "--follow", "--interval", str(_LOOK_S), "--db", database, "--out", str(out)]
    with running(serve, log=log, is_read=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {log.read_text()}")
        with running(follow, log=log) as exporter:
            end = time.monotonic() + _START_S
            while not (out.is_dir() and is_followed(Folder(out))):
                if exporter.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the exporter did not start: {log.read_text()}")
                time.sleep(_LOOK_S)
            yield json.loads(line)["url"], out


# --- Credit -------------------------------------------------------------------------------------------------


def by_finding(rows: Iterable[Row], *, rules: Sequence[str]) -> Figures:
    """What each rule gave subagents of episodes that were better than their group, by whether the parent used
    their finding: mean advantage and number."""
    given: dict[str, dict[str, list[float]]] = {rule: {"used": [], "ignored": []} for rule in rules}
    for row in rows:
        better = {
            row.samples[sample].episode
            for (sample, _), value in advantages(row, rule="shared", context=Context()).values.items()
            if float(value) > 0
        }
        for rule in rules:
            for (sample, _), value in advantages(row, rule=rule, context=Context()).values.items():
                agent = row.agents[row.samples[sample].agent]
                if agent.parent is not None and agent.episode in better:
                    given[rule]["used" if agent.finding_used else "ignored"].append(float(value))
    return {
        rule: {
            which: {
                "mean": round(statistics.fmean(values), 4) if values else None,
                "completions": len(values),
            }
            for which, values in by_use.items()
        }
        for rule, by_use in given.items()
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs, each with a seed of its own (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="the others follow it (default: 0)")
    parser.add_argument("--rounds", type=int, default=80, help="optimizer steps of a run (default: 80)")
    parser.add_argument("--groups", type=int, default=32, help="tasks of a round (default: 32)")
    parser.add_argument("--rollouts", type=int, default=4, help="episodes of a group (default: 4)")
    parser.add_argument("--depth", type=int, default=2, help="levels of agents (default: 2)")
    parser.add_argument("--credit", default="own", help="credit rule (default: own)")
    parser.add_argument("--lr", type=float, default=1e-3, help="AdamW learning rate (default: 1e-3)")
    parser.add_argument("--warmup", type=int, default=5, help="steps in which it rises (default: 5)")
    parser.add_argument("--small", action="store_true", help="one seed, 5 rounds of 2 groups: does it run?")
    args = parser.parse_args()
    if args.small:
        args.seeds, args.rounds, args.groups = 1, 5, 2
    return args


if __name__ == "__main__":
    main()
