from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.factories import posted
from tracestore.cli.main import main
from tracestore.store import Store


def test_rules_of_a_file_redact_hold_and_are_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = empty_store(tmp_path / "store.db")
    with Store.open(url) as store:
        store.ingest("p", [posted(make.episode("e", error="my sk-A1"))])
    rules = tmp_path / "rules.json"
    rules.write_text('[{"name": "key", "pattern": "sk-[A-Z0-9]+"}]', encoding="utf-8")
    here = ["--db", url, "--project", "p", "--json"]
    assert main(["db", "redact", *here, "--rules", str(rules), "--reason", "leaked"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["values"], found["reason"]) == ("done", 1, "leaked")
    assert found["asked_by"].startswith("user ")
    with Store.open(url) as store:
        [outcome] = store.ingest("p", [posted(make.gap("g", detail="sk-A2"))])
        assert outcome.redacted == 1
        assert b"[redacted:key]" in b"".join(str(one).encode() for one in store.load("p", "e"))
    assert main(["db", "redact", *here]) == 0
    assert capsys.readouterr().out == ""
    assert main(["db", "redact", *here, "--end", str(found["id"])]) == 0
    assert json.loads(capsys.readouterr().out)["ended_at"] is not None
    assert main(["db", "redact", *here, "--list"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == found["id"]


def test_rules_that_cannot_be_used_are_asked_for_wrongly(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "store.db")
    rules = tmp_path / "rules.json"
    rules.write_text('[{"name": "key"}]', encoding="utf-8")
    assert main(["db", "redact", "--db", url, "--rules", str(rules)]) == 2
    assert main(["db", "redact", "--db", url, "--rules", str(tmp_path / "none.json")]) == 2
    assert main(["db", "redact", "--db", url, "--reason", "why"]) == 2
