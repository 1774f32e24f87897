"""Law 2: a call's request is read back byte for byte as it was posted, whatever JSON it was written in."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.grammar import texts
from tracestore.graph.build import build
from tracestore.graph.context import context
from tracestore.store import Store
from tracestore.wire.decode import decode_event

SPACE = st.text(" \t\n\r", max_size=3)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A request as text, and the texts of its messages: any JSON values, any white space, any key order."""
    messages = [
        b'{"role":"user","content":' + draw(texts()) + b"}" if draw(st.booleans()) else draw(texts())
        for _ in range(draw(st.integers(0, 4)))
    ]
    members = [
        ('"messages"', _array(draw, messages)),
        ('"tools"', b"[" + draw(texts()) + b"]"),
        ('"temperature"', draw(st.sampled_from([b"1", b"1.0", b"-0", b"1e400", b"12345678901234567890"]))),
        (f'"x-{draw(st.integers(0, 9))}"', draw(texts())),
    ]
    kept = [member for member in members if member[0] == '"messages"' or draw(st.booleans())]
    written = [
        (draw(SPACE) + name + draw(SPACE) + ":" + draw(SPACE)).encode() + value + draw(SPACE).encode()
        for name, value in draw(st.permutations(kept))
    ]
    return b"{" + b",".join(written) + b"}", messages


def _array(draw: st.DrawFn, items: list[bytes]) -> bytes:
    spaced = [(draw(SPACE)).encode() + item + draw(SPACE).encode() for item in items]
    return b"[" + b",".join(spaced) + b"]" if items else b"[" + draw(SPACE).encode() + b"]"


@settings(max_examples=60)
@given(data=st.data())
def test_a_request_and_each_message_are_read_back_byte_for_byte(shared: Store, data: st.DataObject) -> None:
    _post_and_read_back(shared, data)


@settings(max_examples=12)
@given(data=st.data())
def test_a_request_and_each_message_are_read_back_byte_for_byte_on_postgresql(
    on_postgresql: Store, data: st.DataObject
) -> None:
    _post_and_read_back(on_postgresql, data)


def _post_and_read_back(store: Store, data: st.DataObject) -> None:
    request, messages = data.draw(requests())
    answer = data.draw(texts())
    project = uuid4().hex
    event = (
        b'{"v":1,"kind":"call","id":"c","episode_id":"e","agent_id":"a","request":'
        + request
        + b',"completions":[{"message":'
        + answer
        + b"}]}"
    )
    outcomes = store.ingest(project, [(decode_event(event), event)])
    assert [o.status for o in outcomes] == ["stored"]
    graph = build(store.load(project, "e"))
    assert graph.calls["c"].request == request
    assert [message.raw for message in context(graph, "c")] == messages
    assert (graph.completions["c", 0].message or b"null") == answer


def test_the_same_message_in_other_bytes_is_kept_beside_the_first(shared: Store) -> None:
    spellings = [b'{"role":"user","content":"hi"}', b'{ "content" : "h\\u0069" , "role":"user" }']
    project = uuid4().hex
    events = [
        b'{"v":1,"kind":"call","id":"c%d","episode_id":"e","agent_id":"a","request":{"messages":[%s]}}'
        % (number, text)
        for number, text in enumerate(spellings)
    ]
    shared.ingest(project, [(decode_event(event), event) for event in events])
    graph = build(shared.load(project, "e"))
    assert [context(graph, f"c{number}")[0].raw for number in range(2)] == spellings
    assert graph.prompt_node["c0"] == graph.prompt_node["c1"]


def test_a_request_survives_closing_the_file(tmp_path: Path) -> None:
    request = b'{"messages" : [ {"role":"tool","content":"\\u0000\\ud83d"} ],\n "n":1e400, "seed":-0}'
    event = b'{"v":1,"kind":"call","id":"c","episode_id":"e","agent_id":"a","request":' + request + b"}"
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with Store.open(url) as store:
        store.ingest("p", [(decode_event(event), event)])
    with Store.open(url) as store:
        assert store.load_graph("p", "e").calls["c"].request == request
