from __future__ import annotations

from collections import Counter
from typing import Any

from tests.importers.facts import _exchanges as x
from tests.importers.reading import Imported


def facts(imported: Imported) -> dict[str, Any]:
    calls, rows = imported.of("call"), imported.notes.rows
    others = rows["http-recording/other exchange"]
    return {
        "http_interactions": rows["http-recording/model call"] + others,
        "model_calls": len(calls),
        "distinct_generation_ids": len({call.provider_id for call in calls}),
        "tool_call_names_in_stream": len(imported.of("tool_call")),
        "usage_sum": x.total(x.stated_usage(call) for call in calls),
        "request_bodies_recorded": sum(call.request is not None for call in calls),
        "status": dict(Counter(str(x.http(call)["status"]) for call in calls) + Counter({"200": others})),
    }


NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}
