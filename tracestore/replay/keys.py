"""A request -> what must be equal for its recorded answer to be the answer.

Everything that the model reads or that changes what it says: all fields of the body but NOT_COMPARED, by
value, as `wire.canonical` compares. Two spellings of one body have one key, one changed character another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from tracestore.graph.messages import messages_of
from tracestore.graph.spans import members
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

CONTEXT = ("system", "instructions", "messages", "input", "prompt")
"""Fields in which the context stands, in any dialect."""
KEPT = ("previous_response_id", "conversation")
"""Fields that name a context which the server has."""


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
            digest.update(b"\0" + name.encode("utf-8", "surrogatepass") + b"\0" + canonical(text))
        return digest.digest()

    def compared(self) -> dict[str, bytes]:
        """The fields that count, each as it was sent."""
        body = bytes(self.body)
        return {
            name: body[start:end]
            for name, (start, end) in members(body).items()
            if name not in NOT_COMPARED and body[start:end] != b"null"
        }

    @cached_property
    def messages(self) -> tuple[bytes, ...]:
        """The context, message by message, canonical, each with the role that its place gives it."""
        return tuple(
            (one.role or "").encode() + b" " + canonical(one.raw)
            for one in messages_of(self.body, self.dialect)
        )

    @property
    def kept_by_server(self) -> str | None:
        """The response or conversation that the server is to go on with; None: all of the context is here."""
        return next((str(self._value[name]) for name in KEPT if self._value.get(name)), None)

    @property
    def wants_stream(self) -> bool:
        """Whether the answer is to come as events."""
        return self._value.get("stream") is True

    @property
    def wants_usage(self) -> bool:
        """Whether a chat stream is to end with the usage."""
        options = self._value.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @cached_property
    def _value(self) -> dict[str, Any]:
        value = self.body.value()
        return value if isinstance(value, dict) else {}
