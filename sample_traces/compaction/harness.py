"""A context is replaced by what the policy wrote down.

`play` does so when the context is full. In `attempts` the policy may also ask for it by a tool call, and what
it writes may be turned down, cut short, or come too late.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sample_traces.actor import Actor, act_as, finish, main_agent, numbers
from sample_traces.chat import Chat, Message, assistant, system, tool, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler
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


FULL = 80
"""Tokens of a context that is written down, in `attempts`."""
_MAY_COMPACT = system("Keep a running total. Say `compact: TOTAL` to go on with that alone.")


def attempts(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Keep a running total over compactions that may come to nothing.

    In even episodes a full context is written down by rule. In odd ones the policy does so itself when it
    says `compact: ...`, once before each number. In the last of four the second number does not wait.
    Reward: 1 if the last total is right.
    """
    by_rule = seed % 2 == 0
    interrupted = seed % 4 == 3
    main = main_agent(episode, sampler)
    actor = _Compacting(main, Chat(sampler), seed, temperature=0.7, logprobs_are="raw")
    work = _Work(actor, _SHOWN if by_rule else [_MAY_COMPACT, *_SHOWN[1:]])
    actor.chat.begin([*work.shown, user(f"Add {ADD[0]}.")])
    said = ""
    for place, number in enumerate(ADD):
        if place:
            actor.chat.add(user(f"Add {number}."))
        if place and by_rule and len(actor.chat.ids) > FULL:
            work.by_rule(number)
        call, sampled = work.answer()
        if not by_rule and _summary(sampled) is not None:
            work.by_tool(call, sampled, number, too_late=interrupted and place == 1)
            call, sampled = work.answer()
        work.since.append(call)
        said = sampled.text
    return finish(episode, main, float(numbers(said)[-1:] == [5 + sum(ADD)]))


class _Compacting(Actor):
    """An agent whose answer `compact: ...` is a tool call."""

    def message(self, sampled: Sampled) -> Message:
        summary = _summary(sampled)
        return assistant(sampled.text, [] if summary is None else [_use(summary)])


def _summary(sampled: Sampled) -> str | None:
    _, found, summary = sampled.text.partition("compact:")
    return summary.strip() if found else None


def _use(summary: str) -> dict[str, Any]:
    arguments = json.dumps({"summary": summary})
    return {"id": "compact_0", "type": "function", "function": {"name": "compact", "arguments": arguments}}


@dataclass
class _Work:
    """A context, the answers in it, and the edit whose first call in the new context has not come."""

    actor: Actor
    shown: list[Message]
    """What every context begins with."""
    since: list[Call] = field(default_factory=list)
    _record: Callable[[Call], object] | None = None

    def answer(self) -> tuple[Call, Sampled]:
        call, sampled = self.actor.say(max_tokens=24)
        if self._record is not None:
            self._record(call)
            self._record = None
        return call, sampled

    def by_rule(self, number: int) -> None:
        """Ask for the total in place of the number; then either begin anew with it, or go back."""
        chat = self.actor.chat
        chat.undo_add()
        kept, ids, last = list(chat.messages), chat.ids, self.actor.last
        chat.add(user("What is the total so far?"))
        edit = {
            "trigger": "rule",
            "before": self.since[-1],
            "replaced": self.since,
            "tokens_before": len(chat.ids),
        }
        call, sampled = self.actor.say(purpose="summarize", max_tokens=24)
        if not self._edit(call, sampled, sampled.text, number, edit):
            chat.messages, chat.ids, self.actor.last = kept, ids, last
            chat.add(user(f"Add {number}."))

    def by_tool(self, call: Call, sampled: Sampled, number: int, *, too_late: bool) -> None:
        """What the policy wrote into its tool call; where it is not taken, the tool says so."""
        edit = {
            "trigger": "tool_call",
            "trigger_call": call,
            "trigger_tool_call_id": "compact_0",
            "before": call,
            "replaced": [*self.since, call],
            "tokens_before": len(self.actor.chat.ids),
        }
        is_taken = self._edit(call, sampled, _summary(sampled) or "", number, edit, too_late=too_late)
        result = "done" if is_taken else "not done"
        self.actor.agent.tool_call(
            call,
            id=f"{call.id}/compact",
            tool_call_id="compact_0",
            name="compact",
            arguments=_use(_summary(sampled) or "")["function"]["arguments"],
            result=result,
            status="ok" if is_taken else "cancelled" if too_late else "failed",
        )
        if not is_taken:
            self.actor.chat.add(tool(result, "compact_0"))

    def _edit(
        self,
        call: Call,
        sampled: Sampled,
        summary: str,
        number: int,
        fields: Mapping[str, Any],
        *,
        too_late: bool = False,
    ) -> bool:
        """Whether the summary is taken. An edit that is not is recorded at once."""
        status, reason = _verdict(sampled, summary, too_late=too_late)
        edit = {**fields, "id": f"{call.id}/compaction", "summary": call[0]}
        if status != "accepted":
            self.actor.agent.compaction(**{**edit, "replaced": []}, status=status, reason=reason)
            return False
        self.actor.chat.begin([*self.shown, user(f"Before: {summary}. Add {number}.")])
        self.actor.last = None
        edit |= {"tokens_after": len(self.actor.chat.ids)}
        self._record = lambda first: self.actor.agent.compaction(**edit, after=first)
        self.since = []
        return True


def _verdict(sampled: Sampled, summary: str, *, too_late: bool) -> tuple[str, str | None]:
    if sampled.finish_reason == "length":
        return "failed", "the summary was cut"
    if too_late:
        return "cancelled", "the next number did not wait"
    if not numbers(summary):
        return "rejected", "no number in it"
    return "accepted", None


SCRIPTS = (
    {"main": ["5 + 4 = 9", "Total 9", "9 + 2 = 11", "Total 11", "11 + 3 = 14", "Total 14", "14 + 5 = 19"]},
    {
        "main": [
            "5 + 4 = 9",
            "compact: total 9",
            "9 + 2 = 11",
            "11 + 3 = 14",
            "compact: total 14",
            "14 + 5 = 18",
        ]
    },
    {
        "main": [
            "5 + 4 = 9",
            "I do not know.",
            "9 + 2 = 11",
            "First I had 5, then...",
            "11 + 3 = 14",
            "Total 14",
            "It is 20",
        ]
    },
    {"main": ["5 + 4 = 9", "compact: total 9", "9 + 2 = 11", "compact: a lot", "11 + 3 = 15", "15 + 5 = 20"]},
)

SYSTEM = System(
    task="running-total",
    play=play,
    seeds=(0, 1, 2),
    scripts=SCRIPTS,
    tasks=("last-total",) * len(SCRIPTS),
    scripted_play=attempts,
)

if __name__ == "__main__":
    sys.exit(harness_main("compaction"))
