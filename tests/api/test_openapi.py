"""The document says what the service does: every door, answer and error. A client can be made of it."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import pytest
from fastapi.openapi.models import OpenAPI
from fastapi.testclient import TestClient
from starlette.routing import Route

from tests.api.test_reads import EVENTS
from tests.api.test_serve import make_key
from tests.databases import empty_store
from tests.factories import (
    blob,
    call,
    completion,
    consumption,
    episode,
    group,
    posted,
    reward,
    selection,
    snapshot,
    tool_call,
    user,
)
from tests.serving import running_server
from tracestore.store import Store
from tracestore_api.app import create_app
from tracestore_api.guard import REPLAY
from tracestore_api.openapi import ANSWERS

Document = dict[str, Any]


@pytest.fixture
def document(store: Store) -> Document:
    return create_app(store).openapi()


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(item)


def operations(document: Document) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, found in document["paths"].items():
        for method, operation in found.items():
            yield method.upper(), path, operation


def test_it_is_a_valid_document_whose_references_lead_somewhere(document: Document) -> None:
    OpenAPI.model_validate(document)
    assert document["info"]["version"] == "1.0"
    names = set(document["components"]["schemas"])
    assert {name for name, schema in document["components"]["schemas"].items() if not schema} == set()
    references = {part["$ref"] for part in parts(document) if "$ref" in part}
    assert {ref.removeprefix("#/components/schemas/") for ref in references} - names == set()
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))


def test_every_door_is_described(store: Store, document: Document) -> None:
    app = create_app(store)
    plain = {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in app.routes
        if isinstance(route, Route)
        and route.path != app.openapi_url
        and not route.path.startswith(REPLAY)  # where the providers' own dialects are spoken
        for method in route.methods or ()
    }
    described = {(method, path) for method, path, _ in operations(document)}
    assert ("POST", "/v1/events") in plain
    assert plain - described == set()


def test_every_read_says_what_it_answers_and_every_door_how_errors_look(document: Document) -> None:
    for method, path, operation in operations(document):
        responses = operation["responses"]
        # OTLP has an error of its own; the wall before that door answers with a problem.
        others = ["application/json", "application/x-protobuf"] if path == "/v1/traces" else []
        assert list(responses["default"]["content"]) == ["application/problem+json", *others], path
        good = [response for status, response in responses.items() if status.startswith("2")]
        assert good, path
        if method == "GET":
            [content] = [media for response in good for media in response["content"].values()][:1]
            assert content["schema"], path
        assert not any("HTTPValidationError" in str(response) for response in responses.values())
        has_project = any(one["name"] == "X-Tracestore-Project" for one in operation.get("parameters", []))
        assert has_project == (path not in ("/v1/health", "/v1/session")), path
    assert set(ANSWERS) <= set(document["paths"])


def test_health_needs_no_key_and_everything_else_takes_one(document: Document) -> None:
    assert {} in document["security"]
    assert {"key": []} in document["security"]
    open_doors = [path for _, path, operation in operations(document) if "security" in operation]
    assert open_doors == ["/v1/health"]


def checker(document: Document, path: str) -> jsonschema_rs.Validator:
    schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    return jsonschema_rs.validator_for({**schema, "components": document["components"]})


MORE = [
    group("g2", size=2),
    episode("e2", group_id="g2", phase="start"),
    call("lonely", [user("u")], "a", agent="ghost", episode="e3", parent="not yet"),
    completion("not yet", 1, "late"),
    tool_call("x9", "not yet"),
    selection("sel9", "no set", 0),
    snapshot(),
    blob(),
    consumption("u1", "c1"),
]


def test_what_is_answered_is_what_the_document_says(client: TestClient, document: Document) -> None:
    for one in [*EVENTS, *MORE]:
        assert client.post("/v1/events", content=posted(one)[1]).status_code == 200, one.id
    ids = {"episode_id": ("e", "e3"), "call_id": ("c1", "c2", "c3", "s1", "lonely")}
    items = 0
    for path in ANSWERS:
        valid = checker(document, path)
        [name, *_] = re.findall(r"{(\w+)}", path) or [None]
        urls = [path.replace(f"{{{name}}}", quote(id_)) for id_ in ids[name]] if name else [path]
        for url in urls:
            response = client.get(url)
            assert response.status_code == 200, url
            answered = response.json()
            valid.validate(answered)
            items += len(answered.get("items", ())) if isinstance(answered, dict) else 0
    assert items >= 14


def test_what_the_posts_answer_is_what_the_document_says(client: TestClient, document: Document) -> None:
    def check(path: str, response: Any) -> None:
        described = document["paths"][path]["post"]["responses"]
        found = described.get(str(response.status_code), described["default"])
        media = response.headers["content-type"].partition(";")[0]
        schema = {**found["content"][media]["schema"], "components": document["components"]}
        jsonschema_rs.validator_for(schema).validate(response.json())

    good, bad = posted(episode("e"))[1], b'{"v":1,"kind":"episode"}'
    other = posted(episode("e", task_id="other"))[1]
    for body in (good, b"[%b,%b,%b]" % (good, bad, other), bad, b"{", b'"x"'):
        check("/v1/events", client.post("/v1/events", content=body))
    for body in (posted(reward("r", 1.0))[1], posted(reward("r", 2.0))[1], b"[]"):
        check("/v1/rewards", client.post("/v1/rewards", content=body))
    check("/v1/events", client.post("/v1/events?x=1", content=good))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The package that a generator makes of the document."""
    folder = tmp_path_factory.mktemp("generated")
    with Store.open(empty_store(folder / "t.db")) as store:
        (folder / "openapi.json").write_text(json.dumps(create_app(store).openapi()))
    made = subprocess.run(
        [
            *(sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"),
            *("--path", str(folder / "openapi.json"), "--output-path", str(folder / "made_client")),
        ],
        # It formats what it made with the ruff beside it.
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    sys.path.insert(0, str(folder))
    yield importlib.import_module("made_client")
    sys.path.remove(str(folder))


@pytest.mark.soak
def test_a_generated_client_posts_and_reads_with_a_key(generated: ModuleType, tmp_path: Path) -> None:
    post_reward, list_rewards, get_episode, post_events = (
        importlib.import_module(f"made_client.api.default.{name}")
        for name in ("post_reward", "list_rewards", "get_episode", "post_events")
    )
    models = importlib.import_module("made_client.models")
    event = models.Episode(id="e", kind="episode", v=1)
    body = models.PostRewardBody.from_dict({"target": {"episode_id": "e"}, "name": "r", "value": 0.5})
    key = make_key(f"sqlite:///{tmp_path / 't.db'}", "--project", "tau")
    with (
        running_server(tmp_path / "t.db") as server,
        generated.AuthenticatedClient(base_url=server.url, token=key) as client,
    ):
        assert post_events.sync(client=client, body=event).stored == 1
        assert post_reward.sync(client=client, body=body).status == "stored"
        assert [item.value for item in list_rewards.sync(client=client).items] == [0.5]
        tree = get_episode.sync(client=client, episode_id="e")
        assert (tree.id, tree.episode.is_complete) == ("e", True)
        missing = get_episode.sync(client=client, episode_id="other")
        assert (missing.status, missing.additional_properties["project"]) == (404, "tau")
