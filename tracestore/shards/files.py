"""Where the files of an export lie: a folder, a URL, a bucket. Each gives a file as one of this machine.

    /data/export                          a folder, read where it lies
    http://HOST/v1/exports/HASH           an export that `tracestore serve --exports` serves
    https://HOST/any/folder               any web server with the folder in it
    s3://BUCKET/PREFIX?endpoint=URL&region=NAME

What is far away is copied to a temporary file for as long as it is read. Who reads compares the checksum.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.error import HTTPError
from urllib.parse import parse_qsl, quote, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from pyarrow import fs

from tracestore.errors import TracestoreError

KEY_VARIABLE = "TRACESTORE_API_KEY"
ERASED = "urn:tracestore:problem:export-file-erased"
"""Type of the problem by which a server says that a shard is gone; a deleted project is another."""
_STEP = 1 << 20
_TRIES = 4
_IDLE_S = 60.0
_SERVED = re.compile(r"/v1/exports/[0-9a-f]{64}$")
_PARAMETERS = {"endpoint", "region"}


class BadPlace(TracestoreError):
    """This is no place where an export lies."""

    exit_code = 2


class Unreachable(TracestoreError):
    """The place where the export lies does not answer as it should."""


class Files(Protocol):
    """The files of one folder, wherever it is."""

    @property
    def where(self) -> str:
        """The place, without credentials."""
        ...

    @property
    def is_local(self) -> bool:
        """False: every `opened` is a copy made anew."""
        ...

    def read(self, name: str) -> bytes:
        """A small file.

        Raises:
            FileNotFoundError: there is none.
            Unreachable: the place does not answer.
        """
        ...

    def opened(self, name: str) -> AbstractContextManager[Path]:
        """A file of this machine with the same bytes, for as long as the context lasts. Raises as `read`."""
        ...


def files_at(place: str | Path, *, key: str | None = None) -> Files:
    """The files at a place.

    Args:
        key: API key for a URL; None: that of TRACESTORE_API_KEY, if it is set.

    Raises:
        BadPlace: the URL is written wrongly.
    """
    scheme = urlsplit(place).scheme if isinstance(place, str) and "://" in place else ""
    if scheme in ("http", "https"):
        return Web.at(str(place), key=key or os.environ.get(KEY_VARIABLE) or None)
    if scheme == "s3":
        return Bucket.at(str(place))
    if scheme:
        raise BadPlace(place=str(place), hint="a folder, http://, https:// or s3://")
    return Folder(Path(place))


@dataclass(frozen=True)
class Folder:
    """Files of this machine."""

    path: Path
    is_local: bool = True

    @property
    def where(self) -> str:
        return str(self.path)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        path = self.path / name
        if not path.is_file():
            raise FileNotFoundError(str(path))
        yield path


class _NoRedirects(HTTPRedirectHandler):
    """A redirect would carry the key to another server."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


@dataclass(frozen=True)
class Web:
    """Files under a URL. A copy that breaks off is gone on with by a range, if the file is still the same."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_local: bool = False

    @classmethod
    def at(cls, url: str, *, key: str | None) -> Web:
        parts = urlsplit(url)
        if not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
            hint = "http://HOST/v1/exports/HASH, without credentials; a key goes into TRACESTORE_API_KEY"
            raise BadPlace(place=parts._replace(netloc=parts.hostname or "").geturl(), hint=hint)
        path = parts.path.rstrip("/")
        # Of our own server the URL of the export is that of its manifest, and its files lie below.
        path += "/files" if _SERVED.search(path) else ""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return cls(parts._replace(path=path).geturl(), headers)

    @property
    def where(self) -> str:
        return self.url

    def read(self, name: str) -> bytes:
        with tempfile.TemporaryFile() as file:
            self._copy(name, file)
            file.seek(0)
            return file.read()

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        with _temporary() as (path, file):
            self._copy(name, file)
            file.close()
            yield path

    def _copy(self, name: str, file: IO[bytes]) -> None:
        done, tag, problem = 0, None, ""
        for _ in range(_TRIES):
            wanted: dict[str, str] = {"Range": f"bytes={done}-", "If-Range": tag} if done and tag else {}
            try:
                with self._get(name, wanted) as response:
                    if response.status != 206:
                        file.seek(0)
                        file.truncate()
                        done = 0
                    tag = response.headers.get("ETag")
                    length = response.headers.get("Content-Length")
                    end = None if length is None else done + int(length)
                    while chunk := response.read(_STEP):
                        file.write(chunk)
                        done += len(chunk)
                if end is None or done == end:
                    return
                problem = f"the answer ended after {done} of {end} bytes"
            except _Missing:
                raise
            except (OSError, HTTPException) as error:
                problem = str(error) or type(error).__name__
        raise Unreachable(url=f"{self.url}/{name}", problem=problem, hint="try again later")

    def _get(self, name: str, headers: Mapping[str, str]) -> HTTPResponse:
        url = f"{self.url}/{quote(name)}"
        opener = build_opener(_NoRedirects, ProxyHandler())
        try:
            response: HTTPResponse = opener.open(
                Request(url, headers={**self.headers, **headers}), timeout=_IDLE_S
            )
        except HTTPError as error:
            with error:
                if error.code == 404 or _is_erased(error):
                    raise _Missing(url) from error
                if error.code >= 500 or error.code == 429:
                    raise
                hint = "a key that may read: TRACESTORE_API_KEY" if error.code in (401, 403) else None
                raise Unreachable(url=url, status=error.code, hint=hint) from error
        return response


class _Missing(FileNotFoundError):
    """404, or 410 of a file whose rows were deleted."""


def _is_erased(error: HTTPError) -> bool:
    return error.code == 410 and ERASED.encode() in error.read(_STEP)


@dataclass(frozen=True)
class Bucket:
    """Objects of a bucket, under a prefix."""

    where: str
    filesystem: Any = field(repr=False)
    prefix: str
    """Bucket and path."""
    is_local: bool = False

    @classmethod
    def at(cls, url: str) -> Bucket:
        parts = urlsplit(url)
        named = dict(parse_qsl(parts.query, keep_blank_values=True))
        if not parts.netloc or parts.fragment or not named.keys() <= _PARAMETERS or "@" in parts.netloc:
            hint = "s3://BUCKET/PREFIX?endpoint=URL&region=NAME; credentials go into the environment"
            raise BadPlace(place=f"s3://{parts.netloc.rpartition('@')[2]}{parts.path}", hint=hint)
        endpoint = urlsplit(named["endpoint"]) if "endpoint" in named else None
        own = {} if endpoint is None else {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme}
        filesystem = fs.S3FileSystem(region=named.get("region"), **own)
        return cls(url, filesystem, f"{parts.netloc}{parts.path}".rstrip("/"))

    def read(self, name: str) -> bytes:
        with self._stream(name) as stream:
            return bytes(self._next(name, stream, None))

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        with _temporary() as (path, file), self._stream(name) as stream:
            while chunk := self._next(name, stream, _STEP):
                file.write(chunk)
            file.close()
            yield path

    def _stream(self, name: str) -> Any:
        try:
            return self.filesystem.open_input_stream(f"{self.prefix}/{name}")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Unreachable(place=self.where, file=name, problem=str(error)) from error

    def _next(self, name: str, stream: Any, size: int | None) -> bytes:
        try:
            data: bytes = stream.read(size)
        except OSError as error:
            raise Unreachable(place=self.where, file=name, problem=str(error)) from error
        return data


@contextmanager
def _temporary() -> Iterator[tuple[Path, IO[bytes]]]:
    with tempfile.TemporaryDirectory(prefix="tracestore-") as folder:
        path = Path(folder) / "file"
        with path.open("w+b") as file:
            yield path, file
