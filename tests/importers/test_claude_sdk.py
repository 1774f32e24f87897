from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_grows,
    assert_order_free,
    assert_perturbation,
    newest,
    read_data,
    same_events,
)

Row = dict[str, Any]


def row(kind: str, num: int, **fields: Any) -> Row:
    return {"type": kind, "session_id": "s", "uuid": f"u{num}", "parent_tool_use_id": None, **fields}


def init(num: int = 0, **fields: Any) -> Row:
    return row("system", num, subtype="init", tools=["Bash", "Task"], model="c", cwd="/x", **fields)


def asked(num: int, content: Any, **fields: Any) -> Row:
    return row("user", num, message={"role": "user", "content": content}, **fields)


def said(num: int, message_id: str, *blocks: Row, stop: str | None = None, **fields: Any) -> Row:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 1}
    message = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": "c",
        "content": list(blocks),
    }
    return row("assistant", num, message={**message, "stop_reason": stop, "usage": usage}, **fields)


def text(value: str) -> Row:
    return {"type": "text", "text": value}


def use(use_id: str, name: str = "Bash", **arguments: Any) -> Row:
    return {"type": "tool_use", "id": use_id, "name": name, "input": arguments}


def result_of(use_id: str, content: Any, **fields: Any) -> Row:
    return {"type": "tool_result", "tool_use_id": use_id, "content": content, **fields}


def ended(num: int, subtype: str = "success", **fields: Any) -> Row:
    usage = {"input_tokens": 6, "output_tokens": 50}
    return row("result", num, subtype=subtype, result="done", total_cost_usd=0.25, usage=usage, **fields)


def event(num: int, body: Row, **fields: Any) -> Row:
    return row("stream_event", num, event=body, **fields)


RUN = [
    init(),
    asked(1, "list"),
    said(2, "m1", {"type": "thinking", "thinking": "hm", "signature": "s"}),
    said(3, "m1", use("t1", command="ls")),
    asked(4, [result_of("t1", "a b", is_error=False)], tool_use_result={"stdout": "a b"}),
    said(5, "m2", text("a and b"), stop="end_turn"),
    ended(6, is_error=False),
]


def calls(imported: Imported) -> list[Any]:
    return sorted(imported.of("call"), key=lambda call: (call.agent_id, call.ordinal))


def ends(imported: Imported, kind: str) -> list[Any]:
    return [one for one in imported.of(kind) if one.phase == "end"]


def test_a_run_is_an_episode_whose_calls_are_made_of_fragments() -> None:
    imported = read_data(as_lines(*RUN))
    assert_builds(imported)
    first, second = calls(imported)
    assert [block["type"] for block in first.completions[0].message.value()["content"]] == [
        "thinking",
        "tool_use",
    ]
    assert first.request.value() == {"messages": [RUN[1]["message"]]}
    assert (second.context, second.parent_call_id) == ("delta", first.id)
    assert second.request.value() == {"messages": [RUN[4]["message"]]}
    assert (first.status, second.status, second.completions[0].finish_reason) == (None, "ok", "end_turn")
    # 3 fresh and 7 cached are 10 read. The output was counted when the message began, unless it says its end.
    assert (first.usage.prompt_tokens, first.usage.cached_tokens, first.usage.completion_tokens) == (
        10,
        7,
        None,
    )
    assert second.usage.completion_tokens == 1
    assert "output_tokens_so_far" in first.meta.decode()
    (tool_end,) = ends(imported, "tool_call")
    assert (tool_end.result.value(), tool_end.status) == ("a b", "ok")
    assert {gap.cause for gap in imported.of("gap")} == {"system_prompt_not_recorded", "usage_not_recorded"}


def test_a_result_says_how_the_main_agent_ended() -> None:
    (agent,) = ends(read_data(as_lines(*RUN)), "agent")
    assert (agent.status, agent.return_message.value(), agent.error) == ("ok", "done", None)
    assert "total_cost_usd" in agent.meta.decode()
    for last, status in (
        (ended(6, "error_max_turns", is_error=False), "budget_exhausted"),
        (ended(6, "error_during_execution", is_error=True, errors=["a", "b"]), "failed"),
        (ended(6, "success", is_error=True), "failed"),
    ):
        (agent,) = ends(read_data(as_lines(*RUN[:-1], last)), "agent")
        assert (agent.status, agent.return_message) == (status, None)
        assert agent.error is not None
    (agent,) = ends(read_data(as_lines(*RUN[:-1])), "agent")
    assert agent.status is None


def test_a_prompt_that_is_not_in_the_stream_is_a_gap() -> None:
    imported = read_data(as_lines(RUN[0], *RUN[2:]))
    assert "missing_prompt" in {gap.cause for gap in imported.of("gap")}
    assert calls(imported)[0].request.value() == {"messages": []}


def test_messages_with_a_parent_are_of_the_subagent_that_it_spawned() -> None:
    below = {"parent_tool_use_id": "t1"}
    spawn = use("t1", "Agent", prompt="count", subagent_type="counter")
    rows = [
        init(),
        asked(1, "go"),
        said(2, "m1", spawn),
        row("system", 3, subtype="task_started", task_id="a1", tool_use_id="t1"),
        asked(4, [text("count")], **below),
        said(5, "m2", use("t2"), **below),
        asked(6, [result_of("t2", "4")], **below),
        said(7, "m3", text("4"), **below),
        asked(8, [result_of("t1", [text("four")])], tool_use_result={"agentId": "a1", "status": "completed"}),
        said(9, "m4", text("it is 4")),
        ended(10),
    ]
    imported = read_data(as_lines(*rows))
    assert_builds(imported)
    subagents = [one for one in imported.of("agent") if not one.id.endswith("/main")]
    assert len({one.id for one in subagents}) == 1
    start, end = sorted(subagents, key=lambda one: one.phase, reverse=True)
    assert (start.role, start.scope_prompt.value()) == ("subagent", [text("count")])
    (spawning,) = [call for call in calls(imported) if call.provider_id == "m1"]
    assert (end.spawned_by_call_id, end.spawned_by_tool_call_id, end.name) == (spawning.id, "t1", "counter")
    assert (end.return_message.value(), end.status) == ([text("four")], "ok")
    assert end.parent_agent_id == spawning.agent_id
    assert [call.ordinal for call in calls(imported) if call.agent_id == end.id] == [0, 1]
    (last,) = [call for call in calls(imported) if call.provider_id == "m4"]
    assert last.parent_call_id == spawning.id
    assert_grows([json.dumps(one).encode() for one in rows])


# --- Stream events ---------------------------------------------------------------------------------

STARTED = {"id": "m1", "type": "message", "role": "assistant", "model": "c", "content": []}
STREAM = [
    event(
        10,
        {"type": "message_start", "message": {**STARTED, "usage": {"input_tokens": 3, "output_tokens": 1}}},
    ),
    event(11, {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    event(12, {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a "}}),
    event(13, {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}}),
    said(14, "m1", text("a b")),
    event(15, {"type": "content_block_stop", "index": 0}),
    event(
        16, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 40}}
    ),
    event(17, {"type": "message_stop"}),
]


def test_stream_events_give_a_call_its_last_usage_and_no_content_twice() -> None:
    imported = read_data(as_lines(init(), asked(1, "hi"), *STREAM, ended(20)))
    (call,) = calls(imported)
    assert call.completions[0].message.value()["content"] == [text("a b")]
    assert (call.completions[0].finish_reason, call.completions[0].partial) == ("end_turn", None)
    assert (call.usage.prompt_tokens, call.usage.completion_tokens, call.status) == (3, 40, "ok")
    assert {gap.cause for gap in imported.of("gap")} == {"system_prompt_not_recorded"}


def test_a_message_that_never_came_is_what_its_stream_events_had() -> None:
    imported = read_data(as_lines(init(), asked(1, "hi"), *STREAM[:3]))
    (call,) = calls(imported)
    assert (call.status, call.completions[0].partial) == ("aborted", True)
    assert call.completions[0].message.value()["content"] == [text("a ")]


def test_a_tool_use_that_was_cut_keeps_the_text_of_its_arguments() -> None:
    block = {"type": "content_block_start", "index": 0, "content_block": use("t9")}
    delta = {"type": "input_json_delta", "partial_json": '{"command": "rm -r'}
    rows = [
        STREAM[0],
        event(11, block),
        event(12, {"type": "content_block_delta", "index": 0, "delta": delta}),
    ]
    imported = read_data(as_lines(init(), asked(1, "hi"), *rows))
    assert calls(imported)[0].completions[0].message.value()["content"][0]["input"] == '{"command": "rm -r'
    (tool_call,) = imported.of("tool_call")
    assert (tool_call.phase, tool_call.arguments) == ("start", '{"command": "rm -r')


def test_a_stream_that_grows_gives_in_the_end_what_the_whole_gives() -> None:
    rows = [init(), asked(1, "hi"), *STREAM, asked(18, "more"), said(19, "m2", text("x")), ended(20)]
    assert_grows([json.dumps(one).encode() for one in rows])
    assert_grows([json.dumps(one).encode() for one in RUN])


# --- Runs and files --------------------------------------------------------------------------------


def test_a_recording_is_the_same_as_yaml_as_json_and_with_directions() -> None:
    sent = {**RUN[1], "session_id": "default"}
    control = {"type": "control_request", "request_id": "r", "request": {"subtype": "initialize"}}
    rows = [control, sent, RUN[0], *RUN[2:]]
    plain = read_data(json.dumps({"messages": rows}).encode())
    wrapped = [{"direction": "send" if one is sent else "recv", "message": one} for one in rows]
    directed = read_data(json.dumps({"messages": wrapped, "metadata": {"cli": "1"}}).encode())
    yaml = ["messages:", *(f"- {json.dumps(one)}" for one in rows)]
    written = read_data("\n".join(yaml).replace('"type": "system"', "type: system").encode())
    for imported in (plain, directed, written):
        assert [call.provider_id for call in calls(imported)] == ["m1", "m2"]
        assert calls(imported)[0].request.value() == {"messages": [RUN[1]["message"]]}
        assert imported.notes.rows["claude-agent-sdk/control_request"] == 1
        assert "claude-agent-sdk: control_request" in imported.notes.not_understood
        assert_builds(imported)
    assert same_events(plain, written)
    assert "claude-agent-sdk: head of a recording" in directed.notes.not_understood


def test_each_session_of_a_file_is_a_run_and_so_is_each_file_of_a_session() -> None:
    other = [{**one, "session_id": "s2"} for one in RUN]
    imported = read_data(as_lines(*RUN, *other))
    assert [
        episode.id.partition("/")[0] for episode in imported.of("episode") if episode.phase == "start"
    ] == ["s", "s2"]
    resumed = as_lines(init(30), asked(31, "again"), said(32, "m9", text("yes")), ended(33))
    assert_order_free(as_lines(*RUN), resumed)
    assert len({call.episode_id for call in read_data(as_lines(*RUN), resumed).of("call")}) == 2


def test_turns_of_one_session_go_on_and_the_last_result_holds() -> None:
    rows = [*RUN, init(7), asked(8, "more"), said(9, "m3", text("no")), ended(10, "error_max_turns")]
    imported = read_data(as_lines(*rows))
    assert [call.ordinal for call in calls(imported)] == [0, 1, 2]
    assert calls(imported)[2].parent_call_id == calls(imported)[1].id
    (agent,) = ends(imported, "agent")
    assert agent.status == "budget_exhausted"


def test_a_run_of_many_messages_is_read() -> None:
    rows = [init(), *(asked(num, "x") for num in range(1, 2_100)), said(2_100, "m1", text("a"))]
    (call,) = calls(read_data(as_lines(*rows)))
    assert len(call.request.value()["messages"]) == 2_099


def test_a_message_that_is_printed_again_is_the_same_message() -> None:
    imported = read_data(as_lines(*RUN[:2], RUN[1], *RUN[2:]))
    assert same_events(imported, read_data(as_lines(*RUN)))
    changed = read_data(as_lines(*RUN[:2], {**RUN[1], "isReplay": True}, *RUN[2:]))
    assert same_events(changed, read_data(as_lines(*RUN)))
    assert "claude-agent-sdk: another message of a known uuid" in changed.notes.not_understood


def test_a_compaction_begins_a_new_context() -> None:
    boundary = row(
        "system", 7, subtype="compact_boundary", compact_metadata={"trigger": "auto", "pre_tokens": 90}
    )
    summary = asked(8, "so far: a and b", isSynthetic=True)
    imported = read_data(as_lines(*RUN[:-1], boundary, summary, said(9, "m3", text("ok")), ended(10)))
    assert_builds(imported)
    (edit,) = imported.of("context_edit")
    assert (edit.edit, edit.trigger, edit.tokens_before) == ("compaction", "rule", 90)
    after = calls(imported)[2]
    assert (edit.before_call_id, edit.after_call_id) == (calls(imported)[1].id, after.id)
    assert (after.context, after.request.value()) == ("whole", {"messages": [summary["message"]]})


def test_an_answer_that_is_an_error_is_a_failed_call() -> None:
    failed = said(2, "m1", text("API Error: 529")) | {"error": "overloaded"}
    imported = read_data(as_lines(init(), asked(1, "hi"), failed, ended(3, is_error=True)))
    (call,) = calls(imported)
    assert (call.status, call.error.type, call.error.message, call.completions) == (
        "failed",
        "overloaded",
        "API Error: 529",
        None,
    )


def test_what_is_no_message_is_refused_and_shown_and_the_others_pass() -> None:
    rows = [*RUN[:2], 3, {"type": "assistant", "session_id": "s"}, {"session_id": "s"}, *RUN[2:]]
    imported = read_data(as_lines(*rows))
    assert len(calls(imported)) == 2
    assert [one.partition(":")[0] for one in imported.notes.refused] == ["file-0, line 3", "file-0, line 4"]
    assert {name.partition(": ")[2] for name in imported.notes.not_understood} == {
        "no message",
        "assistant",
        "(no type)",
    }


@pytest.mark.parametrize(
    "data",
    [b"messages:\n- role: user\n  content: hi\n", b"messages:\n- [", b"messages: 3", b"1: !!binary aGk="],
)
def test_yaml_with_other_messages_is_none_of_ours(data: bytes) -> None:
    assert "file of no known format" in read_data(data).notes.not_understood
    forced = read_data(data, format="claude-agent-sdk")
    assert forced.events == []
    assert forced.notes.refused or forced.notes.not_understood


def test_no_value_of_a_run_changes_without_a_trace() -> None:
    assert_perturbation(as_lines(*RUN), limit=200)
    assert_perturbation(as_lines(init(), asked(1, "hi"), *STREAM, ended(20)), limit=200)


def test_a_run_that_was_read_twice_at_different_lengths_is_one() -> None:
    seen = [*read_data(as_lines(*RUN[:4])).events, *read_data(as_lines(*RUN)).events]
    whole = read_data(as_lines(*RUN))
    assert same_events(whole, Imported(list(newest(seen).values()), whole.notes))
