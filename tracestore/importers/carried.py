"""What our own writers put beside a format, under `tracestore`: whole events, and fields that a format lacks.

A file written by `tracestore export --format atif|otlp` says what it can in the format's own words. The rest
of an event stands next to that, as the JSON of a wire event, and is laid over what was read natively.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracestore.importers import exact
from tracestore.importers.items import Item, raw
from tracestore.importers.notes import Notes
from tracestore.wire.decode import decode_event
from tracestore.wire.encode import encode
from tracestore.wire.errors import EventError
from tracestore.wire.events import AnyEvent

KEY = "tracestore"
"""Name of our part of a format's free fields."""
REPLACED = "replaced"
"""Names the fields of which nothing that was read natively holds."""
_SPANS = frozenset({"message", "result", "scope_prompt", "return_message", "task", "top_logprobs", "meta"})
"""Fields of an event that are one value, whatever is inside."""


def completed(item: Item, own: Any, *, at: str, notes: Notes) -> Item:
    """An event with the fields that our writer put beside it; itself where there are none."""
    if not isinstance(own, dict) or not own:
        return item
    replaced = own.get(REPLACED, ())
    below = {name: one for name, one in values_of(item.event).items() if name not in replaced}
    text = bytes(raw(_laid_over(below, {name: one for name, one in own.items() if name != REPLACED})))
    try:
        return Item(decode_event(text), text)
    except EventError as error:
        notes.refuse(at, f"fields under {KEY} that make no event: {error}")
        return item


def events(values: Any, *, at: str, notes: Notes) -> Iterator[Item]:
    """Whole events that our writer carried along."""
    for value in values if isinstance(values, list) else ():
        text = bytes(raw(value))
        try:
            yield Item(decode_event(text), text)
        except EventError as error:
            notes.refuse(at, f"an event under {KEY}: {error}")


def values_of(event: AnyEvent) -> dict[str, Any]:
    """The fields of an event as JSON values, arrays as base64."""
    values: dict[str, Any] = exact.loads(encode(event, arrays="base64"))
    return values


def difference(event: AnyEvent, native: AnyEvent) -> dict[str, Any]:
    """What `completed` has to lay over `native` to give the event."""
    wanted, known = values_of(event), values_of(native)
    found: dict[str, Any] = {}
    replaced = sorted(known.keys() - wanted.keys())
    for name, one in wanted.items():
        if name in known and known[name] == one:
            continue
        part = _difference(one, known[name]) if name in known and name not in _SPANS else one
        if part is None:
            replaced.append(name)
        found[name] = one if part is None else part
    return found | ({REPLACED: replaced} if replaced else {})


def _laid_over(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {
            name: one if name in _SPANS else _laid_over(below.get(name), one) for name, one in above.items()
        }
    if isinstance(below, list) and isinstance(above, list):
        both = zip(below, above, strict=False)
        return [_laid_over(*pair) for pair in both] + above[len(below) :] + below[len(above) :]
    return above


def _difference(wanted: Any, known: Any) -> Any:
    """What laid over `known` gives `wanted`, {} for nothing; None where nothing does."""
    if isinstance(wanted, dict) and isinstance(known, dict):
        if known.keys() - wanted.keys():
            return None
        found = {}
        for name, one in wanted.items():
            if name in known and known[name] == one:
                continue
            inner = _difference(one, known[name]) if name in known and name not in _SPANS else one
            if inner is None:
                return None
            found[name] = inner
        return found
    if isinstance(wanted, list) and isinstance(known, list):
        if len(known) > len(wanted) or any(not isinstance(one, dict) for one in (*wanted, *known)):
            return None
        parts = [_difference(*pair) for pair in zip(wanted, known, strict=False)]
        return None if any(part is None for part in parts) else parts + wanted[len(known) :]
    return None if isinstance(known, (dict, list)) else wanted
