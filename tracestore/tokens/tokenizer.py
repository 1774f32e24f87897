"""Text -> token ids, each distinct piece of text once.

Control tokens (`<|im_start|>`) cut a text before anything else looks at it, so the ids of a text are those
of its pieces from one control token to the next, whatever the template. Contexts repeat the pieces of the
contexts before them: an episode costs one tokenisation of each message, not one of each context.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers

from tracestore.graph.tokens import TokenArray
from tracestore.tokens.messages import GUARD, Unrenderable

_CACHED_CHARACTERS = 64 * 1024 * 1024
_BEGINNINGS = ("a", "A b", " c")


class Tokenizer:
    """A tokenizer of the `tokenizers` library, as a function from text to ids."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, special_tokens: Mapping[str, str]) -> None:
        """
        Args:
            special_tokens: `bos_token`, `eos_token`, ... by which templates name control tokens.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._as_text = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        self._as_text.encode_special_tokens = True
        self.special_tokens = dict(special_tokens)
        special = [token for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        # One that takes white space before it, or asks for a word's end, reaches beyond a cut.
        cutting = [t for t in special if not (t.lstrip or t.single_word or t.normalized)]
        self.controls = _any_of(token.content for token in special)
        """Finds the spelling of every control token; None: there is none."""
        self._cut = _any_of(token.content for token in cutting)
        self.is_local = not any(token.rstrip for token in special) and self._is_local()
        """Whether text means the same ids wherever it stands. False for tokenizers that begin every text
        with a space."""
        self._known: dict[str, TokenArray] = {}
        self._characters = 0

    @cached_property
    def tokenizer_hash(self) -> str:
        """sha256 of what decides the ids: vocabulary, merges, pre-tokenizer, added tokens; hex.

        Made once: of a vocabulary of 150,000 tokens it takes as long as rendering a hundred calls.
        """
        whole = json.loads(self._tokenizer.to_str())
        deciding: dict[str, Any] = {
            name: whole[name] for name in ("added_tokens", "normalizer", "pre_tokenizer", "model")
        }
        deciding["special_tokens"] = self.special_tokens
        text = json.dumps(deciding, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def ids(self, text: str) -> TokenArray:
        """int32 [T]: the ids of a text, no token added to it.

        Raises:
            Unrenderable: control_token_in_text, where a tokenizer that is not local cannot tell it from one.
        """
        pieces = self._pieces(text)
        missing = [piece for piece in dict.fromkeys(pieces) if piece not in self._known]
        if missing:
            if self._characters > _CACHED_CHARACTERS:
                self._known.clear()
                self._characters = 0
                missing = list(dict.fromkeys(pieces))
            self._learn(missing)
        if len(pieces) == 1:
            return self._known[pieces[0]]
        return np.concatenate([self._known[piece] for piece in pieces])

    def begins_with_control(self, text: str) -> bool:
        """Whether a text may be cut off what stands before it without changing the ids of either."""
        return self._cut is not None and self._cut.match(text) is not None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def _pieces(self, text: str) -> list[str]:
        """The text, cut before each control token."""
        starts = [0] if self._cut is None else sorted({0, *(m.start() for m in self._cut.finditer(text))})
        return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

    def _learn(self, pieces: Sequence[str]) -> None:
        plain = [piece for piece in pieces if GUARD not in piece]
        for piece, ids in zip(plain, self._encoded(self._tokenizer, plain), strict=True):
            self._known[piece] = ids
        for piece in pieces:
            if GUARD in piece:
                self._known[piece] = self._guarded(piece)
        self._characters += sum(map(len, pieces))

    def _guarded(self, piece: str) -> TokenArray:
        """A piece in which text spells control tokens: after the one that begins it, all is text."""
        if not self.is_local:
            raise Unrenderable("control_token_in_text")
        control = self._cut.match(piece) if self._cut is not None else None
        end = 0 if control is None else control.end()
        parts = [piece[:end], piece[end:].replace(GUARD, "")]
        first, rest = self._encoded(self._tokenizer, parts[:1]), self._encoded(self._as_text, parts[1:])
        return np.concatenate([*first, *rest])

    @staticmethod
    def _encoded(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[TokenArray]:
        found = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(one.ids, dtype=np.int32) for one in found]

    def _is_local(self) -> bool:
        (line,) = self._encoded(self._tokenizer, ["x\n"])
        apart = self._encoded(self._tokenizer, _BEGINNINGS)
        together = self._encoded(self._tokenizer, [f"x\n{beginning}" for beginning in _BEGINNINGS])
        return all(
            np.array_equal(np.concatenate([line, one]), both)
            for one, both in zip(apart, together, strict=True)
        )


def _any_of(contents: Iterable[str]) -> re.Pattern[str] | None:
    """Finds the leftmost, longest of some texts, as tokenizers do."""
    longest_first = sorted(contents, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
