"""Store -> the episodes of a snapshot, one file each: ATIF, OTLP requests, RLM logs, fine-tuning lines."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Literal

from tracestore.errors import TracestoreError
from tracestore.graph.model import Graph
from tracestore_exporters import atif, openai, otlp, rlm
from tracestore_exporters.export import BeyondLatest, GroupLike, Progress, group_info, groups_of
from tracestore_exporters.redaction import redacted_text
from tracestore_exporters.rendering import Source
from tracestore_exporters.spec import Spec
from tracestore_exporters.staging import staged_folder
from tracestore_exporters.writing import Report, encoded

Format = Literal["atif", "otlp", "rlm", "openai"]
_SUFFIX: dict[Format, str] = {
    "atif": "atif.json",
    "otlp": "otlp.json",
    "rlm": "rlm.jsonl",
    "openai": "openai.jsonl",
}
_EVERYWHERE = ("groups", "redaction")
"""Fields of a spec that hold for every format."""
_OF_TOKENS = ("max_tokens", "ownership", "render", "render_for_rl", "keep_recorded")
"""Fields that say something of tokens, which lines of text do not have."""
_NAME_CHARACTERS = 80


class SpecNotFollowed(TracestoreError):
    """The format has nothing in which it could do what the spec says."""

    exit_code = 2


def write_episodes(
    store: Source,
    project: str,
    out: str | Path,
    *,
    format: Format,  # noqa: A002
    spec: Spec | None = None,
    snapshot: int | None = None,
    progress: Progress | None = None,
) -> tuple[int, Report]:
    """Writes every episode of a snapshot as `<episode>.<format>.json`, or `.jsonl` where a file has lines
    (for `openai` where it has one to teach); returns their number and a report.

    Args:
        out: a folder that does not exist or is empty.
        spec: what is read, and for `openai` what is taught; None: all, and what objective `sft` trains.
        snapshot: commit position to read; None: the latest.

    Raises:
        NotEmpty: something is in the folder.
        SpecNotFollowed: the spec asks for what the format cannot do.
        UnknownGroup: the spec names a group that is not there.
        BeyondLatest: `snapshot` has not been reached.
    """
    spec = Spec(objective="sft") if spec is None and format == "openai" else spec or Spec()
    _require_followed(spec, format)
    latest = store.snapshot(project)
    if snapshot is not None and snapshot > latest:
        raise BeyondLatest(snapshot=snapshot, latest=latest, hint=f"name one up to {latest}, or none")
    at = latest if snapshot is None else snapshot
    groups = groups_of(store, project, spec, snapshot=at)
    total, done, report = sum(len(group.episode_ids) for group in groups), 0, Report()
    with staged_folder(out) as folder:
        for group in groups:
            for episode_id, text in _texts(store, project, group, format, spec, at, report):
                if text:
                    (folder / f"{file_name(episode_id)}.{_SUFFIX[format]}").write_bytes(text)
                done += 1
                if progress is not None:
                    progress(done, total)
    return total, report


def _require_followed(spec: Spec, format: Format) -> None:  # noqa: A002
    usual = Spec(objective=spec.objective) if format == "openai" else Spec()
    names = [name for name in Spec.model_fields if getattr(spec, name) != getattr(usual, name)]
    if format == "openai":
        if spec.objective != "sft":
            hint = "objective: sft in the spec, or --objective sft"
            raise SpecNotFollowed(format=format, objective=spec.objective, hint=hint)
        wrong = [name for name in names if name in _OF_TOKENS]
        hint = "export shards, and `tracestore convert --to sft`"
    else:
        wrong = [name for name in names if name not in _EVERYWHERE]
        hint = f"nothing trains there; of a spec it follows {', '.join(_EVERYWHERE)}"
    if wrong:
        raise SpecNotFollowed(format=format, fields=wrong, hint=hint)


def _texts(
    store: Source,
    project: str,
    group: GroupLike,
    format: Format,  # noqa: A002
    spec: Spec,
    at: int,
    report: Report,
) -> Iterator[tuple[str, bytes]]:
    """The file of each episode of a group; it is empty where nothing is taught."""
    ids = sorted(group.episode_ids)
    is_open = False
    if format == "openai":
        graphs = store.training_graphs(project, ids, snapshot=at)
        is_open = group_info(graphs, project=project, group=group) is None
    for episode_id in ids:
        graph = store.load_graph(project, episode_id, snapshot=at)
        if spec.redaction is not None:
            graph = redacted_text(graph, spec.redaction, report.lost)
        if is_open:
            openai.left_waiting(graph, report=report)
            yield episode_id, b""
        else:
            yield episode_id, _text(graph, format, spec, report)


def _text(graph: Graph, format: Format, spec: Spec, report: Report) -> bytes:  # noqa: A002
    if format == "openai":
        lines = openai.examples(graph, spec=spec, report=report)
        return b"".join(encoded(line) + b"\n" for line in lines)
    if format == "rlm":
        return b"".join(encoded(line) + b"\n" for line in rlm.lines(graph, report=report))
    if format == "atif":
        return encoded(atif.trajectory(graph, report=report)) + b"\n"
    return encoded(otlp.request([graph], report=report)) + b"\n"


def file_name(episode_id: str) -> str:
    """An episode's id as a file name: its letters and digits, and a hash where that is not all of it."""
    kept = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "_" for one in episode_id)
    if kept == episode_id and not kept.startswith(".") and len(kept) <= _NAME_CHARACTERS:
        return kept
    return f"{kept[:_NAME_CHARACTERS].lstrip('.')}-{sha256(episode_id.encode()).hexdigest()[:8]}"
