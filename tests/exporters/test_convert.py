"""Conversions of an export, read by the libraries they are for."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.exporters.stores import all_scenarios
from tests.train.exports import export_of
from tests.train.rows import candidates, episodes_of_one_call, random_row, row
from tracestore.cli.convert import TARGETS as TARGETS_OF_THE_VERB
from tracestore.cli.main import main
from tracestore.shards.read import Export, open_export
from tracestore.shards.reasons import Reason
from tracestore.shards.row import BlobEntry, PolicyRun, RewardEntry, Row
from tracestore.shards.views import flat_samples
from tracestore.store.duck_child import _SAMPLES
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Advantages, Context, combine
from tracestore.wire.events import AnyEvent
from tracestore_exporters import flat, preference
from tracestore_exporters.convert import TARGETS, CreditNotCarried, NothingToWrite, _batch, convert
from tracestore_exporters.export import NotEmpty, export
from tracestore_exporters.flat import MissingLogprob, MixedAdvantage, NonFiniteReward
from tracestore_exporters.sft import WeightsNotCarried
from tracestore_exporters.spec import Spec


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Every scenario, one row a shard, so that the first rows of the files differ in what they lack."""
    out = tmp_path_factory.mktemp("scenarios") / "out"
    export(MemorySource(all_scenarios()), "p", out, Spec(shard_rows=1))
    return open_export(out)


def by(rule: str) -> Callable[[Row], flat.TokenAdvantages]:
    return lambda row: combine(row, advantages(row, rule=rule, context=Context()))


def loaded(folder: Path) -> list[dict[str, Any]]:
    data = datasets.load_dataset("parquet", data_files=str(folder / "*.parquet"), split="train")
    return list(data)


def compaction() -> Row:
    """One episode of two samples that share their first call, beside one of one sample."""
    made = row(
        [
            (-1, [1, 2], -1),
            (0, [3, 4], 0),
            (1, [5], -1),
            (2, [6, 7], 1),
            (1, [8], -1),
            (4, [9], 2),
            (0, [10], 3),
        ],
        [(0, [0, 1, 2, 3], [0, 1]), (0, [0, 1, 4, 5], [0, 2]), (1, [0, 6], [3])],
        rewards=[[(1.0, 2.0), (0.5, None)], 0.5],
        cause={1: "compaction"},
        call={1: {"logprobs_are": "processed", "temperature": 0.5}},
    )
    return replace(made, policy_runs=(PolicyRun(2, 1, "policy", 7), PolicyRun(3, 1, "policy", 8)))


def test_the_verb_offers_what_can_be_written() -> None:
    assert TARGETS_OF_THE_VERB == TARGETS


def test_datasets_reads_each_sample_as_a_row_and_the_masks_are_the_trained_tokens(
    scenarios: Export, tmp_path: Path
) -> None:
    done = convert(scenarios, tmp_path / "flat", to="flat")
    rows = loaded(tmp_path / "flat")
    manifest = scenarios.manifest
    assert len(manifest.shards) > 5
    assert len(rows) == done.records == manifest.samples
    trained = sum(sum(one["loss_mask"]) for one in rows)
    assert trained == done.trained_tokens == manifest.conservation.trained_tokens
    assert {one["cause"] for one in rows} == set(manifest.causes)
    for one in rows:
        lists = ("input_ids", "loss_mask", "weight", "logprobs")
        assert len({len(one[name]) for name in lists}) == 1
        assert one["advantages"] is None


def test_a_folder_alone_is_enough_for_datasets(scenarios: Export, tmp_path: Path) -> None:
    convert(scenarios, tmp_path / "flat", to="flat")
    assert datasets.load_dataset(str(tmp_path / "flat"), split="train").num_rows == scenarios.manifest.samples


def test_every_file_has_the_same_schema(scenarios: Export, tmp_path: Path) -> None:
    convert(scenarios, tmp_path / "flat", to="flat")
    files = sorted((tmp_path / "flat").iterdir())
    assert len(files) == len(scenarios.manifest.shards)
    assert all(pq.read_schema(file).equals(flat.SCHEMA, check_metadata=False) for file in files)
    told = pq.read_schema(files[0]).metadata
    assert told[b"tracestore.manifest_hash"].decode() == scenarios.manifest.manifest_hash


@settings(max_examples=20, deadline=None)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=4, unique=True))
def test_a_batch_holds_every_sample_bit_for_bit(seeds: list[int]) -> None:
    rows = [random_row(seed, vocab=61) for seed in seeds]
    records = [record for one in rows for record in flat.records(one, flat.Options())]
    found = _batch(records, flat.SCHEMA).to_pylist()
    samples = [sample for one in rows for sample in flat_samples(one)]
    assert len(found) == len(samples)
    for record, sample in zip(found, samples, strict=True):
        assert record["input_ids"] == sample.token_ids.tolist()
        assert record["loss_mask"] == sample.mask.tolist()
        assert sample.logprobs is not None
        logprobs = zip(sample.logprobs.tolist(), sample.has_logprob.tolist(), strict=True)
        assert record["logprobs"] == [value if known else None for value, known in logprobs]
        for run in record["completions"]:
            at = sample.completion[run["start"] : run["start"] + run["length"]]
            assert len(set(at.tolist())) == 1
        assert sum(run["length"] for run in record["completions"]) == np.count_nonzero(sample.completion >= 0)


def test_a_record_says_what_the_shard_says(tmp_path: Path) -> None:
    convert(
        export_of([compaction()], tmp_path / "x"),
        tmp_path / "flat",
        to="flat",
        rule="shared",
        credit=by("shared"),
    )
    first, second, other = loaded(tmp_path / "flat")
    assert first["input_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert first["loss_mask"] == [False, False, True, True, False, True, True]
    assert second["input_ids"] == [1, 2, 3, 4, 8, 9]
    assert second["loss_mask"] == [False] * 5 + [True]  # the first sample owns what both hold
    assert first["logprobs"] == [None, None, -1.0, -1.0, None, -1.0, -1.0]
    assert first["weight"] == [0, 0, 1, 1, 0, 1, 1]
    # 1 * 2 + .5 = 2.5 against .5: mean 1.5
    assert (first["reward"], other["reward"]) == (2.5, 0.5)
    assert first["advantages"] == [0, 0, 1, 1, 0, 1, 1]
    assert other["advantages"] == [0, 0, -1]
    assert [(r["name"], r["value"], r["weight"]) for r in first["rewards"]] == [
        ("score", 1.0, 2.0),
        ("score", 0.5, None),
    ]
    assert first["policy_versions"] == [
        {"start": 2, "length": 1, "name": "policy", "version": 7},
        {"start": 3, "length": 1, "name": "policy", "version": 8},
    ]
    assert [(c["start"], c["length"], c["call_id"]) for c in second["completions"]] == [
        (2, 2, "call-0"),
        (5, 1, "call-2"),
    ]
    assert (second["cause"], second["episode_id"], second["group_id"]) == ("compaction", "episode-0", "g")


def test_shares_of_a_tree_are_in_weight_and_advantage(tmp_path: Path) -> None:
    made = export_of([compaction()], tmp_path / "x")
    shared = replace(made, manifest=made.manifest.model_copy(update={"spec": {"ownership": "tree_mean"}}))

    def credit(row: Row) -> flat.TokenAdvantages:
        return combine(row, advantages(row, rule="shared", context=Context()), ownership="tree_mean")

    convert(shared, tmp_path / "flat", to="flat", rule="shared", credit=credit)
    first, *_ = loaded(tmp_path / "flat")
    assert first["weight"] == [0, 0, 1, 1, 0, 0.5, 0.5]  # 2 / 2 samples, then 1 / 2
    assert first["advantages"] == [0, 0, 1, 1, 0, 0.5, 0.5]
    with pytest.raises(WeightsNotCarried, match="train_once"):
        convert(shared, tmp_path / "sft", to="sft")


def test_tokens_without_an_advantage_are_out_of_the_mask(tmp_path: Path) -> None:
    ungraded = episodes_of_one_call([1.0, 0.0, None])
    made = export_of([ungraded], tmp_path / "x")
    convert(made, tmp_path / "plain", to="flat")
    convert(made, tmp_path / "credit", to="flat", rule="shared", credit=by("shared"))
    assert [sum(one["loss_mask"]) for one in loaded(tmp_path / "plain")] == [2, 2, 2]
    assert [sum(one["loss_mask"]) for one in loaded(tmp_path / "credit")] == [2, 2, 0]
    assert [one["reward"] for one in loaded(tmp_path / "credit")] == [1.0, 0.0, None]


def test_a_sample_that_does_not_train_stays_with_its_reason(tmp_path: Path) -> None:
    made = compaction()
    samples = (replace(made.samples[0], reason=int(Reason.TOO_LONG)), *made.samples[1:])
    convert(export_of([replace(made, samples=samples)], tmp_path / "x"), tmp_path / "flat", to="flat")
    first, second, _ = loaded(tmp_path / "flat")
    assert (first["excluded"], sum(first["loss_mask"])) == ("too_long", 0)
    assert (second["excluded"], second["loss_mask"]) == (None, [False, False, True, True, False, True])


def test_one_number_a_token_is_refused_where_samples_disagree_on_its_sign() -> None:
    made = compaction()
    values = {(0, 0): 1.0, (1, 0): -1.0}
    options = flat.Options(credit=lambda row: combine(row, Advantages("made", values)))
    with pytest.raises(MixedAdvantage, match="tracestore train"):
        list(flat.records(made, options))


def test_rewards_without_a_finite_sum_are_refused_by_name() -> None:
    made = episodes_of_one_call([[(1.7e308, None), (1.7e308, None)]])
    with pytest.raises(NonFiniteReward, match="episode-0"):
        list(flat.records(made, flat.Options()))


def test_labels_are_the_ids_of_the_mask_and_what_does_not_train_is_counted(tmp_path: Path) -> None:
    image = BlobEntry("ab", "image", "image/png", None, None, 1, None, 3, None, 1)
    made = replace(compaction(), blobs=(image,))
    done = convert(export_of([made], tmp_path / "x"), tmp_path / "sft", to="sft")
    assert loaded(tmp_path / "sft") == [
        {"input_ids": [1, 2, 3, 4, 5, 6, 7], "labels": [-100, -100, 3, 4, -100, 6, 7]},
        {"input_ids": [1, 2, 3, 4, 8, 9], "labels": [-100] * 5 + [9]},
    ]
    assert (done.records, done.tokens, done.trained_tokens) == (2, 13, 5)
    assert done.left_out == {"needs_blobs": 1}
    [_, _, third] = flat.records(made, flat.Options())
    assert third["blobs"] == [{"hash": "ab", "role": "image", "media_type": "image/png", "position": 1}]


def test_prime_rl_lines_have_the_fields_of_its_training_sample(tmp_path: Path) -> None:
    made = export_of([compaction()], tmp_path / "x")
    convert(made, tmp_path / "lines", to="prime-rl", rule="shared", credit=by("shared"))
    lines = (tmp_path / "lines" / "shard-00000.jsonl").read_text().splitlines()
    first, second, third = map(json.loads, lines)
    mask = [False, False, True, True, False, True, True]
    assert first == {
        "token_ids": [1, 2, 3, 4, 5, 6, 7],
        "mask": mask,
        "logprobs": [0.0, 0.0, -1.0, -1.0, 0.0, -1.0, -1.0],
        "temperatures": [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5],
        "env_name": "default",
        "advantages": [{"loss": "rl", "values": [0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], "mask": mask}],
        "reward": 2.5,
    }
    assert (sum(second["mask"]), third["reward"]) == (1, 0.5)


def test_a_loss_that_compares_with_recorded_logprobs_wants_them(tmp_path: Path) -> None:
    made = replace(compaction(), logprobs=None, has_logprob=np.zeros(10, dtype=bool))
    with pytest.raises(MissingLogprob, match="call-1:0"):
        convert(
            export_of([made], tmp_path / "x"),
            tmp_path / "out",
            to="prime-rl",
            rule="shared",
            credit=by("shared"),
        )
    assert not (tmp_path / "out").exists()


def test_pairs_are_the_divergent_suffixes_of_selected_and_rejected(tmp_path: Path) -> None:
    made = row(
        [(-1, [1, 2], -1), (0, [3, 4, 5], 0), (0, [3, 6], 1), (0, [7], 2)],
        [(0, [0, 1], [0]), (0, [0, 2], [1]), (0, [0, 3], [2])],
        candidate_sets=[candidates("pairs", [0.9, 0.1, None])],
    )
    done = convert(export_of([made], tmp_path / "x"), tmp_path / "pairs", to="preference")
    first, second = loaded(tmp_path / "pairs")
    assert first == {
        "candidate_set_id": "set",
        "episode_id": "episode-0",
        "prompt_ids": [1, 2, 3],  # both answers begin with 3: it says nothing about which is better
        "chosen_ids": [4, 5],
        "rejected_ids": [6],
        "chosen_mask": [True, True],
        "rejected_mask": [True],
        "chosen_score": 0.9,
        "rejected_score": 0.1,
    }
    assert (second["prompt_ids"], second["chosen_ids"], second["rejected_ids"]) == ([1, 2], [3, 4, 5], [7])
    assert second["rejected_score"] is None
    assert (done.records, done.trained_tokens) == (2, 2 + 1 + 3 + 1)


def test_a_pair_of_which_one_begins_the_other_keeps_a_suffix_for_both() -> None:
    made = row(
        [(-1, [1, 2], -1), (0, [3], 0), (0, [3, 4], 1), (0, [3], 2)],
        [(0, [0, 1], [0]), (0, [0, 2], [1]), (0, [0, 3], [2])],
        candidate_sets=[candidates("pairs", [1.0, 0.0, 0.0])],
    )
    left_out: Counter[str] = Counter()
    [pair] = preference.records(made, flat.Options(), left_out)
    assert [pair[n].tolist() for n in ("prompt_ids", "chosen_ids", "rejected_ids")] == [[1, 2], [3], [3, 4]]
    assert left_out == {"pairs_of_equal_tokens": 1}


@pytest.mark.parametrize("by_rewards", [False, True])
def test_a_tie_is_no_pair_and_counted(by_rewards: bool) -> None:
    scores = [None] * 3 if by_rewards else [0.5, 0.5, 0.1]
    made = row(
        [(-1, [1, 2], -1), (0, [3], 0), (0, [4], 1), (0, [5], 2)],
        [(0, [0, 1], [0]), (0, [0, 2], [1]), (0, [0, 3], [2])],
        candidate_sets=[candidates("pairs", scores)],
    )
    if by_rewards:  # 1 * .5 for the first two, 1 * .1 for the third
        some = zip((0.5, 0.5, 0.1), range(3), strict=True)
        made = replace(made, rewards=tuple(of_candidate(weight, member) for weight, member in some))
    left_out: Counter[str] = Counter()
    [pair] = preference.records(made, flat.Options(), left_out)
    assert (pair["chosen_ids"].tolist(), pair["rejected_ids"].tolist()) == ([3], [5])
    assert left_out == {"ties": 1}


def of_candidate(weight: float, member: int) -> RewardEntry:
    values: dict[str, Any] = dict.fromkeys(RewardEntry.__dataclass_fields__)
    values |= {"target": "candidate", "episode": 0, "candidate_set": 0, "member": member}
    values |= {"reward_id": f"r{member}", "name": "n", "value": 1.0, "weight": weight, "seq": member}
    return RewardEntry(**values)


def agents(*more: AnyEvent, selected: int = 0) -> list[AnyEvent]:
    """Two agents that a set compares, each with two calls that read on."""
    names = ("try0", "try1")
    made: list[AnyEvent] = [make.episode(), make.agent("main")]
    for n, name in enumerate(names):
        first = make.call(
            f"{name}a", None, make.answer(None, ids=[4 + n]), prompt_ids=[1], agent=name, ordinal=0
        )
        reads = [1, 4 + n, 9]
        second = make.answer(None, ids=[6 + n])
        later = make.call(
            f"{name}b", None, second, prompt_ids=reads, agent=name, ordinal=1, parent=f"{name}a"
        )
        made += [make.agent(name, parent_agent_id="main"), first, later]
    chosen = [
        make.candidate_set("set", *(make.member(agent=one) for one in names)),
        make.selection("s", "set", selected),
    ]
    return [*made, *chosen, *more]


def pairs_of(*events: AnyEvent, folder: Path) -> tuple[list[dict[str, Any]], Counter[str]]:
    export(MemorySource(events), "p", folder / "x", Spec(objective="preference"))
    [one] = open_export(folder / "x").rows()
    left_out: Counter[str] = Counter()
    return list(preference.records(one, flat.Options(), left_out)), left_out


def test_agents_are_compared_by_all_that_their_one_sample_holds(tmp_path: Path) -> None:
    [pair], left_out = pairs_of(*agents(selected=1), folder=tmp_path)
    assert pair["prompt_ids"].tolist() == [1]
    assert (pair["chosen_ids"].tolist(), pair["rejected_ids"].tolist()) == ([5, 9, 7], [4, 9, 6])
    assert pair["chosen_mask"].tolist() == pair["rejected_mask"].tolist() == [True, False, True]
    assert not left_out


def test_an_agent_that_had_help_is_more_than_one_sample(tmp_path: Path) -> None:
    under = make.agent("under", parent_agent_id="try0")
    helps = make.call("help", None, make.answer(None, ids=[8]), prompt_ids=[2], agent="under")
    made, left_out = pairs_of(*agents(under, helps), folder=tmp_path)
    assert (made, left_out) == ([], {"pairs_of_no_single_sample": 1})


def test_what_is_not_left_out_is_not_told(tmp_path: Path) -> None:
    """The rejected candidates of a spec that trains nobody's tokens are not what is left out."""
    export(MemorySource(agents()), "p", tmp_path / "x", Spec(policies=("nobody",)))
    with pytest.raises(NothingToWrite) as raised:
        convert(open_export(tmp_path / "x"), tmp_path / "sft", to="sft")
    assert raised.value.values["left_out"] == {"nothing_trains": 2}


@pytest.mark.parametrize("objective", ["rl", "preference"])
def test_labels_never_imitate_a_rejected_candidate_of_an_export_with_another_objective(
    objective: Any, tmp_path: Path
) -> None:
    export(MemorySource(agents()), "p", tmp_path / "x", Spec(objective=objective))
    done = convert(open_export(tmp_path / "x"), tmp_path / "sft", to="sft")
    [record] = loaded(tmp_path / "sft")
    assert record == {"input_ids": [1, 4, 9, 6], "labels": [-100, 4, -100, 6]}
    assert done.left_out == {"rejected_candidates": 2, "nothing_trains": 1}


def test_an_export_for_imitation_is_labelled_as_its_mask_says(tmp_path: Path) -> None:
    export(MemorySource(agents()), "p", tmp_path / "x", Spec(objective="sft", candidates="shared"))
    done = convert(open_export(tmp_path / "x"), tmp_path / "sft", to="sft")
    assert (done.records, done.trained_tokens, done.left_out) == (2, 4, {})


def test_a_pair_that_looks_at_an_image_is_left_out_and_counted() -> None:
    image = BlobEntry("ab", "image", "image/png", None, None, 0, None, 1, None, 1)
    made = row(
        [(-1, [1, 2], -1), (0, [3], 0), (0, [4], 1)],
        [(0, [0, 1], [0]), (0, [0, 2], [1])],
        candidate_sets=[candidates("pairs", [1.0, 0.0])],
    )
    left_out: Counter[str] = Counter()
    assert list(preference.records(replace(made, blobs=(image,)), flat.Options(), left_out)) == []
    assert left_out == {"needs_blobs": 1}


def test_the_verb_says_what_it_wrote(
    scenarios: Export, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "flat")
    assert (
        main(["convert", str(scenarios.path), "--to", "flat", "--advantages", "rloo", "--out", out, "--json"])
        == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert (facts["records"], facts["left_out"]) == (scenarios.manifest.samples, {})
    assert (
        pq.read_schema(tmp_path / "flat" / "shard-00000.parquet").metadata[b"tracestore.advantages"]
        == b"rloo"
    )


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_verb_says_what_is_in_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    made = episodes_of_one_call([1.0, 0.0])
    silent = replace(made, reason=np.full_like(made.reason, Reason.STALE))
    export_of([made, silent], tmp_path / "x")
    argv = ["convert", str(tmp_path / "x"), "--to", "sft", "--out", str(tmp_path / "sft")]
    assert main([*argv, *flags]) == 0
    assert '{"nothing_trains": 2}' in capsys.readouterr().out


def test_where_everything_is_left_out_nothing_is_written_and_why_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = episodes_of_one_call([1.0, 0.0])
    export_of([replace(made, reason=np.full_like(made.reason, Reason.STALE))], tmp_path / "x")
    for to, why in (("sft", "left_out={'nothing_trains': 2}"), ("preference", "it has no candidate sets")):
        assert main(["convert", str(tmp_path / "x"), "--to", to, "--out", str(tmp_path / to)]) == 1
        assert why in capsys.readouterr().err
    export(MemorySource([]), "p", tmp_path / "empty", Spec())
    with pytest.raises(NothingToWrite, match="project 'p' has no episodes at this snapshot"):
        convert(open_export(tmp_path / "empty"), tmp_path / "flat", to="flat")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "x"]


def test_a_flat_sample_and_the_sql_view_of_samples_have_one_word_for_one_thing() -> None:
    named = re.findall(r"(\w+)(?:,|\n  FROM)", _SAMPLES)
    ours = {"sample_id", "group_id", "episode_id", "status", "split", "agent_id", "role", "cause"}
    assert ours <= set(named)
    assert ours <= set(flat.SCHEMA.names)


@pytest.mark.parametrize(
    "argv",
    [
        ["prime-rl"],
        ["sft", "--advantages", "shared"],
        ["flat", "--advantages", "no"],
        ["flat", "--advantages", "pkpo"],
        ["flat", "--advantages", "shared:k=2"],
        ["flat", "--reward-term", "length=-0.1"],
    ],
)
def test_a_rule_stands_where_the_format_has_a_place_for_it(
    scenarios: Export, tmp_path: Path, argv: list[str]
) -> None:
    assert main(["convert", str(scenarios.path), "--to", *argv, "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_the_advantages_of_the_best_of_k_attempts_are_written_with_their_k(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = export_of([episodes_of_one_call([1.0, 0.0, 0.0, 0.0])], tmp_path / "x")
    argv = [
        "--to",
        "flat",
        "--advantages",
        "pkpo:k=2",
        "--out",
        str(tmp_path / "flat"),
        "--json",
    ]
    assert main(["convert", str(made.path), *argv]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == {}
    assert [one["advantages"][-1] for one in loaded(tmp_path / "flat")] == pytest.approx(
        [1 / 2] + [1 / 6] * 3
    )
    told = pq.read_schema(tmp_path / "flat" / "shard-00000.parquet").metadata
    assert told[b"tracestore.advantages"] == b"pkpo:k=2"


def test_what_an_episode_cost_is_in_the_advantages_that_are_written(tmp_path: Path) -> None:
    # Both are right; one sampled 2 tokens, one 4: .8 and .6 against their mean of .7.
    made = row(
        [(-1, [1, 2], -1), (0, [3, 4], 0), (0, [5, 6, 7, 8], 1)],
        [(0, [0, 1], [0]), (1, [0, 2], [1])],
        rewards=[1.0, 1.0],
    )
    export = export_of([made], tmp_path / "x")
    words = ["--to", "flat", "--advantages", "shared", "--reward-term", "length=-0.1"]
    assert main(["convert", str(export.path), *words, "--out", str(tmp_path / "flat")]) == 0
    assert [one["advantages"][-1] for one in loaded(tmp_path / "flat")] == pytest.approx([0.1, -0.1])
    told = pq.read_schema(tmp_path / "flat" / "shard-00000.parquet").metadata
    assert told[b"tracestore.reward_terms"] == b'{"length": -0.1}'


def test_nothing_is_written_into_a_folder_that_holds_something(scenarios: Export, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(NotEmpty):
        convert(scenarios, tmp_path, to="flat")
    with pytest.raises(CreditNotCarried):
        convert(scenarios, tmp_path / "out", to="preference", rule="shared", credit=by("shared"))
