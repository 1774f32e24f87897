"""`POST /v1/rewards`: one reward, with as little around it as a scorer has.

The body is a reward event from which `v`, `kind` and `id` may be left out. They are put in front of the
posted text, which is otherwise kept as it is, so that what is stored is what an event post would have stored.
"""

from __future__ import annotations

import json

from starlette.responses import Response

from tracestore.ids import new_id
from tracestore.store.ingest import Outcome
from tracestore.store.tombstones import Deleted
from tracestore.wire.decode import decode_body
from tracestore.wire.events import AnyEvent
from tracestore.wire.limits import Limits
from tracestore.wire.scan import SPAN, scan
from tracestore.wire.strict import dumps
from tracestore_api.body import Ticket, decompress
from tracestore_api.errors import ConflictingReward, InvalidReward, RefusedReward
from tracestore_api.ingest import EventsRoute, committed


class RewardRoute(EventsRoute):
    """ASGI endpoint; answers `{id, id_made_by: "client" | "server", status: "stored" | "duplicate"}`.

    With an id made by the server a retry is another reward: a scorer that retries sends its own.
    """

    async def _respond_here(self, project: str, media_type: str | None, body: bytes) -> Response:
        reward, made_id = self._read(body)
        [outcome] = await committed(self._store, project, [reward])
        return _answer(outcome, made_id)

    def _respond(
        self, project: str, media_type: str | None, coding: str | None, body: bytes, ticket: Ticket
    ) -> Response:
        text = decompress(body, coding=coding, max_bytes=self._limits.max_body_bytes, ticket=ticket)
        reward, made_id = self._read(text)
        [outcome] = self._store.ingest(project, [reward])
        return _answer(outcome, made_id)

    def _read(self, text: bytes) -> tuple[tuple[AnyEvent, bytes], str | None]:
        whole, made_id = whole_reward(text, limits=self._limits)
        [one] = decode_body(whole, content_type="application/json", limits=self._limits)
        if one.event is None:
            assert one.error is not None
            raise one.error
        return (one.event, one.text), made_id


def _answer(outcome: Outcome, made_id: str | None) -> Response:
    if outcome.status == "conflict":
        raise ConflictingReward(id=outcome.id, hint=outcome.problem)
    if outcome.status == "deleted":
        raise Deleted(id=outcome.id, hint=outcome.problem)
    if outcome.status == "error":
        raise RefusedReward(id=outcome.id, hint=outcome.problem)
    made_by = "client" if made_id is None else "server"
    answer = {"id": outcome.id, "id_made_by": made_by, "status": outcome.status}
    return Response(dumps(answer), media_type="application/json")


def whole_reward(text: bytes, *, limits: Limits) -> tuple[bytes, str | None]:
    """The text of a reward event, and the id it was given here, None if it had one.

    Raises:
        EventError: the text is no JSON object.
        InvalidReward: it is an event of another kind.
    """
    named = scan(text, opaque={"meta": SPAN}, limits=limits, non_finite=True)
    if not isinstance(named, dict):
        raise InvalidReward(
            hint='post one object: {"target": {"episode_id": ...}, "name": ..., "value": ...}'
        )
    if named.get("kind", "reward") != "reward":
        raise InvalidReward(kind=named["kind"], hint="other kinds go to POST /v1/events")
    made_id = None if "id" in named else new_id()
    missing = {"v": 1, "kind": "reward", "id": made_id}
    front = ",".join(f'"{name}":{json.dumps(value)}' for name, value in missing.items() if name not in named)
    rest = text.strip(b" \t\r\n")[1:]
    comma = "," if front and named else ""
    return b"{" + f"{front}{comma}".encode("ascii") + rest, made_id
