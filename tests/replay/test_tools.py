"""Which recorded result a tool gets that would run again, and what it is told where there is none."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import agent, answer, assistant, call, raw, tool, tool_call, tool_use, user
from tests.factories import episode as an_episode
from tests.sample_traces.traces import NAMES, SCRIPTED, scripted_path, trace_path
from tracestore.replay.tape import NotRecorded, NotReplayable
from tracestore.replay.tools import (
    AskedTool,
    NotARun,
    ToolTape,
    asked_tool,
    canonical_arguments,
    recorded_tools,
    results_in,
)
from tracestore.wire.decode import decode_event
from tracestore.wire.events import AnyEvent

START: list[AnyEvent] = [an_episode(), agent("e/a", name="a"), agent("e/b", name="b")]


def run(name: str = "run", arguments: Any = None, use: str | None = None, **more: Any) -> AskedTool:
    responses = more.get("input_responses")
    return asked_tool(
        name,
        None if arguments is None else raw(arguments),
        tool_call_id=use,
        input_responses=None if responses is None else raw(responses),
    )


def ran(place: int, result: Any = None, call_id: str = "c0", **fields: Any) -> AnyEvent:
    given = {"tool_call_id": f"t{place}", "arguments": "{}", **fields}
    return tool_call(f"x{place}", call_id, result=None if result is None else raw(result), **given)


def tape(*events: AnyEvent) -> ToolTape:
    return ToolTape(recorded_tools([*START, *events]))


def told(tape: ToolTape, asked: AskedTool, **names: Any) -> Any:
    result = tape.answer(asked, **names).recorded.outcome()["result"]
    return None if result is None else result.value()


def test_hundreds_of_equal_runs_get_their_results_in_order() -> None:
    of_many = tape(call("c0", agent="e/a"), *(ran(place, place) for place in range(300)))
    played = [of_many.answer(run()) for _ in range(300)]
    assert [one.recorded.id for one in played] == [f"x{place}" for place in range(300)]
    assert [one.occurrence for one in played] == list(range(300))
    with pytest.raises(NotRecorded, match="all its recorded results were given"):
        of_many.answer(run())
    assert of_many.status()["answered"] == 300
    assert [one["after"] for one in of_many.status()["missed"]] == [300]


def test_parallel_runs_answer_in_the_order_in_which_the_answer_names_them() -> None:
    uses = [tool_use("run", '{"n": 1}', id=one) for one in ("third", "first", "second")]
    events = [
        ran(place, one, tool_call_id=one, arguments='{"n":1}')
        for place, one in enumerate(("first", "second", "third"))
    ]
    of_three = tape(call("c0", [user("go")], answer(assistant(None, tool_calls=uses)), agent="e/a"), *events)
    assert [told(of_three, run("run", {"n": 1.0})) for _ in uses] == ["third", "first", "second"]
    # With its id each is the one, whatever the order.
    ids = ["second", "third", "first"]
    assert [told(of_three, run("run", {"n": 1}, one), run="other") for one in ids] == ids


AGENTS = ("a", "b")


@given(seed=st.integers(0, 1000))
def test_agents_get_their_own_results_in_whatever_order_they_run(seed: int) -> None:
    events = [call(f"c{name}", agent=f"e/{name}") for name in AGENTS]
    events += [
        ran(len(AGENTS) * turn + place, f"{name}-{turn}", f"c{name}")
        for turn in range(3)
        for place, name in enumerate(AGENTS)
    ]
    of_two = tape(*events)
    asked = [name for name in AGENTS for _ in range(3)]
    random.Random(seed).shuffle(asked)
    found: dict[str, list[str]] = {name: [] for name in AGENTS}
    for name in asked:
        played = of_two.answer(run(), agent=name)
        assert not played.by_arrival
        result = played.recorded.outcome()["result"]
        found[name].append(result.value())
    assert found == {name: [f"{name}-{turn}" for turn in range(3)] for name in AGENTS}
    assert of_two.answer(run(), run="unnamed").by_arrival
    with pytest.raises(NotRecorded, match="other agents ran this") as missed:
        of_two.answer(run(), agent="c")
    assert missed.value.values["recorded_agents"] == ["e/a", "e/b"]


def test_a_changed_argument_is_told_with_the_nearest_run_and_its_byte() -> None:
    of_two = tape(
        call("c0", agent="e/a"),
        ran(0, "far", arguments='{"path": "/etc/passwd"}'),
        ran(1, "near", arguments='{"path": "/work/größe.py"}'),
    )
    with pytest.raises(NotRecorded) as missed:
        of_two.answer(run("run", {"path": "/work/größer"}))
    assert missed.value.values["nearest_tool_call"] == "x1"
    assert missed.value.values["difference"] == {
        "path": "arguments.path",
        "byte": 13,  # "/work/größe" is 11 characters, two of which take two bytes
        "recorded": "/work/größe.py",
        "asked": "/work/größer",
    }
    with pytest.raises(NotRecorded) as missed:
        of_two.answer(run("run", {"path": "/etc/passwd"}, "t1"))
    assert missed.value.values["difference"]["path"] == "tool_call_id"
    with pytest.raises(NotRecorded, match="no such tool was recorded") as missed:
        of_two.answer(run("fly"))
    assert missed.value.values["recorded_tools"] == ["run"]


def test_under_ids_that_were_never_recorded_runs_go_in_order_as_if_they_had_none() -> None:
    of_three = tape(
        call("c0", agent="e/a"),
        ran(0, "one", tool_call_id="call_1"),
        ran(1, "two", tool_call_id="call_2"),
        ran(2, "other", tool_call_id="call_3", arguments='{"n": 1}'),
    )
    assert told(of_three, run("run", {}, "call_8")) == "one"
    assert told(of_three, run("run", {}, "call_9")) == "two"
    with pytest.raises(NotRecorded, match="all its recorded results were given"):
        of_three.answer(run("run", {}, "call_7"))
    # An id that was recorded is that use and no other.
    assert told(of_three, run("run", {}, "call_2"), run="again") == "two"
    assert told(of_three, run("run", {}, "call_9"), run="again") == "one"
    with pytest.raises(NotRecorded) as missed:
        of_three.answer(run("run", {}, "call_3"), run="again")
    assert missed.value.values["difference"]["path"] == "tool_call_id"


def test_tools_are_let_go_and_read_again_while_runs_stand_where_they_stood() -> None:
    of_two = tape(call("c0", agent="e/a"), ran(0, "one"), ran(1, "two"))
    # run, {} as recorded and as compared, "one" or "two" with its quotes: 3 + 2 + 2 + 5 = 12 bytes each
    assert of_two.num_bytes == 24
    assert told(of_two, run()) == "one"
    again = of_two.without_calls()
    assert (again.tools, again.num_bytes) == ((), 0)
    again.refresh(of_two.tools)
    assert told(again, run()) == "two"


def test_what_the_user_answered_meanwhile_is_part_of_the_key() -> None:
    asks = {"resultType": "input_required", "inputRequests": {"name": {"method": "elicitation/create"}}}
    answered = {"name": {"action": "accept", "content": {"name": "Ada"}}}
    of_two = tape(
        call("c0", agent="e/a"),
        ran(0, asks),
        ran(1, "hello Ada", tool_call_id="t0", meta=raw({"input_responses": answered})),
    )
    spelled = run("run", {}, "t0", input_responses=json.loads(json.dumps(answered)))
    assert told(of_two, spelled) == "hello Ada"
    assert told(of_two, run("run", {}, "t0", input_responses={})) == asks
    with pytest.raises(NotRecorded) as missed:
        of_two.answer(run("run", {}, "t0", input_responses={"name": {"action": "decline"}}), run="other")
    assert missed.value.values["difference"]["path"] == "input_responses.name.action"


def test_a_run_without_its_use_answers_whichever_use_asks() -> None:
    of_one = tape(call("c0", agent="e/a"), ran(0, "found", tool_call_id=None))
    assert told(of_one, run("run", {}, "anything")) == "found"


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({}, "was not recorded"),
        ({"status": "ok"}, "was not recorded"),
        ({"status": "cancelled"}, "was cancelled"),
        ({"result": "[redacted:key] and more"}, "redacted"),
        ({"status": "failed", "error": "no [redacted:key]"}, "redacted"),
        ({"result": "<object>", "meta": raw({"result_is_repr": True})}, "was no JSON"),
    ],
)
def test_what_did_not_come_back_is_not_made_up(fields: dict[str, Any], hint: str) -> None:
    of_one = tape(call("c0", agent="e/a"), ran(0, **fields))
    with pytest.raises(NotReplayable, match=hint.replace("[", r"\[")):
        of_one.answer(run())
    assert hint in of_one.status()["missed"][0]["hint"]


def test_failures_and_nothing_come_back_as_they_were() -> None:
    of_three = tape(
        call("c0", agent="e/a"),
        ran(0, status="failed", error="ValueError: no", exit_status=2),
        ran(1, "half", status="timeout"),
        ran(2, status="ok", meta=raw({"result_is_none": True})),
    )
    found = [of_three.answer(run()).recorded.outcome() for _ in range(3)]
    assert found == [
        {"result": None, "status": "failed", "error": "ValueError: no", "exit_status": 2},
        {"result": raw("half"), "status": "timeout", "error": None, "exit_status": None},
        {"result": raw(None), "status": "ok", "error": None, "exit_status": None},
    ]


def test_what_only_messages_show_is_answered_too_each_use_with_its_own() -> None:
    """Ids repeat from answer to answer, as those that a server counts do."""
    said = [assistant(None, tool_calls=[tool_use("run", f'{{"n":{turn}}}')]) for turn in range(3)]
    first, second = tool("one"), tool([{"type": "text", "text": "two"}])
    events = [
        call("c0", [user("go")], answer(said[0]), agent="e/a"),
        call("c1", [user("go"), said[0], first], answer(said[1]), agent="e/a", parent="c0"),
        call("c2", [user("go"), said[0], first, said[1], second], answer(said[2]), agent="e/a", parent="c1"),
    ]
    shown = tape(*events)
    assert [one.id for one in shown.tools] == ["c0/0/0", "c1/0/0", "c2/0/0"]
    assert told(shown, run("run", {"n": 0}, "t1")) == "one"
    assert told(shown, run("run", {"n": 1})) == [{"type": "text", "text": "two"}]
    with pytest.raises(NotReplayable, match="was not recorded"):
        shown.answer(run("run", {"n": 2}))
    # What was recorded of the run counts before what the model was shown of it.
    recorded = tape(*events, ran(0, {"one": 1}, tool_call_id="t1", arguments='{"n":0}'))
    assert told(recorded, run("run", {"n": 0}, "t1")) == {"one": 1}


def test_results_are_found_in_every_dialect() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "u1", "content": "a", "is_error": True},
        {"type": "tool_result", "tool_use_id": "u2", "content": [{"type": "text", "text": "b"}]},
        {"type": "text", "text": "c"},
    ]
    messages = [user(blocks), {"type": "function_call_output", "call_id": "u3", "output": "d"}, tool("e")]
    messages += [user("f"), {"type": "function_call", "call_id": "u4", "name": "run", "arguments": "{}"}]
    found = [one for message in messages for one in results_in(raw(message))]
    assert [(one.tool_call_id, one.content.value(), one.is_error) for one in found] == [
        ("u1", "a", True),
        ("u2", [{"type": "text", "text": "b"}], False),
        ("u3", "d", False),
        ("t1", "e", False),
    ]


def test_what_is_gone_since_is_answered_no_more_and_runs_go_on() -> None:
    before = [call("c0", agent="e/a"), ran(0, "a"), ran(1, "b")]
    of_two = tape(*before)
    assert told(of_two, run()) == "a"
    of_two.refresh(recorded_tools([*START, *before[:2]]))
    with pytest.raises(NotRecorded):
        of_two.answer(run())
    of_two.rewind()
    assert told(of_two, run()) == "a"


@pytest.mark.parametrize(
    "path",
    [*map(trace_path, NAMES), *map(scripted_path, SCRIPTED)],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_a_recorded_system_gets_every_result_again_where_it_stood(path: Path) -> None:
    by_episode: dict[str, list[AnyEvent]] = defaultdict(list)
    for line in path.read_bytes().splitlines():
        event = decode_event(line)
        by_episode[getattr(event, "episode_id", None) or event.id].append(event)
    for events in by_episode.values():
        recorded = recorded_tools(events)
        known = {event.id for event in events if event.kind == "tool_call"}
        assert known <= {one.id for one in recorded}
        of_all = ToolTape(recorded)
        for one in recorded:
            try:
                assert of_all.answer(one.asked, agent=one.agent_names[0]).recorded is one
            except NotReplayable:
                assert one.run.result is None  # its last answer named it, and no call was shown what it gave
        assert of_all.status()["answered"] == len(recorded)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": [2.0]}', '{"b":[2],"a":1.0}'),
        ('{"a": "\\u00fc"}', '{"a": "ü"}'),
        (None, "{}"),
        (" ", "{}"),
        ("print(1)\n", '"print(1)\\n"'),
    ],
)
def test_arguments_are_compared_by_value_and_code_by_its_text(one: str | None, other: str) -> None:
    assert canonical_arguments(one) == canonical_arguments(other)


def test_arguments_may_come_as_the_text_that_was_sampled() -> None:
    assert run("run", '{"n": 1}') == run("run", {"n": 1})
    assert run("run", "ls -l").arguments == b'"ls -l"'
    assert canonical_arguments('{"n": 1}') != canonical_arguments('{"n": true}')
    for wrong in (None, "", 3):
        with pytest.raises(NotARun, match="which tool"):
            asked_tool(wrong, None)
