"""Wire models -> msgspec structs -> the same models: types checked and spans cut in one C pass.

A struct is made from each Pydantic model, field by field, so a field is declared once. msgspec may take only
what the model takes: it reads numbers, strings and literals as strictly, knows the same bounds, and refuses
unknown fields. What it cannot see (an id's characters, rules over several fields) is asked of the model's own
functions. The event is then put together as Pydantic does it after validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
import msgspec
import numpy as np
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tracestore.ids import id_problem
from tracestore.wire.arrays import MAX_TOKEN_ID, Logprobs, TokenIds
from tracestore.wire.base import Id, Raw
from tracestore.wire.check import Doubt, holds_negative_zero


class _Int32(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    dtype: Literal["int32"]
    base64: bytes


class _Floats(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    dtype: Literal["float32", "float64"]
    base64: bytes


_TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
_IS_ID = get_args(Id)[1]
_SCALARS = frozenset({str, int, float, bool, NoneType})
M = TypeVar("M", bound=BaseModel)
Convert = Callable[[Any, Any, bytes], Any]
"""(value in the struct, the same value as `certain` read it, the text) -> value in the model.

Raises Doubt (a ValueError) where it is not certain that the model takes the value.
"""


@dataclass(frozen=True, slots=True)
class Plan(Generic[M]):
    """How texts become one model."""

    struct: type[msgspec.Struct]
    """What msgspec reads; a field that was not named holds its default."""
    built: Callable[[Any, Any, bytes], M]
    """The model of a struct, as a `Convert`: the object as `certain` read it says which fields were named."""


@cache
def plan(model: type[M]) -> Plan[M]:
    """The plan of a wire model, nested models included."""
    fields = model.model_fields
    struct = msgspec.defstruct(
        model.__name__,
        [_field(name, field) for name, field in fields.items()],
        forbid_unknown_fields=True,
        kw_only=True,
        gc=False,
    )
    ids = tuple(name for name, field in fields.items() if _is_id(field.annotation, field.metadata))
    numbers = tuple(name for name, field in fields.items() if _is_number(field.annotation))
    found = ((name, _convert(field.annotation, field.metadata)) for name, field in fields.items())
    converts = {name: convert for name, convert in found if convert is not None and name not in ids}
    return Plan(struct, _builder(model, numbers=numbers, ids=ids, converts=converts, rules=_rules(model)))


def _rules(model: type[BaseModel]) -> tuple[Callable[[Any], Any], ...]:
    """The model's validators over several fields; they raise ValueError."""
    decorators = model.__pydantic_decorators__
    assert not decorators.field_validators, f"{model.__name__}: a validator of one field has no place here"
    return tuple(one.func for one in decorators.model_validators.values() if one.info.mode == "after")


_SOURCE = """
def built(found, named, text):
    values = fields_of(found)
{fields}
    made = new(model)
    set_dict(made, values)
    set_fields_set(made, set(named))
    set_extra(made, None)
    set_private(made, None)
{rules}
    return made
"""
_NUMBERS = """\
    if ({0}) and holds_negative_zero(text):
        raise Doubt("-0")"""
_ID = """\
    if (value := found.{0}) is not None and id_problem(value) is not None:
        raise Doubt("{0}")"""
_CONVERT = """\
    if (value := found.{0}) is not None:
        values["{0}"] = convert_{0}(value, named["{0}"], text)"""


def _builder(
    model: type[M],
    *,
    numbers: Sequence[str],
    ids: Sequence[str],
    converts: Mapping[str, Convert],
    rules: Sequence[Callable[[M], Any]],
) -> Callable[[Any, Any, bytes], M]:
    """A `Convert` from structs to models.

    Written out and compiled, as dataclasses are: it runs for each object of each event, and loops over what
    is known beforehand cost half as much as the work.
    """
    zeros = " or ".join(f"found.{name} == 0" for name in numbers)
    checks = [_NUMBERS.format(zeros)] if numbers else []
    checks += [_ID.format(name) for name in ids]
    source = _SOURCE.format(
        fields="\n".join([*checks, *(_CONVERT.format(name) for name in converts)]),
        rules="\n".join(f"    rule_{number}(made)" for number in range(len(rules))),
    )
    names: dict[str, Any] = {
        "fields_of": msgspec.structs.asdict,
        "holds_negative_zero": holds_negative_zero,
        "id_problem": id_problem,
        "Doubt": Doubt,
        "model": model,
        "new": object.__new__,
        # The slots themselves: a frozen model's own __setattr__ refuses, object's looks them up each time.
        "set_dict": BaseModel.__dict__["__dict__"].__set__,
        "set_fields_set": BaseModel.__dict__["__pydantic_fields_set__"].__set__,
        "set_extra": BaseModel.__dict__["__pydantic_extra__"].__set__,
        "set_private": BaseModel.__dict__["__pydantic_private__"].__set__,
        **{f"convert_{name}": convert for name, convert in converts.items()},
        **{f"rule_{number}": rule for number, rule in enumerate(rules)},
    }
    exec(compile(source, f"<built {model.__name__}>", "exec"), names)
    built: Callable[[Any, Any, bytes], M] = names["built"]
    return built


def _field(name: str, field: FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    annotation = _annotation(field.annotation, field.metadata)
    # An event states its version and kind, though a model made in Python need not.
    if field.is_required() or name in ("v", "kind"):
        return name, annotation
    assert field.default_factory is None, f"{name}: a default that is made anew"
    return name, annotation, field.default


def _annotation(annotation: Any, metadata: list[Any]) -> Any:
    """The type of a field as msgspec reads it."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotation(args[0], [*metadata, *args[1:]])
    if origin in (Union, UnionType):
        if Raw in args:
            return msgspec.Raw
        return Union[tuple(_annotation(arg, metadata) for arg in args)]  # noqa: UP007 - made from values
    bare = _bare(annotation, origin, args)
    bounds = dict(_bounds(metadata)) if annotation is not NoneType else {}
    return Annotated[bare, msgspec.Meta(**bounds)] if bounds else bare


def _bare(annotation: Any, origin: Any, args: tuple[Any, ...]) -> Any:
    if annotation is Raw:
        return msgspec.Raw
    if annotation is TokenIds:
        return list[_TokenId] | _Int32
    if annotation is Logprobs:
        return list[float | None] | _Floats
    if origin is tuple:
        assert args[1:] == (...,), annotation
        return tuple[_annotation(args[0], []), ...]  # type: ignore[misc]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return plan(annotation).struct
    assert origin is Literal or annotation in _SCALARS, annotation
    return annotation


def _bounds(metadata: list[Any]) -> Iterator[tuple[str, Any]]:
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from _bounds(one.metadata)
        elif isinstance(one, annotated_types.Ge):
            yield "ge", one.ge
        elif isinstance(one, annotated_types.Lt):
            # msgspec keeps bounds as int64, and 2^63 is none.
            assert isinstance(one.lt, int)
            yield "le", one.lt - 1
        elif isinstance(one, annotated_types.MinLen):
            yield "min_length", one.min_length
        elif (pattern := getattr(one, "pattern", None)) is not None:
            # Python's $ also stands before a last line break, Pydantic's only at the end.
            yield "pattern", rf"(?:{pattern})\Z"
        else:
            assert one == _IS_ID, f"a bound that is not known here: {one!r}"


def _convert(annotation: Any, metadata: list[Any]) -> Convert | None:
    """How a value of a struct becomes the model's; None: it is that already."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _convert(args[0], [*metadata, *args[1:]])
    if origin in (Union, UnionType):
        converts = [one for one in (_convert(arg, metadata) for arg in args if arg is not NoneType) if one]
        assert len(converts) <= 1, annotation
        return converts[0] if converts else None
    if origin is tuple:
        return _each(_convert(args[0], []))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return plan(annotation).built
    return _id if _IS_ID in metadata else _CONVERTS.get(annotation)


def _is_number(annotation: Any) -> bool:
    """Whether a field may hold one number."""
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return any(map(_is_number, get_args(annotation)))
    return annotation in (int, float)


def _is_id(annotation: Any, metadata: list[Any]) -> bool:
    """Whether a field holds one id."""
    if get_origin(annotation) in (Union, UnionType):
        return any(_is_id(arg, metadata) for arg in get_args(annotation))
    return _IS_ID in (*metadata, *getattr(annotation, "__metadata__", ()))


def _each(convert: Convert | None) -> Convert:
    if convert is None:
        return _numbers
    return lambda found, named, text: tuple(
        [convert(one, name, text) for one, name in zip(found, named, strict=True)]
    )


def _numbers(found: tuple[Any, ...], named: Any, text: bytes) -> tuple[Any, ...]:
    if 0 in found and holds_negative_zero(text):
        raise Doubt("-0")
    return found


def _id(found: str, named: Any, text: bytes) -> str:
    if id_problem(found) is not None:
        raise Doubt("id")
    return found


def _span(found: msgspec.Raw, named: Any, text: bytes) -> Raw | None:
    span = Raw(found)
    # A null span is the absent value.
    return None if span == b"null" else span


def _token_ids(found: list[int] | _Int32, named: Any, text: bytes) -> TokenIds:
    if isinstance(found, list):
        if 0 in found and holds_negative_zero(text):
            raise Doubt("-0")
        return TokenIds(np.array(found, dtype="<i4").tobytes())
    data = found.base64
    # The last byte of each little-endian int32 holds its sign.
    if len(data) % 4 or not data[3::4].isascii():
        raise Doubt("token ids")
    return TokenIds(data)


def _logprobs(found: list[float | None] | _Floats, named: Any, text: bytes) -> Logprobs:
    if isinstance(found, list):
        if 0 in found and holds_negative_zero(text):
            raise Doubt("-0")
        return Logprobs.of(found)
    data = found.base64
    if len(data) % (4 if found.dtype == "float32" else 8):
        raise Doubt("logprobs")
    return Logprobs(data, found.dtype)


_CONVERTS: dict[Any, Convert] = {Raw: _span, TokenIds: _token_ids, Logprobs: _logprobs}
