"""A folder -> a causal LM, through transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from tracestore.errors import TracestoreError


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
