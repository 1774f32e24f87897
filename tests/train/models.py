"""Tiny random causal LMs, built from a configuration: nothing is loaded."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 61
KINDS = ("llama", "qwen3", "gpt2")

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # far from uniform attention, so that a wrong mask shows
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def tiny(
    kind: str, *, dtype: torch.dtype = torch.float32, seed: int = 0, attention: str = "eager", **fields: Any
) -> Any:
    """A model of `kind` in eval mode; the same seed gives the same float32 weights for every dtype."""
    torch.manual_seed(seed)
    if kind == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**(_COMMON | fields)))
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**(_COMMON | {"head_dim": 12} | fields)))
    elif kind == "gemma2":
        capped = {"attn_logit_softcapping": None, "final_logit_softcapping": 2.0, "head_dim": 8}
        model = Gemma2ForCausalLM(Gemma2Config(**(_COMMON | capped | fields)))
    elif kind == "mistral":
        model = MistralForCausalLM(MistralConfig(**(_COMMON | fields)))
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                **{
                    "vocab_size": VOCAB,
                    "n_positions": 256,
                    "n_embd": 32,
                    "n_layer": 2,
                    "n_head": 4,
                    "initializer_range": 0.2,
                    "bos_token_id": None,
                    "eos_token_id": None,
                }
                | fields
            )
        )
    model.set_attn_implementation(attention)
    return model.to(dtype).eval()
