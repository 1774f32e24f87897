"""Agents that write a memory for those after them, and no weights: waves, verdicts, commits (RSIAgent)."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from sample_traces.actor import Actor, act_as
from sample_traces.chat import Message, assistant, system, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampler, Script
from sample_traces.side_by_side import Work, side_by_side
from sample_traces.system import System
from tracestore.client import Agent, Call, Episode

CONFIG = {"broad": 4, "wave": 2, "parallel": 2, "deep": 2, "steps": 3, "held_out": [[2, 12], [1, 5]]}
"""Branches of the broad phase, of one wave and at once; attempts of the deep phase; steps of an actor; tasks
(from, to) that nobody learns on."""
START, PROBE = 4, 5
"""What the machine shows to an actor, and to a verifier."""

_PRESS = re.compile(r"^press (\w+)")
_LEARN = re.compile(r"^learn (\w+)", re.MULTILINE)
_VERDICT = re.compile(r"^(PASS|FAIL)\b")


class Offline(Exception):
    """The machine does not answer: nobody's failure."""


@dataclass
class Machine:
    """A number on a display, and buttons of which nobody is told what they do."""

    value: int

    def press(self, button: str) -> str:
        """What the display shows before and after. Raises Offline."""
        if button == "gray":
            raise Offline("the machine is offline")
        before = self.value
        self.value = {"red": before + 2, "blue": before * 3}.get(button, before)
        return f"{before} -> {'?' if button == 'green' else self.value}"


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Learn what buttons do, broadly and then deeply, then use the memory on tasks that were held out.

    Reward: the share of held-out tasks that the evaluator finds right.
    """
    run = _Run(episode, sampler, seed)
    stop_reason = run.learn()
    return run.use(stop_reason)


class _Run:
    """One episode: a memory, and who reads and writes it."""

    def __init__(self, episode: Episode, sampler: Sampler, seed: int) -> None:
        self.episode, self.sampler, self.seed = episode, sampler, seed
        self.memory: tuple[str, ...] = ()
        self.memory_hash: str | None = None
        self._waves, self._snapshots, self._actors = count(), count(), count()
        config = json.dumps(CONFIG, sort_keys=True).encode()
        self._keep("config", config, "application/json", f"{episode.id}/config")
        self.curriculum = self.new_agent("curriculum", role="curriculum")
        self.teacher = act_as(self.curriculum, sampler, seed)
        self.snapshot_id = self._snapshot()

    def learn(self) -> str:
        """The broad and the deep phase. Returns why it ended."""
        self.teacher.chat.begin(
            [
                system("Say up to two lines of `learn BUTTON`, or `stop`."),
                user("The machine has the buttons red, blue, green and gray."),
            ]
        )
        left = int(CONFIG["broad"])
        while left:
            call, buttons = self._proposed(min(left, int(CONFIG["wave"])))
            if not buttons:
                self.teacher.chat.add(user("Go deep on one."))
                break
            left -= len(buttons)
            branches = self._wave(call, buttons)
            self._told(branches, f"{left} left." if left else "Go deep on one.")
        for _ in range(int(CONFIG["deep"])):
            call, buttons = self._proposed(1)
            if not buttons:
                return "curriculum_review"
            branches = self._wave(call, buttons)
            if branches[0].verdict == "PASS":
                return "verifier_pass"
            self._told(branches, "Again?")
        return "budget"

    def use(self, stop_reason: str) -> float:
        """The held-out tasks, from one frozen memory that nobody writes back to. Returns the reward."""
        frozen = self._snapshot(frozen=True)
        wave = next(self._waves)
        branches = [
            self._branch(f"Press until {start} becomes {end}, then say `done`.", wave, frozen, Machine(start))
            for start, end in CONFIG["held_out"]
        ]
        side_by_side((branch.solves() for branch in branches), at_once=int(CONFIG["parallel"]))
        right = [branch.evaluated(end) for branch, (_, end) in zip(branches, CONFIG["held_out"], strict=True)]
        self.curriculum.end("ok")
        reward = sum(right) / len(right)
        self.episode.reward("held_out", reward, scorer="evaluator", id=f"{self.episode.id}/reward")
        self.episode.end("ok", stop_reason=stop_reason)
        return reward

    def _proposed(self, most: int) -> tuple[Call, list[str]]:
        call, sampled = self.teacher.say(max_tokens=16)
        return call, _LEARN.findall(sampled.text)[:most]

    def _wave(self, call: Call, buttons: Sequence[str]) -> list[_Branch]:
        """Branches from one memory at the same time; once all have ended, commits in the order proposed."""
        wave, before = next(self._waves), self.snapshot_id
        branches = [
            self._branch(f"What does {one} do?", wave, before, Machine(START), button=one, call=call)
            for one in buttons
        ]
        side_by_side((branch.learns() for branch in branches), at_once=int(CONFIG["parallel"]))
        commits = count()
        for branch in branches:
            if branch.verdict is not None:
                self.memory += (branch.distilled(),)
                self.snapshot_id = self._snapshot(branch.agent, wave=wave, commit_order=next(commits))
            branch.agent.end(branch.status, return_message=assistant(branch.said) if branch.said else None)
        return branches

    def _told(self, branches: Sequence[_Branch], ask: str) -> None:
        self.teacher.chat.add(*[branch.report for branch in branches], user(ask))

    def _branch(
        self,
        task: str,
        wave: int,
        snapshot_id: str,
        machine: Machine,
        *,
        button: str = "",
        call: Call | None = None,
    ) -> _Branch:
        number = next(self._actors)
        agent = self.new_agent(
            f"actor{number}",
            role="actor",
            parent=self.curriculum,
            call=call and call[0],
            stage=wave,
            scope_prompt=task,
            snapshot_id=snapshot_id,
        )
        actor = act_as(agent, self.sampler, self.seed + 100 * (number + 1))
        known = ". ".join(self.memory) or "nothing"
        actor.chat.begin([system(f"Say `press BUTTON`, or what you found. Known: {known}."), user(task)])
        return _Branch(self, agent, actor, machine, button, number)

    def new_agent(self, name: str, **fields: Any) -> Agent:
        return self.episode.agent(
            f"{self.episode.id}/{name}", model=self.sampler.model_name, policy=self.sampler.policy, **fields
        )

    def _snapshot(
        self,
        agent: Agent | None = None,
        *,
        wave: int | None = None,
        commit_order: int | None = None,
        frozen: bool | None = None,
    ) -> str:
        """The memory as it is now. A frozen one is the last one's bytes, and came of the same."""
        id_ = f"{self.episode.id}/memory/{'frozen' if frozen else next(self._snapshots)}"
        told = self._keep("memory", "\n".join(self.memory).encode(), "text/plain", f"{id_}/text", agent)
        if told != self.memory_hash:
            self.parent_hash, self.memory_hash = self.memory_hash, told
        return self.episode.client.event(
            "snapshot",
            id_,
            episode_id=self.episode.id,
            agent_id=agent and agent.id,
            hash=told,
            parent_hash=self.parent_hash,
            wave=wave,
            commit_order=commit_order,
            frozen=frozen,
        )

    def _keep(self, role: str, payload: bytes, media_type: str, id_: str, agent: Agent | None = None) -> str:
        """Sends a payload, and what refers to it. Returns its hash."""
        told = self.episode.client.put_blob(payload)
        self.episode.blob(told, id=id_, role=role, agent=agent, media_type=media_type, size=len(payload))
        return told


@dataclass
class _Branch:
    """One actor at one task, from a memory that it does not change while it works."""

    run: _Run
    agent: Agent
    actor: Actor
    machine: Machine
    button: str
    number: int
    said: str = ""
    status: str = "budget_exhausted"
    outcome: str = "no verdict"
    """What a verifier said: PASS, FAIL, or UNRESOLVED."""

    @property
    def verdict(self) -> str | None:
        """PASS or FAIL; None: it is unresolved, or nobody could look."""
        return self.outcome if self.outcome in ("PASS", "FAIL") else None

    @property
    def report(self) -> Message:
        """What others hear of it."""
        return user(f"{self.button}: {self.outcome}")

    def learns(self) -> Work:
        """It works, and a verifier looks at what it claims."""
        yield from self._worked()
        try:
            shown = Machine(PROBE).press(self.button) if self.status != "infra_error" else ""
        except Offline:
            self.status = "infra_error"
        if self.status != "infra_error":
            yield from self._verified(shown)

    def solves(self) -> Work:
        """It works, and nobody tells it how it did."""
        yield from self._worked()
        self.agent.end(self.status, return_message=assistant(self.said) if self.said else None)

    def distilled(self) -> str:
        """What it wants to be remembered, once it has heard the verdict."""
        self.actor.chat.add(self.report)
        _, sampled = self.actor.say(purpose="distill", max_tokens=16)
        return sampled.text

    def evaluated(self, end: int) -> float:
        """A sealed look at where the machine came to: no prompt ever holds what is said here."""
        judge, looking = self._looked_at_by(
            "evaluator", "Say in capitals whether that is right.", f"To {end}: {self.machine.value}."
        )
        _, sampled = looking.say(purpose="judge", max_tokens=8)
        judge.end("ok", return_message=assistant(sampled.text))
        right = float(sampled.text.startswith("RIGHT"))
        self.run.episode.reward(
            "evaluation", right, self.agent, scorer="evaluator", id=f"{self.agent.id}/evaluation"
        )
        return right

    def _worked(self) -> Work:
        for step in range(int(CONFIG["steps"])):
            call, sampled = self.actor.say(max_tokens=16)
            yield
            pressed = _PRESS.match(sampled.text)
            if pressed is None:
                self.status, self.said = "ok", sampled.text
                return
            shown = self._pressed(call, pressed[1])
            if shown is None:
                self.status = "infra_error"
                return
            if step + 1 < int(CONFIG["steps"]):
                self.actor.chat.add(user(shown))

    def _pressed(self, call: Call, button: str) -> str | None:
        """What the display showed, recorded; None where the machine did not answer."""
        shown, error = None, None
        try:
            shown = self.machine.press(button)
        except Offline as problem:
            error = str(problem)
        self.agent.tool_call(
            call,
            id=f"{call.id}/press",
            name="press",
            arguments=button,
            result=shown,
            status="failed" if error else "ok",
            error=error,
        )
        return shown

    def _verified(self, shown: str) -> Work:
        """The verifier reads the claim and looks for itself; how the actor came to it, it is not told."""
        claim = self.said or "none"
        verifier, looking = self._looked_at_by(
            "verifier", "Say PASS, FAIL or UNRESOLVED.", f"Claim: {claim}. {self.button}: {shown}."
        )
        _, sampled = looking.say(purpose="verify", max_tokens=8)
        yield
        found = _VERDICT.match(sampled.text)
        self.outcome = found[1] if found else "UNRESOLVED"
        verifier.end("ok", return_message=self.report)
        if self.verdict is not None:
            self.run.episode.reward(
                "verdict",
                float(self.verdict == "PASS"),
                self.agent,
                scorer="verifier",
                id=f"{self.agent.id}/verdict",
            )

    def _looked_at_by(self, role: str, how: str, what: str) -> tuple[Agent, Actor]:
        agent = self.run.new_agent(
            f"{role}{self.number}", role=role, parent=self.agent, call=self.actor.last, scope_prompt=what
        )
        looking = act_as(agent, self.run.sampler, self.run.seed + 100 * (self.number + 1) + 50)
        looking.chat.begin([system(how), user(what)])
        return agent, looking


SCRIPTS: tuple[Script, ...] = (
    {
        "curriculum": ["learn red\nlearn blue", "learn green\nlearn gray", "learn blue"],
        "actor0": ["press red", "red adds 2", "red adds 2"],
        "verifier0": ["PASS"],
        "actor1": ["press blue", "blue adds 8", "blue does not add 8"],
        "verifier1": ["FAIL"],
        "actor2": ["press green", "green adds 0"],
        "verifier2": ["UNRESOLVED"],
        "actor3": ["press gray"],
        "actor4": ["press blue", "blue times 3", "blue times 3"],
        "verifier4": ["PASS"],
        "actor5": ["press red", "press blue", "done"],
        "evaluator5": ["RIGHT"],
        "actor6": ["press red", "press red", "done"],
        "evaluator6": ["RIGHT"],
    },
    {
        "curriculum": ["learn red", "stop", "stop"],
        "actor0": ["press red", "press red", "press red", "say sooner what it does"],
        "verifier0": ["FAIL"],
        "actor1": ["done"],
        "evaluator1": ["WRONG"],
        "actor2": ["press red", "press red", "done"],
        "evaluator2": ["RIGHT"],
    },
)

SYSTEM = System(task="buttons", play=play, scripts=SCRIPTS, inference_only=True)

if __name__ == "__main__":
    sys.exit(harness_main("rsi_agent"))
