"""`tracestore export` and `tracestore verify` as a user runs them, without the rest of the command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.stores import all_scenarios, flip_a_bit, shard_of, stored
from tracestore.cli import export, verify
from tracestore.cli.common import MissingExtra, UsageError
from tracestore.errors import TracestoreError
from tracestore.shards.manifest import NotAnExport, read_manifest
from tracestore.store.delete import carry_out, delete_episode
from tracestore.store.query import UnknownProject
from tracestore_exporters.export import BeyondLatest, OtherExport
from tracestore_migrations import open_store

SAMPLED = 531
"""Sampled tokens of all scenarios; 75 of them in rejected candidates."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("verbs")
    with stored(folder, all_scenarios()):
        return f"sqlite:///{folder}/t.db"


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers(dest="verb")
    for verb in (export, verify):
        verb.add_parser(subparsers)
    args = parser.parse_args(argv)
    return {"export": export, "verify": verify}[args.verb].run(args)


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return value


def test_export_prints_the_conservation_table(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", "--db", url, "--project", "p", "--out", str(tmp_path / "out")) == 0
    printed = capsys.readouterr().out
    assert "sampled    531  100.0 %" in printed
    assert "template_drift" in printed
    assert (tmp_path / "out" / "manifest.json").exists()


def test_export_ends_with_one_json_object(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text('{"candidates": "exclude"}')
    argv = ["--json", "--db", url, "--project", "p", "--out", str(tmp_path / "out"), "--spec", str(spec)]
    assert run("export", *argv) == 0
    facts = last_json(capsys)
    assert facts["sampled_tokens"] == SAMPLED
    assert facts["trained_tokens"] == SAMPLED - 75
    assert facts["excluded"] == {"candidate_excluded": 75}
    assert facts["excluded_tokens"] == 75
    assert facts["samples"] == 21
    assert len(facts["manifest_hash"]) == 64


def test_the_objective_can_be_named_without_a_spec(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run("export", "--json", "--db", url, "--project", "p", "--out", out, "--objective", "sft") == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["manifest"]["spec"]["objective"] == "sft"


def test_an_empty_export_says_why_on_stderr(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run("export", "--db", url, "--project", "p", "--out", out, "--snapshot", "0") == 0
    assert "project 'p' has no episodes at this snapshot" in capsys.readouterr().err


def test_a_misspelt_reward_is_told_on_the_terminal_and_in_the_manifest(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("rewards: {scoer: 1}")
    argv = ["export", "--db", url, "--project", "p", "--out", str(tmp_path / "out"), "--spec", str(spec)]
    assert run(*argv) == 0
    [said] = [one for one in capsys.readouterr().err.splitlines() if "scoer" in one]
    assert said.startswith("note: rewards: 'scoer' is not there; there are ")
    assert said.removeprefix("note: ") in read_manifest(tmp_path / "out").notes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("statuses: []", "statuses names nothing"),
        ("{started_from: 7, started_before: 7}", "no episode starts in"),
    ],
)
def test_a_spec_that_selects_nothing_is_refused(text: str, problem: str, url: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    argv = ["--project", "p", "--out", str(tmp_path / "out"), "--spec", str(tmp_path / "spec.yaml")]
    with pytest.raises(UsageError, match=problem):
        run("export", "--db", url, *argv, "--objective", "sft")


@pytest.mark.parametrize("argv", [["export", "--out", "out"], ["verify"], ["verify", "--json"]])
def test_a_project_that_is_not_there_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: Sequence[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownProject, match=r"projects in this database: p$"):
        run(*argv, "--db", url, "--project", "typo")
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_that_is_still_to_come_is_refused_with_the_latest(url: str, tmp_path: Path) -> None:
    with open_store(url) as store:
        latest = store.snapshot("p")
    argv = ["export", "--db", url, "--project", "p", "--out", str(tmp_path / "out")]
    with pytest.raises(BeyondLatest, match=f"latest={latest}"):
        run(*argv, "--snapshot", str(latest + 1))
    assert list(tmp_path.iterdir()) == []
    assert run(*argv, "--snapshot", str(latest)) == 0


def test_progress_ends_at_the_number_of_groups() -> None:
    steps: list[float] = []
    show = export._advances(steps.append)
    show(1, 7)
    show(4, 7)
    show(7, 7)
    assert steps == [1, 3, 3]


@pytest.mark.parametrize(
    "argv", [["--spec", "nowhere.json"], ["--snapshot", "-1"], ["--format", "atif", "--snapshot", "-1"]]
)
def test_a_wrong_request_is_a_usage_error(url: str, tmp_path: Path, argv: Sequence[str]) -> None:
    with pytest.raises(UsageError):
        run("export", "--db", url, "--project", "p", "--out", str(tmp_path / "out"), *argv)


def test_a_folder_in_use_is_refused(url: str, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(TracestoreError, match="not empty"):
        run("export", "--db", url, "--project", "p", "--out", str(tmp_path))


def test_verify_is_clean_for_an_export_and_for_its_store(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    run("export", "--json", "--db", url, "--project", "p", "--out", out)
    capsys.readouterr()
    assert run("verify", "--json", "--db", url, "--project", "p", out) == 0
    facts = last_json(capsys)
    assert (facts["sampled_tokens"], facts["trained_tokens"], facts["findings"]) == (SAMPLED, SAMPLED, 0)
    assert run("verify", "--json", "--db", url, "--project", "p") == 0
    assert last_json(capsys)["findings"] == 0


def test_verify_names_what_it_finds_and_exits_with_1(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    run("export", "--json", "--db", url, "--project", "p", "--out", out)
    flip_a_bit(shard_of(tmp_path / "out"))
    assert run("verify", "--db", url, "--project", "p", out) == 1
    assert f"shard_checksum: {shard_of(tmp_path / 'out').name}" in capsys.readouterr().out


def test_a_manifest_that_is_damaged_is_a_finding(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    assert run("verify", "--db", url, "--project", "p", str(tmp_path)) == 1
    assert "ManifestCorrupt" in capsys.readouterr().out


@pytest.mark.parametrize("name", [".", "none"])
def test_a_folder_that_is_no_export_was_asked_for_wrongly(url: str, tmp_path: Path, name: str) -> None:
    with pytest.raises(NotAnExport) as error:
        run("verify", "--db", url, "--project", "p", str(tmp_path / name))
    assert error.value.exit_code == 2


@pytest.mark.parametrize("format_", ["atif", "otlp", "rlm"])
def test_export_writes_episodes_in_a_format_of_others(
    format_: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run("export", "--format", format_, "--db", url, "--project", "p", "--out", str(out), "--json") == 0
    report = last_json(capsys)
    assert report["episodes"] == len(list(out.iterdir()))
    assert report["written"]["call"] > 0
    assert report["lost"] == {}


def test_a_format_of_others_follows_the_groups_and_the_redaction_of_a_spec(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(url) as store:
        [first, *_] = [id_ for group in store.groups("p") for id_ in group.episode_ids]
    (tmp_path / "spec.json").write_text(
        json.dumps({"groups": [first], "redaction": [{"name": "all", "path": "**.content"}]})
    )
    argv = ["--db", url, "--project", "p", "--out", str(tmp_path / "out"), "--json"]
    assert run("export", "--format", "atif", *argv, "--spec", str(tmp_path / "spec.json")) == 0
    report = last_json(capsys)
    assert report["episodes"] == 1
    assert report["lost"]["redacted text"] > 0
    [file] = (tmp_path / "out").iterdir()
    assert "[redacted:all]" in file.read_text()


@pytest.mark.parametrize("argv", [["--objective", "sft"], ["--tokenizer", "smollm2"]])
def test_a_format_of_others_has_no_spec(url: str, tmp_path: Path, argv: Sequence[str]) -> None:
    with pytest.raises(UsageError, match="belongs to shards"):
        run("export", "--format", "atif", *argv, "--db", url, "--out", str(tmp_path / "out"))


def test_a_deletion_names_the_exports_that_hold_it_and_verify_finds_it_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stored(tmp_path, all_scenarios()):
        here = ["--db", f"sqlite:///{tmp_path}/t.db", "--project", "p", "--json"]
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    for _ in range(2):  # the second changes nothing that a deletion would name twice
        out = before if not Path(before).exists() else str(tmp_path / "again")
        assert run("export", *here, "--out", out) == 0
    made = last_json(capsys)
    with open_store(here[1]) as store:
        [first, *_] = [id_ for group in store.groups("p") for id_ in group.episode_ids]
        done = carry_out(store, "p", delete_episode(store, "p", first).id)
        assert store.snapshot("p") > made["snapshot"]
    assert (done.exports, done.export_locations) == ((made["manifest_hash"],), (before,))
    assert run("verify", *here, before) == 1
    [finding, summary] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (finding["name"], summary["findings"]) == ("deleted", 1)
    assert f"episode {first} was deleted" in finding["detail"]
    assert run("export", *here, "--out", after) == 0
    assert [stone["id"] for stone in read_manifest(Path(after)).tombstones] == [first]
    assert run("verify", *here, after) == 0


@pytest.mark.parametrize("argv", [["--workers", "2"], ["--engine", "ray"]])
def test_workers_make_shards_alone(url: str, tmp_path: Path, argv: Sequence[str]) -> None:
    with pytest.raises(UsageError, match="belongs to shards"):
        run("export", "--format", "atif", *argv, "--db", url, "--out", str(tmp_path / "out"))


def test_an_engine_that_is_not_installed_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "tracestore_exporters.on_ray", raising=False)
    with pytest.raises(MissingExtra, match=r'pip install "tracestore\[ray\]"'):
        run("export", "--db", url, "--project", "p", "--out", str(tmp_path / "out"), "--engine", "ray")
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_was_begun_is_ended_by_the_same_command_and_by_no_other(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["export", "--db", url, "--project", "p", "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr("tracestore_exporters.export.manifest_of", lambda *_: (_ for _ in ()).throw(OSError))
        with pytest.raises(OSError):  # noqa: PT011 - any that ends it here
            run(*argv)
    with pytest.raises(OtherExport, match=r"differs=\['objective'\]"):
        run(*argv, "--objective", "sft")
    assert run(*argv) == 0
    assert "note: going on with the export of snapshot" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
