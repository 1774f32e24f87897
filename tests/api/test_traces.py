"""`POST /v1/traces`: what OpenTelemetry's exporters send becomes an episode, whatever its pieces."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard
from fastapi.testclient import TestClient
from google.protobuf.json_format import ParseDict
from httpx2 import Response
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.databases import empty_store
from tests.exporters.round_trip import facts as exported_facts
from tests.fixtures import fixture
from tests.importers.reading import read_data
from tests.importers.test_otlp import (
    AGENT,
    ALL,
    CALL,
    TOOL,
    TRACE,
    request,
    span,
    value,
)
from tests.importers.test_span_parts import STEPS, comparable
from tests.scenarios import SCENARIOS
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.importers import span_parts
from tracestore.settings import Settings
from tracestore.store.engine import StoreFull
from tracestore.store.store import NotFound, Store
from tracestore.wire.base import Raw
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent
from tracestore.wire.gap import Gap
from tracestore_api import trace_memory
from tracestore_api.app import create_app
from tracestore_api.traces import refusal
from tracestore_exporters.otlp import request as written
from tracestore_exporters.writing import Report, encoded
from tracestore_migrations import open_store

CODINGS: dict[str, Any] = {"": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}
JSON, PROTOBUF = "application/json", "application/x-protobuf"
_IDS = ("traceId", "spanId", "parentSpanId")
Record = dict[str, Any]


def in_protobuf(*spans: Record) -> bytes:
    """A request of spans as OTLP's JSON has them. Protobuf's own JSON writes ids as base64."""

    def based(record: Record) -> Record:
        ids = {
            name: base64.b64encode(bytes.fromhex(record[name])).decode() for name in _IDS if name in record
        }
        return record | ids

    message = ParseDict(request(*map(based, spans)), ExportTraceServiceRequest())
    data: bytes = message.SerializeToString()
    return data


def post(client: TestClient, body: bytes, *, kind: str = PROTOBUF, **headers: str) -> Response:
    return client.post(
        "/v1/traces",
        content=body,
        headers={"Content-Type": kind} | {name.replace("_", "-"): one for name, one in headers.items()},
    )


def export(client: TestClient, *spans: Record) -> Record:
    """Post spans as JSON; the answer's partial success."""
    response = post(client, json.dumps(request(*spans)).encode(), kind=JSON)
    assert (response.status_code, response.headers["content-type"]) == (200, JSON)
    found: Record = response.json().get("partialSuccess", {})
    return found


def graph_of(store: Store, trace: str = TRACE) -> Graph:
    return build(store.load("default", trace))


@contextmanager
def served(file: Path, **settings: Any) -> Iterator[tuple[Store, TestClient]]:
    """A server on a database that may be there; its memory starts empty."""
    store = open_store(f"sqlite:///{file}" if file.exists() else empty_store(file))
    try:
        app = create_app(store, settings=Settings(**settings))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            yield store, client
    finally:
        store.close()


# --- Encodings ------------------------------------------------------------------------------------------


def test_protobuf_and_json_plain_gzip_and_zstd_give_one_graph(tmp_path: Path) -> None:
    graphs: list[Any] = []
    text, data = json.dumps(request(*STEPS)).encode(), in_protobuf(*STEPS)
    for number, (body, kind, coding) in enumerate(
        [
            (text, JSON, ""),
            (text, f"{JSON}; charset=utf-8", "gzip"),
            (data, PROTOBUF, ""),
            (data, PROTOBUF, "gzip"),
            (data, PROTOBUF, "zstd"),
        ]
    ):
        packed = CODINGS[coding](body)
        with served(tmp_path / f"{number}.db") as (store, client):
            response = post(client, packed, kind=kind, **({"Content_Encoding": coding} if coding else {}))
            assert response.status_code == 200
            assert response.headers["content-type"] == kind.partition(";")[0]
            graphs.append(comparable(graph_of(store)))
    assert all(graph == graphs[0] for graph in graphs)
    assert len(graphs[0]["calls"]) == 3


def test_a_request_that_is_taken_whole_is_answered_with_nothing_to_say(client: TestClient) -> None:
    response = post(client, in_protobuf(*ALL))
    assert (response.status_code, response.content) == (200, b"")
    assert post(client, b"").status_code == 200  # of no span at all
    assert post(client, b"{}", kind=JSON).json() == {}


def test_what_the_protocol_does_not_know_is_ignored_and_attributes_are_kept(
    client: TestClient, store: Store
) -> None:
    odd = CALL | {"attributes": [*CALL["attributes"], {"key": "mine.x", "value": value("kept")}]}
    body = request(AGENT, odd) | {"futureField": 1}
    assert post(client, json.dumps(body).encode(), kind=JSON).json() == {}
    unknown = b"\xfa\x7f\x03abc"  # field 2047, three bytes
    assert post(client, in_protobuf(*ALL) + unknown).status_code == 200
    (call,) = [one for one in graph_of(store).calls.values() if one.id.endswith("2")]
    assert b'"mine.x":"kept"' in (call.meta or b"")


def test_64_bit_integers_nanoseconds_and_bytes_are_exact_in_both_encodings(tmp_path: Path) -> None:
    largest, smallest = 2**63 - 1, -(2**63)
    exact = CALL | {
        "startTimeUnixNano": "7",
        "endTimeUnixNano": str(2**63 - 1),
        "attributes": [
            *CALL["attributes"],
            {"key": "a", "value": {"intValue": str(largest)}},
            {"key": "b", "value": {"intValue": str(smallest)}},
            {"key": "c", "value": {"bytesValue": "AP8="}},
            {"key": "d", "value": {"doubleValue": "NaN"}},
            {"key": "e", "value": {"doubleValue": 0.1}},
            {"key": "f", "value": {"kvlistValue": {"values": [{"key": "g", "value": {"intValue": "1"}}]}}},
        ],
    }
    metas: list[Any] = []
    for name in (JSON, PROTOBUF):
        with served(tmp_path / f"{len(metas)}.db") as (store, client):
            body = json.dumps(request(exact)).encode() if name == JSON else in_protobuf(exact)
            assert post(client, body, kind=name).status_code == 200
            (call,) = graph_of(store).calls.values()
            assert (call.started_at, call.ended_at) == (7, 2**63 - 1)
            metas.append(json.loads(call.meta or b"")["otlp"]["attributes"])
    assert metas[0] == metas[1]
    told = {name: one for name, one in metas[0].items() if len(name) == 1}
    assert told == {"a": largest, "b": smallest, "c": "AP8=", "d": "NaN", "e": 0.1, "f": {"g": 1}}


def test_lone_surrogates_and_nul_come_back_from_the_store(client: TestClient, store: Store) -> None:
    said = '[{"role":"user","content":"\\ud83d\\u0000"}]'
    text = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "\ud83d\0"}]}])
    for number, messages in enumerate((said, text)):
        one = span(number + 1, None, "chat", gen_ai__operation__name="chat", gen_ai__input__messages=messages)
        assert post(client, in_protobuf(one)).content == b""
        stored = store.request("default", f"{TRACE}/{number + 1:016x}")
        assert json.loads(stored or b"")["messages"][0]["content"] == "\ud83d\0"
    bare = CALL | {"attributes": [*CALL["attributes"], {"key": "x", "value": value("\ud83d\0")}]}
    assert export(client, bare | {"spanId": "ab" * 8}) == {}
    assert b'"x":"\\ud83d\\u0000"' in (graph_of(store).calls[f"{TRACE}/{'ab' * 8}"].meta or b"")


# --- In parts -------------------------------------------------------------------------------------------


def test_spans_one_by_one_by_two_servers_that_forget_give_the_graph_of_one_request(tmp_path: Path) -> None:
    with served(tmp_path / "whole.db") as (store, client):
        export(client, *STEPS)
        whole = comparable(graph_of(store))
    file = tmp_path / "parts.db"
    # Children first, as exporters send them.
    for number in range(0, len(STEPS), 3):
        with served(file) as (store, client):
            other = TestClient(create_app(store), base_url="http://127.0.0.1")
            for place, one in enumerate(STEPS[::-1][number : number + 3]):
                export((client, other)[place % 2], one)
    with served(file) as (store, _):
        assert comparable(graph_of(store)) == whole


def test_spans_posted_at_once_by_many_give_the_graph_of_one_request(tmp_path: Path) -> None:
    graphs = []
    for name in ("whole", "parts"):
        with served(tmp_path / f"{name}.db") as (store, client):
            if name == "whole":
                export(client, *STEPS)
            else:
                export(client, STEPS[4])  # before it, others are not kept
                with ThreadPoolExecutor(8) as pool:
                    assert list(pool.map(lambda one: export(client, one), STEPS)) == [{}] * len(STEPS)
            graphs.append(comparable(graph_of(store)))
    assert graphs[0] == graphs[1]


def test_a_span_that_comes_again_is_stored_once(client: TestClient, store: Store) -> None:
    export(client, *STEPS)
    position = store.snapshot("default")
    assert export(client, *STEPS) == export(client, STEPS[4]) == {}
    assert post(client, in_protobuf(*STEPS)).content == b""
    assert store.snapshot("default") == position


def test_two_traces_with_one_span_id_are_two_episodes(client: TestClient, store: Store) -> None:
    other = "cd" * 16
    export(client, AGENT, CALL, CALL | {"traceId": other})
    assert len(graph_of(store).calls) == len(graph_of(store, other).calls) == 1


def test_an_event_posted_to_an_episode_in_between_does_no_harm(client: TestClient, store: Store) -> None:
    export(client, CALL)
    gap = Gap(id="mine", episode_id=TRACE, cause="x", meta=Raw.of({"otlp": "not ours"}))
    store.ingest("default", [(gap, encode(gap))])
    assert export(client, AGENT, TOOL) == {}
    graph = graph_of(store)
    assert [one.result for one in graph.tool_calls.values()] == [b'"rain"']
    assert graph.gaps.keys() == {"mine"}


def test_another_writer_between_reading_and_storing_is_noticed(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = TestClient(create_app(store), base_url="http://127.0.0.1")
    read = span_parts.parts
    late = [TOOL]

    def raced(*args: Any, **how: Any) -> Any:
        found = read(*args, **how)
        while late:
            export(other, late.pop())
        return found

    export(client, AGENT)
    monkeypatch.setattr(trace_memory, "parts", raced)
    assert export(client, CALL) == {}
    (tool_call,) = graph_of(store).tool_calls.values()
    assert (tool_call.id, tool_call.result) == (f"{TRACE}/{2:016x}/tool/0.0", b'"rain"')


def test_memory_that_is_full_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_memory, "MAX_SPANS", 1)
    with served(tmp_path / "t.db") as (store, client):
        for one in STEPS[::-1]:
            export(client, one)
            export(client, span(1, None, "chat", gen_ai__operation__name="chat") | {"traceId": "ef" * 16})
        split = comparable(graph_of(store))
    with served(tmp_path / "whole.db") as (store, client):
        export(client, *STEPS)
        assert comparable(graph_of(store)) == split


# --- What is not stored ---------------------------------------------------------------------------------


def test_a_span_without_ids_is_rejected_by_its_place_and_the_others_are_stored(
    client: TestClient, store: Store
) -> None:
    nameless = {name: one for name, one in TOOL.items() if name != "traceId"}
    told = export(client, AGENT, nameless, CALL, CALL | {"traceId": "00" * 16})
    assert told["rejectedSpans"] == "2"
    assert told["errorMessage"] == "span 1: a span without a trace id; span 3: a span without a trace id"
    assert len(graph_of(store).calls) == 1


def test_a_span_that_is_no_utf8_costs_itself_and_not_its_neighbours(client: TestClient, store: Store) -> None:
    body = in_protobuf(AGENT, CALL, TOOL)
    broken = body.replace(b"execute_tool look", b"execute_tool \xff\xff\xff\xff")
    assert broken != body
    response = post(client, broken)
    answer = ExportTraceServiceResponse.FromString(response.content).partial_success
    assert (response.status_code, answer.rejected_spans) == (200, 1)
    assert answer.error_message.startswith("span 2: 0000000000000003: ")
    assert len(graph_of(store).calls) == 1
    with pytest.raises(Exception, match=r"(?i)utf|parsing"):
        ExportTraceServiceRequest.FromString(broken)


def test_a_span_over_a_limit_or_of_a_wrong_shape_is_rejected_by_its_id(tmp_path: Path) -> None:
    large = CALL | {
        "spanId": "aa" * 8,
        "attributes": [*CALL["attributes"], {"key": "x", "value": value("y" * 4000)}],
    }
    nested, deeper = (
        span(
            9 + depth,
            None,
            "chat",
            gen_ai__operation__name="chat",
            gen_ai__input__messages=f'[{{"role":"user","content":{"[" * depth}1{"]" * depth}}}]',
        )
        for depth in (300, 900)
    )
    with served(tmp_path / "t.db", max_event_bytes=3000) as (store, client):
        told = export(client, AGENT, large, CALL, nested, deeper)
        assert told["rejectedSpans"] == "3"
        assert [one[:8] for one in told["errorMessage"].split("; ") if one.startswith("span")] == [
            "span 1: ",
            "span 3: ",
            "span 4: ",
        ]
        assert "3000" in told["errorMessage"]
        assert len(graph_of(store).calls) == 1


def test_an_id_that_another_event_has_is_rejected_and_the_first_is_kept(
    client: TestClient, store: Store
) -> None:
    call_id = f"{TRACE}/{2:016x}"
    export(client, AGENT)
    other = Gap(id=f"{TRACE}/{2:016x}/dropped", episode_id=TRACE, cause="mine")
    store.ingest("default", [(other, encode(other))])
    told = export(client, CALL | {"droppedAttributesCount": 2})
    assert told["rejectedSpans"] == "1"
    assert f"span {2:016x} of trace {TRACE}: gap {call_id}/dropped: " in told["errorMessage"]


def test_a_refused_span_is_counted_once_where_nothing_else_of_its_trace_is_kept(tmp_path: Path) -> None:
    large = CALL | {"attributes": [*CALL["attributes"], {"key": "x", "value": value("y" * 4000)}]}
    with served(tmp_path / "t.db", max_event_bytes=3000) as (_, client):
        assert export(client, large)["rejectedSpans"] == "1"
        assert export(client, large, span(1, None, "GET /"))["rejectedSpans"] == "2"


def test_many_refusals_are_counted_and_the_first_are_named(client: TestClient) -> None:
    told = export(client, *[{"name": f"n{number}"} for number in range(9)])
    assert told["rejectedSpans"] == "9"
    assert told["errorMessage"].endswith("; and 4 more")


def test_a_trace_of_other_spans_is_not_kept_until_it_has_a_model_call(
    client: TestClient, store: Store
) -> None:
    told = export(client, span(1, None, "GET /"), span(3, 1, "SELECT"))
    assert told["rejectedSpans"] == "2"
    assert "not kept" in told["errorMessage"]
    with pytest.raises(NotFound):
        store.load("default", TRACE)
    assert export(client, CALL) == {}
    graph = graph_of(store)
    assert graph.gaps.keys() == {f"{TRACE}/{1:016x}/span", f"{TRACE}/{3:016x}/span"}
    assert graph.agents[f"{TRACE}/{1:016x}"].role == "main"
    (call,) = graph.calls.values()
    assert (call.agent_id, call.revision) == (f"{TRACE}/{1:016x}", None)


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (b"\xff\xff", {"Content-Type": PROTOBUF}, 400, "no OTLP request"),
        (b"{", {"Content-Type": JSON}, 400, "no OTLP request"),
        (b"[]", {"Content-Type": JSON}, 400, "resourceSpans"),
        (b'{"resourceSpans":{}}', {"Content-Type": JSON}, 400, "resourceSpans"),
        (b"[" * 100_000, {"Content-Type": JSON}, 400, "nested"),
        (b"x", {"Content-Type": PROTOBUF, "Content-Encoding": "gzip"}, 400, "gzip"),
        (b"x", {"Content-Type": PROTOBUF, "Content-Encoding": "br"}, 415, "br"),
        (b"x" * 2000, {"Content-Type": PROTOBUF}, 413, "1000"),
        (json.dumps(request(*[{"a": 1}] * 6)).encode(), {"Content-Type": JSON}, 413, "max_events=5"),
        (b"", {"Content-Type": PROTOBUF, "X-Tracestore-Project": "\x7f"}, 400, "X-Tracestore-Project"),
    ],
)
def test_an_error_is_a_status_in_the_encoding_of_the_request(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    with served(
        tmp_path / "t.db",
        max_body_bytes=1000 if b"resource" not in body and b"[[" not in body else 10**6,
        max_events=5,
    ) as (_, client):
        response = client.post("/v1/traces", content=body, headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (status, headers["Content-Type"])
    message = (
        response.json()["message"]
        if headers["Content-Type"] == JSON
        else response.content.decode(errors="replace")
    )
    assert said in message


def test_a_server_that_is_full_says_when_to_come_again(tmp_path: Path) -> None:
    with served(tmp_path / "t.db", max_requests_in_hand=0) as (_, client):
        response = post(client, in_protobuf(*ALL))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert b"send it again" in response.content


def test_a_full_disk_is_told_in_a_way_that_exporters_try_again() -> None:
    response = refusal(StoreFull(hint="make room"), media_type=JSON)
    assert (response.status_code, response.headers["retry-after"]) == (503, "30")
    assert json.loads(bytes(response.body))["message"].endswith("make room")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_media_type_is_refused(client: TestClient, kind: str) -> None:
    response = client.post("/v1/traces", content=b"{}", headers={"Content-Type": kind})
    assert (response.status_code, response.json()["status"]) == (415, 415)


# --- What is warned of ----------------------------------------------------------------------------------


def test_calls_without_messages_are_stored_and_the_sender_is_told_why(
    client: TestClient, store: Store
) -> None:
    told = export(client, span(1, None, "chat", gen_ai__operation__name="chat"))
    assert "rejectedSpans" not in told
    assert "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT" in told["errorMessage"]
    assert len(graph_of(store).calls) == 1


def test_attributes_that_the_sdk_dropped_are_a_gap_of_the_call(client: TestClient, store: Store) -> None:
    told = export(client, AGENT, CALL | {"droppedAttributesCount": 12})
    assert told.keys() == {"errorMessage"}
    assert told["errorMessage"].startswith("1 times: attributes were dropped before the export")
    (gap,) = graph_of(store).gaps.values()
    assert (gap.cause, gap.call_id) == ("attributes_dropped", f"{TRACE}/{2:016x}")
    assert (gap.detail or "").startswith("12 attributes")


# --- What is read ---------------------------------------------------------------------------------------


def test_an_evaluation_is_a_reward_of_what_it_is_an_event_of(client: TestClient, store: Store) -> None:
    judged = [
        {
            "name": "gen_ai.evaluation.result",
            "timeUnixNano": "1700000000000000200",
            "attributes": [
                {"key": "gen_ai.evaluation.name", "value": value(name)},
                {"key": "gen_ai.evaluation.score.value", "value": value(score)},
            ],
        }
        for name, score in (("good", 0.25), ("short", 1))
    ]
    chain = span(20, 1, "evaluate", openinference__span__kind="EVALUATOR") | {"events": judged[:1]}
    assert export(client, AGENT | {"events": judged[:1]}, CALL | {"events": judged}, chain) == {}
    rewards = graph_of(store).rewards.values()
    assert sorted((one.name, one.value, one.target.finest, one.at) for one in rewards) == [
        ("good", 0.25, "agent", 1700000000000000200),
        ("good", 0.25, "call", 1700000000000000200),
        ("good", 0.25, "episode", 1700000000000000200),
        ("short", 1.0, "call", 1700000000000000200),
    ]


def test_usage_of_wrappers_is_not_added_whichever_came_first(client: TestClient, store: Store) -> None:
    counted = {"gen_ai__usage__input_tokens": 10, "gen_ai__usage__cache_read__input_tokens": 4}
    outer = span(7, 1, "sdk", openinference__span__kind="LLM", llm__token_count__prompt=10)
    inner = span(8, 7, "http", gen_ai__operation__name="chat", **counted)
    for number, order in enumerate([(outer, inner), (inner, outer)]):
        trace = f"{number + 1:032x}"
        for one in order:
            export(client, one | {"traceId": trace})
        usages = [call.usage for call in graph_of(store, trace).calls.values() if call.usage is not None]
        assert [(usage.prompt_tokens, usage.cached_tokens) for usage in usages] == [(10, 4)]


def test_a_compacted_conversation_is_a_context_edit(client: TestClient, store: Store) -> None:
    export(
        client,
        AGENT,
        CALL
        | {
            "attributes": [
                *CALL["attributes"],
                {"key": "gen_ai.conversation.compacted", "value": value(True)},
            ]
        },
    )
    (edit,) = graph_of(store).context_edits.values()
    assert (edit.edit, edit.agent_id, edit.after_call_id) == (
        "compaction",
        f"{TRACE}/{1:016x}",
        f"{TRACE}/{2:016x}",
    )


def test_the_result_of_a_tool_stands_in_the_next_request_where_no_span_tells_it(
    client: TestClient, store: Store
) -> None:
    asked, answered = ALL[1], ALL[5]
    for order in ((asked, answered), (answered, asked)):
        trace = "ab" * 16 if order[0] is asked else "cd" * 16
        for one in order:
            export(client, one | {"traceId": trace})
        (tool_call,) = graph_of(store, trace).tool_calls.values()
        assert (tool_call.name, tool_call.result) == ("look", b'"rain"')


def test_a_failed_root_fails_its_episode(client: TestClient, store: Store) -> None:
    export(client, CALL)
    assert graph_of(store).episode is not None
    assert graph_of(store).episode.phase == "start"  # type: ignore[union-attr]
    export(client, AGENT | {"status": {"code": 2, "message": "gave up"}})
    episode = graph_of(store).episode
    assert episode is not None
    assert (episode.phase, episode.status, episode.error) == ("whole", "failed", "gave up")


# --- Real files -----------------------------------------------------------------------------------------

_OTLP = "otel/open-telemetry__opentelemetry-proto/examples/trace.json"
_SPANS = (
    "otel/arize-ai__openinference/js/packages/openinference-vercel/test/__fixtures__/v6-spans/all-spans.json"
)
_GENAI = "otel/arize-ai__openinference/js/packages/openinference-genai/test/__fixtures__/"


def in_otlp(record: Record) -> Record:
    """A span of the JavaScript SDK's JSON as OTLP has it."""
    context = record["spanContext"] if "spanContext" in record else record["context"]
    told: Record = {name: record[name] for name in ("name", "kind", "status") if name in record}
    for name, time in (("startTimeUnixNano", record["startTime"]), ("endTimeUnixNano", record["endTime"])):
        told[name] = str(time[0] * 10**9 + time[1])
    parent = record.get("parentSpanId") or (record.get("parentSpanContext") or {}).get("spanId")
    attributes = [{"key": key, "value": value(one)} for key, one in record["attributes"].items()]
    ids = {"traceId": context["traceId"], "spanId": context["spanId"]} | (
        {"parentSpanId": parent} if parent else {}
    )
    return told | ids | {"attributes": attributes}


def facts(events: list[AnyEvent]) -> Any:
    graph = build(events)
    return (
        sorted(
            (call.id, call.request, str(call.usage), call.status, call.started_at)
            for call in graph.calls.values()
        ),
        sorted((key, one.message, one.finish_reason) for key, one in graph.completions.items()),
        sorted((one.name, one.arguments, one.result) for one in graph.tool_calls.values()),
    )


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_real_spans_tell_the_door_what_they_tell_the_importer(
    client: TestClient, store: Store, size: int
) -> None:
    records = [in_otlp(one) for one in json.loads(fixture(_SPANS).read_bytes())]
    imported = read_data(json.dumps(request(*records)).encode())
    for start in range(0, len(records), size):
        data = in_protobuf(*records[start : start + size])
        assert post(client, data).status_code == 200
    by_trace: dict[str, list[AnyEvent]] = {}
    for trace_id in imported.graphs:
        by_trace[trace_id] = store.load("default", trace_id)
        read = [one for one in imported.events if one.id.startswith(trace_id)]
        assert facts(by_trace[trace_id]) == facts(read)
    calls = [one for events in by_trace.values() for one in build(events).calls.values()]
    # 14 + 50 + 63 + 15 prompt tokens of the four calls; the spans around them repeat them.
    assert sum(one.usage.prompt_tokens or 0 for one in calls if one.usage) == 14 + 50 + 63 + 15 == 142


def test_a_trace_that_our_exporter_wrote_comes_back_as_it_was(client: TestClient, store: Store) -> None:
    graph = build(SCENARIOS["compaction"]().events)
    assert graph.episode is not None
    text = encoded(written([graph], report=Report()))
    for _ in range(2):
        assert post(client, text, kind=JSON).json() == {}
    read = graph_of(store, graph.episode.id)
    assert exported_facts(read) == exported_facts(graph)


def test_the_example_of_the_protocol_is_a_request_without_a_model_call(client: TestClient) -> None:
    response = post(client, fixture(_OTLP).read_bytes(), kind=JSON)
    assert (response.status_code, response.json()["partialSuccess"]["rejectedSpans"]) == (200, "1")
