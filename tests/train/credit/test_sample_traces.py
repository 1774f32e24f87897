"""What the rules say of the sample traces, from events over a store and an export to credit."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from tests.exporters.stores import all_scenarios, stored
from tests.factories import posted
from tests.sample_traces.traces import NAMES, trace_events
from tests.train.credit.sql import RULES, by_sql, tables
from tests.train.credit.test_sql import by_rules, trained_alone
from tracestore.shards.read import Export, open_export
from tracestore.store.store import Store
from tracestore.train.credit.base import MissingFact
from tracestore.train.credit.critical import critical_steps
from tracestore.train.credit.gae import NoSequence
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec

ALONG_TIME = ("mem1:gamma=0.9,lambda=0.8", "compaction-rl:gamma=0.9")
FOLD = "foldgrpo:context_limit=16,unsaid_tools=ok"
REFUSED = {
    **{
        ("candidates", rule): (NoSequence, "export with the other candidates excluded") for rule in ALONG_TIME
    },
    ("subagents", FOLD): (MissingFact, "scope verdict"),
}
"""A call with several answers that train is no sequence; nobody judged the scope of the subagents."""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Export]:
    folder = tmp_path_factory.mktemp("traces")
    found = {}
    with Store.open(f"sqlite:///{folder / 't.db'}") as store:
        for name in NAMES:
            store.ingest(name, [posted(event) for event in trace_events(name)])
            export(store, name, folder / name, Spec())
            found[name] = open_export(folder / name)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_gives_a_recorded_trace_what_sql_says_or_says_what_it_lacks(
    name: str, exports: dict[str, Export]
) -> None:
    rows, connection = list(exports[name].rows()), tables(exports[name])
    for rule in RULES:
        if (name, rule) in REFUSED:
            error, problem = REFUSED[name, rule]
            with pytest.raises(error, match=problem):
                by_rules(rows, rule)
            continue
        found = by_rules(rows, rule)
        if rule in ALONG_TIME:
            found = trained_alone(rows, found)
        expected = by_sql(connection, rule)
        assert found, rule
        assert found.keys() == expected.keys(), rule
        assert found == pytest.approx(expected, rel=0, abs=1e-9), rule


def test_a_subagent_whose_finding_was_ignored_gets_less_under_the_local_rules(
    exports: dict[str, Export],
) -> None:
    [row] = exports["subagents"].rows()
    shared, used = by_rules([row], "shared"), by_rules([row], "used")
    ignored = {i for i, agent in enumerate(row.agents) if agent.finding_used is False}
    of_ignored = [key for key in shared if row.samples[key[1]].agent in ignored]
    assert any(shared[key] > 0 for key in of_ignored)
    assert {used[key] for key in of_ignored} == {0.0}
    assert all(used[key] == shared[key] for key in shared if key not in of_ignored)


def test_critical_steps_of_a_row_are_those_of_the_view(tmp_path: Path) -> None:
    with stored(tmp_path, [*all_scenarios(), *trace_events("subagents")]) as store:
        export(store, "p", tmp_path / "out", Spec())
        with store.read() as connection:
            view = {
                (episode, agent): steps
                for episode, agent, steps in connection.execute(
                    text("SELECT episode_id, agent_id, critical_steps FROM critical_steps")
                )
            }
    compared = nested = 0
    for row in open_export(tmp_path / "out").rows():
        for agent, steps in zip(row.agents, critical_steps(row), strict=True):
            said = view.get((row.episodes[agent.episode].episode_id, agent.agent_id))
            if said is not None:  # NULL: a subagent below it has not returned
                assert steps == said, agent.agent_id
                compared += 1
                nested += agent.parent is not None
    assert compared >= 20
    assert nested > 5
