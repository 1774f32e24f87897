"""Counted facts of Inspect logs in JSON."""

from __future__ import annotations

from typing import Any

from tests.importers.facts import _inspect
from tests.importers.reading import Imported

_LOGS = "inspect/ukgovernmentbeis__inspect_ai/"
_EVAL_LOGS = f"{_LOGS}log/test_eval_log/"
_NO_SAMPLES = (
    f"{_LOGS}analysis/test_logs/2025-05-12T20-28-13-04-00_no-samples.json",
    f"{_EVAL_LOGS}log_valid.txt",
    f"{_EVAL_LOGS}log_version_3.txt",
    f"{_EVAL_LOGS}log_with_nan.txt",
    f"{_LOGS}test_eval_set/2024-08-29T15-11-17+00-00_popularity_5EAmX6wjMFqea6WY7XHzZp.json",
    f"{_LOGS}test_eval_set/2024-08-29T15-11-18+00-00_popularity_5EAmX6wjMFqea6WY7XHzZp.json",
)

NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {
    **{
        (path, "task"): (None, "no sample, so no episode of a task: noted with the header")
        for path in _NO_SAMPLES
    },
    **{
        (path, "model_usage"): ({}, "no sample, so no call that used anything: noted with the header")
        for path in _NO_SAMPLES
    },
    (f"{_EVAL_LOGS}log_tool_call_error.json", "model_usage"): (
        {},
        "results of tools, and no call of a model",
    ),
    (f"{_EVAL_LOGS}log_invalid.txt", "json_error"): (
        "line 1: ends in the middle; the 15 characters that are complete were read",
        "the place and what was done about it, instead of the parser's words",
    ),
}


def facts(imported: Imported) -> dict[str, Any]:
    version, status = _inspect.status(imported)
    refused = imported.notes.refused
    return {
        "version": version,
        "status": status,
        "task": _inspect.task(imported),
        "samples": len(imported.of("episode")),
        "messages": _inspect.rows(imported, "message"),
        "events": _inspect.num_events(imported),
        "model_events": _inspect.rows(imported, "event model"),
        "tool_events": _inspect.rows(imported, "event tool"),
        "tool_calls": len(imported.of("tool_call")),
        "attachments": _inspect.rows(imported, "attachment"),
        "model_usage": _inspect.model_usage(imported),
        "epochs": _inspect.epochs(imported),
        "json_error": refused[0].rpartition(".txt, ")[2] if refused else None,
    }
