"""RecursiveMAS in small: two frozen agents that hand latents on, and speak in the last round alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch

from sample_traces.chat import assistant, system, user
from sample_traces.record import harness_main
from sample_traces.recursive_mas.models import agents, links
from sample_traces.sampler import Sampler
from sample_traces.system import System
from tracestore.client import Agent, Call, Episode
from tracestore.shards.latents import Read
from tracestore.train.links import decode, link_bytes, reading, think

QUESTION = "What is 2 + 3?"
ANSWER = "2 + 3 = 5"
ASKED = {"planner": "Plan how to answer.", "solver": "Answer by the plan."}
NAMES = tuple(ASKED)
SHAPES = ((4, 2), (4, 1), (4, 3), (2, 2))
"""(latent steps m, rounds n) of one episode after the other."""
MAX_TOKENS = 12


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Planner, solver, planner, solver ... for n rounds: each reads its prompt, and behind it what the one
    before thought; the solver of the last round says it. Reward: 1 when the answer is in that.

    The agents are the two models of `models`, whoever samples elsewhere: the sampler lends its tokenizer.
    """
    steps, rounds = SHAPES[seed % len(SHAPES)]
    loop, thought = _Loop(episode, sampler), None
    for turn in range(2 * rounds - 1):
        thought = loop.think(NAMES[turn % 2], turn // 2, thought, steps=steps)
    text = loop.say("solver", rounds - 1, thought)
    reward = float(ANSWER in text)
    loop.end()
    episode.reward("task", reward, scorer="rule", scorer_version="1", id=f"{episode.id}/reward")
    episode.end("ok")
    return reward


@dataclass(frozen=True)
class _Thought:
    name: str
    """Whose."""
    latent: torch.Tensor
    """[m + 1, d], its hidden states."""


@dataclass
class _Loop:
    """The agents of one episode, and what is recorded of them."""

    episode: Episode
    sampler: Sampler
    recorded: dict[str, Agent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.frozen, self.links = agents(), links()
        for name, agent in self.frozen.items():
            self.recorded[name] = self.episode.agent(
                f"{self.episode.id}/{name}",
                role=name,
                name=name,
                model=f"tiny-llama-{agent.width}",
                checkpoint=agent.hash,
                # What trains are the links; the weights that `checkpoint` names stay as they are.
                policy=("links", 0),
            )

    @torch.no_grad()
    def think(self, name: str, turn: int, before: _Thought | None, *, steps: int) -> _Thought:
        """One agent in one round that hands on what it thinks."""
        prompt, read_TD = self._read(name, before)
        latent_LD = think(self.frozen[name], self.links[name].inner, read_TD, steps=steps)
        # No message and no ids, not even an empty list of them: it said nothing that tokens could tell.
        completion = {"finish_reason": "latent"}
        call = self._call(name, turn, prompt, completion, params={"latent_steps": steps})
        self._handed_over(call, before, position=len(prompt))
        self._latent(latent_LD, "latent_output", call, name)
        return _Thought(name, latent_LD)

    @torch.no_grad()
    def say(self, name: str, turn: int, before: _Thought | None) -> str:
        """The most likely text, after what was thought."""
        prompt, read_TD = self._read(name, before)
        stop = self.sampler.stop
        ids, logprobs = decode(self.frozen[name], read_TD, max_tokens=MAX_TOKENS, stop=stop)
        text = self.sampler.decode([token for token in ids if token != stop])
        completion = {
            "message": assistant(text),
            "finish_reason": "stop" if ids[-1] == stop else "length",
            "token_ids": ids,
            "logprobs": logprobs,
        }
        params = {"temperature": 0, "max_tokens": MAX_TOKENS, "logprobs": True}
        call = self._call(name, turn, prompt, completion, params=params, logprobs_are="raw")
        self._handed_over(call, before, position=len(prompt))
        return text

    def end(self) -> None:
        for agent in self.recorded.values():
            agent.end("ok")

    def _messages(self, name: str) -> list[dict[str, Any]]:
        return [system(ASKED[name]), user(QUESTION)]

    def _read(self, name: str, before: _Thought | None) -> tuple[list[int], torch.Tensor]:
        """The ids of its prompt, and the prompt with the thought behind it."""
        prompt = self.sampler.render(self._messages(name))
        if before is None:
            return prompt, reading(self.frozen[name], prompt, None, None)
        carried_LD = self.links[before.name].outer(before.latent)
        return prompt, reading(self.frozen[name], prompt, Read(0, len(prompt), None), carried_LD)

    def _call(
        self, name: str, turn: int, prompt: list[int], completion: dict[str, Any], **fields: Any
    ) -> Call:
        return self.recorded[name].call(
            id=f"{self.episode.id}/{name}/{turn}",
            messages=self._messages(name),
            prompt_token_ids=prompt,
            completion=completion,
            **fields,
        )

    def _handed_over(self, call: Call, before: _Thought | None, *, position: int) -> None:
        """What a call read beside its prompt: from whom, where, and by which link."""
        if before is None:
            return
        self._latent(before.latent, "latent", call, before.name, position=position)
        weights = link_bytes(self.links[before.name])
        self.episode.blob(
            self.episode.client.put_blob(weights),
            id=f"{call.id}/link",
            role="link",
            agent=self.recorded[before.name],
            call=call,
            size=len(weights),
            media_type="application/safetensors",
        )

    def _latent(
        self, latent_LD: torch.Tensor, role: str, call: Call, name: str, position: int | None = None
    ) -> None:
        payload = latent_LD.numpy().tobytes()
        self.episode.blob(
            self.episode.client.put_blob(payload),
            id=f"{call.id}/{role}",
            role=role,
            agent=self.recorded[name],
            call=call,
            position=position,
            dtype="float32",
            shape=latent_LD.shape,
            size=len(payload),
        )


SYSTEM = System(
    task="two-plus-three",
    stated={"question": QUESTION, "answer": ANSWER},
    play=play,
    scripts=({},) * len(SHAPES),
)

if __name__ == "__main__":
    sys.exit(harness_main("recursive_mas"))
