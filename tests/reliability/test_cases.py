"""What people reported of other stores, as promises of this one: ids, sizes, repeats, growth, lost ends."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from types import FrameType
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import func, select, text

from tests import factories as make
from tests.factories import answer, assistant, call, posted, tool, tool_use, user
from tests.reliability.recordings import array, conversation, names, statuses
from tracestore.graph.report import episode_tree
from tracestore.settings import Settings
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.verify import verify
from tracestore.wire.call import Attempt, CallError, Usage
from tracestore.wire.events import AnyEvent
from tracestore_api.app import create_app

JSON = {"Content-Type": "application/json"}


def post(client: TestClient, *events: AnyEvent, project: str = "default") -> Response:
    headers = {**JSON, "X-Tracestore-Project": project}
    return client.post("/v1/events", content=array(events), headers=headers)


def rows(store: Store, sql: str) -> list[Any]:
    with store.read() as connection:
        return list(connection.execute(text(sql)))


def count(store: Store, *names: str) -> int:
    """Rows of some tables together."""
    with store.read() as connection:
        tables = [t.metadata.tables[name] for name in names]
        return sum(connection.execute(select(func.count()).select_from(of)).scalar_one() for of in tables)


# Ids


def test_an_id_reused_by_another_episode_is_a_conflict_and_the_first_is_kept(client: TestClient) -> None:
    """langfuse#7716: the same id from another execution overwrote the first."""
    first = call("c", [user("first")], answer("one", ids=[1]), episode="e1")
    other = call("c", [user("other")], answer("two", ids=[2]), episode="e2")
    assert post(client, first).status_code == 200
    refused = post(client, other)
    assert (refused.status_code, refused.json()["items"][0]["problem"]["status"]) == (422, 409)
    kept = client.get("/v1/calls/c").json()
    assert (kept["episode_id"], kept["request"]["messages"][0]["content"]) == ("e1", "first")


@pytest.mark.parametrize("provider_id", [None, "None", "null", "", "chatcmpl-1"])
def test_ids_of_a_provider_are_data_however_they_repeat(
    client: TestClient, store: Store, provider_id: str | None
) -> None:
    """litellm#6633, #28376, #35563: calls vanished behind a repeated, null or "None" response id."""
    calls = [call(f"c{n}", [user(str(n))], "ok", provider_id=provider_id) for n in range(3)]
    assert post(client, *calls).json()["stored"] == 3
    got = rows(store, "SELECT call_id, provider_id FROM calls ORDER BY call_id")
    assert [tuple(row) for row in got] == [(f"c{n}", provider_id) for n in range(3)]


def test_a_batch_sent_again_and_overlapping_batches_store_each_event_once(
    client: TestClient, store: Store
) -> None:
    """langsmith-sdk#158 and codex-observability-plugin#46: a retry was an error, or doubled 198 traces."""
    events = [event for n in range(4) for event in conversation(f"e{n}", turns=3)]
    assert post(client, *events[:14]).json()["stored"] == 14
    overlapping = post(client, *events[6:])
    assert (overlapping.status_code, overlapping.json()["duplicate"]) == (200, 14 - 6)
    again = post(client, *events)
    assert (again.status_code, again.json()["duplicate"], again.json()["stored"]) == (200, len(events), 0)
    assert store.snapshot("default") == len(events)


# Sizes


def test_a_message_of_megabytes_is_stored_whole_and_read_back_byte_for_byte(client: TestClient) -> None:
    """langfuse#1676, #4940, #6536: items over 1 MB were truncated or dropped."""
    content = random.Random(0).randbytes(3 * 2**20).hex()
    event = call("c", [user(content)], "ok")
    assert post(client, event).json()["stored"] == 1
    assert event.request is not None
    assert client.get("/v1/calls/c/request").content == bytes(event.request)


def test_floats_in_arrays_count_toward_the_size_of_an_event(store: Store) -> None:
    """litellm#24928: embeddings went around a cap that counted texts only."""
    small = make.gap("small", meta=[0.125] * 10)
    embedding = make.gap("embedding", meta=[0.123456789] * 1_000)  # 11 bytes and a comma each
    limits = Settings(max_event_bytes=11_000)
    with TestClient(create_app(store, settings=limits), base_url="http://127.0.0.1") as client:
        response = post(client, small, embedding)
    assert response.status_code == 207
    stored, refused = response.json()["items"]
    assert (stored["status"], refused["status"]) == ("stored", "invalid")
    assert (refused["problem"]["status"], refused["problem"]["limit"]) == (413, 11_000)


def test_a_turn_of_1446_events_is_refused_whole_over_the_limit_and_complete_in_chunks(store: Store) -> None:
    """openhuman#4675: what was beyond a cap of 500 events was lost in silence."""
    events: list[AnyEvent] = [make.gap(f"g{n}") for n in range(1_446)]
    with TestClient(
        create_app(store, settings=Settings(max_events=500)), base_url="http://127.0.0.1"
    ) as client:
        whole = post(client, *events)
        assert (whole.status_code, whole.json()["limit"]) == (413, 500)
        assert store.snapshot("default") == 0
        chunks = [post(client, *events[start : start + 500]).json() for start in range(0, 1_446, 500)]
    assert [chunk["stored"] for chunk in chunks] == [500, 500, 446]
    assert store.snapshot("default") == 1_446


def test_a_cursor_leads_through_more_rows_than_any_page_holds(client: TestClient) -> None:
    """phoenix#10079, #4285, #4331: lists ended at an unspoken 1,000 rows."""
    post(client, *(make.reward(f"r{n}", float(n)) for n in range(2_101)))
    seen: list[str] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        query = "limit=1000" if cursor is None else f"limit=1000&cursor={cursor}"
        page = client.get(f"/v1/rewards?{query}").json()
        assert page["truncated"] == (page["next_cursor"] is not None)
        seen += [item["id"] for item in page["items"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert (pages, seen) == (3, [f"r{n}" for n in range(2_101)])


# What went wrong while it was recorded


def test_an_aborted_call_keeps_its_partial_answer_and_its_usage(client: TestClient, store: Store) -> None:
    """openllmetry#3151, dd-trace-py#20477, gemini-cli#28718: an aborted stream was recorded as nothing."""
    partial = answer("The bridge is 2,0", ids=[7, 8, 9], finish_reason=None, partial=True)
    usage = Usage(prompt_tokens=12, completion_tokens=3)
    post(client, call("c", [user("How long?")], partial, status="aborted", usage=usage))
    got = client.get("/v1/calls/c").json()
    assert (got["status"], got["usage"]["completion_tokens"]) == ("aborted", 3)
    assert got["completions"][0]["message"]["content"] == "The bridge is 2,0"
    assert got["completions"][0]["token_ids"] == [7, 8, 9]
    [row] = rows(store, "SELECT status, prompt_tokens, sampled_tokens FROM calls")
    assert tuple(row) == ("aborted", 12, 3)


def test_attempts_belong_to_one_call_and_do_not_double_its_content(client: TestClient, store: Store) -> None:
    """semconv-genai#476: retries were calls of their own, with the request once more in each."""
    attempts = (
        Attempt(status_code=529, error="overloaded"),
        Attempt(status_code=529),
        Attempt(status_code=200),
    )
    usage = Usage(prompt_tokens=5, completion_tokens=2, cost_usd=0.003)
    post(client, call("c", [user("once")], "ok", attempts=attempts, usage=usage))
    [row] = rows(store, "SELECT num_attempts, cost_usd FROM calls")
    assert tuple(row) == (3, 0.003)
    assert len(rows(store, "SELECT * FROM messages WHERE role = 'user'")) == 1
    assert [a.get("status_code") for a in client.get("/v1/calls/c").json()["attempts"]] == [529, 529, 200]


def test_failed_calls_do_not_break_a_listing_or_a_tree(client: TestClient) -> None:
    """phoenix#5750: one errored trace and the page was an error."""
    error = CallError(type="overloaded", message="\ud83d no \x00 more", status_code=529)
    post(
        client,
        make.episode("broken", status="infra_error", error="\udc00"),
        call("failed", [user("u")], episode="broken", status="failed", error=error),
        call("nothing", None, episode="broken"),
        call("odd", make.raw({"messages": 7}), episode="broken"),
        make.episode("sound"),
        call("good", [user("u")], "ok", episode="sound"),
    )
    listed = client.get("/v1/episodes").json()["items"]
    assert [item["id"] for item in listed] == ["broken", "sound"]
    for path in ("episodes/broken", "episodes/sound", "calls/failed", "calls/nothing", "calls/odd"):
        assert client.get(f"/v1/{path}").status_code == 200, path


def test_a_lone_surrogate_in_a_tool_result_is_stored_shown_and_listed(
    client: TestClient, store: Store
) -> None:
    """inspect_ai#2316, #3802, strands-agents/evals#380: one broken character failed the batch or the log."""
    said = assistant(None, tool_calls=[tool_use("run", '{"x": "\\ud83d"}')])
    events = [
        call("c1", [user("u")], answer(said)),
        call("c2", [user("u"), said, tool("out \ud83d\x00 put")], "done"),
    ]
    assert post(client, *events).json()["stored"] == 2
    assert b"\\ud83d" in client.get("/v1/calls/c2/request").content
    assert json.loads(client.get("/v1/calls/c2/context").content)["messages"][2]["message"]["content"] == (
        "out \ud83d\x00 put"
    )
    previews = rows(store, "SELECT preview FROM messages WHERE role = 'tool'")
    assert [row.preview.startswith("out ") for row in previews] == [True]


# Starts and ends


def test_halves_and_wholes_posted_at_once_by_many_are_one_call_each(store: Store) -> None:
    """mlflow PR#22304, #23244: concurrent start and log stored 18 spans for 9."""
    writers, calls = 4, 9
    with TestClient(create_app(store), base_url="http://127.0.0.1") as client:
        together = Barrier(writers)

        def write(number: int) -> None:
            halves: list[AnyEvent] = []
            for n in range(calls):
                start = call(f"c{n}", [user(f"q{n}")], phase="start", started_at=n)
                end = call(f"c{n}", None, answer(f"a{n}", ids=[n]), phase="end", ended_at=n + 1)
                halves += [start, end]
            random.Random(number).shuffle(halves)
            together.wait(timeout=60)
            for half in halves:
                assert post(client, half).status_code == 200

        with ThreadPoolExecutor(writers) as threads:
            list(threads.map(write, range(writers)))
        got = rows(store, "SELECT call_id, is_complete, sampled_tokens FROM calls ORDER BY call_id")
    assert [tuple(row) for row in got] == [(f"c{n}", 1, 1) for n in range(calls)]
    assert count(store, "raw_event") == calls * 2
    assert verify(store, "default").problems == ()


def test_a_call_whose_end_never_came_is_listed_after_any_timeout_and_its_end_may_still_come(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """langsmith-sdk#453: a run without an end stayed pending for ever, and nothing listed it."""
    hour = 3_600 * 10**9

    def received_at(hours: int, *events: AnyEvent) -> None:
        monkeypatch.setattr("time.time_ns", lambda: hours * hour)
        assert post(client, *events).status_code == 200
        monkeypatch.undo()

    def lost(timeout: int, **more: str) -> list[tuple[str, str]]:
        """What has waited for its other half for so many hours at hour 10."""
        found = client.get("/v1/incomplete", params={"received_before": (10 - timeout) * hour, **more}).json()
        return [(item["id"], item["missing"]) for item in found["items"]]

    received_at(1, call("dead", [user("u")], phase="start"), call("done", [user("w")], phase="start"))
    received_at(2, call("done", None, "ok", phase="end"), call("whole", [user("x")], "ok"))
    received_at(3, call("headless", None, "ok", phase="end"), make.agent("a", phase="start"))
    received_at(9, call("running", [user("v")], phase="start"))

    assert lost(5) == [("dead", "end"), ("headless", "start"), ("a", "end")]
    assert lost(0) == [("dead", "end"), ("headless", "start"), ("a", "end"), ("running", "end")]
    assert lost(5, kind="agent", episode_id="e") == [("a", "end")]
    assert lost(5, episode_id="other") == []
    by_sql = rows(store, "SELECT call_id FROM calls WHERE NOT is_complete ORDER BY call_id")
    assert [row.call_id for row in by_sql] == ["dead", "running"]  # a view says whether its end came
    assert client.get("/v1/calls/dead").json()["is_complete"] is False
    received_at(11, call("dead", None, "here", phase="end"))
    assert lost(5, kind="call") == [("headless", "start")]


# Growth


def test_a_conversation_of_n_steps_takes_space_that_grows_with_n(store: Store) -> None:
    """langgraph#7714, #7843, gaia#818, deer-flow#3011: each step stored the whole state again."""

    def rows_after(steps: int) -> int:
        project = f"p{steps}"
        events = conversation("e", turns=steps, size=400)
        assert {o.status for o in store.ingest(project, [posted(event) for event in events])} == {"stored"}
        return count(store, *t.metadata.tables)

    totals = [0, *(rows_after(steps) for steps in (20, 40, 80))]
    added = [after - before for before, after in pairwise(totals)]
    # Twice the steps: twice the rows, and not four times.
    assert added[1] < 2.1 * added[0]
    assert added[2] < 2.1 * added[1]


def test_the_bytes_of_a_long_context_are_stored_once_and_not_with_every_call(store: Store) -> None:
    """The sum over 60 calls of what each saw is 30 times what the last one saw."""
    events = conversation("e", turns=60, size=1_000)
    sent = sum(len(posted(event)[1]) for event in events)
    store.ingest("p", [posted(event) for event in events])
    kept = _content_bytes(store)
    told = 60 * (1_000 + 2 * len("e says 59"))  # one user message and one answer a turn
    assert sent > 25 * told
    assert kept < 2 * told


def test_a_forked_history_is_stored_once_and_the_fork_costs_its_own_turns(store: Store) -> None:
    """codex#35647: each fork copied 62 MiB of history. Here a history of 400 KB, and three forks of it."""
    noise = random.Random(1)
    history = [user(noise.randbytes(2_000).hex()) for _ in range(100)]
    origin = call("c", history, "ok", episode="origin")
    store.ingest("p", [posted(origin)])
    before = _content_bytes(store)
    for n in range(3):
        fork = [
            make.episode(f"fork{n}", forked_from_episode_id="origin", forked_from_call_id="c"),
            call(f"f{n}", [*history, assistant("ok"), user(f"go on {n}")], "well", episode=f"fork{n}"),
        ]
        assert {o.status for o in store.ingest("p", [posted(event) for event in fork])} == {"stored"}
    assert _content_bytes(store) - before < 0.02 * before
    assert verify(store, "p").problems == ()


def test_contents_that_repeat_are_one_row_and_their_places_stay_linear(store: Store) -> None:
    """inspect_ai PR#4243: repeated messages broke references into pieces until they were 95% of the file."""
    same = [user("the same question"), assistant("the same answer")]

    def places(repeats: int) -> int:
        before = count(store, "node", "call", "completion")
        events = [
            call(f"{repeats}.{n}", same * n, "the same answer", episode=f"e{repeats}") for n in range(repeats)
        ]
        store.ingest("p", [posted(event) for event in events])
        return count(store, "node", "call", "completion") - before

    few, many = places(20), places(40)
    assert many < 2.2 * few
    contents = rows(store, "SELECT count(*) AS n FROM content WHERE role IN ('user', 'assistant')")
    assert contents[0].n == 2


def _content_bytes(store: Store) -> int:
    """Bytes of all bodies as they lie in the database."""
    return int(rows(store, "SELECT sum(length(data)) AS n FROM content")[0].n)


# Deliveries


def test_any_order_of_a_recording_ends_in_the_same_rows(client: TestClient, store: Store) -> None:
    """mastra#11289, phoenix#2069: children that came first were dropped or stayed unlinked."""
    events = [event for n in range(3) for event in conversation(f"e{n}", turns=4)]
    links = "SELECT call_id, link_call_id, link FROM calls ORDER BY call_id"
    post(client, *events, project="forwards")
    for event in reversed(events):
        assert post(client, event, project="backwards").json()["stored"] == 1
    ordered = {
        project: [
            tuple(row) for row in rows(store, links.replace("ORDER", f"WHERE project = '{project}' ORDER"))
        ]
        for project in ("forwards", "backwards")
    }
    assert ordered["forwards"] == ordered["backwards"]
    assert len(ordered["forwards"]) == 12


def test_an_answer_names_every_event_of_a_post_once_in_the_order_posted(client: TestClient) -> None:
    events = [event for n in range(3) for event in conversation(f"e{n}", turns=3)]
    answer_ = post(client, *events).json()
    assert [item["index"] for item in answer_["items"]] == list(range(len(events)))
    assert statuses(answer_).keys() == names(events)


# Reads of what has grown large


def steps_of(work: Callable[[], object]) -> int:
    """Python functions entered while something is done: its length, without a clock."""
    entered = 0

    def count_calls(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count_calls)
    try:
        work()
    finally:
        sys.setprofile(None)
    return entered


def test_the_tree_of_an_episode_takes_steps_that_grow_with_its_calls(store: Store) -> None:
    """mlflow#24314, #22844, langfuse PR#10581: the tree of 32,843 spans was built in quadratic time."""

    def steps(calls: int) -> int:
        events = [
            make.agent(f"{calls}/main", episode=f"e{calls}"),
            *(
                call(f"{calls}/{n}", [user(f"q{n}")], f"a{n}", episode=f"e{calls}", agent=f"{calls}/main")
                for n in range(calls)
            ),
        ]
        assert {o.status for o in store.ingest("p", [posted(one) for one in events])} == {"stored"}
        return steps_of(lambda: episode_tree(store.load_graph("p", f"e{calls}"), f"e{calls}"))

    few, many = steps(100), steps(400)
    # Four times the calls: four times the steps, and not sixteen.
    assert many < 5 * few
