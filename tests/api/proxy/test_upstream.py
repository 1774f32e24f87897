from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.proxy import dialects as d
from tests.api.proxy.scripted import Said
from tests.api.proxy.scripted import Upstream as Scripted
from tests.databases import empty_store
from tests.serving import Connection, running_server
from tracestore.cli import main
from tracestore.store.store import Store
from tracestore_api.proxy.errors import BadUpstream
from tracestore_api.proxy.upstream import Upstream, forwarded


@pytest.mark.parametrize(
    ("url", "path", "query", "target"),
    [
        ("http://h:1", "/v1/x", b"", "http://h:1/v1/x"),
        ("http://h:1/", "/v1/x", b"a=%2F", "http://h:1/v1/x?a=%2F"),
        ("http://h:1/v1", "/v1/x", b"", "http://h:1/v1/x"),
        ("http://h:1/v1", "/x", b"", "http://h:1/v1/x"),
        ("https://h/gate/v1/", "/v1/x", b"", "https://h/gate/v1/x"),
        ("https://h/gate/v1/", "/gate/v1/x", b"", "https://h/gate/v1/x"),
        ("https://h/gate", "/v1/x", b"", "https://h/gate/v1/x"),
        ("http://[::1]:8000", "/v1/a%20b", b"", "http://[::1]:8000/v1/a%20b"),
        ("http://v1", "/v1/x", b"", "http://v1/v1/x"),
    ],
)
def test_the_path_of_a_request_follows_that_of_the_upstream(
    url: str, path: str, query: bytes, target: str
) -> None:
    assert Upstream(url).target(path, query) == target


@pytest.mark.parametrize(
    "url",
    ["", "api.openai.com", "ftp://h", "http://", "http://h:x", "http://u:p@h", "http://h/?a=1", "http://h#a"],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(BadUpstream, match=r"https://api\.openai\.com"):
        Upstream(url)


def test_headers_of_one_hop_stay_here_and_the_others_pass_in_order() -> None:
    sent = [
        (b"host", b"h"),
        (b"connection", b"keep-alive, X-Mine"),
        (b"x-mine", b"1"),
        (b"x-b", b"\xff"),
        (b"content-length", b"3"),
        (b"x-a", b"1"),
        (b"te", b"trailers"),
        (b"x-b", b"2"),
        (b"accept-encoding", b"br;q=1.0, gzip;q=0.5, *;q=0"),
    ]
    assert forwarded(sent) == [
        (b"x-b", b"\xff"),
        (b"x-a", b"1"),
        (b"x-b", b"2"),
        (b"accept-encoding", b"gzip;q=0.5"),
    ]
    assert forwarded([(b"accept-encoding", b"br")]) == [(b"accept-encoding", b"identity")]


def test_the_command_serves_a_proxy_and_records_what_passed_before_it_ends(
    tmp_path: Path, upstream: Scripted
) -> None:
    upstream.says(Said(d.chat("A")))
    file = tmp_path / "t.db"
    with running_server(file, flags=("--upstream", upstream.url, "--inject")) as server:
        with Connection(server.url) as connection:
            status, answer = connection.post("/proxy/episode=e/v1/chat/completions", b'{"messages":[]}')
            assert (status, answer["choices"][0]["message"]["content"]) == (200, "A")
            assert connection.get("/proxy")[1]["inject"] is True
        assert server.ended_with() == 0
    assert b"return_token_ids" in upstream.seen[0].body
    with Store.open(f"sqlite:///{file}") as store:
        assert {event.kind for event in store.load("default", "e")} == {"call", "episode", "agent"}


def test_the_command_refuses_what_is_no_upstream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = empty_store(tmp_path / "t.db")
    assert main.main(["serve", "--db", url, "--port", "0", "--upstream", "nowhere"]) == 2
    assert "no URL of an upstream" in capsys.readouterr().err
    assert main.main(["serve", "--db", url, "--port", "0", "--inject"]) == 2
    assert "name one" in capsys.readouterr().err
