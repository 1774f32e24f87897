"""How fast shards become packed micro-batches with credit, and how fast others read the same tokens.

    python benchmarks/loader.py [--groups N] [--rounds N] [--peers --venvs DIR]

The export holds groups of sixteen rollouts of one task (`trees.py`, `rollouts16`), each with its own reward.
`loader_tokens_per_s` is the trainer's own way up to the tensors of a forward pass: shards read and checked,
rows made, credit by a rule, steps planned, packs made. `raw_tokens_per_s` is what `shards.read` gives, packed
as for the others: Hugging Face `datasets` from Parquet, and with --peers MosaicML's streaming and litdata, in
virtual environments of their own (made in --venvs where they are not there). A figure is the median over
rounds, all ways once a round. `share_of_step` is the loader's time over the time of the step that it feeds, a
model of 5 million parameters on the CPU. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracestore.cli.common import share_cpus

share_cpus()  # as the command does, before torch is loaded

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from packing import Arrays, packed_tokens_per_s
from train import VOCAB, small_model
from trees import SHAPES, shaped

from tracestore.shards.manifest import Conservation, Manifest, write_manifest
from tracestore.shards.read import Export, open_export
from tracestore.shards.row import EpisodeEntry, RewardEntry, Row
from tracestore.shards.schema import schema_hash
from tracestore.shards.write import write_shard
from tracestore.train.credit.base import Context
from tracestore.train.engine import Engine
from tracestore.train.filling import Filling, credited, filled, grow
from tracestore.train.forest import pack
from tracestore.train.loader import Loader, Reading
from tracestore.train.losses.base import Objective
from tracestore.train.plan import Step, planned
from tracestore.train.step import gradients

ROWS_PER_SHARD = 64
PEERS = {"streaming": "mosaicml-streaming", "litdata": "litdata"}


def main() -> None:
    args = _arguments()
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "rounds": args.rounds,
        "load_average_before": round(os.getloadavg()[0], 2),
    }
    with tempfile.TemporaryDirectory(prefix="tracestore-bench-") as made:
        folder = Path(made)
        export = _export(folder / "export", groups=args.groups)
        result["tokens"] = sum(shard.tokens for shard in export.manifest.shards)
        result["bytes_per_token"] = round(
            sum(shard.size for shard in export.manifest.shards) / result["tokens"], 3
        )
        ways = _ways(export, folder, args)
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(args.rounds):
            for name, way in ways.items():
                speeds[name].append(way())
                print(f"{number}: {name} {speeds[name][-1] / 1e6:.2f} M tokens/s", file=sys.stderr)
        result |= {f"{name}_tokens_per_s": round(statistics.median(all_)) for name, all_ in speeds.items()}
        others = [result[f"{name}_tokens_per_s"] for name in ways if name not in ("loader", "raw")]
        result["raw_vs_best_other"] = round(result["raw_tokens_per_s"] / max(others), 2)
        step_tokens_per_s = _step_speed(export)
        result["step_tokens_per_s"] = round(step_tokens_per_s)
        result["share_of_step"] = round(step_tokens_per_s / result["loader_tokens_per_s"], 4)
    result["load_average_after"] = round(os.getloadavg()[0], 2)
    print(json.dumps(result))


def _ways(export: Export, folder: Path, args: argparse.Namespace) -> dict[str, Callable[[], float]]:
    ways: dict[str, Callable[[], float]] = {
        "loader": lambda: _loaded(export),
        "raw": lambda: packed_tokens_per_s(_raw(export)),
        "datasets": _datasets(export, folder),
    }
    if args.peers:
        _leave_rows(export, folder)
        for peer, package in PEERS.items():
            python = _python(args.venvs, peer, package)
            _run(python, peer, "write", folder)
            ways[peer] = lambda python=python, peer=peer: float(  # type: ignore[misc]
                _run(python, peer, "read", folder)["tokens_per_s"]
            )
    return ways


def _loaded(export: Export) -> float:
    """Stored tokens a second, up to the tensors of each forward pass."""
    begin = time.perf_counter()
    total = 0
    for step in _steps(export):
        for batch in step.micro_batches:
            total += sum(len(one.forest.row.token_ids) for one in pack(batch).units)
    return total / (time.perf_counter() - begin)


def _steps(export: Export) -> Iterator[Step]:
    """The steps of one epoch, as the training loop makes them."""
    context = Context()
    for some in filled(
        map(grow, Loader(export, Reading()).groups()), Filling(), rule="shared-std", context=context
    ):
        batch = credited(some.groups, rule="shared-std", context=context, ownership="train_once")
        yield planned(batch.work, micro_batch_tokens=32_768)


def _step_speed(export: Export) -> float:
    """Stored tokens a second of gradients alone, over the first step."""
    engine = Engine(small_model())
    step = next(iter(_steps(export)))
    gradients(engine, step, objective=Objective())
    begin = time.perf_counter()
    gradients(engine, step, objective=Objective())
    seconds = time.perf_counter() - begin
    assert not engine.reasons, engine.reasons
    return sum(len(one.forest.row.token_ids) for batch in step.micro_batches for one in batch) / seconds


def _raw(export: Export) -> Iterator[Arrays]:
    """The token columns of every row, as others hold nothing else."""
    for shard in export.manifest.shards:
        for batch in export.batches(shard):
            ids, logprobs, reasons = (batch.column(name) for name in ("token_ids", "logprobs", "reason"))
            # Logprobs are null where nothing was sampled; under a null stands 0.
            values = np.frombuffer(logprobs.values.buffers()[1], np.float32)[: len(ids.values)]
            yield ids.values.to_numpy(), values, reasons.values.to_numpy()


def _datasets(export: Export, folder: Path) -> Callable[[], float]:
    """`datasets` over one Parquet file, shuffled in blocks as it streams."""
    import datasets

    datasets.disable_progress_bars()
    file = folder / "rows.parquet"
    schema = pa.schema(
        {"ids": pa.list_(pa.int32()), "logprobs": pa.list_(pa.float32()), "reasons": pa.list_(pa.uint8())}
    )
    with pq.ParquetWriter(file, schema, compression="zstd") as out:
        for row in _raw(export):
            out.write_batch(pa.record_batch([pa.array([part]) for part in row], schema=schema))

    def read() -> float:
        found = datasets.load_dataset(
            "parquet", data_files=str(file), split="train", cache_dir=str(folder / "cache")
        )
        rows = found.shuffle(seed=0).with_format("numpy")
        return packed_tokens_per_s((row["ids"], row["logprobs"], row["reasons"]) for row in rows)

    return read


def _leave_rows(export: Export, folder: Path) -> None:
    rows = list(_raw(export))
    ids, logprobs, reasons = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    bounds = np.cumsum([0, *(len(row[0]) for row in rows)])
    np.savez(folder / "rows.npz", ids=ids, logprobs=logprobs, reasons=reasons, bounds=bounds)


def _run(python: Path, peer: str, what: str, folder: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("loader_peers.py")
    done = subprocess.run([python, script, peer, what, folder], check=True, stdout=subprocess.PIPE, text=True)
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return last


def _python(venvs: Path, peer: str, package: str) -> Path:
    """The Python of a peer's virtual environment, made where it is not there."""
    python = venvs / peer / "bin" / "python"
    if not python.exists():
        print(f"installing {package} into {venvs / peer}", file=sys.stderr)
        shutil.rmtree(venvs / peer, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", venvs / peer], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    return python


def _export(folder: Path, *, groups: int) -> Export:
    """An export of groups of sixteen rollouts."""
    folder.mkdir()
    shards = tuple(
        write_shard(
            folder / f"shard-{first:05}.arrow",
            [_rollouts(index) for index in range(first, min(first + ROWS_PER_SHARD, groups))],
        )
        for first in range(0, groups, ROWS_PER_SHARD)
    )
    trained = sum(shard.trained_tokens for shard in shards)
    manifest = Manifest(
        schema_hash=schema_hash(),
        project="bench",
        snapshot=1,
        spec={},
        spec_hash="",
        libraries={},
        shards=shards,
        groups=groups,
        rows=groups,
        samples=sum(shard.samples for shard in shards),
        causes={},
        conservation=Conservation(
            sampled_tokens=trained,
            trained_tokens=trained,
            excluded={},
            completions=16 * groups,
            no_token_ids_calls=0,
            no_token_ids_tokens=None,
        ),
    )
    write_manifest(folder, manifest)
    return open_export(folder)


def _rollouts(index: int) -> Row:
    """A group of sixteen episodes, each with a reward."""
    row = shaped(SHAPES["rollouts16"], vocab=VOCAB, seed=index).row
    rng = np.random.default_rng(index)
    assert row.logprobs is not None
    logprobs = np.where(row.has_logprob, -rng.exponential(size=len(row.logprobs)), 0.0).astype(np.float32)
    of_sample = [sample.completions[0] for sample in row.samples]
    episode_of = {completion: episode for episode, completion in enumerate(of_sample)}
    return replace(
        row,
        group_id=f"g{index}",
        logprobs=logprobs,
        episodes=tuple(
            EpisodeEntry(f"{index}-{e}", "ok", None, None, None, e, in_statistics=True) for e in range(16)
        ),
        agents=tuple(replace(row.agents[0], agent_id=f"{index}-{e}", episode=e) for e in range(16)),
        calls=tuple(
            replace(call, call_id=f"{index}-{c}", episode=episode_of[c], agent=episode_of[c])
            for c, call in enumerate(row.calls)
        ),
        samples=tuple(replace(sample, episode=e, agent=e) for e, sample in enumerate(row.samples)),
        rewards=tuple(_reward(index, e, float(rng.random())) for e in range(16)),
    )


def _reward(index: int, episode: int, value: float) -> RewardEntry:
    return RewardEntry(
        reward_id=f"{index}-{episode}",
        target="episode",
        episode=episode,
        agent=None,
        call=None,
        completion=None,
        candidate_set=None,
        member=None,
        token_start=None,
        token_length=None,
        name="score",
        value=value,
        weight=None,
        scorer=None,
        scorer_version=None,
        seq=episode,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--groups", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true", help="also MosaicML's streaming and litdata")
    parser.add_argument("--venvs", type=Path, default=Path(tempfile.gettempdir()) / "tracestore-bench-venvs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
