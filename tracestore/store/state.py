"""The contexts of one episode as the committer holds them: places, links, token runs, event by event.

It says what `graph.build` would say of the same events, with the graph's own functions, but touches only
what an event changes. A place is a message at one exact position, (parent place, content); the graph's
node is its match key. Where an event undoes what was settled before (a delta call whose parent turns out
to have several answers, say), the state is marked stale and the episode is derived again from its events.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Self

from tracestore.graph.links import matched_parent, named_parent, resolve_links
from tracestore.graph.match import node_key
from tracestore.graph.messages import answer_messages
from tracestore.graph.model import CompletionKey, Link
from tracestore.store import tables as t
from tracestore.store.contents import Interned
from tracestore.store.requests import Label, Piece, message_piece
from tracestore.store.runs import Ids, Run, common_prefix
from tracestore.store.transaction import Transaction
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.call import Call, Dialect

ToolUseLabel = tuple[str, int, str]
"""(call id, completion, the model's own id of the tool use)."""


class LightCall(NamedTuple):
    """What linking reads of a call: thousands are held, so without bodies."""

    id: str
    agent_id: str
    ordinal: int | None
    dialect: Dialect
    context: Literal["whole", "delta"]
    parent_call_id: str | None
    parent_completion: int | None

    @classmethod
    def of(cls, call: Call) -> Self:
        return cls(*map(vars(call).__getitem__, cls._fields))


class Place(NamedTuple):
    """A row of node."""

    key: int
    match: bytes
    depth: int


class _Node(NamedTuple):
    """What linking reads of a node."""

    parent: bytes | None
    depth: int


class EpisodeState:
    def __init__(self, episode_key: int) -> None:
        self.episode_key = episode_key
        self.is_stale = False
        self.calls: dict[str, LightCall] = {}
        """Calls that have come."""
        self.call_keys: dict[str, int] = {}
        self.completion_keys: dict[CompletionKey, int] = {}
        self.children: dict[str, list[str]] = defaultdict(list)
        """Call -> the calls that name it as their parent."""
        self.answers: dict[str, list[CompletionKey]] = defaultdict(list)
        self.answer_messages: dict[CompletionKey, Piece | None] = {}
        """Messages of completions that have no place yet."""
        self.own: dict[str, tuple[Interned, ...]] = {}
        """Messages of delta calls that have no place yet."""
        self.delta_parents: dict[str, CompletionKey] = {}
        """What each placed delta call was placed after."""
        self.places: dict[tuple[int, int], Place] = {}
        """(key of the parent place or 0, key of the content) -> the place."""
        self.nodes: dict[bytes, _Node] = {}
        self.first_places: dict[bytes, int] = {}
        """Match key -> the first place with it."""
        self.prompt_places: dict[str, Place | None] = {}
        self.prompt_node: dict[str, bytes | None] = {}
        self.answer_places: dict[CompletionKey, Place] = {}
        self.completion_node: dict[CompletionKey, bytes] = {}
        self.standing: dict[bytes, list[CompletionKey]] = defaultdict(list)
        self.below: dict[bytes | None, list[bytes]] = defaultdict(list)
        self.prompts_at: dict[bytes | None, list[str]] = defaultdict(list)
        self.links: dict[str, Link] = {}
        self.prompt_runs: dict[str, Run] = {}
        self.delta_runs: set[str] = set()
        """Calls whose prompt ids are those after their parent's."""
        self.answer_runs: dict[CompletionKey, Run] = {}
        self.last_runs: dict[str, Run] = {}
        """Agent -> its latest run whose ids are all known."""
        self.run_keys: dict[str | CompletionKey, int] = {}
        """Rows of the token runs of calls and completions that are derived again."""
        self.sampled: dict[ToolUseLabel, int] = {}
        """Tool uses of messages that were not executed yet -> their rows."""
        self.executed: dict[ToolUseLabel, int] = {}
        """Executed tool calls whose message has not come -> their rows."""
        self.to_execute: set[ToolUseLabel] = set()
        """Tool calls whose first row is being written."""
        self._last_contexts: dict[str, tuple[list[Label], list[Place]]] = {}
        """Agent -> the context it sent last: mostly its next one begins with it."""
        self._dirty: set[str] = set()
        """Calls whose link may have changed."""
        self._placed: list[str] = []
        """Calls that got a place just now."""
        self._drifted: set[str] = set()
        """Calls whose linked completion does not stand in their context."""
        self._unnamed = 0
        """Calls that name no parent."""

    # --- Calls and completions come ---------------------------------------------------------------

    def add_call(self, tx: Transaction, call: LightCall, *, key: int, messages: Sequence[Piece]) -> None:
        """A call that was not there, with the messages its own request spells out."""
        self.calls[call.id] = call
        self.call_keys[call.id] = key
        self._dirty.add(call.id)
        if call.parent_call_id is None:
            self._unnamed += 1
        else:
            self.children[call.parent_call_id].append(call.id)
        if call.context == "whole":
            self._place(tx, call.id, self._walk_whole(tx, call.agent_id, messages))
        else:
            self.own[call.id] = own = tuple(tx.intern(piece) for piece in messages)
            if not self._place_delta(tx, call.id):
                for position, message in enumerate(own):
                    row = {"call_key": key, "position": position, "content_key": message.key}
                    tx.buffer.replace(t.pending_message, (key, position), row, owner=(t.call, key))

    def add_answer(self, key: CompletionKey, *, row_key: int, call_key: int, message: Piece | None) -> None:
        """A completion that was not there; `answers_changed` follows."""
        self.know_answer(key, row_key=row_key, call_key=call_key)
        self.answer_messages[key] = message

    def add_message(self, key: CompletionKey, message: Piece) -> None:
        """The message of a completion that came without one; `answers_changed` follows."""
        self.answer_messages[key] = message

    def answers_changed(self, tx: Transaction, call_id: str) -> None:
        """Give new completions of a call their places, and the calls that follow it theirs."""
        if call_id in self.prompt_places:
            self._place_answers(tx, call_id)
        children = self.children.get(call_id, ())
        self._dirty.update(children)
        for child in children:
            if child in self.own:
                self._place_delta(tx, child)
            elif child in self.delta_parents:
                now = self._delta_parent(self.calls[child])
                self.is_stale = self.is_stale or now != self.delta_parents[child]

    # --- What is stored is known again -------------------------------------------------------------

    def know_call(self, call: LightCall, *, is_placed: bool, place: Place | None, link: Link) -> None:
        """A call whose rows are read back."""
        self.calls[call.id] = call
        if call.parent_call_id is None:
            self._unnamed += 1
        else:
            self.children[call.parent_call_id].append(call.id)
        if is_placed:
            node = None if place is None else place.match
            self.prompt_places[call.id] = place
            self.prompt_node[call.id] = node
            self.prompts_at[node].append(call.id)
            if call.context == "delta":
                assert link.parent is not None, "a delta call is placed after its parent"
                self.delta_parents[call.id] = link.parent
        elif call.context == "delta":
            self.own[call.id] = ()
        self.links[call.id] = link
        if link.parent is not None and not link.exact:
            self._drifted.add(call.id)

    def know_answer(self, key: CompletionKey, *, row_key: int, call_key: int) -> None:
        """A completion whose row is read back."""
        self.call_keys[key[0]] = call_key
        self.completion_keys[key] = row_key
        insort(self.answers[key[0]], key)

    def know_answer_place(self, key: CompletionKey, place: Place) -> None:
        """Where a completion stands."""
        self.answer_places[key] = place
        self.completion_node[key] = place.match
        self.standing[place.match].append(key)

    def know_runs(
        self, prompts: dict[str, Run], answers: dict[CompletionKey, Run], delta_runs: set[str]
    ) -> None:
        """The token runs that are read back."""
        self.prompt_runs, self.answer_runs, self.delta_runs = prompts, answers, delta_runs
        by_call = [(run, call_id) for call_id, run in prompts.items()]
        by_call += [(run, key[0]) for key, run in answers.items()]
        for run, call_id in sorted(by_call, key=lambda one: one[0].key):
            if run.num_tokens is not None and call_id in self.calls:
                self.last_runs[self.calls[call_id].agent_id] = run

    # --- Places -----------------------------------------------------------------------------------

    def _delta_parent(self, call: LightCall) -> CompletionKey | None:
        """The completion a delta call follows, where it and its place are known."""
        if call.parent_call_id is None:  # so far: an end may leave it to its start
            return None
        answers = self.answers.get(call.parent_call_id, ())
        parent = named_parent(call, answers, self.completion_node, self.nodes, None).parent
        is_known = parent is not None and parent[0] in self.prompt_places
        return parent if is_known and parent not in self.answer_messages else None

    def _place_delta(self, tx: Transaction, call_id: str) -> bool:
        """Give a delta call its place where its parent has one; says whether it has."""
        parent = self._delta_parent(self.calls[call_id])
        if parent is None:
            return False
        self.delta_parents[call_id] = parent
        start = self.answer_places.get(parent, self.prompt_places[parent[0]])
        own = self.own.pop(call_id)
        key = self.call_keys[call_id]
        for position in range(len(own)):
            tx.buffer.replace(t.pending_message, (key, position), None, owner=(t.call, key))
        self._place(tx, call_id, self._walk(tx, start, own))
        return True

    def _place(self, tx: Transaction, call_id: str, place: Place | None) -> None:
        """A call's context is known: its answers get places, and the delta calls that wait for it."""
        node = None if place is None else place.match
        self.prompt_places[call_id] = place
        self.prompt_node[call_id] = node
        self.prompts_at[node].append(call_id)
        self._dirty.add(call_id)
        tx.buffer.update(
            t.call,
            self.call_keys[call_id],
            {
                "prompt_node_key": None if place is None else place.key,
                "context_messages": 0 if place is None else place.depth + 1,
            },
        )
        self._place_answers(tx, call_id)
        self._placed.append(call_id)

    def _place_waiting(self, tx: Transaction) -> None:
        """Place the delta calls that waited for what has been placed, and those that waited for them."""
        # A list and no recursion, since a chain of delta calls is as deep as the episode is long.
        while self._placed:
            for child in self.children.get(self._placed.pop(), ()):
                self._dirty.add(child)
                if child in self.own:
                    self._place_delta(tx, child)

    def _place_answers(self, tx: Transaction, call_id: str) -> None:
        for key in self.answers.get(call_id, ()):
            if key in self.answer_messages:
                self._place_answer(tx, key)

    def _place_answer(self, tx: Transaction, key: CompletionKey) -> None:
        message = self.answer_messages.pop(key)
        if message is None:
            return
        pieces = _as_sent_next(message, self.calls[key[0]].dialect)
        if not pieces:
            return
        place = self._walk(tx, self.prompt_places[key[0]], [tx.intern(piece) for piece in pieces])
        assert place is not None
        self.know_answer_place(key, place)
        tx.buffer.update(t.completion, self.completion_keys[key], {"node_key": place.key})
        self._dirty.update(self._prompts_below(place.match))

    def _walk_whole(self, tx: Transaction, agent_id: str, messages: Sequence[Piece]) -> Place | None:
        """The place of a context, from where it leaves the one that its agent sent before."""
        labels = [piece.label for piece in messages]
        before, places = self._last_contexts.get(agent_id, ([], []))
        same = len(before)
        if labels[:same] != before:
            pairs = enumerate(zip(labels, before, strict=False))
            same = next((at for at, (one, other) in pairs if one != other), min(same, len(labels)))
            places = places[:same]
        # In place, since nothing is refused from here on: what fails fails with all that is remembered.
        for piece in messages[same:]:
            places.append(self._step(tx, places[-1] if places else None, tx.intern(piece)))
        self._last_contexts[agent_id] = labels, places
        return places[-1] if places else None

    def _walk(self, tx: Transaction, start: Place | None, messages: Iterable[Interned]) -> Place | None:
        for message in messages:
            start = self._step(tx, start, message)
        return start

    def _step(self, tx: Transaction, parent: Place | None, message: Interned) -> Place:
        place = self.places.get((0 if parent is None else parent.key, message.key))
        return self._new_place(tx, parent, message) if place is None else place

    def _new_place(self, tx: Transaction, parent: Place | None, message: Interned) -> Place:
        match = node_key(None if parent is None else parent.match, message.match)
        place = Place(tx.new_key(), match, 0 if parent is None else parent.depth + 1)
        twin_of = self.first_places.get(match)
        self.know_place(place, parent, message.key)
        row = {
            "key": place.key,
            "episode_key": self.episode_key,
            "content_key": message.key,
            "match_key": match,
            "depth": place.depth,
            "pos": tx.pos,
        }
        if parent is not None:
            row["parent_key"] = parent.key
        if twin_of is not None:
            row["twin_of_key"] = twin_of
        tx.buffer.insert(t.node, row)
        return place

    def know_place(self, place: Place, parent: Place | None, content_key: int) -> None:
        self.places[0 if parent is None else parent.key, content_key] = place
        if place.match not in self.first_places:
            above = None if parent is None else parent.match
            self.first_places[place.match] = place.key
            self.nodes[place.match] = _Node(above, place.depth)
            self.below[above].append(place.match)

    def _prompts_below(self, node: bytes) -> Iterable[str]:
        """Calls whose context passes through a node."""
        stack = [node]
        while stack:
            here = stack.pop()
            yield from self.prompts_at.get(here, ())
            stack += self.below.get(here, ())

    # --- Links ------------------------------------------------------------------------------------

    def relink(self, tx: Transaction) -> None:
        """Bring places and links up to date with the event in hand."""
        self._place_waiting(tx)
        for call_id in sorted(self._dirty):
            if call_id in self.calls:
                self._set_link(tx, call_id, self._link(call_id))
        self._dirty.clear()

    def break_circles(self, tx: Transaction) -> None:
        """Take back links found by matching that go round in a circle with named ones.

        Only a parent named against the contexts can close one, so mostly there is nothing to look for.
        """
        if not self._drifted or not self._unnamed:
            return
        links = resolve_links(
            calls=self.calls,
            completions=self.completion_keys,
            nodes=self.nodes,
            prompt_node=self.prompt_node,
            completion_node=self.completion_node,
        )
        for call_id, link in links.items():
            self._set_link(tx, call_id, link)

    def _link(self, call_id: str) -> Link:
        call = self.calls[call_id]
        prompt = self.prompt_node.get(call_id)
        if call.parent_call_id is not None:
            answers = self.answers.get(call.parent_call_id, ())
            return named_parent(call, answers, self.completion_node, self.nodes, prompt)
        return matched_parent(call, self.calls, self.nodes, prompt, self.standing)

    def _set_link(self, tx: Transaction, call_id: str, link: Link) -> None:
        if self.links.get(call_id) != link:
            self.links[call_id] = link
            (self._drifted.discard if link.exact or link.parent is None else self._drifted.add)(call_id)
            self._write_link(tx, call_id, link)
        if call_id in self.delta_runs:
            self._settle_delta(tx, call_id)

    def _write_link(self, tx: Transaction, call_id: str, link: Link) -> None:
        key = self.call_keys[call_id]
        parent = None if link.parent is None else self.call_keys[link.parent[0]]
        index = None if link.parent is None else link.parent[1]
        tx.buffer.update(
            t.call,
            key,
            {"link_call_key": parent, "link_completion": index, "link": link.how, "link_exact": link.exact},
        )

    # --- Token ids --------------------------------------------------------------------------------

    def add_prompt_ids(self, tx: Transaction, call_id: str, ids: TokenIds, *, is_delta: bool) -> None:
        """The prompt ids of a call, whole or after its parent's. The call is linked."""
        if is_delta:
            run = self._new_run(tx, call_id, None, 0, ids.data, None)
            self.delta_runs.add(call_id)
            self._set_prompt_run(tx, call_id, run)
            self._settle_delta(tx, call_id)
            return
        whole = ids.array
        base, shared = self._prompt_base(tx, call_id, whole)
        run = self._new_run(tx, call_id, base, shared, ids.data[4 * shared :], len(ids))
        tx.memory.run_ids.put(run.key, whole)
        self._set_prompt_run(tx, call_id, run)
        self._prompt_settled(tx, call_id)

    def add_answer_ids(
        self, tx: Transaction, key: CompletionKey, ids: TokenIds, logprobs: Logprobs | None
    ) -> None:
        """The sampled ids of a completion."""
        prompt = self.prompt_runs.get(key[0])
        run = self._new_run(tx, key, None, 0, ids.data, None, logprobs)
        self.answer_runs[key] = run
        columns = {"run_key": run.key, "num_tokens": len(ids)}
        tx.buffer.update(t.completion, self.completion_keys[key], columns)
        if prompt is not None and prompt.num_tokens is not None:
            self._rebase(tx, run, prompt, prompt.num_tokens)
            self.last_runs[self.calls[key[0]].agent_id] = run
            for child in self._settle_children(tx, key):
                self._prompt_settled(tx, child)

    def add_logprobs(self, tx: Transaction, key: CompletionKey, logprobs: Logprobs) -> None:
        """Logprobs of ids that came before them."""
        tx.update_logprobs(self.answer_runs[key].key, logprobs)

    def _prompt_base(self, tx: Transaction, call_id: str, ids: Ids) -> tuple[Run | None, int]:
        """The run to build a prompt on, and how much of it they share."""
        parent = self.links[call_id].parent
        base = self.answer_runs.get(parent) if parent is not None else None
        if base is None or base.num_tokens is None:
            base = self.last_runs.get(self.calls[call_id].agent_id)
        if base is None:
            return None, 0
        shared = common_prefix(tx.memory.run_ids.get(base, connection=tx.connection), ids)
        # What they share may lie in the base of the base: chains stay as short as they can.
        while base is not None and shared <= base.base_length:
            base = base.base
        return (base, shared) if base is not None and shared else (None, 0)

    def _new_run(
        self,
        tx: Transaction,
        of: str | CompletionKey,
        base: Run | None,
        length: int,
        ids: bytes,
        num_tokens: int | None,
        logprobs: Logprobs | None = None,
    ) -> Run:
        known = self.run_keys.get(of)
        num_ids = len(ids) // 4
        run = Run(tx.new_key() if known is None else known, base, length, num_tokens, num_ids)
        row = {
            "base_key": None if base is None else base.key,
            "base_length": length,
            "num_tokens": num_tokens,
        }
        if known is None:
            tx.insert_run({"key": run.key, "pos": tx.pos, **row}, ids, logprobs)
        else:
            tx.update_run(run.key, row, ids, logprobs)
        tx.memory.run_ids.fresh[run.key] = ids
        return run

    def _set_prompt_run(self, tx: Transaction, call_id: str, run: Run) -> None:
        self.prompt_runs[call_id] = run
        kind = "delta" if call_id in self.delta_runs else "whole"
        columns = {"prompt_run_key": run.key, "prompt_ids_are": kind}
        tx.buffer.update(t.call, self.call_keys[call_id], columns)

    def _settle_delta(self, tx: Transaction, call_id: str) -> None:
        """Base a prompt delta on the completion it follows, once that is known to the first id."""
        run = self.prompt_runs[call_id]
        link = self.links[call_id].parent
        base = self.answer_runs.get(link) if link and link[0] == self.calls[call_id].parent_call_id else None
        if run.num_tokens is not None:
            self.is_stale = self.is_stale or run.base is not base
        elif base is not None and base.num_tokens is not None:
            self._rebase(tx, run, base, base.num_tokens)
            self._prompt_settled(tx, call_id)

    def _prompt_settled(self, tx: Transaction, call_id: str) -> None:
        """A prompt is known to its first id: so are its completions, and the deltas that follow them."""
        ready = [call_id]
        while ready:
            call_id = ready.pop()
            prompt = self.prompt_runs[call_id]
            assert prompt.num_tokens is not None
            self.last_runs[self.calls[call_id].agent_id] = prompt
            for key in self.answers.get(call_id, ()):
                run = self.answer_runs.get(key)
                if run is not None and run.num_tokens is None:
                    self._rebase(tx, run, prompt, prompt.num_tokens)
                    ready += self._settle_children(tx, key)

    def _settle_children(self, tx: Transaction, key: CompletionKey) -> list[str]:
        """Base the prompt deltas that follow a completion; returns their calls."""
        base = self.answer_runs[key]
        assert base.num_tokens is not None
        found = []
        for child in self.children.get(key[0], ()):
            run = self.prompt_runs.get(child)
            link = self.links.get(child)
            if child in self.delta_runs and run and run.num_tokens is None and link and link.parent == key:
                self._rebase(tx, run, base, base.num_tokens)
                found.append(child)
        return found

    def _rebase(self, tx: Transaction, run: Run, base: Run, length: int) -> None:
        run.base, run.base_length, run.num_tokens = base, length, length + run.num_own
        tx.buffer.update(
            t.token_run,
            run.key,
            {"base_key": base.key, "base_length": length, "num_tokens": run.num_tokens},
        )


def _as_sent_next(answer: Piece, dialect: Dialect) -> Sequence[Piece]:
    """A completion's message as the messages that the next request sends."""
    if dialect != "openai_responses":
        return (answer,)
    return [message_piece(raw, role) for raw, role in answer_messages(Raw(answer.data), dialect)]
