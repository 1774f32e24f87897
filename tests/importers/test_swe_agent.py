"""SWE-agent trajectories: steps over a history, requests where they are recorded, attempts as candidates."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.importers.reading import (
    Imported,
    assert_builds,
    assert_perturbation,
    newest,
    read_data,
    same_events,
)

SYSTEM = {"role": "system", "content": "Use the shell.", "agent": "main", "message_type": "system_prompt"}
TASK = {"role": "user", "content": "Fix it.", "agent": "main", "message_type": "observation"}
DEMO = {"role": "assistant", "content": "Like this.", "agent": "main", "is_demo": True}


def answer(text: str, use: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    calls = [{"id": use, "type": "function", "function": function}] if use else None
    said = {"role": "assistant", "content": text, "thought": text, "action": "ls", "agent": "main"}
    return said | {"message_type": "action", "tool_calls": calls} | more


def seen(text: str, use: str | None = None) -> dict[str, Any]:
    given = {
        "role": "tool" if use else "user",
        "content": text,
        "agent": "main",
        "message_type": "observation",
    }
    return given | ({"tool_call_ids": [use]} if use else {})


def step(text: str, observation: str, **more: Any) -> dict[str, Any]:
    given = {"response": text, "thought": text, "action": "ls", "observation": observation}
    return given | {"state": {"cwd": "/"}, "execution_time": 0.25} | more


def trajectory(**more: Any) -> dict[str, Any]:
    whole = {
        "environment": "main",
        "trajectory": [step("one", "a.txt"), step("two", "b.txt"), step("done", "patch")],
        "history": [
            SYSTEM,
            DEMO,
            TASK,
            answer("one", "c1"),
            seen("a.txt", "c1"),
            answer("two"),
            seen("b.txt"),
        ],
        "info": {"exit_status": "submitted", "submission": "patch", "model_stats": {"api_calls": 3}},
        "replay_config": json.dumps(
            {"problem_statement": {"id": "repo-1"}, "agent": {"model": {"name": "gpt"}}}
        ),
    }
    return whole | more


def read(*values: dict[str, Any]) -> Imported:
    imported = read_data(*(json.dumps(value).encode() for value in values))
    assert_builds(imported)
    return imported


def calls(imported: Imported) -> list[Any]:
    return sorted(imported.of("call"), key=lambda call: (call.agent_id, call.ordinal))


def test_each_step_is_a_call_and_the_last_needs_no_place_in_the_history() -> None:
    first, second, third = calls(read(trajectory()))
    assert first.request.value()["messages"] == [SYSTEM, DEMO, TASK]
    assert (second.context, second.request.value()["messages"]) == ("delta", [seen("a.txt", "c1")])
    assert third.parent_call_id == second.id
    assert third.request.value()["messages"] == [seen("b.txt")]
    assert third.completions[0].message.value() == {"role": "assistant", "content": "done"}
    assert {one.model for one in (first, second, third)} == {"gpt"}


def test_a_demonstration_is_read_and_never_the_models() -> None:
    imported = read(trajectory())
    assert len(imported.of("call")) == 3
    assert imported.notes.rows["swe-agent/demonstration"] == 1


def test_a_recorded_query_is_the_exact_request() -> None:
    query = [SYSTEM, TASK | {"content": "Cut."}]
    steps = [step("one", "a.txt", query=[SYSTEM, DEMO, TASK]), step("two", "b.txt", query=query)]
    imported = read(trajectory(trajectory=steps))
    second = calls(imported)[1]
    assert (second.context, second.request.value()["messages"]) == ("whole", query)
    assert not imported.of("gap")
    assert [gap.cause for gap in read(trajectory()).of("gap")] == ["requests_not_recorded"]


def test_an_answer_that_was_asked_for_again_stays_beside_the_one_that_counted() -> None:
    steps = [step("one", "a.txt"), step("no format", "error", action=""), step("two", "b.txt")]
    imported = read(trajectory(trajectory=steps))
    first, wrong, second = calls(imported)
    assert wrong.parent_call_id == second.parent_call_id == first.id
    assert wrong.request.value() == second.request.value()
    assert len(imported.of("tool_call")) == 2


def test_a_tool_call_has_the_models_id_and_what_came_back() -> None:
    tools = sorted(read(trajectory()).of("tool_call"), key=lambda one: one.id)
    assert [(one.tool_call_id, one.name, one.arguments, one.result.value()) for one in tools] == [
        ("c1", "bash", '{"command": "ls"}', "a.txt"),
        (None, None, "ls", "b.txt"),
        (None, None, "ls", "patch"),
    ]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("submitted", "ok"),
        ("submitted (exit_cost)", "budget_exhausted"),
        ("exit_context", "budget_exhausted"),
        ("submitted (exit_command_timeout)", "timeout"),
        ("exit_format", "failed"),
        ("exit_environment_error", "infra_error"),
        (None, None),
    ],
)
def test_how_a_run_ended_is_its_status_a_submission_by_the_harness_too(said: Any, status: str | None) -> None:
    (end,) = [one for one in read(trajectory(info={"exit_status": said})).of("episode") if one.phase == "end"]
    assert (end.status, end.stop_reason) == (status, said)


def test_attempts_are_candidates_and_the_reviewers_choice_is_kept() -> None:
    first, second = (
        trajectory(info={"review": {"accept": 0.25}}),
        trajectory(info={"review": {"accept": 0.75}}),
    )
    second["history"] = [SYSTEM, TASK, answer("other", "c9"), seen("z", "c9")]
    second["trajectory"] = [step("other", "z")]
    top = {name: second[name] for name in ("trajectory", "history")}
    imported = read(
        {"attempts": [first, second], **top, "info": {"exit_status": "submitted", "best_attempt_idx": 1}}
    )
    (chosen,) = imported.of("candidate_selection")
    assert (chosen.selector, chosen.selected) == ("judge", (1,))
    assert [one.score for one in chosen.scores] == [0.25, 0.75]
    assert imported.report["candidates"] == {"sampled": 2, "selected": 1, "not_selected": 1}
    assert (
        len(imported.of("call")) == 4
    )  # 3 of the first attempt, 1 of the second; the copy at the top is none
    assert "reviewer_not_recorded" in {gap.cause for gap in imported.of("gap")}
    assert not any("beside the attempts" in name for name in imported.notes.not_understood)


def test_messages_of_another_agent_are_its_own_calls() -> None:
    sub = [TASK | {"agent": "summarizer"}, answer("short", agent="summarizer")]
    imported = read({"history": [SYSTEM, TASK, answer("one"), *sub]})
    assert {agent.name: agent.depth for agent in imported.of("agent") if agent.phase != "end"} == {
        "main": 0,
        "summarizer": 1,
    }
    assert len(imported.of("call")) == 2


def test_a_file_that_grew_keeps_its_name_and_two_runs_of_one_task_do_not_share_it() -> None:
    whole, seen_so_far = trajectory(), []
    for num in (1, 2, 3):
        part = copy.deepcopy(whole)
        part["trajectory"] = part["trajectory"][:num]
        part["history"] = part["history"][: 3 + 2 * min(num, 2)]
        part["info"] = {} if num < 3 else part["info"]
        seen_so_far += read(part).events
    grown = Imported(list(newest(seen_so_far).values()), read(whole).notes)
    assert same_events(grown, read(whole))
    other = trajectory(trajectory=[step("one", "a.txt", execution_time=0.5)])
    assert len({one.id for one in read(whole, other).of("episode")}) == 2


def test_no_value_of_a_trajectory_changes_without_a_trace() -> None:
    assert_perturbation(json.dumps(trajectory()).encode(), limit=40)


def test_a_history_that_is_no_trajectory_is_left_to_others() -> None:
    imported = read_data(json.dumps({"history": [{"role": "user", "content": "hi"}]}).encode())
    assert not imported.events
