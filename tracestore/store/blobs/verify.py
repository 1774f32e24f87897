"""Are the blobs that events refer to there, and what they are named for? All bytes are hashed again."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from sqlalchemy import func, select

from tracestore.store import tables as t
from tracestore.store.blobs.base import Blobs, BlobStoreUnavailable
from tracestore.store.query import find_project
from tracestore.store.store import Store
from tracestore.store.verify import Finding

_AT_ONCE = 1000


def verify_blobs(store: Store, project: str, blobs: Blobs) -> Iterator[Finding]:
    """What is wrong with the blobs that the events of a project refer to, in the order of their hashes."""
    wanted = _wanted(store, project)
    for start in range(0, len(wanted), _AT_ONCE):
        page = wanted[start : start + _AT_ONCE]
        sizes = blobs.sizes(project, [name for name, _, _ in page])
        for name, stated, reference in page:
            found = _found(blobs, project, name, sizes.get(name))
            if found is not None:
                yield Finding(found[0], f"blob {name}", f"{found[1]}; {reference} refers to it")
            elif stated is not None and stated != sizes[name]:
                detail = f"it has {sizes[name]} bytes, {reference} says {stated}"
                yield Finding("blob_size", f"blob {name}", detail)


def count_blobs(store: Store, project: str) -> int:
    """How many blobs the events of a project refer to."""
    return len(_wanted(store, project))


def _wanted(store: Store, project: str) -> list[tuple[str, int | None, str]]:
    """Hash, bytes as the event says, and an event that says so."""
    r = t.blob_ref.c
    query = select(r.hash, func.max(r.size), func.min(r.id)).group_by(r.hash).order_by(r.hash)
    with store.read() as connection:
        rows = connection.execute(query.where(r.project_id == find_project(connection, project)))
        return [(name, size, f"event {event}") for name, size, event in rows]


def _found(blobs: Blobs, project: str, name: str, size: int | None) -> tuple[str, str] | None:
    if size is None:
        return "blob_missing", "its bytes have not come"
    hashed = sha256()
    try:
        for step in blobs.read(project, name, start=0, stop=size):
            hashed.update(step)
    except BlobStoreUnavailable as error:
        return "blob_unreadable", str(error)
    if hashed.hexdigest() != name:
        return "blob_hash", "its bytes do not have its hash"
    return None
