from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.exporters.stores import (
    all_scenarios,
    changed,
    flip_a_bit,
    only_row,
    rewritten,
    rows_of,
    shard_of,
    stored,
)
from tests.scenarios import SCENARIOS
from tracestore.shards.manifest import (
    Conservation,
    Manifest,
    ManifestCorrupt,
    OtherSchema,
    ShardEntry,
    read_manifest,
    write_manifest,
)
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row, Segments
from tracestore.store.store import Store
from tracestore.wire.base import Raw
from tracestore.wire.call import Policy
from tracestore.wire.completion import VersionRun
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec, Validation
from tracestore_exporters.verify import verify_export


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Path]]:
    """Scenario compaction: two samples, 86 sampled tokens, 198 stored."""
    folder = tmp_path_factory.mktemp("verify")
    with stored(folder, SCENARIOS["compaction"]().events) as store:
        export(store, "p", folder / "out", Spec())
        yield store, folder / "out"


@pytest.fixture
def store(exported: tuple[Store, Path]) -> Store:
    return exported[0]


@pytest.fixture
def out(exported: tuple[Store, Path], tmp_path: Path) -> Path:
    """A copy of the export, to be forged."""
    return Path(shutil.copytree(exported[1], tmp_path / "out"))


def names(store: Store, out: Path) -> set[str]:
    return {finding.name for finding in verify_export(store, "p", out).findings}


def test_what_the_exporter_writes_is_clean(tmp_path: Path) -> None:
    with stored(tmp_path, all_scenarios()) as store:
        manifest = export(store, "p", tmp_path / "out", Spec(shard_rows=3, candidates="exclude"))
        report = verify_export(store, "p", tmp_path / "out")
    assert report.findings == []
    assert report.sampled_tokens == manifest.conservation.sampled_tokens
    assert report.trained_tokens == manifest.conservation.trained_tokens
    assert manifest.conservation.excluded == {"candidate_excluded": 75}
    assert (report.rows, report.samples) == (manifest.rows, manifest.samples)


def at(row: Row, value: int, *, array: str) -> np.ndarray:
    """A copy of a token column with one value changed, at the first sampled token."""
    column: np.ndarray = getattr(row, array).copy()
    column[int(np.flatnonzero(row.reason == 0)[3])] = value
    return column


def flipped_mask_bit(row: Row) -> Row:
    return changed(row, reason=at(row, Reason.PURPOSE, array="reason"))


def trained_prompt_token(row: Row) -> Row:
    reason = row.reason.copy()
    reason[1] = Reason.TRAINED
    return changed(row, reason=reason)


def changed_sampled_id(row: Row) -> Row:
    return changed(row, token_ids=at(row, 77, array="token_ids"))


def changed_prompt_id(row: Row) -> Row:
    ids = row.token_ids.copy()
    ids[0] = 77
    return changed(row, token_ids=ids)


def changed_logprob(row: Row) -> Row:
    return changed(row, logprobs=at(row, -0.25, array="logprobs"))


def missing_logprob(row: Row) -> Row:
    return changed(row, has_logprob=at(row, False, array="has_logprob"))


def doubled_sample(row: Row) -> Row:
    return changed(row, samples=(*row.samples, row.samples[0]))


def dropped_sample(row: Row) -> Row:
    return changed(row, samples=row.samples[:1])


def overcounted_sample(row: Row) -> Row:
    first = row.samples[0]
    return changed(row, samples=(replace(first, num_owned=first.num_owned + 1), *row.samples[1:]))


def sample_of_half_a_path(row: Row) -> Row:
    first = row.samples[0]
    return changed(row, samples=(replace(first, segments=first.segments[1:]), *row.samples[1:]))


def dropped_segment(row: Row) -> Row:
    """The last segment cut off, with its sample's path and chain."""
    old, last = row.segments, len(row.segments) - 1
    end = int(old.start[last])
    kept = Segments(old.parent[:last], old.start[:last], old.length[:last], old.completion[:last])
    sample = row.samples[-1]
    cut = replace(
        sample,
        segments=sample.segments[:-1],
        completions=sample.completions[:-1],
        num_tokens=sample.num_tokens - int(old.length[last]),
    )
    return changed(
        row,
        segments=kept,
        samples=(*row.samples[:-1], cut),
        token_ids=row.token_ids[:end],
        reason=row.reason[:end],
        has_logprob=row.has_logprob[:end],
        logprobs=None if row.logprobs is None else row.logprobs[:end],
    )


def doubled_segment(row: Row) -> Row:
    """The last completion stands twice below its prompt."""
    old, last = row.segments, len(row.segments) - 1
    tail = slice(int(old.start[last]), None)
    more = Segments(
        np.append(old.parent, old.parent[last]),
        np.append(old.start, len(row.token_ids)),
        np.append(old.length, old.length[last]),
        np.append(old.completion, old.completion[last]),
    )
    assert row.logprobs is not None
    return changed(
        row,
        segments=more,
        token_ids=np.concatenate([row.token_ids, row.token_ids[tail]]),
        reason=np.concatenate([row.reason, row.reason[tail]]),
        has_logprob=np.concatenate([row.has_logprob, row.has_logprob[tail]]),
        logprobs=np.concatenate([row.logprobs, row.logprobs[tail]]),
    )


def moved_parent(row: Row) -> Row:
    """A segment under a later one."""
    parent = row.segments.parent.copy()
    parent[1] = 3
    return changed(row, segments=replace(row.segments, parent=parent))


def changed_reward(row: Row) -> Row:
    return changed(row, rewards=tuple(replace(one, value=0.5) for one in row.rewards))


def claimed_failed_tool(row: Row) -> Row:
    first, *others = row.completions
    return changed(row, completions=(replace(first, tool_failed=True), *others))


def doubled_reward(row: Row) -> Row:
    return changed(row, rewards=row.rewards * 2)


FORGERIES: list[tuple[Callable[[Row], Row], str]] = [
    (flipped_mask_bit, "reason_differs"),
    (trained_prompt_token, "unsampled_trained"),
    (changed_sampled_id, "token_ids_differ"),
    (changed_prompt_id, "prompt_differs"),
    (changed_logprob, "logprob_differs"),
    (missing_logprob, "logprob_differs"),
    (doubled_sample, "sample_doubled"),
    (dropped_sample, "sample_missing"),
    (overcounted_sample, "sample_counts"),
    (sample_of_half_a_path, "sample_broken"),
    (dropped_segment, "completion_missing"),
    (doubled_segment, "completion_doubled"),
    (moved_parent, "broken_forest"),
    (changed_reward, "rewards_differ"),
    (doubled_reward, "rewards_differ"),
    (claimed_failed_tool, "completions_differ"),
]


@pytest.mark.parametrize(("forge", "finding"), FORGERIES, ids=[forge.__name__ for forge, _ in FORGERIES])
def test_each_forgery_is_named_although_every_hash_fits(
    store: Store, out: Path, forge: Callable[[Row], Row], finding: str
) -> None:
    rewritten(out, [forge(only_row(out))])
    assert finding in names(store, out)


SPECS: dict[str, Spec] = {
    "a limit that one sample passes": Spec(max_tokens=60),
    "a limit that cuts": Spec(max_tokens=100, beyond_max="cut"),
    "tokens of several samples as in their mean": Spec(ownership="tree_mean"),
    "answers that are stale": Spec(current_version=9, max_staleness=1),
    "pairs to prefer": Spec(objective="preference"),
    "tasks set aside, roles, times": Spec(
        validation=Validation(share=0.01), roles=("main",), started_from=1, policy_versions=(8,)
    ),
}


def chosen_of_five() -> list[AnyEvent]:
    """Two answers to one prompt and three that go on from them, of 17 to 134 tokens; three are chosen."""
    prompt, first, second, heard = [1] * 10, [4, 5, 6, 7], [14, 15, 16, 17], [2] * 6

    def sampled(name: str, read: list[int], *answers: list[int], version: int, ordinal: int) -> AnyEvent:
        bodies = [make.answer(None, ids=ids) for ids in answers]
        policy = Policy(name="pi", version=version)
        return make.call(name, None, *bodies, prompt_ids=read, ordinal=ordinal, policy=policy)

    members = [make.member("c", 0), make.member("c", 1), make.member("d"), make.member("e"), make.member("f")]
    return [
        make.episode(status="ok", task_id="t", started_at=5),
        make.agent(role="main"),
        sampled("c", prompt, first, second, version=8, ordinal=0),
        sampled("d", [*prompt, *first, *heard], [30] * 4, version=8, ordinal=1),
        sampled("e", [*prompt, *second, *heard], [31] * 114, version=7, ordinal=2),
        sampled("f", [*prompt, *first, 3], [7] * 2, version=8, ordinal=3),
        make.candidate_set("set1", *members),
        make.selection("sel1", "set1", 0, 2, 4),
    ]


@pytest.mark.parametrize("forge", [flipped_mask_bit, dropped_segment, doubled_sample])
@pytest.mark.parametrize("name", SPECS)
def test_each_forgery_is_named_whatever_the_spec_asks(
    name: str, forge: Callable[[Row], Row], tmp_path: Path
) -> None:
    finding = dict(FORGERIES)[forge]
    source, out = MemorySource(chosen_of_five()), tmp_path / "out"
    table = export(source, "p", out, SPECS[name]).conservation
    assert table.trained_tokens > 4
    assert verify_export(source, "p", out).findings == []
    rewritten(out, [forge(only_row(out))])
    assert finding in {one.name for one in verify_export(source, "p", out).findings}


def group_of_two(name: str) -> list[AnyEvent]:
    """One of two attempts: two candidates of which one is chosen, a reward, and a blob."""
    call = make.call(
        f"{name}c",
        Raw(b'{"messages": [], "temperature": 0.5}'),
        make.answer(None, ids=[4, 5], versions=[VersionRun(start=0, name="pi", version=3)]),
        make.answer(None, ids=[6]),
        prompt_ids=[1],
        episode=name,
        agent=f"{name}a",
        logprobs_are="raw",
    )
    members = make.member(f"{name}c", 0), make.member(f"{name}c", 1, score=0.25)
    return [
        make.episode(name, group_id="g", status="ok", split="train", task_id="t"),
        call,
        make.candidate_set(f"{name}set", *members, episode=name, agent=f"{name}a"),
        make.selection(f"{name}sel", f"{name}set", 0, episode=name, treatment="negative"),
        make.reward(f"{name}r", 1.0, episode=name, call_id=f"{name}c", completion=0),
        make.blob(f"{name}b", episode=name, call_id=f"{name}c", role="routed_experts"),
        make.compaction(f"{name}x", episode=name, agent=f"{name}a"),
    ]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[MemorySource, Path]:
    """Two episodes of every table, in one row."""
    out = tmp_path_factory.mktemp("tables") / "out"
    source = MemorySource([*group_of_two("e1"), *group_of_two("e2")])
    export(source, "p", out, Spec())
    assert verify_export(source, "p", out).findings == []
    return source, out


def first(entries: tuple[Any, ...], **fields: Any) -> tuple[Any, ...]:
    """A table with its first entry changed."""
    return (replace(entries[0], **fields), *entries[1:])


def member_chosen(row: Row) -> Row:
    members = first(row.candidate_sets[0].members, selected=False)
    return changed(row, candidate_sets=first(row.candidate_sets, members=members))


TABLE_FORGERIES: dict[str, tuple[Callable[[Row], Row], str]] = {
    "sample of another episode": (
        lambda row: changed(row, samples=first(row.samples, episode=1)),
        "sample_differs",
    ),
    "sample of another agent": (
        lambda row: changed(row, samples=first(row.samples, agent=1)),
        "sample_differs",
    ),
    "sample of another name": (
        lambda row: changed(row, samples=first(row.samples, sample_id="x:0")),
        "sample_differs",
    ),
    "out of the statistics": (
        lambda row: changed(row, episodes=first(row.episodes, in_statistics=False)),
        "episodes_differ",
    ),
    "another status": (
        lambda row: changed(row, episodes=first(row.episodes, status="failed")),
        "episodes_differ",
    ),
    "another split": (
        lambda row: changed(row, episodes=first(row.episodes, split="eval")),
        "episodes_differ",
    ),
    "another origin": (
        lambda row: changed(row, episodes=first(row.episodes, forked_from_episode_id="e2")),
        "episodes_differ",
    ),
    "frozen agent": (lambda row: changed(row, agents=first(row.agents, trainable=False)), "agents_differ"),
    "dropped agent": (lambda row: changed(row, agents=row.agents[:1]), "agents_differ"),
    "another temperature": (
        lambda row: changed(row, calls=first(row.calls, temperature=1.0)),
        "calls_differ",
    ),
    "other logprobs": (
        lambda row: changed(row, calls=first(row.calls, logprobs_are="processed")),
        "calls_differ",
    ),
    "call of another episode": (lambda row: changed(row, calls=first(row.calls, episode=1)), "calls_differ"),
    "dropped call": (lambda row: changed(row, calls=row.calls[:1]), "calls_differ"),
    "partial completion": (
        lambda row: changed(row, completions=first(row.completions, partial=True)),
        "completions_differ",
    ),
    "completion of no call": (
        lambda row: changed(row, completions=first(row.completions, call=9)),
        "completions_differ",
    ),
    "dropped set": (lambda row: changed(row, candidate_sets=()), "candidate_sets_differ"),
    "another treatment": (
        lambda row: changed(row, candidate_sets=first(row.candidate_sets, treatment="exclude")),
        "candidate_sets_differ",
    ),
    "another choice": (member_chosen, "candidate_sets_differ"),
    "edit of another author": (lambda row: changed(row, edits=first(row.edits, author="x")), "edits_differ"),
    "reward of another episode": (
        lambda row: changed(row, rewards=first(row.rewards, episode=1)),
        "rewards_differ",
    ),
    "reward of another target": (
        lambda row: changed(row, rewards=first(row.rewards, target="episode")),
        "rewards_differ",
    ),
    "reward of another completion": (
        lambda row: changed(row, rewards=first(row.rewards, completion=1)),
        "rewards_differ",
    ),
    "another blob": (lambda row: changed(row, blobs=first(row.blobs, hash="x")), "blobs_differ"),
    "another version": (
        lambda row: changed(row, policy_runs=first(row.policy_runs, version=4)),
        "policy_differs",
    ),
    "dropped run": (lambda row: changed(row, policy_runs=row.policy_runs[1:]), "policy_differs"),
    "run over the prompt": (
        lambda row: changed(row, policy_runs=first(row.policy_runs, start=0)),
        "policy_differs",
    ),
    "run past the end": (
        lambda row: changed(row, policy_runs=first(row.policy_runs, length=99)),
        "policy_differs",
    ),
    "doubled run": (
        lambda row: changed(row, policy_runs=(*row.policy_runs, row.policy_runs[0])),
        "policy_differs",
    ),
    "another task": (lambda row: changed(row, task_id="u"), "group_differs"),
    "closed by a timeout": (lambda row: changed(row, closed_by="timeout"), "group_differs"),
}


@pytest.mark.parametrize("name", TABLE_FORGERIES)
def test_each_changed_field_of_a_table_is_named(
    tables: tuple[MemorySource, Path], tmp_path: Path, name: str
) -> None:
    source, exported = tables
    forge, finding = TABLE_FORGERIES[name]
    out = Path(shutil.copytree(exported, tmp_path / "out"))
    rewritten(out, [forge(only_row(out))])
    assert {one.name for one in verify_export(source, "p", out).findings} == {finding}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_part_is_named_whether_it_is_the_first_or_the_last(tmp_path: Path, lost: int) -> None:
    source, out = MemorySource([*group_of_two("e1"), *group_of_two("e2")]), tmp_path / "out"
    export(source, "p", out, Spec(max_row_bytes=40))
    parts = rows_of(out)
    assert [(row.part, row.num_parts) for row in parts] == [(0, 2), (1, 2)]
    assert verify_export(source, "p", out).findings == []
    rewritten(out, [parts[1 - lost]])
    assert ("part_missing", f"only parts [{1 - lost}] of 2") in {
        (finding.name, finding.detail) for finding in verify_export(source, "p", out).findings
    }


def test_a_flipped_mask_bit_breaks_the_conservation_table_too(store: Store, out: Path) -> None:
    rewritten(out, [flipped_mask_bit(only_row(out))], keep_table=True)
    assert {"reason_differs", "trained_count"} <= names(store, out)


def test_a_row_that_stands_twice_is_found(store: Store, out: Path) -> None:
    row = only_row(out)
    rewritten(out, [row, row])
    assert "row_doubled" in names(store, out)


def test_a_group_left_out_is_found(tmp_path: Path) -> None:
    source = MemorySource(all_scenarios())
    export(source, "p", tmp_path / "out", Spec())
    rows = [row for row in rows_of(tmp_path / "out") if row.episodes[0].episode_id != "linear/e"]
    rewritten(tmp_path / "out", rows, keep_table=True)
    found = verify_export(source, "p", tmp_path / "out").findings
    assert ("group_missing", "linear/e") in {(finding.name, finding.where) for finding in found}


def test_a_missing_part_is_found(store: Store, out: Path) -> None:
    rewritten(out, [changed(only_row(out), part=1, num_parts=2)])
    assert "part_missing" in names(store, out)


def test_a_flipped_bit_in_the_file_is_found_by_its_checksum(store: Store, out: Path) -> None:
    flip_a_bit(shard_of(out))
    assert "shard_checksum" in names(store, out)


def test_a_missing_shard_is_found(store: Store, out: Path) -> None:
    shard_of(out).unlink()
    assert {"shard_missing", "group_missing"} <= names(store, out)


def test_a_forged_table_is_found(store: Store, out: Path) -> None:
    manifest = read_manifest(out)
    table = manifest.conservation.model_copy(update={"sampled_tokens": 87, "excluded": {"purpose": 1}})
    write_manifest(out, manifest.model_copy(update={"conservation": table}))
    assert {"sampled_count", "excluded_count"} <= names(store, out)


def forged(value: Any) -> Any:
    """Another value of the same kind. A kind that no field had before is an error: add it here."""
    match value:
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case None:
            return 7
        case dict():
            return value | {"forged": 1}
        case tuple():
            return (*value, "forged")
    raise NotImplementedError(type(value))


AS_A_TEXT = {"tokenizer_hash", "template_hash"}
STONE = {"kind": "episode", "id": "gone", "pos": 1}
PIECES: dict[str, Callable[[Any], Any]] = {
    "shards": lambda shards: (*shards, shards[0].model_copy(update={"file": "shard-00009.arrow"})),
    "tombstones": lambda stones: (*stones, STONE),
    "libraries": lambda libraries: libraries | {"numpy": "0"},
    "conservation": lambda table: table.model_copy(update={"sampled_tokens": 1}),
}
FIELDS = [
    *(("manifest", name) for name in Manifest.model_fields),
    *(("shards", name) for name in ShardEntry.model_fields),
    *(("conservation", name) for name in Conservation.model_fields),
]


@pytest.mark.parametrize(("part", "name"), FIELDS, ids=["-".join(field) for field in FIELDS])
def test_no_field_of_a_manifest_can_be_forged(store: Store, out: Path, part: str, name: str) -> None:
    manifest = read_manifest(out)
    owner = {"manifest": manifest, "shards": manifest.shards[0], "conservation": manifest.conservation}[part]
    said = getattr(owner, name)
    if part == "manifest":
        value = PIECES[name](said) if name in PIECES else "x" if name in AS_A_TEXT else forged(said)
        update = {name: value}
    else:
        piece: Any = owner.model_copy(update={name: forged(said)})
        update = {part: piece if part == "conservation" else (piece,)}
    write_manifest(out, manifest.model_copy(update=update))
    try:
        assert names(store, out)
    except (ManifestCorrupt, OtherSchema):
        assert name in ("format", "schema_version", "schema_hash")


FORGED_SPECS = {
    "a limit that nothing reaches": Spec(max_tokens=10**6),
    "purposes that nothing has": Spec(purposes=("act", "summarize")),
    "another ownership": Spec(ownership="tree_mean"),
}


@pytest.mark.parametrize("name", FORGED_SPECS)
def test_a_spec_that_would_have_given_the_same_rows_is_not_taken_for_the_one_that_did(
    store: Store, out: Path, name: str
) -> None:
    forgery = FORGED_SPECS[name]
    update = {"spec": forgery.model_dump(mode="json"), "spec_hash": forgery.spec_hash}
    write_manifest(out, read_manifest(out).model_copy(update=update))
    assert names(store, out) == {"plan_differs"}


def test_what_is_counted_is_named_by_what_it_counts(store: Store, out: Path) -> None:
    manifest = read_manifest(out)
    assert (manifest.causes, manifest.groups) == ({"compaction": 1, "root": 1}, 1)
    update = {"causes": {"compaction": 2}, "groups": 2, "notes": ("nothing",)}
    write_manifest(out, manifest.model_copy(update=update))
    assert names(store, out) == {"cause_count", "group_count", "notes_differ"}


def test_a_forged_cause_is_found_in_the_shard_although_the_manifest_counts_it(
    store: Store, out: Path
) -> None:
    row = only_row(out)
    samples = tuple(replace(one, cause="root") for one in row.samples)
    manifest = rewritten(out, [changed(row, samples=samples)])
    write_manifest(out, manifest.model_copy(update={"causes": {"root": 2}}))
    assert names(store, out) == {"sample_differs"}


def test_an_export_of_another_project_is_not_verified_against_this_one(store: Store, out: Path) -> None:
    assert {finding.name for finding in verify_export(store, "other", out).findings} == {"other_project"}


def test_excluded_tokens_of_groups_without_a_row_are_recomputed_too(tmp_path: Path) -> None:
    events = [
        make.episode("e", status="infra_error"),
        make.call("c", None, make.answer(None, ids=[4, 5]), prompt_ids=[1]),
        make.completion("gone", body=make.answer("a", ids=[7])),
        make.episode("f", phase="start"),
        make.call("d", None, make.answer(None, ids=[4]), prompt_ids=[1], episode="f", agent="fa"),
        make.episode("h", status="ok"),
        make.call(
            "k", None, make.answer(None, ids=[4]), prompt_ids=[1], episode="h", agent="ha", purpose="judge"
        ),
    ]
    source = MemorySource(events)
    manifest = export(source, "p", tmp_path / "out", Spec())
    assert manifest.conservation.excluded == {
        "call_incomplete": 1,
        "group_open": 1,
        "infra_error": 2,
        "purpose": 1,
    }
    assert verify_export(source, "p", tmp_path / "out").findings == []
