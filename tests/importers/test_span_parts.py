"""Spans that come in parts: any order, any division, and a server that forgets in between give one graph."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.importers.test_otlp import (
    ALL,
    ASKED,
    CALL,
    RESULT,
    SAID,
    SUB,
    SUB_CALL,
    TOOL,
    TRACE,
    USE,
    USER,
    parts,
    span,
)
from tracestore.graph.build import build
from tracestore.graph.merge import merge_phases
from tracestore.graph.model import Graph
from tracestore.importers import otlp, span_parts
from tracestore.importers.notes import Notes
from tracestore.importers.span_known import SUPERSEDED, WRAPPER, Trace
from tracestore.wire.events import AnyEvent, phase_of, revision_of
from tracestore.wire.limits import LIMITS

Record = dict[str, Any]


class Memory:
    """What a store does with the events of one trace, in a dict."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, str], dict[str, AnyEvent]] = {}
        self.num_replaced = 0
        self.notes = Notes()
        self.trace = Trace(TRACE, self.load)

    def load(self, kind: str, id_: str) -> AnyEvent:
        return merge_phases(list(self.events[kind, id_].values()))

    def restart(self) -> None:
        """Forget all but the events."""
        self.trace = Trace(TRACE, self.load)
        self.trace.take_all(merge_phases(list(one.values())) for one in self.events.values())

    def post(self, *records: Record) -> None:
        found = [
            otlp.span_of({"span": dict(record)}, at=record["name"], notes=self.notes) for record in records
        ]
        told = [one for one in found if one is not None]
        for item, span_id in span_parts.parts(self.trace, told, notes=self.notes, limits=LIMITS):
            assert span_id
            self._store(item.event)
            self.trace.take(item.event)
        self.trace.prune()

    def _store(self, event: AnyEvent) -> None:
        phases = self.events.setdefault((event.kind, event.id), {})
        before = phases.get(phase_of(event))
        if before is not None:
            assert event != before, f"{event.kind} {event.id} is posted again, and says the same"
            assert revision_of(event) > revision_of(before), f"{event.kind} {event.id} contradicts itself"
            self.num_replaced += 1
        phases[phase_of(event)] = event

    @property
    def graph(self) -> Graph:
        return build([event for phases in self.events.values() for event in phases.values()])


def comparable(graph: Graph) -> dict[str, Any]:
    """A graph without what the module says may differ."""

    def plain(event: Any) -> Any:
        fields = (
            event.model_dump(exclude={"revision"}, exclude_none=True)
            if isinstance(event, BaseModel)
            else None
        )
        return event if fields is None else fields

    wrappers = {call.id for call in graph.calls.values() if call.purpose == WRAPPER}
    found: dict[str, Any] = {}
    for name in (one.name for one in dataclasses.fields(graph)):
        one = getattr(graph, name)
        if name in ("prompt_node", "links"):
            one = {id_: value for id_, value in one.items() if id_ not in wrappers}
        elif isinstance(one, dict):
            one = {
                id_: plain(event)
                for id_, event in one.items()
                if getattr(event, "cause", None) != SUPERSEDED
                and id_ not in wrappers
                and getattr(event, "call_id", None) not in wrappers
            }
        else:
            one = plain(one)
        found[name] = one
    return found


def assert_one_graph(
    records: Sequence[Record], order: Sequence[int], cuts: Sequence[int], restart: bool
) -> Memory:
    whole = Memory()
    whole.post(*records)
    split = Memory()
    edges = [0, *sorted(cuts), len(records)]
    waiting: list[Record] = []
    for start, end in itertools.pairwise(edges):
        waiting += [records[order[place]] for place in range(start, end)]
        split.post(*waiting)
        # As a server does that was sent nothing of a trace but other spans.
        waiting = [] if split.events else waiting
        if restart:
            split.restart()
    assert comparable(split.graph) == comparable(whole.graph)
    return split


# An agent in a chain in a server's span, steps of it, a sub-agent asked for by a tool, a wrapper of a call.
STEPS: tuple[Record, ...] = (
    span(50, None, "POST /run"),
    span(51, 50, "workflow", openinference__span__kind="CHAIN"),
    span(1, 51, "invoke_agent", gen_ai__operation__name="invoke_agent", gen_ai__agent__name="main"),
    span(52, 1, "step 1", openinference__span__kind="CHAIN"),
    CALL | {"parentSpanId": f"{52:016x}"},
    TOOL | {"parentSpanId": f"{52:016x}"},
    SUB,
    span(53, 4, "step", openinference__span__kind="CHAIN"),
    SUB_CALL | {"parentSpanId": f"{53:016x}"},
    span(54, 1, "step 2", openinference__span__kind="CHAIN"),
    span(
        7,
        54,
        "ChatOpenAI",
        openinference__span__kind="LLM",
        llm__token_count__prompt=10,
        gen_ai__input__messages=parts(USER, ASKED, RESULT),
        gen_ai__output__messages=parts(SAID),
    ),
    span(55, 7, "POST api"),
    span(
        8,
        55,
        "chat",
        gen_ai__operation__name="chat",
        gen_ai__usage__input_tokens=10,
        gen_ai__conversation__compacted=True,
        gen_ai__input__messages=parts(USER, ASKED, RESULT),
        gen_ai__output__messages=parts(SAID),
    ),
)


@st.composite
def divisions(draw: st.DrawFn, count: int) -> tuple[list[int], list[int], bool]:
    """An order of spans, where it is cut into requests, and whether the server forgets after each."""
    order = draw(st.permutations(range(count)))
    cuts = draw(st.lists(st.integers(0, count), max_size=5))
    return order, cuts, draw(st.booleans())


@settings(max_examples=40, deadline=None)
@given(divisions(len(STEPS)))
def test_any_order_and_any_division_into_requests_give_one_graph(
    how: tuple[list[int], list[int], bool],
) -> None:
    assert_one_graph(STEPS, *how)


@st.composite
def traces(draw: st.DrawFn) -> tuple[Record, ...]:
    """A whole trace: any tree of calls, tools, agents and other spans. Each tool use has one id."""
    drawn = draw(st.lists(st.sampled_from(["call", "agent", "tool", "other"]), max_size=9))
    kinds = draw(st.permutations(["call", *drawn]))
    asked = [number for number, kind in enumerate(kinds) if kind == "call" and draw(st.booleans())]
    # Two spans of one tool use cannot be told apart but by what came first.
    free = draw(st.permutations(asked))
    found = []
    for number, kind in enumerate(kinds):
        parent = draw(st.integers(1, number)) if number else None
        told = [one for one in asked if one != number and draw(st.booleans())]
        use_of = free.pop() if kind == "tool" and free and draw(st.booleans()) else None
        said = _said(kind, number, use_of, asks=number in asked, told=told)
        found.append(span(number + 1, parent, f"{kind} {number}", **said))
    return tuple(found)


def _said(kind: str, number: int, use_of: int | None, *, asks: bool, told: list[int]) -> dict[str, Any]:
    if kind == "call":
        answer = {**ASKED, "tool_calls": [{**USE, "id": f"use{number}"}]} if asks else SAID
        results = [{**RESULT, "tool_call_id": f"use{one}"} for one in told]
        messages = {
            "gen_ai__input__messages": parts(USER, *results),
            "gen_ai__output__messages": parts(answer),
        }
        return {"gen_ai__operation__name": "chat", **messages}
    if kind == "agent":
        return {"gen_ai__operation__name": "invoke_agent"}
    if kind == "other":
        return {"openinference__span__kind": "CHAIN"}
    named = {"gen_ai__tool__call__id": f"use{use_of}", "gen_ai__tool__name": "look"}
    return {"gen_ai__operation__name": "execute_tool", **named, "gen_ai__tool__call__result": f"r{number}"}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_tree_of_spans_in_any_order_and_division_gives_one_graph(data: st.DataObject) -> None:
    records = data.draw(traces())
    assert_one_graph(records, *data.draw(divisions(len(records))))


@pytest.mark.soak
@settings(max_examples=1_500, deadline=None)
@given(st.data())
def test_a_great_many_trees_give_one_graph_each(data: st.DataObject) -> None:
    records = data.draw(traces())
    assert_one_graph(records, *data.draw(divisions(len(records))))


@settings(max_examples=20, deadline=None)
@given(divisions(len(ALL)))
def test_the_same_holds_for_a_trace_whose_root_is_an_agent(how: tuple[list[int], list[int], bool]) -> None:
    split = assert_one_graph(ALL, *how)
    # Calls right below their agents are never written again.
    assert all(call.revision is None for call in split.graph.calls.values())
