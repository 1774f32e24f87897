"""Every check has an input that violates it, and sound recordings violate none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.factories import (
    agent,
    answer,
    assistant,
    call,
    candidate_set,
    compaction,
    completion,
    episode,
    group,
    member,
    reward,
    selection,
    subagent,
    system,
    tool_call,
    tool_use,
    user,
)
from tests.scenarios import SCENARIOS
from tests.strategies import Recording, recordings
from tracestore.graph.build import build
from tracestore.graph.invariants import CHECKS, Violation, check, incomplete, orphans
from tracestore.wire.agent import Agent
from tracestore.wire.call import Usage
from tracestore.wire.completion import VersionRun
from tracestore.wire.events import AnyEvent

S, U, MAIN = system("s"), user("u"), agent()
C0 = call("c0", [S, U], answer("a", ids=[1, 2]), prompt_ids=[5], ordinal=0)
USES = call("c0", [S], answer(assistant(None, tool_calls=[tool_use("spawn", id="t1")])))
TWIN = call("c9", [S, U], answer("a", ids=[1, 2]), prompt_ids=[5], ordinal=0, agent="other")
SET = candidate_set("set1", member("c0"))

VIOLATIONS: dict[str, tuple[list[AnyEvent], str]] = {
    "agent_cycle": ([agent("a", parent_agent_id="b"), agent("b", parent_agent_id="a")], "a -> b -> a"),
    "ambiguous_parent": (
        [
            MAIN,
            C0,
            C0.model_copy(update={"id": "c1", "ordinal": 1}),
            call("w", [S, U, assistant("a"), U], ordinal=2),
        ],
        "post parent_call_id",
    ),
    "bad_selection": ([MAIN, C0, SET, selection("sel1", "set1", 0, 3)], r"members [3] of 1"),
    "call_cycle": (
        [MAIN, call("a", [U], "x", parent="b", ordinal=0), call("b", [U], "x", parent="a", ordinal=1)],
        "a -> b -> a",
    ),
    "depth_differs": ([agent("main", depth=1), C0], "depth 1 is stated"),
    "edit_refers_to_nothing": (
        [MAIN, C0, compaction(before_call_id="c0", replaced_call_ids=("gone",))],
        "'gone'",
    ),
    "ordinal_doubled": ([MAIN, C0, call("c1", [S], "b", ordinal=0)], "taken twice"),
    "orphan_agent": ([MAIN, C0, subagent("sub", spawned_by="gone", tool_call=None)], "'gone' has not come"),
    "orphan_call": ([MAIN, call("c1", [S], parent="gone")], "'gone' has not come"),
    "orphan_completion": ([completion("gone", 1)], "'gone' has not come"),
    "parent_completion_unstated": (
        [MAIN, call("p", [S], "a", "b"), call("w", [S, U], parent="p")],
        "has 2 completions",
    ),
    "parent_later_than_child": (
        [
            MAIN,
            C0.model_copy(update={"ordinal": 5}),
            call("c1", [S, U, assistant("a"), U], parent="c0", ordinal=1),
        ],
        "its parent 'c0' has 5",
    ),
    "pending_call": ([MAIN, call("c1", [U], parent="c0", completion=1, delta=True), C0], "c0[1]"),
    "prompt_ids_incomplete": (
        [MAIN, call("c1", [S], prompt_ids=[1, 2], usage=Usage(prompt_tokens=3))],
        "prompt_tokens 3, token ids 2",
    ),
    "reward_target_missing": (
        [MAIN, C0, reward(call_id="c0", completion=0, token_start=1, token_length=2)],
        "tokens 1 to 3 of 2",
    ),
    "text_drift": ([MAIN, C0, call("c1", [S, U, assistant("other")], parent="c0", ordinal=1)], "c0[0]"),
    "token_ids_incomplete": (
        [MAIN, call("c1", [S], answer("a", ids=[1]), usage=Usage(completion_tokens=9))],
        r"completion_tokens 9, token ids [1]",
    ),
    "unknown_agent": ([C0], "'main'"),
    "unknown_member": ([MAIN, C0, candidate_set("set1", member("c0", 1))], "c0[1]"),
    "unknown_tool_use": ([MAIN, USES, tool_call("x1", "c0", tool_call_id="t7")], "'t7'"),
    "version_past_end": (
        [
            MAIN,
            call(
                "c1",
                [S],
                answer(
                    "a",
                    ids=[1],
                    versions=(
                        VersionRun(start=0, name="p", version=1),
                        VersionRun(start=1, name="p", version=2),
                    ),
                ),
            ),
        ],
        "begins at 1 of 1",
    ),
}


def test_every_check_has_an_input_that_violates_it() -> None:
    assert VIOLATIONS.keys() == CHECKS.keys()
    assert all(run.__doc__ for run in CHECKS.values())


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_reported_by_its_own_check_with_the_values(name: str) -> None:
    events, detail = VIOLATIONS[name]
    found = [violation for violation in check(build(events)) if violation.check == name]
    assert found
    assert detail in found[0].detail


@pytest.mark.parametrize("name", VIOLATIONS)
def test_nothing_else_is_wrong_with_these(name: str) -> None:
    """Only circles and orphans drag others with them."""
    events, _ = VIOLATIONS[name]
    others = {violation.check for violation in check(build(events))} - {name}
    assert others <= {"call_cycle": {"text_drift", "parent_later_than_child"}}.get(name, set())


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_with_named_parents_violate_nothing(name: str) -> None:
    assert check(build(SCENARIOS[name]().named.events)) == ()


@settings(max_examples=40)
@given(recordings(may_omit_parents=False))
def test_a_sound_recording_has_nothing_but_drift(recording: Recording) -> None:
    found = check(build(recording.events))
    assert {v.id for v in found if v.check == "text_drift"} == recording.is_drifted
    # The made-up harness invents its tool calls, and its selections may come without their set.
    allowed = {"text_drift", "unknown_tool_use", "bad_selection"}
    assert {v.check for v in found} <= allowed


@pytest.mark.parametrize(
    ("event", "detail"),
    [
        (reward(agent_id="gone"), "agent 'gone' has not come"),
        (reward(call_id="gone"), "call 'gone' has not come"),
        (reward(call_id="c0", completion=4), "completion c0[4] has not come"),
        (reward(candidate_set_id="gone", member=0), "candidate set 'gone' has not come"),
        (reward(candidate_set_id="set1", member=7), "member 7 of 1"),
    ],
)
def test_every_kind_of_reward_target_is_looked_for(event: AnyEvent, detail: str) -> None:
    assert check(build([MAIN, C0, SET, event])) == (
        Violation("reward_target_missing", "reward", "r1", detail),
    )


def test_a_selection_of_a_set_that_never_came_and_members_that_are_agents_are_checked() -> None:
    found = check(
        build([MAIN, C0, selection("sel1", "gone", 0), candidate_set("set2", member(agent="gone"))])
    )
    assert {(v.check, v.detail) for v in found} == {
        ("bad_selection", "set 'gone' has not come"),
        ("unknown_member", "member 0: agent 'gone' has not come"),
    }


def test_a_spawn_from_a_tool_use_that_the_message_lacks_is_reported() -> None:
    good: Agent = subagent("sub", spawned_by="c0", tool_call="t1")
    bad: Agent = subagent("sub", spawned_by="c0", tool_call="t2")
    assert check(build([MAIN, USES, good])) == ()
    assert [v.check for v in check(build([MAIN, USES, bad]))] == ["unknown_tool_use"]
    executed = tool_call("x1", "c0", tool_call_id="t2")
    assert len(check(build([MAIN, USES, executed, bad]))) == 2


def test_what_a_harness_read_out_of_text_may_be_named_by_its_execution() -> None:
    block = tool_call("x1", "c0", tool_call_id="code/0")
    below: Agent = subagent("sub", spawned_by="c0", tool_call="code/0")
    assert check(build([MAIN, C0, block, below])) == ()
    assert [v.id for v in check(build([MAIN, C0, below]))] == ["sub"]
    elsewhere = tool_call("x1", "c1", tool_call_id="code/0")
    assert [v.id for v in check(build([MAIN, C0, elsewhere, below]))] == ["sub"]


def test_what_started_and_did_not_end_is_incomplete() -> None:
    graph = build(
        [
            group("g", phase="start"),
            episode(phase="start"),
            MAIN,
            call("c0", phase="start"),
            call("c1", None, "a", phase="end"),
        ]
    )
    assert incomplete(graph) == (("call", "c0"), ("call", "c1"), ("episode", "e"), ("group", "g"))
    assert incomplete(build([episode(), MAIN, C0])) == ()


def test_orphans_are_those_whose_parent_never_came() -> None:
    graph = build([call("c1", parent="gone"), subagent("sub", spawned_by="c1", parent="nobody"), TWIN])
    assert orphans(graph) == (("agent", "sub"), ("call", "c1"))
