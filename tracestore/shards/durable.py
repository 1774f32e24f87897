"""Files that are there whole or not at all, and stay where the power goes."""

from __future__ import annotations

import os
from pathlib import Path


def partial_of(path: Path) -> Path:
    """What a file or folder is called until it is whole: hidden, beside it."""
    return path.with_name(f".{path.name}.partial")


def write_durably(path: Path, text: str) -> None:
    """Written beside its name, fsynced, renamed, the rename fsynced: it exists from here on."""
    partial = partial_of(path)
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    fsync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Every file of a folder on disk, and its name in it."""
    for file in path.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    fsync_folder(path)


def fsync_folder(path: Path) -> None:
    """Makes a rename inside the folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
