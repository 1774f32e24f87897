"""Rendered graphs, worked by hand: SmolLM2 for its real ids, a tokenizer of bytes for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.exporters.planned import causes, chains
from tests.factories import answer, assistant, call, completion, episode, raw, system, tool, tool_use, user
from tests.tokens.folders import CHATML, THINKING, TOOLED, folder, smollm2_chat
from tracestore.graph.build import build
from tracestore.graph.model import Graph, NotRendered
from tracestore.shards.row import Row
from tracestore.tokens.chat import Chat, load_chat
from tracestore.tokens.render import rendered
from tracestore.wire.call import Usage
from tracestore.wire.events import AnyEvent
from tracestore_exporters.rows import GroupInfo, plan_row
from tracestore_exporters.spec import Spec

SYSTEM = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407]
SYSTEM += [19712, 8182, 2, 198]
"""<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n"""
ASKED = [1, 520, 9531, 198]
"""<|im_start|>assistant\\n"""


@pytest.fixture(scope="module")
def smollm2() -> Chat:
    return smollm2_chat()


@pytest.fixture(scope="module")
def tooled(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return load_chat(str(folder(tmp_path_factory.mktemp("tooled"), TOOLED)))


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return load_chat(str(folder(tmp_path_factory.mktemp("thinking"), THINKING)))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return load_chat(str(folder(tmp_path_factory.mktemp("plain"), CHATML)))


def graph_of(chat: Chat, *events: AnyEvent) -> Graph:
    return rendered(build(events), chat)


def prompt(graph: Graph, call_id: str) -> list[int]:
    ids = graph.calls[call_id].prompt_token_ids
    assert ids is not None
    return ids.json()


def said(graph: Graph, call_id: str, index: int = 0) -> list[int]:
    ids = graph.completions[call_id, index].token_ids
    assert ids is not None
    return ids.json()


def said_text(chat: Chat, graph: Graph, call_id: str, index: int = 0) -> str:
    return chat.tokenizer.decode(said(graph, call_id, index))


def why(graph: Graph, call_id: str, index: int = 0) -> str:
    assert graph.rendering is not None
    return graph.rendering.not_rendered[call_id, index].why


def left_out(graph: Graph) -> dict[str, frozenset[str]]:
    assert graph.rendering is not None
    return {key[0]: what for key, what in graph.rendering.left_out.items()}


def row_of(graph: Graph) -> Row:
    return plan_row([graph], Spec(objective="sft", render=True), GroupInfo("p", ("e",), "g"))


def test_two_turns_of_smollm2_are_one_sample_with_both_answers_and_their_end_tokens(smollm2: Chat) -> None:
    events = [
        call("c0", [user("hi")], answer("Hello")),
        call("c1", [user("hi"), assistant("Hello"), user("bye")], answer("Bye", finish_reason="length")),
    ]
    graph = graph_of(smollm2, *events)
    first = [*SYSTEM, 1, 4093, 198, 6004, 2, 198, *ASKED]  # <|im_start|>user\nhi<|im_end|>\n
    assert prompt(graph, "c0") == first
    assert said(graph, "c0") == [19556, 2]  # Hello<|im_end|>
    # The line break behind an answer was not sampled: it begins what stands before the next question.
    second = [*first, 19556, 2, 198, 1, 4093, 198, 25257, 2, 198, *ASKED]
    assert prompt(graph, "c1") == second
    assert said(graph, "c1") == [3087, 85]  # "By", "e"; cut off, so nobody ended the turn
    row = row_of(graph)
    assert chains(row) == ((("c0", 0), ("c1", 0)),)
    assert row.token_ids.tolist() == [*second, 3087, 85]
    assert row.num_trained == 2 + 2
    assert [one.rendered for one in row.calls] == [True, True]
    assert not row.has_logprob.any()


def test_a_delta_call_and_the_whole_context_it_stands_for_have_the_same_ids(plain: Chat) -> None:
    first = call("c0", [system("s"), user("u")], answer("a"))
    whole = call("c1", [system("s"), user("u"), assistant("a"), user("v")], answer("b"))
    delta = call("c1", [user("v")], answer("b"), parent="c0", delta=True)
    one, other = graph_of(plain, first, whole), graph_of(plain, first, delta)
    assert prompt(one, "c1") == prompt(other, "c1")
    assert plain.tokenizer.decode(prompt(one, "c1")) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_strips_earlier_thinking_begins_a_new_sample_where_it_does(thinking: Chat) -> None:
    thought = assistant("a", reasoning_content="r")
    graph = graph_of(
        thinking,
        call("c0", [user("u")], answer(thought)),
        call("c1", [user("v")], answer("b"), parent="c0", delta=True),
        call("c2", [user("w")], answer("c"), parent="c1", delta=True),
    )
    assert said_text(thinking, graph, "c0") == "<think>r</think>a<|im_end|>"
    assert "think" not in thinking.tokenizer.decode(prompt(graph, "c1"))
    row = row_of(graph)
    assert chains(row) == ((("c0", 0),), (("c1", 0), ("c2", 0)))
    assert causes(row) == {"c0:0": "root", "c2:0": "template_drift"}
    # 16 characters of thinking, then one character and the end token of each of the three answers.
    assert row.num_trained == len("<think>r</think>") + 3 * (1 + 1)


def test_an_answer_that_begins_with_line_breaks_keeps_its_sample(smollm2: Chat) -> None:
    """A prompt that ends with a line break and an answer that begins with two: whole, they are other ids."""
    graph = graph_of(
        smollm2,
        call("c0", [user("hi")], answer("\n\nHello")),
        call("c1", [user("bye")], answer("Bye"), parent="c0", delta=True),
    )
    whole = smollm2.tokenizer.ids(smollm2.tokenizer.decode(prompt(graph, "c1"))).tolist()
    assert whole != prompt(graph, "c1")
    assert prompt(graph, "c0")[-len(ASKED) :] == ASKED
    assert said_text(smollm2, graph, "c0") == "\n\nHello<|im_end|>"
    assert chains(row_of(graph)) == ((("c0", 0), ("c1", 0)),)


def test_tool_calls_are_part_of_what_an_answer_said(tooled: Chat) -> None:
    use = assistant(None, tool_calls=[tool_use("run", '{"n": 1}')])
    graph = graph_of(
        tooled,
        call("c0", [user("u")], answer(use), tools=[{"name": "run"}]),
        call("c1", [tool("x")], answer("a"), parent="c0", delta=True),
    )
    assert said_text(tooled, graph, "c0") == 'run {"n": 1}<|im_end|>'
    text = tooled.tokenizer.decode(prompt(graph, "c1"))
    # The delta call states no tools: its parent's are offered still.
    assert text.startswith('{"type": "function", "function": {"name": "run"}}<|im_start|>user')
    assert "<|im_start|>tool\nx<|im_end|>" in text
    assert chains(row_of(graph)) == ((("c0", 0), ("c1", 0)),)
    assert left_out(graph) == {}


GROUPED = """
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n[' + message.content + ']' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}{{- call.function.name }}{% endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
"""Puts tool results that follow each other into one turn, as Qwen's and GLM's templates do."""


def test_two_tool_results_in_a_row_are_rendered_as_the_whole_template_renders_them(tmp_path: Path) -> None:
    # THUDM/slime#2263: rendered one by one, each result opened and closed a turn of its own.
    chat = load_chat(str(folder(tmp_path, GROUPED)))
    uses = assistant("", tool_calls=[tool_use("run", id="t1"), tool_use("look", id="t2")])
    results = [tool("x", tool_call_id="t1"), tool("y", tool_call_id="t2")]
    graph = graph_of(
        chat,
        call("c0", [user("u")], answer(uses)),
        call("c1", results, answer("a"), parent="c0", delta=True),
    )
    assert chat.tokenizer.decode(prompt(graph, "c1")) == (
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\nrunlook<|im_end|>\n"
        "<|im_start|>user\n[x]\n[y]<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chains(row_of(graph)) == ((("c0", 0), ("c1", 0)),)


def test_a_template_without_tool_calls_renders_nothing_from_the_first_one_on(plain: Chat) -> None:
    use = assistant(None, tool_calls=[tool_use("run")])
    graph = graph_of(
        plain,
        call("c0", [user("u")], answer("a")),
        call("c1", [user("v")], answer(use), parent="c0", delta=True),
        call("c2", [tool("x")], answer("b"), parent="c1", delta=True),
    )
    assert said_text(plain, graph, "c0") == "a<|im_end|>"
    assert why(graph, "c1") == why(graph, "c2") == "template_writes_no_tool_calls"
    assert graph.calls["c1"].prompt_token_ids is None
    assert graph.rendering is not None
    assert graph.rendering.calls == {"c0"}


def test_what_a_template_does_not_write_is_counted_where_it_is_missing(plain: Chat) -> None:
    graph = graph_of(
        plain,
        call("c0", [user("u")], answer(assistant("a", reasoning_content="r")), tools=[{"name": "run"}]),
        call("c1", [user("v")], answer("b")),
    )
    assert left_out(graph) == {"c0": {"tools", "reasoning"}}


def test_an_image_stops_what_follows_it_and_nothing_before(plain: Chat) -> None:
    image = user([{"type": "image_url", "image_url": {"url": "data:"}}])
    graph = graph_of(
        plain,
        call("c0", [user("u")], answer("a")),
        call("c1", [image], answer("b"), parent="c0", delta=True),
        call("c2", [user("w")], answer("c"), parent="c1", delta=True),
    )
    assert said_text(plain, graph, "c0") == "a<|im_end|>"
    assert graph.rendering is not None
    refused = NotRendered("media", "image_url")
    assert graph.rendering.not_rendered == {("c1", 0): refused, ("c2", 0): refused}


def test_every_answer_of_a_call_is_rendered_after_the_same_prompt(plain: Chat) -> None:
    graph = graph_of(plain, call("c0", [user("u")], answer("a"), answer(None), answer("a")))
    assert said(graph, "c0") == said(graph, "c0", 2)
    assert why(graph, "c0", 1) == "no_message"


def test_what_came_without_its_context_is_not_rendered(plain: Chat) -> None:
    graph = graph_of(
        plain,
        completion("c0", 0, answer("a")),
        call("c1", [user("v")], answer("b"), parent="c0", delta=True),
    )
    assert why(graph, "c0") == why(graph, "c1") == "context_unknown"


def test_nothing_is_rendered_beside_recorded_ids(plain: Chat) -> None:
    events = [
        call("c0", [user("u")], answer("a", ids=[7]), prompt_ids=[1]),
        call("c1", [user("v")], answer("b")),
    ]
    graph = graph_of(plain, *events)
    assert said(graph, "c0") == [7]
    assert why(graph, "c1") == "recorded_ids_beside"
    assert graph.rendering is not None
    assert graph.rendering.calls == frozenset()


def test_what_another_tokenizer_counted_is_not_held_against_rendered_ids(plain: Chat) -> None:
    graph = graph_of(plain, call("c0", [user("u")], answer("a"), usage=Usage(completion_tokens=99)))
    assert graph.calls["c0"].usage is None
    assert row_of(graph).num_trained == 2


def test_the_refusal_of_a_template_is_told(tmp_path: Path) -> None:
    strict = "{% if messages | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}" + CHATML
    graph = graph_of(load_chat(str(folder(tmp_path, strict))), call("c0", [user("u")], answer("a")))
    assert graph.rendering is not None
    assert graph.rendering.not_rendered["c0", 0] == NotRendered("template_refused", "one at a time")


def test_a_template_that_asks_for_the_date_gets_that_of_the_episode(tmp_path: Path) -> None:
    chat = load_chat(str(folder(tmp_path, "{{ strftime_now('%Y') }}" + CHATML)))
    started = episode(started_at=86_400 * 10**9)
    assert chat.tokenizer.decode(prompt(graph_of(chat, started, one_call()), "c0")).startswith(
        "1970<|im_start|>"
    )
    assert chat.tokenizer.decode(
        prompt(graph_of(chat, one_call(started_at=366 * 86_400 * 10**9)), "c0")
    ).startswith("1971<|im_start|>")
    assert why(graph_of(chat, one_call()), "c0") == "template_refused"


def one_call(**fields: int) -> AnyEvent:
    return call("c0", [user("u")], answer("a"), **fields)


@pytest.mark.parametrize("first", [["c0", "c1", "c2"], ["c2", "c1", "c0"]])
def test_the_order_of_calls_changes_nothing(plain: Chat, first: Sequence[str]) -> None:
    events = {
        "c2": call("c2", [user("u")], answer("a")),
        "c1": call("c1", [user("v")], answer("b"), parent="c2", delta=True),
        "c0": call("c0", [user("w")], answer("c"), parent="c1", delta=True),
    }
    graph = graph_of(plain, *(events[name] for name in first))
    assert prompt(graph, "c0")[: len(prompt(graph, "c1"))] == prompt(graph, "c1")
    assert chains(row_of(graph)) == ((("c2", 0), ("c1", 0), ("c0", 0)),)


def test_the_items_of_a_responses_answer_are_one_turn(tooled: Chat) -> None:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "t1", "name": "run", "arguments": "{}"},
    ]
    output = {"type": "function_call_output", "call_id": "t1", "output": "x"}
    first, second = ({"input": [user("u"), *more]} for more in ([], [*items, output]))
    graph = graph_of(
        tooled,
        call("c0", raw(first), answer(raw(items)), dialect="openai_responses"),
        call("c1", raw(second), answer("b"), dialect="openai_responses"),
    )
    assert said_text(tooled, graph, "c0") == "<think>r</think>arun {}<|im_end|>"
    assert chains(row_of(graph)) == ((("c0", 0), ("c1", 0)),)


def test_what_a_provider_did_inside_an_answer_is_left_out_and_never_an_empty_turn(tooled: Chat) -> None:
    search = {"type": "web_search_call", "id": "ws_1"}
    told = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    posted = raw({"input": [user("u")]})
    graph = graph_of(
        tooled,
        call("c0", posted, answer(raw([search])), dialect="openai_responses"),
        call("c1", posted, answer(raw([search, told])), dialect="openai_responses"),
    )
    assert why(graph, "c0") == "nothing_written"
    assert said_text(tooled, graph, "c1") == "a<|im_end|>"
    assert left_out(graph) == {"c1": {"hosted_tool"}}


def test_the_result_of_a_tool_inside_an_answer_is_read_and_not_sampled(tooled: Chat) -> None:
    state = {"status": "completed", "input": {}, "output": "x"}
    used = assistant([{"type": "tool", "tool": "run", "callID": "t1", "state": state}])
    graph = graph_of(
        tooled,
        call("c0", [user("u")], answer(used)),
        call("c1", [], answer("a"), parent="c0", delta=True),
    )
    assert said_text(tooled, graph, "c0") == "run {}<|im_end|>"
    assert tooled.tokenizer.decode(prompt(graph, "c1")).endswith(
        "run {}<|im_end|>\n<|im_start|>tool\nx<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chains(row_of(graph)) == ((("c0", 0), ("c1", 0)),)
