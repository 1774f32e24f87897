from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tracestore.importers import sources as module
from tracestore.importers.documents import records
from tracestore.importers.notes import Notes
from tracestore.importers.sources import Source, Unreadable, sources

LINES = b'{"a":1}\n{"b":2}\n'
MANY = b"".join(b'{"n":%d,"text":"%x"}\n' % (n, n**9) for n in range(4_000))


def found(*paths: Path | str, stdin: bytes | None = None) -> tuple[list[str], list[object], Notes]:
    """(names of the sources, their records, what was noted)."""
    notes = Notes()
    stream = None if stdin is None else io.BytesIO(stdin)
    names, values = [], []
    for source in sources([str(path) for path in paths], notes=notes, stdin=stream):
        names.append(source.name)
        values += [record.value for record in records(source, notes=notes)]
    return names, values, notes


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "gzip members": lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]),
    "zstd": zstandard.ZstdCompressor().compress,
    "zstd frames": lambda data: (
        zstandard.ZstdCompressor().compress(data[:9]) + zstandard.ZstdCompressor().compress(data[9:])
    ),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zip": lambda data: zipped({"x": data}),
    "tar": lambda data: tarred({"x": data}),
    "tar.gz": lambda data: gzip.compress(tarred({"x": data})),
    "zip in tar": lambda data: tarred({"x.zip": zipped({"x": data})}),
    "gzip in zip": lambda data: zipped({"x.gz": gzip.compress(data)}),
}


@pytest.mark.parametrize("packing", PACKED)
def test_a_file_reads_the_same_however_it_is_packed(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(PACKED[packing](LINES))
    _, values, notes = found(path)
    assert values == [{"a": 1}, {"b": 2}]
    assert notes.refused == []
    assert found("-", stdin=PACKED[packing](LINES))[1] == values


@pytest.mark.parametrize("packing", ["gzip", "zstd", "bzip2", "xz", "zip", "tar", "tar.gz", "gzip in zip"])
def test_a_packed_file_that_was_cut_is_refused_by_name_and_what_stands_before_the_cut_is_kept(
    tmp_path: Path, packing: str
) -> None:
    path = tmp_path / "file"
    data = PACKED[packing](MANY)
    path.write_bytes(data[: len(data) * 9 // 10])
    _, values, notes = found(path)
    assert values == [{"n": n, "text": f"{n**9:x}"} for n in range(len(values))]
    if packing not in ("zip", "gzip in zip", "bzip2"):  # their blocks are larger than this file
        assert values
    assert notes.refused
    assert all(problem.startswith(str(path)) for problem in notes.refused)


def test_a_zip_that_was_cut_keeps_its_whole_members(tmp_path: Path) -> None:
    path = tmp_path / "f.zip"
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        path.write_bytes(zipped({"a": LINES, "b": LINES, "c": MANY}, method)[:5_000])
        names, values, notes = found(path)
        assert names == [f"{path}!/a", f"{path}!/b"]
        assert len(values) == 4
        assert [problem.partition(":")[0] for problem in notes.refused] == [str(path), f"{path}!/c"]


@given(st.binary(max_size=60), st.sampled_from(sorted(PACKED)), st.integers(0, 10_000), st.integers(1, 255))
def test_no_damage_is_a_crash(junk: bytes, packing: str, place: int, flip: int) -> None:
    data = bytearray(PACKED[packing](LINES + junk))
    data[place % len(data)] ^= flip
    _, _, notes = found("-", stdin=bytes(data))
    assert all(problem.startswith("stdin") for problem in notes.refused)


def test_a_bomb_is_refused_while_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_BOMB_BYTES", 2**20)
    monkeypatch.setattr(module, "MAX_RATIO", 100)
    zeros = gzip.compress(b"\0" * 2**23, 9)
    (tmp_path / "bomb.gz").write_bytes(zeros)
    (tmp_path / "good.jsonl").write_bytes(LINES)
    names, values, notes = found(tmp_path)
    assert values == [{"a": 1}, {"b": 2}]
    assert len(names) == 2
    assert any("decompression bomb" in problem for problem in notes.refused)


def test_an_archive_that_says_that_it_unpacks_to_too_much_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ARCHIVE_BYTES", 20)
    path = tmp_path / "f.zip"
    path.write_bytes(zipped({"a": LINES, "b": LINES}))
    assert found(path)[2].refused == [f"{path}: unpacks to 32 bytes; at most 20 are read"]


def test_archives_inside_archives_end_at_the_limit(tmp_path: Path) -> None:
    data = LINES
    for _ in range(module.MAX_NESTED_ARCHIVES + 1):
        data = zipped({"z": data})
    (tmp_path / "f.zip").write_bytes(data)
    _, values, notes = found(tmp_path / "f.zip")
    assert values == []
    assert notes.refused == [f"{tmp_path}/f.zip!/z!/z: archives inside archives, more than 2 deep"]


@pytest.mark.parametrize("packed", [zipped, tarred])
def test_a_name_that_climbs_out_of_its_archive_is_a_label(
    tmp_path: Path, packed: Callable[[dict[str, bytes]], bytes]
) -> None:
    path = tmp_path / "folder" / "f"
    path.parent.mkdir()
    path.write_bytes(packed({"../../evil": LINES, "/etc/evil": LINES, "C:\\evil\n": LINES}))
    names, values, _ = found(path)
    assert len(values) == 6
    assert f"{path}!/../../evil" in names
    assert all("\n" not in name for name in names)
    assert [one.name for one in tmp_path.rglob("*")] == ["folder", "f"]


def test_a_link_or_device_in_a_tar_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert found(path)[2].refused == [f"{path}!/link: no regular file (a link or a device)"]


def test_a_member_behind_a_password_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    data = bytearray(zipped({"a": LINES, "b": LINES}))
    for begin in (data.find(b"PK\x03\x04") + 6, data.find(b"PK\x01\x02") + 8):
        data[begin] |= 1
    path = tmp_path / "f.zip"
    path.write_bytes(data)
    _, values, notes = found(path)
    assert values == [{"a": 1}, {"b": 2}]
    assert [problem.partition(":")[0] for problem in notes.refused] == [f"{path}!/a"]


def test_a_member_without_a_name_costs_the_others_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good.jsonl", LINES)
        archive.writestr("x", LINES)
        archive.infolist()[1].filename = ""
    notes = Notes()
    found = list(sources([str(path)], notes=notes))
    assert [source.name for source in found] == [f"{path}!/good.jsonl"]
    assert [one.split(": ")[0] for one in notes.refused] == [f"{path}!/"]


def test_a_folder_is_every_file_in_it_once_in_order_of_name(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.jsonl").write_bytes(LINES)
    (tmp_path / "1.jsonl").write_bytes(LINES)
    (tmp_path / ".hidden").write_bytes(LINES)
    (tmp_path / "again").symlink_to(tmp_path / "1.jsonl")
    names, _, notes = found(tmp_path, tmp_path / "1.jsonl", tmp_path / "**" / "*.jsonl")
    assert names == [str(tmp_path / name) for name in (".hidden", "1.jsonl", "b/2.jsonl")]
    assert notes.refused == []


def test_links_that_lead_round_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    names, _, notes = found(tmp_path)
    assert names == []
    assert [problem.partition(":")[0] for problem in notes.refused] == [
        str(tmp_path / name) for name in ("loop", "gone", "pipe", "self")
    ]


def test_a_path_where_nothing_is_says_so() -> None:
    for path in ("/nothing/here", "/nothing/*.jsonl", "/" + "x" * 5_000):
        with pytest.raises(Unreadable):
            found(path)


def test_a_name_that_is_no_text_can_be_shown(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"\xff\n.jsonl")
    with open(path, "wb") as file:
        file.write(LINES + b"nonsense\n")
    (name,), values, notes = found(tmp_path)
    assert name == rf"{tmp_path}/\udcff\x0a.jsonl"
    assert len(values) == 2
    assert notes.refused[0].startswith(f"{name}, line 3: ")


def test_a_source_can_be_read_again_and_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "f.zip").write_bytes(zipped({"a": LINES}))
    (source,) = sources([str(tmp_path / "f.zip")], notes=Notes())
    for _ in range(2):
        with source.open() as stream:
            assert stream.read() == LINES
    with source.file() as path:
        assert path.read_bytes() == LINES
    plain = Source("f", lambda: io.BytesIO(LINES), path=tmp_path / "f.zip")
    with plain.file() as path:
        assert path == tmp_path / "f.zip"


def test_stdin_is_held_and_can_be_read_again() -> None:
    (source,) = sources(["-"], notes=Notes(), stdin=io.BytesIO(LINES))
    for _ in range(2):
        with source.open() as stream:
            assert stream.readline() == b'{"a":1}\n'
            assert stream.seek(-8, io.SEEK_END) == 8
            assert stream.read() == b'{"b":2}\n'
