"""Bytes -> the one content row that holds them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection

from tracestore.graph.match import match_hash
from tracestore.graph.messages import ToolUse, parsed, role_of_value
from tracestore.graph.ordinary import Ordinary, ordinary
from tracestore.store import tables as t
from tracestore.store.buffer import Buffer
from tracestore.store.dictionary import NewRows, ProjectCodec
from tracestore.store.doomed import rescue
from tracestore.store.lookup import look_up
from tracestore.store.requests import Label, Piece
from tracestore.store.text import Described, describe_json, describe_message, describe_ordinary
from tracestore.store.types import unescape

_CACHED = 50_000


class Interned(NamedTuple):
    """A content row."""

    key: int
    match: bytes
    """Match hash of a message in its place; empty for other contents."""


class Contents:
    """Which contents a project has, remembered from one transaction to the next."""

    def __init__(self, project_id: int) -> None:
        self._project_id = project_id
        self.known: dict[Label, Interned] = {}
        """The row of every label that was interned."""
        # (sha256, role) -> key of the rows that were looked up; None would be wrong once it is inserted.
        self._rows: dict[tuple[bytes, str], int] = {}
        self._looked_up: set[bytes] = set()
        self._uses: dict[bytes, tuple[ToolUse, ...]] = {}
        self._codec = ProjectCodec(project_id)
        self._read: dict[bytes, Ordinary | None] = {}
        """Messages that were read and wait to be interned."""
        self._to_compress: list[dict[str, Any]] = []
        """Rows whose `data` is what was posted."""
        self.has_doomed = False
        """Whether contents wait to be swept away."""

    def prefetch(self, connection: Connection, pieces: Iterable[Piece]) -> None:
        """Look up, in a few statements, which of these contents are there, and read those that may be new.

        One after another: a reader whose code and tables are at hand takes half as long.
        """
        new = {piece.label[0]: piece for piece in pieces if piece.label not in self.known}
        self._look_up(connection, new.keys())
        self._read |= {digest: ordinary(piece.data) for digest, piece in new.items() if piece.is_message}

    def compress(self, rows: NewRows) -> None:
        """Compress what new rows hold, one after another for the same reason."""
        stored = self._codec.compress([row["data"] for row in self._to_compress], rows)
        for row, (codec, data, dictionary) in zip(self._to_compress, stored, strict=True):
            row["codec"], row["data"] = codec, data
            if dictionary is not None:
                row["dictionary_key"] = dictionary
        self._to_compress.clear()

    def trim(self) -> None:
        """Forget everything when it is too much; only between transactions."""
        self._looked_up.clear()
        self._uses.clear()
        self._read.clear()
        if len(self.known) > _CACHED:
            self.known.clear()
            self._rows.clear()

    def _look_up(self, connection: Connection, digests: Collection[bytes]) -> None:
        rows = look_up(
            connection,
            t.content,
            ("sha256", "role", "key"),
            by="sha256",
            values=sorted(digests),
            project_id=self._project_id,
        )
        found = {(sha256, unescape(role)): key for sha256, role, key in rows}
        if self.has_doomed:
            rescue(connection, t.content, found.values(), project_id=self._project_id)
        self._rows.update(found)
        self._looked_up.update(digests)

    def intern(
        self, piece: Piece, *, connection: Connection, buffer: Buffer, new_key: Callable[[], int]
    ) -> Interned:
        """The row that holds these bytes, made if there is none; `compress` it before it is written."""
        if piece.label not in self.known:
            if piece.digest not in self._looked_up:
                self._look_up(connection, {piece.digest})
            self.known[piece.label] = self._intern(piece, buffer, new_key)
        return self.known[piece.label]

    def uses_of(self, piece: Piece) -> tuple[ToolUse, ...] | None:
        """The tool uses of a message that was interned a moment ago; None where they are not known."""
        return self._uses.get(piece.digest)

    def _intern(self, piece: Piece, buffer: Buffer, new_key: Callable[[], int]) -> Interned:
        data, digest = piece.data, piece.label[0]
        value, found = None, None
        if piece.is_message:
            found = self._read.pop(digest) if digest in self._read else ordinary(data)
            if found is None:
                value = parsed(data)
                role = role_of_value(value, default=piece.place_role) or "message"
                match = match_hash(data, role=piece.place_role, value=value)
            else:
                role, match = found.role, found.match
                self._uses[digest] = found.uses
        else:
            assert piece.place_role is not None
            role, match = piece.place_role, b""
        key = self._rows.get((digest, role))
        if key is None:
            key = self._rows[digest, role] = new_key()
            tool_name, preview, lossy = _described(piece, role, value, found)
            row = {
                "key": key,
                "sha256": digest,
                "role": role,
                "codec": "raw",
                "data": data,
                "size": len(data),
                "preview": preview,
                "text_lossy": lossy,
            }
            if tool_name is not None:
                row["tool_name"] = tool_name
            buffer.insert(t.content, row)
            self._to_compress.append(row)
        interned = Interned(key, match)
        if found is not None:
            # It says its role itself, so it is this row in any place: mostly an answer, and its echo later.
            self.known[digest, None, True] = self.known[digest, "assistant", True] = interned
        return interned


def _described(piece: Piece, role: str, value: Any, found: Ordinary | None) -> Described:
    if found is not None:
        return describe_ordinary(piece.data, found)
    if role in ("skeleton", "tools"):
        return describe_json(piece.data)
    return describe_message(piece.data, value)
