"""An event -> what of it is measured: who called whom, when, how much it cost, how it ended and was scored.

What people and models wrote is left out: requests, messages, tool arguments and results, prompts, free JSON,
errors in words, and the token ids and logprobs, which spell it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tracestore.store.rules import Redacted, fields_of
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.events import AnyEvent

_WRITTEN = frozenset({"arguments", "error", "message", "detail", "reason"})
"""Fields of text, besides opaque JSON."""


def stripped(event: AnyEvent) -> Redacted | None:
    """An event without its content; None where it has none."""
    found = _stripped(event)
    return None if found is event else Redacted(found, 0, frozenset())


def _stripped(model: Any) -> Any:
    kind: type[BaseModel] = type(model)
    changes, fields = dict[str, Any](), fields_of(kind)
    gone = set()
    for name in model.model_fields_set:
        value = getattr(model, name)
        if isinstance(value, Raw | TokenIds | Logprobs) or (name in _WRITTEN and isinstance(value, str)):
            gone.add(name)
            continue
        how = fields.get(name)
        if value is None or how not in ("model", "models"):
            continue
        new = _stripped(value) if how == "model" else tuple(map(_stripped, value))
        if (new is not value) if isinstance(value, BaseModel) else any(map(_is_not, new, value)):
            changes[name] = new
    if not (gone or changes):
        return model
    kept = {name: value for name, value in {**dict(model), **changes}.items() if name not in gone}
    return kind.model_construct(_fields_set=model.model_fields_set - gone, **kept)


def _is_not(one: object, other: object) -> bool:
    return one is not other
