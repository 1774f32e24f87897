from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracestore.shards.latents import (
    DATA_FILE,
    MANIFEST_FILE,
    LatentEpisode,
    LatentsCorrupt,
    NotLatents,
    Read,
    Step,
    Tensor,
    read_latents,
    write_latents,
)

HALF = Tensor("bfloat16", (2, 3), bytes(range(12)))
EPISODES = [
    LatentEpisode(
        "e",
        None,
        {"answer": [1, 2], "text": "\u00e4"},
        (
            Step("c0", "a", 0, "m", (1, 2), None, HALF, "h", None),
            Step("c1", "b", 0, None, (3,), Read(0, 1, None), None, None, (4, 5)),
        ),
    ),
    LatentEpisode("f", "g", None, ()),
]


def test_latents_are_read_as_they_were_written_byte_for_byte(tmp_path: Path) -> None:
    written = write_latents(tmp_path, EPISODES, project="p", snapshot=7, left_out={"no_latent": 2})
    manifest, episodes = read_latents(tmp_path)
    assert episodes == EPISODES
    assert manifest == written
    assert (manifest.episodes, manifest.transfers, manifest.left_out) == (2, 1, {"no_latent": 2})


@pytest.mark.parametrize(
    ("tensor", "is_whole"),
    [
        (HALF, True),
        (Tensor("float32", (2, 3), bytes(24)), True),
        (Tensor("float32", (2, 3), bytes(12)), False),
        (Tensor("int3", (2, 3), bytes(12)), False),
    ],
)
def test_a_tensor_has_the_bytes_that_its_shape_says(tensor: Tensor, is_whole: bool) -> None:
    assert tensor.is_whole == is_whole


def test_what_is_no_latents_or_of_another_version_or_damaged_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotLatents):
        read_latents(tmp_path)
    write_latents(tmp_path, EPISODES, project="p", snapshot=7)
    data = tmp_path / DATA_FILE
    whole = data.read_bytes()
    data.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(LatentsCorrupt):
        read_latents(tmp_path)
    data.write_bytes(whole)
    manifest = tmp_path / MANIFEST_FILE
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(told | {"schema_version": 2}))
    with pytest.raises(NotLatents, match="found=2"):
        read_latents(tmp_path)
    manifest.write_text("{")
    with pytest.raises(NotLatents):
        read_latents(tmp_path)
