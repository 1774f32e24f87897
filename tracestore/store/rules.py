r"""Rules of a project -> an event without what they name: text that matches, what lies at a path, or both.

    {"name": "email", "pattern": "[\\w.+-]+@[\\w-]+(\\.[\\w-]+)+"}       in every text of every event
    {"name": "user", "path": "request.user", "kinds": ["call"]}         whatever lies there
    {"name": "key", "path": "result", "pattern": "sk-[A-Za-z0-9]{20}"}  in texts that lie there or below

`[redacted:email]` stands in its place. Everything around it stays byte for byte. Texts are strings and
numbers of opaque JSON, the keys of its objects, and the free text of events; ids, hashes and what has a type
of its own (times, statuses, token ids) are not. Token ids of text that was redacted spell it still:
`Redacted` says which must not be kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tracestore.errors import TracestoreError
from tracestore.graph.messages import messages_of, request_tools
from tracestore.graph.spans import span_end
from tracestore.store.rule_file import parsed, rules_of
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.completion import Completion
from tracestore.wire.events import KINDS, AnyEvent

PROMPT = -1
"""Stands for what a call read, beside the indexes of its completions."""

_MAX_RULES = 100
_ENVELOPE = frozenset({"v", "kind", "id", "phase", "revision"})
_IDS = ("token_ids", "logprobs", "top_logprobs")


class BadRules(TracestoreError):
    """These rules cannot be used"""

    status: ClassVar[int] = 422
    exit_code: ClassVar[int] = 2


class Rule(BaseModel):
    """What is taken out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9_-]{1,40}$")
    """Stands in the text instead of what was there: `[redacted:NAME]`."""
    kinds: tuple[str, ...] | None = None
    """Kinds of events; None: all."""
    path: str | None = None
    """Steps from the event on with dots between them: a field or key, the number of an element, `*` for any
    one of them, `**` for any number of them. None: everywhere."""
    pattern: str | None = Field(default=None, max_length=1000)
    """Regular expression (Python's). None: all that lies at the path."""

    @property
    def marker(self) -> str:
        return f"[redacted:{self.name}]"

    @model_validator(mode="after")
    def _can_be_used(self) -> Rule:
        if self.path is None and self.pattern is None:
            raise ValueError("name a path, a pattern, or both")
        unknown = sorted(set(self.kinds or ()) - set(KINDS))
        if unknown:
            raise ValueError(f"no event is of kind {unknown[0]!r}")
        if self.path is not None and not all(self.path.split(".")):
            raise ValueError("a path is steps with one dot between each two of them")
        if self.pattern is not None:
            try:
                found = re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"the pattern is no regular expression: {error}") from None
            if found.search(self.marker) is not None:
                raise ValueError(f"the pattern finds {self.marker!r}, which stands in its place")
        return self


class _State(NamedTuple):
    """A rule on its way down a path."""

    rule: Rule
    rest: tuple[str, ...]
    """Steps that are left; none: the rule holds from here down."""


class Redacted(NamedTuple):
    """An event without what the rules name."""

    event: AnyEvent
    values: int
    """How many pieces of text were replaced."""
    spelled: frozenset[int]
    """Completions of a call whose text changed, and `PROMPT` where what it read did: token ids spell them."""

    def after(self, earlier: Redacted) -> Redacted:
        """Both, where the event was redacted before."""
        return self._replace(values=self.values + earlier.values, spelled=self.spelled | earlier.spelled)


@dataclass(frozen=True, slots=True)
class Rules:
    """Sets of rules, applied one after the other."""

    active: tuple[tuple[Rule, ...], ...] = ()
    """The sets that hold for what comes."""
    known: tuple[tuple[Rule, ...], ...] = ()
    """Those and all that ever did."""

    def redact(self, event: AnyEvent) -> Redacted | None:
        """What to store of an event that comes; None: the event as it is."""
        return _redacted(event, self.active)

    def redact_by_all(self, event: AnyEvent) -> AnyEvent:
        """What was stored of an event, whichever of the sets held when it came."""
        found = _redacted(event, self.known)
        return event if found is None else found.event


NO_RULES = Rules()


def redact(event: AnyEvent, rules: Sequence[Rule]) -> Redacted | None:
    """An event without what the rules name; None where they name nothing in it."""
    return _redacted(event, (tuple(rules),))


def _redacted(event: AnyEvent, sets: Iterable[Sequence[Rule]]) -> Redacted | None:
    before, values = event, 0
    for rules in sets:
        states = tuple(
            _State(rule, _steps(rule.path)) for rule in rules if event.kind in (rule.kinds or KINDS)
        )
        pen = _Pen()
        if states:
            event = pen.model(event, states)
        values += pen.values
    return Redacted(event, values, _spelled(before, event)) if values else None


@lru_cache(maxsize=256)
def read_rules(text: str) -> tuple[Rule, ...]:
    """The rules of a JSON array.

    Raises:
        BadRules: it is none, or a rule in it cannot be used.
    """
    hint = 'an array of {"name": ..., "pattern": ...} or {"name": ..., "path": ...}'
    values = parsed(text, wrong=BadRules, hint=hint)
    if not isinstance(values, list) or not 0 < len(values) <= _MAX_RULES:
        raise BadRules(hint=f"{hint}, at least one and at most {_MAX_RULES}")
    found = rules_of(values, Rule, wrong=BadRules, hint=hint)
    names = [rule.name for rule in found]
    if len(set(names)) < len(names):
        raise BadRules(reason="two rules have one name", hint="each needs its own, to tell them apart later")
    return found


def written(rules: Iterable[Rule]) -> str:
    """The inverse of `read_rules`."""
    return json.dumps([rule.model_dump(mode="json", exclude_none=True) for rule in rules])


@lru_cache(maxsize=1024)
def _steps(path: str | None) -> tuple[str, ...]:
    steps = [] if path is None else path.split(".")
    while steps and steps[-1] == "**":
        steps.pop()
    return tuple(steps)


def _below(states: Iterable[_State], step: str) -> tuple[_State, ...]:
    """The rules that may hold one step further down."""
    found: dict[_State, None] = {}
    todo = list(reversed([*states]))
    while todo:
        state = todo.pop()
        if not state.rest:
            found[state] = None
        elif state.rest[0] == "**":
            found[state] = None
            todo.append(state._replace(rest=state.rest[1:]))
        elif state.rest[0] in ("*", step):
            found[state._replace(rest=state.rest[1:])] = None
    return tuple(found)


# --- Events ------------------------------------------------------------------------------------------

_How = Literal["text", "raw", "model", "models"]


@cache
def fields_of(model: type[BaseModel]) -> Mapping[str, _How]:
    """The fields of a model that may hold text."""
    found: dict[str, _How] = {}
    for name, info in model.model_fields.items():
        inner = info.annotation
        if type(None) in get_args(inner):
            inner = next(part for part in get_args(inner) if part is not type(None))
        if get_origin(inner) is tuple:
            item = get_args(inner)[0]
            if isinstance(item, type) and issubclass(item, BaseModel):
                found[name] = "models"
        elif inner is Raw:
            found[name] = "raw"
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
            found[name] = "model"
        # An id, or anything else with a form of its own, has more than a type.
        elif inner is str and not info.metadata and not name.endswith("hash"):
            found[name] = "text"
    return {name: how for name, how in found.items() if name not in _ENVELOPE}


class _Pen:
    """Takes out, and counts what it took."""

    def __init__(self) -> None:
        self.values = 0

    def model(self, model: Any, states: Sequence[_State]) -> Any:
        changes: dict[str, Any] = {}
        kind: type[BaseModel] = type(model)
        for name, how in fields_of(kind).items():
            value = getattr(model, name) if name in model.model_fields_set else None
            below = () if value is None else _below(states, name)
            if below:
                new = self._field(value, how, below)
                if new is not value:
                    changes[name] = new
        if not changes:
            return model
        return type(model).model_construct(
            _fields_set=set(model.model_fields_set), **{**dict(model), **changes}
        )

    def _field(self, value: Any, how: _How, states: Sequence[_State]) -> Any:
        if how == "text":
            return self.text(value, states)
        if how == "raw":
            return self._raw(value, states)
        if how == "model":
            return self.model(value, states)
        items = tuple(self.model(item, _below(states, str(place))) for place, item in enumerate(value))
        return value if all(map(_is, items, value)) else items

    def text(self, text: str, states: Iterable[_State]) -> str:
        """A text at which some rules hold."""
        found = text
        for state in states:
            if not state.rest:
                found = self._by_rule(found, state.rule)
        return text if found == text else found

    def _by_rule(self, text: str, rule: Rule) -> str:
        if rule.pattern is None:
            self.values += text != rule.marker
            return rule.marker
        marker, count = rule.marker, 0

        def replaced(match: re.Match[str]) -> str:
            nonlocal count
            count += bool(match[0])
            return marker if match[0] else ""

        text = re.sub(rule.pattern, replaced, text)
        self.values += count
        return text

    def _raw(self, raw: Raw, states: Sequence[_State]) -> Raw:
        text = raw.decode("utf-8")
        found = _Json(self, text).whole(states)
        return raw if found == text else Raw(found.encode("utf-8"))


def _is(one: object, other: object) -> bool:
    return one is other


# --- Opaque JSON ---------------------------------------------------------------------------------------

_LITERAL = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9][0-9.eE+-]*', re.DOTALL)
_SPACE = re.compile(r"[ \t\n\r]*")


class _Json:
    """One JSON text that is known to be JSON; what is not replaced is copied as it stands."""

    def __init__(self, pen: _Pen, text: str) -> None:
        self._pen = pen
        self._text = text

    def whole(self, states: Sequence[_State]) -> str:
        start = self._skip(0)
        end = span_end(self._text, start)
        return self._text[:start] + self._value(start, end, states) + self._text[end:]

    def _value(self, start: int, end: int, states: Sequence[_State]) -> str:
        text = self._text
        if not states:
            return text[start:end]
        for rule, rest in states:
            if not rest and rule.pattern is None:
                written = encode_basestring_ascii(rule.marker)
                self._pen.values += text[start:end] != written
                return written
        if text[start] not in "[{":
            return self._literal(text[start:end], states)
        if any(rest for _, rest in states):
            return self._parts(start, end, states)
        return self._flat(start, end, states)

    def _flat(self, start: int, end: int, states: Sequence[_State]) -> str:
        """An object or an array, literal by literal, unless a key changes: that must stay another one than
        those beside it, which takes a closer look."""
        before, has_new_key = self._pen.values, False

        def replaced(match: re.Match[str]) -> str:
            nonlocal has_new_key
            found = self._literal(match[0], states)
            if found is not match[0] and found != match[0]:
                has_new_key |= self._text.startswith(":", self._skip(start + match.end()))
            return found

        found = _LITERAL.sub(replaced, self._text[start:end])
        if not has_new_key:
            return found
        self._pen.values = before
        return self._parts(start, end, states)

    def _literal(self, literal: str, states: Sequence[_State]) -> str:
        is_string = literal.startswith('"')
        if not is_string and literal[0] not in "-0123456789":
            return literal
        plain = not is_string or "\\" not in literal
        said = literal.strip('"') if plain else json.loads(literal)
        found = self._pen.text(said, states)
        return literal if found is said else encode_basestring_ascii(found)

    def _parts(self, start: int, end: int, states: Sequence[_State]) -> str:
        """An object or an array, part by part."""
        text, out, keys = self._text, [text_ := self._text[start]], set[str]()
        is_object, position, place = text_ == "{", start + 1, 0
        while True:
            inner = self._skip(position)
            out.append(text[position:inner])
            if inner == end - 1:
                out.append(text[inner])
                return "".join(out)
            if text[inner] == ",":
                out.append(",")
                position = inner + 1
                continue
            step = str(place)
            if is_object:
                step, position = self._key(inner, states, keys, out)
                inner = self._skip(position)
                out.append(text[position:inner])
            position = span_end(text, inner)
            out.append(self._value(inner, position, _below(states, step)))
            place += 1

    def _key(self, start: int, states: Sequence[_State], keys: set[str], out: list[str]) -> tuple[str, int]:
        """Write a key with its colon; (the key as it was, where its value may begin)."""
        text = self._text
        end = span_end(text, start)
        literal = self._literal(text[start:end], [state for state in states if not state.rest])
        made, number = literal, 1
        while made in keys:
            number += 1
            made = f'{literal[:-1]} {number}"'
        keys.add(made)
        colon = text.index(":", end)
        out += made, text[end : colon + 1]
        return json.loads(text[start:end]), colon + 1

    def _skip(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        assert match is not None
        return match.end()


# --- Token ids -----------------------------------------------------------------------------------------


def _spelled(before: AnyEvent, after: AnyEvent) -> frozenset[int]:
    """What of a call or completion changed that its token ids spell."""
    if isinstance(before, Completion) and isinstance(after, Completion):
        return frozenset() if before.message == after.message else frozenset({before.index})
    if not (isinstance(before, Call) and isinstance(after, Call)):
        return frozenset()
    pairs = zip(before.completions or (), after.completions or (), strict=True)
    found = {place for place, (old, new) in enumerate(pairs) if old.message != new.message}
    if before.request != after.request:
        # A phase may lack the dialect, which says where messages stand.
        is_certain = before.phase == "whole"
        if not is_certain or _read(before) != _read(after):
            found.add(PROMPT)
    return frozenset(found)


def _read(call: Call) -> tuple[object, object]:
    """What of its request a model reads."""
    return messages_of(call.request, call.dialect), request_tools(call.request)


def without_ids(event: AnyEvent, spelled: Iterable[int]) -> AnyEvent:
    """An event without the token ids that would spell text which is not kept."""
    some = frozenset(spelled)
    if isinstance(event, Completion):
        return _without(event, _IDS) if event.index in some else event
    if not isinstance(event, Call):
        return event
    gone = ("prompt_token_ids", "prompt_token_ids_delta") if PROMPT in some else ()
    call: Call = _without(event, gone)
    bodies = call.completions or ()
    kept = tuple(_without(body, _IDS) if place in some else body for place, body in enumerate(bodies))
    if all(map(_is, kept, bodies)):
        return call
    return call.model_copy(update={"completions": kept})


def _without(model: Any, names: Iterable[str]) -> Any:
    gone = {name for name in names if getattr(model, name) is not None}
    if not gone:
        return model
    values = {name: value for name, value in dict(model).items() if name not in gone}
    return type(model).model_construct(_fields_set=model.model_fields_set - gone, **values)


def spread(events: Iterable[AnyEvent], spelled: Mapping[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    """By call, which ids must not be kept, where some must not: a call that states its context as what
    follows another one read what that one read and answered.

    Args:
        spelled: by call, what of it was redacted.
    """
    found = dict(spelled)
    children: dict[str, list[Call]] = {}
    for event in events:
        if isinstance(event, Call) and event.context == "delta" and event.parent_call_id is not None:
            children.setdefault(event.parent_call_id, []).append(event)
    todo = list(found)
    while todo:
        parent = todo.pop()
        for child in children.get(parent, ()):
            before = found.get(child.id, frozenset())
            if PROMPT not in before and reads_redacted(child, found[parent]):
                found[child.id] = before | {PROMPT}
                todo.append(child.id)
    return found


def reads_redacted(child: Call, parent: Iterable[int]) -> bool:
    """Whether a delta call read something of its parent that was redacted."""
    answered = None if child.parent_completion is None else {child.parent_completion, PROMPT}
    return any(answered is None or one in answered for one in parent)


Change = Callable[[AnyEvent], Redacted | None]
"""What becomes of an event that is stored; None: nothing."""
