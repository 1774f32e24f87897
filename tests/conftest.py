"""How the tests run everywhere: Hypothesis profiles, threads, and what a missing trace file means."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

# Before torch or OpenBLAS is loaded. Sums must not depend on how many cores this machine has, test workers
# share them, and for models this small a second thread costs more than it saves.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import settings

from tests.databases import store_on
from tests.s3 import S3, s3_server
from tests.store.servers import stop_server
from tracestore.store import Store

settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_unconfigure() -> None:
    """Stop the PostgreSQL server of this process, if a test started it."""
    stop_server()


REQUIRE_FIXTURES = bool(os.environ.get("TRACESTORE_REQUIRE_FIXTURES"))


def _missing_fixture(reason: object) -> str | None:
    """What to say instead of skipping where trace files must be present, or None for other skips."""
    text = str(reason)
    if REQUIRE_FIXTURES and "fixture" in text.lower():
        return f"skipped although TRACESTORE_REQUIRE_FIXTURES is set: {text}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and call.excinfo is not None and (problem := _missing_fixture(call.excinfo.value)):
        report.outcome = "failed"
        report.longrepr = problem
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and (problem := _missing_fixture(report.longrepr)):
        report.outcome = "failed"
        report.longrepr = problem
    return report


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of the module for the many examples of a law: each is a project of its own."""
    with store_on(request.param, tmp_path_factory.mktemp("shared") / "store.db") as store:
        yield store


@pytest.fixture(scope="module")
def on_postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The same for a few examples. An example takes longer there, so all of them are for `make soak`."""
    with store_on("postgresql", tmp_path_factory.mktemp("unused")) as store:
        yield store


@pytest.fixture(scope="module")
def s3(request: pytest.FixtureRequest) -> Iterator[S3]:
    """A bucket of the module on a server that speaks S3."""
    with s3_server(request.module.__name__.replace("_", "-").lower()) as found:
        yield found
