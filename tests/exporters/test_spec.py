from __future__ import annotations

from pathlib import Path

import pytest

from tracestore_exporters.spec import BadSpec, Spec, read_spec


def test_a_spec_is_read_from_json(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text('{"objective": "sft", "models": ["m"], "max_row_bytes": 10}')
    assert read_spec(path) == Spec(objective="sft", models=("m",), max_row_bytes=10)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"objectiv": "rl"}', "objectiv: Extra inputs"),
        ('{"objective": "dpo"}', "objective: Input should be"),
        ('{"splits": []}', "splits: Tuple should have at least 1"),
        ("{", "Invalid JSON"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(text)
    with pytest.raises(BadSpec, match=problem):
        read_spec(path)


def test_a_missing_spec_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=r"No such file"):
        read_spec(tmp_path / "nowhere.json")


def test_the_hash_depends_on_every_choice() -> None:
    specs = [Spec(), Spec(objective="sft"), Spec(candidates="exclude"), Spec(shard_rows=3)]
    assert len({spec.spec_hash for spec in specs}) == 4
    assert Spec().spec_hash == Spec(objective="rl").spec_hash
