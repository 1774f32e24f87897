"""`python -m sample_traces.record`: play the episodes again and write `<system>/trace.jsonl`.

The harness posts through the client to a real server, which is started on loopback for this, and what the
client posts is written beside. Ids are counted instead of random and times are left out, so that recording
again with the same libraries gives the same files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sample_traces.sampler import Sampler
from sample_traces.systems import SYSTEMS, System
from tracestore.cli.demo import loopback_server
from tracestore.client import Client

FOLDER = Path(__file__).resolve().parent
_TIMES = ("at", "started_at", "ended_at", "first_token_at")


class Recorder(Client):
    """A client that keeps the text of what it posts, with counted ids and without times."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lines: list[str] = []
        self._counted: Counter[str] = Counter()

    def event(self, kind: str, id: str | None = None, **fields: Any) -> str:  # noqa: A002
        kept = {name: one for name, one in fields.items() if one is not None and name not in _TIMES}
        if id is None:
            base = f"{fields['episode_id']}/{kind}"
            id = f"{base}/{self._counted[base]}"  # noqa: A001
            self._counted[base] += 1
        self.lines.append(json.dumps({"v": 1, "kind": kind, "id": id, **kept}, separators=(",", ":")))
        return super().event(kind, id, **kept)


def record(name: str, one: System, *, sampler: Sampler, url: str) -> tuple[list[str], list[float]]:
    """Plays the group of one system. Returns the lines of its trace and the rewards of its episodes."""
    rewards: list[float] = []
    with Recorder(url) as client:
        with client.group(f"{name}-group", task_id=one.task) as group:
            for place, seed in enumerate(one.seeds):
                episode = group.episode(f"{name}-{place}", task_id=one.task)
                rewards.append(one.play(episode, sampler, seed))
        lines = client.lines
    return lines, rewards


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sample_traces.record", description=__doc__)
    parser.add_argument(
        "systems", nargs="*", metavar="SYSTEM", help=f"which (default: all of {list(SYSTEMS)})"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write into (default: here)")
    args = parser.parse_args(argv)
    names = args.systems or list(SYSTEMS)
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        parser.error(f"no such system: {', '.join(unknown)}")
    sampler = Sampler()
    with TemporaryDirectory() as scratch, loopback_server(Path(scratch) / "traces.db") as url:
        for name in names:
            lines, rewards = record(name, SYSTEMS[name], sampler=sampler, url=url)
            target = args.out / name / "trace.jsonl"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("\n".join(lines) + "\n", encoding="ascii")
            sys.stdout.write(f"{target}: {len(lines)} events, rewards {rewards}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
