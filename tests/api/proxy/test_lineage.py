"""Which call a request continues is told by its messages alone, whatever passes in between."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracestore.importers.items import Item
from tracestore.wire.limits import LIMITS
from tracestore_api.proxy.calls import Calls
from tracestore_api.proxy.capture import Capture
from tracestore_api.proxy.lineage import Lineage, Recent
from tracestore_api.proxy.names import Names

URL = "http://upstream/v1/chat/completions"


def calls() -> Calls:
    return Calls(Lineage(lambda project, agent: 0), limits=LIMITS)


def passed(
    messages: list[Any],
    answer: str,
    *,
    call_id: str = "c",
    status: int = 200,
    retry: int | None = None,
    names: dict[str, str] | None = None,
) -> Capture:
    """A call that has passed."""
    counted = [] if retry is None else [(b"x-stainless-retry-count", str(retry).encode())]
    capture = Capture(
        project="p",
        names=Names(dict(names or {})),
        call_id=call_id,
        url=URL,
        method="POST",
        request=json.dumps({"model": "m", "messages": messages}).encode(),
        request_headers=counted,
        room=2**20,
    )
    capture.status = status
    choice = {"message": said(answer), "finish_reason": "stop"}
    capture.take(
        json.dumps({"choices": [choice]} if status == 200 else {"error": {"message": "no"}}).encode()
    )
    capture.end()
    return capture


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def call_of(items: list[Item]) -> Any:
    (call,) = [item.event for item in items if item.event.kind == "call"]
    return call


@given(st.lists(st.integers(0, 4), max_size=25), st.booleans())
def test_conversations_that_pass_interleaved_are_told_apart(order: list[int], is_named: bool) -> None:
    made = calls()
    talks: dict[int, list[Any]] = {}
    last: dict[int, Any] = {}
    for place, talk in enumerate(order):
        talks.setdefault(talk, [user(f"task {talk}")])
        names = {"episode": f"e{talk % 2}"} if is_named else {}
        found = made.of(passed(talks[talk], f"answer {place}", call_id=f"c{place}", names=names))
        call = call_of(found.items)
        before = last.get(talk)
        assert call.parent_call_id == (None if before is None else before.id)
        assert before is None or (call.episode_id, call.agent_id) == (before.episode_id, before.agent_id)
        last[talk] = call
        talks[talk] += [said(f"answer {place}"), user(f"more {place}")]
    if not is_named:
        assert len({call.episode_id for call in last.values()}) == len(last)
    ordinals: dict[str, list[int]] = {}
    for call in last.values():
        ordinals.setdefault(call.agent_id, []).append(call.ordinal)
    assert all(len(set(seen)) == len(seen) for seen in ordinals.values())


def test_equal_failures_are_each_retried_once() -> None:
    made = calls()
    tries = [
        passed([user("q")], "", call_id="a", status=429, retry=0),
        passed([user("q")], "", call_id="b", status=429, retry=0),
        passed([user("q")], "A", call_id="c", retry=1),
        passed([user("q")], "A", call_id="d", retry=1),
        passed([user("q")], "A", call_id="e", retry=1),  # of a call that did not pass here
    ]
    found = [call_of(made.of(one).items) for one in tries]
    assert [(call.id, call.revision) for call in found] == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("e", 1)]
    assert [call.status for call in found] == ["failed", "failed", "ok", "ok", "ok"]


def test_an_answer_is_not_retried_though_its_body_comes_again() -> None:
    made = calls()
    first = call_of(made.of(passed([user("q")], "A", call_id="a", retry=0)).items)
    again = call_of(made.of(passed([user("q")], "A", call_id="b", retry=1)).items)
    assert (first.id, again.id, again.attempts) == ("a", "b", None)


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c"), len(recent)) == (1, None, 3, 2)
