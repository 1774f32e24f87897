"""Whole episodes as a harness would post them, with what is true of them.

A made-up harness runs first: agents with chats, forks, several answers to one prompt, equal answers,
compactions, failures. Then what it did is written down as events, each call whole or as a delta, its
parent named or not, echoes in the spellings of common clients. The truth is kept beside: which completion
each call continues, the bytes and the token ids that it saw.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from tests import factories as make
from tests.wire.grammar import texts
from tracestore.graph.messages import messages_of
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import PhasedEvent, Raw
from tracestore.wire.call import Call
from tracestore.wire.completion import Completion, CompletionBody, CompletionFields
from tracestore.wire.events import AnyEvent

CompletionKey = tuple[str, int]
Batch = list[AnyEvent]


@dataclass(frozen=True)
class Recording:
    """The events of one episode, and what happened."""

    events: tuple[AnyEvent, ...]
    """As made: parents before children, nothing split or repeated. The group's event comes first, if
    any."""
    parents: dict[str, CompletionKey | None]
    """call -> the completion that it truly continues; None for the first of a context."""
    contexts: dict[str, tuple[Raw, ...]]
    """call -> the messages it saw, byte for byte."""
    prompt_ids: dict[str, tuple[int, ...] | None]
    """call -> the ids it read; None where none were recorded."""
    is_drifted: frozenset[str]
    """Calls whose context holds the parent's answer in other words."""

    @property
    def calls(self) -> dict[str, Call]:
        return {event.id: event for event in self.events if isinstance(event, Call)}


@dataclass(frozen=True)
class _Chat:
    """A context under way: what the harness would send next."""

    agent: str
    values: tuple[Any, ...]
    """Messages as values, the last answer included."""
    parent: CompletionKey | None = None
    seen: tuple[Raw, ...] = ()
    """Bytes that the parent saw and said."""
    num_new: int = 0
    """Messages at the end of `values` that came after the parent's answer."""
    ids: tuple[int, ...] | None = None
    """Ids of prompt ++ completion of the parent; None where they were not recorded."""
    num_parent_answers: int = 0


@dataclass
class _Harness:
    draw: st.DrawFn
    events: list[AnyEvent] = field(default_factory=list)
    parents: dict[str, CompletionKey | None] = field(default_factory=dict)
    contexts: dict[str, tuple[Raw, ...]] = field(default_factory=dict)
    prompt_ids: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    drifted: set[str] = field(default_factory=set)
    ordinals: dict[str, int] = field(default_factory=dict)
    chats: list[_Chat] = field(default_factory=list)
    completed: list[CompletionKey] = field(default_factory=list)
    has_ordinals: bool = True
    # What no claim hangs on is thrown, not drawn: Hypothesis keeps its choices for what happens.
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    may_omit_parents: bool = True

    def coin(self) -> bool:
        return self.draw(st.booleans())

    def some(self, *values: Any) -> Any:
        return self.dice.choice(values)


_TEXTS = st.sampled_from(["go", "on", "", "é", "\x00", "\ud83d", "\U0001d11e", "a\nb", '"{'])
_FINISH = ("stop", "length", "tool_calls")
_LOGPROBS = (-0.5, -1.25, 0.0, -9999.0, -0.1, None)
"""Fit float32, but for -0.1; a server's sentinel; a position without a value."""


def _message(draw: st.DrawFn, role: str) -> dict[str, Any]:
    value = {"role": role, "content": draw(_TEXTS)}
    if draw(st.integers(0, 9)) == 0:
        value["provider_state"] = Raw(draw(texts()))
    return value


def _answer_value(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """An assistant message; equal ones are frequent, since few texts exist."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        use = make.tool_use("run", draw(st.sampled_from(['{"a": 1}', '{"a":', "{}"])), id=f"t{number}")
        return make.assistant(None, tool_calls=[use])
    if kind == 1:
        return make.assistant(draw(_TEXTS), reasoning_content="hm")
    return make.assistant(draw(_TEXTS))


@st.composite
def spelled(draw: st.DrawFn, value: Any) -> Raw:
    """A message as some client would send it: the same message in other bytes."""
    seed = draw(st.integers(0, 255))
    if seed < 128:
        return make.raw(value)
    dice = random.Random(seed)
    value = dict(value)
    if value["role"] == "assistant":
        nothing = {"refusal": None, "function_call": None, "audio": None, "annotations": []}
        value |= {key: item for key, item in nothing.items() if dice.random() < 0.5}
        if value["content"] is None and dice.random() < 0.5:
            del value["content"]
        if "tool_calls" in value and dice.random() < 0.5:
            value["tool_calls"] = [{"index": i, **use} for i, use in enumerate(value["tool_calls"])]
        if "reasoning_content" in value and dice.random() < 0.5:
            value["reasoning"] = value.pop("reasoning_content")
    if isinstance(value.get("content"), str) and value["content"] and dice.random() < 0.5:
        block = {"type": "text", "text": value["content"], "cache_control": {"type": "ephemeral"}}
        value["content"] = [block]
    keys = dice.sample(sorted(value), len(value))
    text = make.raw({key: value[key] for key in keys})
    return Raw(b" ".join([b"{", text[1:-1], b"}"])) if dice.random() < 0.5 else text


def _call(
    h: _Harness, chat: _Chat, *, purpose: str = "act", answers: Sequence[Any] | None = None
) -> list[_Chat]:
    """Post one call on a chat; the chats that its answers open."""
    draw, number = h.draw, len(h.parents)
    h.dice = random.Random(draw(st.integers(0, 2**16)))
    call_id = f"c{number}"
    is_delta = chat.parent is not None and draw(st.integers(0, 2)) == 0
    is_drifted = chat.parent is not None and not is_delta and draw(st.integers(0, 4)) == 4
    is_named = chat.parent is not None and (is_delta or not h.may_omit_parents or h.coin())
    own = chat.values[len(chat.values) - chat.num_new :]
    if is_delta:
        sent = [draw(spelled(value)) for value in own]
        saw = (*chat.seen, *sent)
    else:
        if is_drifted:
            values = list(chat.values)
            values[len(values) - chat.num_new - 1] = make.assistant("other words")
            chat = replace(chat, values=tuple(values))
            h.drifted.add(call_id)
        sent = [draw(spelled(value)) for value in chat.values]
        saw = tuple(sent)
    h.contexts[call_id], h.parents[call_id] = saw, chat.parent

    read = _prompt(h, chat, is_drifted=is_drifted)
    by_delta = read is not None and is_named and chat.ids is not None and read[: len(chat.ids)] == chat.ids
    by_delta = by_delta and h.coin()
    h.prompt_ids[call_id] = read
    values_said = answers if answers is not None else _answers(h, number)
    has_ids = read is not None and h.some(True, True, False)
    bodies = [_body(h, value, has_ids=has_ids) for value in values_said]
    ordinal = h.ordinals[chat.agent] = h.ordinals.get(chat.agent, -1) + 1
    # Ids that follow one of several answers say nothing without saying which.
    must_state = chat.num_parent_answers > 1 and (by_delta or not h.may_omit_parents)
    states_completion = is_named and (must_state or h.coin())
    h.events.append(
        make.call(
            call_id,
            sent,
            *bodies,
            agent=chat.agent,
            parent=chat.parent[0] if is_named and chat.parent else None,
            completion=chat.parent[1] if states_completion and chat.parent else None,
            delta=is_delta,
            prompt_ids=None if by_delta else read,
            prompt_ids_delta=read[len(chat.ids or ()) :] if by_delta and read else None,
            ordinal=ordinal if h.has_ordinals else None,
            purpose=purpose,
            params={"temperature": h.some(1, 1.0, 0.7)},
            tools=h.some(None, None, []),
            status="ok" if bodies else "failed",
            logprobs_are=h.some(None, "raw", "processed"),
            started_at=1_700_000_000_000_000_000 + number,
        )
    )
    h.completed += [(call_id, index) for index in range(len(bodies))]
    opened = []
    for index, (value, body) in enumerate(zip(values_said, bodies, strict=True)):
        assert body.message is not None
        ids = None if read is None or body.token_ids is None else (*read, *body.token_ids.json())
        opened.append(
            _Chat(
                agent=chat.agent,
                values=(*chat.values, value),
                parent=(call_id, index),
                seen=(*saw, body.message),
                ids=ids,
                num_parent_answers=len(bodies),
            )
        )
    return opened


def _answers(h: _Harness, number: int) -> list[Any]:
    count = h.draw(st.sampled_from([1, 1, 1, 0, 2, 3]))
    said = [_answer_value(h.draw, number) for _ in range(count)]
    return [said[0]] * count if count > 1 and h.coin() else said


def _body(h: _Harness, value: Any, *, has_ids: bool) -> CompletionBody:
    ids = _some_ids(h, 0) if has_ids else None
    values = h.some(_LOGPROBS, (-0.5, -2.0), (-0.1, h.dice.uniform(-9, 0)))
    logprobs = [h.some(*values) for _ in ids] if ids and h.some(True, False) else ()
    return make.answer(value, ids=ids, logprobs=logprobs, finish_reason=h.some(*_FINISH))


def _some_ids(h: _Harness, least: int) -> tuple[int, ...]:
    return tuple(h.dice.randrange(10) for _ in range(h.dice.randint(least, 4)))


def _prompt(h: _Harness, chat: _Chat, *, is_drifted: bool) -> tuple[int, ...] | None:
    """Ids of a prompt: they extend the parent's, or break somewhere, as after re-tokenisation."""
    if h.some(*range(6)) == 0:
        return None
    more = _some_ids(h, 1)
    if chat.ids is None:
        return more
    if is_drifted or h.some(*range(8)) == 0:
        return (*chat.ids[: h.dice.randint(0, len(chat.ids))], 10, *more)
    return (*chat.ids, *more)


def _hear(h: _Harness, chat: _Chat) -> _Chat:
    """The chat after what the world says to the last answer."""
    last = chat.values[-1] if chat.values else None
    uses = last.get("tool_calls", ()) if isinstance(last, dict) else ()
    new = [make.tool(h.draw(_TEXTS), tool_call_id=use["id"]) for use in uses] or [_message(h.draw, "user")]
    return replace(chat, values=(*chat.values, *new), num_new=chat.num_new + len(new))


def _spawn(h: _Harness, chat: _Chat) -> _Chat:
    agent_id = f"sub{len(h.ordinals)}"
    assert chat.parent is not None
    h.ordinals[agent_id] = -1
    uses = chat.values[-1].get("tool_calls", ()) if isinstance(chat.values[-1], dict) else ()
    h.events.append(
        make.subagent(
            agent_id,
            spawned_by=chat.parent,
            parent=chat.agent,
            tool_call=uses[0]["id"] if uses else None,
            trainable=h.some(None, True, False),
            scope_prompt=make.raw({"task": h.draw(_TEXTS)}),
            status=h.some(None, "ok", "failed"),
            score=h.some(None, 0.5),
        )
    )
    return _Chat(agent_id, (_message(h.draw, "system"), _message(h.draw, "user")))


def _compact(h: _Harness, chat: _Chat) -> list[_Chat]:
    """A summary call, and the chat that begins with the summary."""
    number = sum(event.kind == "context_edit" for event in h.events)
    asked = replace(chat, values=(*chat.values, make.user("summarise")), num_new=chat.num_new + 1)
    value = make.assistant(h.draw(_TEXTS))
    (summary,) = _call(h, asked, purpose="summarize", answers=[value])
    assert summary.parent is not None
    h.events.append(
        make.compaction(
            f"edit{number}",
            agent=chat.agent,
            trigger=h.some("rule", "tool_call"),
            author="policy",
            author_call_id=summary.parent[0],
            author_completion=0,
            before_call_id=chat.parent[0] if chat.parent else None,
            tokens_before=len(chat.ids) if chat.ids is not None else None,
            status=h.some("accepted", "rejected"),
        )
    )
    opening = tuple(itertools.takewhile(lambda message: message["role"] != "assistant", chat.values))
    return [_Chat(chat.agent, (*opening, make.user(f"Summary: {value['content']}")))]


def _judge(h: _Harness) -> None:
    """Candidates, their selection, rewards, and other facts about what happened."""
    if not h.completed:
        return
    call_id, index = h.some(*h.completed)
    agent_id = next(e.agent_id for e in h.events if isinstance(e, Call) and e.id == call_id)
    members = [make.member(c, i, score=h.some(None, 0.25)) for c, i in h.completed[:3]]
    facts: list[AnyEvent] = [
        make.reward("r0", h.draw(st.floats(-2, 2)), scorer="env"),
        make.reward("r1", 0.0, name="late", call_id=call_id, completion=index, weight=0.5),
        make.candidate_set("set0", *members, generator="policy"),
        make.selection("sel0", "set0", 0, selector="judge", scores={0: 0.5}, treatment="negative"),
        make.gap("gap0", call_id=call_id),
        make.gap("gap1", "stale_observation", call_id=call_id),
        make.tool_call("x0", call_id, completion=index, result=make.raw({"out": h.draw(_TEXTS)})),
        make.snapshot("m0", "hash", agent_id=agent_id, wave=0, commit_order=1),
        make.blob("b0", role="image", call_id=call_id, position=0, shape=(2, 3), dtype="uint8"),
        make.consumption("u0", call_id, completion=index),
    ]
    h.events += h.draw(st.lists(st.sampled_from(facts), unique_by=lambda e: e.id, max_size=5))


@st.composite
def recordings(draw: st.DrawFn, *, max_calls: int = 7, may_omit_parents: bool = True) -> Recording:
    """An episode of at most about `max_calls` calls.

    `may_omit_parents=False` names every parent, with the completion where there are several. Otherwise a
    delta may fail to say which of several answers it follows, and stays pending.
    """
    h = _Harness(draw, may_omit_parents=may_omit_parents, has_ordinals=draw(st.integers(0, 4)) > 0)
    group = make.group("g", size=draw(st.sampled_from([None, 1, 4])))
    if h.coin():
        h.events.append(group)
    h.events.append(make.episode(group_id=h.some(None, "g") if h.events else None, status=h.some(None, "ok")))
    h.events.append(make.agent("main", role="main", trainable=True))
    h.ordinals["main"] = -1
    opening = tuple(
        _message(draw, role) for role in draw(st.sampled_from([("system", "user"), ("user",), ()]))
    )
    h.chats = [_Chat("main", opening)]
    for _ in range(draw(st.integers(1, max_calls))):
        # Mostly the chat that was opened last, so that episodes grow long.
        chat = h.chats[-1] if h.coin() else draw(st.sampled_from(h.chats))
        step = draw(st.integers(0, 9))
        if chat.parent is not None and (chat.num_new == 0 or step == 0):
            chat = _hear(h, chat)
        if step == 1 and chat.parent is not None:
            h.chats += _compact(h, chat)
        else:
            # The chat stays among the chats: a later step may fork from it, or sample it again.
            opened = _call(h, chat)
            h.chats += opened
            # Last, so that the subagent mostly goes on to call.
            if step in (2, 3) and opened:
                h.chats.append(_spawn(h, opened[0]))
    _judge(h)
    return Recording(tuple(h.events), h.parents, h.contexts, h.prompt_ids, frozenset(h.drifted))


def episodes(*, max_calls: int = 7) -> st.SearchStrategy[list[AnyEvent]]:
    """The events of one episode, parents before children, whole and without repeats."""
    return recordings(max_calls=max_calls).map(lambda recording: list(recording.events))


# How events reach a server.

_LATE_FIELDS = frozenset(
    {
        *("completions", "usage", "status", "error", "ended_at", "attempts", "first_token_at", "score"),
        *("return_message", "finding_used", "result", "exit_status", "stop_reason", "closed_by"),
    }
)


@st.composite
def phased(draw: st.DrawFn, event: PhasedEvent) -> list[Any]:
    """An event as its start and end: what an end tells late, the rest at the start, some of it in both."""
    model = type(event)
    needed = {name for name, info in model.model_fields.items() if info.is_required()} | {"v"}
    stated = {name: getattr(event, name) for name in event.model_fields_set - {"phase", "kind"}}
    start = {name: value for name, value in stated.items() if name not in _LATE_FIELDS}
    twice = draw(st.sets(st.sampled_from(sorted(start)), max_size=2)) if start else set()
    # An end that repeats a completion's parent must repeat the call too.
    if "parent_completion" in twice and "parent_call_id" in start:
        twice.add("parent_call_id")
    twice -= {"prompt_token_ids_delta", "context"}
    end = {name: value for name, value in stated.items() if name in _LATE_FIELDS | needed | twice}
    return [model(**start, phase="start"), model(**end, phase="end")]


@st.composite
def separate_completions(draw: st.DrawFn, event: Call) -> list[AnyEvent]:
    """A call whose last completions are posted on their own."""
    bodies = event.completions or ()
    kept = draw(st.integers(0, len(bodies)))
    alone: list[AnyEvent] = [
        Completion(
            id=f"{event.id}/{index}",
            episode_id=event.episode_id,
            call_id=event.id,
            index=index,
            **{
                name: getattr(body, name)
                for name in body.model_fields_set & CompletionFields.model_fields.keys()
            },
        )
        for index, body in enumerate(bodies)
        if index >= kept
    ]
    if not alone:
        return [event]
    fields = {name: getattr(event, name) for name in event.model_fields_set - {"completions"}}
    if kept:
        fields["completions"] = bodies[:kept]
    return [Call(**fields), *alone]


@st.composite
def split_up(draw: st.DrawFn, events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """The same facts in more events: starts and ends apart, completions on their own."""
    parts: list[AnyEvent] = []
    for event in events:
        pieces: list[AnyEvent] = [event]
        if isinstance(event, Call) and event.completions and draw(st.integers(0, 3)) == 0:
            pieces = draw(separate_completions(event))
        for piece in pieces:
            if isinstance(piece, PhasedEvent) and draw(st.integers(0, 3)) == 0:
                parts += draw(phased(piece))
            else:
                parts.append(piece)
    return parts


@st.composite
def deliveries(draw: st.DrawFn, events: Sequence[AnyEvent]) -> list[Batch]:
    """The same events in another order, some of them twice, in batches."""
    order = list(draw(st.permutations(list(events))))
    repeated = draw(st.lists(st.sampled_from(order), max_size=4)) if order else []
    for event in repeated:
        order.insert(draw(st.integers(0, len(order))), event)
    cuts = sorted(draw(st.sets(st.integers(0, len(order)), max_size=3)))
    edges = zip([0, *cuts], [*cuts, len(order)], strict=True)
    return [order[start:end] for start, end in edges if end > start]


# Sources that grow: an event made of fewer records comes before the one made of all.


@st.composite
def revised(draw: st.DrawFn, events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """The events, some of them also as they were told when their source was shorter.

    Of one kind, id and phase the highest revision is the event given. Events of any revisions agree with each
    other: what two of them both tell they tell alike.
    """
    told: list[AnyEvent] = []
    for event in events:
        count = draw(st.sampled_from([0, 0, 0, 1, 1, 2]))
        revisions = sorted(draw(st.sets(st.integers(0, 4), min_size=count + 1, max_size=count + 1)))
        for revision in revisions[:-1]:
            less = draw(_told_before(event, events))
            told.append(less.model_copy(update={"revision": revision}) if revision else less)
        told.append(event.model_copy(update={"revision": revisions[-1]}) if revisions[-1] else event)
    return told


@st.composite
def _told_before(draw: st.DrawFn, event: AnyEvent, events: Sequence[AnyEvent]) -> AnyEvent:
    """Another event of the same name: less of it, or something else, where no other event tells it too."""
    model = type(event)
    fields = {name: getattr(event, name) for name in event.model_fields_set - {"kind"}}
    others = [e for e in events if (e.kind, e.id) == (event.kind, event.id) and e is not event]
    fixed = {"id", "v", "phase", "episode_id"}.union(*(other.model_fields_set for other in others))
    if draw(st.booleans()):
        fields |= _something_else(draw, event, events)
    needed = {name for name, info in model.model_fields.items() if info.is_required()}
    if "delta" in (fields.get("context"), *(getattr(other, "context", None) for other in others)):
        needed.add("parent_call_id")
    if any(getattr(one, "prompt_token_ids_delta", None) is not None for one in (event, *others)):
        needed.add("parent_call_id")
    may_go = sorted(fields.keys() - fixed - needed)
    gone = draw(st.sets(st.sampled_from(may_go), max_size=3)) if may_go else set()
    gone |= {"parent_completion"} if "parent_call_id" in gone else set()
    gone |= {"logprobs"} if "token_ids" in gone else set()
    kept = {name: value for name, value in fields.items() if name not in gone | fixed}
    kept |= {name: getattr(event, name) for name in fixed & event.model_fields_set}
    return model(**kept)


def _something_else(draw: st.DrawFn, event: AnyEvent, events: Sequence[AnyEvent]) -> dict[str, Any]:
    """Fields of an event as they may have been before."""
    if isinstance(event, Call):
        return _call_before(draw, event, events)
    if isinstance(event, Completion):
        # At a place where no other completion will ever be.
        return {**_body_before(draw, event), "index": draw(st.sampled_from([event.index, event.index + 20]))}
    before: dict[str, dict[str, Any]] = {
        "group": {"size": 9, "task_id": "t"},
        "episode": {"status": "failed", "group_id": "another", "task": Raw(b"[1]")},
        "agent": {"parent_agent_id": "somebody", "score": 0.25, "scope_prompt": Raw(b'"do"')},
        "tool_call": {"result": Raw(b'"so far"'), "tool_call_id": "t0", "arguments": "{"},
        "context_edit": {"replaced_call_ids": ("c0", "c9"), "kept_call_ids": ("c1",), "after_call_id": "c8"},
        "candidate_set": {"members": (make.member("c0", 0, score=0.75),)},
        "candidate_selection": {"selected": (1, 2), "continued": (0,)},
        "reward": {"value": -3.5, "target": make.reward(agent_id="main").target},
        "gap": {"detail": "so far", "call_id": "c9"},
        "snapshot": {"hash": "before", "frozen": False},
        "blob": {"hash": "1" * 64, "shape": (1,)},
        "consumption": {"tokens": 0, "call_id": "c9"},
    }
    return before[event.kind]


def _call_before(draw: st.DrawFn, call: Call, events: Sequence[AnyEvent]) -> dict[str, Any]:
    fields: dict[str, Any] = {"agent_id": draw(st.sampled_from([call.agent_id, "main"])), "status": None}
    if call.request is not None:
        messages = messages_of(call.request, call.dialect)
        kept = draw(st.integers(0, len(messages)))
        fields["request"] = make.raw({"messages": [message.raw for message in messages[:kept]]})
    for name in ("prompt_token_ids", "prompt_token_ids_delta"):
        ids = getattr(call, name)
        if ids is not None:
            fields[name] = TokenIds.of(ids.json()[: draw(st.integers(0, len(ids)))])
    # Parents come before their children, so no revisions of them go round in a circle.
    before = list(itertools.takewhile(lambda id_: id_ != call.id, (e.id for e in events if e.kind == "call")))
    if call.parent_call_id is not None and before:
        fields["parent_call_id"] = draw(st.sampled_from(before))
    if call.completions is not None:
        bodies = [CompletionBody(**_body_before(draw, body)) for body in call.completions]
        alone = any(isinstance(e, Completion) and e.call_id == call.id for e in events)
        more = [] if alone else [make.answer("one more", ids=[7])]
        fields["completions"] = tuple((bodies + more)[: draw(st.integers(0, len(bodies) + 1))]) or None
    return fields


def _body_before(draw: st.DrawFn, body: CompletionFields) -> dict[str, Any]:
    """An answer under way: shorter, and another message."""
    named = CompletionFields.model_fields.keys()
    fields = {name: getattr(body, name) for name in body.model_fields_set & named}
    if draw(st.booleans()):
        fields |= {"message": make.raw(_answer_value(draw, 0)), "partial": True}
    if body.token_ids is not None:
        length = draw(st.integers(0, len(body.token_ids)))
        fields["token_ids"] = TokenIds.of(body.token_ids.json()[:length])
        if body.logprobs is not None:
            fields["logprobs"] = Logprobs.of(body.logprobs.json()[:length])
    return fields
