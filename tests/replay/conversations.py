"""Answers of every dialect, recorded as an importer or the proxy records them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tracestore.importers import cuts
from tracestore.importers.exchanges import Exchange, answered, call_of, request_body
from tracestore.importers.notes import Notes
from tracestore.replay.tape import Recorded, recorded_calls
from tracestore.wire.decode import decode_event
from tracestore.wire.events import AnyEvent

URLS = {
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "anthropic_messages": "/v1/messages",
    "text": "/v1/completions",
}


def events_of(
    dialect: str,
    request: Any,
    response: bytes,
    *,
    call_id: str = "c",
    agent_id: str = "e/main",
    ordinal: int = 0,
    status: int = 200,
) -> list[AnyEvent]:
    """The events of one call."""
    exchange = Exchange(
        method="POST",
        url=URLS[dialect],
        request=request if isinstance(request, (bytes, str)) else json.dumps(request),
        response=response,
        status=status,
    )
    answer = answered(response)
    cut = None if answer is None else cuts.told(cuts.cuts_of(answer), None)
    items = call_of(
        [exchange],
        answer=answer,
        request=request_body(exchange.request),
        names={"id": call_id, "episode_id": "e", "agent_id": agent_id, "ordinal": ordinal},
        notes=Notes(),
        rest=None if cut is None else {cuts.KEPT_AS: cut},
    )
    return [decode_event(item.text) for item in items]


def recorded_of(dialect: str, request: Any, response: bytes, **names: Any) -> Recorded:
    """The one call as a replay has it."""
    [found] = recorded_calls(events_of(dialect, request, response, **names))
    return found


def tape_calls(*calls: Sequence[AnyEvent]) -> list[Recorded]:
    return list(recorded_calls([event for some in calls for event in some]))
