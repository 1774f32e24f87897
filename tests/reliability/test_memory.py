"""What a server holds is bounded: flooded, it sends posts away and recovers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.databases import empty_store
from tests.reliability.recordings import Name, array, conversation, figure, names, statuses, stored
from tests.reliability.test_fuzz import peak_memory
from tests.serving import Connection, running_server


def test_a_flood_is_sent_away_with_retry_after_and_what_was_taken_is_stored(tmp_path: Path) -> None:
    """phoenix#9461: the queue had no bound, and memory grew until the process was killed."""
    database = tmp_path / "t.db"
    empty_store(database)
    acknowledged: dict[Name, str] = {}
    sent_away: list[tuple[int, str | None]] = []
    lock = threading.Lock()
    batches = [conversation(f"e{n}", turns=6) for n in range(24)]
    with running_server(database, flags=["--max-requests-in-hand", "2"]) as server:

        def client(number: int) -> None:
            with Connection(server.url) as connection:
                for events in batches[number::12]:
                    status, answer = connection.post("/v1/events", array(events))
                    with lock:
                        if status == 200:
                            acknowledged.update(statuses(answer))
                        else:
                            sent_away.append((status, answer.get("retry_after_s")))

        with ThreadPoolExecutor(12) as threads:
            list(threads.map(client, range(12)))
        assert sent_away
        assert {status for status, _ in sent_away} == {503}
        assert all(after for _, after in sent_away)
        # Again, one after the other: what was taken before is a duplicate, and all the rest is stored.
        with Connection(server.url) as connection:
            for events in batches:
                status, answer = connection.post("/v1/events", array(events))
                assert status == 200
                again = statuses(answer)
                assert all(
                    said == ("duplicate" if name in acknowledged else "stored")
                    for name, said in again.items()
                )
    assert stored(database) == names(event for events in batches for event in events)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_flood_of_large_bodies_is_bounded_by_what_may_be_in_hand(tmp_path: Path) -> None:
    """64 posts of 4 MiB at once, where 32 MiB may be in hand: the server never holds all of them."""
    database = tmp_path / "t.db"
    empty_store(database)
    flags = ["--max-body-bytes", str(16 * 2**20), "--max-bytes-in-hand", str(32 * 2**20)]
    body = array(conversation("large", turns=8, size=110_000))
    assert 3 * 2**20 < len(body) < 16 * 2**20
    with running_server(database, flags=flags) as server:
        before = peak_memory(server)

        def post(_: int) -> int:
            with Connection(server.url) as connection:
                return connection.post("/v1/events", body)[0]

        with ThreadPoolExecutor(64) as threads:
            answers = list(threads.map(post, range(64)))
        grown = peak_memory(server) - before
        with Connection(server.url) as connection:
            assert connection.post("/v1/events", body)[0] == 200
    figure(
        f"64 x {len(body) / 2**20:.1f} MiB: {answers.count(200)} taken, {answers.count(503)} sent away, "
        f"peak grew by {grown / 2**20:.0f} MiB"
    )
    assert set(answers) <= {200, 503}
    assert 200 in answers
