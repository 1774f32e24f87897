"""How large one event and one body may be; a server states its own under /v1/meta."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_event_bytes: int = 16 * 2**20
    """UTF-8 bytes of one event. Larger payloads are posted as blobs."""
    max_depth: int = 200
    """Arrays and objects inside each other; the event itself is the first. At most 200 is read anywhere."""
    max_body_bytes: int = 256 * 2**20
    """Bytes of one body, decompressed."""
    max_events: int = 10_000
    """Events in one body."""
    max_blob_bytes: int = 8 * 2**30
    """Bytes of one blob."""
    max_offloaded_event_bytes: int = 256 * 2**20
    """UTF-8 bytes of an event that is sent as a blob, and named in a body by the blob's hash."""


LIMITS = Limits()
