"""Graphs that are read without their texts give the rows that whole graphs give, to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exporters.stores import all_scenarios
from tests.exporters.trees import Tree, trees
from tests.factories import answer, call, episode, posted, raw, tool_call, user
from tests.fixtures import fixture
from tests.importers.reading import read_paths
from tests.laws.test_conservation import SPECS
from tests.sample_traces.traces import NAMES, trace_events
from tests.strategies import Recording, deliveries, episodes, recordings, revised, split_up
from tracestore.graph.model import Graph
from tracestore.graph.tokens import prompt_ids
from tracestore.shards.batch import content_hash, to_batch
from tracestore.store.store import Store
from tracestore.wire.events import AnyEvent
from tracestore_exporters.conservation import recorded
from tracestore_exporters.export import group_rows, groups_of
from tracestore_exporters.plan import PlannedGroup
from tracestore_exporters.spec import Spec

_numbers = count()


def same_rows(store: Store, project: str, spec: Spec, *, snapshot: int | None = None) -> list[Graph]:
    """Hold both ways of reading against each other; returns the graphs of the shorter one."""
    at = store.snapshot(project) if snapshot is None else snapshot
    short: list[Graph] = []
    for ref in groups_of(store, project, spec, snapshot=at):
        group = PlannedGroup(ref.group_id, tuple(sorted(ref.episode_ids)), ended=ref.ended)
        whole = [store.load_graph(project, id_, snapshot=at) for id_ in group.episode_ids]
        graphs = store.training_graphs(project, group.episode_ids, snapshot=at)
        assert _said(graphs, spec, group) == _said(whole, spec, group)
        for one, other in zip(graphs, whole, strict=True):
            _same_graph(one, other)
        short += graphs
    return short


def _said(graphs: Sequence[Graph], spec: Spec, group: PlannedGroup) -> tuple[object, ...]:
    closed_by, rows = group_rows(graphs, spec, project="p", group=group)
    batches = [to_batch(row) for row in rows]
    return closed_by, content_hash(batches), batches, recorded(graphs)


def _same_graph(short: Graph, whole: Graph) -> None:
    """What both hold: all but texts, tool calls, gaps, snapshots and consumption."""
    for name in ("group", "episode", "agents", "context_edits", "candidate_sets", "candidate_selections"):
        assert getattr(short, name) == getattr(whole, name)
    for name in ("rewards", "blobs", "links", "pending", "prompt_node", "completion_node"):
        assert getattr(short, name) == getattr(whole, name)
    assert [short.is_stale(one) for one in short.calls] == [whole.is_stale(one) for one in whole.calls]
    assert list(short.calls) == list(whole.calls)
    assert list(short.completions) == list(whole.completions)
    assert {k: (n.parent, n.depth, n.role) for k, n in short.nodes.items()} == {
        k: (n.parent, n.depth, n.role) for k, n in whole.nodes.items()
    }
    for call_id in whole.calls:
        one, other = prompt_ids(short, call_id), prompt_ids(whole, call_id)
        assert (None if one is None else one.tolist()) == (None if other is None else other.tolist())


@settings(max_examples=20)
@given(recording=recordings(), spec=SPECS)
def test_of_recordings(recording: Recording, spec: Spec, shared: Store) -> None:
    project = f"r{next(_numbers)}"
    shared.ingest(project, [posted(event) for event in recording.events])
    same_rows(shared, project, spec)


@settings(max_examples=3)
@given(recording=recordings(), spec=SPECS)
def test_of_recordings_on_postgresql(recording: Recording, spec: Spec, on_postgresql: Store) -> None:
    project = f"r{next(_numbers)}"
    on_postgresql.ingest(project, [posted(event) for event in recording.events])
    same_rows(on_postgresql, project, spec)


@settings(max_examples=15)
@given(tree=trees(), spec=SPECS)
def test_of_groups_whose_prompts_and_answers_collide(tree: Tree, spec: Spec, shared: Store) -> None:
    project = f"t{next(_numbers)}"
    shared.ingest(project, [posted(event) for event in tree.events])
    same_rows(shared, project, spec)


@settings(max_examples=15)
@given(data=st.data())
def test_of_halves_revisions_and_parents_that_come_late_at_every_snapshot(
    data: st.DataObject, shared: Store
) -> None:
    project = f"h{next(_numbers)}"
    told = data.draw(split_up(data.draw(episodes(max_calls=5))))
    if data.draw(st.booleans()):
        told = data.draw(revised(told))
    for batch in data.draw(deliveries(told)):
        shared.ingest(project, [posted(event) for event in batch])
        same_rows(shared, project, Spec())
    if not any(event.revision for event in told):
        # Of what was replaced an older snapshot is refused.
        same_rows(shared, project, Spec(), snapshot=data.draw(st.integers(0, shared.snapshot(project))))


def test_of_every_scenario(shared: Store) -> None:
    shared.ingest("scenarios", [posted(event) for event in all_scenarios()])
    graphs = same_rows(shared, "scenarios", Spec())
    assert sum(graph.textless is not None for graph in graphs) > len(graphs) / 2


@pytest.mark.parametrize("name", NAMES)
def test_of_every_sample_trace(name: str, shared: Store) -> None:
    shared.ingest(name, [posted(event) for event in trace_events(name)])
    assert all(graph.textless is not None for graph in same_rows(shared, name, Spec()))


_GYM = "nemo_gym/nvidia-nemo__gym"
_RL = "nemo_rl/nvidia-nemo__rl/tests/unit"
_WITH_IDS = (
    "atif/arize-ai__phoenix-client/harbor_terminus2_summarization.json",
    "atif/arize-ai__phoenix-client/harbor_terminus2_timeout.json",
    "atropos/nousresearch__atropos/environments/community/selcube/rubiks_process_results_32.jsonl.gz",
    f"{_GYM}/resources_servers/competitive_coding_challenges/data/example_rollouts.jsonl",
    f"{_GYM}/responses_api_models/vllm_model/tests/round_trip_test_data.json",
    f"{_RL}/environments/nemo_gym_test_data/test_nemo_gym_sanity.json",
    f"{_RL}/models/generation/maybe_correct_merged_tokens_test_data.json",
    f"{_RL}/models/generation/test_vllmasyncgenerationworker_replace_prefix_worker.json",
)
"""Of the recordings of others, those that hold ids; the parts of one that is here are left out."""


@pytest.mark.parametrize("name", _WITH_IDS)
def test_of_every_fixture_with_token_ids(name: str, shared: Store) -> None:
    shared.ingest(name, [posted(event) for event in read_paths(fixture(name)).events])
    short = [graph for graph in same_rows(shared, name, Spec()) if graph.textless is not None]
    assert any(graph.textless is not None and graph.textless.prompts for graph in short)


# --- What the rows cannot answer is read whole ------------------------------------------------------------

_FIRST = call("c0", [user("q")], answer("a", ids=[3, 4]), prompt_ids=[1, 2], ordinal=0)
_IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


def _graph(store: Store, events: Sequence[AnyEvent]) -> Graph:
    project = f"w{next(_numbers)}"
    store.ingest(project, [posted(event) for event in (episode(), *events)])
    (graph,) = same_rows(store, project, Spec())
    return graph


def test_an_episode_with_an_image_in_a_message_is_read_whole(shared: Store) -> None:
    seen = call("c1", [_IMAGE], answer("a", ids=[3]), prompt_ids=[1], ordinal=1)
    told = call("c1", [user("an image of a file")], answer("a", ids=[3]), prompt_ids=[1], ordinal=1)
    assert _graph(shared, [_FIRST, seen]).textless is None
    assert _graph(shared, [_FIRST, told]).textless is not None


def test_an_episode_with_a_pending_call_is_read_whole(shared: Store) -> None:
    late = call("c2", [user("more")], answer("b", ids=[5]), parent="c1", delta=True, prompt_ids_delta=[9])
    assert _graph(shared, [_FIRST, late]).textless is None
    parent = call("c1", [user("q")], answer("a", ids=[3, 4]), prompt_ids=[1, 2], ordinal=1)
    assert _graph(shared, [_FIRST, late, parent]).textless is not None


def test_an_episode_of_which_more_came_since_is_read_whole(shared: Store) -> None:
    shared.ingest("since", [posted(episode()), posted(_FIRST)])
    at = shared.snapshot("since")
    shared.ingest(
        "since", [posted(call("c1", [user("q"), user("r")], answer("a", ids=[3]), prompt_ids=[1, 2, 7]))]
    )
    (old,) = same_rows(shared, "since", Spec(), snapshot=at)
    (new,) = same_rows(shared, "since", Spec())
    assert (old.textless is None, list(old.calls)) == (True, ["c0"])
    assert (new.textless is None, list(new.calls)) == (False, ["c0", "c1"])


def test_places_that_are_asked_for_late_are_those_of_the_snapshot(shared: Store) -> None:
    shared.ingest("places", [posted(episode()), posted(_FIRST)])
    whole = shared.load_graph("places", "e")
    (graph,) = shared.training_graphs("places", ["e"])
    shared.ingest(
        "places", [posted(call("c1", [user("q"), user("r")], answer("b", ids=[3]), prompt_ids=[1]))]
    )
    assert graph.prompt_node == whole.prompt_node
    assert graph.nodes == whole.nodes


def test_what_no_sample_says_is_not_there(shared: Store) -> None:
    graph = _graph(shared, [_FIRST])
    assert graph.calls["c0"].request is None
    assert graph.completions["c0", 0].message is None
    assert graph.outline("c0") == b'{"model":"m","messages":[null]}'


def test_whether_a_tool_call_failed_is_known_without_its_result(shared: Store) -> None:
    more = [
        call(f"c{i}", [user("q"), user(str(i))], answer("a", ids=[3]), prompt_ids=[1, 2, 7 + i])
        for i in range(1, 5)
    ]
    tools = [
        tool_call("x0", "c0", tool_call_id="t0", status="ok"),
        tool_call("x1", "c0", tool_call_id="t1", status="timeout", result=raw("long")),
        tool_call("x2", "c1", tool_call_id="t2", status="ok"),
        tool_call("x3", "c2", tool_call_id="t3", status="cancelled"),
        tool_call("x4", "c3", tool_call_id="t4"),
        tool_call("x5", "elsewhere", tool_call_id="t5", status="failed"),
    ]
    graph = _graph(shared, [_FIRST, *more, *tools])
    assert graph.textless is not None
    assert [graph.tool_failed((f"c{i}", 0)) for i in range(5)] == [True, False, None, None, None]
