"""Latents are handed on as tensors: recorded with where they came from, refused as text, computed again."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

from sample_traces.recursive_mas import models
from sample_traces.recursive_mas.harness import SHAPES, SYSTEM
from tests.exporters.memory import MemorySource
from tests.fixtures import REPO
from tests.sample_traces.scripted import Kept, Scripted
from tests.sample_traces.traces import episodes_of, graphs_of, row_of, trace_events
from tracestore.shards.latents import LatentEpisode
from tracestore.shards.reasons import Reason
from tracestore.train.links import OtherLink, decoding, fresh_link, link_hash, load_link, replayed, tensor_of
from tracestore_exporters.export import export
from tracestore_exporters.latents import latent_episode
from tracestore_exporters.openai import examples
from tracestore_exporters.spec import Spec
from tracestore_exporters.writing import Report

NAME = "recursive_mas"
BLOBS = REPO / "sample_traces" / NAME / "blobs"
AGENTS = {agent.hash: agent for agent in models.agents().values()}


class Characters(Scripted):
    """Characters are tokens; what other ids say is their characters."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def recorded(place: int) -> LatentEpisode:
    """An episode of the recorded trace, with its payloads."""
    (graph,) = graphs_of(episodes_of(trace_events(NAME))[place])
    return latent_episode(graph, lambda name: (BLOBS / name).read_bytes())


def test_every_payload_is_there_and_hashes_to_its_name() -> None:
    named = {blob.hash for graph in graphs_of(trace_events(NAME)) for blob in graph.blobs.values()}
    kept = {path.name: path.read_bytes() for path in BLOBS.iterdir()}
    assert named == kept.keys() == {sha256(payload).hexdigest() for payload in kept.values()}


def test_four_steps_of_width_8_are_recorded_as_5_by_8_and_two_rounds_of_two_agents_hand_on_3_times() -> None:
    episode = recorded(0)
    assert SHAPES[0] == (4, 2)
    assert [(step.agent, step.round) for step in episode.steps] == [
        ("planner", 0),
        ("solver", 0),
        ("planner", 1),
        ("solver", 1),
    ]
    assert [step.latent and step.latent.shape for step in episode.steps] == [(5, 8), (5, 16), (5, 8), None]
    first = episode.steps[0].latent
    assert first is not None
    assert models.links()["planner"].outer(tensor_of(first)).shape == (5, 16)
    assert [recorded(place).transfers for place in range(4)] == [2 * n - 1 for _, n in SHAPES]


def test_a_transfer_says_from_whom_to_whom_through_which_link_and_where_it_stands() -> None:
    links = {name: link_hash(link) for name, link in models.links().items()}
    episode = recorded(2)
    for place, step in enumerate(episode.steps[1:]):
        assert step.reads is not None
        source = episode.steps[step.reads.step]
        assert step.reads.step == place
        assert {source.agent, step.agent} == {"planner", "solver"}
        assert step.reads.link == links[source.agent]
        assert step.reads.position == len(step.prompt_ids)
        assert source.model == models.agents()[source.agent].hash
    for name, link in links.items():
        (file,) = [path for path in BLOBS.iterdir() if path.name == link]
        assert link_hash(load_link(file)) == link, name


def test_what_was_said_after_a_latent_is_in_no_policy_gradient_and_in_no_text(tmp_path: Path) -> None:
    said = sum(
        len(ids) for place in range(4) for ids in [decoding(recorded(place)).token_ids] if ids is not None
    )
    row = row_of(trace_events(NAME))
    assert int((row.reason == Reason.LATENT).sum()) == said > 0
    for objective in ("rl", "sft"):
        out = tmp_path / objective
        table = export(MemorySource(trace_events(NAME)), "p", out, Spec(objective=objective)).conservation
        assert (table.trained_tokens, table.excluded) == (0, {"latent": said})
        # The calls that handed a latent on are the line of those without token ids.
        assert table.no_token_ids_calls == sum(2 * n - 1 for _, n in SHAPES)
    report = Report()
    lines = [
        list(examples(graph, spec=Spec(objective="sft"), report=report))
        for graph in graphs_of(trace_events(NAME))
    ]
    assert lines == [[]] * 4
    # Every call that read a latent; the first planner of an episode read none, and said nothing.
    assert report.facts()["lost"] == {"answer": 4, "answer: latent": sum(2 * n - 1 for _, n in SHAPES)}


@pytest.mark.parametrize("place", range(len(SHAPES)))
def test_the_recorded_latents_decode_to_the_recorded_text(place: int) -> None:
    episode = recorded(place)
    assert tuple(replayed(episode, AGENTS, models.links())) == decoding(episode).token_ids


def test_another_link_is_refused() -> None:
    other = models.links() | {"planner": fresh_link(8, 16, seed=9)}
    with pytest.raises(OtherLink, match="agent='planner'"):
        replayed(recorded(0), AGENTS, other)


def test_it_plays_and_its_latents_can_be_computed_again_whatever_the_tokenizer() -> None:
    with Kept() as client:
        rewards = [
            SYSTEM.play(client.episode(f"e{seed}", task=SYSTEM.stated), Characters(), seed)
            for seed in range(2)
        ]
        graphs = graphs_of(client.events)
    assert rewards == [0.0, 0.0]
    for graph in graphs:
        assert graph.episode is not None
        assert graph.episode.status == "ok"
        episode = latent_episode(graph, client.payloads.get)
        assert episode.task == SYSTEM.stated
        assert tuple(replayed(episode, AGENTS, models.links())) == decoding(episode).token_ids
    roles = Counter(blob.role for graph in graphs for blob in graph.blobs.values())
    assert roles == {"latent": 3 + 1, "latent_output": 3 + 1, "link": 3 + 1}
