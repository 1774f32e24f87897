from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.importers.reading import (
    Imported,
    assert_builds,
    assert_perturbation,
    newest,
    read_data,
    read_fixtures,
    read_paths,
    same_events,
)

BEGAN = 1_767_225_600_000


def info(id_: str = "ses_1", **more: Any) -> dict[str, Any]:
    times = {"created": BEGAN, "updated": BEGAN + 90_000}
    return {"id": id_, "projectID": "p", "title": "t", "version": "1.0.0", "time": times, **more}


def part(type_: str, number: int = 1, **more: Any) -> dict[str, Any]:
    return {"type": type_, "id": f"prt_{number:03d}", **more}


def user(number: int, *parts: dict[str, Any]) -> dict[str, Any]:
    told = {"role": "user", "time": {"created": BEGAN + 1_000 * number}, "agent": "build"}
    return {"info": {**told, "id": f"msg_{number:03d}"}, "parts": list(parts)}


def tokens(read: int, wrote: int, cached: int = 0, reasoning: int = 0, **more: int) -> dict[str, Any]:
    return {
        "input": read,
        "output": wrote,
        "reasoning": reasoning,
        "cache": {"read": cached, "write": 0},
        **more,
    }


def answer(number: int, parent: int, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    created = BEGAN + 1_000 * number
    told = {
        "role": "assistant",
        "parentID": f"msg_{parent:03d}",
        "modelID": "m1",
        "providerID": "p1",
        "agent": "build",
        "cost": 0.25,
        "tokens": tokens(10, 5, 100),
        "time": {"created": created, "completed": created + 500},
        "finish": "stop",
        "id": f"msg_{number:03d}",
    }
    return {"info": {**told, **more}, "parts": list(parts)}


def step(*parts: dict[str, Any], reason: str = "stop", **told: Any) -> list[dict[str, Any]]:
    finish = {"reason": reason, "cost": 0.25, "tokens": tokens(10, 5, 100), **told}
    return [part("step-start", 1), *parts, part("step-finish", 99, **finish)]


def tool(id_: str, name: str = "read", number: int = 5, **state: Any) -> dict[str, Any]:
    done = {
        "status": "completed",
        "input": {"path": "a"},
        "output": "seen",
        "title": "a",
        "metadata": {},
        "time": {"start": BEGAN + 2_100, "end": BEGAN + 2_200},
        **state,
    }
    return part("tool", number, callID=id_, tool=name, state=done)


def text(words: str, number: int = 3) -> dict[str, Any]:
    return part("text", number, text=words)


SESSION = [
    user(1, text("look")),
    answer(2, 1, *step(text("well"), tool("t1"), reason="tool-calls"), finish="tool-calls"),
    answer(3, 1, *step(text("done"))),
    user(4, text("again")),
    answer(5, 4, *step(text("still"))),
]


def document(*messages: dict[str, Any], **session: Any) -> bytes:
    return json.dumps({"info": info(**session), "messages": list(messages)}).encode()


def read(*messages: dict[str, Any], **session: Any) -> Imported:
    imported = read_data(document(*messages, **session))
    assert_builds(imported)
    return imported


def calls_of(imported: Imported) -> list[Any]:
    return sorted(imported.of("call"), key=lambda call: (call.agent_id, call.ordinal))


def texts(call: Any) -> list[str]:
    told: list[str] = []
    for message in json.loads(call.request)["messages"]:
        if message["role"] == "tool":
            told.append(message.get("output", "cleared" if message.get("cleared") else ""))
        else:
            told += [one.get("text") or one["type"] for one in message["content"]]
    return told


def test_a_step_is_a_call_and_the_next_one_reads_what_its_tools_gave() -> None:
    imported = read(*SESSION)
    first, second, third = calls_of(imported)
    assert [texts(call) for call in (first, second, third)] == [["look"], ["seen"], ["again"]]
    assert (third.parent_call_id, third.context) == (second.id, "delta")
    assert (first.usage.prompt_tokens, first.usage.cached_tokens, first.usage.cost_usd) == (110, 100, 0.25)
    used = json.loads(first.completions[0].message)["content"][1]
    assert used == {"type": "tool", "callID": "t1", "tool": "read", "state": {"input": {"path": "a"}}}
    (call,) = imported.of("tool_call")
    assert (json.loads(call.result), call.status, call.call_id) == ("seen", "ok", first.id)


def test_several_steps_of_one_message_are_several_calls() -> None:
    both = [*step(tool("t1"), reason="tool-calls"), *step(text("done"))]
    first, second = calls_of(read(user(1, text("look")), answer(2, 1, *both)))
    assert (first.id, second.id) == ("ses_1/msg_002", "ses_1/msg_002/1")
    assert texts(second) == ["seen"]
    assert second.usage.prompt_tokens == 110


def test_reasoning_is_in_the_output_unless_the_total_says_that_it_is_apart() -> None:
    apart = step(text("a"), tokens=tokens(10, 5, 100, reasoning=7, total=122))
    within = step(text("a"), tokens=tokens(10, 9, 100, reasoning=7, total=119))
    (one,) = calls_of(read(user(1, text("q")), answer(2, 1, *apart)))
    (other,) = calls_of(read(user(1, text("q")), answer(2, 1, *within)))
    assert (one.usage.completion_tokens, one.usage.reasoning_tokens) == (5 + 7, 7)
    assert (other.usage.completion_tokens, other.usage.reasoning_tokens) == (9, 7)


def test_a_compaction_is_a_call_whose_summary_replaces_the_context() -> None:
    asked = user(6, part("compaction", auto=True))
    summary = answer(7, 6, *step(text("so far")), summary=True)
    imported = read(*SESSION, asked, summary, user(8, text("go on")), answer(9, 8, *step(text("on"))))
    calls = calls_of(imported)
    (edit,) = imported.of("context_edit")
    assert (calls[3].purpose, texts(calls[3])) == ("summarize", ["compaction"])
    assert (calls[4].context, texts(calls[4])) == ("whole", ["compaction", "so far", "go on"])
    assert (edit.trigger, edit.author_call_id) == ("rule", calls[3].id)
    assert (edit.before_call_id, edit.after_call_id) == (calls[2].id, calls[4].id)


def test_a_cleared_output_is_not_read_by_later_calls() -> None:
    cleared = {"start": BEGAN + 2_100, "end": BEGAN + 2_200, "compacted": BEGAN + 4_500}
    imported = read(SESSION[0], answer(2, 1, *step(tool("t1", time=cleared))), *SESSION[2:])
    calls = calls_of(imported)
    (edit,) = imported.of("context_edit")
    assert texts(calls[1]) == ["seen"]
    assert (calls[2].context, texts(calls[2])) == ("whole", ["look", "tool", "cleared", "done", "again"])
    assert (edit.edit, edit.after_call_id) == ("tool_result_clearing", calls[2].id)


def test_the_session_of_a_task_tool_is_a_sub_agent_of_its_call() -> None:
    task: dict[str, Any] = {
        "input": {"prompt": "find it", "subagent_type": "explore"},
        "metadata": {"sessionId": "ses_2"},
    }
    parent = document(user(1, text("look")), answer(2, 1, *step(tool("t1", "task", **task))))
    child = document(
        user(1, text("find it")), answer(2, 1, *step(text("here"))), id_="ses_2", parentID="ses_1"
    )
    imported = read_data(parent, child)
    assert_builds(imported)
    (graph,) = imported.graphs.values()
    agent = graph.agents["ses_2"]
    assert (agent.role, agent.parent_agent_id) == ("subagent", "ses_1")
    assert (agent.spawned_by_call_id, agent.spawned_by_tool_call_id) == ("ses_1/msg_002", "t1")
    assert agent.scope_prompt == b'"find it"'
    assert same_events(imported, read_data(child, parent))
    assert {call.episode_id for call in read_data(child).of("call")} == {"ses_1"}


def test_what_the_harness_answers_to_a_subtask_is_no_call() -> None:
    asked = user(1, part("subtask", prompt="find it", agent="explore", description="d"))
    ran = answer(2, 1, tool("t1", "task", metadata={"sessionId": "ses_2"}), tokens=tokens(0, 0), cost=0)
    imported = read(asked, ran, answer(3, 1, *step(text("done"))))
    (call,) = calls_of(imported)
    assert texts(call) == ["subtask", "tool", "seen"]
    child = next(agent for agent in imported.of("agent") if agent.id == "ses_2")
    assert (child.spawned_by_call_id, json.loads(child.scope_prompt)) == (None, "find it")


def test_an_aborted_message_keeps_what_had_come() -> None:
    error = {"name": "MessageAbortedError", "data": {"message": "stopped"}}
    cut = answer(2, 1, part("step-start"), text("I wi"), error=error, tokens=tokens(0, 0))
    (call,) = calls_of(read(user(1, text("q")), cut))
    assert (call.status, call.completions[0].partial, call.usage) == ("aborted", True, None)
    error = {"name": "APIError", "data": {"message": "busy", "statusCode": 529}}
    (call,) = calls_of(read(user(1, text("q")), answer(2, 1, part("step-start"), error=error)))
    assert (call.status, call.error.status_code, call.completions) == ("failed", 529, None)


def test_a_folder_of_files_says_what_the_export_says(tmp_path: Path) -> None:
    session = info()
    files = {"session/p/ses_1.json": session}
    for message in SESSION:
        own = message["info"]["id"]
        files[f"message/ses_1/{own}.json"] = {**message["info"], "sessionID": "ses_1"}
        for number, one in enumerate(message["parts"]):
            name = f"prt_{own}_{number}"
            places = {"id": name, "sessionID": "ses_1", "messageID": own}
            files[f"part/{own}/{name}.json"] = {**one, **places}
    for name, value in files.items():
        path = tmp_path / "storage" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    stored = read_paths(tmp_path)
    assert_builds(stored)
    exported = read(*SESSION)
    for one, other in zip(calls_of(stored), calls_of(exported), strict=True):
        assert (one.id, one.request, one.completions) == (other.id, other.request, other.completions)
        assert one.usage == other.usage
    assert stored.notes.refused == []


def test_an_export_that_grew_replaces_what_was_told_before() -> None:
    before = read_data(document(*SESSION[:3]))
    after = read_data(document(*SESSION, time={"created": BEGAN, "updated": BEGAN + 95_000}))
    merged = newest([*before.events, *after.events])
    assert same_events(Imported(list(merged.values()), after.notes), after)


def test_every_field_of_a_session_leaves_a_trace() -> None:
    assert_perturbation(document(*SESSION, user(6, part("compaction", auto=True))), limit=50)


def test_the_real_export_keeps_equal_ids_apart() -> None:
    imported = read_fixtures(
        "opencode/nvidia-nemo__gym/responses_api_agents/opencode_sandboxed_agent/tests/opencode_export_test_data.json"
    )
    assert_builds(imported)
    assert [call.usage.prompt_tokens for call in calls_of(imported)] == [55 + 7_808, 8_692]
