"""docs/credit.md names every rule, option, default, term, fact and note."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.train.credit.agents import Agent, agents_row
from tests.train.exports import export_of
from tracestore.train.credit import RULES
from tracestore.train.credit.base import Advantages
from tracestore.train.credit.facts import FACTS
from tracestore.train.credit.options import Options
from tracestore.train.credit.terms import TERMS

PAGE = (Path(__file__).parents[3] / "docs" / "credit.md").read_text(encoding="utf-8")
ROWS = {cells[1].strip(" `"): cells for line in PAGE.splitlines() if len(cells := line.split("|")) >= 4}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_a_row_with_its_options_and_their_defaults(name: str) -> None:
    kind = RULES[name].options
    if RULES[name].told or (name != "shared-std" and kind is RULES["shared-std"].options):
        assert "shared-std" in ROWS[name][2] or "shared-std" in ROWS[name][3]
        return
    said = re.findall(r"`(\w+)(?:=([^`]*))?`", ROWS[name][3])
    assert {(option, value) for option, value in said} == set(spelled(kind))


def spelled(kind: type[Options]) -> list[tuple[str, str]]:
    found = []
    for name, info in kind.model_fields.items():
        value = info.default
        if info.is_required():
            value = ""
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, (int, float)):
            value = "1e-6" if value == 1e-6 else f"{value:.8g}"
        found.append((info.alias or name, value))
    return found


def test_every_term_and_fact_is_named() -> None:
    assert set(TERMS) <= ROWS.keys()
    assert all(f"`{name}`" in PAGE for name in FACTS)


def test_every_note_that_a_rule_counts_is_named() -> None:
    folder = Path(__file__).parents[3] / "tracestore" / "train" / "credit"
    counted = {
        name for path in folder.glob("*.py") for name in re.findall(r'notes\["(\w+)"\]', path.read_text())
    }
    assert "broken_trees" in counted
    assert {name for name in counted if f"`{name}`" not in PAGE} == set()


def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = Agent(0, parent=0, fields={"score": 1.0})
    export_of([agents_row([Agent(0), below, Agent(1)], rewards=[1, 0])], tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    given = names["given"]
    assert isinstance(given, Advantages)
    # roots 1 - .002 + .4 * 1 and 0 - .001: 1.399; N_0 = 2, N_1 = 1: alpha 3/2, weight of a root .75
    assert given.values[0, 0] == pytest.approx(0.75 * ((1 - 0.002 + 0.4) - (0 - 0.001)))
