"""Store and shards -> findings: is every sampled token in the shards once, as recorded, for the right reason?

"Sampled" is recomputed from the store, "trained" from the shards, and every reason by the rules of
`expected`; the exporter's counters are compared, not used.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracestore.errors import TracestoreError
from tracestore.graph.model import Graph
from tracestore.shards.batch import ContentHash, from_batch
from tracestore.shards.manifest import Manifest, ShardEntry
from tracestore.shards.read import Export, open_export
from tracestore.shards.reasons import Reason, label_of
from tracestore.shards.row import Row
from tracestore.shards.views import BrokenForest, check_forest
from tracestore.shards.write import file_sha256
from tracestore.wire.group import Group
from tracestore_exporters.expected import Expected, expected_of_group
from tracestore_exporters.export import GroupLike, Source
from tracestore_exporters.plan import closed_by
from tracestore_exporters.spec import Spec

MAX_FINDINGS = 1000
"""Findings that are kept; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise, by name."""

    name: str
    where: str
    """Shard, row, sample or completion."""
    detail: str


@dataclass
class Report:
    """What was checked and what was found."""

    path: str
    findings: list[Finding] = field(default_factory=list)
    dropped: int = 0
    """Findings beyond the limit."""
    sampled_tokens: int = 0
    """From the store."""
    trained_tokens: int = 0
    """From the shards."""
    rows: int = 0
    samples: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def add(self, name: str, where: str, detail: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(name, where, detail))
        else:
            self.dropped += 1


def verify_export(store: Source, project: str, path: str | Path) -> Report:
    """Checks an export against the store it came from, at its own snapshot.

    Raises:
        NotAnExport, ManifestCorrupt, OtherSchema: there is nothing to check.
    """
    report = Report(path=str(path))
    source = open_export(path)
    manifest = source.manifest
    if manifest.project != project:
        report.add("other_project", str(path), f"exported from {manifest.project!r}, verified in {project!r}")
        return report
    spec = Spec.model_validate(manifest.spec)
    check = _Check(store, manifest, spec, report)
    for shard in manifest.shards:
        for row in _rows_of(source, shard, report):
            check.row(row, where=f"{shard.file} row {report.rows}")
            report.rows += 1
            report.samples += len(row.samples)
    check.the_rest()
    check.totals()
    return report


def _rows_of(source: Export, shard: ShardEntry, report: Report) -> Iterator[Row]:
    """The rows of a shard, as far as they can be read; its hashes and counts are checked on the way."""
    path = source.path / shard.file
    if not path.is_file():
        report.add("shard_missing", shard.file, "listed in the manifest, not there")
        return
    if file_sha256(path) != shard.sha256:
        report.add("shard_checksum", shard.file, "sha256 differs from the manifest")
    content = ContentHash()
    counts = Counter({"rows": 0, "samples": 0, "tokens": 0, "trained_tokens": 0})
    batches = source.batches(shard, check=False)
    while True:
        try:
            batch = next(batches, None)
        except (TracestoreError, OSError, pa.ArrowException) as error:
            report.add("shard_unreadable", shard.file, str(error))
            return
        if batch is None:
            break
        content.add(batch)
        row = from_batch(batch)
        counts += Counter(
            rows=1, samples=len(row.samples), tokens=len(row.token_ids), trained_tokens=row.num_trained
        )
        yield row
    if content.hexdigest() != shard.content_hash:
        report.add("shard_content", shard.file, "content hash differs from the manifest")
    for name in ("rows", "samples", "tokens", "trained_tokens"):
        if counts[name] != getattr(shard, name):
            said = getattr(shard, name)
            report.add("shard_counts", shard.file, f"{counts[name]} {name}, the manifest says {said}")


class _Check:
    """One pass over the rows, then over what is in no row."""

    def __init__(self, store: Source, manifest: Manifest, spec: Spec, report: Report) -> None:
        self._store = store
        self._manifest = manifest
        self._spec = spec
        self._report = report
        self._excluded: Counter[str] = Counter()
        self._groups = {
            _group_key(ref.group_id, ref.episode_ids): ref
            for ref in store.groups(manifest.project, snapshot=manifest.snapshot)
        }
        self._seen: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._placed: dict[tuple[str, str], set[tuple[str, str, int]]] = defaultdict(set)

    def row(self, row: Row, *, where: str) -> None:
        self._report.trained_tokens += row.num_trained
        key = _group_key(row.group_id, [episode.episode_id for episode in row.episodes])
        if key not in self._groups:
            self._report.add("group_unknown", where, f"{key[1]!r} is not in the store at this snapshot")
            return
        if row.part in self._seen[key]:
            self._report.add("row_doubled", where, f"part {row.part} of {key[1]!r} stands twice")
            return
        self._seen[key].add(row.part)
        try:
            check_forest(row)
        except BrokenForest as error:
            self._report.add("broken_forest", where, str(error))
            return
        graphs = self._graphs(self._groups[key])
        expected = expected_of_group(graphs, self._spec)
        _RowCheck(row, expected, self._report, where).run(self._placed[key])
        is_last = len(self._seen[key]) == row.num_parts
        if is_last:
            self._account(graphs, expected, self._placed[key], row, where)

    def _account(
        self,
        graphs: Mapping[str, Graph],
        expected: Mapping[tuple[str, str, int], Expected],
        placed: set[tuple[str, str, int]],
        row: Row,
        where: str,
    ) -> None:
        """Every completion of a group that is in the shards must be in one of its rows."""
        if closed_by(_group_event(graphs), list(graphs.values())) is None:
            self._report.add("group_open", where, "exported before it was closed")
        self._rewards(graphs, row, where)
        for key in expected:
            if key not in placed:
                self._report.add("completion_missing", where, f"{key[1]}[{key[2]}] is in no segment")
        self._count(graphs, expected)

    def _rewards(self, graphs: Mapping[str, Graph], row: Row, where: str) -> None:
        """A row carries every reward of its group as recorded: no late one, none lost."""
        wanted = self._spec.rewards
        recorded = {
            (episode_id, one.id, one.name, _bits(one.value), _bits(one.weight))
            for episode_id, graph in graphs.items()
            for one in graph.rewards.values()
            if wanted is None or one.name in wanted
        }
        carried = [
            (
                row.episodes[one.episode].episode_id,
                one.reward_id,
                one.name,
                _bits(one.value),
                _bits(one.weight),
            )
            for one in row.rewards
        ]
        if len(carried) != len(recorded) or set(carried) != recorded:
            odd = sorted(str(one[:3]) for one in recorded.symmetric_difference(carried)) or [
                "one stands twice"
            ]
            self._report.add("rewards_differ", where, f"{odd[0]} and {len(odd) - 1} more")

    def the_rest(self) -> None:
        """Groups without a row: open, or without anything that trains."""
        for key, ref in self._groups.items():
            if key in self._seen:
                continue
            graphs = self._graphs(ref)
            if closed_by(_group_event(graphs), list(graphs.values())) is None:
                self._add(_sampled(graphs), Reason.GROUP_OPEN)
                continue
            expected = expected_of_group(graphs, self._spec)
            if any((one.reason == Reason.TRAINED).any() for one in expected.values()):
                self._report.add(
                    "group_missing", str(key[1]), "closed, has tokens to train, and is in no shard"
                )
            self._count(graphs, expected)

    def totals(self) -> None:
        """Sampled from the store and trained from the shards against the manifest's table."""
        table = self._manifest.conservation
        report = self._report
        if report.sampled_tokens != table.sampled_tokens:
            report.add(
                "sampled_count",
                "manifest",
                f"the store holds {report.sampled_tokens} sampled tokens, the table {table.sampled_tokens}",
            )
        if report.trained_tokens != table.trained_tokens:
            report.add(
                "trained_count",
                "manifest",
                f"the shards train {report.trained_tokens} tokens, the table {table.trained_tokens}",
            )
        if dict(self._excluded) != table.excluded:
            report.add(
                "excluded_count",
                "manifest",
                f"recomputed {dict(sorted(self._excluded.items()))}, the table {table.excluded}",
            )
        if not table.holds:
            report.add("conservation", "manifest", "sampled is not trained + excluded")
        incomplete = {key for key, parts in self._seen.items() if parts != set(range(len(parts)))}
        for key in sorted(incomplete):
            report.add("part_missing", str(key[1]), f"only parts {sorted(self._seen[key])}")

    def _count(self, graphs: Mapping[str, Graph], expected: Mapping[tuple[str, str, int], Expected]) -> None:
        for one in expected.values():
            self._report.sampled_tokens += len(one.ids)
            values, counts = np.unique(one.reason, return_counts=True)
            for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                if value != Reason.TRAINED:
                    self._excluded[label_of(value)] += count
        stray = _sampled(graphs) - sum(len(one.ids) for one in expected.values())
        self._add(stray, Reason.CALL_INCOMPLETE)

    def _add(self, tokens: int, reason: Reason) -> None:
        self._report.sampled_tokens += tokens
        if tokens:
            self._excluded[reason.label] += tokens

    def _graphs(self, ref: GroupLike) -> dict[str, Graph]:
        return {
            episode_id: self._store.load_graph(
                self._manifest.project, episode_id, snapshot=self._manifest.snapshot
            )
            for episode_id in sorted(ref.episode_ids)
        }


class _RowCheck:
    """One row against what the store says of its episodes."""

    def __init__(
        self, row: Row, expected: Mapping[tuple[str, str, int], Expected], report: Report, where: str
    ) -> None:
        self._row = row
        self._expected = expected
        self._report = report
        self._where = where
        self._parents = row.segments.parent.tolist()
        self._starts = row.segments.start.tolist()
        self._lengths = row.segments.length.tolist()
        self._pieces: dict[int, list[int]] = defaultdict(list)
        for segment, completion in enumerate(row.segments.completion.tolist()):
            if completion >= 0:
                self._pieces[completion].append(segment)

    def run(self, placed: set[tuple[str, str, int]]) -> None:
        self._unsampled()
        for completion, pieces in self._pieces.items():
            key = self._key(completion)
            if key is None or key not in self._expected:
                self._add("completion_unknown", f"completion {completion} is not in the store")
                continue
            if key in placed:
                self._add("completion_doubled", f"{key[1]}[{key[2]}] is in two rows")
            placed.add(key)
            self._completion(key, pieces)
        self._samples()

    def _key(self, completion: int) -> tuple[str, str, int] | None:
        row = self._row
        if completion >= len(row.completions):
            return None
        entry = row.completions[completion]
        call = row.calls[entry.call]
        return row.episodes[call.episode].episode_id, call.call_id, entry.index

    def _add(self, name: str, detail: str) -> None:
        self._report.add(name, self._where, detail)

    def _unsampled(self) -> None:
        sampled = np.repeat(self._row.segments.completion >= 0, self._row.segments.length)
        if (self._row.reason[~sampled] == Reason.TRAINED).any():
            self._add("unsampled_trained", "a token that nothing sampled is trained")
        elif (self._row.reason[~sampled] != Reason.UNSAMPLED).any():
            self._add("reason_differs", "a token that nothing sampled has another reason")
        if (self._row.reason[sampled] == Reason.UNSAMPLED).any():
            self._add("reason_differs", "a sampled token is marked as not sampled")
        if self._row.has_logprob[~sampled].any():
            self._add("logprob_differs", "a token that nothing sampled has a logprob")

    def _completion(self, key: tuple[str, str, int], pieces: Sequence[int]) -> None:
        """The pieces of one completion, one below the other, against its record."""
        name, record, row = f"{key[1]}[{key[2]}]", self._expected[key], self._row
        chained = all(self._parents[low] == high for high, low in pairwise(pieces))
        if not chained:
            self._add("completion_doubled", f"{name} has segments beside each other")
            return
        at = np.concatenate([np.arange(self._starts[s], self._starts[s] + self._lengths[s]) for s in pieces])
        if not np.array_equal(row.token_ids[at], record.ids):
            self._add("token_ids_differ", f"{name}: {_first(row.token_ids[at], record.ids)}")
            return
        if not np.array_equal(row.reason[at], record.reason):
            self._add("reason_differs", f"{name}: {_first(row.reason[at], record.reason, label_of)}")
        values = np.zeros(len(at)) if row.logprobs is None else row.logprobs[at].astype(np.float64)
        has = row.has_logprob[at]
        if (
            not np.array_equal(has, record.has_logprob)
            or values[has].tobytes() != record.logprobs[has].tobytes()
        ):
            self._add("logprob_differs", f"{name}: logprobs are not those recorded")
        self._context(name, record, pieces[0])

    def _context(self, name: str, record: Expected, first: int) -> None:
        """What stands before a completion must be its recorded prompt."""
        path = self._path(self._parents[first])
        before = self._ids(path)
        prompt = np.zeros(0, np.int32) if record.prompt is None else record.prompt
        if not np.array_equal(before, prompt):
            self._add("prompt_differs", f"{name}: {_first(before, prompt)}")

    def _path(self, segment: int) -> list[int]:
        path = []
        while segment >= 0:
            path.append(segment)
            segment = self._parents[segment]
        return path[::-1]

    def _ids(self, path: Sequence[int]) -> np.ndarray:
        pieces = [self._row.token_ids[self._starts[s] : self._starts[s] + self._lengths[s]] for s in path]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)

    def _samples(self) -> None:
        row = self._row
        seen: set[str] = set()
        owned: set[int] = set()
        trained = {c: self._trained(pieces) for c, pieces in self._pieces.items()}
        for sample in row.samples:
            if sample.sample_id in seen:
                self._add("sample_doubled", f"sample {sample.sample_id} stands twice")
            seen.add(sample.sample_id)
            path = list(sample.segments)
            is_path = bool(path) and all(0 <= segment < len(self._parents) for segment in path)
            if not is_path or path != self._path(path[-1]):
                self._add("sample_broken", f"sample {sample.sample_id} is no path from a root")
                continue
            if any(not set(self._pieces.get(c, [-1])) <= set(path) for c in sample.completions):
                self._add("sample_broken", f"sample {sample.sample_id} misses one of its completions")
            if not sample.completions or path[-1] not in self._pieces.get(sample.completions[-1], ()):
                self._add("sample_broken", f"sample {sample.sample_id} does not end with its last completion")
            new = [c for c in sample.completions if c not in owned]
            owned.update(new)
            counts = sum(self._lengths[s] for s in path), sum(trained.get(c, 0) for c in new)
            if counts != (sample.num_tokens, sample.num_owned):
                self._add("sample_counts", f"sample {sample.sample_id} holds {counts[0]}, owns {counts[1]}")
        for completion, pieces in self._pieces.items():
            if completion not in owned:
                self._add(
                    "sample_missing",
                    f"no sample holds {row.completions[completion]} ({len(pieces)} segments)",
                )

    def _trained(self, pieces: Sequence[int]) -> int:
        return sum(
            int(np.count_nonzero(self._row.reason[self._starts[s] : self._starts[s] + self._lengths[s]] == 0))
            for s in pieces
        )


def _first(found: np.ndarray, recorded: np.ndarray, say: object = None) -> str:
    """The first place where two arrays differ, in words."""
    show = say if callable(say) else str
    for position, (one, other) in enumerate(zip(found.tolist(), recorded.tolist(), strict=False)):
        if one != other:
            return f"{show(one)} at {position}, recorded {show(other)}"
    return f"{len(found)} tokens, recorded {len(recorded)}"


def _bits(value: float | None) -> bytes | None:
    """A number to the bit: NaN equals itself here."""
    return None if value is None else np.float64(value).tobytes()


def _group_key(group_id: str | None, episode_ids: Sequence[str]) -> tuple[str, str]:
    """A group, or an episode on its own."""
    return ("group", group_id) if group_id is not None else ("episode", next(iter(episode_ids), ""))


def _group_event(graphs: Mapping[str, Graph]) -> Group | None:
    return next((graph.group for graph in graphs.values() if graph.group is not None), None)


def _sampled(graphs: Mapping[str, Graph]) -> int:
    return sum(
        len(completion.token_ids)
        for graph in graphs.values()
        for completion in graph.completions.values()
        if completion.token_ids is not None
    )
