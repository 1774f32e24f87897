"""How fast calls are stored and can be read: calls/s over HTTP, CPU, disk and memory, beside other stores.

    python benchmarks/ingest.py [--calls N] [--rounds N] [--peers [--venvs DIR]] [--postgres]
    python benchmarks/ingest.py --in-process [--calls N] [--kinds KIND ...] [--profile FILE]

The calls are those of `workload.py`. Client and server share this machine. The last line of the output is one
JSON object, what is going on is told on stderr. Databases lie in the system's folder for temporary files
(TMPDIR), which must be on a disk.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from figures import Run, figures
from in_process import in_process
from own_server import batches, singles
from workload import CALLS_PER_ROLLOUT, KINDS, Kind, Workload, unpacked, workload

Measures = dict[str, Callable[[], Run]]

PEER_ROLLOUTS, PEER_WARM_UP_ROLLOUTS = 10, 3
"""Of a round: they are slow."""


def main() -> None:
    args = _arguments()
    num_rollouts = math.ceil(args.calls / CALLS_PER_ROLLOUT)
    num_warm_up = math.ceil(num_rollouts / 5)
    made = workload(num_rollouts + num_warm_up)
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "calls": num_rollouts * CALLS_PER_ROLLOUT,
        "warm_up_calls": num_warm_up * CALLS_PER_ROLLOUT,
        "load_average_before": round(os.getloadavg()[0], 2),
        "json_loads_us_before": json_loads_us(made),
    }
    if args.in_process:
        result |= in_process(made, num_warm_up, kinds=args.kinds, profile=args.profile)
    else:
        measures = own_measures(made, num_warm_up, kinds=args.kinds)
        if args.peers:
            peers, result["peer_calls"] = peer_measures(made, num_warm_up, venvs=args.venvs)
            measures = _beside_each_other(measures, peers)
        if args.postgres:
            measures["pg_text_full"] = partial(
                batches, made, "text_full", num_warm_up=num_warm_up, is_postgres=True
            )
        result |= {"rounds": args.rounds, **measured(measures, num_rounds=args.rounds)}
    result["load_average_after"] = round(os.getloadavg()[0], 2)
    result["json_loads_us_after"] = json_loads_us(made)
    print(json.dumps(result))


def own_measures(made: Workload, num_warm_up: int, *, kinds: Sequence[Kind]) -> Measures:
    """Our own server: batches of every kind, then single posts."""
    return {
        **{kind: partial(batches, made, kind, num_warm_up=num_warm_up) for kind in kinds},
        "single_full": partial(singles, made, num_warm_up=num_warm_up),
    }


def peer_measures(made: Workload, num_warm_up: int, *, venvs: Path) -> tuple[Measures, int]:
    """The other stores, with the first rollouts that our own server is measured with; and how many calls."""
    from peers import PEERS, installed, posted, traces

    frames = made.batches("text_full")
    warm_up = frames[:PEER_WARM_UP_ROLLOUTS]
    some = frames[num_warm_up : num_warm_up + PEER_ROLLOUTS]
    measures: Measures = {
        peer: partial(posted, peer, installed(peer, venvs), traces(peer, warm_up), traces(peer, some))
        for peer in PEERS
    }
    return measures, len(some) * CALLS_PER_ROLLOUT


def _beside_each_other(own: Measures, peers: Measures) -> Measures:
    """The peers right after what they are held against."""
    rest = dict(own)
    first = {name: rest.pop(name) for name in ("text_full",) if name in rest}
    return {**first, **peers, **rest}


def measured(measures: Measures, *, num_rounds: int) -> dict[str, Any]:
    """Figures of all measures, each taken once a round."""
    runs: dict[str, list[Run]] = {}
    for number in range(num_rounds):
        for name, measure in measures.items():
            run = measure()
            runs.setdefault(name, []).append(run)
            print(
                f"round {number + 1}: {name}: {run.cps:,.0f} calls/s, {run.cpu_ms:.3f} ms of CPU a call"
                f" (load average {os.getloadavg()[0]:.1f})",
                file=sys.stderr,
            )
    return figures(runs)


def json_loads_us(made: Workload) -> float:
    """CPU time of reading one call with its whole context by `json.loads`: how fast a core is right now."""
    calls = [line for line in unpacked(made.batches("text_full")[0]).splitlines() if len(line) > 10_000]
    begin = time.process_time()
    for line in calls:
        json.loads(line)
    return round((time.process_time() - begin) / len(calls) * 1e6, 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=6_600, help="calls measured, after a fifth to warm up")
    parser.add_argument("--rounds", type=int, default=3, help="everything runs so often; medians are given")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of batches")
    parser.add_argument("--peers", action="store_true", help="MLflow and Phoenix too, in the same rounds")
    parser.add_argument(
        "--venvs",
        type=Path,
        default=Path.home() / ".cache" / "tracestore-benchmarks",
        help="folder of their virtual environments, filled by pip (default: %(default)s)",
    )
    parser.add_argument(
        "--postgres", action="store_true", help="text_full into PostgreSQL too, by two server processes"
    )
    parser.add_argument("--in-process", action="store_true", help="without HTTP: CPU time of each step")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="with --in-process: statistics for pstats"
    )
    args = parser.parse_args()
    if args.profile is not None and not args.in_process:
        parser.error("--profile goes with --in-process")
    return args


if __name__ == "__main__":
    main()
