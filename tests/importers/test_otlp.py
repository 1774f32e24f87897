from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_order_free,
    assert_perturbation,
    read_data,
    read_fixtures,
    same_events,
)
from tests.importers.test_growth import assert_older
from tracestore.importers import otel_attributes, otlp, spans
from tracestore.importers.chat_shapes import exchange, to_parts
from tracestore.importers.notes import Notes

TRACE = "5b8efff798038103d269b633813fc60c"
SPANS = "otel/arize-ai__openinference/js/packages/"

USER = {"role": "user", "content": "weather?"}
USE = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
ASKED = {"role": "assistant", "content": "", "tool_calls": [USE]}
RESULT = {"role": "tool", "tool_call_id": "t1", "content": "rain"}
SAID = {"role": "assistant", "content": "it rains"}


def parts(*messages: Any) -> str:
    return json.dumps([to_parts(message) for message in messages])


def value(one: Any) -> dict[str, Any]:
    if isinstance(one, bool):
        return {"boolValue": one}
    if isinstance(one, int):
        return {"intValue": str(one)}
    if isinstance(one, float):
        return {"doubleValue": one}
    if isinstance(one, list):
        return {"arrayValue": {"values": [value(inner) for inner in one]}}
    return {"stringValue": one}


def span(span_id: int, parent: int | None, name: str, **attributes: Any) -> dict[str, Any]:
    """A span; attribute names have __ for a dot."""
    found: dict[str, Any] = {
        "traceId": TRACE.upper(),
        "spanId": f"{span_id:016X}",
        "name": name,
        "startTimeUnixNano": str(1_700_000_000_000_000_000 + span_id),
        "endTimeUnixNano": str(1_700_000_000_000_000_100 + span_id),
        "attributes": [
            {"key": key.replace("__", "."), "value": value(one)} for key, one in attributes.items()
        ],
    }
    return found | ({"parentSpanId": f"{parent:016x}"} if parent is not None else {})


def request(*spans: dict[str, Any]) -> dict[str, Any]:
    scope = {"scope": {"name": "lib"}, "spans": list(spans)}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "app"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


AGENT = span(1, None, "invoke_agent main", gen_ai__operation__name="invoke_agent", gen_ai__agent__name="main")
CALL = span(
    2,
    1,
    "chat m",
    gen_ai__operation__name="chat",
    gen_ai__request__model="m",
    gen_ai__input__messages=parts(USER),
    gen_ai__output__messages=parts(ASKED),
    gen_ai__response__finish_reasons=["tool_calls"],
    gen_ai__usage__input_tokens=10,
    gen_ai__usage__output_tokens=3,
    gen_ai__request__temperature=0.5,
)
TOOL = span(
    3,
    1,
    "execute_tool look",
    gen_ai__operation__name="execute_tool",
    gen_ai__tool__name="look",
    gen_ai__tool__call__id="t1",
    gen_ai__tool__call__arguments='{"at":1}',
    gen_ai__tool__call__result="rain",
)
SUB = span(4, 3, "invoke_agent sub", gen_ai__operation__name="invoke_agent", gen_ai__agent__name="sub")
SUB_CALL = span(
    5,
    4,
    "chat",
    gen_ai__operation__name="chat",
    gen_ai__input__messages=parts(USER),
    gen_ai__output__messages=parts(SAID),
)
LAST = span(
    6,
    1,
    "chat m",
    gen_ai__operation__name="chat",
    gen_ai__input__messages=parts(USER, ASKED, RESULT),
    gen_ai__output__messages=parts(SAID),
)
ALL = (AGENT, CALL, TOOL, SUB, SUB_CALL, LAST)


def read(*spans: dict[str, Any]) -> Imported:
    imported = read_data(json.dumps(request(*spans)).encode())
    assert_builds(imported)
    return imported


def call_of(**attributes: Any) -> Any:
    (call,) = read(span(1, None, "s", **attributes)).of("call")
    return call


def test_agents_calls_and_tool_calls_are_told_by_the_operations() -> None:
    imported = read(*ALL)
    (graph,) = imported.graphs.values()
    assert list(imported.graphs) == [TRACE]
    main, sub = (next(one for one in graph.agents.values() if one.name == name) for name in ("main", "sub"))
    assert (main.role, main.depth, sub.role, sub.depth, sub.parent_agent_id) == (
        "main",
        0,
        "subagent",
        1,
        main.id,
    )
    first = graph.calls[f"{TRACE}/{2:016x}"]
    assert (first.agent_id, first.model, first.usage.prompt_tokens) == (main.id, "m", 10)  # type: ignore[union-attr]
    assert json.loads(first.request or b"") == {"messages": [USER], "temperature": 0.5}
    assert graph.completions[first.id, 0].finish_reason == "tool_calls"
    (tool_call,) = graph.tool_calls.values()
    assert (tool_call.call_id, tool_call.tool_call_id, tool_call.result) == (first.id, "t1", b'"rain"')
    assert (sub.spawned_by_call_id, sub.spawned_by_tool_call_id) == (first.id, "t1")
    assert graph.links[f"{TRACE}/{6:016x}"].parent == (first.id, 0)


def test_spans_give_the_same_whatever_their_order_and_their_files() -> None:
    whole = read(*ALL)
    for seed in range(5):
        shuffled = random.Random(seed).sample(ALL, len(ALL))
        assert same_events(whole, read(*shuffled))
    assert_order_free(*(json.dumps(request(one)).encode() for one in ALL))


STEPS = (
    span(10, None, "request"),
    span(11, 10, "step"),
    span(12, 11, "chat", gen_ai__operation__name="chat", gen_ai__output__messages=parts(ASKED)),
    span(13, 10, "step"),
    span(14, 13, "look", gen_ai__operation__name="execute_tool", gen_ai__tool__call__id="t1"),
)


@pytest.mark.parametrize("spans", [ALL, STEPS])
def test_what_any_part_of_a_trace_says_stays_or_is_replaced_by_the_whole(spans: tuple[Any, ...]) -> None:
    some = [part for n in range(1, len(spans)) for part in itertools.combinations(spans, n)]
    whole = read(*spans)
    for part in some:
        assert_older(read(*part), whole)


def test_a_span_without_its_parent_belongs_to_the_agent_that_the_parent_would_be() -> None:
    imported = read(CALL, SUB)
    (graph,) = imported.graphs.values()
    call, sub = graph.calls[f"{TRACE}/{2:016x}"], graph.agents[f"{TRACE}/{4:016x}"]
    assert call.agent_id == f"{TRACE}/{1:016x}"
    assert sub.parent_agent_id == f"{TRACE}/{3:016x}"
    assert graph.agents.keys() == {sub.id}
    assert imported.notes.inferred["orphan root"] == {"its parent span is not in the trace": 2}


def test_usage_of_agents_and_wrappers_is_never_added() -> None:
    counted = {"gen_ai__usage__input_tokens": 10, "gen_ai__usage__output_tokens": 3}
    outer = span(7, 1, "sdk", openinference__span__kind="LLM", llm__token_count__prompt=10)
    inner = span(8, 7, "http", gen_ai__operation__name="chat", **counted)
    agent = span(1, None, "a", gen_ai__operation__name="invoke_agent", **counted)
    imported = read(agent, outer, inner)
    assert imported.report["calls"] == 1
    assert imported.report["usage"]["prompt_tokens"] == 10
    assert imported.notes.inferred["wrapper of a call"] == {"another model call is below it": 1}


def test_cached_tokens_are_part_of_the_input() -> None:
    usage = call_of(
        gen_ai__operation__name="chat",
        gen_ai__usage__input_tokens="100",
        gen_ai__usage__cache_read__input_tokens=80,
    ).usage
    assert (usage.prompt_tokens, usage.cached_tokens) == (100, 80)


def test_a_tool_without_a_recorded_answer_goes_to_the_call_before_it_by_the_clock() -> None:
    bare = span(2, 1, "chat", gen_ai__operation__name="chat")
    imported = read(AGENT, bare, TOOL)
    (tool_call,) = imported.of("tool_call")
    assert tool_call.call_id == f"{TRACE}/{2:016x}"
    assert imported.notes.inferred["call of a tool"] == {
        "the last call of its agent before it, by the clock": 1
    }


def test_tool_calls_of_a_sub_agent_hang_under_it_and_not_under_the_root() -> None:
    asked = [{**USE, "id": "t9"}]
    sub_call = span(
        5,
        4,
        "chat",
        gen_ai__operation__name="chat",
        gen_ai__input__messages=parts(USER),
        gen_ai__output__messages=parts({**ASKED, "tool_calls": asked}),
    )
    inner = span(
        7,
        4,
        "execute_tool look",
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name="look",
        gen_ai__tool__call__id="t9",
        gen_ai__tool__call__result="sun",
    )
    (graph,) = read(AGENT, CALL, TOOL, SUB, sub_call, inner, LAST).graphs.values()
    of_agent = {one.tool_call_id: graph.calls[one.call_id].agent_id for one in graph.tool_calls.values()}
    assert of_agent == {"t1": f"{TRACE}/{1:016x}", "t9": f"{TRACE}/{4:016x}"}


def test_an_event_of_a_span_whose_name_is_no_text_is_kept() -> None:
    odd = CALL | {"events": [{"name": {"a": 1}, "attributes": [{"key": "k", "value": {"intValue": "1"}}]}]}
    (call,) = read(odd).of("call")
    assert b'{"a":1}' in call.meta


@pytest.mark.parametrize("events", [5, "x", {"a": 1}, [3], [[]]])
def test_events_of_a_span_that_are_none_are_kept(events: Any) -> None:
    (call,) = read(CALL | {"events": events}).of("call")
    assert b'"events":' in call.meta


def test_a_tool_that_no_call_asked_for_is_kept_with_its_episode() -> None:
    imported = read(TOOL)
    (episode,) = imported.of("episode")
    assert json.loads(episode.meta)["otlp"]["tool without a call"]["result"] == "rain"
    assert imported.notes.warnings == {"a tool was carried out that no recorded model call asked for": 1}


def test_a_span_or_a_trace_of_another_shape_is_refused_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = CALL | {"traceId": "ab" * 16, "name": "odd"}
    whole, span_of, events = read(*ALL), otel_attributes.span_of, spans.events

    def odd_span(*args: Any, **known: Any) -> Any:
        return span_of(*args, **known) if known["name"] != "odd" else [][0]

    def odd_trace(made: Any, **how: Any) -> Any:
        return events(made, **how) if made[0].trace_id == TRACE else [][0]

    for module, name, odd in ((otel_attributes, "span_of", odd_span), (spans, "events", odd_trace)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, odd)
            imported = read(*ALL, other)
        assert same_events(imported, whole)
        assert imported.notes.num_refused == 1


def test_a_compacted_conversation_is_a_context_edit_before_the_call() -> None:
    imported = read(span(1, None, "s", gen_ai__operation__name="chat", gen_ai__conversation__compacted=True))
    (edit,) = imported.of("context_edit")
    assert (edit.edit, edit.after_call_id) == ("compaction", imported.of("call")[0].id)


def test_a_failed_call_keeps_its_error_and_an_evaluation_is_a_reward() -> None:
    failed = CALL | {
        "status": {"code": 2, "message": "overloaded"},
        "events": [
            {
                "name": "gen_ai.evaluation.result",
                "timeUnixNano": "1700000000000000200",
                "attributes": [
                    {"key": "gen_ai.evaluation.name", "value": {"stringValue": "good"}},
                    {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.25}},
                ],
            }
        ],
    }
    imported = read(AGENT, failed)
    (call,) = imported.of("call")
    (reward,) = imported.of("reward")
    assert (call.status, call.error.message) == ("failed", "overloaded")
    assert (reward.name, reward.value, reward.target.call_id) == ("good", 0.25, call.id)


def test_older_conventions_tell_the_same_request_and_answer() -> None:
    flat = call_of(
        **{
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "weather?",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "it rains",
            "gen_ai.completion.0.finish_reason": "stop",
            "llm.request.type": "chat",
        }
    )
    openinference = call_of(
        **{
            "openinference.span.kind": "LLM",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": "weather?",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": "it rains",
        }
    )
    events = [
        {"name": "gen_ai.user.message", "attributes": [{"key": "content", "value": value("weather?")}]},
        {
            "name": "gen_ai.choice",
            "attributes": [
                {"key": "message", "value": value(json.dumps(SAID))},
                {"key": "finish_reason", "value": value("stop")},
            ],
        },
    ]
    told = span(1, None, "s", gen_ai__operation__name="chat") | {"events": events}
    (by_events,) = read(told).of("call")
    for call in (flat, openinference, by_events):
        assert json.loads(call.request) == {"messages": [USER]}
        assert json.loads(call.completions[0].message) == SAID
    assert flat.completions[0].finish_reason == by_events.completions[0].finish_reason == "stop"


def test_tool_calls_of_openinference_come_with_their_arguments_as_text() -> None:
    use = "llm.output_messages.0.message.tool_calls.0.tool_call"
    call = call_of(
        **{
            "openinference.span.kind": "LLM",
            "llm.output_messages.0.message.role": "assistant",
            f"{use}.id": "t1",
            f"{use}.function.name": "look",
            f"{use}.function.arguments": '{"at":1}',
            "llm.tools.0.tool.json_schema": '{"name":"look"}',
        }
    )
    assert json.loads(call.completions[0].message)["tool_calls"] == [USE]
    assert json.loads(call.request) == {"tools": [{"name": "look"}]}


def test_a_list_of_spans_and_snake_case_are_read_alike() -> None:
    snake = request(*ALL)
    text = json.dumps(snake)
    for camel in (
        "resourceSpans",
        "scopeSpans",
        "traceId",
        "spanId",
        "parentSpanId",
        "stringValue",
        "intValue",
    ):
        text = text.replace(
            f'"{camel}"', '"' + "".join(f"_{c.lower()}" if c.isupper() else c for c in camel) + '"'
        )
    text = text.replace('"startTimeUnixNano"', '"start_time_unix_nano"')
    told = [(call.id, call.request, call.usage) for call in read(*ALL).of("call")]
    assert told == [(call.id, call.request, call.usage) for call in read_data(text.encode()).of("call")]
    assert same_events(read_data(json.dumps(list(ALL)).encode()), read_data(as_lines(*ALL)))


def test_a_span_that_comes_again_is_one_and_a_differing_one_is_noted() -> None:
    assert same_events(read(*ALL), read(*ALL, *ALL))
    other = CALL | {"name": "renamed"}
    notes = read(*ALL, other).notes
    assert notes.not_understood["otlp: superseded span"].count == 1


def test_a_request_in_memory_gives_the_events_of_a_file() -> None:
    items = otlp.events_of(request(*ALL), at="body", notes=Notes())
    assert {item.event.id for item in items} == {event.id for event in read(*ALL).events}


def test_lone_surrogates_and_nul_pass_through() -> None:
    call = call_of(
        gen_ai__operation__name="chat", gen_ai__input__messages='[{"role":"user","content":"\\ud83d\\u0000"}]'
    )
    assert json.loads(call.request)["messages"][0]["content"] == "\ud83d\x00"


def test_every_value_of_a_request_leaves_a_trace() -> None:
    assert_perturbation(json.dumps(request(*ALL)).encode(), limit=30)


def test_a_deep_trace_is_read_without_recursion() -> None:
    chain = [span(n, n - 1 if n else None, "step") for n in range(1_000)]
    leaf = span(5_000, 999, "chat", gen_ai__operation__name="chat")
    imported = read(*chain, leaf)
    assert imported.report["calls"] == 1


MESSAGES = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, st.text()),
    st.builds(
        lambda text, think, name, args: {
            "role": "assistant",
            "reasoning_content": think,
            "content": text,
            "tool_calls": [{"id": "t", "type": "function", "function": {"name": name, "arguments": args}}],
        },
        *(st.text(),) * 4,
    ),
    st.builds(lambda text: {"role": "tool", "tool_call_id": "t", "content": text}, st.text()),
    st.builds(
        lambda texts: {"role": "system", "content": [{"type": "text", "text": text} for text in texts]},
        st.lists(st.text(), min_size=2, max_size=3),
    ),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_messages_survive_the_way_through_parts(messages: list[Any]) -> None:
    told = [to_parts(message) for message in messages]
    assert None not in told
    assert exchange(told, None).request == {"messages": messages}


# --- Real files ------------------------------------------------------------------------------------------


def test_the_spans_of_an_sdk_count_its_provider_calls_alone() -> None:
    imported = read_fixtures(f"{SPANS}openinference-vercel/test/__fixtures__/v6-spans/all-spans.json")
    assert_builds(imported)
    # 14 + 50 + 63 + 15 prompt tokens of the four doGenerate and doStream spans; the wrappers repeat them.
    assert imported.report["calls"] == 4
    assert imported.report["usage"]["prompt_tokens"] == 14 + 50 + 63 + 15 == 142


def test_three_conventions_of_one_call_tell_the_same_messages() -> None:
    folder = f"{SPANS}openinference-genai/test/__fixtures__/"
    names = (
        "otel_genai_client_span_tool_calls",
        "otel_genai_deprecated_client_span_tool_calls",
        "openinference_client_span_input_output_only",
    )
    requests = []
    for name in names:
        (call,) = read_fixtures(f"{folder}{name}.json").of("call")
        requests.append([message["role"] for message in json.loads(call.request)["messages"]])
        assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (97, 52)
    assert all(one == other for one, other in itertools.pairwise(requests))
    assert requests[0] == ["user", "assistant", "tool"]
