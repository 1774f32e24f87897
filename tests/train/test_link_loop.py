"""The two loops over recorded latents: which loss moves what, which episodes, and going on after a stop."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train.latents import TASK, by_hash, played, two_agents, two_links
from tracestore.shards.latents import LatentEpisode
from tracestore.train.checkpoint import OtherRun, checkpoint_in
from tracestore.train.link_loop import (
    LinkSettings,
    NoAnswer,
    NoLatents,
    TrainedLinks,
    count_replayed,
    links_for,
    train_links,
)
from tracestore.train.links import BadLink, Frozen, OtherModel, link_bytes, link_file, link_hash
from tracestore.train.step import NonFiniteStep

AGENTS = two_agents()
LINKS = two_links()
EPISODES = [
    played(name, agents=AGENTS, links=LINKS, n=n, m=m)
    for name, n, m in (("a", 2, 4), ("b", 1, 4), ("c", 3, 2), ("d", 2, 1), ("e", 1, 3))
]


def encode(agent: Frozen, text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def trained(episodes: list[LatentEpisode] = EPISODES, **fields: Any) -> TrainedLinks:
    run = {name: fields.pop(name) for name in ("out", "resume", "links") if name in fields}
    links = run.pop("links", None) or two_links()
    settings = LinkSettings(**fields)
    return train_links(episodes, by_hash(AGENTS), links, settings=settings, latents="h", encode=encode, **run)


def hashes(done: TrainedLinks) -> dict[str, str]:
    return {name: link_hash(link) for name, link in done.links.items()}


def test_the_inner_loss_moves_inner_links_alone_and_the_outer_loss_all() -> None:
    def moved(**fields: Any) -> set[str]:
        done = trained(**fields)
        before = two_links()
        return {
            name.split(".")[0]
            for agent, link in done.links.items()
            for name, weight in link.named_parameters()
            if not weight.equal(before[agent].get_parameter(name))
        }

    assert moved(inner_steps=1, outer_steps=0) == {"inner"}
    assert moved(inner_steps=0, outer_steps=1) == {"inner", "outer"}
    steps = trained(inner_steps=2, outer_steps=1, batch=1).steps
    assert [step.objective for step in steps] == ["inner", "inner", "outer"]


def test_both_losses_fall_on_what_is_trained_again_and_again() -> None:
    losses = [step.loss for step in trained([EPISODES[1]], inner_steps=8, outer_steps=8, lr=1e-2).steps]
    assert losses[7] < losses[0]
    assert losses[15] < losses[8]


def test_every_episode_comes_once_before_any_comes_again() -> None:
    steps = trained(inner_steps=5, outer_steps=0, batch=2).steps
    assert [len(step.episodes) for step in steps] == [2] * 5
    assert Counter(name for step in steps for name in step.episodes) == dict.fromkeys("abcde", 2)
    assert trained(inner_steps=1, outer_steps=0, batch=99).steps[0].episodes != ("a", "b", "c", "d", "e")


def test_a_run_that_goes_on_is_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    whole = trained(inner_steps=2, outer_steps=2, out=tmp_path / "whole", batch=2)
    trained(inner_steps=2, outer_steps=1, out=tmp_path / "parts", batch=2)
    resume = checkpoint_in(tmp_path / "parts")
    links = links_for(EPISODES, by_hash(AGENTS), folder=resume.folder)
    rest = trained(inner_steps=2, outer_steps=2, out=tmp_path / "parts", batch=2, links=links, resume=resume)
    assert [step.loss for step in rest.steps] == [whole.steps[3].loss]
    assert hashes(rest) == hashes(whole)
    lines = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [step.loss for step in whole.steps]
    assert rest.checkpoint is not None
    for name, link in rest.links.items():
        assert link_file(rest.checkpoint, name).read_bytes() == link_bytes(link)
    with pytest.raises(OtherRun, match="batch"):
        trained(inner_steps=2, outer_steps=3, batch=1, links=links, resume=resume)


def test_text_is_written_in_each_agents_tokens() -> None:
    texts = [replace(episode, task={"y": "hjl"}) for episode in EPISODES]  # 7, 9, 11
    assert TASK["answer"] == [7, 9, 11]
    assert hashes(trained(texts, answer="y")) == hashes(trained(EPISODES))


@pytest.mark.parametrize(
    "task", [None, "text", {}, {"answer": 3}, {"answer": ""}, {"answer": []}, {"answer": [-1]}]
)
def test_a_task_without_an_answer_is_said(task: Any) -> None:
    with pytest.raises(NoAnswer, match="episode_id='a'"):
        trained([replace(EPISODES[0], task=task)])


def test_nothing_to_train_on_and_a_step_that_is_no_number_are_said() -> None:
    with pytest.raises(NoLatents):
        trained([])
    first, *rest = EPISODES[0].steps
    assert first.latent is not None
    bad = replace(first.latent, data=b"\xff" * len(first.latent.data))
    links = two_links()
    with pytest.raises(NonFiniteStep):
        trained([replace(EPISODES[0], steps=(replace(first, latent=bad), *rest))], links=links)
    assert {name: link_hash(link) for name, link in links.items()} == {
        name: link_hash(link) for name, link in two_links().items()
    }


def test_links_are_read_or_made_for_every_agent_that_hands_on(tmp_path: Path) -> None:
    agents = by_hash(AGENTS)
    fresh = links_for(EPISODES, agents, seed=3)
    assert {name: link.widths for name, link in fresh.items()} == {"planner": (8, 16), "solver": (16, 8)}
    for name, link in LINKS.items():
        link_file(tmp_path, name).write_bytes(link_bytes(link))
    read = links_for(EPISODES, agents, folder=tmp_path)
    assert {name: link_hash(link) for name, link in read.items()} == {
        name: link_hash(link) for name, link in LINKS.items()
    }
    link_file(tmp_path, "planner").write_bytes(link_bytes(LINKS["solver"]))
    with pytest.raises(BadLink, match=r"found=\(16, 8\)"):
        links_for(EPISODES, agents, folder=tmp_path)
    with pytest.raises(OtherModel):
        links_for(EPISODES, {})


def test_with_the_links_of_the_recording_every_text_comes_again_and_with_others_none_is_tried() -> None:
    agents = by_hash(AGENTS)
    assert count_replayed(EPISODES, agents, LINKS) == len(EPISODES)
    assert count_replayed(EPISODES, agents, two_links(seed=5)) is None
