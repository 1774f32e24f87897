"""Graph -> the graph without what the rules of a spec name, and whose token ids no export of it may hold.

The rules are those of the store (`tracestore.store.rules`), and text is replaced as there: an export by
them holds the text that an export of the redacted store would hold. Token ids cannot be replaced: ids of
other text were never sampled, and nobody knows which of them spell a match. So a completion is withheld
whole, its ids in no shard, where a rule finds something in what it answered or in what it had read. It is
withheld as well where there are ids without a text, in which no rule can look.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tracestore.graph.build import build
from tracestore.graph.messages import messages_of
from tracestore.graph.model import CompletionKey, Graph
from tracestore.graph.tokens import prompt_ids
from tracestore.store.rules import PROMPT, Redacted, Rule, redact, spread, without_ids
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.completion import Completion, CompletionBody, CompletionFields
from tracestore.wire.events import AnyEvent, episode_id_of


def redacted(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """The graph with its texts redacted, all its ids still in it, and those named that are withheld."""
    pen = _Pen(rules)
    made = build(pen.events(graph))
    spelled = _spelled(made, pen)
    withheld = {
        key
        for key, body in made.completions.items()
        if body.token_ids is not None
        and key[0] in made.calls
        and not spelled.get(key[0], frozenset()).isdisjoint({PROMPT, key[1]})
    }
    return replace(made, withheld=frozenset(withheld))


def redacted_text(graph: Graph, rules: Sequence[Rule], lost: Counter[str]) -> Graph:
    """The graph with its texts redacted, for a format of text: of the ids only those go that spell a match,
    or no known text.

    Args:
        lost: told what is taken out.
    """
    pen = _Pen(rules)
    made = build(pen.events(graph))
    spelled = _spelled(made, pen)
    calls = {
        call_id: _without_prompt(call, spelled[call_id]) if call_id in spelled else call
        for call_id, call in made.calls.items()
    }
    completions = {
        key: _without_ids(body) if key[1] in spelled.get(key[0], ()) else body
        for key, body in made.completions.items()
    }
    lost["redacted text"] += pen.values
    lost["prompt or answer: token ids"] += sum(map(len, spelled.values()))
    return replace(made, calls=calls, completions=completions)


class _Pen:
    """Redacts the events of a graph, and notes what its token ids spell."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self.values = 0
        self.spelled: dict[str, set[int]] = defaultdict(set)
        """By call: completions that changed, and `PROMPT` where what it read did."""

    def events(self, graph: Graph) -> list[AnyEvent]:
        events = [self._redacted(event) for event in _others(graph)]
        for call_id, call in graph.calls.items():
            bodies = _leading_bodies(graph, call_id)
            whole = self._redacted(call.model_copy(update={"completions": bodies or None}))
            assert isinstance(whole, Call)
            events.append(whole.model_copy(update={"completions": None}))
            answers: dict[CompletionKey, CompletionFields] = {
                (call_id, index): body for index, body in enumerate(whole.completions or ())
            }
            for key in graph.completions_of(call_id):
                events.append(
                    self._completion(key, answers.get(key, graph.completions[key]), call.episode_id)
                )
        strays = [(key, body) for key, body in graph.completions.items() if key[0] not in graph.calls]
        named = (episode_id_of(event) for event in events)
        # Where nothing else has come, no event names it either.
        episode_id = next((one for one in named if one is not None), "unknown")
        return events + [self._completion(key, body, episode_id) for key, body in strays]

    def _completion(self, key: CompletionKey, body: CompletionFields, episode_id: str) -> AnyEvent:
        """A completion as if posted on its own: the graph no longer says how it was, and a rule may name
        either."""
        fields: dict[str, Any] = {
            name: getattr(body, name) for name in body.model_fields_set & CompletionFields.model_fields.keys()
        }
        own: dict[str, Any] = {
            "id": f"{key[0]}/{key[1]}",
            "episode_id": episode_id,
            "call_id": key[0],
            "index": key[1],
        }
        return self._redacted(
            Completion.model_construct(_fields_set={*fields, *own, "kind"}, **own, **fields)
        )

    def _redacted(self, event: AnyEvent) -> AnyEvent:
        found: Redacted | None = redact(event, self._rules)
        if found is None:
            return event
        self.values += found.values
        if isinstance(event, Call | Completion) and found.spelled:
            self.spelled[event.id if isinstance(event, Call) else event.call_id] |= found.spelled
        return found.event


def _others(graph: Graph) -> Iterator[AnyEvent]:
    for one in (graph.group, graph.episode):
        if one is not None:
            yield one
    for kind in (
        *(graph.agents, graph.tool_calls, graph.context_edits, graph.candidate_sets),
        *(graph.candidate_selections, graph.rewards, graph.gaps, graph.snapshots, graph.blobs),
        graph.consumptions,
    ):
        yield from kind.values()


def _leading_bodies(graph: Graph, call_id: str) -> tuple[CompletionBody, ...]:
    """The completions of a call that may stand in it: those from index 0 on, up to the first gap."""
    bodies: list[CompletionBody] = []
    while (body := graph.completions.get((call_id, len(bodies)))) is not None:
        fields = {name: getattr(body, name) for name in body.model_fields_set}
        bodies.append(CompletionBody.model_construct(_fields_set=set(fields), **fields))
    return tuple(bodies)


def _spelled(graph: Graph, pen: _Pen) -> dict[str, frozenset[int]]:
    """By call, completions (and `PROMPT`) whose ids spell a match, or no text at which a rule could look."""
    matched = {call_id: frozenset(places) for call_id, places in pen.spelled.items()}
    found = _and_what_repeats_it(graph, spread(graph.calls.values(), matched))
    unseen: dict[str, frozenset[int]] = {
        call_id: frozenset({PROMPT}) for call_id, call in graph.calls.items() if _read_without_text(call)
    }
    for (call_id, index), body in graph.completions.items():
        if body.token_ids is not None and not _has_text(body.message):
            unseen[call_id] = unseen.get(call_id, frozenset()) | {index}
    for call_id, places in spread(graph.calls.values(), unseen).items():
        found[call_id] = found.get(call_id, frozenset()) | places
    return found


def _read_without_text(call: Call) -> bool:
    """Whether a call read ids, and no message says what they spell: its prompt was posted as ids alone, or
    where its dialect has none."""
    if call.request is None:
        return True
    has_ids = any((call.prompt_token_ids, call.prompt_token_ids_delta))
    return has_ids and not any(_has_text(one.raw) for one in messages_of(call.request, call.dialect))


def _has_text(message: Raw | None) -> bool:
    return message is not None and b'"' in bytes(message)


def _and_what_repeats_it(graph: Graph, spelled: dict[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    """With the calls whose prompt's ids begin with ids that spell a match, whatever text was sent with them:
    a harness may send on what was sampled, and leave it out of the messages."""
    begins: dict[int, set[bytes]] = defaultdict(set)
    for call_id, places in spelled.items():
        prompt = prompt_ids(graph, call_id) if call_id in graph.calls else None
        if prompt is None:
            continue
        if PROMPT in places and len(prompt):
            begins[len(prompt)].add(prompt.tobytes())
        for index in places - {PROMPT}:
            ids = graph.completions[call_id, index].token_ids
            if ids is not None and len(ids):
                begins[len(prompt) + len(ids)].add(prompt.tobytes() + ids.array.tobytes())
    if not begins:
        return spelled
    found = dict(spelled)
    for call_id in graph.calls:
        prompt = None if PROMPT in found.get(call_id, ()) else prompt_ids(graph, call_id)
        if prompt is not None and any(prompt[:n].tobytes() in known for n, known in begins.items()):
            found[call_id] = found.get(call_id, frozenset()) | {PROMPT}
    return found


def _without_prompt(call: Call, places: frozenset[int]) -> Call:
    found = without_ids(call, places)
    assert isinstance(found, Call)
    return found


def _without_ids(body: CompletionFields) -> CompletionFields:
    gone = {"token_ids": None, "logprobs": None, "top_logprobs": None}
    kept = body.model_fields_set - gone.keys()
    return type(body).model_construct(_fields_set=kept, **{name: getattr(body, name) for name in kept})
