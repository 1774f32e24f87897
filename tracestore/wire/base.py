"""What every wire model shares: frozen, closed to unknown fields, opaque JSON kept as the bytes posted."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import core_schema

from tracestore.ids import id_problem

WIRE_VERSIONS = (1,)
"""Wire versions this server reads: the current one first, then the one before it (none yet)."""

Phase = Literal["start", "end", "whole"]
"""An entity is posted whole, or as a start and an end that together equal the whole."""


_encode = json.JSONEncoder(separators=(",", ":")).encode


class Raw(bytes):
    """JSON text kept as posted: a span of the body, never parsed and written again.

    Equality is of bytes; `wire.canonical` compares by value. Python values given by our own code
    (importers, tests) are written once, as ASCII, so that lone surrogates survive as escapes.
    """

    __slots__ = ()

    @classmethod
    def of(cls, value: Any) -> Self:
        """The JSON text of a Python value."""
        if isinstance(value, cls):
            return value
        return cls(_encode(value).encode("ascii"))

    def value(self) -> Any:
        """The parsed value, for reading only: numbers beyond a double lose digits here, the bytes do not."""
        try:
            return json.loads(self)
        except ValueError:  # more digits than int() takes
            return json.loads(self, parse_int=float)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.of, serialization=core_schema.plain_serializer_function_ser_schema(lambda raw: raw.value())
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"description": "any JSON value, kept byte for byte"}


def _checked_id(value: str) -> str:
    problem = id_problem(value)
    if problem:
        raise ValueError(problem)
    return value


Id = Annotated[str, AfterValidator(_checked_id)]
"""A client-made id, see `tracestore.ids`."""

Nanoseconds = Annotated[int, Field(ge=0, lt=2**63)]
"""UTC nanoseconds since 1970. Times describe; they never order anything."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Ordinal = Annotated[int, Field(ge=0, lt=2**31)]


class Wire(BaseModel):
    """Frozen, and an unknown field is an error: a misspelt field must not be lost in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _python_shapes(cls, data: Any) -> Any:
        # Frozen models hold tuples, JSON gives lists; a null span is the absent value. The rest stays strict.
        if isinstance(data, dict):
            return {
                name: tuple(value)
                if type(value) is list
                else None
                if type(value) is Raw and value == b"null"
                else value
                for name, value in data.items()
            }
        return data


class EventBase(Wire):
    """What every event has. The project is named by the connection, never by the event."""

    v: Literal[1] = 1
    """Wire version."""
    id: Id
    """Unique per project and kind; the same again is a duplicate, another JSON value a conflict, unless its
    revision is another."""
    revision: Ordinal | None = None
    """How many records of its source this was made of, where the source may grow. Of one kind, id and phase
    the highest revision holds and replaces the lower ones; None is 0. Equal revisions must agree."""
    meta: Raw | None = None
    """Free JSON of the harness; the only place where unknown fields may stand."""


class PhasedEvent(EventBase):
    phase: Phase = "whole"
    """`start`, `end`, or `whole` (the default). What both halves tell must agree, opaque JSON byte for byte;
    of a nested object each may tell a part."""
    started_at: Nanoseconds | None = None
    ended_at: Nanoseconds | None = None


class EpisodeEvent(EventBase):
    """An event that lies inside one episode."""

    episode_id: Id
    at: Nanoseconds | None = None
    """When it happened."""
