"""`tracestore export --format latents` and `train-links`, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.commands import run_verb
from tests.train.latents import played, two_agents, two_links
from tracestore.cli.main import main
from tracestore.shards.latents import write_latents
from tracestore.train.links import link_bytes, link_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Latents, two models, and the links that recorded them."""
    folder = tmp_path_factory.mktemp("links")
    agents, links = two_agents(), two_links()
    (folder / "latents").mkdir()
    episodes = [played(f"e{n}", agents=agents, links=links, n=n) for n in (1, 2)]
    write_latents(folder / "latents", episodes, project="p", snapshot=1)
    (folder / "links").mkdir()
    for name, agent in agents.items():
        agent.model.save_pretrained(folder / name)
        link_file(folder / "links", name).write_bytes(link_bytes(links[name]))
    return folder


def words(folder: Path) -> list[object]:
    models = [word for name in ("planner", "solver") for word in ("--model", folder / name)]
    return ["train-links", folder / "latents", *models]


def test_a_run_replays_trains_and_goes_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, facts = run_verb(capsys, *words(folder), "--links", folder / "links", "--out", out)
    assert code == 0
    assert (facts["episodes"], facts["transfers"], facts["replayed"], facts["steps"]) == (2, 1 + 3, 2, 2)
    assert [len(facts["losses"][name]) for name in ("inner", "outer")] == [1, 1]
    assert facts["links"].keys() == {"planner", "solver"}
    code, more = run_verb(capsys, *words(folder), "--out", out, "--outer-steps", 2, "--resume")
    assert (code, more["steps"], more["replayed"]) == (0, 1, None)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["objective"] for line in lines] == ["inner", "outer", "outer"]


def test_without_links_fresh_ones_are_trained_and_a_person_reads_each_step(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*map(str, words(folder)), "--inner-steps", "0", "--seed", "5"]) == 0
    out, err = capsys.readouterr()
    assert "replayed    NULL" in out
    assert "step 0  outer loss" in err
    assert "not kept" in err


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ([], "UsageError"),
        (["--model", "nowhere"], "UsageError"),
        (["--model", "planner"], "OtherModel"),
        (["--model", "planner", "--model", "solver", "--links", "nowhere"], "UsageError"),
        (["--model", "planner", "--model", "solver", "--links", "latents"], "BadLink"),
        (["--model", "planner", "--model", "solver", "--resume"], "UsageError"),
        (["--model", "planner", "--model", "solver", "--checkpoint-every", "1"], "UsageError"),
        (
            ["--model", "planner", "--model", "solver", "--inner-steps", "0", "--outer-steps", "0"],
            "UsageError",
        ),
        (["--model", "planner", "--model", "solver", "--answer", "no"], "NoAnswer"),
        (["--model", "planner", "--model", "solver", "--resume", "--out", "links"], "NoCheckpoint"),
        (["--model", "latents", "--model", "solver"], "ModelNotLoaded"),
    ],
)
def test_what_is_wrong_is_said_by_its_name(
    change: list[str],
    error: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    assert main(["train-links", "latents", *change, "--json"]) in (1, 2)
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["error"] == error


def test_another_folder_is_no_latents(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["train-links", folder / "links", "--model", folder / "planner"]
    assert main([*map(str, argv), "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"] == "NotLatents"
