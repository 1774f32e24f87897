from __future__ import annotations

import json
from pathlib import Path

from tests import factories as make
from tests.api.test_deletions import client_of, done
from tests.databases import empty_store
from tests.factories import posted
from tracestore.store import Store
from tracestore.store.redact import add_rules, redactions
from tracestore.store.verify import verify
from tracestore.wire.encode import encode

RULES = [{"name": "key", "pattern": "sk-[A-Z0-9]+"}]


def test_a_redaction_is_followed_and_holds_for_what_comes(tmp_path: Path) -> None:
    call = make.call("c", [make.user("it is sk-A1")], agent="a")
    with Store.open(empty_store(tmp_path / "store.db")) as store, client_of(store) as client:
        store.ingest("default", [posted(one) for one in (make.episode("e"), make.agent("a"), call)])
        answer = client.post("/v1/redactions", json={"rules": RULES, "reason": "leaked"})
        assert answer.status_code == 202
        found = done(client, answer.headers["location"])
        assert (found["rules"], found["reason"], found["asked_by"]) == (RULES, "leaked", None)
        assert (found["events"], found["values"], found["contents"]) == (1, 1, 1)
        assert client.get("/v1/redactions").json()["items"] == [found]
        assert "[redacted:key]" in client.get("/v1/calls/c/request").text
        later = make.call("d", [make.user("and sk-A2, sk-A3")], agent="a")
        [first, second] = client.post("/v1/events", content=encode(call) + b"\n" + encode(later)).json()[
            "items"
        ]
        assert (first["status"], first["redacted"]) == ("duplicate", 1)
        assert (second["status"], second["redacted"]) == ("stored", 2)
        assert client.post("/v1/events", content=encode(later)).json()["duplicate"] == 1
        assert "sk-" not in client.get("/v1/calls/d/request").text
        ended = client.delete(f"/v1/redactions/{found['id']}").json()
        assert ended["ended_at"] is not None
        [item] = client.post("/v1/events", content=encode(make.gap("g", detail="sk-A4"))).json()["items"]
        assert "redacted" not in item
        assert verify(store, "default").problems == ()


def test_rules_that_cannot_be_used_are_a_problem_that_says_why(tmp_path: Path) -> None:
    with Store.open(empty_store(tmp_path / "store.db")) as store, client_of(store) as client:
        for body in ({"rules": [{"name": "a"}]}, {"rules": []}, [], {"rules": RULES, "more": 1}):
            answer = client.post("/v1/redactions", json=body)
            assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        assert client.post("/v1/redactions", content=b"[" * 100_000).status_code == 422
        assert client.post("/v1/redactions", content=b"[" * 300_000).status_code == 413
        assert client.get("/v1/redactions/7").status_code == 404
        assert client.delete("/v1/redactions/7").status_code == 404


def test_a_stopped_servers_redaction_is_gone_on_with_and_pages_list_all(tmp_path: Path) -> None:
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        store.ingest("default", [posted(make.episode("e", error="sk-A1"))])
        asked = [add_rules(store, "default", json.dumps(RULES)) for _ in range(3)]
        with client_of(store) as client:
            done(client, f"/v1/redactions/{asked[-1].id}")
            page = client.get("/v1/redactions", params={"limit": 2}).json()
            rest = client.get("/v1/redactions", params={"cursor": page["next_cursor"]}).json()
        assert [one["id"] for one in page["items"] + rest["items"]] == [one.id for one in reversed(asked)]
        assert (page["truncated"], rest["truncated"]) == (True, False)
        assert {one.state for one in redactions(store, "default")} == {"done"}
