"""A request read with what its agent sent before gets the verdict it gets alone, whatever changed in it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.tampered import SNIPPETS, seeds, tampered
from tests.wire.test_fast import exact_verdict, verdict
from tracestore.wire import fast
from tracestore.wire.check import Doubt
from tracestore.wire.decode import SpanMemory, decode_body, decode_event
from tracestore.wire.errors import EventError
from tracestore.wire.limits import Limits
from tracestore.wire.memory import Known, known

LONG = b'{"role":"system","content":"' + b"x" * 9000 + b'"}'
"""Long enough that looking it up is worth while."""
TOOLS = b'"tools":[{"name":"search","parameters":{"type":"object","required":["q"]}}]'
ANSWER = b'"completions":[{"message":{"role":"assistant","tool_calls":[{"id":"t"}]},"token_ids":[1,2]}]'


def event(request: bytes, *, agent: bytes = b"a", behind: bytes = b"," + ANSWER, front: bytes = b"") -> bytes:
    return b'{"v":1,"kind":"call","id":"c","episode_id":"e","agent_id":"%s",%s"request":%s%s}' % (
        agent,
        front,
        request,
        behind,
    )


def request(*messages: bytes, before: bytes = b'"model":"m",', tail: bytes = b"," + TOOLS) -> bytes:
    return b"{" + before + b'"messages":[' + b",".join(messages) + b"]" + tail + b"}"


@pytest.fixture
def continued(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request that was known in part was taken without reading it whole."""
    taken: list[bool] = []
    original = fast._continued

    def counted(*arguments: Any, **named: Any) -> Any:
        taken.append(False)
        result = original(*arguments, **named)
        taken[-1] = True
        return result

    monkeypatch.setattr(fast, "_continued", counted)
    return taken


MESSAGES = [b'{"role":"user","content":"m%d","tool_calls":[{"id":[%d]}]}' % (n, n) for n in range(8)]


@pytest.mark.parametrize("tail", [b"", b"," + TOOLS, b' , "seed":-0, "n":1e400 '])
@pytest.mark.parametrize("behind", [b"", b"," + ANSWER, b'  , "status" : "ok" '])
@pytest.mark.parametrize("before", [b"", b'"model":"m","functions":[{"name":"f"}],'])
def test_a_context_that_grows_is_read_from_where_it_ended(
    continued: list[bool], tail: bytes, behind: bytes, before: bytes
) -> None:
    memory = SpanMemory()
    for number in range(len(MESSAGES) + 1):
        text = event(request(LONG, *MESSAGES[:number], before=before, tail=tail), behind=behind)
        assert verdict(text, memory=memory) == exact_verdict(text)
    assert continued == [True] * len(MESSAGES)


@pytest.mark.parametrize("array", [b"messages", b"input"])
def test_other_parameters_each_time_and_the_same_request_again_are_known_too(
    continued: list[bool], array: bytes
) -> None:
    memory = SpanMemory()
    for number in (0, 1, 2, 2, 5):
        tail = b',"max_tokens":%d,' % (4096 - number) + TOOLS
        text = event(request(LONG, *MESSAGES[:number], tail=tail).replace(b"messages", array))
        assert verdict(text, memory=memory) == exact_verdict(text)
    assert continued == [True] * 4


def test_of_other_messages_in_the_same_request_they_alone_are_read(continued: list[bool]) -> None:
    memory = SpanMemory()
    for messages in ([LONG, *MESSAGES], [LONG, MESSAGES[3]], [LONG, MESSAGES[3], MESSAGES[4]], [MESSAGES[5]]):
        for tail in (b"," + TOOLS, b',"n":1'):
            text = event(request(*messages, tail=tail), front=b'"purpose":"%b",' % (b"x" * 5000))
            assert verdict(text, memory=memory) == exact_verdict(text)
    assert continued == [True] * 7


def test_what_begins_otherwise_is_read_whole_and_known_from_then_on(continued: list[bool]) -> None:
    memory = SpanMemory()
    for before, messages in ((b"", MESSAGES), (b'"n":1,', MESSAGES[3:4]), (b'"n":1,', MESSAGES[3:5])):
        text = event(request(LONG, *messages, before=before))
        assert verdict(text, memory=memory) == exact_verdict(text)
    assert continued == [True]


def test_an_agent_that_begins_in_the_words_of_another_is_read_like_it(continued: list[bool]) -> None:
    memory = SpanMemory()
    for agent in (b"a", b"b", b"c"):
        text = event(request(b'"%b"' % agent, LONG, before=b'"model":"%b",' % (b"m" * 64)), agent=agent)
        assert verdict(text, memory=memory) == exact_verdict(text)
    assert continued == [True, True]


def test_deltas_are_read_by_their_messages_alone(continued: list[bool]) -> None:
    memory = SpanMemory()
    for number in range(3):
        text = event(
            request(MESSAGES[number], LONG), front=b'"context":"delta","parent_call_id":"p%d",' % number
        )
        assert verdict(text, memory=memory) == exact_verdict(text)
    assert continued == [True, True]


def test_no_messages_where_there_were_some_are_none_that_are_known(continued: list[bool]) -> None:
    memory = SpanMemory()
    long = b'"purpose":"%b",' % (b"x" * 5000)
    for array, tail in ((b"1", b""), (b"", b""), (b" ", b""), (b"", b',"n":1'), (b"2", b"")):
        text = event(request(array, tail=tail), front=long)
        assert verdict(text, memory=memory) == exact_verdict(text)
    assert continued == [False, False, False, True]


def test_a_parent_named_for_the_first_time_does_not_hide_the_end_of_the_request(
    continued: list[bool],
) -> None:
    memory = SpanMemory()
    for parent in (b"", b',"parent_call_id":"p"', b',"parent_call_id":"p"'):
        text = event(request(LONG), behind=parent + b"," + ANSWER)
        assert verdict(text, memory=memory) == exact_verdict(text)
    assert continued == [True, True]


@pytest.mark.parametrize("tail", [b"", b"," + TOOLS, b',"n":1,"seed":[[2]]'])
@pytest.mark.parametrize("last", [b"", b",1", b",1.5e3", b",null", b',"text"', b",[[3]]", b', {"a":1} '])
def test_a_change_at_any_place_gets_the_verdict_it_gets_alone(tail: bytes, last: bytes) -> None:
    memory = SpanMemory()
    head = request(LONG + last, tail=tail)
    decode_event(event(head), memory=memory)
    whole = event(request(LONG + last, MESSAGES[0], tail=tail), behind=b',"status":"ok"')
    choices = random.Random(repr((tail, last)))
    places = [at for at in range(len(whole)) if whole[at : at + 9] != b"x" * 9]
    for at in choices.sample(places, 60):
        for snippet in choices.sample(SNIPPETS, 3):
            for end in (at, at + 1):
                text = whole[:at] + snippet + whole[end:]
                assert verdict(text, memory=memory) == exact_verdict(text), text.replace(b"x" * 9000, b"")


@settings(max_examples=30)
@given(st.data())
def test_any_sequence_of_requests_gets_the_verdicts_they_get_alone(data: st.DataObject) -> None:
    memory = SpanMemory(max_bytes=data.draw(st.sampled_from([10_000, 30_000, 10**6])))
    messages = [LONG]
    for _ in range(8):
        step = data.draw(st.integers(0, 5))
        if step < 3:
            messages.append(
                data.draw(st.sampled_from([*MESSAGES, b"1", b'"s"', b"[]", b'{"a":1,"a":2}', b"-0"]))
            )
        elif step == 3:
            messages = messages[: data.draw(st.integers(1, len(messages)))]
        text = event(
            request(
                *messages,
                before=data.draw(st.sampled_from([b"", b'"model":"m",', b'"x":NaN,'])),
                tail=data.draw(
                    st.sampled_from([b"", b"," + TOOLS, b',"n":1', b',"model":2', b',"messages":[]'])
                ),
            ),
            agent=data.draw(st.sampled_from([b"a", b"b"])),
        )
        if data.draw(st.booleans()):
            text = tampered(text, data.draw(seeds))
        assert verdict(text, memory=memory) == exact_verdict(text)


def test_a_key_of_the_head_that_comes_again_behind_the_messages_is_found(continued: list[bool]) -> None:
    memory = SpanMemory()
    decode_event(event(request(LONG, tail=b',"n":1')), memory=memory)
    for tail in (b',"n":1,"model":"m"', b',"n":1,"messages":[]', b',"n":1,"n":1', b',"\\u006dodel":"m"'):
        text = event(request(LONG, MESSAGES[0], tail=tail))
        assert "DuplicateKey" in str(verdict(text, memory=memory)[0])
        assert verdict(text, memory=memory) == exact_verdict(text)
    assert continued == [False] * 8


def test_a_request_below_the_top_is_not_taken_for_the_request() -> None:
    memory = SpanMemory()
    known_request = request(LONG)
    decode_event(event(known_request), memory=memory)
    inside = b'"meta":{"request":%s},' % request(LONG, MESSAGES[0])
    followed = b'"meta":{"request":%s,"x":1},' % request(LONG, MESSAGES[0])
    for text in (
        event(request(LONG, MESSAGES[1]), front=inside),
        event(request(LONG, MESSAGES[1]), front=followed),
        event(b"null", front=inside),
        event(b"null", front=followed),
        event(request(LONG, b'{"request":1}'), behind=b',"request":2'),
        event(request(LONG)).replace(b'"request":', b'"meta":', 1),
    ):
        assert verdict(text, memory=memory) == exact_verdict(text)


@pytest.mark.parametrize("depth", [10, 200])
@pytest.mark.parametrize("tail", [b"", b',"n":1'])
def test_the_depth_allowed_holds_for_the_part_that_is_read(
    continued: list[bool], depth: int, tail: bytes
) -> None:
    limits = Limits(max_depth=depth)
    # The event, the request and the array of messages are three levels.
    for levels, is_taken in ((depth - 3, True), (depth - 2, False)):
        memory = SpanMemory()
        decode_event(event(request(LONG)), limits=limits, memory=memory)
        text = event(request(LONG, b"[" * levels + b"]" * levels, tail=b"," + TOOLS + tail))
        assert verdict(text, limits=limits, memory=memory) == exact_verdict(text, limits=limits)
        assert continued.pop() is is_taken


@pytest.mark.parametrize(
    "behind",
    [
        b',"status":"ok","status":"ok"',
        b',"completions":[{"message":{"a":1,"a":2}}]',
        b',"completions":[{"message":{"a":NaN}}]',
        b',"completions":[{"message":"\xff"}]',
        b',"completions":[{"message":' + b"[" * 200 + b"]" * 200 + b"}]",
        b',"completions":[{"partial":true,"partial":true}]',
        b',"usage":{"cost_usd":1e400}',
        b',"ordinal":-0',
        b',"id":"c"',
        b',"request":null',
    ],
)
def test_what_stands_around_a_known_request_is_checked(continued: list[bool], behind: bytes) -> None:
    memory = SpanMemory()
    decode_event(event(request(LONG)), memory=memory)
    for text in (
        event(request(LONG, MESSAGES[0]), behind=behind),
        event(request(LONG, MESSAGES[0]), front=behind[1:] + b","),
    ):
        assert issubclass(exact_verdict(text)[0], EventError)
        assert verdict(text, memory=memory) == exact_verdict(text)
    assert True not in continued


def test_what_was_read_under_another_depth_is_not_known(continued: list[bool]) -> None:
    memory = SpanMemory()
    deep = event(request(LONG, b"[" * 50 + b"]" * 50))
    decode_event(deep, memory=memory)
    shallow = Limits(max_depth=20)
    assert verdict(deep, limits=shallow, memory=memory) == exact_verdict(deep, limits=shallow)
    assert continued == []


def test_a_body_is_read_with_a_memory() -> None:
    memory = SpanMemory()
    texts = [event(request(LONG, *MESSAGES[:number])) for number in range(3)]
    found = decode_body(b"\n".join(texts), content_type="application/x-ndjson", memory=memory)
    assert (
        [one.event.request for one in found]
        == [  # type: ignore[union-attr]
            request(LONG, *MESSAGES[:number]) for number in range(3)
        ]
    )
    assert memory.num_bytes > 9000
    decode_body(b"[" + b",".join(texts) + b"]", content_type="application/json", memory=memory)


def test_the_memory_stays_within_its_bytes_and_forgets_the_longest_unused() -> None:
    entry = Known(b"x" * 300, b"", b"", "messages", 199, b"", 300)
    # 812 bytes each: 300 of text and 512 for what stands around it.
    memory = SpanMemory(max_bytes=3 * 812)
    for key in (b"1", b"2", b"3"):
        memory.put(key, entry)
    assert memory.num_bytes == 3 * 812
    assert memory.get(b"1") is not None
    memory.put(b"4", entry)
    assert [memory.get(key) is not None for key in (b"1", b"2", b"3", b"4")] == [True, False, True, True]
    memory.put(b"4", entry._replace(head=b""))
    assert memory.num_bytes == 2 * 812 + 512
    memory.put(b"5", entry._replace(head=b"x" * 10_000))
    assert memory.num_bytes == 0
    assert memory.get(b"5") is None


def test_a_request_is_cut_behind_its_last_message() -> None:
    text = b'{ "model" : "m", "messages" : [ {"role":"user"}, 1 ] , "n":1}'
    assert known(text, levels=7, after=b',"status"') == Known(
        head=b'{ "model" : "m", "messages" : [ {"role":"user"}, 1 ',
        tail=b'] , "n":1}',
        keys=b'{"model":0,"messages":[',
        array="messages",
        levels=7,
        after=b',"status"',
        opening=len(b'{ "model" : "m", "messages" : ['),
    )


@pytest.mark.parametrize(
    "text",
    [
        b"null",
        b'"messages"',
        b'{"messages":[]}',
        b'{"messages":[ ]}',
        b'{"messages":"none"}',
        b'{"metadata":{"messages":[1]},"prompt":"x"}',
        b'[{"messages":[1]}]',
        b'{"n":"\\"messages\\":[1]"}',
    ],
)
def test_a_request_without_messages_to_cut_is_not_known(text: bytes) -> None:
    assert known(text, levels=199, after=b"") is None


def test_the_rest_of_a_known_request_is_checked() -> None:
    first = known(b'{"a":1,"messages":[1],"n":2}', levels=199, after=b"")
    assert first is not None
    second = first.next(b',{"b":3}],"n":2}')
    assert (second.head, second.tail) == (b'{"a":1,"messages":[1,{"b":3}', b'],"n":2}')
    third = second.next(b'],"n":3}')
    assert (third.head, third.tail) == (second.head, b'],"n":3}')
    for rest in (
        b'.5],"n":2}',
        b'2],"n":2}',
        b',],"n":2}',
        b'],"x":[1],"n":2}',
        b'],"a":1}',
        b'],"n":3,"n":3}',
        b']}],"n":2}',
        b',NaN],"n":2}',
        b'],"n":3} ',
        b"",
        b"]",
    ):
        with pytest.raises(ValueError, match=r"."):
            first.next(rest)


def test_other_messages_in_a_known_request_are_checked() -> None:
    first = known(b'{"a":1,"messages":[1],"n":2}', levels=199, after=b"")
    assert first is not None
    opened = first.opened()
    assert (opened.head, opened.tail) == (b'{"a":1,"messages":[', b'],"n":2}')
    second = opened.next(b'2 , {"b":3} ],"n":2}')
    assert (second.head, second.tail) == (b'{"a":1,"messages":[2 , {"b":3} ', b'],"n":2}')
    assert second.next(b',4],"n":2}').head == second.head + b",4"
    third = opened.next(b'2],"n":3}')
    assert (third.head, third.tail) == (b'{"a":1,"messages":[2', b'],"n":3}')
    for rest in (
        b'],"n":2}',
        b' ],"n":2}',
        b',2],"n":2}',
        b'2,],"n":2}',
        b'2],"x":[1],"n":2}',
        b'2],"a":1}',
        b'2],"messages":[1]}',
        b'],"n":3}',
        b'2]],"n":3}',
        b'[2],"n":3}',
    ):
        with pytest.raises(ValueError, match=r"."):
            opened.next(rest)


def test_the_end_of_the_next_request_is_looked_for_where_the_last_one_ended() -> None:
    one = Known(b"", b"]}", b"", "messages", 199, b',"status":"ok"}', 0)
    assert one.end(b'xx,3]},"status":"ok"}', 2) == 6
    assert one.end(b'xx,3]} ,"status":"ok"}', 2) == 7
    assert one._replace(after=b"}").end(b"xx,3]}}", 2) == 6
    with pytest.raises(Doubt):
        one.end(b"xx,3]}", 2)
