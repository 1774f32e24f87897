"""What is stored of an episode and of a call, as the API shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.factories import (
    agent,
    answer,
    assistant,
    call,
    candidate_set,
    compaction,
    completion,
    episode,
    gap,
    group,
    member,
    posted,
    raw,
    reward,
    selection,
    subagent,
    system,
    tool,
    tool_call,
    tool_use,
    user,
)
from tracestore import __version__
from tracestore.store import tables as t
from tracestore.wire.events import AnyEvent

USES_TOOL = answer(assistant(None, tool_calls=[tool_use("search", '{"q": 1}')]), ids=[3, 4])
EVENTS: list[AnyEvent] = [
    group("g", size=4),
    episode("e", group_id="g", task_id="t", split="train"),
    agent("main", role="main", depth=0),
    call("c1", [system("s"), user("u")], USES_TOOL, ordinal=0, prompt_ids=[1, 2]),
    tool_call("x1", "c1", name="search", result=raw("found")),
    subagent("sub", spawned_by="c1", depth=1, name="finder"),
    call("s1", [user("find")], answer("found", ids=[9]), agent="sub", ordinal=0),
    call("c2", [system("s"), user("u"), USES_TOOL.message, tool("found")], "one", "two", ordinal=1),
    candidate_set("set1", member("c2", 0), member("c2", 1)),
    selection("sel1", "set1", 1, scores={0: 0.25, 1: 0.75}, selector="judge", reason="longer"),
    call("c3", [user("summary")], answer("done"), ordinal=2, parent="c2", completion=1, delta=True),
    compaction("edit1", before_call_id="c1", after_call_id="c2", status="accepted"),
    reward("r1", 0.5, call_id="c3", completion=0),
    gap("gap1", "no_token_ids", call_id="c3", agent_id="main"),
]


def post(client: TestClient, *events: AnyEvent) -> None:
    response = client.post(
        "/v1/events", content=b"[" + b",".join(posted(event)[1] for event in events) + b"]"
    )
    assert response.status_code == 200, response.text


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_tree_of_an_episode_has_its_agents_calls_and_all_around_them(client: TestClient) -> None:
    post(client, *EVENTS)
    tree = client.get("/v1/episodes/e").json()
    assert (tree["id"], tree["episode"]["task_id"], tree["group"]["size"]) == ("e", "t", 4)
    assert [(a["id"], a["parent_agent_id"], [c["id"] for c in a["calls"]]) for a in tree["agents"]] == [
        ("main", None, ["c1", "c2", "c3"]),
        ("sub", "main", ["s1"]),
    ]
    first, second, third = tree["agents"][0]["calls"]
    assert first["completions"] == [
        {
            "index": 0,
            "finish_reason": "stop",
            "partial": None,
            "num_token_ids": 2,
            "preview": first["completions"][0]["preview"],
        }
    ]
    assert [t["id"] for t in first["tool_calls"]] == ["x1"]
    assert second["link"] == {"parent": {"call_id": "c1", "completion": 0}, "how": "matched", "exact": True}
    assert third["link"]["parent"] == {"call_id": "c2", "completion": 1}
    assert [s["selected"] for s in tree["candidate_sets"][0]["selections"]] == [[1]]
    assert [e["id"] for e in tree["context_edits"]] == ["edit1"]
    assert [r["value"] for r in tree["rewards"]] == [0.5]
    assert [g["cause"] for g in tree["gaps"]] == ["no_token_ids"]
    assert "request" not in first


def test_an_agent_that_only_a_call_names_is_shown_as_not_recorded(client: TestClient) -> None:
    post(client, call("c1", [user("u")], "a", agent="ghost"))
    tree = client.get("/v1/episodes/e").json()
    assert tree["episode"] is None
    assert [(a["id"], a["is_recorded"], len(a["calls"])) for a in tree["agents"]] == [("ghost", False, 1)]


def test_what_has_not_ended_is_not_complete_and_what_has_no_place_yet_is_still_shown(
    client: TestClient,
) -> None:
    post(
        client,
        episode("e", phase="start"),
        call("c1", [user("u")], "a", parent="c0"),
        completion("c0", 1, "late"),
        tool_call("x1", "c0"),
        selection("sel1", "set1", 0),
    )
    tree = client.get("/v1/episodes/e").json()
    assert tree["episode"]["is_complete"] is False
    assert tree["agents"][0]["calls"][0]["is_complete"] is True
    assert tree["orphans"] == [{"kind": "call", "id": "c1"}]
    assert [(c["call_id"], c["index"]) for c in tree["unplaced"]["completions"]] == [("c0", 1)]
    assert [t["id"] for t in tree["unplaced"]["tool_calls"]] == ["x1"]
    assert [s["id"] for s in tree["unplaced"]["candidate_selections"]] == ["sel1"]


def test_a_long_chain_of_agents_is_a_shallow_document(client: TestClient) -> None:
    chain = [agent(f"a{n:04}", parent_agent_id=f"a{n - 1:04}" if n else None) for n in range(600)]
    post(client, *chain)
    assert [a["id"] for a in client.get("/v1/episodes/e").json()["agents"]] == [a.id for a in chain]


def test_a_call_has_its_request_its_tokens_and_its_link(client: TestClient) -> None:
    post(client, *EVENTS)
    shown = client.get("/v1/calls/c1").json()
    assert shown["prompt_token_ids"] == [1, 2]
    assert shown["completions"][0]["token_ids"] == [3, 4]
    assert shown["completions"][0]["logprobs"] == [-0.5, -0.5]
    assert shown["request"]["messages"] == [system("s"), user("u")]
    assert shown["tool_calls"][0]["result"] == "found"
    assert shown["is_pending"] is False


def test_the_context_of_a_delta_call_is_what_its_parent_saw_then_its_answer_then_its_own(
    client: TestClient,
) -> None:
    post(client, *EVENTS)
    context = client.get("/v1/calls/c3/context").json()
    assert [m["message"].get("content") for m in context["messages"]] == [
        "s",
        "u",
        None,
        "found",
        "two",
        "summary",
    ]
    assert [m["author"] for m in context["messages"]] == [
        None,
        None,
        {"call_id": "c1", "completion": 0},
        None,
        {"call_id": "c2", "completion": 1},
        None,
    ]


def test_a_delta_call_whose_parent_has_not_come_is_pending_and_says_so(client: TestClient) -> None:
    post(client, call("c1", [user("more")], "a", parent="c0", delta=True))
    context = client.get("/v1/calls/c1/context").json()
    assert (context["is_pending"], context["messages"]) == (True, None)
    post(client, call("c0", [user("first")], "said"))
    context = client.get("/v1/calls/c1/context").json()
    assert [m["message"]["content"] for m in context["messages"]] == ["first", "said", "more"]


def test_the_request_is_the_posted_bytes_and_a_call_without_one_has_none(client: TestClient) -> None:
    request = raw({"messages": [user("u")], "n": 1})
    post(client, call("c1", request, "a"), call("c2", None, "a"))
    assert client.get("/v1/calls/c1/request").content == request
    assert client.get("/v1/calls/c2/request").status_code == 404


@pytest.mark.parametrize("id_", ["a/b", "a/context", "a%2Fb", "é 中", "?x=1#y", ".", "a+b"])
def test_any_id_can_be_asked_for(client: TestClient, id_: str) -> None:
    from urllib.parse import quote

    post(client, call(id_, [user("u")], "a", episode=id_))
    path = quote(id_, safe="").replace(".", "%2E")
    assert client.get(f"/v1/calls/{path}").json()["id"] == id_
    assert client.get(f"/v1/calls/{path}/context").json()["call_id"] == id_
    assert client.get(f"/v1/episodes/{path}").json()["id"] == id_


def test_what_is_only_referred_to_is_not_found(client: TestClient) -> None:
    post(client, call("c1", [user("u")], "a", parent="c0"), episode("fork", forked_from_episode_id="origin"))
    for path in ("/v1/calls/c0", "/v1/episodes/origin"):
        response = client.get(path)
        assert (response.status_code, "/v1/orphans" in response.json()["hint"]) == (404, True)


def test_another_projects_call_is_exactly_as_absent_as_one_that_never_was(client: TestClient) -> None:
    post(client, call("c1", [user("u")], "a"))
    other = {"X-Tracestore-Project": "other"}
    there, nowhere = (client.get(f"/v1/calls/{id_}", headers=other).text for id_ in ("c1", "c2"))
    assert there.replace("c1", "c2") == nowhere


def test_values_that_are_not_finite_come_out_as_strict_json(client: TestClient) -> None:
    body = (
        b'{"v":1,"kind":"call","id":"c1","episode_id":"e","agent_id":"main","non_finite":true,'
        b'"request":{"messages":[{"role":"user","content":"u"}],"bias":NaN},'
        b'"completions":[{"message":{"role":"assistant","content":"a"},"token_ids":[1,2,3],"logprobs":[NaN,-Infinity,null]}]}'
    )
    assert client.post("/v1/events", content=body).status_code == 200
    shown = strict(client.get("/v1/calls/c1").text)
    assert shown["completions"][0]["logprobs"] == ["NaN", "-Infinity", None]
    assert shown["request"] == {"$json": '{"messages":[{"role":"user","content":"u"}],"bias":NaN}'}


def test_meta_says_what_a_client_must_know(client: TestClient) -> None:
    meta = client.get("/v1/meta", headers={"X-Tracestore-Project": "p"}).json()
    assert (meta["product"], meta["version"], meta["wire_versions"]) == ("tracestore", __version__, [1])
    assert (meta["project"], meta["schema_revision"]) == ("p", t.REVISION)
    assert meta["limits"]["max_event_bytes"] == 16 * 2**20
    assert meta["content_encodings"] == ["gzip", "zstd"]


def test_health_answers(client: TestClient) -> None:
    assert client.get("/v1/health").json() == {"status": "ok"}


def test_the_openapi_document_names_every_route_and_both_posts(client: TestClient) -> None:
    document = client.get("/v1/openapi.json").json()
    routes = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert {("post", "/v1/events"), ("post", "/v1/rewards"), ("get", "/v1/rewards")} <= routes
    assert ("get", "/v1/calls/{call_id}/context") in routes
    assert "Call" in document["components"]["schemas"]
