"""A request -> what must be equal for its recorded answer to be the answer.

Everything that the model reads or that changes what it says: all fields of the body but NOT_COMPARED, by
value, as `wire.canonical` compares. Two spellings of one body have one key, one changed character another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

from tracestore.graph.messages import messages_of
from tracestore.graph.spans import Place, elements, first_byte, members
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect
from tracestore.wire.canonical import canonical

NOT_COMPARED = frozenset(
    {
        *("stream", "stream_options", "background"),
        *("metadata", "user", "safety_identifier", "service_tier", "store"),
        *("prompt_cache_key", "prompt_cache_retention"),
        *("return_token_ids", "return_tokens_as_token_ids", "return_prompt_token_ids", "return_meta_info"),
    }
)
"""Fields that say how the answer travels, who asks and what is billed: the model reads none of them."""

_ASKER = ("metadata", "user")
CONTEXT = ("system", "instructions", "messages", "input", "prompt")
"""Fields in which the context stands, in any dialect."""
KEPT = ("previous_response_id", "conversation")
"""Fields that name a context which the server has."""


_MAX_REMEMBERED_BYTES = 2**15
_REMEMBERED = 1024


def _digest(message: bytes) -> bytes:
    """Of its canonical text."""
    return _remembered(message) if len(message) <= _MAX_REMEMBERED_BYTES else _computed(message)


def _computed(message: bytes) -> bytes:
    return sha256(canonical(message)).digest()


_remembered = lru_cache(maxsize=_REMEMBERED)(_computed)


@dataclass(frozen=True)
class Asked:
    """A request that wants an answer."""

    dialect: Dialect
    body: Raw
    """JSON object."""

    @cached_property
    def key(self) -> bytes:
        """Equal for requests that the same recorded answer belongs to."""
        digest = sha256(self.dialect.encode())
        for name, text in sorted(self.compared().items()):
            # Message by message: most of them stood in the request before, and so did the tools.
            is_list = name in CONTEXT and first_byte(text) == b"["
            parts = [text[start:end] for start, end in elements(text)] if is_list else [text]
            head = f"\0{name}\0{len(parts) if is_list else 'one'}\0"
            digest.update(head.encode("utf-8", "surrogatepass") + b"".join(map(_digest, parts)))
        return digest.digest()

    def compared(self) -> dict[str, bytes]:
        """The fields that count, each as it was sent."""
        body = bytes(self.body)
        return {
            name: body[start:end]
            for name, (start, end) in self._places.items()
            if name not in NOT_COMPARED and body[start:end] != b"null"
        }

    @cached_property
    def asker(self) -> dict[str, Any]:
        """The fields that say whose request it is."""
        return {name: self._given(name) for name in _ASKER if name in self._places}

    @cached_property
    def _places(self) -> dict[str, Place]:
        return members(bytes(self.body))

    @cached_property
    def messages(self) -> tuple[bytes, ...]:
        """The context, message by message, canonical, each with the role that its place gives it."""
        return tuple(
            (one.role or "").encode() + b" " + canonical(one.raw)
            for one in messages_of(self.body, self.dialect)
        )

    @cached_property
    def kept_by_server(self) -> str | None:
        """The response or conversation that the server is to go on with; None: all of the context is here."""
        return next((str(kept) for name in KEPT if (kept := self._given(name))), None)

    @cached_property
    def wants_stream(self) -> bool:
        """Whether the answer is to come as events."""
        return self._given("stream") is True

    @cached_property
    def wants_usage(self) -> bool:
        """Whether a chat stream is to end with the usage."""
        options = self._given("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    def _given(self, name: str) -> Any:
        start, end = self._places.get(name, (0, 0))
        return Raw(self.body[start:end]).value() if end else None
