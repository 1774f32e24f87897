"""What people reported of reading other stores, as promises of this one: caps, cursors, times, numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tests import factories as make
from tests.databases import machine_steps
from tests.factories import call, raw, user
from tests.reliability.recordings import array
from tracestore.store import Store
from tracestore.wire.base import Raw
from tracestore.wire.events import AnyEvent
from tracestore_api import lists, reads
from tracestore_api.lists import AgentPage, CallPage, EpisodePage, list_agents, list_calls, list_episodes

NOON = 1_700_000_000 * 10**9
"""2023-11-14T22:13:20Z."""


def post(client: TestClient, *events: AnyEvent) -> None:
    response = client.post("/v1/events", content=array(events))
    assert response.status_code == 200, response.text


def pages(client: TestClient, path: str) -> Iterator[list[str]]:
    """The ids of every page of a list, to the last."""
    cursor = ""
    while True:
        page = client.get(path + cursor).json()
        yield [item["id"] for item in page["items"]]
        assert page["truncated"] == (page["next_cursor"] is not None)
        if page["next_cursor"] is None:
            return
        cursor = f"&cursor={page['next_cursor']}"


# Times


@pytest.mark.parametrize("few", [0, 2, 1000])
def test_a_range_of_time_with_an_offset_lists_what_the_same_moments_in_utc_list(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """phoenix#3024: a range that was given with an offset was off by it."""
    monkeypatch.setattr(lists, "_FEW_STARTED", few)
    # Not in the order of their times.
    post(client, *(make.episode(f"e{n}", started_at=NOON + n * 10**9) for n in (3, 0, 4, 1, 2)))
    ranges = [
        ("2023-11-14T22:13:21Z", "2023-11-14T22:13:24Z"),
        ("2023-11-15T03:43:21+05:30", "2023-11-14T14:13:24-08:00"),
        (str(NOON + 10**9), str(NOON + 4 * 10**9)),
    ]
    for start, end in ranges:
        path = f"/v1/episodes?limit=2&started_from={quote(start)}&started_before={quote(end)}"
        assert list(pages(client, path)) == [["e3", "e1"], ["e2"]]


@pytest.mark.parametrize("few", [0, 2, 1000])
def test_a_range_of_time_and_another_filter_both_hold(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(lists, "_FEW_STARTED", few)
    post(
        client,
        *(
            make.episode(f"e{n}", started_at=NOON + n, status="ok" if n % 2 else "failed", split="train")
            for n in range(6)
        ),
        make.episode("unknown", status="ok"),
    )
    path = f"/v1/episodes?limit=1&started_from={NOON + 1}&started_before={NOON + 5}&status=ok&split=train"
    assert list(pages(client, path)) == [["e1"], ["e3"]]


# Caps


def test_every_episode_of_a_filter_is_reached_over_any_page(client: TestClient) -> None:
    """phoenix#10079, #4285, #4331: lists ended at an unspoken 1,000 rows."""
    post(
        client,
        *(
            make.episode(f"e{n}", started_at=NOON + n, status="failed" if n % 2 else "ok", task_id="t")
            for n in range(2_202)
        ),
    )
    even = [f"e{n}" for n in range(0, 2_202, 2)]
    for asked in ("status=ok", f"status=ok&started_from={NOON}", "status=ok&task_id=t"):
        found = list(pages(client, f"/v1/episodes?limit=1000&{asked}"))
        assert [len(page) for page in found] == [1000, 101]
        assert [id_ for page in found for id_ in page] == even


def test_a_large_tree_is_its_head_and_says_what_it_leaves_out(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """langwatch#4902: what a cap left out was not said. mlflow#24314: a trace of 32,843 spans came whole."""
    monkeypatch.setattr(reads, "MOST_EVENTS", 6)
    post(
        client,
        make.agent("main"),
        *(call(f"c{n}", [user(f"u{n}")], f"a{n}", ordinal=n) for n in range(4)),
    )
    tree = client.get("/v1/episodes/e").json()
    assert (tree["num_events"], tree["truncated"]) == (5, False)
    post(
        client,
        *(call(f"c{n}", [user(f"u{n}")], f"a{n}", ordinal=n) for n in range(4, 7)),
        make.group("g"),
        make.episode("e", status="ok", group_id="g"),
    )
    tree = client.get("/v1/episodes/e").json()
    # The agent, seven calls and the episode's own event, which is always there, and so is its group.
    assert (tree["num_events"], tree["truncated"]) == (9, True)
    assert [one["id"] for one in tree["agents"][0]["calls"]] == ["c0", "c1", "c2", "c3", "c4"]
    assert (tree["episode"]["status"], tree["group"]["is_complete"]) == ("ok", True)
    assert [id_ for page in pages(client, "/v1/calls?episode_id=e&limit=3") for id_ in page] == [
        f"c{n}" for n in range(7)
    ]


def test_the_first_page_of_a_tree_costs_the_same_however_many_calls_it_has(store: Store) -> None:
    """mlflow#24314, #22844, langfuse PR#10581: the first page of a large trace waited for all of it."""

    def first_page(episode: str) -> int:
        def read() -> None:
            list_agents(store, "default", AgentPage(episode_id=episode, limit=10))
            list_calls(store, "default", CallPage(episode_id=episode, limit=10))

        return machine_steps(store, read)

    for episode, calls in (("small", 40), ("large", 400)):
        steps = [
            call(f"{episode}/{n}", [user(f"u{n}")], episode=episode, agent=f"{episode}/{n // 4}")
            for n in range(calls)
        ]
        agents = [make.agent(f"{episode}/{n}", episode=episode) for n in range(calls // 4)]
        store.ingest("default", [make.posted(one) for one in [*agents, *steps]])
    # Ten times the calls; an index may be a page deeper.
    assert first_page("large") <= 1.2 * first_page("small")


def test_the_forks_of_an_episode_cost_the_same_however_many_other_episodes_there_are(store: Store) -> None:
    def forks() -> None:
        list_episodes(store, "default", EpisodePage(forked_from_episode_id="e", limit=10))

    made = [make.episode("e"), make.episode("f", forked_from_episode_id="e")]
    others = [make.episode(f"x{n}") for n in range(1000)]
    store.ingest("default", [make.posted(one) for one in [*made, *others[:100]]])
    few = machine_steps(store, forks)
    store.ingest("default", [make.posted(one) for one in others[100:]])
    assert machine_steps(store, forks) <= 1.2 * few


# Numbers


EXACT = raw(
    Raw(
        b'{"role":"user","content":"u","n":9007199254740993,"m":-123456789012345678901234567890,"z":-0,"x":1e400}'
    )
)


def test_numbers_beyond_a_double_come_back_digit_for_digit(client: TestClient) -> None:
    """langfuse#6628, mlflow#25219, pi#8943: whole numbers beyond 2^53 were rounded."""
    post(client, call("c", [EXACT], "a"))
    assert EXACT in client.get("/v1/calls/c/request").content
    for path in ("/v1/calls/c", "/v1/calls/c/context"):
        assert EXACT in client.get(path).content, path


def test_what_is_not_finite_comes_back_and_every_answer_is_strict_json(client: TestClient) -> None:
    """inspect_ai#4580, phoenix#2293: NaN broke the log, or made JSON that no browser reads."""
    request = b'{"messages":[{"role":"user","content":"u","score":NaN}],"bias":-Infinity}'
    body = (
        b'{"v":1,"kind":"call","id":"c","episode_id":"e","agent_id":"a","non_finite":true,"request":%s,'
        b'"completions":[{"token_ids":[1,2,3],"logprobs":[NaN,-Infinity,-0.5]}]}' % request
    )
    assert client.post("/v1/events", content=body).status_code == 200
    assert client.get("/v1/calls/c/request").content == request
    shown = strict(client.get("/v1/calls/c").text)
    assert shown["completions"][0]["logprobs"] == ["NaN", "-Infinity", -0.5]
    [message] = strict(client.get("/v1/calls/c/context").text)["messages"]
    assert message["message"] == {"$json": '{"role":"user","content":"u","score":NaN}'}
    for path in ("/v1/episodes/e", "/v1/calls?episode_id=e", "/v1/episodes", "/v1/agents"):
        strict(client.get(path).text)


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)
