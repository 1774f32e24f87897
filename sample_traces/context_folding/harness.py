"""Work that would fill the context is done in branches, of which only what they return is kept."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from sample_traces.actor import Actor, act_as, finish, main_agent
from sample_traces.chat import Chat, Message, assistant, system, tool, tool_use, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler
from sample_traces.system import System
from tracestore.client import Agent, Call, Episode

PAGES = ("The bridge is 30 years old.", "The mill is 80 years old.")
QUESTION = "How much older is the mill than the bridge?"
ANSWER = "50"
CONTEXT_LIMIT = 160
"""Tokens of the active context, as the credit rule is told."""
MAX_TURNS, MAX_BRANCH_TURNS, MAX_BRANCHES = 5, 3, 10

_RULES = "Tools: search(word), branch(description, prompt), return(message), answer(text)."
_PARAMETERS = {
    "search": ("word",),
    "branch": ("description", "prompt"),
    "return": ("message",),
    "answer": ("text",),
}
_USE = re.compile(r"^(\w+)\((.*)\)$", re.MULTILINE)
_VERDICT = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


class NoVerdict(Exception):
    """The judge said neither yes nor no."""


@dataclass(frozen=True)
class Use:
    """The tool call of an answer."""

    id: str
    name: str
    arguments: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    result: str
    status: Literal["ok", "failed"] = "ok"


_NOT_HERE = Outcome("No such tool here.", "failed")


class Thread(Actor):
    """The context of the main agent, or of one of its branches."""

    on_next: Callable[[Call | None], None] | None = None
    """Waits for the next call."""

    def message(self, sampled: Sampled) -> Message:
        place = len(self.chat.messages)
        use = used(sampled.text, place)
        return assistant(sampled.text, [tool_use(place, use.name, use.arguments)] if use else ())

    def turn(self) -> tuple[Call, Use | None]:
        """The next answer, and the tool call in it."""
        place = len(self.chat.messages)
        call, said = self.say()
        self.tell(call)
        return call, used(said.text, place)

    def tell(self, call: Call | None) -> None:
        """Whoever waits for the next call learns it; None: there will be none."""
        if self.on_next is not None:
            self.on_next(call)
            self.on_next = None

    def did(self, call: Call, use: Use | None, outcome: Outcome) -> None:
        """What came of an answer is recorded, and stands in the context next."""
        self.agent.tool_call(
            call,
            id=f"{call.id}/tool",
            tool_call_id=use.id if use else None,
            name=use.name if use else None,
            arguments=json.dumps(use.arguments) if use else None,
            result=outcome.result,
            status=outcome.status,
        )
        self.chat.add(user(outcome.result) if use is None else tool(outcome.result, use.id))

    @property
    def is_full(self) -> bool:
        return len(self.chat.ids) > CONTEXT_LIMIT


def used(text: str, place: int) -> Use | None:
    """The first line that calls a tool as it wants to be called, in the message at a place of the context."""
    for name, inside in _USE.findall(text):
        try:
            values = json.loads(f"[{inside}]")
        except ValueError:
            continue
        names = _PARAMETERS.get(name, ())
        if len(values) == len(names) > 0 and all(isinstance(value, str) for value in values):
            return Use(f"use_{place}", name, dict(zip(names, values, strict=True)))
    return None


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Answer a question that takes two look-ups, each of which a branch may do.

    Reward: 1 for the right answer. A judge says of each branch whether it kept to what it was asked. Where it
    says neither yes nor no, nobody knows: the episode is an `infra_error`, without a reward.
    """
    main = main_agent(episode, sampler)
    thread = Thread(main, Chat(sampler), seed, temperature=0.8)
    thread.chat.begin([system(_RULES), user(QUESTION)])
    try:
        answer = _answer(thread)
    except NoVerdict as problem:
        thread.tell(None)
        main.end("infra_error")
        episode.end("infra_error", error=str(problem))
        return 0.0
    thread.tell(None)
    status = "budget_exhausted" if answer is None else "ok"
    return finish(episode, main, float(answer == ANSWER), status=status)


def _answer(thread: Thread) -> str | None:
    """The main thread, up to its answer; None: it has no turn or no room left."""
    num_branches = 0
    for _ in range(MAX_TURNS):
        call, use = thread.turn()
        if use is not None and use.name == "answer":
            thread.did(call, use, Outcome("Taken."))
            return use.arguments["text"]
        if use is not None and use.name == "branch" and num_branches < MAX_BRANCHES:
            branch(thread, call, use, num_branches)
            num_branches += 1
        else:
            thread.did(call, use, search(use))
        if thread.is_full:
            break
    return None


def search(use: Use | None) -> Outcome:
    """The one tool that every thread has."""
    if use is None or use.name != "search":
        return _NOT_HERE
    word = use.arguments["word"].lower()
    found = [page for page in PAGES if word.strip() and word in page.lower()]
    return Outcome(" ".join(found)) if found else Outcome("Nothing found.", "failed")


def branch(thread: Thread, creator: Call, use: Use, number: int) -> None:
    """Turns that read all that the main thread has read; it goes on with what they return in their place.

    Raises:
        NoVerdict: the judge did not say whether they kept to their scope.
    """
    main, chat = thread.agent, thread.chat
    agent = main.subagent(
        f"{main.episode.id}/branch{number}",
        call=creator[0],
        tool_call_id=use.id,
        role="branch",
        name=use.arguments["description"],
        scope_prompt=use.arguments["prompt"],
        model=main.model,
        policy=main.policy,
    )
    branched = Thread(
        agent,
        Chat(chat.sampler, [*chat.messages], [*chat.ids]),
        thread.seed + 100 * (number + 1),
        thread.temperature,
        last=creator[0],
    )
    branched.chat.add(tool("Branch begun.", use.id))
    calls: list[Call] = []
    tokens_before = 0
    returned, outcome = None, Outcome("The branch did not return.", "failed")
    for _ in range(MAX_BRANCH_TURNS):
        call, done = branched.turn()
        calls.append(call)
        tokens_before = len(branched.chat.ids)
        if done is not None and done.name == "return":
            returned, outcome = done, Outcome(done.arguments["message"])
            branched.did(call, done, Outcome("Returned."))
            break
        branched.did(call, done, search(done))
        if branched.is_full:
            break
    thread.did(creator, use, outcome)
    thread.on_next = _fold(thread, agent, calls, returned, tokens_before=tokens_before)
    if returned is None:
        agent.end("budget_exhausted")
    else:
        agent.end("ok", return_message=outcome.result)
    _judge(agent, branched, use.arguments["prompt"], outcome.result)


def _fold(
    thread: Thread, branch: Agent, calls: list[Call], returned: Use | None, *, tokens_before: int
) -> Callable[[Call | None], None]:
    """What records the fold, once the call that sees it is known."""
    last, tokens_after = calls[-1], len(thread.chat.ids)

    def record(after: Call | None) -> None:
        thread.agent.context_edit(
            "fold",
            id=f"{branch.id}/fold",
            summary=last[0] if returned else None,
            author=None if returned else "harness",
            trigger="tool_call" if returned else "rule",
            trigger_call=last if returned else None,
            trigger_tool_call_id=returned.id if returned else None,
            before=last,
            after=after,
            replaced=calls,
            tokens_before=tokens_before,
            tokens_after=tokens_after,
            reason=None if returned else "no turns or no room left",
        )

    return record


def _judge(branch: Agent, branched: Thread, prompt: str, result: str) -> None:
    """A model that does not train reads what a branch was asked and what it returned: do they agree?"""
    sampler = branched.chat.sampler
    judge = branch.subagent(f"{branch.id}/judge", role="judge", model=sampler.model_name, trainable=False)
    actor = act_as(judge, sampler, branched.seed)
    actor.chat.begin([system("Does the result keep to the task? yes or no"), user(f"{prompt}\n{result}")])
    _, said = actor.say(purpose="judge", max_tokens=8)
    verdict = _VERDICT.search(said.text)
    if verdict is None:
        judge.end("failed")
        raise NoVerdict(f"{judge.id} said neither yes nor no")
    judge.end()
    branch.episode.reward(
        "in_scope",
        float(verdict[0].lower() == "yes"),
        branch,
        scorer=judge.id,
        scorer_version=judge.model,
        id=f"{branch.id}/in_scope",
    )


SCRIPTS = (
    {
        "main": [
            'search("bridge")',
            'search("old mill")',
            'branch("mill", "How old is the mill?")',
            'answer("50")',
        ],
        "branch0": ['search("mill")', 'return("80")'],
        "branch0/judge": ["yes"],
    },
    {"main": ['search("bridge")', 'search("mill")', 'search("old")', 'answer("30")']},
    {"main": ["About 20 years.", 'answer("20")']},
    {
        "main": ['branch("bridge", "How old is the bridge?")', 'answer("50")'],
        "branch0": ['search("bridge")', 'search("mill")', 'return("bridge 30, mill 80")'],
        "branch0/judge": ["no"],
    },
    {
        "main": ['branch("mill", "How old is the mill?")', 'answer("80")'],
        "branch0": ['branch("mill", "How old?")', 'return("80")'],
        "branch0/judge": ["yes"],
    },
    {
        "main": ['branch("mill", "How old is the mill?")', 'answer("0")'],
        "branch0": ['search("mill")', 'search("bridge")', 'search("age")'],
        "branch0/judge": ["no"],
    },
    {"main": ['search("old")'] * 4},
    {"main": ['answer("110")']},
)

SYSTEM = System(task="older", play=play, scripts=SCRIPTS)

if __name__ == "__main__":
    sys.exit(harness_main("context_folding"))
