"""Replays in which the upstream answers what the recording does not: forks of the recorded episode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from sqlalchemy import func, select
from starlette.testclient import TestClient

from tests.api.proxy import dialects as d
from tests.api.proxy.scripted import Running, Said, Upstream, running_proxy, sse
from tests.exporters.planned import reasons, sample_ids
from tests.exporters.stores import rows_of
from tests.factories import agent, episode, posted
from tracestore.graph.model import Graph
from tracestore.store import tables as t
from tracestore.store.store import NotFound, Store
from tracestore.store.verify import verify
from tracestore.wire.episode import Episode
from tracestore.wire.events import AnyEvent
from tracestore_api import replay
from tracestore_api.app import create_app
from tracestore_api.proxy import recorder
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

MODEL: dict[str, Any] = {"model": "m-1"}


def turns(*texts: str) -> list[dict[str, Any]]:
    """Messages asked and answered in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]


@contextmanager
def client(proxy: Running, *names: str, headers: dict[str, str] | None = None) -> Iterator[openai.OpenAI]:
    """The official client at the replay of e, or with `proxy` as its first name at the recording of e."""
    base = proxy.url.removesuffix("/proxy")
    where = "proxy" if names[:1] == ("proxy",) else "replay"
    stated = "".join(f"/{name}" for name in ("episode=e", *names) if name != "proxy")
    with openai.OpenAI(
        base_url=f"{base}/{where}{stated}/v1", api_key="sk-1", default_headers=headers
    ) as found:
        yield found


def said(client: openai.OpenAI, *texts: str, **fields: Any) -> str | None:
    """What is answered to these turns."""
    asked: dict[str, Any] = {**MODEL, "messages": turns(*texts), **fields}
    content: str | None = client.chat.completions.create(**asked).choices[0].message.content
    return content


def recorded(proxy: Running, upstream: Upstream, *, agent: str = "agent-name=main") -> None:
    """Three turns of one conversation: a, b and c are answered by eins, zwei and drei."""
    upstream.says(Said(d.chat("eins")), Said(d.chat("zwei")), Said(d.chat("drei")))
    with client(proxy, "proxy", agent) as one:
        assert said(one, "a") == "eins"
        assert said(one, "a", "eins", "b") == "zwei"
        assert said(one, "a", "eins", "b", "zwei", "c") == "drei"
    proxy.settle()


def status(proxy: Running, **names: str) -> Any:
    url = proxy.url.replace("/proxy", "/replay")
    return httpx.get(url, params={"episode": "e", **names}).raise_for_status().json()


def fork_of(proxy: Running, **names: str) -> Graph:
    """What was recorded of the fork of a run."""
    proxy.settle()
    return proxy.store.load_graph("default", status(proxy, **names)["fork"]["episode_id"])


def answers(graph: Graph) -> list[Any]:
    """The messages of a graph's completions, by the ordinal of their calls."""
    calls = sorted(graph.calls.values(), key=lambda call: call.ordinal or 0)
    found = [graph.completions[key].message for call in calls for key in graph.completions_of(call.id)]
    return [message.value()["content"] for message in found if message is not None]


def num_contents(store: Store) -> int:
    """Messages as they lie in the store, each once."""
    with store.read() as connection:
        texts = select(func.count()).select_from(t.content).where(t.content.c.role.in_(("user", "assistant")))
        return int(connection.execute(texts).scalar_one())


def call_ids(proxy: Running) -> list[str]:
    """The origin's calls, in order."""
    graph = proxy.store.load_graph("default", "e")
    return [call.id for call in sorted(graph.calls.values(), key=lambda call: call.ordinal or 0)]


def test_what_was_never_recorded_is_asked_and_recorded_in_a_fork(proxy: Running, upstream: Upstream) -> None:
    recorded(proxy, upstream)
    first, second, _ = call_ids(proxy)
    before = num_contents(proxy.store)
    upstream.says(Said(d.chat("anders")), Said(d.chat("weiter")))
    with client(proxy, "mode=record-missing") as one:
        told = [
            said(one, "a"),
            said(one, "a", "eins", "b"),
            said(one, "a", "eins", "b", "zwei", "x"),
            said(one, "a", "eins", "b", "zwei", "x", "anders", "y"),
        ]
    assert told == ["eins", "zwei", "anders", "weiter"]
    assert len(upstream.seen) == 3 + 2
    fork = fork_of(proxy)
    assert fork.episode is not None
    assert fork.episode.forked_from_episode_id == "e"
    assert fork.episode.forked_from_call_id == second
    assert fork.episode.group_id == "e/forks"
    assert answers(fork) == ["anders", "weiter"]
    assert {call.agent_id for call in fork.calls.values()} == {f"{fork.episode.id}/main"}
    # The origin is as it was recorded, and what both begin with is there once. New are x, y, weiter, and
    # anders, as it was answered and as the harness repeats it.
    assert call_ids(proxy)[:2] == [first, second]
    assert answers(proxy.store.load_graph("default", "e")) == ["eins", "zwei", "drei"]
    assert num_contents(proxy.store) - before == 5
    told_of = status(proxy)
    assert [one["difference"]["asked"] for one in told_of["missed"]] == ["x", "x"]
    assert told_of["num_unasked"] == 1


def test_origin_and_fork_together_answer_the_harness_that_diverged(
    proxy: Running, upstream: Upstream
) -> None:
    recorded(proxy, upstream)
    upstream.says(Said(d.chat("anders")))
    with client(proxy, "mode=record-missing") as one:
        assert (said(one, "a"), said(one, "a", "eins", "x")) == ("eins", "anders")
    fork = fork_of(proxy)
    assert fork.episode is not None
    with client(proxy, "mode=record-missing", "run=again") as one, client(proxy, "run=strict") as strict:
        # The fork is no part of its origin.
        with pytest.raises(openai.ConflictError):
            said(strict, "a", "eins", "x")
        upstream.says(Said(d.chat("wieder")))
        assert said(one, "a", "eins", "x") == "wieder"
    again = fork_of(proxy, run="again")
    assert again.episode is not None
    assert again.episode.id != fork.episode.id
    assert again.episode.group_id == fork.episode.group_id
    both = create_app(proxy.store, replayed=("e", fork.episode.id))
    with TestClient(both, base_url="http://localhost/replay/v1") as http:
        one = openai.OpenAI(base_url="http://localhost/replay/v1", api_key="-", http_client=http)
        assert (said(one, "a"), said(one, "a", "eins", "x")) == ("eins", "anders")


def test_streams_go_to_the_upstream_in_every_dialect(proxy: Running, upstream: Upstream) -> None:
    recorded(proxy, upstream)
    upstream.says(sse(d.CHAT_STREAM), sse(d.RESPONSE_STREAM), sse(d.ANTHROPIC_STREAM))
    asked: dict[str, Any] = {**MODEL, "messages": turns("a", "eins", "x")}
    with client(proxy, "mode=record-missing") as one:
        with one.chat.completions.stream(**asked) as chunks:
            chat = chunks.get_final_completion().choices[0].message.content
        with one.responses.stream(model="m-1", input="x") as events:
            response = events.get_final_response().output_text
    url = proxy.url.replace("/proxy", "/replay/episode=e/mode=record-missing")
    with anthropic.Anthropic(base_url=url, api_key="sk-1") as other:  # noqa: SIM117
        with other.messages.stream(model="claude", max_tokens=9, messages=[d.QUESTION]) as stream:  # type: ignore[list-item]
            message = stream.get_final_text()
    assert (chat, response, message) == ("Ich - 🙂", "Ich 🙂", "Ich 🙂")
    fork = fork_of(proxy)
    assert [call.dialect for call in sorted(fork.calls.values(), key=lambda call: call.ordinal or 0)] == [
        "openai_chat",
        "openai_responses",
        "anthropic_messages",
    ]
    # What reached the upstream is what the harness sent, without our names.
    assert [one.target for one in upstream.seen[3:]] == [
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
    ]
    assert all(one.header("x-tracestore-episode") is None for one in upstream.seen)


def test_an_upstream_that_fails_is_passed_on_and_recorded(proxy: Running, upstream: Upstream) -> None:
    recorded(proxy, upstream)
    problem = d.body_of({"error": {"message": "no such model", "type": "not_found"}})
    upstream.says(Said(problem, status=404))
    url = proxy.url.replace("/proxy", "/replay/episode=e/mode=record-missing/v1/chat/completions")
    answer = httpx.post(url, json={**MODEL, "messages": turns("x")})
    assert (answer.status_code, answer.content) == (404, problem)
    fork = fork_of(proxy)
    [call] = fork.calls.values()
    assert call.error is not None
    assert (call.status, call.error.status_code) == ("failed", 404)
    assert fork.episode is not None
    assert fork.episode.forked_from_call_id is None  # it diverged at the first
    assert answer.headers["x-tracestore-fork"] == fork.episode.id


def test_a_retry_of_what_went_to_the_upstream_goes_there_again(proxy: Running, upstream: Upstream) -> None:
    """Of a request that was recorded once and asked twice: its recorded answer is no answer to the second."""
    recorded(proxy, upstream)
    upstream.says(Said(b"{}", status=500), Said(d.chat("neu")))
    with client(proxy, "mode=record-missing") as one:
        assert said(one, "a") == "eins"
        assert said(one, "a") == "neu"
    [call] = fork_of(proxy).calls.values()
    assert [attempt.status_code for attempt in call.attempts or ()] == [500, 200]


def test_a_retry_belongs_to_the_fork_of_its_run(proxy: Running, upstream: Upstream) -> None:
    recorded(proxy, upstream)
    upstream.says(Said(b"{}", status=400), Said(b"{}", status=500), Said(d.chat("neu")))
    with client(proxy, "mode=record-missing", "run=one") as one, pytest.raises(openai.BadRequestError):
        said(one, "x")
    with client(proxy, "mode=record-missing", "run=two") as two:
        assert said(two, "x") == "neu"
    calls = [fork_of(proxy, run=run).calls.values() for run in ("one", "two")]
    tries = [[one.status_code for call in some for one in call.attempts or ()] for some in calls]
    assert tries == [[], [500, 200]]  # one try is no list of attempts


def test_an_upstream_that_is_away_is_told_and_recorded(
    proxy: Running, upstream: Upstream, store: Store
) -> None:
    recorded(proxy, upstream)
    with running_proxy(store, "http://127.0.0.1:9") as away:
        url = away.url.replace("/proxy", "/replay/episode=e/mode=record-missing/v1/chat/completions")
        answer = httpx.post(url, json={**MODEL, "messages": turns("x")})
        [call] = fork_of(away).calls.values()
    assert answer.status_code == 502
    assert call.error is not None
    assert call.error.type == "upstream_unreachable"


def test_a_fork_whose_calls_were_lost_says_what_it_was(
    proxy: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(proxy, upstream)
    monkeypatch.setattr(proxy.proxy.recorder, "offer", lambda capture: None)
    upstream.says(Said(d.chat("neu")))
    with client(proxy, "mode=record-missing") as one:
        assert (said(one, "a"), said(one, "a", "eins", "x")) == ("eins", "neu")
    id_ = status(proxy)["fork"]["episode_id"]
    end_run(proxy)
    fork = proxy.store.load_graph("default", id_)
    assert fork.calls == {}
    assert fork.episode is not None
    assert fork.episode.ended_at is not None
    assert fork.episode.forked_from_call_id == call_ids(proxy)[0]


def test_a_fork_keeps_the_split_and_whom_not_to_train(proxy: Running, upstream: Upstream) -> None:
    events: list[AnyEvent] = [
        episode("e", phase="start", split="eval", task_id="t7", group_id="g"),
        agent("e/main", episode="e", phase="start", role="main"),
        agent("e/judge", episode="e", phase="start", role="judge", trainable=False, parent_agent_id="e/main"),
    ]
    proxy.store.ingest("default", [posted(event) for event in events])
    recorded(proxy, upstream, agent="agent=e%2Fjudge")
    upstream.says(Said(d.chat("nein")), Said(d.chat("ja")))
    names = {"X-Tracestore-Call": "c1", "X-Tracestore-Purpose": "judge", "X-Tracestore-Group": "g"}
    with client(proxy, "mode=record-missing", "agent=e%2Fjudge", headers=names) as one:
        assert said(one, "x") == "nein"
        assert said(one, "y") == "ja"
    fork = fork_of(proxy)
    assert fork.episode is not None
    id_ = fork.episode.id
    assert (fork.episode.split, fork.episode.task_id, fork.episode.group_id) == ("eval", "t7", "e/forks")
    judge = fork.agents[f"{id_}/judge"]
    assert (judge.role, judge.trainable, judge.parent_agent_id) == ("judge", False, f"{id_}/main")
    assert fork.agents[f"{id_}/main"].role == "main"
    assert [call.purpose for call in fork.calls.values()] == ["judge", "judge"]
    assert "c1" not in fork.calls  # an id of the origin's
    with proxy.store.read() as connection:
        assert connection.execute(select(func.count()).select_from(t.gap)).scalar_one() == 0


@pytest.mark.parametrize(
    ("names", "code", "hint"),
    [
        ("mode=guess", 400, "name one of them"),
        ("mode=live-after", 400, "stand together"),
        ("mode=policy/live-after=1", 400, "stand together"),
        ("live-after=one", 404, "whole number"),
    ],
)
def test_a_mode_that_there_is_not_is_refused(names: str, code: int, hint: str, proxy: Running) -> None:
    url = proxy.url.replace("/proxy", f"/replay/episode=e/{names}/v1/chat/completions")
    answer = httpx.post(url, json={**MODEL, "messages": turns("a")})
    assert answer.status_code == code
    assert hint in answer.text


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"X-Tracestore-Live-After": "five"}, "whole number"),
        ({"Authorization": "Bearer sk-1:ts-live-after=-1"}, "whole number"),
        ({"X-Tracestore-Mode": ""}, "says nothing"),
    ],
)
def test_a_mode_that_cannot_be_read_is_refused_and_not_taken_for_strict(
    headers: dict[str, str], reason: str, is_known: bool, proxy: Running, upstream: Upstream
) -> None:
    recorded(proxy, upstream)
    url = proxy.url.replace("/proxy", "/replay/episode=e/v1/chat/completions")
    asked = {**MODEL, "messages": turns("a")}
    if is_known:
        httpx.post(url, json=asked).raise_for_status()
    answer = httpx.post(url, json=asked, headers=headers)
    assert answer.status_code == 400
    assert reason in answer.text


def test_a_recording_is_not_read_again_for_what_comes_into_its_forks(
    proxy: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_FRESH_S", 0.0)
    recorded(proxy, upstream)
    read: list[str] = []
    load = proxy.store.load

    def counted(project: str, episode_id: str, **more: Any) -> Any:
        read.append(episode_id)
        return load(project, episode_id, **more)

    monkeypatch.setattr(proxy.store, "load", counted)
    upstream.says(*(Said(d.chat("neu")) for _ in range(3)))
    with client(proxy, "mode=record-missing") as one:
        for said_now in "xyz":
            assert said(one, said_now) == "neu"
            proxy.settle()
    assert read == ["e", "e"]  # its calls, and what its fork begins with


def test_without_an_upstream_a_mode_that_needs_one_says_so(
    proxy: Running, upstream: Upstream, store: Store
) -> None:
    recorded(proxy, upstream)
    with TestClient(create_app(store), base_url="http://localhost") as alone:
        url = "/replay/episode=e/mode=record-missing/v1/chat/completions"
        answer = alone.post(url, json={**MODEL, "messages": turns("a")})
    assert answer.status_code == 400
    assert "--upstream" in answer.text


def test_an_origin_that_is_gone_is_not_forked(proxy: Running, upstream: Upstream) -> None:
    recorded(proxy, upstream)
    assert httpx.delete(proxy.url.replace("/proxy", "/v1/episodes/e")).status_code == 202
    url = proxy.url.replace("/proxy", "/replay/episode=e/mode=record-missing/v1/chat/completions")
    assert httpx.post(url, json={**MODEL, "messages": turns("a")}).status_code in (404, 410)
    assert len(upstream.seen) == 3


def test_a_run_branches_at_the_call_that_is_named(proxy: Running, upstream: Upstream) -> None:
    recorded(proxy, upstream)
    first = call_ids(proxy)[0]
    upstream.says(Said(d.chat("neu")), Said(d.chat("drei")))
    with client(proxy, "live-after=1") as one:
        with pytest.raises(openai.ConflictError):
            said(one, "z")  # the branch is to lie after a, not before it
        told = [said(one, "a"), said(one, "a", "eins", "b"), said(one, "a", "eins", "b", "neu", "c")]
    assert told == ["eins", "neu", "drei"]
    fork = fork_of(proxy)
    assert fork.episode is not None
    assert fork.episode.forked_from_call_id == first
    assert fork.episode.meta is not None
    assert fork.episode.meta.value() == {"replay": {"mode": "live-after", "live_after": 1}}
    assert answers(fork) == ["neu", "drei"]
    assert fork.gaps == {}


def sampled(text: str, read: Sequence[int], ids: Sequence[int]) -> Said:
    """An answer with its token ids, as vLLM gives them."""
    content: list[Any] = [
        {"token": f"token_id:{id_}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for id_ in ids
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
        "token_ids": list(ids),
        "logprobs": {"content": content},
    }
    usage = {"prompt_tokens": len(read), "completion_tokens": len(ids)}
    return Said(d.chat(text, prompt_token_ids=list(read), choices=[choice], usage=usage))


def recorded_ids(proxy: Running, upstream: Upstream) -> None:
    """Three turns with ids: a is 1 2, eins 3 4; b is 5, zwei 6 7; c is 8, drei 9."""
    upstream.says(
        sampled("eins", [1, 2], [3, 4]),
        sampled("zwei", [1, 2, 3, 4, 5], [6, 7]),
        sampled("drei", [1, 2, 3, 4, 5, 6, 7, 8], [9]),
    )
    with client(proxy, "proxy", "agent-name=main") as one:
        said(one, "a")
        said(one, "a", "eins", "b")
        said(one, "a", "eins", "b", "zwei", "c")
    proxy.settle()


def end_run(proxy: Running) -> None:
    """A fork goes on until its run begins again, and is not exported before."""
    proxy.settle()
    url = proxy.url.replace("/proxy", "/replay")
    assert httpx.delete(url, params={"episode": "e"}).status_code == 204


def test_an_export_of_both_branches_trains_what_they_share_once(
    proxy: Running, upstream: Upstream, tmp_path: Path
) -> None:
    recorded_ids(proxy, upstream)
    upstream.says(
        sampled("anders", [1, 2, 3, 4, 5, 6, 7, 10], [11, 12]),
        sampled("weiter", [1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13], [14]),
    )
    with client(proxy, "mode=record-missing") as one:
        said(one, "a")
        said(one, "a", "eins", "b")
        said(one, "a", "eins", "b", "zwei", "x")
        said(one, "a", "eins", "b", "zwei", "x", "anders", "y")
    fork = fork_of(proxy)
    assert fork.episode is not None
    assert export(proxy.store, "default", tmp_path / "open", Spec()).conservation.excluded == {
        "group_open": 3
    }
    end_run(proxy)
    assert verify(proxy.store, "default").problems == ()
    manifest = export(proxy.store, "default", tmp_path / "out", Spec())
    assert verify_export(proxy.store, "default", tmp_path / "out").findings == []
    # eins, zwei and drei: 2 + 2 + 1; anders and weiter: 2 + 1. Nothing twice, nothing left out.
    assert manifest.conservation.sampled_tokens == 5 + 3
    assert (manifest.conservation.trained_tokens, manifest.conservation.excluded) == (8, {})
    rows = {row.group_id: row for row in rows_of(tmp_path / "out")}
    assert {name: reasons(row) for name, row in rows.items()} == {
        None: dict(zip(call_ids(proxy), (["trained"] * 2, ["trained"] * 2, ["trained"]), strict=True)),
        "e/forks": dict(zip(ordered(fork), (["trained"] * 2, ["trained"]), strict=True)),
    }
    [sample] = rows["e/forks"].samples
    assert (sample.cause, sample.num_owned) == ("fork", 3)
    assert sample_ids(rows["e/forks"], sample.sample_id) == [1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14]
    # Rewards of the fork are compared with those of the origin's other forks alone.
    assert [(one.episode_id, one.forked_from_episode_id) for one in rows["e/forks"].episodes] == [
        (fork.episode.id, "e")
    ]


def ordered(graph: Graph) -> list[str]:
    """The ids of the calls, in order."""
    return [call.id for call in sorted(graph.calls.values(), key=lambda call: call.ordinal or 0)]


def ended_after(store: Store, fork: str) -> list[int]:
    """How many calls a fork had as soon as it had ended, and every time something was stored from then on."""
    found = []
    for position in range(1, store.snapshot("default") + 1):
        try:
            events = store.load("default", fork, snapshot=position)
        except NotFound:
            continue
        if any(isinstance(event, Episode) and event.ended_at is not None for event in events):
            found.append(sum(event.kind == "call" for event in events))
    return found


def test_a_fork_ends_behind_its_last_call(
    proxy: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(proxy, upstream)
    monkeypatch.setattr(recorder, "LINGER_S", 0.3)  # the call waits when its run begins again
    upstream.says(Said(d.chat("neu")))
    with client(proxy, "mode=record-missing") as one:
        assert said(one, "x") == "neu"
    id_ = status(proxy)["fork"]["episode_id"]
    assert httpx.delete(proxy.url.replace("/proxy", "/replay?episode=e")).status_code == 204
    # It waited until the store had the end.
    calls = ended_after(proxy.store, id_)
    assert calls
    assert set(calls) == {1}


def test_a_fork_ends_behind_a_call_that_is_answered_after_its_run_began_again(
    proxy: Running, upstream: Upstream
) -> None:
    recorded(proxy, upstream)
    upstream.says(sse(d.CHAT_STREAM[:100], d.CHAT_STREAM[100:], pause_s=0.3))
    asked: dict[str, Any] = {**MODEL, "messages": turns("x"), "stream": True}
    with client(proxy, "mode=record-missing") as one:
        answer = one.chat.completions.with_raw_response.create(**asked)
        id_ = answer.headers["x-tracestore-fork"]
        assert httpx.delete(proxy.url.replace("/proxy", "/replay?episode=e")).status_code == 204
        assert not ended_after(proxy.store, id_)
        assert len(list(answer.parse())) > 0
    proxy.settle()
    calls = ended_after(proxy.store, id_)
    assert calls
    assert set(calls) == {1}


def test_a_policy_that_answers_what_was_recorded_makes_no_fork(proxy: Running, upstream: Upstream) -> None:
    recorded(proxy, upstream)
    upstream.says(Said(d.chat("eins", id="c2")), Said(d.chat("zwei", created=7)))
    with client(proxy, "mode=policy") as one:
        assert (said(one, "a"), said(one, "a", "eins", "b")) == ("eins", "zwei")
    proxy.settle()
    told = status(proxy)
    assert (told["fork"], told["equal_answers"], told["missed"]) == (None, 2, [])
    assert [ref.episode_ids for ref in proxy.store.groups("default")] == [("e",)]


def test_after_another_answer_what_was_recorded_is_stale_and_trains_nothing(
    proxy: Running, upstream: Upstream, tmp_path: Path
) -> None:
    """The harness goes on with b and c, which were said to eins and zwei, whatever the policy says."""
    recorded_ids(proxy, upstream)
    first = call_ids(proxy)[0]
    upstream.says(
        sampled("eins", [1, 2], [3, 4]),
        sampled("anders", [1, 2, 3, 4, 5], [16, 17]),
        sampled("ende", [1, 2, 3, 4, 5, 16, 17, 8], [18]),
    )
    with client(proxy, "mode=policy") as one:
        told = [
            said(one, "a"),
            said(one, "a", "eins", "b"),
            said(one, "a", "eins", "b", "anders", "c"),
        ]
    assert told == ["eins", "anders", "ende"]
    fork = fork_of(proxy)
    assert fork.episode is not None
    # What the policy said as it was recorded is the origin's; it diverged at the second call.
    assert fork.episode.forked_from_call_id == first
    assert answers(fork) == ["anders", "ende"]
    other, last = ordered(fork)
    [gap] = fork.gaps.values()
    assert (gap.call_id, gap.cause) == (last, "stale_observation")
    assert "message 4" in (gap.detail or "")  # a eins b anders c, from 0
    end_run(proxy)
    table = export(proxy.store, "default", tmp_path / "out", Spec()).conservation
    assert (table.trained_tokens, table.excluded) == (5 + 2, {"stale_observation": 1})
    assert verify_export(proxy.store, "default", tmp_path / "out").findings == []
    [row] = [row for row in rows_of(tmp_path / "out") if row.group_id == "e/forks"]
    assert reasons(row) == {other: ["trained"] * 2, last: ["stale_observation"]}


def calling(id_: str) -> list[dict[str, Any]]:
    """The message that a model calls a tool with, and the tool's result."""
    call = {"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id_, "content": "7"},
    ]


def test_a_policy_whose_server_draws_new_ids_answers_what_was_recorded(
    proxy: Running, upstream: Upstream
) -> None:
    def calls(id_: str) -> Said:
        choice = {"index": 0, "message": calling(id_)[0], "finish_reason": "tool_calls"}
        return Said(d.chat(choices=[choice]))

    def run(one: openai.OpenAI, *ids: str, more: str = "") -> None:
        """As many calls of the tool, then an end, then what else is said."""
        messages: list[Any] = turns("a")
        for id_ in ids:
            one.chat.completions.create(**MODEL, messages=messages)
            messages += calling(id_)
        one.chat.completions.create(**MODEL, messages=messages)
        if more:
            messages += [{"role": "assistant", "content": "ende"}, {"role": "user", "content": more}]
            one.chat.completions.create(**MODEL, messages=messages)

    upstream.says(calls("r1"), calls("r2"), Said(d.chat("ende")))
    with client(proxy, "proxy") as one:
        run(one, "r1", "r2")
    proxy.settle()
    upstream.says(calls("x1"), calls("x2"), Said(d.chat("ende")), Said(d.chat("neu")))
    with client(proxy, "mode=policy") as one:
        run(one, "x1", "x2", more="b")
    fork = fork_of(proxy)
    assert status(proxy)["equal_answers"] == 3
    assert fork.episode is not None
    assert fork.episode.forked_from_call_id == call_ids(proxy)[2]
    assert answers(fork) == ["neu"]
    assert fork.gaps == {}
    # The policy was asked under its own ids.
    assert b'"tool_call_id":"x2"' in upstream.seen[-1].body.replace(b" ", b"")


BUSY = Said(b'{"error": {"message": "busy"}}', status=500)


@pytest.mark.parametrize("counts", [False, True])
def test_where_a_policy_fails_any_next_try_is_compared(
    counts: bool, proxy: Running, upstream: Upstream
) -> None:
    """Also one of a client that does not say that it asks again."""
    recorded(proxy, upstream)
    upstream.says(BUSY, Said(d.chat("eins")), Said(d.chat("noch")))
    url = proxy.url.replace("/proxy", "/replay/episode=e/mode=policy/v1/chat/completions")
    asked = {**MODEL, "messages": turns("a")}
    told = [
        httpx.post(url, json=asked, headers={"x-stainless-retry-count": str(number if counts else 0)})
        for number in range(2)
    ]
    assert [one.status_code for one in told] == [500, 200]
    proxy.settle()
    assert (status(proxy)["fork"], status(proxy)["equal_answers"]) == (None, 1)
    assert status(proxy)["num_unasked"] == 2
    # It was recorded once: asked once more it is something else.
    assert httpx.post(url, json=asked).status_code == 200
    assert answers(fork_of(proxy)) == ["noch"]


def test_where_a_policy_fails_the_next_try_says_whether_it_diverges(
    proxy: Running, upstream: Upstream
) -> None:
    recorded(proxy, upstream)
    first = call_ids(proxy)[0]
    upstream.says(BUSY, Said(d.chat("eins")), BUSY, Said(d.chat("anders")))
    with client(proxy, "mode=policy") as one:
        assert said(one, "a") == "eins"
        proxy.settle()
        assert (status(proxy)["fork"], status(proxy)["equal_answers"]) == (None, 1)
        assert said(one, "a", "eins", "b") == "anders"
    fork = fork_of(proxy)
    assert fork.episode is not None
    assert fork.episode.forked_from_call_id == first
    assert answers(fork) == ["anders"]


def test_a_policy_that_is_refused_is_a_failed_call_of_a_fork_that_there_is(
    proxy: Running, upstream: Upstream
) -> None:
    recorded(proxy, upstream)
    refused = Said(b'{"error": {"message": "too long"}}', status=400)
    upstream.says(refused, Said(d.chat("anders")), refused)
    with client(proxy, "mode=policy") as one:
        with pytest.raises(openai.BadRequestError):
            said(one, "a")
        assert said(one, "a") == "anders"
        with pytest.raises(openai.BadRequestError):
            said(one, "a", "eins", "b")
    assert [call.status for call in fork_of(proxy).calls.values()] == ["ok", "failed"]


def test_a_stream_of_the_policy_is_compared_as_it_was_recorded(proxy: Running, upstream: Upstream) -> None:
    upstream.says(sse(d.CHAT_STREAM), sse(d.CHAT_STREAM), sse(d.CHAT_STREAM.replace(b"h - ", b"ch - ")))
    asked: dict[str, Any] = {**MODEL, "messages": turns("a")}
    for names in (("proxy",), ("mode=policy",), ("mode=policy", "run=second")):
        with client(proxy, *names) as one, one.chat.completions.stream(**asked) as chunks:
            assert chunks.get_final_completion().choices[0].message.content is not None
        proxy.settle()
    assert status(proxy)["equal_answers"] == 1
    assert status(proxy)["fork"] is None
    assert status(proxy, run="second")["fork"]["forked_from_call_id"] is None


def test_a_recorded_answer_that_broke_off_is_asked_for_again(proxy: Running, upstream: Upstream) -> None:
    upstream.says(sse(d.CHAT_STREAM[:300], breaks=True))
    asked: dict[str, Any] = {**MODEL, "messages": turns("a"), "stream": True}
    with client(proxy, "proxy") as one, pytest.raises(openai.APIConnectionError):
        list(one.chat.completions.create(**asked))
    proxy.settle()
    upstream.says(Said(d.chat("ganz")))
    with client(proxy, "mode=record-missing") as one:
        assert said(one, "a") == "ganz"
    fork = fork_of(proxy)
    assert fork.episode is not None
    assert fork.episode.forked_from_call_id is None
    assert answers(fork) == ["ganz"]
