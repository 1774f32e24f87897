"""Bytes -> the one content row that holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection

from tracestore.graph.match import match_hash
from tracestore.graph.messages import ToolUse, parsed, role_of_value
from tracestore.graph.ordinary import Ordinary, ordinary
from tracestore.store import tables as t
from tracestore.store.buffer import Buffer
from tracestore.store.dictionary import ProjectCodec
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
        self._interned: dict[Label, Interned] = {}
        # (sha256, role) -> key of the rows that were looked up; None would be wrong once it is inserted.
        self._rows: dict[tuple[bytes, str], int] = {}
        self._looked_up: set[bytes] = set()
        self._uses: dict[Label, tuple[ToolUse, ...]] = {}
        self._codec = ProjectCodec(project_id)

    def prefetch(self, connection: Connection, pieces: Iterable[Piece]) -> None:
        """Look up, in a few statements, which of these contents are there."""
        self._look_up(connection, {piece.digest for piece in pieces if piece.label not in self._interned})

    def trim(self) -> None:
        """Forget everything when it is too much; only between transactions."""
        self._looked_up.clear()
        self._uses.clear()
        if len(self._interned) > _CACHED:
            self._interned.clear()
            self._rows.clear()

    def _look_up(self, connection: Connection, digests: set[bytes]) -> None:
        rows = look_up(
            connection,
            t.content,
            ("sha256", "role", "key"),
            by="sha256",
            values=sorted(digests),
            project_id=self._project_id,
        )
        self._rows.update({(sha256, unescape(role)): key for sha256, role, key in rows})
        self._looked_up |= digests

    def intern(
        self,
        piece: Piece,
        *,
        connection: Connection,
        buffer: Buffer,
        new_key: Callable[[], int],
        now: int,
    ) -> Interned:
        """The row that holds these bytes, made if there is none."""
        found = self._interned.get(piece.label)
        if found is None:
            if piece.digest not in self._looked_up:
                self._look_up(connection, {piece.digest})
            found = self._interned[piece.label] = self._intern(piece, connection, buffer, new_key, now)
        return found

    def uses_of(self, piece: Piece) -> tuple[ToolUse, ...] | None:
        """The tool uses of a message that was interned a moment ago; None where they are not known."""
        return self._uses.get(piece.label)

    def _intern(
        self, piece: Piece, connection: Connection, buffer: Buffer, new_key: Callable[[], int], now: int
    ) -> Interned:
        value, found = None, None
        if piece.is_message:
            found = ordinary(piece.data)
            if found is None:
                value = parsed(piece.data)
                role = role_of_value(value, default=piece.place_role) or "message"
                match = match_hash(piece.data, role=piece.place_role, value=value)
            else:
                role, match = found.role, found.match
                self._uses[piece.label] = found.uses
        else:
            assert piece.place_role is not None
            role, match = piece.place_role, b""
        key = self._rows.get((piece.digest, role))
        if key is None:
            key = self._rows[piece.digest, role] = new_key()
            codec, stored, dictionary = self._codec.compress(
                piece.data, connection=connection, buffer=buffer, new_key=new_key, now=now
            )
            tool_name, preview, lossy = _described(piece, role, value, found)
            row = {
                "key": key,
                "sha256": piece.digest,
                "role": role,
                "codec": codec,
                "data": stored,
                "size": len(piece.data),
                "preview": preview,
                "text_lossy": lossy,
            }
            if dictionary is not None:
                row["dictionary_key"] = dictionary
            if tool_name is not None:
                row["tool_name"] = tool_name
            buffer.insert(t.content, row)
        return Interned(key, match)


def _described(piece: Piece, role: str, value: Any, found: Ordinary | None) -> Described:
    if found is not None:
        return describe_ordinary(piece.data, found)
    if role in ("skeleton", "tools"):
        return describe_json(piece.data)
    return describe_message(piece.data, value)
