"""An agent with its context: asks the model, records the call, remembers the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sample_traces.chat import Chat, Message, assistant
from sample_traces.sampler import Sampled, Sampler
from tracestore.client import Agent, Call, Completion, Episode

_NUMBER = re.compile(r"\d+")


def numbers(text: str) -> list[int]:
    """Whole numbers in the order in which they are written."""
    return [int(number) for number in _NUMBER.findall(text)]


@dataclass
class Actor:
    """What records the calls of one agent, each with the ids it read and the ids it sampled."""

    agent: Agent
    chat: Chat
    seed: int
    temperature: float
    logprobs_are: str = "processed"
    usd_per_token: tuple[float, float] | None = None
    """Price of a token read and of one sampled; None: nobody said."""
    last: Call | Completion | None = None
    """What the next call continues; None at the beginning of a context."""
    num_calls: int = 0

    @property
    def speaker(self) -> str:
        """Who asks, as scripts name it: the agent's id without that of its episode."""
        return self.agent.id.split("/", 1)[-1]

    def ask(
        self,
        *,
        purpose: str = "act",
        n: int = 1,
        max_tokens: int = 40,
        tools: Sequence[Mapping[str, Any]] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> tuple[Call, list[Sampled]]:
        """One call with `n` answers; the caller says which one the context goes on with."""
        params: dict[str, Any] = {"temperature": self.temperature, "max_tokens": max_tokens, "logprobs": True}
        params |= {"n": n} if n > 1 else {}
        asked = {"model": self.agent.model, "messages": self.chat.messages, "tools": tools}
        drawn = self.chat.sampler.sample(
            self.chat.ids,
            speaker=self.speaker,
            seed=1000 * self.seed + self.num_calls,
            n=n,
            max_tokens=max_tokens,
            temperature=self.temperature,
            logprobs_are=self.logprobs_are,  # type: ignore[arg-type]
            request={name: one for name, one in asked.items() if one is not None} | params,
        )
        call = self.agent.call(
            id=f"{self.agent.id}/{self.num_calls}",
            messages=self.chat.messages,
            tools=tools,
            params=params,
            completions=[_body(sampled, self.message(sampled)) for sampled in drawn],
            prompt_token_ids=self.chat.ids,
            parent=self.last,
            purpose=purpose,
            logprobs_are=self.logprobs_are,
            usage=self._usage(len(self.chat.ids), sum(len(sampled.ids) for sampled in drawn)),
            meta=meta,
        )
        self.num_calls += 1
        return call, drawn

    def _usage(self, read: int, sampled: int) -> dict[str, Any]:
        usage = {"prompt_tokens": read, "completion_tokens": sampled}
        if self.usd_per_token is None:
            return usage
        return usage | {"cost_usd": read * self.usd_per_token[0] + sampled * self.usd_per_token[1]}

    def go_on(self, call: Call, drawn: list[Sampled], index: int = 0) -> Sampled:
        """The context continues with this answer."""
        sampled = drawn[index]
        self.chat.answered(sampled, self.message(sampled))
        self.last = call[index]
        return sampled

    def say(self, *, purpose: str = "act", max_tokens: int = 40, **fields: Any) -> tuple[Call, Sampled]:
        """One call with one answer, with which the context goes on."""
        call, drawn = self.ask(purpose=purpose, max_tokens=max_tokens, **fields)
        return call, self.go_on(call, drawn)

    def message(self, sampled: Sampled) -> Message:
        """The assistant message of an answer, as the inference server parses it."""
        return assistant(sampled.text)


def _body(sampled: Sampled, message: Message) -> Mapping[str, Any]:
    return {
        "message": message,
        "finish_reason": "tool_calls" if message.get("tool_calls") else sampled.finish_reason,
        "token_ids": list(sampled.ids),
        "logprobs": list(sampled.logprobs),
    }


def act_as(
    agent: Agent, sampler: Sampler, seed: int, *, temperature: float = 0.8, raw: bool = False
) -> Actor:
    """The agent with an empty context. `raw`: logprobs are recorded before the temperature is applied."""
    logprobs_are = "raw" if raw else "processed"
    return Actor(agent, Chat(sampler), seed, temperature=temperature, logprobs_are=logprobs_are)


def main_agent(episode: Episode, sampler: Sampler, **fields: Any) -> Agent:
    """The agent at the root of an episode, played by the policy that trains."""
    return episode.agent(
        f"{episode.id}/main", **({"model": sampler.model_name, "policy": sampler.policy} | fields)
    )


def finish(episode: Episode, main: Agent, reward: float, *, status: str = "ok") -> float:
    """The end of an episode whose reward a rule gave."""
    main.end(status)
    episode.reward("task", reward, scorer="rule", scorer_version="1", id=f"{episode.id}/reward")
    episode.end(status)
    return reward
