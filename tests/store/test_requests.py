"""A request is cut alike whatever its agent asked before it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.test_skeleton import requests
from tests.wire.grammar import texts
from tracestore.store import requests as room
from tracestore.store.requests import RequestMemory, take_apart
from tracestore.wire.call import Dialect

_FRAMES = (
    (b'{"model":"m","messages":[', b'],"tools":[{"a":1}],"temperature":1}'),
    (b'{"system":"s", "messages": [ ', b' ], "tools": null}'),
    (b'{"messages":[', b'],"system":[{"type":"text","text":"s"}]}'),
    (b'{"instructions":"i","input":[', b"]}"),
    (b'{"input":', b',"model":"m"}'),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Requests of one agent: each begins with some of the messages of the one before."""
    frames = draw(st.lists(st.sampled_from(_FRAMES), min_size=1, max_size=2))
    between = draw(st.lists(st.sampled_from([b",", b", ", b",\n"]), min_size=1, max_size=2))
    messages: list[bytes] = []
    found = []
    for _ in range(draw(st.integers(1, 6))):
        kept = draw(st.integers(0, len(messages)))
        messages = [*(messages if kept else []), *draw(st.lists(texts().map(bytes), min_size=1, max_size=3))]
        head, tail = draw(st.sampled_from(frames))
        array = draw(st.sampled_from(between)).join(messages)
        if not head.endswith(b"[") and not head.endswith(b"[ "):
            array = b"[" + array + b"]"
        found.append(head + array + tail)
    return found


@settings(max_examples=60)
@given(
    conversations() | st.lists(requests(), min_size=2, max_size=4),
    st.sampled_from(["openai_chat", "anthropic_messages", "openai_responses", "text"]),
)
def test_what_was_asked_before_changes_nothing(asked: Sequence[bytes], dialect: Dialect) -> None:
    memory = RequestMemory()
    for raw in asked:
        assert memory.take_apart(raw, dialect, agent_id="a") == take_apart(raw, dialect)


@settings(max_examples=40)
@given(st.lists(st.tuples(conversations(), st.sampled_from(["a", "b", "c"])), min_size=2, max_size=4))
def test_what_others_asked_before_changes_nothing(asked: list[tuple[list[bytes], str]]) -> None:
    memory = RequestMemory()
    for conversation, agent_id in asked:
        for raw in conversation:
            assert memory.take_apart(raw, "openai_chat", agent_id=agent_id) == take_apart(raw, "openai_chat")


def test_an_agent_that_asks_first_in_the_words_of_another_shares_its_frame() -> None:
    memory = RequestMemory()
    long = b"x" * 100
    raws = [b'{"messages":["%b%d%b"],"tools":[]}' % (long, number, long) for number in range(3)]
    for number, raw in enumerate(raws):
        assert memory.take_apart(raw, "openai_chat", agent_id=f"a{number}") == take_apart(raw, "openai_chat")
    assert len({id(memory._asked[f"a{number}"].frame) for number in range(3)}) == 1
    # In another dialect the same text is read otherwise.
    assert memory.take_apart(raws[0], "text", agent_id="b") == take_apart(raws[0], "text")


def test_a_growing_conversation_is_cut_once() -> None:
    memory = RequestMemory()
    frames = set()
    for number in range(1, 20):
        messages = b",".join(b'{"role":"user","content":"%d"}' % n for n in range(number))
        raw = b'{"messages":[' + messages + b'],"tools":[]}'
        request = memory.take_apart(raw, "openai_chat", agent_id="a")
        assert [piece.data for piece in request.messages] == messages.replace(b"},{", b"}\n{").split(b"\n")
        frames.add(id(memory._asked["a"].frame))
    assert len(frames) == 1


def test_memory_holds_a_number_of_bytes_and_forgets_who_asked_longest_ago() -> None:
    memory = RequestMemory()
    request = b'{"messages":["%b"]}' % (b"x" * 2**20)
    for number in range(100):
        memory.take_apart(request, "openai_chat", agent_id=f"a{number}")
    assert memory._bytes <= room._REMEMBERED_BYTES
    assert list(memory._asked)[-1] == "a99"
    assert len(memory._asked) == room._REMEMBERED_BYTES // (3 * len(request))


def test_equal_text_that_ends_inside_a_number_is_not_cut_there() -> None:
    memory = RequestMemory()
    for messages in (b"1,2", b"1,23,4", b"1,23,4,5", b"1,23,4,567", b"1,23,4,567.89,1"):
        raw = b'{"messages":[%b]}' % messages
        assert memory.take_apart(raw, "openai_chat", agent_id="a") == take_apart(raw, "openai_chat")


def test_other_white_space_than_before_is_kept() -> None:
    memory = RequestMemory()
    asked = [
        b"1,2",
        b"1,2, 3",
        b"1,2,3 ,4",
        b"1,2,3 ,4,5",
        b"1,2 ",
        b"1,2, 3, 4",
        b"1, 2",
        b"1, 2,3",
        b"1, 2, 3",
    ]
    for messages in asked:
        raw = b'{"messages":[' + messages + b'],"tools":[]}'
        assert memory.take_apart(raw, "openai_chat", agent_id="a") == take_apart(raw, "openai_chat")


def test_a_system_prompt_stays_when_all_messages_are_others() -> None:
    memory = RequestMemory()
    for messages in (b"1,2", b"3", b"3,4", b"5,6"):
        raw = b'{"system":"s","messages":[' + messages + b"]}"
        request = memory.take_apart(raw, "anthropic_messages", agent_id="a")
        assert [piece.data for piece in request.messages] == [b'"s"', *messages.split(b",")]
