"""Rows -> graphs without texts: what an export of recorded ids reads, a group of episodes at a time.

    episodes -> log, calls, completions, token runs -> graphs, each with what the rows know already

`load` puts every event together from the rows, and `graph.build` takes them apart again: it parses and hashes
every message to find where it stands. But the rows say where (`call.link_call_key`, `token_run.base_key`,
`node`), which `store.verify` holds them to, and no sample needs a message. So texts are read for nothing but
what no row tells: whether one holds an image, a sound, a video or a file.

What the rows cannot answer exactly is left out, for the caller to read in full:

- episodes of which something came after the snapshot: the rows are as they are now;
- episodes with a delta call whose parent has not come: its own messages are in no place yet;
- episodes with such media: what a call read beside its ids depends on which message holds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from sqlalchemy import Connection, func, select

from tracestore.graph.media import may_hold_media, media_parts
from tracestore.graph.model import CompletionKey, Graph, Link, Node, Textless, failed_tools
from tracestore.graph.runs import TokenRun
from tracestore.store import tables as t
from tracestore.store.fields import union
from tracestore.store.load import load_merged, read_contents
from tracestore.store.lookup import look_up
from tracestore.store.runs import read_runs
from tracestore.store.skeleton import outline
from tracestore.store.tombstones import deleted_names
from tracestore.store.types import unescape
from tracestore.wire.arrays import TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.call import Call, Policy, Usage
from tracestore.wire.completion import CompletionFields, VersionRun
from tracestore.wire.events import AnyEvent
from tracestore.wire.gap import STALE_OBSERVATION

K = TypeVar("K")
V = TypeVar("V")
M = TypeVar("M", bound=BaseModel)

_NOT_READ = frozenset({"tool_call", "gap", "consumption", "snapshot"})
"""Kinds of which no sample says anything, but for the status of a tool call and gaps of one cause: these are
read apart."""
_REMEMBERED = 65_536
"""Contents, about, that are known to hold no media, and outlines: what groups share is read once."""

_Frame = tuple[int, int | None]
"""Keys of a skeleton and of tools."""


class LazyMapping(Mapping[K, V]):
    """A mapping that is read when somebody asks."""

    def __init__(self, read: Callable[[], Mapping[K, V]]) -> None:
        self._read = read

    @cached_property
    def _found(self) -> Mapping[K, V]:
        return self._read()

    def __getitem__(self, key: K) -> V:
        return self._found[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Places(NamedTuple):
    """Where the messages of an episode stand; fields as in `Graph`."""

    nodes: Mapping[bytes, Node]
    prompt_node: Mapping[str, bytes | None]
    completion_node: Mapping[CompletionKey, bytes]


PlacesOf = Callable[[str], Places]
"""Reads the places of an episode, by its id. Few ask: where a context was rewritten and nobody said so."""


class _Logged(NamedTuple):
    """A row of the log."""

    episode_key: int
    entity_key: int
    kind: str
    phase: str
    revision: int | None
    pos: int
    field_set_key: int
    fields: str = ""


_LOG = _Logged._fields[:-1]
_EPISODE, _POS = _LOG.index("episode_key"), _LOG.index("pos")


class _CallRow(NamedTuple):
    key: int
    id: str
    episode_key: int
    is_placeholder: bool
    agent_key: int | None
    ordinal: int | None
    purpose: str | None
    model: str | None
    policy_name: str | None
    policy_version: int | None
    dialect: str | None
    context: str | None
    skeleton_key: int | None
    tools_key: int | None
    context_messages: int | None
    parent_call_key: int | None
    parent_completion: int | None
    link_call_key: int | None
    link_completion: int | None
    link: str | None
    link_exact: bool | None
    prompt_run_key: int | None
    logprobs_are: str | None
    completion_tokens: int | None
    status: str | None


class _AnswerRow(NamedTuple):
    key: int
    call_key: int
    completion: int
    finish_reason: str | None
    run_key: int | None
    partial: bool | None
    stop_token_stripped: bool | None


@dataclass(slots=True)
class _Parts:
    """What was read of one episode."""

    events: dict[str, dict[str, AnyEvent]] = field(default_factory=lambda: defaultdict(dict))
    """All but its calls and completions, kind -> id -> event."""
    calls: list[_CallRow] = field(default_factory=list)
    phases: dict[int, str] = field(default_factory=dict)
    """Of calls, by key."""
    answers: dict[int, list[_AnswerRow]] = field(default_factory=lambda: defaultdict(list))
    """Completions by the key of their call."""
    tools: list[tuple[CompletionKey, str | None]] = field(default_factory=list)
    """Of executed tool calls: whose they are, and their status."""
    stale: set[str] = field(default_factory=set)
    """Calls that read what answered something else."""


class TextlessReader:
    """Reads episodes of one project, and remembers what they share. Any number of threads may use it."""

    def __init__(self, project_id: int) -> None:
        self._project_id = project_id
        self._clean: set[int] = set()
        self._outlines: dict[_Frame, Raw] = {}

    def graphs(
        self,
        connection: Connection,
        episode_ids: Sequence[str],
        *,
        snapshot: int,
        places_of: PlacesOf,
    ) -> dict[str, Graph]:
        """The graphs of episodes by id; those that the rows cannot answer for are missing."""
        return _Reading(self, connection, snapshot).graphs(episode_ids, places_of)

    # --- What episodes share ----------------------------------------------------------------------

    def outlines(self, connection: Connection, calls: Iterable[_CallRow]) -> dict[_Frame, Raw]:
        """The outlines of calls, by their skeleton and tools."""
        wanted = {(c.skeleton_key, c.tools_key) for c in calls if c.skeleton_key is not None}
        known = self._outlines
        found = {frame: known[frame] for frame in wanted if frame in known}
        new = wanted - found.keys()
        if new:
            keys = {key for frame in new for key in frame if key is not None}
            contents = read_contents(connection, self._project_id, keys)
            for frame in new:
                skeleton_key, tools_key = frame
                tools = None if tools_key is None else contents[tools_key].data
                found[frame] = Raw(outline(contents[skeleton_key].data, tools))
            # Another thread may be reading the old one.
            self._outlines = found if len(known) > _REMEMBERED else {**known, **found}
        return found

    def media(self, connection: Connection, keys: Iterable[int]) -> set[int]:
        """Which contents are messages that hold media."""
        new = set(keys) - self._clean
        contents = read_contents(connection, self._project_id, new)
        likely = [(key, content.data) for key, content in contents.items() if may_hold_media(content.data)]
        found = {key for key, data in likely if media_parts(Raw(data))}
        clean = new - found
        self._clean = clean if len(self._clean) > _REMEMBERED else self._clean | clean
        return found


class _Reading:
    """One batch of episodes."""

    def __init__(self, reader: TextlessReader, connection: Connection, snapshot: int) -> None:
        self._reader = reader
        self._connection = connection
        self._project_id = reader._project_id
        self._snapshot = snapshot
        self._parts: dict[int, _Parts] = {}
        self._names: dict[str, str] = {}
        self._policies: dict[tuple[str | None, int | None], Policy] = {}

    def graphs(self, episode_ids: Sequence[str], places_of: PlacesOf) -> dict[str, Graph]:
        ids: dict[int, str] = dict(self._rows(t.episode, ("key", "id"), by="id", values=episode_ids))
        if is_any_deleted(self._connection, self._project_id, episode_ids):
            return {}
        self._parts = {key: _Parts() for key in ids}
        self._read_events()
        self._read_calls()
        self._drop_media()
        self._read_ids()
        return {ids[key]: self._graph(ids[key], parts, places_of) for key, parts in self._parts.items()}

    def _rows(
        self, table: Any, columns: tuple[str, ...], *, by: str, values: Iterable[Any]
    ) -> Iterator[tuple[Any, ...]]:
        listed = sorted(set(values))
        return look_up(self._connection, table, columns, by=by, values=listed, project_id=self._project_id)

    def _drop(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._parts.pop(key, None)

    # --- Events -----------------------------------------------------------------------------------

    def _read_events(self) -> None:
        log = list(self._rows(t.raw_event, _LOG, by="episode_key", values=self._parts))
        self._drop({row[_EPISODE] for row in log if row[_POS] > self._snapshot})
        self._drop(self._parts.keys() - {row[_EPISODE] for row in log})
        rows = self._other_rows(log)
        in_group = {
            row.entity_key for row in rows if row.kind == "episode" and union([row.fields]).get("group_id")
        }
        groups, of_groups = self._groups(in_group)
        for key, episode_key, event in load_merged(self._connection, self._project_id, rows + of_groups):
            for one in groups[key] if episode_key is None else [episode_key]:
                if one in self._parts:
                    self._parts[one].events[event.kind][event.id] = event

    def _other_rows(self, log: Sequence[tuple[Any, ...]]) -> list[_Logged]:
        """Notes the phases of calls; returns the rows of what is no call, with the fields they named."""
        found = []
        for row in log:
            episode_key, entity_key, kind, phase, *_ = row
            parts = self._parts.get(episode_key)
            if parts is None or kind in _NOT_READ:
                continue
            if kind == "call":
                known = parts.phases.get(entity_key)
                parts.phases[entity_key] = phase if known is None else "whole"
            elif kind != "completion":
                found.append(_Logged(*row))
        return self._with_fields(found)

    def _with_fields(self, log: Sequence[_Logged]) -> list[_Logged]:
        keys = (row.field_set_key for row in log)
        fields = dict(self._rows(t.field_set, ("key", "fields"), by="key", values=keys))
        return [row._replace(fields=fields[row.field_set_key]) for row in log]

    def _groups(self, episode_keys: set[int]) -> tuple[dict[int, list[int]], list[_Logged]]:
        """The groups that episodes name, each with its episodes, and their rows of the log."""
        episodes: dict[int, list[int]] = defaultdict(list)
        for key, group_key in self._rows(t.episode, ("key", "group_key"), by="key", values=episode_keys):
            episodes[group_key].append(key)
        log = [_Logged(*row) for row in self._rows(t.raw_event, _LOG, by="entity_key", values=episodes)]
        for row in log:
            if row.pos > self._snapshot:
                self._drop(episodes[row.entity_key])
        return episodes, self._with_fields(log)

    # --- Calls and completions --------------------------------------------------------------------

    def _read_calls(self) -> None:
        rows = self._rows(t.call, _CallRow._fields, by="episode_key", values=self._parts)
        calls = list(map(_CallRow._make, rows))
        self._drop([c.episode_key for c in calls if not c.is_placeholder and c.context_messages is None])
        self._calls = {c.key: c for c in calls if c.episode_key in self._parts}
        answers = self._rows(t.completion, _AnswerRow._fields, by="call_key", values=self._calls)
        for answer in map(_AnswerRow._make, answers):
            self._parts[self._calls[answer.call_key].episode_key].answers[answer.call_key].append(answer)
        for call in self._calls.values():
            self._parts[call.episode_key].calls.append(call)
        columns = ("episode_key", "call_key", "completion", "status")
        for episode_key, call_key, completion, status in self._rows(
            t.tool_call, columns, by="episode_key", values=self._parts
        ):
            caller = self._calls.get(call_key)
            if caller is not None and caller.episode_key == episode_key:
                self._parts[episode_key].tools.append(((caller.id, completion or 0), status))
        gaps = self._rows(t.gap, ("episode_key", "call_key", "cause"), by="episode_key", values=self._parts)
        for episode_key, call_key, cause in gaps:
            named = self._calls.get(call_key)
            if named is not None and cause == STALE_OBSERVATION:
                self._parts[episode_key].stale.add(named.id)

    def _drop_media(self) -> None:
        """Leave out the episodes with a message that holds media."""
        contents: dict[int, set[int]] = defaultdict(set)
        columns = ("content_key", "episode_key")
        for content_key, episode_key in self._rows(t.node, columns, by="episode_key", values=self._parts):
            contents[content_key].add(episode_key)
        for content_key in self._reader.media(self._connection, contents):
            self._drop(contents[content_key])

    def _read_ids(self) -> None:
        """Everything else that calls and completions refer to."""
        calls = [call for parts in self._parts.values() for call in parts.calls]
        answers = [one for parts in self._parts.values() for some in parts.answers.values() for one in some]
        self._outlines = self._reader.outlines(self._connection, calls)
        agents = (call.agent_key for call in calls if call.agent_key is not None)
        self._agent_ids = dict(self._rows(t.agent, ("key", "id"), by="key", values=agents))
        self._call_ids = {key: call.id for key, call in self._calls.items()}
        named = {key for call in calls for key in (call.parent_call_key, call.link_call_key)}
        elsewhere = named - self._calls.keys() - {None}
        self._call_ids |= dict(self._rows(t.call, ("key", "id"), by="key", values=elsewhere))
        self._versions: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        columns = ("completion_key", "position", "start", "name", "version")
        versions = self._rows(t.version_run, columns, by="completion_key", values=(a.key for a in answers))
        for key, *version in sorted(versions):
            self._versions[key].append(tuple(version))
        named_runs = (*(call.prompt_run_key for call in calls), *(one.run_key for one in answers))
        keys = {key for key in named_runs if key is not None}
        self._runs = read_runs(self._connection, self._project_id, keys)

    # --- Putting together -------------------------------------------------------------------------

    def _text(self, value: str | None) -> str | None:
        """A text as its client wrote it (`ExactText`); most repeat."""
        if value is None:
            return None
        known = self._names.get(value)
        if known is None:
            known = self._names[value] = unescape(value)
        return known

    def _graph(self, episode_id: str, parts: _Parts, places_of: PlacesOf) -> Graph:
        by_id = sorted(parts.calls, key=lambda call: call.id)
        calls: dict[str, Call] = {}
        completions: dict[CompletionKey, CompletionFields] = {}
        links: dict[str, Link] = {}
        outlines: dict[str, Raw] = {}
        prompts: dict[str, TokenRun] = {}
        sampled: dict[CompletionKey, TokenRun] = {}
        for row in by_id:
            prompt = None
            if not row.is_placeholder:
                calls[row.id] = self._call(row, episode_id, parts.phases[row.key])
                links[row.id] = self._link(row)
                if row.skeleton_key is not None:
                    outlines[row.id] = self._outlines[row.skeleton_key, row.tools_key]
                prompt = None if row.prompt_run_key is None else self._runs[row.prompt_run_key].run
                if prompt is not None:
                    prompts[row.id] = prompt
            for answer in sorted(parts.answers[row.key], key=lambda one: one.completion):
                name = row.id, answer.completion
                completions[name] = self._answer(answer)
                run = None if prompt is None or answer.run_key is None else self._runs[answer.run_key].run
                if run is not None:
                    sampled[name] = run

        def of(kind: str) -> dict[str, Any]:
            return dict(sorted(parts.events[kind].items()))

        found: list[Places] = []

        def places() -> Places:
            if not found:
                found.append(places_of(episode_id))
            return found[0]

        return Graph(
            group=next(iter(of("group").values()), None),
            episode=next(iter(of("episode").values()), None),
            agents=of("agent"),
            calls=calls,
            completions=completions,
            tool_calls={},
            context_edits=of("context_edit"),
            candidate_sets=of("candidate_set"),
            candidate_selections=of("candidate_selection"),
            rewards=of("reward"),
            gaps={},
            snapshots={},
            blobs=of("blob"),
            consumptions={},
            nodes=LazyMapping(lambda: places().nodes),
            prompt_node=LazyMapping(lambda: places().prompt_node),
            completion_node=LazyMapping(lambda: places().completion_node),
            links=links,
            pending=frozenset(),
            textless=Textless(outlines, prompts, sampled, failed_tools(parts.tools), frozenset(parts.stale)),
        )

    def _call(self, row: _CallRow, episode_id: str, phase: str) -> Call:
        policy = usage = None
        if row.policy_name is not None:
            policy = self._policy(self._text(row.policy_name), row.policy_version)
        if row.completion_tokens is not None:
            usage = _made(Usage, _USAGE | {"completion_tokens": row.completion_tokens})
        assert row.agent_key is not None, "a call that has come names its agent"
        return _made(
            Call,
            {
                **_CALL,
                "id": row.id,
                "phase": phase,
                "episode_id": episode_id,
                "agent_id": self._agent_ids[row.agent_key],
                "ordinal": row.ordinal,
                "purpose": self._text(row.purpose),
                "model": self._text(row.model),
                "policy": policy,
                "dialect": row.dialect or "openai_chat",
                "context": row.context or "whole",
                "parent_call_id": None
                if row.parent_call_key is None
                else self._call_ids[row.parent_call_key],
                "parent_completion": row.parent_completion,
                "logprobs_are": row.logprobs_are,
                "usage": usage,
                "status": row.status,
            },
        )

    def _policy(self, name: str | None, version: int | None) -> Policy:
        known = self._policies.get((name, version))
        if known is None:
            known = self._policies[name, version] = _made(Policy, {"name": name, "version": version})
        return known

    def _link(self, row: _CallRow) -> Link:
        parent = None
        if row.link_call_key is not None:
            parent = (self._call_ids[row.link_call_key], row.link_completion or 0)
        return Link(parent, row.link, bool(row.link_exact))  # type: ignore[arg-type]

    def _answer(self, row: _AnswerRow) -> CompletionFields:
        values = dict(_ANSWER)
        values["finish_reason"] = self._text(row.finish_reason)
        values["partial"] = None if row.partial is None else bool(row.partial)
        stripped = row.stop_token_stripped
        values["stop_token_stripped"] = None if stripped is None else bool(stripped)
        if row.run_key is not None:
            read = self._runs[row.run_key]
            values["token_ids"] = TokenIds(read.own.tobytes())
            values["logprobs"] = read.logprobs
        versions = self._versions.get(row.key)
        if versions is not None:
            values["versions"] = tuple(
                _made(VersionRun, {"start": start, "name": self._text(name), "version": version})
                for _, start, name, version in versions
            )
        return _made(CompletionFields, values)


_CALL: dict[str, Any] = {name: info.default for name, info in Call.model_fields.items()}
_USAGE: dict[str, Any] = dict.fromkeys(Usage.model_fields)
_ANSWER: dict[str, Any] = dict.fromkeys(CompletionFields.model_fields)
_NAMES: dict[type[BaseModel], set[str]] = {
    model: set(model.model_fields) for model in (Call, Usage, Policy, CompletionFields, VersionRun)
}
"""Never changed, so that models share them."""
_set_values = BaseModel.__dict__["__dict__"].__set__
_set_named = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__


def _made(model: type[M], values: dict[str, Any]) -> M:
    """A model of all its values, checked when they were stored: `model_construct`, several times faster."""
    made: M = object.__new__(model)
    _set_values(made, values)
    _set_named(made, _NAMES[model])
    _set_extra(made, None)
    _set_private(made, None)
    return made


# --- Places -------------------------------------------------------------------------------------------


def is_any_deleted(connection: Connection, project_id: int, episode_ids: Sequence[str]) -> bool:
    """Whether any of these episodes was deleted, or their project."""
    stone = t.tombstone.c
    query = select(stone.id).where(stone.project_id == project_id).limit(1)
    if connection.execute(query.where(stone.kind == "project")).first() is not None:
        return True
    names = (("episode", id_) for id_ in episode_ids)
    return bool(deleted_names(connection, project_id, names))


def is_unchanged(connection: Connection, project_id: int, episode_id: str, *, snapshot: int) -> bool:
    """Whether the rows of an episode say what they said at a snapshot."""
    if is_any_deleted(connection, project_id, [episode_id]):
        return False
    raw, episode = t.raw_event.c, t.episode.c
    key = select(episode.key).where(episode.project_id == project_id, episode.id == episode_id)
    last = connection.execute(
        select(func.max(raw.pos)).where(
            raw.project_id == project_id, raw.episode_key == key.scalar_subquery()
        )
    ).scalar()
    return last is not None and last <= snapshot


def read_places(connection: Connection, project_id: int, episode_id: str) -> Places:
    """Where the messages of an episode stand, as its rows say now."""
    ((episode_key,),) = look_up(
        connection, t.episode, ("key",), by="id", values=[episode_id], project_id=project_id
    )
    matches: dict[int, bytes] = {}
    rows: list[tuple[Any, ...]] = []
    node, content = t.node.c, t.content.c
    query = (
        select(node.key, node.parent_key, node.match_key, node.depth, content.role)
        .join(t.content, (content.project_id == node.project_id) & (content.key == node.content_key))
        .where(node.project_id == project_id, node.episode_key == episode_key)
    )
    for row in sorted(tuple(row) for row in connection.execute(query)):
        rows.append(row)
        matches[row[0]] = bytes(row[2])
    nodes: dict[bytes, Node] = {}
    for key, parent_key, _, depth, role in rows:
        match = matches[key]
        parent = None if parent_key is None else matches[parent_key]
        named = None if role == "message" else role
        # Of two spellings of one message the first, as when a graph is built.
        nodes.setdefault(match, Node(key=match, parent=parent, match_hash=None, depth=depth, role=named))
    call, answer = t.call.c, t.completion.c
    of_episode = (call.project_id == project_id, call.episode_key == episode_key)
    prompts = connection.execute(
        select(call.id, call.prompt_node_key).where(*of_episode, call.is_placeholder.is_(False))
    )
    answers = connection.execute(
        select(call.id, answer.completion, answer.node_key)
        .join(t.completion, (answer.project_id == call.project_id) & (answer.call_key == call.key))
        .where(*of_episode, answer.node_key.is_not(None))
    )
    return Places(
        nodes,
        {id_: None if key is None else matches[key] for id_, key in prompts},
        {(id_, index): matches[key] for id_, index, key in answers},
    )
