"""Calls and completions whose token ids are not kept: the ids would spell text that rules took out.

Which they are lies in rows of its own (`redacted_ids`), apart from the events: the ids of a call may come
after its text, in the end of a call whose request came with its start, or in a call that follows another
one.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.prepare import Prepared, prepare
from tracestore.store.requests import RequestMemory
from tracestore.store.rules import PROMPT, reads_redacted, without_ids
from tracestore.store.transaction import Transaction
from tracestore.wire.call import Call
from tracestore.wire.completion import Completion
from tracestore.wire.events import AnyEvent

Spelled = frozenset[int]
"""Indexes of completions, and `PROMPT` for what the call read."""


class SpelledIds:
    """Of the calls of one project, in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._known: dict[str, Spelled] = {}

    def of(self, call_ids: Iterable[str]) -> dict[str, Spelled]:
        """By call, what is noted of it; those of which nothing is are left out."""
        named = set(call_ids)
        wanted = sorted(named - self._known.keys())
        keys = self._tx.ids_of_keys("call", wanted)
        found: dict[str, set[int]] = {id_: set() for id_ in wanted}
        c = t.redacted_ids.c
        for chunk in chunks(sorted(keys)):
            rows = self._tx.connection.execute(
                select(c.call_key, c.completion).where(
                    c.project_id == self._tx.project_id, c.call_key.in_(chunk)
                )
            )
            for key, completion in rows:
                found[keys[key]].add(completion)
        self._known |= {id_: frozenset(some) for id_, some in found.items()}
        return {id_: self._known[id_] for id_ in named if self._known[id_]}

    def news(self, prepared: Prepared) -> Spelled:
        """What an event adds of its call, by what was redacted in it or in the call that it follows."""
        event = prepared.event
        call_id = call_of(event)
        if call_id is None:
            return frozenset()
        found = frozenset() if prepared.redacted is None else prepared.redacted.spelled
        if isinstance(event, Call) and event.context == "delta" and event.parent_call_id is not None:
            parent = self.of([event.parent_call_id]).get(event.parent_call_id, frozenset())
            if reads_redacted(event, parent):
                found |= {PROMPT}
        return found - self.of([call_id]).get(call_id, frozenset()) if found else found

    def note(self, call_id: str, some: Spelled) -> None:
        known = self.of([call_id]).get(call_id, frozenset())
        for completion in sorted(some - known):
            key = self._tx.entity("call", call_id).key
            self._tx.buffer.insert(t.redacted_ids, {"call_key": key, "completion": completion})
        self._known[call_id] = known | some

    def without(self, prepared: Prepared) -> Prepared:
        """An event without the ids that are not kept."""
        call_id = call_of(prepared.event)
        if call_id is None:
            return prepared
        some = self.of([call_id]).get(call_id, frozenset()) | self.news(prepared)
        event = without_ids(prepared.event, some)
        if event is prepared.event:
            return prepared
        again = prepare(event, b"", requests=RequestMemory())
        return prepared._replace(event=event, shape=again.shape, answers=again.answers)


def call_of(event: AnyEvent) -> str | None:
    """The call whose token ids an event may bring."""
    if isinstance(event, Call):
        return event.id
    return event.call_id if isinstance(event, Completion) else None
