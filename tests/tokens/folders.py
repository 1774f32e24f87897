"""Small tokenizers, saved as folders: every byte is a token, so ids are counted by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tracestore.tokens.chat import Chat, load_chat

CONTROLS = ("<|im_start|>", "<|im_end|>", "<|end|>")
START, END = 256, 257

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Writes content alone."""

TOOLED = """
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}{{- '<think>' + message.reasoning_content + '</think>' }}{% endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- call.function.name + ' ' }}{{ call.function.arguments | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
"""Writes reasoning, tool calls and tools too."""

THINKING = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content and loop.last %}
        {{- '<think>' + message.reasoning_content + '</think>' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
"""Strips the thinking of every turn but the last."""


@cache
def smollm2_chat() -> Chat:
    """The real one, loaded once."""
    return load_chat("smollm2")


def folder(path: Path, template: str | None = CHATML, *, controls: Sequence[str] = CONTROLS) -> Path:
    """A folder with a tokenizer of 256 bytes, then the control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={word: i for i, word in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(one, special=True, normalized=False) for one in controls]
    )
    return saved(path, tokenizer, template)


def spaced_folder(path: Path, template: str | None = CHATML) -> Path:
    """A folder with a tokenizer that begins every text with a space, as SentencePiece does."""
    words = ["<unk>", "\u2581", *map(chr, range(10, 127))]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(one, special=True, normalized=False) for one in CONTROLS]
    )
    return saved(path, tokenizer, template)


def saved(path: Path, tokenizer: tokenizers.Tokenizer, template: str | None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|im_start|>"}, "pad_token": None}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path
