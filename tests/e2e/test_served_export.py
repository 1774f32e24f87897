"""An export goes from one machine to the next: exported, served, verified, followed, converted by its URL."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.databases import empty_store
from tests.exporters.stores import all_scenarios
from tests.factories import posted
from tests.serving import running_server
from tracestore.cli.main import main
from tracestore.shards.batch import content_hash
from tracestore.shards.candidates import rejected_completions
from tracestore.shards.log import Log
from tracestore.shards.read import open_export
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.store import Store


def test_served_exports_are_read_verified_followed_and_converted_by_their_urls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        store.ingest("default", [posted(event) for event in all_scenarios()])
    db = ["--db", f"sqlite:///{tmp_path}/store.db", "--json"]
    assert main(["export", *db, "--out", str(tmp_path / "out")]) == 0
    made = json.loads(capsys.readouterr().out)
    followed = str(tmp_path / "followed")
    idle = ["--interval", "0.001", "--until-idle", "0.001"]
    assert main(["export", *db, "--follow", *idle, "--out", followed]) == 0
    capsys.readouterr()
    with running_server(tmp_path / "store.db", flags=["--exports", str(tmp_path)]) as server:
        url = f"{server.url}/v1/exports/{made['manifest_hash']}"
        export = open_export(url)
        [shard] = export.manifest.shards
        assert content_hash(export.batches(shard)) == shard.content_hash
        assert main(["verify", *db, url]) == 0
        # What was not chosen trains for its reward, and is not imitated.
        rejected = sum(rejected_tokens(row) for row in export.rows())
        log = open_export(f"{server.url}/v1/exports/{Log.open(followed).first_hash}")
        assert log.manifest == open_export(followed).manifest
        news = [len(list(one.rows())) for one in log.follow(idle_s=0)]
        assert (len(news), sum(news)) == (1, log.manifest.rows)
        # It has the news of an entry in hand when a deletion takes the shard away.
        reading = log.follow(poll_s=0.001)
        first = next(reading)
        [deleted, *_] = (one for group in first.entry.groups if group.rows for one in group.episode_ids)
        assert main(["db", "delete", *db, "--project", "default", "--episode", deleted]) == 0
        assert main(["export", *db, "--follow", *idle, "--out", followed]) == 0
        left = [one.episode_id for row in first.rows() for one in row.episodes]
        assert left
        assert deleted not in left
        out = str(tmp_path / "sft")
        assert main(["convert", url, "--to", "sft", "--out", out, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["trained_tokens"] == made["trained_tokens"] - rejected > 0


def rejected_tokens(row: Row) -> int:
    of_rejected = np.isin(row.segments.completion, list(rejected_completions(row)))
    return int(np.count_nonzero(np.repeat(of_rejected, row.segments.length) & (row.reason == Reason.TRAINED)))
