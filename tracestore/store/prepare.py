"""Event -> everything about it that needs no database, worked out by the thread that posts it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracestore.graph.messages import answer_messages
from tracestore.store.digest import sha256_of
from tracestore.store.fields import contents_of, shape_text, value_at
from tracestore.store.requests import Piece, Request, RequestMemory, message_piece, other_piece
from tracestore.store.rules import NO_RULES, Redacted, Rules, without_ids
from tracestore.wire.call import Call, Dialect
from tracestore.wire.completion import Completion, CompletionFields
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent, phase_of

_NEW_MESSAGES = 4


class Prepared(NamedTuple):
    event: AnyEvent
    phase: str
    text_hash: bytes
    """First half of the sha256 of the posted text, or of what rules left of it: a hash of the whole would
    tell whoever guesses what they took that the guess is right."""
    shape: str
    size: int
    """Bytes posted."""
    request: Request | None
    others: dict[str, Piece]
    """Field -> its content, for the fields of contents_of(kind)."""
    answers: tuple[Piece | None, ...]
    """The messages of the completions that it carries; None for one without."""
    rules: Rules = NO_RULES
    """Those that were applied."""
    redacted: Redacted | None = None
    """What they took; None: nothing."""

    def pieces(self) -> Iterable[Piece]:
        """The contents that the event may bring; of its messages the last ones, for most are there."""
        yield from self.others.values()
        if self.request is not None:
            yield self.request.skeleton
            yield from self.request.messages[-_NEW_MESSAGES:]
            if self.request.tools is not None:
                yield self.request.tools
        for answer in self.answers:
            if answer is not None:
                yield answer
        yield from _other_answer_pieces(self.event)


def prepare(event: AnyEvent, text: bytes, *, requests: RequestMemory, rules: Rules = NO_RULES) -> Prepared:
    """Redact, cut and hash an event; `text` is what was posted."""
    request, redacted = None, rules.redact(event)
    if redacted is not None:
        event = without_ids(redacted.event, redacted.spelled)
        text = encode(event, arrays="base64")
    if isinstance(event, Call) and event.request is not None:
        request = requests.take_apart(event.request, event.dialect, agent_id=event.agent_id)
    return Prepared(
        event=event,
        phase=phase_of(event),
        text_hash=sha256_of(text)[:16],
        shape=shape_text(event),
        size=len(text),
        request=request,
        others=content_pieces(event),
        answers=tuple(map(answer_piece, _bodies(event))),
        rules=rules,
        redacted=redacted,
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


def answer_piece(body: CompletionFields) -> Piece | None:
    """The message of a completion as a content; None where it has none."""
    return None if body.message is None else message_piece(body.message, "assistant")


def _bodies(event: AnyEvent) -> Sequence[CompletionFields]:
    """The completions that an event carries."""
    if isinstance(event, Call):
        return event.completions or ()
    return (event,) if isinstance(event, Completion) else ()


def _other_answer_pieces(event: AnyEvent) -> Iterable[Piece]:
    """What of the completions may be a content besides their messages."""
    dialect: Dialect | None = event.dialect if isinstance(event, Call) else None
    for body in _bodies(event):
        if dialect == "openai_responses" and body.message is not None:
            yield from (message_piece(raw, role) for raw, role in answer_messages(body.message, dialect))
        if body.top_logprobs is not None:
            yield other_piece(body.top_logprobs, "top_logprobs")
