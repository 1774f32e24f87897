"""pytest fixture `tracestore_replay`: what a test asks of a model is recorded once, and replayed ever after.

    def test_my_agent(tracestore_replay):
        client = OpenAI(base_url=tracestore_replay.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
        assert my_agent(client) == "Paris"

    pytest --tracestore-replay=once     the file is replayed; where there is none, it is recorded (default)
    pytest --tracestore-replay=none     the file is replayed; where there is none, the test fails (for CI)
    pytest --tracestore-replay=all      it is recorded anew

What a replayed test asks otherwise than it was recorded fails it, with the first differing byte. The modes
are those of VCR's cassettes. pytest loads this module in every run, so it imports nothing but pytest.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tracestore.testing.replayed import Replayed, Server

MODES = ("once", "none", "all")
_UPSTREAM = "https://api.openai.com"
_CURRENT = pytest.StashKey["Replayed"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tracestore", "recorded model calls")
    group.addoption(
        "--tracestore-replay",
        choices=MODES,
        help="once: replay, and record what has no file yet; none: replay alone; all: record anew"
        " (default: the setting tracestore_replay, else once)",
    )
    group.addoption(
        "--tracestore-upstream",
        metavar="URL",
        help=f"model server that is recorded (default: the setting tracestore_upstream, else {_UPSTREAM})",
    )
    parser.addini("tracestore_replay", "as --tracestore-replay", default="once")
    parser.addini("tracestore_upstream", "as --tracestore-upstream", default=_UPSTREAM)
    parser.addini("tracestore_traces", "folder beside a test file in which its traces lie", default="traces")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "tracestore_replay(upstream=URL): the model server that this test is recorded from"
    )
    mode = config.getini("tracestore_replay")
    if mode not in MODES:
        raise pytest.UsageError(f"tracestore_replay is one of {', '.join(MODES)}, and not {mode!r}")


@pytest.fixture(scope="session")
def _tracestore_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server that replays for all tests, from its first request on."""
    from tracestore.testing.replayed import Server

    with Server(tmp_path_factory.mktemp("tracestore")) as server:
        yield server


@pytest.fixture
def tracestore_replay(
    request: pytest.FixtureRequest, _tracestore_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replayed]:
    """Where a harness under test finds its model: see `tracestore.testing.replayed.Replayed`."""
    from tracestore.testing import replayed

    config, item = request.config, request.node
    mode = config.getoption("--tracestore-replay") or config.getini("tracestore_replay")
    path = replayed.path_of(item.nodeid, item.path, folder=config.getini("tracestore_traces"))
    if mode == "none" and not path.exists():
        pytest.fail(f"{path} is not there: record it with --tracestore-replay=once", pytrace=False)
    if mode == "all" or not path.exists():
        upstream = _upstream(item)
        opened = replayed.recording(path, item.nodeid, upstream, tmp_path_factory.mktemp("tracestore"))
    else:
        opened = replayed.replaying(path, _tracestore_server)
    with opened as found:
        item.stash[_CURRENT] = found
        yield found


def _upstream(item: pytest.Item) -> str:
    marker = item.get_closest_marker("tracestore_replay")
    named: Any = None if marker is None else marker.kwargs.get("upstream")
    stated = named or item.config.getoption("--tracestore-upstream")
    return str(stated or item.config.getini("tracestore_upstream"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """What was missed fails the test, also where the harness went on without it."""
    try:
        result = yield
    except Exception as error:
        found = item.stash.get(_CURRENT, None)
        if found is not None and (told := found.missed()):
            error.add_note(told)
        raise
    found = item.stash.get(_CURRENT, None)
    if found is not None:
        if told := found.missed():
            pytest.fail(told, pytrace=False)
        found.has_passed = True
    return result
