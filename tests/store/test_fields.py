"""The shape of an event says which fields it named, however it is found."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from pydantic import BaseModel

from tests.wire.events import any_events
from tracestore.store.fields import shape_text
from tracestore.wire.call import Call, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.events import AnyEvent


def shape(value: Any) -> Any:
    if value is None:
        return 0
    if isinstance(value, BaseModel):
        named = [name for name in type(value).model_fields if name in value.model_fields_set]
        return {name: shape(getattr(value, name)) for name in named if name not in ("kind", "id")}
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        shapes = [shape(one) for one in value]
        while shapes[-1:] == shapes[-2:-1]:
            shapes.pop()
        return shapes
    return 1


@given(any_events)
def test_a_shape_tells_which_fields_were_named_and_which_of_them_were_null(event: AnyEvent) -> None:
    assert shape_text(event) == repr(shape(event)).replace("'", '"').replace(" ", "")


EMPTY = CompletionBody()


def call(**fields: Any) -> Call:
    return Call(id="c", episode_id="e", agent_id="a", **fields)


def test_events_that_name_the_same_and_tell_otherwise_have_shapes_of_their_own() -> None:
    ids = {"episode_id": 1, "agent_id": 1}
    for fields, told in (
        ({"usage": Usage(prompt_tokens=1)}, {"usage": {"prompt_tokens": 1}}),
        ({"usage": Usage(prompt_tokens=None)}, {"usage": {"prompt_tokens": 0}}),
        ({"usage": Usage(cached_tokens=1)}, {"usage": {"cached_tokens": 1}}),
        ({"usage": Usage()}, {"usage": {}}),
        ({"usage": None}, {"usage": 0}),
        ({"completions": ()}, {"completions": 1}),
        ({"completions": None}, {"completions": 0}),
        (
            {"completions": (CompletionBody(), CompletionBody(partial=True))},
            {"completions": [{}, {"partial": 1}]},
        ),
        ({"completions": (CompletionBody(), CompletionBody())}, {"completions": [{}]}),
    ):
        assert shape_text(call(**fields)) == repr({**ids, **told}).replace("'", '"').replace(" ", "")
