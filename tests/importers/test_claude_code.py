from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import fixture
from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_grows,
    assert_order_free,
    assert_perturbation,
    newest,
    read_data,
    read_paths,
    same_events,
)
from tracestore.graph.branches import branches
from tracestore.graph.context import context
from tracestore.graph.invariants import check

S = "s-1"
Row = dict[str, Any]


def row(kind: str, uuid: str | None, parent: str | None, message: Any = None, **fields: Any) -> Row:
    at = f"2026-02-03T10:00:{int(fields.pop('second', 0)):02}Z"
    base = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": S, "timestamp": at}
    base |= {} if message is None else {"message": message}
    return {name: value for name, value in (base | fields).items() if name != "uuid" or value is not None}


def user(uuid: str, parent: str | None, content: Any, **fields: Any) -> Row:
    return row("user", uuid, parent, {"role": "user", "content": content}, **fields)


def result(uuid: str, parent: str, use: str, content: Any = "done", **fields: Any) -> Row:
    return user(uuid, parent, [{"type": "tool_result", "tool_use_id": use, "content": content}], **fields)


def answer(uuid: str, parent: str | None, *blocks: Any, id: str | None = None, **fields: Any) -> Row:  # noqa: A002
    usage = fields.pop("usage", {"input_tokens": 1, "output_tokens": 1})
    message = {"id": id or f"msg-{uuid}", "role": "assistant", "model": "claude", "content": list(blocks)}
    stop = fields.pop("stop", "end_turn")
    return row("assistant", uuid, parent, message | {"stop_reason": stop, "usage": usage}, **fields)


def text(said: str) -> Row:
    return {"type": "text", "text": said}


def use(id: str, name: str = "Read", **given: Any) -> Row:  # noqa: A002
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def boundary(uuid: str, logical: str | None, **metadata: Any) -> Row:
    stated = {"trigger": "auto", "preTokens": 900} | metadata
    return row(
        "system", uuid, None, subtype="compact_boundary", logicalParentUuid=logical, compactMetadata=stated
    )


def summary(uuid: str, parent: str | None, said: str = "SUMMARY", **fields: Any) -> Row:
    return user(uuid, parent, said, isCompactSummary=True, **fields)


def read(*rows: Row) -> Imported:
    imported = read_data(as_lines(*rows), format="claude-code")
    assert_builds(imported)
    assert [violation for graph in imported.graphs.values() for violation in check(graph)] == []
    assert imported.notes.refused == []
    return imported


def calls(imported: Imported) -> dict[str, Any]:
    """The calls by the part of their id that a test chose."""
    return {call.id.split("/", 1)[1].replace("msg-", ""): call for call in imported.of("call")}


def seen(imported: Imported, name: str) -> list[Any]:
    """What a call saw, answers as their texts."""
    call = calls(imported)[name]
    messages = [json.loads(m.raw) for m in context(imported.graphs[call.episode_id], call.id)]
    return [_short(message["content"]) for message in messages]


def _short(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [b.get("text") or b.get("id") or b.get("content", "cleared") for b in content]


def agents(imported: Imported) -> dict[str, Row]:
    """What is said of each agent, by its name: start and end together."""
    found: dict[str, Row] = {}
    for event in imported.of("agent"):
        name = event.id.rpartition("/")[2]
        found.setdefault(name, {}).update(event.model_dump(exclude_none=True, exclude={"phase", "revision"}))
    return found


TALK = (
    user("u1", None, "first"),
    answer("a1", "u1", use("t1"), use("t2"), stop="tool_use"),
    result("r1", "a1", "t1", "one"),
    result("r2", "r1", "t2", "two"),
    answer("a2", "r2", text("so")),
    user("u2", "a2", "second"),
    answer("a3", "u2", text("end")),
)


# --- Calls and contexts ------------------------------------------------------------------------------------


def test_rows_of_one_message_are_one_call_with_the_usage_of_the_last() -> None:
    counted = {"input_tokens": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 5}
    imported = read(
        user("u1", None, "q"),
        answer("a1", "u1", text("well"), id="m", second=1, stop=None, usage={**counted, "output_tokens": 1}),
        answer(
            "a2", "a1", use("t1"), id="m", second=2, stop="tool_use", usage={**counted, "output_tokens": 9}
        ),
    )
    (call,) = imported.of("call")
    assert json.loads(call.completions[0].message) == {
        "role": "assistant",
        "content": [text("well"), use("t1")],
    }
    assert call.completions[0].finish_reason == "tool_use"
    assert (call.usage.prompt_tokens, call.usage.cached_tokens) == (3 + 40 + 5, 40)
    assert (call.usage.cache_write_tokens, call.usage.completion_tokens) == (5, 9)
    assert call.ended_at - call.started_at == 10**9


def test_a_block_that_several_rows_repeat_is_there_once() -> None:
    (call,) = read(
        user("u1", None, "q"),
        answer("a1", "u1", text("well"), id="m"),
        answer("a2", "a1", text("well"), use("t1"), id="m"),
    ).of("call")
    assert json.loads(call.completions[0].message)["content"] == [text("well"), use("t1")]


def test_later_calls_are_deltas_of_the_call_that_they_continue() -> None:
    imported = read(*TALK)
    found = calls(imported)
    assert [(c.context, c.parent_call_id, c.ordinal) for c in found.values()] == [
        ("whole", None, 0),
        ("delta", "s-1/msg-a1", 1),
        ("delta", "s-1/msg-a2", 2),
    ]
    assert seen(imported, "a3") == ["first", ["t1", "t2"], ["one"], ["two"], ["so"], "second"]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=9))
def test_a_call_saw_the_messages_above_it_however_the_session_branched(parents: list[int]) -> None:
    rows = [user("u0", None, "0"), answer("a0", "u0", text("0!"))]
    above: list[list[Any]] = [["0"]]
    for number, choice in enumerate(parents, start=1):
        parent = choice % number
        rows += [
            user(f"u{number}", f"a{parent}", str(number)),
            answer(f"a{number}", f"u{number}", text(f"{number}!")),
        ]
        above.append([*above[parent], [f"{parent}!"], str(number)])
    imported = read(*rows)
    assert [seen(imported, f"a{number}") for number in range(len(above))] == above


def test_results_of_parallel_tool_calls_are_read_together_and_are_no_branch() -> None:
    imported = read(
        user("u1", None, "q"),
        answer("a1", "u1", use("t1"), id="m"),
        answer("a2", "a1", use("t2"), id="m"),
        result("r1", "a1", "t1", "one"),
        result("r2", "a2", "t2", "two"),
        answer("a3", "r1", text("both")),
    )
    assert seen(imported, "a3") == ["q", ["t1", "t2"], ["one"], ["two"]]
    assert len(branches(imported.graphs[S])) == 1
    tools = {tool.tool_call_id: tool for tool in imported.graphs[S].tool_calls.values()}
    assert {name: json.loads(tool.result or "") for name, tool in tools.items()} == {"t1": "one", "t2": "two"}


def test_results_between_the_rows_of_one_message_belong_to_the_next_call() -> None:
    imported = read(
        user("u1", None, "q"),
        answer("a1", "u1", use("t1"), id="m"),
        result("r1", "a1", "t1", "one"),
        answer("a2", "r1", use("t2"), id="m"),
        result("r2", "a2", "t2", "two"),
        answer("a3", "r2", text("both")),
    )
    assert seen(imported, "a3") == ["q", ["t1", "t2"], ["one"], ["two"]]


def test_a_rewind_is_a_branch() -> None:
    imported = read(*TALK, user("u9", "a2", "otherwise"), answer("a9", "u9", text("other end")))
    assert seen(imported, "a9") == ["first", ["t1", "t2"], ["one"], ["two"], ["so"], "otherwise"]
    assert len(branches(imported.graphs[S])) == 2


def test_progress_rows_in_the_chain_are_no_messages_and_no_branches() -> None:
    hook = row("progress", "p1", "a2", data={"type": "hook_progress"})
    imported = read(*TALK[:5], hook, user("u2", "p1", "second"), answer("a3", "u2", text("end")))
    assert seen(imported, "a3")[-2:] == [["so"], "second"]
    assert len(branches(imported.graphs[S])) == 1
    assert imported.notes.not_understood["claude-code: row progress"].count == 1


def test_a_message_without_a_stop_reason_that_the_user_interrupted_is_aborted_and_partial() -> None:
    imported = read(
        user("u1", None, "q"),
        answer("a1", "u1", text("half"), stop=None),
        user("u2", "a1", [text("[Request interrupted by user]")]),
    )
    (call,) = imported.of("call")
    assert (call.status, call.completions[0].partial) == ("aborted", True)
    assert "an aborted call" in imported.notes.inferred


def test_an_answer_without_a_stop_reason_is_not_said_to_be_complete() -> None:
    (call,) = read(user("u1", None, "q"), answer("a1", "u1", text("x"), stop=None)).of("call")
    assert (call.status, call.completions[0].finish_reason) == (None, None)


def test_an_api_error_is_a_failed_call_that_no_later_call_reads() -> None:
    error = row(
        "assistant",
        "e1",
        "u1",
        {"id": "x", "role": "assistant", "model": "<synthetic>", "content": [text("API Error: 529")]},
        isApiErrorMessage=True,
        error="overloaded",
    )
    retry = row("system", "y1", "e1", subtype="api_error", error={"status": 529})
    imported = read(
        user("u1", None, "q"), error, retry, user("u2", "y1", "again"), answer("a1", "u2", text("x"))
    )
    failed, call = calls(imported)["e1"], calls(imported)["a1"]
    assert (failed.status, failed.completions, failed.model) == ("failed", None, "<synthetic>")
    assert (failed.error.type, failed.error.message) == ("overloaded", "API Error: 529")
    assert seen(imported, "a1") == ["q", "again"]
    assert [attempt.status_code for attempt in call.attempts] == [529, None]


def test_a_synthetic_message_is_the_harness_own_and_no_call() -> None:
    said = row(
        "assistant", "n1", "u1", {"role": "assistant", "model": "<synthetic>", "content": "No response."}
    )
    imported = read(user("u1", None, "q"), said, user("u2", "n1", "go on"), answer("a1", "u2", text("x")))
    assert list(calls(imported)) == ["a1"]
    assert seen(imported, "a1") == ["q", "No response.", "go on"]


def test_what_is_not_recorded_is_one_gap_of_the_episode() -> None:
    assert [gap.cause for gap in read(*TALK).of("gap")] == ["system_prompt_not_recorded"]


def test_messages_that_no_call_read_stay_with_their_agent() -> None:
    imported = read(*TALK, user("u9", "a3", "is anybody there"))
    (end,) = [agent for agent in imported.of("agent") if agent.phase == "end"]
    (unread,) = json.loads(end.meta)["claude_code"]["unread"]
    assert unread["message"]["content"] == "is anybody there"


# --- Links that are missing --------------------------------------------------------------------------------


def test_a_row_whose_parent_is_not_there_follows_the_row_before_it() -> None:
    imported = read(*TALK[:5], user("u2", "gone", "second"), answer("a3", "u2", text("end")))
    assert seen(imported, "a3")[-2:] == [["so"], "second"]
    assert imported.notes.warnings["a row whose parent is not in the file"] == 1
    assert imported.notes.inferred["parent of a row"] == {"order of the rows": 1}


def test_a_result_whose_parent_is_not_there_goes_to_the_call_that_it_answers() -> None:
    late = result("r1", "gone", "t1", "one")
    imported = read(TALK[0], answer("a1", "u1", use("t1")), late, answer("a2", "r1", text("so")))
    assert seen(imported, "a2") == ["first", ["t1"], ["one"]]
    assert imported.notes.inferred["parent of a row"] == {"the tool use that it answers": 1}


def test_a_file_without_links_is_read_in_its_order() -> None:
    loose = [{name: value for name, value in one.items() if name != "parentUuid"} for one in TALK]
    assert seen(read(*loose), "a3") == seen(read(*TALK), "a3")


def test_a_message_without_a_parent_is_a_root_where_the_file_links_its_rows() -> None:
    assert seen(read(*TALK[:5], user("u2", None, "anew"), answer("a3", "u2", text("end"))), "a3") == ["anew"]


def test_rows_that_name_each_other_as_parents_end_no_import() -> None:
    imported = read(user("u1", "u2", "one"), user("u2", "u1", "two"), answer("a1", "u2", text("x")))
    assert seen(imported, "a1") == ["one", "two"]
    assert imported.notes.warnings["rows that name each other as parents"] == 1


def test_a_row_of_a_known_uuid_is_the_same_row() -> None:
    again = read(*TALK, *TALK[2:5], user("u3", "a3", "go on"), answer("a4", "u3", text("ok")))
    once = read(*TALK, user("u3", "a3", "go on"), answer("a4", "u3", text("ok")))
    assert same_events(again, once)


def test_a_second_compaction_that_appends_the_history_again_makes_no_branch() -> None:
    before = (*TALK, boundary("b", "a3"), summary("s", "b"), user("u5", "s", "go on"))
    later = (answer("a5", "u5", text("ok")), boundary("c", "a5"), summary("t", "c", "SECOND"))
    end = (user("u6", "t", "more"), answer("a6", "u6", text("ok")))
    again = read(*before, *later[:2], *before, *later, *end)
    assert same_events(again, read(*before, *later, *end))
    assert [edit.after_call_id for edit in again.of("context_edit")] == ["s-1/msg-a5", "s-1/msg-a6"]
    assert seen(again, "a6") == ["SECOND", "more"]


def test_another_row_of_a_known_uuid_is_kept_in_the_report() -> None:
    imported = read(*TALK, user("u1", None, "something else"))
    assert imported.notes.not_understood["claude-code: another row of a known uuid"].count == 1


def test_two_records_on_one_line_are_two_rows() -> None:
    lines = as_lines(*TALK).replace(b"\n", b"", 1)
    imported = read_data(lines, format="claude-code")
    assert same_events(imported, read(*TALK))
    assert imported.notes.warnings == {"several records on one line": 1}


def test_rows_of_a_wrong_shape_are_refused_and_the_others_are_read() -> None:
    wrong = [row("user", "w", None, "no object"), "text", 42, [1]]
    imported = read_data(as_lines(wrong[0], *TALK, *wrong[1:]), format="claude-code")
    assert len(imported.of("call")) == 3
    assert [one.split(": ")[0] for one in imported.notes.refused] == [
        f"file-0, line {line}" for line in (1, 9, 10, 11)
    ]


@pytest.mark.parametrize("wrong", [None, 5, [], [[]], {"a": 1}, "x"])
def test_no_value_of_a_wrong_type_ends_an_import(wrong: Any) -> None:
    rows = [*TALK, *TASK[1:], boundary("b", "a3"), summary("s", "b"), *side(*LOOKED)]
    for shift in range(4):
        # In every row another field is wrong, and another one of its message.
        changed = []
        for number, one in enumerate(rows, start=shift):
            message = dict(one.get("message", {"role": "user"}))
            message[sorted(message)[number % len(message)]] = wrong
            changed.append({**one, "message": message, sorted(one)[number % len(one)]: wrong})
        assert_builds(read_data(as_lines(*changed), format="claude-code"))


def test_rows_without_ids_are_calls_of_a_session_named_by_its_first_row() -> None:
    spoken = [{"type": "user", "timestamp": "t", "message": {"role": "user", "content": "q"}}]
    spoken += 2 * [{"type": "assistant", "message": {"role": "assistant", "content": "same"}}]
    imported = read_data(json.dumps({"loglines": spoken}).encode())
    assert len(imported.of("call")) == 2
    assert imported.notes.inferred["the session of rows that name none"] == {"their file": 1}


# --- Compactions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("logical", "evidence"), [("a3", {}), ("gone", {"order of the rows": 1})])
def test_a_compaction_begins_a_new_context_and_the_old_one_stays(logical: str, evidence: Any) -> None:
    imported = read(
        *TALK,
        boundary("b", logical),
        summary("s", "b"),
        user("u5", "s", "go on"),
        answer("a5", "u5", text("ok")),
    )
    (edit,) = imported.of("context_edit")
    assert (edit.edit, edit.trigger, edit.tokens_before) == ("compaction", "rule", 900)
    assert (edit.before_call_id, edit.after_call_id) == ("s-1/msg-a3", "s-1/msg-a5")
    assert (edit.kept_call_ids, edit.replaced_call_ids) == (None, None)
    assert calls(imported)["a5"].context == "whole"
    assert seen(imported, "a5") == ["SUMMARY", "go on"]
    assert len(calls(imported)) == 4
    assert dict(imported.notes.inferred.get("what a compaction followed", {})) == evidence


def test_a_summary_without_a_boundary_is_a_compaction_too() -> None:
    imported = read(*TALK, summary("s", "a3"), answer("a5", "s", text("ok")))
    (edit,) = imported.of("context_edit")
    assert (edit.before_call_id, edit.after_call_id, edit.tokens_before) == ("s-1/msg-a3", "s-1/msg-a5", None)
    assert seen(imported, "a5") == ["SUMMARY"]


@pytest.mark.parametrize(
    "anchors",
    [
        {"preservedSegment": {"headUuid": "u2", "anchorUuid": "s", "tailUuid": "a3"}},
        {"preservedMessages": {"anchorUuid": "s", "uuids": ["u2", "a3"]}},
    ],
)
@pytest.mark.parametrize("parent", ["a3", "s"])
def test_rows_that_a_boundary_says_it_kept_follow_the_summary(anchors: Any, parent: str) -> None:
    imported = read(
        *TALK,
        boundary("b", "a3", **anchors),
        summary("s", "b"),
        user("u5", parent, "go on"),
        answer("a5", "u5", text("ok")),
    )
    (edit,) = imported.of("context_edit")
    assert edit.kept_call_ids == ("s-1/msg-a3",)
    assert seen(imported, "a5") == ["SUMMARY", "second", ["end"], "go on"]
    assert seen(imported, "a3")[0] == "first"


def test_a_message_after_a_compaction_that_is_linked_before_it_continues_the_summary() -> None:
    imported = read(
        *TALK[:5],
        boundary("b", "a2"),
        summary("s", "b"),
        user("u5", "u1", "go on"),
        answer("a5", "u5", text("ok")),
        user("u6", "a5", "more"),
        answer("a6", "u6", text("ok")),
    )
    assert seen(imported, "a6") == ["SUMMARY", "go on", ["ok"], "more"]
    assert imported.notes.warnings["the message after a compaction is linked before it"] == 1


def test_cleared_tool_results_leave_later_contexts_and_stay_in_earlier_ones() -> None:
    metadata = {"trigger": "auto", "preTokens": 900, "tokensSaved": 300, "compactedToolIds": ["t1"]}
    clearing = row("system", "c", "a3", subtype="microcompact_boundary", microcompactMetadata=metadata)
    imported = read(*TALK, clearing, user("u5", "c", "go on"), answer("a5", "u5", text("ok")))
    (edit,) = imported.of("context_edit")
    assert (edit.edit, edit.tokens_before, edit.tokens_after) == ("tool_result_clearing", 900, 900 - 300)
    assert (edit.before_call_id, edit.after_call_id) == ("s-1/msg-a3", "s-1/msg-a5")
    tail = [["so"], "second", ["end"], "go on"]
    assert seen(imported, "a5") == ["first", ["t1", "t2"], ["cleared"], ["two"], *tail]
    assert seen(imported, "a3")[2:4] == [["one"], ["two"]]


def test_the_clear_command_empties_the_context() -> None:
    clear = user("u5", "a3", "<command-name>/clear</command-name>")
    imported = read(*TALK, clear, user("u6", "u5", "anew"), answer("a5", "u6", text("ok")))
    assert seen(imported, "a5") == ["<command-name>/clear</command-name>", "anew"]
    assert [edit.edit for edit in imported.of("context_edit")] == ["truncation"]


# --- Sub-agents --------------------------------------------------------------------------------------------

TASK = (
    user("u1", None, "q"),
    answer("a1", "u1", use("k1", "Task", prompt="look", subagent_type="Explore"), stop="tool_use"),
)
BACK = {"agentId": "x1", "status": "completed"}


def side(*rows: Row, **fields: Any) -> list[Row]:
    return [{**one, "isSidechain": True, **fields} for one in rows]


LOOKED = (user("v1", None, "look"), answer("b1", "v1", text("found")))


def test_inline_sidechains_are_agents_of_the_task_with_their_prompt() -> None:
    other = side(user("w1", None, "peek"), answer("c1", "w1", text("nothing")))
    task = answer("a1", "u1", use("k1", "Task", prompt="look"), use("k2", "Task", prompt="peek"))
    imported = read(TASK[0], task, *other, *side(*LOOKED), result("r1", "a1", "k1", "found"))
    found = agents(imported)
    assert {name: one.get("spawned_by_tool_call_id") for name, one in found.items()} == {
        "main": None,
        "agent-w1": "k2",
        "agent-v1": "k1",
    }
    assert found["agent-v1"]["return_message"] == "found"
    assert (found["agent-v1"]["parent_agent_id"], found["agent-v1"]["depth"]) == ("s-1/main", 1)
    assert imported.notes.inferred["the tool use that spawned an agent"] == {"its prompt": 2}


def test_the_agent_of_an_agent_is_two_below_the_main_one() -> None:
    asked = answer("b1", "v1", use("k2", "Agent", prompt="peek"))
    inner = side(user("w1", None, "peek"), answer("c1", "w1", text("nothing")), agentId="x2")
    imported = read(*TASK, *side(LOOKED[0], asked, agentId="x1"), *inner)
    found = agents(imported)
    assert (found["agent-x2"]["parent_agent_id"], found["agent-x2"]["depth"]) == ("s-1/agent-x1", 2)


def test_a_sidechain_with_another_prompt_is_of_the_only_task_without_a_result() -> None:
    imported = read(*TASK, *side(user("v1", None, "look, please"), answer("b1", "v1", text("found"))))
    assert agents(imported)["agent-v1"]["spawned_by_tool_call_id"] == "k1"
    evidence = imported.notes.inferred["the tool use that spawned an agent"]
    assert evidence == {"the only one without a result then": 1}


def written(folder: Path, name: str, *rows: Row) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_lines(*rows))
    return path


def test_the_file_of_a_sub_agent_may_come_before_or_after_its_session(tmp_path: Path) -> None:
    main = written(tmp_path, f"{S}.jsonl", *TASK, result("r1", "a1", "k1", "found", toolUseResult=BACK))
    sub = written(tmp_path, f"{S}/subagents/agent-x1.jsonl", *side(*LOOKED, agentId="x1"))
    both = read_paths(tmp_path)
    assert_builds(both)
    one = agents(both)["agent-x1"]
    assert (one["spawned_by_call_id"], one["spawned_by_tool_call_id"]) == ("s-1/msg-a1", "k1")
    assert (one["scope_prompt"], one["return_message"], one["status"]) == ("look", "found", "ok")
    apart = [*read_paths(sub).events, *read_paths(main).events]
    assert same_events(Imported(list(newest(apart).values()), both.notes), both)
    assert same_events(Imported(list(newest(apart[::-1]).values()), both.notes), both)


def test_a_sub_agent_without_its_prompt_is_a_gap_and_the_prompt_is_not_taken_from_its_parent(
    tmp_path: Path,
) -> None:
    written(tmp_path, f"{S}.jsonl", *TASK, result("r1", "a1", "k1", "found", toolUseResult=BACK))
    sub = side(answer("b1", "v1", text("found")), agentId="x1")
    written(tmp_path, f"{S}/subagents/agent-x1.jsonl", *sub)
    imported = read_paths(tmp_path)
    assert_builds(imported)
    (gap,) = [gap for gap in imported.of("gap") if gap.cause == "missing_prompt"]
    assert gap.agent_id == "s-1/agent-x1"
    assert "scope_prompt" not in agents(imported)["agent-x1"]
    assert seen(imported, "agent-x1/b1") == []


def test_a_sub_agent_that_has_not_returned_is_known_by_its_meta_file(tmp_path: Path) -> None:
    written(tmp_path, f"{S}.jsonl", *TASK)
    folder = f"{S}/subagents"
    written(tmp_path, f"{folder}/agent-x1.jsonl", *side(user("v1", None, "other"), agentId="x1"))
    about = {"agentType": "Explore", "toolUseId": "k1", "spawnDepth": 1}
    (tmp_path / folder / "agent-x1.meta.json").write_text(json.dumps(about, indent=2))
    imported = read_paths(tmp_path)
    assert_builds(imported)
    one = agents(imported)["agent-x1"]
    assert (one["name"], one["spawned_by_tool_call_id"], one.get("status")) == ("Explore", "k1", None)
    (told,) = imported.notes.not_understood["claude-code: what is told of an agent"].examples
    assert told.endswith('{"spawnDepth": 1}')


def progress(uuid: str, inner: Row) -> Row:
    message = {name: inner[name] for name in ("type", "uuid", "timestamp", "message")}
    data = {"type": "agent_progress", "agentId": "x1", "prompt": "look", "message": message}
    return row("progress", uuid, "a1", data=data, parentToolUseID="k1")


def test_progress_rows_are_a_sub_agent_of_their_tool_use_also_without_its_result() -> None:
    imported = read(*TASK, progress("p1", LOOKED[0]), progress("p2", LOOKED[1]))
    one = agents(imported)["agent-x1"]
    assert (one["spawned_by_tool_call_id"], one.get("status")) == ("k1", None)
    assert seen(imported, "agent-x1/b1") == ["look"]
    assert imported.report["usage"]["completion_tokens"] == 1 + 1


def test_progress_rows_that_the_agents_file_has_too_are_counted_once(tmp_path: Path) -> None:
    written(tmp_path, f"{S}.jsonl", *TASK, progress("p1", LOOKED[0]), progress("p2", LOOKED[1]))
    written(tmp_path, f"{S}/subagents/agent-x1.jsonl", *side(*LOOKED, agentId="x1"))
    imported = read_paths(tmp_path)
    assert_builds(imported)
    assert sorted(calls(imported)) == ["a1", "agent-x1/b1"]
    assert imported.report["usage"]["completion_tokens"] == 1 + 1


def test_agents_of_a_workflow_are_of_the_tool_use_that_ran_it(tmp_path: Path) -> None:
    run = answer("a1", "u1", use("k1", "Workflow", scriptPath="x"))
    launched = {"status": "async_launched", "runId": "wf_1"}
    written(tmp_path, f"{S}.jsonl", TASK[0], run, result("r1", "a1", "k1", "started", toolUseResult=launched))
    folder = f"{S}/subagents/workflows/wf_1"
    written(tmp_path, f"{folder}/agent-x1.jsonl", *side(*LOOKED, agentId="x1", sessionId=f"{S}#agent-x1"))
    (tmp_path / folder / "agent-x1.meta.json").write_text('{\n"agentType": "workflow-subagent"\n}')
    journal = [{"type": "started"}, {"type": "result", "result": "found"}]
    written(tmp_path, f"{folder}/journal.jsonl", *({**one, "key": "v2", "agentId": "x1"} for one in journal))
    imported = read_paths(tmp_path)
    assert_builds(imported)
    assert {episode.id for episode in imported.of("episode")} == {S}
    one = agents(imported)["agent-x1"]
    assert (one["spawned_by_tool_call_id"], one["return_message"], one["status"]) == ("k1", "found", "ok")
    assert imported.notes.refused == []


def acompact(*rows: Row) -> list[Row]:
    own = [user("z8", rows[-1]["uuid"], "Summarize."), answer("z9", "z8", text("SUMMARY"))]
    return side(*rows, *own, agentId="acompact-1")


def test_a_thread_that_repeats_the_main_one_wrote_its_summary(tmp_path: Path) -> None:
    written(tmp_path, f"{S}.jsonl", *TALK, boundary("b", "a3"), summary("s", "b"))
    copied = [
        {**one, "uuid": f"z{n}", "parentUuid": f"z{n - 1}" if n else None} for n, one in enumerate(TALK)
    ]
    written(tmp_path, f"{S}/subagents/agent-acompact-1.jsonl", *acompact(*copied))
    imported = read_paths(tmp_path)
    assert_builds(imported)
    (edit,) = imported.of("context_edit")
    name = "agent-acompact-1/z9"
    assert (edit.author_call_id, calls(imported)[name].purpose) == (f"s-1/{name[:-2]}msg-z9", "summarize")
    assert len(calls(imported)) == 3 + 1
    assert seen(imported, name) == [*seen(imported, "a3"), ["end"], "Summarize."]
    assert agents(imported)["agent-acompact-1"]["role"] == "summarizer"


def test_a_thread_of_that_name_with_messages_of_its_own_is_a_sub_agent(tmp_path: Path) -> None:
    written(tmp_path, f"{S}.jsonl", *TALK)
    own = [user("z0", None, "first"), answer("z1", "z0", text("mine")), user("z2", "z1", "second")]
    written(tmp_path, f"{S}/subagents/agent-acompact-1.jsonl", *acompact(*own))
    imported = read_paths(tmp_path)
    assert agents(imported)["agent-acompact-1"]["role"] == "subagent"
    assert len(calls(imported)) == 3 + 2


# --- Sessions ----------------------------------------------------------------------------------------------


def of(session: str, *rows: Row, **fields: Any) -> list[Row]:
    return [{**one, "sessionId": session, **fields} for one in rows]


OWN = (user("u5", "a3", "go on", second=30), answer("a5", "u5", text("ok"), second=31))


def read_files(*files: list[Row]) -> Imported:
    imported = read_data(*(as_lines(*rows) for rows in files), format="claude-code")
    assert_builds(imported)
    assert_order_free(*(as_lines(*rows) for rows in files))
    return imported


def test_a_backgrounded_copy_continues_its_sibling() -> None:
    imported = read_files(list(TALK), of("s-2", *TALK, *OWN, sessionKind="bg"))
    assert sorted(call.id for call in imported.of("call")) == [
        *(f"s-1/msg-a{n}" for n in (1, 2, 3)),
        "s-2/msg-a5",
    ]
    fork = next(one for one in imported.of("episode") if one.id == "s-2" and one.phase == "end")
    assert (fork.forked_from_episode_id, fork.forked_from_call_id) == ("s-1", "s-1/msg-a3")
    whole = [json.loads(m.raw)["content"] for m in context(imported.graphs["s-2"], "s-2/msg-a5")]
    assert len(whole) == 7 + 1
    assert list(imported.notes.inferred) == ["the session that one continues"]


def test_of_two_sessions_that_both_went_on_the_later_one_is_the_copy() -> None:
    later = (user("u6", "a3", "else", second=40), answer("a6", "u6", text("ok"), second=41))
    imported = read_files([*TALK, *OWN], of("s-2", *TALK, *later))
    assert sorted(call.id for call in imported.of("call"))[-2:] == ["s-1/msg-a5", "s-2/msg-a6"]
    assert len(imported.of("call")) == 3 + 1 + 1


def test_a_copy_that_several_sessions_could_be_the_origin_of_stays_whole() -> None:
    twin = (user("u7", "a3", "and", second=35), answer("a7", "u7", text("ok"), second=36))
    third = (user("u8", "a3", "or", second=35), answer("a8", "u8", text("ok"), second=36))
    last = (user("u9", "a3", "so", second=50), answer("a9", "u9", text("ok"), second=51))
    imported = read_files([*TALK, *twin], of("s-2", *TALK, *third), of("s-3", *TALK, *last, sessionKind="bg"))
    assert len([call for call in imported.of("call") if call.episode_id == "s-3"]) == 3 + 1
    assert (
        "a session whose beginning several others have: nothing of it was left out" in imported.notes.warnings
    )


def test_rows_that_say_where_they_were_forked_from_need_no_origin() -> None:
    copied = [{**one, "forkedFrom": {"sessionId": S, "messageUuid": one["uuid"]}} for one in TALK]
    imported = read_files(of("s-2", *copied, *OWN))
    assert [call.id for call in imported.of("call")] == ["s-2/msg-a5"]
    (fork,) = [one for one in imported.of("episode") if one.phase == "end"]
    assert (fork.forked_from_episode_id, fork.forked_from_call_id) == ("s-1", "s-1/msg-a3")


def test_two_sessions_in_one_file_are_two_episodes_and_one_continues_the_other() -> None:
    imported = read_files([*TALK, *of("s-2", *OWN), *of("s-3", user("u8", None, "x"), answer("a8", "u8"))])
    assert len(imported.of("call")) == 3 + 1 + 1
    forks = {one.id: one.forked_from_call_id for one in imported.of("episode") if one.phase == "end"}
    assert forks == {"s-1": None, "s-2": "s-1/msg-a3", "s-3": None}
    assert len(context(imported.graphs["s-2"], "s-2/msg-a5")) == 7 + 1


def test_a_session_over_two_files_is_one_whatever_their_order() -> None:
    later = [{**one, "timestamp": "2026-02-03T11:00:00Z"} for one in TALK[4:]]
    assert same_events(read_files(list(TALK[:4]), later), read(*TALK[:4], *later))


# --- Whole files -------------------------------------------------------------------------------------------


def test_a_file_that_grows_gives_what_the_whole_gives() -> None:
    rows = [
        *TALK,
        *TASK[1:],
        {**TALK[4], "uuid": "a2-again"},
        *side(*LOOKED),
        progress("p1", user("y1", None, "look")),
        boundary("b", "a3"),
        summary("s", "b"),
        user("u5", "s", "go on"),
        answer("a5", "u5", text("half"), stop=None),
        user("u6", "a5", "[Request interrupted by user]"),
        result("r9", "a1", "k1", "found"),
    ]
    assert_grows(as_lines(*rows).splitlines(), format="claude-code")


def test_every_value_of_every_kind_of_row_leaves_a_trace() -> None:
    rows = [
        *TALK,
        *TASK[1:],
        result("r9", "a1", "k1", "found", toolUseResult=BACK),
        progress("p1", LOOKED[0]),
        row("system", "y1", "a3", subtype="api_error", error={"status": 529}),
        boundary("b", "y1", userContext="c"),
        summary("s", "b", isVisibleInTranscriptOnly=True),
        answer("a5", "s", text("ok"), requestId="q", usage={"input_tokens": 1, "service_tier": "x"}),
        {"type": "summary", "summary": "title", "leafUuid": "a5"},
        {"type": "queue-operation", "operation": "enqueue", "sessionId": S, "timestamp": "t"},
    ]
    assert_perturbation(as_lines(*rows), limit=20, format="claude-code")


SNIFFLY = "claude_code/chiphuyen__sniffly/"


def test_the_project_of_four_files_has_its_expected_totals() -> None:
    expected = json.loads(fixture(f"{SNIFFLY}tests/baseline_results.json").read_text())
    folder = fixture(f"{SNIFFLY}-Users-user-dev-ai-music/ff71dbed-a4f2-4284-a4fc-fe2fb90de929.jsonl").parent
    assert len(list(folder.iterdir())) == 4
    report = read_paths(folder).report
    assert report["calls"] == expected["message_types"]["assistant"] == 90
    assert report["tool_calls"] == 96
    assert report["episodes"] == 3
