"""How fast recorded calls are answered again, from a store of 100,000 calls, and how soon the first one is.

    python benchmarks/replay.py [--calls N] [--rounds N]

The store holds rollouts of the ingest workload with their whole contexts, multiplied as in `query_store.py`;
it is kept in the system's folder for temporary files (TMPDIR). Every round has a server of its own,
`tracestore replay`. The last line of the output is one JSON object, what is going on is told on stderr.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import query_store
from ingest import json_loads_us
from load import Address, exchange, post_all, request
from processes import cpu_seconds, peak_mb, running
from workload import CALLS_PER_ROLLOUT, calls_of, unpacked, workload

from tracestore.store.tables import metadata

Figures = dict[str, Any]

CONNECTIONS = 8
HELD, RUNS = 16, 4
"""Episodes that are read before the clock starts, and how often each is asked again while it runs."""
READ = 32
"""Episodes that are read while the clock runs, each asked once."""
_ROLLOUTS = 8
_CHAT = "v1/chat/completions"
_JSON = {"Content-Type": "application/json"}


def main() -> None:
    args = _arguments()
    calls = [calls_of(unpacked(frame)) for frame in workload(_ROLLOUTS).batches("text_full")]
    file = _store(args.calls)
    result: Figures = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "calls": _copies(args.calls) * _ROLLOUTS * CALLS_PER_ROLLOUT,
        "connections": CONNECTIONS,
        "load_average_before": round(os.getloadavg()[0], 2),
        "json_loads_us": json_loads_us(workload(_ROLLOUTS)),
    }
    episodes = Episodes(calls, copies=_copies(args.calls))
    rounds = []
    for number in range(args.rounds):
        rounds.append(_round(file, episodes))
        print(f"round {number + 1} of {args.rounds}: {json.dumps(rounds[-1])}", file=sys.stderr)
    result |= {name: _median(one[name] for one in rounds) for name in rounds[0]}
    result["load_average_after"] = round(os.getloadavg()[0], 2)
    print(json.dumps(result))


# --- The store ----------------------------------------------------------------------------------------------


def _copies(calls: int) -> int:
    """Of each of the rollouts."""
    return -(-calls // (_ROLLOUTS * CALLS_PER_ROLLOUT))


def _store(calls: int) -> Path:
    """A store of so many calls, made where it is not kept yet."""
    made_of = "".join(str(table.c.keys()) for table in metadata.tables.values())
    made_of += Path(query_store.__file__).read_text()
    name = f"tracestore-replay-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}-{calls}"
    file = Path(tempfile.gettempdir()) / name / "store.db"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as making:
            made = Path(making) / "store.db"
            rollouts = query_store.written(made, lambda: query_store.ingest_rollouts(made, "text_full"))
            query_store.multiply(made, rollouts, copies=_copies(calls) - 1)
            made.rename(file)
    return file


@dataclass
class Episodes:
    """The episodes of the store, in an order in which each is asked once."""

    calls: Sequence[Sequence[Figures]]
    """Of each rollout, as posted."""
    copies: int
    _next: int = 0

    def take(self, count: int) -> list[Episode]:
        """The next ones, from all over the store."""
        numbers = range(self._next, self._next + count)
        self._next += count
        if self._next > len(self.calls) * self.copies:
            raise SystemExit("the store has too few episodes for so many rounds: more --calls")
        return [self._episode(number) for number in numbers]

    def _episode(self, number: int) -> Episode:
        calls = self.calls[number % len(self.calls)]
        # 977 is a prime, so that copies come in no order.
        copy = (number // len(self.calls)) * 977 % self.copies
        return Episode(calls[0]["episode_id"] + (f"+{copy}" if copy else ""), calls)


@dataclass(frozen=True)
class Episode:
    """What is asked of one episode, and what has to be answered."""

    id: str
    calls: Sequence[Figures]

    def requests(self, *, run: str, is_otherwise: bool = False) -> list[bytes]:
        """Its calls as a harness asks them again.

        Args:
            is_otherwise: in other bytes of the same value, and as streams.
        """
        path = f"/replay/episode={quote(self.id, safe='')}/run={run}/{_CHAT}"
        bodies = (
            {**call["request"], "stream": True} if is_otherwise else call["request"] for call in self.calls
        )
        compact = None if is_otherwise else (",", ":")
        return [
            request(path, json.dumps(body, ensure_ascii=is_otherwise, separators=compact).encode(), _JSON)
            for body in bodies
        ]

    def answers(self) -> list[Any]:
        """What the messages of its answers say."""
        return [call["completions"][0]["message"]["content"] for call in self.calls]


# --- A server -----------------------------------------------------------------------------------------------


@contextmanager
def _server(file: Path, episode: Episode) -> Iterator[tuple[Address, int, float]]:
    """`tracestore replay` of an episode: its address, its process, and the seconds until it listened."""
    command = [sys.executable, "-m", "tracestore.cli.main", "replay", "--json"]
    command += ["--db", f"sqlite:///{file}", "--episode", episode.id]
    log, begin = file.parent / "server.log", time.perf_counter()
    with running(command, log=log, is_read=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {log.read_text()}")
        seconds = time.perf_counter() - begin
        url = urlsplit(json.loads(line)["url"])
        assert url.hostname is not None
        assert url.port is not None
        yield (url.hostname, url.port), process.pid, seconds


def _round(file: Path, episodes: Episodes) -> Figures:
    [first] = episodes.take(1)
    with _server(file, first) as (address, pid, opened_s):
        body = json.dumps(first.calls[0]["request"], ensure_ascii=False, separators=(",", ":")).encode()
        begin = time.perf_counter()
        status, answer = exchange(address, "POST", f"/replay/{_CHAT}", body, _JSON)
        found: Figures = {"opened_s": opened_s, "first_answer_ms": 1000 * (time.perf_counter() - begin)}
        _check([answer] if status == 200 else [], first.answers()[:1])
        held = episodes.take(HELD)
        _ask(address, held, runs=["before"])
        runs = [f"run-{number}" for number in range(RUNS)]
        found |= _timed("", address, pid, held, runs=runs)
        found |= _timed("otherwise_", address, pid, held, runs=["otherwise"], is_otherwise=True)
        found |= _timed("read_", address, pid, episodes.take(READ), runs=["first"])
        found["rss_mb"] = peak_mb(pid)
    return {name: round(value, 2) for name, value in found.items()}


def _timed(name: str, address: Address, pid: int, asked: Sequence[Episode], **how: Any) -> Figures:
    cpu = cpu_seconds(pid)
    num, seconds = _ask(address, asked, **how)
    return {f"{name}calls_per_s": num / seconds, f"{name}calls_per_cpu_s": num / (cpu_seconds(pid) - cpu)}


def _ask(
    address: Address, asked: Sequence[Episode], *, runs: Sequence[str], is_otherwise: bool = False
) -> tuple[int, float]:
    """Ask every call in every run; how many, and the seconds."""
    prepared = [
        one
        for run in runs
        for episode in asked
        for one in episode.requests(run=run, is_otherwise=is_otherwise)
    ]
    begin = time.perf_counter()
    answers = post_all(address, prepared, connections=CONNECTIONS)
    seconds = time.perf_counter() - begin
    if not is_otherwise:
        _check(answers.bodies, [said for episode in asked for said in episode.answers()] * len(runs))
    return len(prepared), seconds


def _check(bodies: Sequence[bytes], expected: Sequence[Any]) -> None:
    told = Counter(json.dumps(json.loads(body)["choices"][0]["message"]["content"]) for body in bodies)
    if told != Counter(map(json.dumps, expected)):
        raise RuntimeError("what was answered is not what was recorded")


def _median(values: Iterator[float]) -> float:
    return round(statistics.median(values), 2)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000, help="in the store (default: 100,000)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
