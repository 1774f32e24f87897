"""An export -> files for other trainers: one file a shard, in a folder seen whole or not at all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracestore.errors import TracestoreError
from tracestore.shards.manifest import Manifest
from tracestore.shards.read import Export
from tracestore.shards.row import Row
from tracestore_exporters import flat, preference, prime_rl, sft
from tracestore_exporters.staging import staged_folder

Target = Literal["flat", "sft", "preference", "prime-rl"]
_TOKENS_AT_ONCE = 1 << 20
"""Tokens of a Parquet row group, about: so many stand in memory."""


class NothingToWrite(TracestoreError):
    """Nothing of the export is in the format."""


class CreditNotCarried(TracestoreError):
    """The format has no place for advantages, or it needs them."""

    exit_code = 2


@dataclass
class Converted:
    """What was written."""

    records: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Samples, sets or pairs of the export that are in no record, by why."""


@dataclass(frozen=True)
class _Format:
    records: Callable[[Row, flat.Options, Counter[str]], Iterable[dict[str, Any]]]
    schema: pa.Schema | None
    """Of its Parquet files; None: JSON lines."""
    credit: Literal["may", "must", "must not"]
    counts: Callable[[dict[str, Any]], tuple[int, int]]
    """(tokens, trained tokens) of a record."""


def _of_flat(record: dict[str, Any]) -> tuple[int, int]:
    return len(record["input_ids"]), int(record["loss_mask"].sum())


def _of_sft(record: dict[str, Any]) -> tuple[int, int]:
    return len(record["input_ids"]), int((record["labels"] != sft.IGNORED).sum())


def _of_pair(record: dict[str, Any]) -> tuple[int, int]:
    tokens = sum(len(record[name]) for name in ("prompt_ids", "chosen_ids", "rejected_ids"))
    return tokens, int(record["chosen_mask"].sum() + record["rejected_mask"].sum())


def _of_line(record: dict[str, Any]) -> tuple[int, int]:
    return len(record["token_ids"]), sum(record["mask"])


_FORMATS: dict[Target, _Format] = {
    "flat": _Format(lambda row, options, _: flat.records(row, options), flat.SCHEMA, "may", _of_flat),
    "sft": _Format(sft.records, sft.SCHEMA, "must not", _of_sft),
    "preference": _Format(preference.records, preference.SCHEMA, "must not", _of_pair),
    "prime-rl": _Format(prime_rl.lines, None, "must", _of_line),
}
TARGETS: tuple[Target, ...] = tuple(_FORMATS)


def convert(
    export: Export,
    out: str | Path,
    *,
    to: Target,
    rule: str | None = None,
    terms: Mapping[str, float] | None = None,
    credit: Callable[[Row], flat.TokenAdvantages] | None = None,
    progress: Callable[[float], None] = lambda rows: None,
) -> Converted:
    """Writes an export's samples as `to` into a new folder: `shard-00000.parquet` or `.jsonl` a shard.

    Args:
        rule, terms, credit: the name of a credit rule, the weights of costs that stand beside the rewards,
            and what both give a row.
        progress: told the rows done since last time.

    Raises:
        NotEmpty, InUse, OtherExport, BadOut: see `staging.staged_folder`.
        NothingToWrite: no record came of it; nothing is written.
        CreditNotCarried: a rule where the format has no place for it, or none where it needs one.
        ShardMissing, ShardCorrupt, OtherSchema: see `tracestore.shards.read`.
    """
    format_ = _FORMATS[to]
    if format_.credit == "must not" and credit is not None:
        raise CreditNotCarried(to=to, rule=rule, hint="leave --advantages out")
    if format_.credit == "must" and credit is None:
        raise CreditNotCarried(to=to, hint="name a rule: --advantages shared")
    manifest = export.manifest
    objective = manifest.spec.get("objective", "rl")
    options = flat.Options(ownership=manifest.ownership, objective=objective, credit=credit)
    done = Converted()
    about = {
        "manifest_hash": manifest.manifest_hash,
        "advantages": rule,
        "reward_terms": json.dumps(dict(terms), sort_keys=True) if terms else None,
    }
    with staged_folder(out) as folder:

        def counted(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
            for row in rows:
                for record in format_.records(row, options, done.left_out):
                    tokens, trained = format_.counts(record)
                    done.records += 1
                    done.tokens += tokens
                    done.trained_tokens += trained
                    yield record
                progress(1)

        suffix = ".jsonl" if format_.schema is None else ".parquet"
        for number, shard in enumerate(manifest.shards):
            # A name of our own: a manifest that came from elsewhere says in no way where files are written.
            path = folder / f"shard-{number:05}{suffix}"
            made = counted(export.shard_rows(shard))
            if format_.schema is None:
                _write_lines(path, made)
            else:
                _write_parquet(path, made, format_.schema, about=about, size=lambda r: format_.counts(r)[0])
        if done.records == 0:
            raise _nothing(export.manifest, to, done.left_out)
    return done


def _nothing(manifest: Manifest, to: Target, left_out: Counter[str]) -> NothingToWrite:
    """Why there is no record, as far as samples were left out or the export says it of itself."""
    if manifest.samples == 0:
        why = manifest.notes or ("the export has no samples",)
        return NothingToWrite(to=to, why=why, hint="mend that, and export again")
    hint = "--to flat writes every sample of an export"
    return NothingToWrite(to=to, left_out=dict(left_out) or "it has no candidate sets", hint=hint)


def _write_lines(path: Path, values: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n")


def _write_parquet(
    path: Path,
    values: Iterable[dict[str, Any]],
    schema: pa.Schema,
    *,
    about: dict[str, str | None],
    size: Callable[[dict[str, Any]], int],
) -> None:
    """Of the given schema, however many records there are and whatever the first ones lack."""
    told = {f"tracestore.{name}": value for name, value in about.items() if value is not None}
    waiting: list[dict[str, Any]] = []
    tokens = 0
    with pq.ParquetWriter(path, schema.with_metadata(told), compression="zstd") as writer:
        for value in values:
            waiting.append(value)
            tokens += size(value)
            if tokens >= _TOKENS_AT_ONCE:
                writer.write_batch(_batch(waiting, writer.schema))
                waiting, tokens = [], 0
        if waiting:
            writer.write_batch(_batch(waiting, writer.schema))


def _batch(values: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [_column([value[part.name] for value in values], part.type) for part in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Arrays of numbers are taken as they are, NaN as null; all else value by value."""
    if not any(isinstance(value, np.ndarray) for value in values):
        return pa.array(values, kind)
    lengths = np.asarray([0, *(len(value) for value in values)], dtype=np.int32)
    items = pa.array(np.concatenate(values), kind.value_type, from_pandas=True)
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(np.cumsum(lengths, dtype=np.int32))], children=[items]
    )
