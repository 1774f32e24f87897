"""The ingest benchmark measures what it says: one workload in four forms, figures that follow from runs."""

from __future__ import annotations

import base64
import json
import pstats
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.graph.report import context_of
from tracestore.wire.decode import decode_body

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.usefixtures("_on_path")
def test_figures_are_medians_over_rounds_and_ratios_of_them() -> None:
    from figures import Run, figures  # type: ignore[import-not-found]

    def run(seconds: float, cpu_seconds: float) -> Any:
        return Run(
            num_calls=660,
            seconds=seconds,
            post_seconds=(0.1, 0.2, 0.3),
            num_busy=1,
            cpu_seconds=cpu_seconds,
            peak_mb=100 / seconds,
            disk_bytes_per_call=2800.4,
        )

    runs = {"text_full": [run(0.5, 0.066), run(0.1, 0.132), run(0.2, 0.66)], "mlflow": [run(2.0, 6.6)]}
    found = figures(runs)
    assert found["text_full_cps"] == 3300  # of 660 / 0.5 = 1320, 660 / 0.1 = 6600, 660 / 0.2 = 3300
    assert found["server_cpu_ms_per_call"] == 0.2  # of 0.1, 0.2, 1.0
    assert found["disk_bytes_per_call"] == 2800
    assert found["rss_mb"] == 1000  # the most of 200, 1000, 500
    assert found["num_busy"] == 3
    assert found["ratio_mlflow"] == 10  # 3300 / (660 / 2)


@pytest.mark.soak
@pytest.mark.usefixtures("_on_path")
def test_the_four_forms_of_a_rollout_say_the_same() -> None:
    from workload import KINDS, calls_of, unpacked, workload  # type: ignore[import-not-found]

    made = workload(1)
    batches = {kind: unpacked(made.batches(kind)[0]) for kind in KINDS}
    graphs = {kind: _graph(batch) for kind, batch in batches.items()}
    whole = graphs["text_full"]
    # 40 + 2 summaries + 3 x 8; without a parent: the first call, one after each compaction, one a subagent.
    assert len(whole.calls) == 66
    assert sum(link.parent is None for link in whole.links.values()) == 6
    assert all(link.exact for link in whole.links.values() if link.parent is not None)
    for call_id in whole.calls:
        contexts = [context_of(graph, call_id)["messages"] for graph in graphs.values()]
        assert all(context == contexts[0] for context in contexts)
    _check_prompts(calls_of(batches["ids_full"]), calls_of(batches["ids_delta"]))


def _graph(batch: bytes) -> Graph:
    decoded = decode_body(batch, content_type="application/x-ndjson")
    events = [one.event for one in decoded if one.event is not None]
    assert len(events) == len(decoded)
    return build(events)


def _check_prompts(whole: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    """A prompt is its parent's prompt, the parent's completion, and the delta."""
    prompts: dict[str, np.ndarray] = {}
    sampled: dict[str, np.ndarray] = {}
    for call, delta in zip(whole, deltas, strict=True):
        assert call["id"] == delta["id"]
        prompts[call["id"]] = _ids(call["prompt_token_ids"])
        sampled[call["id"]] = _ids(call["completions"][0]["token_ids"])
        if "prompt_token_ids" in delta:
            parts = [_ids(delta["prompt_token_ids"])]
        else:
            parent = delta["parent_call_id"]
            parts = [prompts[parent], sampled[parent], _ids(delta["prompt_token_ids_delta"])]
        np.testing.assert_array_equal(np.concatenate(parts), prompts[call["id"]])
        assert call["usage"]["prompt_tokens"] == len(prompts[call["id"]])


def _ids(array: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(array["base64"]), "<i4")


@pytest.mark.soak
def test_the_benchmark_runs_and_ends_with_its_figures() -> None:
    figures = _run("--calls", "66", "--rounds", "1")
    assert {
        *("text_full_cps", "text_delta_cps", "ids_full_cps", "ids_delta_cps", "single_full_cps"),
        *("single_p50_ms", "single_p99_ms", "server_cpu_ms_per_call", "rss_mb"),
        *("disk_bytes_per_call", "disk_bytes_per_call_ids", "cores", "date", "python"),
    } <= figures.keys()
    assert all(figures[f"{kind}_cps"] > 0 for kind in ("text_full", "ids_delta", "single_full"))


@pytest.mark.soak
def test_the_steps_of_a_batch_are_measured_and_profiled_in_one_process(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    figures = _run("--in-process", "--calls", "66", "--kinds", "text_delta", "--profile", str(profile))
    assert all(figures[f"text_delta_{step}_us"] > 0 for step in ("decode", "prepare", "commit"))
    profiled = pstats.Stats(str(profile)).get_stats_profile().func_profiles
    assert {"decode_body", "apply"} <= profiled.keys()  # of this thread, and of the one that writes


def _run(*flags: str) -> Any:
    command = [sys.executable, str(BENCHMARKS / "ingest.py"), *flags]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=280)
    return json.loads(done.stdout.splitlines()[-1])
