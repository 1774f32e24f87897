"""A long input as a variable in a Python REPL, read by code that asks models about parts of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from sample_traces.actor import act_as, main_agent, numbers
from sample_traces.chat import system, user
from sample_traces.record import harness_main
from sample_traces.rlm.repl import Ran, Repl, code_blocks
from sample_traces.sampler import Sampler
from sample_traces.system import System
from tracestore.client import Agent, Call, Episode

MAX_DEPTH = 2
"""Agents below this depth have no REPL: there, rlm_query asks as llm_query does."""
MAX_TURNS = 3
MAX_ASKED = 8
"""Agents that one code block may ask."""
SHARED = 8
"""Characters in a row of a variable that a prompt must hold to have been made of it."""
QUESTION = "How many days of rain?"
RAINY = {1, 4, 5, 9, 12, 13, 17, 20, 22, 25, 26, 30, 33, 36, 37, 41, 44, 47}
DAYS = "\n".join(f"{day} {'rain' if day in RAINY else 'sun'}" for day in range(1, 49))
"""The input: 48 lines, which no prompt of the main agent ever holds."""
_RULES = (
    "Answer a question about the text in the variable `context`. Write Python between ```repl and ```; print "
    "what you want to see. llm_query(text) asks a model, rlm_query(text) one with a REPL of its own; the "
    "question comes first in the text. FINAL(answer) ends."
)


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Count the days of rain in a text that is longer than what is read at once.

    Reward: 1 for the right count. Every agent is scored by the same rule, on the text that it was given.
    """
    main = main_agent(episode, sampler)
    prompt = f"{QUESTION}\n{DAYS}"
    answer = _Rlm(episode, sampler, seed, main, prompt).answer()
    reward = float(answer == _right(prompt))
    status = "budget_exhausted" if answer is None else "ok"
    main.end(status, return_message=answer)
    episode.reward("task", reward, scorer="rule", scorer_version="1", id=f"{episode.id}/reward")
    episode.end(status)
    return reward


def _right(prompt: str) -> str:
    """The answer to a question about the lines below it."""
    return str(sum(line.endswith(" rain") for line in prompt.split("\n")))


@dataclass
class _Rlm:
    """One agent with a REPL whose variable `context` is what it was asked about."""

    episode: Episode
    sampler: Sampler
    seed: int
    agent: Agent
    prompt: str
    repl: Repl = field(init=False)
    block: _Block = field(init=False)
    """The code block that runs."""
    final: str | None = None

    def answer(self) -> str | None:
        """What it says that the answer is; None where it does not come to that."""
        question, _, context = self.prompt.partition("\n")
        functions = {"llm_query": self._ask_model, "rlm_query": self._ask_rlm, "FINAL": self._set_final}
        with Repl({"context": context}, functions) as self.repl:
            self._turns(question, len(context))
        return self.final

    def _turns(self, question: str, num_characters: int) -> None:
        actor = act_as(self.agent, self.sampler, self.seed)
        about = f"{question}\n`context` has {num_characters} characters."
        actor.chat.begin([system(_RULES), user(about)])
        for turn in range(MAX_TURNS):
            call, sampled = actor.say(max_tokens=120)
            shown = [self._run(call, place, code) for place, code in enumerate(code_blocks(sampled.text))]
            if self.final is not None:
                break
            if turn + 1 < MAX_TURNS:
                actor.chat.add(user("\n".join(shown) or "There is no code between ```repl and ```."))

    def _run(self, call: Call, place: int, code: str) -> str:
        """Run a code block: an execution, below which hangs every agent that it asks."""
        if self.final is not None:
            return ""  # the run is over; later blocks of the answer are not executed
        block = self.block = _Block(self, call, f"code/{place}")
        ran = self.repl.run(code)
        self.agent.tool_call(
            call,
            id=f"{call.id}/{block.name}",
            tool_call_id=block.name,
            name="repl",
            arguments=code,
            result=_result(ran),
            status="failed" if ran.error else "ok",
            error=ran.error,
        )
        return ran.shown()

    def _ask_model(self, prompt: str) -> str:
        return self.block.ask_model(prompt)

    def _ask_rlm(self, prompt: str) -> str:
        return self.block.ask_rlm(prompt)

    def _set_final(self, answer: str) -> None:
        self.final = answer


def _result(ran: Ran) -> dict[str, Any]:
    return {"stdout": ran.stdout, "stderr": ran.error or "", "locals": dict(ran.variables)}


@dataclass
class _Block:
    """One execution, by which agents are spawned."""

    rlm: _Rlm
    call: Call
    name: str
    """Of the code block in its answer: the model gives it none."""
    num_asked: int = 0

    def ask_model(self, prompt: str) -> str:
        """llm_query: one plain call that reads the whole prompt."""
        return self._asked("sub_lm", prompt, self._plain)

    def ask_rlm(self, prompt: str) -> str:
        """rlm_query: an agent with a REPL, whose `context` is what stands below the first line."""
        if self.rlm.agent.depth + 1 >= MAX_DEPTH:
            return self.ask_model(prompt)
        return self._asked("subagent", prompt, self._recursive)

    def _asked(self, role: str, prompt: str, answer: Callable[[Agent, str, int], str | None]) -> str:
        number, parent = self.num_asked, self.rlm
        if number == MAX_ASKED:
            raise ValueError(f"a block asks at most {MAX_ASKED} times")
        self.num_asked += 1
        agent = parent.agent.subagent(
            f"{self.call.id}/{self.name}/{number}",
            call=self.call[0],
            tool_call_id=self.name,
            role=role,
            model=parent.sampler.model_name,
            policy=parent.sampler.policy,
            scope_prompt=prompt,
            meta={"reads": reads(prompt, parent.repl.texts)},
        )
        found = answer(agent, prompt, parent.seed + 7 * (number + 1))
        agent.end(
            "budget_exhausted" if found is None else "ok",
            return_message=found,
            score=float(found is not None and numbers(found)[-1:] == numbers(_right(prompt))),
        )
        return "Error: no answer" if found is None else found

    def _plain(self, agent: Agent, prompt: str, seed: int) -> str:
        actor = act_as(agent, self.rlm.sampler, seed)
        actor.chat.begin([user(prompt)])
        return actor.say(max_tokens=16)[1].text

    def _recursive(self, agent: Agent, prompt: str, seed: int) -> str | None:
        return _Rlm(self.rlm.episode, self.rlm.sampler, seed, agent, prompt).answer()


def reads(prompt: str, variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """Which part of which text variable a prompt was made of: the longest run of characters they share."""
    found = []
    for name, text in variables.items():
        same = SequenceMatcher(None, text, prompt, autojunk=False).find_longest_match()
        if same.size >= SHARED:
            found.append({"variable": name, "start": same.a, "end": same.a + same.size})
    return found


def _block(*lines: str) -> str:
    return "\n".join(("```repl", *lines, "```"))


def _halves(ask: str, middle: int, end: int, last: str) -> str:
    """Code that asks about two parts of the lines."""
    return _block(
        'lines = context.split("\\n")',
        f'q = "{QUESTION}\\n"',
        f'a = {ask}(q + "\\n".join(lines[:{middle}]))',
        f'b = {ask}(q + "\\n".join(lines[{middle}:{end}]))',
        last,
    )


_COUNTS = _block('FINAL(context.count("rain"))')
SCRIPTS = (
    {  # two agents with REPLs; the first asks two models, of which one miscounts, and the main agent checks
        "main": [_halves("rlm_query", 24, 48, "print(a, b)"), f"I count myself.\n{_COUNTS}"],
        "main/0/code/0/0": [
            _halves("llm_query", 12, 24, "print(a, b)"),
            _block("FINAL(int(a) + int(b))"),
        ],
        "main/0/code/0/0/0/code/0/0": ["5"],
        "main/0/code/0/0/0/code/0/1": ["3"],
        "main/0/code/0/1": [_COUNTS],
    },
    {  # both models are right, about a quarter of the input: the main agent did not ask about the rest
        "main": [_halves("llm_query", 6, 12, "FINAL(int(a) + int(b))")],
        "main/0/code/0/0": ["3"],
        "main/0/code/0/1": ["2"],
    },
    {"main": [f"{_block('print(context[:20])')}\n{_COUNTS}"]},
    {"main": [_block("print(contxt)"), "It rains a lot.", _block("import os")]},
)

SYSTEM = System(task="rainy-days", play=play, scripts=SCRIPTS)

if __name__ == "__main__":
    sys.exit(harness_main("rlm"))
