from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.exporters.memory import MemorySource
from tests.exporters.planned import reasons
from tests.exporters.stores import grouped, only_row, rewritten
from tests.factories import (
    agent,
    answer,
    assistant,
    blob,
    call,
    compaction,
    episode,
    subagent,
    tool_use,
    user,
)
from tests.scenarios import SCENARIOS
from tests.tokens.folders import CHATML, THINKING, folder
from tracestore.shards.manifest import read_manifest, write_manifest
from tracestore.tokens.chat import Chat, load_chat
from tracestore.wire.events import AnyEvent
from tracestore_exporters.conservation import rendering_lines
from tracestore_exporters.export import export
from tracestore_exporters.rendering import (
    NothingToRender,
    NoTokenizer,
    OtherTokenizer,
    RenderedForRl,
)
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

SFT = Spec(objective="sft", render=True)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return load_chat(str(folder(tmp_path_factory.mktemp("chat"), CHATML)))


def text_only() -> list[AnyEvent]:
    """A subagent and a compaction, no token id anywhere; five answers of one character each."""
    return [
        episode(status="ok"),
        agent(),
        call("c0", [user("u")], answer("a")),
        subagent("s", spawned_by="c0"),
        call("s0", [user("v")], answer("b"), agent="s"),
        call("c1", [user("w")], answer("c"), parent="c0", delta=True),
        call("c2", [user("x")], answer("d"), parent="c1", delta=True, purpose="summarize"),
        call("c3", [user("d")], answer("e")),
        compaction(author_call_id="c2", author="policy", before_call_id="c1", after_call_id="c3"),
    ]


def test_a_rendered_export_conserves_and_says_with_what_it_was_rendered(tmp_path: Path, chat: Chat) -> None:
    source = MemorySource(text_only())
    manifest = export(source, "p", tmp_path / "out", SFT, chat=chat)
    table = manifest.conservation
    # Five answers of a character and an end token.
    assert (table.sampled_tokens, table.trained_tokens, table.excluded) == (10, 10, {})
    assert (table.rendered_completions, table.not_rendered, table.no_token_ids_calls) == (5, {}, 0)
    assert manifest.causes == {"root": 1, "subagent_root": 1, "compaction": 1}
    assert manifest.tokenizer_hash == chat.tokenizer_hash
    assert manifest.template_hash == chat.template_hash
    assert {"jinja2", "tokenizers"} <= manifest.libraries.keys()
    assert all(one.rendered for one in only_row(tmp_path / "out").calls)
    assert verify_export(source, "p", tmp_path / "out", chat=chat).findings == []


def test_the_same_export_twice_has_the_same_hash(tmp_path: Path, chat: Chat) -> None:
    source = MemorySource(text_only())
    one, other = (export(source, "p", tmp_path / name, SFT, chat=chat) for name in ("one", "two"))
    assert one.manifest_hash == other.manifest_hash


def test_what_could_not_be_rendered_is_a_line_with_its_first_example(tmp_path: Path, chat: Chat) -> None:
    image = user([{"type": "image_url", "image_url": {"url": "data:"}}])
    thought = assistant("a", reasoning_content="r")
    events = [
        episode(status="ok"),
        call("c0", [user("u")], answer(thought)),
        call("c1", [image], answer("b"), parent="c0", delta=True),
        call("c2", [user("u")], answer(assistant(None, tool_calls=[tool_use("run")]))),
    ]
    source = MemorySource(events)
    manifest = export(source, "p", tmp_path / "out", SFT, chat=chat)
    table = manifest.conservation
    assert table.not_rendered == {"media": 1, "template_writes_no_tool_calls": 1}
    assert table.left_out == {"reasoning": 1}
    assert table.no_token_ids_calls == 2
    assert manifest.notes == (
        "1 completions are not rendered: media, the first: image_url",
        "1 completions are not rendered: template_writes_no_tool_calls",
        "1 completions are rendered without all of their reasoning",
    )
    assert rendering_lines(table) == [
        ("rendered", 1),
        ("not rendered: media", 1),
        ("not rendered: template_writes_no_tool_calls", 1),
        ("rendered without: reasoning", 1),
    ]
    assert verify_export(source, "p", tmp_path / "out", chat=chat).findings == []


def mixed() -> list[AnyEvent]:
    return [*text_only(), *grouped(SCENARIOS["compaction"](), prefix="ids")]


def test_recorded_ids_beside_rendered_ones_are_left_out_by_name(tmp_path: Path, chat: Chat) -> None:
    source = MemorySource(mixed())
    recorded = export(source, "p", tmp_path / "recorded", Spec(objective="sft")).conservation.sampled_tokens
    assert recorded > 0
    table = export(source, "p", tmp_path / "out", SFT, chat=chat).conservation
    assert table.sampled_tokens == 10 + recorded
    assert table.excluded == {"other_tokenizer": recorded}
    assert verify_export(source, "p", tmp_path / "out", chat=chat).findings == []
    kept = SFT.model_copy(update={"keep_recorded": True})
    table = export(source, "p", tmp_path / "kept", kept, chat=chat).conservation
    assert (table.trained_tokens, table.excluded) == (10 + recorded, {})
    assert verify_export(source, "p", tmp_path / "kept", chat=chat).findings == []


def test_rl_does_not_train_on_rendered_text_unless_the_spec_insists(tmp_path: Path, chat: Chat) -> None:
    source = MemorySource(text_only())
    with pytest.raises(RenderedForRl, match="objective sft"):
        export(source, "p", tmp_path / "out", Spec(render=True), chat=chat)
    assert not (tmp_path / "out").exists()
    insists = Spec(render=True, render_for_rl=True)
    assert export(source, "p", tmp_path / "out", insists, chat=chat).conservation.trained_tokens == 10
    assert verify_export(source, "p", tmp_path / "out", chat=chat).findings == []


def test_a_spec_and_a_tokenizer_go_together(tmp_path: Path, chat: Chat) -> None:
    source = MemorySource(text_only())
    with pytest.raises(NoTokenizer, match="--tokenizer"):
        export(source, "p", tmp_path / "out", SFT)
    with pytest.raises(NothingToRender, match="--render"):
        export(source, "p", tmp_path / "out", Spec(objective="sft"), chat=chat)


def test_without_rendering_an_empty_export_names_it(tmp_path: Path) -> None:
    manifest = export(MemorySource(text_only()), "p", tmp_path / "out", Spec(objective="sft"))
    assert "no call has token ids (5 answered calls without)" in manifest.notes[0]
    assert "--render" in manifest.notes[0]
    assert manifest.tokenizer_hash is None


def test_verify_needs_the_tokenizer_and_the_template_of_the_export(tmp_path: Path, chat: Chat) -> None:
    source = MemorySource(text_only())
    export(source, "p", tmp_path / "out", SFT, chat=chat)
    with pytest.raises(NoTokenizer, match=chat.tokenizer_hash):
        verify_export(source, "p", tmp_path / "out")
    template = load_chat(str(folder(tmp_path / "template", THINKING)))
    with pytest.raises(OtherTokenizer, match="template_hash"):
        verify_export(source, "p", tmp_path / "out", chat=template)
    tokenizer = load_chat(
        str(folder(tmp_path / "tokenizer", CHATML, controls=["<|im_start|>", "<|im_end|>"]))
    )
    with pytest.raises(OtherTokenizer, match="tokenizer_hash"):
        verify_export(source, "p", tmp_path / "out", chat=tokenizer)


def found(source: MemorySource, out: Path, chat: Chat) -> set[str]:
    return {finding.name for finding in verify_export(source, "p", out, chat=chat).findings}


@pytest.mark.parametrize("which", range(3))
def test_a_flipped_mask_bit_of_a_rendered_export_is_found(tmp_path: Path, chat: Chat, which: int) -> None:
    source, out = MemorySource(text_only()), tmp_path / "out"
    export(source, "p", out, SFT, chat=chat)
    row = only_row(out)
    reason = row.reason.copy()
    sampled = [at for at, one in enumerate(reason.tolist()) if one == 0]
    places: Sequence[int] = (sampled[0], sampled[-1], 0)
    reason[places[which]] ^= 1
    rewritten(out, [replace(row, reason=reason)])
    assert found(source, out, chat) & {"reason_differs", "unsampled_trained"}


def test_a_call_that_hides_that_it_was_rendered_is_found_and_so_is_a_wrong_count(
    tmp_path: Path, chat: Chat
) -> None:
    source, out = MemorySource(text_only()), tmp_path / "out"
    manifest = export(source, "p", out, SFT, chat=chat)
    table = manifest.conservation.model_copy(update={"rendered_completions": 4})
    write_manifest(out, manifest.model_copy(update={"conservation": table}))
    assert found(source, out, chat) == {"rendering_count"}
    write_manifest(out, manifest)
    row = only_row(out)
    rewritten(out, [replace(row, calls=tuple(replace(one, rendered=False) for one in row.calls))])
    assert found(source, out, chat) == {"calls_differ"}
    assert read_manifest(out).conservation == manifest.conservation


def test_the_rules_of_an_sft_export_hold_for_rendered_calls(tmp_path: Path, chat: Chat) -> None:
    events = [
        episode(status="ok"),
        call("c0", [user("u")], answer("a"), model="good"),
        call("c1", [user("v")], answer("b"), model="bad"),
        call("c2", [user("w")], answer("c"), model="good", purpose="judge"),
        call("c3", [user("x")], answer("d", partial=True), model="good", status="aborted"),
    ]
    source = MemorySource(events)
    spec = SFT.model_copy(update={"models": ("good",)})
    export(source, "p", tmp_path / "out", spec, chat=chat)
    assert reasons(only_row(tmp_path / "out")) == {
        "c0": ["trained", "trained"],
        "c1": ["other_policy", "other_policy"],
        "c2": ["purpose", "purpose"],
        "c3": ["call_incomplete", "call_incomplete"],
    }
    assert verify_export(source, "p", tmp_path / "out", chat=chat).findings == []


def test_nothing_after_a_latent_trains_as_text_wherever_the_template_would_put_it(
    tmp_path: Path, chat: Chat
) -> None:
    source = MemorySource(
        [
            episode(status="ok"),
            agent(),
            call("c0", [user("u")], answer("a"), ordinal=0),
            call("c1", [user("v")], answer("b"), ordinal=1),
            # A position among recorded tokens that lies behind all that the template gives.
            blob(role="latent", call_id="c1", position=10_000),
        ]
    )
    manifest = export(source, "p", tmp_path / "out", SFT, chat=chat)
    assert manifest.conservation.excluded == {"latent": 2}
    assert manifest.conservation.trained_tokens == 2
    assert verify_export(source, "p", tmp_path / "out", chat=chat).findings == []
