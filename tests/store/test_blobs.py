"""Blobs: whole or absent, durable, apart for every project, in a folder and in a bucket alike."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.connection
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import factories as make
from tests.databases import empty_store
from tests.factories import episode, posted
from tests.s3 import S3
from tracestore.store import Store
from tracestore.store.blobs import Blobs, default_blobs, open_blobs
from tracestore.store.blobs.base import (
    STEP,
    BadBlobStore,
    BlobNotFound,
    BlobStoreFull,
    BlobStoreUnavailable,
    OtherBytes,
    UploadInHand,
    WrongOffset,
)
from tracestore.store.blobs.uploads import EXPIRES_S
from tracestore.store.blobs.verify import count_blobs, verify_blobs
from tracestore.store.delete import carry_out, delete_episode, delete_unused_blobs
from tracestore.store.verify import verify
from tracestore.wire.blob import Blob
from tracestore.wire.events import AnyEvent


def named(data: bytes) -> str:
    return sha256(data).hexdigest()


def put(blobs: Blobs, data: bytes, *, project: str = "p", name: str | None = None) -> str:
    name = name or named(data)
    with blobs.uploads.begin(project, name) as upload:
        for start in range(0, len(data), STEP):
            upload.write(data[start : start + STEP])
        upload.finish()
    return name


def get(blobs: Blobs, name: str, start: int = 0, stop: int | None = None, *, project: str = "p") -> bytes:
    size = blobs.size(project, name)
    assert size is not None
    return b"".join(blobs.read(project, name, start=start, stop=size if stop is None else stop))


@pytest.fixture(params=["folder", "bucket"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blobs:
    if request.param == "folder":
        return open_blobs(str(tmp_path / "blobs"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    s3: S3 = request.getfixturevalue("s3")
    return open_blobs(s3.url(tmp_path.name))


@pytest.fixture
def folder(tmp_path: Path) -> Blobs:
    return open_blobs(str(tmp_path / "blobs"))


def files(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", [0, 1, STEP, STEP + 1])
def test_what_is_put_is_read_back_whole_and_by_range(blobs: Blobs, size: int) -> None:
    data = random.Random(size).randbytes(size)
    name = put(blobs, data)
    assert blobs.size("p", name) == size
    assert get(blobs, name) == data
    assert get(blobs, name, size // 3, size // 2) == data[size // 3 : size // 2]
    assert blobs.sizes("p", [name, named(b"never sent")]) == {name: size}


def test_a_project_sees_nothing_of_another_one(blobs: Blobs) -> None:
    name = put(blobs, b"secret", project="a")
    for other in ("b", "A", "a/", "../a", "a" * 128):
        assert blobs.size(other, name) is None
        assert blobs.sizes(other, [name]) == {}
        assert blobs.uploads.offset(other, name) == 0
        with pytest.raises(BlobNotFound):
            list(blobs.read(other, name, start=0, stop=6))
        put(blobs, b"secret", project=other)
        assert get(blobs, name, project=other) == b"secret"


def test_bytes_that_do_not_hash_to_their_name_leave_nothing(blobs: Blobs, tmp_path: Path) -> None:
    name = named(b"right")
    with pytest.raises(OtherBytes) as caught:
        put(blobs, b"wrong", name=name)
    assert caught.value.values["found"] == named(b"wrong")
    assert (blobs.size("p", name), blobs.uploads.offset("p", name), files(tmp_path)) == (None, 0, [])


@given(st.lists(st.binary(max_size=300), max_size=6), st.data())
@settings(max_examples=30)
def test_an_upload_in_any_parts_is_the_upload_in_one(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], data: st.DataObject
) -> None:
    """Each part may be broken off after some of its bytes; the rest is sent again from where it stands."""
    blobs = open_blobs(str(tmp_path_factory.mktemp("blobs") / "b"))
    whole = b"".join(parts)
    name = named(whole)
    while (offset := blobs.uploads.offset("p", name)) < len(whole):
        stop = data.draw(st.integers(offset + 1, len(whole)))
        with blobs.uploads.resume("p", name, offset=offset) as upload:
            upload.write(whole[offset:stop])
        assert blobs.size("p", name) is None
    with blobs.uploads.resume("p", name, offset=len(whole)) as upload:
        upload.finish()
    assert get(blobs, name) == whole


def test_an_upload_goes_on_only_where_it_stands(blobs: Blobs) -> None:
    name = named(b"abcdef")
    with blobs.uploads.begin("p", name) as upload:
        upload.write(b"abc")
        upload.save()
    for wrong in (0, 2, 4):
        with pytest.raises(WrongOffset) as caught:
            blobs.uploads.resume("p", name, offset=wrong)
        assert caught.value.values["offset"] == 3
    with pytest.raises(WrongOffset) as caught:
        blobs.uploads.resume("p", named(b"unheard of"), offset=2)
    assert caught.value.values["offset"] == 0
    with blobs.uploads.resume("p", name, offset=3) as upload:
        upload.write(b"def")
        upload.finish()
    assert get(blobs, name) == b"abcdef"
    assert blobs.uploads.offset("p", name) == 0


def test_two_senders_of_one_blob_do_not_disturb_each_other(blobs: Blobs, tmp_path: Path) -> None:
    name = named(b"both")
    with blobs.uploads.begin("p", name) as first, blobs.uploads.begin("p", name) as second:
        first.write(b"bo")
        second.write(b"both")
        with pytest.raises(UploadInHand):
            blobs.uploads.resume("p", name, offset=2)
        second.finish()
        first.write(b"th")
        first.finish()
    assert get(blobs, name) == b"both"
    assert not [path for path in files(tmp_path) if "uploads" in str(path.parent)]


def test_a_second_sender_that_goes_away_leaves_the_first_ones_bytes(folder: Blobs, tmp_path: Path) -> None:
    name = named(b"both")
    with folder.uploads.begin("p", name) as first:
        first.write(b"bo")
        with folder.uploads.begin("p", name) as second:
            second.write(b"bot")
    assert folder.uploads.offset("p", name) == 2
    assert len(files(tmp_path)) == 1


def test_many_threads_may_send_the_same_blob(folder: Blobs, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3 * STEP)
    threads = [threading.Thread(target=put, args=(folder, data)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get(folder, named(data)) == data
    assert len(files(tmp_path)) == 1


def test_a_damaged_blob_is_put_right_by_sending_it_again(folder: Blobs, tmp_path: Path) -> None:
    name = put(folder, b"whole")
    [file] = files(tmp_path)
    file.write_bytes(b"wh")
    put(folder, b"whole")
    assert get(folder, name) == b"whole"


def test_a_full_disk_is_said_so_and_leaves_nothing(
    folder: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for call in ("write", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(BlobStoreFull):
                put(folder, b"data")
        assert files(tmp_path) == []
    assert get(folder, put(folder, b"data")) == b"data"


def test_what_was_broken_off_stays_a_day_and_no_longer(folder: Blobs, tmp_path: Path) -> None:
    old, young = named(b"old one"), named(b"young one")
    for name in (old, young):
        with folder.uploads.begin("p", name) as upload:
            upload.write(b"part")
    before = time.time() - EXPIRES_S - 1
    [file] = [path for path in files(tmp_path) if path.name.endswith(old)]
    os.utime(file, (before, before))
    folder.uploads.sweep()
    assert (folder.uploads.offset("p", old), folder.uploads.offset("p", young)) == (0, 4)


def test_an_upload_in_hand_is_never_swept(folder: Blobs, tmp_path: Path) -> None:
    name = named(b"slow")
    with folder.uploads.begin("p", name) as first, folder.uploads.begin("p", name) as second:
        for path in files(tmp_path):
            os.utime(path, (0, 0))
        open_blobs(str(tmp_path / "blobs")).uploads.sweep()
        for upload in (first, second):
            upload.write(b"slow")
            upload.finish()
    assert get(folder, name) == b"slow"


def _send_and_wait(place: str, name: str, ready: multiprocessing.connection.Connection) -> None:
    blobs = open_blobs(place)
    with blobs.uploads.begin("p", name) as first, blobs.uploads.begin("p", name) as second:
        first.write(b"half")
        second.write(b"hal")
        ready.send(True)
        time.sleep(600)


def test_a_process_that_is_killed_leaves_no_blob_and_its_leftovers_go(folder: Blobs, tmp_path: Path) -> None:
    name = named(b"half and half")
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_send_and_wait, args=(str(tmp_path / "blobs"), name, there))
    process.start()
    assert here.poll(60)
    process.kill()
    process.join()
    assert folder.size("p", name) is None
    assert len(files(tmp_path)) == 2
    folder.uploads.sweep()
    # Its sender can go on; what a second sender had begun is of no use.
    assert len(files(tmp_path)) == 1
    with folder.uploads.resume("p", name, offset=4) as upload:
        upload.write(b" and half")
        upload.finish()
    assert get(folder, name) == b"half and half"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("gs://bucket", "s3://BUCKET"),
        ("{tmp}/none/blobs", "no folder"),
        ("{tmp}/file", "a file"),
        ("s3:///prefix", "s3://BUCKET"),
        ("s3://b?endpoint=http://127.0.0.1:1&key=k", "credentials go into the environment"),
        ("s3://user:secret@b", "credentials go into the environment"),
    ],
)
def test_a_place_that_cannot_hold_blobs_is_refused_when_it_is_opened(
    tmp_path: Path, place: str, says: str
) -> None:
    if place.startswith("s3:"):
        pytest.importorskip("boto3")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadBlobStore, match=says) as caught:
        open_blobs(place.format(tmp=tmp_path))
    assert "secret" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_refused_when_it_is_opened(s3: S3) -> None:
    with pytest.raises(BadBlobStore, match="check bucket"):
        open_blobs(f"s3://no-such-bucket?endpoint={s3.endpoint}")


def test_a_large_object_is_sent_in_parts_and_comes_back_whole(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    blobs = open_blobs(s3.url("large"))
    data = random.Random(7).randbytes(40 * STEP)
    name = put(blobs, data)
    # 16 + 16 + 8 MiB.
    assert _objects(s3, "large") == {name: (40 * STEP, 3)}
    assert get(blobs, name) == data
    assert get(blobs, name, 20 * STEP, 20 * STEP + 5) == data[20 * STEP : 20 * STEP + 5]


def test_an_object_whose_upload_fails_half_way_never_appears(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    blobs = open_blobs(s3.url("broken"))
    data = random.Random(8).randbytes(33 * STEP)
    sent = _fail_at_part(2, blobs, monkeypatch)
    with pytest.raises(BlobStoreUnavailable):
        put(blobs, data)
    assert sent
    assert _objects(s3, "broken") == {}
    assert _unfinished(s3) == []
    # All of it has come: nothing needs to be sent again once the bucket answers.
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name = named(data)
    with blobs.uploads.resume("p", name, offset=len(data)) as upload:
        upload.finish()
    assert get(blobs, name) == data


def _objects(s3: S3, prefix: str) -> dict[str, tuple[int, int]]:
    """Size and number of parts of the objects under a prefix, by the last part of their names."""
    found = s3.client.list_objects_v2(Bucket=s3.bucket, Prefix=f"{prefix}/").get("Contents", [])
    return {
        one["Key"].rpartition("/")[2]: (one["Size"], int(one["ETag"].strip('"').partition("-")[2] or 1))
        for one in found
    }


def _unfinished(s3: S3) -> list[str]:
    found = s3.client.list_multipart_uploads(Bucket=s3.bucket).get("Uploads", [])
    return [one["Key"] for one in found]


def _fail_at_part(number: int, blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the bucket refuse one part of every upload; what was refused."""
    from botocore.exceptions import ClientError

    refused: list[int] = []
    client = blobs._client  # type: ignore[attr-defined]
    real = client.upload_part

    def upload_part(**arguments: object) -> object:
        if arguments["PartNumber"] == number:
            refused.append(number)
            raise ClientError(
                {"Error": {"Code": "500"}, "ResponseMetadata": {"HTTPStatusCode": 500}}, "UploadPart"
            )
        return real(**arguments)

    monkeypatch.setattr(client, "upload_part", upload_part)
    return refused


def test_blobs_lie_beside_a_sqlite_file_and_are_named_for_postgresql() -> None:
    assert default_blobs("sqlite:////data/t.db") == "/data/t.db.blobs"
    assert default_blobs("postgresql://u@h/n") is None


def test_verify_names_blobs_that_are_missing_damaged_or_of_another_size(
    folder: Blobs, tmp_path: Path
) -> None:
    whole, missing, damaged, short = b"whole", b"missing", b"damaged", b"short"
    events: list[AnyEvent] = [
        episode("e1"),
        *(
            Blob(id=data.decode(), episode_id="e1", hash=named(data), size=len(data))
            for data in (whole, missing, damaged)
        ),
        Blob(id="short", episode_id="e1", hash=named(short), size=99),
    ]
    for data in (whole, damaged, short):
        put(folder, data)
    put(folder, missing, project="other")
    [file] = (tmp_path / "blobs").rglob(named(damaged))
    file.write_bytes(b"DAMAGED")
    with Store.open(empty_store(tmp_path / "t.db")) as store:
        store.ingest("p", [posted(event) for event in events])
        found = {finding.where: finding.name for finding in verify_blobs(store, "p", folder)}
        assert count_blobs(store, "p") == 4
        assert list(verify_blobs(store, "unheard of", folder)) == []
    assert found == {
        f"blob {named(missing)}": "blob_missing",
        f"blob {named(damaged)}": "blob_hash",
        f"blob {named(short)}": "blob_size",
    }


def test_a_blob_goes_with_the_last_that_names_it_and_no_earlier(blobs: Blobs, tmp_path: Path) -> None:
    shared, own = put(blobs, b"of both"), put(blobs, b"of one")
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        events = [
            *(make.episode("e"), make.blob("b0", shared, episode="e"), make.blob("b1", own, episode="e")),
            *(make.episode("f"), make.blob("b2", shared, episode="f")),
        ]
        store.ingest("p", [posted(event) for event in events])
        done = carry_out(store, "p", delete_episode(store, "p", "e").id, blobs=blobs)
        assert (done.blobs, blobs.size("p", own), blobs.size("p", shared)) == (1, None, 7)
        done = carry_out(store, "p", delete_episode(store, "p", "f").id, blobs=blobs)
        assert (done.blobs, blobs.size("p", shared)) == (1, None)


def test_blobs_that_nothing_names_go_after_a_while(blobs: Blobs, tmp_path: Path) -> None:
    used, unused, foreign = put(blobs, b"used"), put(blobs, b"unused"), put(blobs, b"unused", project="q")
    now = time.time_ns()
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        store.ingest("p", [posted(make.blob("b", used))])
        early = delete_unused_blobs(store, "p", before=now - 3600 * 10**9, name="older than an hour")
        assert carry_out(store, "p", early.id, blobs=blobs).blobs == 0
        late = delete_unused_blobs(store, "p", before=now + 3600 * 10**9, name="all")
        assert carry_out(store, "p", late.id, blobs=blobs).blobs == 1
        assert verify(store, "p").problems == ()
    assert (blobs.size("p", used), blobs.size("p", unused), blobs.size("q", foreign)) == (4, None, 6)


@pytest.mark.parametrize("again", ["sent", "renewed"])
def test_a_blob_that_was_sent_or_asked_for_since_is_not_removed(blobs: Blobs, again: str) -> None:
    name = put(blobs, b"data")
    chosen = time.time_ns()
    if again == "sent":
        put(blobs, b"data")
    else:
        assert blobs.renew("p", name) == 4
    assert not blobs.remove("p", name, sent_before=chosen)
    assert get(blobs, name) == b"data"
    assert blobs.remove("p", name, sent_before=time.time_ns())
    assert (blobs.size("p", name), blobs.renew("p", name)) == (None, None)
    assert blobs.remove("p", name, sent_before=chosen)


def test_a_resumed_blob_was_sent_when_it_was_finished_and_not_when_its_bytes_came(
    blobs: Blobs, tmp_path: Path
) -> None:
    name = named(b"whole")
    with blobs.uploads.begin("p", name) as upload:
        upload.write(b"whole")
    for file in files(tmp_path):
        os.utime(file, (1, 1))
    chosen = time.time_ns()
    with blobs.uploads.resume("p", name, offset=5) as upload:
        upload.finish()
    assert not blobs.remove("p", name, sent_before=chosen)


def test_a_removal_beside_a_sender_never_takes_what_the_sender_was_told_is_there(folder: Blobs) -> None:
    name = named(b"data")
    with ThreadPoolExecutor(1) as remover:
        for _ in range(200):
            put(folder, b"data")
            removal = remover.submit(folder.remove, "p", name, sent_before=time.time_ns())
            if folder.renew("p", name) is None:
                put(folder, b"data")
            removal.result()
            assert folder.size("p", name) == 4


def test_a_blob_that_is_sent_again_while_unused_ones_are_removed_stays(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, unused = put(blobs, b"again"), put(blobs, b"never again")
    listed = blobs.sent_before

    def sent_again(project: str, at: int) -> Iterator[str]:
        names = list(listed(project, at))
        assert set(names) == {name, unused}
        put(blobs, b"again")
        return iter(names)

    monkeypatch.setattr(blobs, "sent_before", sent_again)
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        asked = delete_unused_blobs(store, "p", before=time.time_ns(), name="all")
        assert carry_out(store, "p", asked.id, blobs=blobs).blobs == 1
    assert (blobs.size("p", name), blobs.size("p", unused)) == (5, None)


def test_a_blob_that_is_sent_again_after_its_episode_was_deleted_waits_for_an_event(
    blobs: Blobs, tmp_path: Path
) -> None:
    again, own = put(blobs, b"again"), put(blobs, b"own")
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        events = [make.episode("e"), make.blob("b0", again, episode="e"), make.blob("b1", own, episode="e")]
        store.ingest("p", [posted(event) for event in events])
        asked = delete_episode(store, "p", "e")
        assert blobs.renew("p", again) == 5
        assert carry_out(store, "p", asked.id, blobs=blobs).blobs == 1
        assert (blobs.size("p", again), blobs.size("p", own)) == (5, None)
        unused = delete_unused_blobs(store, "p", before=time.time_ns() + 10**9, name="all")
        assert carry_out(store, "p", unused.id, blobs=blobs).blobs == 1
    assert blobs.size("p", again) is None
