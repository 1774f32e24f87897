"""Events -> entities: start and end become one whole, completions posted on their own join their call's.

    call start {id: c, request}  +  call end {id: c, completions}  ->  one call, its completions by (c,
    index)

Of a phase that came in several revisions the highest holds; what the others say is forgotten first. The whole
has the highest revision that one of its phases has.

Nothing here depends on the order of the events. A field that is null says nothing and agrees with
everything, inside nested objects too: each event may tell part of a usage or of a completion. What is told
twice is told alike, and opaque JSON byte for byte: which of two spellings came first nobody could say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError

from tracestore.errors import TracestoreError
from tracestore.graph.model import CompletionKey
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.completion import Completion, CompletionFields
from tracestore.wire.events import AnyEvent, phase_of, revision_of

Model = TypeVar("Model", bound=BaseModel)
_PHASES = ("whole", "start", "end")
_OWN = {"phase", "revision"}
"""What each phase says of itself alone."""


class FieldConflict(TracestoreError):
    """Two events of one id name a field with different values"""

    status: ClassVar[int] = 409


@dataclass(frozen=True)
class Merged:
    """The entities of a set of events."""

    by_kind: dict[str, dict[str, Any]]
    """kind -> id -> the whole event, in order of id. No kind `completion`. Calls have `completions`
    None."""
    completions: dict[CompletionKey, CompletionFields]
    """Every completion, in order of its key, whether its call held it or it came on its own."""

    def of(self, kind: str) -> dict[str, Any]:
        return self.by_kind.get(kind, {})


def merge(events: Iterable[AnyEvent]) -> Merged:
    """The entities of a set of events.

    Raises:
        FieldConflict: two events of one kind and id, each the newest of its phase, name a field with
            different values or spellings.
    """
    same: dict[tuple[str, str], list[AnyEvent]] = defaultdict(list)
    for event in newest(events):
        same[event.kind, event.id].append(event)
    by_kind: dict[str, dict[str, Any]] = defaultdict(dict)
    bodies: dict[CompletionKey, list[CompletionFields]] = defaultdict(list)
    for kind, id_ in sorted(same):
        event = merge_phases(same[kind, id_])
        if isinstance(event, Completion):
            bodies[event.call_id, event.index].append(event)
            continue
        if isinstance(event, Call) and event.completions is not None:
            for index, body in enumerate(event.completions):
                bodies[event.id, index].append(body)
            event = event.model_copy(update={"completions": None})
        by_kind[kind][id_] = event
    return Merged(dict(by_kind), {key: _completion(key, bodies[key]) for key in sorted(bodies)})


def newest(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """The events without those of which a higher revision is there too; repeats of the highest stay.

    Example: c0 of revision 2, c0 without one, c1 start of 1, c1 end of 0 -> all but the second
    """
    listed = list(events)
    highest: dict[tuple[str, str, str], int] = {}
    for event in listed:
        name = (event.kind, event.id, phase_of(event))
        highest[name] = max(highest.get(name, 0), revision_of(event))
    return [event for event in listed if revision_of(event) == highest[event.kind, event.id, phase_of(event)]]


def merge_phases(events: Sequence[AnyEvent]) -> AnyEvent:
    """One event out of the phases (and repeats) of one kind and id, of whatever revisions they are.

    Its `phase` is whole when a whole or both halves are there, else the half that is. Its `revision` is the
    highest that one of them states.

    Raises:
        FieldConflict: a field is named twice with different values, or the halves make no valid whole.
    """
    first = events[0]
    if all(event is first for event in events):
        return first
    ordered = sorted(events, key=lambda event: _PHASES.index(phase_of(event)))
    fields = _union(first.kind, first.id, ordered, type(first).model_fields.keys() - _OWN)
    revisions = [event.revision for event in ordered if event.revision is not None]
    if revisions:
        fields["revision"] = max(revisions)
    phases = {phase_of(event) for event in events}
    if phases in ({"start"}, {"end"}):
        fields["phase"] = phases.pop()
    return _valid(type(first), first.kind, first.id, fields)


def _completion(key: CompletionKey, bodies: list[CompletionFields]) -> CompletionFields:
    name = f"{key[0]}[{key[1]}]"
    fields = _union("completion", name, bodies, CompletionFields.model_fields.keys())
    return _valid(CompletionFields, "completion", name, fields)


def _valid(model: type[Model], kind: str, id_: str, fields: dict[str, Any]) -> Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problem = error.errors()[0]
        raise FieldConflict(
            kind=kind,
            id=id_,
            field=".".join(map(str, problem["loc"])) or None,
            hint=f"together the events are not valid: {problem['msg']}",
        ) from None


def _union(kind: str, id_: str, parts: Sequence[BaseModel], names: Set[str]) -> dict[str, Any]:
    """The fields among `names` that say something, each from whichever part states it."""
    fields: dict[str, Any] = {}
    for part in parts:
        for name in part.model_fields_set & names:
            value = getattr(part, name)
            if value is None:
                continue
            if name in fields:
                try:
                    value = _agreed(fields[name], value)
                except _Disagree:
                    raise FieldConflict(
                        kind=kind,
                        id=id_,
                        field=name,
                        first=_short(fields[name]),
                        second=_short(value),
                        hint="start and end equal the whole: a field named twice must agree",
                    ) from None
            fields[name] = value
    return fields


class _Disagree(Exception):
    pass


def _agreed(first: Any, second: Any) -> Any:
    """The value that two parts name; of nested objects, what either says."""
    if first is second or (first == second and not isinstance(first, (BaseModel, tuple))):
        return first
    if type(first) is tuple and type(second) is tuple and len(first) == len(second):
        return tuple(map(_agreed, first, second))
    if isinstance(first, BaseModel) and type(first) is type(second):
        return _agreed_model(first, second)
    raise _Disagree


def _agreed_model(first: Model, second: BaseModel) -> Model:
    fields: dict[str, Any] = {}
    for name in first.model_fields_set | second.model_fields_set:
        one, other = getattr(first, name), getattr(second, name)
        if one is None or other is None:
            fields[name] = other if one is None else one
        else:
            fields[name] = _agreed(one, other)
    try:
        return type(first).model_validate(fields)
    except ValidationError:
        raise _Disagree from None


def _short(value: Any) -> str:
    text = value.decode("utf-8") if isinstance(value, Raw) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
