"""The one place that turns an error into a response: application/problem+json (RFC 9457).

A problem says what is wrong (`title`, `detail`), carries the values needed to put it right, and what to do
(`hint`). Its `type` is `urn:tracestore:problem:` + the error's name; errors of HTTP itself (404 of a route,
405) are `about:blank`, as the RFC says.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from tracestore.errors import TracestoreError
from tracestore.store.engine import StoreUnavailable
from tracestore.wire.errors import EventError
from tracestore.wire.strict import dumps

MEDIA_TYPE = "application/problem+json"
_HINTS = {
    404: "routes are listed at /v1/openapi.json",
    405: "the header Allow names the methods of this route",
}
_RETRY_AFTER_S = {503: 1, 507: 30}
"""When to come back after a status that passes by itself, where the error does not say it."""
_log = logging.getLogger("tracestore.api")


def problem_of(error: TracestoreError) -> dict[str, Any]:
    """`{type, title, status, detail, ...values, hint}` of an error; the standard members win over values."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(error).__name__).lower()
    # Where the database lies, and what it says of itself, is for the log and not for every tenant.
    is_ours = isinstance(error, StoreUnavailable)
    values = {key: _plain(value) for key, value in error.values.items() if value is not None and not is_ours}
    if isinstance(error, EventError) and error.path is not None:
        values["path"] = error.path
    problem = values | {
        "type": f"urn:tracestore:problem:{name}",
        "title": error.title,
        "status": error.status,
        "detail": "; ".join(filter(None, (error.title, error.hint))) if is_ours else str(error),
    }
    if error.hint is not None:
        problem["hint"] = error.hint
    return problem


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, list, tuple, dict)) else repr(value)


def problem_response(problem: Mapping[str, Any], *, headers: Mapping[str, str] | None = None) -> Response:
    """The problem as a response; `retry_after_s` and `accept_encoding` become the headers they stand for."""
    more = dict(headers or {})
    retry_after_s = problem.get("retry_after_s", _RETRY_AFTER_S.get(problem["status"]))
    if retry_after_s is not None:
        more["retry-after"] = str(retry_after_s)
    if "accept_encoding" in problem:
        more["accept-encoding"] = str(problem["accept_encoding"])
    return Response(dumps(problem), status_code=problem["status"], media_type=MEDIA_TYPE, headers=more)


async def _tracestore_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TracestoreError)
    if isinstance(error, StoreUnavailable):
        _log.error("%s", error)
    return problem_response(problem_of(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": f"{request.method} {request.url.path}: {error.detail}",
    }
    if status in _HINTS:
        problem["hint"] = _HINTS[status]
    headers = {"allow": ", ".join(_methods(request))} if status == 405 else error.headers
    return problem_response(problem, headers=headers)


def _methods(request: Request) -> list[str]:
    """The methods of a path. They may stand in several routes, each of which knows its own only."""

    def is_routed(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return [method for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT") if is_routed(method)]


async def _invalid_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [
        {"parameter": ".".join(str(part) for part in fault["loc"][1:]), "message": fault["msg"]}
        for fault in error.errors()
    ]
    return problem_response(
        {
            "type": "urn:tracestore:problem:invalid-parameters",
            "title": "The query has parameters that this route does not take as they are",
            "status": 422,
            "detail": "; ".join(f"{fault['parameter']}: {fault['message']}" for fault in faults),
            "errors": faults,
            "hint": "parameters and their types are listed at /v1/openapi.json",
        }
    )


async def _bug(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_response(
        {
            "type": "about:blank",
            "title": HTTPStatus.INTERNAL_SERVER_ERROR.phrase,
            "status": 500,
            "detail": "the server has a fault; its log names it. Events posted in this request may be stored",
            "hint": "post the same events again: what was stored is answered as a duplicate",
        }
    )


def install(app: FastAPI) -> None:
    """Every error of the app becomes a problem."""
    app.add_exception_handler(TracestoreError, _tracestore_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(Exception, _bug)
