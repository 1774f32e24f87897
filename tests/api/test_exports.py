"""Exports over HTTP, read by the library itself and by hand."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests import factories as make
from tests.databases import empty_store
from tests.exporters.stores import all_scenarios
from tests.factories import posted
from tests.shards.test_log import HEADER
from tracestore.cli.main import main
from tracestore.shards.files import ERASED, Folder
from tracestore.shards.log import Log
from tracestore.shards.manifest import Manifest, read_manifest, write_manifest
from tracestore.store import Store
from tracestore.store.delete import carry_out, delete_episode, delete_project
from tracestore.store.engine import writer
from tracestore.store.keys import Right, create_key
from tracestore_api.app import create_app
from tracestore_api.exports import LagAnswer
from tracestore_api.logs import Logs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two exports: `served/one` and `hidden/two`."""
    folder = tmp_path_factory.mktemp("exports")
    with Store.open(empty_store(folder / "store.db")) as store:
        store.ingest("default", [posted(event) for event in all_scenarios()])
    for out, objective in (("served/one", "rl"), ("hidden/two", "sft")):
        argv = ["--db", f"sqlite:///{folder}/store.db", "--out", str(folder / out), "--json"]
        assert main(["export", *argv, "--objective", objective]) == 0
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to do what one likes with."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def manifest_of(made: Path, name: str = "served/one") -> Manifest:
    return read_manifest(made / name)


@pytest.fixture
def client(made: Path) -> Iterator[TestClient]:
    with opened(made) as found:
        yield found


@contextmanager
def opened(place: Path) -> Iterator[TestClient]:
    store = Store.open(f"sqlite:///{place}/store.db")
    app = create_app(store, exported=[str(place / "served")])
    with store, TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)) as client:
        yield client


def test_exports_are_listed_the_latest_first_page_by_page(client: TestClient, made: Path) -> None:
    first = client.get("/v1/exports", params={"limit": 1}).json()
    second = client.get("/v1/exports", params={"limit": 1, "cursor": first["next_cursor"]}).json()
    assert (first["truncated"], second["truncated"]) == (True, False)
    items = [*first["items"], *second["items"]]
    assert [one["location"] for one in items] == [str(made / "hidden/two"), str(made / "served/one")]
    table = manifest_of(made).conservation
    assert items[1]["manifest_hash"] == manifest_of(made).manifest_hash
    assert (items[1]["sampled_tokens"], items[1]["trained_tokens"]) == (
        table.sampled_tokens,
        table.trained_tokens,
    )


def test_a_manifest_and_its_files_are_what_was_written(client: TestClient, made: Path) -> None:
    manifest = manifest_of(made)
    url = f"/v1/exports/{manifest.manifest_hash}"
    answer = client.get(url).json()
    assert answer["manifest_hash"] == manifest.manifest_hash
    assert Manifest.model_validate(answer["manifest"]) == manifest
    assert answer["gone"] == []
    [shard] = manifest.shards
    file = client.get(f"{url}/files/{shard.file}")
    assert hashlib.sha256(file.content).hexdigest() == shard.sha256
    assert file.headers["etag"] == f'"{shard.sha256}"'
    assert (
        client.get(f"{url}/files/manifest.json").content == (made / "served/one/manifest.json").read_bytes()
    )


def test_ranges_are_answered_as_http_says(client: TestClient, made: Path) -> None:
    [shard] = manifest_of(made).shards
    url = f"/v1/exports/{manifest_of(made).manifest_hash}/files/{shard.file}"
    data = (made / "served/one" / shard.file).read_bytes()
    part = client.get(url, headers={"Range": "bytes=8-15"})
    assert (part.status_code, part.content) == (206, data[8:16])
    assert part.headers["content-range"] == f"bytes 8-15/{len(data)}"
    tail = client.get(url, headers={"Range": "bytes=-4", "If-Range": f'"{shard.sha256}"'})
    assert (tail.status_code, tail.content) == (206, data[-4:])
    other = client.get(url, headers={"Range": "bytes=8-15", "If-Range": '"another"'})
    assert (other.status_code, other.content) == (200, data)
    behind = client.get(url, headers={"Range": f"bytes={len(data)}-"})
    assert (behind.status_code, behind.headers["content-range"]) == (416, f"bytes */{len(data)}")
    assert behind.headers["content-type"] == "application/problem+json"
    known = client.get(url, headers={"If-None-Match": f'"{shard.sha256}"'})
    assert (known.status_code, known.content) == (304, b"")


def test_an_export_that_goes_on_has_the_files_of_its_log(place: Path) -> None:
    folder = followed(place)
    log = Log.open(folder)
    [shard] = log.shards
    with opened(place) as client:
        url = f"/v1/exports/{log.first_hash}"
        assert client.get(url).json()["manifest"]["rows"] == log.manifest().rows
        for name in ("log/00000000.json", "log/00000001.json", shard):
            assert client.get(f"{url}/files/{name}").content == (folder / name).read_bytes()
        for name in ("log/00000002.json", "log/../../one/manifest.json", "manifest.json"):
            assert client.get(f"{url}/files/{name}").status_code == 404


def test_what_follow_prints_is_asked_for_over_http(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = followed(place)
    *entries, facts = map(json.loads, capsys.readouterr().out.splitlines())
    assert {entry["manifest_hash"] for entry in entries} == {facts["manifest_hash"]}
    with opened(place) as client:
        answer = client.get(f"/v1/exports/{facts['manifest_hash']}").json()
        assert facts["manifest_hash"] in {
            one["manifest_hash"] for one in client.get("/v1/exports").json()["items"]
        }
        assert Manifest.model_validate(answer["manifest"]).manifest_hash == facts["rows_hash"]
    run_tracestore("export", "--lag", place=place, out=folder)
    assert json.loads(capsys.readouterr().out)["manifest_hash"] == facts["manifest_hash"]


def followed(place: Path, name: str = "followed") -> Path:
    """The scenarios followed into a folder that is served."""
    folder = place / "served" / name
    run_tracestore("export", "--follow", *IDLE, place=place, out=folder)
    return folder


def run_tracestore(*argv: str, place: Path, out: Path) -> None:
    assert main([*argv, "--db", f"sqlite:///{place}/store.db", "--out", str(out), "--json"]) == 0


IDLE = ("--interval", "0.001", "--until-idle", "0.001")


def test_the_entries_of_a_log_are_read_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request reads the entries that came since the one before, and asks for the one after the last."""
    folder = followed(place)
    asked: list[str] = []
    read = Folder.read

    def counted(self: Folder, name: str) -> bytes:
        asked.append(name)
        return read(self, name)

    monkeypatch.setattr(Folder, "read", counted)
    with opened(place) as client:
        log = Log.open(folder)
        url = f"/v1/exports/{log.first_hash}"
        asked.clear()
        for path in ("", "/lag", "/files/log/00000001.json", f"/files/{next(iter(log.shards))}", ""):
            assert client.get(f"{url}{path}").status_code == 200
        names = [f"log/{number:08d}.json" for number in range(log.number + 1)]
        assert sorted(name for name in asked if name in names) == names
        asked.clear()
        post(place, *rollout("new"))
        run_tracestore("export", "--follow", *IDLE, place=place, out=folder)
        asked.clear()
        assert client.get(url).json()["manifest"]["rows"] == log.manifest().rows + 1
        new = f"log/{log.number + 1:08d}.json"
        assert [name for name in asked if name <= new] == [new]


def rollout(id_: str) -> list[Any]:
    """An episode of one call with two tokens."""
    said = make.answer(id_, ids=[1, 2])
    asked = make.call(f"{id_}-c", [make.user("u")], said, episode=id_, agent=f"{id_}-main", prompt_ids=[9])
    return [asked, make.episode(id_, status="ok")]


def post(place: Path, *events: Any) -> None:
    with Store.open(f"sqlite:///{place}/store.db") as store:
        assert {one.status for one in store.ingest("default", list(map(posted, events)))} == {"stored"}


def test_a_log_is_read_anew_where_another_lies_in_its_place(place: Path) -> None:
    folder = followed(place)
    first = Log.open(folder)
    shutil.copytree(folder, place / "kept")
    with opened(place) as client:
        url = f"/v1/exports/{first.first_hash}"
        rows = client.get(url).json()["manifest"]["rows"]
        shutil.rmtree(folder)
        followed(place)
        assert "another export lies there now" in client.get(url).json()["detail"]
        second = Log.open(folder).first_hash
        assert client.get(f"/v1/exports/{second}").json()["manifest"]["rows"] == rows
        shutil.rmtree(folder)
        shutil.copytree(place / "kept", folder)
        assert client.get(url).json()["manifest"]["rows"] == rows
        post(place, *rollout("new"))
        run_tracestore("export", "--follow", *IDLE, place=place, out=folder)
        assert client.get(url).json()["manifest"]["rows"] == rows + 1
        shutil.rmtree(folder)
        shutil.copytree(place / "kept", folder)  # an earlier state of the same log
        assert client.get(url).json()["manifest"]["rows"] == rows
        shutil.rmtree(folder)
        shutil.copytree(place / "served/one", folder)
        assert "another export lies there now" in client.get(url).json()["detail"]


def test_few_logs_are_kept(place: Path) -> None:
    logs = Logs(most=2)
    for name in "abc":
        Log.start(make_folder(place / name), HEADER.model_copy(update={"log_id": name}))
    for name in "abca":
        with logs.at(place / name) as log:
            assert log.header.log_id == name
    assert [folder.name for folder in logs.kept] == ["c", "a"]


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_lag_over_http_is_what_the_command_says(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = followed(place)
    post(place, *rollout("new"))
    run_tracestore("export", "--follow", *IDLE, place=place, out=folder)
    post(place, make.consumption("u", "new-c", episode="new", run="mine"), *rollout("more"))
    capsys.readouterr()
    with moved(place) as client:
        url = f"/v1/exports/{Log.open(folder).first_hash}/lag"
        for flags, query in (([], {}), (["--run", "other"], {"run": "other"})):
            run_tracestore("export", "--lag", *flags, place=place, out=folder)
            said = json.loads(capsys.readouterr().out)
            answer = client.get(url, params=query).json()
            assert answer == said
            assert LagAnswer.model_validate(answer, strict=True).model_dump() == answer
        assert (answer["waiting_groups"], answer["behind"]) == (1, 3)
        assert answer["runs"]["mine"]["unconsumed_groups"] == answer["unconsumed_groups"] - 1
        assert client.get(url, params={"runs": "x"}).status_code == 422
        batch = client.get(f"/v1/exports/{manifest_of(place).manifest_hash}/lag")
        assert (batch.status_code, batch.json()["type"]) == (
            404,
            "urn:tracestore:problem:export-not-followed",
        )


def test_a_shard_with_what_was_deleted_is_gone_and_its_rows_lie_in_another(place: Path) -> None:
    post(place, *rollout("mine"), *rollout("other"))
    folder = followed(place)
    before = Log.open(folder)
    with Store.open(f"sqlite:///{place}/store.db") as store:
        carry_out(store, "default", delete_episode(store, "default", "mine").id)
    url = f"/v1/exports/{before.first_hash}"
    with opened(place) as client:
        assert {"kind": "episode", "id": "mine"} in client.get(url).json()["gone"]
        followed(place)
        assert client.get(url).json()["gone"] == []
        [old], [new] = before.shards, Log.open(folder).shards
        answer = client.get(f"{url}/files/{old}")
        assert (answer.status_code, answer.json()["type"]) == (410, ERASED)
        assert client.get(f"{url}/files/{new}").content == (folder / new).read_bytes()


@pytest.mark.parametrize("name", ["log", "log/", ""])
def test_folders_are_no_files(client: TestClient, made: Path, name: str) -> None:
    assert client.get(f"/v1/exports/{manifest_of(made).manifest_hash}/files/{name}").status_code == 404


@pytest.mark.parametrize(
    "name", ["other.arrow", "..%2Fone%2Fmanifest.json", "..%2F..%2Fstore.db", "%2Fetc%2Fhostname"]
)
def test_only_files_that_the_manifest_lists_are_served(client: TestClient, made: Path, name: str) -> None:
    (made / "served/one/other.arrow").write_text("not listed")
    answer = client.get(f"/v1/exports/{manifest_of(made).manifest_hash}/files/{name}")
    assert (answer.status_code, answer.json()["type"]) == (
        404,
        "urn:tracestore:problem:export-file-not-found",
    )


def test_exports_outside_the_named_folders_are_not_served(client: TestClient, made: Path) -> None:
    hidden = manifest_of(made, "hidden/two")
    for path in ("", "/files/manifest.json", f"/files/{hidden.shards[0].file}"):
        answer = client.get(f"/v1/exports/{hidden.manifest_hash}{path}")
        assert (answer.status_code, answer.json()["type"]) == (
            404,
            "urn:tracestore:problem:export-not-served",
        )
        assert "--exports" in answer.json()["detail"]
    assert client.get(f"/v1/exports/{'0' * 64}").json()["type"] == "urn:tracestore:problem:not-found"


def test_links_lead_out_of_no_folder(place: Path) -> None:
    hash_ = manifest_of(place, "hidden/two").manifest_hash
    [shard] = manifest_of(place).shards
    shutil.move(place / "served/one" / shard.file, place / "elsewhere.arrow")
    (place / "served/one" / shard.file).symlink_to(place / "elsewhere.arrow")
    with moved(place) as client:
        url = f"/v1/exports/{manifest_of(place).manifest_hash}/files/{shard.file}"
        assert client.get(url).json()["type"] == "urn:tracestore:problem:export-file-not-found"
        assert client.get(f"/v1/exports/{hash_}").json()["type"] == "urn:tracestore:problem:export-not-served"


def test_a_manifest_that_names_a_file_elsewhere_leads_to_none(place: Path) -> None:
    manifest = manifest_of(place)
    [shard] = manifest.shards
    outside = place / "elsewhere.arrow"
    shutil.copy(place / "served/one" / shard.file, outside)
    named = manifest.model_copy(update={"shards": (shard.model_copy(update={"file": str(outside)}),)})
    write_manifest(place / "served/one", named)
    with Store.open(f"sqlite:///{place}/store.db") as store, store.engine.begin() as connection:
        connection.execute(
            text("UPDATE export SET manifest_hash = :new WHERE manifest_hash = :old"),
            {"new": named.manifest_hash, "old": manifest.manifest_hash},
        )
    with moved(place) as client:
        url = f"/v1/exports/{named.manifest_hash}"
        assert client.get(url).status_code == 200
        answer = client.get(f"{url}/files/{outside}")
        assert answer.json()["type"] == "urn:tracestore:problem:export-file-not-found"


@contextmanager
def moved(place: Path) -> Iterator[TestClient]:
    """The service over a copy, whose exports lie where the copy lies."""
    with Store.open(f"sqlite:///{place}/store.db") as store, store.engine.begin() as connection:
        for name in ("served/one", "hidden/two"):
            connection.execute(
                text("UPDATE export SET location = :where WHERE manifest_hash = :hash"),
                {"where": str(place / name), "hash": manifest_of(place, name).manifest_hash},
            )
    with opened(place) as client:
        yield client


def test_files_that_are_not_as_written_are_not_served(place: Path) -> None:
    manifest = manifest_of(place)
    [shard] = manifest.shards
    with moved(place) as client:
        url = f"/v1/exports/{manifest.manifest_hash}"
        file = place / "served/one" / shard.file
        file.write_bytes(file.read_bytes()[:-1])
        assert (
            client.get(f"{url}/files/{shard.file}").json()["type"]
            == "urn:tracestore:problem:export-file-not-found"
        )
        file.unlink()
        assert client.get(f"{url}/files/{shard.file}").status_code == 404
        shutil.copy(place / "hidden/two/manifest.json", place / "served/one/manifest.json")
        assert "another export lies there" in client.get(url).json()["detail"]
        (place / "served/one/manifest.json").write_text("{")
        assert client.get(url).json()["type"] == "urn:tracestore:problem:export-not-served"


def test_what_was_deleted_since_is_told_with_the_manifest(place: Path) -> None:
    manifest = manifest_of(place)
    with Store.open(f"sqlite:///{place}/store.db") as store:
        [first, *_] = [id_ for group in store.groups("default") for id_ in group.episode_ids]
        carry_out(store, "default", delete_episode(store, "default", first).id)
    with moved(place) as client:
        answer = client.get(f"/v1/exports/{manifest.manifest_hash}").json()
        assert answer["gone"] == [{"kind": "episode", "id": first}]


def key_of(store: Store, project: str, scope: Right) -> str:
    with writer(store.engine).begin() as connection:
        made = create_key(
            connection, project, name=scope, scopes={scope}, expires_at=None, now=time.time_ns()
        )
    return made.text


def test_a_key_reads_the_exports_of_its_own_project_alone(place: Path) -> None:
    hash_ = manifest_of(place).manifest_hash
    with Store.open(f"sqlite:///{place}/store.db") as store:
        store.ingest("other", [posted(make.episode("x"))])
        keys = {
            (project, scope): key_of(store, project, scope)
            for project in ("default", "other")
            for scope in ("read", "write")
        }
    with moved(place) as client:

        def status(key: Any, path: str) -> int:
            answer = client.get(path, headers={"Authorization": f"Bearer {keys[key]}"})
            return answer.status_code

        paths = ("/v1/exports", f"/v1/exports/{hash_}", f"/v1/exports/{hash_}/files/manifest.json")
        assert [status(("default", "read"), path) for path in paths] == [200, 200, 200]
        assert [status(("default", "write"), path) for path in paths] == [403, 403, 403]
        assert [status(("other", "read"), path) for path in paths] == [200, 404, 404]
        assert client.get(paths[2]).status_code == 401


def test_the_exports_of_a_deleted_project_are_gone(place: Path) -> None:
    hash_ = manifest_of(place).manifest_hash
    with Store.open(f"sqlite:///{place}/store.db") as store:
        carry_out(store, "default", delete_project(store, "default").id)
    with opened(place) as client:
        assert client.get("/v1/exports").status_code == 410
        assert client.get(f"/v1/exports/{hash_}").status_code == 410


def test_a_server_that_serves_no_export_loads_no_arrow() -> None:
    code = "import sys, tracestore_api.app; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_document_of_the_service_has_the_routes(client: TestClient) -> None:
    paths = client.get("/v1/openapi.json").json()["paths"]
    files = paths["/v1/exports/{manifest_hash}/files/{name}"]["get"]["responses"]
    assert {"200", "206", "304"} <= files.keys()
    assert json.dumps(paths["/v1/exports"]["get"]["responses"]["200"]).count("ExportsAnswer") == 1
