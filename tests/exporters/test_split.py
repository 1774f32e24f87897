from __future__ import annotations

from collections import Counter

import pytest

from tests import factories as make
from tests.exporters.planned import causes, chains, key, planned, reasons, sample_ids
from tests.scenarios import SCENARIOS, Scenario
from tracestore.graph.build import build
from tracestore.wire.base import Raw
from tracestore.wire.events import AnyEvent
from tracestore_exporters.rows import GroupInfo, plan_row
from tracestore_exporters.spec import Spec

IMAGE, OTHER = "a" * 64, "b" * 64


def seen(call_id: str, hash_: str | None, position: int = 1) -> list[AnyEvent]:
    return (
        []
        if hash_ is None
        else [make.blob(f"b-{call_id}", hash_, call_id=call_id, role="image", position=position)]
    )


@pytest.mark.parametrize("named", [False, True], ids=["matched", "named"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_sampled_token_of_a_scenario_is_lost_doubled_or_made_up(name: str, named: bool) -> None:
    scenario = SCENARIOS[name]().named if named else SCENARIOS[name]()
    row = planned(scenario.events)
    assert chains(row) == scenario.samples
    assert row.num_trained == scenario.sampled_tokens == sum(sample.num_owned for sample in row.samples)
    for call_id, ids in recorded(scenario).items():
        held = [s.sample_id for s in row.samples if (call_id, 0) in {key(row, c) for c in s.completions}]
        assert held
        assert all(sample_ids(row, one)[: len(ids)] == ids for one in held)


def recorded(scenario: Scenario) -> dict[str, list[int]]:
    """Call id -> prompt ids ++ sampled ids, straight from the events."""
    found = {}
    for call in scenario.calls:
        assert call.completions is not None
        assert call.completions[0].token_ids is not None
        assert call.prompt_token_ids is not None
        found[call.id] = call.prompt_token_ids.json() + call.completions[0].token_ids.json()
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", {"c2:0": "root"}),
        ("fork_after_sampled", {"b:0": "root", "c:0": "fork"}),
        ("bestof4", {"p0:0": "root", "p1:0": "root", "w:0": "root", "p3:0": "root"}),
        ("retokenized_parent", {"a:0": "root", "b:0": "template_drift"}),
        ("interleaved_subagents", {"A2:0": "root", "B2:0": "subagent_root"}),
        ("compaction", {"sum:0": "root", "d1:0": "compaction"}),
        ("rewritten_assistant", {"a:0": "root", "b:0": "rewrite"}),
        ("tools_change", {"a:0": "root", "b:0": "tools_change"}),
    ],
)
def test_every_boundary_carries_its_cause(name: str, expected: dict[str, str]) -> None:
    assert causes(planned(SCENARIOS[name]().events)) == expected


def test_prime_rls_own_branch_test() -> None:
    # verifiers tests/v1/test_graph.py: turn 1 [1,2,3] -> [4,5]; turn 2 [1,2,3,4,5,6,7] -> [8] is one branch,
    # turn 2 [1,2,3,99,5,6,7] -> [8] makes two.
    first = make.call("c0", None, make.answer(None, ids=[4, 5]), prompt_ids=[1, 2, 3], ordinal=0)

    def second(prompt: list[int]) -> AnyEvent:
        return make.call("c1", None, make.answer(None, ids=[8]), prompt_ids=prompt, ordinal=1, parent="c0")

    one = planned([first, second([1, 2, 3, 4, 5, 6, 7])])
    assert chains(one) == ((("c0", 0), ("c1", 0)),)
    two = planned([first, second([1, 2, 3, 99, 5, 6, 7])])
    assert sample_ids(two, "c0:0") == [1, 2, 3, 4, 5]
    assert sample_ids(two, "c1:0") == [1, 2, 3, 99, 5, 6, 7, 8]


def test_a_prefix_that_breaks_inside_the_answer_shares_what_agrees_and_trains_all() -> None:
    # The shape of NeMo-Gym's round-trip file: prompt 3,088 + 495 sampled, next prompt 3,637, common prefix
    # 3,089; 207 sampled after it: 495 + 207 = 702.
    prompt = list(range(1000, 1000 + 3088))
    answer = [5, *range(10_000, 10_494)]
    after = [*prompt, 5, *range(20_000, 20_548)]
    row = planned(
        [
            make.call("a", [make.user("u")], make.answer("x", ids=answer), prompt_ids=prompt, ordinal=0),
            make.call(
                "b",
                [make.user("u"), make.assistant("x"), make.user("v")],
                make.answer("y", ids=range(30_000, 30_207)),
                prompt_ids=after,
                ordinal=1,
            ),
        ]
    )
    assert len(row.samples) == 2
    assert row.num_trained == 702
    assert causes(row)["b:0"] == "template_drift"
    # Stored once: 3,088 + 1 shared, then 494, and 548 + 207.
    assert row.segments.length.tolist() == [3088, 1, 494, 548, 207]


def test_a_length_truncated_turn_is_continued_without_anything_between() -> None:
    row = planned(
        [
            make.call(
                "a", None, make.answer(None, ids=[4, 5], finish_reason="length"), prompt_ids=[1], ordinal=0
            ),
            make.call("b", None, make.answer(None, ids=[6]), prompt_ids=[1, 4, 5], ordinal=1),
        ]
    )
    assert chains(row) == ((("a", 0), ("b", 0)),)
    assert row.num_trained == 3


def test_an_empty_answer_makes_no_sample_and_breaks_none() -> None:
    row = planned(
        [
            make.call("a", None, make.answer(None, ids=[4]), prompt_ids=[1], ordinal=0),
            make.call("b", None, make.answer(None, ids=[]), prompt_ids=[1, 4, 2], ordinal=1),
            make.call("c", None, make.answer(None, ids=[5]), prompt_ids=[1, 4, 2], ordinal=2),
        ]
    )
    assert chains(row) == ((("a", 0), ("c", 0)),)
    assert [entry.num_tokens for entry in row.completions] == [1, 0, 1]


def test_identical_requests_are_several_samples() -> None:
    calls = [
        make.call(f"c{n}", [make.user("u")], make.answer("a", ids=[4, 5]), prompt_ids=[1], ordinal=n)
        for n in range(3)
    ]
    row = planned(calls)
    assert len(row.samples) == 3
    assert row.num_trained == 6


def test_four_answers_of_one_call_are_four_samples_and_the_chosen_one_goes_on() -> None:
    answers = [make.answer(f"plan {n}", ids=[10, 20 + n]) for n in range(4)]
    row = planned(
        [
            make.call("p", [make.user("u")], *answers, prompt_ids=[1, 2], ordinal=0),
            make.call(
                "w",
                [make.user("u"), make.assistant("plan 2"), make.user("go")],
                make.answer("done", ids=[7]),
                prompt_ids=[1, 2, 10, 22, 3],
                ordinal=1,
            ),
        ]
    )
    assert chains(row) == ((("p", 0),), (("p", 1),), (("p", 2), ("w", 0)), (("p", 3),))
    # Siblings never share a segment, however alike they begin: 2 + 4 x 2 + 1 + 1 tokens.
    assert len(row.token_ids) == 12


def test_among_equal_siblings_the_named_one_goes_on() -> None:
    same = [make.answer("same", ids=[10]) for _ in range(3)]
    row = planned(
        [
            make.call("p", [make.user("u")], *same, prompt_ids=[1], ordinal=0),
            make.call(
                "w",
                [make.user("u"), make.assistant("same"), make.user("go")],
                make.answer("done", ids=[7]),
                prompt_ids=[1, 10, 3],
                ordinal=1,
                parent="p",
                completion=2,
            ),
        ]
    )
    assert chains(row) == ((("p", 0),), (("p", 1),), (("p", 2), ("w", 0)))


def test_the_same_answers_in_two_episodes_stay_with_their_episode() -> None:
    def events(name: str) -> list[AnyEvent]:
        return [
            make.episode(name),
            make.call(
                f"{name}a",
                None,
                make.answer(None, ids=[4]),
                prompt_ids=[1],
                ordinal=0,
                episode=name,
                agent=name,
            ),
            make.call(
                f"{name}b",
                None,
                make.answer(None, ids=[5]),
                prompt_ids=[1, 4, 2],
                ordinal=1,
                episode=name,
                agent=name,
            ),
        ]

    row = planned(events("e1"), events("e2"))
    assert chains(row) == ((("e1a", 0), ("e1b", 0)), (("e2a", 0), ("e2b", 0)))
    # The prompt is shared, nothing after the first sampled token is.
    assert row.segments.length.tolist() == [1, 1, 1, 1, 1, 1, 1]


def test_a_subagent_that_starts_from_its_parents_whole_context_shares_it_and_trains_only_its_own() -> None:
    row = planned(
        [
            make.agent("main"),
            make.agent("sub", parent_agent_id="main"),
            make.call("a", None, make.answer(None, ids=[4, 5]), prompt_ids=[1], ordinal=0),
            make.call("s", None, make.answer(None, ids=[6]), prompt_ids=[1, 4, 5, 2], ordinal=0, agent="sub"),
        ]
    )
    assert chains(row) == ((("a", 0),), (("s", 0),))
    assert causes(row)["s:0"] == "subagent_root"
    assert len(row.token_ids) == 5
    assert [sample.num_owned for sample in row.samples] == [2, 1]


def test_a_forked_episode_copies_its_history_unsampled() -> None:
    origin = [
        make.episode("e1"),
        make.call("a", None, make.answer(None, ids=[4]), prompt_ids=[1], ordinal=0, episode="e1", agent="m1"),
    ]
    fork = [
        make.episode("e2", forked_from_episode_id="e1", forked_from_call_id="a"),
        make.call(
            "b", None, make.answer(None, ids=[5]), prompt_ids=[1, 4, 2], ordinal=0, episode="e2", agent="m2"
        ),
    ]
    row = planned(origin, fork)
    assert row.num_trained == 2
    assert causes(row) == {"a:0": "root", "b:0": "fork"}
    assert [(e.episode_id, e.in_statistics) for e in row.episodes] == [("e1", True), ("e2", True)]


def test_a_memory_rewritten_each_turn_makes_a_sample_each_turn() -> None:
    # MEM1: the next prompt is the question and the last block only.
    calls, edits = [], []
    for turn in range(3):
        prompt = [1, 2] if turn == 0 else [1, 2, 30 + turn, 40 + turn]
        calls.append(
            make.call(f"t{turn}", None, make.answer(None, ids=[50 + turn]), prompt_ids=prompt, ordinal=turn)
        )
        if turn:
            edits.append(
                make.compaction(f"x{turn}", edit="rewrite", after_call_id=f"t{turn}", status="accepted")
            )
    row = planned([*calls, *edits])
    assert causes(row) == {"t0:0": "root", "t1:0": "rewrite", "t2:0": "rewrite"}


def test_a_retry_of_an_edited_context_begins_for_the_same_reason() -> None:
    row = planned(
        [
            make.call("a", None, make.answer(None, ids=[4]), prompt_ids=[1, 2], ordinal=0),
            make.call("b", None, make.answer(None, ids=[5]), prompt_ids=[1, 3], ordinal=1),
            make.call("c", None, make.answer(None, ids=[6]), prompt_ids=[1, 3], ordinal=2),
            make.compaction(edit="truncation", before_call_id="a", status="accepted"),
        ]
    )
    assert causes(row) == {"a:0": "root", "b:0": "truncation", "c:0": "truncation"}


def test_a_rejected_edit_causes_nothing() -> None:
    row = planned(
        [
            make.call("a", None, make.answer(None, ids=[4]), prompt_ids=[1, 2], ordinal=0),
            make.call("b", None, make.answer(None, ids=[5]), prompt_ids=[1, 3], ordinal=1),
            make.compaction(before_call_id="a", status="rejected"),
        ]
    )
    assert causes(row)["b:0"] == "unknown"


def test_a_kept_tail_is_not_sampled_again() -> None:
    # [1] -> 4; [1 4 2] -> 5; then the context is the summary 9 and the kept tail 4 2 5.
    row = planned(
        [
            make.call("a", None, make.answer(None, ids=[4]), prompt_ids=[1], ordinal=0),
            make.call("b", None, make.answer(None, ids=[5]), prompt_ids=[1, 4, 2], ordinal=1),
            make.call("c", None, make.answer(None, ids=[6]), prompt_ids=[9, 4, 2, 5, 3], ordinal=2),
            make.compaction(after_call_id="c", kept_call_ids=("a", "b"), author="harness", status="accepted"),
        ]
    )
    assert row.num_trained == 3
    assert reasons(row) == {"a": ["trained"], "b": ["trained"], "c": ["trained"]}
    assert causes(row)["c:0"] == "compaction"


def test_a_delta_call_offers_the_tools_of_the_call_it_continues() -> None:
    tools = [{"type": "function", "function": {"name": "x"}}]
    row = planned(
        [
            make.call(
                "a", [make.user("u")], make.answer("v", ids=[4]), prompt_ids=[1], ordinal=0, tools=tools
            ),
            make.call(
                "b",
                [make.user("w")],
                make.answer("x", ids=[5]),
                prompt_ids_delta=[2],
                ordinal=1,
                parent="a",
                delta=True,
            ),
        ]
    )
    assert chains(row) == ((("a", 0), ("b", 0)),)


def test_an_image_survives_an_empty_answer_in_between() -> None:
    chat = [make.user("u")]
    again = [*chat, make.assistant("a"), make.user("v")]
    then = [*again, make.assistant(""), make.user("w")]
    row = planned(
        [
            make.call("c0", chat, make.answer("a", ids=[5]), prompt_ids=[1, 7], ordinal=0),
            make.call("c1", again, make.answer("", ids=[]), prompt_ids=[1, 7, 5, 2], ordinal=1),
            make.call("c2", then, make.answer("x", ids=[6]), prompt_ids=[1, 7, 5, 2, 3], ordinal=2),
            *seen("c0", IMAGE),
        ]
    )
    assert chains(row) == ((("c0", 0), ("c2", 0)),)


def test_the_same_tools_in_another_spelling_are_the_same_tools() -> None:
    tools = ['[{"type": "function", "name": "x"}]', '[{"name":"x","type":"function"}]']
    row = planned(
        [
            make.call("a", None, make.answer(None, ids=[4]), prompt_ids=[1], ordinal=0).model_copy(
                update={"request": Raw(b'{"tools":' + tools[0].encode() + b"}")}
            ),
            make.call("b", None, make.answer(None, ids=[5]), prompt_ids=[1, 4, 2], ordinal=1).model_copy(
                update={"request": Raw(b'{"tools":' + tools[1].encode() + b"}")}
            ),
        ]
    )
    assert len(row.samples) == 1


def test_no_tools_and_an_empty_list_are_the_same() -> None:
    row = planned(
        [
            make.call("a", [make.user("u")], make.answer("v", ids=[4]), prompt_ids=[1], ordinal=0, tools=[]),
            make.call("b", None, make.answer(None, ids=[5]), prompt_ids=[1, 4, 2], ordinal=1),
        ]
    )
    assert len(row.samples) == 1


def test_two_thousand_tries_at_one_edited_context_begin_for_one_reason() -> None:
    first = make.call("a", None, make.answer(None, ids=[4]), prompt_ids=[1, 2], ordinal=0)
    tries = [
        make.call(f"t{n}", None, make.answer(None, ids=[5]), prompt_ids=[1, 3], ordinal=1 + n)
        for n in range(2000)
    ]
    edit = make.compaction(edit="fold", after_call_id="t0", status="accepted")
    row = planned([first, *tries, edit])
    assert Counter(causes(row).values()) == {"root": 1, "fold": 2000}


def test_the_order_of_episodes_changes_nothing() -> None:
    one, other = (
        build(
            [make.episode(n), make.call(f"{n}c", None, make.answer(None, ids=[4]), prompt_ids=[1], episode=n)]
        )
        for n in ("e1", "e2")
    )
    first = plan_row([one, other], Spec(), GroupInfo("p", ("e1", "e2"), "g"))
    second = plan_row([other, one], Spec(), GroupInfo("p", ("e2", "e1"), "g"))
    assert first.samples == second.samples
    assert first.token_ids.tobytes() == second.token_ids.tobytes()


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [(IMAGE, IMAGE, 4), (IMAGE, OTHER, 1), (IMAGE, None, 1), (None, OTHER, 1), (None, None, 4)],
)
def test_equal_ids_are_shared_only_up_to_the_first_different_image(
    first: str | None, second: str | None, shared: int
) -> None:
    calls = [
        make.call(f"c{n}", None, make.answer(None, ids=[5 + n]), prompt_ids=[1, 7, 7, 2], ordinal=n)
        for n in range(2)
    ]
    row = planned([*calls, *seen("c0", first), *seen("c1", second)])
    assert row.segments.length[0] == shared
    assert len(row.token_ids) == shared + 2 * (4 - shared) + 2
    assert row.num_trained == 2


def test_other_images_under_the_same_ids_begin_a_sample() -> None:
    chat = [make.user("u")]
    later = [*chat, make.assistant("a"), make.user("v")]
    row = planned(
        [
            make.call("c0", chat, make.answer("a", ids=[5]), prompt_ids=[1, 7], ordinal=0),
            make.call("c1", later, make.answer("b", ids=[6]), prompt_ids=[1, 7, 5, 2], ordinal=1),
            *seen("c0", IMAGE),
            *seen("c1", OTHER),
        ]
    )
    assert causes(row) == {"c0:0": "root", "c1:0": "images_change"}
    assert len(row.token_ids) == 1 + 2 + 4


def test_an_image_declared_once_goes_on_with_the_chat() -> None:
    chat = [make.user("u")]
    later = [*chat, make.assistant("a"), make.user("v")]
    row = planned(
        [
            make.call("c0", chat, make.answer("a", ids=[5]), prompt_ids=[1, 7], ordinal=0),
            make.call("c1", later, make.answer("b", ids=[6]), prompt_ids=[1, 7, 5, 2], ordinal=1),
            *seen("c0", IMAGE),
        ]
    )
    assert chains(row) == ((("c0", 0), ("c1", 0)),)
    assert [(blob.hash, blob.call, blob.position) for blob in row.blobs] == [(IMAGE, 0, 1)]
