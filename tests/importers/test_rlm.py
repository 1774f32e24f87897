from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import (
    as_lines,
    assert_builds,
    assert_grows,
    assert_order_free,
    assert_perturbation,
    read_data,
)

SYSTEM = {"role": "system", "content": "s"}
ASKED = {"role": "user", "content": "q"}


def metadata(**fields: Any) -> dict[str, Any]:
    return {
        "type": "metadata",
        "timestamp": "2026-01-05T10:00:00.000001",
        "root_model": "m",
        "max_depth": 2,
        "max_iterations": 30,
        "environment_type": "local",
        **fields,
    }


def block(code: str, *below: dict[str, Any]) -> dict[str, Any]:
    result = {
        "stdout": "out",
        "stderr": "",
        "locals": {"x": "1"},
        "execution_time": 0.5,
        "rlm_calls": list(below),
    }
    return {"code": code, "result": result}


def iteration(number: int, prompt: Any, *blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "type": "iteration",
        "iteration": number,
        "timestamp": f"2026-01-05T10:00:0{number}",
        "prompt": prompt,
        "response": f"answer {number}",
        "code_blocks": list(blocks),
        "final_answer": None,
        "iteration_time": 1.5,
        **fields,
    }


def below(**fields: Any) -> dict[str, Any]:
    counted = {"m2": {"total_calls": 1, "total_input_tokens": 7, "total_output_tokens": 2}}
    return {
        "root_model": "m2",
        "prompt": "part one?",
        "response": "yes",
        "usage_summary": {"model_usage_summaries": counted},
        "execution_time": 0.25,
        **fields,
    }


DEEP = below(
    prompt="part two?",
    metadata={"run_metadata": {"max_depth": 2}, "iterations": [iteration(1, [ASKED], block("y", below()))]},
)
LOG = (
    metadata(),
    {"type": "run_context", "timestamp": "2026-01-05T10:00:00.5", "prompt": "big text", "root_prompt": "q"},
    iteration(1, [SYSTEM, ASKED], block("a()", below(), DEEP), block("b()")),
    iteration(2, [SYSTEM, ASKED, ASKED, ASKED]),
    iteration(3, [SYSTEM, ASKED], final_answer="42"),
)


def test_an_iteration_is_a_call_with_the_whole_prompt_and_its_blocks_are_executions() -> None:
    imported = read_data(as_lines(*LOG))
    (episode,) = imported.of("episode")
    assert (json.loads(episode.task), episode.status) == ("big text", "ok")
    main = [call for call in imported.of("call") if call.agent_id == f"{episode.id}/main"]
    assert [json.loads(call.request)["messages"] for call in main] == [one["prompt"] for one in LOG[2:]]
    assert json.loads(main[0].completions[0].message) == {"role": "assistant", "content": "answer 1"}
    assert main[0].started_at is main[0].ended_at is None
    uses = [use for use in imported.of("tool_call") if use.call_id == main[0].id]
    assert [(use.name, use.arguments) for use in uses] == [("repl", "a()"), ("repl", "b()")]
    assert json.loads(uses[0].result)["stdout"] == "out"
    assert_builds(imported)


def test_what_a_block_called_is_an_agent_below_with_its_own_calls() -> None:
    imported = read_data(as_lines(*LOG))
    agents = {agent.id.partition("/")[2]: agent for agent in imported.of("agent")}
    assert {name: (agent.role, agent.depth) for name, agent in agents.items()} == {
        "main": ("main", 0),
        "main/0/code/0/0": ("sub_lm", 1),
        "main/0/code/0/1": ("subagent", 1),
        "main/0/code/0/1/0/code/0/0": ("sub_lm", 2),
    }
    deep = agents["main/0/code/0/1/0/code/0/0"]
    assert {agent.spawned_by_tool_call_id for agent in agents.values()} == {None, "code/0"}
    assert [use.id for use in imported.of("tool_call") if use.call_id == deep.spawned_by_call_id] == [
        f"{deep.spawned_by_call_id}/code/0"
    ]
    plain = agents["main/0/code/0/0"]
    assert (json.loads(plain.return_message), plain.model) == ("yes", "m2")
    assert plain.spawned_by_call_id == imported.of("call")[0].id
    (call,) = (call for call in imported.of("call") if call.agent_id == plain.id)
    assert (call.dialect, call.usage.prompt_tokens, call.usage.completion_tokens) == ("text", 7, 2)
    assert imported.report["agents"] == 4


def test_a_prompt_that_got_shorter_is_a_compaction_whose_summary_call_is_missing() -> None:
    imported = read_data(as_lines(*LOG))
    (edit,) = imported.of("context_edit")
    assert (edit.before_call_id[-2:], edit.after_call_id[-2:]) == ("/1", "/2")
    assert [gap.cause for gap in imported.of("gap")] == ["unrecorded_summary_call"]


def nested(*iterations: dict[str, Any]) -> list[int]:
    """How many messages are read of each iteration of an agent below."""
    asked = below(metadata={"run_metadata": {}, "iterations": list(iterations)})
    imported = read_data(as_lines(metadata(), iteration(1, [ASKED], block("a()", asked))))
    (agent,) = (one for one in imported.of("agent") if one.role == "subagent")
    return [
        len(json.loads(call.request)["messages"]) for call in imported.of("call") if call.agent_id == agent.id
    ]


def said(number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"answer {number}"}


def test_what_was_added_to_the_list_of_a_nested_prompt_after_it_was_sent_is_no_part_of_it() -> None:
    # Version 0.1.3 appends each turn to one list, which every iteration of an agent below then holds.
    whole = [SYSTEM, ASKED, said(1), ASKED, said(2), ASKED]
    assert nested(iteration(1, whole), iteration(2, whole), iteration(3, whole)) == [2, 4, 6]
    # Out of turns: a last prompt of its own asks for an answer.
    last = [*whole, {"role": "assistant", "content": "Please provide a final answer"}]
    assert nested(iteration(1, whole), iteration(2, whole), iteration(3, last)) == [2, 4, 7]
    # Compacted in between: a new list.
    short = [SYSTEM, ASKED, {"role": "assistant", "content": "summary"}, ASKED]
    assert nested(iteration(1, whole), iteration(2, whole), iteration(3, short)) == [2, 4, 4]


def test_prompts_that_grew_in_the_file_are_left_as_they_are() -> None:
    twice = {"role": "assistant", "content": "answer 1"}
    one, two = [SYSTEM, twice, ASKED], [SYSTEM, twice, ASKED, said(1), ASKED]
    assert nested(iteration(1, one), iteration(2, two)) == [3, 5]
    assert nested(iteration(1, [SYSTEM, ASKED]), iteration(2, [SYSTEM, said(1), ASKED])) == [2, 3]
    assert nested(iteration(1, [ASKED]), iteration(2, [ASKED])) == [1, 1]


def test_a_call_below_that_failed_says_why() -> None:
    failed = below(response="", error="busy", error_type="RateLimit", status_code=429)
    imported = read_data(as_lines(metadata(), iteration(1, "q", block("a()", failed))))
    (call,) = (call for call in imported.of("call") if call.status == "failed")
    assert (call.error.type, call.error.message, call.error.status_code) == ("RateLimit", "busy", 429)


def test_a_file_with_two_completions_is_two_episodes() -> None:
    again = {"type": "run_context", "timestamp": "later", "prompt": "other"}
    imported = read_data(as_lines(*LOG, again, iteration(4, [ASKED])))
    assert [json.loads(one.task) for one in imported.of("episode")] in (
        ["big text", "other"],
        ["other", "big text"],
    )


@pytest.mark.parametrize(
    "value",
    [
        iteration(1, 3, "x", response=[1]),  # type: ignore[arg-type]
        iteration(1, [ASKED], block("a", "x")),  # type: ignore[arg-type]
        iteration(1, [ASKED], {"code": 3, "result": {"rlm_calls": {"a": 1}}}),
        {"type": "iteration"},
        metadata(root_model=3),
        "text",
    ],
)
def test_a_field_of_another_type_never_ends_the_import(value: Any) -> None:
    imported = read_data(as_lines(*LOG), as_lines(metadata(max_depth=9), value), format="rlm")
    assert imported.of("call")


def test_grown_and_repeated_files_give_the_same_and_no_leaf_changes_without_a_trace() -> None:
    assert_grows(as_lines(*LOG).splitlines())
    assert_order_free(as_lines(*LOG), as_lines(metadata(timestamp="other"), iteration(1, "q")))
    assert_perturbation(as_lines(*LOG), limit=40)
