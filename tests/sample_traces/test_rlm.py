"""Recursive language models: the input in a variable, code blocks that spawn, what trains and what not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sample_traces.rlm.harness import DAYS, MAX_ASKED, QUESTION, SCRIPTS, reads
from sample_traces.rlm.repl import Repl, code_blocks
from sample_traces.rlm.worker import MAX_STEPS
from sample_traces.systems import system
from tests.exporters.planned import causes, planned
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import graphs_of
from tracestore.graph.invariants import check
from tracestore.graph.model import Graph
from tracestore.shards.views import flat_samples

client = pytest.fixture(kept)


def play(client: Kept, *answers: str, script: Any = None) -> tuple[Graph, float]:
    reward = system("rlm").play(client.episode("e"), Scripted(*answers, script=script), 0)
    (graph,) = graphs_of(client.events)
    return graph, reward


def repl(*lines: str) -> str:
    return "\n".join(("```repl", *lines, "```"))


def trained_text(client: Kept) -> dict[str, str]:
    """Sample's last call -> the characters of it that train (a character is a token here)."""
    row = planned(client.events)
    return {
        flat.sample.sample_id: "".join(
            chr(token) for token, mask in zip(flat.token_ids, flat.mask, strict=True) if mask
        )
        for flat in flat_samples(row)
    }


def test_every_agent_hangs_from_the_code_block_that_asked_it(client: Kept) -> None:
    graph, reward = play(client, script=SCRIPTS[0])
    assert reward == 1.0
    below = {agent.id: agent for agent in graph.agents.values() if agent.parent_agent_id is not None}
    assert len(below) == 4
    for agent in below.values():
        (block,) = [
            one
            for one in graph.tool_calls.values()
            if (one.call_id, one.tool_call_id) == (agent.spawned_by_call_id, agent.spawned_by_tool_call_id)
        ]
        assert block.name == "repl"
        assert f"{'llm' if agent.role == 'sub_lm' else 'rlm'}_query(" in (block.arguments or "")
        assert block.arguments in code_blocks(_answer(graph, block.call_id))
    assert [(agent.role, agent.depth) for _, agent in sorted(below.items())] == [
        ("subagent", 1),
        ("sub_lm", 2),
        ("sub_lm", 2),
        ("subagent", 1),
    ]
    assert check(graph) == ()


def _answer(graph: Graph, call_id: str) -> str:
    message = graph.completions[call_id, 0].message
    assert message is not None
    return str(message.value()["content"])


def test_the_input_is_read_through_variables_and_what_a_prompt_was_made_of_is_recorded(client: Kept) -> None:
    graph, _ = play(client, script=SCRIPTS[0])
    for call in graph.calls.values():
        read = json.dumps(call.request.value()) if call.request is not None else ""
        is_plain = graph.agents[call.agent_id].role == "sub_lm"
        assert ("14 sun" in read or "4 rain" in read) == is_plain
    first = graph.agents["e/main/0/code/0/0"]
    assert first.scope_prompt is not None
    assert first.meta is not None
    prompt = first.scope_prompt.value()
    (lineage,) = [one for one in first.meta.value()["reads"] if one["variable"] == "context"]
    assert prompt == f"{QUESTION}\n{DAYS[lineage['start'] : lineage['end']]}"
    assert reads("nothing of it 99", {"context": DAYS}) == []


def test_only_what_a_model_wrote_trains_and_what_the_repl_printed_never_does(client: Kept) -> None:
    play(client, script=SCRIPTS[0])
    stop = "\0"
    first, second = SCRIPTS[0]["main"]
    one, two = SCRIPTS[0]["main/0/code/0/0"]
    assert trained_text(client) == {
        "e/main/1:0": first + stop + second + stop,
        "e/main/0/code/0/0/1:0": one + stop + two + stop,
        "e/main/0/code/0/1/0:0": SCRIPTS[0]["main/0/code/0/1"][0] + stop,
        "e/main/0/code/0/0/0/code/0/0/0:0": "5" + stop,
        "e/main/0/code/0/0/0/code/0/1/0:0": "3" + stop,
    }


def test_an_agent_is_one_sample_since_its_prompts_read_on(client: Kept) -> None:
    play(client, script=SCRIPTS[3])
    row = planned(client.events)
    assert causes(row) == {"e/main/2:0": "root"}
    assert len(row.samples[0].completions) == 3


def test_an_error_is_shown_and_recorded(client: Kept) -> None:
    graph, reward = play(client, script=SCRIPTS[3])
    assert reward == 0.0
    assert graph.episode is not None
    assert graph.episode.status == "budget_exhausted"
    failed = {one.id: one.error for one in graph.tool_calls.values() if one.status == "failed"}
    assert failed == {
        "e/main/0/code/0": "NameError: name 'contxt' is not defined",
        "e/main/2/code/0": "NotAllowed: import",
    }
    request = graph.calls["e/main/1"].request
    assert request is not None
    assert request.value()["messages"][-1]["content"] == "NameError: name 'contxt' is not defined"


def test_two_levels_down_rlm_query_asks_a_plain_model(client: Kept) -> None:
    ask = repl('FINAL(rlm_query("q\\nx"))')
    graph, _ = play(client, ask, ask, "7")
    roles = {agent.depth: agent.role for agent in graph.agents.values()}
    assert roles == {0: "main", 1: "subagent", 2: "sub_lm"}


def test_an_agent_that_comes_to_no_answer_returns_an_error_to_the_code_that_asked(client: Kept) -> None:
    ask = repl('FINAL(rlm_query("q\\nx"))')
    graph, reward = play(client, ask, "what?", "what?", "what?")
    assert reward == 0.0
    below = graph.agents["e/main/0/code/0/0"]
    assert (below.status, below.score, below.return_message) == ("budget_exhausted", 0.0, None)
    main = graph.agents["e/main"].return_message
    assert main is not None
    assert main.value() == "Error: no answer"


def test_a_block_asks_so_often_and_no_more(client: Kept) -> None:
    code = repl("for day in range(99):", '    llm_query("q")')
    graph, _ = play(client, code, *["1"] * MAX_ASKED, "done", "done")
    assert len(graph.agents) == 1 + MAX_ASKED
    (block,) = graph.tool_calls.values()
    assert block.error == f"ValueError: a block asks at most {MAX_ASKED} times"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "```repl\nprint(1)",
        repl("while True: pass"),
        repl("while True:", "    try:", "        x = 1", "    except Exception:", "        pass"),
        repl("def f(): return f()", "f()"),
        repl("FINAL"),
        repl("print(().__class__)"),
        repl("context = 3", "print(context)"),
        repl("llm_query = 3", "FINAL = 4"),
        repl('print(rlm_query("x"))', "print(llm_query(context))"),
        repl("("),
    ],
)
def test_whatever_a_model_says_the_episode_ends(client: Kept, text: str) -> None:
    reward = system("rlm").play(client.episode("e"), Repeating(text), 0)
    (graph,) = graphs_of(client.events)
    assert reward == 0.0
    assert graph.episode is not None
    assert graph.episode.status == "budget_exhausted"
    assert {agent.status for agent in graph.agents.values()} <= {"ok", "budget_exhausted"}
    assert {one.phase for one in graph.agents.values()} == {"whole"}


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("print(1)\nx = 2\nprint(x + 1)", "1\n3"),
        ("x = 2", "(no output)"),
        ("print(1)\n1 / 0", "1\nZeroDivisionError: division by zero"),
        ("import os", "NotAllowed: import"),
        ("print(text.__class__)", "NotAllowed: __class__"),
        ("range(100_000)", "NotAllowed: numbers over 10000"),
        ("9 ** 9", "NotAllowed: *, ** and <<"),
        ("while True: pass", f"TooLong: more than {MAX_STEPS} steps"),
        ("try:\n    1\nfinally:\n    pass", "NotAllowed: a bare except, or finally"),
        ("[len(line) for line in text.split()]\nopen('x')", "NameError: name 'open' is not defined"),
    ],
)
def test_code_is_answered_with_what_it_prints_and_how_it_fails(code: str, shown: str) -> None:
    with Repl({"text": "a b"}, {}) as namespace:
        assert namespace.run(code).shown() == shown


def test_variables_live_from_block_to_block_and_functions_cannot_be_taken_away() -> None:
    with Repl({"text": "a b"}, {"ask": str.upper}) as namespace:
        assert namespace.run("words = text.split()\nask = 3").variables == {"words": "['a', 'b']"}
        assert namespace.run("print(ask(words))").stdout == "['A', 'B']\n"
        assert namespace.texts == {"text": "a b"}


def test_code_that_takes_all_memory_is_told_so_and_goes_on() -> None:
    with Repl({"text": "a b"}, {}, limit_s=60.0) as namespace:
        taken = namespace.run("x = 1\ny = 'a'\nfor i in range(99):\n    y = y + y")
        assert taken.error == "MemoryError: "
        assert namespace.run("print(x)").stdout == "1\n"


def test_code_that_takes_all_its_time_ends_its_process_and_not_the_harness() -> None:
    with Repl({"text": "a b"}, {}, limit_s=1.0) as namespace:
        stuck = namespace.run("print(sum(map(sum, map(range, range(10000)))))\n" * 40)
        assert stuck.error == "Killed: ended after 1 s; all variables but text are gone"
    with Repl({"text": "a b"}, {}, limit_s=60.0) as namespace:
        namespace.run("x = 1")
        namespace._limit_s = 0.0
        assert namespace.run("while len(text) < 9000:\n    y = [text]").error is not None
        namespace._limit_s = 60.0
        assert namespace.run("print(text)\nprint(x)").shown() == "a b\nNameError: name 'x' is not defined"


def test_code_blocks_are_those_that_are_closed() -> None:
    assert code_blocks("a\n```repl\nx = 1\n```\nb\n```python\ny\n```\n```repl \nz\n```\n```repl\nw") == [
        "x = 1",
        "z",
    ]
