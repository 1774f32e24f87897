"""Graph -> rows and back: the relational store that keeps exactly what every call saw."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracestore.store.ingest import Outcome
    from tracestore.store.load import SnapshotGone
    from tracestore.store.store import NotFound, Store

__all__ = ["NotFound", "Outcome", "SnapshotGone", "Store"]

_HOMES = {"NotFound": "store", "Outcome": "ingest", "SnapshotGone": "load", "Store": "store"}


def __getattr__(name: str) -> Any:
    # Looked up when asked for: all of it takes a second, and the process of an analyst's query needs none.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
