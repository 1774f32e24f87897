"""An event too large for a body -> a blob and a stub that names it -> the event, stored like any other.

    {"v": 1, "kind": "call", "id": "c1", "offloaded": {"hash": "9f86...", "size": 41943040}}

stands for the event whose text is that blob. It is read back as it was sent, whichever way it came. One such
event is read at a time: reading takes several times its size in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from threading import Lock

from tracestore.store.blobs import Blobs
from tracestore.wire.decode import Decoded, Limits, decode_event
from tracestore.wire.errors import EventError, EventTooLarge
from tracestore.wire.scan import scan
from tracestore_api.blobs import is_hash
from tracestore_api.body import Ticket
from tracestore_api.errors import DamagedBlob, InvalidOffloaded, MissingBlob, OtherEvent

_MAX_STUB_BYTES = 4096
_FIELDS = frozenset({"v", "kind", "id", "offloaded"})


@dataclass(frozen=True, slots=True)
class Stub:
    """An event that lies in a blob."""

    kind: str
    id: str
    hash: str
    size: int


def stub_of(one: Decoded) -> Stub | None:
    """The stub that an item of a body is; None for an event, and for what is neither.

    Raises:
        InvalidOffloaded: it is a stub, and says too little or too much.
    """
    # No event has a field of this name, so that a stub is always an item that could not be read.
    if one.error is None or len(one.text) > _MAX_STUB_BYTES or b'"offloaded"' not in one.text:
        return None
    try:
        fields = scan(one.text, opaque={})
    except EventError:
        return None
    if not isinstance(fields, dict) or "offloaded" not in fields:
        return None
    where = fields["offloaded"]
    if (
        fields.keys() != _FIELDS
        or fields["v"] != 1
        or not (isinstance(fields["kind"], str) and isinstance(fields["id"], str))
        or not (isinstance(where, dict) and where.keys() == {"hash", "size"})
        or not (isinstance(where["hash"], str) and is_hash(where["hash"]))
        or not (type(where["size"]) is int and where["size"] >= 0)
    ):
        raise InvalidOffloaded(
            path="offloaded",
            hint='write {"v": 1, "kind": ..., "id": ..., "offloaded": {"hash": SHA256, "size": BYTES}}',
        )
    return Stub(fields["kind"], fields["id"], where["hash"], where["size"])


class Offloaded:
    """Reads the events that lie in blobs."""

    def __init__(self, blobs: Blobs | None, *, limits: Limits) -> None:
        self._blobs = blobs
        self._limits = replace(limits, max_event_bytes=limits.max_offloaded_event_bytes)
        self._turn = Lock()

    def stubs(self, decoded: Sequence[Decoded], *, ticket: Ticket) -> list[tuple[Decoded, Stub | EventError]]:
        """The items of a body that are stubs, each with what it says, or with what is wrong with that.

        Raises:
            Busy: there is no room for the largest of them; they are read one after the other.
        """
        found = [(one, stub) for one in decoded if (stub := self._checked(one)) is not None]
        ticket.take(max((stub.size for _, stub in found if isinstance(stub, Stub)), default=0))
        return found

    @contextmanager
    def read(self, project: str, one: Decoded, stub: Stub | EventError) -> Iterator[Decoded]:
        """The event in the place of its stub, or the reason why there is none. Store it inside the block."""
        with self._turn:
            try:
                if isinstance(stub, EventError):
                    raise stub
                text = self._text(project, stub)
                event = decode_event(text, limits=self._limits)
                if (event.kind, event.id) != (stub.kind, stub.id):
                    raise OtherEvent(path="offloaded", kind=event.kind, id=event.id)
            except EventError as error:
                yield Decoded(one.index, None, error, one.kind, one.id, one.text)
                return
            yield Decoded(one.index, event, None, event.kind, event.id, text)

    def _checked(self, one: Decoded) -> Stub | EventError | None:
        try:
            stub = stub_of(one)
        except EventError as error:
            return error
        limit = self._limits.max_event_bytes
        if stub is not None and stub.size > limit:
            return EventTooLarge(path="offloaded.size", bytes=stub.size, limit=limit, hint="split the event")
        return stub

    def _text(self, project: str, stub: Stub) -> bytes:
        if self._blobs is None:
            raise MissingBlob(path="offloaded", hint="this server keeps no blobs: start it with --blobs")
        size = self._blobs.size(project, stub.hash)
        if size is None:
            hint = f"PUT /v1/blobs/{stub.hash} into this project, then post this again"
            raise MissingBlob(path="offloaded.hash", hash=stub.hash, hint=hint)
        if size != stub.size:
            raise InvalidOffloaded(path="offloaded.size", stated=stub.size, stored=size)
        buffer = BytesIO()
        for step in self._blobs.read(project, stub.hash, start=0, stop=size):
            buffer.write(step)
        text = buffer.getvalue()
        if sha256(text).hexdigest() != stub.hash:
            raise DamagedBlob(
                path="offloaded.hash", hash=stub.hash, hint="PUT it again, then post this again"
            )
        return text.strip(b" \t\r\n")
