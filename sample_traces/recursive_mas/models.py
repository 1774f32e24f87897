"""The two frozen agents and the links between them, from fixed seeds: nothing is downloaded.

    python -m sample_traces.recursive_mas.models FOLDER   writes planner/, solver/ and links/ for train-links

Weights are drawn by numpy's Mersenne Twister, whose stream is the same on every machine and in every version,
so that their hashes are those of the recording wherever it is trained on. They have learned nothing: what
they decode is no language.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tracestore.train import smollm2
from tracestore.train.links import Frozen, RecursiveLink, fresh_link, link_bytes, link_file
from tracestore.train.model import library_bars

VOCAB = 49_152
"""Of SmolLM2, whose tokenizer both agents share."""
WIDTHS = {"planner": 8, "solver": 16}
SPREAD = 0.5
"""Of weights. With less a model says the same whatever it reads, with more gradients explode over rounds."""


@cache
def agents() -> dict[str, Frozen]:
    """By name; d = 8 and d = 16."""
    return {name: Frozen.of(_model(width)) for name, width in WIDTHS.items()}


def links() -> dict[str, RecursiveLink]:
    """From the planner to the solver, and back to the planner of the next round."""
    wide = WIDTHS["planner"], WIDTHS["solver"]
    return {"planner": fresh_link(*wide, seed=1), "solver": fresh_link(*wide[::-1], seed=2)}


def _model(width: int) -> Any:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    drawn = np.random.RandomState(width)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "norm" not in name:
                weight.copy_(torch.from_numpy(drawn.uniform(-SPREAD, SPREAD, tuple(weight.shape))))
    return model


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m sample_traces.recursive_mas.models FOLDER`."""
    parser = argparse.ArgumentParser(prog="python -m sample_traces.recursive_mas.models", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(argv).folder
    tokenizer = smollm2.load_tokenizer()
    for name, agent in agents().items():
        with library_bars(shown=False):
            agent.model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "links").mkdir(parents=True, exist_ok=True)
    for name, link in links().items():
        link_file(folder / "links", name).write_bytes(link_bytes(link))
    sys.stdout.write(json.dumps({name: agent.hash for name, agent in agents().items()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
