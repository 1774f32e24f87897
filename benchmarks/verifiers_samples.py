"""verifiers' own file of traces -> its training samples; run by the Python of its virtual environment.

    python verifiers_samples.py write FOLDER     rollouts.jsonl -> traces.jsonl, by its own models and writer
    python verifiers_samples.py read FOLDER      traces.jsonl -> every branch as ids, mask and logprobs

Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from verifiers.v1.trace import WireTrace
from verifiers.v1.utils.trace_store import TRACES_FILE, read_episodes

_TASK = {"type": "Task", "data": {"idx": 0}}


def write(folder: Path) -> dict[str, Any]:
    """One episode of one trace for each rollout."""
    with (folder / "rollouts.jsonl").open() as rollouts, (folder / TRACES_FILE).open("w") as file:
        for line in rollouts:
            nodes = [_node(**one) for one in json.loads(line)]
            trace = WireTrace.model_validate({"task": _TASK, "agent": {"config": {}}, "nodes": nodes})
            # Its own record, which rounds logprobs to four decimals.
            episode = {"env": {"id": "workload"}, "task": _TASK, "traces": [trace.to_record()], "ok": True}
            file.write(json.dumps(episode) + "\n")
    return {}


def _node(
    *, parent: int | None, message: dict[str, str], token_ids: list[int], logprobs: list[float] | None
) -> dict[str, Any]:
    is_sampled = logprobs is not None
    return {
        "parent": parent,
        "message": message,
        "sampled": is_sampled,
        "token_ids": token_ids,
        "mask": [is_sampled] * len(token_ids),
        "logprobs": logprobs or [],
    }


def read(folder: Path) -> dict[str, Any]:
    """Its samples as lists; each node trains in the first branch that holds it."""
    begin, cpu = time.perf_counter(), time.process_time()
    tokens = trained = samples = 0
    for episode in read_episodes(folder, WireTrace):
        for trace in episode.traces:
            seen: set[int] = set()
            for branch in trace.branches:
                ids, mask, logprobs = branch.token_ids, branch.sampled_mask, branch.logprobs
                at = 0
                for node in branch.nodes:
                    end = at + len(node.token_ids)
                    if id(node) in seen:
                        mask[at:end] = [False] * (end - at)
                    seen.add(id(node))
                    at = end
                assert len(ids) == len(mask) == len(logprobs)
                trained += sum(mask)
                samples += 1
            tokens += sum(len(node.token_ids) for node in trace.nodes)
    return {
        "tokens": tokens,
        "trained_tokens": trained,
        "samples": samples,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - cpu,
    }


if __name__ == "__main__":
    verb = {"write": write, "read": read}[sys.argv[1]]
    print(json.dumps(verb(Path(sys.argv[2]))))
