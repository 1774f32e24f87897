"""What an export holds and how to check it: one JSON file, written last.

An export without a manifest is an unfinished one. `manifest_hash` names an export: the sha256 of the
manifest's canonical JSON, in which no clock, host, path or worker count stands.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tracestore.errors import TracestoreError
from tracestore.shards.durable import partial_of, write_durably
from tracestore.shards.files import Bucket, Files, Folder, Unreachable
from tracestore.shards.schema import SCHEMA_VERSION, schema_hash
from tracestore.shards.views import Ownership

MANIFEST_NAME = "manifest.json"


class NotAnExport(TracestoreError):
    """The folder holds no finished export."""

    exit_code = 2


class ManifestCorrupt(TracestoreError):
    """The manifest is damaged."""


class OtherSchema(TracestoreError):
    """The export was written with another shard schema."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShardEntry(_Frozen):
    """One shard file."""

    file: str
    rows: int
    samples: int
    tokens: int
    """Each stored token once, trained or not."""
    trained_tokens: int
    size: int
    """Bytes."""
    sha256: str
    """Of the file."""
    content_hash: str
    """Of the values, independent of compression."""


class Conservation(_Frozen):
    """Where every sampled token of the snapshot went: sampled = trained + sum of excluded."""

    sampled_tokens: int
    trained_tokens: int
    excluded: dict[str, int]
    """Tokens by reason label; reasons without tokens are left out."""
    completions: int
    """Completions with token ids."""
    no_token_ids_calls: int
    """Answered calls without ids: not part of the sum."""
    no_token_ids_tokens: int | None
    """What their usage says they sampled, where any of them says it."""
    stripped_stop_tokens: int = 0
    """Completions whose ids lack the stop token that was sampled last: no part of the sum."""
    rendered_completions: int = 0
    """Those of the completions whose ids a chat template gave; their tokens are part of the sum."""
    not_rendered: dict[str, int] = {}
    """Completions without ids that a chat template could give none, by why."""
    left_out: dict[str, int] = {}
    """Rendered completions whose text lacks something that was in their context or answer, by what."""

    @property
    def excluded_tokens(self) -> int:
        return sum(self.excluded.values())

    @property
    def holds(self) -> bool:
        return self.sampled_tokens == self.trained_tokens + self.excluded_tokens


class Manifest(_Frozen):
    """The list of shards, with everything needed to check them."""

    format: Literal["tracestore-export"] = "tracestore-export"
    schema_version: int = SCHEMA_VERSION
    schema_hash: str
    project: str
    snapshot: int
    """Commit position of the store that was read."""
    spec: dict[str, Any]
    spec_hash: str
    tokenizer_hash: str | None = None
    """None: recorded ids only, no tokenizer took part."""
    template_hash: str | None = None
    libraries: dict[str, str]
    """Versions that the bytes depend on."""
    shards: tuple[ShardEntry, ...]
    groups: int
    """Groups of the snapshot, open ones and those without a trained token included."""
    rows: int
    samples: int
    causes: dict[str, int]
    """Samples by why they begin."""
    conservation: Conservation
    notes: tuple[str, ...] = ()
    """What a reader should know, such as why an export has no rows."""
    tombstones: tuple[dict[str, Any], ...] = ()

    @property
    def ownership(self) -> Ownership:
        """How much a token counts that several samples share, as the spec says."""
        stated: Ownership = self.spec.get("ownership", "train_once")
        return stated

    @property
    def manifest_hash(self) -> str:
        return hashlib.sha256(self._canonical()).hexdigest()

    def _canonical(self) -> bytes:
        value = self.model_dump(mode="json")
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def manifest_text(manifest: Manifest) -> str:
    """The manifest as its file holds it."""
    value = {"manifest_hash": manifest.manifest_hash, "manifest": manifest.model_dump(mode="json")}
    return json.dumps(value, sort_keys=True, indent=1) + "\n"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """The export exists from here on."""
    write_durably(folder / MANIFEST_NAME, manifest_text(manifest))


def require_manifest(files: Files) -> bytes:
    """The text of the manifest of an export.

    Raises:
        NotAnExport: there is none.
        Unreachable: see `tracestore.shards.files`.
    """
    try:
        return files.read(MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise NotAnExport(path=files.where, hint=_how_to_get_one(files)) from error


def _how_to_get_one(files: Files) -> str:
    if isinstance(files, Folder) and partial_of(files.path.absolute()).is_dir():
        begun = partial_of(files.path)
        return f"it was begun and is not finished ({begun}): the command that began it goes on with it"
    if isinstance(files, Bucket) and _is_there(files, ".partial/plan.json"):
        return "it was begun and is not finished: the command that began it goes on with it"
    return "a manifest is written last: export again into an empty folder"


def _is_there(files: Files, name: str) -> bool:
    try:
        files.read(name)
    except (FileNotFoundError, Unreachable):
        return False
    return True


def read_manifest(place: Path | Files) -> Manifest:
    """The manifest of an export, checked against its own hash and this version's schema.

    Raises:
        NotAnExport: there is no manifest.
        ManifestCorrupt, OtherSchema: see `parse_manifest`.
        Unreachable: see `tracestore.shards.files`.
    """
    files = Folder(place) if isinstance(place, Path) else place
    return parse_manifest(require_manifest(files), path=f"{files.where}/{MANIFEST_NAME}")


def parse_manifest(text: bytes, *, path: str) -> Manifest:
    """The manifest that a file holds, checked against its own hash and this version's schema.

    Args:
        path: what the file is called in errors.

    Raises:
        ManifestCorrupt: it does not parse, or its content is not what its hash says.
        OtherSchema: the shards have another schema version or other fields.
    """
    try:
        value = json.loads(text)
        body = value["manifest"]
        version = body["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestCorrupt(path=path, problem=str(error), hint="export again") from error
    if version != SCHEMA_VERSION:
        raise OtherSchema(
            path=path, found=version, expected=SCHEMA_VERSION, hint="export again with this version"
        )
    try:
        manifest = Manifest.model_validate(body)
    except ValidationError as error:
        raise ManifestCorrupt(path=path, problem=str(error), hint="export again") from error
    if manifest.manifest_hash != value.get("manifest_hash"):
        raise ManifestCorrupt(
            path=path,
            found=manifest.manifest_hash,
            expected=value.get("manifest_hash"),
            hint="the file was changed after it was written; export again",
        )
    if manifest.schema_hash != schema_hash():
        raise OtherSchema(
            path=path,
            found=manifest.schema_hash,
            expected=schema_hash(),
            hint="export again with this version",
        )
    return manifest
