from __future__ import annotations

from pathlib import Path

import pytest

from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.exporters.planned import causes, planned
from tests.exporters.stores import rewritten, rows_of
from tracestore.shards.manifest import read_manifest, write_manifest
from tracestore.wire.events import AnyEvent
from tracestore_exporters.boundaries import boundary_notes
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export


def chat_whose_thinking_is_stripped(turns: int) -> list[AnyEvent]:
    """Each prompt holds the answers before it without their first token; the messages are as sampled."""
    events: list[AnyEvent] = [make.episode(status="ok")]
    messages, ids = [make.user("u")], [1]
    for turn in range(turns):
        said = make.assistant("x", reasoning_content="hm")
        sampled = [7, 50 + turn]
        body = make.answer(said, ids=sampled)
        events.append(make.call(f"c{turn}", messages, body, prompt_ids=ids, ordinal=turn))
        messages, ids = [*messages, said, make.user("v")], [*ids, *sampled[1:], 2]
    return events


def test_a_template_that_breaks_every_prefix_is_told_with_what_to_do(tmp_path: Path) -> None:
    manifest = export(MemorySource(chat_whose_thinking_is_stripped(5)), "p", tmp_path / "out", Spec())
    assert manifest.causes == {"root": 1, "template_drift": 4}
    (note,) = manifest.notes
    assert note.startswith("4 of 5 samples (80 %) begin at template_drift: the chat template renders earlier")
    assert "send on the recorded ids" in note


@pytest.mark.parametrize(
    ("counted", "named"),
    [
        ({"root": 3, "template_drift": 1}, ["template_drift"]),
        ({"root": 4, "template_drift": 1}, []),
        ({"root": 1, "tools_change": 2, "images_change": 1, "unknown": 2}, ["tools_change", "unknown"]),
        ({"root": 1, "rewrite": 9, "compaction": 9}, []),
        ({}, []),
    ],
)
def test_only_what_is_frequent_and_not_meant_is_noted(counted: dict[str, int], named: list[str]) -> None:
    notes = boundary_notes(counted)
    assert [note.partition(" begin at ")[2].partition(":")[0] for note in notes] == named


def test_a_tool_result_that_was_cleared_without_a_word_is_recognised() -> None:
    use = make.assistant(None, tool_calls=[make.tool_use("read")])
    before = [make.user("u"), use, make.tool("long")]
    after = [make.user("u"), use, make.tool("[cleared]"), make.assistant("x"), make.user("v")]
    row = planned(
        [
            make.call("a", before, make.answer("x", ids=[5]), prompt_ids=[1, 7, 7], ordinal=0),
            make.call("b", after, make.answer("y", ids=[6]), prompt_ids=[1, 8, 5, 2], ordinal=1),
        ]
    )
    assert causes(row) == {"a:0": "root", "b:0": "tool_result_clearing"}


@pytest.mark.parametrize("edit", ["compaction", "fold", "rewrite", "truncation", "tool_result_clearing"])
@pytest.mark.parametrize("named", ["before_call_id", "after_call_id"])
def test_a_declared_edit_is_the_cause_in_the_harnesss_own_word(edit: str, named: str) -> None:
    call_id = {"before_call_id": "a", "after_call_id": "b"}[named]
    row = planned(
        [
            make.call("a", [make.user("u")], make.answer("x", ids=[5]), prompt_ids=[1], ordinal=0),
            make.call("b", [make.user("w")], make.answer("y", ids=[6]), prompt_ids=[2], ordinal=1),
            make.compaction(edit=edit, status="accepted", **{named: call_id}),
        ]
    )
    assert causes(row) == {"a:0": "root", "b:0": edit}


def test_an_unfolded_context_goes_on_where_it_was_folded() -> None:
    chat = [make.user("u")]
    back = [*chat, make.assistant("x"), make.user("v")]
    row = planned(
        [
            make.call("a", chat, make.answer("x", ids=[5]), prompt_ids=[1], ordinal=0),
            make.call("b", [make.user("folded")], make.answer("y", ids=[6]), prompt_ids=[2], ordinal=1),
            make.call("c", back, make.answer("z", ids=[7]), prompt_ids=[1, 5, 3], ordinal=2),
            make.compaction("x1", edit="fold", after_call_id="b", status="accepted"),
            make.compaction("x2", edit="rewrite", after_call_id="c", status="accepted"),
        ]
    )
    assert causes(row) == {"b:0": "fold", "c:0": "root"}
    assert [len(sample.completions) for sample in row.samples] == [2, 1]


@pytest.mark.parametrize("status", ["aborted", "failed"])
def test_a_try_after_one_that_broke_off_begins_where_that_did(status: str) -> None:
    row = planned(
        [
            make.call(
                "a", [make.user("u")], make.answer("x", ids=[5]), prompt_ids=[1], ordinal=0, status=status
            ),
            make.call("b", [make.user("u")], make.answer("y", ids=[6]), prompt_ids=[1], ordinal=1),
        ]
    )
    assert causes(row) == {"a:0": "root", "b:0": "root"}
    assert row.num_trained == 1


def stripped(number: int) -> list[AnyEvent]:
    calls = [
        make.call(f"c{n}", None, make.answer(None, ids=[4], stop_token_stripped=n < number), prompt_ids=[n])
        for n in range(3)
    ]
    return [make.episode(status="ok"), *calls]


def test_stripped_stop_tokens_are_counted_beside_the_sum(tmp_path: Path) -> None:
    source, out = MemorySource(stripped(2)), tmp_path / "out"
    table = export(source, "p", out, Spec()).conservation
    assert (table.stripped_stop_tokens, table.sampled_tokens, table.trained_tokens) == (2, 3, 3)
    assert verify_export(source, "p", out).findings == []

    manifest = rewritten(out, rows_of(out))
    forged = manifest.conservation.model_copy(update={"stripped_stop_tokens": 3})
    write_manifest(out, manifest.model_copy(update={"conservation": forged}))
    assert read_manifest(out).conservation.stripped_stop_tokens == 3
    assert [finding.name for finding in verify_export(source, "p", out).findings] == ["stripped_count"]
