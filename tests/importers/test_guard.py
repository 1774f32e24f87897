from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tracestore.importers.guard import guarded, text_or_none
from tracestore.importers.items import Item, made
from tracestore.importers.notes import Notes
from tracestore.wire.call import Call
from tracestore.wire.episode import Episode


def refusal(make: Callable[[], Item]) -> str:
    """What is said of a record of which `make` makes the second event."""

    def items() -> Iterator[Item]:
        yield made(Episode, id="e")
        yield make()

    notes = Notes()
    assert list(guarded(items(), at="file, line 1", notes=notes)) == []
    (said,) = notes.refused
    return said.removeprefix("file, line 1: not of the shape that this format has: ")


def test_fields_that_make_no_event_are_named_in_words_without_a_word_of_the_library() -> None:
    said = refusal(lambda: made(Call, id="c", episode_id="e", usage={"prompt_tokens": -1}))
    assert "agent_id: Field required" in said
    assert "usage.prompt_tokens: " in said
    assert "pydantic" not in said


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda record: record["messages"], "there is no 'messages'"),
        (lambda record: record["calls"][0], "a list is too short"),
        (lambda record: record["none"].get("x"), "a value is of another type"),
        (lambda record: record["calls"] + 1, "a value is of another type"),
    ],
)
def test_a_record_of_another_shape_is_refused_without_the_words_of_python(
    broken: Callable[[Any], Item], said: str
) -> None:
    assert refusal(lambda: broken({"calls": [], "none": None})) == said


def test_an_empty_text_says_nothing() -> None:
    assert [text_or_none(value) for value in ("a", "", None, 1, ["a"])] == ["a", None, None, None, None]
