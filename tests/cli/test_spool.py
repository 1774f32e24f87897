from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.fake import Fake, fake_server
from tracestore.cli.main import main
from tracestore.client.server import Posted
from tracestore.client.settings import Settings
from tracestore.client.spool import Spool


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    for name in ("TRACESTORE_API_KEY", "TRACESTORE_PROJECT", "TRACESTORE_SPOOL"):
        monkeypatch.delenv(name, raising=False)
    with fake_server() as fake:
        monkeypatch.setenv("TRACESTORE_URL", fake.url)
        yield fake


def _gap(name: str) -> Posted:
    return Posted(0, b'{"v":1,"kind":"gap","id":"%s","episode_id":"e","cause":"x"}' % name.encode())


def _spooled(folder: Path, owner: str, *names: str, is_open: bool = False) -> Spool:
    spool = Spool(folder, owner)
    spool.append([_gap(name) for name in names])
    if not is_open:
        spool.release()
    return spool


def _answered(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    code = main(["spool", *words, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_list_and_show_say_what_is_left(
    server: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _spooled(tmp_path, "a", "g1", "g2")
    running = _spooled(tmp_path, "b.c", "g3", is_open=True)
    _, files = _answered(capsys, "list", "--folder", str(tmp_path))
    assert [(one["project"], one["events"], one["state"]) for one in files] == [
        ("a", 2, "waiting"),
        ("b.c", 1, "in_use"),
    ]
    assert sum(one["bytes"] for one in files) == sum(path.stat().st_size for path in tmp_path.iterdir())
    code, events = _answered(capsys, "show", "--folder", str(tmp_path), "--project", "a")
    assert code == 0
    assert [(one["line"], one["kind"], one["id"], one["episode_id"]) for one in events] == [
        (1, "gap", "g1", "e"),
        (2, "gap", "g2", "e"),
    ]
    assert main(["spool", "show", "--folder", str(tmp_path)]) == 0
    assert "g3" in capsys.readouterr().out
    running.release()


def test_drain_sends_every_project_and_leaves_what_is_in_use(
    server: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACESTORE_SPOOL", str(tmp_path))
    _spooled(tmp_path, "a", "g1", "g2")
    _spooled(tmp_path, "b", "g3")
    running = _spooled(tmp_path, "b", "g4", is_open=True)
    assert _answered(capsys, "drain") == (0, [{"taken": 3, "rejected": 0, "in_use": 1, "left": 1}])
    projects = [request.headers["X-Tracestore-Project"] for request in server.requests]
    assert (projects, [event.id for event in server.events]) == (["a", "b"], ["g1", "g2", "g3"])
    running.release()
    assert _answered(capsys, "drain") == (0, [{"taken": 1, "rejected": 0, "in_use": 0, "left": 0}])
    assert list(tmp_path.iterdir()) == []


def test_what_the_server_does_not_take_is_named_and_kept(
    server: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool = _spooled(tmp_path, "a", "g1")
    spool.append([Posted(0, b'{"v":1,"kind":"gap","id":"bad","episode_id":"e"}')])
    spool.release()
    assert main(["spool", "drain", "--folder", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "rejected  1" in out
    assert "line 1: gap bad" in err
    _, files = _answered(capsys, "list", "--folder", str(tmp_path))
    assert [(one["events"], one["state"]) for one in files] == [(1, "rejected")]


def test_a_refusal_of_one_project_does_not_stop_the_others(
    server: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _spooled(tmp_path, "a", "g1")
    _spooled(tmp_path, "b", "g2")
    server.answers = [(403, {}, {"title": "The key is of another project"})]
    assert main(["spool", "drain", "--folder", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "The key is of another project" in err
    assert "left      1" in out
    assert [event.id for event in server.events] == ["g2"]


def test_events_go_out_with_the_key_they_were_recorded_with(
    server: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def owner(key: str) -> str:
        return Settings.read(url=None, api_key=key, project=None, spool_dir=None, environ={}).owner

    _spooled(tmp_path, owner("ts_mine"), "g1")
    _spooled(tmp_path, owner("ts_old"), "g2")
    assert "mine" not in " ".join(os.listdir(tmp_path))
    monkeypatch.setenv("TRACESTORE_API_KEY", "ts_mine")
    monkeypatch.setenv("TRACESTORE_PROJECT", "elsewhere")
    server.key = "ts_mine"
    assert _answered(capsys, "drain", "--folder", str(tmp_path)) == (
        1,
        [{"taken": 1, "rejected": 0, "in_use": 0, "left": 1}],
    )
    assert "X-Tracestore-Project" not in server.requests[0].headers
    assert [event.id for event in server.events] == ["g1"]
    code, _ = _answered(capsys, "drain", "--folder", str(tmp_path), "--project", owner("ts_old"))
    assert code == 0
    assert [event.id for event in server.events] == ["g1", "g2"]


def test_without_a_folder_it_says_how_to_name_one(
    server: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spool", "list"]) == 2
    assert "TRACESTORE_SPOOL" in capsys.readouterr().err
    assert main(["spool", "list", "--folder", str(tmp_path / "gone")]) == 1
    assert "gone" in capsys.readouterr().err
