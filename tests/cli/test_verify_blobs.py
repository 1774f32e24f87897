"""`tracestore verify` looks at the payloads too."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from tests.databases import empty_store
from tests.factories import episode, posted
from tracestore.cli.main import main
from tracestore.store import Store
from tracestore.store.blobs import open_blobs
from tracestore.wire.blob import Blob

NAME = sha256(b"image").hexdigest()


def verified(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[dict[str, object]]]:
    code = main(["verify", "--json", *flags])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_blob_that_never_came_is_a_finding_where_a_server_keeps_blobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = empty_store(tmp_path / "t.db")
    with Store.open(url) as store:
        store.ingest("default", [posted(episode("e1")), posted(Blob(id="b1", episode_id="e1", hash=NAME))])
    code, [summary] = verified(capsys, "--db", url)
    assert (code, summary["findings"]) == (0, 0)

    place = tmp_path / "t.db.blobs"
    place.mkdir()
    code, [_, finding, summary] = verified(capsys, "--db", url)
    assert (code, finding["name"], finding["where"]) == (1, "blob_missing", f"blob {NAME}")
    assert summary == {"checked": str(place), "project": "default", "blobs": 1, "findings": 1}

    with open_blobs(str(tmp_path / "elsewhere")).uploads.begin("default", NAME) as upload:
        upload.write(b"image")
        upload.finish()
    code, [_, summary] = verified(capsys, "--db", url, "--blobs", str(tmp_path / "elsewhere"))
    assert (code, summary["blobs"], summary["findings"]) == (0, 1, 0)
