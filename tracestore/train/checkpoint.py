"""Model and optimizer -> one folder that transformers loads, seen whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

OPTIMIZER_FILE = "optimizer.pt"
STATE_FILE = "trainer.json"
_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "added_tokens.json",
)


def save_checkpoint(
    folder: Path,
    *,
    model: Any,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    tokenizer_from: Path | None = None,
) -> None:
    """Weights as safetensors, optimizer state, `state` as JSON; an older checkpoint there is replaced.

    Args:
        tokenizer_from: folder whose tokenizer files are copied, so that the checkpoint can be served.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save_pretrained(partial, safe_serialization=True)
    torch.save(optimizer.state_dict(), partial / OPTIMIZER_FILE)
    (partial / STATE_FILE).write_text(json.dumps(dict(state), indent=1) + "\n", encoding="utf-8")
    if tokenizer_from is not None:
        for pattern in _TOKENIZER_FILES:
            for file in sorted(tokenizer_from.glob(pattern)):
                shutil.copy(file, partial / file.name)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    shutil.rmtree(old, ignore_errors=True)
