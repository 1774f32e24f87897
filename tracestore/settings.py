"""Flags and environment -> what one server allows: sizes, nesting, counts, rates, hosts and origins.

Each field is one setting: the environment variable `TRACESTORE_` + its name in capitals, and the flag of
`tracestore serve` with the same words. A flag wins over the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from tracestore.errors import TracestoreError
from tracestore.wire.limits import LIMITS, Limits

PREFIX = "TRACESTORE_"
_HOST = r"(?:[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])"


class InvalidSetting(TracestoreError):
    """A setting has a value that the server cannot work with"""

    exit_code = 2


def _number(default: int | None, what: str, *, least: int = 1, most: int = 2**62) -> Any:
    return field(default=default, metadata={"what": what, "least": least, "most": most})


def _names(what: str, *, form: str, hint: str) -> Any:
    return field(default=(), metadata={"what": what, "form": re.compile(form), "hint": hint})


def _require_form(one: Field[Any], names: tuple[str, ...]) -> None:
    for name in names:
        if one.metadata["form"].fullmatch(name) is None:
            raise InvalidSetting(setting=one.name, value=name, hint=one.metadata["hint"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What each setting means stands in its metadata, from which flags, help and the README table are made.

    Raises:
        InvalidSetting: a number is out of its range, a name could never match, or two settings contradict
            each other.
    """

    max_event_bytes: int = _number(
        LIMITS.max_event_bytes, "UTF-8 bytes of one event; a larger one is sent as a blob"
    )
    max_depth: int = _number(LIMITS.max_depth, "arrays and objects inside each other in one event", most=200)
    max_body_bytes: int = _number(LIMITS.max_body_bytes, "bytes of one body, decompressed")
    max_events: int = _number(LIMITS.max_events, "events in one body")
    max_offloaded_event_bytes: int = _number(
        LIMITS.max_offloaded_event_bytes, "UTF-8 bytes of one event that is sent as a blob"
    )
    max_blob_bytes: int = _number(LIMITS.max_blob_bytes, "bytes of one blob")
    max_requests_in_hand: int = _number(512, "posts in hand at once; one more is answered 503", least=0)
    max_bytes_in_hand: int = _number(
        768 * 2**20, "bytes of their bodies, as received and as decompressed; one more is answered 503"
    )
    max_threads: int = _number(
        64, "posts over 64 KiB, or compressed, that are decoded or wait for their commit at once"
    )
    max_requests_per_s: int | None = _number(
        None, "requests a second of one project and process; one more is answered 429"
    )
    max_bytes_per_s: int | None = _number(
        None, "bytes of bodies a second of one project and process, as sent; then 429 until it is made up for"
    )
    max_sql_queries: int = _number(2, "SQL queries of one process that run at once", most=64)
    max_sql_waiting: int = _number(
        16, "SQL queries that wait for their turn; one more is answered 503", least=0
    )
    max_sql_s: int = _number(60, "seconds that a SQL query may run", most=86_400)
    max_sql_rows: int = _number(100_000, "rows that a SQL query may ask for")
    max_sql_mb: int = _number(1024, "MB of memory of one SQL query", least=64, most=2**20)
    allow_host: tuple[str, ...] = _names(
        "names in `Host` that are answered besides localhost and the address listened on",
        form=_HOST,
        hint="a host alone, as traces.example.org: any port is answered",
    )
    allow_origin: tuple[str, ...] = _names(
        "origins of web pages that may call the server, as `https://traces.example.org`",
        form=rf"https?://{_HOST}(?::\d{{1,5}})?/?",
        hint="scheme, host and port, as https://traces.example.org",
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int) and not one.metadata["least"] <= value <= one.metadata["most"]:
                hint = f"between {one.metadata['least']} and {one.metadata['most']}"
                raise InvalidSetting(setting=one.name, value=value, hint=hint)
            if isinstance(value, tuple):
                _require_form(one, value)
        if self.max_bytes_in_hand < 2 * self.max_body_bytes:
            raise InvalidSetting(
                max_bytes_in_hand=self.max_bytes_in_hand,
                max_body_bytes=self.max_body_bytes,
                hint="a body of the allowed size must fit twice, compressed and not",
            )

    @property
    def limits(self) -> Limits:
        """What one event and one body may be."""
        return Limits(
            max_event_bytes=self.max_event_bytes,
            max_depth=self.max_depth,
            max_body_bytes=self.max_body_bytes,
            max_events=self.max_events,
            max_blob_bytes=self.max_blob_bytes,
            max_offloaded_event_bytes=self.max_offloaded_event_bytes,
        )


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,6})([smhd])")


def seconds_of(text: str) -> int | None:
    """A length of time as 30s, 15m, 12h or 7d; None where it is none."""
    match = _DURATION.fullmatch(text)
    return None if match is None else int(match[1]) * _UNITS_S[match[2]]


SETTINGS = Settings()
"""The defaults."""


def read_settings(environ: Mapping[str, str], *, given: Mapping[str, Any]) -> Settings:
    """The settings of a server.

    Args:
        environ: numbers are decimal; several names stand with commas between them.
        given: what the command line says, by setting; None or an absent name: nothing.

    Raises:
        InvalidSetting: a value is of the wrong kind, or out of its range.
    """
    values: dict[str, Any] = {}
    for one in fields(Settings):
        if given.get(one.name) is not None:
            values[one.name] = given[one.name]
        elif text := environ.get(variable(one.name), "").strip():
            values[one.name] = _read(one, text)
    return Settings(**values)


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def is_number(one: Field[Any]) -> bool:
    """Whether a setting is a number; the others are lists of names."""
    return "least" in one.metadata


def _read(one: Field[Any], text: str) -> int | tuple[str, ...]:
    if not is_number(one):
        return tuple(name.strip() for name in text.split(",") if name.strip())
    if not (text.isascii() and text.isdecimal()):
        raise InvalidSetting(setting=variable(one.name), value=text, hint="write a whole number")
    return int(text)
