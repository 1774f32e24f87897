"""Event -> everything about it that needs no database, worked out by the thread that posts it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from tracestore.graph.messages import answer_messages
from tracestore.store.fields import contents_of, shape_text, value_at
from tracestore.store.requests import Piece, Request, RequestMemory, message_piece, other_piece
from tracestore.wire.call import Call, Dialect
from tracestore.wire.completion import Completion, CompletionFields
from tracestore.wire.events import AnyEvent, phase_of

_NEW_MESSAGES = 4


@dataclass(frozen=True, slots=True)
class Prepared:
    event: AnyEvent
    phase: str
    text_hash: bytes
    """First half of the sha256 of the posted text."""
    shape: str
    size: int
    """Bytes posted."""
    request: Request | None
    others: dict[str, Piece]
    """Field -> its content, for the fields of contents_of(kind)."""

    def pieces(self) -> Iterable[Piece]:
        """The contents that the event may bring; of its messages the last ones, for most are there."""
        yield from self.others.values()
        if self.request is not None:
            yield self.request.skeleton
            yield from self.request.messages[-_NEW_MESSAGES:]
            if self.request.tools is not None:
                yield self.request.tools
        yield from answer_pieces(self.event)


def prepare(event: AnyEvent, text: bytes, *, requests: RequestMemory) -> Prepared:
    """Cut and hash an event; `text` is what was posted."""
    request = None
    if isinstance(event, Call) and event.request is not None:
        request = requests.take_apart(event.request, event.dialect, agent_id=event.agent_id)
    return Prepared(
        event=event,
        phase=phase_of(event),
        text_hash=sha256(text).digest()[:16],
        shape=shape_text(event),
        size=len(text),
        request=request,
        others=content_pieces(event),
    )


def content_pieces(event: AnyEvent) -> dict[str, Piece]:
    """The contents of the opaque fields that stand in a row of their own kind, by field."""
    found = {}
    for field in contents_of(event.kind):
        value = value_at(event, field.path)
        if value is not None:
            assert field.kind is not None
            found[field.path[0]] = other_piece(value, field.kind)
    return found


def answer_pieces(event: AnyEvent) -> list[Piece]:
    """The contents of the completions an event carries, in every way they may be needed."""
    bodies: Sequence[CompletionFields]
    dialect: Dialect | None = None
    if isinstance(event, Completion):
        bodies = (event,)
    elif isinstance(event, Call) and event.completions is not None:
        bodies, dialect = event.completions, event.dialect
    else:
        return []
    pieces = []
    for body in bodies:
        if body.message is not None:
            pieces.append(message_piece(body.message, "assistant"))
            if dialect == "openai_responses":
                pieces += [message_piece(raw, role) for raw, role in answer_messages(body.message, dialect)]
        if body.top_logprobs is not None:
            pieces.append(other_piece(body.top_logprobs, "top_logprobs"))
    return pieces
