"""What a store takes over what it was told: bytes on disk, and unique messages, envelopes and tokens.

Told is, in bytes as posted: every message and every list of tools once, and of each event the rest of its
text with its token ids and logprobs as base64.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import make_url
from workload import unpacked, workload

from tracestore.store import Store
from tracestore.store.engine import connect
from tracestore.store.stats import stats
from tracestore.wire.decode import decode_body

ROLLOUTS = 32
"""2,112 calls, of four groups. Of few it is also what tables take with their first rows, on PostgreSQL three
pages each to find free space in."""


def stored_over_unique(url: str) -> float:
    """Of rollouts as deltas with prompt ids, in a store of their own beside that of a URL."""
    batches = [unpacked(frame) for frame in workload(ROLLOUTS).batches("ids_delta")]
    with _beside(url) as empty, Store.open(empty) as store:
        before = _bytes(store)
        for batch in batches:
            items = decode_body(batch, content_type="application/x-ndjson")
            store.ingest("default", [(one.event, one.text) for one in items if one.event is not None])
        stored = _bytes(store) - before
    return round(stored / told(line for batch in batches for line in batch.splitlines()), 3)


@contextmanager
def _beside(url: str) -> Iterator[str]:
    """An empty database of the same kind."""
    if make_url(url).get_backend_name() == "sqlite":
        with tempfile.TemporaryDirectory(prefix="tracestore-bench-") as folder:
            yield f"sqlite:///{Path(folder) / 'store.db'}"
        return
    engine = connect(url, create=False).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {_DATABASE}")
        connection.exec_driver_sql(f"CREATE DATABASE {_DATABASE}")
        yield make_url(url).set(database=_DATABASE).render_as_string(hide_password=False)
        connection.exec_driver_sql(f"DROP DATABASE {_DATABASE}")
    engine.dispose()


_DATABASE = "tracestore_storage"


def _bytes(store: Store) -> int:
    with store.read() as connection:
        found = stats(connection)["database_bytes"]
    assert found is not None
    return found


def told(events: Iterable[bytes]) -> int:
    """Bytes of unique messages and tools, and of what else the events say."""
    unique: set[bytes] = set()
    rest = 0
    for line in events:
        event = json.loads(line)
        spans = [_json(message) for message in event.get("request", {}).get("messages", ())]
        spans += [_json(event["request"]["tools"])] if "tools" in event.get("request", {}) else []
        spans += [_json(one["message"]) for one in event.get("completions", ()) if "message" in one]
        unique.update(spans)
        rest += len(_json(event)) - sum(map(len, spans))
    return sum(map(len, unique)) + rest


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
