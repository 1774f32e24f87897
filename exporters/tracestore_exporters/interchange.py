"""Store -> the episodes of a snapshot as ATIF trajectories or OTLP requests, one file each.

Files are written into a folder beside `out` that takes its name in the end, as an export's are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from tracestore.graph.model import Graph
from tracestore_exporters import atif, otlp
from tracestore_exporters.export import BeyondLatest, NotEmpty, Progress
from tracestore_exporters.rendering import Source
from tracestore_exporters.writing import Report, encoded

Format = Literal["atif", "otlp"]

_WRITERS: dict[Format, Callable[[Graph, Report], dict[str, Any]]] = {
    "atif": lambda graph, report: atif.trajectory(graph, report=report),
    "otlp": lambda graph, report: otlp.request([graph], report=report),
}
_NAME_CHARACTERS = 80


def write_episodes(
    store: Source,
    project: str,
    out: str | Path,
    *,
    format: Format,  # noqa: A002
    snapshot: int | None = None,
    progress: Progress | None = None,
) -> tuple[int, Report]:
    """Writes every episode of a snapshot as `<episode>.<format>.json`; returns their number and a report.

    Args:
        out: a folder that does not exist or is empty.
        snapshot: commit position to read; None: the latest.

    Raises:
        NotEmpty: something is in the folder.
        BeyondLatest: `snapshot` has not been reached.
    """
    folder = Path(os.path.abspath(out))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotEmpty(path=str(folder), hint="name a new folder: an export is never changed or mixed")
    latest = store.snapshot(project)
    if snapshot is not None and snapshot > latest:
        raise BeyondLatest(snapshot=snapshot, latest=latest, hint=f"name one up to {latest}, or none")
    at = latest if snapshot is None else snapshot
    episodes = [one for group in store.groups(project, snapshot=at) for one in sorted(group.episode_ids)]
    report = Report()
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = folder.with_name(f".{folder.name}.{os.getpid()}-{os.urandom(4).hex()}.partial")
    staged.mkdir()
    try:
        for done, episode_id in enumerate(episodes, 1):
            graph = store.load_graph(project, episode_id, snapshot=at)
            text = encoded(_WRITERS[format](graph, report))
            (staged / f"{file_name(episode_id)}.{format}.json").write_bytes(text + b"\n")
            if progress is not None:
                progress(done, len(episodes))
        os.replace(staged, folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return len(episodes), report


def file_name(episode_id: str) -> str:
    """An episode's id as a file name: its letters and digits, and a hash where that is not all of it."""
    kept = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "_" for one in episode_id)
    if kept == episode_id and not kept.startswith(".") and len(kept) <= _NAME_CHARACTERS:
        return kept
    return f"{kept[:_NAME_CHARACTERS].lstrip('.')}-{sha256(episode_id.encode()).hexdigest()[:8]}"
