"""`POST /v1/traces` by those that send: OpenTelemetry's SDK and exporter, OpenInference's instrumentor."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.databases import empty_store
from tests.serving import running_server
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.store.store import Store

USE = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
ASKED = {"role": "assistant", "tool_calls": [USE]}
RESULT = {"role": "tool", "tool_call_id": "t1", "content": "rain"}


def completion(number: int, message: dict[str, Any], why: str, **usage: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": why, "message": {"role": "assistant", "content": None} | message}
    return {
        "id": f"c{number}",
        "object": "chat.completion",
        "created": number,
        "model": "m-1",
        "choices": [choice],
        "usage": usage,
    }


ANSWERS = (
    completion(
        1,
        ASKED,
        "tool_calls",
        prompt_tokens=10,
        completion_tokens=3,
        total_tokens=13,
        prompt_tokens_details={"cached_tokens": 4},
    ),
    completion(2, {"content": "it rains"}, "stop", prompt_tokens=20, completion_tokens=4, total_tokens=24),
)


class Upstream(ThreadingHTTPServer):
    """Gives its answers one after the other, whatever it is asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Scripted)
        self.answers = iter(ANSWERS)


class _Scripted(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Upstream)
        body = json.dumps(next(self.server.answers)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def upstream() -> Iterator[str]:
    """URL of a server that speaks like a model's."""
    with Upstream() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def graph_of(file: Path, project: str) -> Graph:
    """The one episode of a project."""
    with Store.open(f"sqlite:///{file}") as store:
        (group,) = store.groups(project)
        (episode_id,) = group.episode_ids
        return build(store.load(project, episode_id))


def exporter(url: str, project: str, compression: Compression = Compression.Gzip) -> OTLPSpanExporter:
    headers = {"X-Tracestore-Project": project}
    return OTLPSpanExporter(endpoint=f"{url}/v1/traces", headers=headers, compression=compression)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A database and the URL of its server; each test has a project of its own."""
    file = tmp_path_factory.mktemp("sdk") / "t.db"
    empty_store(file)
    with running_server(file) as server:
        yield file, server.url


def run_agent(tracer: otel.Tracer) -> None:
    """An agent with a step of one call and one tool, by the conventions of OpenTelemetry."""
    used = [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "t1", "name": "look", "arguments": {"at": 1}}],
        }
    ]
    asked = [{"role": "user", "parts": [{"type": "text", "content": "weather?"}]}]
    agent = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "main",
        "gen_ai.conversation.id": "c",
    }
    with (
        tracer.start_as_current_span("invoke_agent main", attributes=agent),
        tracer.start_as_current_span("step"),
    ):
        with tracer.start_as_current_span("chat m", kind=otel.SpanKind.CLIENT) as chat:
            chat.set_attributes(
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": "m",
                    "gen_ai.usage.input_tokens": 10,
                    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "be kind"}]),
                    "gen_ai.input.messages": json.dumps(asked),
                    "gen_ai.output.messages": json.dumps(used),
                    "gen_ai.tool.definitions": json.dumps(TOOLS),
                    "large": 2**62 + 1,
                }
            )
            score: Any = {"gen_ai.evaluation.name": "good", "gen_ai.evaluation.score.value": 0.5}
            chat.add_event("gen_ai.evaluation.result", score)
        tool = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "look",
            "gen_ai.tool.call.id": "t1",
        }
        with tracer.start_as_current_span(
            "execute_tool look", attributes=tool | {"gen_ai.tool.call.result": "rain"}
        ):
            pass


@pytest.mark.parametrize("processor", [SimpleSpanProcessor, BatchSpanProcessor])
def test_the_sdk_exports_an_agent_span_by_span_or_in_a_batch(
    served: tuple[Path, str], processor: Any
) -> None:
    file, url = served
    project = f"sdk-{processor.__name__}"
    provider = TracerProvider()
    provider.add_span_processor(processor(exporter(url, project)))
    run_agent(provider.get_tracer("harness"))
    provider.shutdown()
    graph = graph_of(file, project)
    (agent,) = graph.agents.values()
    (call,) = graph.calls.values()
    (tool_call,) = graph.tool_calls.values()
    (reward,) = graph.rewards.values()
    assert (agent.name, agent.role, call.agent_id) == ("main", "main", agent.id)
    assert json.loads(call.request or b"") == {
        "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "weather?"}],
        "tools": TOOLS,
    }
    assert (tool_call.call_id, tool_call.tool_call_id, tool_call.name) == (call.id, "t1", "look")
    assert (json.loads(tool_call.arguments or ""), tool_call.result) == ({"at": 1}, b'"rain"')
    assert (reward.name, reward.value, reward.target.call_id) == ("good", 0.5, call.id)
    assert f'"large":{2**62 + 1}'.encode() in (call.meta or b"")
    assert graph.episode is not None
    assert graph.episode.phase == "whole"
    assert [gap.cause for gap in graph.gaps.values()] == ["span_without_place"]  # the step


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_openinference_records_what_the_openai_client_sends_and_gets(
    served: tuple[Path, str], compression: Compression
) -> None:
    file, url = served
    project = f"openinference-{compression.value}"
    # An SDK drops attributes over its limit, and OpenInference writes several for each message.
    provider = TracerProvider(span_limits=SpanLimits(max_span_attributes=1000))
    provider.add_span_processor(SimpleSpanProcessor(exporter(url, project, compression)))
    instrumentor = OpenAIInstrumentor()
    with upstream() as model_url:
        instrumentor.instrument(tracer_provider=provider)
        try:
            _converse(OpenAI(base_url=model_url, api_key="none"), provider.get_tracer("harness"))
        finally:
            instrumentor.uninstrument()
    provider.shutdown()
    graph = graph_of(file, project)
    (agent,) = graph.agents.values()
    first, second = sorted(graph.calls.values(), key=lambda call: call.started_at or 0)
    assert (first.agent_id, second.agent_id, agent.name) == (agent.id, agent.id, "run")
    system, user = {"role": "system", "content": "be kind"}, {"role": "user", "content": "weather?"}
    assert json.loads(first.request or b"")["messages"] == [system, user]
    assert json.loads(second.request or b"")["messages"] == [system, user, ASKED, RESULT]
    assert json.loads(second.request or b"")["tools"] == TOOLS
    assert json.loads(graph.completions[first.id, 0].message or b"") == ASKED
    assert json.loads(graph.completions[second.id, 0].message or b"")["content"] == "it rains"
    assert first.usage is not None
    assert second.usage is not None
    # The cached 4 are part of the 10.
    assert (first.usage.prompt_tokens, first.usage.cached_tokens, first.usage.completion_tokens) == (10, 4, 3)
    assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (20, 4)
    (tool_call,) = graph.tool_calls.values()
    assert (tool_call.call_id, tool_call.arguments, tool_call.result) == (first.id, '{"at": 1}', b'"rain"')
    assert graph.links[second.id].parent == (first.id, 0)
    assert b'"session.id":"s1"' in (agent.meta or b"")


def _converse(client: OpenAI, tracer: otel.Tracer) -> None:
    messages: list[Any] = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "weather?"}]
    run = {"openinference.span.kind": "AGENT", "session.id": "s1"}
    with tracer.start_as_current_span("run", attributes=run), client:
        with tracer.start_as_current_span("step"):
            answer = client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
            tool = {"openinference.span.kind": "TOOL", "tool.name": "look", "tool_call.id": "t1"}
            told = {"input.value": '{"at": 1}', "output.value": "rain"}
            with tracer.start_as_current_span("look", attributes=tool | told):
                pass
        messages += [answer.choices[0].message.model_dump(exclude_none=True), RESULT]
        client.chat.completions.create(model="m", messages=messages, tools=TOOLS)


@pytest.mark.soak
def test_a_server_that_was_restarted_between_two_exports_joins_them(tmp_path: Path) -> None:
    file, project = tmp_path / "t.db", "restarted"
    empty_store(file)
    collected = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(collected))
    run_agent(provider.get_tracer("harness"))
    provider.shutdown()
    spans = collected.get_finished_spans()
    # The first two come again, as they do when an answer was lost.
    for part in (spans[:2], spans):
        with running_server(file) as server:
            sender = exporter(server.url, project)
            assert sender.export(part) == SpanExportResult.SUCCESS
            sender.shutdown()  # type: ignore[no-untyped-call]
    graph = graph_of(file, project)
    (agent,) = graph.agents.values()
    (call,) = graph.calls.values()
    assert call.agent_id == agent.id
    assert [one.result for one in graph.tool_calls.values()] == [b'"rain"']
