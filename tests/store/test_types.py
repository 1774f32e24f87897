"""Text that no database column takes is stored all the same, and comes back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracestore.store.types import escape, unescape

_TEXT = st.text(st.one_of(st.characters(), st.sampled_from("\x00\ud83d\udfff\U0010fffe0")))


@given(_TEXT)
def test_every_text_comes_back_and_can_be_stored(text: str) -> None:
    stored = escape(text)
    assert unescape(stored) == text
    assert "\x00" not in stored
    stored.encode("utf-8")


@given(_TEXT, _TEXT)
def test_two_texts_are_never_stored_as_one(first: str, second: str) -> None:
    assert (escape(first) == escape(second)) == (first == second)


@pytest.mark.parametrize("text", ["", "plain", "é 字 \U0001d11e"])
def test_ordinary_text_reads_as_it_is(text: str) -> None:
    assert escape(text) == text
