"""Wire events of an import -> the fidelity report: what was read, inferred, not understood, and how much.

An event may come twice, and in a newer revision; a context is sent again with every call. To count each once
takes a memory of what was counted, which is a temporary SQLite file: imports larger than memory pass through.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tracestore.cli.common import table
from tracestore.importers.notes import Notes

if TYPE_CHECKING:
    from tracestore.graph.messages import Message
    from tracestore.wire.events import AnyEvent

USAGE = (
    "prompt_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "cost_usd",
)
_NAMED = ("group", "episode", "agent", "call", "tool_call", "reward", "gap")

_TABLES = """
CREATE TABLE event (kind TEXT, id TEXT, revision INTEGER, facts TEXT, PRIMARY KEY (kind, id)) WITHOUT ROWID;
CREATE TABLE usage (call_id TEXT PRIMARY KEY, revision INTEGER, facts TEXT) WITHOUT ROWID;
CREATE TABLE answer (call_id TEXT, place INTEGER, revision INTEGER, tokens INTEGER, nodes TEXT,
                     PRIMARY KEY (call_id, place)) WITHOUT ROWID;
CREATE TABLE prompt (call_id TEXT PRIMARY KEY, node TEXT) WITHOUT ROWID;
CREATE TABLE node (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE choice (set_id TEXT, member INTEGER, PRIMARY KEY (set_id, member)) WITHOUT ROWID;
"""

_ANSWERED = """
INSERT INTO answer VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    revision = excluded.revision,
    tokens = coalesce(excluded.tokens, tokens),
    nodes = CASE excluded.nodes WHEN '[]' THEN nodes ELSE excluded.nodes END
WHERE excluded.revision >= revision
"""


def _ledger() -> sqlite3.Connection:
    ledger = sqlite3.connect("")  # an unnamed file that SQLite removes
    ledger.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _TABLES)
    return ledger


class _Context(NamedTuple):
    root: str
    messages: Sequence[Message]
    keys: list[str]


_MAX_AGENTS = 64


@dataclass
class Fidelity:
    """Counts events as they pass. An id counts once, and what its highest revision says holds."""

    notes: Notes = field(default_factory=Notes)
    _ledger: sqlite3.Connection = field(default_factory=_ledger)
    _last: dict[str, _Context] = field(default_factory=dict)
    """Agent -> its last context; of the agents that called last."""

    def close(self) -> None:
        self._ledger.close()

    def add(self, event: AnyEvent) -> None:
        """Count one event."""
        if event.kind == "context_edit":
            self._know(event, {"edit": event.edit})
        elif event.kind == "candidate_set":
            self._know(event, {"members": len(event.members)})
        elif event.kind == "gap":
            self._know(event, {"cause": event.cause})
        elif event.kind == "candidate_selection":
            self._know(event, {})
            self._ledger.executemany(
                "INSERT OR IGNORE INTO choice VALUES (?, ?)",
                [(event.candidate_set_id, member) for member in event.selected],
            )
        else:
            self._know(event, {})
        if event.kind == "call":
            self._call(event)
        elif event.kind == "completion":
            self._answer(
                event.call_id, event.index, event, dialect="openai_chat", revision=event.revision or 0
            )

    def _know(self, event: AnyEvent, facts: dict[str, Any]) -> None:
        self._ledger.execute(
            "INSERT INTO event VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET revision = excluded.revision, "
            "facts = excluded.facts WHERE excluded.revision >= revision",
            (event.kind, event.id, event.revision or 0, json.dumps(facts)),
        )

    def _call(self, event: Any) -> None:
        revision = event.revision or 0
        if event.usage is not None:
            facts = {name: getattr(event.usage, name) for name in USAGE}
            self._ledger.execute(
                "INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET revision = excluded.revision, "
                "facts = excluded.facts WHERE excluded.revision >= revision",
                (event.id, revision, json.dumps(facts)),
            )
        if event.phase != "end":
            self._prompt(event)
        for index, body in enumerate(event.completions or ()):
            self._answer(event.id, index, body, dialect=event.dialect, revision=revision)

    # --- Messages -----------------------------------------------------------------------------------

    def _prompt(self, event: Any) -> None:
        from tracestore.graph.messages import messages_of

        root, messages = self._root(event), messages_of(event.request, event.dialect)
        before = self._last.pop(event.agent_id, None)
        # Mostly a context begins with the one that its agent sent before.
        known = 0 if before is None or before.root != root else _common(before.messages, messages)
        keys = [] if before is None else before.keys[:known]
        new = list(_path(keys[-1] if keys else root, messages[known:]))
        keys = keys + new
        self._ledger.executemany("INSERT OR IGNORE INTO node VALUES (?)", [(key,) for key in new])
        self._ledger.execute(
            "INSERT OR REPLACE INTO prompt VALUES (?, ?)", (event.id, keys[-1] if keys else root)
        )
        self._last[event.agent_id] = _Context(root, messages, keys)
        if len(self._last) > _MAX_AGENTS:
            del self._last[next(iter(self._last))]

    def _root(self, event: Any) -> str:
        """The place after which the messages of a call's own request stand."""
        if event.context == "whole":
            return str(event.episode_id)
        answered = self._ledger.execute(
            "SELECT nodes FROM answer WHERE call_id = ? AND place = ?",
            (event.parent_call_id, event.parent_completion or 0),
        ).fetchone()
        nodes = [] if answered is None else json.loads(answered[0])
        return str(nodes[-1]) if nodes else self._prompt_of(event.parent_call_id)

    def _prompt_of(self, call_id: str) -> str:
        found = self._ledger.execute("SELECT node FROM prompt WHERE call_id = ?", (call_id,)).fetchone()
        return call_id if found is None else str(found[0])

    def _answer(self, call_id: str, place: int, body: Any, *, dialect: Any, revision: int) -> None:
        from tracestore.graph.messages import answer_messages

        nodes = list(_path(self._prompt_of(call_id), answer_messages(body.message, dialect)))
        tokens = None if body.token_ids is None else len(body.token_ids)
        self._ledger.execute(_ANSWERED, (call_id, place, revision, tokens, json.dumps(nodes)))

    # --- The report ---------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """The report, without what became of the events in a store.

        A message counts once at each place of a conversation, however often its context is sent; each answer
        counts on its own, equal ones too.
        """
        num = dict(self._ledger.execute("SELECT kind, count(*) FROM event GROUP BY kind"))
        edits = self._by("edit", kind="context_edit")
        return {
            "files": dict(sorted(self.notes.files.items())),
            **{f"{kind}s": num.get(kind, 0) for kind in _NAMED[:5]},
            "rows": {name: num for name, num in sorted(self.notes.rows.items()) if num},
            "messages": self._num_messages(),
            "context_edits": edits,
            "compactions": edits.get("compaction", 0),
            "candidates": self._candidates(),
            "usage": {name: self._total(name) for name in USAGE},
            "sampled_tokens": self._one("SELECT coalesce(sum(tokens), 0) FROM answer"),
            **{f"{kind}s": num.get(kind, 0) for kind in _NAMED[5:]},
            "gap_causes": self._by("cause", kind="gap"),
            "inferred": {what: dict(evidence) for what, evidence in sorted(self.notes.inferred.items())},
            "not_understood": {
                name: leftover.facts() for name, leftover in sorted(self.notes.not_understood.items())
            },
            "warnings": dict(self.notes.warnings),
        }

    def _by(self, name: str, *, kind: str) -> dict[str, int]:
        """Events of a kind, by one of their facts."""
        return dict(
            self._ledger.execute(
                "SELECT json_extract(facts, ?) AS value, count(*) FROM event "
                "WHERE kind = ? GROUP BY value ORDER BY value",
                (f"$.{name}", kind),
            )
        )

    def _num_messages(self) -> int:
        written = self._one("SELECT coalesce(sum(json_array_length(nodes)), 0) FROM answer")
        read = self._one(
            "SELECT count(*) FROM node WHERE key NOT IN (SELECT value FROM answer, json_each(nodes))"
        )
        return int(written + read)

    def _candidates(self) -> dict[str, int]:
        sampled = self._one(
            "SELECT coalesce(sum(json_extract(facts, '$.members')), 0) FROM event "
            "WHERE kind = 'candidate_set'"
        )
        selected = self._one(
            "SELECT count(*) FROM choice JOIN event ON id = set_id WHERE kind = 'candidate_set'"
        )
        return {"sampled": sampled, "selected": selected, "not_selected": sampled - selected}

    def _total(self, name: str) -> Any:
        """The sum of what is known; None where nothing is."""
        return self._one("SELECT sum(json_extract(facts, ?)) FROM usage", f"$.{name}")

    def _one(self, query: str, *values: object) -> Any:
        return self._ledger.execute(query, values).fetchone()[0]


def _common(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Length of the common beginning of two contexts."""
    num = min(len(one), len(other))
    return next((place for place in range(num) if one[place] != other[place]), num)


def _path(root: str, messages: Iterable[Message]) -> Iterable[str]:
    """The places of messages that follow each other after a place."""
    from tracestore.graph.match import match_hash, node_key

    key = root.encode()
    for message in messages:
        key = node_key(key, match_hash(message.raw, role=message.role))
        yield key.hex()
        key = key.hex().encode()


# --- For people ------------------------------------------------------------------------------------

_SHOWN_CHARACTERS = 140
"""Of one example of what was not understood."""


def readable(facts: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a report for people: what is 0 or unknown is left out, long texts are cut.

    Args:
        facts: of `Fidelity.facts`, with `stored`, `duplicates` and `refused`.
    """
    yield from table(["read", ""], list(_counts(facts))).splitlines()[2:]
    for title, name in (
        ("files by format", "files"),
        ("rows read", "rows"),
        ("gap", "gap_causes"),
    ):
        yield from _section(["count", title], [(num, what) for what, num in facts[name].items()])
    inferred = [(num, what, by) for what, found in facts["inferred"].items() for by, num in found.items()]
    yield from _section(["count", "inferred", "from"], inferred)
    yield from _section(["count", "warning"], [(num, what) for what, num in facts["warnings"].items()])
    if facts["not_understood"]:
        yield from ("", "not understood, each with an example (--json has more):")
    for name, left in facts["not_understood"].items():
        yield f"{left['count']:>7,}  {name}"
        yield " " * 9 + _cut(left["examples"][0])


def _counts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    always = ("episodes", "calls")
    for name in ("groups", "episodes", "agents", "calls", "tool_calls", "messages"):
        if facts[name] or name in always:
            yield name.replace("_", " "), f"{facts[name]:,}"
    for edit, num in facts["context_edits"].items():
        yield f"{edit}s", f"{num:,}"
    if facts["candidates"]["sampled"]:
        yield "candidates", "{sampled:,}, {selected:,} of them selected".format(**facts["candidates"])
    for name, num in facts["usage"].items():
        if num is not None:
            yield name.replace("_", " "), f"{num:,.4f}" if isinstance(num, float) else f"{num:,}"
    if facts["sampled_tokens"]:
        yield "tokens with their ids", f"{facts['sampled_tokens']:,}"
    for name in ("rewards", "gaps"):
        if facts[name]:
            yield name, f"{facts[name]:,}"
    yield "stored now", f"{facts['stored']:,} events"
    yield "stored before", f"{facts['duplicates']:,} events"
    yield "refused", f"{facts['refused']:,}"


def _section(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    if rows:
        yield ""
        yield from table(columns, rows).splitlines()


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + " ..."
