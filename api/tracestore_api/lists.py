"""Rows -> pages: `{items, next_cursor, truncated}` in the order in which things came.

A page begins after the place of the last item before it, so that what is inserted meanwhile moves nothing:
an item is listed once however many come. A thing that was referred to before it came is listed where it was
first referred to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Table,
    and_,
    bindparam,
    case,
    column,
    func,
    select,
    table,
    tuple_,
)
from starlette.responses import Response

from tracestore.store import tables as t
from tracestore.store.blobs import Blobs
from tracestore.store.fields import TABLES
from tracestore.store.query import find_project
from tracestore.store.store import Store
from tracestore.store.tombstones import require_not_deleted
from tracestore.wire.base import PhasedEvent
from tracestore.wire.events import MODELS
from tracestore_api.access import Project
from tracestore_api.parameters import Page, Time, place_of
from tracestore_api.reads import Stored
from tracestore_api.response import page_of

router = APIRouter()

Row = dict[str, Any]

_PROJECT_ID = bindparam("project_id", type_=BigInteger)
"""Of the rows of a list, in statements that are made before the number is known."""

_PHASED = tuple(kind for kind, model in MODELS.items() if issubclass(model, PhasedEvent))


class EpisodePage(Page):
    group_id: str | None = None
    task_id: str | None = None
    split: Literal["train", "eval", "test"] | None = None
    status: str | None = None
    started_from: Time | None = None
    """Started at this time or later."""
    started_before: Time | None = None
    forked_from_episode_id: str | None = None
    """The forks of this episode."""


class GroupPage(Page):
    task_id: str | None = None


class AgentPage(Page):
    episode_id: str | None = None


class CallPage(Page):
    episode_id: str | None = None
    agent_id: str | None = None


class CandidatePage(Page):
    episode_id: str | None = None
    agent_id: str | None = None


class RewardPage(Page):
    episode_id: str | None = None
    agent_id: str | None = None
    call_id: str | None = None
    target: Literal["episode", "agent", "call", "completion", "candidate", "tokens"] | None = None
    """The finest thing the reward is for."""
    name: str | None = None
    scorer: str | None = None
    at_from: Time | None = None
    """Given at this time or later."""
    at_before: Time | None = None


class GapPage(Page):
    episode_id: str | None = None
    cause: str | None = None


class OrphanPage(Page):
    episode_id: str | None = None
    kind: Literal["episode", "agent", "call", "completion"] | None = None


class IncompletePage(Page):
    episode_id: str | None = None
    kind: Literal["group", "episode", "agent", "call", "tool_call"] | None = None
    received_before: Time | None = None
    """The half that came did so before this time by the clock of the server, which is how a caller says
    after how long it takes the other half for lost."""


class BlobPage(Page):
    episode_id: str | None = None
    call_id: str | None = None
    hash: str | None = None
    role: str | None = None


@router.get("/v1/episodes")
def list_episodes(store: Stored, project: Project, page: Annotated[EpisodePage, Query()]) -> Response:
    """Episodes in the order in which their first event came."""
    e = t.episode
    query = select(
        e.c.first_pos.label("place"),
        e.c.id,
        (~e.c.is_placeholder).label("is_recorded"),
        _id_of(t.task_group, e, "group_key").label("group_id"),
        *(e.c[name] for name in ("task_id", "split", "status", "error", "stop_reason")),
        _id_of(t.episode, e, "forked_from_episode_key").label("forked_from_episode_id"),
        _id_of(t.call, e, "forked_from_call_key").label("forked_from_call_id"),
        *(e.c[name] for name in ("inference_only", "started_at", "ended_at")),
        _count_of(t.agent, e, "episode_key").label("num_agents"),
        _count_of(t.call, e, "episode_key").label("num_calls"),
    ).where(
        *_equal(page, e, "task_id", "split", "status"),
        *_refers(page, e, group_id=("group_key", t.task_group)),
        *_refers(page, e, forked_from_episode_id=("forked_from_episode_key", t.episode)),
        *_between(e.c.started_at, page.started_from, page.started_before),
    )

    def among_few(connection: Connection, project_id: int) -> list[ColumnElement[bool]]:
        few = _among_few_started(connection, project_id, page)
        return few + _among_few_forks(connection, project_id, page.forked_from_episode_id)

    return _page(store, project, page, query, owner=e, place=e.c.first_pos, narrow=among_few)


_FEW_STARTED = 1000
_FEW_FORKS = 1000


def _among_few_started(
    connection: Connection, project_id: int, page: EpisodePage
) -> list[ColumnElement[bool]]:
    """Which episodes a range of time can leave, where that is few; [] where it is many or there is no range.

    Few are found by the index of their times. Among many, the next page is found in the order of the list: no
    planner knows which is which, and either way taken for the other reads all episodes.
    """
    e = t.episode.c
    within = _between(e.started_at, page.started_from, page.started_before)
    if not within:
        return []
    few = select(e.first_pos).where(e.project_id == project_id, *within).limit(_FEW_STARTED + 1)
    places = connection.execute(few).scalars().all()
    return [e.first_pos.in_(places)] if len(places) <= _FEW_STARTED else []


def _among_few_forks(
    connection: Connection, project_id: int, origin: str | None
) -> list[ColumnElement[bool]]:
    """Which episodes the forks of one are, where they are few: an index of the edges finds them from their
    origin. [] where they are many or no origin is named."""
    if origin is None:
        return []
    e, edge, named = t.episode, t.edge, _other(t.episode)
    key = select(named.c.key).where(named.c.project_id == project_id, named.c.id == origin).scalar_subquery()
    few = (
        select(e.c.first_pos)
        .select_from(
            edge.join(e, and_(e.c.project_id == edge.c.project_id, e.c.key == edge.c.to_episode_key))
        )
        .where(edge.c.project_id == project_id, edge.c.kind == "fork", edge.c.from_episode_key == key)
        .limit(_FEW_FORKS + 1)
    )
    places = connection.execute(few).scalars().all()
    return [e.c.first_pos.in_(places)] if len(places) <= _FEW_FORKS else []


@router.get("/v1/groups")
def list_groups(store: Stored, project: Project, page: Annotated[GroupPage, Query()]) -> Response:
    """Groups, those that only an episode names included."""
    g = t.task_group
    query = select(
        g.c.key.label("place"),
        g.c.id,
        (~g.c.is_placeholder).label("is_recorded"),
        *(g.c[name] for name in ("task_id", "size", "closed_by", "started_at", "ended_at")),
        _count_of(t.episode, g, "group_key").label("num_episodes"),
    ).where(*_equal(page, g, "task_id"))
    return _page(store, project, page, query, owner=g, place=g.c.key)


@router.get("/v1/agents")
def list_agents(store: Stored, project: Project, page: Annotated[AgentPage, Query()]) -> Response:
    """Agents in the order in which they came: with their parents, a tree of any size page by page."""
    a, r = t.agent, t.raw_event
    query = select(
        r.c.pos.label("place"),
        a.c.id,
        _id_of(t.episode, a, "episode_key").label("episode_id"),
        _id_of(t.agent, a, "parent_agent_key").label("parent_agent_id"),
        _id_of(t.call, a, "spawned_by_call_key").label("spawned_by_call_id"),
        *(a.c[name] for name in ("spawned_by_completion", "role", "name", "depth", "stage", "model")),
        *(a.c[name] for name in ("trainable", "score", "finding_used", "status", "error")),
        *(a.c[name] for name in ("started_at", "ended_at")),
        _count_of(t.call, a, "agent_key").label("num_calls"),
    ).where(*_came(a, "agent"), *_refers(page, r, episode_id=("episode_key", t.episode)))
    return _page(store, project, page, query, owner=a, place=r.c.pos)


@router.get("/v1/calls")
def list_calls(store: Stored, project: Project, page: Annotated[CallPage, Query()]) -> Response:
    """Calls in the order in which they came, each with the completion it continues: an episode of any size
    page by page."""
    c, r = t.call, t.raw_event
    query = select(
        r.c.pos.label("place"),
        c.c.id,
        _id_of(t.episode, c, "episode_key").label("episode_id"),
        _id_of(t.agent, c, "agent_key").label("agent_id"),
        *(c.c[name] for name in ("ordinal", "purpose", "model", "policy_name", "policy_version")),
        _id_of(t.call, c, "link_call_key").label("link_call_id"),
        *(c.c[name] for name in ("link_completion", "link", "link_exact", "context_messages")),
        _count_of(t.completion, c, "call_key").label("num_completions"),
        *(c.c[name] for name in ("prompt_tokens", "completion_tokens", "status", "error_type")),
        *(c.c[name] for name in ("started_at", "ended_at")),
    ).where(
        *_came(c, "call"),
        # Of one agent by the index of its calls, else by that of the episode's log.
        *_refers(page, r if page.agent_id is None else c, episode_id=("episode_key", t.episode)),
        *_refers(page, c, agent_id=("agent_key", t.agent)),
    )
    return _page(store, project, page, query, owner=c, place=r.c.pos)


@router.get("/v1/candidates")
def list_candidates(store: Stored, project: Project, page: Annotated[CandidatePage, Query()]) -> Response:
    """Candidate sets, each with its members and with every selection made from it."""
    c = t.candidate_set
    query = select(
        c.c.key.label("place"),
        c.c.id,
        _id_of(t.episode, c, "episode_key").label("episode_id"),
        _id_of(t.agent, c, "agent_key").label("agent_id"),
        c.c.generator,
        c.c.at,
    ).where(
        ~c.c.is_placeholder,
        *_refers(page, c, episode_id=("episode_key", t.episode), agent_id=("agent_key", t.agent)),
    )
    return _page(store, project, page, query, owner=c, place=c.c.key, more=_with_members)


@router.get("/v1/rewards")
def list_rewards(store: Stored, project: Project, page: Annotated[RewardPage, Query()]) -> Response:
    """Rewards in the order in which they came; none replaces another."""
    r = t.reward
    query = select(
        r.c.key.label("place"),
        r.c.id,
        r.c.target,
        *_where_it_belongs(r),
        r.c.completion,
        _id_of(t.candidate_set, r, "candidate_set_key").label("candidate_set_id"),
        *(r.c[name] for name in ("member", "token_start", "token_length")),
        *(r.c[name] for name in ("name", "value", "weight", "scorer", "scorer_version", "at")),
        r.c.pos.label("seq"),
    ).where(
        *_equal(page, r, "target", "name", "scorer"),
        *_refers(
            page,
            r,
            episode_id=("episode_key", t.episode),
            agent_id=("agent_key", t.agent),
            call_id=("call_key", t.call),
        ),
        *_between(r.c.at, page.at_from, page.at_before),
    )
    return _page(store, project, page, query, owner=r, place=r.c.key)


@router.get("/v1/gaps")
def list_gaps(store: Stored, project: Project, page: Annotated[GapPage, Query()]) -> Response:
    """What is known to be missing, with its cause."""
    g = t.gap
    query = select(
        g.c.key.label("place"),
        g.c.id,
        *_where_it_belongs(g),
        *(g.c[name] for name in ("cause", "detail", "at")),
    ).where(*_equal(page, g, "cause"), *_refers(page, g, episode_id=("episode_key", t.episode)))
    return _page(store, project, page, query, owner=g, place=g.c.key)


@router.get("/v1/orphans")
def list_orphans(store: Stored, project: Project, page: Annotated[OrphanPage, Query()]) -> Response:
    """What names a parent, a call, an agent or an episode that has not come; computed when asked, by id."""
    o = table("orphans", *map(column, ("project", "episode_id", "kind", "id", "missing", "missing_id")))
    order = (o.c.id, o.c.kind, o.c.missing)
    wanted = {"episode_id": page.episode_id, "kind": page.kind}
    query = select(o.c.episode_id, o.c.kind, o.c.id, o.c.missing, o.c.missing_id).where(
        o.c.project == project, *(o.c[name] == value for name, value in wanted.items() if value is not None)
    )
    after = place_of(page.cursor, of="orphans", types=(str, str, str))
    if after is not None:
        query = query.where(tuple_(*order) > tuple_(*after))
    with store.read() as connection:
        _project(connection, project, page)
        items = _rows(connection, query.order_by(*order).limit(page.limit + 1))
    return page_of(items, page, of="orphans", place=lambda item: (item["id"], item["kind"], item["missing"]))


@router.get("/v1/incomplete")
def list_incomplete(store: Stored, project: Project, page: Annotated[IncompletePage, Query()]) -> Response:
    """What began and has not ended, or ended and never began; computed when asked, in the order it came.

    Nothing is ever marked as lost: the other half may come at any time, and is stored then.
    """
    r = t.raw_event
    other = _other(r)
    other_half = select(other.c.phase).where(
        *(other.c[name] == r.c[name] for name in ("project_id", "entity_key")), other.c.phase != r.c.phase
    )
    query = select(
        r.c.pos.label("place"),
        r.c.kind,
        # A key is that of one row only, of whatever table.
        func.coalesce(*(_id_of(TABLES[kind], r, "entity_key") for kind in _PHASED)).label("id"),
        _id_of(t.episode, r, "episode_key").label("episode_id"),
        case((r.c.phase == "start", "end"), else_="start").label("missing"),
        r.c.received_at,
    ).where(
        r.c.phase != "whole",
        ~other_half.exists(),
        *_equal(page, r, "kind"),
        *_refers(page, r, episode_id=("episode_key", t.episode)),
        *_between(r.c.received_at, None, page.received_before),
    )
    return _page(store, project, page, query, owner=r, place=r.c.pos)


@router.get("/v1/blobs")
def list_blobs(
    request: Request, store: Stored, project: Project, page: Annotated[BlobPage, Query()]
) -> Response:
    """What refers to a blob, and whether its bytes have come (null on a server that keeps no blobs)."""
    b = t.blob_ref
    query = select(
        b.c.key.label("place"),
        b.c.id,
        *_where_it_belongs(b),
        *(b.c[name] for name in ("completion", "position", "hash", "role", "media_type", "dtype")),
        *(b.c[name] for name in ("size", "at")),
    ).where(
        *_equal(page, b, "hash", "role"),
        *_refers(page, b, episode_id=("episode_key", t.episode), call_id=("call_key", t.call)),
    )
    after = place_of(page.cursor, of=b.name)
    with store.read() as connection:
        query = query.where(b.c.project_id == _PROJECT_ID)
        if after is not None:
            query = query.where(b.c.key > after[0])
        query = query.order_by(b.c.key).limit(page.limit + 1)
        items = _rows(connection, query, project_id=_project(connection, project, page))
    blobs: Blobs | None = request.app.state.blobs
    stored = None if blobs is None else blobs.sizes(project, {item["hash"] for item in items})
    for item in items:
        item["is_stored"] = None if stored is None else item["hash"] in stored
    return page_of(items, page, of=b.name, place=lambda item: (item.pop("place"),))


def _page(
    store: Store,
    project: str,
    page: Page,
    query: Select[Any],
    *,
    owner: Table,
    place: ColumnElement[int],
    narrow: Callable[[Connection, int], list[ColumnElement[bool]]] = lambda _connection, _project_id: [],
    more: Callable[[Connection, int, Sequence[Row]], None] | None = None,
) -> Response:
    """One page of `query`, whose column `place` orders it; `more` adds to its items.

    Args:
        owner: the table that the query lists, each row once.
        narrow: conditions that change no page but what it costs.
    """
    after = place_of(page.cursor, of=owner.name)
    items: list[Row] = []
    with store.read() as connection:
        project_id = _project(connection, project, page)
        if project_id is not None:
            query = query.where(owner.c.project_id == _PROJECT_ID, *narrow(connection, project_id))
            query = query.order_by(place).limit(page.limit + 1)
            query = query if after is None else query.where(place > after[0])
            items = _rows(connection, query, project_id=project_id)
            if more is not None:
                more(connection, project_id, items)
    return page_of(items, page, of=owner.name, place=lambda item: (item.pop("place"),))


def _project(connection: Connection, name: str, page: Page) -> int | None:
    """The number of the project of a list; None where nothing was ever posted to it.

    Raises:
        Deleted: it was, or what the page is asked of.
    """
    project_id = find_project(connection, name)
    if project_id is not None:
        named = {kind: getattr(page, f"{kind}_id", None) for kind in ("episode", "agent", "call")}
        asked = {kind: id_ for kind, id_ in named.items() if id_ is not None} or {"project": name}
        for kind, id_ in asked.items():
            require_not_deleted(connection, project_id, kind, id_)
    return project_id


def _where_it_belongs(owner: Table) -> list[ColumnElement[Any]]:
    """The ids of the episode, agent and call that a row names."""
    tables = {"episode": t.episode, "agent": t.agent, "call": t.call}
    return [_id_of(table, owner, f"{name}_key").label(f"{name}_id") for name, table in tables.items()]


@cache
def _other(table: Table) -> FromClause:
    """A table inside a subquery of a list. Kept, for making one takes as long as reading a page."""
    return table.alias()


@cache
def _id_of(target: Table, owner: Table, key_column: str) -> ColumnElement[Any]:
    """The client's id of the row of `target` that a column of `owner` refers to."""
    other = _other(target)
    same = and_(other.c.project_id == owner.c.project_id, other.c.key == owner.c[key_column])
    return select(other.c.id).where(same).correlate(owner).scalar_subquery()


@cache
def _count_of(counted: Table, owner: Table, key_column: str) -> ColumnElement[int]:
    """How many rows of `counted` refer to a row of `owner`."""
    other = _other(counted)
    same = and_(other.c.project_id == owner.c.project_id, other.c[key_column] == owner.c.key)
    return select(func.count()).select_from(other).where(same).correlate(owner).scalar_subquery()


def _came(owner: Table, kind: str) -> list[ColumnElement[bool]]:
    """Each row with the event that brought it: the log has an index that begins with the episode and goes by
    position, so that a page costs the same wherever it begins and however large the episode is."""
    r = t.raw_event.c
    return [
        r.project_id == _PROJECT_ID,
        owner.c.project_id == r.project_id,
        owner.c.key == r.entity_key,
        owner.c.pos == r.pos,
        r.kind == kind,
    ]


def _equal(page: Page, owner: Table, *names: str) -> list[ColumnElement[bool]]:
    """Columns that must have the value of the parameter of their name, where it is given."""
    return [owner.c[name] == value for name in names if (value := getattr(page, name)) is not None]


def _refers(page: Page, owner: Table, **columns: tuple[str, Table]) -> list[ColumnElement[bool]]:
    """Columns that must refer to the row with the id that a parameter gives."""
    conditions = []
    for name, (key_column, target) in columns.items():
        value = getattr(page, name)
        if value is not None:
            other = _other(target)
            # Not by the owner's project_id: no index is used for what has to be looked up for every row.
            row = and_(other.c.project_id == _PROJECT_ID, other.c.id == value)
            key = select(other.c.key).where(row).scalar_subquery()
            conditions.append(owner.c[key_column] == key)
    return conditions


def _between(time: ColumnElement[Any], start: int | None, end: int | None) -> list[ColumnElement[bool]]:
    """start <= column < end, each bound where it is given; an unknown time lies in no range."""
    return [
        *([time >= start] if start is not None else []),
        *([time < end] if end is not None else []),
    ]


def _with_members(connection: Connection, project_id: int, items: Sequence[Row]) -> None:
    """Add members and selections to candidate sets; each item's `place` is the set's key."""
    keys = [item["place"] for item in items]
    members, selections = _members(connection, project_id, keys), _selections(connection, project_id, keys)
    for item in items:
        item["members"] = members[item["place"]]
        item["selections"] = selections[item["place"]]


def _members(connection: Connection, project_id: int, keys: Sequence[int]) -> dict[int, list[Row]]:
    m = t.candidate_member
    query = (
        select(
            m.c.candidate_set_key,
            m.c.member,
            _id_of(t.call, m, "call_key").label("call_id"),
            # A completion left out is the first one of its call; an agent has none.
            case((m.c.call_key.is_not(None), func.coalesce(m.c.completion, 0))).label("completion"),
            _id_of(t.agent, m, "agent_key").label("agent_id"),
            m.c.score,
        )
        .where(m.c.project_id == project_id, m.c.candidate_set_key.in_(keys))
        .order_by(m.c.candidate_set_key, m.c.member)
    )
    return _grouped(_rows(connection, query), "candidate_set_key")


def _selections(connection: Connection, project_id: int, keys: Sequence[int]) -> dict[int, list[Row]]:
    s = t.candidate_selection
    query = (
        select(
            s.c.candidate_set_key,
            s.c.key,
            s.c.id,
            *(s.c[name] for name in ("selector", "selector_version")),
            _id_of(t.call, s, "selector_call_key").label("selector_call_id"),
            *(s.c[name] for name in ("treatment", "reason", "at")),
        )
        .where(s.c.project_id == project_id, s.c.candidate_set_key.in_(keys))
        .order_by(s.c.key)
    )
    found = _grouped(_rows(connection, query), "candidate_set_key")
    rows = [row for of_set in found.values() for row in of_set]
    choices = _choices(connection, project_id, [row["key"] for row in rows])
    for row in rows:
        chosen = choices[row.pop("key")]
        row["selected"] = [choice["member"] for choice in chosen if choice["part"] == "selected"]
        # An empty `continued` has no rows, as one left out has none; both mean: as `selected`.
        row["continued"] = [choice["member"] for choice in chosen if choice["part"] == "continued"] or None
        scores = [choice for choice in chosen if choice["part"] == "score"]
        row["scores"] = [{"member": choice["member"], "score": choice["score"]} for choice in scores]
    return found


def _choices(connection: Connection, project_id: int, keys: Sequence[int]) -> dict[int, list[Row]]:
    c = t.candidate_choice
    query = (
        select(c.c.candidate_selection_key, c.c.part, c.c.member, c.c.score)
        .where(c.c.project_id == project_id, c.c.candidate_selection_key.in_(keys))
        .order_by(c.c.candidate_selection_key, c.c.part, c.c.position)
    )
    return _grouped(_rows(connection, query), "candidate_selection_key")


def _rows(connection: Connection, query: Select[Any], **parameters: int | None) -> list[Row]:
    result = connection.execute(query, parameters)
    names = list(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]


def _grouped(rows: Iterable[Row], name: str) -> dict[int, list[Row]]:
    """Rows by one of their columns, which is taken out; order kept."""
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.pop(name)].append(row)
    return groups
