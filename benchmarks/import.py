"""How fast trace files are read and stored: MB/s by format, calls/s of our own events, memory of a big file.

    python benchmarks/import.py [--fixtures DIR] [--calls N] [--big-mb N]

Reading is file -> wire events in one process, files in the page cache, in bytes as they are unpacked (an
`.eval` log counts as it lies there). Storing is `tracestore import` into a new SQLite file, a process of its
own whose start counts too: with few calls it is all that is measured. The generated calls are short chats
posted as deltas. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracestore.importers import formats
from tracestore.importers.notes import Notes
from tracestore.importers.sources import Source, chunks, sources

CALLS_PER_EPISODE = 20
SECONDS_PER_FORMAT = 1.0
_WORDS = ("alpha", "beta", "gamma", "delta", "run", "the", "test", "file", "error", "line")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--fixtures",
        type=Path,
        default=Path(os.environ.get("TRACESTORE_FIXTURES", "../shared/fixtures")),
        help="folder of trace files (default: $TRACESTORE_FIXTURES)",
    )
    parser.add_argument("--calls", type=int, default=20_000, help="calls of the generated file")
    parser.add_argument(
        "--big-mb", type=int, default=0, help="MB of a file imported to see the memory (0: none)"
    )
    args = parser.parse_args()
    result: dict[str, Any] = {"cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        result |= own_events(Path(folder), num_calls=args.calls)
        if args.big_mb:
            result |= big_file(Path(folder), num_bytes=args.big_mb * 10**6)
    result["read_mb_per_s"] = per_format(args.fixtures) if args.fixtures.is_dir() else None
    print(json.dumps(result))


def own_events(folder: Path, *, num_calls: int) -> dict[str, Any]:
    """Our own NDJSON: calls/s read by one process, and stored by `tracestore import`."""
    path = folder / "own.jsonl"
    write_events(path, num_calls=num_calls)
    seconds = timed_read(sources([str(path)], notes=Notes()))
    stored = imported(path, folder / "own.db")
    assert stored["calls"] == num_calls
    print(f"own events: {num_calls / seconds:,.0f} calls/s read, {num_calls / stored['seconds']:,.0f} stored")
    return {
        "own_calls": num_calls,
        "own_mb": round(path.stat().st_size / 1e6, 1),
        "own_read_cps": round(num_calls / seconds),
        "own_read_mb_per_s": round(path.stat().st_size / 1e6 / seconds, 1),
        "own_stored_cps": round(num_calls / stored["seconds"]),
    }


def big_file(folder: Path, *, num_bytes: int) -> dict[str, Any]:
    """Peak memory of `tracestore import` on files of a tenth of the size and of the whole."""
    peaks = {}
    for share, size in (("tenth", num_bytes // 10), ("whole", num_bytes)):
        path = folder / f"{share}.jsonl"
        write_events(path, num_bytes=size)
        peaks[share] = imported(path, folder / f"{share}.db")
        seconds, peak_mb = peaks[share]["seconds"], peaks[share]["peak_mb"]
        print(f"{size / 1e6:,.0f} MB: {seconds:.0f} s, {peak_mb:,.0f} MB of memory")
    return {
        "big_mb": num_bytes // 10**6,
        "big_seconds": round(peaks["whole"]["seconds"], 1),
        "big_peak_mb": round(peaks["whole"]["peak_mb"]),
        "big_tenth_peak_mb": round(peaks["tenth"]["peak_mb"]),
    }


def per_format(folder: Path) -> dict[str, float]:
    """MB/s read of every format, over all files of it under a folder."""
    found: dict[str, list[Source]] = {}
    for source in sources([str(folder)], notes=Notes()):
        one = formats.recognised(source)
        if one is not None:
            found.setdefault(one.name, []).append(source)
    speeds = {}
    for name, files in sorted(found.items()):
        num_bytes = sum(map(unpacked_bytes, files))
        rounds, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < SECONDS_PER_FORMAT:
            timed_read(files, format=name)
            rounds += 1
        speeds[name] = round(num_bytes * rounds / 1e6 / (time.perf_counter() - begin), 2)
        print(f"{name}: {speeds[name]} MB/s, {len(files)} files of {num_bytes / 1e6:.2f} MB")
    return speeds


def unpacked_bytes(source: Source) -> int:
    with source.open() as stream:
        return sum(map(len, chunks(stream)))


def timed_read(files: Any, *, format: str = "auto") -> float:  # noqa: A002
    begin = time.perf_counter()
    for _ in formats.read(files, format=format, notes=Notes()):
        pass
    return time.perf_counter() - begin


def imported(path: Path, db: Path) -> dict[str, float]:
    """Seconds and peak memory of `tracestore import` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tracestore.cli.main",
        "import",
        "--json",
        "--db",
        f"sqlite:///{db}",
        str(path),
    ]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    facts = json.loads(output.splitlines()[-1])
    assert (process.returncode, facts["duplicates"]) == (0, 0), facts
    return {
        "calls": facts["calls"],
        "seconds": time.perf_counter() - begin,
        "peak_mb": usage.ru_maxrss / 1024,
    }


def write_events(path: Path, *, num_calls: int | None = None, num_bytes: int | None = None) -> None:
    """Episodes of CALLS_PER_EPISODE calls, each with what is new in its context, until enough are there."""
    calls, size = 0, 0
    with path.open("w") as file:
        for event in events():
            size += file.write(json.dumps(event) + "\n")
            calls += event["kind"] == "call"
            if (num_calls is not None and calls == num_calls) or (
                num_bytes is not None and size >= num_bytes
            ):
                return


def events() -> Iterator[dict[str, Any]]:
    rng = random.Random(0)

    def message(role: str, num_words: int) -> dict[str, str]:
        return {"role": role, "content": " ".join(rng.choice(_WORDS) for _ in range(num_words))}

    number = 0
    while True:
        episode, number = f"episode-{number}", number + 1
        agent = {"episode_id": episode, "agent_id": f"{episode}/main"}
        yield {"v": 1, "kind": "episode", "id": episode}
        yield {
            "v": 1,
            "kind": "agent",
            "id": agent["agent_id"],
            "episode_id": episode,
            "role": "main",
            "depth": 0,
        }
        new = [message("system", 60), message("user", 40)]
        for ordinal in range(CALLS_PER_EPISODE):
            delta = {"context": "delta", "parent_call_id": f"{episode}/{ordinal - 1}"} if ordinal else {}
            yield {
                "v": 1,
                "kind": "call",
                "id": f"{episode}/{ordinal}",
                **agent,
                "ordinal": ordinal,
                **delta,
                "request": {"model": "m", "messages": new, "temperature": 1.0},
                "completions": [{"message": message("assistant", 50), "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 100 * (ordinal + 1), "completion_tokens": 50},
            }
            new = [message("user", 80)]


if __name__ == "__main__":
    main()
