"""Store -> the episodes of a snapshot, one file each: ATIF trajectories, OTLP requests, fine-tuning lines."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Literal

from tracestore.graph.model import Graph
from tracestore_exporters import atif, openai, otlp
from tracestore_exporters.export import BeyondLatest, Progress
from tracestore_exporters.rendering import Source
from tracestore_exporters.staging import staged_folder
from tracestore_exporters.writing import Report, encoded

Format = Literal["atif", "otlp", "openai"]


def _atif(graph: Graph, report: Report) -> bytes:
    return encoded(atif.trajectory(graph, report=report)) + b"\n"


def _otlp(graph: Graph, report: Report) -> bytes:
    return encoded(otlp.request([graph], report=report)) + b"\n"


def _openai(graph: Graph, report: Report) -> bytes:
    return b"".join(encoded(line) + b"\n" for line in openai.examples(graph, report=report))


_WRITERS: dict[Format, tuple[str, Callable[[Graph, Report], bytes]]] = {
    "atif": ("atif.json", _atif),
    "otlp": ("otlp.json", _otlp),
    "openai": ("openai.jsonl", _openai),
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
    """Writes every episode of a snapshot as `<episode>.<format>.json` (`.openai.jsonl` where it has a line to
    teach); returns their number and a report.

    Args:
        out: a folder that does not exist or is empty.
        snapshot: commit position to read; None: the latest.

    Raises:
        NotEmpty: something is in the folder.
        BeyondLatest: `snapshot` has not been reached.
    """
    latest = store.snapshot(project)
    if snapshot is not None and snapshot > latest:
        raise BeyondLatest(snapshot=snapshot, latest=latest, hint=f"name one up to {latest}, or none")
    at = latest if snapshot is None else snapshot
    episodes = [one for group in store.groups(project, snapshot=at) for one in sorted(group.episode_ids)]
    report = Report()
    suffix, write = _WRITERS[format]
    with staged_folder(out) as folder:
        for done, episode_id in enumerate(episodes, 1):
            text = write(store.load_graph(project, episode_id, snapshot=at), report)
            if text:
                (folder / f"{file_name(episode_id)}.{suffix}").write_bytes(text)
            if progress is not None:
                progress(done, len(episodes))
    return len(episodes), report


def file_name(episode_id: str) -> str:
    """An episode's id as a file name: its letters and digits, and a hash where that is not all of it."""
    kept = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "_" for one in episode_id)
    if kept == episode_id and not kept.startswith(".") and len(kept) <= _NAME_CHARACTERS:
        return kept
    return f"{kept[:_NAME_CHARACTERS].lstrip('.')}-{sha256(episode_id.encode()).hexdigest()[:8]}"
