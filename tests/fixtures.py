"""Real trace files that lie beside the repository; a test that needs one is skipped where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


def fixtures_root() -> Path:
    """The folder of the files, whether it is there or not."""
    return Path(os.environ.get("TRACESTORE_FIXTURES", REPO.parent / "shared" / "fixtures"))


def fixture(name: str) -> Path:
    """A file under `$TRACESTORE_FIXTURES`, else under `../shared/fixtures` beside the repository.

    Args:
        name: path below that folder, as the fixtures' manifest has it.
    """
    path = fixtures_root() / name
    if not path.is_file():
        pytest.skip(f"no fixture {name}: TRACESTORE_FIXTURES names the folder they are in")
    return path


NEMO_GYM = "nemo_gym/nvidia-nemo__gym/"
ROUND_TRIP = f"{NEMO_GYM}responses_api_models/vllm_model/tests/round_trip_test_data.json"
COMPETITIVE = f"{NEMO_GYM}resources_servers/competitive_coding_challenges/data/example_rollouts.jsonl"
ATROPOS = "atropos/nousresearch__atropos/environments/community/selcube/rubiks_process_results_32.jsonl.gz"

_ATIF = "atif/arize-ai__phoenix-client/harbor_terminus2_"
SAMPLED_TOKENS = {
    f"{_ATIF}sub_answers.json": 120,
    f"{_ATIF}sub_questions.json": 20,
    f"{_ATIF}sub_summary.json": 200,
    f"{_ATIF}summarization.json": 690,
    f"{_ATIF}timeout.json": 115,
    ATROPOS: 1_940,
    COMPETITIVE: 785 + 959 + 1_038 + 964 + 1_277,
    ROUND_TRIP: 495 + 207,
}
"""Every file with ids of sampled tokens -> how many there are, as the fixtures' manifest counts them."""
