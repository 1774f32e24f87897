"""An orchestrator that hands shelves to frozen readers, who read side by side; it alone trains (PARL)."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from sample_traces.actor import Actor, finish, main_agent, numbers
from sample_traces.chat import Chat, Message, assistant, system, tool, tool_use, used_tool, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler
from sample_traces.side_by_side import Work, side_by_side
from sample_traces.system import System
from tracestore.client import Agent, Call, Episode

CARDS = {"elm": 2, "oak": 8, "fir": 3}
"""Shelf -> its cards; each names the next one, the last one a value."""
VALUES = {"elm": 3, "oak": 5, "fir": 4}
MAX_TURNS = 20
"""Calls of the orchestrator."""
MAX_STEPS = 10
"""Calls of a reader."""
MAX_READERS = 8
"""Readers of one stage."""
FROZEN = "reader-0"
"""Checkpoint of the readers: theirs stays while the orchestrator's weights change."""

_LINE = re.compile(r"^(?:(assign) (\w+): (.+)|(open) (\w+) (\d+))$", re.MULTILINE)


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Find a value on each of three shelves and add them, alone or with readers.

    Reward (r_perf): 1 for the right sum. Readers that one answer assigns are a stage, and read at the same
    time; the orchestrator goes on when the last of them has returned.
    """
    main = main_agent(episode, sampler, checkpoint=f"{sampler.model_name}@{sampler.policy['version']}")
    actor = _Caller(main, Chat(sampler), seed, temperature=0.8, verbs=("assign", "open"))
    actor.chat.begin(
        [
            system("Say lines of `assign NAME: TASK`, or of `open SHELF CARD`, or say `answer N`."),
            user("The shelves elm, oak and fir begin at card 1. What do their values add up to?"),
        ]
    )
    numbered = count()
    for stage in range(MAX_TURNS):
        call, sampled = actor.say(max_tokens=48)
        uses = actor.uses(sampled)
        if not uses:
            is_answer = sampled.text.startswith("answer ")
            is_right = is_answer and numbers(sampled.text)[:1] == [sum(VALUES.values())]
            return finish(episode, main, float(is_right), status="ok" if is_answer else "failed")
        assigned = [use for use in uses if used_tool(use)[0] == "assign"][:MAX_READERS]
        readers = [_Reader.spawned(main, call, use, stage, next(numbered), sampler, seed) for use in assigned]
        side_by_side(reader.work() for reader in readers)
        found = dict(zip([use["id"] for use in assigned], readers, strict=True))
        actor.chat.add(*[tool(_result(main, call, use, found.get(use["id"])), use["id"]) for use in uses])
    return finish(episode, main, 0.0, status="budget_exhausted")


@dataclass
class _Caller(Actor):
    """An agent whose lines of a known form are tool calls."""

    verbs: Sequence[str] = ()

    def uses(self, sampled: Sampled) -> list[dict[str, Any]]:
        lines = [match.groups() for match in _LINE.finditer(sampled.text)]
        spoken = [
            ("assign", {"name": name, "task": task})
            if verb
            else ("open", {"shelf": shelf, "card": int(card)})
            for verb, name, task, _, shelf, card in lines
        ]
        known = [(verb, arguments) for verb, arguments in spoken if verb in self.verbs]
        return [tool_use(place, verb, arguments) for place, (verb, arguments) in enumerate(known)]

    def message(self, sampled: Sampled) -> Message:
        return assistant(sampled.text, self.uses(sampled))


@dataclass
class _Reader:
    """A frozen subagent with a task of its own and a budget of steps."""

    agent: Agent
    actor: _Caller
    finding: str = ""
    status: str = "budget_exhausted"

    @classmethod
    def spawned(
        cls,
        main: Agent,
        call: Call,
        use: Mapping[str, Any],
        stage: int,
        number: int,
        sampler: Sampler,
        seed: int,
    ) -> _Reader:
        _, told = used_tool(use)
        agent = main.subagent(
            f"{main.episode.id}/reader{number}",
            call=call[0],
            tool_call_id=use["id"],
            name=told["name"],
            stage=stage,
            scope_prompt=told["task"],
            model=sampler.model_name,
            checkpoint=FROZEN,
            policy={"name": "reader", "version": 0},
            trainable=False,
        )
        actor = _Caller(agent, Chat(sampler), seed + 100 * (number + 1), 0.8, verbs=("open",))
        actor.chat.begin(
            [system("Say `open SHELF CARD`, or `value N`."), user(f"{told['name']}: {told['task']}")]
        )
        return cls(agent, actor)

    def work(self) -> Work:
        for step in range(MAX_STEPS):
            call, sampled = self.actor.say(max_tokens=16)
            yield
            uses = self.actor.uses(sampled)
            if not uses:
                has_value = sampled.text.startswith("value ")
                self.status, self.finding = ("ok", sampled.text) if has_value else ("failed", "nothing")
                break
            results = [_result(self.agent, call, use, None) for use in uses]
            self.finding = f"not done, {results[-1]}"
            if step + 1 < MAX_STEPS:
                self.actor.chat.add(*[tool(one, use["id"]) for one, use in zip(results, uses, strict=True)])
        self.agent.end(self.status, return_message=assistant(self.finding))


def _result(agent: Agent, call: Call, use: Mapping[str, Any], reader: _Reader | None) -> str:
    """What a tool use gave, recorded as its execution."""
    name, told = used_tool(use)
    if name == "open":
        text = _card(told["shelf"], told["card"])
        status = "ok" if text else "failed"
    else:
        text, status = ("", "cancelled") if reader is None else (reader.finding, _STATUS[reader.status])
    agent.tool_call(
        call,
        id=f"{call.id}/{use['id']}",
        tool_call_id=use["id"],
        name=name,
        arguments=use["function"]["arguments"],
        result=text or "nothing",
        status=status,
    )
    return text or "nothing"


_STATUS = {"ok": "ok", "failed": "failed", "budget_exhausted": "timeout"}
"""How a reader ended -> how the tool use that assigned it did."""


def _card(shelf: str, card: int) -> str:
    """What stands on a card; "" where there is none."""
    last = CARDS.get(shelf, 0)
    if not 1 <= card <= last:
        return ""
    return f"value {VALUES[shelf]}" if card == last else f"see {card + 1}"


def _read(shelf: str) -> list[str]:
    """The lines of who opens the cards of a shelf one by one."""
    return [f"open {shelf} {card}" for card in range(1, CARDS[shelf] + 1)]


_ASTRAY = "oak 1, elm 1, oak 2, oak 3, oak 9, oak 4, oak 5, fir 6, oak 6, oak 7"
"""What a poor reader opens; it has no step left for card 8."""

SCRIPTS: tuple[Mapping[str, Sequence[str]], ...] = (
    # Three readers at once, of which one runs out of steps; what it had not read is read by the orchestrator.
    {
        "main": ["assign elm: read\nassign oak: read\nassign fir: read", "open oak 8", "answer 12"],
        "reader0": [*_read("elm"), "value 3"],
        "reader1": [f"open {card}" for card in _ASTRAY.split(", ")],
        "reader2": [*_read("fir"), "value 4"],
    },
    # Serial collapse: everything alone, one card after the other.
    {"main": [*_read("elm"), *_read("oak"), *_read("fir"), "answer 12"]},
    # Spurious parallelism: readers who have nothing to read.
    {
        "main": ["assign a: wait\nassign b: wait\nassign c: wait\nassign d: wait", "answer 7"],
        **{f"reader{place}": ["I wait."] for place in range(4)},
    },
    # Serial collapse with readers: one after the other.
    {
        "main": ["assign elm: read", "assign fir: read", "answer 7"],
        "reader0": [*_read("elm"), "value 3"],
        "reader1": [*_read("fir"), "value 4"],
    },
)

SYSTEM = System(task="three-shelves", play=play, scripts=SCRIPTS)

if __name__ == "__main__":
    sys.exit(harness_main("agent_swarm"))
