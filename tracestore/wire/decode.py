"""JSON text -> event: the fast path where it is certain, else the exact one, which has words for every fault.

The exact path cuts the opaque spans first, then the models check what is left of the envelope.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tracestore.ids import id_problem
from tracestore.wire.base import WIRE_VERSIONS, Raw
from tracestore.wire.check import DOUBTS
from tracestore.wire.errors import (
    BodyError,
    BodyTooLarge,
    EventError,
    InvalidField,
    InvalidFields,
    InvalidId,
    MalformedJson,
    MissingField,
    NotAnObject,
    NotFinite,
    UnknownField,
    UnknownKind,
    UnsupportedVersion,
)
from tracestore.wire.events import KINDS, MODELS, AnyEvent
from tracestore.wire.fast import fast_event
from tracestore.wire.limits import LIMITS, Limits
from tracestore.wire.memory import SpanMemory
from tracestore.wire.scan import MAX_DEPTH, SPAN, Each, Shape, check_depth, cut_array, decode_utf8, peek, scan

__all__ = [
    "LIMITS",
    "Decoded",
    "Limits",
    "SpanMemory",
    "decode_body",
    "decode_event",
    "exact_event",
    "opaque_fields",
]

_NAMES = frozenset({"kind", "id"})
_IN_REQUEST = frozenset({"messages", "tools", "temperature", "max_tokens", "input", "prompt", "system"})
_PEEK_BYTES = 64 * 1024
"""How much of a refused event is read to name its kind and id."""


class Decoded(msgspec.Struct, frozen=True):
    """One item of a body: an event, or the reason why it is none."""

    index: int
    """Place in the body; blank NDJSON lines do not count."""
    event: AnyEvent | None
    error: EventError | None
    kind: str | None
    """As posted, wherever it could be read; the same for `id`."""
    id: str | None
    text: bytes
    """The event's own span of the body."""


def opaque_fields(model: type[BaseModel]) -> dict[str, Shape]:
    """Which fields of a model are kept as posted, nested models included.

    Example: Call -> {"meta": SPAN, "request": SPAN,
                      "completions": Each({"message": SPAN, "top_logprobs": SPAN})}
    """
    shapes = ((name, _shape(field.annotation)) for name, field in model.model_fields.items())
    return {name: shape for name, shape in shapes if shape is not None}


def _shape(annotation: Any) -> Shape | None:
    if annotation is Raw:
        return SPAN
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return opaque_fields(annotation) or None
    shapes = [shape for shape in map(_shape, get_args(annotation)) if shape is not None]
    if not shapes:
        return None
    assert len(shapes) == 1, f"{annotation} has two opaque readings"
    return Each(shapes[0]) if getattr(annotation, "__origin__", None) is tuple else shapes[0]


def _of_all_kinds(models: Iterable[type[BaseModel]]) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    plain: set[str] = set()
    for model in models:
        opaque = opaque_fields(model)
        plain.update(model.model_fields.keys() - opaque.keys())
        for name, shape in opaque.items():
            assert shapes.setdefault(name, shape) == shape, f"field {name} is opaque in two ways"
    assert not plain & shapes.keys(), f"fields opaque in one kind only: {plain & shapes.keys()}"
    return shapes


# One set of shapes for all kinds, so that `kind` may stand anywhere in the object and one pass is enough.
OPAQUE = _of_all_kinds(MODELS.values())


def decode_event(text: bytes, *, limits: Limits = LIMITS, memory: SpanMemory | None = None) -> AnyEvent:
    """The event in a JSON text.

    Args:
        memory: what was read before, so that requests which repeat it are read faster; no verdict and no
            value depends on it.

    Raises:
        EventError: a subclass per problem; the message names the field path and says what to do.
    """
    event = fast_event(text, limits=limits, memory=memory)
    return exact_event(text, limits=limits) if event is None else event


def exact_event(text: bytes, *, limits: Limits = LIMITS) -> AnyEvent:
    """The same by the exact path alone: what `decode_event` must agree with."""
    try:
        fields = scan(text, opaque=OPAQUE, limits=limits)
        constant = None
    except NotFinite as error:
        # The declaration may stand after the number: read again, then ask for it.
        fields = scan(text, opaque=OPAQUE, limits=limits, non_finite=True)
        constant = error
    if not isinstance(fields, dict):
        raise NotAnObject(found=type(fields).__name__, hint='post {"v": 1, "kind": ..., "id": ..., ...}')
    model = _model(fields)
    if constant is not None:
        _check_declared(model, fields, constant)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _event_error(error, model) from None


def _model(fields: Mapping[str, Any]) -> type[AnyEvent]:
    """The model of the event's kind, once v, kind and id are known to be usable."""
    version = fields.get("v")
    if type(version) is not int or version not in WIRE_VERSIONS:
        reads = " or ".join(str(v) for v in WIRE_VERSIONS)
        missing = "v" not in fields
        raise UnsupportedVersion(
            path="v",
            v=None if missing else _brief(version),
            hint=f'every event states its wire version: "v": {reads}'
            if missing
            else f"this server reads v = {reads}",
        )
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in MODELS:
        near = difflib.get_close_matches(kind, KINDS, n=1) if isinstance(kind, str) else []
        hint = f"did you mean {near[0]!r}?" if near else f"the kinds are {', '.join(KINDS)}"
        raise UnknownKind(path="kind", kind=None if kind is None else _brief(kind), hint=hint)
    identity = fields.get("id")
    problem = (
        id_problem(identity)
        if isinstance(identity, str)
        else "every event needs an id made by its sender (a UUIDv7 is a good one)"
        if identity is None
        else "an id is a string"
    )
    if problem:
        raise InvalidId(path="id", id=None if identity is None else _brief(identity), hint=problem)
    return MODELS[kind]


def _check_declared(model: type[AnyEvent], fields: Mapping[str, Any], constant: NotFinite) -> None:
    if "non_finite" not in model.model_fields:
        constant.hint = f"a {fields['kind']} holds finite numbers only: leave the field out, or post a gap"
    elif fields.get("non_finite") is True:
        return
    constant.args = (str(constant),)
    raise constant


def _event_error(error: ValidationError, model: type[AnyEvent]) -> EventError:
    """Pydantic's report as one error in the words of the wire."""
    details = error.errors(include_url=False, include_context=True)
    if len(details) == 1:
        return _field_error(details[0], model)
    # A wrong type inside a union is reported once per branch; the first says it.
    distinct = {_path(detail["loc"]): detail for detail in reversed(details)}
    errors = [_field_error(detail, model) for detail in reversed(distinct.values())]
    if len(errors) == 1:
        return errors[0]
    listed = "; ".join(str(one) for one in errors[:5])
    more = f"; and {len(errors) - 5} more" if len(errors) > 5 else ""
    return InvalidFields(fields=len(errors), hint=listed + more)


def _field_error(detail: ErrorDetails, model: type[AnyEvent]) -> EventError:
    path = _path(detail["loc"]) or None
    if detail["type"] == "extra_forbidden":
        name = str(detail["loc"][-1])
        fields = _model_at(model, detail["loc"][:-1]).model_fields
        near = difflib.get_close_matches(name, fields, n=1, cutoff=0.75)
        hint = f"did you mean {near[0]!r}? " if near else ""
        if name in _IN_REQUEST and "request" in fields:
            hint = "it is a part of request, as it was sent to the model; "
        return UnknownField(path=path, hint=hint + "fields of your own go under meta")
    if detail["type"] == "missing":
        return MissingField(path=path)
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "it should be")
    found = detail.get("input")
    shown = None if detail["type"] == "value_error" and not isinstance(found, (str, int)) else _brief(found)
    return InvalidField(path=path, found=shown, hint=message + _nearest_literal(found, detail))


def _nearest_literal(found: Any, detail: ErrorDetails) -> str:
    if detail["type"] != "literal_error" or not isinstance(found, str):
        return ""
    near = difflib.get_close_matches(found, re.findall(r"'([^']*)'", detail["ctx"]["expected"]), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The nested model a path leads to."""
    for step in loc:
        if isinstance(step, str) and step in model.model_fields:
            model = _nested(model.model_fields[step].annotation) or model
    return model


def _nested(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_nested, get_args(annotation))), None)


def _path(loc: tuple[int | str, ...]) -> str:
    """("completions", 0, "logprobs") -> completions[0].logprobs"""
    steps = (
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc if not _is_pydantics_own(step)
    )
    return "".join(steps).removeprefix(".")


def _is_pydantics_own(step: int | str) -> bool:
    # Steps such as "function-plain[of()]" or "tagged-union[...]" name validators, not fields.
    return isinstance(step, str) and ("[" in step or "(" in step)


def _brief(value: Any) -> str:
    """A posted value as a short piece of text, whatever it is."""
    if isinstance(value, (tuple, list)):
        return f"array of {len(value)}"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "integer of over 40 digits"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def decode_body(
    body: bytes,
    *,
    content_type: str | None = None,
    limits: Limits = LIMITS,
    memory: SpanMemory | None = None,
) -> list[Decoded]:
    """The events of one request body: an object, an array, or NDJSON.

    Args:
        body: decompressed bytes.
        content_type: `application/json` is one object or one array, `application/x-ndjson` one event a line;
            anything else is looked at.
        memory: as for `decode_event`; a server keeps one for all bodies.

    Returns:
        One item per event, in order. An event that cannot be read fails alone.

    Raises:
        BodyError: the array itself is malformed, or the body is empty: nothing can be told apart.
        BodyTooLarge: a limit of the whole body.
    """
    if len(body) > limits.max_body_bytes:
        raise BodyTooLarge(bytes=len(body), limit=limits.max_body_bytes, hint="send fewer events per request")
    solid = _SOLID.search(body)
    if solid is None:
        raise BodyError(hint="the body is empty: post one event, an array of events, or one event a line")
    start, media_type = solid.start(), _media_type(content_type)
    if media_type not in _NDJSON and body.startswith(b"[", start):
        certain = _certain_elements(body, limits=limits, memory=memory)
        if certain is not None:
            return certain
    decoded: list[Decoded] = []
    # Read as it is cut, while it is at hand; and counted: line breaks and digits may be a million events.
    for text in _split(body, start, media_type):
        if len(decoded) == limits.max_events:
            raise BodyTooLarge(limit=limits.max_events, hint="too many events: send fewer per request")
        decoded.append(_decoded(len(decoded), text, limits, memory))
    return decoded


def _media_type(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


_NDJSON = frozenset(
    {
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "application/x-jsonlines",
        "application/json-lines",
    }
)
_SOLID = re.compile(rb"[^ \t\r\n]")


def _split(body: bytes, start: int, media_type: str) -> Iterator[bytes]:
    """The texts of a body whose first character that is no white space stands at `start`."""
    if media_type in _NDJSON:
        return _lines(body, start)
    if body.startswith(b"[", start):
        return _elements(body)
    # Inside one pretty-printed object, no line but the first begins with a brace.
    if media_type != "application/json" and body.find(b"\n{", start) >= 0:
        return _lines(body, start)
    return iter([body.strip(b" \t\r\n")])


def _lines(body: bytes, start: int) -> Iterator[bytes]:
    while True:
        end = body.find(b"\n", start)
        if end < 0:
            yield body[start:].rstrip(b" \t\r")
            return
        yield body[start:end].rstrip(b" \t\r")
        following = _SOLID.search(body, end)
        if following is None:
            return
        start = following.start()


_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_FEW = 2**20
"""As many elements are cut before they are counted."""


def _certain_elements(body: bytes, *, limits: Limits, memory: SpanMemory | None) -> list[Decoded] | None:
    """The events of an array, if each of them is certain; then its commas are those that were seen."""
    if len(body) > 2 * _FEW and body.count(b",") >= _FEW:
        return None
    try:
        raws = _raws(body)
    except DOUBTS:
        return None
    if len(raws) > limits.max_events:
        return None
    decoded: list[Decoded] = []
    for index, raw in enumerate(raws):
        text = bytes(raw)
        event = fast_event(text, limits=limits, memory=memory)
        if event is None:
            return None
        decoded.append(Decoded(index, event, None, event.kind, event.id, text))
    return decoded


def _elements(body: bytes) -> Iterator[bytes]:
    try:
        # Deeper elements fail alone below; this much the scanner can skip without running out of stack.
        check_depth(body, limit=4 * MAX_DEPTH)
        for element in cut_array(decode_utf8(body)):
            yield element.encode("utf-8")
    except EventError as error:
        hint = f"the array cannot be read: {error}. With one event a line (NDJSON) a bad one fails alone"
        raise BodyError(hint=hint) from None


def _decoded(index: int, text: bytes, limits: Limits, memory: SpanMemory | None) -> Decoded:
    try:
        event = decode_event(text, limits=limits, memory=memory)
    except EventError as error:
        if isinstance(error, MalformedJson) and b"\n{" in text:
            error.hint = f"{error.hint}; for one event a line send content type application/x-ndjson"
        names = peek(text[:_PEEK_BYTES].decode("utf-8", "replace"), _NAMES)
        return Decoded(index, None, error, names.get("kind"), names.get("id"), text)
    return Decoded(index, event, None, event.kind, event.id, text)
