from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tracestore.train import smollm2


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRACESTORE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert smollm2.cache_dir() == tmp_path / "xdg" / "tracestore"
    monkeypatch.setenv("TRACESTORE_CACHE", str(tmp_path / "own"))
    assert smollm2.cache_dir() == tmp_path / "own"


def test_without_the_wheel_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACESTORE_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(smollm2.ModelMissing, match="pip install"):
        smollm2.model_path()


def test_a_conversion_that_fails_leaves_nothing_under_the_final_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACESTORE_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "gguf_path", lambda: tmp_path / "model.gguf")

    def fail(source: Path, folder: Path) -> None:
        (folder / "half").write_text("written")
        raise OSError("disk full")

    monkeypatch.setattr(smollm2, "_convert", fail)
    with pytest.raises(OSError, match="disk full"):
        smollm2.model_path()
    assert list(tmp_path.iterdir()) == []


def test_a_second_start_converts_nothing_and_a_lost_race_takes_the_winners_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACESTORE_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "gguf_path", lambda: tmp_path / "model.gguf")

    def convert(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_text("ours")
        (tmp_path / "smollm2").mkdir()
        (tmp_path / "smollm2" / "model.safetensors").write_text("theirs")

    monkeypatch.setattr(smollm2, "_convert", convert)
    said: list[str] = []
    assert smollm2.model_path(said.append) == smollm2.model_path(said.append)
    assert len(said) == 1
    assert (tmp_path / "smollm2" / "model.safetensors").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2"]
