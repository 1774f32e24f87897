"""Wire fields <-> columns, by rule and not by list.

    status            -> status                     as it is
    task              -> task_key                   opaque JSON: a content
    parent_agent_id   -> parent_agent_key           another entity: its row
    usage.cost_usd    -> cost_usd                   a nested model: columns of the same row

Fields that are lists, or bytes that are shared between rows, have tables of their own (`SPECIAL`).
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from sqlalchemy import Table

from tracestore.store import tables as t
from tracestore.wire.base import Raw
from tracestore.wire.events import MODELS

TABLES: dict[str, Table] = {
    "group": t.task_group,
    "episode": t.episode,
    "agent": t.agent,
    "call": t.call,
    "completion": t.completion_event,
    "tool_call": t.tool_call,
    "context_edit": t.context_edit,
    "candidate_set": t.candidate_set,
    "candidate_selection": t.candidate_selection,
    "reward": t.reward,
    "gap": t.gap,
    "snapshot": t.snapshot,
    "blob": t.blob_ref,
    "consumption": t.consumption,
}
"""The table of each kind of event."""

PLACEHOLDERS = frozenset({"group", "episode", "agent", "call", "snapshot", "candidate_set"})
"""Kinds that others refer to by id, so that a row must be there before the event is."""

REFERS_TO = {
    "group_id": "group",
    "episode_id": "episode",
    "forked_from_episode_id": "episode",
    "agent_id": "agent",
    "parent_agent_id": "agent",
    "call_id": "call",
    "parent_call_id": "call",
    "spawned_by_call_id": "call",
    "forked_from_call_id": "call",
    "trigger_call_id": "call",
    "author_call_id": "call",
    "before_call_id": "call",
    "after_call_id": "call",
    "selector_call_id": "call",
    "snapshot_id": "snapshot",
    "candidate_set_id": "candidate_set",
}

SPECIAL: dict[str, frozenset[str]] = {
    "call": frozenset({"request", "prompt_token_ids", "prompt_token_ids_delta", "completions", "attempts"}),
    "completion": frozenset(
        {
            *("call_id", "index", "message", "finish_reason", "token_ids", "logprobs", "top_logprobs"),
            *("versions", "partial", "stop_token_stripped", "episode_id"),
        }
    ),
    "context_edit": frozenset({"replaced_call_ids", "kept_call_ids"}),
    "candidate_set": frozenset({"members"}),
    "candidate_selection": frozenset({"selected", "continued", "scores"}),
    "blob": frozenset({"shape"}),
}
_ENVELOPE = frozenset({"v", "kind", "id", "phase", "revision"})
_NESTED_PREFIX = {"policy": "policy_", "usage": "", "error": "error_", "target": ""}

How = Literal["plain", "content", "ref"]


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """One wire field and the column it fills."""

    path: tuple[str, ...]
    """("usage", "cost_usd") for a nested field."""
    column: str
    how: How
    kind: str | None
    """Kind referred to, for a ref; role of the content, for a content."""


@cache
def columns_of(kind: str) -> tuple[FieldColumn, ...]:
    """Every column that a kind's fields fill by rule."""
    return tuple(_columns(MODELS[kind], SPECIAL.get(kind, frozenset()) | _ENVELOPE, (), ""))


def _columns(
    model: type[BaseModel], skip: frozenset[str], path: tuple[str, ...], prefix: str
) -> Iterable[FieldColumn]:
    for name, info in model.model_fields.items():
        if name in skip:
            continue
        here = (*path, name)
        inner = _plain_type(info.annotation)
        if name in _NESTED_PREFIX and isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _columns(inner, frozenset(), here, _NESTED_PREFIX[name])
        elif name in REFERS_TO:
            yield FieldColumn(here, name.removesuffix("_id") + "_key", "ref", REFERS_TO[name])
        elif inner is Raw:
            yield FieldColumn(here, prefix + name + "_key", "content", name)
        else:
            yield FieldColumn(here, prefix + name, "plain", None)


def _plain_type(annotation: Any) -> Any:
    """The type of an optional field without its None."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [part for part in typing.get_args(annotation) if part is not type(None)]
        return inner[0] if len(inner) == 1 else annotation
    return annotation


@cache
def contents_of(kind: str) -> tuple[FieldColumn, ...]:
    """The columns of a kind that are opaque JSON."""
    return tuple(field for field in columns_of(kind) if field.how == "content")


def value_at(event: BaseModel, path: tuple[str, ...]) -> Any:
    """The value of a field, None where a model on the way is None."""
    value: Any = event
    for name in path:
        if value is None:
            return None
        value = getattr(value, name)
    return value


# --- Which fields an event named ---------------------------------------------------------------------

Shape = Mapping[str, Any]
"""Field -> 0 where it was null, 1 for a value, a shape for a model, a list of shapes for a list of models
(the last one stands for all that follow)."""


def shape_text(model: BaseModel) -> str:
    """The shape of the fields that were named, so that what was left out stays left out when read back."""
    return _written(_form_of(type(model))(model))


_Form = tuple[Any, ...]
"""All that a shape is made of: (model, fields named, what there is of each of `_telling(model)`: of a model
its form, of a tuple of models their forms, of another value whether it is None). Senders repeat themselves,
so the texts of most forms are known, and a form is faster to make than its text."""


class _Telling(NamedTuple):
    """A field whose value has a say in the shape."""

    name: str
    model: type[BaseModel] | None
    """What it holds, where that is a model or a tuple of them."""
    is_tuple: bool


@cache
def _telling(model: type[BaseModel]) -> tuple[_Telling, ...]:
    found = []
    for name, info in model.model_fields.items():
        inner = _plain_type(info.annotation)
        is_tuple = typing.get_origin(inner) is tuple
        item = typing.get_args(inner)[0] if is_tuple else inner
        if isinstance(item, type) and issubclass(item, BaseModel):
            found.append(_Telling(name, item, is_tuple))
        elif types.NoneType in typing.get_args(info.annotation):
            found.append(_Telling(name, None, False))
    return tuple(found)


@cache
def _form_of(model: type[BaseModel]) -> Callable[[BaseModel], _Form]:
    """What makes the form of a model; compiled, for it looks at every field of every event."""
    parts = ["model", "frozenset(made.__pydantic_fields_set__)"]
    names: dict[str, Any] = {"model": model}
    for name, inner, is_tuple in _telling(model):
        if inner is None:
            parts.append(f"values[{name!r}] is None")
        else:
            parts.append(f"None if (one := values[{name!r}]) is None else form_{name}(one)")
            names[f"form_{name}"] = partial(_forms, _form_of(inner)) if is_tuple else _form_of(inner)
    source = f"def form(made):\n    values = made.__dict__\n    return ({', '.join(parts)})"
    exec(compile(source, f"<form of {model.__name__}>", "exec"), names)
    form: Callable[[BaseModel], _Form] = names["form"]
    return form


def _forms(form: Callable[[BaseModel], _Form], models: Iterable[BaseModel]) -> _Form:
    forms = [form(one) for one in models]
    while len(forms) > 1 and forms[-1] == forms[-2]:
        forms.pop()
    return tuple(forms)


@lru_cache(maxsize=4096)
def _written(form: _Form) -> str:
    model, named, *told = form
    shapes = {field.name: _value_shape(field, one) for field, one in zip(_telling(model), told, strict=True)}
    members = [
        f'"{name}":{shapes.get(name, 1)}'
        for name in model.model_fields
        if name in named and name not in ("kind", "id")
    ]
    return "{" + ",".join(members) + "}"


def _value_shape(field: _Telling, told: Any) -> str:
    if field.model is None:
        return "0" if told else "1"
    if told is None:
        return "0"
    if not field.is_tuple:
        return _written(told)
    return "[" + ",".join(map(_written, told)) + "]" if told else "1"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which columns the events of one kind and shape fill, read in one go."""

    plain: tuple[str, ...]
    """Columns whose values `values` gives."""
    values: Callable[[BaseModel], tuple[Any, ...]]
    contents: tuple[FieldColumn, ...]
    references: tuple[tuple[str, str, Callable[[BaseModel], str]], ...]
    """(column, kind referred to, what gives the id)."""


@lru_cache(maxsize=4096)
def plan_of(kind: str, shape: str) -> Plan:
    """The plan of events whose `shape_text` this is. A field that is null or left out is no part of it."""
    named = [field for field in columns_of(kind) if _has_value(_parsed(shape), field.path)]
    plain = [field for field in named if field.how == "plain"]
    references = (field for field in named if field.how == "ref")
    return Plan(
        tuple(field.column for field in plain),
        _values_of([field.path for field in plain]),
        tuple(field for field in named if field.how == "content"),
        tuple((field.column, field.kind or "", attrgetter(".".join(field.path))) for field in references),
    )


def _has_value(shape: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(shape, Mapping):
            return False
        shape = shape.get(name, 0)
    return bool(shape != 0)


def _values_of(paths: Sequence[tuple[str, ...]]) -> Callable[[BaseModel], tuple[Any, ...]]:
    """What reads these fields of an event: nested ones of models that it has.

    Written out and compiled, and read from the models' own dicts: they answer three times as fast as the
    models, which look for private attributes first.
    """
    nested = {path[0] for path in paths if len(path) > 1}
    assert all(len(path) <= 2 for path in paths), "a nested model has no models in it"
    lines = [f"    {name} = event[{name!r}].__dict__" for name in sorted(nested)]
    values = (f"{path[0]}[{path[1]!r}]," if len(path) > 1 else f"event[{path[0]!r}]," for path in paths)
    source = ["def values(event):", "    event = event.__dict__", *lines, f"    return ({' '.join(values)})"]
    made: dict[str, Any] = {}
    exec(compile("\n".join(source), "<values of fields>", "exec"), made)
    found: Callable[[BaseModel], tuple[Any, ...]] = made["values"]
    return found


def item_shape(shapes: list[Shape], index: int) -> Shape:
    """The shape of one item of a list of models."""
    return shapes[min(index, len(shapes) - 1)]


def union(texts: Iterable[str]) -> Shape:
    """The fields named by any phase of an entity; a value beats a null."""
    shapes = [_parsed(text) for text in texts]
    if len(shapes) == 1:
        return shapes[0]
    fields: Shape = {}
    for shape in shapes:
        fields = _both(fields, shape)
    return fields


def _both(first: Any, second: Any) -> Any:
    """The shape of what two events tell of one value, each of them part of it."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {name: _both(first.get(name, 0), second.get(name, 0)) for name in {**first, **second}}
    if isinstance(first, list) and isinstance(second, list):
        length = max(len(first), len(second))
        return [_both(item_shape(first, index), item_shape(second, index)) for index in range(length)]
    return first if second == 0 else second


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Shape:
    shape: Shape = json.loads(text)
    return shape


@cache
def nested_model(kind: str, name: str) -> type[BaseModel]:
    """The model of a nested field."""
    model: type[BaseModel] = _plain_type(MODELS[kind].model_fields[name].annotation)
    return model
