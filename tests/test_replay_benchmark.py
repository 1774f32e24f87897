"""The replay benchmark measures what it says: it runs, and checks what is answered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "replay.py"


@pytest.mark.soak
def test_it_runs_on_a_small_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, str(BENCHMARK), "--calls", "3300", "--rounds", "1"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["calls"] == 7 * 528  # as many whole copies of eight rollouts of 66 calls as are needed
    assert min(told[name] for name in told if name.endswith("_per_s")) > 0
