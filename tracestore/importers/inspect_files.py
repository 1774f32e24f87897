"""Inspect log files -> logs of resolved samples, one sample in memory at a time.

Where a log's samples lie:

    x.json                      one document: the header's fields and `samples`
    x.eval (a zip)              header.json once finished, _journal/start.json from the beginning, and per
                                sample samples/<id>_epoch_<n>.json, or a folder of that name (see below)
    members of a zip without    the same files, each a source of its own, brought together by the name of
    its directory               their archive

A sample in a folder (log version 3) is `sample.json` with `message_refs`, `metadata.json`, and four sequences
messages/, events/, calls/, attachments/ in chunks `<index of the first item>.json`; `attachment://<index>`
counts into the last. `skeleton.json`, `events/stats.json` and `events/uuids.json` are derived from them.

Members are deflated, or compressed with Zstandard (method 93), which Python reads from 3.14 on; here their
bytes are found by the local header and unpacked with our own library. What unpacks to more than one record
may have is refused.

Resolving puts back what the writer took out: `attachment://<hash>` (before October 2024 `tc://<hash>`) is the
text in `attachments` (`transcript.content`); `input_refs` of a model event are ranges of `message_pool` or
`events_data.messages`, and `call.call_refs` ranges of `call_pool` or `events_data.calls`. Items that repeat
are one Python object.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import zstandard

from tracestore.importers import exact
from tracestore.importers.documents import MAX_RECORD_BYTES, records
from tracestore.importers.guard import as_dict
from tracestore.importers.notes import Notes
from tracestore.importers.sources import DAMAGED, Source, Unreadable

ZSTANDARD = 93
_PROTOCOLS = ("attachment://", "tc://")
_MEMBERS = ("samples/", "_journal/", "header.json", "summaries.json", "reductions.json")
_INDEX = re.compile(r"[0-9]{1,18}")
_MAX_PLACES = 10**6
"""Messages that one call may refer to: what refers to more is no context, but a bomb."""
_SEQUENCES = ("messages", "events", "calls", "attachments")


class Sample(NamedTuple):
    """One sample of a log, as read; `resolved` puts its references back."""

    value: dict[str, Any]
    at: str


class Log(NamedTuple):
    """One log: what it says of the whole run, and its samples as they are read."""

    header: dict[str, Any]
    """version, status, eval, plan, results, stats ...; {} for samples whose log is lost."""
    at: str
    samples: Iterator[Sample]
    is_finished: bool
    """The header was written at the end of the run, not at its start."""


def logs(sources: Sequence[Source], *, notes: Notes) -> Iterator[Log]:
    """The logs of the sources; what is part of none is noted."""
    loose: dict[str, list[Source]] = {}
    for source in sources:
        archive, inside, member = source.name.rpartition("!/")
        if inside and member.startswith(_MEMBERS):
            loose.setdefault(archive, []).append(source)
        elif _is_zip(source):
            yield from _zip_log(source, notes)
        else:
            yield from _documents(source, notes)
    for archive in sorted(loose):
        yield _loose_log(archive, loose[archive], notes)


def _is_zip(source: Source) -> bool:
    try:
        return source.head()[:2] == b"PK"
    except Unreadable:
        return False  # told when it is read


def _documents(source: Source, notes: Notes) -> Iterator[Log]:
    for record in records(source, notes=notes):
        value = record.value
        if is_sample(value) or is_transcript(value):
            sample = value if isinstance(value, dict) else {"events": value}
            yield Log({}, record.at, iter([Sample(sample, record.at)]), True)
        elif is_log(value):
            yield _document(value, record.at, notes)
        else:
            notes.leftover("inspect: no log", value, at=record.at)


def _document(value: dict[str, Any], at: str, notes: Notes) -> Log:
    given = value.get("samples")
    if not isinstance(given, list):
        return Log(value, at, iter(()), value.get("status") != "started")
    del value["samples"]

    def samples() -> Iterator[Sample]:
        for place, one in enumerate(given):
            here = f"{at}, sample {place}"
            if isinstance(one, dict):
                yield Sample(one, here)
            else:
                notes.refuse(here, "no sample: it is an object")

    return Log(value, at, samples(), value.get("status") != "started")


def is_log(value: Any) -> bool:
    """Whether a document is an Inspect JSON log (or the header of one)."""
    return isinstance(value, dict) and isinstance(value.get("eval"), dict) and "task" in value["eval"]


def is_sample(value: Any) -> bool:
    """Whether a document is one sample of a log."""
    return isinstance(value, dict) and value.keys() >= {"id", "epoch", "input", "target", "messages"}


def is_transcript(value: Any) -> bool:
    """Whether a document is a list of Inspect events, on its own or as `events`."""
    events = value.get("events") if isinstance(value, dict) else value
    return (
        isinstance(events, list)
        and bool(events)
        and all(isinstance(one, dict) and isinstance(one.get("event"), str) for one in events)
        and any("timestamp" in one for one in events)
    )


# --- Zips ------------------------------------------------------------------------------------------


def _zip_log(source: Source, notes: Notes) -> Iterator[Log]:
    try:
        with source.open() as stream, zipfile.ZipFile(stream) as archive:
            infos = {info.filename: info for info in archive.infolist() if not info.filename.endswith("/")}
            members = _Members(source.name, stream, archive, infos, notes)
            start, header = members.take("_journal/start.json"), members.take("header.json")
            yield Log(
                _header(start, header, source.name, notes),
                source.name,
                members.samples(),
                header is not None,
            )
            members.rest()
    except Unreadable as error:
        notes.refuse(source.name, error.values.get("problem") or error)
    except DAMAGED as error:
        notes.refuse(source.name, f"damaged zip: {error}")


def _header(start: Any, header: Any, at: str, notes: Notes) -> dict[str, Any]:
    """The header; of the start what the header does not repeat is noted."""
    known, begun = as_dict(header), as_dict(start)
    rest = {name: value for name, value in begun.items() if known.get(name) != value}
    if known and rest:
        notes.leftover("inspect: start.json, where the header says otherwise", rest, at=at)
    return known or begun


class _Members:
    """The members of a log's zip: taken one by one, the rest noted."""

    def __init__(
        self,
        name: str,
        stream: io.BufferedReader,
        archive: zipfile.ZipFile,
        infos: dict[str, zipfile.ZipInfo],
        notes: Notes,
    ) -> None:
        self._name, self._stream, self._archive, self._left, self._notes = name, stream, archive, infos, notes

    def take(self, member: str) -> Any:
        """The parsed member; None where it is not there, or damaged (which is noted)."""
        info = self._left.pop(member, None)
        if info is None:
            return None
        try:
            data = self._unpacked(info)
            if len(data) > MAX_RECORD_BYTES:
                raise OSError(f"unpacks to more than {MAX_RECORD_BYTES:,} bytes")
            return exact.loads(
                data, on_constant=lambda name: self._notes.warn(f"{name}, which is no JSON, kept as text")
            )
        except (*DAMAGED, RuntimeError, NotImplementedError, ValueError, RecursionError) as error:
            self._notes.refuse(f"{self._name}!/{member}", error)
            return None

    def _unpacked(self, info: zipfile.ZipInfo) -> bytes:
        if info.compress_type != ZSTANDARD:
            with self._archive.open(info) as member:
                return member.read(MAX_RECORD_BYTES + 1)
        # A local header has 30 bytes, at 26 and 28 the lengths of name and extra field behind it.
        self._stream.seek(info.header_offset)
        local = self._stream.read(30)
        skipped = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        self._stream.seek(info.header_offset + 30 + skipped)
        packed = io.BytesIO(self._stream.read(info.compress_size))
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
            data = reader.read(MAX_RECORD_BYTES + 1)
        if zlib.crc32(data) != info.CRC and len(data) <= MAX_RECORD_BYTES:
            raise OSError("damaged: its checksum differs")
        return data

    def samples(self) -> Iterator[Sample]:
        for member in sorted(name for name in self._left if name.startswith("samples/")):
            folder, _, name = member.removeprefix("samples/").rpartition("/")
            at = f"{self._name}!/{member}"
            if not folder:
                value = self.take(member)
            elif name == "sample.json":
                value = self._chunked(f"samples/{folder}")
            else:
                continue
            if isinstance(value, dict):
                yield Sample(value, at)
            elif value is not None:
                self._notes.refuse(at, "no sample: it is an object")

    def _chunked(self, folder: str) -> Any:
        """A sample in a folder as the one document that it would be."""
        shell = self.take(f"{folder}/sample.json")
        if not isinstance(shell, dict):
            return shell
        metadata = self.take(f"{folder}/metadata.json")
        if metadata is not None:
            shell["metadata"] = metadata
        parts = {name: self._sequence(f"{folder}/{name}/") for name in _SEQUENCES}
        messages, refs = parts["messages"], shell.get("message_refs")
        found = expanded(refs, messages)
        if found is not None:
            del shell["message_refs"]
            shell["messages"] = found
        shell["events"] = parts["events"]
        shell["events_data"] = {"messages": messages, "calls": parts["calls"]}
        shell["attachments"] = {str(place): text for place, text in enumerate(parts["attachments"])}
        return shell

    def _sequence(self, prefix: str) -> list[Any]:
        starts = (name.removeprefix(prefix).removesuffix(".json") for name in self._left)
        items: list[Any] = []
        for start in sorted(int(one) for one in starts if _INDEX.fullmatch(one)):
            chunk = self.take(f"{prefix}{start}.json")
            if start != len(items):
                self._notes.warn("a chunk of a sample does not begin where the one before it ends")
            items += chunk if isinstance(chunk, list) else []
        return items

    def rest(self) -> None:
        """Note what is left: summaries and other members that repeat what the samples say."""
        for member in sorted(self._left):
            kind = member.rpartition("/")[2] if not member.startswith("_journal/") else "_journal"
            value = self.take(member)
            if value is not None:
                self._notes.leftover(f"inspect: member {kind}", value, at=f"{self._name}!/{member}")


def _loose_log(archive: str, sources: list[Source], notes: Notes) -> Log:
    """A log whose zip has lost its directory."""
    found: dict[str, Any] = {}
    samples: list[Source] = []
    for source in sources:
        member = source.name.rpartition("!/")[2]
        if member.startswith("samples/"):
            samples.append(source)
            continue
        for record in records(source, notes=notes):
            if member in ("header.json", "_journal/start.json"):
                found[member] = record.value
            else:
                notes.leftover(f"inspect: member {member.rpartition('/')[2]}", record.value, at=record.at)

    def read() -> Iterator[Sample]:
        for source in samples:
            for record in records(source, notes=notes):
                if is_sample(record.value):
                    yield Sample(record.value, record.at)
                else:
                    notes.leftover("inspect: part of a sample in a damaged zip", record.value, at=record.at)

    header = found.get("header.json")
    return Log(
        _header(found.get("_journal/start.json"), header, archive, notes), archive, read(), header is not None
    )


# --- References ------------------------------------------------------------------------------------


def resolved(sample: Sample, *, notes: Notes) -> dict[str, Any]:
    """The sample with attachments and pools put back where they were taken from; a copy."""
    value = dict(sample.value)
    attachments = _Attachments(value, notes)
    pools = {name: value.pop(f"{name}_pool", None) for name in ("message", "call")}
    data = value.pop("events_data", None)
    if isinstance(data, dict):
        pools = {"message": data.pop("messages", None), "call": data.pop("calls", None)}
        if data:
            value["events_data"] = data
    messages, calls = (
        [attachments.put_back(one) for one in pool] if isinstance(pool, list) else []
        for pool in pools.values()
    )
    result: dict[str, Any] = attachments.put_back(value)
    used: set[int] = set()
    for event in events_of(result):
        _pooled(event, messages, calls, used, notes)
    for place in sorted(set(range(len(messages))) - used):
        notes.leftover(
            "inspect: pooled message that no event refers to", messages[place], at=f"{sample.at}, {place}"
        )
    attachments.note_unused(sample.at)
    return result


def events_of(value: dict[str, Any]) -> list[Any]:
    """The top-level events of a resolved sample: `events`, or `transcript.events` (until October 2024)."""
    transcript = value.get("transcript")
    found = value.get("events")
    if not isinstance(found, list) and isinstance(transcript, dict):
        found = transcript.get("events")
    return found if isinstance(found, list) else []


def expanded(refs: Any, pool: list[Any]) -> list[Any] | None:
    """The items of a pool that ranges name; None where they are no ranges of it.

    Example: [[0, 2], 3, [5, 6]] -> items 0, 1, 3 and 5
    """
    if not isinstance(refs, list):
        return None
    places: list[int] = []
    for one in refs:
        if isinstance(one, int) and not isinstance(one, bool):
            places.append(one)
        elif isinstance(one, list) and len(one) == 2 and all(type(end) is int and end >= 0 for end in one):
            places += range(one[0], min(one[1], len(pool) + 1))
        else:
            return None
        if len(places) > _MAX_PLACES:
            return None
    return [pool[place] for place in places] if all(0 <= place < len(pool) for place in places) else None


def _pooled(event: Any, messages: list[Any], calls: list[Any], used: set[int], notes: Notes) -> None:
    if not isinstance(event, dict) or event.get("event") != "model":
        return
    refs = event.get("input_refs")
    found = expanded(refs, messages)
    if isinstance(refs, list) and found is not None and not event.get("input"):
        event["input"] = found
        del event["input_refs"]
        used.update(_places(refs))
    elif refs is not None:
        notes.warn("a model event refers to messages that are not in the sample's pool")
    call = event.get("call")
    found = expanded(call.get("call_refs"), calls) if isinstance(call, dict) else None
    if isinstance(call, dict) and found is not None and isinstance(call.get("request"), dict):
        call["request"][call.pop("call_key", None) or "messages"] = found
        del call["call_refs"]


def _places(refs: list[Any]) -> Iterator[int]:
    for one in refs:
        yield from range(*one) if isinstance(one, list) else (one,)


class _Attachments:
    """Texts that were taken out of a sample, by reference."""

    def __init__(self, value: dict[str, Any], notes: Notes) -> None:
        self._notes = notes
        self._texts: dict[str, Any] = {}
        self._used: set[str] = set()
        transcript = value.get("transcript")
        if isinstance(value.get("attachments"), dict):
            self._texts = value.pop("attachments")
        elif isinstance(transcript, dict) and isinstance(transcript.get("content"), dict):
            value["transcript"] = {name: one for name, one in transcript.items() if name != "content"}
            self._texts = transcript["content"]
        notes.rows["inspect/attachment"] += len(self._texts)

    def put_back(self, value: Any) -> Any:
        """A copy of a JSON value with the texts where their references stood."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {name: self.put_back(one) for name, one in value.items()}
        return [self.put_back(one) for one in value] if isinstance(value, list) else value

    def _text(self, value: str) -> Any:
        for protocol in _PROTOCOLS:
            if value.startswith(protocol):
                name = value[len(protocol) :]
                if name in self._texts:
                    self._used.add(name)
                    return self._texts[name]
                self._notes.warn("a reference to an attachment that is not in its sample, kept as text")
        return value

    def note_unused(self, at: str) -> None:
        for name in sorted(self._texts.keys() - self._used):
            self._notes.leftover(
                "inspect: attachment that nothing refers to", {name: self._texts[name]}, at=at
            )
