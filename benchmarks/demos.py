"""`tracestore demo --system NAME --scripted` of every system: seconds by the clock and of CPU.

Each is run as a reader runs it, once the model is in its cache and Python has compiled what it loads: the
first run of a machine does both and is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 60.0
"""Seconds that a demo may take."""


def main(words: Sequence[str] | None = None) -> int:
    known = sorted(path.parent.name for path in ROOT.glob("sample_traces/*/demo.toml"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "systems", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all of them if none"
    )
    args = parser.parse_args(words)
    if unknown := sorted({*args.systems} - {*known}):
        parser.error(f"no such system: {', '.join(unknown)}")
    _run(known[0])
    found = {}
    for name in args.systems or known:
        found[name] = _run(name)
        print(f"{name}: {found[name]}", file=sys.stderr)
    slowest = max(found, key=lambda name: found[name]["seconds"])
    result = {
        "systems": found,
        "slowest": slowest,
        "slowest_seconds": found[slowest]["seconds"],
        "within_limit": sum(one["seconds"] < LIMIT for one in found.values()),
        "of": len(found),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result))
    return int(result["within_limit"] != len(found))


def _run(name: str) -> dict[str, float]:
    """A demo in a process of its own, with the environment of an ordinary shell.

    Raises:
        subprocess.CalledProcessError: it did not show what it should.
    """
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    begin, cpu = time.perf_counter(), _cpu()
    command = [sys.executable, "-m", "tracestore.cli.main", "demo", "--system", name, "--scripted", "--json"]
    subprocess.run(command, cwd=ROOT, env=own, stdout=subprocess.DEVNULL, check=True)
    return {"seconds": round(time.perf_counter() - begin, 1), "cpu_seconds": round(_cpu() - cpu, 1)}


def _cpu() -> float:
    """Of all children that have ended, user and system."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
