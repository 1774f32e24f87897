"""Trace files of many harnesses, from the disk to shards: imported, queried, rendered, exported, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import run_verb
from tests.fixtures import fixture, fixtures_root
from tests.tokens.folders import TOOLED, folder
from tracestore.shards.read import open_export
from tracestore.store.schema import view_statements

Capture = pytest.CaptureFixture[str]

ONE_OF_EACH = (
    "adk/google__adk-python/tests/integration/fixture/context_update_test/successful_test.session.json",
    "atif/arize-ai__phoenix-client/harbor_terminus2_summarization.json",
    "claude_code/chiphuyen__sniffly/-Users-user-dev-ai-music/ba79134d-b6e9-4867-af0c-6941038c9e4b.jsonl",
    "claude_code/kylesnowschwartz__tail-claude/team-parent/subagents/agent-team-impl-001-cont.jsonl",
    "cline/cline__cline/subagents.json",
    "inspect/ukgovernmentbeis__inspect_ai/analysis/test_logs/2025-05-12T20-27-36-04-00_browser.json",
    "opencode/nvidia-nemo__gym/responses_api_agents/opencode_sandboxed_agent/tests/opencode_export_test_data.json",
    "openhands/openhands__software-agent-sdk/tests/fixtures/llm_data/fncall-llm-message.json",
    "rlm/avbiswas__fast-rlm/lex_fridman_2026-02-16T12-04-04-095Z.jsonl",
    "swe_agent/swe-agent__mini-swe-agent/tests/test_data/github_issue.traj.json",
    "trees/a-antoniades__swe-search/tests/edit/data/django__django-11039.json",
)


def query(capsys: Capture, db: str, sql: str) -> list[dict[str, Any]]:
    code, answer = run_verb(capsys, "sql", "--db", db, sql)
    assert code == 0, answer
    columns = [column["name"] if isinstance(column, dict) else column for column in answer["columns"]]
    return [dict(zip(columns, row, strict=True)) for row in answer["rows"]]


def claim(capsys: Capture, tmp_path: Path, paths: list[Path]) -> None:
    """What is imported answers in every view, and every answer in it is trained or left out for a reason."""
    db, out = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "out"
    code, report = run_verb(capsys, "import", "--db", db, *paths)
    again_code, again = run_verb(capsys, "import", "--db", db, *paths)
    assert (again_code, again["stored"], again["duplicates"]) == (
        code,
        0,
        report["stored"] + report["duplicates"],
    )
    assert run_verb(capsys, "verify", "--db", db)[1]["findings"] == 0
    counts = " UNION ALL ".join(
        f"SELECT '{view}' AS name, count(*) AS num FROM {view}" for view in view_statements()
    )
    num = {row["name"]: row["num"] for row in query(capsys, db, counts)}
    assert (num["episodes"], num["agents"], num["calls"]) == tuple(
        report[name] for name in ("episodes", "agents", "calls")
    )
    assert num["gaps"] == report["gaps"]
    assert min(num[name] for name in ("messages", "contexts", "branches")) > 0
    chat = ("--tokenizer", folder(tmp_path / "tokenizer", TOOLED))
    code, facts = run_verb(
        capsys, "export", "--db", db, "--out", out, "--objective", "sft", "--render", *chat
    )
    assert code == 0, facts
    code, checked = run_verb(capsys, "verify", "--db", db, out, *chat)
    assert (code, checked["findings"]) == (0, 0)
    assert facts["sampled_tokens"] == facts["trained_tokens"] + facts["excluded_tokens"]
    assert facts["trained_tokens"] > 0
    table = open_export(out).manifest.conservation
    assert table.rendered_completions > 0, json.dumps(facts)


def test_one_file_of_each_harness_goes_from_the_disk_to_shards(tmp_path: Path, capsys: Capture) -> None:
    claim(capsys, tmp_path, [fixture(name) for name in ONE_OF_EACH])


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_every_file_goes_from_the_disk_to_shards(tmp_path: Path, capsys: Capture) -> None:
    fixture(ONE_OF_EACH[0])
    claim(capsys, tmp_path, [fixtures_root()])
