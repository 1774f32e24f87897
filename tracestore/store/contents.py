"""Bytes -> the one content row that holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from tracestore.graph.match import match_hash
from tracestore.graph.messages import parsed, role_of_value
from tracestore.store import tables as t
from tracestore.store.buffer import Buffer
from tracestore.store.chunks import chunks
from tracestore.store.codec import compress
from tracestore.store.prepare import Label, Piece
from tracestore.store.text import describe_json, describe_message

_CACHED = 300_000


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

    def prefetch(self, connection: Connection, pieces: Iterable[Piece]) -> None:
        """Look up, in a few statements, which of these contents are there."""
        self._look_up(connection, {piece.digest for piece in pieces if piece.label not in self._interned})

    def trim(self) -> None:
        """Forget everything when it is too much; only between transactions."""
        self._looked_up.clear()
        if len(self._interned) > _CACHED:
            self._interned.clear()
            self._rows.clear()

    def _look_up(self, connection: Connection, digests: set[bytes]) -> None:
        c = t.content.c
        for chunk in chunks(sorted(digests)):
            query = select(c.sha256, c.role, c.key).where(
                c.project_id == self._project_id, c.sha256.in_(chunk)
            )
            self._rows.update({(row.sha256, row.role): row.key for row in connection.execute(query)})
        self._looked_up |= digests

    def intern(
        self, piece: Piece, *, connection: Connection, buffer: Buffer, new_key: Callable[[], int]
    ) -> Interned:
        """The row that holds these bytes, made if there is none."""
        found = self._interned.get(piece.label)
        if found is None:
            if piece.digest not in self._looked_up:
                self._look_up(connection, {piece.digest})
            found = self._interned[piece.label] = self._intern(piece, buffer, new_key)
        return found

    def _intern(self, piece: Piece, buffer: Buffer, new_key: Callable[[], int]) -> Interned:
        value = None
        if piece.is_message:
            value = parsed(piece.data)
            role = role_of_value(value, default=piece.place_role) or "message"
            match = match_hash(piece.data, role=piece.place_role, value=value)
        else:
            assert piece.place_role is not None
            role, match = piece.place_role, b""
        key = self._rows.get((piece.digest, role))
        if key is None:
            key = self._rows[piece.digest, role] = new_key()
            buffer.insert(t.content, self._row(key, piece, role, value))
        return Interned(key, match)

    def _row(self, key: int, piece: Piece, role: str, value: Any) -> dict[str, Any]:
        codec, stored = compress(piece.data)
        is_cut = role in ("skeleton", "tools")
        described = describe_json(piece.data) if is_cut else describe_message(piece.data, value)
        return {
            "key": key,
            "sha256": piece.digest,
            "role": role,
            "codec": codec,
            "data": stored,
            "size": len(piece.data),
            **described._asdict(),
        }
