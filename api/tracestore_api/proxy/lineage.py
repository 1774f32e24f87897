"""A request and its answer -> its place: episode, agent, ordinal, parent; with the evidence for a guess.

    named       what the request says (`names`)
    parent      the call named as parent, or by `previous_response_id`
    prefix      the call whose context and answer are the longest exact beginning of this request's messages,
                among the last PLACES answers; of equal ones the one that nobody has continued yet. Where
                several fit, which of them it is is a guess: no parent is stated, and the count is kept
    new         an episode of its own. Equal first requests are several episodes

Messages are compared as the graph does (`graph.match`). What is remembered is ids and hashes, bounded, of
what passed through this process; a restart forgets it. Everything here is called by one thread, in the order
in which calls ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Generic, TypeVar

from tracestore.graph.match import node_keys
from tracestore.graph.messages import answer_messages, messages_of
from tracestore.ids import new_id
from tracestore.importers.exchanges import Exchange
from tracestore.importers.items import safe_id
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect
from tracestore_api.proxy.names import Names

PLACES = 50_000
_ATTEMPTS = 4_096
_EQUAL = 64
"""Answers that stand at one place, or failures of one body."""
_KEPT_OF_AN_ATTEMPT = 4_096
"""Bytes of its response."""

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A mapping that forgets what was used longest ago."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """What is held there, which is newest then."""
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    def put(self, key: K, value: V) -> None:
        self._held[key] = value
        self._held.move_to_end(key)
        if len(self._held) > self._size:
            self._held.popitem(last=False)

    def replace(self, key: K, value: V) -> None:
        """Hold another value there, which is as old as the one before."""
        if key in self._held:
            self._held[key] = value

    def items(self) -> list[tuple[K, V]]:
        """All of it, what was used longest ago first."""
        return list(self._held.items())

    def __len__(self) -> int:
        return len(self._held)


@dataclass
class Answered:
    """A completion that a later request may continue."""

    call_id: str
    episode_id: str
    agent_id: str
    completion: int | None
    """None: its call has only one."""
    num_messages: int
    """Its context and itself."""
    is_continued: bool = False


@dataclass
class Place:
    """Where a call belongs."""

    call_id: str
    episode_id: str
    agent_id: str
    ordinal: int | None = None
    parent: Answered | None = None
    """None: it continues nothing that is known."""
    parent_call_id: str | None = None
    parent_completion: int | None = None
    is_delta: bool = False
    """It says only what is new since its parent, whose context the server keeps."""
    lacks: str | None = None
    """What of its context is not known."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """How it was found, for its `meta`."""
    made: list[str] = field(default_factory=list)
    """Ids that were made here."""
    tries: list[Exchange] = field(default_factory=list)
    """Its attempts so far, this one last."""


@dataclass
class _Tried:
    """A call that may be tried again."""

    place: Place
    has_failed: bool


class Lineage:
    """What is remembered of the calls that passed."""

    def __init__(self, next_ordinal: Callable[[str, str], int | None]) -> None:
        """
        Args:
            next_ordinal: after those of the calls that are stored, by project and agent; None: not known now.
        """
        self._next_ordinal = next_ordinal
        self._at: Recent[tuple[str, bytes], list[Answered]] = Recent(PLACES)
        self._by_response: Recent[tuple[str, str], Answered] = Recent(PLACES)
        self._by_call: Recent[tuple[str, str], Answered] = Recent(PLACES)
        self._next: Recent[tuple[str, str], int] = Recent(PLACES)
        self._tried: Recent[tuple[str, str], list[_Tried]] = Recent(_ATTEMPTS)

    # --- Attempts ---------------------------------------------------------------------------------

    def retried(self, project: str, names: Names, exchange: Exchange) -> Place | None:
        """The place of the call that this exchange tries again; None where it is a new call.

        It is a retry where it names the same call or idempotency key with the same body, or counts itself
        as one (`x-stainless-retry-count`) after a failure of the same body, in the episode that it names. Of
        several equal failures each is retried once.
        """
        episode = names.get("episode")

        def tried(key: tuple[str, str]) -> list[_Tried]:
            held = self._tried.get(key) or ()
            return [one for one in held if episode in (None, one.place.episode_id)]

        for key in self._same(project, names, exchange):
            for one in tried(key):
                return one.place
        count = exchange.retries or 0
        waiting = [one for one in tried(_body_key(project, exchange)) if one.has_failed]
        if not count or not waiting:
            return None
        fitting = [one for one in waiting if len(one.place.tries) == count]
        found = (fitting or waiting)[0]
        found.has_failed = False  # until this attempt has failed too
        return found.place

    def tried(
        self, project: str, names: Names, place: Place, exchange: Exchange, *, has_failed: bool
    ) -> None:
        """Remember an attempt."""
        response = exchange.response
        kept = response[:_KEPT_OF_AN_ATTEMPT] if isinstance(response, bytes) else None
        place.tries[-1] = Exchange(
            status=exchange.status,
            response=kept,
            started_at=exchange.started_at,
            ended_at=exchange.ended_at,
            broken=exchange.broken,
        )
        keys = [*self._same(project, names, exchange), _body_key(project, exchange)]
        for key in keys:
            held = self._tried.get(key) or []
            known = next((one for one in held if one.place is place), None)
            if known is not None:
                known.has_failed = has_failed
            else:
                self._tried.put(key, [*held, _Tried(place, has_failed)][-_EQUAL:])

    def _same(self, project: str, names: Names, exchange: Exchange) -> list[tuple[str, str]]:
        stated = [names.get("call"), exchange.request_headers.get("idempotency-key")]
        body = sha256(exchange.request or b"").hexdigest()
        return [(project, f"{place}:{one}:{body}") for place, one in enumerate(stated) if one]

    # --- Places -----------------------------------------------------------------------------------

    def place(self, project: str, names: Names, call_id: str, request: Raw | None, dialect: Dialect) -> Place:
        """Where a new call belongs."""
        keys = node_keys(messages_of(request, dialect))
        stated = names.get("parent-call")
        parent = self._by_call.get((project, stated)) if stated else None
        place = Place(
            call_id, "", "", parent_call_id=stated, parent_completion=names.number("parent-completion")
        )
        is_taken = self._by_call.get((project, call_id)) is not None
        if is_taken:
            place.call_id = new_id()
            names.unusable["call"] = "another request has this id"
        if is_taken or names.get("call") is None:
            place.made.append("call_id")
        if stated is None:
            parent = self._kept_by_server(project, request, dialect, place) or self._prefix(
                project, names, keys, place
            )
        place.parent = parent
        self._settle(project, names, place)
        return place

    def answered(
        self,
        project: str,
        place: Place,
        *,
        request: Raw | None,
        dialect: Dialect,
        messages: Sequence[Raw | None],
        provider_id: str | None,
    ) -> None:
        """Remember a call and its completions, for those that continue them."""
        keys = node_keys(messages_of(request, dialect))
        before = keys[-1] if keys else None
        known: Answered | None = None
        for index, message in enumerate(messages):
            parts = node_keys(answer_messages(message, dialect), after=before)
            key = parts[-1] if parts else before
            one = Answered(
                place.call_id,
                place.episode_id,
                place.agent_id,
                index if len(messages) > 1 else None,
                len(keys) + len(parts),
            )
            known = known or one
            # What follows a context that the server keeps does not begin with it.
            if parts and key is not None and not place.is_delta:
                self._put((project, key), one)
        known = known or Answered(place.call_id, place.episode_id, place.agent_id, None, len(keys))
        self._by_call.put((project, place.call_id), known)
        if provider_id and dialect == "openai_responses":
            self._by_response.put((project, provider_id), known)

    def _put(self, key: tuple[str, bytes], one: Answered) -> None:
        held = self._at.get(key) or []
        # An attempt of the same call said the same.
        others = [it for it in held if (it.call_id, it.completion) != (one.call_id, one.completion)]
        self._at.put(key, [*others, one][-_EQUAL:])

    def _kept_by_server(
        self, project: str, request: Raw | None, dialect: Dialect, place: Place
    ) -> Answered | None:
        """The call whose context the server goes on with."""
        if dialect != "openai_responses" or request is None:
            return None
        value = request.value()
        value = value if isinstance(value, dict) else {}
        named = next((name for name in ("previous_response_id", "conversation") if value.get(name)), None)
        if named is None:
            return None
        found = self._by_response.get((project, str(value[named])))
        if found is None:
            place.lacks = f"{named} names what the server keeps, and its call was not recorded here"
            return None
        place.is_delta = True
        place.parent_call_id, place.parent_completion = found.call_id, found.completion
        place.evidence["parent"] = {"by": named, "call_id": found.call_id}
        return found

    def _prefix(self, project: str, names: Names, keys: Sequence[bytes], place: Place) -> Answered | None:
        """The call that the messages continue, by the longest exact prefix."""
        for key in reversed(keys):
            found = _fitting(self._at.get((project, key)) or (), names)
            if found:
                waiting = [one for one in found if not one.is_continued]
                one = (waiting or found)[0]
                one.is_continued = True
                place.evidence["prefix"] = {
                    "call_id": one.call_id,
                    "messages": one.num_messages,
                    "of": len(keys),
                    **({} if one.completion is None else {"completion": one.completion}),
                    **({"ambiguous": len(found)} if len(found) > 1 else {}),
                }
                if len(found) == 1:
                    place.parent_call_id, place.parent_completion = one.call_id, one.completion
                return one
        return None

    def _settle(self, project: str, names: Names, place: Place) -> None:
        """Episode, agent and ordinal, of what is named and what was found."""
        parent = place.parent
        episode = names.get("episode")
        if episode is None and parent is not None:
            episode = parent.episode_id
        if episode is None:
            episode = new_id()
            place.made.append("episode_id")
        agent = _agent_named(names, episode)
        if agent is None and parent is not None and parent.episode_id == episode:
            agent = parent.agent_id
        if agent is None:
            agent = safe_id(f"{episode}/main")
            place.made.append("agent_id")
        place.episode_id, place.agent_id = episode, agent
        known = self._next.get((project, agent))
        if known is None:
            known = 0 if "episode_id" in place.made else self._next_ordinal(project, agent)
        place.ordinal = known
        if known is not None:
            self._next.put((project, agent), known + 1)


def _fitting(found: Sequence[Answered], names: Names) -> list[Answered]:
    """Those that lie in the episode that is named, and of them those of the agent, where there are any."""
    episode = names.get("episode")
    there = [one for one in found if episode is None or one.episode_id == episode]
    own = [one for one in there if _agent_named(names, one.episode_id) in (None, one.agent_id)]
    return own or there


def _agent_named(names: Names, episode_id: str) -> str | None:
    """The agent that a request names; None where it names none."""
    name = names.get("agent-name")
    return names.get("agent") or (safe_id(f"{episode_id}/{name}") if name is not None else None)


def _body_key(project: str, exchange: Exchange) -> tuple[str, str]:
    return project, f"{exchange.url} {sha256(exchange.request or b'').hexdigest()}"
