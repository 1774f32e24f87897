from __future__ import annotations

import itertools
import json
from typing import Any

from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_perturbation,
    read_data,
    same_events,
)
from tests.importers.test_growth import assert_older


def lc(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": kwargs}


def run(name: str, kind: str, parent: str | None, **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "trace_id": "root",
        "parent_run_id": parent,
        "run_type": kind,
        "name": name,
        "start_time": "2026-01-01T00:00:00",
        "dotted_order": f"20260101T000000000000Z{name}",
        "status": "success",
    } | fields


def metadata(**fields: Any) -> dict[str, Any]:
    return {"extra": {"metadata": fields}}


HUMAN = lc("HumanMessage", content="hi", type="human")
AI = lc(
    "AIMessage",
    content="",
    type="ai",
    tool_calls=[{"name": "task", "args": {"q": 1}, "id": "t1", "type": "tool_call"}],
    usage_metadata={"input_tokens": 10, "output_tokens": 4, "input_token_details": {"cache_read": 6}},
)
RUNS = [
    run("root", "chain", None, **metadata(ls_agent_type="root", lc_agent_name="main"), prompt_tokens=99),
    run("node", "chain", "root", **metadata(ls_agent_type="root", lc_agent_name="main")),
    run(
        "llm",
        "llm",
        "node",
        inputs={"messages": [[HUMAN]]},
        outputs={
            "generations": [[{"text": "", "type": "ChatGeneration", "message": AI}]],
            "llm_output": None,
        },
        extra={"metadata": {"ls_model_name": "m"}, "invocation_params": {"temperature": 0.5}},
    ),
    run(
        "task",
        "tool",
        "root",
        inputs={"input": "{'q': 1}"},
        outputs={"output": {"type": "tool", "content": "done", "tool_call_id": "t1"}},
        **metadata(ls_agent_type="root", lc_agent_name="main"),
    ),
    run("sub", "chain", "task", **metadata(ls_agent_type="subagent", lc_agent_name="helper")),
    run(
        "inner",
        "llm",
        "sub",
        inputs={"messages": [[HUMAN]]},
        outputs={"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]},
    ),
]


def read(*runs: Any) -> Imported:
    imported = read_data(as_lines(*runs))
    assert_builds(imported)
    return imported


def test_runs_become_agents_calls_and_tool_calls() -> None:
    imported = read(*RUNS)
    (graph,) = imported.graphs.values()
    main, sub = graph.agents["root/root"], graph.agents["root/sub"]
    assert (main.name, main.role, sub.name, sub.role) == ("main", "main", "helper", "subagent")
    call = graph.calls["root/llm"]
    assert (call.agent_id, call.model) == (main.id, "m")
    assert json.loads(call.request or b"") == {
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
    }
    assert (call.usage.prompt_tokens, call.usage.cached_tokens) == (10, 6)  # type: ignore[union-attr]
    (tool_call,) = graph.tool_calls.values()
    assert (tool_call.call_id, tool_call.tool_call_id) == (call.id, "t1")
    assert (sub.spawned_by_call_id, sub.spawned_by_tool_call_id) == (call.id, "t1")
    assert graph.calls["root/inner"].agent_id == sub.id
    assert graph.completions["root/inner", 0].finish_reason == "stop"


def test_inherited_metadata_makes_no_further_agents_and_sums_are_not_added() -> None:
    imported = read(*RUNS)
    assert imported.report["agents"] == 2
    assert imported.report["usage"]["prompt_tokens"] == 10


def test_what_any_part_of_the_runs_says_stays_or_is_replaced_by_the_whole() -> None:
    summary = lc("HumanMessage", content="so far", additional_kwargs={"lc_source": "summarization"}, id="m1")
    told = {"inputs": {"messages": [[summary]]}, "outputs": {"role": "assistant", "content": "x"}}
    runs = [*RUNS, run("later", "llm", "root", **told), run("last", "llm", "sub", **told)]
    some = [read(*part) for n in range(1, len(runs)) for part in itertools.combinations(runs, n)]
    whole = read(*runs)
    for part in some:
        assert_older(part, whole)


def test_runs_inside_their_parents_and_in_a_page_are_read_alike() -> None:
    children: dict[Any, list[Any]] = {}
    for one in RUNS:
        children.setdefault(one["parent_run_id"], []).append(one)

    def nested(one: dict[str, Any]) -> dict[str, Any]:
        return one | {"child_runs": [nested(child) for child in children.get(one["id"], [])]}

    assert {one.id for one in read(nested(RUNS[0])).events} == {one.id for one in read(*RUNS).events}
    assert same_events(read(*RUNS), read_data(json.dumps({"runs": RUNS}).encode()))
    assert same_events(read(*RUNS), read(*reversed(RUNS)))


def test_the_start_of_a_run_is_in_its_order_where_its_time_has_no_zone() -> None:
    (call,) = read(run("llm", "llm", None)).of("call")
    assert call.started_at == 1_767_225_600 * 10**9
    assert json.loads(call.meta)["langsmith"]["start_time"] == "2026-01-01T00:00:00"


def test_a_summary_of_the_conversation_is_one_compaction_before_the_first_call_that_reads_it() -> None:
    summary = lc(
        "HumanMessage",
        content="so far",
        type="human",
        additional_kwargs={"lc_source": "summarization"},
        id="m1",
    )
    runs = [
        run(
            name, "llm", None, inputs={"messages": [[summary]]}, outputs={"role": "assistant", "content": "x"}
        )
        for name in ("b", "a")
    ]
    (edit,) = read(*runs).of("context_edit")
    assert (edit.edit, edit.after_call_id) == ("compaction", "root/a")


def test_a_failed_run_keeps_its_error() -> None:
    (call,) = read(run("llm", "llm", None, error="Timeout()", status="error")).of("call")
    assert (call.status, call.error.message) == ("failed", "Timeout()")


def test_every_value_of_a_run_leaves_a_trace() -> None:
    assert_perturbation(as_lines(*RUNS), limit=40)
