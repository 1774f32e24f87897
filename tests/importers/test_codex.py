from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fixtures import fixture
from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_grows,
    assert_order_free,
    assert_perturbation,
    read_data,
    read_paths,
    same_events,
)

DAY = "codex/madshn__localpush/2026-02-23"
SESSIONS = f"{DAY}/raw/sessions/rollout-2026-02-23T"
FILES = (
    "12-40-23-019c8a4c-ed82-79a1-aa28-7738fc5ab61a",
    "12-41-04-019c8a4d-8f45-7010-8b5d-7fad920aa6f9",
    "12-47-42-019c8a53-a0dd-7130-bcd7-95445d84846a",
    "12-54-34-019c8a59-e9dd-71f0-9ae3-4079fe9726a9",
    "13-19-38-019c8a70-dda7-7f33-98ea-f30553347322",
    "20-34-25-019c8bfe-ec25-79e0-97d7-bda6a9c575ff",
)

# UUIDv7: the first 12 digits are milliseconds since 1970, here 2026-01-01 and a second later each.
BORN = 1_767_225_600_000


def uuid7(second: int, tail: str = "0") -> str:
    stamp = f"{BORN + 1_000 * second:012x}"
    return f"{stamp[:8]}-{stamp[8:]}-7000-8000-{tail:>012}"


def time(second: float) -> str:
    return datetime.fromtimestamp(BORN / 1_000 + second, UTC).isoformat().replace("+00:00", "Z")


def row(second: float, type_: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": time(second), "type": type_, "payload": payload}


def event(second: float, kind: str, **payload: Any) -> dict[str, Any]:
    return row(second, "event_msg", type=kind, **payload)


def item(second: float, kind: str, **payload: Any) -> dict[str, Any]:
    return row(second, "response_item", type=kind, **payload)


def said(second: float, role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return item(second, "message", role=role, content=[{"type": kind, "text": text}])


def used(second: float, id_: str, name: str = "shell", arguments: str = "{}") -> dict[str, Any]:
    return item(second, "function_call", name=name, arguments=arguments, call_id=id_)


def result(second: float, id_: str, output: str = "done") -> dict[str, Any]:
    return item(second, "function_call_output", call_id=id_, output=output)


def usage(read: int, wrote: int, cached: int = 0) -> dict[str, int]:
    return {
        "input_tokens": read,
        "cached_input_tokens": cached,
        "output_tokens": wrote,
        "reasoning_output_tokens": 0,
        "total_tokens": read + wrote,
    }


def counted(second: float, total: dict[str, int], last: dict[str, int] | None = None) -> dict[str, Any]:
    return event(second, "token_count", info={"total_token_usage": total, "last_token_usage": last or total})


def meta(second: float, id_: str, **more: Any) -> dict[str, Any]:
    base = {"text": "be good"}
    return row(
        second, "session_meta", id=id_, timestamp=time(second), base_instructions=base, cwd="/w", **more
    )


def turn(second: float, id_: str) -> dict[str, Any]:
    return row(second, "turn_context", turn_id=id_, model="m1", effort="high")


PARENT = uuid7(0, "a")
TURN_1, TURN_2 = uuid7(1, "1"), uuid7(20, "2")
# Two turns: a call with a tool, its answer; then one more call.
THREAD = [
    meta(0, PARENT),
    said(1, "developer", "rules"),
    event(1, "task_started", turn_id=TURN_1),
    said(1, "user", "look"),
    event(1, "user_message", message="look"),
    turn(1, TURN_1),
    event(2, "agent_reasoning", text="hm"),
    item(2, "reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="gAAAA"),
    used(3, "c1"),
    counted(3, usage(100, 10, 40)),
    result(4, "c1"),
    turn(4, TURN_1),
    counted(4, usage(100, 10, 40)),
    event(5, "agent_message", message="seen"),
    said(5, "assistant", "seen"),
    counted(5, usage(250, 30, 130), usage(150, 20, 90)),
    event(6, "task_complete", turn_id=TURN_1, last_agent_message="seen"),
    event(20, "task_started", turn_id=TURN_2),
    said(20, "user", "again"),
    turn(20, TURN_2),
    said(21, "assistant", "still"),
    counted(21, usage(450, 35, 300), usage(200, 5, 170)),
    event(22, "task_complete", turn_id=TURN_2, last_agent_message="still"),
]


def read(*rows: dict[str, Any]) -> Imported:
    imported = read_data(as_lines(*rows))
    assert_builds(imported)
    return imported


def calls_of(imported: Imported) -> list[Any]:
    return sorted(imported.of("call"), key=lambda call: (call.agent_id, call.ordinal or 0))


def request(call: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(call.request)
    return told


def texts(items: list[Any]) -> list[str]:
    return [
        part["text"] for one in items for part in (one.get("content") or one.get("summary") or ()) if part
    ]


def wrote(call: Any) -> list[Any]:
    items: list[Any] = json.loads(call.completions[0].message)
    return items


def test_a_call_ends_at_a_count_that_rises_and_the_next_one_reads_what_came_after() -> None:
    imported = read(*THREAD)
    first, second, third = calls_of(imported)
    assert request(first)["instructions"] == "be good"
    assert texts(request(first)["input"]) == ["rules", "look"]
    assert [one["type"] for one in wrote(first)] == ["reasoning", "function_call"]
    assert wrote(first)[0]["encrypted_content"] == "gAAAA"
    assert "instructions" not in request(second)
    assert [one["type"] for one in request(second)["input"]] == ["function_call_output"]
    assert texts(request(third)["input"]) == ["again"]
    assert [call.context for call in (first, second, third)] == ["whole", "delta", "delta"]
    assert third.parent_call_id == second.id
    assert {call.model for call in (first, second, third)} == {"m1"}


def test_equal_counts_are_no_call_and_the_others_are_worth_their_rise() -> None:
    calls = calls_of(read(*THREAD))
    assert [call.usage.prompt_tokens for call in calls] == [100, 250 - 100, 450 - 250]
    assert [call.usage.cached_tokens for call in calls] == [40, 130 - 40, 300 - 130]
    assert [call.usage.completion_tokens for call in calls] == [10, 30 - 10, 35 - 30]
    assert [call.ended_at for call in calls] == [(BORN + ms) * 10**6 for ms in (3_000, 5_000, 21_000)]


def test_a_response_item_and_the_event_that_repeats_it_are_one_message() -> None:
    imported = read(*THREAD)
    first, second, _ = calls_of(imported)
    assert wrote(second) == [THREAD[14]["payload"]]
    kept = [line for call in (first, second) for line in json.loads(call.meta)["codex"]["rows"]]
    assert not [line for line in kept if {"message", "text"} & line.get("payload", {}).keys()]
    changed = [*THREAD[:13], event(5, "agent_message", message="other"), *THREAD[14:]]
    rows = json.loads(calls_of(read(*changed))[1].meta)["codex"]["rows"]
    assert [line["payload"]["message"] for line in rows if "message" in line.get("payload", {})] == ["other"]


def test_a_file_without_response_items_is_read_from_its_events() -> None:
    imported = read(
        meta(0, PARENT), event(1, "user_message", message="q"), event(2, "agent_message", message="a")
    )
    (call,) = calls_of(imported)
    assert (texts(request(call)["input"]), texts(wrote(call))) == (["q"], ["a"])
    assert "messages of a file without response items" in imported.notes.inferred


def test_counts_that_stand_before_the_items_are_of_the_items_that_follow() -> None:
    early = [
        meta(0, PARENT),
        said(1, "user", "look"),
        counted(3, usage(100, 10)),
        used(3, "c1"),
        result(4, "c1"),
        counted(5, usage(250, 30), usage(150, 20)),
        said(5, "assistant", "seen"),
    ]
    calls = calls_of(read(*early))
    assert [call.usage.prompt_tokens for call in calls] == [100, 150]
    assert [len(wrote(call)) for call in calls] == [1, 1]


def test_a_count_before_items_that_get_their_own_is_a_call_without_an_answer() -> None:
    rows = [meta(0, PARENT), said(1, "user", "q"), counted(2, usage(7, 1)), said(3, "assistant", "a")]
    imported = read(*rows, counted(3, usage(107, 3), usage(100, 2)))
    assert sorted(call.usage.prompt_tokens for call in imported.of("call")) == [7, 100]
    (answered,) = [call for call in imported.of("call") if call.completions]
    assert answered.usage.prompt_tokens == 100


def test_a_compaction_replaces_the_context_and_earlier_turns_stay() -> None:
    summary = {"type": "compaction", "encrypted_content": "gBBBB"}
    kept = said(0, "user", "look")["payload"]
    rows = [
        *THREAD,
        row(30, "compacted", message="", replacement_history=[kept, summary], window_number=2),
        event(30, "context_compacted"),
        said(31, "user", "go on"),
        said(32, "assistant", "on"),
        counted(32, usage(500, 40, 300), usage(50, 5)),
    ]
    imported = read(*rows)
    (edit,) = imported.of("context_edit")
    calls = calls_of(imported)
    assert len(calls) == 4
    assert (edit.before_call_id, edit.after_call_id, edit.edit) == (calls[2].id, calls[3].id, "compaction")
    assert edit.replaced_call_ids is None
    assert calls[3].context == "whole"
    assert request(calls[3])["input"] == [kept, summary, rows[-3]["payload"]]
    assert_grows([as_lines(one).strip() for one in rows])


def test_an_old_compaction_keeps_the_summary_and_its_call() -> None:
    rows = [*THREAD, counted(29, usage(900, 95, 300), usage(450, 60)), row(30, "compacted", message="so far")]
    imported = read(*rows, said(31, "user", "go on"), said(32, "assistant", "on"))
    (edit,) = imported.of("context_edit")
    (summarizer,) = [call for call in imported.of("call") if call.purpose == "summarize"]
    assert (summarizer.usage.prompt_tokens, summarizer.completions) == (900 - 450, None)
    assert (edit.author, edit.author_call_id) == ("policy", summarizer.id)
    after = next(call for call in imported.of("call") if call.id == edit.after_call_id)
    assert texts(request(after)["input"]) == ["so far", "go on"]


def test_a_rollback_branches_off_the_call_before_the_message() -> None:
    rows = [*THREAD[:19], event(20, "user_message", message="again"), *THREAD[19:]]
    imported = read(
        *rows,
        event(23, "thread_rolled_back", num_turns=1),
        said(24, "user", "else"),
        said(25, "assistant", "ok"),
    )
    calls = calls_of(imported)
    assert calls[3].parent_call_id == calls[1].id
    assert texts(request(calls[3])["input"]) == ["else"]


def test_an_aborted_turn_leaves_an_aborted_call_and_a_cancelled_tool() -> None:
    imported = read(*THREAD[:9], event(4, "turn_aborted", reason="interrupted"))
    (call,) = calls_of(imported)
    (tool,) = imported.of("tool_call")
    assert (call.status, call.completions[0].partial) == ("aborted", True)
    assert (tool.status, tool.result) == ("cancelled", None)


def test_an_unfinished_call_has_no_status_and_a_lost_output_is_a_gap() -> None:
    assert calls_of(read(*THREAD[:9]))[0].status is None
    lost = read(*THREAD[:10], *THREAD[17:])
    (gap,) = [gap for gap in lost.of("gap") if gap.cause == "tool_result_missing"]
    assert lost.of("tool_call")[0].result is None
    assert gap.call_id == lost.of("tool_call")[0].call_id


def fork(*, own_turn: str, parent_meta: bool = True) -> list[dict[str, Any]]:
    """A fork after the first turn: its history is the parent's, stamped anew."""
    copied = [{**one, "timestamp": time(100)} for one in THREAD[1:17]]
    return [
        meta(100, uuid7(100, "f"), forked_from_id=PARENT),
        *([{**THREAD[0], "timestamp": time(100)}] if parent_meta else []),
        *copied,
        event(101, "task_started", turn_id=own_turn),
        said(101, "user", "other way"),
        turn(101, own_turn),
        said(102, "assistant", "yes"),
        counted(102, usage(350, 33, 200), usage(100, 3)),
    ]


def test_a_fork_counts_what_it_copied_once() -> None:
    both = read_data(as_lines(*THREAD), as_lines(*fork(own_turn=uuid7(101))))
    assert_builds(both)
    assert same_events(both, read_data(as_lines(*fork(own_turn=uuid7(101))), as_lines(*THREAD)))
    calls = {call.id: call for call in both.of("call")}
    assert len(calls) == 3 + 1
    (own,) = [call for call in calls.values() if call.episode_id != PARENT]
    assert own.usage.prompt_tokens == 350 - 250
    assert own.context == "whole"
    assert texts(request(own)["input"]) == ["rules", "look", "hm", "seen", "other way"]
    end = next(one for one in both.of("episode") if one.forked_from_episode_id)
    assert end.forked_from_episode_id == PARENT
    assert end.forked_from_call_id == sorted(one for one in calls if calls[one].episode_id == PARENT)[1]
    total = sum(call.usage.prompt_tokens for call in calls.values())
    assert total == 450 + 100


def test_a_fork_of_a_fork_names_the_call_that_it_goes_on_from() -> None:
    first = fork(own_turn=uuid7(101))
    second = [
        meta(200, uuid7(200, "e"), forked_from_id=uuid7(100, "f")),
        *({**one, "timestamp": time(200)} for one in first[2:18]),
        said(201, "user", "third way"),
        said(202, "assistant", "well"),
    ]
    imported = read_data(as_lines(*THREAD), as_lines(*first), as_lines(*second))
    assert_builds(imported)
    ends = {one.id: one for one in imported.of("episode") if one.forked_from_episode_id}
    assert ends[uuid7(200, "e")].forked_from_episode_id == uuid7(100, "f")
    # It copied the first turn only, whose calls are the first thread's.
    assert ends[uuid7(200, "e")].forked_from_call_id == f"{PARENT}/1"
    assert len(imported.of("call")) == 3 + 1 + 1


def test_without_its_parent_a_fork_drops_the_turns_that_are_older_than_itself() -> None:
    imported = read(*fork(own_turn=uuid7(101)))
    (call,) = imported.of("call")
    assert texts(request(call)["input"]) == ["rules", "look", "hm", "seen", "other way"]
    assert "copied history" in imported.notes.inferred


def test_without_parent_and_evidence_a_fork_keeps_everything() -> None:
    rows = [one for one in fork(own_turn=uuid7(101)) if "turn_id" not in one["payload"]]
    imported = read(*rows)
    assert len(imported.of("call")) == 3
    assert imported.notes.warnings


def test_independent_threads_with_equal_counts_are_not_merged() -> None:
    other = [meta(0, uuid7(0, "b")), *THREAD[1:]]
    imported = read_data(as_lines(*THREAD), as_lines(*other))
    assert len(imported.of("call")) == 6
    assert imported.report["usage"]["prompt_tokens"] == 2 * 450


def test_a_thread_that_inherits_a_base_reads_it_without_a_copy() -> None:
    numbered = [{**one, "ordinal": n} for n, one in enumerate(THREAD)]
    base = {"thread_id": PARENT, "end_ordinal_exclusive": 17, "end_byte_offset": 1}
    child = [meta(100, uuid7(100, "f"), forked_from_id=PARENT, history_base=base), said(101, "user", "else")]
    child.append(said(102, "assistant", "yes"))
    imported = read_data(as_lines(*numbered), as_lines(*child))
    (own,) = [call for call in imported.of("call") if call.episode_id != PARENT]
    assert texts(request(own)["input"]) == ["rules", "look", "hm", "seen", "else"]
    alone = read_data(as_lines(*child))
    assert "missing_prompt" in {gap.cause for gap in alone.of("gap")}


def spawned() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(a thread that spawns an agent, that agent's thread)."""
    child = uuid7(9, "c")
    parent = [
        *THREAD[:8],
        used(3, "c1", "spawn_agent", json.dumps({"message": "find it"})),
        counted(3, usage(100, 10)),
        result(4, "c1", json.dumps({"agent_id": child, "nickname": "Ada"})),
        said(5, "assistant", "found"),
    ]
    spawn = {"parent_thread_id": PARENT, "depth": 1, "agent_nickname": "Ada", "agent_role": "explorer"}
    rows = [
        meta(9, child, source={"subagent": {"thread_spawn": spawn}}, parent_thread_id=PARENT),
        {**THREAD[0], "timestamp": time(9)},
        said(9, "developer", "rules"),
        said(9, "user", "find it"),
        said(10, "assistant", "here"),
        counted(10, usage(60, 6)),
        event(11, "task_complete", last_agent_message="here"),
    ]
    return parent, rows


def test_a_sub_agent_joins_the_episode_of_the_call_that_spawned_it() -> None:
    parent, child = spawned()
    imported = read_data(as_lines(*child), as_lines(*parent))
    assert_builds(imported)
    (graph,) = imported.graphs.values()
    agent = graph.agents[uuid7(9, "c")]
    assert (agent.role, agent.depth, agent.name, agent.parent_agent_id) == ("subagent", 1, "Ada", PARENT)
    assert (agent.spawned_by_call_id, agent.spawned_by_tool_call_id) == (f"{PARENT}/0", "c1")
    assert agent.scope_prompt is not None
    assert agent.return_message is not None
    assert (json.loads(agent.scope_prompt), json.loads(agent.return_message)) == ("find it", "here")
    assert_order_free(as_lines(*parent), as_lines(*child))


def test_a_sub_agent_that_copied_its_parents_history_counts_its_own_tail() -> None:
    parent, _ = spawned()
    spawn = {"subagent": {"thread_spawn": {"parent_thread_id": PARENT, "depth": 1}}}
    own = uuid7(10)
    rows = [
        meta(9, uuid7(9, "c"), source=spawn, parent_thread_id=PARENT, forked_from_id=PARENT),
        *({**one, "timestamp": time(9)} for one in parent[:10]),
        event(10, "task_started", turn_id=own),
        said(10, "user", "find it"),
        turn(10, own),
        said(11, "assistant", "here"),
        counted(11, usage(160, 16), usage(60, 6)),
    ]
    both = read_data(as_lines(*parent), as_lines(*rows))
    assert_builds(both)
    # The parent's call, counted once, and the tail: 160 - 100.
    assert both.report["usage"]["prompt_tokens"] == 100 + 60
    (call,) = [call for call in both.of("call") if call.agent_id == uuid7(9, "c")]
    assert (call.episode_id, call.usage.prompt_tokens) == (PARENT, 60)
    assert texts(request(call)["input"]) == ["rules", "look", "hm", "find it"]
    assert read(*rows).report["usage"]["prompt_tokens"] == 60


def test_a_sub_agent_without_its_parent_is_in_the_parents_episode_all_the_same() -> None:
    _, child = spawned()
    imported = read(*child)
    assert {call.episode_id for call in imported.of("call")} == {PARENT}


def test_bare_items_of_old_versions_are_a_thread() -> None:
    header = {"id": "old-1", "timestamp": time(0), "instructions": None, "git": {"branch": "main"}}
    items = [one["payload"] for one in THREAD if one["type"] == "response_item"]
    imported = read(header, {"record_type": "state"}, *items)
    assert {call.episode_id for call in imported.of("call")} == {"old-1"}
    assert [len(wrote(call)) for call in calls_of(imported)] == [2, 1, 1]
    assert "system_prompt_not_recorded" in {gap.cause for gap in imported.of("gap")}


def test_a_thread_that_grows_gives_what_the_whole_gives() -> None:
    assert_grows([as_lines(one).strip() for one in THREAD])
    assert_grows([as_lines(one).strip() for one in [*THREAD[:10], *THREAD[17:], event(23, "turn_aborted")]])


@pytest.mark.parametrize("wrong", [{"a": 1}, ["b"], None, 5])
def test_no_type_of_another_shape_ends_an_import(wrong: Any) -> None:
    for place in range(len(THREAD)):
        for change in ({"type": wrong}, {"payload": {**THREAD[place]["payload"], "type": wrong}}):
            rows = [*THREAD[:place], THREAD[place] | change, *THREAD[place + 1 :]]
            assert_builds(read_data(as_lines(*rows), format="codex"))
    bare = [one["payload"] for one in THREAD if one["type"] == "response_item"]
    header = {"id": "old-1", "timestamp": time(0), "instructions": None}
    assert_builds(read_data(as_lines(header, {"type": wrong}, *bare), format="auto"))


def test_rows_of_a_wrong_shape_are_refused_and_the_others_go_on() -> None:
    bad = [{"timestamp": 1, "type": "response_item", "payload": 7}, 5, used(3, "c1") | {"payload": []}]
    data = as_lines(*THREAD[:8], *bad, *THREAD[8:])
    imported = read_data(data)
    assert len(imported.of("call")) == 3
    assert len(imported.notes.refused) == 1


def test_a_usage_record_and_the_count_that_follows_are_one_call() -> None:
    used_ = usage(100, 10, 40)
    record = row(3, "token_usage_record", response_id="resp_1", usage=used_, thread_token_usage=used_)
    imported = read(*THREAD[:9], record, *THREAD[9:])
    calls = calls_of(imported)
    assert [call.usage.prompt_tokens for call in calls] == [100, 150, 200]
    assert calls[0].provider_id == "resp_1"


def test_every_field_of_a_thread_leaves_a_trace() -> None:
    assert_perturbation(as_lines(*THREAD, *fork(own_turn=TURN_2)[-3:]), limit=20)
    assert_perturbation(as_lines(*spawned()[1]), limit=10)


def test_the_day_totals_of_real_threads_come_out_of_usage_and_times() -> None:
    imported = read_paths(*(fixture(f"{SESSIONS}{name}.jsonl") for name in FILES))
    assert_builds(imported)
    days: dict[str, Counter[str]] = {}
    for call in imported.of("call"):
        day = datetime.fromtimestamp(call.ended_at / 10**9, UTC).date().isoformat()
        total = days.setdefault(day, Counter())
        total["input"] += call.usage.prompt_tokens
        total["cached_input"] += call.usage.cached_tokens
        total["output"] += call.usage.completion_tokens
        total["reasoning_output"] += call.usage.reasoning_tokens
    assert days["2026-02-23"] == {
        "input": 34_082_306,
        "cached_input": 32_389_760,
        "output": 156_921,
        "reasoning_output": 64_401,
    }
    assert days["2026-02-23"]["input"] + days["2026-02-23"]["output"] == 34_239_227
    assert (days["2026-02-24"]["input"], days["2026-02-24"]["output"]) == (15_757_447, 66_257)
    assert sum(day["input"] for day in days.values()) == 49_839_753
    assert sum(imported.notes.inferred["a token count that is no call"].values()) == 480
    _check_expected_sessions(imported)
    _check_expected_stats(days)


def _check_expected_sessions(imported: Imported) -> None:
    expected = json.loads(fixture(f"{DAY}/expected/codex-sessions.json").read_text())
    spans: dict[str, dict[str, Any]] = {}
    for one in imported.of("episode"):
        spans.setdefault(one.id, {})[one.phase] = one
    sessions = {}
    for one in expected["sessions"]:
        start, end = spans[one["id"]]["start"], spans[one["id"]]["end"]
        session = json.loads(start.meta)["codex"]["payload"]
        usage_ = [call.usage for call in imported.of("call") if call.episode_id == one["id"]]
        sessions[one["id"]] = {
            "tokens": {
                "cache_creation": 0,
                "cache_read": sum(each.cached_tokens for each in usage_),
                "input": sum(each.prompt_tokens for each in usage_),
                "output": sum(each.completion_tokens for each in usage_),
                "reasoning_output": sum(each.reasoning_tokens for each in usage_),
            },
            "git_branch": session["git"]["branch"],
            "project_path": session["cwd"],
            "session_span_seconds": (end.ended_at - start.started_at) // 10**9,
        }
    for one in expected["sessions"]:
        assert sessions[one["id"]] == {name: one[name] for name in sessions[one["id"]]}
    messages = imported.notes.rows["codex/event_msg/user_message"]
    assert messages == sum(one["message_count"] for one in expected["sessions"])
    assert len(spans) == expected["summary"]["sessions_count"]


def _check_expected_stats(days: dict[str, Counter[str]]) -> None:
    (metric,) = json.loads(fixture(f"{DAY}/expected/codex-stats.json").read_text())["metrics"]
    assert metric["tags"] == days["2026-02-23"]
    assert metric["value"] == days["2026-02-23"]["input"] + days["2026-02-23"]["output"]


@pytest.mark.parametrize("name", ["sinity__polylogue/interleaved_stream", "wesm__agentsview/function_calls"])
def test_every_field_of_a_real_thread_leaves_a_trace(name: str) -> None:
    assert_perturbation(fixture(f"codex/{name}.jsonl").read_bytes(), limit=15)
