from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.exporters.planned import planned, reasons, whole_reason
from tracestore.shards.row import Row
from tracestore.wire.base import Raw
from tracestore.wire.call import Policy, Usage
from tracestore.wire.candidate_set import Member
from tracestore.wire.completion import CompletionBody, VersionRun
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.masks import usable_logprobs
from tracestore_exporters.spec import Spec, Validation
from tracestore_exporters.verify import verify_export


def one_call(
    *more: AnyEvent, body: CompletionBody | None = None, spec: Spec | None = None, **fields: Any
) -> Row:
    """A row with one call of two sampled tokens (or of `body`)."""
    fields.setdefault("prompt_ids", [1])
    answer = body or make.answer("a", ids=[4, 5])
    return planned([*more, make.call("c", [make.user("u")], answer, ordinal=0, **fields)], spec=spec)


def reason_of(*more: AnyEvent, **fields: Any) -> str:
    return whole_reason(one_call(*more, **fields), "c")


def test_a_policys_complete_call_is_trained() -> None:
    assert reason_of() == "trained"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("ok", "trained"),
        ("failed", "trained"),
        ("budget_exhausted", "trained"),
        ("timeout", "trained"),
        (None, "trained"),
        ("infra_error", "infra_error"),
        ("cancelled", "episode_excluded"),
        ("interrupted", "episode_excluded"),
        ("invalid", "episode_excluded"),
    ],
)
def test_how_the_episode_ended_decides_for_all_of_it(status: str | None, expected: str) -> None:
    row = one_call(make.episode(status=status))
    assert whole_reason(row, "c") == expected
    assert row.episodes[0].in_statistics == (expected == "trained")


def test_infra_errors_are_out_even_when_the_spec_lists_the_status() -> None:
    spec = Spec(statuses=("ok", "infra_error"))
    assert reason_of(make.episode(status="infra_error"), spec=spec) == "infra_error"


@pytest.mark.parametrize(
    ("split", "splits", "expected"),
    [
        (None, ("train",), "trained"),
        ("train", ("train",), "trained"),
        ("eval", ("train",), "split"),
        ("test", ("train",), "split"),
        ("eval", ("eval",), "trained"),
        (None, ("eval",), "split"),
    ],
)
def test_only_the_splits_of_the_spec_train(split: Any, splits: Any, expected: str) -> None:
    assert reason_of(make.episode(split=split), spec=Spec(splits=splits)) == expected


def test_an_episode_recorded_for_reading_is_never_trained() -> None:
    assert reason_of(make.episode(inference_only=True)) == "inference_only"


@pytest.mark.parametrize(
    ("trainable", "expected"), [(True, "trained"), (None, "trained"), (False, "agent_not_trainable")]
)
def test_an_agent_declared_untrainable_is_not_trained(trainable: bool | None, expected: str) -> None:
    assert reason_of(make.agent(trainable=trainable)) == expected


def test_sft_trains_what_a_frozen_agent_wrote() -> None:
    assert reason_of(make.agent(trainable=False), spec=Spec(objective="sft")) == "trained"


@pytest.mark.parametrize(
    ("policy", "policies", "expected"),
    [
        (Policy(name="policy", version=3), None, "trained"),
        (Policy(name="policy", version=3), ("policy",), "trained"),
        (Policy(name="other", version=3), ("policy",), "other_policy"),
        (None, ("policy",), "other_policy"),
        (None, None, "trained"),
    ],
)
def test_a_spec_that_names_policies_trains_these_alone(policy: Any, policies: Any, expected: str) -> None:
    assert reason_of(policy=policy, spec=Spec(policies=policies)) == expected


@pytest.mark.parametrize(
    ("declared", "answered", "expected"),
    [
        ("m", "m", "trained"),
        ("m", "gpt", "other_policy"),
        (None, "gpt", "trained"),
        ("m", None, "trained"),
        ("openai/m", "m", "trained"),
        ("m", "openai/m", "trained"),
        ("xm", "m", "other_policy"),
        ("a/m", "b/m", "other_policy"),
        ("m", "", "other_policy"),
    ],
)
def test_without_a_policy_another_model_than_the_agents_is_an_outside_one(
    declared: str | None, answered: str | None, expected: str
) -> None:
    assert reason_of(make.agent(model=declared), policy=None, model=answered) == expected


def test_sft_trains_the_models_of_the_spec() -> None:
    assert reason_of(model="m", policy=None, spec=Spec(objective="sft", models=("m",))) == "trained"
    assert reason_of(model="n", policy=None, spec=Spec(objective="sft", models=("m",))) == "other_policy"


@pytest.mark.parametrize(
    ("purpose", "purposes", "expected"),
    [
        (None, None, "trained"),
        ("act", None, "trained"),
        ("summarize", None, "trained"),
        ("select", None, "trained"),
        ("judge", None, "purpose"),
        ("verify", None, "purpose"),
        ("title", None, "purpose"),
        ("judge", ("judge",), "trained"),
        (None, ("judge",), "purpose"),
        (None, ("act",), "trained"),
        ("summarize", ("act",), "purpose"),
    ],
)
def test_judges_verifiers_and_titles_are_not_trained_unless_named(
    purpose: Any, purposes: Any, expected: str
) -> None:
    assert reason_of(purpose=purpose, spec=Spec(purposes=purposes)) == expected


@pytest.mark.parametrize(
    ("fields", "body", "expected"),
    [
        ({"status": "aborted"}, {}, "call_incomplete"),
        ({"status": "failed"}, {}, "call_incomplete"),
        ({"phase": "start"}, {}, "call_incomplete"),
        ({}, {"partial": True}, "call_incomplete"),
        ({}, {"finish_reason": "abort"}, "call_incomplete"),
        ({}, {"finish_reason": "length"}, "trained"),
        ({}, {"finish_reason": None}, "trained"),
    ],
)
def test_what_broke_off_is_not_trained_and_what_ran_out_of_length_is(
    fields: dict[str, Any], body: dict[str, Any], expected: str
) -> None:
    assert reason_of(body=make.answer("a", ids=[4, 5], **body), **fields) == expected


@pytest.mark.parametrize(
    ("usage", "stripped", "expected"),
    [
        (2, None, "trained"),
        (3, None, "ids_incomplete"),
        (1, None, "ids_incomplete"),
        (3, True, "trained"),
        (2, True, "trained"),
        (4, True, "ids_incomplete"),
    ],
)
def test_fewer_or_more_ids_than_the_usage_counts_are_incomplete(
    usage: int, stripped: Any, expected: str
) -> None:
    body = make.answer("a", ids=[4, 5], stop_token_stripped=stripped)
    assert reason_of(body=body, usage=Usage(completion_tokens=usage)) == expected


def test_a_sampled_stop_token_is_trained_and_one_added_by_the_harness_is_not() -> None:
    # 9 is the stop token: sampled by call c; stripped from d, whose next prompt holds it as the template's.
    row = planned(
        [
            make.call("c", None, make.answer(None, ids=[4, 9]), prompt_ids=[1], ordinal=0),
            make.call(
                "d",
                None,
                make.answer(None, ids=[5], stop_token_stripped=True),
                prompt_ids=[1, 4, 9, 2],
                ordinal=1,
                usage=Usage(completion_tokens=2),
            ),
            make.call("f", None, make.answer(None, ids=[6]), prompt_ids=[1, 4, 9, 2, 5, 9, 3], ordinal=2),
        ]
    )
    assert reasons(row) == {"c": ["trained", "trained"], "d": ["trained"], "f": ["trained"]}
    assert row.token_ids.tolist() == [1, 4, 9, 2, 5, 9, 3, 6]
    assert row.reason.tolist() == [1, 0, 0, 1, 0, 1, 1, 0]


def test_without_the_prompts_ids_nothing_can_be_trained() -> None:
    assert reason_of(prompt_ids=None) == "ids_incomplete"


def test_a_delta_whose_parent_never_came_has_no_prompt() -> None:
    assert reason_of(prompt_ids=None, prompt_ids_delta=[2], parent="gone") == "ids_incomplete"


def test_the_first_token_of_a_root_has_no_target() -> None:
    assert reasons(one_call(prompt_ids=[])) == {"c": ["no_target", "trained"]}


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, -9999.0, -10_000.0, -100.0])
def test_a_logprob_that_is_none_is_not_trained_on(value: float | None) -> None:
    body = make.answer("a", ids=[4, 5, 6], logprobs=[-0.5, value, -2.0])
    row = one_call(body=body, non_finite=True)
    assert reasons(row) == {"c": ["trained", "logprob_invalid", "trained"]}
    assert row.has_logprob.tolist() == [False, True, False, True]
    assert row.logprobs is not None
    assert row.logprobs.tolist() == [0, -0.5, 0, -2.0]
    sft = one_call(body=body, non_finite=True, spec=Spec(objective="sft"))
    assert reasons(sft) == {"c": ["trained"] * 3}


def test_a_very_small_probability_is_a_logprob() -> None:
    values = np.asarray([-99.5, -100.5, -9998.0, 0.0])
    assert usable_logprobs(values, np.ones(4, dtype=bool)).tolist() == [True] * 4


def test_tokens_without_any_logprobs_are_trained_and_recomputed_by_the_trainer() -> None:
    row = one_call(body=make.answer("a", ids=[4, 5], logprobs=()))
    assert whole_reason(row, "c") == "trained"
    assert row.logprobs is None


def test_float64_logprobs_are_kept_to_the_bit() -> None:
    values = [-1 / 3, -0.1, -2.5]
    row = one_call(body=make.answer("a", ids=[4, 5, 6], logprobs=values))
    assert row.logprobs is not None
    assert row.logprobs[1:].tolist() == values


def test_versions_inside_an_answer_are_runs_and_tokens_of_another_policy_are_out() -> None:
    runs = (VersionRun(start=0, name="policy", version=7), VersionRun(start=2, name="draft", version=1))
    body = make.answer("a", ids=[4, 5, 6], versions=runs)
    row = one_call(body=body, spec=Spec(policies=("policy",)))
    assert reasons(row) == {"c": ["trained", "trained", "other_policy"]}
    # One prompt token stands before.
    assert [(r.start, r.length, r.name, r.version) for r in row.policy_runs] == [
        (1, 2, "policy", 7),
        (3, 1, "draft", 1),
    ]


@pytest.mark.parametrize(
    ("author", "status", "expected"),
    [
        ("policy", "accepted", "trained"),
        ("policy", None, "trained"),
        (None, "accepted", "trained"),
        ("policy", "rejected", "edit_not_accepted"),
        ("policy", "cancelled", "edit_not_accepted"),
        ("policy", "failed", "edit_not_accepted"),
        ("harness", "accepted", "other_policy"),
        ("other_model", "accepted", "other_policy"),
    ],
)
def test_a_summary_trains_when_the_policy_wrote_it_and_it_was_accepted(
    author: Any, status: Any, expected: str
) -> None:
    edit = make.compaction(author=author, author_call_id="c", author_completion=0, status=status)
    assert reason_of(edit, purpose="summarize") == expected


def test_an_attempt_that_one_edit_rejected_and_another_accepted_is_trained() -> None:
    edits = [
        make.compaction("x1", author_call_id="c", status="rejected"),
        make.compaction("x2", author_call_id="c", status="accepted"),
    ]
    assert reason_of(*edits) == "trained"


def candidates(*selected: int, treatment: str | None = None) -> list[AnyEvent]:
    calls = [
        make.call(f"p{n}", None, make.answer(None, ids=[4 + n]), prompt_ids=[1], ordinal=n) for n in range(3)
    ]
    members = [make.member(f"p{n}", score=n / 4) for n in range(3)]
    picked = make.selection("s", "set1", *selected, selector="judge", treatment=treatment)
    return [*calls, make.candidate_set("set1", *members), picked]


def test_rejected_candidates_stay_in_the_shard_and_are_not_trained_when_excluded() -> None:
    row = planned(candidates(1), spec=Spec(candidates="exclude"))
    assert reasons(row) == {"p0": ["candidate_excluded"], "p1": ["trained"], "p2": ["candidate_excluded"]}
    assert row.token_ids.tolist() == [1, 4, 5, 6]
    (one,) = row.candidate_sets
    assert (one.selector, one.treatment) == ("judge", "exclude")
    assert [(m.completion, m.score, m.selected) for m in one.members] == [
        (0, 0.0, False),
        (1, 0.25, True),
        (2, 0.5, False),
    ]


@pytest.mark.parametrize("treatment", ["shared", "negative", "runner_up", "pairs"])
def test_every_other_treatment_leaves_the_rejected_to_credit(treatment: Any) -> None:
    row = planned(candidates(1), spec=Spec(candidates=treatment))
    assert row.num_trained == 3
    assert row.candidate_sets[0].treatment == treatment


def test_imitation_trains_no_rejected_candidate_unless_it_is_told_to() -> None:
    """A label has no sign, so a treatment that gives the rejected another credit leaves them out."""
    sft = [
        planned(candidates(1), spec=Spec(objective="sft", candidates=treatment))
        for treatment in (None, "exclude", "negative", "runner_up", "pairs")
    ]
    assert [row.num_trained for row in sft] == [1] * 5
    assert {row.candidate_sets[0].treatment for row in sft[:2]} == {"exclude"}
    assert [row.candidate_sets[0].treatment for row in sft[2:]] == ["negative", "runner_up", "pairs"]
    assert planned(candidates(1), spec=Spec(objective="sft", candidates="shared")).num_trained == 3
    assert planned(candidates(1, treatment="negative"), spec=Spec(objective="sft")).num_trained == 1
    assert planned(candidates(1), spec=Spec(objective="preference")).num_trained == 3


@pytest.mark.parametrize(
    ("scores", "rewards", "expected"),
    [
        ((0.5, 0.5, 0.1), None, ["not_paired", "not_paired"]),  # p1 is selected, p0 is as good
        ((0.5, 0.5, 0.1), (1, 0), ["not_paired", "not_paired"]),  # scores say it first
        ((0.1, 0.5, 0.1), (1, 1), ["trained", "trained"]),
        ((None, None, None), (1, 1), ["not_paired", "not_paired"]),
        ((None, 0.5, None), (1, 1), ["not_paired", "not_paired"]),
        ((None, None, None), (0, 1), ["trained", "trained"]),
        ((None, None, None), None, ["trained", "trained"]),  # the choice is all that is known
    ],
)
def test_equally_good_candidates_are_no_pair(
    scores: tuple[float | None, ...], rewards: tuple[float, float] | None, expected: list[str], tmp_path: Path
) -> None:
    calls = candidates(1)[:2]
    members = [make.member(f"p{n}", score=scores[n]) for n in range(2)]
    graded = [
        make.reward(f"r{n}{part}", value * share, candidate_set_id="set1", member=n)
        for n, value in enumerate(rewards or ())
        for part, share in enumerate((0.25, 0.75))
    ]
    events = [*calls, make.candidate_set("set1", *members), make.selection("s", "set1", 1), *graded]
    row = planned(events, spec=Spec(objective="preference"))
    assert [reasons(row)[name] for name in ("p0", "p1")] == [[one] for one in expected]
    source = MemorySource(events)
    export(source, "p", tmp_path / "out", Spec(objective="preference"))
    assert verify_export(source, "p", tmp_path / "out").findings == []


def test_a_candidate_that_ties_with_one_and_not_with_another_is_in_a_pair() -> None:
    calls = candidates(1)[:3]
    members = [make.member(f"p{n}", score=score) for n, score in enumerate((0.5, 0.5, 0.1))]
    events = [*calls, make.candidate_set("set1", *members), make.selection("s", "set1", 1)]
    found = reasons(planned(events, spec=Spec(objective="preference")))
    assert found == {"p0": ["not_paired"], "p1": ["trained"], "p2": ["trained"]}


def test_the_selections_own_treatment_beats_the_specs() -> None:
    assert planned(candidates(1, treatment="exclude")).num_trained == 1
    kept = planned(candidates(1, treatment="shared"), spec=Spec(candidates="exclude"))
    assert kept.num_trained == 3


def test_a_set_without_a_selection_rejects_nobody() -> None:
    row = planned(
        [e for e in candidates(1) if e.kind != "candidate_selection"], spec=Spec(candidates="exclude")
    )
    assert row.num_trained == 3
    assert [m.selected for m in row.candidate_sets[0].members] == [None] * 3


def test_a_selection_of_nobody_rejects_all() -> None:
    assert planned(candidates(), spec=Spec(candidates="exclude")).num_trained == 0


def test_a_selection_of_a_member_that_the_set_lacks_rejects_nobody() -> None:
    row = planned(candidates(3, treatment="exclude"), spec=Spec(candidates="exclude"))
    assert row.num_trained == 3
    assert [m.selected for m in row.candidate_sets[0].members] == [None] * 3
    assert planned(candidates(1, 7, treatment="exclude")).candidate_sets[0].treatment == "shared"


def test_several_selections_each_choose_and_the_last_names_the_treatment() -> None:
    more = make.selection("s2", "set1", 2, treatment="exclude")
    row = planned([*candidates(1, treatment="shared"), more])
    assert reasons(row) == {"p0": ["candidate_excluded"], "p1": ["trained"], "p2": ["trained"]}
    assert [m.selected for m in row.candidate_sets[0].members] == [False, True, True]


def test_a_candidate_that_is_an_agent_takes_the_agents_below_it_along() -> None:
    events = [
        make.agent("main"),
        make.agent("try0", parent_agent_id="main"),
        make.agent("try1", parent_agent_id="main"),
        make.agent("under0", parent_agent_id="try0"),
        make.candidate_set("set1", make.member(agent="try0"), make.member(agent="try1")),
        make.selection("s", "set1", 1, treatment="exclude"),
    ]
    for n, name in enumerate(("main", "try0", "try1", "under0")):
        events.append(make.call(name, None, make.answer(None, ids=[4]), prompt_ids=[n], agent=name))
    assert {call: only for call, (only,) in reasons(planned(events)).items()} == {
        "main": "trained",
        "try0": "candidate_excluded",
        "try1": "trained",
        "under0": "candidate_excluded",
    }


def test_tokens_after_a_latent_are_not_trained_nor_are_those_of_later_calls() -> None:
    row = planned(
        [
            make.call("a", None, make.answer(None, ids=[4, 5, 6]), prompt_ids=[1, 2], ordinal=0),
            make.call(
                "b", None, make.answer(None, ids=[7]), prompt_ids=[1, 2, 4, 5, 6, 3], ordinal=1, parent="a"
            ),
            make.blob(role="latent", call_id="a", position=3),
        ]
    )
    assert reasons(row) == {"a": ["trained", "latent", "latent"], "b": ["latent"]}


def image_message(url: str) -> dict[str, Any]:
    return make.user([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}])


def test_an_image_that_no_blob_places_keeps_the_sample_out() -> None:
    call = make.call("c", [image_message("data:x")], make.answer("a", ids=[4]), prompt_ids=[1, 7])
    assert whole_reason(planned([call]), "c") == "image_not_carried"
    placed = make.blob(role="image", call_id="c", position=1)
    assert whole_reason(planned([call, placed]), "c") == "trained"


@pytest.mark.parametrize(
    "message",
    [
        '{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "JV"}}]}',
        '{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}',
        '{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}',
        '{"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "f"}}',
        r'{"role": "user", "content": [{"type": "im\u0061ge", "source": {"url": "data:x"}}]}',
        r'{"role": "user", "content": [{"type": "f\u0069le", "file": {"file_id": "f"}}]}',
    ],
)
def test_files_screenshots_and_escaped_part_types_are_media_too(message: str, tmp_path: Path) -> None:
    dialect = "openai_responses" if "computer" in message else "openai_chat"
    field = "input" if "computer" in message else "messages"
    request = Raw(f'{{"model": "m", "{field}": [{message}]}}'.encode())
    call = make.call("c", request, make.answer("a", ids=[4]), prompt_ids=[1, 7], dialect=dialect)
    assert whole_reason(planned([call]), "c") == "image_not_carried"
    source = MemorySource([call, *one_trained("other")])
    export(source, "p", tmp_path / "out", Spec())
    assert verify_export(source, "p", tmp_path / "out").findings == []


def one_trained(name: str) -> list[AnyEvent]:
    return [make.call(name, None, make.answer(None, ids=[4]), prompt_ids=[1])]


@pytest.mark.parametrize("text", ['{"type": "image_url"}', '{"type": "file"}', "\u00e4 \u0001 file"])
def test_a_text_that_only_speaks_of_media_is_text(text: str) -> None:
    call = make.call("c", [make.user(text)], make.answer("a", ids=[4]), prompt_ids=[1])
    assert whole_reason(planned([call]), "c") == "trained"


def test_inline_images_separate_contexts_with_equal_ids() -> None:
    calls = [
        make.call(f"c{n}", [image_message(url)], make.answer("a", ids=[4]), prompt_ids=[1, 7], ordinal=n)
        for n, url in enumerate(("data:x", "data:x", "data:y"))
    ]
    row = planned(calls)
    # The first two share their prompt, the third shares nothing: 2 + 1 + 1 and 2 + 1.
    assert len(row.token_ids) == 7


def test_later_images_leave_the_context_before_them_shared() -> None:
    first = make.call("a", [make.user("u")], make.answer("v", ids=[4]), prompt_ids=[1], ordinal=0)
    chat = [make.user("u"), make.assistant("v")]
    later = [
        make.call(
            f"c{n}",
            [*chat, image_message(url)],
            make.answer("w", ids=[5]),
            prompt_ids=[1, 4, 7],
            ordinal=1 + n,
        )
        for n, url in enumerate(("data:x", "data:y"))
    ]
    row = planned([first, *later])
    # [1] - [4] - [7] - [5] and again [7] - [5] under other pixels.
    assert len(row.token_ids) == 6
    assert reasons(row) == {"a": ["trained"], "c0": ["image_not_carried"], "c1": ["image_not_carried"]}


@pytest.mark.parametrize(
    ("started_at", "spec", "expected"),
    [
        (10, Spec(started_from=10), "trained"),
        (9, Spec(started_from=10), "time"),
        (9, Spec(started_before=10), "trained"),
        (10, Spec(started_before=10), "time"),
        (None, Spec(started_before=10), "time"),
        (None, Spec(), "trained"),
    ],
)
def test_only_what_started_in_the_time_of_the_spec_trains(
    started_at: int | None, spec: Spec, expected: str
) -> None:
    row = one_call(make.episode(started_at=started_at), spec=spec)
    assert whole_reason(row, "c") == expected
    assert row.episodes[0].in_statistics == (expected == "trained")


@pytest.mark.parametrize(("role", "expected"), [("main", "trained"), ("judge", "role"), (None, "role")])
def test_only_the_roles_of_the_spec_train(role: str | None, expected: str) -> None:
    assert reason_of(make.agent(role=role), spec=Spec(roles=("main", "subagent"))) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(name="policy", version=7), "trained"),
        (Policy(name="policy", version=6), "stale"),
        (Policy(name="policy", version=9), "trained"),
        (Policy(name="policy"), "stale"),
        (None, "stale"),
    ],
)
def test_what_a_version_too_far_behind_sampled_is_stale(policy: Policy | None, expected: str) -> None:
    assert reason_of(policy=policy, spec=Spec(current_version=9, max_staleness=2)) == expected


def test_tokens_go_stale_one_by_one_where_the_version_changed_inside_an_answer() -> None:
    runs = (VersionRun(start=0, name="policy", version=6), VersionRun(start=1, name="policy", version=7))
    body = make.answer("a", ids=[4, 5], versions=runs)
    row = one_call(body=body, spec=Spec(current_version=9, max_staleness=2))
    assert reasons(row)["c"] == ["stale", "trained"]
    row = one_call(body=body, spec=Spec(policy_versions=(6,)))
    assert reasons(row)["c"] == ["trained", "other_policy"]


def test_a_task_that_is_set_aside_is_eval_and_says_so_in_the_row() -> None:
    spec = Spec(validation=Validation(share=0.5))
    tasks = [f"task-{number}" for number in range(20)]
    for task in tasks:
        row = one_call(make.episode(task_id=task), spec=spec)
        aside = Validation(share=0.5).holds(task)
        assert whole_reason(row, "c") == ("split" if aside else "trained")
        assert row.episodes[0].split == ("eval" if aside else None)
    assert 0 < sum(map(Validation(share=0.5).holds, tasks)) < 20
    named = one_call(make.episode(task_id=tasks[0], split="test"), spec=spec)
    assert named.episodes[0].split == "test"


def two_tries(*, selected: tuple[int, ...], spec: Spec) -> dict[str, list[str]]:
    """A call that two candidates answer, and one more that continues the first."""
    events: list[AnyEvent] = [
        make.call(
            "c", [make.user("u")], make.answer("a", ids=[4]), make.answer("b", ids=[5]), prompt_ids=[1]
        ),
        make.call("d", [make.user("v")], make.answer("e", ids=[8]), prompt_ids=[1, 4, 7]),
        make.candidate_set("s", *(Member(call_id="c", completion=index) for index in (0, 1))),
        make.selection("chosen", "s", *selected),
    ]
    return reasons(planned(events, spec=spec))


def test_a_preference_export_trains_the_members_of_sets_that_were_chosen_from() -> None:
    spec = Spec(objective="preference")
    assert two_tries(selected=(0,), spec=spec) == {"c": ["trained", "trained"], "d": ["not_paired"]}
    # Nothing to prefer where none, or all, were chosen.
    for selected in ((), (0, 1)):
        assert two_tries(selected=selected, spec=spec)["c"] == ["not_paired", "not_paired"]


@pytest.mark.parametrize("objective", ["rl", "sft"])
def test_what_read_an_answer_to_something_else_does_not_train(objective: Literal["rl", "sft"]) -> None:
    first = make.call("a", None, make.answer(None, ids=[4]), prompt_ids=[1], ordinal=0)
    second = make.call("b", None, make.answer(None, ids=[6]), prompt_ids=[1, 4, 5], ordinal=1)
    gaps = [make.gap("g1", "stale_observation", call_id="b"), make.gap("g2", "no_token_ids", call_id="a")]
    row = planned([make.episode(status="ok"), first, second, *gaps], spec=Spec(objective=objective))
    assert reasons(row) == {"a": ["trained"], "b": ["stale_observation"]}
