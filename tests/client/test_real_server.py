"""The client against the server it is made for: keys, limits, large events, refusals."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.serving import running_server
from tracestore.cli.main import main
from tracestore.client import Client, RejectedEvents, RequestRefused


def test_a_key_opens_its_project_and_a_large_event_arrives_to_the_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "t.db"
    where = ("--db", f"sqlite:///{database}", "--project", "mine")
    scopes = ("--scope", "write", "--scope", "read")
    assert main(["keys", "create", "--json", *where, *scopes, "--name", "r"]) == 0
    key = json.loads(capsys.readouterr().out)["key"]
    request = b'{"messages": [{"role":"user",\n "content":"' + b"x" * 50_000 + b'\\ud83d"}], "seed": 1e400}'
    with running_server(database, flags=["--max-event-bytes", "20000", "--max-events", "7"]) as server:
        with Client(server.url, api_key=key) as client, client.episode("e") as episode:
            main_agent = episode.agent("a")
            main_agent.call(id="large", request=request)
            for n in range(30):
                main_agent.call(id=f"c{n}", messages=[])
            client.flush()
            client.event("gap", "bad", episode_id="e")
            with pytest.raises(RejectedEvents, match="#33 gap bad"):
                client.flush()
        asked = urllib.request.Request(f"{server.url}/v1/calls/large/request")
        asked.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.read() == request
        stranger = Client(server.url, api_key="ts_" + "0" * 40, spool_dir=tmp_path / "spool")
        stranger.event("gap", "g", episode_id="e", cause="x")
        with pytest.raises(RequestRefused, match="401"):
            stranger.flush()
        with pytest.raises(RequestRefused, match="401"):
            stranger.close()
    (kept,) = (tmp_path / "spool").iterdir()
    assert b'"id":"g"' in kept.read_bytes()
