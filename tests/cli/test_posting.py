"""`tracestore import --url`: what a server takes of an import, with a key, in parts and as blobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.serving import running_server
from tracestore.cli.main import main
from tracestore.store import Store
from tracestore.wire.encode import encode

Capture = pytest.CaptureFixture[str]


def test_an_import_is_posted_with_the_key_in_parts_and_large_events_as_blobs(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "t.db"
    empty_store(database)
    lab = ("--db", f"sqlite:///{database}", "--project", "lab")
    assert main(["keys", "create", "--json", *lab, "--scope", "write", "--name", "importer"]) == 0
    key = json.loads(capsys.readouterr().out)["key"]
    events = [make.episode(), make.agent(), *(make.call(f"c{n}", [make.user("q")], "a") for n in range(7))]
    large = make.call("large", [make.user("x" * 40_000)], "a")
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(encode(event) for event in [*events, large]) + b"\n")
    flags = ["--max-events", "3", "--max-event-bytes", "20000"]
    with running_server(database, flags=flags) as server:
        assert main(["import", "--json", "--url", server.url, str(path)]) == 1
        assert "401" in capsys.readouterr().err
        monkeypatch.setenv("TRACESTORE_API_KEY", key)
        counts = []
        for _ in range(2):
            assert main(["import", "--json", "--url", server.url, str(path)]) == 0
            facts = json.loads(capsys.readouterr().out)
            counts.append((facts["stored"], facts["duplicates"], facts["refused"]))
    assert counts == [(10, 0, 0), (0, 10, 0)]
    with Store.open(f"sqlite:///{database}") as store:
        assert store.request("lab", "large") == large.request
