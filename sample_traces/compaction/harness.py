"""A full context is replaced by what the policy wrote down."""

from __future__ import annotations

import sys
from collections.abc import Callable

from sample_traces.actor import Actor, act_as, finish, main_agent, numbers
from sample_traces.chat import assistant, system, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampler
from sample_traces.system import System
from tracestore.client import Call, Episode

ADD = (4, 2, 3, 5)
CONTEXT_LIMIT = 105
_SHOWN = [
    system("Keep a running total."),
    user("Add 2."),
    assistant("0 + 2 = 2"),
    user("Add 3."),
    assistant("2 + 3 = 5"),
]


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Keep a running total; a context of more than 105 tokens is written down and begun anew.

    Reward: the share of turns whose stated total is right. The summary is the policy's own and trains; the
    copy of it in the next context does not.
    """
    main = main_agent(episode, sampler)
    actor = act_as(main, sampler, seed, temperature=0.7, raw=True)
    actor.chat.begin([*_SHOWN, user(f"Add {ADD[0]}.")])
    total, right, edit, since = 5, 0, None, []
    for place, number in enumerate(ADD):
        call, drawn = actor.ask(max_tokens=24)
        if edit is not None:
            edit(call)
            edit = None
        since.append(call)
        total += number
        right += numbers(actor.go_on(call, drawn).text)[-1:] == [total]
        if place + 1 == len(ADD):
            break
        actor.chat.add(user(f"Add {ADD[place + 1]}."))
        if len(actor.chat.ids) > CONTEXT_LIMIT:
            edit = _compact(actor, since, next_number=ADD[place + 1])
            since = []
    return finish(episode, main, right / len(ADD))


def _compact(actor: Actor, since: list[Call], *, next_number: int) -> Callable[[Call], None]:
    """Write the total down and begin a new context with it.

    Returns what records the edit, to be called with the first call that sees the new context.
    """
    actor.chat.undo_add()
    actor.chat.add(user("What is the total so far?"))
    before = len(actor.chat.ids)
    summary, drawn = actor.ask(purpose="summarize", max_tokens=24)
    written = drawn[0].text
    actor.chat.begin([*_SHOWN, user(f"Before: {written} Add {next_number}.")])
    actor.last = None
    after = len(actor.chat.ids)

    def record(first: Call) -> None:
        actor.agent.compaction(
            id=f"{summary.id}/compaction",
            summary=summary[0],
            trigger="rule",
            before=since[-1],
            after=first,
            replaced=since,
            tokens_before=before,
            tokens_after=after,
        )

    return record


SYSTEM = System(task="running-total", play=play, seeds=(0, 1, 2))

if __name__ == "__main__":
    sys.exit(harness_main("compaction"))
