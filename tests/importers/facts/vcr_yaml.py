from __future__ import annotations

from collections import Counter
from typing import Any

from tests.importers.facts import _exchanges as x
from tests.importers.reading import Imported


def facts(imported: Imported) -> dict[str, Any]:
    calls = imported.of("call")
    whole = [call for call in calls if not x.is_streamed(call)]
    return {
        "interactions": imported.notes.rows["http-recording/model call"],
        "methods": dict(Counter(x.http(call)["method"] for call in calls)),
        "hosts": sorted({x.host(call) for call in calls}),
        "status": dict(Counter(str(x.http(call)["status"]) for call in calls)),
        "streaming_responses": len(calls) - len(whole),
        "choices_or_items": [x.num_items(call) for call in whole],
        "usage_sum_nonstream": x.total(x.stated_usage(call) for call in whole),
        "logprob_fields": x.num_received(calls, '"logprob":'),
        "compaction_items": x.num_received(calls, '"type": "compaction"'),
        "request_images": x.num_sent(calls, '"type": "image'),
    }


NOT_OURS = {
    "token_ids_fields": "it counts the name, null in every one of these: servers that gave no ids",
}
_PYDANTIC = "cassettes/pydantic__pydantic-ai/tests/models/cassettes/"
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {
    (f"{_PYDANTIC}test_bedrock/test_stream_cancel.yaml", "choices_or_items"): (
        [0],
        "a binary event stream, which we keep in meta and state as a gap: an exchange without an answer",
    ),
}
