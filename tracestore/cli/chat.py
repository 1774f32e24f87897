"""Flags that name a tokenizer with its chat template -> the chat that renders text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tracestore.cli.common import UsageError, extra

if TYPE_CHECKING:
    from tracestore.tokens.chat import Chat


def add_chat_flags(parser: argparse.ArgumentParser, *, purpose: str) -> None:
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help=f"{purpose}: a folder with tokenizer.json and a chat template, or `smollm2`",
    )
    parser.add_argument(
        "--template",
        metavar="FILE",
        type=Path,
        help="Jinja chat template to use instead of the tokenizer's own",
    )


def chat_of(args: argparse.Namespace) -> Chat | None:
    """The chat that the flags name; None where they name none."""
    if args.tokenizer is None:
        if args.template is not None:
            raise UsageError(template=str(args.template), hint="--template goes with --tokenizer")
        return None
    with extra("render"):
        from tracestore.tokens.chat import load_chat
    return load_chat(args.tokenizer, template=args.template)
