"""Laws 4 and 5 for rendered text: each answer trains exactly once, and its tokens read as it was given."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.exporters.memory import MemorySource
from tests.factories import answer, assistant, call, episode, system, user
from tests.tokens.folders import CHATML, CONTROLS, THINKING, TOOLED, folder
from tracestore.shards.read import open_export
from tracestore.shards.views import flat_samples
from tracestore.tokens.chat import Chat, load_chat
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

TEXTS = st.lists(
    st.sampled_from([*CONTROLS, "a", " b", "\n", "\n\n", "<think>", "ü", "\x00"]), max_size=4
).map("".join)
_numbers = count()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("render")


@pytest.fixture(scope="module")
def chats(work: Path) -> dict[str, Chat]:
    templates = {"chatml": CHATML, "thinking": THINKING, "tooled": TOOLED}
    return {name: load_chat(str(folder(work / name, template))) for name, template in templates.items()}


@st.composite
def episodes(draw: st.DrawFn) -> tuple[list[AnyEvent], dict[str, dict[str, Any]]]:
    """(events without ids, the answer of each call): chains of deltas, forks, roots, whole contexts."""
    events: list[AnyEvent] = [episode(status="ok")]
    answers: dict[str, dict[str, Any]] = {}
    contexts: dict[str, list[dict[str, Any]]] = {}
    for number in range(draw(st.integers(1, 6))):
        name = f"c{number}"
        parent = draw(st.sampled_from([None, *answers]))
        said = assistant(draw(TEXTS))
        if draw(st.booleans()):
            said["reasoning_content"] = draw(st.sampled_from(["r", "s t"]))
        own = [user(draw(TEXTS))] if parent else [system(draw(TEXTS)), user(draw(TEXTS))]
        before = [] if parent is None else [*contexts[parent], answers[parent]]
        contexts[name], answers[name] = [*before, *own], said
        reason = draw(st.sampled_from(["stop", "length"]))
        if parent is not None and draw(st.booleans()):
            made = call(name, own, answer(said, finish_reason=reason), parent=parent, delta=True)
        else:
            made = call(name, contexts[name], answer(said, finish_reason=reason), parent=parent)
        events.append(made)
    return events, answers


def written(said: dict[str, Any], reads_reasoning: bool) -> str:
    """What the templates of this module write of an answer."""
    thought = said.get("reasoning_content")
    return (f"<think>{thought}</think>" if thought and reads_reasoning else "") + str(said["content"])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=episodes(), which=st.sampled_from(["chatml", "thinking", "tooled"]))
def test_every_answer_trains_once_and_reads_as_it_was_given(
    made: tuple[list[AnyEvent], dict[str, dict[str, Any]]], which: str, chats: dict[str, Chat], work: Path
) -> None:
    (events, answers), chat = made, chats[which]
    source, out = MemorySource(events), work / f"out{next(_numbers)}"
    manifest = export(source, "p", out, Spec(objective="sft", render=True), chat=chat)
    table = manifest.conservation
    assert table.sampled_tokens == table.trained_tokens
    # An empty answer that was cut off is no token at all.
    empty = {call_id for call_id, said in answers.items() if not written(said, which != "chatml")}
    assert set(table.not_rendered) <= {"nothing_written"}
    assert sum(table.not_rendered.values()) <= len(empty)
    trained: Counter[str] = Counter()
    for row in open_export(out).rows():
        for flat in flat_samples(row):
            for completion in sorted(set(flat.completion[flat.mask].tolist())):
                own = flat.mask & (flat.completion == completion)
                call_id = row.calls[row.completions[completion].call].call_id
                ended = row.completions[completion].finish_reason == "stop"
                text = chat.tokenizer.decode(flat.token_ids[own].tolist())
                assert text == written(answers[call_id], which != "chatml") + "<|im_end|>" * ended
                trained[call_id] += 1
    assert set(trained.values()) <= {1}
    assert len(trained) + sum(table.not_rendered.values()) == len(answers)
    assert verify_export(source, "p", out, chat=chat).findings == []
