"""Store and shards -> findings: is every sampled token in the shards once, as recorded, for the right reason?

"Sampled" is recomputed from the store, "trained" from the shards, and every token, logprob, policy and
reason by the rules of `expected`; the exporter's counters are compared, not used. The tables of a row
(episodes to rewards and blobs) are transcriptions: the exporter's own `header` is run again on the graphs of
the store, and every field must be what it says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from tracestore.errors import TracestoreError
from tracestore.graph.model import Graph
from tracestore.shards.batch import ContentHash, from_batch
from tracestore.shards.files import Folder
from tracestore.shards.log import EMPTY, Log
from tracestore.shards.manifest import Manifest, ShardEntry
from tracestore.shards.read import Export, ShardMissing, open_export
from tracestore.shards.reasons import Reason, label_of
from tracestore.shards.row import Row, Sample
from tracestore.shards.views import BrokenForest, check_forest
from tracestore.shards.write import file_sha256
from tracestore.store.store import Store
from tracestore_exporters.assemble import notes_of
from tracestore_exporters.conservation import Tally, num_withheld, recorded
from tracestore_exporters.expected import Expected, expected_of_group
from tracestore_exporters.export import GroupLike, group_info, groups_of
from tracestore_exporters.follow import SeenSource, late_of, unwritten
from tracestore_exporters.header import header
from tracestore_exporters.inventory import Inventory, inventory
from tracestore_exporters.masks import Masks
from tracestore_exporters.parts import shard_name
from tracestore_exporters.plan import PlannedGroup, record_of, shard_plan
from tracestore_exporters.rendering import Source, source_of_export
from tracestore_exporters.rows import plan_rows
from tracestore_exporters.spec import Spec, hash_of_spec

if TYPE_CHECKING:
    from tracestore.tokens.chat import Chat

TABLES = ("episodes", "agents", "calls", "completions", "candidate_sets", "edits", "rewards", "blobs")
"""Tables of a row that come from the store as they are."""
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


def verify_export(store: Source, project: str, path: str | Path, *, chat: Chat | None = None) -> Report:
    """Checks an export against the store it came from, at its own snapshot.

    One that goes on is checked at its last entry: its live rows are those of a batch export without what came
    late, and what came late is counted.

    Args:
        chat: what the export was rendered with, if it was.

    Raises:
        NotAnExport, ManifestCorrupt, LogCorrupt, OtherSchema: there is nothing to check.
        NoTokenizer, OtherTokenizer: it was rendered with what `chat` is not.
    """
    report = Report(path=str(path))
    source = open_export(path)
    manifest = source.manifest
    if manifest.project != project:
        report.add("other_project", str(path), f"exported from {manifest.project!r}, verified in {project!r}")
        return report
    spec = _spec(manifest, report)
    if spec is None:
        return report
    log = source.log
    if log is None:
        check = _Check(source_of_export(store, manifest, spec, chat), manifest, spec, report)
    else:
        assert isinstance(store, Store), "only a store is followed"
        seen = source_of_export(SeenSource(store, log), manifest, spec, chat)
        check = _FollowedCheck(log, source_of_export(store, manifest, spec, chat), seen, spec, report)
        _require_removed(source, log, report)
    for shard in manifest.shards if log is None else log.shards.values():
        for place, row in enumerate(_rows_of(source, shard, report)):
            if log is not None and not log.is_live(shard.file, place):
                continue
            check.row(row, where=f"{shard.file} row {place}")
            report.rows += 1
            report.samples += len(row.samples)
    check.the_rest()
    check.totals()
    if log is None:
        check.plan()
    return report


def _spec(manifest: Manifest, report: Report) -> Spec | None:
    """What the manifest says was asked for; None: it is no spec."""
    try:
        spec = Spec.model_validate(manifest.spec)
    except ValidationError as error:
        report.add("spec_differs", "manifest", f"no spec: {error.errors()[0]['msg']}")
        return None
    # Not `spec.spec_hash`: a later version may have fields of which an older manifest says nothing.
    if hash_of_spec(manifest.spec) != manifest.spec_hash:
        report.add("spec_differs", "manifest", "spec_hash is not that of the spec")
    return spec


def _require_removed(source: Export, log: Log, report: Report) -> None:
    """Look for shards that were to go with what was deleted, and were left by a process that was killed."""
    for file in log.moved if isinstance(source.files, Folder) else ():
        if (source.path / file).exists():
            report.add("shard_not_removed", file, "what was deleted is still in it: follow on")


def _rows_of(source: Export, shard: ShardEntry, report: Report) -> Iterator[Row]:
    """The rows of a shard, as far as they can be read, those of a followed one that count no more included;
    its hashes and counts are checked on the way."""
    try:
        with source.file(shard) as path:
            if file_sha256(path) != shard.sha256:
                report.add("shard_checksum", shard.file, "sha256 differs from the manifest")
            if path.stat().st_size != shard.size:
                said, size = shard.size, path.stat().st_size
                report.add("shard_counts", shard.file, f"{size} bytes, the manifest says {said}")
    except ShardMissing:
        report.add("shard_missing", shard.file, "listed in the manifest, not there")
        return
    content = ContentHash()
    counts = Counter({"rows": 0, "samples": 0, "tokens": 0, "trained_tokens": 0})
    batches = source.all_batches(shard, check=False)
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
        self._stripped = 0
        self._completions = 0
        self._calls_without_ids = 0
        self._tokens_without_ids: int | None = None
        self._rendered = 0
        self._not_rendered: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._open_groups = 0
        self._causes: Counter[str] = Counter()
        """Samples by why they begin, from the shards."""
        self._details: dict[tuple[str, str], dict[str, str]] = {}
        """Per group the first example of each why a chat template could give no ids."""
        self._there = Inventory()
        """What the groups hold of what a spec can name."""
        self._inventoried: set[tuple[str, str]] = set()
        self._begins: dict[tuple[str, str], dict[tuple[int, str], str]] = {}
        """Why the samples of a group begin, by part and id."""
        self._groups = {_group_key(ref.group_id, ref.episode_ids): ref for ref in self._refs(store)}
        self._seen: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._num_parts: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._placed: dict[tuple[str, str], set[tuple[str, str, int]]] = defaultdict(set)
        self._limited: dict[tuple[str, str], dict[tuple[str, str, int], Expected]] = defaultdict(dict)
        """What is expected of the completions of a group that a limit of length reaches."""

    def _refs(self, store: Source) -> list[GroupLike]:
        """The groups that the export read."""
        return groups_of(store, self._manifest.project, self._spec, snapshot=self._manifest.snapshot)

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
        self._num_parts[key].add(row.num_parts)
        try:
            check_forest(row)
        except BrokenForest as error:
            self._report.add("broken_forest", where, str(error))
            return
        graphs = self._graphs(self._groups[key])
        expected = expected_of_group(graphs, self._spec)
        row = self._recorded(row, graphs, self._groups[key], where)
        check = _RowCheck(row, expected, self._spec, self._report, where)
        check.run(self._placed[key])
        self._limited[key] |= check.limited
        self._check_causes(row, key, graphs, where)
        is_last = len(self._seen[key]) == row.num_parts
        if is_last:
            self._begins.pop(key, None)
            self._account(graphs, expected | self._limited.pop(key), self._placed[key], where)

    def _recorded(self, row: Row, graphs: Mapping[str, Graph], ref: GroupLike, where: str) -> Row:
        """The row with the tables that the store gives, each difference from its own a finding."""
        listed = list(graphs.values())
        info = group_info(listed, project=self._manifest.project, group=ref)
        if info is None:
            self._report.add("group_open", where, "exported before it was closed")
        else:
            for name in ("project", "group_id", "task_id", "closed_by"):
                said, recorded = getattr(row, name), getattr(info, name)
                if said != recorded:
                    self._report.add("group_differs", where, f"{name} {said!r}, recorded {recorded!r}")
        head = header(listed, list(graphs), [Masks(graph, self._spec) for graph in listed], self._spec)
        tables = {name: getattr(head, name) for name in TABLES}
        for name, recorded in tables.items():
            difference = _difference(getattr(row, name), recorded)
            if difference is not None:
                self._report.add(f"{name}_differ", where, difference)
        return replace(row, **tables)

    def _check_causes(self, row: Row, key: tuple[str, str], graphs: Mapping[str, Graph], where: str) -> None:
        """Why a sample begins is asked of the exporter itself; how often is counted here."""
        self._causes.update(sample.cause for sample in row.samples)
        info = group_info(list(graphs.values()), project=self._manifest.project, group=self._groups[key])
        if info is None:
            return
        if key not in self._begins:
            self._begins[key] = {
                (planned.part, sample.sample_id): sample.cause
                for planned in plan_rows(list(graphs.values()), self._spec, info)
                for sample in planned.samples
            }
        for sample in row.samples:
            recorded = self._begins[key].get((row.part, sample.sample_id), sample.cause)
            if sample.cause != recorded:
                detail = f"sample {sample.sample_id} begins with {sample.cause!r}, recorded {recorded!r}"
                self._report.add("sample_differs", where, detail)

    def _account(
        self,
        graphs: Mapping[str, Graph],
        expected: Mapping[tuple[str, str, int], Expected],
        placed: set[tuple[str, str, int]],
        where: str,
    ) -> None:
        """Every completion of a group that is in the shards must be in one of its rows."""
        for key in expected:
            if key not in placed:
                self._report.add("completion_missing", where, f"{key[1]}[{key[2]}] is in no segment")
        self._count(graphs, expected)

    def the_rest(self) -> None:
        """Groups without a row: open, or without anything to learn from."""
        for key, ref in self._groups.items():
            if key in self._seen:
                continue
            graphs = self._graphs(ref)
            if self._is_open(key, ref, graphs):
                self._open_groups += 1
                self._add(_sampled(graphs), Reason.GROUP_OPEN)
                self._count_answers(graphs)
                continue
            expected = expected_of_group(graphs, self._spec)
            if any((one.reason == Reason.TRAINED).any() for one in expected.values()):
                self._report.add(
                    "group_missing", str(key[1]), "closed, has tokens to train, and is in no shard"
                )
            elif expected and any(graph.candidate_sets for graph in graphs.values()):
                self._report.add("group_missing", str(key[1]), "closed, has candidates, and is in no shard")
            self._count(graphs, expected)

    def _is_open(self, key: tuple[str, str], ref: GroupLike, graphs: Mapping[str, Graph]) -> bool:
        return group_info(list(graphs.values()), project=self._manifest.project, group=ref) is None

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
        if self._stripped != table.stripped_stop_tokens:
            report.add(
                "stripped_count",
                "manifest",
                f"{self._stripped} answers lack their stop token, the table {table.stripped_stop_tokens}",
            )
        self._answer_totals()
        if not table.holds:
            report.add("conservation", "manifest", "sampled is not trained + excluded")
        for name in ("rows", "samples"):
            said, counted = getattr(self._manifest, name), getattr(report, name)
            if said != counted:
                report.add("row_count", "manifest", f"{name} {counted}, the manifest {said}")
        if len(self._groups) != self._manifest.groups:
            detail = f"{len(self._groups)} groups in the store, the manifest {self._manifest.groups}"
            report.add("group_count", "manifest", detail)
        if dict(self._causes) != self._manifest.causes:
            counted = dict(sorted(self._causes.items()))
            detail = f"the samples of the shards begin {counted}, the manifest {self._manifest.causes}"
            report.add("cause_count", "manifest", detail)
        for key in sorted(self._seen):
            seen, said = sorted(self._seen[key]), sorted(self._num_parts[key])
            if len(said) > 1 or seen != list(range(said[0])):
                report.add("part_missing", str(key[1]), f"only parts {seen} of {' or '.join(map(str, said))}")

    def plan(self) -> None:
        """What the manifest says of the store and of its making, against the store and the shards' names."""
        manifest, report, store = self._manifest, self._report, self._store
        if manifest.snapshot > (latest := store.snapshot(manifest.project)):
            report.add("snapshot_unknown", "manifest", f"{manifest.snapshot}, the store is at {latest}")
        stones = store.tombstones(manifest.project, snapshot=manifest.snapshot)
        if stones != manifest.tombstones:
            report.add("tombstones_differ", "manifest", f"{manifest.tombstones}, the store has {stones}")
        groups = [
            PlannedGroup(ref.group_id, tuple(sorted(ref.episode_ids)), ended=ref.ended)
            for ref in self._groups.values()
        ]
        shards = shard_plan(groups, shard_rows=self._spec.shard_rows)
        plan_hash = record_of(manifest, shards).plan_hash
        of_plan = {shard_name(shard.file, plan_hash) for shard in shards}
        for shard in manifest.shards:
            if shard.file not in of_plan:
                detail = "named after another project, snapshot, spec, library, tombstone or group"
                report.add("plan_differs", shard.file, detail)
        notes = notes_of(
            self._tally(),
            self._causes,
            self._there,
            self._spec,
            project=manifest.project,
            num_groups=len(self._groups),
            open_groups=self._open_groups,
        )
        # In any order: where two counts are equal, it is that of the parts of the export.
        if sorted(notes) != sorted(manifest.notes):
            report.add("notes_differ", "manifest", f"{manifest.notes}, recomputed {notes}")

    def _tally(self) -> Tally:
        """What was counted, as notes are made of it."""
        tally = Tally(
            sampled=self._report.sampled_tokens,
            trained=self._report.trained_tokens,
            excluded=self._excluded,
            calls_without_ids=self._calls_without_ids,
            not_rendered=self._not_rendered,
            left_out=self._left_out,
        )
        for key in sorted(self._details, key=lambda key: (key[0] != "group", key[1])):
            tally.details = self._details[key] | tally.details
        return tally

    def _answer_totals(self) -> None:
        """Answers and what a chat template did, from the store against the manifest's table."""
        answers = {
            "completions": self._completions,
            "no_token_ids_calls": self._calls_without_ids,
            "no_token_ids_tokens": self._tokens_without_ids,
        }
        rendering = {
            "rendered_completions": self._rendered,
            "not_rendered": dict(self._not_rendered),
            "left_out": dict(self._left_out),
        }
        tables: dict[str, dict[str, Any]] = {"answer_count": answers, "rendering_count": rendering}
        for finding, counted in tables.items():
            for name, recomputed in counted.items():
                said = getattr(self._manifest.conservation, name)
                if recomputed != said:
                    self._report.add(finding, "manifest", f"{name} {recomputed}, the table {said}")

    def _count(self, graphs: Mapping[str, Graph], expected: Mapping[tuple[str, str, int], Expected]) -> None:
        for one in expected.values():
            self._report.sampled_tokens += len(one.ids)
            values, counts = np.unique(one.reason, return_counts=True)
            for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                if value != Reason.TRAINED:
                    self._excluded[label_of(value)] += count
        withheld = num_withheld(graphs.values())
        self._add(withheld, Reason.REDACTED)
        stray = _sampled(graphs) - withheld - sum(len(one.ids) for one in expected.values())
        self._add(stray, Reason.CALL_INCOMPLETE)
        self._count_answers(graphs)

    def _count_answers(self, graphs: Mapping[str, Graph]) -> None:
        for graph in graphs.values():
            self._count_calls(graph)
            for answer in graph.completions.values():
                self._completions += answer.token_ids is not None
                self._stripped += answer.token_ids is not None and answer.stop_token_stripped is True
            if graph.rendering is not None:
                keys = [key for key, one in graph.completions.items() if one.token_ids is not None]
                self._rendered += sum(call_id in graph.rendering.calls for call_id, _ in keys)
                self._not_rendered.update(one.why for one in graph.rendering.not_rendered.values())
                for left_out in graph.rendering.left_out.values():
                    self._left_out.update(left_out)

    def _count_calls(self, graph: Graph) -> None:
        """Answered calls of which an answer has no ids, and what they say they sampled where none has."""
        answers: dict[str, list[bool]] = defaultdict(list)
        for (call_id, _), answer in graph.completions.items():
            answers[call_id].append(answer.token_ids is not None)
        for call_id, have_ids in answers.items():
            call = graph.calls.get(call_id)
            if call is None or all(have_ids):
                continue
            self._calls_without_ids += 1
            said = None if call.usage is None else call.usage.completion_tokens
            if said is not None and not any(have_ids):
                self._tokens_without_ids = (self._tokens_without_ids or 0) + said

    def _add(self, tokens: int, reason: Reason) -> None:
        self._report.sampled_tokens += tokens
        if tokens:
            self._excluded[reason.label] += tokens

    def _graphs(self, ref: GroupLike) -> dict[str, Graph]:
        graphs = {
            episode_id: self._store.load_graph(
                self._manifest.project, episode_id, snapshot=self._manifest.snapshot
            )
            for episode_id in sorted(ref.episode_ids)
        }
        key = _group_key(ref.group_id, sorted(ref.episode_ids))
        if details := recorded(graphs.values()).details:
            self._details[key] = details
        if key not in self._inventoried:
            self._inventoried.add(key)
            is_closed = not self._is_open(key, ref, graphs)
            self._there += inventory(graphs.values(), self._spec, is_closed=is_closed)
        return graphs


class _FollowedCheck(_Check):
    """The live rows of a log against the store without what came late, and what came late by itself."""

    def __init__(self, log: Log, store: Source, seen: Source, spec: Spec, report: Report) -> None:
        super().__init__(seen, log.manifest(), spec, report)
        self._log = log
        self._whole = store

    def _refs(self, store: Source) -> list[GroupLike]:
        # Groups that the spec names need not be there yet.
        refs = store.groups(self._manifest.project, snapshot=self._manifest.snapshot)
        named = self._spec.groups
        keys = [(_group_key(ref.group_id, ref.episode_ids)[1], ref) for ref in refs]
        return [ref for key, ref in keys if named is None or key in named]

    def _is_open(self, key: tuple[str, str], ref: GroupLike, graphs: Mapping[str, Graph]) -> bool:
        is_waiting = self._log.last is not None and key in self._log.last.waiting
        return is_waiting or super()._is_open(key, ref, graphs)

    def the_rest(self) -> None:
        super().the_rest()
        project = self._manifest.project
        refs = {
            _group_key(ref.group_id, ref.episode_ids): ref
            for ref in self._whole.groups(project, snapshot=self._manifest.snapshot)
        }
        for name, group in self._log.groups.items():
            others = unwritten(refs[name], self._log) if name in refs else None
            ids = (*group.episode_ids, *(() if others is None else others.episode_ids))
            full = self._whole.training_graphs(project, ids, snapshot=self._manifest.snapshot)
            written = self._whole.training_graphs(project, group.episode_ids, snapshot=group.base)
            late = late_of(recorded(full), recorded(written))
            said = self._log.late[name].conservation if name in self._log.late else EMPTY
            if late != said:
                self._report.add("late_differs", name.id, f"recomputed {late}, the log says {said}")
            self._add(late.sampled_tokens, Reason.LATE)
            self._completions += late.completions
            self._calls_without_ids += late.no_token_ids_calls
            if late.no_token_ids_tokens is not None:
                self._tokens_without_ids = (self._tokens_without_ids or 0) + late.no_token_ids_tokens
            self._stripped += late.stripped_stop_tokens
            self._rendered += late.rendered_completions
            self._not_rendered.update(late.not_rendered)
            self._left_out.update(late.left_out)

    def totals(self) -> None:
        super().totals()
        for name, group in self._log.groups.items():
            if group.rows != len(self._seen[name]):
                rows = len(self._seen[name])
                self._report.add("rows_differ", name.id, f"{rows} live rows, the log says {group.rows}")


class _RowCheck:
    """One row against what the store says of its episodes."""

    def __init__(
        self,
        row: Row,
        expected: Mapping[tuple[str, str, int], Expected],
        spec: Spec,
        report: Report,
        where: str,
    ) -> None:
        self._row = row
        self._spec = spec
        self._expected = expected
        self._report = report
        self._where = where
        self._parents = row.segments.parent.tolist()
        self._starts = row.segments.start.tolist()
        self._lengths = row.segments.length.tolist()
        self._policy = [(run.name, run.version) for run in row.policy_runs]
        self._run_at = np.full(len(row.token_ids), -1, dtype=np.int64)
        self._pieces: dict[int, list[int]] = defaultdict(list)
        for segment, completion in enumerate(row.segments.completion.tolist()):
            if completion >= 0:
                self._pieces[completion].append(segment)
        self.limited = self._beyond_max()
        """Completions of the row that the spec's limit of length reaches, as they should be."""

    def run(self, placed: set[tuple[str, str, int]]) -> None:
        self._policies()
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

    def _beyond_max(self) -> dict[tuple[str, str, int], Expected]:
        """What a limit of length changes, from the lengths of the samples' paths and the places on them.

        A sample says by its last segment what it holds; whether that is so is checked elsewhere.
        """
        limit = self._spec.max_tokens
        if limit is None:
            return {}
        is_cut = self._spec.beyond_max == "cut"
        shortest: dict[int, int] = {}
        for sample in self._row.samples:
            length = sum(self._lengths[s] for s in sample.segments if 0 <= s < len(self._lengths))
            for completion in sample.completions:
                shortest[completion] = min(length, shortest.get(completion, length))
        found = {}
        for completion, pieces in self._pieces.items():
            key = self._key(completion)
            record = None if key is None else self._expected.get(key)
            if key is None or record is None:
                continue
            before = sum(self._lengths[s] for s in self._path(self._parents[pieces[0]]))
            place = np.arange(before, before + len(record.ids))
            lost = place >= limit if is_cut else np.full(len(place), shortest.get(completion, 0) > limit)
            reason = np.where(lost & (record.reason == Reason.TRAINED), Reason.TOO_LONG, record.reason)
            found[key] = replace(record, reason=reason.astype(np.uint8))
        return found

    def _key(self, completion: int) -> tuple[str, str, int] | None:
        row = self._row
        if not 0 <= completion < len(row.completions):
            return None
        entry = row.completions[completion]
        call = row.calls[entry.call]
        return row.episodes[call.episode].episode_id, call.call_id, entry.index

    def _add(self, name: str, detail: str) -> None:
        self._report.add(name, self._where, detail)

    def _policies(self) -> None:
        """Places the policy runs on the token axis: each inside it, and none over another."""
        for number, run in enumerate(self._row.policy_runs):
            covered = self._run_at[max(run.start, 0) : max(run.start + run.length, 0)]
            if run.start < 0 or len(covered) != run.length or (covered >= 0).any():
                self._add("policy_differs", f"{run} overlaps another or the end of the tokens")
            covered[:] = number

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
        if (self._run_at[~sampled] >= 0).any():
            self._add("policy_differs", "a token that nothing sampled has a policy")

    def _completion(self, key: tuple[str, str, int], pieces: Sequence[int]) -> None:
        """The pieces of one completion, one below the other, against its record."""
        name, row = f"{key[1]}[{key[2]}]", self._row
        record = self.limited.get(key, self._expected[key])
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
        said = [None if run < 0 else self._policy[run] for run in self._run_at[at].tolist()]
        if said != record.policies:
            first = next(pair for pair in zip(said, record.policies, strict=True) if pair[0] != pair[1])
            self._add("policy_differs", f"{name}: sampled by {first[0]}, recorded {first[1]}")
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
        held: set[int] = set()
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
            else:
                self._named(sample)
            num_tokens = sum(self._lengths[s] for s in path)
            limit = self._spec.max_tokens
            is_out = limit is not None and self._spec.beyond_max == "exclude" and num_tokens > limit
            if sample.reason != (Reason.TOO_LONG if is_out else Reason.TRAINED):
                self._add("sample_differs", f"sample {sample.sample_id}: {label_of(sample.reason)}")
            held.update(sample.completions)
            new = [] if is_out else [c for c in sample.completions if c not in owned]
            owned.update(new)
            counts = num_tokens, sum(trained.get(c, 0) for c in new)
            if counts != (sample.num_tokens, sample.num_owned):
                self._add("sample_counts", f"sample {sample.sample_id} holds {counts[0]}, owns {counts[1]}")
        for completion, pieces in self._pieces.items():
            if completion not in held:
                self._add(
                    "sample_missing",
                    f"no sample holds {self._key(completion)} ({len(pieces)} segments)",
                )

    def _named(self, sample: Sample) -> None:
        """A sample is called after its last completion, and is of that one's episode and agent."""
        if self._key(sample.completions[-1]) is None:
            return
        completion = self._row.completions[sample.completions[-1]]
        call = self._row.calls[completion.call]
        said = sample.sample_id, sample.episode, sample.agent
        recorded = f"{call.call_id}:{completion.index}", call.episode, call.agent
        if said != recorded:
            self._add("sample_differs", f"id, episode and agent {said}, recorded {recorded}")

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


def _difference(found: Sequence[Any], recorded: Sequence[Any]) -> str | None:
    """The first field in which the entries of a table differ from those recorded, in words."""
    for index, (one, other) in enumerate(zip(found, recorded, strict=False)):
        for name in (part.name for part in fields(other)):
            said, true = getattr(one, name), getattr(other, name)
            if _exact(said) != _exact(true):
                return f"entry {index}: {name} {said!r}, recorded {true!r}"
    return None if len(found) == len(recorded) else f"{len(found)} entries, recorded {len(recorded)}"


def _exact(value: Any) -> Any:
    """For comparison: a float to the bit (NaN equals itself, -0 is not 0), entries inside field by field."""
    if isinstance(value, float):
        return np.float64(value).tobytes()
    if isinstance(value, tuple):
        return tuple(map(_exact, value))
    if is_dataclass(value):
        return tuple(_exact(getattr(value, part.name)) for part in fields(value))
    return value


def _group_key(group_id: str | None, episode_ids: Sequence[str]) -> tuple[str, str]:
    """A group, or an episode on its own."""
    return ("group", group_id) if group_id is not None else ("episode", next(iter(episode_ids), ""))


def _sampled(graphs: Mapping[str, Graph]) -> int:
    return sum(
        len(completion.token_ids)
        for graph in graphs.values()
        for completion in graph.completions.values()
        if completion.token_ids is not None
    )
