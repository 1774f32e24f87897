"""Values of a trace file -> wire events: ids made of content, JSON spans, unknown fields kept."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from tracestore.ids import id_problem
from tracestore.wire.base import Raw
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent
from tracestore.wire.gap import Gap


class Item(NamedTuple):
    """One wire event and the JSON text that is posted for it."""

    event: AnyEvent
    text: bytes


def made(model: Callable[..., AnyEvent], /, **fields: Any) -> Item:
    """An event of the fields that are known: None is unknown, and what is unknown is not posted."""
    event = model(**{name: value for name, value in fields.items() if value is not None})
    return Item(event, encode(event, arrays="base64"))


def gap(
    owner: str,
    cause: str,
    detail: str | None = None,
    *,
    episode_id: str,
    agent_id: str | None = None,
    call_id: str | None = None,
) -> Item:
    """Something that is known to be missing, once for each `owner`: an id of what lacks it."""
    return made(
        Gap,
        id=safe_id(f"{owner}/{cause}"),
        episode_id=episode_id,
        agent_id=agent_id,
        call_id=call_id,
        cause=cause,
        detail=detail,
    )


def gap_of_main(episode_id: str, cause: str, detail: str) -> Item:
    """A gap of an episode's one agent, where that is named `EPISODE/main`."""
    return gap(episode_id, cause, detail, episode_id=episode_id, agent_id=f"{episode_id}/main")


class Names:
    """Ids made of content, so that importing a file again names the same things and stores nothing twice.

    Two equal documents of one file are two things (two rollouts that said the same): the second is numbered.
    One for each source: a copy of the file names the same things.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._seen: Counter[str] = Counter()

    def of(self, value: Any) -> str:
        """An id for one more document of this value, e.g. `nemo-gym-5d41402abc4b2a76b9719d91`."""
        name = content_id(self._prefix, value)
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name}-{self._seen[name]}"


def content_id(prefix: str, value: Any) -> str:
    """`prefix` and 24 hex digits of the value, whatever its key order and white space."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=_lexeme)
    return f"{prefix}-{sha256(text.encode('ascii')).hexdigest()[:24]}"


def _lexeme(value: Any) -> str:
    return str(bytes(value), "utf-8", "surrogatepass")


def safe_id(text: str) -> str:
    """A file's own id as an id of ours: itself where it may be one, else made of its content."""
    return content_id("id", text) if id_problem(text) else text


def raw(value: Any) -> Raw:
    """JSON text of a value in which `Raw` spans stand verbatim."""
    if isinstance(value, Raw):
        return value
    try:
        return Raw.of(value)
    except TypeError:
        pass  # a span is inside
    if isinstance(value, dict):
        return Raw(b"{" + b",".join(Raw.of(name) + b":" + raw(one) for name, one in value.items()) + b"}")
    if isinstance(value, (list, tuple)):
        return Raw(b"[" + b",".join(map(raw, value)) + b"]")
    raise TypeError(f"no JSON value: {type(value).__name__}")


def taken(record: dict[str, Any], name: str, *types: type) -> Any:
    """A field moved out of its record, if it has one of the types; else None, and it stays where it is.

    What an importer places it takes; what is left of a record afterwards goes into the event's `meta`, so a
    field that nobody thought of, or of a type that nobody expected, is kept.

    A bool is no int here, and an int is a float.
    """
    value = record.get(name)
    is_bool = isinstance(value, bool)
    accepted = (*types, int) if float in types else types
    if value is None or not isinstance(value, accepted) or (is_bool and bool not in types):
        return None
    del record[name]
    return value


def count(record: dict[str, Any], name: str) -> int | None:
    """A field that counts something (tokens, bytes), taken; None, left there, where it is none."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        return None
    del record[name]
    return value


def left(name: str, *records: dict[str, Any] | None) -> Raw | None:
    """`meta` of an event: what is left of its records under the format's name; None where nothing is."""
    rest = [record for record in records if record]
    if not rest:
        return None
    return raw({name: rest[0] if len(rest) == 1 else rest})


def nanoseconds(value: Any) -> int | None:
    """A time as UTC nanoseconds since 1970: ISO 8601 with an offset, or a number; None where it is neither.

    A number is taken as seconds, milliseconds, microseconds or nanoseconds by its size: below 1e11 it is
    seconds (until the year 5138), and so on by factors of a thousand. A time without an offset is None: its
    zone is not known.

    Example: "2026-02-23T12:54:34.5Z" -> 1771851274500000000
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return _from_number(value)
    if not isinstance(value, str):
        return None
    # Importers ask for the time of a record again and again; what is longer is none, or not held.
    return (_from_short_text if len(value) <= _SHORT_TIME else _from_text)(value)


_SHORT_TIME = 48


def _from_text(value: str) -> int | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    result = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1_000 + _beyond_micro(value)
    return result if 0 <= result < 2**63 else None


_from_short_text = lru_cache(maxsize=256)(_from_text)


def _from_number(value: float) -> int | None:
    if not math.isfinite(value) or value <= 0:
        return None
    for limit, factor in ((1e11, 10**9), (1e14, 10**6), (1e17, 10**3)):
        if value < limit:
            return int(value * factor) if isinstance(value, int) else round(value * factor)
    return int(value) if value < 2**63 else None


def _beyond_micro(text: str) -> int:
    """Nanoseconds that datetime drops: digits 7 to 9 of the fraction."""
    _, dot, fraction = text.partition(".")
    digits = fraction[: next((n for n, c in enumerate(fraction) if not c.isdigit()), len(fraction))]
    return int(digits[6:9].ljust(3, "0")) if dot and len(digits) > 6 else 0
