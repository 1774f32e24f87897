"""Start + end = whole; what is named twice agrees or is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import agent, answer, call, completion, episode, raw, tool_call
from tests.strategies import episodes, phased, revised, split_up
from tracestore.graph.merge import FieldConflict, merge, merge_phases, newest
from tracestore.wire.arrays import TokenIds
from tracestore.wire.base import PhasedEvent, Raw
from tracestore.wire.call import Usage
from tracestore.wire.events import AnyEvent


@settings(max_examples=40)
@given(st.data(), episodes(max_calls=4))
def test_start_and_end_equal_the_whole(data: st.DataObject, events: list[AnyEvent]) -> None:
    for event in events:
        if isinstance(event, PhasedEvent):
            assert merge_phases(data.draw(phased(event))) == event
            break


@settings(max_examples=40)
@given(st.data(), episodes(max_calls=4))
def test_what_was_told_before_changes_nothing_but_the_revision(
    data: st.DataObject, events: list[AnyEvent]
) -> None:
    parts = data.draw(split_up(events))
    told = data.draw(st.permutations(data.draw(revised(parts))))
    assert merge(told) == merge(newest(told))
    without = [event.model_copy(update={"revision": None}) for event in newest(told)]
    assert merge(without) == merge(parts)


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_revisions_the_highest_holds_whatever_the_others_say(order: int) -> None:
    events = [
        *(agent(phase="start", name=name, revision=number) for name, number in (("a", 1), ("b", 2))),
        *(agent(phase="end", score=0.5), agent(phase="end", name="c", revision=9)),
        agent(phase="end", status="ok", revision=10),
    ]
    assert merge(events[::order]).of("agent") == {"main": agent(name="b", status="ok", revision=10)}


@pytest.mark.parametrize("order", [1, -1])
def test_equal_revisions_that_differ_are_a_conflict(order: int) -> None:
    events = [agent(name="a", revision=1), agent(name="b", revision=1)]
    with pytest.raises(FieldConflict, match="field='name'"):
        merge(events[::order])
    assert merge([*events, agent(name="c", revision=2)]).of("agent")["main"].name == "c"


def test_an_answer_that_is_posted_alone_is_replaced_alone() -> None:
    whole = call("c", (), answer("a"))
    later = answer(None, finish_reason=None, ids=[1, 2])
    alone = [completion("c", 0, answer(None, finish_reason=None, ids=[1])), completion("c", 0, later)]
    merged = merge([whole, alone[0], alone[1].model_copy(update={"revision": 1})])
    assert merged.completions["c", 0] == merge([call("c", (), answer("a", ids=[1, 2]))]).completions["c", 0]


def test_no_revision_is_the_revision_0() -> None:
    assert merge([agent(name="a"), agent(name="a", revision=0)]).of("agent")["main"].revision == 0
    with pytest.raises(FieldConflict):
        merge([agent(name="a"), agent(name="b", revision=0)])


def test_half_an_event_keeps_its_phase() -> None:
    start, end = episode(phase="start"), episode(phase="end", status="ok")
    assert merge_phases([start]).phase == "start"
    assert merge_phases([end, end.model_copy()]).phase == "end"
    assert merge_phases([end, start]) == episode(status="ok")


@pytest.mark.parametrize("order", [1, -1])
def test_a_field_named_twice_with_different_values_is_a_conflict(order: int) -> None:
    events = [episode(phase="start", task_id="a"), episode(phase="end", task_id="b")]
    with pytest.raises(FieldConflict) as error:
        merge(events[::order])
    assert error.value.status == 409
    assert error.value.values == {
        "kind": "episode",
        "id": "e",
        "field": "task_id",
        "first": "'a'",
        "second": "'b'",
    }


def test_a_conflict_shows_no_more_than_the_beginning_of_long_values() -> None:
    events = [agent(phase=phase, scope_prompt=raw(phase * 100)) for phase in ("start", "end")]
    with pytest.raises(FieldConflict) as error:
        merge(events)
    assert error.value.values["first"] == '"' + ("start" * 100)[:76] + "..."


@pytest.mark.parametrize("order", [1, -1])
def test_opaque_fields_named_twice_agree_byte_for_byte(order: int) -> None:
    start = tool_call(phase="start", result=Raw(b'{"a": 1, "b": 2}'))
    other = tool_call(phase="end", result=Raw(b'{"b":2,"a":1.0}'))
    same = tool_call(phase="end", result=Raw(b'{"a": 1, "b": 2}'), exit_status=0)
    with pytest.raises(FieldConflict, match="field='result'"):
        merge_phases([start, other][::order])
    assert merge_phases([start, same][::order]).result == b'{"a": 1, "b": 2}'


def test_a_null_says_nothing_and_agrees_with_everything() -> None:
    start = episode(phase="start").model_copy(update={"status": None})
    start.model_fields_set.add("status")
    assert merge_phases([start, episode(phase="end", status="ok")]) == episode(status="ok")


@pytest.mark.parametrize("order", [1, -1])
def test_a_null_inside_a_nested_object_agrees_with_everything(order: int) -> None:
    first = call(phase="start", usage=Usage(prompt_tokens=3, cached_tokens=None))
    second = call(phase="end", usage=Usage(prompt_tokens=3, completion_tokens=1))
    usage = merge_phases([first, second][::order]).usage
    assert usage == Usage(prompt_tokens=3, completion_tokens=1)
    assert usage.model_fields_set == {"prompt_tokens", "cached_tokens", "completion_tokens"}


@pytest.mark.parametrize("order", [1, -1])
def test_completions_of_both_halves_are_merged_one_by_one(order: int) -> None:
    first = call(phase="start").model_copy(update={"completions": (answer("a", finish_reason=None),)})
    second = call(phase="end").model_copy(update={"completions": (answer(None, ids=[1]),)})
    (body,) = merge_phases([first, second][::order]).completions or ()
    assert body == answer("a", ids=[1])


@pytest.mark.parametrize("order", [1, -1])
def test_completions_of_both_halves_that_differ_are_a_conflict(order: int) -> None:
    first = call("c", (), answer("a", ids=[1, 2], logprobs=()), phase="start")
    second = call("c", (), answer("a", ids=[1]), phase="end")
    with pytest.raises(FieldConflict, match="field='completions'"):
        merge([first, second][::order])


def test_halves_that_make_no_valid_whole_are_a_conflict() -> None:
    start = call("c", phase="start", parent="p", prompt_ids=[1])
    end = call("c", None, phase="end", parent="p", prompt_ids_delta=[1])
    with pytest.raises(FieldConflict, match="prompt_token_ids or prompt_token_ids_delta"):
        merge([start, end])


def test_a_completion_posted_alone_may_add_to_that_of_its_call() -> None:
    merged = merge([call("c", (), answer("a")), completion("c", 0, answer("a", ids=[1]))])
    body = merged.completions["c", 0]
    assert body.token_ids == TokenIds.of([1])
    assert body.message == answer("a").message
    assert merged.of("call")["c"].completions is None


def test_two_completions_at_one_place_must_agree() -> None:
    with pytest.raises(FieldConflict, match=r"id='c\[0\]', field='message'"):
        merge([call("c", (), "a"), completion("c", 0, "b")])


def test_a_completion_with_other_logprobs_than_ids_is_a_conflict() -> None:
    first = completion("c", 0, answer("a", ids=[1, 2], logprobs=()))
    second = completion("c", 0, answer("a", ids=[1], logprobs=[-1.0]), id="other")
    with pytest.raises(FieldConflict, match="token_ids"):
        merge([first, second])


def test_repeats_change_nothing() -> None:
    events = [call("c", (), answer("a", ids=[1]), usage=None), call("c", (), answer("a", ids=[1]))]
    assert merge(events) == merge(events[:1])
