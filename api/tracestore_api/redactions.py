"""`POST /v1/redactions`: rules that take text out of what is stored and of what comes, followed by number."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from tracestore.store import redact
from tracestore.store.redact import Redaction
from tracestore.store.rule_file import parsed
from tracestore.store.rules import BadRules, Rule
from tracestore.wire.errors import BodyTooLarge
from tracestore_api.access import CALLER, AdminProject, Caller, Project
from tracestore_api.deletions import Carrier, number_before, numbered_page
from tracestore_api.parameters import Page
from tracestore_api.reads import NoParameters, Stored
from tracestore_api.response import StrictJSON

router = APIRouter()
_MAX_BYTES = 256 * 1024


class RedactionRequest(BaseModel):
    """What is asked for."""

    rules: list[Rule]
    reason: str | None = None


class RedactionsAnswer(BaseModel):
    """A page of the redactions of a project, the latest first."""

    items: list[Redaction]
    next_cursor: str | None
    truncated: bool


async def _body(request: Request) -> bytes:
    body = b""
    async for step in request.stream():
        body += step
        if len(body) > _MAX_BYTES:
            raise BodyTooLarge(limit=_MAX_BYTES, hint="rules are short")
    return body


_DOCUMENT = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": RedactionRequest.model_json_schema(ref_template="#/components/schemas/{model}")
            }
        },
    }
}


@router.post("/v1/redactions", status_code=202, response_model=Redaction, openapi_extra=_DOCUMENT)
def post_redaction(
    request: Request,
    store: Stored,
    project: AdminProject,
    carrier: Carrier,
    body: Annotated[bytes, Depends(_body)],
    no: NoParameters,
) -> Response:
    """Let rules hold from now on, and redact what is stored by them."""
    rules, reason = _asked(body)
    found = redact.add_rules(store, project, rules, reason=reason, asked_by=_caller(request))
    carrier.redact(project, found.id)
    headers = {"location": f"/v1/redactions/{found.id}"}
    return StrictJSON(redact.facts(found), status_code=202, headers=headers)


@router.get("/v1/redactions", response_model=RedactionsAnswer)
def get_redactions(store: Stored, project: Project, page: Annotated[Page, Query()]) -> Response:
    """The redactions of the project, the latest first."""
    before = number_before(page, of="redactions")
    found = redact.redactions(store, project, before=before, limit=page.limit + 1)
    return numbered_page([redact.facts(one) for one in found], page, of="redactions")


@router.get("/v1/redactions/{redaction_id:int}", response_model=Redaction)
def get_redaction(store: Stored, project: Project, redaction_id: int, no: NoParameters) -> Response:
    """How far a redaction has come."""
    return StrictJSON(redact.facts(redact.redaction(store, project, redaction_id)))


@router.delete("/v1/redactions/{redaction_id:int}", response_model=Redaction)
def delete_redaction(store: Stored, project: AdminProject, redaction_id: int, no: NoParameters) -> Response:
    """Let the rules hold no more for what comes; what they took does not come back."""
    return StrictJSON(redact.facts(redact.end_rules(store, project, redaction_id)))


def _asked(body: bytes) -> tuple[str, str | None]:
    """The rules, as the JSON that they were asked for in, and the reason."""
    hint = 'send {"rules": [...], "reason": ...}'
    value = parsed(body, wrong=BadRules, hint=hint)
    if not isinstance(value, dict) or not {"rules"} <= value.keys() <= {"rules", "reason"}:
        raise BadRules(hint=hint)
    reason = value.get("reason")
    if not (reason is None or isinstance(reason, str)):
        raise BadRules(field="reason", hint="a text, or leave it out")
    return json.dumps(value["rules"]), reason


def _caller(request: Request) -> str | None:
    caller: Caller | None = request.scope[CALLER]
    return None if caller is None else f"key {caller.key.prefix}"
