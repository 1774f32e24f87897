"""JSON text -> event in three C passes, or None where only the exact path can tell.

`certain` answers what the scanner asks of a text, msgspec what the models ask of its values, and the models'
own functions the rest. All three take less than the exact path, never more, and give the values it gives: a
text that they take is taken by it too. Everything else comes back as None, and `decode` reads it again to
find the words for what is wrong with it.

A request that begins with what its agent sent before (`memory`), or that differs from it in its messages
alone, is read only where it differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tracestore.wire.call import Call
from tracestore.wire.check import DOUBTS, Doubt, certain
from tracestore.wire.events import MODELS, AnyEvent
from tracestore.wire.limits import Limits
from tracestore.wire.memory import MARK, Known, SpanMemory, known
from tracestore.wire.scan import MAX_DEPTH
from tracestore.wire.structs import Plan, plan

_PLANS: Final[dict[str, tuple[Plan[Any], Callable[[bytes], Any]]]] = {
    kind: (plan(model), msgspec.json.Decoder(plan(model).struct).decode) for kind, model in MODELS.items()
}
_CALL, _call = _PLANS["call"]
_WORTH_BYTES = 4096
"""Shorter texts are read about as fast as their requests are looked up."""
_NEAR = 64 * 1024
"""How far from its beginning a text is searched for names."""
_AFTER = 16
_BEGINNING = 64
"""How much of a request tells which other agents' it may be like."""
_MARKED = msgspec.Raw(MARK)


def fast_event(text: bytes, *, limits: Limits, memory: SpanMemory | None) -> AnyEvent | None:
    """The event in a JSON text; None when it has to be read exactly to know whether there is one."""
    if len(text) > limits.max_event_bytes:
        return None
    levels = min(limits.max_depth, MAX_DEPTH)
    try:
        if memory is None or len(text) < _WORTH_BYTES:
            return _read(text, levels=levels)
        return _read_with(memory, text, levels=levels)
    except DOUBTS:
        return None


def _read(text: bytes, *, levels: int) -> AnyEvent:
    named = certain(text, levels=levels)
    kind = named.get("kind") if isinstance(named, dict) else None
    if not isinstance(kind, str) or kind not in _PLANS:
        raise Doubt("kind")
    made, decode = _PLANS[kind]
    event: AnyEvent = made.built(decode(text), named, text)
    return event


def _read_with(memory: SpanMemory, text: bytes, *, levels: int) -> AnyEvent:
    # Guesses: the agent is no more than a name for what it sent, and the other places are proved below.
    agent = text.find(b'"agent_id"', 0, _NEAR)
    agent_end = text.find(b",", agent, agent + 200)
    start = text.find(b'"request":', 0, _NEAR) + len(b'"request":')
    if agent < 0 or agent_end < 0 or start < len(b'"request":'):
        return _read(text, levels=levels)
    start += text.startswith(b" ", start)
    key, beginning = text[agent:agent_end], text[start : start + _BEGINNING]
    of_agent = memory.get(key)
    last = memory.get(beginning) if of_agent is None else of_agent
    if last is not None and last.levels == levels - 1:
        if not text.startswith(last.head, start):
            last = last.opened()
        if text.startswith(last.head, start):
            try:
                event, new = _continued(last, text, start, levels=levels)
                # No request begins with a delta: what stands around its messages is known already.
                if event.context == "whole" or of_agent is None:
                    memory.put(key, new)
                return event
            except DOUBTS:
                pass  # read whole, it may be good all the same
    whole = _read(text, levels=levels)
    if isinstance(whole, Call) and whole.request is not None and text.startswith(whole.request, start):
        end = start + len(whole.request)
        cut = known(whole.request, levels=levels - 1, after=text[end : end + _AFTER])
        if cut is not None:
            memory.put(key, cut)
            memory.put(beginning, cut.opened())
    return whole


def _continued(last: Known, text: bytes, start: int, *, levels: int) -> tuple[Call, Known]:
    """The event whose request stands at `start` and begins with what is known.

    If a string in place of the request makes an event whose request is that string, then a request stood
    there and nothing else did: the text is good exactly if the request is.

    Raises:
        DOUBTS: it is not certain that it is.
    """
    behind = start + len(last.head)
    end = last.end(text, behind)
    envelope = text[:start] + MARK + text[end:]
    found = _call(envelope)
    if found.request != _MARKED:
        raise Doubt("another request")
    new = last.next(text[behind:end])
    named = certain(envelope, levels=levels)
    found.request = msgspec.Raw(memoryview(text)[start:end])
    event: Call = _CALL.built(found, named, envelope)
    return event, new
