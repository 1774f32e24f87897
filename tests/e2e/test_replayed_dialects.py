"""Each recorded harness asks in every dialect, and asks again of what was recorded: the same once more.

It asks through the dialect's official client, which is wrapped so that it records: first a server that
answers what the sample trace says, then the replay of what that recorded. The requests of both recordings
are the same to the byte, and so is what they say, but for ids and times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sample_traces.record import Cast, Casts, Recorder, play
from sample_traces.replayed import ReplayedSampler
from sample_traces.sampler import Sampled, SmolLM2
from sample_traces.system import System
from sample_traces.systems import system
from tests.api.proxy.scripted import Running, Upstream, running_proxy, scripted_upstream
from tests.e2e.spoken import SPOKEN, Spoken, said
from tests.e2e.test_replayed_systems import FILES
from tests.factories import posted
from tracestore.client import Client, Episode
from tracestore.instrument import wrap
from tracestore.store.blobs import open_blobs
from tracestore.store.store import Store
from tracestore.wire.call import Call
from tracestore.wire.decode import decode_event

SHORT = {"tree_search": SPOKEN.keys(), "subagents-scripted": {"openai_responses", "anthropic_messages"}}
"""What the long tests leave to the others: several answers to one request, tools."""


@dataclass
class Asking:
    """Where a harness asks in another dialect, and where that is recorded."""

    spoken: Spoken
    sdk: Any
    client: Client
    upstream: Upstream | None
    """What answers; None: a replay of what was recorded does."""
    recorded_in: str
    """Project that is replayed."""
    run: str
    """Name of this run, of those that replay one trace."""
    num_asked: int = 0


class DialectSampler(ReplayedSampler):
    """Speaks as the recorded policy did, and what it says has gone over the wire in another dialect.

    Ids and logprobs, which most dialects do not have, are those of the trace.
    """

    def __init__(self, *args: Any, asking: Asking, episode: str, **more: Any) -> None:
        super().__init__(*args, episode=episode, **more)
        self._headers["X-Tracestore-Run"] = asking.run
        self._asking = asking
        self._episode = asking.client.episode(episode)
        self._agents: dict[str, Any] = {}
        self._choices: list[Mapping[str, Any]] = []

    def _sampled(self, choice: Mapping[str, Any]) -> Sampled:
        self._choices.append(choice)
        return super()._sampled(choice)

    def sample(self, prompt: Sequence[int], *, speaker: str, seed: int, **asked: Any) -> list[Sampled]:
        self._choices = []
        sampled = super().sample(prompt, speaker=speaker, seed=seed, **asked)
        is_one = self._asking.spoken.has_n
        for choices in [self._choices] if is_one else [[one] for one in self._choices]:
            told = self._asked(prompt, speaker, asked["request"], choices)
            assert [said(one) for one in told] == [said(one["message"]) for one in choices]
        return sampled

    def _asked(
        self, prompt: Sequence[int], speaker: str, request: Mapping[str, Any], choices: Sequence[Any]
    ) -> list[dict[str, Any]]:
        asking = self._asking
        is_stream = asking.num_asked % 2 == 1
        asking.num_asked += 1
        if asking.upstream is not None:
            asking.upstream.says(asking.spoken.answer(choices, is_stream))
        headers = {
            "X-Tracestore-Project": asking.recorded_in,
            "X-Tracestore-Episode": self._episode.id,
            "X-Tracestore-Agent-Name": speaker,
        }
        with self._agent(speaker).active():
            return asking.spoken.ask(asking.sdk, request, prompt, is_stream, headers)

    def _agent(self, speaker: str) -> Any:
        if speaker not in self._agents:
            self._agents[speaker] = self._episode.agent(f"{self._episode.id}/{speaker}", name=speaker)
        return self._agents[speaker]


def spoken_by(
    base: SmolLM2, name: str, url: str, *, project: str, is_scripted: bool, asking: Asking
) -> Casts:
    """The cast of `record.replayed`, which asks in another dialect too."""

    def cast(one: System) -> Iterator[Cast]:
        how = one.plays_scripts if is_scripted else one.play
        for place, seed in enumerate(range(len(one.scripts)) if is_scripted else one.seeds):
            sampler = DialectSampler(base, url, project=project, episode=f"{name}-{place}", asking=asking)

            def played(episode: Episode, sampler: DialectSampler = sampler, seed: int = seed) -> float:
                return how(episode, sampler, seed)

            yield one.task_of(place) if is_scripted else one.task, played

    return cast


@pytest.fixture(scope="module")
def base() -> SmolLM2:
    return SmolLM2()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("dialects")
    with (
        Store.open(f"sqlite:///{folder}/t.db") as store,
        running_proxy(store, "http://127.0.0.1:1", blobs=open_blobs(str(folder / "blobs"))) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with scripted_upstream() as upstream:
        yield upstream


def recording_of(store: Store, project: str) -> list[Any]:
    """What a project has recorded, without the ids and times that each recording makes anew."""
    ids = [episode for group in store.groups(project) for episode in group.episode_ids]
    calls = [event for id_ in sorted(ids) for event in store.load(project, id_) if event.kind == "call"]
    return [_told(call) for call in sorted(calls, key=lambda call: (call.agent_id, call.ordinal))]


def _told(call: Call) -> dict[str, Any]:
    answers = [
        {
            "message": None if one.message is None else one.message.value(),
            "finish_reason": one.finish_reason,
            "token_ids": None if one.token_ids is None else one.token_ids.json(),
            "logprobs": None if one.logprobs is None else one.logprobs.array.tolist(),
            "partial": one.partial,
        }
        for one in call.completions or ()
    ]
    stated = call.model_dump(include={"agent_id", "ordinal", "dialect", "model", "status", "usage", "error"})
    return {**stated, "request": bytes(call.request or b""), "answers": answers}


def params() -> Iterator[Any]:
    for name, path, is_scripted in FILES:
        for dialect in SPOKEN:
            is_short = any(dialect in SHORT.get(one, ()) for one in (name, f"{name}-{path.stem}"))
            marks = [] if is_short else [pytest.mark.soak]
            yield pytest.param(
                name, path, is_scripted, dialect, marks=marks, id=f"{name}-{path.stem}-{dialect}"
            )


@pytest.mark.parametrize(("name", "path", "is_scripted", "dialect"), list(params()))
def test_the_second_recording_is_the_first_in_every_dialect(
    name: str,
    path: Path,
    is_scripted: bool,
    dialect: str,
    base: SmolLM2,
    server: Running,
    upstream: Upstream,
) -> None:
    lines = path.read_text().splitlines()
    trace = f"{name}-{path.stem}"
    server.store.ingest(trace, [posted(decode_event(line.encode())) for line in lines])
    url, spoken = server.url.removesuffix("/proxy"), SPOKEN[dialect]
    projects = [f"{trace}-{dialect}-{run}" for run in ("first", "second")]
    for project, where, answering in (
        (projects[0], upstream.url, upstream),
        (projects[1], f"{url}/replay", None),
    ):
        with (
            Recorder(url, project=f"{project}-harness") as harness,
            Client(url, project=project) as client,
            wrap(spoken.connected(where)) as sdk,
        ):
            asking = Asking(spoken, sdk, client, answering, recorded_in=projects[0], run=project)
            cast = spoken_by(base, name, url, project=trace, is_scripted=is_scripted, asking=asking)
            play(name, system(name), harness, cast)
        assert harness.lines == lines
        assert not upstream.script
    first, second = (recording_of(server.store, project) for project in projects)
    assert len(first) >= sum('"kind":"call"' in line and '"request":{' in line for line in lines)
    assert second == first
