"""Any released schema -> the one this code reads, step by step, whole or not at all."""

from tracestore_migrations.migrate import check, current, open_store, upgrade

__all__ = ["check", "current", "open_store", "upgrade"]
