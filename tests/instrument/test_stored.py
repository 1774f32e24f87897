"""What a wrapped SDK and a decorated tool record is one call and one tool call in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai

from tests.instrument.upstream import Reply, chat, running_upstream
from tests.serving import Connection, running_server
from tracestore.client import Client, tool
from tracestore.instrument import wrap
from tracestore.store.verify import verify
from tracestore_migrations import open_store


@tool
def look(at: int) -> str:
    return "a bridge"


def test_a_retried_call_and_its_executed_tool_use_are_stored_once(tmp_path: Path) -> None:
    asked: Any = [{"role": "user", "content": "which?"}]
    database = tmp_path / "t.db"
    with running_upstream() as upstream, running_server(database) as server:
        upstream.replies = [
            Reply({"error": {"message": "busy"}}, status=500, headers={"retry-after-ms": "1"}),
            Reply(chat("I look.", tool=("call_1", "look", '{"at": 1}'), ids=[7, 8])),
        ]
        sdk = wrap(openai.OpenAI(base_url=upstream.url, api_key="k", max_retries=1))
        with sdk, Client(server.url) as client, client.episode() as episode, episode.agent() as agent:
            sdk.chat.completions.create(model="m", messages=asked)
            look(1)
            call_id = agent.last_call.id if agent.last_call else ""
        with Connection(server.url) as connection:
            status, call = connection.get(f"/v1/calls/{call_id}")
    assert status == 200
    assert [one["status_code"] for one in call["attempts"]] == [500, 200]
    assert call["status"] == "ok"
    (use,) = call["tool_calls"]
    assert (use["tool_call_id"], use["name"], use["result"], use["status"]) == (
        *("call_1", "look", "a bridge"),
        "ok",
    )
    store = open_store(f"sqlite:///{database}")
    try:
        assert verify(store, "default").problems == ()
    finally:
        store.close()
