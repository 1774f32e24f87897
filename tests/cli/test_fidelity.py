from __future__ import annotations

from tests import factories as make
from tracestore.cli.fidelity import Fidelity, readable
from tracestore.wire.events import AnyEvent

QUESTION, ANSWER = make.user("q"), make.assistant("a")


def counted(*events: AnyEvent) -> Fidelity:
    fidelity = Fidelity()
    for event in events:
        fidelity.add(event)
    return fidelity


def messages_in(*events: AnyEvent) -> object:
    return counted(*events).facts()["messages"]


def test_a_context_sent_again_counts_once_and_equal_answers_count_each() -> None:
    first = make.call("c0", [QUESTION], ANSWER["content"], ANSWER["content"])
    again = make.call("c1", [QUESTION, ANSWER, QUESTION], "b", parent="c0", completion=0)
    # q, two answers, q again at another place, b
    assert messages_in(first, again) == 5


def test_a_delta_counts_on_from_its_parent_and_halves_of_a_call_count_as_the_whole() -> None:
    start = make.call("c0", [QUESTION], phase="start")
    end = make.call("c0", None, "a", phase="end")
    delta = make.call("c1", [make.user("r")], "b", parent="c0", delta=True)
    assert messages_in(start, end, delta) == 4


def test_answers_posted_on_their_own_count() -> None:
    assert messages_in(make.call("c0", [QUESTION]), make.completion("c0", 0), make.completion("c0", 1)) == 3


def test_what_is_missing_is_counted_by_its_cause() -> None:
    facts = counted(make.gap("g1", "a"), make.gap("g2", "b"), make.gap("g1", "a")).facts()
    assert facts["gaps"] == 2
    assert facts["gap_causes"] == {"a": 1, "b": 1}


def test_a_set_counts_as_its_highest_revision_says_in_whatever_order_it_comes() -> None:
    grown = make.candidate_set("s", make.member("c0"), make.member("c1"), make.member("c2"), revision=2)
    first = make.candidate_set("s", make.member("c0"), make.member("c1"), revision=1)
    expected = {"sampled": 3, "selected": 0, "not_selected": 3}
    assert counted(first, grown).facts()["candidates"] == expected
    assert counted(grown, first).facts()["candidates"] == expected


def test_a_report_for_people_leaves_out_what_is_zero_or_unknown() -> None:
    became = {"stored": 1, "duplicates": 0, "refused": 0}
    lines = list(readable(counted(make.episode()).facts() | became))
    assert [line.split("  ")[0] for line in lines] == [
        "episodes",
        "calls",
        "stored now",
        "stored before",
        "refused",
    ]
