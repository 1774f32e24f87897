"""Law 3: the stored deltas along a chain add up to prompt ids ++ completion ids, logprobs bit for bit."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from tests import factories as make
from tests.factories import posted
from tests.strategies import deliveries, recordings
from tracestore.graph.tokens import completion_ids, prompt_ids
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.runs import unpack_ids
from tracestore.wire.call import Call


@settings(max_examples=40)
@given(data=st.data())
def test_stored_deltas_add_up_to_the_recorded_ids(shared: Store, data: st.DataObject) -> None:
    _add_up(shared, data)


@settings(max_examples=5)
@given(data=st.data())
def test_stored_deltas_add_up_to_the_recorded_ids_on_postgresql(
    on_postgresql: Store, data: st.DataObject
) -> None:
    _add_up(on_postgresql, data)


def _add_up(store: Store, data: st.DataObject) -> None:
    # A delta that does not say which of several answers it continues has no ids until somebody says.
    recording = data.draw(recordings(may_omit_parents=False))
    project = uuid4().hex
    for batch in data.draw(deliveries(recording.events)):
        store.ingest(project, [posted(event) for event in batch])
    chains = _Chains(store, project)
    graph = store.load_graph(project, "e")
    for call_id, truth in recording.prompt_ids.items():
        read = prompt_ids(graph, call_id)
        assert (None if read is None else tuple(read.tolist())) == truth
        if truth is not None:
            assert chains.prompt(call_id) == list(truth)
    for event in recording.events:
        if isinstance(event, Call):
            for index, body in enumerate(event.completions or ()):
                stored = graph.completions[event.id, index]
                assert stored.logprobs == body.logprobs
                if body.token_ids is not None:
                    ids = completion_ids(graph, (event.id, index))
                    assert ids is not None
                    assert ids.tolist() == body.token_ids.json()
                    prompt = recording.prompt_ids[event.id] or ()
                    assert chains.completion(event.id, index) == [*prompt, *body.token_ids.json()]


class _Chains:
    """Chains added up from the rows, by code of this test alone."""

    def __init__(self, store: Store, project: str) -> None:
        with store.read() as connection:
            pid = connection.execute(
                select(t.project.c.project_id).where(t.project.c.name == project)
            ).scalar_one()
            self.runs = {
                row.key: row
                for row in connection.execute(select(t.token_run).where(t.token_run.c.project_id == pid))
            }
            self._calls = {
                row.id: row for row in connection.execute(select(t.call).where(t.call.c.project_id == pid))
            }
            self._completions = {
                (row.call_key, row.completion): row
                for row in connection.execute(select(t.completion).where(t.completion.c.project_id == pid))
            }

    def prompt(self, call_id: str) -> list[int]:
        return self._ids(self._calls[call_id].prompt_run_key)

    def completion(self, call_id: str, index: int) -> list[int]:
        return self._ids(self._completions[self._calls[call_id].key, index].run_key)

    def _ids(self, key: int) -> list[int]:
        run = self.runs[key]
        base = [] if run.base_key is None else self._ids(run.base_key)[: run.base_length]
        return [*base, *unpack_ids(run.packed_ids, run.num_ids).tolist()]


def test_a_shared_prompt_is_stored_once(shared: Store) -> None:
    project = uuid4().hex
    chat = [make.user("u")]
    ids = list(range(1000))
    first = make.call("c0", chat, make.answer("a", ids=[7, 8]), prompt_ids=ids)
    longer = [*chat, make.assistant("a"), make.user("v")]
    second = make.call("c1", longer, make.answer("b", ids=[9]), prompt_ids=[*ids, 7, 8, 5])
    shared.ingest(project, [posted(first), posted(second)])
    chains = _Chains(shared, project)
    assert sum(run.num_ids for run in chains.runs.values()) == 1000 + 2 + 1 + 1
