"""An export that goes on: what each entry of its log adds and replaces, one JSON file each.

    log/00000000.json    what is followed: project, spec, versions
    log/00000001.json    the first groups, and from there on one file for each time there was something new

An entry is there whole or not at all, names the hash of the one before it, and never changes. So the log, and
nothing else, says which groups were written: a shard that no entry names is no part of the export.

Shards never change either, but may go: where rows that count no more are of what was deleted or redacted, the
entry says which shard has the others of that file from there on, and the file is removed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tracestore.errors import TracestoreError
from tracestore.shards.durable import fsync_folder, write_durably
from tracestore.shards.files import Files, Folder, files_at
from tracestore.shards.manifest import Conservation, Manifest, NotAnExport, OtherSchema, ShardEntry
from tracestore.shards.schema import SCHEMA_VERSION, schema_hash

LOG_FOLDER = "log"

EMPTY = Conservation(
    sampled_tokens=0,
    trained_tokens=0,
    excluded={},
    completions=0,
    no_token_ids_calls=0,
    no_token_ids_tokens=None,
)
"""The table of nothing."""

Why = Literal["revised", "deleted", "redacted", "replaced"]


class LogCorrupt(TracestoreError):
    """The log of a followed export is damaged."""


class GroupName(NamedTuple):
    """A group by its id, or an episode that is a group of its own by its id."""

    kind: Literal["group", "episode"]
    id: str

    @classmethod
    def of(cls, group_id: str | None, episode_id: str) -> Self:
        return cls("episode", episode_id) if group_id is None else cls("group", group_id)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Header(_Frozen):
    """What is followed; the file with number 0."""

    format: Literal["tracestore-follow"] = "tracestore-follow"
    schema_version: int = SCHEMA_VERSION
    schema_hash: str
    log_id: str
    """Random: another folder that follows the same project with the same spec has another."""
    project: str
    spec: dict[str, Any]
    spec_hash: str
    tokenizer_hash: str | None = None
    template_hash: str | None = None
    libraries: dict[str, str]


class LoggedGroup(_Frozen):
    """A closed group as it was written."""

    name: GroupName
    episode_ids: tuple[str, ...]
    ended: bool
    """Whether an end event of the group had come."""
    revision: int
    """0, and one more each time its rows are written again."""
    base: int
    """Commit position up to which its events are in its rows. Of later ones only rewards, candidate sets and
    selections are; what else comes is late."""
    file: str | None
    """The shard; None: nothing in it to learn from, so it has no row."""
    first_row: int
    """Place of its first row in the shard."""
    rows: int
    samples: int
    content_hash: str
    """Of its rows."""
    causes: dict[str, int]
    oldest_version: int | None
    """Of the policies that sampled what trains; None: unknown, or nothing trains."""
    newest_version: int | None
    conservation: Conservation


class LateGroup(_Frozen):
    """What came of a group after its rows were written, all of it up to the snapshot of the entry."""

    name: GroupName
    episode_ids: tuple[str, ...]
    """Episodes that are not in its rows."""
    conservation: Conservation
    """Its sampled tokens are excluded as `late`."""


class Tombstone(_Frozen):
    """Rows that count no more. Where the entry has the group again, those take their place."""

    name: GroupName
    revision: int
    why: Why
    """revised: a reward or a selection came. deleted: an episode of it was. redacted: text or ids of it were
    taken out. replaced: an event of it came in a higher revision."""
    file: str | None
    first_row: int
    rows: int


class Rewritten(_Frozen):
    """A shard that is there no more, since what was deleted or redacted was in it."""

    file: str
    shard: ShardEntry | None
    """The one with those of its rows that count, in their order; None: none did."""


class Entry(_Frozen):
    """What was new at a snapshot."""

    number: int
    previous: str
    """Hash of the entry before it, or of the header."""
    snapshot: int
    """Commit position that was read: what came up to it is in the rows, late, open or waiting."""
    shards: tuple[ShardEntry, ...]
    """The shards that it adds."""
    groups: tuple[LoggedGroup, ...]
    """The groups in them, and those that were closed without anything to learn from."""
    tombstones: tuple[Tombstone, ...]
    """Of rows by where they lay at the entry before."""
    rewritten: tuple[Rewritten, ...] = ()
    """Shards of earlier entries that are there no more. What takes their place is not new."""
    late: tuple[LateGroup, ...]
    waiting: tuple[GroupName, ...]
    """Groups that are closed by what has come, and are left a while, since more may come; and those that
    changed while they were read, and are read again."""
    deleted: tuple[dict[str, Any], ...]
    """Episodes, or their content, that were deleted since the entry before."""
    redacted_at: int
    """Commit position up to which redactions are followed; 0: there was none."""
    num_groups: int
    """Groups of the snapshot, open ones included."""
    adds: Conservation
    """Of the groups of this entry, and of what is late of others."""
    conservation: Conservation
    """Of the whole snapshot; what waits stands under `group_open`."""


Document = TypeVar("Document", Header, Entry)


def is_followed(files: Files) -> bool:
    """Whether a followed export lies there."""
    try:
        files.read(entry_name(0))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@dataclass
class Log:
    """A log as far as it was read, and what is live at that point."""

    files: Files
    header: Header
    hash: str
    """Of the last entry that was read, or of the header."""
    first_hash: str
    """Of the header: it names the export, however far it goes."""
    number: int = 0
    """Of that entry; 0: there is none."""
    snapshot: int = 0
    last: Entry | None = None
    groups: dict[GroupName, LoggedGroup] = field(default_factory=dict)
    """The latest revision of each group, those without rows included."""
    group_of: dict[str, GroupName] = field(default_factory=dict)
    """Episode -> the group in whose rows it is."""
    late: dict[GroupName, LateGroup] = field(default_factory=dict)
    revisions: dict[GroupName, int] = field(default_factory=dict)
    """The highest revision that any group ever had."""
    shards: dict[str, ShardEntry] = field(default_factory=dict)
    dead: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    """Shard -> places of rows that count no more, and the episodes of their groups."""
    moved: dict[str, str | None] = field(default_factory=dict)
    """Shard that is there no more -> the one that took its place; None: none of its rows counted."""
    deleted: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, folder: Path, header: Header) -> Self:
        """A new log."""
        (folder / LOG_FOLDER).mkdir(exist_ok=True)
        hash_ = _write(folder, 0, header)
        return cls(Folder(folder), header, hash_, hash_)

    @classmethod
    def open(cls, place: str | Path) -> Self:
        """A log with all its entries. Raises as `read` does."""
        return cls.read(files_at(place))[0]

    @classmethod
    def read(cls, files: Files) -> tuple[Self, list[Entry]]:
        """A log, and all its entries one by one.

        Raises:
            NotAnExport: there is none.
            LogCorrupt: an entry does not parse, is not what its hash says, or one is missing.
            OtherSchema: the shards have another schema version or other fields.
            Unreachable: see `tracestore.shards.files`.
        """
        try:
            header, hash_ = _read(files, 0, Header)
        except (FileNotFoundError, NotADirectoryError) as error:
            hint = "tracestore export --follow makes one that goes on"
            raise NotAnExport(path=files.where, hint=hint) from error
        if (header.schema_version, header.schema_hash) != (SCHEMA_VERSION, schema_hash()):
            hint = "follow into a new folder with this version"
            raise OtherSchema(path=files.where, found=header.schema_version, hint=hint)
        log = cls(files, header, hash_, hash_)
        entries = log.advance()
        log._require_end()
        return log, entries

    def advance(self) -> list[Entry]:
        """Read the entries that have come since."""
        found: list[Entry] = []
        while True:
            try:
                entry, hash_ = _read(self.files, self.number + 1, Entry)
            except FileNotFoundError:
                return found
            if entry.number != self.number + 1 or entry.previous != self.hash:
                file = entry_name(self.number + 1)
                raise LogCorrupt(
                    place=self.files.where, file=file, problem="does not follow the entry before it"
                )
            self._add(entry, hash_)
            found.append(entry)

    def _require_end(self) -> None:
        """Refuse a folder in which there are later entries than the last that could be read."""
        if not isinstance(self.files, Folder):
            return
        folder = self.files.path
        later = [path for path in (folder / LOG_FOLDER).glob("[0-9]*.json") if int(path.stem) > self.number]
        if later and not (folder / entry_name(self.number + 1)).is_file():
            hint = "copy the whole folder again"
            raise LogCorrupt(
                place=self.files.where, file=entry_name(self.number + 1), problem="missing", hint=hint
            )

    @property
    def folder(self) -> Path:
        """The folder of a log on this machine."""
        assert isinstance(self.files, Folder), f"{self.files.where} is no folder"
        return self.files.path

    def copy(self) -> Self:
        """As it is now: what is read of this one later is not in it."""
        dead = {file: dict(rows) for file, rows in self.dead.items()}
        return replace(
            self,
            groups=dict(self.groups),
            group_of=dict(self.group_of),
            late=dict(self.late),
            revisions=dict(self.revisions),
            shards=dict(self.shards),
            dead=dead,
            moved=dict(self.moved),
            deleted=list(self.deleted),
        )

    def append(self, entry: Entry) -> None:
        """Write the next entry: what it names is followed from here on."""
        assert (entry.number, entry.previous) == (self.number + 1, self.hash)
        self._add(entry, _write(self.folder, entry.number, entry))

    def is_live(self, file: str, place: int) -> bool:
        """Whether a row of a shard counts."""
        return place not in self.dead.get(file, ())

    def current(self, file: str) -> ShardEntry | None:
        """The shard that has the rows of a shard which count; None: none does, and it is there no more."""
        now: str | None = file
        while now in self.moved:
            now = self.moved[now]
        return None if now is None else self.shards[now]

    def to_rewrite(
        self, stones: Iterable[Tombstone], *, deleted: Iterable[str], is_all: bool
    ) -> dict[str, set[int]]:
        """Shards that hold what may not stay -> places in them of rows that count no more.

        Those are the shards with a row that counts no more, in whatever revision, of an episode that was
        deleted, or of a group whose rows a deletion or redaction changed.

        Args:
            stones: of the next entry.
            deleted: episodes that were deleted, or their content, since the last one.
            is_all: whether no row that counts no more may stay: a redaction does not say what it changed.
        """
        gone = set(deleted)
        dead = {file: dict(rows) for file, rows in self.dead.items()}
        for stone in stones:
            episode_ids = self.groups[stone.name].episode_ids
            if stone.why in ("deleted", "redacted"):
                gone.update(episode_ids)
            _bury(dead, stone, episode_ids)
        return {
            file: set(rows)
            for file, rows in dead.items()
            if is_all or any(not gone.isdisjoint(ids) for ids in rows.values())
        }

    def manifest(self) -> Manifest:
        """The manifest of what is live, as of an export of the last snapshot."""
        live = {group.file for group in self.groups.values()}
        causes: Counter[str] = Counter()
        for group in self.groups.values():
            causes.update(group.causes)
        header, last = self.header, self.last
        return Manifest(
            schema_hash=header.schema_hash,
            project=header.project,
            snapshot=self.snapshot,
            spec=header.spec,
            spec_hash=header.spec_hash,
            tokenizer_hash=header.tokenizer_hash,
            template_hash=header.template_hash,
            libraries=header.libraries,
            shards=tuple(shard for file, shard in sorted(self.shards.items()) if file in live),
            groups=0 if last is None else last.num_groups,
            rows=sum(group.rows for group in self.groups.values()),
            samples=sum(group.samples for group in self.groups.values()),
            causes=dict(sorted(causes.items())),
            conservation=EMPTY if last is None else last.conservation,
            tombstones=tuple(self.deleted),
        )

    def _add(self, entry: Entry, hash_: str) -> None:
        for stone in entry.tombstones:
            group = self.groups.pop(stone.name)
            for episode_id in group.episode_ids:
                del self.group_of[episode_id]
            self.late.pop(stone.name, None)
            _bury(self.dead, stone, group.episode_ids)
        self._move(entry)
        for group in entry.groups:
            self.groups[group.name] = group
            self.group_of.update(dict.fromkeys(group.episode_ids, group.name))
            self.revisions[group.name] = group.revision
        self.late.update({late.name: late for late in entry.late})
        self.shards.update({shard.file: shard for shard in entry.shards})
        self.deleted += entry.deleted
        self.number, self.snapshot, self.last, self.hash = entry.number, entry.snapshot, entry, hash_

    def _move(self, entry: Entry) -> None:
        """Let the groups of rewritten shards lie where they are now."""
        by_file: dict[str, list[LoggedGroup]] = {one.file: [] for one in entry.rewritten}
        for group in self.groups.values():
            if group.file in by_file:
                by_file[group.file].append(group)
        for one in entry.rewritten:
            place, file = 0, None if one.shard is None else one.shard.file
            for group in sorted(by_file[one.file], key=lambda group: group.first_row):
                self.groups[group.name] = group.model_copy(update={"file": file, "first_row": place})
                place += group.rows
            if place != (0 if one.shard is None else one.shard.rows):
                problem = f"{one.file} had {place} rows that count, what took its place has others"
                raise LogCorrupt(place=self.files.where, file=entry_name(entry.number), problem=problem)
            del self.shards[one.file]
            self.dead.pop(one.file, None)
            self.moved[one.file] = file
            if one.shard is not None:
                self.shards[one.shard.file] = one.shard


def _bury(
    dead: dict[str, dict[int, tuple[str, ...]]], stone: Tombstone, episode_ids: tuple[str, ...]
) -> None:
    if stone.file is not None:
        places = range(stone.first_row, stone.first_row + stone.rows)
        dead.setdefault(stone.file, {}).update(dict.fromkeys(places, episode_ids))


def entry_name(number: int) -> str:
    """The file of an entry, in its folder; 0: of the header."""
    return f"{LOG_FOLDER}/{number:08d}.json"


def _hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _write(folder: Path, number: int, document: Header | Entry) -> str:
    """Writes one entry, and gives its hash."""
    path = folder / entry_name(number)
    body = document.model_dump(mode="json")
    hash_ = _hash(body)
    write_durably(path, json.dumps({"hash": hash_, "entry": body}, sort_keys=True) + "\n")
    fsync_folder(folder)
    return hash_


def _read(files: Files, number: int, model: type[Document]) -> tuple[Document, str]:
    file, hint = entry_name(number), "copy the whole folder again"
    text = files.read(file)
    try:
        value = json.loads(text)
        body, said = value["entry"], value["hash"]
        found = _hash(body)
        if found != said:
            raise LogCorrupt(place=files.where, file=file, found=found, expected=said, hint=hint)
        return model.model_validate(body), found
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise LogCorrupt(place=files.where, file=file, problem=str(error), hint=hint) from error
