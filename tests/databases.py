"""Empty stores, copied from one that is made once: the schema alone costs a third of a second."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from tracestore.store import Store


def empty_store(file: Path) -> str:
    """Put the file there that `Store.open` makes where there is none; its URL."""
    file.write_bytes(_made())
    return f"sqlite:///{file}"


@cache
def _made() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        Store.open(f"sqlite:///{file}").close()
        assert list(file.parent.iterdir()) == [file]  # nothing of it is left in a log
        return file.read_bytes()
