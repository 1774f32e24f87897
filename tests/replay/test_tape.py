"""Which recorded answer a request gets, and what it is told where there is none."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.proxy import dialects as d
from tests.replay.conversations import events_of, recorded_of, tape_calls
from tracestore.replay import tape as tape_module
from tracestore.replay.differences import Difference, first_difference
from tracestore.replay.keys import Asked
from tracestore.replay.tape import NotRecorded, Tape, nearest
from tracestore.wire.base import Raw


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]} | fields


def asked(request: Any) -> Asked:
    return Asked("openai_chat", Raw(json.dumps(request).encode()))


def calls(*said: tuple[str, str, str]) -> Tape:
    """(agent, what it asked, what it was told), in the order in which they were recorded."""
    counted: dict[str, int] = {}
    some = []
    for place, (agent, question, answer) in enumerate(said):
        ordinal = counted[agent] = counted.get(agent, -1) + 1
        some.append(
            events_of(
                "openai_chat",
                chat(question),
                d.chat(answer),
                call_id=f"c{place}",
                agent_id=agent,
                ordinal=ordinal,
            )
        )
    return Tape(tape_calls(*some))


def test_a_thousand_equal_requests_get_their_answers_in_order() -> None:
    [one] = calls(("a", "again", "x")).calls
    tape = Tape(replace(one, call=one.call.model_copy(update={"id": f"c{place}"})) for place in range(1000))
    told = [tape.answer(asked(chat("again"))) for _ in range(1000)]
    assert [one.recorded.call.id for one in told] == [f"c{place}" for place in range(1000)]
    assert [one.occurrence for one in told] == list(range(1000))
    with pytest.raises(NotRecorded, match="all its recorded answers were given"):
        tape.answer(asked(chat("again")))


AGENTS = [f"a{number}" for number in range(8)]
TURNS = [(agent, "same", f"{agent}-{turn}") for turn in range(3) for agent in AGENTS]


@pytest.fixture(scope="module")
def of_eight() -> Tape:
    return calls(*TURNS)


@given(seed=st.integers(0, 1000))
def test_agents_get_their_own_answers_in_whatever_order_they_ask(of_eight: Tape, seed: int) -> None:
    tape, said = Tape(of_eight.calls), list(TURNS)
    random.Random(seed).shuffle(said)
    found: dict[str, list[str]] = {agent: [] for agent in AGENTS}
    for agent, _, _ in said:
        played = tape.answer(asked(chat("same")), agent=agent)
        message = played.recorded.completions[0].message
        assert message is not None
        assert not played.by_arrival
        found[agent].append(message.value()["content"])
    assert found == {agent: [f"{agent}-{turn}" for turn in range(3)] for agent in AGENTS}


def test_without_a_name_equal_requests_of_several_agents_go_by_arrival_and_it_is_said() -> None:
    tape = calls(("a", "same", "1"), ("b", "same", "2"), ("a", "own", "3"))
    assert [tape.answer(asked(chat("same"))).by_arrival for _ in range(2)] == [True, True]
    assert not tape.answer(asked(chat("own"))).by_arrival


def test_a_client_that_asks_again_gets_the_same_and_uses_nothing_up() -> None:
    tape = calls(("a", "x", "1"), ("a", "x", "2"))
    first = tape.answer(asked(chat("x")))
    assert tape.answer(asked(chat("x")), is_retry=True) == first
    assert tape.answer(asked(chat("x"))).recorded.call.id == "c1"


def test_of_equal_requests_at_once_each_retry_gets_the_answer_of_its_own_first_try() -> None:
    tape = calls(("a", "x", "1"), ("a", "x", "2"), ("a", "x", "3"))
    first, second = (tape.answer(asked(chat("x")), request_id=name) for name in ("one", "two"))
    assert tape.answer(asked(chat("x")), request_id="one", is_retry=True) == first
    assert tape.answer(asked(chat("x")), request_id="two", is_retry=True) == second
    # Whoever states the same id asks the same again, whether the client counts its tries or not.
    assert tape.answer(asked(chat("x")), request_id="one") == first
    assert tape.answer(asked(chat("x")), request_id="three").recorded.call.id == "c2"


def test_calls_are_let_go_and_read_again_while_runs_stand_where_they_stood() -> None:
    tape = calls(("a", "x", "1"), ("a", "x", "2"))
    first = tape.answer(asked(chat("x")))
    again = tape.without_calls()
    assert (again.calls, again.num_bytes) == ((), 0)
    again.refresh(tape.calls)
    assert again.answer(asked(chat("x")), is_retry=True) == first
    assert again.answer(asked(chat("x"))).recorded.call.id == "c1"


def test_a_request_is_known_by_its_bytes_and_by_others_that_it_came_in() -> None:
    tape = calls(("a", "x", "1"))
    [one] = tape.calls
    body = bytes(one.asked.body)
    assert tape.known("openai_chat", body) is one.asked
    assert tape.known("text", body) is None
    assert tape.known("openai_chat", body + b" ") is None
    tape.learn("openai_chat", body + b" ", one.asked)
    assert tape.known("openai_chat", body + b" ") is one.asked
    other = asked(chat("y"))
    tape.learn("openai_chat", bytes(other.body), other)
    assert tape.known("openai_chat", bytes(other.body)) is None


def test_runs_have_places_of_their_own_and_one_may_begin_again() -> None:
    tape = calls(("a", "x", "1"), ("a", "y", "2"))
    for run in ("", "other"):
        assert tape.answer(asked(chat("x")), run=run).recorded.call.id == "c0"
    assert [one.call.id for one in tape.unasked("other")] == ["c1"]
    more = calls(("a", "x", "1"), ("a", "y", "2"), ("a", "x", "3"))
    tape.refresh(more.calls)
    tape.rewind("other")
    assert tape.answer(asked(chat("x")), run="other").occurrence == 0
    # The run that went on has used the first answer, and knows the new one.
    assert tape.answer(asked(chat("x"))).recorded.call.id == "c2"


def test_what_travels_beside_the_context_does_not_count_and_what_is_sampled_by_does() -> None:
    request = asked(chat("x", temperature=0.5))
    same = chat("x", temperature=5e-1, stream=True, stream_options={"include_usage": True}, user="u")
    assert asked(same | {"top_p": None}).key == request.key
    assert asked(chat("x", temperature=0.6)).key != request.key
    assert asked(chat("y", temperature=0.5)).key != request.key
    assert Asked("text", request.body).key != request.key


MESSAGES = st.lists(st.fixed_dictionaries({"content": st.sampled_from(["", "a", "b", "ab"])}), max_size=3)


@given(one=MESSAGES, other=MESSAGES)
def test_contexts_are_the_same_exactly_when_their_messages_are(one: list[Any], other: list[Any]) -> None:
    keys = [
        Asked("openai_chat", Raw(json.dumps({"messages": side, "n": 1}, indent=indent).encode())).key
        for side, indent in ((one, 1), (other, None))
    ]
    assert (keys[0] == keys[1]) == (one == other)


def test_a_message_is_not_a_list_of_one() -> None:
    alone, listed = ({"model": "m", "input": one} for one in ({"content": "a"}, [{"content": "a"}]))
    assert asked(alone).key != asked(listed).key


def test_a_changed_word_is_told_with_its_byte_and_the_nearest_call() -> None:
    long = [
        {"role": "system", "content": "Du hilfst."},
        {"role": "user", "content": "Wie heißt der längste Fluss?"},
    ]
    near = events_of("openai_chat", {"model": "m", "messages": long}, d.chat("1"), call_id="near")
    far = events_of("openai_chat", chat("anything"), d.chat("2"), call_id="far", ordinal=1)
    tape = Tape(tape_calls(far, near))
    changed = [long[0], {"role": "user", "content": "Wie heißt der längste Berg?"}]
    with pytest.raises(NotRecorded) as missed:
        tape.answer(asked({"model": "m", "messages": changed}))
    assert missed.value.values["nearest_call"] == "near"
    # "Wie heißt der längste " is 22 characters, two of which take two bytes.
    assert missed.value.values["difference"] == {
        "path": "messages[1].content",
        "byte": 24,
        "recorded": "…e heißt der längste Fluss?",
        "asked": "…e heißt der längste Berg?",
    }
    assert tape.missed() == [{"after": 0, **missed.value.values, "hint": missed.value.hint}]


def test_while_a_miss_is_looked_into_other_runs_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = calls(("a", "x", "1"))
    is_looking, may_end = threading.Event(), threading.Event()

    def held_up(*args: Any) -> Any:
        is_looking.set()
        assert may_end.wait(10)
        return nearest(*args)

    monkeypatch.setattr(tape_module, "nearest", held_up)
    with ThreadPoolExecutor() as threads:
        missed = threads.submit(tape.answer, asked(chat("y")), run="diverged")
        try:
            assert is_looking.wait(10)
            answered = threads.submit(tape.answer, asked(chat("x")), run="other").result(timeout=10)
        finally:
            may_end.set()
        assert answered.recorded.call.id == "c0"
        with pytest.raises(NotRecorded, match="diverged"):
            missed.result(timeout=10)
    assert [one["nearest_call"] for one in tape.missed("diverged")] == ["c0"]
    assert tape.missed("other") == []


def test_an_agent_that_never_asked_this_is_told_who_did() -> None:
    tape = calls(("a", "x", "1"))
    with pytest.raises(NotRecorded, match="other agents asked this"):
        tape.answer(asked(chat("x")), agent="b")


def test_a_difference_in_what_is_sampled_by_is_told_after_the_context() -> None:
    one, other = recorded_of("openai_chat", chat("x", seed=1), d.chat("1")), asked(chat("x", seed=2))
    found = nearest(other, [one])
    assert found is not None
    assert found[1] == Difference("seed", None, "1", "2")


@pytest.mark.parametrize(
    ("recorded", "asked_for", "difference"),
    [
        ({"a": [1, {"b": "xy"}]}, {"a": [1, {"b": "xz"}]}, Difference("a[1].b", 1, "xy", "xz")),
        ({"a": 1}, {"a": 1, "b": None}, Difference("b", None, "(nothing)", "null")),
        ([1, 2], [1], Difference("[1]", None, "2", "(nothing)")),
        (1, True, Difference("", None, "1", "true")),
        ({"a": 1.0}, {"a": 1}, None),
    ],
)
def test_the_first_difference(recorded: Any, asked_for: Any, difference: Difference | None) -> None:
    assert first_difference(recorded, asked_for) == difference


@given(left=st.text(max_size=30), right=st.text(max_size=30))
def test_the_byte_is_where_the_texts_part(left: str, right: str) -> None:
    found = first_difference(left, right)
    assert (found is None) == (left == right)
    if found is not None:
        assert found.byte is not None
        one, other = (text.encode("utf-8", "surrogatepass") for text in (left, right))
        assert one[: found.byte] == other[: found.byte]
        # The characters there differ, though their first bytes may be equal.
        ends = (one[found.byte :], other[found.byte :])
        assert ends[0] != ends[1]
