"""Graph -> what each context edit did: what it replaced by what, who wrote it, and what vanished.

before:  s u a t b t        the last call that saw the old context, and its answer
after:   s u SUMMARY        the first call that saw the new one
vanished: a t b t           messages of `before` that are not in `after`
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tracestore.graph.context import ContextMessage, answer_in_context, context
from tracestore.graph.model import CompletionKey, Graph, Node
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


def edits_behind(graph: Graph, call_id: str) -> tuple[tuple[Compaction, ...], dict[int, str]]:
    """The edits that made a call's context what it is, the latest first, and which messages they put there.

    Edits that were not accepted made nothing. A message that several contexts kept is found again by its
    value.

    Returns:
        The edits; position of a message in the context -> the edit that brought it.

    Raises:
        KeyError: no such call.
    """
    behind: list[Compaction] = []
    brought: dict[int, str] = {}
    unexplained: dict[bytes, list[int]] = defaultdict(list)
    for position, value in enumerate(_values(graph, call_id)):
        unexplained[value].append(position)
    for after, edits in _edited(graph, call_id):
        # What the edited context had not came after it.
        there = Counter(_values(graph, after))
        for value, positions in unexplained.items():
            del positions[there[value] :]
        for edit in edits:
            found = _compaction(graph, edit)
            behind.append(found)
            for message in found.added or ():
                left = unexplained[_value(graph, message)]
                if left:
                    brought[left.pop()] = edit.id
    return tuple(behind), brought


def _edited(graph: Graph, call_id: str) -> Iterator[tuple[str, list[ContextEdit]]]:
    """Calls whose context was edited, from a call back along what it continues, each with the edits."""
    made: dict[str, list[ContextEdit]] = defaultdict(list)
    for edit in graph.context_edits.values():
        if edit.after_call_id is not None and edit.status in (None, "accepted"):
            made[edit.after_call_id].append(edit)
    seen: set[str] = set()
    current: str | None = call_id
    while current is not None and current in graph.links and current not in seen:
        seen.add(current)
        edits = made.get(current, [])
        if edits:
            yield current, edits
        parent = graph.links[current].parent
        before = [edit.before_call_id for edit in edits if edit.before_call_id is not None]
        current = before[0] if before else None if parent is None else parent[0]


def _values(graph: Graph, call_id: str) -> list[bytes]:
    """What each message of a context says, to compare."""
    return [_said(node) for node in graph.path(graph.prompt_node[call_id])]


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
    return _said(graph.nodes[message.node])


def _said(node: Node) -> bytes:
    assert node.match_hash is not None, "contexts are compared in graphs with texts"
    return node.match_hash
