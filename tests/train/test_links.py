"""Links between frozen agents: the paper's formulas, its two losses, and replay from recorded latents."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.latents import TASK, by_hash, played, two_agents, two_links
from tests.train.models import VOCAB
from tracestore.train.engine import OutsideModel
from tracestore.train.links import (
    BadLink,
    Frozen,
    InnerLink,
    OtherLink,
    OtherModel,
    OuterLink,
    RecursiveLink,
    answer_loss,
    decoding,
    fresh_link,
    inner_loss,
    link_bytes,
    link_file,
    link_hash,
    load_link,
    outer_loss,
    replayed,
    tensor_of,
    weights_hash,
)

AGENTS = two_agents()
LINKS = two_links()
EPISODE = played(agents=AGENTS, links=LINKS)


def gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / 2**0.5))


def test_a_link_of_one_number_is_the_formula() -> None:
    inner, outer = InnerLink(1), OuterLink(1, 1)
    with torch.no_grad():
        inner.w1.weight.fill_(2.0)
        inner.w2.weight.fill_(3.0)
        outer.w1.weight.copy_(torch.tensor([[2.0], [-1.0]]))
        outer.w2.weight.copy_(torch.tensor([[3.0, 5.0]]))
        outer.w3.weight.fill_(0.5)
    # R_in(.5) = .5 + 3 GELU(2 * .5); R_out(.5) = .5 * .5 + 3 GELU(1) + 5 GELU(-.5)
    assert inner(torch.tensor([0.5])).item() == pytest.approx(0.5 + 3 * gelu(1.0))
    assert outer(torch.tensor([0.5])).item() == pytest.approx(0.25 + 3 * gelu(1.0) + 5 * gelu(-0.5))


def test_four_latent_steps_of_width_8_are_5_by_8_and_behind_the_link_5_by_16() -> None:
    latents = [step.latent for step in EPISODE.steps]
    assert [latent and latent.shape for latent in latents] == [(5, 8), (5, 16), (5, 8), None]
    first = latents[0]
    assert first is not None
    assert LINKS["planner"].outer(tensor_of(first)).shape == (5, 16)
    assert EPISODE.transfers == 2 * 2 - 1 == 3
    assert played(agents=AGENTS, links=LINKS, n=3).transfers == 5


def test_the_inner_loss_is_0_on_the_embedding_1_across_it_and_2_against_it() -> None:
    inner = fresh_link(2, 2, seed=0).inner
    with torch.no_grad():
        inner.w2.weight.zero_()  # R_in(h) = h
    along, across = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    assert [inner_loss(inner, along, y).item() for y in (along, across, -along)] == [0, 1, 2]
    # Rows and tokens meet as far as both go: (0 + 1)/2, the third row has no token.
    latent = torch.cat([along, along, along])
    assert inner_loss(inner, latent, torch.cat([along, across])).item() == 0.5


def test_the_outer_loss_goes_through_all_rounds_and_moves_no_agent() -> None:
    links = two_links()
    loss = outer_loss(EPISODE, by_hash(AGENTS), links, TASK["answer"])  # type: ignore[arg-type]
    loss.backward()  # type: ignore[no-untyped-call]
    # With the links that recorded it, the last agent reads what it read then.
    last = decoding(EPISODE)
    assert last.reads is not None
    source = EPISODE.steps[last.reads.step]
    assert source.latent is not None
    carried = LINKS["planner"].outer(tensor_of(source.latent))
    prompt = AGENTS["solver"].embed(last.prompt_ids)
    read = torch.cat([prompt[:3], carried, prompt[3:]])
    again = answer_loss(AGENTS["solver"], read, TASK["answer"])  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(again.item(), rel=1e-5)
    for link in links.values():
        assert all(weight.grad is not None and weight.grad.norm() > 0 for weight in link.parameters())
    for agent in AGENTS.values():
        assert not any(weight.requires_grad for weight in agent.model.parameters())


def test_the_answers_loss_is_what_the_library_computes_from_ids() -> None:
    agent, prompt, answer = AGENTS["solver"], [1, 2, 3], [7, 9]
    labels = torch.tensor([[-100, -100, -100, *answer]])
    expected = agent.model(input_ids=torch.tensor([[*prompt, *answer]]), labels=labels).loss
    assert answer_loss(agent, agent.embed(prompt), answer).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_gradient_is_that_of_a_small_move() -> None:
    agents = {name: Frozen.of(agent.model.double()) for name, agent in two_agents().items()}
    links = {name: link.double() for name, link in two_links().items()}
    episode = replace(
        EPISODE,
        steps=tuple(replace(step, model=agents[step.agent].hash) for step in EPISODE.steps),
    )
    weights = [weight for link in links.values() for weight in link.parameters()]

    def loss() -> torch.Tensor:
        return outer_loss(episode, by_hash(agents), links, [7, 9])

    loss().backward()  # type: ignore[no-untyped-call]
    # Along the gradient of all links of all rounds the loss rises by its norm.
    grads = [weight.grad for weight in weights if weight.grad is not None]
    norm, move = math.sqrt(sum(grad.square().sum().item() for grad in grads)), 1e-3
    values = []
    for sign in (1, -2):
        with torch.no_grad():
            for weight, grad in zip(weights, grads, strict=True):
                weight += sign * move * grad / norm
        values.append(loss().item())
    # The library's norms are of float32: a loss near 4 is known to 1e-6, its slope over 2e-3 to 1e-3.
    assert norm > 0.05
    assert (values[0] - values[1]) / (2 * move) == pytest.approx(norm, abs=2e-3)


def test_recorded_latents_decode_to_the_recorded_text() -> None:
    for n in (1, 2, 3):
        episode = played(agents=AGENTS, links=LINKS, n=n)
        assert tuple(replayed(episode, by_hash(AGENTS), LINKS)) == decoding(episode).token_ids


def test_another_link_or_other_weights_are_refused_and_would_decode_another_text() -> None:
    with pytest.raises(OtherLink, match="agent='planner'"):
        replayed(EPISODE, by_hash(AGENTS), two_links(seed=5))
    with pytest.raises(OtherModel, match="agent='solver'"):
        replayed(EPISODE, {}, LINKS)
    (first, *rest) = EPISODE.steps
    latent = EPISODE.steps[2].latent
    assert latent is not None
    other = replace(latent, data=(-10 * tensor_of(latent)).numpy().tobytes())
    changed = replace(EPISODE, steps=(first, rest[0], replace(rest[1], latent=other), rest[2]))
    assert tuple(replayed(changed, by_hash(AGENTS), LINKS)) != decoding(EPISODE).token_ids


def test_a_link_is_known_by_its_weights_and_read_back_as_it_was_written(tmp_path: Path) -> None:
    link = fresh_link(8, 16, seed=3)
    path = link_file(tmp_path, "a/b")
    path.write_bytes(link_bytes(link))
    assert path.parent == tmp_path
    assert link_hash(load_link(path)) == link_hash(link) == link_hash(fresh_link(8, 16, seed=3))
    assert link_hash(fresh_link(8, 16, seed=4)) != link_hash(link)
    assert load_link(path).widths == (8, 16)


@pytest.mark.parametrize("content", [None, b"", b"not a link"])
def test_what_is_no_link_is_said(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "planner.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadLink, match=r"planner\.safetensors"):
        load_link(path)


def test_the_hash_of_weights_is_of_their_values_and_not_of_how_they_are_kept() -> None:
    model = AGENTS["planner"].model
    assert weights_hash(model.double()) == AGENTS["planner"].hash
    model.float()
    link = RecursiveLink(2, 3)
    before = weights_hash(link)
    with torch.no_grad():
        link.inner.w1.weight[0, 0] += 1e-3
    assert weights_hash(link) != before


def test_a_token_that_the_model_does_not_have_is_said() -> None:
    with pytest.raises(OutsideModel, match=f"token={VOCAB}"):
        AGENTS["planner"].embed([VOCAB])
