"""Lists are pages that hold still while events come in."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.factories import (
    agent,
    call,
    candidate_set,
    episode,
    gap,
    group,
    member,
    posted,
    reward,
    selection,
    user,
)
from tracestore.wire.events import AnyEvent


def post(client: TestClient, *events: AnyEvent) -> None:
    response = client.post(
        "/v1/events", content=b"[" + b",".join(posted(event)[1] for event in events) + b"]"
    )
    assert response.status_code == 200, response.text


def items(client: TestClient, path: str) -> list[dict[str, Any]]:
    response = client.get(path)
    assert response.status_code == 200, response.text
    return response.json()["items"]  # type: ignore[no-any-return]


def ids(client: TestClient, path: str) -> list[str]:
    return [item["id"] for item in items(client, path)]


LISTED = {
    "episodes": lambda n: [episode(f"{n}")],
    "groups": lambda n: [group(f"{n}")],
    "rewards": lambda n: [reward(f"{n}")],
    "gaps": lambda n: [gap(f"{n}")],
    "candidates": lambda n: [candidate_set(f"{n}", member("c"))],
    "agents": lambda n: [agent(f"{n}"), reward(f"reward {n}")],
    "calls": lambda n: [call(f"{n}", [user("u")]), agent(f"agent {n}")],
}


@pytest.mark.parametrize("name", LISTED)
def test_paging_lists_everything_once_while_more_is_inserted(client: TestClient, name: str) -> None:
    for number in range(5):
        post(client, *LISTED[name](number))
    seen: list[str] = []
    cursor = ""
    for inserted in range(5, 20):
        page = client.get(f"/v1/{name}?limit=2{cursor}").json()
        seen += [item["id"] for item in page["items"]]
        assert page["truncated"] == (page["next_cursor"] is not None)
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
        if inserted < 8:
            post(client, *LISTED[name](inserted))
    assert seen == [str(number) for number in range(8)]


@pytest.mark.parametrize("name", [*LISTED, "orphans"])
def test_an_empty_project_lists_nothing(client: TestClient, name: str) -> None:
    assert client.get(f"/v1/{name}").json() == {"items": [], "next_cursor": None, "truncated": False}


def test_a_cursor_of_one_list_is_refused_by_another(client: TestClient) -> None:
    post(client, reward("r1"), reward("r2"), episode("e"))
    cursor = client.get("/v1/rewards?limit=1").json()["next_cursor"]
    assert client.get(f"/v1/gaps?cursor={cursor}").status_code == 422


def test_a_cursor_that_nests_without_end_is_refused(client: TestClient) -> None:
    cursor = base64.urlsafe_b64encode(b"[" * 3_000).decode()
    assert client.get(f"/v1/gaps?cursor={cursor}").status_code == 422


def test_episodes_are_filtered_by_group_task_split_status_and_start(client: TestClient) -> None:
    post(
        client,
        episode("e1", group_id="g1", task_id="t1", split="train", status="ok", started_at=10**18),
        episode("e2", group_id="g1", task_id="t2", split="eval", status="failed", started_at=10**18 + 1),
        episode("e3", group_id="g2"),
    )
    assert ids(client, "/v1/episodes?group_id=g1") == ["e1", "e2"]
    assert ids(client, "/v1/episodes?group_id=none") == []
    assert ids(client, "/v1/episodes?task_id=t1") == ["e1"]
    assert ids(client, "/v1/episodes?split=eval&status=failed") == ["e2"]
    assert ids(client, f"/v1/episodes?started_before={10**18 + 1}") == ["e1"]
    # 10^18 ns = 1,000,000,000 s = 2001-09-09T01:46:40Z
    assert ids(client, "/v1/episodes?started_from=2001-09-09T03:46:40.000000001%2B02:00") == ["e2"]


def test_the_forks_of_an_episode_are_listed_in_the_order_in_which_they_came(client: TestClient) -> None:
    post(
        client,
        episode("f2", forked_from_episode_id="e"),
        episode("e"),
        episode("f1", forked_from_episode_id="e", forked_from_call_id="c"),
        episode("g", forked_from_episode_id="f1"),
    )
    assert ids(client, "/v1/episodes?forked_from_episode_id=e") == ["f2", "f1"]
    assert ids(client, "/v1/episodes?forked_from_episode_id=f1") == ["g"]
    assert ids(client, "/v1/episodes?forked_from_episode_id=none") == []


def test_an_episode_counts_its_agents_and_calls_and_unknown_is_null(client: TestClient) -> None:
    post(client, agent("main"), call("c1", [user("u")], "a"), call("c2", [user("u")], "b"))
    [item] = items(client, "/v1/episodes")
    assert (item["id"], item["is_recorded"], item["num_agents"], item["num_calls"]) == ("e", False, 1, 2)
    assert item["group_id"] is item["status"] is item["started_at"] is None


def test_a_group_that_only_an_episode_names_is_listed(client: TestClient) -> None:
    post(client, episode("e1", group_id="g"), episode("e2", group_id="g"), group("h", size=2, task_id="t"))
    found = [(i["id"], i["is_recorded"], i["num_episodes"], i["size"]) for i in items(client, "/v1/groups")]
    assert found == [("g", False, 2, None), ("h", True, 0, 2)]
    assert ids(client, "/v1/groups?task_id=t") == ["h"]


def test_a_tree_is_its_agents_and_its_calls_with_what_each_follows(client: TestClient) -> None:
    post(
        client,
        agent("main"),
        call("c1", [user("u")], "a", "b"),
        agent("sub", parent_agent_id="main", spawned_by_call_id="c1"),
        call("c2", [user("v")], agent="sub"),
        call("c3", [user("w")], parent="c1", completion=1, delta=True),
        call("other", [user("u")], episode="e2", agent="elsewhere"),
    )
    agents = items(client, "/v1/agents?episode_id=e")
    assert [(one["id"], one["parent_agent_id"], one["spawned_by_call_id"]) for one in agents] == [
        ("main", None, None),
        ("sub", "main", "c1"),
    ]
    assert [one["num_calls"] for one in agents] == [2, 1]
    calls = items(client, "/v1/calls?episode_id=e")
    assert [(one["id"], one["agent_id"], one["num_completions"]) for one in calls] == [
        ("c1", "main", 2),
        ("c2", "sub", 0),
        ("c3", "main", 0),
    ]
    assert [(one["link_call_id"], one["link_completion"], one["link"]) for one in calls] == [
        (None, None, "none"),
        (None, None, "none"),
        ("c1", 1, "named"),
    ]
    assert [one["context_messages"] for one in calls] == [1, 1, 3]  # u; v; u, b, w
    assert ids(client, "/v1/calls?agent_id=sub") == ["c2"]
    assert ids(client, "/v1/calls?agent_id=nobody") == []


def test_a_call_is_listed_once_whichever_half_came_first_and_after_a_new_revision(client: TestClient) -> None:
    post(client, call("late", [user("u")], phase="end"), call("c", [user("u")], phase="start"))
    post(client, call("c", [user("u")], phase="end"), call("late", [user("u")], phase="start"))
    assert ids(client, "/v1/calls") == ["late", "c"]
    post(client, call("late", [user("u")], phase="start", model="m", revision=1))
    assert sorted(ids(client, "/v1/calls")) == ["c", "late"]


def test_candidates_show_their_members_and_every_selection(client: TestClient) -> None:
    post(
        client,
        candidate_set(
            "set1", member("c1", 0, score=0.5), member("c1", 1), member(agent="a2"), generator="policy"
        ),
        selection("sel1", "set1", 1, selector="judge", treatment="negative", scores={0: 0.25}),
        selection("sel2", "set1", selector="human", reason="none is right"),
        candidate_set("set2", member("c2"), episode="e2"),
    )
    first, second = items(client, "/v1/candidates")
    assert (first["id"], first["episode_id"], first["generator"]) == ("set1", "e", "policy")
    assert first["members"] == [
        {"member": 0, "call_id": "c1", "completion": 0, "agent_id": None, "score": 0.5},
        {"member": 1, "call_id": "c1", "completion": 1, "agent_id": None, "score": None},
        {"member": 2, "call_id": None, "completion": None, "agent_id": "a2", "score": None},
    ]
    assert [(s["id"], s["selected"], s["selector"], s["scores"]) for s in first["selections"]] == [
        ("sel1", [1], "judge", [{"member": 0, "score": 0.25}]),
        ("sel2", [], "human", []),
    ]
    assert (second["id"], second["selections"]) == ("set2", [])
    assert ids(client, "/v1/candidates?episode_id=e2") == ["set2"]


def test_a_selection_that_came_before_its_set_waits_for_it(client: TestClient) -> None:
    post(client, selection("sel1", "set1", 0))
    assert items(client, "/v1/candidates") == []
    post(client, candidate_set("set1", member("c1")))
    assert [s["id"] for s in items(client, "/v1/candidates")[0]["selections"]] == ["sel1"]


def test_rewards_are_filtered_by_what_they_are_for_and_who_gave_them(client: TestClient) -> None:
    post(
        client,
        reward("r1", 0.1),
        reward("r2", 0.2, name="format", scorer="regex", call_id="c1", completion=1, at=5),
        reward("r3", 0.3, call_id="c1", completion=0, token_start=2, token_length=3, at=6),
        reward("r4", 0.4, candidate_set_id="set1", member=2, episode="e2"),
    )
    assert ids(client, "/v1/rewards?episode_id=e2") == ["r4"]
    assert ids(client, "/v1/rewards?call_id=c1") == ["r2", "r3"]
    assert ids(client, "/v1/rewards?target=tokens") == ["r3"]
    assert ids(client, "/v1/rewards?name=format&scorer=regex") == ["r2"]
    assert ids(client, "/v1/rewards?at_from=5&at_before=6") == ["r2"]
    shown = items(client, "/v1/rewards")
    assert [r["value"] for r in shown] == [0.1, 0.2, 0.3, 0.4]
    assert [r["seq"] for r in shown] == sorted(r["seq"] for r in shown)
    assert (shown[3]["candidate_set_id"], shown[3]["member"]) == ("set1", 2)


def test_gaps_are_filtered_by_episode_and_cause(client: TestClient) -> None:
    post(
        client,
        gap("g1", "no_token_ids"),
        gap("g2", "unrecorded_stream", detail="SSE"),
        gap("g3", episode="e2"),
    )
    assert ids(client, "/v1/gaps?cause=unrecorded_stream") == ["g2"]
    assert ids(client, "/v1/gaps?episode_id=e2") == ["g3"]


def test_orphans_are_what_waits_for_something_and_page_by_id(client: TestClient) -> None:
    post(
        client,
        episode("e"),
        agent("main", episode="e"),
        call("c2", [user("u")], "a", parent="c1"),
        call("c3", [user("v")], "b", parent="c0"),
        agent("sub", episode="e", parent_agent_id="nobody"),
    )
    found = [(o["id"], o["kind"], o["missing"], o["missing_id"]) for o in items(client, "/v1/orphans")]
    assert found == [
        ("c2", "call", "parent_call", "c1"),
        ("c3", "call", "parent_call", "c0"),
        ("sub", "agent", "parent_agent", "nobody"),
    ]
    assert ids(client, "/v1/orphans?kind=agent&episode_id=e") == ["sub"]
    seen, cursor = [], ""
    while cursor is not None:
        page = client.get(f"/v1/orphans?limit=1{cursor}").json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
    assert seen == ["c2", "c3", "sub"]
    post(client, call("c1", [user("u")], "x"))
    assert ids(client, "/v1/orphans") == ["c3", "sub"]
