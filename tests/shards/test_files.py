"""An export that lies behind a URL or in a bucket is read as one in a folder."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.s3 import S3
from tests.train.exports import export_of
from tests.train.rows import random_row
from tracestore.shards.batch import content_hash
from tracestore.shards.files import BadPlace, Folder, Unreachable, Web, files_at
from tracestore.shards.manifest import NotAnExport, read_manifest
from tracestore.shards.read import Export, ShardCorrupt, ShardMissing, open_export


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    rows = [random_row(seed, vocab=61) for seed in range(5)]
    return export_of(rows, tmp_path_factory.mktemp("made") / "out", rows_per_shard=2)


@pytest.fixture
def place(export: Export, tmp_path: Path) -> Path:
    """A copy of it, to do what one likes with."""
    return Path(shutil.copytree(export.path, tmp_path / "out"))


class Handler(SimpleHTTPRequestHandler):
    """A folder over HTTP, with entity tags and ranges; `server` says what goes wrong."""

    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.asked.append((self.path, dict(self.headers)))
        if server.answers:
            status, headers = server.answers.pop(0)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        first = 0
        if "Range" in self.headers and self.headers["If-Range"] == tag:
            first = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if first else 200)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        sent = data[first:]
        if server.breaks_after is not None and len(sent) > server.breaks_after:
            sent = sent[: server.breaks_after]
            self.close_connection = True
        self.wfile.write(sent)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.breaks_after: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def hashes(export: Export) -> list[str]:
    """Of the values of each shard."""
    return [content_hash(export.batches(shard)) for shard in export.manifest.shards]


def test_an_export_behind_a_url_has_the_rows_of_the_folder(export: Export, tmp_path: Path) -> None:
    with serving(export.path.parent) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        found = open_export(f"{server.url}/out/")
        assert found.manifest == export.manifest
        assert hashes(found) == hashes(export) == [one.content_hash for one in export.manifest.shards]
        assert [row.group_id for row in found.rows()] == [row.group_id for row in export.rows()]
        assert list(tmp_path.iterdir()) == []  # no copy is left


def test_rows_of_a_copy_outlive_the_copy(export: Export) -> None:
    with serving(export.path) as server:
        rows = list(open_export(server.url).rows())
    for ours, theirs in zip(export.rows(), rows, strict=True):
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()


def test_a_copy_that_breaks_off_goes_on_where_it_was(export: Export) -> None:
    [first, *_] = export.manifest.shards
    with serving(export.path) as server:
        found = open_export(server.url)
        server.asked.clear()
        server.breaks_after = first.size // 2 + 1
        assert content_hash(found.batches(first)) == first.content_hash
        assert [headers.get("Range") for _, headers in server.asked] == [
            None,
            f"bytes={first.size // 2 + 1}-",
        ]


def test_a_file_that_changes_while_it_is_copied_is_begun_again(place: Path) -> None:
    with serving(place) as server:
        server.breaks_after = 100
        files = Web(server.url)
        (place / "file").write_bytes(b"a" * 150)
        copied: list[bytes] = []
        original = Web._get

        def changing(self: Web, name: str, headers: Any) -> Any:
            if headers:
                (place / "file").write_bytes(b"b" * 90)
            return original(self, name, headers)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Web, "_get", changing)
            copied.append(files.read("file"))
        assert copied == [b"b" * 90]


def test_a_server_that_never_sends_all_is_an_error_that_says_how_much_came(place: Path) -> None:
    with serving(place) as server:
        server.breaks_after = 10
        with pytest.raises(Unreachable, match="try again later"):
            open_export(server.url)


def test_a_busy_server_is_asked_again(export: Export) -> None:
    with serving(export.path) as server:
        server.answers = [(503, {}), (429, {})]
        assert open_export(server.url).manifest == export.manifest
        server.answers = [(503, {})] * 4
        with pytest.raises(Unreachable, match="503"):
            open_export(server.url)


def test_the_key_goes_with_every_request_and_to_no_other_server(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(export.path) as server, serving(export.path) as other:
        open_export(server.url, key="ts_given")
        monkeypatch.setenv("TRACESTORE_API_KEY", "ts_set")
        open_export(server.url)
        assert [headers["Authorization"] for _, headers in server.asked] == [
            "Bearer ts_given",
            "Bearer ts_set",
        ]
        server.answers = [(302, {"Location": f"{other.url}/manifest.json"})]
        with pytest.raises(Unreachable, match="status=302"):
            open_export(server.url)
        assert other.asked == []
        assert "ts_set" not in repr(files_at(server.url))


def test_a_refused_key_is_an_error_that_names_the_variable(export: Export) -> None:
    with serving(export.path) as server:
        server.answers = [(401, {})]
        with pytest.raises(Unreachable, match=r"status=401.*TRACESTORE_API_KEY"):
            open_export(server.url)


def test_a_url_of_our_own_server_is_that_of_the_export() -> None:
    files = files_at(f"https://traces.example.org:8421/v1/exports/{'ab' * 32}/")
    assert files.where == f"https://traces.example.org:8421/v1/exports/{'ab' * 32}/files"


@pytest.mark.parametrize("name", ["nowhere", "manifest.json/"])
def test_what_is_no_export_is_said_to_be_none(export: Export, name: str) -> None:
    with serving(export.path) as server, pytest.raises(NotAnExport):
        open_export(f"{server.url}/{name}")
    with pytest.raises(NotAnExport):
        open_export(export.path / name)


def test_a_damaged_copy_is_an_error_whether_or_not_checks_are_asked_for(place: Path) -> None:
    shard = place / "shard-00000.arrow"
    with serving(place) as server:
        found = open_export(server.url)
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
        for check in (True, False):
            with pytest.raises(ShardCorrupt, match="copy it again"):
                list(found.rows(check=check))
        shard.unlink()
        with pytest.raises(ShardMissing):
            list(found.rows())


@pytest.mark.parametrize(
    "place",
    [
        "ftp://host/x",
        "http:///x",
        "http://user:secret@host/x",
        "http://host/x?a=1",
        "s3://",
        "s3://b/x?other=1",
    ],
)
def test_a_place_that_is_written_wrongly_is_refused_without_its_credentials(place: str) -> None:
    with pytest.raises(BadPlace) as error:
        open_export(place)
    assert "secret" not in str(error.value)


def test_a_folder_is_read_where_it_lies(export: Export) -> None:
    assert files_at(export.path) == Folder(export.path)
    with files_at(export.path).opened("manifest.json") as path:
        assert path == export.path / "manifest.json"
    assert read_manifest(export.path) == read_manifest(Folder(export.path))


def test_an_export_in_a_bucket_has_the_rows_of_the_folder(export: Export, s3: S3) -> None:
    for file in export.path.iterdir():
        s3.client.upload_file(str(file), s3.bucket, f"runs/one/{file.name}")
    found = open_export(f"{s3.url('runs/one')}&region=us-east-1")
    assert hashes(found) == hashes(export)
    with pytest.raises(NotAnExport):
        open_export(f"{s3.url('runs/none')}&region=us-east-1")
    s3.client.delete_object(Bucket=s3.bucket, Key=f"runs/one/{found.manifest.shards[1].file}")
    with pytest.raises(ShardMissing):
        list(found.rows())
