"""A folder that is seen whole or not at all: filled beside its name, which it takes in the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracestore.shards.durable import fsync_folder
from tracestore_exporters.export import NotEmpty


@contextmanager
def staged_folder(out: str | Path) -> Iterator[Path]:
    """A folder to write into. After an error nothing of it is left.

    Args:
        out: a folder that does not exist or is empty.

    Raises:
        NotEmpty: something is in it.
    """
    folder = Path(os.path.abspath(out))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotEmpty(path=str(folder), hint="name a new folder: an export is never changed or mixed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = folder.with_name(f".{folder.name}.{os.getpid()}-{os.urandom(4).hex()}.partial")
    staged.mkdir()
    try:
        yield staged
        os.replace(staged, folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    fsync_folder(folder.parent)
