from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.exporters.stores import only_row, rewritten, rows_of, stored
from tests.tokens.folders import TOOLED, folder
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.shards.manifest import Manifest
from tracestore.store.redact import add_rules, carry_out
from tracestore.store.rules import Rule
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.interchange import write_episodes
from tracestore_exporters.redaction import redacted
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

KEY = Rule(name="key", pattern="sk-[a-z]+")


def two_turns(first: str = "go", answer: str = "ok", second: str = "on", **fields: Any) -> list[AnyEvent]:
    """c0: [1] -> [4, 5]; c1 goes on: [1, 4, 5, 6] -> [7]. 3 sampled tokens."""
    said = make.answer(make.assistant(answer), ids=[4, 5])
    chat = [make.user(first), make.assistant(answer), make.user(second)]
    later = make.answer(make.assistant("done"), ids=[7])
    return [
        make.episode(),
        make.call("c0", [make.user(first)], said, prompt_ids=[1], ordinal=0, **fields),
        make.call("c1", chat, later, prompt_ids=[1, 4, 5, 6], ordinal=1, parent="c0"),
    ]


def made(folder: Path, *events: AnyEvent, rules: tuple[Rule, ...] = (KEY,), **spec: Any) -> Manifest:
    """The export, verified."""
    source = MemorySource(events)
    manifest = export(source, "p", folder / "out", Spec(redaction=rules, **spec))
    assert verify_export(source, "p", folder / "out").findings == []
    return manifest


@pytest.mark.parametrize(
    ("texts", "kept", "withheld"),
    [
        (("go", "ok", "on"), [1, 4, 5, 6, 7], 0),
        (("go", "ok", "sk-x"), [1, 4, 5], 1),  # only the second call read it
        (("go", "sk-x", "on"), None, 3),  # the first wrote it, the second read it
        (("sk-x", "ok", "on"), None, 3),  # both read it
    ],
)
def test_a_completion_that_wrote_or_read_a_match_is_in_no_shard_and_counted(
    texts: tuple[str, str, str], kept: list[int] | None, withheld: int, tmp_path: Path
) -> None:
    manifest = made(tmp_path, *two_turns(*texts))
    assert [row.token_ids.tolist() for row in rows_of(tmp_path / "out")] == ([] if kept is None else [kept])
    table = manifest.conservation
    assert (table.sampled_tokens, table.trained_tokens, table.completions) == (3, 3 - withheld, 2)
    assert table.excluded == ({"redacted": withheld} if withheld else {})
    assert table.no_token_ids_calls == 0


def test_a_withheld_answer_leaves_those_beside_it_alone(tmp_path: Path) -> None:
    both = make.answer(make.assistant("sk-x"), ids=[4]), make.answer(make.assistant("b"), ids=[5, 6])
    manifest = made(tmp_path, make.episode(), make.call("c", [make.user("u")], *both, prompt_ids=[1]))
    assert only_row(tmp_path / "out").token_ids.tolist() == [1, 5, 6]
    assert manifest.conservation.excluded == {"redacted": 1}


def test_a_call_that_is_posted_as_a_delta_read_what_its_parent_read(tmp_path: Path) -> None:
    first = make.call("c0", [make.user("sk-x")], make.answer(make.assistant("a"), ids=[4]), prompt_ids=[1])
    said = make.answer(make.assistant("b"), ids=[7])
    later = make.call("c1", [make.user("v")], said, parent="c0", delta=True, prompt_ids_delta=[6])
    assert made(tmp_path, make.episode(), first, later).conservation.excluded == {"redacted": 2}


def test_ids_that_go_on_with_a_match_are_withheld_whatever_text_was_sent_with_them(tmp_path: Path) -> None:
    """Thinking that a harness leaves out of the messages, and its ids in the prompt."""
    thought = make.assistant("ok") | {"reasoning_content": "sk-x"}
    first = make.call("c0", [make.user("go")], make.answer(thought, ids=[4, 5]), prompt_ids=[1], ordinal=0)
    chat = [make.user("go"), make.assistant("ok"), make.user("on")]
    ids = {"same": [1, 4, 5, 6], "other": [1, 5, 6]}
    later = [
        make.call(name, chat, make.answer(make.assistant(name), ids=[7]), prompt_ids=prompt, ordinal=n + 1)
        for n, (name, prompt) in enumerate(ids.items())
    ]
    manifest = made(tmp_path, make.episode(), first, *later)
    assert manifest.conservation.excluded == {"redacted": 2 + 1}
    assert only_row(tmp_path / "out").token_ids.tolist() == [1, 5, 6, 7]


def test_ids_without_a_text_to_look_at_are_withheld(tmp_path: Path) -> None:
    read = make.call("r", None, make.answer(make.assistant("a"), ids=[4]), prompt_ids=[1])
    wrote = make.call("w", [make.user("u")], make.answer(None, ids=[5]), prompt_ids=[1])
    assert made(tmp_path, make.episode(), read, wrote).conservation.excluded == {"redacted": 2}


@pytest.mark.parametrize(
    "request_",
    [
        {"model": "m"},
        {"model": "m", "messages": []},
        {"model": "m", "input_ids": [1]},
        {"model": "m", "prompt": "my sk-x"},  # of no dialect that says that a model read it
    ],
)
def test_a_prompt_of_ids_alone_is_withheld_though_there_is_a_request(
    request_: dict[str, Any], tmp_path: Path
) -> None:
    said = make.answer(make.assistant("a"), ids=[4])
    call = make.call("c", make.raw(request_), said, prompt_ids=[1])
    assert made(tmp_path, make.episode(), call).conservation.excluded == {"redacted": 1}


def test_a_prompt_that_is_posted_as_ids_in_place_of_text_is_withheld(tmp_path: Path) -> None:
    said = make.answer(make.assistant("a"), ids=[4])
    request = make.raw({"model": "m", "prompt": [1]})
    call = make.call("c", request, said, prompt_ids=[1], dialect="text")
    assert made(tmp_path, make.episode(), call).conservation.excluded == {"redacted": 1}


def test_a_call_that_adds_neither_text_nor_ids_read_what_its_parent_did(tmp_path: Path) -> None:
    first = make.call("c0", [make.user("go")], make.answer(make.assistant("a"), ids=[4]), prompt_ids=[1])
    said = make.answer(make.assistant("b"), ids=[7])
    later = make.call("c1", [], said, parent="c0", delta=True, prompt_ids_delta=[])
    assert made(tmp_path, make.episode(), first, later).conservation.excluded == {}


def test_all_else_in_a_row_is_redacted_too(tmp_path: Path) -> None:
    params = {"temperature": 0.5, "stop": "sk-x"}
    made(tmp_path, *two_turns(params=params), make.agent("main", role="main", model="sk-y"))
    row = only_row(tmp_path / "out")
    assert row.calls[0].params == '{"stop":"[redacted:key]","temperature":0.5}'
    assert (row.agents[0].model, row.num_trained) == ("[redacted:key]", 3)


def test_without_rules_no_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stored(tmp_path, two_turns()) as store:
        monkeypatch.setattr(type(store), "load", None)
        assert export(store, "p", tmp_path / "out", Spec()).conservation.trained_tokens == 3
        with pytest.raises(TypeError):
            export(store, "p", tmp_path / "other", Spec(redaction=(KEY,)))


def test_verify_finds_ids_that_should_have_been_withheld(tmp_path: Path) -> None:
    events = [*two_turns("sk-x"), *(event.model_copy() for event in other_episode())]
    source = MemorySource(events)
    export(source, "p", tmp_path / "out", Spec(redaction=(KEY,)))
    export(source, "p", tmp_path / "all", Spec())
    rewritten(tmp_path / "out", rows_of(tmp_path / "all"))
    found = {finding.name for finding in verify_export(source, "p", tmp_path / "out").findings}
    assert "completion_unknown" in found


def other_episode() -> list[AnyEvent]:
    said = make.answer(make.assistant("a"), ids=[8])
    return [make.episode("f"), make.call("f0", [make.user("u")], said, prompt_ids=[2], episode="f")]


def test_text_is_rendered_as_it_is_after_redaction(tmp_path: Path) -> None:
    from tracestore.tokens.chat import load_chat

    chat = load_chat(str(folder(tmp_path / "tokenizer", TOOLED)))
    plain = [make.episode(), make.call("c", [make.user("my sk-x")], "take sk-yz")]
    same = [make.episode(), make.call("c", [make.user("my [redacted:key]")], "take [redacted:key]")]
    spec = Spec(objective="sft", render=True, redaction=(KEY,))
    one = export(MemorySource(plain), "p", tmp_path / "one", spec, chat=chat)
    two = export(MemorySource(same), "p", tmp_path / "two", spec, chat=chat)
    assert one.manifest_hash == two.manifest_hash
    assert one.conservation.trained_tokens > 0


@pytest.mark.parametrize("format_", ["openai", "atif", "otlp", "rlm"])
def test_formats_of_text_hold_what_those_of_the_redacted_store_hold(format_: Any, tmp_path: Path) -> None:
    events = [*two_turns("mail sk-x", "sk-y it is"), *other_episode()]
    spec = Spec(objective="sft" if format_ == "openai" else "rl", redaction=(KEY,))
    with stored(tmp_path, events) as store:
        write_episodes(store, "p", tmp_path / "spec", format=format_, spec=spec)
        rules = json.dumps([KEY.model_dump(exclude_none=True)])
        carry_out(store, "p", add_rules(store, "p", rules).id)
        write_episodes(store, "p", tmp_path / "store", format=format_)
    names = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert len(names) == 2
    for name in names:
        text = (tmp_path / "spec" / name).read_text()
        assert "sk-" not in text
        assert text == (tmp_path / "store" / name).read_text()
        assert ("[redacted:key]" in text) == name.startswith("e.")


def test_a_rule_for_answers_finds_those_in_a_call_and_those_on_their_own() -> None:
    inside = make.call("c", [make.user("u")], make.answer(make.assistant("sk-x")))
    alone = make.completion("c", 1, make.answer(make.assistant("sk-y")))
    graph = build([make.episode(), inside, alone])
    in_call = Rule(name="a", kinds=("call",), path="completions.*.message", pattern="sk-.")
    on_its_own = Rule(name="b", kinds=("completion",), path="message.content")
    assert said(redacted(graph, (in_call,))) == ["[redacted:a]", "[redacted:a]"]
    assert said(redacted(graph, (on_its_own,))) == ["[redacted:b]", "[redacted:b]"]


def said(graph: Graph) -> list[str]:
    return [json.loads(body.message or b"null")["content"] for body in graph.completions.values()]


@pytest.mark.parametrize("others", [[], [make.agent("main")], [make.reward()]])
def test_an_answer_whose_call_has_not_come_is_redacted_and_placed_nowhere(
    others: list[AnyEvent], tmp_path: Path
) -> None:
    early = make.completion("c", 0, make.answer(make.assistant("sk-x"), ids=[4]))
    assert said(redacted(build([*others, early]), (KEY,))) == ["[redacted:key]"]
    manifest = made(tmp_path, make.gap(), *others, early)
    assert manifest.conservation.excluded == {"call_incomplete": 1}
