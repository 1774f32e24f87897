"""`/v1/exports`: the exports of a project, their manifests, their files, whole or by ranges.

Files are served of exports that the store knows of and that lie where the operator said (`--exports DIR`),
and of these the ones that the manifest lists, under their sha256 as the entity tag. An export that goes on is
named by the hash with which its log begins; it has the files of its log in place of a manifest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
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
from tracestore_api.errors import ExportFileNotFound, ExportNotServed
from tracestore_api.parameters import Page
from tracestore_api.ranges import described_bytes, part_of
from tracestore_api.reads import NoParameters, Stored
from tracestore_api.response import StrictJSON

if TYPE_CHECKING:
    from tracestore.shards.manifest import Manifest, ShardEntry

router = APIRouter()
_STEP = 1 << 20


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


def _folders(request: Request) -> Sequence[str]:
    folders: Sequence[str] = request.app.state.exports
    return folders


Folders = Annotated[Sequence[str], Depends(_folders)]
"""Real paths of the folders under which exports are served."""


@router.get("/v1/exports", response_model=ExportsAnswer)
def get_exports(store: Stored, project: Project, page: Annotated[Page, Query()]) -> Response:
    """The exports of the project, the latest first."""
    before = number_before(page, of="exports")
    found = exports(store, project, before=before, limit=page.limit + 1)
    return numbered_page([asdict(one) for one in found], page, of="exports")


@router.get("/v1/exports/{manifest_hash:id}", response_model=ExportAnswer)
def get_export(
    store: Stored, project: Project, folders: Folders, manifest_hash: str, no: NoParameters
) -> Response:
    """The manifest of an export, and what was deleted or redacted since it was made."""
    export = registered(store, project, manifest_hash)
    manifest = _served(export, folders).manifest
    missing = gone(store, project, snapshot=export.snapshot)
    return StrictJSON(
        {
            "manifest_hash": manifest_hash,
            "manifest": manifest.model_dump(mode="json"),
            "gone": [{"kind": kind, "id": id_} for kind, id_ in missing],
        }
    )


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
    folders: Folders,
    manifest_hash: str,
    name: str,
    no: NoParameters,
) -> Response:
    """A shard of an export, its manifest or a file of its log, or a range of it."""
    served = _served(registered(store, project, manifest_hash), folders)
    path = served.folder / name
    shard = served.shards.get(name)
    if shard is not None:
        tag, size = shard.sha256, shard.size
        _require_as_written(path, folder=served.folder, size=size)
    elif name in served.documents:
        data = path.read_bytes()
        tag, size = hashlib.sha256(data).hexdigest(), len(data)
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
    """An export whose files may be sent."""

    folder: Path
    """Without links in its path."""
    manifest: Manifest
    documents: frozenset[str]
    """Its manifest, or the files of its log."""
    shards: Mapping[str, ShardEntry]


def _served(export: Registered, folders: Sequence[str]) -> _Served:
    """
    Raises:
        ExportNotServed: it lies elsewhere, or is no longer what was registered.
    """
    folder = Path(os.path.realpath(export.location))
    if not any(folder.is_relative_to(one) for one in folders):
        raise ExportNotServed(
            location=export.location, hint="start the server with --exports and a folder above it"
        )
    try:
        served, hash_ = _lying_in(folder)
    except TracestoreError as error:
        raise ExportNotServed(location=export.location, problem=str(error)) from error
    if hash_ != export.manifest_hash:
        hint = "another export lies there now"
        raise ExportNotServed(location=export.location, found=hash_, hint=hint)
    return served


def _lying_in(folder: Path) -> tuple[_Served, str]:
    """The export in a folder, and the hash by which the store knows it."""
    # pyarrow comes with them, which most servers have no use for.
    from tracestore.shards.files import Folder
    from tracestore.shards.log import Log, entry_name, is_followed
    from tracestore.shards.manifest import MANIFEST_NAME, read_manifest

    if is_followed(Folder(folder)):
        log, _ = Log.read(Folder(folder))
        documents = frozenset(map(entry_name, range(log.number + 1)))
        return _Served(folder, log.manifest(), documents, log.shards), log.first_hash
    manifest = read_manifest(folder)
    shards = {shard.file: shard for shard in manifest.shards}
    return _Served(folder, manifest, frozenset({MANIFEST_NAME}), shards), manifest.manifest_hash


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
