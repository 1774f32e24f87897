"""Paths -> sources: files, folders, globs, archives and stdin as named streams that can be read again.

Nothing is unpacked to disk under a name that an archive chose: a member is a stream with a label, so a path
that climbs out of the archive is only an odd label. What is not seekable (stdin, members of a tar) is held
in an unnamed temporary file.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import re
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import zstandard

from tracestore.errors import TracestoreError
from tracestore.importers.notes import Notes

HEAD_BYTES = 65_536
MAX_MEMBER_BYTES = 8 * 2**30
"""Bytes that one compressed file or archive member may unpack to."""
MAX_ARCHIVE_BYTES = 64 * 2**30
"""Bytes that all members of one archive may unpack to."""
MAX_RATIO = 200
"""Unpacked over packed size beyond which, past `MIN_BOMB_BYTES`, a member is a bomb and not a trace."""
MIN_BOMB_BYTES = 64 * 2**20
MAX_NESTED_ARCHIVES = 2
MAX_SALVAGED_BYTES = 2**30
"""Bytes of a zip without its directory that are searched for members."""
_CHUNK = 1 << 20
_ZSTD_BYTES = 4_096
"""Packed bytes that are unpacked at once: what a bomb makes of them (about 130 MB) can be held."""
_ENCRYPTED = 1
"""Bit of a zip member's flags."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

DAMAGED = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
    zipfile.BadZipFile,
    tarfile.TarError,
)
"""What reading a damaged file raises."""


class Unreadable(TracestoreError):
    """This file cannot be read."""

    exit_code = 2


class Bomb(OSError):
    """Unpacks to far more than it is."""


@dataclass(frozen=True)
class Source:
    """One file, wherever it lies."""

    name: str
    """What people call it: its path, or `archive.zip!/member`."""
    raw: Callable[[], IO[bytes]]
    """Opens its bytes as they lie there, packed if they are packed."""
    size: int | None = None
    """Bytes on disk, packed if it is packed; None: unknown."""
    path: Path | None = None
    """Where it lies as a file of its own; None for members and stdin."""
    is_named: bool = False
    """Whether it was asked for by its own path: not to know it is then an error."""

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """A buffered stream of its bytes, decompressed; it can peek.

        Raises:
            Unreadable: it may not be read.
        """
        try:
            stream = self.raw()
        except OSError as error:
            raise Unreadable(path=self.name, problem=error.strerror or str(error)) from error
        with stream:
            yield _decompressed(stream, packed=self.size)

    def head(self) -> bytes:
        """The first HEAD_BYTES, decompressed; fewer where it is damaged there.

        Raises:
            Unreadable: it may not be read, or is damaged from its first byte on.
        """
        data = b""
        with self.open() as stream:
            try:
                while len(data) < HEAD_BYTES and (chunk := stream.read1(HEAD_BYTES - len(data))):
                    data += chunk
                if not data:
                    ended(stream)
            except DAMAGED as error:
                if not data:
                    raise Unreadable(path=self.name, problem=f"damaged: {error}") from error
        return data

    @contextmanager
    def file(self) -> Iterator[Path]:
        """A file that holds its bytes, for libraries that need one (SQLite); a copy where it has none."""
        if self.path is not None:
            yield self.path
            return
        with tempfile.NamedTemporaryFile() as copy, self.open() as stream:
            for chunk in chunks(stream):
                copy.write(chunk)
            copy.flush()
            yield Path(copy.name)


def chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """All of a stream, piece by piece.

    Raises:
        OSError and the others in DAMAGED: what stands before the damage was given.
    """
    while chunk := stream.read(_CHUNK):
        yield chunk
    ended(stream)


def ended(stream: IO[bytes]) -> None:
    """Raise what ended a stream that has ended, where it was damage: one of DAMAGED."""
    stream.read(1)


def sources(paths: Sequence[str], *, notes: Notes, stdin: IO[bytes] | None = None) -> Iterator[Source]:
    """Every file under the paths, each once, folders and archives opened, in order of name within a path.

    What cannot be read is refused in the notes, and the others go on.

    Args:
        paths: files, folders, glob patterns (`**` too), archives; `-` is stdin.

    Raises:
        Unreadable: nothing is there under a path.
    """
    seen: set[object] = set()
    for path in paths:
        if path == "-":
            assert stdin is not None
            held = replace(_held("stdin", stdin, notes), is_named=True)
            yield from _members(held, notes=notes, depth=0)
            continue
        for file in _files(path, notes):
            status = file.stat()
            # One file under two names (a link, a path given twice) is read once.
            identity = (status.st_dev, status.st_ino)
            if identity in seen:
                continue
            seen.add(identity)
            yield from _members(_file(file, status.st_size, path), notes=notes, depth=0)


def _file(path: Path, size: int, given: str) -> Source:
    name, is_named = _label(str(path)), str(path) == given
    return Source(name, lambda: path.open("rb"), size=size, path=path, is_named=is_named)


def _label(name: str) -> str:
    """A name that can be shown: bytes of it that are no text, and control characters, as escapes."""
    text = name.encode("utf-8", "backslashreplace").decode("utf-8")
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def _files(path: str, notes: Notes) -> Iterator[Path]:
    given = Path(path)
    try:
        is_there = given.exists()
    except OSError as error:  # a name that is too long, a folder that may not be searched
        raise Unreadable(path=path, problem=error.strerror) from error
    if not is_there:
        found = sorted(glob.glob(os.path.expanduser(path), recursive=True, include_hidden=True))
        if not found:
            raise Unreadable(path=path, hint="there is no such file or folder, and nothing matches it")
        for one in found:
            yield from _under(Path(one), notes)
        return
    yield from _under(given, notes)


def _under(path: Path, notes: Notes) -> Iterator[Path]:
    if not path.is_dir():
        yield from _regular(path, notes)
        return
    for folder, folders, names in os.walk(
        path, onerror=lambda error: notes.refuse(_label(str(error.filename)), error.strerror)
    ):
        folders.sort()
        for one in folders:
            if os.path.islink(os.path.join(folder, one)):
                # It may lead round in a circle.
                notes.refuse(_label(os.path.join(folder, one)), "a link to a folder, not followed")
        for name in sorted(names):
            yield from _regular(Path(folder, name), notes)


def _regular(path: Path, notes: Notes) -> Iterator[Path]:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        notes.refuse(_label(str(path)), error.strerror)
        return
    if stat.S_ISREG(mode):
        yield path
    else:
        notes.refuse(_label(str(path)), "no regular file (a device, pipe or socket)")


# --- Archives --------------------------------------------------------------------------------------


def _members(source: Source, *, notes: Notes, depth: int) -> Iterator[Source]:
    """The source itself, or the sources inside it where it is an archive."""
    try:
        head = source.head()
        is_archive = head[:4] == b"PK\x03\x04" or head[257:262] == b"ustar"
        if not is_archive:
            yield source
        elif depth >= MAX_NESTED_ARCHIVES:
            notes.refuse(source.name, f"archives inside archives, more than {MAX_NESTED_ARCHIVES} deep")
        elif head[:2] == b"PK":
            yield from _zip_members(source, notes=notes, depth=depth)
        else:
            yield from _tar_members(source, notes=notes, depth=depth)
    except Unreadable as error:
        notes.refuse(source.name, error.values.get("problem") or error)
    except DAMAGED as error:
        notes.refuse(source.name, f"damaged archive: {error}")


def _zip_members(source: Source, *, notes: Notes, depth: int) -> Iterator[Source]:
    held = _on_disk(source, notes)
    try:
        with held.open() as stream, zipfile.ZipFile(stream) as archive:
            infos = [info for info in archive.infolist() if not info.filename.endswith("/")]
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        notes.refuse(source.name, f"damaged zip ({error}); its intact members were read")
        for member in _salvaged(held, notes):
            yield from _members(member, notes=notes, depth=depth + 1)
        return
    if is_inspect_log([info.filename for info in infos]):
        yield source
        return
    total = sum(info.file_size for info in infos)
    if total > MAX_ARCHIVE_BYTES:
        notes.refuse(source.name, f"unpacks to {total:,} bytes; at most {MAX_ARCHIVE_BYTES:,} are read")
        return
    for info in sorted(infos, key=lambda info: info.filename):
        yield from _members(_zip_member(held, info), notes=notes, depth=depth + 1)


def is_inspect_log(names: Sequence[str]) -> bool:
    """Whether these are the members of an Inspect `.eval` log, which is a zip and one trace."""
    return "header.json" in names or "_journal/start.json" in names


def _zip_member(held: Source, info: zipfile.ZipInfo) -> Source:
    def opened() -> IO[bytes]:
        stack = ExitStack()
        archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(held.open())))
        try:
            member = stack.enter_context(archive.open(info))
        except (RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:  # a password, an odd method
            stack.close()
            raise OSError(f"cannot be unpacked: {error}") from error
        return _bounded(member, packed=info.compress_size, owner=stack)

    return Source(_label(f"{held.name}!/{info.filename}"), opened)


def _tar_members(source: Source, *, notes: Notes, depth: int) -> Iterator[Source]:
    held = _on_disk(source, notes)
    with held.open() as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        for info in archive:
            if info.isfile() and not info.issparse():
                yield from _members(_tar_member(held, info), notes=notes, depth=depth + 1)
            elif not info.isdir():
                notes.refuse(_label(f"{source.name}!/{info.name}"), "no regular file (a link or a device)")


def _tar_member(held: Source, info: tarfile.TarInfo) -> Source:
    def opened() -> IO[bytes]:
        stack = ExitStack()
        stream = stack.enter_context(held.open())
        stream.seek(info.offset_data)
        return io.BufferedReader(_Bounded(stream, length=info.size, owner=stack), _CHUNK)

    return Source(_label(f"{held.name}!/{info.name}"), opened, size=info.size)


def _salvaged(held: Source, notes: Notes) -> Iterator[Source]:
    """The members of a zip whose directory is gone, as far as they are whole.

    Each member begins with a header of 30 bytes: signature, version, flags, method, time, date, CRC, packed
    and unpacked size, lengths of name and extra field (PKWARE APPNOTE 4.3.7).
    """
    with held.open() as stream:
        data = stream.read(MAX_SALVAGED_BYTES)
    place = data.find(b"PK\x03\x04")
    while place != -1:
        name, unpacked = _salvaged_member(data, place)
        label = _label(f"{held.name}!/{name}")
        if unpacked is not None:
            yield _held(label, io.BytesIO(unpacked), notes)
        elif not name.endswith("/"):
            notes.refuse(label, "not whole, or packed in a way that needs the directory")
        place = data.find(b"PK\x03\x04", place + 4)


def _salvaged_member(data: bytes, place: int) -> tuple[str, bytes | None]:
    flags, method, name_length, extra_length = (
        int.from_bytes(data[place + first : place + first + 2], "little") for first in (6, 8, 26, 28)
    )
    packed = int.from_bytes(data[place + 18 : place + 22], "little")
    name = data[place + 30 : place + 30 + name_length].decode("utf-8", "replace")
    begin = place + 30 + name_length + extra_length
    if method == zipfile.ZIP_DEFLATED and not flags & _ENCRYPTED:
        return name, _inflated(data, begin)
    if method == zipfile.ZIP_STORED and packed and begin + packed <= len(data):
        return name, data[begin : begin + packed]
    return name, None


def _inflated(data: bytes, begin: int) -> bytes | None:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        unpacked = inflate.decompress(memoryview(data)[begin:], MIN_BOMB_BYTES)
    except zlib.error:
        return None
    return unpacked if inflate.eof else None


# --- Streams ---------------------------------------------------------------------------------------


class _Bounded(io.RawIOBase):
    """A part of a stream, which stops where it unpacks to too much. Closes what it stands on.

    Damage comes after what stands before it: a reading that meets it ends the stream, the next one raises it.
    """

    def __init__(
        self,
        stream: Any,
        *,
        packed: int | None = None,
        length: int | None = None,
        owner: ExitStack | None = None,
    ) -> None:
        self._stream = stream
        self._packed = packed
        self._left = length
        self._owner = owner
        self._read = 0
        self._damage: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._damage is not None:
            raise self._damage
        try:
            chunk = self._chunk(len(buffer))
        except DAMAGED as error:
            self._damage = error
            return 0
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def _chunk(self, size: int) -> bytes:
        wanted = size if self._left is None else min(size, self._left)
        # read1 gives what it has before it meets damage; read would lose it.
        chunk: bytes = self._stream.read1(wanted)
        self._read += len(chunk)
        if self._left is not None:
            self._left -= len(chunk)
            if wanted and not chunk:
                raise EOFError("ends in the middle of a member")
        is_dense = self._packed is not None and self._read > max(MIN_BOMB_BYTES, MAX_RATIO * self._packed)
        if self._read > MAX_MEMBER_BYTES or is_dense:
            raise Bomb(f"unpacks to more than {self._read:,} bytes: refused as a decompression bomb")
        return chunk

    def close(self) -> None:
        if self._owner is not None:
            self._owner.close()
        super().close()


class _Zstd:
    """Unpacks zstd frames, and tells when the last one is cut off, which zstandard's own reader does not."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._frame: Any = None
        self._packed = b""
        self._unpacked = b""

    def read1(self, size: int) -> bytes:
        while not self._unpacked:
            self._packed = self._packed or self._stream.read(_ZSTD_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("ends in the middle of a zstd frame")
                return b""
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._unpacked = self._frame.decompress(self._packed)
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        chunk, self._unpacked = self._unpacked[:size], self._unpacked[size:]
        return chunk


def _bounded(stream: IO[bytes], *, packed: int | None, owner: ExitStack | None = None) -> io.BufferedReader:
    return io.BufferedReader(_Bounded(stream, packed=packed, owner=owner), _CHUNK)


_DECOMPRESSORS: tuple[tuple[bytes, Callable[[IO[bytes]], Any]], ...] = (
    (b"\x1f\x8b", lambda stream: gzip.GzipFile(fileobj=stream)),
    (b"\x28\xb5\x2f\xfd", _Zstd),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)


def _decompressed(stream: IO[bytes], *, packed: int | None) -> io.BufferedReader:
    unbuffered: Any = stream
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(unbuffered)
    head = buffered.peek(8)
    for magic, opened in _DECOMPRESSORS:
        if head.startswith(magic):
            return _bounded(opened(buffered), packed=packed)
    return buffered


def _on_disk(source: Source, notes: Notes) -> Source:
    """A source whose stream can seek: itself where it is a plain file, else a copy."""
    with source.open() as stream:
        if stream.seekable():
            return source
        return _held(source.name, stream, notes)


def _held(name: str, stream: IO[bytes], notes: Notes) -> Source:
    """A source of a stream that can be read only once. Its copy lives as long as the source does."""
    copy = _Copy()
    held = copy.file
    try:
        for chunk in chunks(stream):
            held.write(chunk)
            if held.tell() > MAX_MEMBER_BYTES:
                raise Bomb(f"holds more than {MAX_MEMBER_BYTES:,} bytes")
    except Bomb:
        raise
    except DAMAGED as error:
        notes.refuse(name, f"damaged ({error}); what stands before the damage was read")
    held.flush()
    return Source(name, copy.opened, size=held.tell())


class _Copy:
    """An unnamed file that lives as long as whoever can open it."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115

    def opened(self) -> IO[bytes]:
        return io.BufferedReader(_Reading(self), _CHUNK)

    def __del__(self) -> None:
        self.file.close()


class _Reading(io.RawIOBase):
    """One reading of a copy, with a place of its own."""

    def __init__(self, copy: _Copy) -> None:
        self._copy = copy
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._copy.file.fileno(), len(buffer), self._place)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = (0, self._place, os.fstat(self._copy.file.fileno()).st_size)[whence]
        self._place = max(0, start + offset)
        return self._place
