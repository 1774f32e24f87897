"""Call patterns that break naive trace stores, over made-up integer tokens.

A message is rendered as `role NL content END NL`, a prompt ends with `ASSISTANT NL`, a completion is
`content END`: so the next prompt extends prompt + completion exactly, unless the pattern is about its not
doing so. Every scenario posts whole contexts without parents, as a proxy in front of a model server sees
them, and says how many tokens were sampled and which chains of calls make its samples. `named` posts the
same calls with their parents stated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.factories import (
    agent,
    answer,
    assistant,
    call,
    candidate_set,
    compaction,
    episode,
    member,
    reward,
    selection,
    subagent,
)
from tracestore.wire.call import Call
from tracestore.wire.events import AnyEvent

ROLES = {"system": 1, "user": 2, "assistant": 3}
END, NEW_LINE = 9, 10

CompletionKey = tuple[str, int]


@dataclass(frozen=True)
class Scenario:
    """Events of one episode, and what is true of them by construction."""

    name: str
    events: tuple[AnyEvent, ...]
    sampled_tokens: int
    """Each sampled token once."""
    samples: tuple[tuple[CompletionKey, ...], ...]
    """The chains of completions whose token ids extend each other, sorted."""
    parents: dict[str, str]
    """call -> the call it truly continues, where its context holds that call's message."""
    samples_if_named: tuple[tuple[CompletionKey, ...], ...]
    """The chains once the parents are stated; not `samples` where equal siblings are continued."""

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(event for event in self.events if isinstance(event, Call))

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    @property
    def named(self) -> Scenario:
        """The same, each call naming the parent that it continues."""
        events = tuple(
            event.model_copy(update={"parent_call_id": self.parents[event.id]})
            if isinstance(event, Call) and event.id in self.parents
            else event
            for event in self.events
        )
        return replace(self, events=events, samples=self.samples_if_named)


def content_ids(text: str, count: int, *, variant: int = 0) -> tuple[int, ...]:
    """`count` ids that depend on the text, and on the variant: another way to tokenise the same text."""
    words = (hashlib.sha256(f"{variant}/{i}/{text}".encode()).digest() for i in range(count))
    return tuple(100 + int.from_bytes(word[:2], "big") % 50_000 for word in words)


@dataclass(frozen=True)
class Chat:
    """A context under way: its messages and their ids."""

    messages: tuple[dict[str, Any], ...] = ()
    ids: tuple[int, ...] = ()

    def say(self, role: str, text: str, count: int = 8, *, variant: int = 0) -> Chat:
        ids = (ROLES[role], NEW_LINE, *content_ids(text, count, variant=variant), END, NEW_LINE)
        return Chat((*self.messages, {"role": role, "content": text}), self.ids + ids)

    def heard(self, event: Call, index: int = 0) -> Chat:
        """The context after an answer: the very ids that were sampled."""
        assert event.completions
        body = event.completions[index]
        assert body.message is not None
        assert body.token_ids is not None
        ids = (ROLES["assistant"], NEW_LINE, *body.token_ids.json(), NEW_LINE)
        return Chat((*self.messages, body.message.value()), self.ids + ids)

    def ask(self, id: str, text: str, count: int, *, ordinal: int = 0, **fields: Any) -> Call:  # noqa: A002
        """A call on this context that answers `text`: `count` sampled tokens, END among them."""
        ids = (*content_ids(text, count - 1, variant=1), END)
        logprobs = [-(1 + token % 7) / 8 for token in ids]
        return call(
            id,
            self.messages,
            answer(assistant(text), ids=ids, logprobs=logprobs),
            prompt_ids=(*self.ids, ROLES["assistant"], NEW_LINE),
            ordinal=ordinal,
            **fields,
        )


OPENING = Chat().say("system", "You are an agent.").say("user", "The task.")


def _scenario(
    name: str,
    calls: Sequence[Call],
    samples: Sequence[str],
    parents: dict[str, str] | None = None,
    *more: AnyEvent,
    if_named: Sequence[str] | None = None,
) -> Scenario:
    sampled = sum(len(body.token_ids or ()) for c in calls for body in c.completions or ())
    opening = (episode(status="ok"), agent(role="main", trainable=True))
    events = (*opening, *calls, *more, reward(value=1.0))
    return Scenario(name, events, sampled, _chains(samples), parents or {}, _chains(if_named or samples))


def _chains(samples: Sequence[str]) -> tuple[tuple[CompletionKey, ...], ...]:
    return tuple(sorted(tuple((call_id, 0) for call_id in chain.split()) for chain in samples))


def linear() -> Scenario:
    """Three turns, each extending the one before."""
    chat, calls = OPENING, []
    for turn in range(3):
        calls.append(chat.ask(f"c{turn}", f"step {turn}", 16, ordinal=turn))
        chat = chat.heard(calls[-1]).say("user", f"observation {turn}")
    return _scenario("linear", calls, ["c0 c1 c2"], {"c1": "c0", "c2": "c1"})


def fork_after_sampled() -> Scenario:
    """Two continuations of one sampled turn: 13 + 17 + 17 tokens, the 13 shared."""
    a = OPENING.ask("a", "plan", 13)
    after = OPENING.heard(a).say("user", "observation")
    calls = [a, after.ask("b", "branch one", 17, ordinal=1), after.ask("c", "branch two", 17, ordinal=2)]
    return _scenario("fork_after_sampled", calls, ["a b", "a c"], {"b": "a", "c": "a"})


def bestof4() -> Scenario:
    """Four candidates, the third executed: 4 x 25 + 12 tokens."""
    plans = [OPENING.ask(f"p{i}", f"candidate {i}", 25, ordinal=i) for i in range(4)]
    done = OPENING.heard(plans[2]).say("user", "execute").ask("w", "done", 12, ordinal=4)
    candidates = candidate_set("set1", *(member(f"p{i}") for i in range(4)), generator="policy")
    chosen = selection("sel1", "set1", 2, selector="judge", scores={0: 0.4, 1: 0.3, 2: 0.9, 3: 0.4})
    samples = ["p0", "p1", "p2 w", "p3"]
    return _scenario("bestof4", [*plans, done], samples, {"w": "p2"}, candidates, chosen)


def bestof_identical() -> Scenario:
    """Two samples of one prompt that are equal to the token: still 2 x 19."""
    calls = [OPENING.ask(f"p{i}", "same answer", 19, ordinal=i) for i in range(2)]
    candidates = candidate_set("set1", member("p0"), member("p1"))
    return _scenario("bestof_identical", calls, ["p0", "p1"], {}, candidates)


def identical_siblings_continued() -> Scenario:
    """The second of two equal samples is continued, which only a named parent can say.

    Unnamed, the ids fit both; then the lowest, p0, is taken to go on.
    """
    calls = [OPENING.ask(f"p{i}", "same answer", 19, ordinal=i) for i in range(2)]
    calls.append(OPENING.heard(calls[1]).say("user", "go on").ask("w", "done", 12, ordinal=2))
    unnamed, named = ["p0 w", "p1"], ["p0", "p1 w"]
    return _scenario("identical_siblings_continued", calls, unnamed, {"w": "p1"}, if_named=named)


def retokenized_parent() -> Scenario:
    """The client sends the answer back as text and the server tokenises it differently: 13 + 16."""
    a = OPENING.ask("a", "plan", 13)
    again = OPENING.say("assistant", "plan", 12, variant=5).say("user", "observation")
    calls = [a, again.ask("b", "final", 16, ordinal=1)]
    return _scenario("retokenized_parent", calls, ["a", "b"], {"b": "a"})


def interleaved_subagents() -> Scenario:
    """Two agents take turns: 3 x 11 + 3 x 10, one sample each."""
    main, sub = OPENING, Chat().say("system", "You are a subagent.").say("user", "The subtask.")
    calls: list[Call] = []
    for turn in range(3):
        a = main.ask(f"A{turn}", f"root {turn}", 11, ordinal=turn)
        b = sub.ask(f"B{turn}", f"sub {turn}", 10, ordinal=turn, agent="sub")
        calls += [a, b]
        main = main.heard(a).say("user", f"root observation {turn}")
        sub = sub.heard(b).say("user", f"sub observation {turn}")
    parents = {f"{who}{turn}": f"{who}{turn - 1}" for who in "AB" for turn in (1, 2)}
    child = subagent("sub", spawned_by="A0", tool_call=None)
    return _scenario("interleaved_subagents", calls, ["A0 A1 A2", "B0 B1 B2"], parents, child)


def summarised() -> Scenario:
    """Three turns, a summary, two turns on the summary: 3 x 11 + 27 + 2 x 13, two samples."""
    chat, calls = OPENING, []
    for turn in range(3):
        calls.append(chat.ask(f"c{turn}", f"step {turn}", 11, ordinal=turn))
        chat = chat.heard(calls[-1]).say("user", f"observation {turn}")
    before = chat.say("user", "Summarise now.")
    calls.append(before.ask("sum", "summary text", 27, ordinal=3, purpose="summarize"))
    chat = OPENING.say("user", "Summary: summary text")
    for turn in range(2):
        calls.append(chat.ask(f"d{turn}", f"after {turn}", 13, ordinal=4 + turn))
        chat = chat.heard(calls[-1]).say("user", f"observation {3 + turn}")
    edit = compaction(
        trigger="rule",
        author="policy",
        author_call_id="sum",
        author_completion=0,
        before_call_id="c2",
        after_call_id="d0",
        replaced_call_ids=("c0", "c1", "c2"),
        status="accepted",
    )
    parents = {"c1": "c0", "c2": "c1", "sum": "c2", "d1": "d0"}
    return _scenario("compaction", calls, ["c0 c1 c2 sum", "d0 d1"], parents, edit)


def rewritten_assistant() -> Scenario:
    """The harness changes the text of an answer before it goes on: 13 + 16, two samples."""
    a = OPENING.ask("a", "plan", 13)
    changed = OPENING.say("assistant", "PLAN, fixed", 12).say("user", "observation")
    return _scenario("rewritten_assistant", [a, changed.ask("b", "final", 16, ordinal=1)], ["a", "b"])


def tools_change() -> Scenario:
    """The second call has another tool: 13 + 16, two samples although the ids extend each other."""
    x, y = ({"type": "function", "function": {"name": name}} for name in "xy")
    a = OPENING.ask("a", "plan", 13, tools=[x])
    after = OPENING.heard(a).say("user", "observation")
    calls = [a, after.ask("b", "final", 16, ordinal=1, tools=[x, y])]
    return _scenario("tools_change", calls, ["a", "b"], {"b": "a"})


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "linear": linear,
    "fork_after_sampled": fork_after_sampled,
    "bestof4": bestof4,
    "bestof_identical": bestof_identical,
    "identical_siblings_continued": identical_siblings_continued,
    "retokenized_parent": retokenized_parent,
    "interleaved_subagents": interleaved_subagents,
    "compaction": summarised,
    "rewritten_assistant": rewritten_assistant,
    "tools_change": tools_change,
}
