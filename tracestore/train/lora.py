"""Low-rank adapters, through peft: a model whose own weights stay as they are.

The model itself is changed and stays a model of transformers, so all that computes it computes it with its
adapters. Their folder is one that `peft.PeftModel.from_pretrained(base, folder)` loads, and merges.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.pytorch_utils import Conv1D

from tracestore.errors import TracestoreError

_NAME = "default"
_CONFIG_FILE, _WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""What peft puts before the names of the model that it wraps."""


class OtherAdapters(TracestoreError):
    """The adapters of a folder are not for this model."""

    exit_code = 2


def add_lora(model: Any, *, rank: int, base: str | None = None) -> None:
    """Adapters on every linear layer but the output; nothing else of the model trains from now on.

    W x + (alpha / rank) B A x with alpha = 2 rank and B = 0: before step one it is the model that it was.

    Args:
        base: folder or name of the model, for whoever loads the adapters.

    Source: Hu et al., LoRA (arXiv 2106.09685).
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    inject_adapter_in_model(config, model, _NAME)


def load_lora(model: Any, folder: Path) -> None:
    """The adapters of a checkpoint, to be trained on.

    Raises:
        OtherAdapters: they are of another model.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig.from_pretrained(str(folder))
    config.inference_mode = False
    inject_adapter_in_model(config, model, _NAME)
    values = load_file(folder / _WEIGHTS_FILE)
    trained = {
        _stored(name): parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    shapes = ({name: tuple(t.shape) for name, t in of.items()} for of in (values, trained))
    if len({tuple(sorted(of.items())) for of in shapes}) > 1:
        raise OtherAdapters(folder=str(folder), hint="--model names the model that they were trained on")
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(values[name])


def save_lora(model: Any, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Writes the adapters' configuration and their `weights`, which are named as the model names them."""
    config = copy(model.peft_config[_NAME])
    config.inference_mode = True
    config.save_pretrained(str(folder))
    save_file({_stored(name): value.contiguous() for name, value in weights.items()}, folder / _WEIGHTS_FILE)


def has_lora(model: Any) -> bool:
    """Whether adapters are all that a model trains."""
    return hasattr(model, "peft_config")


def is_lora(folder: Path) -> bool:
    """Whether a checkpoint holds adapters and no model."""
    return (folder / _CONFIG_FILE).is_file()


def _stored(name: str) -> str:
    return _PREFIX + name.replace(f".{_NAME}.", ".")
