"""A folder -> a causal LM, through transformers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from tracestore.errors import TracestoreError
from tracestore.train.attention import again
from tracestore.train.sharding import layers


class ModelNotLoaded(TracestoreError):
    """transformers cannot load a causal LM from this folder."""


@contextmanager
def library_bars(*, shown: bool) -> Iterator[None]:
    """Whether transformers draws its own progress bars on stderr."""
    were_shown = logging.is_progress_bar_enabled()
    _switch_bars(shown=shown)
    try:
        yield
    finally:
        _switch_bars(shown=were_shown)


def _switch_bars(*, shown: bool) -> None:
    if shown:
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    else:
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def compute_layers_again(model: Any) -> None:
    """Gradient checkpointing: a layer's input alone is kept, the backward pass computes the rest again.

    Costs one more forward pass and changes no gradient. transformers' own switch works in train mode only, in
    which layers drop out, and recorded tokens were sampled without that.
    """
    for layer in layers(model):
        layer.forward = functools.partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False, context_fn=again
        )


def best_device() -> torch.device:
    """The GPU of this rank where there is one, else the CPU."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def load_model(folder: Path, *, dtype: str = "float32") -> Any:
    """The model of a folder, from local files only.

    Args:
        dtype: of the weights; float32 by default whatever the file holds, because AdamW updates at usual
            learning rates are smaller than a bfloat16 step and would be lost.

    Raises:
        ModelNotLoaded: with what transformers says.
    """
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotLoaded(folder=str(folder), problem=str(error).split("\n", 1)[0]) from error


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, from local files only.

    Raises:
        ModelNotLoaded: with what transformers says.
    """
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotLoaded(folder=str(folder), problem=str(error).split("\n", 1)[0]) from error
