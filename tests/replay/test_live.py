"""Who answers a request, and which fork a model's answer is part of."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.proxy import dialects as d
from tests.replay.conversations import events_of, tape_calls
from tracestore.replay import live as live_module
from tracestore.replay import tape as tape_module
from tracestore.replay.keys import Asked
from tracestore.replay.live import Forks, Live, is_same_answer
from tracestore.replay.modes import Mode, UnknownMode, mode_of
from tracestore.replay.tape import NotRecorded, Played, Tape
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect

AGENTS = ("main", "sub")
TURNS = 3


def chat(*texts: str, **fields: Any) -> dict[str, Any]:
    """A request of turns: asked, answered, asked ..."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return {"model": "m", "messages": messages} | fields


def asked(request: Any, dialect: Dialect = "openai_chat") -> Asked:
    return Asked(dialect, Raw(json.dumps(request).encode()))


def texts(agent: str, turn: int) -> list[str]:
    """What an agent has read at its turn: q0 a0 q1 a1 ... q."""
    before = [text for place in range(turn) for text in (f"{agent} q{place}", f"{agent} a{place}")]
    return [*before, f"{agent} q{turn}"]


def of_two_agents() -> Tape:
    """Two conversations, turn by turn: c0 of main, c1 of sub, c2 of main ..."""
    some = []
    for place in range(len(AGENTS) * TURNS):
        turn, number = divmod(place, len(AGENTS))
        agent = AGENTS[number]
        some.append(
            events_of(
                "openai_chat",
                chat(*texts(agent, turn)),
                d.chat(f"{agent} a{turn}"),
                call_id=f"c{place}",
                agent_id=f"e/{agent}",
                ordinal=turn,
            )
        )
    return Tape(tape_calls(*some))


@pytest.fixture(scope="module")
def recording() -> Tape:
    return of_two_agents()


def answered(tape: Tape, forks: Forks, mode: Mode, *said: str, **names: Any) -> str | Live:
    """The call whose answer is given, or what a model is to answer."""
    found = forks.answer(tape, asked(chat(*said)), mode, **names)
    return found.recorded.call.id if isinstance(found, Played) else found


@settings(max_examples=30, deadline=None)
@given(live_after=st.integers(0, 7), seed=st.integers(0, 100), says=st.booleans())
def test_the_first_calls_of_a_recording_answer_in_whatever_order_agents_come(
    recording: Tape, live_after: int, seed: int, says: bool
) -> None:
    tape, forks = Tape(recording.calls), Forks("e")
    agents = [agent for agent in AGENTS for _ in range(TURNS)]
    random.Random(seed).shuffle(agents)
    turns = dict.fromkeys(AGENTS, 0)
    given: dict[int, str | Live] = {}
    for agent in agents:
        turn = turns[agent]
        turns[agent] += 1
        names = {"agent": agent} if says else {}
        given[turn * len(AGENTS) + AGENTS.index(agent)] = answered(
            tape, forks, Mode("live-after", live_after), *texts(agent, turn), **names
        )
    played = [place for place, one in given.items() if one == f"c{place}"]
    live = {place: one for place, one in given.items() if isinstance(one, Live)}
    assert sorted(played) == list(range(min(live_after, 6)))
    assert sorted([*played, *live]) == list(range(6))
    # Each goes on from what its own agent was answered before, in the one fork of the run.
    for place, one in live.items():
        assert one.after == (f"c{place - 2}" if place >= 2 else None)
        assert one.agent_id == f"e/{AGENTS[place % 2]}"
    assert len({one.fork.episode_id for one in live.values()}) <= 1


def test_a_run_does_not_branch_before_the_call_that_was_named(recording: Tape) -> None:
    tape, forks, mode = Tape(recording.calls), Forks("e"), Mode("live-after", 3)
    with pytest.raises(NotRecorded):
        answered(tape, forks, mode, "another question")
    assert tape.missed()[0]["nearest_call"] is not None
    for place in range(3):
        assert answered(tape, forks, mode, *texts(AGENTS[place % 2], place // 2)) == f"c{place}"
    assert isinstance(answered(tape, forks, mode, "another question"), Live)


def test_while_a_miss_is_looked_into_a_model_may_answer_others(
    recording: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape, forks, mode = Tape(recording.calls), Forks("e"), Mode("record-missing")
    is_looking, may_end, nearest = threading.Event(), threading.Event(), tape_module.nearest

    def held_up(*args: Any) -> Any:
        is_looking.set()
        assert may_end.wait(10)
        return nearest(*args)

    monkeypatch.setattr(tape_module, "nearest", held_up)
    with ThreadPoolExecutor() as threads:
        missed = threads.submit(answered, tape, forks, mode, "another question")
        try:
            assert is_looking.wait(10)
            other = threads.submit(answered, tape, forks, mode, *texts("main", 0), run="other")
            assert other.result(timeout=10) == "c0"
        finally:
            may_end.set()
        assert isinstance(missed.result(timeout=10), Live)
    assert len(tape.missed()) == 1


def test_what_comes_after_all_that_was_recorded_is_live_too(recording: Tape) -> None:
    tape, forks, mode = Tape(recording.calls), Forks("e"), Mode("live-after", 99)
    for place in range(6):
        assert answered(tape, forks, mode, *texts(AGENTS[place % 2], place // 2)) == f"c{place}"
    more = answered(tape, forks, mode, *texts("main", 3))
    assert isinstance(more, Live)
    assert more.after == "c4"  # main's last


def test_each_run_has_a_fork_of_its_own_and_another_one_when_it_begins_again(recording: Tape) -> None:
    tape, forks, mode = Tape(recording.calls), Forks("e"), Mode("record-missing")

    def fork(run: str, *said: str) -> str:
        found = answered(tape, forks, mode, *said, run=run)
        assert isinstance(found, Live)
        forks.begin(found)
        return found.fork.episode_id

    first = fork("a", "new")
    assert fork("a", "newer") == first
    assert fork("b", "new") != first
    forks.rewind("a")
    assert fork("a", "new") != first


def test_the_first_divergence_says_where_a_fork_leaves_its_origin(recording: Tape) -> None:
    tape, forks, mode = Tape(recording.calls), Forks("e"), Mode("record-missing")
    assert answered(tape, forks, mode, *texts("main", 0)) == "c0"
    assert answered(tape, forks, mode, *texts("sub", 0)) == "c1"
    for said, after in (
        ((*texts("sub", 1)[:-1], "else"), "c1"),
        ((*texts("main", 1)[:-1], "else"), "c0"),
        (
            ("main changed", *texts("main", 1)[1:]),
            "c1",
        ),  # no history at all: the last call of the agent that is named
    ):
        names = {"agent": "sub"} if after == "c1" else {}
        found = answered(tape, forks, mode, *said, **names)
        assert isinstance(found, Live)
        assert found.after == after
        forks.begin(found)
    fork = forks.fork()
    assert fork is not None
    assert (fork.origin, fork.after) == ("e", "c1")


def test_a_fork_has_ended_when_its_run_is_over_and_its_last_answer_is_there(recording: Tape) -> None:
    tape, forks, mode = Tape(recording.calls), Forks("e"), Mode("record-missing")
    one, other = (answered(tape, forks, mode, said, run="r") for said in ("new", "newer"))
    assert isinstance(one, Live)
    assert isinstance(other, Live)
    forks.begin(one)
    assert forks.done(one) is None  # its run goes on
    assert forks.rewind("r") is None  # the other is not answered yet
    assert forks.done(other) is one.fork


def test_the_fork_of_a_forgotten_run_has_ended(recording: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MAX_RUNS", 2)
    tape, forks, mode = Tape(recording.calls), Forks("e"), Mode("record-missing")
    found = answered(tape, forks, mode, "new", run="r")
    assert isinstance(found, Live)
    forks.begin(found)
    forks.done(found)
    for run in ("s", "t"):
        answered(tape, forks, mode, *texts("main", 0), run=run)
    assert forks.forgotten() == [found.fork]
    assert forks.forgotten() == []


@pytest.mark.parametrize("mode", [Mode("record-missing"), Mode("live-after", 1), Mode("policy")])
def test_a_retry_of_what_a_model_is_to_answer_is_the_same_call(mode: Mode, recording: Tape) -> None:
    tape, forks = Tape(recording.calls), Forks("e")
    answered(tape, forks, mode, *texts("main", 0))
    first = answered(tape, forks, mode, *texts("main", 0))
    assert isinstance(first, Live)
    assert answered(tape, forks, mode, *texts("main", 0), is_retry=True) is first


def test_of_a_long_run_the_last_requests_are_known_when_they_come_again(
    recording: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "_MAX_LIVE", 4)  # two requests, with and without the client's ids
    tape, forks, mode = Tape(recording.calls), Forks("e"), Mode("record-missing")
    first, *last = (answered(tape, forks, mode, said, request_id=said) for said in ("x", "y", "z"))
    again = [answered(tape, forks, mode, said, request_id=said) for said in ("y", "z", "x")]
    assert again[:2] == last
    assert again[1] is last[1]
    assert again[2] is not first


def test_a_mode_says_what_it_needs() -> None:
    assert mode_of(None, None) is None
    assert mode_of(None, 3) == Mode("live-after", 3)
    for name, number in (("live-after", None), ("strict", 3), ("guess", None)):
        with pytest.raises(UnknownMode):
            mode_of(name, number)


def test_the_same_answer_is_the_same_message_that_ended_alike(recording: Tape) -> None:
    said = recording.calls[0].completions
    ask = asked(chat("main q0"))
    spelled = said[0].model_copy(
        update={"message": Raw(b'{"content":"main a0","role":"assistant","refusal":null}')}
    )
    cut = said[0].model_copy(update={"finish_reason": "length"})
    assert is_same_answer(said, [spelled], ask)
    assert not is_same_answer(said, [cut], ask)
    unknown = said[0].model_copy(update={"finish_reason": None})
    assert is_same_answer([unknown], [cut], ask)
    assert not is_same_answer([cut], [unknown], ask)
    assert not is_same_answer(said, [*said, *said], ask)
    assert not is_same_answer(said, recording.calls[1].completions, ask)


def stale(tape: Tape, *said: str, forks: Forks | None = None) -> str | None:
    """Why what a policy says to this does not train."""
    found = answered(tape, forks or Forks("e"), Mode("policy"), *said)
    assert isinstance(found, Live)
    return found.stale


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (texts("main", 0), None),
        (texts("main", 2), None),  # all of it was recorded
        ([*texts("main", 1)[:-1], "new"], None),  # a tool says something else: what it reads follows
        ([*texts("main", 1), "other"], None),  # goes on from its own answer
        ([*texts("main", 1), "other", "main q2"], 4),  # q0 a0 q1 other q2
        (["main q0", "other", "main q1", "main a1"], 2),
        (["new", "main a0", "main q1"], 2),
        (["new"], None),
    ],
)
def test_what_follows_another_answer_is_stale_and_nothing_else(
    said: list[str], message: int | None, recording: Tape
) -> None:
    told = stale(Tape(recording.calls), *said)
    assert (told is None) == (message is None)
    assert message is None or (told or "").startswith(f"message {message} ")


def test_what_a_run_samples_after_something_stale_is_stale_but_where_all_of_it_was_recorded(
    recording: Tape,
) -> None:
    tape, forks = Tape(recording.calls), Forks("e")
    assert stale(tape, "summary of nothing", forks=forks) is None
    first = stale(tape, "main q0", "other", "main q1", forks=forks)
    assert first is not None
    # A summary of it, in a context that begins anew, rests on it. What another agent read does not.
    assert stale(tape, "summary of that", forks=forks) == first
    assert stale(tape, *texts("sub", 1), forks=forks) is None
    forks.rewind()
    assert stale(tape, "summary of that", forks=forks) is None


def test_what_a_server_keeps_is_recorded_or_stale() -> None:
    """The items of a request follow a response that only the server has."""
    first = {"model": "m", "input": "q0"}
    then = {"model": "m", "input": "q1", "previous_response_id": "resp_1"}
    events = [
        events_of("openai_responses", first, d.body_of(d.response("resp_1")), call_id="c0"),
        events_of("openai_responses", then, d.body_of(d.response("resp_2")), call_id="c1", ordinal=1),
    ]

    def ask(said: str, kept: str) -> Live:
        request = asked({"model": "m", "input": said, "previous_response_id": kept}, "openai_responses")
        found = Forks("e").answer(Tape(tape_calls(*events)), request, Mode("policy"))
        assert isinstance(found, Live)
        return found

    assert (ask("q1", "resp_1").stale, ask("q1", "resp_1").after) == (None, "c0")
    assert (ask("new", "resp_1").stale, ask("new", "resp_1").after) == (None, "c0")
    assert "message 0" in (ask("q1", "resp_9").stale or "")
    assert ask("q1", "resp_9").after is None


def test_a_context_that_begins_anew_follows_what_its_agent_was_answered_before(recording: Tape) -> None:
    """Answered as it was recorded: by the recording, or by a policy that says the same."""
    for mode in (Mode("record-missing"), Mode("policy")):
        tape, forks = Tape(recording.calls), Forks("e")
        found = answered(tape, forks, mode, *texts("main", 0))
        if isinstance(found, Live):
            forks.equal(found, ())
        anew = answered(tape, forks, mode, "something new", agent="main")
        assert isinstance(anew, Live)
        assert (anew.after, anew.agent_id) == ("c0", "e/main")
