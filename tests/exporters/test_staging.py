"""A folder that is seen whole or not at all, however the process that fills it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.exporters.memory import MemorySource
from tests.exporters.test_export import ONE_EACH, THREE, begun, names
from tracestore_exporters.export import export
from tracestore_exporters.place import BadOut, InUse, NotEmpty, OtherExport
from tracestore_exporters.staging import staged_folder

FORK = multiprocessing.get_context("fork")


def killed_while_writing(out: Path) -> None:
    with staged_folder(out) as folder:
        (folder / "half").write_text("x")
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_left_is_taken_away_by_the_next_one(tmp_path: Path) -> None:
    process = FORK.Process(target=killed_while_writing, args=(tmp_path / "out",))
    process.start()
    process.join()
    assert (process.exitcode, names(tmp_path)) == (-signal.SIGKILL, [".out.partial"])
    with staged_folder(tmp_path / "out") as folder:
        (folder / "whole").write_text("y")
    assert (names(tmp_path), names(tmp_path / "out")) == (["out"], ["whole"])


def test_a_link_to_a_folder_is_the_folder_that_it_names(tmp_path: Path) -> None:
    """One disk may be where the command is given, another where there is room."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "here").mkdir()
    for name, target in {"files": "there", "shards": "empty"}.items():
        (tmp_path / "here" / name).symlink_to(tmp_path / "disk" / target)
    (tmp_path / "disk" / "empty").mkdir()
    with staged_folder(tmp_path / "here" / "files") as folder:
        assert folder.is_relative_to(tmp_path / "disk")
        (folder / "whole").write_text("y")
    export(MemorySource(THREE), "p", tmp_path / "here" / "shards", ONE_EACH)
    assert names(tmp_path / "disk") == ["empty", "there"]
    assert names(tmp_path / "here" / "files") == ["whole"]
    assert "manifest.json" in names(tmp_path / "here" / "shards")


def test_an_export_takes_the_place_of_a_conversion_that_was_killed(tmp_path: Path) -> None:
    process = FORK.Process(target=killed_while_writing, args=(tmp_path / "out",))
    process.start()
    process.join()
    export(MemorySource(THREE), "p", tmp_path / "out", ONE_EACH)
    assert names(tmp_path) == ["out"]


def test_every_file_is_synced_before_the_folder_has_its_name_and_the_folder_above_it_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        steps.append(f"rename {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    with staged_folder(tmp_path / "out") as folder:
        for name in ("a", "b"):
            (folder / name).write_text(name)
    assert sorted(steps[:2]) == ["sync a", "sync b"]
    assert steps[2:] == ["sync files", "rename out", f"sync {tmp_path.name}"]


def test_after_an_error_nothing_is_left(tmp_path: Path) -> None:
    def fails() -> None:
        with staged_folder(tmp_path / "out") as folder:
            (folder / "half").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert names(tmp_path) == []


def test_one_process_at_a_time_writes_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracestore_exporters.staging._PATIENCE_S", 0)
    with staged_folder(tmp_path / "out") as folder:
        with pytest.raises(InUse), staged_folder(tmp_path / "out"):
            pass
        with pytest.raises(InUse):
            export(MemorySource(THREE), "p", tmp_path / "out", ONE_EACH)
        (folder / "whole").touch()
    assert names(tmp_path / "out") == ["whole"]


def test_an_export_that_was_begun_there_is_left_alone(tmp_path: Path) -> None:
    begun(tmp_path / "out")
    with pytest.raises(OtherExport, match="finish it by its command"), staged_folder(tmp_path / "out"):
        pass
    assert export(MemorySource(THREE), "p", tmp_path / "out", ONE_EACH).rows == 3


def test_a_folder_with_something_in_it_is_refused_as_asked_for_wrongly(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    (tmp_path.parent / f".{tmp_path.name}.partial").mkdir()  # of one that was killed
    with pytest.raises(NotEmpty) as error, staged_folder(tmp_path):
        pass
    assert error.value.exit_code == 2
    assert not (tmp_path.parent / f".{tmp_path.name}.partial").exists()


@contextmanager
def unprivileged() -> Iterator[None]:
    """As somebody to whom the folders of the tests are closed."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_folder_that_is_closed_to_us_is_refused_in_words(tmp_path: Path, mode: int) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(mode)
    try:
        with unprivileged():
            with pytest.raises(BadOut, match="Permission denied") as error, staged_folder(closed / "out"):
                pass
            assert error.value.exit_code == 2
            with pytest.raises(BadOut, match="Permission denied"):
                export(MemorySource(THREE), "p", closed / "out", ONE_EACH)
    finally:
        closed.chmod(0o755)
