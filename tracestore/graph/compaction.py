"""Graph -> what each context edit did: what it replaced by what, who wrote it, and what vanished.

before:  s u a t b t        the last call that saw the old context, and its answer
after:   s u SUMMARY        the first call that saw the new one
vanished: a t b t           messages of `before` that are not in `after`
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tracestore.graph.context import ContextMessage, answer_in_context, context
from tracestore.graph.model import CompletionKey, Graph
from tracestore.wire.context_edit import ContextEdit


@dataclass(frozen=True, slots=True)
class Compaction:
    """One context edit against the contexts before and after it. None is unknown everywhere."""

    edit: ContextEdit
    author: CompletionKey | None
    """The completion that is the replacement (the summary), where it has come."""
    replaced: tuple[CompletionKey, ...] | None
    """Completions that the new context no longer shows: of the calls that the edit names as replaced,
    else the authors of what vanished. None: neither is known."""
    vanished: tuple[ContextMessage, ...] | None
    """Messages of the old context, the answer to it included, that are not in the new one, in order.
    None: one of the two is not named or has not come (a rejected edit has no new context)."""
    kept: int | None
    """Messages of the old context that the new one still has."""
    added: tuple[ContextMessage, ...] | None
    """Messages of the new context that the old one had not: the replacement, and what came with it."""


def compactions(graph: Graph) -> tuple[Compaction, ...]:
    """Every context edit of the episode, in order of id; rejected and failed ones too."""
    return tuple(_compaction(graph, edit) for edit in graph.context_edits.values())


def _compaction(graph: Graph, edit: ContextEdit) -> Compaction:
    author = None
    if edit.author_call_id is not None:
        answers = graph.completions_of(edit.author_call_id)
        wanted = (edit.author_call_id, edit.author_completion or 0)
        author = wanted if wanted in answers else None
    before = _messages(graph, edit.before_call_id, with_answer=True)
    after = _messages(graph, edit.after_call_id, with_answer=False)
    vanished = added = kept = None
    if before is not None and after is not None:
        vanished, added = _difference(graph, before, after), _difference(graph, after, before)
        kept = len(before) - len(vanished)
    return Compaction(edit, author, _replaced(graph, edit, vanished), vanished, kept, added)


def _replaced(
    graph: Graph, edit: ContextEdit, vanished: tuple[ContextMessage, ...] | None
) -> tuple[CompletionKey, ...] | None:
    if edit.replaced_call_ids is not None:
        return tuple(key for call_id in edit.replaced_call_ids for key in graph.completions_of(call_id))
    if vanished is None:
        return None
    return tuple(dict.fromkeys(message.author for message in vanished if message.author is not None))


def _messages(graph: Graph, call_id: str | None, *, with_answer: bool) -> tuple[ContextMessage, ...] | None:
    if call_id is None or call_id not in graph.calls or call_id in graph.pending:
        return None
    messages = context(graph, call_id)
    answers = graph.completions_of(call_id) if with_answer else ()
    if len(answers) != 1:
        return messages
    return messages + answer_in_context(graph, answers[0])


def _difference(
    graph: Graph, these: tuple[ContextMessage, ...], others: tuple[ContextMessage, ...]
) -> tuple[ContextMessage, ...]:
    """Messages of `these` that are not among `others`, each counted as often as it stands there."""
    there = Counter(_value(graph, message) for message in others)
    left = []
    for message in these:
        value = _value(graph, message)
        if there[value]:
            there[value] -= 1
        else:
            left.append(message)
    return tuple(left)


def _value(graph: Graph, message: ContextMessage) -> bytes:
    assert message.node is not None
    value = graph.nodes[message.node].match_hash
    assert value is not None, "contexts are compared in graphs with texts"
    return value
