"""How fast a step on a token tree is, beside padded rows, one exact row at a time and TRL's GRPO.

    python benchmarks/train.py [--trees NAME ...] [--rounds N] [--hidden N --layers N] [--shrink N]

Every way computes the same loss: clipped, ratios in [0.5, 2], an advantage of either sign for each leaf. Each
runs once a round on the same tree, one after the other, and a figure is the median over rounds. The last line
of the output is one JSON object. `share_of_ideal` is (time of the row loop) x (unique / total tokens) / (our
time): 1 if a token that is shared cost nothing but once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from tracestore.cli.common import share_cpus

share_cpus()  # as the command does, before torch is loaded

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from trees import SHAPES, Timed, shaped, with_logprobs

from tracestore.shards.reasons import Reason
from tracestore.shards.views import flattened
from tracestore.train.credit.base import combine
from tracestore.train.engine import Engine
from tracestore.train.forest import forest, recorded_targets, trained_targets
from tracestore.train.losses.base import Clip, Objective
from tracestore.train.plan import planned
from tracestore.train.recompute import logprobs
from tracestore.train.step import gradients

CLIP = Clip()
VOCAB = 4096
WHOLE = 1 << 30

Way = Callable[[Any, Timed], None]
"""Adds the gradient of the tree's loss to the model's."""


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "threads": args.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rounds": args.rounds,
        "load_average_before": round(os.getloadavg()[0], 2),
    }
    model = small_model(hidden=args.hidden, layers=args.layers)
    result["parameters_m"] = round(sum(p.numel() for p in model.parameters()) / 1e6, 2)
    differences: dict[str, list[float]] = {"f32": [], "f64": []}
    for name in args.trees:
        timed = _recorded(model, shaped(SHAPES[name], vocab=VOCAB, shrink=args.shrink))
        result[name] = _measured(model, timed, rounds=args.rounds)
        print(f"{name}: {json.dumps(result[name])}", file=sys.stderr)
        differences["f32"].append(_difference(model, timed))
        wide = small_model(dtype=torch.float64, hidden=args.hidden, layers=args.layers)
        small = shaped(SHAPES[name], vocab=VOCAB, shrink=args.shrink * 8)
        differences["f64"].append(_difference(wide, _recorded(wide, small)))
    result["rel_grad_diff_f32"] = max(differences["f32"])
    result["rel_grad_diff_f64"] = max(differences["f64"])
    result["load_average_after"] = round(os.getloadavg()[0], 2)
    print(json.dumps(result))


def _measured(model: Any, timed: Timed, *, rounds: int) -> dict[str, float]:
    """Times of each way over rounds, the first of which is not counted."""
    ways: dict[str, Way] = {"ours": ours, "row_loop": row_loop, "padded": padded, "trl": trl_step()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            model.zero_grad(set_to_none=True)
            start = time.perf_counter()
            way(model, timed)
            if number:
                seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    unique, total = len(timed.row.token_ids), timed.num_sample_tokens
    return {
        "unique_tokens": unique,
        "sample_tokens": total,
        "ideal": round(total / unique, 2),
        "tokens_per_s": round(unique / median["ours"]),
        "share_of_ideal": round(median["row_loop"] * unique / total / median["ours"], 3),
        "vs_row_loop": round(median["row_loop"] / median["ours"], 2),
        "vs_padded": round(median["padded"] / median["ours"], 2),
        "vs_trl": round(median["trl"] / median["ours"], 2),
        **{f"{name}_ms": round(value * 1e3, 1) for name, value in median.items()},
    }


def ours(model: Any, timed: Timed) -> None:
    """The trainer's own step: credit spread over shared tokens, planned, computed on the tree."""
    grown = forest(timed.row)
    targets = trained_targets(grown, combine(timed.row, timed.advantages))
    step = planned([(grown, targets)], micro_batch_tokens=WHOLE)
    engine = Engine(model)
    gradients(engine, step, objective=Objective(clip=CLIP))
    assert not engine.reasons, engine.reasons


def row_loop(model: Any, timed: Timed) -> None:
    """One sample at a time, nothing shared, nothing padded, logits where a token trains."""
    for ids, at, weight, advantage, old in _rows(timed):
        logits = model(input_ids=ids[None], use_cache=False, logits_to_keep=at - 1).logits[0]
        logprob = torch.log_softmax(logits.to(_wide(logits)), -1).gather(-1, ids[at, None])[:, 0]
        _clipped(logprob, old, advantage, weight).backward()


def padded(model: Any, timed: Timed) -> None:
    """All samples in one batch, padded to the longest."""
    rows = _rows(timed)
    longest = max(len(ids) for ids, *_ in rows)
    batch = torch.zeros((len(rows), longest), dtype=torch.int64)
    mask = torch.zeros_like(batch)
    for index, (ids, *_) in enumerate(rows):
        batch[index, : len(ids)], mask[index, : len(ids)] = ids, 1
    hidden = model.model(input_ids=batch, attention_mask=mask, use_cache=False).last_hidden_state
    loss: Any = 0.0
    for index, (ids, at, weight, advantage, old) in enumerate(rows):
        logits = model.lm_head(hidden[index, at - 1])
        logprob = torch.log_softmax(logits.to(_wide(logits)), -1).gather(-1, ids[at, None])[:, 0]
        loss = loss + _clipped(logprob, old, advantage, weight)
    loss.backward()


def trl_step() -> Way:
    """The loss of TRL's GRPOTrainer on the same samples, each trained token in each of them."""
    from trl_step import loss_of

    return lambda model, timed: loss_of(model, _rows(timed), clip=CLIP).backward()


def _rows(timed: Timed) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, torch.Tensor]]:
    """Of each sample: ids, places of trained tokens, weight of each, advantage, recorded logprobs."""
    row = timed.row
    through: dict[int, int] = {}
    for _, completion in timed.advantages.values:
        through[completion] = through.get(completion, 0) + 1
    denominator = int(np.count_nonzero(row.reason == Reason.TRAINED))
    found = []
    for index, sample in enumerate(row.samples):
        flat = flattened(row, index)
        at = np.flatnonzero(flat.reason == Reason.TRAINED)
        weight = np.asarray([1 / through[c] for c in flat.completion[at].tolist()]) / denominator
        advantage = timed.advantages.values[index, sample.completions[0]]
        assert isinstance(advantage, float)
        old = np.asarray(flat.logprobs[at], dtype=np.float64)
        ids = torch.as_tensor(flat.token_ids.astype(np.int64))
        found.append((ids, torch.as_tensor(at), torch.as_tensor(weight), advantage, torch.as_tensor(old)))
    return found


def _clipped(
    logprob: torch.Tensor, old: torch.Tensor, advantage: float, weight: torch.Tensor
) -> torch.Tensor:
    ratio = torch.exp((logprob.double() - old).to(logprob.dtype))
    cut = ratio.clamp(1 - CLIP.eps_low, 1 + CLIP.eps_high)
    return -(torch.minimum(ratio * advantage, cut * advantage) * weight.to(ratio.dtype)).sum()


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _recorded(model: Any, timed: Timed) -> Timed:
    """The tree as if sampled by a policy from which the model is off by a factor in [0.5, 2]."""
    grown = forest(timed.row)
    found_T = logprobs(Engine(model), grown, recorded_targets(grown), micro_batch_tokens=WHOLE)
    noise_T = np.random.default_rng(1).uniform(-np.log(2), np.log(2), len(found_T))
    for edge in (np.log(1 - CLIP.eps_low), np.log(1 + CLIP.eps_high)):
        noise_T[np.abs(noise_T - edge) < 1e-3] += 2e-3  # where the clip begins, the gradient jumps
    return with_logprobs(timed, found_T - noise_T)


def _difference(model: Any, timed: Timed) -> float:
    """||g_ours - g_rows|| / ||g_rows||."""
    found = []
    for way in (ours, row_loop):
        model.zero_grad(set_to_none=True)
        way(model, timed)
        found.append(torch.cat([p.grad.flatten().double() for p in model.parameters()]))
    return float((found[0] - found[1]).norm() / found[1].norm())


def small_model(*, dtype: torch.dtype = torch.float32, hidden: int = 256, layers: int = 4) -> Any:
    """A Llama with random weights, of 5 million parameters where nothing else is said."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=16_384,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("sdpa")
    return model.to(dtype).eval()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trees", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--shrink", type=int, default=1, help="divide the lengths of all segments")
    return parser.parse_args()


if __name__ == "__main__":
    main()
