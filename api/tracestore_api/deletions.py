"""`DELETE` of an episode or a project: dead at once, erased in the background, followed by its number.

The answer is 202 with the deletion as it stands. One thread of the process carries deletions and redactions
out, one after another, and begins with those that an earlier process left.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from tracestore.store import delete, redact
from tracestore.store.blobs import Blobs
from tracestore.store.delete import Deletion, OtherProject
from tracestore.store.retain import Retention, retain
from tracestore.store.store import Store
from tracestore_api.access import AdminProject, Project
from tracestore_api.parameters import Page, place_of
from tracestore_api.reads import NoParameters, Stored
from tracestore_api.response import StrictJSON, page_of

router = APIRouter()
RETAIN_EVERY_S = 3600.0
_log = logging.getLogger("tracestore.api")


class DeletionsAnswer(BaseModel):
    """A page of the deletions of a project, the latest first."""

    items: list[Deletion]
    next_cursor: str | None
    truncated: bool


class Deleter:
    """Carries deletions and redactions out in a thread of its own."""

    def __init__(self, store: Store, blobs: Blobs | None, *, retention: Sequence[Retention] = ()) -> None:
        """
        Args:
            retention: rules whose due is deleted when the server starts, and every hour.
        """
        self._store = store
        self._blobs = blobs
        self._retention = retention
        self._asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._due_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tracestore-deleter", daemon=True)

    def start(self) -> None:
        for project, key in delete.unfinished(self._store):
            self.carry_out(project, key)
        for project, key in redact.unfinished(self._store):
            self.redact(project, key)
        self._thread.start()

    def carry_out(self, project: str, key: int) -> None:
        self._asked.put(
            partial(delete.carry_out, self._store, project, key, blobs=self._blobs, progress=self._go_on)
        )

    def redact(self, project: str, key: int) -> None:
        self._asked.put(partial(redact.carry_out, self._store, project, key, progress=self._go_on))

    def close(self) -> None:
        """End after the step in hand; what is left is gone on with by the next process."""
        self._is_closed = True
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (carry_out := self._next()) is not None:
            try:
                carry_out()
            except _Closing:
                return
            except Exception:  # noqa: BLE001 - the thread outlives it, and what was asked stays unfinished
                _log.exception("a deletion or redaction could not be carried out")

    def _next(self) -> Callable[[], object] | None:
        """What was asked for next, or is due before that; None: the end."""
        if not self._retention:
            return self._asked.get()
        try:
            return self._asked.get(timeout=max(0.0, self._due_at - time.monotonic()))
        except queue.Empty:
            self._due_at = time.monotonic() + RETAIN_EVERY_S
            return self._retain

    def _retain(self) -> None:
        for _ in retain(
            self._store, self._retention, now=time.time_ns(), blobs=self._blobs, progress=self._go_on
        ):
            pass

    def _go_on(self, _: object) -> None:
        if self._is_closed:
            raise _Closing


class _Closing(Exception):
    """The server stops."""


def _deleter(request: Request) -> Deleter:
    found: Deleter = request.app.state.deleter
    return found


Carrier = Annotated[Deleter, Depends(_deleter)]


@router.delete("/v1/episodes/{episode_id:id}", status_code=202, response_model=Deletion)
def delete_episode(
    store: Stored, project: AdminProject, deleter: Carrier, episode_id: str, no: NoParameters
) -> Response:
    """Delete an episode with everything in it."""
    return _begun(deleter, project, delete.delete_episode(store, project, episode_id))


@router.delete("/v1/projects/{name}", status_code=202, response_model=Deletion)
def delete_project(
    store: Stored, project: AdminProject, deleter: Carrier, name: str, no: NoParameters
) -> Response:
    """Delete everything in the project of the request, which must be the one that the path names."""
    if name != project:
        raise OtherProject(named=name, project=project, hint="a key deletes its own project and no other")
    return _begun(deleter, project, delete.delete_project(store, project))


@router.get("/v1/deletions", response_model=DeletionsAnswer)
def get_deletions(store: Stored, project: Project, page: Annotated[Page, Query()]) -> Response:
    """The deletions of the project, the latest first."""
    before = number_before(page, of="deletions")
    found = delete.deletions(store, project, before=before, limit=page.limit + 1)
    return numbered_page([delete.facts(one) for one in found], page, of="deletions")


@router.get("/v1/deletions/{deletion_id:int}", response_model=Deletion)
def get_deletion(store: Stored, project: Project, deletion_id: int, no: NoParameters) -> Response:
    """How far a deletion has come."""
    return StrictJSON(delete.facts(delete.deletion(store, project, deletion_id)))


def _begun(deleter: Deleter, project: str, found: Deletion) -> Response:
    if found.state != "done":
        deleter.carry_out(project, found.id)
    headers = {"location": f"/v1/deletions/{found.id}"}
    return StrictJSON(delete.facts(found), status_code=202, headers=headers)


def number_before(page: Page, *, of: str) -> int | None:
    """The number before which a page of what is listed by number begins; None: the first page."""
    place = place_of(page.cursor, of=of)
    return None if place is None else int(place[0])


def numbered_page(items: list[dict[str, object]], page: Page, *, of: str) -> Response:
    """A page of what has a number, `id`; see `page_of`."""
    return page_of(items, page, of=of, place=lambda item: (item["id"],))
