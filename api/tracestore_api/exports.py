"""`/v1/exports`: the exports of a project, their manifests, their files, whole or by ranges.

Files are served of exports that the store knows of and that lie where the operator said (`--exports DIR`),
and of these the ones that the manifest lists, under their sha256 as the entity tag. An export that goes on is
named by the hash with which its log begins; it has the files of its log in place of a manifest.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from tracestore.errors import TracestoreError
from tracestore.store.exports import Registered, exports, gone, registered
from tracestore_api.access import Project
from tracestore_api.deletions import number_before, numbered_page
from tracestore_api.errors import ExportFileErased, ExportFileNotFound, ExportNotFollowed, ExportNotServed
from tracestore_api.logs import Logs
from tracestore_api.parameters import Page, Parameters
from tracestore_api.ranges import described_bytes, part_of
from tracestore_api.reads import NoParameters, Stored
from tracestore_api.response import StrictJSON

if TYPE_CHECKING:
    from tracestore.shards.log import Log
    from tracestore.shards.manifest import Manifest, ShardEntry

router = APIRouter()
_STEP = 1 << 20
_ENTRY = re.compile(r"log/(\d{8,18})\.json", re.ASCII)


class ExportsAnswer(BaseModel):
    """A page of the exports of a project, the latest first."""

    items: list[Registered]
    next_cursor: str | None
    truncated: bool


class Gone(BaseModel):
    """What the export may hold and the store does not any more."""

    kind: str
    """episode, content, project or redaction"""
    id: str


class ExportAnswer(BaseModel):
    """An export with its manifest; of one that goes on, that of the rows that count now."""

    manifest_hash: str
    manifest: dict[str, Any]
    """As `tracestore.shards.manifest.Manifest` describes it."""
    gone: list[Gone]


class Untrained(BaseModel):
    """What of a followed export waits to be trained, as `tracestore_exporters.lag.Untrained`."""

    unconsumed_groups: int
    """Groups of which nothing was trained yet, in whatever revision."""
    unconsumed_tokens: int
    """Tokens to train of them."""
    oldest_version: int | None
    """Policy versions of which something waits to be trained; null: nothing does, or it is unknown."""
    newest_version: int | None


class LagAnswer(Untrained):
    """How far a trainer and the follower are behind, as `tracestore export --lag --json` says it."""

    manifest_hash: str
    groups: int
    """Groups of which something trains."""
    late_tokens: int
    """Sampled tokens that came after the rows of their group, and are in none."""
    waiting_groups: int
    """Groups that are closed and not followed yet."""
    snapshot: int
    """Commit position of the store."""
    followed: int
    """Commit position of the last entry."""
    runs: dict[str, Untrained]
    """By each training run that trained any of it."""
    behind: int
    """Commit positions between the two."""


class LagOf(Parameters):
    """Whose lag."""

    run: str | None = None
    """Count what this training run has trained; without it, any."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where exports are served from."""

    folders: Sequence[str]
    """Real paths of the folders under which they lie."""
    logs: Logs


def _place(request: Request) -> _Place:
    return _Place(request.app.state.exports, request.app.state.logs)


Place = Annotated[_Place, Depends(_place)]


@router.get("/v1/exports", response_model=ExportsAnswer)
def get_exports(store: Stored, project: Project, page: Annotated[Page, Query()]) -> Response:
    """The exports of the project, the latest first."""
    before = number_before(page, of="exports")
    found = exports(store, project, before=before, limit=page.limit + 1)
    return numbered_page([asdict(one) for one in found], page, of="exports")


@router.get("/v1/exports/{manifest_hash:id}", response_model=ExportAnswer)
def get_export(
    store: Stored, project: Project, place: Place, manifest_hash: str, no: NoParameters
) -> Response:
    """The manifest of an export, and what was deleted or redacted since it was made."""
    export = registered(store, project, manifest_hash)
    with _served(export, place) as served:
        manifest = served.manifest
    missing = gone(store, project, snapshot=export.snapshot)
    return StrictJSON(
        {
            "manifest_hash": manifest_hash,
            "manifest": manifest.model_dump(mode="json"),
            "gone": [{"kind": kind, "id": id_} for kind, id_ in missing],
        }
    )


@router.get("/v1/exports/{manifest_hash:id}/lag", response_model=LagAnswer)
def get_export_lag(
    store: Stored, project: Project, place: Place, manifest_hash: str, asked: Annotated[LagOf, Query()]
) -> Response:
    """How far a trainer and the follower of an export that goes on are behind: what one of them waits by."""
    from tracestore_exporters.lag import lag

    with _served(registered(store, project, manifest_hash), place) as served:
        if served.log is None:
            hint = "`tracestore export --follow` makes one that goes on"
            raise ExportNotFollowed(manifest_hash=manifest_hash, hint=hint)
        log = served.log.copy()
    return StrictJSON(lag(store, project, log, run=asked.run).facts())


_BYTES: dict[str, Any] = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}


@router.get(
    "/v1/exports/{manifest_hash:id}/files/{name:path}",
    response_class=Response,
    responses={
        200: {"description": "the bytes", **_BYTES},
        206: {"description": "the range", **_BYTES},
        304: {"description": "they are as If-None-Match says"},
    },
)
def get_export_file(
    request: Request,
    store: Stored,
    project: Project,
    place: Place,
    manifest_hash: str,
    name: str,
    no: NoParameters,
) -> Response:
    """A shard of an export, its manifest or a file of its log, or a range of it."""
    with _served(registered(store, project, manifest_hash), place) as served:
        shard, is_document = served.shard(name), served.is_document(name)
        is_erased = served.log is not None and name in served.log.moved
    path = served.folder / name
    if shard is not None:
        tag, size = shard.sha256, shard.size
        _require_as_written(path, folder=served.folder, size=size)
    elif is_document:
        data = path.read_bytes()
        tag, size = hashlib.sha256(data).hexdigest(), len(data)
    elif is_erased:
        hint = "the log says which shard has the rows that count: read its entries, or open the export again"
        raise ExportFileErased(file=name, hint=hint)
    else:
        raise ExportFileNotFound(file=name, hint="GET /v1/exports/{manifest_hash} lists its shards")
    part = part_of(request.headers, tag=tag, size=size, described=described_bytes(tag))
    if isinstance(part, Response):
        return part
    return StreamingResponse(
        _steps(path, part.start, part.stop),
        status_code=part.status,
        media_type="application/octet-stream",
        headers=part.headers,
    )


@dataclass(frozen=True, slots=True)
class _Served:
    """An export whose files may be sent: a manifest, or a log of one that goes on."""

    folder: Path
    """Without links in its path."""
    batch: Manifest | None
    log: Log | None

    @property
    def hash(self) -> str:
        """By which the store knows it."""
        if self.batch is not None:
            return self.batch.manifest_hash
        assert self.log is not None
        return self.log.first_hash

    @property
    def manifest(self) -> Manifest:
        if self.batch is not None:
            return self.batch
        assert self.log is not None
        return self.log.manifest()

    def shard(self, name: str) -> ShardEntry | None:
        if self.log is not None:
            return self.log.shards.get(name)
        return next((shard for shard in self.manifest.shards if shard.file == name), None)

    def is_document(self, name: str) -> bool:
        """Whether it is its manifest, or a file of its log."""
        from tracestore.shards.log import entry_name
        from tracestore.shards.manifest import MANIFEST_NAME

        if self.log is None:
            return name == MANIFEST_NAME
        entry = _ENTRY.fullmatch(name)
        return entry is not None and int(entry[1]) <= self.log.number and name == entry_name(int(entry[1]))


@contextmanager
def _served(export: Registered, place: _Place) -> Iterator[_Served]:
    """The export where it lies; its log is the caller's alone while the context lasts.

    Raises:
        ExportNotServed: it lies elsewhere, or is no longer what was registered.
    """
    folder = Path(os.path.realpath(export.location))
    if not any(folder.is_relative_to(one) for one in place.folders):
        raise ExportNotServed(
            location=export.location, hint="start the server with --exports and a folder above it"
        )
    with ExitStack() as stack:
        try:
            served = stack.enter_context(_lying_in(folder, place.logs))
        except TracestoreError as error:
            raise ExportNotServed(location=export.location, problem=str(error)) from error
        if served.hash != export.manifest_hash:
            hint = "another export lies there now"
            raise ExportNotServed(location=export.location, found=served.hash, hint=hint)
        yield served


@contextmanager
def _lying_in(folder: Path, logs: Logs) -> Iterator[_Served]:
    # pyarrow comes with them, which most servers have no use for.
    from tracestore.shards.log import entry_name
    from tracestore.shards.manifest import read_manifest

    if (folder / entry_name(0)).is_file():
        with logs.at(folder) as log:
            yield _Served(folder, None, log)
    else:
        yield _Served(folder, read_manifest(folder), None)


def _require_as_written(path: Path, *, folder: Path, size: int) -> None:
    """That a shard is a file of its folder, whatever the manifest calls it, no link, with the size that it
    states.

    Raises:
        ExportFileNotFound: it is not.
    """
    is_there = path.parent == folder and path.is_file() and Path(os.path.realpath(path)) == path
    if not is_there or path.stat().st_size != size:
        raise ExportFileNotFound(
            file=path.name, hint="it is gone, or not as it was written: `tracestore verify` says more"
        )


def _steps(path: Path, start: int, stop: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while start < stop and (step := file.read(min(_STEP, stop - start))):
            start += len(step)
            yield step
