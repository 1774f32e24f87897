"""Pictures of episodes: complete, bounded, well-formed, and never led astray by recorded text."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import factories as make
from tests.factories import assistant, call, compaction, member, subagent, user
from tests.sample_traces.traces import NAMES, graphs_of, trace_events
from tests.strategies import episodes
from tracestore.analysis.drawing import MAX_BOXES, Drawing, drawing
from tracestore.analysis.episode import Episode
from tracestore.analysis.mermaid import mermaid_of
from tracestore.analysis.svg import BOX_HEIGHT, svg_of
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.wire.events import AnyEvent

SVG = "{http://www.w3.org/2000/svg}"
_BOX = re.compile(r'    (n\d+)(?:\(\[|\[\[|\[/|\[|\{\{)"([^"]*)"(?:\]\)|\]\]|/\]|\]|\}\})')
_ARROW = re.compile(r"    (n\d+) [-=.]+>?-?(?:\|\w+\|)? (n\d+)")


def chain(count: int, *, agent: str = "main", prefix: str = "c") -> list[AnyEvent]:
    """Calls that each go on from the one before."""
    asked = [user("u")]
    calls: list[AnyEvent] = []
    for index in range(count):
        calls.append(call(f"{prefix}{index}", asked, f"a{index}", ordinal=index, agent=agent))
        asked = [*asked, assistant(f"a{index}"), user("next")]
    return calls


def labels(found: Drawing) -> list[str]:
    return [box.label for box in found.boxes]


def require_well_drawn(found: Drawing) -> None:
    """Both pictures hold every box and arrow, and nothing else."""
    names = [box.name for box in found.boxes]
    assert len(set(names)) == len(names)
    assert all(arrow.start in names and arrow.end in names for arrow in found.arrows)
    picture = ElementTree.fromstring(svg_of(found))
    assert len(picture.findall(f"{SVG}g")) == len(names)
    assert len(picture.findall(f"{SVG}path")) == len(found.arrows)
    assert {one.tag.removeprefix(SVG) for one in picture.iter()} <= {
        "svg",
        "title",
        "rect",
        "g",
        "text",
        "path",
    }
    tops = [int(one.attrib["y"]) for one in picture.findall(f"{SVG}g/{SVG}rect")]
    assert all(below - above > BOX_HEIGHT for above, below in pairwise(tops))
    first, *lines = mermaid_of(found).splitlines()
    assert first == "flowchart TD"
    assert sum(_BOX.fullmatch(line) is not None for line in lines) == len(names)
    assert sum(_ARROW.fullmatch(line) is not None for line in lines) == len(found.arrows)
    assert len([line for line in lines if not line.startswith("    class")]) == len(names) + len(found.arrows)


@settings(max_examples=40)
@given(events=episodes(), max_boxes=st.integers(1, 12))
def test_every_episode_can_be_drawn_whole_and_folded(events: list[AnyEvent], max_boxes: int) -> None:
    graph = build(events)
    whole = drawing(graph, "e")
    require_well_drawn(whole)
    assert whole.num_folded == 0
    assert {box.name[1] for box in whole.boxes if box.kind == "call"} == set(graph.calls)
    assert {box.name[1] for box in whole.boxes if box.kind == "edit"} == set(graph.context_edits)
    folded = drawing(graph, "e", max_boxes=max_boxes)
    require_well_drawn(folded)
    assert len(folded.boxes) == min(len(folded.boxes), max_boxes)
    assert folded.num_folded == len(whole.boxes) - len(folded.boxes)


@pytest.mark.parametrize("name", NAMES)
def test_the_sample_traces_are_drawn(name: str) -> None:
    for graph in graphs_of(trace_events(name)):
        require_well_drawn(drawing(graph, "e"))


def test_a_subagent_stands_below_the_call_that_spawned_it_one_lane_to_the_right() -> None:
    graph = build(
        [
            make.episode(status="ok"),
            make.agent(role="main"),
            subagent("sub", spawned_by="c0", score=0.5),
            *chain(2),
            *chain(1, agent="sub", prefix="s"),
            compaction("x", before_call_id="c1", author_call_id="c1", tokens_before=1200, tokens_after=300),
            make.reward(value=0.25, name="task"),
        ]
    )
    found = drawing(graph, "e")
    assert [(box.label, box.lane) for box in found.boxes] == [
        ("episode e · ok · task=0.25", 0),
        ("main", 0),
        ("call 0", 0),
        ("subagent · score=0.5", 1),
        ("call 0", 1),
        ("call 1", 0),
        ("compaction · 1,200 → 300 tokens", 0),
    ]
    assert {(start[1], end[1], kind) for start, end, kind in found.arrows} == {
        ("main", "c0", "made"),
        ("c0", "c1", "continuation"),
        ("c0", "sub", "spawn"),
        ("sub", "s0", "made"),
        ("c1", "x", "edit"),
    }


def test_what_was_not_chosen_is_told_from_what_was() -> None:
    graph = build(
        [
            call("c0", [user("u")], "a", "b"),
            call("c1", [user("v")], "c"),
            make.candidate_set("s", member("c0", 0), member("c0", 1), member("c1")),
            make.selection("k", "s", 1),
        ]
    )
    found = {box.name[1]: box for box in drawing(graph, "e").boxes}
    assert found["c0"].label == "call · 2 answers · kept 1"
    assert (found["c0"].is_rejected, found["c1"].is_rejected) == (False, True)
    assert "class n3 rejected" in mermaid_of(drawing(graph, "e"))


def big(num_agents: int, num_calls: int) -> Graph:
    parts = [subagent(f"s{i}", spawned_by="c0", trainable=True) for i in range(num_agents)]
    below = [one for i in range(num_agents) for one in chain(num_calls, agent=f"s{i}", prefix=f"s{i}-")]
    return build([make.episode(), make.agent(), *parts, *chain(2), *below])


def test_a_long_run_of_calls_is_one_box_when_the_picture_would_be_too_large() -> None:
    found = drawing(build([make.episode(), make.agent(), *chain(9)]), "e", max_boxes=5)
    # 11 boxes; c0 is tied to its agent, nothing follows c8: c1 to c7 fold, 7 boxes into one.
    assert labels(found) == ["episode e", "agent", "call 0", "… 7 calls", "call 8"]
    assert found.num_folded == 11 - 5


def test_subagents_fold_into_their_box_and_what_does_not_fit_is_counted() -> None:
    graph = big(num_agents=3, num_calls=2)  # boxes: 1 + 1 + 2 + 3 * 3 = 13
    assert labels(drawing(graph, "e", max_boxes=7)) == [
        *("episode e", "agent", "call 0"),
        *["subagent · 2 calls"] * 3,
        "call 1",
    ]
    # 7 are left after that, 3 of them fit beside the last box.
    assert labels(drawing(graph, "e", max_boxes=4))[-1] == "… 4 more, not drawn"


def test_an_agent_tree_as_deep_as_can_be_is_drawn() -> None:
    agents = [
        make.agent("a0"),
        *(subagent(f"a{i}", spawned_by=f"c{i}", parent=f"a{i - 1}") for i in range(1, 1500)),
    ]
    found = drawing(build([make.episode(), *agents]), "e", max_boxes=5000)
    assert [box.lane for box in found.boxes[1:]] == list(range(1500))
    assert int(ElementTree.fromstring(svg_of(found)).attrib["width"]) < 3000


@settings(max_examples=30)
@given(name=st.text(min_size=1, max_size=20))
def test_recorded_text_stays_text(name: str) -> None:
    graph = build([make.episode(), make.agent(role=name)])
    require_well_drawn(drawing(graph, 'e"]\n--> x<script>alert(1)</script>'))


def test_labels_are_escaped_for_what_they_stand_in() -> None:
    graph = build([make.agent(role='<b>"]; `#quot;&\x1b\u202e')])
    svg, text = Episode("e", graph).svg(), Episode("e", graph).mermaid()
    assert "&lt;b&gt;&quot;]; `#quot;&amp;\ufffd\ufffd" in svg
    assert 'n1[["#60;b#62;#34;#93;#59; #96;#35;quot#59;#38;#65533;#8238;"]]' in text


def test_a_notebook_shows_the_picture() -> None:
    episode = Episode("e", build([make.episode(), make.agent()]))
    assert episode._repr_svg_() == episode.svg()
    assert repr(episode) == "<Episode e: 1 agents, 0 calls>"
    assert MAX_BOXES == 200
