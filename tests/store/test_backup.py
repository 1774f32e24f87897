"""A backup is a store: all that was acknowledged before it began, while others go on writing."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from tests import factories as make
from tests.databases import empty_store
from tests.factories import call, posted, user
from tests.serving import Connection, running_server
from tests.store.servers import postgresql
from tests.store.test_blobs import put
from tracestore.cli.main import main
from tracestore.store import Store
from tracestore.store.backup import (
    BadBackup,
    BlobsWithoutPlace,
    FileThere,
    NoFolder,
    backup,
    blobs_of,
    restore,
)
from tracestore.store.blobs import open_blobs
from tracestore.store.engine import NoStore
from tracestore.store.verify import verify
from tracestore_migrations import check


def unheard(copied: int, pages: int) -> None:
    pass


def episode_of(number: int) -> list[object]:
    name = f"e{number}"
    return [
        make.episode(name),
        make.agent(f"a{number}", episode=name),
        call(f"c{number}", [user(f"{number} " * 2000)], "b", episode=name, agent=f"a{number}"),
    ]


def fill(store: Store, number: int) -> None:
    outcomes = store.ingest("p", [posted(event) for event in episode_of(number)])
    assert {outcome.status for outcome in outcomes} == {"stored"}


def test_a_backup_beside_a_server_that_is_written_to_holds_all_that_was_acknowledged(tmp_path: Path) -> None:
    database = tmp_path / "live.db"
    ended, acknowledged = threading.Event(), [0]

    def post(url: str) -> None:
        number = 0
        with Connection(url) as connection:
            while not ended.is_set():
                body = b"[" + b",".join(posted(event)[1] for event in episode_of(number)) + b"]"
                status, answer = connection.post("/v1/events", body, {"X-Tracestore-Project": "p"})
                assert status == 200, answer
                number += 1
                acknowledged[0] = number

    with running_server(database) as server:
        poster = threading.Thread(target=post, args=(server.url,))
        poster.start()
        try:
            while acknowledged[0] < 30:
                time.sleep(0.01)
            before = acknowledged[0]
            heard: list[tuple[int, int]] = []
            copied = backup(
                f"sqlite:///{database}",
                tmp_path / "copy.db",
                blobs=None,
                heard=lambda done, pages: heard.append((done, pages)),
            )
            while acknowledged[0] < before + 5:  # the server goes on
                time.sleep(0.01)
        finally:
            ended.set()
            poster.join()
    assert heard[-1][0] == heard[-1][1] > 0
    assert copied.positions["p"] >= 3 * before
    with Store.open(f"sqlite:///{tmp_path / 'copy.db'}", create=False) as store:
        report = verify(store, "p")
        assert report.problems == ()
        assert report.num_events == copied.positions["p"]
        assert report.num_episodes >= before
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]  # it was opened, and closed


def test_a_backup_is_of_one_moment_however_often_the_store_changes_between_its_steps(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "t.db")
    with Store.open(url) as store:
        for number in range(40):
            fill(store, number)

        def write(copied: int, pages: int) -> None:
            fill(store, 1000 + copied)

        copied = backup(url, tmp_path / "copy.db", blobs=None, heard=write)
        assert copied.positions == {"p": 120}
        assert store.snapshot("p") > 120


def test_payloads_come_along_and_a_restored_store_is_the_same(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "t.db")
    name = sha256(b"image").hexdigest()
    with Store.open(url) as store:
        fill(store, 0)
    with open_blobs(str(tmp_path / "t.db.blobs")).uploads.begin("p", name) as upload:
        upload.write(b"image")
        upload.finish()
    copied = backup(url, tmp_path / "copy.db", blobs=tmp_path / "t.db.blobs", heard=unheard)
    assert (copied.blobs, copied.blob_bytes) == (1, 5)
    again = f"sqlite:///{tmp_path / 'again.db'}"
    restored = restore(tmp_path / "copy.db", again, blobs=None, heard=unheard)
    assert restored.positions == copied.positions == {"p": 3}
    assert b"".join(open_blobs(str(tmp_path / "again.db.blobs")).read("p", name, start=0, stop=5)) == b"image"
    with Store.open(url) as old, Store.open(again, create=False) as new:
        assert new.load_graph("p", "e0") == old.load_graph("p", "e0")


def test_nothing_is_written_over_and_nothing_is_left_of_what_failed(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "t.db")
    (tmp_path / "there.db").touch()
    with pytest.raises(FileThere):
        backup(url, tmp_path / "there.db", blobs=None, heard=unheard)
    with pytest.raises(FileThere):
        restore(tmp_path / "there.db", url, blobs=None, heard=unheard)
    with pytest.raises(NoStore):
        backup(f"sqlite:///{tmp_path / 'none.db'}", tmp_path / "copy.db", blobs=None, heard=unheard)
    with pytest.raises(BadBackup, match="store"):
        restore(tmp_path / "there.db", f"sqlite:///{tmp_path / 'new.db'}", blobs=None, heard=unheard)
    (tmp_path / "t.db.blobs" / "aa" / "bb").mkdir(parents=True)
    (tmp_path / "t.db.blobs" / "aa" / "bb" / ("b" * 64)).write_bytes(b"other bytes")
    with pytest.raises(BadBackup, match="hash"):
        backup(url, tmp_path / "copy.db", blobs=tmp_path / "t.db.blobs", heard=unheard)
    assert not list(tmp_path.glob("copy*"))
    assert not list(tmp_path.glob("new*"))


def test_a_copy_for_which_there_is_no_room_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "t.db")
    command = ["db", "backup", str(tmp_path / "copy.db"), "--db", url]
    limited = f"""
import resource, signal, sys
from tracestore.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(main({command!r}))
"""
    done = subprocess.run([sys.executable, "-c", limited], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no space left" in done.stderr
    assert "copy.db" in done.stderr
    assert not list(tmp_path.glob("copy*"))
    with pytest.raises(NoFolder):
        backup(url, tmp_path / "none" / "copy.db", blobs=None, heard=unheard)


def dies_before(step: int, work: Callable[[], object]) -> bool:
    """Do something in a process that kills itself before its n-th change of a name; whether it was killed."""
    left = step

    def around(whole: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*args: Any, **more: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            whole(*args, **more)

        return wrapped

    def run() -> None:
        os.rename = around(os.rename)
        Path.unlink = around(Path.unlink)  # type: ignore[method-assign]
        work()

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(60)
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def test_a_copy_that_is_killed_at_any_name_is_made_again_by_the_same_command(tmp_path: Path) -> None:
    """Between its payloads and itself, and the next attempt took the folder for that of another store."""
    url, again = empty_store(tmp_path / "t.db"), tmp_path / "again.db"
    with Store.open(url) as store:
        fill(store, 0)
    blobs = open_blobs(str(blobs_of(tmp_path / "t.db")))
    names = [put(blobs, data) for data in (b"one", b"two")]
    others, step = tmp_path / "elsewhere", 0
    had_their_place: set[tuple[bool, bool]] = set()

    def copy() -> object:
        return restore(tmp_path / "t.db", f"sqlite:///{again}", blobs=others, heard=unheard)

    while dies_before(step, copy):
        step += 1
        had_their_place.add((others.exists(), again.exists()))
        if again.exists():
            with pytest.raises(FileThere, match=r"again\.db"):
                copy()
        else:
            copy()
        assert open_blobs(str(others)).sizes("p", names) == dict.fromkeys(names, 3)
        with Store.open(f"sqlite:///{again}", create=False) as store:
            assert verify(store, "p").problems == ()
        again.unlink()
        left = {file.name for file in tmp_path.iterdir()} - {"t.db", "t.db-wal", "t.db-shm"}
        assert left == {"t.db.blobs", "elsewhere"}
        assert {file.name for file in others.rglob("*") if file.is_file()} - {"unfinished"} == set(names)
        shutil.rmtree(others)
    assert had_their_place == {(False, False), (True, False), (True, True)}
    assert {file.name for file in others.rglob("*") if file.is_file()} == set(names)


def test_a_folder_of_payloads_that_is_no_copys_is_left_alone(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "t.db")
    put(open_blobs(str(blobs_of(tmp_path / "t.db"))), b"one")
    for there in (blobs_of(tmp_path / "copy.db"), tmp_path / "folder"):
        put(open_blobs(str(there)), b"of another")
    with pytest.raises(FileThere, match=r"copy\.db\.blobs"):
        backup(url, tmp_path / "copy.db", blobs=blobs_of(tmp_path / "t.db"), heard=unheard)
    with pytest.raises(FileThere, match="folder"):
        restore(tmp_path / "t.db", f"sqlite:///{tmp_path / 'x.db'}", blobs=tmp_path / "folder", heard=unheard)
    assert not (tmp_path / "copy.db").exists()
    assert not (tmp_path / "x.db").exists()


def test_a_damaged_backup_is_refused(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "t.db")
    with Store.open(url) as store:
        fill(store, 0)
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection, connection:
        connection.execute("UPDATE reward SET episode_key = 5")
        connection.execute("UPDATE call SET episode_key = 99999")
    with pytest.raises(BadBackup, match="call"):
        backup(url, tmp_path / "copy.db", blobs=None, heard=unheard)
    assert not blobs_of(tmp_path / "copy.db").exists()


WRITER = """
import sys
from tests.store.test_backup import fill
from tracestore.store import Store

with Store.open(sys.argv[1], create=False) as store:
    number = 0
    while True:
        fill(store, number)
        number += 1
        print(number, flush=True)
"""


@contextmanager
def another_process_writing(url: str) -> Iterator[Callable[[], int]]:
    """A process that ingests one episode after the other; gives how many it has been told are on disk."""
    acknowledged = [0]

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            acknowledged[0] = int(line)

    process = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True)
    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield lambda: acknowledged[0]
    finally:
        process.kill()
        process.wait()
        listener.join()
        assert process.stdout is not None
        process.stdout.close()


def test_a_backup_of_postgresql_holds_all_that_was_acknowledged_and_makes_either_database_again(
    tmp_path: Path,
) -> None:
    file = tmp_path / "copy.db"
    with postgresql() as url:
        Store.open(url).close()
        with another_process_writing(url) as acknowledged:
            while acknowledged() < 20:
                time.sleep(0.01)
            before = acknowledged()
            copied = backup(url, file, blobs=None, heard=unheard)
            while acknowledged() < before + 5:  # the other process goes on
                time.sleep(0.01)
        # Three events each: a whole number of them, and no more than had begun.
        assert 3 * before <= copied.positions["p"] <= 3 * (acknowledged() + 1)
        with Store.open(f"sqlite:///{file}", create=False) as store:
            assert check(store.engine) == []
            report = verify(store, "p")
            assert report.problems == ()
            assert report.num_events == copied.positions["p"]
        with pytest.raises(FileThere, match="empty"):
            restore(file, url, blobs=None, heard=unheard)
        again = make_url(url).set(database="again").render_as_string(hide_password=False)
        with Store.open(url) as live, Store.open(f"sqlite:///{file}") as store:
            with live.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("CREATE DATABASE again")
            place = tmp_path / "payloads"
            put(open_blobs(str(blobs_of(file))), b"one")
            with pytest.raises(FileThere, match="empty"):
                restore(file, url, blobs=place, heard=unheard)
            assert not place.exists()
            # The rows go with the process, and the folder that it made for the payloads stays.
            assert dies_before(1, lambda: restore(file, again, blobs=place, heard=unheard))
            assert place.exists()
            restored = restore(file, again, blobs=place, heard=unheard)
            assert restored.blobs == 1
            assert restored.positions == copied.positions
            with Store.open(again, create=False) as new:
                assert check(new.engine) == []
                assert verify(new, "p").problems == ()
                assert new.load_graph("p", "e0") == store.load_graph("p", "e0") == live.load_graph("p", "e0")


def test_a_backup_with_payloads_is_not_restored_without_a_place_for_them(tmp_path: Path) -> None:
    empty_store(tmp_path / "t.db")
    blobs_of(tmp_path / "t.db").mkdir()
    with pytest.raises(BlobsWithoutPlace, match="--blobs"):
        restore(tmp_path / "t.db", "postgresql://localhost/x", blobs=None, heard=unheard)


def test_the_verbs_say_what_they_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = empty_store(tmp_path / "t.db")
    with Store.open(url) as store:
        fill(store, 0)
    copy = str(tmp_path / "copy.db")
    assert main(["db", "backup", copy, "--db", url, "--json", "--blobs", "s3://bucket/x"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["file"], facts["positions"], facts["blobs"]) == (copy, {"p": 3}, 0)
    assert facts["blobs_not_copied"] == "s3://bucket/x"
    assert main(["db", "restore", copy, "--db", f"sqlite:///{tmp_path / 'again.db'}"]) == 0
    assert "positions" in capsys.readouterr().out
    assert main(["db", "restore", copy, "--db", url]) == 2
