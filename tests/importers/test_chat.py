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
from tracestore.wire.encode import encode

USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "hello"}
SECRET = "sk-hush-0123456789"


def response(text: str = "hello", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "c1", "object": "chat.completion", "model": "m-1", "choices": [choice], **fields}


def exchange(*messages: Any, answer: Any = None, **fields: Any) -> dict[str, Any]:
    request = {"model": "m", "messages": list(messages) or [USER]}
    return {"request": request, "response": response() if answer is None else answer, **fields}


def call_of(*values: Any) -> Any:
    imported = read_data(as_lines(*values))
    (call,) = imported.of("call")
    assert_builds(imported)
    return call


def texts(imported: Imported) -> str:
    said = [encode(event).decode() for event in imported.events]
    return "\n".join([*said, json.dumps(imported.report, default=str)])


# --- Exchanges -------------------------------------------------------------------------------------


def test_a_logged_exchange_is_a_call_with_its_whole_context() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    value = exchange(answer=response(usage=usage), timestamp="2026-01-01T00:00:00Z", user_ip="::1")
    call = call_of(value)
    assert call.request.value() == value["request"]
    assert call.completions[0].message.value() == SAID
    assert (call.model, call.provider_id, call.dialect, call.context) == ("m-1", "c1", "openai_chat", "whole")
    assert (call.usage.prompt_tokens, call.usage.completion_tokens, call.ordinal) == (3, 2, None)
    assert (call.status, call.ended_at) == ("ok", 1_767_225_600_000_000_000)
    meta = call.meta.value()["chat"]
    assert meta == {"user_ip": "::1", "answer": {"object": "chat.completion"}}


def test_exchanges_of_the_other_apis_keep_their_dialect() -> None:
    output = [{"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"}]
    body = {"id": "r", "object": "response", "status": "completed", "output": output}
    imported = read_data(as_lines({"request": {"input": "hi", "model": "m"}, "response": body}))
    assert [call.dialect for call in imported.of("call")] == ["openai_responses"]
    assert [(use.tool_call_id, use.name, use.arguments) for use in imported.of("tool_call")] == [
        ("t", "f", "{}")
    ]
    message = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "x"}], "id": "m"}
    assert call_of(exchange(answer=message)).dialect == "anthropic_messages"
    said = {"choices": [{"text": "x", "index": 0, "finish_reason": "length"}]}
    old = call_of({"request": {"prompt": "once"}, "response": said})
    assert (old.dialect, old.completions[0].message.value()) == ("text", "x")


def test_a_litellm_log_is_one_request_out_of_its_parts() -> None:
    call = call_of(
        {
            "messages": [USER],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "kwargs": {"temperature": 0.5, "messages": [SAID], "api_key": SECRET, "model": "asked"},
            "response": response(),
            "cost": 0.5,
            "timestamp": 1767225600.0,
            "latency_sec": 2.5,
        }
    )
    request = call.request.value()
    assert request == {
        "temperature": 0.5,
        "model": "asked",
        "messages": [USER],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    assert (call.usage.cost_usd, call.ended_at) == (0.5, 1_767_225_600_000_000_000)
    meta = call.meta.value()["chat"]
    assert meta["kwargs"] == {"messages": [SAID]}
    assert meta["latency_sec"] == 2.5


def test_a_session_that_is_named_is_the_episode() -> None:
    values = [
        exchange(session_id="s"),
        exchange({"role": "user", "content": "else"}, metadata={"conversation_id": "s"}),
        {**exchange(), "request": {"messages": [USER], "metadata": {"thread_id": "t"}}},
        exchange(session_id="no id: \n"),
    ]
    imported = read_data(as_lines(*values))
    named = sorted(episode.id for episode in imported.of("episode"))
    assert named[1:] == ["s", "t"]
    assert named[0].startswith("id-")
    assert len([call for call in imported.of("call") if call.episode_id == "s"]) == 2


def test_conversations_that_begin_alike_are_one_tree() -> None:
    first, other = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    ho = {"role": "assistant", "content": "ho"}
    values = [
        exchange(USER),
        exchange(USER, SAID, first, answer=response("1")),
        exchange(USER, SAID, other, answer=response("2")),
        exchange(USER, ho, first, answer=response("3")),
        exchange(other, answer=response("4")),
    ]
    imported = read_data(as_lines(*values))
    assert_builds(imported)
    sizes = sorted(len(graph.calls) for graph in imported.graphs.values())
    assert sizes == [1, 4]
    graph = max(imported.graphs.values(), key=lambda one: len(one.calls))
    by_text = {call.completions[0].message.value()["content"]: call.id for call in imported.of("call")}
    parents = {name: graph.links[by_text[name]].parent for name in ("hello", "1", "2", "3")}
    begun = (by_text["hello"], 0)
    assert parents == {"hello": None, "1": begun, "2": begun, "3": None}
    assert imported.notes.inferred["the conversation of a call"].total() == 5


def test_equal_records_are_two_calls_and_copies_of_a_file_none() -> None:
    lines = as_lines(exchange(), exchange())
    assert len(read_data(lines).of("call")) == 2
    assert len(read_data(lines, lines).of("call")) == 2


def test_the_order_of_logs_with_one_call_a_file_does_not_matter() -> None:
    turns = [
        exchange(USER),
        exchange(USER, SAID, USER, answer=response("b")),
        exchange(USER, SAID, USER, SAID, answer=response("c")),
    ]
    assert_order_free(*(json.dumps(turn).encode() for turn in turns))
    assert_grows([json.dumps(turn).encode() for turn in turns])


def test_a_choice_of_several_is_a_completion_with_its_tool_calls() -> None:
    use = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
    said = response()
    said["choices"].append({"index": 1, "message": {"role": "assistant", "tool_calls": [use]}})
    imported = read_data(as_lines(exchange(answer=said)))
    (call,) = imported.of("call")
    assert len(call.completions) == 2
    (tool_call,) = imported.of("tool_call")
    assert (tool_call.completion, tool_call.arguments) == (1, '{"a":')
    assert tool_call.id == f"{call.id}/1/tool/0"


def test_an_answer_that_is_text_or_is_not_there_is_told_apart() -> None:
    assert (
        call_of({"request": {"messages": [USER]}, "response": "hello"}).completions[0].message.value() == SAID
    )
    failed = call_of({**exchange(), "response": None, "exception": "boom"})
    assert (failed.status, failed.error.message, failed.completions) == ("failed", '"boom"', None)
    refused = call_of(exchange(answer={"error": {"message": "no", "type": "t"}}))
    assert (refused.status, refused.error.type, refused.error.message) == ("failed", "t", "no")
    imported = read_data(as_lines({**exchange(), "response": None}, exchange(answer={"odd": 1})))
    assert [gap.cause for gap in imported.of("gap")] == ["unrecorded_stream"] * 2
    assert [call.status for call in imported.of("call")] == [None, None]
    assert imported.report["gaps"] == 2


def test_credentials_beside_the_messages_are_stored_nowhere() -> None:
    value = exchange(USER, metadata={"headers": {"Authorization": SECRET}})
    value["request"] |= {"api_key": SECRET, "extra_headers": {"x-api-key": SECRET}}
    imported = read_data(as_lines(value))
    assert SECRET not in texts(imported)
    assert imported.notes.warnings["a field that may hold a credential was left out"] == 3


# --- Batches ---------------------------------------------------------------------------------------

ASKED = {"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [USER]}}
GOT = {"id": "b1", "custom_id": "q1", "response": {"status_code": 200, "body": response()}, "error": None}


def test_a_batch_is_joined_by_its_custom_id_whatever_comes_first() -> None:
    asked, got = as_lines(ASKED), as_lines(GOT)
    for files in ((asked, got), (got, asked), (as_lines(GOT, ASKED),)):
        imported = read_data(*files)
        (call,) = imported.of("call")
        assert call.request.value() == {"messages": [USER]}
        assert call.completions[0].message.value() == SAID
        assert call.meta.value()["chat"]["input"] == {"method": "POST", "url": "/v1/chat/completions"}
        assert_builds(imported)


def test_a_batch_output_alone_is_replaced_once_its_input_is_there() -> None:
    alone = read_data(as_lines(GOT))
    (call,) = alone.of("call")
    assert (call.request, call.revision) == (None, 1)
    assert [gap.cause for gap in alone.of("gap")] == ["missing_prompt"]
    both = read_data(as_lines(ASKED, GOT))
    held = newest([*alone.events, *both.events])
    assert [event for event in held.values() if event.kind == "call"] == both.of("call")
    assert both.of("call")[0].revision == 2


def test_a_batch_input_without_its_output_is_no_call_and_is_shown() -> None:
    imported = read_data(as_lines(ASKED))
    assert imported.events == []
    assert "openai-chat: batch input without its output" in imported.notes.not_understood


def test_two_inputs_of_one_custom_id_are_given_to_no_output() -> None:
    other = {**ASKED, "body": {"messages": [SAID]}}
    imported = read_data(as_lines(ASKED, other, GOT, {**GOT, "id": "b2"}))
    assert [call.request for call in imported.of("call")] == [None, None]
    assert (
        imported.notes.warnings["several batch inputs have one custom_id; none is taken for its outputs"] == 1
    )
    assert imported.notes.not_understood["openai-chat: batch input without its output"].count == 2


def test_a_failed_line_of_a_batch_is_a_failed_call() -> None:
    imported = read_data(
        as_lines(ASKED, {**GOT, "response": None, "error": {"code": "x", "message": "late"}})
    )
    (call,) = imported.of("call")
    assert (call.status, call.error.message) == ("failed", "late")


def test_anthropic_batches_are_batches() -> None:
    message = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "hello"}],
        "id": "m",
    }
    asked = {"custom_id": "q", "params": {"messages": [USER], "max_tokens": 5}}
    got = {"custom_id": "q", "result": {"type": "succeeded", "message": message}}
    imported = read_data(as_lines(asked, got))
    (call,) = imported.of("call")
    assert (call.dialect, call.request.value()["max_tokens"]) == ("anthropic_messages", 5)
    refused = {"custom_id": "q", "result": {"type": "errored", "error": {"type": "error", "message": "no"}}}
    (call,) = read_data(as_lines(asked, refused)).of("call")
    assert (call.status, call.error.message) == ("failed", "no")


# --- Conversations ---------------------------------------------------------------------------------

USE = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [USE]}
RESULT = {"role": "tool", "tool_call_id": "t1", "content": "seen"}


def test_every_answer_of_a_conversation_is_a_call_that_reads_what_is_new() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    value = {"messages": [USER, CALLING, RESULT, SAID], "tools": tools, "weight": 2}
    imported = read_data(as_lines(value))
    assert_builds(imported)
    first, second = sorted(imported.of("call"), key=lambda call: call.ordinal)
    assert first.request.value() == {"tools": tools, "messages": [USER]}
    assert second.request.value() == {"tools": tools, "messages": [RESULT]}
    assert (second.context, second.parent_call_id) == ("delta", first.id)
    (use,) = imported.of("tool_call")
    assert (use.call_id, use.name, use.arguments, use.result.value()) == (
        first.id,
        "look",
        '{"at": 1}',
        "seen",
    )
    assert imported.of("episode")[0].meta.value() == {"chat": {"weight": 2}}


def test_a_conversation_is_the_same_as_a_list_and_as_a_document() -> None:
    for data in (as_lines([USER, SAID]), json.dumps([USER, SAID], indent=1).encode()):
        (call,) = read_data(data).of("call")
        assert call.request.value() == {"messages": [USER]}


def test_what_stands_after_the_last_answer_is_shown() -> None:
    tail = {"role": "user", "content": "and then?"}
    imported = read_data(as_lines({"messages": [USER, CALLING, RESULT, tail]}))
    assert imported.of("tool_call")[0].result.value() == "seen"
    left = imported.notes.not_understood["openai-chat: message after the last answer"]
    assert left.count == 1
    assert "and then?" in left.examples[0]
    unasked = {"role": "tool", "tool_call_id": "other", "content": "x"}
    assert read_data(as_lines([USER, SAID, unasked])).notes.not_understood


def test_sharegpt_is_the_same_under_other_names() -> None:
    spoken = [
        {"from": "system", "value": "be"},
        {"from": "human", "value": "hi"},
        {"from": "gpt", "value": "hello", "loss": 1},
        {"from": "observation", "value": "seen"},
        {"from": "function_call", "value": "{}"},
    ]
    first, second = sorted(
        read_data(as_lines({"conversations": spoken})).of("call"), key=lambda call: call.ordinal
    )
    assert first.request.value()["messages"] == [{"role": "system", "content": "be"}, USER]
    assert first.completions[0].message.value() == {**SAID, "loss": 1}
    assert second.request.value()["messages"] == [{"role": "tool", "content": "seen"}]


def test_a_prompt_and_its_completion_are_a_call_as_text_or_as_messages() -> None:
    call = call_of({"prompt": "once", "completion": " upon"})
    assert (call.dialect, call.request.value()) == ("text", {"prompt": "once"})
    assert call.completions[0].message.value() == " upon"
    call = call_of({"prompt": [USER], "completion": [SAID]})
    assert (call.request.value(), call.completions[0].message.value()) == ({"messages": [USER]}, SAID)


# --- Preferences -----------------------------------------------------------------------------------

WORSE = {"role": "assistant", "content": "go away"}


@pytest.mark.parametrize(
    ("value", "request_", "answers"),
    [
        (
            {"input": {"messages": [USER]}, "preferred_output": [SAID], "non_preferred_output": [WORSE]},
            {"messages": [USER]},
            [SAID, WORSE],
        ),
        ({"prompt": "hi", "chosen": "a", "rejected": "b"}, {"prompt": "hi"}, ["a", "b"]),
        (
            {"prompt": "hi", "chosen": [USER, SAID], "rejected": [USER, WORSE]},
            {"messages": [USER]},
            [SAID, WORSE],
        ),
        ({"prompt": "hi", "chosen": [SAID], "rejected": [WORSE]}, {"messages": [USER]}, [SAID, WORSE]),
        ({"prompt": [USER], "chosen": [SAID], "rejected": [WORSE]}, {"messages": [USER]}, [SAID, WORSE]),
        (
            {"prompt": [USER], "chosen": "hello", "rejected": "go away"},
            {"messages": [USER]},
            [SAID, WORSE],
        ),
    ],
)
def test_a_preference_is_two_candidates_of_which_the_first_was_chosen(
    value: dict[str, Any], request_: Any, answers: list[Any]
) -> None:
    imported = read_data(as_lines(value))
    (call,), (pair,), (chosen,) = (
        imported.of(kind) for kind in ("call", "candidate_set", "candidate_selection")
    )
    assert call.request.value() == request_
    assert [body.message.value() for body in call.completions] == answers
    assert [(one.call_id, one.completion) for one in pair.members] == [(call.id, 0), (call.id, 1)]
    assert (chosen.candidate_set_id, chosen.selected) == (pair.id, (0,))
    assert_builds(imported)
    assert_perturbation(as_lines(value), limit=50)


def test_scores_of_a_preference_are_those_of_its_candidates() -> None:
    value = {"prompt": "p", "chosen": "a", "rejected": "b", "score_chosen": 9, "score_rejected": 2.5}
    (pair,) = read_data(as_lines(value)).of("candidate_set")
    assert [one.score for one in pair.members] == [9.0, 2.5]


def test_answers_without_their_prompt_say_so() -> None:
    imported = read_data(as_lines({"chosen": "\n\nHuman: a", "rejected": "\n\nHuman: b"}))
    assert imported.of("call")[0].request is None
    assert [gap.cause for gap in imported.of("gap")] == ["missing_prompt"]


def test_answers_to_two_prompts_are_refused_with_their_place() -> None:
    other = {"role": "user", "content": "other"}
    imported = read_data(
        as_lines({"chosen": [USER, SAID], "rejected": [other, WORSE]}, [USER, SAID]), format="openai-chat"
    )
    assert len(imported.of("call")) == 1
    (problem,) = imported.notes.refused
    assert problem.startswith("file-0, line 1")
    assert "no two answers to one prompt" in problem


# --- Files -----------------------------------------------------------------------------------------


def test_lines_of_other_kinds_are_refused_and_the_others_pass() -> None:
    imported = read_data(as_lines(exchange(), {"some": "thing"}, 3, {"messages": []}, [USER, SAID]))
    assert len(imported.of("call")) == 2
    assert [one.partition(":")[0] for one in imported.notes.refused] == [
        "file-0, line 2",
        "file-0, line 3",
        "file-0, line 4",
    ]


def test_no_value_of_a_log_changes_without_a_trace() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    values = [
        exchange(answer=response(usage=usage), session_id="s", extra={"a": [1, None]}),
        {"messages": [USER], "kwargs": {"n": 1}, "response": response(), "cost": 1, "timestamp": 1767225600},
        {"messages": [USER, CALLING, RESULT, SAID], "more": 1},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        ASKED,
        GOT,
    ]
    assert_perturbation(as_lines(*values), limit=200)


def test_a_log_that_grows_gives_what_the_whole_gives() -> None:
    lines = as_lines(exchange(), ASKED, GOT, [USER, SAID], exchange()).splitlines()
    assert_grows(lines)
    assert same_events(read_data(b"\n".join(lines)), read_data(b"\n".join(lines), b"\n".join(lines)))
