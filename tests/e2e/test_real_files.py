"""Files that nobody here wrote: read, posted over HTTP, exported, checked, trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import run_verb
from tests.fixtures import ATROPOS, COMPETITIVE, ROUND_TRIP, fixture
from tests.serving import Connection, running_server
from tests.train.models import tiny
from tracestore.shards.read import Export, open_export
from tracestore.shards.row import Row
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context

Capture = pytest.CaptureFixture[str]


def exported(capsys: Capture, database: Path, out: Path) -> tuple[dict[str, Any], Export]:
    """Exports, verifies, and returns what both say."""
    db = f"sqlite:///{database}"
    code, facts = run_verb(capsys, "export", "--db", db, "--out", out)
    assert code == 0
    code, report = run_verb(capsys, "verify", "--db", db, out)
    assert (code, report["findings"]) == (0, 0)
    assert report["sampled_tokens"] == facts["sampled_tokens"]
    assert report["trained_tokens"] == facts["trained_tokens"]
    assert facts["sampled_tokens"] == facts["trained_tokens"] + facts["excluded_tokens"]
    return facts, open_export(out)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with room for the Qwen vocabulary."""
    folder = tmp_path_factory.mktemp("model")
    model = tiny(
        "llama",
        vocab_size=151_936,
        hidden_size=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8_192,
    )
    model.save_pretrained(folder)
    return folder


def test_a_broken_prefix_gives_two_samples_with_every_sampled_token_and_a_step_runs(
    tmp_path: Path, capsys: Capture, model_folder: Path
) -> None:
    path = fixture(ROUND_TRIP)
    database = tmp_path / "store.db"
    with running_server(database) as server:
        posted = ("import", "--format", "nemo-gym", "--url", server.url, path)
        code, facts = run_verb(capsys, *posted)
        assert code == 0
        assert {name: facts[name] for name in ("episodes", "agents", "calls", "tool_calls")} == {
            "episodes": 1,
            "agents": 1,
            "calls": 2,
            "tool_calls": 3,
        }
        assert (facts["sampled_tokens"], facts["compactions"]) == (702, 0)
        assert (facts["stored"], facts["duplicates"], facts["refused"]) == (8, 0, 0)
        code, again = run_verb(capsys, *posted)
        assert (code, again["stored"], again["duplicates"]) == (0, 0, 8)

        other = tmp_path / "other.jsonl"
        other.write_text(
            '{"v":1,"kind":"episode","id":"e"}\n{"v":1,"kind":"episode","id":"e","task_id":"t"}\n'
        )
        code, facts = run_verb(capsys, "import", "--url", server.url, other, "--project", "elsewhere")
        assert (code, facts["stored"], facts["refused"]) == (1, 1, 1)
        assert facts["problems"][0].startswith("episode e: Another event with this key is stored; ")

        # The file has no reward; a scorer that comes later posts one.
        with Connection(server.url) as connection:
            status, episodes = connection.get("/v1/episodes")
            assert status == 200
            target = {"episode_id": episodes["items"][0]["id"]}
            body = {"id": "late", "target": target, "name": "reward", "value": 1.0}
            status, answer = connection.post("/v1/rewards", json.dumps(body).encode())
        assert (status, answer["status"]) == (200, "stored")

    facts, export = exported(capsys, database, tmp_path / "export")
    assert (facts["samples"], facts["trained_tokens"], facts["excluded_tokens"]) == (2, 702, 0)
    assert facts["causes"] == {"root": 1, "template_drift": 1}
    assert [note.partition(":")[0] for note in facts["notes"]] == [
        "1 of 2 samples (50 %) begin at template_drift"
    ]
    (row,) = export.rows()
    shared = min(sample.num_tokens for sample in row.samples)
    # 3,088 + 495 and 3,637 + 207 tokens on two paths; the second prompt leaves the first path at 3,089.
    assert sorted(sample.num_tokens for sample in row.samples) == [3_583, 3_844]
    assert len(row.token_ids) == shared + 3_844 - 3_089

    code, trained = run_verb(
        capsys, "train", tmp_path / "export", "--model", model_folder, "--credit", "shared", "--steps", 1
    )
    assert (code, trained["steps"], trained["trained_tokens"]) == (0, 1, 702)


def test_scored_groups_keep_their_tokens_and_equal_scores_give_no_advantage(
    tmp_path: Path, capsys: Capture
) -> None:
    database = tmp_path / "store.db"
    with running_server(database) as server:
        code, facts = run_verb(capsys, "import", "--url", server.url, fixture(ATROPOS))
    assert code == 0
    assert (facts["episodes"], facts["calls"], facts["messages"]) == (24, 24, 132)
    assert (facts["sampled_tokens"], facts["refused"]) == (1_940, 0)

    facts, export = exported(capsys, database, tmp_path / "export")
    assert (facts["groups"], facts["samples"], facts["trained_tokens"]) == (6, 24, 1_940)
    rows = list(export.rows())
    assert [len(row.episodes) for row in rows] == [4] * 6
    assert sum(sample.num_tokens for row in rows for sample in row.samples) == 54_669
    given = [credit_by_reward(row) for row in rows]
    assert sum(set(values.values()) == {0.0} for values in given) == 2
    # Scores .645556, .595556, .645556, .630741: their mean is .629352.
    (first,) = (values for values in given if 0.5955555555555556 in values)
    expected = {0.6455555555555557: 0.016204, 0.5955555555555556: -0.033796, 0.6307407407407408: 0.001389}
    assert first == pytest.approx(expected, abs=1e-6)


def credit_by_reward(row: Row) -> dict[float, float]:
    """Score of an episode -> advantage of all its sampled tokens."""
    scores = {reward.episode: reward.value for reward in row.rewards}
    given = advantages(row, rule="shared", context=Context()).values
    assert {row.samples[sample].episode for sample, _ in given} == set(range(len(row.episodes)))
    return {scores[row.samples[sample].episode]: float(value) for (sample, _), value in given.items()}


def test_coding_rollouts_are_one_group_with_every_sampled_id(tmp_path: Path, capsys: Capture) -> None:
    database = tmp_path / "store.db"
    with running_server(database) as server:
        code, facts = run_verb(capsys, "import", "--url", server.url, fixture(COMPETITIVE))
    assert (code, facts["episodes"], facts["calls"], facts["sampled_tokens"]) == (0, 5, 5, 5_023)

    facts, export = exported(capsys, database, tmp_path / "export")
    assert (facts["groups"], facts["samples"], facts["trained_tokens"]) == (1, 5, 5_023)
    (row,) = export.rows()
    # 109 prompt tokens are one segment for all five.
    assert len(row.token_ids) == 109 + 5_023
