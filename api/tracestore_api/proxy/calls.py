"""A capture -> the events of its call: exact request, answer, tool calls, candidates, and what is missing.

Events are those that `POST /v1/events` would take: a request that no event may hold (no JSON, a key twice,
too deep) is kept as a text. What the harness says of episodes and agents becomes their start; their end is
the harness's to post.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracestore.importers import cuts
from tracestore.importers.credentials import is_credential
from tracestore.importers.exchanges import ASKED, Exchange, answered, call_of, request_body
from tracestore.importers.items import Item, gap, made, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.streams import Answer, completion
from tracestore.wire.agent import Agent
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect, Policy
from tracestore.wire.candidate_set import CandidateSet, Member
from tracestore.wire.decode import decode_event
from tracestore.wire.encode import encode
from tracestore.wire.episode import Episode
from tracestore.wire.errors import EventError
from tracestore.wire.gap import STALE_OBSERVATION
from tracestore.wire.group import Group
from tracestore.wire.limits import Limits
from tracestore_api.proxy.capture import Capture
from tracestore_api.proxy.lineage import Lineage, Place
from tracestore_api.proxy.names import Names, state_body, state_session


@dataclass(frozen=True)
class Made:
    """What is to be stored of one capture."""

    items: list[Item]
    """Its call and what belongs to it, the call's own event among them."""
    starts: list[Item]
    """Group, episode and agent that it lies in, if nobody else posts them."""


class Calls:
    """Makes events of captures, one after the other."""

    def __init__(self, lineage: Lineage, *, limits: Limits) -> None:
        """
        Args:
            limits: what one event may be.
        """
        self._lineage = lineage
        self._limits = limits

    def of(self, capture: Capture) -> Made:
        """The events of a capture; none where no model was asked."""
        exchange, names, notes = capture.exchange(), capture.names, Notes()
        request = request_body(exchange.request)
        value = None if request is None else request.value()
        dialect = exchange.dialect
        if dialect is None or not _is_asked(value):
            return Made([], [])
        state_body(names, value)
        state_session(names, exchange.request_headers.get, value)
        place = self._lineage.retried(capture.project, names, exchange)
        if place is None:
            place = self._lineage.place(capture.project, names, capture.call_id, request, dialect)
        place.tries.append(exchange)
        answer = answered(exchange.response)
        _tidy(answer, capture, exchange)
        items = list(self._items(capture, place, answer, request, notes))
        self._remember(capture, place, answer, request, dialect, exchange)
        return Made(_numbered(items, place), list(_starts(names, place)))

    def _remember(
        self,
        capture: Capture,
        place: Place,
        answer: Answer | None,
        request: Raw | None,
        dialect: Dialect,
        exchange: Exchange,
    ) -> None:
        choices = [] if answer is None else answer.choices
        self._lineage.answered(
            capture.project,
            place,
            request=request,
            dialect=dialect,
            messages=[completion(choice).message for choice in choices],
            provider_id=None if answer is None else answer.provider_id,
        )
        has_failed = exchange.status is None or exchange.status >= 400 or exchange.broken is not None
        self._lineage.tried(capture.project, capture.names, place, exchange, has_failed=has_failed)

    def _items(
        self, capture: Capture, place: Place, answer: Answer | None, request: Raw | None, notes: Notes
    ) -> Iterator[Item]:
        rest = {"proxy": _meta(capture, place, answer), **_stream(capture, answer)}
        names = _names(capture, place)
        items = list(
            call_of(place.tries, answer=answer, request=request, names=names, notes=notes, rest=rest)
        )
        if not all(self._may_be_stored(item) for item in items):
            for choice in () if answer is None else answer.choices:
                choice.span = None
            text = raw(bytes(request or b"").decode("utf-8", "backslashreplace"))
            items = list(
                call_of(place.tries, answer=answer, request=text, names=names, notes=notes, rest=rest)
            )
        yield from items
        yield from _candidates(place, answer)
        yield from _gaps(capture, place)

    def _may_be_stored(self, item: Item) -> bool:
        try:
            decode_event(item.text, limits=self._limits)
        except EventError:
            return False
        return True


def _is_asked(value: Any) -> bool:
    """Whether a body asks a model, as far as it can be read."""
    return isinstance(value, str) or (isinstance(value, dict) and any(name in value for name in ASKED))


def _tidy(answer: Answer | None, capture: Capture, exchange: Exchange) -> None:
    """What only passing tells of an answer.

    Texts of tokens that the harness never asked for are none of it: ids and logprobs are kept. A client that
    hangs up when it has heard the last word, before the connection says so, has broken nothing off.
    """
    choices = [] if answer is None else answer.choices
    for choice in choices:
        if "logprobs" in capture.injected and choice.logprobs is not None:
            choice.top_logprobs = None
    if choices and not any(choice.partial for choice in choices):
        exchange.broken = None


def _names(capture: Capture, place: Place) -> dict[str, Any]:
    """What is known of a call from elsewhere than its exchange, by its field; None is unknown."""
    names = capture.names
    version = names.number("policy-version")
    name = names.get("policy")
    fields: dict[str, Any] = {
        "id": place.call_id,
        "episode_id": place.episode_id,
        "agent_id": place.agent_id,
        "ordinal": place.ordinal,
        "parent_call_id": place.parent_call_id,
        "parent_completion": place.parent_completion if place.parent_call_id else None,
        "context": "delta" if place.is_delta else None,
        "purpose": names.get("purpose"),
        "policy": None if name is None else Policy(name=name, version=version),
        "first_token_at": capture.first_token_at,
    }
    return {field: value for field, value in fields.items() if value is not None}


def _meta(capture: Capture, place: Place, answer: Answer | None) -> dict[str, Any]:
    """What the proxy knows of a call: how it found its place, what it did to it, what it left out."""
    said: dict[str, Any] = {
        "named_by": capture.names.places,
        "inferred": place.evidence,
        "made": place.made,
        "injected": capture.injected,
        "forwarded_sha256": capture.forwarded_sha256,
        "refused": capture.refused,
        "events": {} if answer is None else {name: num for name, num in answer.event_types.items() if num},
        "left_out": [name for name in capture.header_names() if is_credential(name)],
        "unusable": capture.names.unusable,
    }
    return {name: value for name, value in said.items() if value not in (None, {}, [], 0)}


def _stream(capture: Capture, answer: Answer | None) -> dict[str, Any]:
    """How the stream that came was cut, and when."""
    found = None if answer is None else cuts.told(cuts.cuts_of(answer), capture.event_times())
    return {} if found is None else {cuts.KEPT_AS: found}


def _candidates(place: Place, answer: Answer | None) -> Iterator[Item]:
    """The answers of a request with `n` > 1 as alternatives at one point."""
    num = 0 if answer is None else len(answer.choices)
    if num > 1:
        yield made(
            CandidateSet,
            id=safe_id(f"{place.call_id}/candidates"),
            episode_id=place.episode_id,
            agent_id=place.agent_id,
            generator="n",
            members=tuple(Member(call_id=place.call_id, completion=index) for index in range(num)),
        )


def _gaps(capture: Capture, place: Place) -> Iterator[Item]:
    """What is known to be missing of a call."""
    missing = {
        "response_too_large": "the response was passed on and not kept" if capture.is_cut else None,
        "missing_prompt": place.lacks,
        STALE_OBSERVATION: capture.stale_observation,
        "unusable_name": "; ".join(f"{name}: {why}" for name, why in capture.names.unusable.items()) or None,
    }
    for cause, detail in missing.items():
        if detail is not None:
            yield gap(place.call_id, cause, detail, episode_id=place.episode_id, call_id=place.call_id)


def _numbered(items: Sequence[Item], place: Place) -> list[Item]:
    """What a later attempt says replaces what the earlier ones said."""
    num = len(place.tries)
    if num == 1:
        return list(items)
    events = (item.event.model_copy(update={"revision": num}) for item in items)
    return [Item(event, encode(event, arrays="base64")) for event in events]


def _starts(names: Names, place: Place) -> Iterator[Item]:
    group, task = names.get("group"), names.get("task")
    if group is not None:
        yield made(Group, id=group, phase="start", task_id=task)
    yield made(
        Episode,
        id=place.episode_id,
        phase="start",
        group_id=group,
        task_id=task,
        split=names.get("split"),
        meta=_said_of(place, "episode_id"),
    )
    parent = names.get("parent-agent")
    is_main = place.agent_id == safe_id(f"{place.episode_id}/main") and parent is None
    yield made(
        Agent,
        id=place.agent_id,
        phase="start",
        episode_id=place.episode_id,
        role=names.get("role") or ("main" if is_main else None),
        name=names.get("agent-name"),
        depth=0 if is_main else None,
        parent_agent_id=parent,
        spawned_by_call_id=names.get("spawned-by-call"),
        spawned_by_tool_call_id=names.get("spawned-by-tool-call"),
        meta=_said_of(place, "agent_id"),
    )


def _said_of(place: Place, name: str) -> Raw | None:
    """That an id was made here, where it was."""
    return raw({"proxy": {"made": ["id"]}}) if name in place.made else None
