"""Events of every kind, drawn from the models themselves: a new field is covered the day it is declared."""

from __future__ import annotations

import base64
import json
import math
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import numpy as np
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tests.wire.grammar import Spelling, strings, texts
from tracestore.ids import id_problem
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.candidate_set import Member
from tracestore.wire.completion import CompletionFields, VersionRun
from tracestore.wire.events import MODELS, AnyEvent

ids = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(
    lambda text: id_problem(text) is None
)
spans = texts().filter(lambda text: text != b"null").map(Raw)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(TokenIds.of)


@st.composite
def logprobs(draw: st.DrawFn, length: int) -> Logprobs:
    """Of either dtype, with -0, subnormals, positions without a value, and NaN and Infinity."""
    listed = st.lists(st.none() | st.floats() | st.floats(width=32), min_size=length, max_size=length)
    binary = st.lists(st.floats(width=32), min_size=length, max_size=length)
    doubles = binary.map(lambda values: Logprobs.of(np.asarray(values, dtype="<f8")))
    return draw(listed.map(Logprobs.of) | doubles)


def events(kind: str) -> st.SearchStrategy[AnyEvent]:
    return _built(MODELS[kind])


any_events = st.sampled_from(sorted(MODELS)).flatmap(events)


@st.composite
def _built(draw: st.DrawFn, model: type[BaseModel]) -> Any:
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if name in ("kind", "v"):
            continue
        if field.is_required() or draw(st.booleans()):
            fields[name] = draw(_of_field(field))
    if issubclass(model, CompletionFields) and "logprobs" in fields:
        fields["logprobs"] = draw(logprobs(len(fields["token_ids"]))) if fields.get("token_ids") else None
    if fields.get("versions"):
        fields["versions"] = (
            VersionRun(start=0, name="p", version=1),
            VersionRun(start=3, name="q", version=2),
        )
    if fields.get("parent_call_id") is not None:
        fields["parent_call_id"] = "p" + fields["id"][:9]
    for needed, names in _NEEDS.get(model.__name__, ()):
        if not all(fields.get(name) is not None for name in needed):
            _drop(fields, names)
    for kept, names in _EXCLUDES.get(model.__name__, ()):
        if fields.get(kept) is not None:
            _drop(fields, names)
    if model is Member and fields.get("call_id") is None and fields.get("agent_id") is None:
        fields["call_id"] = draw(ids)
    return model.model_validate(fields)


def _drop(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        fields.pop(name, None)


_NEEDS: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "Call": ((("parent_call_id",), ("context", "prompt_token_ids_delta", "parent_completion")),),
    "RewardTarget": (
        (("candidate_set_id", "member"), ("candidate_set_id", "member")),
        (("call_id",), ("completion",)),
        (("completion", "token_start", "token_length"), ("token_start", "token_length")),
    ),
}
"""Per model, in order: without all of these fields, not those either."""

_EXCLUDES: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "Call": (("prompt_token_ids", ("prompt_token_ids_delta",)),),
    "Member": (("call_id", ("agent_id",)),),
}
"""Per model: with this field, none of those."""


def _of_field(field: FieldInfo) -> st.SearchStrategy[Any]:
    return _of(field.annotation, field.metadata)


def _of(annotation: Any, metadata: list[Any]) -> st.SearchStrategy[Any]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _of(args[0], [*metadata, *args[1:]])
    if origin in (Union, UnionType):
        return st.one_of([_of(arg, metadata) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(_of(args[0], []), min_size=1, max_size=3).map(tuple)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _built(annotation)
    return _of_type(annotation, metadata)


def _of_type(annotation: Any, metadata: list[Any]) -> st.SearchStrategy[Any]:
    if annotation is NoneType:
        return st.none()
    if annotation is Raw:
        return spans
    if annotation is TokenIds:
        return token_ids
    if annotation is Logprobs:
        return logprobs(0)
    if annotation is bool:
        return st.booleans()
    if annotation is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if annotation is int:
        return st.integers(*_bounds(metadata))
    assert annotation is str, annotation
    if any("AfterValidator" in type(m).__name__ for m in metadata):
        return ids
    if any(getattr(m, "pattern", None) for m in metadata):
        return st.text("0123456789abcdef", min_size=64, max_size=64)
    return strings


def _bounds(metadata: list[Any]) -> tuple[int, int]:
    low, high = -(2**63), 2**63 - 1
    for item in _flat(metadata):
        if isinstance(item, annotated_types.Ge):
            low = item.ge
        if isinstance(item, annotated_types.Lt):
            high = item.lt - 1
    return low, high


def _flat(metadata: list[Any]) -> list[Any]:
    return [
        item for one in metadata for item in (_flat(one.metadata) if isinstance(one, FieldInfo) else [one])
    ]


def spelled(value: Any, spell: Spelling) -> str:
    """Some JSON text of an event: keys in any order, any white space and escapes, spans verbatim."""
    if isinstance(value, Raw):
        return value.decode()
    if isinstance(value, BaseModel):
        names = [n for n in type(value).model_fields if n in ("v", "kind") or n in value.model_fields_set]
        spell.choices.shuffle(names)
        members = (
            f"{spell.string(n)}{spell.space()}:{spell.space()}{spelled(getattr(value, n), spell)}"
            for n in names
        )
        return "{" + spell.space() + spell.comma().join(members) + spell.space() + "}"
    if isinstance(value, Logprobs) and Logprobs.of(value.json()) != value:
        # A list does not say that its values are float64 where all of them fit float32.
        binary = {"dtype": value.dtype, "base64": base64.b64encode(value.data).decode()}
        return json.dumps(binary | ({"nulls": list(value.nulls)} if value.nulls else {}))
    if isinstance(value, (TokenIds, Logprobs)):
        return "[" + spell.comma().join(spelled(x, spell) for x in value.json()) + "]"
    if isinstance(value, tuple):
        return "[" + spell.comma().join(spelled(x, spell) for x in value) + "]"
    if isinstance(value, str):
        return spell.string(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return repr(value) if type(value) in (int, float) else {None: "null", True: "true", False: "false"}[value]
