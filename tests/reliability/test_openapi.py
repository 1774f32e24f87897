"""schemathesis over the OpenAPI document: whatever it makes up, the server answers as is told there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.databases import empty_store
from tests.reliability.recordings import array, conversation, stored
from tests.serving import Connection, Running, running_server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
# The one media type that it has no way of writing: bytes as they are.
schemathesis.serializer.alias("application/partial-upload", "application/octet-stream")

TIMEOUT_S = 30
"""An answer that takes longer is a hang; requests raises, and the test fails."""

FEW, MANY = 5, 400
"""Examples of each operation and mode: with every change, and in a long run."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("openapi") / "t.db"
    empty_store(file)
    return file


@pytest.fixture(scope="module")
def server(database: Path) -> Iterator[Running]:
    """It holds something, so that reads find what they list."""
    with running_server(database) as server:
        with Connection(server.url) as connection:
            for n in range(3):
                assert connection.post("/v1/events", array(conversation(f"e{n}", turns=2)))[0] == 200
        yield server


def every_operation_answers_as_told(server: Running, *, examples: int) -> int:
    """Call every operation with valid and with invalid input; how many there are."""
    document = requests.get(f"{server.url}/v1/openapi.json", timeout=TIMEOUT_S).json()
    schema = schemathesis.openapi.from_dict(document)
    operations = [found.ok() for found in schema.get_all_operations()]
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    with requests.Session() as session:
        for operation in operations:
            # A path without parameters cannot be asked for wrongly in every mode; the two are drawn together.
            cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

            @settings(
                max_examples=examples,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                derandomize=examples == FEW,
                database=None,
            )
            @given(case=cases)
            def answers(case: schemathesis.Case) -> None:
                case.call_and_validate(base_url=server.url, session=session, checks=CHECKS, timeout=TIMEOUT_S)

            answers()
    return len(operations)


def test_every_operation_answers_made_up_requests_as_the_document_says(
    server: Running, database: Path
) -> None:
    operations = every_operation_answers_as_told(server, examples=FEW)
    assert operations >= 15
    _nothing_is_harmed(server, database)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_no_number_of_made_up_requests_harms_the_server(server: Running, database: Path) -> None:
    every_operation_answers_as_told(server, examples=MANY)
    _nothing_is_harmed(server, database)


def _nothing_is_harmed(server: Running, database: Path) -> None:
    """The server wrote no fault into its log, still answers, and what it stored is sound."""
    assert "Traceback" not in database.with_suffix(".log").read_text()
    with Connection(server.url) as connection:
        assert connection.get("/v1/health") == (200, json.loads('{"status": "ok"}'))
    assert len(stored(database)) >= 12
