"""What test_ranks.py asks of two processes, all of it in one start."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tests.train.exports import add_entry, followed
from tests.train.models import tiny
from tests.train.rows import row
from tests.train.test_loop import group
from tracestore.errors import TracestoreError
from tracestore.shards.read import open_export
from tracestore.shards.row import Row
from tracestore.train.checkpoint import checkpoint_in
from tracestore.train.critic import CriticSettings
from tracestore.train.filling import Filling
from tracestore.train.loader import Reading
from tracestore.train.loop import Settings, Trained, train
from tracestore.train.lora import add_lora
from tracestore.train.losses.base import Clip, Objective
from tracestore.train.model import compute_layers_again, load_model
from tracestore.train.ranks import ALONE, Ranks, ranks_of_environment
from tracestore.train.sharding import full_parameters

COUPLED = ("a ratio for each sample", "a critic")
"""Runs that ask other models, or the model twice, before they compute a step."""
TIED: dict[str, Any] = {"attention": "sdpa", "tie_word_embeddings": True}
SETTINGS = Settings(
    steps=4, lr=1e-3, weight_decay=0.1, grad_clip=0.05, filling=Filling(groups_per_step=2), checkpoint_every=2
)
FOLLOW = Settings(reading=Reading(follow=True, idle_s=0), lr=1e-3)


def said(done: Trained, model: Any) -> dict[str, Any]:
    """What a run gave, for a comparison with another."""
    steps = [
        (m.groups, m.trained_tokens, m.zero_advantage_tokens, tuple(m.advantage_by_cause))
        for m in done.metrics
    ]
    advantages = [
        value
        for m in done.metrics
        for of_cause in m.advantage_by_cause.values()
        for value in of_cause.values()
    ]
    floats = [
        (m.loss, m.grad_norm, m.ratio_mean, m.ratio_max, m.mean_logprob_diff, m.kl, m.value_loss)
        for m in done.metrics
    ]
    weights = full_parameters(model, keep=True)
    return {
        "run": done.run,
        "steps": steps,
        "floats": floats,
        "advantages": advantages,
        "weights": weights,
        "rows": done.rows_reasons,
    }


def long_group(index: int) -> Row:
    """Two episodes over one prompt: a path of 18 computed tokens and one of 7."""
    made = row(
        [(-1, [1, 2, 3, 4, 5], -1), (0, [index + t for t in range(14)], 0), (0, [7, 8, 9], 1)],
        [(0, [0, 1], [0]), (1, [0, 2], [1])],
        rewards=[1.0, 0.0],
        group_id=f"long-{index}",
    )
    return replace(
        made, episodes=tuple(replace(e, episode_id=f"l{index}-{e.episode_id}") for e in made.episodes)
    )


@dataclass
class Run:
    """A run in float64 whose weights must not depend on ranks."""

    model: Any
    settings: Settings
    export: str = "export"
    reference: Any = None
    critic: Any = None

    def weights(self) -> dict[str, torch.Tensor]:
        of_critic = {} if self.critic is None else full_parameters(self.critic, keep=True)
        return full_parameters(self.model, keep=True) | {f"critic.{n}": w for n, w in of_critic.items()}


def laws() -> dict[str, Run]:
    """Runs by what they have that others have not."""
    whole = replace(SETTINGS, steps=2, micro_batch_tokens=1_000)
    small = replace(whole, micro_batch_tokens=13)
    wide = {"dtype": torch.float64}
    again = tiny("llama", **wide, **TIED)
    compute_layers_again(again)
    adapted = tiny("qwen3", **wide, attention="sdpa")
    add_lora(adapted, rank=2)
    adapted.to(torch.float64)
    other = {**wide, "seed": 1, "attention": "sdpa"}
    timed = replace(
        whole, credit="mem1:lambda=0.95", critic=CriticSettings(lr=1e-2, epochs=2, pretrain_steps=1)
    )
    return {
        "whole": Run(tiny("llama", **wide, **TIED), whole),
        "small": Run(tiny("llama", **wide, **TIED), small),
        "layers again": Run(again, small),
        "adapters": Run(adapted, whole),
        "gpt2": Run(tiny("gpt2", **wide, attention="sdpa"), replace(whole, micro_batch_tokens=20)),
        "no trees": Run(tiny("mistral", **wide, attention="sdpa", sliding_window=4), whole),
        "some trees": Run(tiny("mistral", **wide, attention="sdpa", sliding_window=12), whole, "long"),
        "recomputed": Run(tiny("llama", **wide, **TIED), replace(whole, old_logprobs="recomputed")),
        "a ratio for each sample": Run(
            tiny("llama", **wide, **TIED),
            replace(small, objective=Objective(loss="gspo", clip=Clip(), kl_weight=0.1)),
            reference=tiny("llama", **other),
        ),
        "pairs": Run(
            tiny("llama", **wide, **TIED),
            replace(small, objective=Objective(loss="dpo")),
            "pairs",
            reference=tiny("gpt2", **other),
        ),
        "a head": Run(tiny("llama", **wide, **TIED), timed, "timed"),
        # Its windows are shorter than the paths: rows for the critic where the policy computes trees.
        "a critic": Run(
            tiny("llama", **wide, **TIED), timed, "timed", critic=tiny("mistral", **other, sliding_window=4)
        ),
    }


def some_laws(folder: Path, ranks: Ranks) -> dict[str, Any]:
    return _runs(folder, ranks, ("small", "layers again", "some trees", *COUPLED))


def all_laws(folder: Path, ranks: Ranks) -> dict[str, Any]:
    return _runs(folder, ranks, tuple(laws()))


def _runs(folder: Path, ranks: Ranks, names: Sequence[str]) -> dict[str, Any]:
    asked = laws()
    runs = {}
    for name in names:
        one = asked[name]
        done = train(
            one.model,
            open_export(folder / one.export),
            settings=one.settings,
            reference=one.reference,
            critic=one.critic,
            ranks=ranks,
            run="r",
        )
        runs[name] = said(done, one.model) | {"weights": one.weights()}
    return runs


def stopped_runs(folder: Path, ranks: Ranks) -> dict[str, Any]:
    """A run in one piece and one that goes on from the other's checkpoint."""
    export = open_export(folder / "export")
    heard: list[Any] = []

    def run(out: Path, steps: int, *, resume: bool = False) -> dict[str, Any]:
        checkpoint = checkpoint_in(out) if resume else None
        model = tiny("llama", **TIED) if checkpoint is None else load_model(checkpoint.folder)
        settings = replace(SETTINGS, steps=steps)
        done = train(
            model, export, settings=settings, ranks=ranks, out=out, resume=checkpoint, sink=heard.extend
        )
        return said(done, model)

    whole = run(folder / "whole", 4)
    run(folder / "halves", 2)
    first = checkpoint_in(folder / "halves")
    ranks.gathered(None)  # all have read it before it is replaced
    rest = run(folder / "halves", 4, resume=True)
    return {"whole": whole, "rest": rest, "first": first.state, "heard": len(heard)}


def follower(folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Ranks that see other states of a log: rank 1's copy ends before the last entry."""
    model = tiny("llama", **TIED)
    log = folder / ("log" if ranks.is_first else "log-behind")
    return said(train(model, open_export(log), settings=FOLLOW, ranks=ranks), model)


def disagreement(folder: Path, ranks: Ranks) -> str:
    reading = Reading(seed=ranks.rank)
    try:
        train(
            tiny("llama"),
            open_export(folder / "export"),
            settings=Settings(reading=reading, filling=Filling(groups_per_step=1)),
            ranks=ranks,
        )
    except TracestoreError as error:
        return f"{type(error).__name__}: {error}"
    return "trained"


def no_finite_number(folder: Path, ranks: Ranks) -> str:
    model = tiny("llama", **TIED)
    try:
        train(model, open_export(folder / "broken"), settings=Settings(), ranks=ranks)
    except TracestoreError as error:
        return type(error).__name__
    return "trained"


def logs(folder: Path) -> None:
    """The two copies of a log for `follower`."""
    for name, entries in (("log", 2), ("log-behind", 1)):
        log = followed(folder / name)
        for number in range(entries):
            add_entry(log, [group(2 * number), group(2 * number + 1)])


Asked = Callable[[Path, Ranks], Any]
ASKED: tuple[Asked, ...] = (some_laws, stopped_runs, follower, disagreement, no_finite_number)


def found_by(rank: int, port: int, folder: Path, asked: Sequence[Asked]) -> None:
    """One rank: asks everything and writes down what it found. For a process of its own."""
    torch.set_num_threads(1)
    os.environ.update(
        WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    with ranks_of_environment() as ranks:
        assert ranks != ALONE
        found = {ask.__name__: ask(folder, ranks) for ask in asked}
        torch.save(found, folder / f"found-{ranks.rank}.pt")
