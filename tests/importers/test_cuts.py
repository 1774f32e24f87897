"""How a stream was cut, kept beside its answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.proxy import dialects as d
from tracestore.importers import cuts
from tracestore.importers.exchanges import answered

SIZES = st.one_of(st.none(), st.integers(0, 99))
STEPS = st.lists(st.tuples(st.sampled_from(["0", "0/delta/content", "a~b/c"]), SIZES), max_size=3)


@given(found=st.lists(STEPS), ms=st.lists(st.integers(0, 10**6)))
def test_cuts_and_times_are_read_as_they_were_told(found: cuts.Cuts, ms: list[int]) -> None:
    times = sorted(ms)
    assert cuts.read(cuts.told(found, times)) == (found, times)


@given(names=st.lists(st.text(), min_size=1))
def test_a_path_is_parted_into_the_names_it_was_joined_of(names: list[str]) -> None:
    assert cuts.parted(cuts.joined(*names)) == names


@pytest.mark.parametrize("kept", [None, 3, {}, {"cuts": 1}, {"cuts": [[["0"], ["x"]]], "ms": ["x"]}])
def test_what_was_not_told_so_is_read_as_nothing(kept: Any) -> None:
    assert cuts.read(kept) == (None, None)


def test_events_that_add_to_the_same_are_one_run() -> None:
    pieces = [d.chunk({"content": text}) for text in ("I", "ch", "", "🙂")]
    answer = answered(
        d.events(d.chunk({"role": "assistant"}), *pieces, d.chunk({}, reason="stop"), done=True)
    )
    assert answer is not None
    told = cuts.told(cuts.cuts_of(answer), [5, 5, 7, 7, 10, 10])
    assert told == {
        # An emoji is two units of UTF-16.
        "cuts": [
            [["0/delta/role"], [None]],
            [["0/delta/content"], [1, 2, 0, 2]],
            [["0/finish_reason"], [None]],
        ],
        "ms": [5, 0, 2, 0, 3, 0],
    }


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@given(data=st.data())
def test_an_event_came_when_the_chunk_with_its_end_came(end: str, data: st.DataObject) -> None:
    events = [f"event: x{end}data: {number}{end}{end}".encode() for number in range(4)]
    events.insert(1, f": a comment{end}{end}".encode())
    body = b"".join(events)
    at = sorted(data.draw(st.sets(st.integers(1, len(body) - 1))))
    chunks = [body[first:last] for first, last in zip([0, *at], [*at, len(body)], strict=True)]
    found = cuts.times(chunks, [10**9 + 10**6 * number for number in range(len(chunks))], since=10**9)
    ends = [sum(map(len, events[: place + 1])) for place in (0, 2, 3, 4)]
    expected = [next(n for n, last in enumerate([*at, len(body)]) if last >= one) for one in ends]
    if end == "\r":  # half of a line end may be a whole one: the next chunk, or the end, tells
        assert all(one >= other for one, other in zip(found, expected, strict=True))
    else:
        assert found == expected
