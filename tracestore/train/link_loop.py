"""Recorded latents -> trained links: RecursiveMAS's two loops, one after the other, over frozen agents.

First the inner loss on the recorded latents (it moves R_in alone), then the outer loss through all rounds,
computed again with the links as they are (it moves R_in and R_out). AdamW at 5e-4, four episodes a step, as
the paper has it. Which episodes a step takes is a function of seed and step alone, so a run that goes on
takes those that it would have taken.

The trainer reads no store: latents come from a file of their own (`tracestore.shards.latents`), which the
exporter writes with every fact that computing them again needs.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tracestore.errors import TracestoreError
from tracestore.shards.latents import LatentEpisode
from tracestore.train.checkpoint import CHECKPOINT_FOLDER, Checkpoint, replaced
from tracestore.train.links import (
    BadLink,
    Frozen,
    RecursiveLink,
    agent_of,
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
)
from tracestore.train.metrics import metrics_file
from tracestore.train.model import best_device, load_model, load_tokenizer
from tracestore.train.step import NonFiniteStep

_MAY_CHANGE = ("outer_steps", "checkpoint_every")
"""Settings that a run may go on with other values of."""

Encode = Callable[[Frozen, str], list[int]]
"""Ids of an answer in an agent's own tokens, the one that ends it included."""


class NoAnswer(TracestoreError):
    """The recording does not say what the agents should have answered"""


class NoLatents(TracestoreError):
    """There is no episode to train on"""


@dataclass(frozen=True)
class LinkSettings:
    """What a run does."""

    inner_steps: int = 1
    outer_steps: int = 1
    lr: float = 5e-4
    batch: int = 4
    """Episodes of a step; fewer where there are fewer."""
    answer: str = "answer"
    """Member of the task that holds y: text, or token ids of a tokenizer that all agents share."""
    seed: int = 0
    checkpoint_every: int | None = None

    @property
    def steps(self) -> int:
        return self.inner_steps + self.outer_steps


@dataclass(frozen=True)
class LinkStep:
    """One line of the metrics file."""

    step: int
    objective: Literal["inner", "outer"]
    loss: float
    """Mean over the episodes of the step."""
    grad_norm: float
    episodes: tuple[str, ...]
    lr: float
    seconds: float


@dataclass(frozen=True)
class TrainedLinks:
    """What came of a run."""

    steps: tuple[LinkStep, ...]
    links: Mapping[str, RecursiveLink]
    checkpoint: Path | None


def agents_in(folders: Sequence[Path]) -> tuple[dict[str, Frozen], Encode]:
    """The frozen models of folders, by the hash of their weights, and how each of them writes an answer.

    Tokenizers are loaded when an answer is text. Raises ModelNotLoaded.
    """
    agents: dict[str, Frozen] = {}
    places: dict[str, Path] = {}
    for folder in folders:
        agent = Frozen.of(load_model(folder).to(best_device()))
        agents[agent.hash], places[agent.hash] = agent, folder
    tokenizers: dict[str, Any] = {}

    def encode(agent: Frozen, text: str) -> list[int]:
        if agent.hash not in tokenizers:
            tokenizers[agent.hash] = load_tokenizer(places[agent.hash])
        tokenizer = tokenizers[agent.hash]
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        return [*tokenizer.encode(text, add_special_tokens=False), *end]

    return agents, encode


def sources(episodes: Sequence[LatentEpisode]) -> dict[str, tuple[str, str]]:
    """Agent that hands latents on -> (hash of its model, of that of the agent that reads them).

    Raises:
        BadLink: one agent has two models, or hands on to two: one link cannot fit both.
    """
    found: dict[str, tuple[str, str]] = {}
    for episode in episodes:
        for step in episode.steps:
            if step.reads is None:
                continue
            source = episode.steps[step.reads.step]
            models = source.model or "", step.model or ""
            if found.setdefault(source.agent, models) != models:
                hint = "train on the episodes of one pair of models at a time"
                raise BadLink(agent=source.agent, models=sorted({*found[source.agent], *models}), hint=hint)
    return found


def links_for(
    episodes: Sequence[LatentEpisode],
    agents: Mapping[str, Frozen],
    *,
    folder: Path | None = None,
    seed: int = 0,
) -> dict[str, RecursiveLink]:
    """A link for every agent that hands latents on: read from a folder, else fresh.

    Raises:
        OtherModel: an agent's weights are not here.
        BadLink: a file is missing, or does not fit its agents.
    """
    for episode in episodes:
        for step in episode.steps:
            agent_of(step, agents)
    found = {}
    for place, (name, models) in enumerate(sorted(sources(episodes).items())):
        widths = agents[models[0]].width, agents[models[1]].width
        link = fresh_link(*widths, seed=seed + place)
        if folder is not None:
            link = load_link(link_file(folder, name))
        if link.widths != widths:
            raise BadLink(agent=name, found=link.widths, wanted=widths, hint="is it this agent's link?")
        found[name] = link
    return found


def count_replayed(
    episodes: Sequence[LatentEpisode], agents: Mapping[str, Frozen], links: Mapping[str, RecursiveLink]
) -> int | None:
    """How many episodes decode to the recorded ids again; None where some were recorded with other links."""
    for episode in episodes:
        for step in episode.steps:
            if step.reads is not None:
                link = links[episode.steps[step.reads.step].agent]
                if link_hash(link) != step.reads.link:
                    return None
    return sum(tuple(replayed(episode, agents, links)) == decoding(episode).token_ids for episode in episodes)


def train_links(
    episodes: Sequence[LatentEpisode],
    agents: Mapping[str, Frozen],
    links: Mapping[str, RecursiveLink],
    *,
    settings: LinkSettings,
    latents: str,
    encode: Encode,
    out: Path | None = None,
    resume: Checkpoint | None = None,
    on_step: Callable[[LinkStep], None] = lambda step: None,
) -> TrainedLinks:
    """Trains links on recorded episodes; the agents stay as they are.

    Args:
        agents: by hash of their weights, every one that the recording names.
        links: by agent, changed in place; with `resume` those of its checkpoint.
        latents: sha256 of the recording: a run goes on with that alone.
        out: folder for `metrics.jsonl` and `checkpoint/`; None: nothing is written.

    Raises:
        NoLatents: there is no episode.
        NoAnswer: a task has no such member.
        OtherRun: `resume` is of another recording or of other settings.
        NonFiniteStep: no link was changed by that step; the last checkpoint stays.
    """
    if not episodes:
        raise NoLatents(hint="see `left_out` in latents.json: why each episode was left out")
    trainer = _Trainer(episodes, agents, links, settings, latents=latents, encode=encode, resume=resume)
    done: list[LinkStep] = []
    checkpoint: Path | None = None
    with metrics_file(out, steps_before=trainer.num_steps) as file:
        while trainer.num_steps < settings.steps:
            step = trainer.take()
            done.append(step)
            file.add(step)
            on_step(step)
            every = settings.checkpoint_every
            if out is not None and every and trainer.num_steps % every == 0:
                trainer.save(out)
    if out is not None:
        checkpoint = trainer.save(out)
    return TrainedLinks(tuple(done), links, checkpoint)


class _Trainer:
    def __init__(
        self,
        episodes: Sequence[LatentEpisode],
        agents: Mapping[str, Frozen],
        links: Mapping[str, RecursiveLink],
        settings: LinkSettings,
        *,
        latents: str,
        encode: Encode,
        resume: Checkpoint | None,
    ) -> None:
        self._episodes = episodes
        self._agents = agents
        self._links = links
        self._settings = settings
        self._encode = encode
        self._answers = [_answer(episode, settings.answer) for episode in episodes]
        self._weights = [weight for _, link in sorted(links.items()) for weight in link.parameters()]
        self._optimizer = torch.optim.AdamW(self._weights, lr=settings.lr, weight_decay=0.0)
        kept = {name: one for name, one in asdict(settings).items() if name not in _MAY_CHANGE}
        self._identity = {"latents": latents, "settings": kept}
        self.num_steps = 0
        if resume is not None:
            resume.require(**self._identity)
            self._optimizer.load_state_dict(dict(resume.optimizer))
            self.num_steps = int(resume.state["steps"])

    def take(self) -> LinkStep:
        """The next step."""
        began = time.monotonic()
        objective: Literal["inner", "outer"] = (
            "inner" if self.num_steps < self._settings.inner_steps else "outer"
        )
        loss_of = self._inner if objective == "inner" else self._outer
        chosen = self._chosen()
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for place in chosen:
            loss = loss_of(place) / len(chosen)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        norm = _norm(self._weights)
        if not (math.isfinite(total) and math.isfinite(norm)):
            hint = "lower --lr, or look at the recorded latents"
            raise NonFiniteStep(step=self.num_steps, loss=total, grad_norm=norm, hint=hint)
        self._optimizer.step()
        self.num_steps += 1
        return LinkStep(
            step=self.num_steps - 1,
            objective=objective,
            loss=total,
            grad_norm=norm,
            episodes=tuple(self._episodes[place].episode_id for place in chosen),
            lr=self._settings.lr,
            seconds=time.monotonic() - began,
        )

    def save(self, out: Path) -> Path:
        """Links as they are recorded, the optimizer, and the number of steps, in place of an older one."""
        folder = out / CHECKPOINT_FOLDER
        state = {**self._identity, "steps": self.num_steps}
        with replaced(folder, optimizer=self._optimizer.state_dict(), state=state) as partial:
            for name, link in self._links.items():
                link_file(partial, name).write_bytes(link_bytes(link))
        return folder

    def _inner(self, place: int) -> torch.Tensor:
        """Mean over the latents of an episode."""
        losses = []
        for step in self._episodes[place].steps:
            if step.latent is not None:
                agent = agent_of(step, self._agents)
                answer_ND = agent.embed(self._ids(place, agent))
                latent_LD = tensor_of(step.latent).to(answer_ND.device)
                losses.append(inner_loss(self._links[step.agent].inner, latent_LD, answer_ND))
        return torch.stack(losses).mean()

    def _outer(self, place: int) -> torch.Tensor:
        episode = self._episodes[place]
        answer_ids = self._ids(place, agent_of(decoding(episode), self._agents))
        return outer_loss(episode, self._agents, self._links, answer_ids)

    def _ids(self, place: int, agent: Frozen) -> list[int]:
        answer = self._answers[place]
        return self._encode(agent, answer) if isinstance(answer, str) else answer

    def _chosen(self) -> list[int]:
        """Episodes of the next step: each comes once before any comes again."""
        count = len(self._episodes)
        size = min(self._settings.batch, count)
        first = self.num_steps * size
        return [self._order((first + at) // count)[(first + at) % count] for at in range(size)]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._episodes)))
        random.Random(f"{self._settings.seed}/{epoch}").shuffle(order)
        return order


def _answer(episode: LatentEpisode, member: str) -> str | list[int]:
    """
    Raises:
        NoAnswer: the task has no such member, or it is neither text nor token ids.
    """
    task = episode.task
    answer = task.get(member) if isinstance(task, Mapping) else None
    if isinstance(answer, str) and answer:
        return answer
    if isinstance(answer, list) and answer and all(type(one) is int and one >= 0 for one in answer):
        return answer
    raise NoAnswer(
        episode_id=episode.episode_id,
        member=member,
        members=sorted(task) if isinstance(task, Mapping) else None,
        hint="--answer names the member of the recorded task that is text, or token ids",
    )


def _norm(weights: Sequence[torch.Tensor]) -> float:
    grads: list[Any] = [weight.grad for weight in weights if weight.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in grads])))
