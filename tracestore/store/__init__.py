"""Graph -> rows and back: the relational store that keeps exactly what every call saw."""

from tracestore.store.ingest import Outcome
from tracestore.store.load import SnapshotGone
from tracestore.store.store import NotFound, Store

__all__ = ["NotFound", "Outcome", "SnapshotGone", "Store"]
