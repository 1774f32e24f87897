"""What is stored of one thing, and what the server says of itself. Connections are held
only while rows are read: a graph is built and written out without one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from sqlalchemy import Connection, Table, func, select
from starlette.responses import Response

from tracestore import __version__
from tracestore.graph.build import build
from tracestore.graph.report import call_of, context_shown, episode_tree
from tracestore.store import tables as t
from tracestore.store.load import load_call, load_entity, load_head
from tracestore.store.query import find_project
from tracestore.store.seen import link_of, what_was_seen
from tracestore.store.store import NotFound, Store
from tracestore.store.tombstones import require_content, require_not_deleted
from tracestore.wire.base import WIRE_VERSIONS
from tracestore.wire.call import Call
from tracestore_api.access import AnyProject, Project
from tracestore_api.body import ENCODINGS
from tracestore_api.parameters import MAX_PAGE, PROJECT_HEADER, Parameters
from tracestore_api.response import StrictJSON

router = APIRouter()

MOST_EVENTS = 2000
"""In the tree of an episode, so that the answer to one request is bounded."""
NoParameters = Annotated[Parameters, Query()]
"""A route without query parameters; one that is sent is an error all the same."""


_NOT_HERE = (
    f"check the id and the header {PROJECT_HEADER}; /v1/orphans lists what waits for what has not come"
)


def _store(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


Stored = Annotated[Store, Depends(_store)]


@router.get("/v1/health")
async def health(no: NoParameters) -> Response:
    """Answers while the server runs, whatever it has in hand: it touches neither the store nor a thread."""
    return StrictJSON({"status": "ok"})


@router.get("/v1/meta")
def meta(request: Request, store: Stored, project: AnyProject, no: NoParameters) -> Response:
    """What a client must know before it posts."""
    return StrictJSON(
        {
            "product": "tracestore",
            "version": __version__,
            "wire_versions": list(WIRE_VERSIONS),
            "schema_revision": store.revision,
            "project": project,
            "project_header": PROJECT_HEADER,
            "content_encodings": list(ENCODINGS),
            "limits": {**_limits(request), "max_page": MAX_PAGE},
        }
    )


def _limits(request: Request) -> dict[str, int | None]:
    limits = asdict(request.app.state.limits)
    if request.app.state.blobs is None:
        # Nothing can be sent as a blob here, and null says so to a client before it tries.
        limits |= {"max_blob_bytes": None, "max_offloaded_event_bytes": None}
    return limits


@router.get("/v1/episodes/{episode_id:id}")
def get_episode(store: Stored, project: Project, episode_id: str, no: NoParameters) -> Response:
    """The tree of one episode: agents, their calls, and everything around them.

    Of an episode of more than 2,000 events it is the tree of the first 2,000, `truncated`; lists go on from
    there, page by page.
    """
    with store.read() as connection:
        row = _row(connection, t.episode, project, episode_id)
        if row is None or row.first_pos is None:
            raise NotFound(kind="episode", id=episode_id, project=project, hint=_NOT_HERE)
        raw = t.raw_event.c
        log = select(func.count()).where(raw.project_id == row.project_id, raw.episode_key == row.key)
        num_events = connection.execute(log).scalar_one()
        events = load_head(connection, row.project_id, row.key, most=MOST_EVENTS)
    size = {"num_events": num_events, "truncated": num_events > MOST_EVENTS}
    return StrictJSON({**episode_tree(build(events), episode_id), **size})


@router.get("/v1/calls/{call_id:id}")
def get_call(store: Stored, project: Project, call_id: str, no: NoParameters) -> Response:
    """Everything of one call: request, completions with ids and logprobs, link, tool calls."""
    with store.read() as connection:
        row = _call_row(connection, project, call_id)
        events = load_call(connection, row.project_id, row.key)
        link = link_of(connection, row)
    is_pending = row.context_messages is None
    return StrictJSON(call_of(build(events), call_id, link=link, is_pending=is_pending))


@router.get("/v1/calls/{call_id:id}/context")
def get_context(store: Stored, project: Project, call_id: str, no: NoParameters) -> Response:
    """The messages the call saw, in order, each byte for byte, with the completion that authored it."""
    with store.read() as connection:
        row = _call_row_with_content(connection, project, call_id)
        seen = what_was_seen(connection, row.project_id, row.key)
    return StrictJSON(context_shown(call_id, **seen._asdict()))


@router.get("/v1/calls/{call_id:id}/request")
def get_request(store: Stored, project: Project, call_id: str, no: NoParameters) -> Response:
    """The request byte for byte as it was posted; for a delta call that is the delta."""
    with store.read() as connection:
        row = _call_row_with_content(connection, project, call_id)
        call = load_entity(connection, row.project_id, "call", call_id)
    assert isinstance(call, Call)
    if call.request is None:
        hint = "the call was posted without its request"
        raise NotFound(kind="request", id=call_id, project=project, hint=hint)
    return Response(bytes(call.request), media_type="application/json")


def _row(connection: Connection, table: Table, project: str, id_: str) -> Any:
    """The row of an id, also where it is only referred to; None where the project has none.

    Raises:
        Deleted: it was deleted.
    """
    project_id = find_project(connection, project)
    if project_id is not None:
        require_not_deleted(connection, project_id, table.name, id_)
    query = select(table).where(table.c.project_id == project_id, table.c.id == id_)
    return connection.execute(query).one_or_none()


def _call_row(connection: Connection, project: str, call_id: str) -> Any:
    """The row of a call that has come."""
    row = _row(connection, t.call, project, call_id)
    if row is None or row.is_placeholder:
        raise NotFound(kind="call", id=call_id, project=project, hint=_NOT_HERE)
    return row


def _call_row_with_content(connection: Connection, project: str, call_id: str) -> Any:
    """The row of a call that has come; what it read may be gone while its measures are kept."""
    row = _call_row(connection, project, call_id)
    require_content(connection, row.project_id, call_id)
    return row
