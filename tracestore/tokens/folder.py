"""A Hugging Face tokenizer folder -> its tokenizer and its chat template.

tokenizer.json            the tokenizer itself
tokenizer_config.json     names of control tokens; the chat template in older folders
special_tokens_map.json   names of control tokens in older folders
chat_template.jinja       the chat template
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from tracestore.errors import TracestoreError
from tracestore.tokens.tokenizer import Tokenizer


class NotATokenizer(TracestoreError):
    """The folder holds no tokenizer that can be used."""

    exit_code = 2


class NoTemplate(TracestoreError):
    """The tokenizer has no chat template."""

    exit_code = 2


def load(folder: Path) -> tuple[Tokenizer, str | None]:
    """The tokenizer of a folder, and its chat template if it has one.

    Of several named templates the one called `default` is taken.

    Raises:
        NotATokenizer: there is no tokenizer.json, a file does not parse, or the folder lists tokens that
            tokenizer.json does not have.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise NotATokenizer(
            path=str(folder),
            hint="name a folder with tokenizer.json, as `save_pretrained` of a fast tokenizer writes",
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise NotATokenizer(path=str(path), problem=str(error)) from error
    config = _json(folder / "tokenizer_config.json")
    listed = [token["content"] for token in config.get("added_tokens_decoder", {}).values()]
    absent = next((token for token in listed if tokenizer.token_to_id(token) is None), None)
    if absent is not None:
        raise NotATokenizer(
            path=str(path),
            token=absent,
            hint="load it with transformers and save it again: the file lacks this token",
        )
    special = _special_tokens(_json(folder / "special_tokens_map.json")) | _special_tokens(config)
    return Tokenizer(tokenizer, special_tokens=special), _template(folder, config)


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {one["name"]: one["template"] for one in template}.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """`bos_token` and the like: a name, or the token written out."""
    found: dict[str, str] = {}
    for name, token in config.items():
        content = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise NotATokenizer(path=str(path), problem=str(error)) from error
    if not isinstance(value, dict):
        raise NotATokenizer(path=str(path), problem="no JSON object")
    return value
