"""Rollouts as OTLP traces -> MLflow and Phoenix: calls/s until their spans are in their databases.

Each runs with SQLite, from a virtual environment of its own, warmed up, and gets what suits it best: its own
attributes (GenAI for MLflow, OpenInference for Phoenix), bodies that are written beforehand, one trace of 67
spans per POST, the same token ids and logprobs. Rows are counted in the database itself, which costs their
servers nothing; then the last trace is read through their own API.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from figures import Run
from load import Address, exchange, post_all, request, seconds_until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status
from processes import cpu_seconds, disk_bytes, peak_mb, running, wait_until_idle
from workload import CALLS_PER_ROLLOUT, calls_of, unpacked

Peer = Literal["mlflow", "phoenix"]
PEERS: tuple[Peer, ...] = get_args(Peer)
CONNECTIONS = 4
SPANS_PER_TRACE = CALLS_PER_ROLLOUT + 1
_PACKAGES: dict[Peer, str] = {"mlflow": "mlflow==3.17.*", "phoenix": "arize-phoenix==20.26.*"}
_START_S = 600
_LOG = "server.log"


def installed(peer: Peer, venvs: Path) -> Path:
    """The folder of a peer's virtual environment, made by pip where it is not there yet."""
    venv = venvs / peer
    if not (venv / "bin" / peer).exists():
        print(f"installing {_PACKAGES[peer]} into {venv}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, stdout=sys.stderr)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "--no-compile", _PACKAGES[peer]], check=True, stdout=sys.stderr)
    return venv


def traces(peer: Peer, frames: Sequence[bytes]) -> list[bytes]:
    """One OTLP body per rollout of `text_full`."""
    attributes = _genai if peer == "mlflow" else _openinference
    bodies = []
    for frame in frames:
        calls = calls_of(unpacked(frame))
        spans = [_root_span(calls), *(_call_span(calls[0], call, attributes(call)) for call in calls)]
        scope = ScopeSpans(scope=InstrumentationScope(name="workload"), spans=spans)
        resource = Resource(attributes=[_attribute("service.name", "workload")])
        whole = ResourceSpans(resource=resource, scope_spans=[scope])
        bodies.append(ExportTraceServiceRequest(resource_spans=[whole]).SerializeToString())
    return bodies


def posted(peer: Peer, venv: Path, warm_up: Sequence[bytes], bodies: Sequence[bytes]) -> Run:
    """Post traces to a new server of a peer."""
    with tempfile.TemporaryDirectory(prefix="tracestore-bench-") as name:
        folder = Path(name)
        address = ("127.0.0.1", _free_port())
        server = _SERVERS[peer](venv, folder, address)
        with running(server.command, log=folder / _LOG, env=server.env, cwd=folder) as process:
            server.wait_until_started()
            headers = {"Content-Type": "application/x-protobuf", **server.project_headers()}
            prepared = [[request("/v1/traces", one, headers) for one in some] for some in (warm_up, bodies)]
            post_all(address, prepared[0], connections=CONNECTIONS)
            num_spans = SPANS_PER_TRACE * len(warm_up)
            seconds_until(lambda: server.num_spans() >= num_spans, since=time.perf_counter())
            num_spans += SPANS_PER_TRACE * len(bodies)
            wait_until_idle(process.pid)
            cpu, begin = cpu_seconds(process.pid), time.perf_counter()
            answers = post_all(address, prepared[1], connections=CONNECTIONS)
            seconds = seconds_until(lambda: server.num_spans() >= num_spans, since=begin)
            cpu = cpu_seconds(process.pid) - cpu
            peak = peak_mb(process.pid)
            server.check_readable(_trace_id(bodies[-1]))
        size = disk_bytes(folder, but=[_LOG])
    num_calls = CALLS_PER_ROLLOUT * len(bodies)
    return Run(
        num_calls=num_calls,
        seconds=seconds,
        post_seconds=tuple(answers.seconds),
        num_busy=answers.num_busy,
        cpu_seconds=cpu,
        peak_mb=peak,
        disk_bytes_per_call=size / (num_calls + CALLS_PER_ROLLOUT * len(warm_up)),
    )


# --- Their servers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Server:
    venv: Path
    folder: Path
    address: Address

    database = ""
    health = ""

    @property
    def command(self) -> list[str]:
        raise NotImplementedError

    @property
    def env(self) -> dict[str, str]:
        path = f"{self.venv / 'bin'}:{os.environ['PATH']}"
        # They should compile their thousands of files once, not at every start.
        own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**own, "PATH": path, "NO_PROXY": "*", "HF_HUB_OFFLINE": "1", **self.own_env}

    @property
    def own_env(self) -> Mapping[str, str]:
        raise NotImplementedError

    def project_headers(self) -> dict[str, str]:
        """What a post must say of where it belongs."""
        return {}

    def wait_until_started(self) -> None:
        begin = time.perf_counter()
        while time.perf_counter() - begin < _START_S:
            with suppress(OSError):
                if exchange(self.address, "GET", self.health)[0] == 200:
                    return
            time.sleep(0.5)
        raise RuntimeError((self.folder / _LOG).read_text())

    def num_spans(self) -> int:
        """Spans in its database."""
        connection = sqlite3.connect(f"file:{self.folder / self.database}?mode=ro", uri=True, timeout=60)
        try:
            (count,) = connection.execute("SELECT count(*) FROM spans").fetchone()
        finally:
            connection.close()
        return int(count)

    def read(self, trace_id: str) -> tuple[str, str]:
        """The path that gives a trace, and how often which text stands in it per span."""
        raise NotImplementedError

    def check_readable(self, trace_id: str) -> None:
        """The whole trace comes back through the server's own API."""
        path, mark = self.read(trace_id)
        status, body = exchange(self.address, "GET", path)
        found = body.decode().replace(" ", "").count(mark)
        if status != 200 or found != SPANS_PER_TRACE:
            raise RuntimeError(f"{path}: {status}, {found} of {SPANS_PER_TRACE} spans: {body[:500]!r}")


class _MLflow(_Server):
    database = "mlflow.db"
    health = "/health"

    @property
    def command(self) -> list[str]:
        host, port = self.address
        store = ["--backend-store-uri", f"sqlite:///{self.folder / self.database}"]
        files = ["--artifacts-destination", str(self.folder / "artifacts")]
        where = ["--host", host, "--port", str(port), "--workers", "1"]
        return [str(self.venv / "bin" / "mlflow"), "server", *store, *files, *where]

    @property
    def own_env(self) -> Mapping[str, str]:
        return {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}

    def project_headers(self) -> dict[str, str]:
        body = json.dumps({"name": "workload"}).encode()
        headers = {"Content-Type": "application/json"}
        status, answer = exchange(
            self.address, "POST", "/api/2.0/mlflow/experiments/create", body, headers=headers
        )
        if status != 200:
            raise RuntimeError(f"{status}: {answer[:500]!r}")
        return {"x-mlflow-experiment-id": json.loads(answer)["experiment_id"]}

    def read(self, trace_id: str) -> tuple[str, str]:
        return f"/api/3.0/mlflow/traces/get?trace_id=tr-{trace_id}&allow_partial=true", '"span_id":'


class _Phoenix(_Server):
    database = "phoenix.db"
    health = "/healthz"

    @property
    def command(self) -> list[str]:
        return [str(self.venv / "bin" / "phoenix"), "serve"]

    @property
    def own_env(self) -> Mapping[str, str]:
        host, port = self.address
        return {
            "PHOENIX_WORKING_DIR": str(self.folder),
            "PHOENIX_HOST": host,
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(_free_port()),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }

    def read(self, trace_id: str) -> tuple[str, str]:
        return f"/v1/projects/default/spans?trace_id={trace_id}&limit=1000", '"span_id":'


_SERVERS: dict[Peer, type[_Server]] = {"mlflow": _MLflow, "phoenix": _Phoenix}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


# --- Their spans --------------------------------------------------------------------------------------------


def _trace_id(body: bytes) -> str:
    (whole,) = ExportTraceServiceRequest.FromString(body).resource_spans
    trace_id: bytes = whole.scope_spans[0].spans[0].trace_id
    return trace_id.hex()


def _root_span(calls: Sequence[dict[str, Any]]) -> Span:
    kinds = {"gen_ai.operation.name": "invoke_agent", "openinference.span.kind": "AGENT"}
    return Span(
        trace_id=bytes.fromhex(calls[0]["id"]),
        span_id=_root_id(calls[0]),
        name=calls[0]["episode_id"],
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=calls[0]["started_at"],
        end_time_unix_nano=calls[-1]["ended_at"],
        attributes=[_attribute(name, value) for name, value in kinds.items()],
        status=Status(code=Status.STATUS_CODE_OK),
    )


def _call_span(first: dict[str, Any], call: dict[str, Any], attributes: Mapping[str, Any]) -> Span:
    answer = call["completions"][0]
    tokens = {
        "response_token_ids": _numbers(answer["token_ids"], "<i4"),
        "response_logprobs": _numbers(answer["logprobs"], "<f4"),
    }
    return Span(
        trace_id=bytes.fromhex(first["id"]),
        span_id=bytes.fromhex(call["id"])[:8],
        parent_span_id=_root_id(first),
        name=f"chat {call['model']}",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=call["started_at"],
        end_time_unix_nano=call["ended_at"],
        attributes=[_attribute(name, value) for name, value in {**attributes, **tokens}.items()],
        status=Status(code=Status.STATUS_CODE_OK),
    )


def _root_id(first: dict[str, Any]) -> bytes:
    return bytes.fromhex(first["id"])[8:]


def _genai(call: dict[str, Any]) -> dict[str, Any]:
    """Attributes of the GenAI semantic conventions."""
    request_ = call["request"]
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": call["model"],
        "gen_ai.conversation.id": call["episode_id"],
        "gen_ai.request.temperature": request_["temperature"],
        "gen_ai.input.messages": _text(request_["messages"]),
        "gen_ai.output.messages": _text([call["completions"][0]["message"]]),
        "gen_ai.tool.definitions": _text(request_["tools"]),
        "gen_ai.usage.input_tokens": call["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": call["usage"]["completion_tokens"],
    }


def _openinference(call: dict[str, Any]) -> dict[str, Any]:
    """Attributes of OpenInference, as its instrumentor of `openai` flattens a call."""
    request_, answer = call["request"], call["completions"][0]["message"]
    found = {
        "openinference.span.kind": "LLM",
        "llm.model_name": call["model"],
        "session.id": call["episode_id"],
        "llm.token_count.prompt": call["usage"]["prompt_tokens"],
        "llm.token_count.completion": call["usage"]["completion_tokens"],
        "input.value": _text({"messages": request_["messages"]}),
        "input.mime_type": "application/json",
        "output.value": _text(answer),
        "output.mime_type": "application/json",
    }
    for side, messages in (("input", request_["messages"]), ("output", [answer])):
        for index, message in enumerate(messages):
            found |= _openinference_message(f"llm.{side}_messages.{index}.message", message)
    for index, tool in enumerate(request_["tools"]):
        found[f"llm.tools.{index}.tool.json_schema"] = _text(tool)
    return found


def _openinference_message(at: str, message: dict[str, Any]) -> dict[str, Any]:
    found = {f"{at}.role": message["role"], f"{at}.content": message["content"]}
    if "tool_call_id" in message:
        found[f"{at}.tool_call_id"] = message["tool_call_id"]
    for index, use in enumerate(message.get("tool_calls", ())):
        function = f"{at}.tool_calls.{index}.tool_call.function"
        found[f"{function}.name"] = use["function"]["name"]
        found[f"{function}.arguments"] = use["function"]["arguments"]
    return found


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _numbers(array: dict[str, str], dtype: str) -> list[int] | list[float]:
    numbers: list[int] | list[float] = np.frombuffer(base64.b64decode(array["base64"]), dtype).tolist()
    return numbers


def _attribute(name: str, value: Any) -> KeyValue:
    return KeyValue(key=name, value=_any(value))


def _any(value: Any) -> AnyValue:
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[_any(one) for one in value]))
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=value)
