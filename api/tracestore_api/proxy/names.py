"""A request -> what it says of where it belongs (episode, agent, parent, ...), and the upstream's path.

A harness that cannot post events says it in one of these places. Of each field the first place that states
it counts, in this order:

    1. headers        X-Tracestore-Episode: e1      X-Tracestore-Parent-Call: c7
    2. the URL path   base_url = http://HOST/proxy/episode=e1/agent-name=planner/v1
    3. the API key    api_key = "sk-...:ts-episode=e1,agent-name=planner"
    4. baggage        baggage: tracestore.episode=e1,tracestore.agent=a1
       traceparent    00-TRACE-SPAN-01: the trace is the episode, as for spans that come over OTLP
    5. the body       metadata: {"tracestore.episode": "e1"}, or `user` (Anthropic: metadata.user_id)
                      = "ts-episode=e1,agent=a1"
    6. a session      that Claude Code and Codex name by themselves, in a header or in metadata.user_id
    7. the messages   the call whose context and answer they begin with (`lineage`)

Values are percent-encoded everywhere but in headers and bodies. FIELDS are the names; an unknown one in the
path is refused, since it stands in a configuration, elsewhere it is recorded as a gap and the call goes on.
What a header, a path or a key says never reaches the upstream; baggage and bodies are forwarded untouched.

`run`, `mode` and `live-after` are for replays; a recording leaves them out.
`agent` is an id, unique in its project. `agent-name` is a name within the episode: the agent's id is then
EPISODE/NAME. A request that names neither belongs to the agent whose call it continues, or to EPISODE/main.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from tracestore.ids import id_problem
from tracestore.store.keys import is_key
from tracestore_api.access import SESSION_COOKIE
from tracestore_api.proxy.errors import UnknownName

PREFIX = "/proxy"
HEADER = "x-tracestore-"
_IDS = (
    *("episode", "agent", "call", "group", "task", "parent-call", "parent-agent", "spawned-by-call"),
    *("agent-name",),
)
_TEXTS = ("role", "purpose", "policy", "spawned-by-tool-call", "run", "mode")
_NUMBERS = ("policy-version", "parent-completion", "live-after")
_SPLITS = ("train", "eval", "test")
FIELDS = frozenset((*_IDS, *_TEXTS, *_NUMBERS, "split"))
"""What a request may say of itself, as it is spelled in every place."""
_OF_THE_CONNECTION = frozenset({"project", "key"})
"""Headers of ours that say who calls and not where the call belongs: see `access`."""
CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
"""Headers in which an API key may carry a suffix."""

_SUFFIX = re.compile(r"\A(?P<key>[^\s,]*?)(?::|\A)ts-(?P<pairs>[\w.-]+=[^\s]*)\Z", re.ASCII)
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_SESSION_HEADERS = ("x-claude-code-session-id", "session_id", "session-id", "x-session-id")
_SESSION_AGENT = "x-claude-code-agent-id"
_SESSION_IN_USER = re.compile(r"_session_([0-9a-fA-F-]{36})\Z")

Headers = Iterable[tuple[bytes, bytes]]


@dataclass
class Names:
    """What is known of where a request belongs."""

    values: dict[str, str] = field(default_factory=dict)
    """By field; all of them usable."""
    places: dict[str, str] = field(default_factory=dict)
    """Field -> the place that stated it."""
    unusable: dict[str, str] = field(default_factory=dict)
    """What was stated and cannot be used -> why."""

    def state(self, pairs: Iterable[tuple[str, str]], *, place: str) -> None:
        """Take what one place states, where no place before it did."""
        for name, value in pairs:
            problem = _problem(name, value)
            if problem is not None:
                self.unusable[f"{place}: {name}"] = problem
            elif name not in self.values:
                self.values[name], self.places[name] = value, place

    def get(self, name: str) -> str | None:
        """What is stated of a field; None: nothing."""
        return self.values.get(name)

    def number(self, name: str) -> int | None:
        """The same of one of the fields that are whole numbers."""
        value = self.values.get(name)
        return None if value is None else int(value)


@dataclass(frozen=True)
class Address:
    """A request to the proxy, taken apart."""

    names: Names
    path: str
    """At the upstream, as sent, from its first slash on."""
    headers: list[tuple[bytes, bytes]]
    """Those of the harness, without ours and without key suffixes."""
    speaks: bool
    """Whether it has a header of ours, so that one of ours may answer it."""


def address_of(path: str, headers: Headers, *, prefix: str = PREFIX) -> Address:
    """Where a request belongs by everything but its body, and what of it goes to the upstream.

    Args:
        path: as sent, still percent-encoded, with the prefix.

    Raises:
        UnknownName: the path states a field that there is not, or a value that cannot be one.
    """
    names = Names()
    kept, pairs = _without_ours(headers)
    names.state(pairs, place="header")
    rest, stated = _split_path(path.removeprefix(prefix))
    names.state(stated, place="path")
    if unusable := next((name for name in names.unusable if name.startswith("path: ")), None):
        name = unusable.removeprefix("path: ")
        raise UnknownName(name=name, reason=names.unusable[unusable], hint=f"names are {_known()}")
    kept = [
        (name, _without_suffix(name, value, names))
        for name, value in _without_our_cookie(kept)
        if not _is_our_key(name, value)
    ]
    _state_trace(kept, names)
    return Address(names, rest, kept, speaks=bool(pairs))


def _known() -> str:
    return ", ".join(sorted(FIELDS))


def _problem(name: str, value: str) -> str | None:
    """Why a field cannot be what is stated of it; None where it can."""
    if name not in FIELDS:
        return "there is no such field"
    if name in _IDS:
        return id_problem(value)
    if name in _NUMBERS:
        return None if re.fullmatch(r"[0-9]{1,9}", value, re.ASCII) else "it is a whole number"
    if name == "split":
        return None if value in _SPLITS else f"it is one of {', '.join(_SPLITS)}"
    return None if value else "it says nothing"


def _without_ours(headers: Headers) -> tuple[list[tuple[bytes, bytes]], list[tuple[str, str]]]:
    kept, pairs = [], []
    for name, value in headers:
        if name.startswith(HEADER.encode()):
            field_name = name.decode("latin-1").removeprefix(HEADER)
            if field_name not in _OF_THE_CONNECTION:
                pairs.append((field_name, value.decode("utf-8", "replace")))
        else:
            kept.append((name, value))
    return kept, pairs


@lru_cache(maxsize=1024)
def _split_path(rest: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """(path at the upstream, what the segments before it state)."""
    pairs: list[tuple[str, str]] = []
    while (segment := rest[1:].partition("/")[0]) and "=" in segment:
        name, _, value = segment.partition("=")
        pairs.append((unquote(name), unquote(value, errors="replace")))
        rest = rest[1 + len(segment) :]
    return rest or "/", tuple(pairs)


def _is_our_key(name: bytes, value: bytes) -> bool:
    """Whether a header has a key of this server, which is none of the upstream's business."""
    return name.decode("latin-1") in CREDENTIALS and is_key(value.decode("latin-1").rpartition(" ")[2])


def _without_our_cookie(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    """Headers without the session that a browser holds here and sends to every path of this host."""
    for name, value in headers:
        if name == b"cookie" and SESSION_COOKIE.encode("ascii") in value:
            pairs = (one.strip() for one in value.split(b";"))
            value = b"; ".join(
                one for one in pairs if one.partition(b"=")[0] != SESSION_COOKIE.encode("ascii")
            )
            if not value:
                continue
        yield name, value


def _without_suffix(name: bytes, value: bytes, names: Names) -> bytes:
    """A header as the upstream is to see it; what a suffix of its API key states is taken over."""
    if name.decode("latin-1") not in CREDENTIALS:
        return value
    key, pairs = split_key(value)
    names.state(((one, text) for one, text in pairs if one not in _OF_THE_CONNECTION), place="key")
    return key


def split_key(value: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """(an API key, or a header with one, without its suffix; what the suffix states).

    Example: b"Bearer sk-1:ts-episode=e1,agent=a1" -> (b"Bearer sk-1", [("episode", "e1"), ("agent", "a1")])
    """
    head, blank, key = value.decode("latin-1").rpartition(" ")
    match = _SUFFIX.match(key)
    if match is None:
        return value, []
    return (head + blank + match["key"]).encode("latin-1"), _pairs(match["pairs"])


def unfolded(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of a request to the proxy, with those of the connection that a suffix of its API key states.

    So that whoever has but one key to set says there what `X-Tracestore-Key` and `-Project` say.
    """
    stated: dict[bytes, bytes] = {}
    for name, value in headers:
        if name.decode("latin-1") in CREDENTIALS and b"ts-" in value:
            for one, text in split_key(value)[1]:
                if one in _OF_THE_CONNECTION:
                    stated.setdefault(f"{HEADER}{one}".encode("ascii"), text.encode("utf-8", "replace"))
    return headers + [(name, value) for name, value in stated.items() if name not in dict(headers)]


def _pairs(text: str) -> list[tuple[str, str]]:
    """`name=value,name=value`, percent-decoded."""
    parts = (one.partition("=") for one in text.split(",") if "=" in one)
    return [(name.strip(), unquote(value.strip(), errors="replace")) for name, _, value in parts]


def _state_trace(headers: Headers, names: Names) -> None:
    baggage = [value.decode("latin-1") for name, value in headers if name == b"baggage"]
    members = (one.partition(";")[0] for one in ",".join(baggage).split(","))
    ours = [one.strip() for one in members if one.strip().startswith("tracestore.")]
    names.state(_pairs(",".join(one.removeprefix("tracestore.") for one in ours)), place="baggage")
    for name, value in headers:
        match = _TRACE.fullmatch(value.decode("latin-1").strip()) if name == b"traceparent" else None
        if match is not None and match[1].strip("0"):
            names.state([("episode", match[1])], place="traceparent")


def state_body(names: Names, request: Any) -> None:
    """Take what a request's body states, parsed."""
    if not isinstance(request, dict):
        return
    metadata = request.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    names.state(_in_metadata(metadata), place="body")
    for user in (request.get("user"), metadata.get("user_id")):
        match = _SUFFIX.match(user) if isinstance(user, str) else None
        names.state(_pairs(match["pairs"]) if match is not None else (), place="body")


def _in_metadata(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    nested = metadata.get("tracestore")
    for name, value in nested.items() if isinstance(nested, dict) else ():
        yield str(name).replace("_", "-"), str(value)
    for name, value in metadata.items():
        for start in ("tracestore.", "tracestore_"):
            if name.startswith(start):
                yield name.removeprefix(start).replace("_", "-"), str(value)


def state_session(names: Names, header: Callable[[str], str | None], request: Any) -> None:
    """Take the session that a coding agent names by itself.

    Args:
        header: the text of a header by its name in lower case; None where it is absent.

    Source: headers of Claude Code and Codex CLI; Claude Code's `metadata.user_id`, which ends with
    `_session_UUID` or is JSON with `session_id`.
    """
    session = next((found for name in _SESSION_HEADERS if (found := header(name))), None)
    if session is None and isinstance(request, dict) and isinstance(request.get("metadata"), dict):
        session = _in_user_id(request["metadata"].get("user_id"))
    if session is None or "episode" in names.values:
        return
    names.state([("episode", session)], place="session")
    agent = header(_SESSION_AGENT)
    names.state([("agent-name", agent)] if agent else (), place="session")


def _in_user_id(user: Any) -> str | None:
    if not isinstance(user, str):
        return None
    match = _SESSION_IN_USER.search(user)
    if match is not None:
        return match[1]
    try:
        value = json.loads(user)
    except (ValueError, RecursionError):
        return None
    session = value.get("session_id") if isinstance(value, dict) else None
    return session if isinstance(session, str) else None
