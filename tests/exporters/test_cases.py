"""What people reported of other trainers' data, as promises of this exporter: what splits, trains, counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.exporters.planned import causes, chains, key, planned, reasons, sample_ids
from tests.exporters.stores import rows_of
from tests.fixtures import fixture
from tests.importers.reading import read_fixtures
from tests.scenarios import OPENING
from tests.tokens.folders import TOOLED, folder
from tracestore.shards.manifest import Manifest
from tracestore.shards.row import Row
from tracestore.shards.views import flat_samples
from tracestore.tokens.chat import load_chat
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context, combine
from tracestore.wire.call import Attempt, Policy
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

NEMO_RL = "nemo_rl/nvidia-nemo__rl/tests/unit/models/generation/maybe_correct_merged_tokens_test_data.json"
DJANGO = "trees/a-antoniades__swe-search/tests/edit/data/django__django-11039.json"


def said(name: str, prompt: list[int], sampled: list[int], *, ordinal: int = 0, **fields: Any) -> AnyEvent:
    """A call of token ids alone."""
    return make.call(name, None, make.answer(None, ids=sampled), prompt_ids=prompt, ordinal=ordinal, **fields)


def exported(events: list[AnyEvent], out: Path, **spec: Any) -> tuple[Manifest, list[Row]]:
    """The manifest and the rows of an export that `verify` finds clean."""
    source = MemorySource(events)
    manifest = export(source, "p", out, Spec(**spec))
    assert verify_export(source, "p", out).findings == []
    return manifest, rows_of(out)


def shared_credit(row: Row) -> dict[str, float]:
    """Sample -> its advantage by the group mean."""
    values = advantages(row, rule="shared", context=Context()).values
    found = {row.samples[sample].sample_id: value for (sample, _), value in values.items()}
    return {name: float(value) for name, value in found.items()}


# Where a sample begins


def thinking_stripped(rollout: int, *, turns: int) -> list[AnyEvent]:
    """An episode whose template drops the first sampled token, the thinking, of every earlier turn."""
    name = f"e{rollout}"
    events: list[AnyEvent] = [make.episode(name, group_id="g", status="ok")]
    messages, ids = [make.user("u")], [1, 1, 1, 1]
    for turn in range(turns):
        body = make.assistant("x", reasoning_content="hm")
        thought, answer = 7, 100 + 10 * rollout + turn
        events.append(
            make.call(
                f"{name}/{turn}",
                messages,
                make.answer(body, ids=[thought, answer]),
                prompt_ids=ids,
                ordinal=turn,
                episode=name,
                agent=name,
            )
        )
        messages, ids = [*messages, body, make.user("v")], [*ids, answer, 2]
    return events


def test_stripped_thinking_trains_once_in_the_sample_of_the_turn_that_sampled_it() -> None:
    # verl-project/verl#6854, PrimeIntellect-ai/prime-rl#1334, THUDM/slime#2338, rllm-org/rllm#352
    row = planned(thinking_stripped(0, turns=3))
    assert row.num_trained == 3 * 2
    for turn in range(3):
        [flat] = [one for one in flat_samples(row) if one.sample.sample_id == f"e0/{turn}:0"]
        assert flat.token_ids[flat.mask].tolist() == [7, 100 + turn]
        # The thinking of earlier turns is not in it, and their answers are context.
        assert flat.token_ids.tolist().count(7) == 1
    assert causes(row) == {"e0/0:0": "root", "e0/1:0": "template_drift", "e0/2:0": "template_drift"}


def test_eight_drifting_rollouts_store_what_their_64_samples_share_once(tmp_path: Path) -> None:
    # THUDM/slime#2288: 8 rollouts became 64 samples of 1.83 M tokens, and nothing said why.
    events = [one for rollout in range(8) for one in thinking_stripped(rollout, turns=8)]
    manifest, [row] = exported([make.group("g", closed_by="event"), *events], tmp_path / "out")
    assert manifest.causes == {"root": 8, "template_drift": 56}
    # Flat: turn t reads 4 + 2t and samples 2: 8 x (8 x 6 + 2 x 28) = 832 tokens.
    assert sum(sample.num_tokens for sample in row.samples) == 832
    # Stored: 4 for all, and for each rollout 8 x 2 sampled and 7 x 2 heard: 4 + 8 x 30 = 244.
    assert len(row.token_ids) == 244
    assert manifest.notes[0].startswith("56 of 64 samples (88 %) begin at template_drift")


def test_text_that_drifted_keeps_its_parent_beside_the_new_sample() -> None:
    # areal-project/AReaL#647, #668: the link of the messages and the check of the tokens are two things.
    row = planned(
        [
            make.call("a", [make.user("u")], make.answer("it's", ids=[4, 5]), prompt_ids=[1], ordinal=0),
            make.call(
                "b",
                [make.user("u"), make.assistant("its"), make.user("v")],
                make.answer("y", ids=[6]),
                prompt_ids=[1, 8, 2],
                ordinal=1,
                parent="a",
            ),
        ]
    )
    assert chains(row) == ((("a", 0),), (("b", 0),))
    (link,) = [(one.parent_completion, one.link) for one in row.calls if one.call_id == "b"]
    assert link == (0, "named")
    assert key(row, 0) == ("a", 0)


def test_the_next_prompt_is_the_recorded_ids_and_never_their_text_again() -> None:
    # huggingface/trl#5224, verl-project/verl#6719, rllm-org/rllm#272. Counted by others: 7,819 ids were seen;
    # rendered again with the next message they are 7,837, with the recorded ids kept 7,841.
    data = json.loads(fixture(NEMO_RL).read_bytes())
    seen, again, kept = (data[k] for k in ("seen_token_ids", "output_prompt_token_ids", "expected_output"))
    assert (len(seen), len(again), len(kept)) == (7_819, 7_837, 7_841)
    prompt, sampled = seen[:4_600], seen[4_600:]
    first = said("a", prompt, sampled)
    whole = planned([first, said("b", kept, [1], ordinal=1, parent="a")])
    assert chains(whole) == ((("a", 0), ("b", 0)),)
    assert len(whole.token_ids) == 7_841 + 1
    # Rendered again it parts from what was seen at 4,647, inside the answer: two samples, all of both train.
    parted = next(place for place, (one, other) in enumerate(zip(seen, again, strict=False)) if one != other)
    assert parted == 4_647
    broken = planned([first, said("b", again, [1], ordinal=1, parent="a")])
    assert chains(broken) == ((("a", 0),), (("b", 0),))
    assert broken.num_trained == len(sampled) + 1
    assert len(broken.token_ids) == 7_819 + (7_837 - parted) + 1


def test_a_call_of_several_attempts_is_one_turn() -> None:
    # rllm-org/rllm#707: a request sent again after a timeout became a turn of its own.
    attempts = (Attempt(error="timeout"), Attempt(status_code=500), Attempt(status_code=200))
    row = planned([said("a", [1], [4], attempts=attempts), said("b", [1, 4, 2], [5], ordinal=1)])
    assert chains(row) == ((("a", 0), ("b", 0)),)
    assert row.num_trained == 2


def test_a_memory_rewritten_each_turn_is_cut_into_what_each_turn_really_read() -> None:
    # MEM1's one stitched sequence trains tokens on contexts that nobody sampled from: turn 2 read the
    # question and block 1, and neither block 0 nor its own place in a longer sequence.
    row = planned(
        [
            said("t0", [1, 2], [50, 60]),
            said("t1", [1, 2, 50, 60, 70], [51, 61], ordinal=1),
            said("t2", [1, 2, 51, 61, 71], [52, 62], ordinal=2),
            make.compaction("x", edit="rewrite", after_call_id="t2", status="accepted"),
        ]
    )
    assert sample_ids(row, "t1:0") == [1, 2, 50, 60, 70, 51, 61]
    assert sample_ids(row, "t2:0") == [1, 2, 51, 61, 71, 52, 62]
    assert causes(row) == {"t1:0": "root", "t2:0": "rewrite"}
    assert row.num_trained == 6


# Which tokens train


def test_scaffold_around_an_answer_is_not_trained_and_its_end_token_is() -> None:
    # NovaSky-AI/SkyRL#710, #570; PrimeIntellect-ai/renderers#66 (a role marker that was sampled as the stop)
    first = OPENING.ask("a", "plan", 3)
    chat = OPENING.heard(first).say("user", "go", 1)
    row = planned([first, chat.ask("b", "done", 2, ordinal=1)])
    ids = row.token_ids.tolist()
    start = len(OPENING.ids)
    # <assistant> NL, three sampled of which the last is END, NL, then <user> NL word END NL <assistant> NL.
    assert row.reason.tolist()[start:] == [1, 1, 0, 0, 0, 1, *[1] * 5, 1, 1, 0, 0]
    assert (ids[start], ids[start + 4], ids[start + 5]) == (3, 9, 10)

    marker = 2
    stopped = planned([said("a", [1], [4, marker]), said("b", [1, 4, marker, 8, 3], [5, marker], ordinal=1)])
    assert chains(stopped) == ((("a", 0), ("b", 0)),)
    assert stopped.reason.tolist() == [1, 0, 0, 1, 1, 0, 0]


def test_what_closes_thinking_that_was_cut_off_is_not_trained() -> None:
    # PrimeIntellect-ai/renderers#139, #152: 7 opens the thinking, [8, 9] closes it and ends the turn.
    cut = make.answer(None, ids=[7, 30, 31], finish_reason="length")
    row = planned(
        [
            make.call("a", None, cut, prompt_ids=[1], ordinal=0),
            said("b", [1, 7, 30, 31, 8, 9, 2], [5], ordinal=1),
        ]
    )
    assert chains(row) == ((("a", 0), ("b", 0)),)
    assert row.reason.tolist() == [1, 0, 0, 0, 1, 1, 1, 0]


def test_an_id_that_others_pad_with_is_a_token_like_any_other() -> None:
    # rllm's transform masks the pad id wherever it stands; 0 here is read and sampled.
    row = planned([said("a", [0, 1, 0], [4, 0, 0])])
    assert row.token_ids.tolist() == [0, 1, 0, 4, 0, 0]
    assert reasons(row) == {"a": ["trained"] * 3}


def test_of_several_compaction_attempts_the_accepted_one_trains_once() -> None:
    # PrimeIntellect-ai/verifiers#2521, #2584; PrimeIntellect-ai/prime-rl#3478
    tries = [said(f"s{n}", [1, 4, 2], [20 + n], ordinal=1 + n, purpose="summarize") for n in range(3)]
    edits = [
        make.compaction(f"x{n}", author="policy", author_call_id=f"s{n}", status=status)
        for n, status in enumerate(("rejected", "failed", "accepted"))
    ]
    row = planned([said("a", [1], [4]), *tries, *edits, said("b", [1, 22], [5], ordinal=4)])
    assert {call: only for call, (only,) in reasons(row).items()} == {
        "a": "trained",
        "s0": "edit_not_accepted",
        "s1": "edit_not_accepted",
        "s2": "trained",
        "b": "trained",
    }
    told = [(edit.status, key(row, edit.author_completion or 0)[0]) for edit in row.edits]
    assert told == [("rejected", "s0"), ("failed", "s1"), ("accepted", "s2")]


def test_the_same_summary_trains_when_the_policy_sampled_it_and_not_when_another_did() -> None:
    # By provenance, never by text: equal ids, three authors.
    def episode(name: str, author: Any) -> list[AnyEvent]:
        edit = make.compaction(
            f"{name}x", author=author, author_call_id=f"{name}s", agent=name, episode=name, status="accepted"
        )
        summary = said(f"{name}s", [1, 2], [20, 21], episode=name, agent=name, purpose="summarize")
        after = said(f"{name}b", [1, 20, 21], [5], ordinal=1, episode=name, agent=name)
        return [make.episode(name), summary, after, edit]

    row = planned(*(episode(*one) for one in (("e0", "policy"), ("e1", "other_model"), ("e2", "harness"))))
    summaries = {name: set(found) for name, found in reasons(row).items() if name.endswith("s")}
    assert summaries == {"e0s": {"trained"}, "e1s": {"other_policy"}, "e2s": {"other_policy"}}
    assert row.num_trained == 2 + 3


def test_what_a_subagent_found_trains_with_the_subagent_alone() -> None:
    row = planned(
        [
            make.agent("main"),
            make.agent("sub", parent_agent_id="main"),
            said("a", [1], [4]),
            said("s", [6], [7, 8], agent="sub"),
            # The parent reads the very ids that the child sampled.
            said("b", [1, 4, 7, 8, 2], [5], ordinal=1),
        ]
    )
    assert chains(row) == ((("a", 0), ("b", 0)), (("s", 0),))
    assert row.num_trained == 1 + 2 + 1
    assert row.reason[row.token_ids == 7].tolist() == [1, 0]


def test_a_prefix_that_branches_share_is_counted_once() -> None:
    # verifiers' num_output_tokens adds it up over branches: shared 2 and leaves 3 and 1 make 8 there, not 6.
    row = planned(
        [
            said("a", [1], [4, 5]),
            said("b", [1, 4, 5, 2], [6, 7, 8], ordinal=1),
            said("c", [1, 4, 5, 3], [9], ordinal=2),
        ]
    )
    assert row.num_trained == 2 + 3 + 1
    assert [sample.num_owned for sample in row.samples] == [5, 1]
    entries = {entry.num_tokens for entry in row.completions}
    assert entries == {2, 3, 1}


# Who is compared with whom


def attempt(name: str, reward: float, *samples: list[int], group: str = "g") -> list[AnyEvent]:
    """An episode of one sample for each list of prompt ids, each answered by two tokens."""
    calls = [
        said(f"{name}/{n}", prompt, [90, 91], ordinal=n, episode=name, agent=name)
        for n, prompt in enumerate(samples)
    ]
    graded = make.reward(f"{name}/r", reward, episode=name)
    return [make.episode(name, group_id=group, status="ok"), *calls, graded]


def test_a_rollout_of_four_samples_weighs_in_the_mean_as_one(tmp_path: Path) -> None:
    # radixark/miles#2378, #1325; THUDM/slime#2302; areal-project/AReaL#1563. One rollout of four segments
    # with reward 1 beside three of one with 0: mean (1 + 0 + 0 + 0) / 4 = .25; over samples 4/7 = .571.
    events = attempt("e0", 1, [1], [2], [3], [4])
    for name in ("e1", "e2", "e3"):
        events += attempt(name, 0, [1])
    _, [row] = exported([make.group("g", closed_by="event"), *events], tmp_path / "out")
    expected = {f"e0/{n}:0": 0.75 for n in range(4)} | {f"e{n}/0:0": -0.25 for n in (1, 2, 3)}
    assert shared_credit(row) == expected


def test_four_rollouts_of_a_task_are_one_group_whatever_their_traces_are_called() -> None:
    # rllm-org/rllm#924: keyed by trajectory, [1, 0, 1, 0] became four groups of one, without any advantage.
    rewards = [1.0, 0.0, 1.0, 0.0]
    row = planned(*(attempt(f"trace-{n}", reward, [1]) for n, reward in enumerate(rewards)))
    # mean (1 + 0 + 1 + 0) / 4 = .5
    assert shared_credit(row) == {f"trace-{n}/0:0": r - 0.5 for n, r in enumerate(rewards)}


def test_groups_are_by_id_whatever_the_prompts_the_order_and_what_is_missing(tmp_path: Path) -> None:
    # NVIDIA-NeMo/RL#3882, #4013: equal prompts of two tasks are two groups, and one group may have several.
    # PrimeIntellect-ai/prime-rl#600: their events come in any order. hud-evals/hud-python#425: an episode of
    # the second group has no ids at all, and nothing slides into its place.
    mute = [make.episode("b1", group_id="b", status="ok"), make.reward("b1/r", 0.5, episode="b1")]
    sets = [
        *(attempt("a0", 1, [1, 2], group="a"), attempt("b0", 1, [1, 2], group="b"), mute),
        *(attempt("c0", 0, [3], group="c"), attempt("a1", 0, [1, 9], group="a")),
        *(attempt("b2", 0, [1, 2], group="b"), attempt("c1", 0, [1, 2], group="c")),
    ]
    heads = [make.group(name, closed_by="event") for name in "abc"]
    _, rows = exported([*heads, *(event for one in sets for event in one)], tmp_path / "out")
    held = {row.group_id: [episode.episode_id for episode in row.episodes] for row in rows}
    assert held == {"a": ["a0", "a1"], "b": ["b0", "b1", "b2"], "c": ["c0", "c1"]}
    credit = {name: value for row in rows for name, value in shared_credit(row).items()}
    # b: mean (1 + .5 + 0) / 3 = .5
    assert credit == {
        "a0/0:0": 0.5,
        "a1/0:0": -0.5,
        "b0/0:0": 0.5,
        "b2/0:0": -0.5,
        "c0/0:0": 0.0,
        "c1/0:0": 0.0,
    }


def test_small_rewards_come_through_to_the_bit(tmp_path: Path) -> None:
    # FoldAgent keeps process rewards in int8, where .2 and -.2 are 0.
    values = [-0.2, 0.2, -1.0]
    events = [one for n, value in enumerate(values) for one in attempt(f"e{n}", value, [1])]
    _, [row] = exported([make.group("g", closed_by="event"), *events], tmp_path / "out")
    assert [reward.value for reward in row.rewards] == values
    credit = combine(row, advantages(row, rule="shared", context=Context()))
    assert credit.plus_T.dtype == credit.minus_T.dtype == np.float64
    # mean -1/3: .1333, .5333, -.6667
    assert sorted(set(np.round(credit.plus_T + credit.minus_T, 4)) - {0.0}) == [-0.6667, 0.1333, 0.5333]


# What is carried beside the ids


def test_the_version_of_a_token_is_that_of_its_dispatch() -> None:
    # rllm-org/rllm#622: read at completion, it is that of weights that came while the answer was under way.
    start = make.call(
        "a", None, prompt_ids=[1], ordinal=0, phase="start", policy=Policy(name="pi", version=3)
    )
    end = make.call("a", None, make.answer(None, ids=[4, 5]), phase="end", policy=None)
    row = planned([start, end], spec=Spec(current_version=4, max_staleness=0))
    assert [(run.start, run.length, run.version) for run in row.policy_runs] == [(1, 2, 3)]
    assert reasons(row) == {"a": ["stale", "stale"]}


def test_routing_of_every_call_of_a_merged_sample_is_carried() -> None:
    # radixark/miles#481, NovaSky-AI/SkyRL: dropped where turns are merged. NVIDIA-NeMo/RL#3485,
    # PrimeIntellect-ai/prime-rl#1807: the last token's own route is known from the next call's prefill, so
    # each call's routing must stay apart, with its shape.
    def routing(call_id: str, tokens: int) -> AnyEvent:
        fields = {"dtype": "uint8", "shape": (tokens, 2, 8), "role": "routed_experts"}
        return make.blob(f"r-{call_id}", call_id[-1] * 64, call_id=call_id, completion=0, **fields)

    events = [said("a", [1], [4, 5]), said("b", [1, 4, 5, 2], [6], ordinal=1)]
    row = planned([*events, routing("a", 3), routing("b", 5)])
    assert len(row.samples) == 1
    held = [(blob.call, blob.hash[0], blob.shape) for blob in row.blobs]
    assert held == [(0, "a", (3, 2, 8)), (1, "b", (5, 2, 8))]


def test_sampling_parameters_and_kept_sets_stay_with_their_call() -> None:
    # PrimeIntellect-ai/prime-rl#2600, #2601
    kept = make.blob(
        "k", "c" * 64, call_id="b", completion=0, role="kept_tokens", dtype="int32", shape=(1, 20)
    )
    chat = [make.user("u")]
    again = [*chat, make.assistant("x"), make.user("v")]
    row = planned(
        [
            make.call(
                "a", chat, make.answer("x", ids=[4]), prompt_ids=[1], ordinal=0, params={"temperature": 1}
            ),
            make.call(
                "b",
                again,
                make.answer("y", ids=[5]),
                prompt_ids=[1, 4, 2],
                ordinal=1,
                params={"temperature": 0.5, "top_k": 20},
            ),
            kept,
        ]
    )
    assert len(row.samples) == 1
    assert [(call.temperature, call.top_k) for call in row.calls] == [(1.0, None), (0.5, 20)]
    assert [(blob.role, blob.call, blob.completion) for blob in row.blobs] == [("kept_tokens", 1, 1)]


def test_rejected_candidates_and_judges_of_a_real_search_stay_in_its_shard_untrained(tmp_path: Path) -> None:
    # swe-search, django-11039: five candidates at state 5, of which 16 was kept; each state was judged by a
    # value function whose completions are another role's calls.
    events = read_fixtures(DJANGO).events
    chat = load_chat(str(folder(tmp_path / "tokenizer", TOOLED)))
    source, spec = MemorySource(events), Spec(objective="sft", render=True, candidates="exclude")
    manifest = export(source, "p", tmp_path / "out", spec, chat=chat)
    assert verify_export(source, "p", tmp_path / "out", chat=chat).findings == []
    [row] = rows_of(tmp_path / "out")
    widest = max(row.candidate_sets, key=lambda one: len(one.members))
    assert [member.selected for member in widest.members].count(True) == 1
    assert (len(widest.members), widest.treatment) == (5, "exclude")
    judged = {call.call_id for call in row.calls if call.purpose == "judge"}
    assert judged
    assert {reason for call in judged for reason in reasons(row).get(call, [])} <= {"purpose"}
    assert manifest.conservation.excluded["candidate_excluded"] > 0
