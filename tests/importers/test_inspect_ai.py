"""Inspect logs of every shape: JSON, zips, chunks; agents by spans, steps and nested events."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.importers.reading import (
    Imported,
    assert_builds,
    assert_perturbation,
    read_data,
    read_fixtures,
    read_paths,
    same_events,
)
from tracestore.importers.inspect_files import expanded

USER = {"id": "u", "role": "user", "content": "Compute 6 * 7."}
SPEC = {
    "task": "maths",
    "task_id": "T1",
    "run_id": "R1",
    "created": "2026-01-01T00:00:00+00:00",
    "model": "m",
}
TIMELINE = "inspect/ukgovernmentbeis__inspect_ai/timeline/fixtures/events/"


def said(text: str, *uses: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"a-{text}", "role": "assistant", "content": text} | (
        {"tool_calls": [*uses]} if uses else {}
    )


def use(name: str, id: str = "call_1", **arguments: Any) -> dict[str, Any]:  # noqa: A002
    return {"id": id, "function": name, "arguments": arguments}


def model(uuid: str, messages: list[Any], answer: dict[str, Any], **more: Any) -> dict[str, Any]:
    output = {"model": "m", "choices": [{"message": answer, "stop_reason": "stop"}]}
    when = {"timestamp": "2026-01-01T00:00:01+00:00"}
    return {"event": "model", "uuid": uuid, "model": "m", "input": messages, "output": output, **when, **more}


def span(id: str, kind: str, parent: str | None = None) -> dict[str, Any]:  # noqa: A002
    when = "2026-01-01T00:00:00+00:00"
    return {"event": "span_begin", "id": id, "name": id, "type": kind, "parent_id": parent, "timestamp": when}


def sample(*events: dict[str, Any], **more: Any) -> dict[str, Any]:
    shell = {"id": 1, "epoch": 1, "uuid": "S1", "input": "Compute 6 * 7.", "target": "42", "messages": []}
    return {**shell, "events": [*events], **more}


def log(*samples: dict[str, Any], **more: Any) -> bytes:
    return json.dumps(
        {"version": 2, "status": "success", "eval": SPEC, "samples": [*samples]} | more
    ).encode()


def read(*samples: dict[str, Any]) -> Imported:
    imported = read_data(log(*samples))
    assert_builds(imported)
    return imported


def agents(imported: Imported) -> dict[str, Any]:
    return {agent.id: agent for agent in imported.of("agent")}


def callers(imported: Imported) -> dict[str, str]:
    """Agent of each call, both without the episode's id."""
    return {call.id.partition("/")[2]: call.agent_id.partition("/")[2] for call in imported.of("call")}


# --- Episodes, scores, statuses ---------------------------------------------------------------------


def test_epochs_of_one_sample_are_a_group_that_a_finished_log_closes() -> None:
    imported = read(sample(), sample(epoch=2, uuid="S2"), sample(id=2, uuid="S3"))
    assert {episode.id: episode.group_id for episode in imported.of("episode")} == {
        "S1": "inspect/T1/1",
        "S2": "inspect/T1/1",
        "S3": "inspect/T1/2",
    }
    assert [(one.id, one.phase) for one in imported.of("group")] == [
        ("inspect/T1/1", "end"),
        ("inspect/T1/1", "start"),
        ("inspect/T1/2", "end"),
        ("inspect/T1/2", "start"),
    ]
    assert imported.of("episode")[0].task_id == "maths/1"


def test_a_sample_that_a_retried_log_copied_is_one_episode_and_the_later_log_holds() -> None:
    first, later = log(sample()), log(sample(), eval=SPEC | {"created": "2026-01-02T00:00:00+00:00"})
    (episode,) = read_data(first, later).of("episode")
    assert episode.meta.value()["inspect"]["eval"]["created"] == "2026-01-02T00:00:00+00:00"
    assert same_events(read_data(first, later), read_data(later, first))


def test_scores_are_rewards_letters_by_inspects_own_values() -> None:
    scores = {
        "match": {"value": "C", "answer": "42"},
        "half": {"value": "P"},
        "rubric": {"value": {"clear": 0.25, "short": True, "why": "text"}},
        "unscored": {"value": "no number"},
    }
    imported = read(sample(scores=scores))
    rewards = {reward.name: reward.value for reward in imported.of("reward")}
    assert rewards == {"match": 1.0, "half": 0.5, "rubric/clear": 0.25, "rubric/short": 1.0}
    (episode,) = imported.of("episode")
    assert episode.meta.value()["inspect"]["scores"] == {"unscored": {"value": "no number"}}


def test_a_score_of_nan_is_no_reward_and_is_kept() -> None:
    data = log(sample(scores={"match": {"value": "MARK"}})).replace(b'"MARK"', b"NaN")
    imported = read_data(data)
    assert not imported.of("reward")
    assert imported.of("episode")[0].meta.value()["inspect"]["scores"] == {"match": {"value": "NaN"}}
    assert imported.notes.warnings == {"NaN, which is no JSON, kept as text": 1}


def test_an_intermediate_score_is_recorded_beside_the_episodes_reward() -> None:
    event = {"event": "score", "score": {"value": 0.5}, "intermediate": True, "scorer": "progress"}
    (reward,) = read(sample(event)).of("reward")
    assert (reward.name, reward.value, reward.weight) == ("progress", 0.5, 0.0)


@pytest.mark.parametrize(
    ("more", "status", "reason"),
    [
        ({}, "ok", None),
        ({"error": {"message": "no sandbox", "traceback": "..."}}, "infra_error", None),
        ({"limit": {"type": "token", "limit": 100}}, "budget_exhausted", "limit: token"),
        ({"limit": {"type": "time", "limit": 60}}, "timeout", "limit: time"),
        ({"limit": {"type": "operator", "limit": 1}}, "cancelled", "limit: operator"),
        ({"invalidation": {"author": "me"}}, "invalid", None),
    ],
)
def test_limits_and_errors_are_statuses(more: dict[str, Any], status: str, reason: str | None) -> None:
    (episode,) = read(sample(**more)).of("episode")
    assert (episode.status, episode.stop_reason) == (status, reason)


# --- Calls ------------------------------------------------------------------------------------------


def test_an_input_that_extends_the_call_before_is_a_delta_and_another_one_is_whole() -> None:
    a, b = said("6 * 7 is", use("calc", e="6*7")), said("42")
    tool = {"id": "t", "role": "tool", "content": "42", "tool_call_id": "call_1"}
    imported = read(
        sample(
            model("m1", [USER], a),
            model("m2", [USER, a, tool], b),
            model("m3", [USER | {"content": "Start again."}], said("What?")),
        )
    )
    first, second, third = imported.of("call")
    assert (second.context, second.parent_call_id) == ("delta", first.id)
    assert second.request.value()["messages"] == [tool]
    assert (third.context, third.parent_call_id) == ("whole", None)
    assert imported.report["messages"] == 6  # USER, a, tool, b, another user message, its answer


def test_the_answer_that_was_continued_is_named_where_there_are_several() -> None:
    a, b = said("one"), said("two")
    event = model("m1", [USER], a)
    event["output"]["choices"].append({"message": b, "stop_reason": "stop"})
    second = read(sample(event, model("m2", [USER, b, USER], said("three")))).of("call")[1]
    assert (second.context, second.parent_completion) == ("delta", 1)


def test_cached_tokens_are_part_of_the_prompt_whichever_way_the_provider_counts() -> None:
    def usage(**tokens: int) -> Any:
        event = model("m1", [USER], said("42"))
        event["output"]["usage"] = tokens
        return read(sample(event)).of("call")[0].usage

    # Anthropic: 10 read, 90 from the cache, 5 written to it, 7 sampled: 10 + 90 + 5 + 7 = 112
    apart = usage(
        input_tokens=10,
        output_tokens=7,
        total_tokens=112,
        input_tokens_cache_read=90,
        input_tokens_cache_write=5,
    )
    assert (apart.prompt_tokens, apart.cached_tokens, apart.cache_write_tokens) == (105, 90, 5)
    # OpenAI: 100 read, 90 of them from the cache, 7 sampled: 100 + 7 = 107
    inside = usage(input_tokens=100, output_tokens=7, total_tokens=107, input_tokens_cache_read=90)
    assert (inside.prompt_tokens, inside.cached_tokens) == (100, 90)


def test_a_failed_call_has_its_error_and_no_answer() -> None:
    event = model("m1", [USER], said("")) | {"output": {"model": "m", "choices": []}, "error": "overloaded"}
    (call,) = read(sample(event)).of("call")
    assert (call.status, call.error.message, call.completions) == ("failed", "overloaded", None)


def test_what_went_to_the_provider_is_kept_once() -> None:
    def sent(*texts: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": text} for text in texts]
        return {"request": {"messages": messages, "tools": ["big"]}, "response": {"id": f"r{len(texts)}"}}

    first, second = read(
        sample(
            model("m1", [USER], said("a"), call=sent("x")),
            model("m2", [USER], said("b"), call=sent("x", "y")),
        )
    ).of("call")
    assert first.provider_id == "r1"
    assert second.meta.value()["inspect"]["call"] == {
        "request": {"messages": [{"role": "user", "content": "y"}]},
        "response": {"id": "r2"},
        "as_before": {"messages": 1, "tools": True},
    }


# --- References -------------------------------------------------------------------------------------


def test_an_attachment_stands_where_its_reference_stood() -> None:
    attachments = {"h1": "a long text", "h2": "nobody's"}
    message = USER | {"content": "attachment://h1"}
    imported = read(
        sample(
            model("m1", [message], said("attachment://gone")),
            messages=[USER | {"content": "a long text"}],
            attachments=attachments,
        )
    )
    (call,) = imported.of("call")
    assert call.request.value()["messages"][0]["content"] == "a long text"
    assert call.completions[0].message.value()["content"] == "attachment://gone"
    left = imported.notes.not_understood
    assert left["inspect: attachment that nothing refers to"].count == 1
    assert "inspect: message that no call saw" not in left
    assert sum(imported.notes.warnings.values()) == 1


def test_pooled_messages_read_like_inline_ones() -> None:
    a, tool = (
        said("6 * 7 is", use("calc")),
        {"id": "t", "role": "tool", "content": "42", "tool_call_id": "call_1"},
    )
    wire = [{"role": "user", "content": "x"}]
    inline = sample(
        model("m1", [USER], a, call={"request": {"messages": wire}, "response": {}}),
        model("m2", [USER, a, tool], said("42")),
    )
    call = {"request": {}, "response": {}, "call_refs": [[0, 1]], "call_key": "messages"}
    first, second = model("m1", [], a, input_refs=[[0, 1]], call=call), model("m2", [], said("42"))
    now = sample(first, second | {"input_refs": [[0, 2], [3, 4]]})
    now["events_data"] = {"messages": [USER, a, {"role": "user", "content": "unused"}, tool], "calls": wire}
    early = sample(first, second | {"input_refs": [0, [1, 2], 3]})
    early |= {"message_pool": now["events_data"]["messages"], "call_pool": wire}
    assert same_events(read(inline), read(now))
    assert same_events(read(inline), read(early))
    left = read(now).notes.not_understood
    assert left["inspect: pooled message that no event refers to"].count == 1


def test_references_out_of_their_pool_stay_and_are_told() -> None:
    imported = read(sample(model("m1", [], said("42"), input_refs=[[0, 5]]), message_pool=[USER]))
    assert imported.of("call")[0].meta.value()["inspect"]["input_refs"] == [[0, 5]]
    assert imported.notes.warnings == {
        "a model event refers to messages that are not in the sample's pool": 1
    }


@pytest.mark.parametrize("refs", [[[-9, 1]], [[0, 10**12]], [["0", 1]], "all"])
def test_references_that_are_none_expand_to_nothing(refs: Any) -> None:
    assert expanded(refs, [USER]) is None


def test_references_to_a_million_messages_are_no_context() -> None:
    assert expanded([[0, 2000]] * 500, [USER] * 2000) is not None
    assert expanded([[0, 2000]] * 501, [USER] * 2000) is None


# --- Agents -----------------------------------------------------------------------------------------


def test_the_model_inside_a_scorer_is_a_judge_that_never_trains() -> None:
    spans = [span("solvers", "solvers"), span("generate", "solver", "solvers"), span("graded", "scorer")]
    imported = read(
        sample(
            *spans,
            model("m1", [USER], said("42"), span_id="generate"),
            model("m2", [USER], said("GRADE: C"), span_id="graded"),
        )
    )
    assert callers(imported) == {"m1": "main", "m2": "graded"}
    judge = agents(imported)["S1/graded"]
    assert (judge.role, judge.trainable, judge.name) == ("judge", False, "graded")
    assert [call.purpose for call in imported.of("call")] == ["act", "judge"]


def test_steps_of_older_logs_say_the_same() -> None:
    def step(action: str, kind: str) -> dict[str, Any]:
        return {"event": "step", "action": action, "type": kind, "name": kind}

    imported = read(
        sample(
            step("begin", "solver"),
            model("m1", [USER], said("42")),
            step("end", "solver"),
            step("begin", "scorer"),
            model("m2", [USER], said("GRADE: C")),
            step("end", "scorer"),
        )
    )
    assert callers(imported) == {"m1": "main", "m2": "3"}
    assert agents(imported)["S1/3"].role == "judge"


def test_a_tool_call_that_names_the_span_of_an_agent_spawned_it() -> None:
    tool = {
        "event": "tool",
        "uuid": "t1",
        "id": "call_1",
        "function": "helper",
        "arguments": {"input": "add"},
        "result": "3",
        "agent_span_id": "helper",
        "span_id": "main-agent",
    }
    imported = read(
        sample(
            span("solvers", "solvers"),
            span("main-agent", "agent", "solvers"),
            model("m1", [USER], said("", use("helper")), span_id="main-agent"),
            span("tool", "tool", "main-agent"),
            tool,
            span("helper", "agent", "tool"),
            model("m2", [USER], said("3"), span_id="helper"),
            model("m3", [USER, said("", use("helper"))], said("so 3"), span_id="main-agent"),
        )
    )
    assert callers(imported) == {"m1": "main", "m2": "helper", "m3": "main"}
    helper = agents(imported)["S1/helper"]
    assert (helper.depth, helper.parent_agent_id) == (1, "S1/main")
    assert (helper.spawned_by_call_id, helper.spawned_by_tool_call_id) == ("S1/m1", "call_1")
    assert helper.scope_prompt.value() == {"input": "add"}
    assert helper.return_message.value() == "3"
    (call,) = imported.of("tool_call")
    assert (call.call_id, call.status, call.arguments) == ("S1/m1", "ok", '{"input":"add"}')


def test_a_tool_span_goes_to_the_tool_call_of_its_name_and_place() -> None:
    uses = [use("ask", "call_1"), use("ask", "call_2")]
    tools = [
        {
            "event": "tool",
            "uuid": f"t{n}",
            "id": f"call_{n}",
            "function": "ask",
            "arguments": {},
            "result": str(n),
        }
        for n in (1, 2)
    ]
    imported = read(
        sample(
            model("m1", [USER], said("", *uses)),
            span("first", "tool") | {"name": "ask"},
            span("second", "tool") | {"name": "ask"},
            *tools,
            model("m2", [USER], said("2"), span_id="second"),
        )
    )
    (asked,) = [agent for agent in imported.of("agent") if agent.role == "subagent"]
    assert asked.id == "S1/second"
    assert asked.spawned_by_tool_call_id == "call_2"
    assert "tool call that spawned an agent" in imported.notes.inferred


def test_events_inside_a_tool_event_are_the_subagents() -> None:
    tool = {"event": "tool", "id": "call_1", "function": "ask", "arguments": {}, "result": "2"}
    imported = read(
        sample(model("m1", [USER], said("", use("ask"))), tool | {"events": [model("m2", [USER], said("2"))]})
    )
    assert callers(imported) == {"m1": "main", "m2": "1"}
    assert agents(imported)["S1/1"].spawned_by_call_id == "S1/m1"


def test_a_branch_leaves_its_parent_at_the_anchor() -> None:
    imported = read(
        sample(
            span("solvers", "solvers"),
            span("agent", "agent", "solvers"),
            model("m1", [USER], said("one"), span_id="agent"),
            {"event": "anchor", "anchor_id": "here", "span_id": "agent"},
            model("m2", [USER, said("one"), USER], said("two"), span_id="agent"),
            span("again", "branch", "agent"),
            {"event": "branch", "from_span": "agent", "from_anchor": "here", "span_id": "again"},
            model("m3", [USER, said("one"), USER], said("three"), span_id="again"),
        )
    )
    branch = agents(imported)["S1/again"]
    assert (branch.role, branch.parent_agent_id, branch.spawned_by_call_id) == ("branch", "S1/main", "S1/m1")
    (graph,) = imported.graphs.values()
    assert graph.links["S1/m3"].parent == ("S1/m1", 0)


def test_a_compaction_lies_between_the_calls_around_it() -> None:
    compaction = {
        "event": "compaction",
        "uuid": "c1",
        "type": "summary",
        "tokens_before": 900,
        "tokens_after": 90,
    }
    imported = read(
        sample(
            model("m1", [USER], said("one")),
            compaction,
            model("m2", [USER | {"content": "Summary: one"}], said("two")),
        )
    )
    (edit,) = imported.of("context_edit")
    assert (edit.edit, edit.before_call_id, edit.after_call_id) == ("compaction", "S1/m1", "S1/m2")
    assert (edit.tokens_before, edit.tokens_after, edit.replaced_call_ids) == (900, 90, None)


def test_a_helper_of_inspects_own_test_case_is_a_child_of_the_main_agent() -> None:
    imported = read_fixtures(f"{TIMELINE}utility_subagent_loop.json")
    (episode,) = imported.of("episode")
    expected = episode.meta.value()["inspect"]["expected"]["agent"]
    main = [event for event in expected["event_uuids"] if event.startswith("m")]
    (child,) = expected["children"]
    assert callers(imported) == dict.fromkeys(main, "main") | dict.fromkeys(child["event_uuids"], child["id"])


# --- Samples without events -------------------------------------------------------------------------


def test_without_model_events_each_assistant_message_is_a_call() -> None:
    a, b = said("6 * 7 is", use("calc", e="6*7")), said("42")
    tool = {
        "role": "tool",
        "content": "boom",
        "tool_call_id": "call_1",
        "error": {"type": "timeout", "message": "!"},
    }
    output = {
        "choices": [{"message": b, "stop_reason": "stop"}],
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }
    imported = read(sample(messages=[USER, a, tool, b], output=output))
    first, second = imported.of("call")
    assert (first.usage, second.usage.completion_tokens) == (None, 2)
    assert second.request.value()["messages"] == [tool]
    assert second.completions[0].finish_reason == "stop"
    (call,) = imported.of("tool_call")
    assert (call.call_id, call.status, call.error) == (first.id, "timeout", "!")


def test_messages_without_any_of_the_model_are_a_gap() -> None:
    imported = read(sample(messages=[{"role": "tool", "content": "x", "tool_call_id": "1"}]))
    assert [gap.cause for gap in imported.of("gap")] == ["no_calls"]


# --- Zips -------------------------------------------------------------------------------------------


def packed(members: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in members.items():
            archive.writestr(name, json.dumps(value))
    return data.getvalue()


START = {"version": 2, "eval": SPEC, "plan": {"steps": []}}
HEADER = START | {"status": "success"}


def test_a_zip_reads_like_the_json_log() -> None:
    one = sample(model("m1", [USER], said("42")))
    members = {"_journal/start.json": START, "samples/1_epoch_1.json": one, "header.json": HEADER}
    assert same_events(read_data(packed(members)), read_data(log(one)))


def test_a_log_that_is_being_written_and_later_finished_ends_as_the_finished_one() -> None:
    one, two = sample(model("m1", [USER], said("42"))), sample(epoch=2, uuid="S2")
    begun = packed({"_journal/start.json": START, "samples/1_epoch_1.json": one})
    whole = packed(
        {
            "_journal/start.json": START,
            "samples/1_epoch_1.json": one,
            "samples/1_epoch_2.json": two,
            "header.json": HEADER,
        }
    )
    assert same_events(read_data(begun, whole), read_data(whole))
    assert {one.phase for one in read_data(begun).of("group")} == {"start"}


def test_a_sample_in_chunks_reads_like_one_document() -> None:
    a = said("attachment://0", use("calc"))
    one = sample(
        model("m1", [], a, input_refs=[[0, 1]]),
        model("m2", [], said("42"), input_refs=[[0, 3]]),
        metadata={"level": 2},
    )
    shell = {name: value for name, value in one.items() if name not in ("events", "messages", "metadata")}
    tool = {"role": "tool", "content": "42", "tool_call_id": "call_1"}
    folder = "samples/1_epoch_1"
    chunks = {
        "_journal/start.json": START,
        f"{folder}/sample.json": shell | {"message_refs": [[0, 3]]},
        f"{folder}/metadata.json": {"level": 2},
        f"{folder}/messages/0.json": [USER, a],
        f"{folder}/messages/2.json": [tool],
        f"{folder}/events/0.json": one["events"][:1],
        f"{folder}/events/1.json": one["events"][1:],
        f"{folder}/calls/0.json": [],
        f"{folder}/attachments/0.json": ["6 * 7 is"],
        f"{folder}/events/stats.json": {"derived": True},
        "header.json": HEADER,
    }
    whole = one | {
        "messages": [USER, a, tool],
        "events_data": {"messages": [USER, a, tool], "calls": []},
        "attachments": {"0": "6 * 7 is"},
    }
    imported = read_data(packed(chunks))
    assert same_events(imported, read_data(packed({"samples/1_epoch_1.json": whole, "header.json": HEADER})))
    assert imported.notes.not_understood["inspect: member stats.json"].count == 1
    assert not imported.notes.warnings


def test_members_compressed_with_zstandard_are_read_and_checked(tmp_path: Path) -> None:
    plain = packed({"samples/1_epoch_1.json": sample(model("m1", [USER], said("42"))), "header.json": HEADER})
    path = tmp_path / "log.eval"
    path.write_bytes(_with_zstandard(plain))
    assert same_events(read_paths(path), read_data(plain))
    path.write_bytes(_with_zstandard(plain).replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfe", 1))
    assert "samples/1_epoch_1.json" in read_paths(path).notes.refused[0]


def _with_zstandard(plain: bytes) -> bytes:
    """The same zip with the method 93, which Python's own module cannot write before 3.14."""
    data = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(plain)) as given, zipfile.ZipFile(data, "w") as archive:
        infos = []
        for info in given.infolist():
            body = given.read(info)
            archive.writestr(info.filename, zstandard.compress(body))
            infos.append((archive.getinfo(info.filename), zlib.crc32(body), len(body)))
        for info, crc, size in infos:
            info.compress_type, info.CRC, info.file_size = 93, crc, size
    return data.getvalue()


def test_a_zip_without_its_directory_gives_its_whole_samples(tmp_path: Path) -> None:
    one = sample(model("m1", [USER], said("42")))
    data = packed({"_journal/start.json": START, "samples/1_epoch_1.json": one, "header.json": HEADER})
    path = tmp_path / "cut.eval"
    path.write_bytes(data[: data.index(b"PK\x01\x02") - 10])  # the header is cut, and the directory gone
    imported = read_paths(path)
    (episode,) = imported.of("episode")
    assert (episode.id, episode.group_id) == ("S1", "inspect/T1/1")
    assert len(imported.of("call")) == 1
    assert "damaged zip" in imported.notes.refused[0]


def test_a_damaged_member_is_refused_and_the_others_are_read() -> None:
    members = {
        "header.json": HEADER,
        "samples/1_epoch_1.json": sample(),
        "samples/1_epoch_2.json": "no sample",
    }
    imported = read_data(packed(members))
    assert [episode.id for episode in imported.of("episode")] == ["S1"]
    assert "no sample" in imported.notes.refused[0]


# --- Whole files ------------------------------------------------------------------------------------


def test_no_value_of_a_log_changes_without_a_trace() -> None:
    tool = {
        "event": "tool",
        "id": "call_1",
        "function": "calc",
        "arguments": {"e": "6*7"},
        "result": "42",
        "error": {"type": "parsing", "message": "no"},
    }
    whole = log(
        sample(
            span("solvers", "solvers"),
            span("agent", "agent", "solvers"),
            model("m1", [USER], said("6 * 7 is", use("calc", e="6*7")), span_id="agent", retries=2),
            tool,
            {"event": "compaction", "type": "trim", "tokens_before": 3},
            {"event": "sandbox", "action": "exec", "cmd": "ls"},
            scores={"match": {"value": "C", "explanation": "right"}},
            messages=[USER, said("6 * 7 is", use("calc", e="6*7"))],
            output={"choices": [{"message": said("late")}]},
            limit={"type": "custom", "limit": 3},
            attachments={"h": "unused"},
        ),
        stats={"started_at": "x"},
    )
    assert_perturbation(whole, limit=60)


def test_events_of_a_wrong_shape_are_refused_with_their_place() -> None:
    bad = model("m1", [USER], said("42")) | {"output": {"choices": [{"message": said("x"), "logprobs": {}}]}}
    imported = read_data(log(sample({"no": "event"}, bad, model("m2", ["text"], said("42")))))
    assert len(imported.of("call")) == 2
    assert "event 0" in imported.notes.refused[0]
