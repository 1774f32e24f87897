"""The rows of an event beyond its own: contexts, completions, members, edges."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, NamedTuple

from sqlalchemy import select

from tracestore.graph.messages import request_params, tool_uses
from tracestore.graph.model import CompletionKey
from tracestore.store import tables as t
from tracestore.store.derive import derive, load_state, read_contexts
from tracestore.store.prepare import Prepared, answer_piece
from tracestore.store.requests import Piece, Request, other_piece, take_apart
from tracestore.store.state import EpisodeState, LightCall
from tracestore.store.text import may_use_tools
from tracestore.store.transaction import Transaction
from tracestore.wire.agent import Agent
from tracestore.wire.base import Raw
from tracestore.wire.blob import Blob
from tracestore.wire.call import Call
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet
from tracestore.wire.completion import Completion, CompletionFields
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.events import AnyEvent
from tracestore.wire.reward import Reward
from tracestore.wire.tool_call import ToolCall

_PLACING = ("request", "dialect", "context", "parent_call_id", "parent_completion", "ordinal")
"""Fields that say where the context of a call lies and what it continues."""

_ANSWER_FIELDS = tuple(CompletionFields.model_fields)
_PLAIN_ANSWER_FIELDS = ("finish_reason", "partial", "stop_token_stripped")

_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Parts:
    """Writes into one transaction; `finish` before it ends."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.agreed: dict[CompletionKey, tuple[CompletionFields, CompletionFields]] = {}
        """Completions posted before and named by the event in hand: what is stored, and the two merged."""
        self._touched: dict[int, EpisodeState] = {}
        self._unsettled: dict[int, list[AnyEvent]] = {}

    def state(self, episode_key: int) -> EpisodeState:
        """The contexts of an episode."""
        states = self._tx.memory.states
        state: EpisodeState | None = states.pop(episode_key, None)
        if state is None:
            if self._tx.buffer.fresh(t.episode, episode_key) is not None:
                state = EpisodeState(episode_key)
            else:
                self._tx.flush()
                state = load_state(self._tx, episode_key)
        states[episode_key] = state
        return state

    def _touch(self, episode_id: str) -> EpisodeState:
        state = self.state(self._tx.entity("episode", episode_id).key)
        self._touched[state.episode_key] = state
        return state

    def finish(self) -> None:
        for state in self._touched.values():
            state.break_circles(self._tx)

    # --- By kind ----------------------------------------------------------------------------------

    def columns(self, merged: AnyEvent) -> dict[str, Any]:
        """Columns of the event's own row that are worked out from several fields."""
        if isinstance(merged, Reward):
            return {"target": merged.target.finest}
        if isinstance(merged, Blob):
            self._know_blob(merged)
            return {} if merged.shape is None else {"shape": ",".join(map(str, merged.shape))}
        return {}

    def write(
        self, prepared: Prepared, merged: AnyEvent, news: Set[str], *, key: int, is_first: bool
    ) -> None:
        """Everything but the event's own row."""
        if isinstance(merged, Call):
            self._call(prepared, merged, news, key, is_first)
        elif isinstance(merged, Agent):
            self.know_parent(merged)
            self._spawn_edge(merged, key)
        elif isinstance(merged, Episode):
            self._fork_edge(merged, key)
        elif isinstance(merged, ContextEdit):
            self._context_edit(merged, key)
        elif isinstance(merged, CandidateSet):
            self._members(merged, key)
        elif isinstance(merged, CandidateSelection):
            self._choices(merged, key)
        elif isinstance(merged, ToolCall) and merged.tool_call_id is not None:
            label = (merged.call_id, merged.completion, merged.tool_call_id)
            state = self._touch(merged.episode_id)
            if label in state.to_execute:
                state.to_execute.discard(label)
                state.executed[label] = key
            elif "tool_call_id" in news and not is_first:
                # Its other half did not name the tool use, so it has a row apart from the sampled one.
                sampled = state.sampled.pop(label, None)
                if sampled is None:
                    state.executed.setdefault(label, key)
                else:
                    self._join(sampled, key)

    def know_parent(self, merged: AnyEvent) -> None:
        """What parents say before their rows do, so that no circle is closed in between."""
        if isinstance(merged, Call):
            parent_id = merged.parent_call_id
        elif isinstance(merged, Agent):
            parent_id = merged.parent_agent_id
        else:
            return
        key = self._tx.entity(merged.kind, merged.id).key
        self._tx.memory.parents[key] = self._key(merged.kind, parent_id)

    def _key(self, kind: str, id_: str | None) -> int | None:
        return None if id_ is None else self._tx.entity(kind, id_).key

    # --- Calls ------------------------------------------------------------------------------------

    def unsettles(self, merged: Call, earlier: AnyEvent) -> None:
        """Read the episode back where a later phase of a call moves the context its first one was given.

        This must happen before anything of the event is written: afterwards the old context is gone.
        """
        if any(getattr(merged, name) != getattr(earlier, name) for name in _PLACING):
            episode_key = self._tx.entity("episode", merged.episode_id).key
            # The state too: it is read from rows that the event in hand is about to change.
            self.state(episode_key)
            self._unsettled[episode_key] = read_contexts(self._tx, episode_key)

    def _call(self, prepared: Prepared, merged: Call, news: Set[str], key: int, is_first: bool) -> None:
        tx = self._tx
        state = self._touch(merged.episode_id)
        self.know_parent(merged)
        request = None
        if merged.request is not None and not news.isdisjoint(("request", "dialect")):
            request = self._request(prepared, merged)
            tx.buffer.update(t.call, key, self._request_columns(request))
        if "attempts" in news:
            self._attempts(merged, key)
        bodies: dict[CompletionKey, CompletionFields] = {}
        if "completions" in news:
            bodies = {(merged.id, index): body for index, body in enumerate(merged.completions or ())}
            tx.buffer.update(t.call, key, {"num_completions": len(bodies)})
        if state.episode_key not in self._unsettled and is_first:
            state.add_call(
                tx, LightCall.of(merged), key=key, messages=() if request is None else request.messages
            )
        changes = {
            name: self._answer_row(state, name, key, body, piece)
            for (name, body), piece in zip(bodies.items(), prepared.answers if bodies else (), strict=True)
        }
        if state.episode_key not in self._unsettled:
            self._answers_known(state, changes)
            for ids, is_delta in ((merged.prompt_token_ids, False), (merged.prompt_token_ids_delta, True)):
                if ids is not None and not news.isdisjoint(("prompt_token_ids", "prompt_token_ids_delta")):
                    state.add_prompt_ids(tx, merged.id, ids, is_delta=is_delta)
            self._answer_ids(state, changes)
        self._settle(state, merged)

    def _request(self, prepared: Prepared, merged: Call) -> Request:
        known = prepared.request
        if known is not None and known.raw == merged.request and known.dialect == merged.dialect:
            return known
        # It came with the other phase, or its dialect did.
        assert merged.request is not None
        return take_apart(merged.request, merged.dialect)

    def _request_columns(self, request: Request) -> dict[str, Any]:
        tx = self._tx
        skeleton = tx.intern(request.skeleton).key
        parameters = tx.memory.parameters.get(skeleton)
        if parameters is None:
            parameters = tx.memory.parameters[skeleton] = _parameters(Raw(request.raw))
        return {
            "skeleton_key": skeleton,
            "tools_key": None if request.tools is None else tx.intern(request.tools).key,
            "own_messages": len(request.messages),
            **parameters,
        }

    def _attempts(self, call: Call, key: int) -> None:
        attempts = call.attempts or ()
        self._tx.buffer.update(t.call, key, {"num_attempts": len(attempts)})
        for position, attempt in enumerate(attempts):
            named = {name: getattr(attempt, name) for name in type(attempt).model_fields}
            row = {"call_key": key, "position": position, **named}
            self._tx.buffer.replace(t.call_attempt, (key, position), row, owner=(t.call, key))

    def _settle(self, state: EpisodeState, event: Call | Completion) -> None:
        """Derive the contexts of an episode again where the event in hand undid what was settled."""
        events = self._unsettled.pop(state.episode_key, None)
        if events is None:
            if not state.is_stale:
                return
            events = read_contexts(self._tx, state.episode_key)
        # The event itself is not in the log yet; of a call an earlier phase may be.
        others = [one for one in events if (one.kind, one.id) != (event.kind, event.id)]
        again = derive(self._tx, state, [*others, event])
        self._tx.memory.states[state.episode_key] = again
        self._touched[state.episode_key] = again

    # --- Completions ------------------------------------------------------------------------------

    def completion_event(self, event: Completion, message: Piece | None) -> int:
        """The rows of a completion posted on its own; returns the key of the event's row."""
        tx = self._tx
        state = self._touch(event.episode_id)
        call = tx.entity("call", event.call_id)
        if call.is_placeholder:
            # The call itself has not come, but now it is known where it must lie.
            tx.buffer.update(t.call, call.key, {"episode_key": state.episode_key})
        name = (event.call_id, event.index)
        changes = {name: self._answer_row(state, name, call.key, event, message)}
        key = tx.new_key()
        row = {
            "key": key,
            "id": event.id,
            "completion_key": state.completion_keys[name],
            "at": event.at,
            "non_finite": event.non_finite,
            "meta_key": None if event.meta is None else tx.intern(other_piece(event.meta, "meta")).key,
            "pos": tx.pos,
        }
        tx.buffer.insert(t.completion_event, row)
        self._answers_known(state, changes)
        self._answer_ids(state, changes)
        self._settle(state, event)
        return key

    def _answer_row(
        self,
        state: EpisodeState,
        name: CompletionKey,
        call_key: int,
        posted: CompletionFields,
        message: Piece | None,
    ) -> _Change:
        """Write what a post says of a completion; returns it with what of it is new.

        Args:
            message: the posted message, as a content.
        """
        tx = self._tx
        before, body = self.agreed.pop(name, (None, posted))
        if body.message != posted.message:
            message = answer_piece(body)
        values = vars(body)
        news = {
            field
            for field in _ANSWER_FIELDS
            if values[field] is not None and (before is None or getattr(before, field) != values[field])
        }
        row: dict[str, Any] = {field: values[field] for field in _PLAIN_ANSWER_FIELDS if field in news}
        if "message" in news and message is not None:
            row["message_key"] = tx.intern(message).key
            self._sampled_tool_calls(state, name, call_key, message)
        if "top_logprobs" in news and body.top_logprobs is not None:
            row["top_logprobs_key"] = tx.intern(other_piece(body.top_logprobs, "top_logprobs")).key
        key = state.completion_keys.get(name)
        if key is None:
            key = tx.new_key()
            fixed = {"key": key, "call_key": call_key, "completion": name[1], "pos": tx.pos}
            tx.buffer.insert(t.completion, {**fixed, **row})
            state.add_answer(name, row_key=key, call_key=call_key, message=message)
        elif row:
            tx.buffer.update(t.completion, key, row)
            if "message" in news and message is not None:
                state.add_message(name, message)
        for position, run in enumerate(body.versions or () if "versions" in news else ()):
            fixed = {"completion_key": key, "position": position}
            values = {"start": run.start, "name": run.name, "version": run.version}
            tx.buffer.replace(t.version_run, (key, position), {**fixed, **values}, owner=(t.completion, key))
        return _Change(body, news)

    def _answers_known(self, state: EpisodeState, changes: dict[CompletionKey, _Change]) -> None:
        for call_id in {call_id for call_id, _ in changes}:
            state.answers_changed(self._tx, call_id)
        state.relink(self._tx)

    def _answer_ids(self, state: EpisodeState, changes: dict[CompletionKey, _Change]) -> None:
        for name, change in changes.items():
            body = change.body
            if "token_ids" in change.news and body.token_ids is not None:
                state.add_answer_ids(self._tx, name, body.token_ids, body.logprobs)
            elif "logprobs" in change.news and body.logprobs is not None:
                state.add_logprobs(self._tx, name, body.logprobs)

    # --- Tool calls -------------------------------------------------------------------------------

    def _sampled_tool_calls(
        self, state: EpisodeState, name: CompletionKey, call_key: int, message: Piece
    ) -> None:
        """The tool uses inside a message; one that was executed already gets its place in the message."""
        uses = self._tx.memory.contents.uses_of(message)
        if uses is None:
            if not may_use_tools(message.data):
                return
            call = state.calls.get(name[0])
            uses = tool_uses(Raw(message.data), "openai_chat" if call is None else call.dialect)
        for position, use in enumerate(uses):
            sampled = {
                "position": position,
                "sampled_name": use.name,
                "sampled_arguments": use.arguments,
                "completion": name[1],
            }
            label = (*name, use.id or "")
            executed = state.executed.pop(label, None)
            if executed is not None:
                self._tx.buffer.update(t.tool_call, executed, sampled)
                continue
            key = self._tx.new_key()
            self._tx.buffer.insert(
                t.tool_call,
                {
                    "key": key,
                    "episode_key": state.episode_key,
                    "call_key": call_key,
                    "tool_call_id": use.id,
                    "pos": self._tx.pos,
                    **sampled,
                },
            )
            if use.id is not None:
                state.sampled.setdefault(label, key)

    def sampled_tool_call(self, event: ToolCall) -> int | None:
        """The row of the tool use that an execution belongs to, where its message has come."""
        if event.tool_call_id is None:
            return None
        state = self._touch(event.episode_id)
        label = (event.call_id, event.completion, event.tool_call_id)
        sampled = state.sampled.pop(label, None)
        if sampled is None:
            state.to_execute.add(label)
        return sampled

    def _join(self, sampled: int, executed: int) -> None:
        """Move what the message says of a tool use to the row of its execution."""
        columns = ("position", "sampled_name", "sampled_arguments", "completion")
        said = {name: self._tx.value(t.tool_call, sampled, name) for name in columns}
        self._tx.buffer.update(t.tool_call, executed, said)
        self._tx.buffer.replace(t.tool_call, sampled, None, owner=(t.tool_call, sampled))

    # --- Members and choices ----------------------------------------------------------------------

    def _members(self, event: CandidateSet, key: int) -> None:
        for index, member in enumerate(event.members):
            named = member.model_fields_set
            row = {
                "candidate_set_key": key,
                "member": index,
                "call_key": self._key("call", member.call_id),
                "completion": member.completion if "completion" in named else None,
                "agent_key": self._key("agent", member.agent_id),
                "score": member.score,
            }
            self._tx.buffer.insert(t.candidate_member, row)

    def _choices(self, event: CandidateSelection, key: int) -> None:
        lists: tuple[tuple[str, Iterable[tuple[int, float | None]]], ...] = (
            ("selected", ((member, None) for member in event.selected)),
            ("continued", ((member, None) for member in event.continued or ())),
            ("score", ((score.member, score.score) for score in event.scores or ())),
        )
        for part, choices in lists:
            for position, (member, score) in enumerate(choices):
                row = {"part": part, "position": position, "member": member, "score": score}
                self._tx.buffer.insert(t.candidate_choice, {"candidate_selection_key": key, **row})

    def _context_edit(self, event: ContextEdit, key: int) -> None:
        lists = {"replaced": event.replaced_call_ids or (), "kept": event.kept_call_ids or ()}
        for part, call_ids in lists.items():
            for position, call_id in enumerate(call_ids):
                call_key = self._key("call", call_id)
                row = {"context_edit_key": key, "part": part, "position": position, "call_key": call_key}
                self._tx.buffer.insert(t.context_edit_member, row)
                kind = "copy" if part == "kept" else "replaced"
                self._edit_edge(event, key, kind, position=position, from_call_key=call_key)
        if event.before_call_id is not None:
            self._edit_edge(event, key, "edit_before", from_call_key=self._key("call", event.before_call_id))
        if event.after_call_id is not None:
            self._edit_edge(event, key, "edit_after", to_call_key=self._key("call", event.after_call_id))
        if event.author_call_id is not None:
            author = self._key("call", event.author_call_id)
            self._edit_edge(
                event, key, "summary", from_call_key=author, from_completion=event.author_completion
            )

    # --- Edges ------------------------------------------------------------------------------------

    def _edit_edge(self, event: ContextEdit, key: int, kind: str, *, position: int = 0, **ends: Any) -> None:
        self._edge(kind, key, event.episode_id, position=position, context_edit_key=key, **ends)

    def _spawn_edge(self, agent: Agent, key: int) -> None:
        call = self._key("call", agent.spawned_by_call_id)
        parent = self._key("agent", agent.parent_agent_id)
        if call is not None or parent is not None:
            self._edge(
                "spawn",
                key,
                agent.episode_id,
                from_call_key=call,
                from_completion=agent.spawned_by_completion,
                from_agent_key=parent,
                tool_call_id=agent.spawned_by_tool_call_id,
                to_agent_key=key,
            )

    def _fork_edge(self, episode: Episode, key: int) -> None:
        call = self._key("call", episode.forked_from_call_id)
        origin = self._key("episode", episode.forked_from_episode_id)
        if call is not None or origin is not None:
            ends: dict[str, Any] = {"from_call_key": call, "from_episode_key": origin}
            self._edge("fork", key, episode.id, to_episode_key=key, **ends)

    def _edge(self, kind: str, owner: int, episode_id: str, *, position: int = 0, **columns: Any) -> None:
        row = {
            "kind": kind,
            "owner_key": owner,
            "position": position,
            "episode_key": self._tx.entity("episode", episode_id).key,
            **columns,
        }
        self._tx.buffer.replace(t.edge, (kind, owner, position), row, owner=(_OWNERS[kind], owner))

    def _know_blob(self, event: Blob) -> None:
        tx = self._tx
        if event.hash in tx.memory.blobs:
            return
        query = select(t.blob.c.hash).where(t.blob.c.project_id == tx.project_id, t.blob.c.hash == event.hash)
        if tx.connection.execute(query).first() is None:
            tx.buffer.insert(t.blob, {"hash": event.hash, "size": event.size})
        tx.memory.blobs.add(event.hash)


_OWNERS = {
    "spawn": t.agent,
    "fork": t.episode,
    **dict.fromkeys(("edit_before", "edit_after", "summary", "replaced", "copy"), t.context_edit),
}


class _Change(NamedTuple):
    """What is known of a completion after a post, and what of it that post brought."""

    body: CompletionFields
    news: Set[str]


def _parameters(request: Raw) -> dict[str, Any]:
    """The columns for sampling parameters; a value of another type than its column is left to the request."""
    values = request_params(request)
    columns: dict[str, Any] = {
        "max_tokens": next((values[name] for name in _MAX_TOKENS if name in values), None),
        **{name: values.get(name) for name in ("temperature", "top_p", "top_k", "n")},
    }
    for name, value in columns.items():
        is_real = name in ("temperature", "top_p")
        fits = type(value) in ((int, float) if is_real else (int,)) and abs(value) < 2**63
        columns[name] = (float(value) if is_real else value) if fits else None
    return columns
