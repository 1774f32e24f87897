"""ATIF trajectories of many files -> which is whose sub-agent, which continues which, and what names each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tracestore.importers.atif_steps import own_part, step_of
from tracestore.importers.guard import text_or_none
from tracestore.importers.items import content_id, safe_id
from tracestore.importers.notes import Notes

_CONTINUATION = re.compile(r"-cont-\d+$")


def is_trajectory(value: Any) -> bool:
    version = value.get("schema_version") if isinstance(value, dict) else None
    return isinstance(version, str) and version.startswith("ATIF") and isinstance(value.get("steps"), list)


def trajectories(value: Any) -> list[dict[str, Any]] | None:
    """The trajectories of a record; None where it holds anything else."""
    if is_trajectory(value):
        return [value]
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return inside if inside and all(is_trajectory(one) for one in inside) else None


@dataclass
class Document:
    """What is held in memory of a trajectory while all files are looked at."""

    key: str
    """Name in the spool."""
    name: str
    """Of its file."""
    session_id: str | None
    trajectory_id: str | None
    own_key: str
    """What names its agent where no reference does."""
    continuation: int | None
    continued: str | None
    given_id: str | None
    """The agent's id as our writer has it."""
    steps: list[str]
    """A digest of each step."""
    has_episode: bool
    """Whether our writer put the episode's event beside it."""
    refs: list[tuple[dict[str, Any], bool]]
    """(reference, whether an agent's step made it)."""
    twin: str | None = None
    """What tells its agent from another of the same ids."""
    embedded_in: Document | None = None
    parent: Document | None = None
    ref_key: str | None = None
    """Name of its agent by the reference to it."""
    before: Document | None = None
    """The trajectory that it continues."""

    @property
    def head(self) -> Document:
        return self if self.before is None else self.before.head

    @property
    def root(self) -> Document:
        head = self.head
        return head if head.parent is None else head.parent.root

    @property
    def place(self) -> int:
        """Which continuation it is; 0 for the first trajectory of its agent."""
        return self.continuation or (0 if self.before is None else self.before.place + 1)

    @property
    def depth(self) -> int:
        return 0 if self.head.parent is None else self.head.parent.depth + 1

    @property
    def session(self) -> str | None:
        """The run that a continuation is of."""
        if self.session_id is None or self.continuation is None:
            return self.session_id
        return _CONTINUATION.sub("", self.session_id)

    @property
    def episode_id(self) -> str:
        root = self.root
        return safe_id(root.session or root.trajectory_id or root.own_key)

    @property
    def agent_id(self) -> str:
        head = self.head
        named = head.ref_key or head.trajectory_id or head.own_key
        twin = f"/{head.twin}" if head.twin is not None else ""
        return head.given_id or safe_id(f"{self.episode_id}/{named}{twin}")


def index(value: dict[str, Any], key: str, name: str) -> list[Document]:
    """A trajectory and those embedded in it."""
    agent = value["agent"] if isinstance(value.get("agent"), dict) else {}
    extra = agent["extra"] if isinstance(agent.get("extra"), dict) else {}
    number = extra.get("continuation_index")
    own = own_part(dict(value))
    named = any(isinstance(value.get(one), str) and value[one] for one in ("session_id", "trajectory_id"))
    first = next((step for step in value["steps"] if isinstance(step, dict)), {})
    document = Document(
        key=key,
        name=name,
        session_id=text_or_none(value.get("session_id")),
        trajectory_id=text_or_none(value.get("trajectory_id")),
        own_key=content_id(
            "atif", [agent.get("name"), first.get("source"), first.get("message")] if named else value
        ),
        continuation=number if isinstance(number, int) and not isinstance(number, bool) else None,
        continued=text_or_none(value.get("continued_trajectory_ref")),
        given_id=text_or_none(own["agent"].get("id")) if isinstance(own.get("agent"), dict) else None,
        steps=[content_id("", step) for step in value["steps"]],
        has_episode=_is_of_episode(own.get("events")),
        refs=list(_refs(value)),
    )
    found = [document]
    for place, one in enumerate(embedded(value)):
        inner = index(one, f"{key}.{place}", name)
        inner[0].embedded_in = document
        found += inner
    return found


def distinct(documents: Sequence[Document], *, notes: Notes) -> list[Document]:
    """The trajectories without copies, and without those that a longer one has grown out of.

    Others that share all their ids and their first step are agents of their own, told apart by their content.
    """
    named: dict[Any, list[Document]] = defaultdict(list)
    for document in documents:
        if document.embedded_in is None:
            ids = (document.session_id, document.trajectory_id, document.own_key, document.continuation)
            named[ids].append(document)
    dropped: set[str] = set()
    for alike in named.values():
        kept: list[Document] = []
        for one in sorted(alike, key=lambda one: (-len(one.steps), one.steps, one.key)):
            if any(other.steps[: len(one.steps)] == one.steps for other in kept):
                dropped.add(one.key)
                continue
            if kept:
                one.twin = content_id("twin", one.steps)
                notes.warn("two trajectories of one id say different things")
            kept.append(one)
    return [one for one in documents if one.key.partition(".")[0] not in dropped]


def _is_of_episode(events: Any) -> bool:
    listed = events if isinstance(events, list) else ()
    return any(isinstance(one, dict) and one.get("kind") == "episode" for one in listed)


def embedded(value: dict[str, Any]) -> list[dict[str, Any]]:
    inside = value.get("subagent_trajectories")
    return [one for one in inside if is_trajectory(one)] if isinstance(inside, list) else []


def _refs(value: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    for step in value["steps"]:
        if isinstance(step, dict):
            for result in step_of(step).results:
                for ref in result.refs:
                    yield ref, step.get("source") == "agent"


def ref_key_of(ref: dict[str, Any], parent: Document) -> str | None:
    session = text_or_none(ref.get("session_id"))
    shared = session if session != parent.session_id else None
    return text_or_none(ref.get("trajectory_id")) or shared or text_or_none(ref.get("trajectory_path"))


class Documents:
    """All trajectories of an import and how they belong together."""

    def __init__(self, documents: Sequence[Document], notes: Notes) -> None:
        self._all = documents
        self._notes = notes
        for document in documents:
            self._continue(document)
        for document in documents:
            for ref, _ in document.refs:
                self._adopt(ref, document)
        for document in documents:
            if document.embedded_in is not None and document.head.parent is None:
                document.parent = document.embedded_in
                notes.infer("sub-agent without a reference", evidence="embedded in its parent's trajectory")

    def chains(self) -> list[list[Document]]:
        """The trajectories of each agent in order, by episode and agent."""
        by_agent: dict[tuple[str, str], list[Document]] = defaultdict(list)
        for document in self._all:
            by_agent[document.episode_id, document.agent_id].append(document)
        return [sorted(by_agent[name], key=lambda one: (one.place, one.key)) for name in sorted(by_agent)]

    def _continue(self, document: Document) -> None:
        if document.continued is None:
            return
        name = PurePosixPath(document.continued).name
        folder = PurePosixPath(document.name).parent
        by_path = [one for one in self._all if PurePosixPath(one.name) == folder / name]
        following = (document.continuation or 0) + 1
        by_session = [
            one
            for one in self._all
            if one.continuation == following and one.session == document.session is not None
        ]
        found = [one for one in by_path or by_session if one is not document and one.before is None]
        if not found:
            self._notes.warn("a continuation is not among the files")
        elif document.head is not found[0]:
            found[0].before = document
            evidence = "its file name" if by_path else "session and continuation index"
            self._notes.infer("continuation of a trajectory", evidence=evidence)

    def _adopt(self, ref: dict[str, Any], parent: Document) -> None:
        """Make the referred trajectory, where it is there, a sub-agent of its parent."""
        child, evidence = self._referred(ref, parent)
        if child is None:
            self._notes.warn("a referred sub-agent's trajectory is not among the files")
        elif child.parent is None and child.before is None and child is not parent.root:
            child.parent, child.ref_key = parent, ref_key_of(ref, parent)
            self._notes.infer("trajectory of a sub-agent", evidence=evidence)

    def _referred(self, ref: dict[str, Any], parent: Document) -> tuple[Document | None, str]:
        others = [one for one in self._all if one is not parent]
        wanted, path = text_or_none(ref.get("trajectory_id")), text_or_none(ref.get("trajectory_path"))
        if wanted is not None:
            named = [one for one in others if one.trajectory_id == wanted]
            named.sort(key=lambda one: one.embedded_in is not parent)
            if named:
                return named[0], "trajectory id"
        if path is not None:
            beside = PurePosixPath(parent.name).parent / path
            at = [one for one in others if PurePosixPath(one.name) == beside and one.embedded_in is None]
            if len(at) == 1:
                return at[0], "path"
        session = text_or_none(ref.get("session_id"))
        same = [one for one in others if one.session_id == session is not None != parent.session_id]
        return (same[0], "session id") if len(same) == 1 and session != parent.session_id else (None, "")
