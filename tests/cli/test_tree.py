from __future__ import annotations

from tests import factories as make
from tracestore.cli.tree import tree_lines
from tracestore.graph.build import build
from tracestore.wire.events import AnyEvent


def tree(*events: AnyEvent) -> str:
    return "\n".join(tree_lines(build(events)))


def test_a_subagent_hangs_from_the_call_that_spawned_it() -> None:
    shown = tree(
        make.episode(status="ok", split="train", group_id="g"),
        make.agent(role="orchestrator", model="policy"),
        make.call("c0", [], make.answer("ask", ids=[5, 6]), ordinal=0, purpose="act"),
        make.subagent("helper", spawned_by="c0", score=0.5, trainable=False, finding_used=True),
        make.call("c1", [], make.answer("found", ids=[7]), agent="helper", ordinal=0),
        make.call("c2", [], make.answer("done", ids=[8] * 1200, finish_reason="length"), ordinal=1),
        make.reward("r", 1.0, name="solved"),
        make.reward("q", 0.25, name="format", call_id="c2"),
    )
    assert shown.splitlines() == [
        "episode e  ok  train  group g  solved=1",
        "└─ agent main  orchestrator  policy",
        "   ├─ call c0  act  -> 2 tokens, stop",
        "   │  └─ agent helper  subagent  not trained  score=0.5  finding used",
        "   │     └─ call c1  -> 1 token, stop",
        "   └─ call c2  -> 1,200 tokens, length  format=0.25",
    ]


def test_edits_and_candidate_sets_hang_from_the_calls_they_concern() -> None:
    shown = tree(
        make.episode(),
        make.agent(),
        make.call("c0", [], "a", "b", ordinal=0),
        make.call("c1", [], "c", ordinal=1),
        make.candidate_set("plans", make.member("c0", 0), make.member("c0", 1)),
        make.selection("s", "plans", 1),
        make.compaction("k", before_call_id="c1", status="accepted", tokens_before=9000, tokens_after=800),
        make.gap("gap", "no_token_ids"),
    )
    assert shown.splitlines() == [
        "episode e",
        "├─ agent main",
        "│  ├─ call c0  -> stop  -> stop",
        "│  │  └─ set plans  2 candidates, kept 1",
        "│  └─ call c1  -> stop",
        "│     └─ compaction k  accepted  9,000 -> 800 tokens",
        "└─ gap  no_token_ids",
    ]


def test_what_was_never_posted_is_said_and_hides_nothing() -> None:
    shown = tree(
        make.call("c0", [], "a", agent="ghost"),
        make.agent("child", parent_agent_id="nobody"),
    )
    assert shown.splitlines() == [
        "episode (not posted)",
        "├─ agent ghost  (not posted)",
        "│  └─ call c0  -> stop",
        "└─ agent child",
    ]


def test_agents_in_a_cycle_are_each_shown_once() -> None:
    shown = tree(
        make.episode(),
        make.agent("a", parent_agent_id="b"),
        make.agent("b", parent_agent_id="a"),
    )
    assert shown.splitlines() == [
        "episode e",
        "└─ agent a  (spawned in a cycle)",
        "   └─ agent b",
    ]


def test_two_thousand_nested_agents_are_drawn_without_recursion() -> None:
    agents = [make.agent("a0"), *(make.agent(f"a{n}", parent_agent_id=f"a{n - 1}") for n in range(1, 2_000))]
    assert tree(make.episode(), *agents).splitlines()[-1].endswith("└─ agent a1999")


def test_recorded_names_cannot_write_to_the_terminal() -> None:
    assert "\x1b" not in tree(make.episode(), make.agent(role="\x1b]0;title\x07"))
