"""`/v1/blobs/{hash}`: bytes in, hashed on their way to disk; bytes out, whole or a range.

An upload that was broken off is gone on with as in the IETF draft "Resumable Uploads for HTTP"
(draft-ietf-httpbis-resumable-upload), the blob's own URL being the upload resource: HEAD of a blob that is
not there is a 404 whose `Upload-Offset` says how much of it has come; PATCH with the content type
application/partial-upload appends at that offset, and with `Upload-Complete: ?1` ends it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

from anyio import CancelScope, CapacityLimiter, fail_after, to_thread
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tracestore.store.blobs.base import STEP, BlobNotFound, Blobs, WrongOffset
from tracestore.store.blobs.uploads import EXPIRES_S, Upload
from tracestore.store.keys import Right
from tracestore.store.query import find_project
from tracestore.store.store import Store
from tracestore.store.tombstones import require_not_deleted
from tracestore.wire.errors import BodyTooLarge
from tracestore.wire.limits import Limits
from tracestore.wire.strict import dumps
from tracestore_api.access import admitted
from tracestore_api.body import IDLE_S, Admission
from tracestore_api.errors import (
    BlobExists,
    InvalidHash,
    InvalidUpload,
    NoBlobs,
    UnknownParameter,
    UnsupportedEncoding,
    UnsupportedMediaType,
    UploadStalled,
)
from tracestore_api.parameters import PROJECT_HEADER
from tracestore_api.problems import problem_of, problem_response
from tracestore_api.ranges import described_bytes, part_of, quoted

PARTIAL = "application/partial-upload"
MAX_TRANSFERS = 32
"""Blobs on their way in or out at once; each holds two steps in memory."""

_NEEDS: dict[str, Right | None] = {"GET": "read", "HEAD": None, "PUT": "write", "PATCH": "write"}
"""HEAD is any key's: a sender must ask what is there before it sends."""
_HASH = re.compile("[0-9a-f]{64}")

T = TypeVar("T")


def blob_route(store: Store, blobs: Blobs | None, *, limits: Limits) -> Route:
    """The route of one blob; without a blob store it answers 404 and says how to get one."""
    endpoint = BlobRoute(store, blobs, limits=limits)
    return Route("/v1/blobs/{hash:id}", endpoint, methods=list(_NEEDS), name="blob")


class BlobRoute:
    """ASGI endpoint of GET, HEAD, PUT and PATCH. All work on files and buckets is done in threads.

    PUT: 201 stored, 200 it was there, with `{hash, size, status: "stored" | "duplicate"}`; the bytes are
    durable then. 422 they do not hash to the name, 413 too many, 507 no room: nothing is kept. With
    `If-None-Match: *` 412 when the blob is there, before any byte is read. 410 in a project that was deleted.
    """

    def __init__(self, store: Store, blobs: Blobs | None, *, limits: Limits) -> None:
        self._store = store
        self._kept = blobs
        self._max_bytes = limits.max_blob_bytes
        self._admission = Admission(max_requests=MAX_TRANSFERS, max_bytes=MAX_TRANSFERS * 2 * STEP)
        self._threads = CapacityLimiter(MAX_TRANSFERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        method = scope["method"]
        if scope["query_string"]:
            raise UnknownParameter(
                query=scope["query_string"].decode("latin-1"), hint="this route takes none"
            )
        project = admitted(scope, needs=_NEEDS[method])
        name = hash_of(scope["path_params"]["hash"])
        with self._admission.ticket() as ticket:
            ticket.take(2 * STEP)
            await self._run(lambda: self._require_project(project))
            response: Response | None
            if method == "PUT":
                response = await self._put(project, name, headers, receive)
            elif method == "PATCH":
                response = await self._patch(project, name, headers, receive)
            elif method == "HEAD":
                response = await self._head(project, name)
            else:
                response = await self._get(project, name, headers)
            if response is not None:
                await response(scope, receive, send)

    def _require_project(self, project: str) -> None:
        with self._store.read() as connection:
            project_id = find_project(connection, project)
            # One to which nothing was posted yet has no number, and may be sent blobs.
            if project_id is not None:
                require_not_deleted(connection, project_id, "project", project)

    @property
    def _blobs(self) -> Blobs:
        if self._kept is None:
            raise NoBlobs(hint="start it with --blobs FOLDER or --blobs s3://BUCKET/PREFIX")
        return self._kept

    async def _put(self, project: str, name: str, headers: Headers, receive: Receive) -> Response | None:
        self._check_content(headers, offset=0)
        size = await self._renewed(project, name)
        if size is not None and headers.get("if-none-match", "").strip() == "*":
            raise BlobExists(hash=name, size=size)
        upload = await self._run(lambda: self._blobs.uploads.begin(project, name))
        async with self._in_hand(upload):
            if not await self._pump(upload, receive):
                return None
            await self._run(upload.finish)
        return _taken(name, upload.size, was_there=size is not None)

    async def _patch(self, project: str, name: str, headers: Headers, receive: Receive) -> Response | None:
        offset, is_last = upload_headers(headers)
        self._check_content(headers, offset=offset)
        size = await self._renewed(project, name)
        if size is not None:
            hint = "it is complete: nothing is left to send"
            return _misplaced(WrongOffset(hash=name, sent=offset, offset=size, hint=hint), is_complete=True)
        try:
            upload = await self._run(lambda: self._blobs.uploads.resume(project, name, offset=offset))
        except WrongOffset as error:
            return _misplaced(error, is_complete=False)
        async with self._in_hand(upload):
            if not await self._pump(upload, receive):
                return None
            await self._run(upload.finish if is_last else upload.save)
        if is_last:
            return _taken(name, upload.size, was_there=False)
        return Response(status_code=204, headers=self._progress(upload.size))

    async def _head(self, project: str, name: str) -> Response:
        size = await self._renewed(project, name)
        if size is None:
            offset = await self._run(lambda: self._blobs.uploads.offset(project, name))
            return problem_response(problem_of(_not_found(name)), headers=self._progress(offset))
        return Response(
            headers={
                **described_bytes(name),
                "content-length": str(size),
                "upload-offset": str(size),
                "upload-complete": "?1",
            }
        )

    async def _get(self, project: str, name: str, headers: Headers) -> Response:
        size = await self._run(lambda: self._blobs.size(project, name))
        if size is None:
            raise _not_found(name)
        part = part_of(headers, tag=name, size=size, described=described_bytes(name))
        if isinstance(part, Response):
            return part
        steps = self._blobs.read(project, name, start=part.start, stop=part.stop)
        return StreamingResponse(
            self._steps(steps),
            status_code=part.status,
            media_type="application/octet-stream",
            headers=part.headers,
        )

    async def _steps(self, steps: Iterator[bytes]) -> AsyncIterator[bytes]:
        try:
            while step := await self._run(lambda: next(steps, b"")):
                yield step
        finally:
            with CancelScope(shield=True):
                await self._run(steps.close)  # type: ignore[attr-defined]

    def _check_content(self, headers: Headers, *, offset: int) -> None:
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding != "identity":
            raise UnsupportedEncoding(
                content_encoding=coding,
                accept_encoding="identity",
                hint="send the bytes that hash to the name",
            )
        length = headers.get("content-length", "")
        if length.isdecimal() and offset + int(length) > self._max_bytes:
            raise self._too_large(offset + int(length))

    async def _pump(self, upload: Upload, receive: Receive) -> bool:
        """The body to the upload; whether all of it came."""
        waiting: list[bytes] = []
        size = 0
        is_whole = is_gone = False
        while not is_whole and not is_gone:
            try:
                with fail_after(IDLE_S):
                    message = await receive()
            except TimeoutError:
                hint = f"{IDLE_S} s without a byte end a request: ask for Upload-Offset and go on with PATCH"
                raise UploadStalled(hint=hint) from None
            is_gone = message["type"] == "http.disconnect"
            is_whole = not is_gone and not message.get("more_body", False)
            chunk = message.get("body", b"")
            size += len(chunk)
            if upload.size + size > self._max_bytes:
                raise self._too_large(None)
            waiting.append(chunk)
            if size >= STEP or (size and (is_whole or is_gone)):
                step = b"".join(waiting)
                await self._run(lambda step=step: upload.write(step))  # type: ignore[misc]
                waiting.clear()
                size = 0
        return is_whole

    @asynccontextmanager
    async def _in_hand(self, upload: Upload) -> AsyncIterator[None]:
        """`with upload`, its end in a thread, whatever ends it."""
        try:
            yield
        except BaseException as error:
            with CancelScope(shield=True):
                await self._run(lambda error=error: upload.__exit__(type(error), error, None))  # type: ignore[misc]
            raise
        await self._run(lambda: upload.__exit__(None, None, None))

    async def _renewed(self, project: str, name: str) -> int | None:
        """Its size, for a sender who will not send it then: no deletion that began before may take it."""
        return await self._run(lambda: self._blobs.renew(project, name))

    async def _run(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self._threads)

    def _progress(self, offset: int) -> dict[str, str]:
        return {
            "upload-offset": str(offset),
            "upload-complete": "?0",
            "upload-limit": f"max-size={self._max_bytes}, max-age={EXPIRES_S}",
            "cache-control": "no-store",
        }

    def _too_large(self, size: int | None) -> BodyTooLarge:
        return BodyTooLarge(
            bytes=size, max_blob_bytes=self._max_bytes, hint="cut the payload into several blobs"
        )


def is_hash(text: str) -> bool:
    """Whether a text is written as the name of a blob."""
    return _HASH.fullmatch(text) is not None


def hash_of(text: str) -> str:
    """The name of a blob.

    Raises:
        InvalidHash: it is none.
    """
    if not is_hash(text):
        raise InvalidHash(hash=text)
    return text


def upload_headers(headers: Headers) -> tuple[int, bool]:
    """Offset of the first byte that a PATCH sends, and whether it sends the last one.

    Raises:
        InvalidUpload: it does not say so.
        UnsupportedMediaType: it is another kind of PATCH.
    """
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != PARTIAL:
        raise UnsupportedMediaType(content_type=media_type or None, hint=f"send {PARTIAL}")
    offset, complete = headers.get("upload-offset", ""), headers.get("upload-complete", "")
    if not re.fullmatch("[0-9]{1,15}", offset) or complete not in ("?0", "?1"):
        raise InvalidUpload(
            upload_offset=offset or None,
            upload_complete=complete or None,
            hint="Upload-Offset: bytes that came before; Upload-Complete: ?1 with the last ones, ?0 before",
        )
    return int(offset), complete == "?1"


def _taken(name: str, size: int, *, was_there: bool) -> Response:
    answer = {"hash": name, "size": size, "status": "duplicate" if was_there else "stored"}
    return Response(
        dumps(answer),
        status_code=200 if was_there else 201,
        media_type="application/json",
        headers={"etag": quoted(name), "upload-complete": "?1"},
    )


def _misplaced(error: WrongOffset, *, is_complete: bool) -> Response:
    headers = {"upload-offset": str(error.values["offset"]), "upload-complete": "?1" if is_complete else "?0"}
    return problem_response(problem_of(error), headers=headers)


def _not_found(name: str) -> BlobNotFound:
    return BlobNotFound(hash=name, hint=f"check the hash and the header {PROJECT_HEADER}")
