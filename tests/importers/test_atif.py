from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_perturbation,
    read_data,
    read_fixtures,
    same_events,
)
from tracestore.graph.context import context

PHOENIX = "atif/arize-ai__phoenix-client/"
SUMMARIZATION = [
    f"{PHOENIX}harbor_terminus2_{name}.json"
    for name in ("summarization", "sub_summary", "sub_questions", "sub_answers")
]
CONTINUATION = [f"{PHOENIX}harbor_terminus2_continuation{name}.json" for name in ("", "_cont1")]

USER: dict[str, Any] = {"source": "user", "message": "find it"}
USE = {"tool_call_id": "t1", "function_name": "look", "arguments": {"at": 1}}
SAID: dict[str, Any] = {
    "source": "agent",
    "message": "looking",
    "tool_calls": [USE],
    "observation": {"results": [{"source_call_id": "t1", "content": "seen"}]},
    "metrics": {"prompt_tokens": 5, "completion_tokens": 2},
}
DONE: dict[str, Any] = {
    "source": "agent",
    "message": "done",
    "metrics": {"prompt_tokens": 9, "completion_tokens": 1},
}


def document(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "s",
        "agent": {"name": "a", "version": "1", "model_name": "m"},
        "steps": [{"step_id": place} | step for place, step in enumerate(steps, 1)],
    } | fields


def read(*documents: Any) -> Imported:
    imported = read_data(as_lines(*documents))
    assert_builds(imported)
    return imported


def contexts(imported: Imported) -> list[list[Any]]:
    """What each call read: role and content, in order of the calls."""
    found = []
    for graph in imported.graphs.values():
        for call in sorted(graph.calls.values(), key=lambda call: (call.agent_id, call.ordinal or 0)):
            messages = [json.loads(message.raw) for message in context(graph, call.id)]
            found.append([(one["role"], one.get("content")) for one in messages])
    return found


def test_an_agent_step_is_a_call_and_the_next_one_reads_its_observation() -> None:
    imported = read(document(USER, SAID, DONE))
    first, second = imported.of("call")
    assert (first.context, second.context, second.parent_call_id) == ("whole", "delta", first.id)
    assert contexts(imported) == [
        [("user", "find it")],
        [("user", "find it"), ("assistant", "looking"), ("tool", "seen")],
    ]
    start, end = sorted(imported.of("tool_call"), key=lambda one: one.phase, reverse=True)
    assert (start.tool_call_id, start.name, start.arguments) == ("t1", "look", '{"at": 1}')
    assert end.result == b'"seen"'
    assert imported.report["usage"]["prompt_tokens"] == 5 + 9


def test_copied_steps_are_context_and_no_calls() -> None:
    imported = read(document(USER, SAID | {"is_copied_context": True}, DONE))
    (call,) = imported.of("call")
    assert contexts(imported) == [[("user", "find it"), ("assistant", "looking"), ("tool", "seen")]]
    assert imported.report["usage"]["prompt_tokens"] == 9
    assert not imported.of("tool_call")
    assert json.loads(call.meta)["atif"]["metrics"] == {"prompt_tokens": 5, "completion_tokens": 2}


def test_copied_steps_after_a_call_begin_a_new_context() -> None:
    imported = read(document(USER, DONE, USER | {"is_copied_context": True}, DONE))
    assert [call.context for call in imported.of("call")] == ["whole", "whole"]
    assert contexts(imported)[1] == [("user", "find it")]


def test_a_step_without_a_model_call_is_context_and_its_tool_call_a_gap() -> None:
    imported = read(document(USER, SAID | {"llm_call_count": 0}, DONE | {"llm_call_count": 1}))
    assert len(imported.of("call")) == 1
    assert [gap.cause for gap in imported.of("gap")] == ["tool_call_without_model_call"]
    assert contexts(imported)[0][1:] == [("assistant", "looking"), ("tool", "seen")]


def test_several_calls_in_one_step_are_one_call_with_a_gap_and_no_token_ids() -> None:
    step = DONE | {"llm_call_count": 3, "metrics": {"completion_token_ids": [1, 2], "completion_tokens": 2}}
    imported = read(document(USER, step))
    (call,) = imported.of("call")
    (gap,) = imported.of("gap")
    assert (gap.cause, gap.detail) == ("several_calls_in_one_step", "3 model calls are one step of the file")
    assert call.completions[0].token_ids is None
    assert json.loads(call.meta)["atif"]["metrics"] == {"completion_token_ids": [1, 2]}


def test_token_ids_and_logprobs_come_bit_for_bit() -> None:
    metrics = {
        "prompt_token_ids": [7, 8],
        "completion_token_ids": [9, 10],
        "logprobs": [-0.1, -0.30000000000000004],
    }
    (call,) = read(document(USER, DONE | {"metrics": metrics})).of("call")
    body = call.completions[0]
    assert call.prompt_token_ids.json() == [7, 8]
    assert body.token_ids.json() == [9, 10]
    assert (body.logprobs.dtype, body.logprobs.json()) == ("float64", [-0.1, -0.30000000000000004])


def test_logprobs_that_do_not_fit_the_ids_stay_beside_the_call() -> None:
    metrics = {"completion_token_ids": [9, 10], "logprobs": [-0.1]}
    (call,) = read(document(USER, DONE | {"metrics": metrics})).of("call")
    assert call.completions[0].logprobs is None
    assert json.loads(call.meta)["atif"]["metrics"] == {"logprobs": [-0.1]}


def test_a_compaction_begins_a_new_context_with_its_summary_and_says_what_is_not_known() -> None:
    mark = {
        "source": "system",
        "message": "compacted",
        "observation": {"results": [{"content": "we looked"}]},
        "extra": {"context_management": {"type": "compaction", "boundary": "replace", "tokens_before": 50}},
    }
    imported = read(document(USER, DONE, mark, DONE))
    first, second = imported.of("call")
    (edit,) = imported.of("context_edit")
    assert (edit.edit, edit.before_call_id, edit.after_call_id) == ("compaction", first.id, second.id)
    assert (edit.tokens_before, edit.tokens_after) == (50, None)
    assert contexts(imported)[1] == [("user", "we looked")]
    assert [(gap.cause, gap.call_id) for gap in imported.of("gap")] == [("missing_prompt", second.id)]


def test_copied_steps_after_a_compaction_spell_the_context_out() -> None:
    mark = {"source": "system", "message": "", "extra": {"context_management": {"type": "compaction"}}}
    imported = read(document(USER, DONE, mark, USER | {"is_copied_context": True}, DONE))
    assert contexts(imported)[1] == [("user", "find it")]
    assert not imported.of("gap")


def test_an_embedded_sub_agent_is_spawned_by_the_tool_call_that_refers_to_it() -> None:
    child = document(USER, DONE, trajectory_id="c", session_id=None)
    result = {"source_call_id": "t1", "content": "asked", "subagent_trajectory_ref": [{"trajectory_id": "c"}]}
    step = SAID | {"observation": {"results": [result]}}
    imported = read(document(USER, step, trajectory_id="p", subagent_trajectories=[child]))
    graph = imported.graphs["s"]
    main, sub = graph.agents["s/p"], graph.agents["s/c"]
    assert (main.role, sub.role, sub.depth, sub.parent_agent_id) == ("main", "subagent", 1, main.id)
    assert sub.spawned_by_tool_call_id == "t1"
    assert graph.calls[sub.spawned_by_call_id or ""].agent_id == main.id
    assert len(graph.calls) == 2


def test_a_sub_agent_in_another_file_is_found_whatever_the_order_of_the_files() -> None:
    ref = {"session_id": "child", "trajectory_path": "elsewhere.json"}
    step = SAID | {"observation": {"results": [{"source_call_id": "t1", "subagent_trajectory_ref": [ref]}]}}
    parent, child = document(USER, step), document(USER, DONE, session_id="child")
    imported = read(parent, child)
    assert list(imported.graphs) == ["s"]
    assert same_events(imported, read(child, parent))
    assert same_events(imported, read_data(as_lines(parent), as_lines(child)))


def test_a_trajectory_that_grew_gives_what_the_whole_one_gives() -> None:
    steps: list[dict[str, Any]] = [USER, SAID, DONE, DONE]
    seen: list[Any] = []
    for length in range(1, 5):
        part = read_data(as_lines(document(*steps[:length], final_metrics={"total_steps": length})))
        newest = {(one.kind, one.id, getattr(one, "phase", "whole")): one for one in seen}
        for event in part.events:
            name = (event.kind, event.id, getattr(event, "phase", "whole"))
            old = newest.get(name)
            if old is not None and (old.revision or 0) >= (event.revision or 0):
                assert old == event
            newest[name] = event
        seen = list(newest.values())
    whole = read(document(*steps, final_metrics={"total_steps": 4}))
    assert {one.id for one in seen} == {one.id for one in whole.events}
    assert all(one in seen for one in whole.events)


def test_a_copy_and_an_older_state_of_a_trajectory_add_nothing() -> None:
    whole = document(USER, SAID, DONE)
    assert same_events(read(whole), read(whole, whole, document(USER, SAID)))


def test_two_trajectories_of_one_session_that_differ_are_two_agents() -> None:
    imported = read(document(USER, DONE), document(USER, DONE | {"message": "other"}))
    assert len({agent.id for agent in imported.of("agent")}) == 2
    assert len(imported.of("call")) == 2
    assert imported.notes.warnings == {"two trajectories of one id say different things": 1}


def test_totals_that_no_step_explains_are_a_gap_and_never_usage() -> None:
    totals = {"total_prompt_tokens": 109, "total_completion_tokens": 1}
    imported = read(document(USER, DONE, final_metrics=totals))
    (gap,) = imported.of("gap")
    assert gap.detail == "final_metrics count 100 prompt_tokens that no step shows"
    assert imported.report["usage"]["prompt_tokens"] == 9


def test_parts_of_a_message_are_kept_as_they_are() -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav", "duration_sec": 1.5}},
    ]
    imported = read(document(USER | {"message": parts}, DONE, schema_version="ATIF-v1.8"))
    assert contexts(imported) == [[("user", parts)]]


def test_a_record_that_is_no_trajectory_is_refused_and_the_others_are_read() -> None:
    imported = read_data(as_lines(document(USER, DONE), {"schema_version": 1}))
    assert len(imported.of("call")) == 1
    assert imported.notes.refused == ["file-0, line 2: no ATIF trajectory: it has schema_version and steps"]


def test_a_trajectory_under_a_name_of_its_own_is_read_like_a_bare_one() -> None:
    assert same_events(read({"main": document(USER, DONE)}), read(document(USER, DONE)))


@pytest.mark.parametrize("inside", ["x", 5, {"a": 1}, [3]])
def test_sub_agents_that_are_no_list_of_trajectories_are_kept_beside_the_agent(inside: Any) -> None:
    imported = read(document(USER, DONE, subagent_trajectories=inside))
    (end,) = [agent for agent in imported.of("agent") if agent.phase == "end"]
    assert end.meta.value()["atif"]["subagent_trajectories"] == inside


def test_every_value_of_a_trajectory_leaves_a_trace() -> None:
    odd = {"source": "agent", "message": 3, "metrics": {"logprobs": "x"}, "new_field": {"deep": [1, "a"]}}
    ref = {"session_id": "other", "extra": {"summary": "x"}}
    mark = {
        "source": "system",
        "message": "m",
        "observation": {"results": [{"subagent_trajectory_ref": [ref]}]},
    }
    data = as_lines(document(USER, SAID, odd, mark, DONE, notes="n", final_metrics={"total_steps": 5}))
    assert_perturbation(data, limit=40)


# --- Real files ------------------------------------------------------------------------------------------


def test_a_summarization_counts_the_tokens_of_its_sub_agents_once() -> None:
    imported = read_fixtures(*SUMMARIZATION)
    assert_builds(imported)
    (graph,) = imported.graphs.values()
    prompts = dict.fromkeys(graph.agents, 0)
    for call in graph.calls.values():
        prompts[call.agent_id] += len(call.prompt_token_ids or ())
    main, *subs = sorted(prompts, key=lambda agent_id: graph.agents[agent_id].depth or 0)
    assert prompts[main] == 6502
    assert sorted(prompts[sub] for sub in subs) == [100, 500, 700]
    assert {graph.agents[sub].parent_agent_id for sub in subs} == {main}
    # The parent's final_metrics: 6,502 + (500 + 100 + 700) = 7,802 and 690 + (200 + 20 + 120) = 1,030.
    assert imported.report["usage"]["prompt_tokens"] == 7802
    assert imported.report["sampled_tokens"] == imported.report["usage"]["completion_tokens"] == 1030
    assert imported.report["calls"] == 7 + 3


def test_the_copied_steps_of_a_summarizer_are_the_calls_of_its_parent() -> None:
    (graph,) = read_fixtures(*SUMMARIZATION).graphs.values()
    summary = next(name for name in graph.agents if name.endswith("-summary"))
    (call,) = (call for call in graph.calls.values() if call.agent_id == summary)
    authors = [message.author for message in context(graph, call.id)]
    assert [graph.calls[author[0]].ordinal for author in authors if author is not None] == [0, 1]


def test_a_continuation_is_the_same_agent_after_a_compaction() -> None:
    imported = read_fixtures(*CONTINUATION)
    assert_builds(imported)
    (graph,) = imported.graphs.values()
    (main,) = (agent for agent in graph.agents.values() if agent.role == "main")
    calls = sorted(
        (call for call in graph.calls.values() if call.agent_id == main.id),
        key=lambda call: call.ordinal or 0,
    )
    assert [call.ordinal for call in calls] == list(range(3 + 4))
    (edit,) = graph.context_edits.values()
    assert (edit.before_call_id, edit.after_call_id) == (calls[2].id, calls[3].id)
    assert len(context(graph, calls[3].id)) == 4
    assert imported.report["usage"]["prompt_tokens"] == 2252 + 4250


def test_a_continuation_alone_belongs_to_the_episode_that_it_continues() -> None:
    alone, whole = read_fixtures(CONTINUATION[1]), read_fixtures(*CONTINUATION)
    assert list(alone.graphs) == list(whole.graphs)
    assert {call.id for call in alone.of("call")} <= {call.id for call in whole.of("call")}
