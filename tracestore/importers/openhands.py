"""OpenHands conversations, V0 event streams and V1 (software-agent-sdk) folders -> episodes, one each.

    V1   base_state.json + events/event-00003-<id>.json, one event a file; or its events as lines or a list.
         {id, timestamp, source, kind, parent_id?}; kinds below. `leaf_event_id`: the branch that is shown.
    V0   sessions/<id>/events/3.json, one event a file; a trajectory (list or lines); a row of output.jsonl
         {instance_id, history, metadata, metrics, error, test_result}. An event is {id, timestamp, source,
         message, action + args | observation + content + extras, cause, tool_call_metadata, llm_metrics}.

Files of one folder (`events` beside `base_state.json`) are one conversation. Its id is that of the state,
else the folder's name where it is a hex UUID (which is the same), else made of the first event. Times have no
offset, so they stay text. The requests themselves are not recorded: they are rebuilt from the events by the
rules of the tool, and a gap says so.

- V0: an action of the agent with `tool_call_metadata.model_response` is a call with that response, verbatim;
  actions with the same response id are its parallel tool calls. A message of the agent is a call. Actions
  without metadata (before function calling) keep their own fields as the answer. An observation answers the
  action that `cause` names. Between a `delegate` action and the `delegate` observation that it caused
  everything is the subagent's: it shares the stream. `llm_metrics` are totals; `token_usages` names calls.
- V1: ActionEvents of one `llm_response_id` are one call (`thought`, `reasoning_content`, `thinking_blocks` of
  the first, `tool_call` of each); a MessageEvent of the agent is one, with `llm_message`. ObservationEvent,
  AgentErrorEvent and UserRejectObservation answer a `tool_call_id`. SystemPromptEvent has prompt and tools.
  Usage is told as totals (ConversationStateUpdateEvent `stats`, written just before the agent's event): what
  they grew by is the call's where `per_turn_token` confirms it. TokenEvents are noted: they name no call.
- `parent_id` (2026) makes the events a tree: an event whose parent is not the one before it goes back there.
- Condensation (V0 action `condensation`, V1 kind Condensation): forgotten_event_ids (V0 also start and end
  id) leave the view, the summary stands in it at summary_offset as a user message. The call after it is
  whole. V1 names the response that wrote the summary: it is a call of the condenser.
- V1 subagents (`task`, `delegate` tools) have conversations of their own, which the parent's file does not
  name: each is an agent with its prompt and its finding, and a gap.
- `execution_status`: finished is ok, error and stuck are failed; anything else is no end. A row's `error` is
  an infra_error; `resolved` (in the row, `report` or `test_result`) is its reward.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from tracestore.importers.documents import Record, records
from tracestore.importers.format import Format, Head, Source, Sources
from tracestore.importers.items import Item, content_id, safe_id
from tracestore.importers.notes import Notes
from tracestore.importers.openhands_v0 import ConversationV0
from tracestore.importers.openhands_v1 import ConversationV1
from tracestore.importers.openhands_view import NAME, Conversation, Event

_EVENT_FILE = re.compile(r"^(?:event-)?(\d+)(?:-.*)?\.json$")


def _is_v1(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= {"id", "timestamp", "source", "kind"}


def _is_v0(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and ("action" in value or "observation" in value)
        and ("args" in value or "content" in value)
        and ("timestamp" in value or "source" in value)
    )


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("agent"), dict) and "persistence_dir" in value


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and "instance_id" in value and _is_history(value.get("history"))


def _is_history(value: Any) -> bool:
    """A list of events; in rows of 2024 of [action, observation] pairs."""
    first = value[0] if isinstance(value, list) and value else None
    return any(map(_is_v0, first)) if isinstance(first, list) else _is_v0(first) or _is_v1(first)


def _recognises(head: Head) -> bool:
    first = head.first
    return _is_v1(first) or _is_v0(first) or _is_state(first) or _is_row(first) or _is_history(first)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls and context edits of the sources, a conversation at a time."""
    folders: dict[str, list[Source]] = defaultdict(list)
    for source in sources:
        path = PurePosixPath(source.name.replace("\\", "/"))
        in_events = path.parent.name in ("events", "event_cache") and _EVENT_FILE.match(path.name)
        folder = path.parent.parent if in_events else path.parent
        is_part = bool(in_events) or path.name == "base_state.json"
        folders[str(folder) if is_part else source.name].append(source)
    for name in sorted(folders):
        yield from _folder(name, folders[name], notes)


def _folder(folder: str, sources: list[Source], notes: Notes) -> Iterator[Item]:
    state: Event | None = None
    found: list[Event] = []
    for source in sorted(sources, key=_place):
        for record in records(source, notes=notes):
            if _is_row(record.value):
                yield from _row(record, notes)
            elif _is_state(record.value):
                notes.rows["openhands/base state"] += 1
                state = Event(record.value, record.at)
            else:
                found += _events(record, notes)
    if state is not None or found:
        conversation = _conversation(_named(folder, state, found), found, notes)
        yield from conversation.items(_once(found, notes), state)


def _conversation(name: str, found: list[Event], notes: Notes) -> Conversation:
    is_v0 = any("kind" not in event.value for event in found)
    return ConversationV0(name, notes) if is_v0 else ConversationV1(name, notes)


def _place(source: Source) -> tuple[int, str]:
    name = PurePosixPath(source.name).name
    match = _EVENT_FILE.match(name)
    return (int(match.group(1)) if match else -1), source.name


def _events(record: Record, notes: Notes) -> Iterator[Event]:
    given = record.value if isinstance(record.value, list) else [record.value]
    for place, one in enumerate(given):
        at = record.at if one is record.value else f"{record.at}, event {place}"
        if _is_v1(one):
            notes.rows[f"openhands/{one['kind']}"] += 1
            yield Event(one, at)
        elif _is_v0(one):
            kind = "action" if "action" in one else "observation"
            notes.rows[f"openhands/{kind} {one[kind]}"] += 1
            yield Event(one, at)
        elif isinstance(one, list):
            yield from _events(Record(one, at, record.line, record.text), notes)
        else:
            notes.refuse(at, "no event: it has kind (V1), action or observation (V0)")


def _named(folder: str, state: Event | None, found: list[Event]) -> str:
    if state is not None and isinstance(state.value.get("id"), str):
        return safe_id(state.value["id"])
    name = PurePosixPath(folder).name
    if re.fullmatch(r"[0-9a-f]{32}", name):
        return str(uuid.UUID(name))
    first = found[0].value if found else {}
    return safe_id(f"{NAME}-{first['id']}") if _is_v1(first) else content_id(NAME, first)


def _once(found: list[Event], notes: Notes) -> list[Event]:
    """Each event once: pages of a cache repeat what the files of single events say."""
    seen: dict[Any, Event] = {}
    kept = []
    for event in found:
        name = event.value.get("id")
        known = seen.setdefault(name, event) if isinstance(name, (str, int)) else event
        if known is event:
            kept.append(event)
        elif known.value != event.value:
            notes.leftover("openhands: another event of an id that was read", event.value, at=event.at)
    is_v0 = all(isinstance(event.value.get("id"), int) for event in kept)
    return sorted(kept, key=lambda event: event.value["id"]) if is_v0 else kept


def _row(record: Record, notes: Notes) -> Iterator[Item]:
    """A row of output.jsonl: an episode with its task and what became of it."""
    notes.rows["openhands/row"] += 1
    row = dict(record.value)
    history = list(_events(Record(row.pop("history"), record.at, record.line, record.text), notes))
    name = content_id(NAME, [row.get("instance_id"), history[0].value if history else row])
    conversation = _conversation(name, history, notes)
    yield from conversation.items(_once(history, notes), None, row=Event(row, record.at))


FORMAT = Format("openhands", "OpenHands conversations (V0 and V1)", _recognises, read)
