"""Each turn writes its state anew, and the turn before it is gone from the context."""

from __future__ import annotations

import sys
from collections.abc import Callable

from sample_traces.actor import Actor, act_as, finish, main_agent
from sample_traces.chat import Message, system, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler
from sample_traces.system import System
from tracestore.client import Call, Episode

QUESTION = "How old are Ann and Ben together?"
ANSWER = "7"
PAGES = ("Ann is 3.", "Ben is 4, a year older than Ann.")
MAX_TURNS = 6
_HEAD = [system("Write what you know, then a word to look up, or the number asked for."), user(QUESTION)]


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Answer a question of two objectives; a turn reads the question, the turn before it, and nothing else.

    An answer is the state, then one word: a number answers, anything else is looked up. Reward: 1 for the
    right number.
    """
    main = main_agent(episode, sampler)
    actor = act_as(main, sampler, seed, temperature=1.0)
    actor.chat.begin(_HEAD)
    prune: Callable[[Call], None] | None = None
    before: Call | None = None
    for _ in range(MAX_TURNS):
        call, drawn = actor.ask()
        if prune is not None:
            prune(call)
        word = last_word(drawn[0].text)
        if word.isdigit():
            return finish(episode, main, float(word == ANSWER))
        found = look_up(word)
        main.tool_call(
            call,
            id=f"{call.id}/look_up",
            name="look_up",
            arguments=word,
            result=" ".join(found),
            status="ok" if found else "failed",
        )
        prune = _go_on(actor, call, drawn, user(" ".join(found) or "Nothing found."), pruned=before)
        before = call
    return finish(episode, main, 0.0, status="budget_exhausted")


def last_word(text: str) -> str:
    """What a turn asks or answers, behind its state."""
    words = text.strip(".?!, \n").split()
    return words[-1] if words else ""


def look_up(word: str) -> list[str]:
    """The pages that begin with a word."""
    return [page for page in PAGES if word and page.lower().startswith(f"{word.lower()} ")]


def _go_on(
    actor: Actor, call: Call, drawn: list[Sampled], info: Message, *, pruned: Call | None
) -> Callable[[Call], None] | None:
    """The next context: the question, this turn, and what it found.

    The ids of this turn are those that were sampled, at other places than where they were sampled.

    Returns:
        What records that the turn before was dropped, once the call that reads the new context is known; None
        while there was none.
    """
    said = actor.go_on(call, drawn)
    actor.chat.add(info)
    if pruned is None:
        return None
    tokens_before = len(actor.chat.ids)
    actor.chat.begin(_HEAD)
    actor.chat.answered(said, actor.message(said))
    actor.chat.add(info)
    actor.last = None
    tokens_after = len(actor.chat.ids)

    def record(after: Call) -> None:
        actor.agent.context_edit(
            "rewrite",
            id=f"{call.id}/state",
            summary=call[0],
            trigger="rule",
            before=call,
            after=after,
            replaced=[pruned],
            kept=[call],
            tokens_before=tokens_before,
            tokens_after=tokens_after,
        )

    return record


SCRIPTS = (
    {"main": ["Ben", "7"]},
    {"main": ["Ann", "Ann is 3. Ben", "Ann is 3, Ben 4: 7"]},
    {"main": ["Ben", "Ann", "6"]},
    {"main": ["Ann", "Ann is 3. Ben", "Ben is 4. Cid", "Ben is 4. Ann", "Ann is 3. Ben", "Ben is 4. Cid"]},
)

SYSTEM = System(task="ages", play=play, scripts=SCRIPTS)

if __name__ == "__main__":
    sys.exit(harness_main("mem1"))
