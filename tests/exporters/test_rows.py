from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests import factories as make
from tests.exporters.planned import check_samples, key, planned
from tests.exporters.trees import Tree, distinct_tokens, trees
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.shards.views import flat_samples, forest_view
from tracestore.wire.events import AnyEvent
from tracestore_exporters.rows import BYTES_PER_TOKEN, GroupInfo, plan_row, plan_rows
from tracestore_exporters.spec import Spec


def graphs_of(tree: Tree) -> list[Graph]:
    return [build(tree.of_episode(episode_id)) for episode_id in tree.episode_ids]


@settings(max_examples=60)
@given(trees())
def test_each_sample_is_the_recorded_prompt_and_answer_of_its_last_completion(tree: Tree) -> None:
    row = plan_row(graphs_of(tree), Spec(), GroupInfo("p", tree.episode_ids, "g"))
    check_samples(row)
    forest_view(row)
    for flat in flat_samples(row):
        entry = row.completions[flat.sample.completions[-1]]
        call = row.calls[entry.call]
        at = row.episodes[call.episode].episode_id, call.call_id, entry.index
        assert tuple(flat.token_ids.tolist()) == (tree.prompts[at] or ()) + tree.sampled[at]


@settings(max_examples=60)
@given(trees())
def test_the_forest_stores_each_token_once(tree: Tree) -> None:
    row = plan_row(graphs_of(tree), Spec(), GroupInfo("p", tree.episode_ids, "g"))
    distinct, is_exact = distinct_tokens(tree)
    stored = len(row.token_ids)
    assert stored == distinct if is_exact else stored >= distinct
    assert int(row.segments.length[row.segments.completion >= 0].sum()) == sum(
        map(len, tree.sampled.values())
    )


@settings(max_examples=30)
@given(trees())
def test_parts_hold_the_same_samples_as_the_whole_row(tree: Tree) -> None:
    graphs, info = graphs_of(tree), GroupInfo("p", tree.episode_ids, "g")
    whole = plan_row(graphs, Spec(), info)
    parts = list(plan_rows(graphs, Spec(max_row_bytes=BYTES_PER_TOKEN), info))
    ids = [s.sample_id for part in parts for s in part.samples]
    assert sorted(ids) == sorted(s.sample_id for s in whole.samples)
    assert sum(part.num_trained for part in parts) == whole.num_trained
    for number, part in enumerate(parts):
        assert (part.part, part.num_parts) == (number, len(parts))
        assert part.calls == whole.calls
        assert part.rewards == whole.rewards
        check_samples(part)


def alone(name: str, size: int) -> list[AnyEvent]:
    """An episode of one call: 2 shared prompt tokens and `size` sampled ones."""
    answer = make.answer(None, ids=[ord(name[-1])] * size)
    return [
        make.episode(name),
        make.call(f"{name}c", None, answer, prompt_ids=[1, 2], episode=name, agent=name),
    ]


def test_a_group_larger_than_a_row_is_cut_by_episode() -> None:
    graphs = [build(alone(f"e{n}", 4)) for n in range(5)]
    info = GroupInfo("p", tuple(f"e{n}" for n in range(5)), "g")
    # An episode takes 2 + 4 tokens; 12 fit, so two episodes a part.
    spec = Spec(max_row_bytes=12 * BYTES_PER_TOKEN)
    parts = list(plan_rows(graphs, spec, info))
    assert [[s.episode for s in part.samples] for part in parts] == [[0, 1], [2, 3], [4]]
    # The shared prompt is in every part: 2 + 4 + 4, 2 + 4 + 4, 2 + 4.
    assert [len(part.token_ids) for part in parts] == [10, 10, 6]
    assert len(plan_row(graphs, spec, info).token_ids) == 2 + 5 * 4


def test_an_episode_larger_than_a_row_is_a_part_of_its_own() -> None:
    graphs = [build(alone("e0", 40)), build(alone("e1", 4))]
    spec = Spec(max_row_bytes=10 * BYTES_PER_TOKEN)
    parts = list(plan_rows(graphs, spec, GroupInfo("p", ("e0", "e1"), "g")))
    assert [len(part.token_ids) for part in parts] == [42, 6]


def test_a_group_that_fits_is_one_row() -> None:
    graphs = [build(alone(f"e{n}", 4)) for n in range(3)]
    (row,) = plan_rows(graphs, Spec(), GroupInfo("p", ("e0", "e1", "e2"), "g"))
    assert (row.part, row.num_parts) == (0, 1)


def test_rewards_keep_their_finest_target() -> None:
    events = [
        make.agent("main"),
        make.call("c", None, make.answer(None, ids=[4, 5]), prompt_ids=[1]),
        make.candidate_set("set1", make.member("c")),
        make.reward("r1", 1.0),
        make.reward("r2", 0.5, agent_id="main"),
        make.reward("r3", 0.25, call_id="c"),
        make.reward("r4", 0.125, call_id="c", completion=0),
        make.reward("r5", 2.0, call_id="c", completion=0, token_start=1, token_length=1),
        make.reward("r6", 3.0, candidate_set_id="set1", member=0),
        make.reward("r7", 4.0, call_id="gone"),
        make.reward("r8", 5.0, name="other", weight=0.1, scorer="s", scorer_version="2"),
    ]
    row = planned(events)
    assert [(r.target, r.agent, r.call, r.completion, r.candidate_set, r.member) for r in row.rewards] == [
        ("episode", None, None, None, None, None),
        ("agent", 0, None, None, None, None),
        ("call", None, 0, None, None, None),
        ("completion", None, 0, 0, None, None),
        ("tokens", None, 0, 0, None, None),
        ("candidate", None, None, None, 0, 0),
        ("call", None, None, None, None, None),
        ("episode", None, None, None, None, None),
    ]
    assert [r.value for r in row.rewards] == [1.0, 0.5, 0.25, 0.125, 2.0, 3.0, 4.0, 5.0]
    assert [r.seq for r in row.rewards] == list(range(8))
    assert (row.rewards[7].weight, row.rewards[7].scorer, row.rewards[7].scorer_version) == (0.1, "s", "2")
    assert [r.reward_id for r in planned(events, spec=Spec(rewards={"other": None})).rewards] == ["r8"]


def test_a_subagent_knows_the_completion_and_the_tool_call_that_spawned_it() -> None:
    use = make.tool_use("spawn", id="t7")
    row = planned(
        [
            make.agent("main", role="main", depth=0),
            make.call(
                "c", None, make.answer(make.assistant(None, tool_calls=[use]), ids=[4]), prompt_ids=[1]
            ),
            make.agent(
                "sub", parent_agent_id="main", spawned_by_call_id="c", spawned_by_tool_call_id="t7", score=0.5
            ),
        ]
    )
    sub = row.agents[1]
    assert (sub.agent_id, sub.parent, sub.spawned_by_call, sub.spawned_by_completion) == ("sub", 0, 0, 0)
    assert (sub.spawned_by_tool_call_id, sub.score) == ("t7", 0.5)


def test_an_agent_that_is_only_named_is_there_with_nothing_known() -> None:
    row = planned([make.call("c", None, make.answer(None, ids=[4]), prompt_ids=[1], agent="a9")])
    assert [(a.agent_id, a.role, a.trainable) for a in row.agents] == [("a9", None, None)]


def test_an_answer_says_whether_a_tool_call_of_it_failed() -> None:
    row = planned(
        [
            *(
                make.call(f"c{i}", [make.user(str(i))], make.answer("a", ids=[4]), prompt_ids=[1, i])
                for i in range(3)
            ),
            make.tool_call("x0", "c0", tool_call_id="t0", status="ok"),
            make.tool_call("x1", "c0", tool_call_id="t1", status="failed"),
            make.tool_call("x2", "c1", tool_call_id="t2", status="ok"),
        ]
    )
    assert [completion.tool_failed for completion in row.completions] == [True, False, None]


def test_calls_carry_what_the_trainer_divides_logits_by() -> None:
    params = {"temperature": 1, "top_p": 0.9, "top_k": 40, "max_tokens": 7}
    row = planned(
        [
            make.call(
                "c",
                [make.user("u")],
                make.answer("a", ids=[4]),
                prompt_ids=[1],
                params=params,
                logprobs_are="processed",
                purpose="act",
                model="m",
            )
        ]
    )
    (call,) = row.calls
    assert (call.temperature, call.top_p, call.top_k, call.logprobs_are) == (1.0, 0.9, 40, "processed")
    assert call.params == '{"max_tokens":7,"temperature":1,"top_k":40,"top_p":0.9}'
    assert (call.policy_name, call.policy_version, call.model) == ("policy", 1, "m")


def test_parameters_no_column_holds_are_carried_as_they_were_posted() -> None:
    many = b"9" * 5000
    request = make.Raw(b'{"top_k":%b,"temperature":%b,"top_p":1e400,"seed":-0}' % (many, b"9" * 400))
    (call,) = planned([make.call("c", request, make.answer("a", ids=[4]), prompt_ids=[1])]).calls
    assert (call.temperature, call.top_p, call.top_k) == (None, None, None)
    assert call.params is not None
    assert make.Raw(call.params.encode()) == b'{"seed":-0,"temperature":%b,"top_k":%b,"top_p":1e400}' % (
        b"9" * 400,
        many,
    )


def test_an_edit_names_calls_and_completions_of_the_row() -> None:
    row = planned(
        [
            make.call("a", None, make.answer(None, ids=[4]), prompt_ids=[1], ordinal=0),
            make.call("s", None, make.answer(None, ids=[5]), prompt_ids=[1, 4, 2], ordinal=1),
            make.call("z", None, make.answer(None, ids=[6]), prompt_ids=[9], ordinal=2),
            make.compaction(
                author_call_id="s",
                before_call_id="a",
                after_call_id="z",
                replaced_call_ids=("a", "gone"),
                tokens_before=3,
                status="accepted",
            ),
        ]
    )
    (edit,) = row.edits
    assert (key(row, edit.author_completion or 0), edit.before_call, edit.after_call) == (("s", 0), 0, 2)
    assert (edit.replaced, edit.tokens_before, edit.tokens_after) == ((0,), 3, None)


def test_a_group_without_token_ids_is_a_row_without_tokens() -> None:
    row = planned([make.call("c", [make.user("u")], "text only")])
    assert len(row.token_ids) == 0
    assert row.samples == ()
    assert row.completions[0].num_tokens is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_float64_logprob_makes_the_column_float64(dtype: type) -> None:
    values = [-0.5] if dtype is np.float32 else [-0.1]
    row = planned(
        [
            make.call("a", None, make.answer(None, ids=[4], logprobs=[-0.25]), prompt_ids=[1], ordinal=0),
            make.call("b", None, make.answer(None, ids=[5], logprobs=values), prompt_ids=[1], ordinal=1),
        ]
    )
    assert row.logprobs is not None
    assert row.logprobs.dtype == dtype
    assert row.logprobs.tolist() == [0, -0.25, *values]
