"""Each system of the sample traces does what its folder says: asked, exported, credited and trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sample_traces.systems import names, system
from tests.e2e.commands import run_verb
from tests.factories import posted
from tests.fixtures import REPO
from tests.sample_traces.traces import NAMES, SCRIPTED, scripted_events, scripted_path
from tests.train.models import tiny
from tracestore.cli.demo_system import Credit, Show, found_pairs, is_near, read_show, worked_advantages
from tracestore.shards.read import Export, open_export
from tracestore.store.duck import run_sql
from tracestore.store.store import Store
from tracestore.train.loop import Settings, train
from tracestore.train.losses.base import Objective
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

VOCAB = 49_152
"""Of SmolLM2, whose ids the recordings hold."""
MOST_TOKENS = 2_500
"""Distinct tokens of a recording: what one step of the demonstration can take within its minute."""


class Trained:
    """One way to train on a recording: its export, and what `verify` says of it."""

    def __init__(self, credit: Credit, store: Store, out: Path) -> None:
        self.credit = credit
        self.manifest = export(store, "default", out, Spec(**credit.export))
        self.report = verify_export(store, "default", out)
        self.export: Export = open_export(out)


class Recorded:
    """The scripted recording of a system in a store, and its exports."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.show: Show = read_show(REPO / "sample_traces" / name)
        self.db = f"sqlite:///{folder / 'traces.db'}"
        with Store.open(self.db) as store:
            outcomes = store.ingest("default", [posted(event) for event in scripted_events(name)])
            assert {outcome.status for outcome in outcomes} == {"stored"}
            self.ways = [
                Trained(credit, store, folder / f"out-{place}")
                for place, credit in enumerate(self.show.credits)
            ]


@pytest.fixture(scope="module", params=SCRIPTED)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(request.param, tmp_path_factory.mktemp(request.param))


def test_its_questions_have_the_answers_that_its_folder_gives(recorded: Recorded) -> None:
    assert recorded.show.questions
    for question in recorded.show.questions:
        rows = run_sql(recorded.db, "default", question.sql).rows
        assert json.loads(json.dumps([list(row) for row in rows], default=str)) == question.answer, (
            question.ask
        )


def test_every_sampled_token_trains_once_or_has_a_reason(recorded: Recorded) -> None:
    assert recorded.ways
    for way in recorded.ways:
        table = way.manifest.conservation
        assert way.report.findings == []
        assert way.report.trained_tokens == table.trained_tokens
        assert table.trained_tokens + table.excluded_tokens == table.sampled_tokens > 0
        assert (table.trained_tokens == 0) == (way.credit.name is None)


def test_its_credit_is_that_of_the_worked_example(recorded: Recorded) -> None:
    for way in recorded.ways:
        credit = way.credit
        assert [bool(credit.worked), bool(credit.pairs), bool(credit.untrained)].count(True) == 1
        if credit.pairs:
            assert found_pairs(way.export) == credit.pairs
        elif credit.rule is not None:
            for one, value in worked_advantages(way.export, credit.rule, credit.worked):
                assert is_near(value, one.advantage), (one, value)


def test_a_step_trains_on_it(recorded: Recorded) -> None:
    for way in recorded.ways:
        if way.credit.name is None:
            continue
        model, reference = (
            tiny("llama", vocab_size=VOCAB, max_position_embeddings=4096, hidden_size=16) for _ in range(2)
        )
        loss = "dpo" if way.credit.pairs else "clipped"
        settings = Settings(
            credit=way.credit.rule or "shared",
            objective=Objective(loss=loss),
            # A model without training is far from the one whose logprobs were recorded.
            old_logprobs="recomputed",
            steps=1,
            lr=1e-3,
        )
        dpo = {"reference": reference} if way.credit.pairs else {}
        (metrics,) = train(model, way.export, settings=settings, **dpo).metrics
        assert metrics.trained_tokens > 0
        assert metrics.grad_norm > 0


def test_it_is_small_and_names_no_time(recorded: Recorded) -> None:
    lines = scripted_path(recorded.name).read_text().splitlines()
    fields = {field for line in lines for field in json.loads(line)}
    assert fields.isdisjoint({"at", "started_at", "ended_at", "first_token_at"})
    for way in recorded.ways:
        assert sum(shard.tokens for shard in way.manifest.shards) <= MOST_TOKENS


def test_every_system_has_a_page_a_script_and_says_what_it_shows() -> None:
    assert set(SCRIPTED) == set(names())
    assert set(NAMES) == {name for name in names() if system(name).seeds}
    for name in names():
        folder = REPO / "sample_traces" / name
        page = (folder / "README.md").read_text()
        assert page.startswith("# ")
        assert f"tracestore demo --system {name} --scripted" in page
        assert f"[{name}](sample_traces/{name}/README.md)" in (REPO / "README.md").read_text()
        assert system(name).scripts


@pytest.mark.soak
@pytest.mark.parametrize("name", SCRIPTED)
def test_the_demonstration_plays_its_harness_and_takes_a_step(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, facts = run_verb(capsys, "demo", "--system", name, "--scripted", "--dir", tmp_path)
    assert code == 0
    ways = read_show(REPO / "sample_traces" / name).credits
    assert [one["worked"] for one in facts["credits"]] == [len(way.worked) + len(way.pairs) for way in ways]
