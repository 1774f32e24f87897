"""Scripts that a model wrote: what they may do, what is recorded of them, and what of it trains."""

from __future__ import annotations

import json

import pytest

from sample_traces.agent_harness import script
from sample_traces.agent_harness.harness import MAX_TURNS, SYSTEM
from sample_traces.agent_harness.script import MAX_CHILDREN, run
from tests.exporters.planned import whole_reason
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import episodes_of, graphs_of, row_of, scripted_events
from tracestore.wire.call import Call

client = pytest.fixture(kept)


@pytest.mark.parametrize(
    ("text", "status", "exit_status", "error"),
    [
        ("print(sum(int(one) for one in FILES))", "ok", 0, None),
        ("", "ok", 0, None),
        ("nobody", "failed", 1, "NameError"),
        ("open('1')", "failed", 1, "NameError"),
        ("spawn('a', 'b').number", "failed", 1, "nothing was returned"),
        ("'a' * 10**12", "failed", 1, "MemoryError"),
        (f"for n in range({MAX_CHILDREN + 1}): spawn('a', 'b')", "failed", 1, "no more than"),
        ("import os", "failed", 2, "Import"),
        ("print.__self__", "failed", 2, "__self__"),
        ("'{0.__class__}'.format(1)", "failed", 2, "format"),
        ("__builtins__", "failed", 2, "__builtins__"),
        ("if:", "failed", 2, "SyntaxError"),
    ],
)
def test_a_script_says_what_it_may_and_ends_with_a_status(
    text: str, status: str, exit_status: int, error: str | None
) -> None:
    ran = run(text, files=["1", "2"], start=lambda tasks: [None for _ in tasks])
    assert (ran.status, ran.exit_status) == (status, exit_status)
    assert error is None if ran.error is None else error is not None and error in ran.error


@pytest.mark.parametrize("text", ["while True: pass", "while True: print(1)", "10**10**10"])
def test_a_script_that_does_not_end_is_ended(text: str) -> None:
    ran = run(text, files=[], start=lambda tasks: [], limit_s=0.2)
    assert (ran.status, ran.exit_status) == ("timeout", -9)
    assert len(ran.stdout) <= script.MAX_STDOUT


def test_a_finding_is_used_when_it_is_read_and_who_is_not_waited_for_never_starts() -> None:
    started = []

    def start(tasks: list[tuple[str, str]]) -> list[str]:
        started.append(tasks)
        return [str(10 * len(started) + place) for place in range(len(tasks))]

    first = "spawn('x', '1')\nspawn('y', '2')\nwait()"
    then = "z = spawn('z', '3')\nprint(wait()[0].text, z.number + 1)\nspawn('late', '4')"
    ran = run(f"{first}\n{then}", files=[], start=start)
    assert (ran.stdout, ran.status) == ("20 21\n", "ok")
    assert started == [[("x", "1"), ("y", "2")], [("z", "3")]]
    assert ran.read == {2}


def test_the_harnesses_of_one_script_hang_from_its_one_tool_use_and_work_at_the_same_time(
    client: Kept,
) -> None:
    assert SYSTEM.play(client.episode("e"), Scripted(script=SYSTEM.scripts[0]), 0) == 1.0
    (graph,) = graphs_of(client.events)
    below = [agent for agent in graph.agents.values() if agent.parent_agent_id == "e/main"]
    assert len(below) == 3
    assert {(one.spawned_by_call_id, one.spawned_by_tool_call_id) for one in below} == {("e/main/0", "use_0")}
    calls = [event.id for event in client.events if isinstance(event, Call)]
    assert calls == [
        "e/main/0",
        *("e/h0/0", "e/h1/0", "e/h2/0", "e/h0/1", "e/h1/1", "e/h2/1"),
        "e/main/1",
    ]


def test_the_text_of_a_script_trains_and_what_it_prints_does_not(client: Kept) -> None:
    SYSTEM.play(client.episode("e"), Scripted(script=SYSTEM.scripts[0]), 0)
    row = row_of(client.events)
    (root,) = (sample for sample in row.samples if sample.cause == "root")
    trained, read = "", ""
    for segment in root.segments:
        start, length = (int(row.segments.start[segment]), int(row.segments.length[segment]))
        ids, reasons = row.token_ids[start : start + length], row.reason[start : start + length]
        trained += "".join(map(chr, ids[reasons == 0]))
        read += "".join(map(chr, ids[reasons != 0]))
    assert trained == "run\n" + _script(client) + "\0answer 6\0"
    assert "exit 0: 6" in read
    # What the harnesses returned never came into the root's context: its script added it up.
    assert "answer 2" not in read


def _script(client: Kept) -> str:
    (graph,) = graphs_of(client.events)
    (use,) = (use for use in graph.tool_calls.values() if use.name == "run")
    assert use.arguments is not None
    return str(json.loads(use.arguments)["script"])


def test_the_hash_of_a_script_is_that_of_the_text_that_was_sampled_and_ran(client: Kept) -> None:
    SYSTEM.play(client.episode("e"), Scripted(script=SYSTEM.scripts[0]), 0)
    (graph,) = graphs_of(client.events)
    (blob,) = (blob for blob in graph.blobs.values() if blob.role == "script")
    assert client.payloads[blob.hash] == _script(client).encode()
    message = graph.completions["e/main/0", 0].message
    assert message is not None
    assert message.value()["content"] == "run\n" + _script(client)


def test_every_harness_is_a_sample_of_its_own_and_trains() -> None:
    row = row_of(scripted_events("agent_harness"))
    assert sorted(sample.cause for sample in row.samples) == ["root"] * 4 + ["subagent_root"] * 8
    assert {whole_reason(row, call.call_id) for call in row.calls} == {"trained"}


def test_each_call_names_the_tools_that_its_harness_may_use() -> None:
    allowed = set()
    for graph in graphs_of(scripted_events("agent_harness")):
        for call in graph.calls.values():
            assert call.request is not None
            tools = tuple(tool["function"]["name"] for tool in call.request.value()["tools"])
            allowed.add((graph.agents[call.agent_id].depth, tools))
    assert allowed == {(0, ("run", "spawn", "read")), (1, ("run", "spawn", "read")), (2, ("read",))}


def test_a_call_costs_what_its_tokens_do() -> None:
    for events in episodes_of(scripted_events("agent_harness")):
        for call in (event for event in events if isinstance(event, Call)):
            assert call.usage is not None
            assert call.usage.prompt_tokens is not None
            assert call.usage.completion_tokens is not None
            cost = call.usage.prompt_tokens * 1e-6 + call.usage.completion_tokens * 2e-6
            assert call.usage.cost_usd == pytest.approx(cost)


@pytest.mark.parametrize(
    ("text", "status", "calls"),
    [
        ("", "failed", 1),
        ("answer foxes", "failed", 1),
        ("answer 7...", "ok", 1),
        ("read nothing", "budget_exhausted", MAX_TURNS),
        ("run\nnobody", "budget_exhausted", MAX_TURNS),
        # One harness a turn on two levels; the lowest may read only, and fails at once.
        ("spawn mon: go on", "budget_exhausted", MAX_TURNS * (1 + MAX_TURNS * (1 + 1))),
    ],
)
def test_nonsense_ends_with_a_status(client: Kept, text: str, status: str, calls: int) -> None:
    assert SYSTEM.play(client.episode("e"), Repeating(text), 0) == 0.0
    (graph,) = graphs_of(client.events)
    assert graph.episode is not None
    assert (graph.episode.status, len(graph.calls)) == (status, calls)
    assert all(agent.status for agent in graph.agents.values())
