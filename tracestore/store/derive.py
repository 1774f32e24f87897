"""Rows -> the state of one episode: read back as it was, or derived again from the episode's events."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import and_, func, or_, select

from tracestore.graph.match import match_hash
from tracestore.graph.merge import merge
from tracestore.graph.model import CompletionKey, Link
from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.contents import Interned
from tracestore.store.load import load_events, read_contents
from tracestore.store.prepare import answer_piece
from tracestore.store.requests import message_piece, take_apart
from tracestore.store.runs import Run
from tracestore.store.state import EpisodeState, LightCall, Place
from tracestore.store.transaction import Transaction
from tracestore.wire.call import Call, Dialect
from tracestore.wire.completion import CompletionFields
from tracestore.wire.events import AnyEvent


def read_contexts(tx: Transaction, episode_key: int) -> list[AnyEvent]:
    """The calls and completions of an episode, as they are stored up to here."""
    tx.flush()
    return load_events(tx.connection, tx.project_id, episode_key, kinds=("call", "completion"))


def derive(tx: Transaction, state: EpisodeState, events: list[AnyEvent]) -> EpisodeState:
    """Places, links and token runs of an episode from the events of its calls, instead of what is stored."""
    tx.flush()
    _forget(tx, state)
    again = EpisodeState(state.episode_key)
    again.sampled, again.executed = state.sampled, state.executed
    again.run_keys = {
        **{call_id: run.key for call_id, run in state.prompt_runs.items()},
        **{name: run.key for name, run in state.answer_runs.items()},
    }
    merged = merge(events)
    calls: dict[str, Call] = merged.of("call")
    for name, body in merged.completions.items():
        again.add_answer(
            name,
            row_key=state.completion_keys[name],
            call_key=state.call_keys[name[0]],
            message=answer_piece(body),
        )
    for call in calls.values():
        request = None if call.request is None else take_apart(call.request, call.dialect)
        messages = () if request is None else request.messages
        again.add_call(tx, LightCall.of(call), key=state.call_keys[call.id], messages=messages)
    again.relink(tx)
    # Prompts first: a completion is based on its prompt.
    for call in calls.values():
        if call.prompt_token_ids is not None:
            again.add_prompt_ids(tx, call.id, call.prompt_token_ids, is_delta=False)
        elif call.prompt_token_ids_delta is not None:
            again.add_prompt_ids(tx, call.id, call.prompt_token_ids_delta, is_delta=True)
        for name in again.answers.get(call.id, ()):
            _add_ids(tx, again, name, merged.completions[name])
    for name, body in merged.completions.items():
        if name[0] not in calls:
            _add_ids(tx, again, name, body)
    return again


def _add_ids(tx: Transaction, state: EpisodeState, name: CompletionKey, body: CompletionFields) -> None:
    if body.token_ids is not None:
        state.add_answer_ids(tx, name, body.token_ids, body.logprobs)


def _forget(tx: Transaction, state: EpisodeState) -> None:
    """Delete everything derived of an episode. Token runs stay, to be based anew."""
    run = tx.connection.execute
    here = tx.project_id
    calls = list(state.call_keys.values())
    for chunk in chunks(calls):
        this = (t.call.c.project_id == here, t.call.c.key.in_(chunk))
        run(t.call.update().where(*this).values(dict.fromkeys(_DERIVED_CALL_COLUMNS)))
        run(
            t.completion.update()
            .where(t.completion.c.project_id == here, t.completion.c.call_key.in_(chunk))
            .values(node_key=None)
        )
        run(
            t.pending_message.delete().where(
                t.pending_message.c.project_id == here, t.pending_message.c.call_key.in_(chunk)
            )
        )
    run(t.node.delete().where(t.node.c.project_id == here, t.node.c.episode_key == state.episode_key))


_DERIVED_CALL_COLUMNS = (
    *("prompt_node_key", "context_messages"),
    *("link_call_key", "link_completion", "link", "link_exact"),
)


# --- Read back as it was -----------------------------------------------------------------------------


def load_state(tx: Transaction, episode_key: int) -> EpisodeState:
    """The state of an episode that is not in memory; everything is written."""
    state = EpisodeState(episode_key)
    reader = _Reader(tx, state)
    reader.places()
    reader.calls()
    reader.completions()
    reader.runs()
    reader.pending()
    reader.tool_calls()
    return state


class _Reader:
    def __init__(self, tx: Transaction, state: EpisodeState) -> None:
        self._tx = tx
        self._state = state
        self._here = tx.project_id
        self._call_ids: dict[int, str] = {}
        self._places: dict[int, Place] = {}
        self._prompt_runs: dict[str, int] = {}
        self._answer_runs: dict[CompletionKey, int] = {}

    def places(self) -> None:
        c = t.node.c
        rows = self._tx.connection.execute(
            select(c.key, c.parent_key, c.content_key, c.match_key, c.depth).where(
                c.project_id == self._here, c.episode_key == self._state.episode_key
            )
        )
        # Sorted here: asked to, SQLite would walk the primary key of the whole project instead.
        for key, parent_key, content_key, match, depth in sorted(map(tuple, rows)):
            place = self._places[key] = Place(key, match, depth)
            self._state.know_place(place, self._places.get(parent_key), content_key)

    def calls(self) -> None:
        c, parent, link, agent = t.call.c, t.call.alias("parent"), t.call.alias("link"), t.agent
        rows = self._tx.connection.execute(
            select(
                *(c.key, c.id, c.is_placeholder, agent.c.id, c.ordinal, c.dialect, c.context, parent.c.id),
                *(c.parent_completion, c.prompt_node_key, c.context_messages, c.prompt_run_key),
                *(link.c.id, c.link_completion, c.link, c.link_exact),
            )
            .select_from(
                t.call.outerjoin(agent, _is_row(agent, c.agent_key))
                .outerjoin(parent, _is_row(parent, c.parent_call_key))
                .outerjoin(link, _is_row(link, c.link_call_key))
            )
            .where(c.project_id == self._here, c.episode_key == self._state.episode_key)
        )
        for key, id_, is_placeholder, *row in sorted(rows, key=lambda row: row.key):
            self._call_ids[key] = id_
            self._state.call_keys[id_] = key
            if not is_placeholder:
                self._call(id_, *row)

    def _call(
        self,
        id_: str,
        agent_id: str,
        ordinal: int | None,
        dialect: Dialect | None,
        context: Literal["whole", "delta"] | None,
        parent_id: str | None,
        parent_completion: int | None,
        prompt_node_key: int | None,
        context_messages: int | None,
        prompt_run_key: int | None,
        link_id: str | None,
        link_completion: int | None,
        how: Any,
        exact: bool | None,
    ) -> None:
        call = LightCall(
            id=id_,
            agent_id=agent_id,
            ordinal=ordinal,
            dialect=dialect or "openai_chat",
            context=context or "whole",
            parent_call_id=parent_id,
            parent_completion=parent_completion,
        )
        place = None if prompt_node_key is None else self._places[prompt_node_key]
        parent = None if link_id is None else (link_id, link_completion or 0)
        self._state.know_call(
            call,
            is_placed=context_messages is not None,
            place=place,
            link=Link(parent, how, bool(exact)),
        )
        if prompt_run_key is not None:
            self._prompt_runs[id_] = prompt_run_key

    def completions(self) -> None:
        c = t.completion.c
        rows = self._tx.connection.execute(
            select(c.key, c.call_key, c.completion, c.node_key, c.run_key)
            .select_from(t.completion.join(t.call, _is_row(t.call, c.call_key)))
            .where(c.project_id == self._here, t.call.c.episode_key == self._state.episode_key)
        )
        for key, call_key, index, node_key, run_key in rows:
            name = (self._call_ids[call_key], index)
            self._state.know_answer(name, row_key=key, call_key=call_key)
            if node_key is not None:
                self._state.know_answer_place(name, self._places[node_key])
            if run_key is not None:
                self._answer_runs[name] = run_key
        self._unplaced_messages()

    def _unplaced_messages(self) -> None:
        """Messages of completions whose call has no place."""
        c = t.completion.c
        rows = self._tx.connection.execute(
            select(c.call_key, c.completion, c.message_key)
            .select_from(t.completion.join(t.call, _is_row(t.call, c.call_key)))
            .where(
                c.project_id == self._here,
                t.call.c.episode_key == self._state.episode_key,
                t.call.c.context_messages.is_(None),
            )
        ).all()
        contents = read_contents(
            self._tx.connection, self._here, [key for *_, key in rows if key is not None]
        )
        for call_key, index, message_key in rows:
            message = None
            if message_key is not None:
                message = message_piece(contents[message_key].data, "assistant")
            self._state.answer_messages[self._call_ids[call_key], index] = message

    def runs(self) -> None:
        keys = {*self._prompt_runs.values(), *self._answer_runs.values()}
        runs: dict[int, Run] = {}
        bases: dict[int, int] = {}
        c = t.token_run.c
        for chunk in chunks(sorted(keys)):
            rows = self._tx.connection.execute(
                select(
                    *(c.key, c.base_key, c.base_length, c.num_tokens),
                    func.coalesce(c.num_ids, func.length(c.ids) / 4),
                ).where(c.project_id == self._here, c.key.in_(chunk))
            )
            for key, base_key, base_length, num_tokens, num_ids in rows:
                runs[key] = Run(key, None, base_length, num_tokens, int(num_ids))
                if base_key is not None:
                    bases[key] = base_key
        for key, base_key in bases.items():
            runs[key].base = runs[base_key]
        prompts = {id_: runs[key] for id_, key in self._prompt_runs.items()}
        answers = {name: runs[key] for name, key in self._answer_runs.items()}
        self._state.know_runs(prompts, answers, self._delta_runs())

    def _delta_runs(self) -> set[str]:
        c = t.call.c
        rows = self._tx.connection.execute(
            select(c.id).where(
                c.project_id == self._here,
                c.episode_key == self._state.episode_key,
                c.prompt_ids_are == "delta",
            )
        )
        return {id_ for (id_,) in rows}

    def pending(self) -> None:
        c = t.pending_message.c
        rows = self._tx.connection.execute(
            select(c.call_key, c.position, c.content_key)
            .select_from(t.pending_message.join(t.call, _is_row(t.call, c.call_key)))
            .where(c.project_id == self._here, t.call.c.episode_key == self._state.episode_key)
        ).all()
        rows = sorted(rows)
        contents = read_contents(self._tx.connection, self._here, [key for *_, key in rows])
        for call_key, _, content_key in rows:
            data, role = contents[content_key]
            # The role that the content row has is the stated one, or else that of its place.
            match = match_hash(data, role=None if role == "message" else role)
            id_ = self._call_ids[call_key]
            self._state.own[id_] = (*self._state.own.get(id_, ()), Interned(content_key, match))

    def tool_calls(self) -> None:
        c = t.tool_call.c
        rows = self._tx.connection.execute(
            select(c.key, c.id, t.call.c.id, c.completion, c.tool_call_id)
            .select_from(t.tool_call.join(t.call, _is_row(t.call, c.call_key)))
            .where(
                c.project_id == self._here,
                c.episode_key == self._state.episode_key,
                c.tool_call_id.is_not(None),
                or_(c.id.is_(None), c.position.is_(None)),
            )
        ).all()
        for key, id_, call_id, completion, tool_call_id in sorted(rows, key=lambda row: row.key):
            label = (call_id, completion or 0, tool_call_id)
            (self._state.sampled if id_ is None else self._state.executed).setdefault(label, key)


def _is_row(table: Any, key: Any) -> Any:
    """Join condition: the row of a key, in the project of the row that refers to it."""
    return and_(table.c.project_id == key.table.c.project_id, table.c.key == key)
