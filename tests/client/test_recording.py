"""What a harness calls becomes the events it means; every one of them passes the wire."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import tracestore.client
from tests.client.fake import Fake, fake_server
from tracestore.client import Client, ClientError, PayloadTooLarge, ServerAway
from tracestore.wire.candidate_set import Member
from tracestore.wire.events import KINDS


@pytest.fixture
def server() -> Iterator[Fake]:
    with fake_server() as fake:
        yield fake


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _answer(text: str, *ids: int) -> dict[str, Any]:
    return {
        "message": {"role": "assistant", "content": text},
        "token_ids": list(ids),
        "logprobs": [-0.5] * len(ids),
    }


def test_the_docstrings_lines_record_a_subagent_a_compaction_and_candidates(server: Fake) -> None:
    doc = inspect.getdoc(tracestore.client)
    assert doc is not None
    example = [line for line in doc.splitlines() if line.startswith("    ")]
    assert len(example) <= 11
    names = {name: _user(name) for name in ("asked", "scope", "history", "compacted")}
    names |= {name: _answer(name, 7, 8) for name in ("planned", "found", "short", "one", "other")}
    source = textwrap.dedent("\n".join(example)).replace("http://127.0.0.1:8421", server.url)
    exec(source, {"Client": Client, **names})

    main, helper = server.of("agent")[0], server.of("agent")[1]
    plan, found, summary, tries = server.of("call")
    assert (plan.agent_id, plan.ordinal, plan.policy.name, plan.policy.version) == (main.id, 0, "actor", 3)
    assert plan.prompt_token_ids.json() == [1, 2, 3]
    assert plan.request == b'{"model":"m","messages":[{"role":"user","content":"asked"}]}'
    spawned = (helper.parent_agent_id, helper.spawned_by_call_id, helper.spawned_by_completion, helper.depth)
    assert (*spawned, helper.spawned_by_tool_call_id) == (main.id, plan.id, 0, 1, "look_up")
    assert (found.agent_id, found.ordinal) == (helper.id, 0)
    assert (summary.parent_call_id, summary.purpose) == (plan.id, "summarize")
    (edit,) = server.of("context_edit")
    assert (edit.edit, edit.author, edit.author_call_id) == ("compaction", "policy", summary.id)
    assert (edit.replaced_call_ids, edit.tokens_before, edit.tokens_after) == ((plan.id,), 900, 120)
    (candidates,) = server.of("candidate_set")
    assert candidates.members == (
        Member(call_id=tries.id, completion=0, score=0.2),
        Member(call_id=tries.id, completion=1, score=0.9),
    )
    (selection,) = server.of("candidate_selection")
    assert (selection.candidate_set_id, selection.selected, selection.selector) == (
        candidates.id,
        (1,),
        "judge",
    )
    (reward,) = server.of("reward")
    assert (reward.name, reward.value, reward.target.call_id) == ("correct", 1.0, None)
    ends = [event for event in server.events if getattr(event, "phase", None) == "end"]
    assert [(end.kind, end.status) for end in ends] == [("agent", "ok"), ("agent", None), ("episode", "ok")]
    assert server.requests[0].headers["X-Tracestore-Project"] == "default"


def test_every_kind_that_the_client_emits_passes_the_wire(server: Fake) -> None:
    with Client(server.url, project="пример") as client:
        with (
            client.group(size=2, task={"q": 1}) as group,
            group.episode(split="train", meta={"x": 1}) as episode,
        ):
            agent = episode.agent(role="actor", policy="p", trainable=False, stage=1, scope_prompt="look")
            first = agent.call(
                request=b'{"messages": [],\n "seed": 1e400}',
                completions=[_answer("a", 1), _answer("b", 2)],
                params=None,
                usage={"prompt_tokens": 3, "cost_usd": 0.1},
                logprobs_are="raw",
                attempts=[{"status_code": 500, "error": "overloaded"}],
                started_at=1,
                first_token_at=2,
                ended_at=3,
                dialect="anthropic_messages",
                provider_id="msg_1",
                meta=[1],
            )
            agent.call(
                messages=_user("x"),
                parent=first[1],
                delta=True,
                prompt_token_ids_delta=[5],
                completion=_answer("c"),
            )
            agent.call(error=ValueError("boom"), model="other", policy=("q", None))
            agent.call(completion={"message": "cut", "partial": True, "finish_reason": None})
            agent.tool_call(
                first[0], tool_call_id="t", name="f", arguments="{", result=b'"\\ud83d"', exit_status=1
            )
            agent.context_edit(
                "truncation", author="harness", before=first, after=first, kept=[first], status="rejected"
            )
            members = episode.candidates([first[0], first[1], agent], generator="beam")
            members.select(
                [], scores={2: 0.5}, selector="search", continued=[0], treatment="pairs", selector_call=first
            )
            for target in (None, agent, first, first[1], members[2]):
                episode.reward("r", 0.1, target, scorer="s", scorer_version="1", weight=0.5)
            episode.reward("span", 1, first[0], tokens=(0, 1))
            episode.gap("no_token_ids", "the server gave none", call=first)
            agent.end("budget_exhausted", return_message={"found": None}, finding_used=False, score=0.5)
        fork = client.episode(forked_from=first, inference_only=True)
        fork.end("invalid", stop_reason="x")
        common = {"episode_id": fork.id}
        client.event("completion", call_id=first.id, index=0, **common)
        client.event("snapshot", hash="h", **common)
        client.event("blob", hash="0" * 64, **common)
        client.event(
            "consumption",
            call_id="c",
            run="r",
            step=1,
            export_hash="h",
            shard="s",
            sample_id="x",
            tokens=1,
            **common,
        )
    assert {event.kind for event in server.events} == set(KINDS)
    statuses = [(call.status, call.error and call.error.message) for call in server.of("call")]
    assert statuses == [("ok", None), ("ok", None), ("failed", "boom"), ("aborted", None)]
    targets = [
        reward.target.model_dump(exclude_none=True, exclude={"episode_id"}) for reward in server.of("reward")
    ]
    first_call, agent_id = server.of("call")[0], server.of("agent")[0].id
    assert targets == [
        {},
        {"agent_id": agent_id},
        {"agent_id": agent_id, "call_id": first_call.id},
        {"agent_id": agent_id, "call_id": first_call.id, "completion": 1},
        {"candidate_set_id": server.of("candidate_set")[0].id, "member": 2},
        {
            "agent_id": agent_id,
            "call_id": first_call.id,
            "completion": 0,
            "token_start": 0,
            "token_length": 1,
        },
    ]
    assert first_call.request == b'{"messages": [],\n "seed": 1e400}'
    assert server.of("call")[1].parent_completion == 1
    assert server.requests[0].headers["X-Tracestore-Project"].encode("latin-1").decode() == "пример"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("boom"), "failed"),
        (TimeoutError("slow"), "timeout"),
        (KeyboardInterrupt(), "interrupted"),
        (type("CancelledError", (BaseException,), {})("stop"), "cancelled"),
    ],
)
def test_an_exception_ends_its_episode_with_what_it_stands_for(
    server: Fake, error: BaseException, status: str
) -> None:
    def rollout() -> None:
        with Client(server.url) as client, client.episode() as episode:
            episode.agent()
            raise error

    with pytest.raises(type(error)):
        rollout()
    agent_end, end = server.events[-2:]
    assert (agent_end.kind, agent_end.status) == ("agent", None)  # type: ignore[union-attr]
    assert (end.status, end.error) == (status, f"{type(error).__name__}: {error}")  # type: ignore[union-attr]


def test_ending_twice_is_an_error_and_the_block_does_not_end_what_was_ended(server: Fake) -> None:
    with Client(server.url) as client, client.episode() as episode:
        episode.end("cancelled")
        with pytest.raises(ClientError, match="it has ended already"):
            episode.end()
    assert [event.status for event in server.of("episode")] == [None, "cancelled"]


def test_ordinals_count_the_calls_of_each_agent(server: Fake) -> None:
    with Client(server.url) as client, client.episode() as episode:
        one, other = episode.agent(), episode.agent()
        for agent in (one, other, one):
            agent.call(messages=[])
    assert [call.ordinal for call in server.of("call")] == [0, 0, 1]


@pytest.mark.parametrize(
    ("mistake", "problem"),
    [
        (lambda episode, call: episode.candidates([call]), "name one of its completions"),
        (lambda episode, call: episode.candidates(call, scores=[1.0]), "one score per member"),
        (
            lambda episode, call: episode.reward("r", 1, call, tokens=(0, 1)),
            "a token span lies in a completion",
        ),
        (lambda episode, call: call.agent.call(request={}, messages=[]), "not both"),
        (lambda episode, call: call.agent.call(completion={}, completions=[]), "not both"),
    ],
)
def test_a_mistake_is_said_where_it_is_made(server: Fake, mistake: Any, problem: str) -> None:
    with Client(server.url) as client, client.episode() as episode:
        call = episode.agent().call(completions=[_answer("a"), _answer("b")])
        with pytest.raises(ClientError, match=problem):
            mistake(episode, call)
        with pytest.raises(IndexError, match="2 completions"):
            call[2]


@pytest.mark.parametrize("arguments", [{"url": "localhost:8421"}, {"project": ""}, {"project": "a\nb"}])
def test_an_unusable_address_is_refused_at_once(arguments: dict[str, str]) -> None:
    with pytest.raises(ClientError):
        Client(**{"url": "http://127.0.0.1:1", **arguments})


def test_a_payload_is_sent_once_and_named_by_its_hash(server: Fake) -> None:
    server.limits = {"max_offloaded_event_bytes": 100}
    tensor = bytes(16)
    with Client(server.url) as client, client.episode("e") as episode:
        solver, planner = episode.agent("solver"), episode.agent("planner")
        call = solver.call(messages=_user("x"), completion=_answer("c", 1))
        name = client.put_blob(tensor)
        assert client.put_blob(tensor) == name
        episode.blob(name, role="latent", agent=planner, call=call, position=3, dtype="float32", shape=(2, 2))
        with pytest.raises(PayloadTooLarge, match="bytes=101"):
            client.put_blob(bytes(101))
    assert server.blobs == {name: tensor}
    (blob,) = server.of("blob")
    assert (blob.hash, blob.role, blob.agent_id, blob.call_id, blob.completion, blob.position) == (
        name,
        "latent",
        "planner",
        call.id,
        None,
        3,
    )
    assert (blob.dtype, blob.shape) == ("float32", (2, 2))


def test_a_payload_for_a_server_that_is_away_is_an_error() -> None:
    with Client("http://127.0.0.1:9", retry_s=0.05) as client, pytest.raises(ServerAway):
        client.put_blob(b"x")
