"""Recorded HTTP exchanges (VCR cassettes, HAR, snapshots of tests) -> an episode of calls for each file.

    VCR         interactions[] (Ruby's http_interactions[]) {request{method, uri, headers, body},
                response{status{code}, headers, body{string}}} in YAML or JSON; some recorders write
                `parsed_body` instead of a body's text, Go's writes `code` and the status as text
    HAR         log.entries[]{startedDateTime, time, request{method, url, headers[], postData{text}},
                response{status, headers[], content{text, encoding}}}
    snapshots   [{request{method, url, headers, body}, response{status_code, headers, body}}]
    nock        [{scope, method, path, status, response, ...}], as Cline's tests record; a stream is one
                string, a compressed body hex digits, and request bodies are mostly not in it
    responses   {status, headers, body}, of which the body is a model's answer

- An exchange with a model's endpoint is a call, and one elsewhere whose answer is a model's. The others are
  noted, each with its method, place and status.
- A file is one episode of one agent: what a test suite recorded in one file is one story. Whether a later
  request goes on from an earlier one, the graph finds by the messages.
- Headers, URL fields and fields of a body beside its messages that may hold a credential are taken over
  nowhere, and counted in a warning.
- Exchanges that repeat a request, where the client counts its retries (`x-stainless-retry-count`), are
  attempts of one call.
- Of YAML's plain scalars only null, true, false and JSON's numbers are anything but text: no dates, no `no`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from tracestore.importers import exact
from tracestore.importers.credentials import without
from tracestore.importers.documents import MAX_RECORD_BYTES, records
from tracestore.importers.exchanges import Exchange, answered, as_json, conversation
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import as_dict, guarded, number
from tracestore.importers.items import Item, content_id, nanoseconds, taken
from tracestore.importers.notes import Notes
from tracestore.importers.sources import DAMAGED, Source

_NAME = "http-recording"
_LISTS = ("interactions", "http_interactions")
_YAML = re.compile(rb"(?:\s|---.*\n|#.*\n|version: .*\n)*(?:http_)?interactions:")


# --- YAML ------------------------------------------------------------------------------------------


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as JSON has it: what is no null, bool or JSON number is text."""


_NULL, _BOOL, _NUMBER = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "float"))
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    (_NULL, r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    (_BOOL, r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    (_NUMBER, r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", list("-0123456789")),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^{_pattern}$"), _first)


def _number(loader: Any, node: Any) -> Any:
    try:
        return exact.loads(node.value)
    except ValueError:  # said to be a number by its tag
        return node.value


_Loader.add_constructor(_NUMBER, _number)


def from_yaml(text: bytes) -> Any:
    """The value of a YAML document.

    Raises:
        ValueError: it is none, or its aliases say the same again so often that it is too large.
    """
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {' '.join(str(error).split())[:200]}") from None
    if _num_values(value, {}) > MAX_RECORD_BYTES // 16:
        raise ValueError("its aliases make it too large")
    return _named(value)


def _num_values(value: Any, known: dict[int, int]) -> int:
    """Values that a value holds, at any depth, those under an alias counted wherever it stands."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = 2**62  # for as long as it is counted: one that holds itself has no end
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_num_values(one, known) for one in inner)
    return known[id(value)]


def _named(value: Any) -> Any:
    """A value whose fields all have names: in YAML a number may be one."""
    if isinstance(value, dict):
        return {str(name): _named(one) for name, one in value.items()}
    return list(map(_named, value)) if isinstance(value, list) else value


# --- Recognition -----------------------------------------------------------------------------------


def _recognises(head: Head) -> bool:
    first = head.first
    if _YAML.match(head.data) or _is_vcr(first) or _is_har(first):
        return True
    if isinstance(first, dict):
        is_response = {"status", "headers", "body"} <= first.keys() and "request" not in first
        return is_response and answered(first["body"]) is not None
    one = first[0] if isinstance(first, list) and first else None
    return isinstance(one, dict) and (_is_nock(one) or _is_pair(one))


def _is_vcr(value: Any) -> bool:
    given = next((one for name in _LISTS if isinstance(one := as_dict(value).get(name), list)), None)
    return given is not None and (not given or "request" in as_dict(given[0]))


def _is_har(value: Any) -> bool:
    log = value.get("log") if isinstance(value, dict) else None
    return isinstance(log, dict) and isinstance(log.get("entries"), list)


def _is_nock(value: dict[str, Any]) -> bool:
    return {"scope", "method", "path", "response"} <= value.keys()


def _is_pair(value: dict[str, Any]) -> bool:
    request, response = as_dict(value.get("request")), as_dict(value.get("response"))
    return ("url" in request or "uri" in request) and "body" in response


# --- Reading ---------------------------------------------------------------------------------------


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """An episode with its calls for each source."""
    for source in sources:
        with_models: list[Exchange] = []
        for value in _values(source, notes):
            for given, exchange in _exchanges(value, notes, at=source.name):
                if exchange.is_call:
                    notes.rows[f"{_NAME}/model call"] += 1
                    with_models.append(exchange)
                else:
                    notes.rows[f"{_NAME}/other exchange"] += 1
                    what = f"{_NAME}: no request to a model"
                    notes.leftover(what, _summary(exchange, given), at=source.name)
        yield from guarded(conversation(with_models, prefix="http", notes=notes), at=source.name, notes=notes)


def _values(source: Source, notes: Notes) -> Iterator[Any]:
    if source.head().lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        for record in records(source, notes=notes):
            yield record.value
        return
    try:
        with source.open() as stream:
            text = stream.read(MAX_RECORD_BYTES + 1)
        if len(text) > MAX_RECORD_BYTES:
            raise ValueError(f"longer than {MAX_RECORD_BYTES:,} bytes")
        yield from_yaml(text)
    except (RecursionError, ValueError) as error:
        notes.refuse(source.name, "nested too deeply" if isinstance(error, RecursionError) else error)
    except DAMAGED as error:
        notes.refuse(source.name, f"damaged: {error}")


def _exchanges(value: Any, notes: Notes, *, at: str) -> Iterator[tuple[Any, Exchange]]:
    """(what stands in the file, what it says) of each exchange in a document."""
    shared: dict[str, Any] = {}
    read_one: Callable[[dict[str, Any]], Exchange] = _response_alone
    given = [value]
    if _is_har(value):
        given, read_one = value["log"]["entries"], _har
        head = {**value, "log": {name: one for name, one in value["log"].items() if name != "entries"}}
        notes.leftover(f"{_NAME}: head of a HAR", without(head, told=lambda: None), at=at)
    elif _is_vcr(value):
        name = next(name for name in _LISTS if isinstance(value.get(name), list))
        given, read_one = value[name], _pair
        shared = {other: one for other, one in value.items() if other != name}
    elif isinstance(value, list):
        given, read_one = value, _listed
    for one in given:
        exchange = read_one(dict(one)) if isinstance(one, dict) else None
        if exchange is None:
            notes.refuse(at, "an exchange that is no object")
            notes.leftover(f"{_NAME}: no exchange", one, at=at)
            continue
        if shared:
            exchange.rest = {**exchange.rest, "recording": shared}
        yield one, exchange


def _listed(given: dict[str, Any]) -> Exchange:
    return _nock(given) if _is_nock(given) else _pair(given)


def _pair(given: dict[str, Any]) -> Exchange:
    request, response = _part(given, "request"), _part(given, "response")
    status = response.pop("status", response.pop("status_code", None))
    line = dict(status) if isinstance(status, dict) else {"status": status}
    code = next((line.pop(name) for name in ("code", "status") if type(line.get(name)) is int), None)
    exchange = Exchange(
        method=taken(request, "method", str),
        url=taken(request, "uri", str) or taken(request, "url", str),
        request=_body(request),
        request_headers=_headers(request, "headers"),
        status=taken(response, "code", int) if code is None else code,
        response=_body(response),
        response_headers=_headers(response, "headers"),
    )
    exchange.rest = _without_nothing({**given, "request": request, "response_line": {**response, **line}})
    return exchange


def _part(given: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of a recording, taken, as a copy; what is none stays where it is."""
    return dict(given.pop(name)) if isinstance(given.get(name), dict) else {}


def _body(message: dict[str, Any]) -> Any:
    """The body of a request or response; of a recorder that keeps both, the text."""
    body = message.pop("body", None)
    if isinstance(body, dict) and body and body.keys() <= {"string", "base64_string", "encoding"}:
        if body.get("encoding") is not None:
            message["body_encoding"] = body["encoding"]
        if isinstance(body.get("base64_string"), str):
            return _from_base64(body["base64_string"])
        body = body.get("string")
    if body in (None, ""):
        return message.pop("parsed_body", body)
    return body


def _from_base64(text: str) -> Any:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return text


def _headers(message: dict[str, Any], name: str) -> dict[str, Any]:
    """Headers, taken: a mapping, a list of {name, value}, or names and values in turn."""
    given = message.pop(name, None)
    if isinstance(given, dict):
        return dict(given)
    found: dict[str, Any] = {}
    given = given if isinstance(given, list) else []
    if given and all(isinstance(one, str) for one in given):
        given = [{"name": one, "value": value} for one, value in zip(given[::2], given[1::2], strict=False)]
    for header in map(as_dict, given):
        if isinstance(header.get("name"), str):
            found.setdefault(header.pop("name"), []).append(header.get("value"))
    return found


def _har(given: dict[str, Any]) -> Exchange:
    request, response = _part(given, "request"), _part(given, "response")
    posted, content = _part(request, "postData"), _part(response, "content")
    body = content.pop("text", None)
    if content.get("encoding") == "base64" and isinstance(body, str):
        body = _from_base64(body)
    exchange = Exchange(
        method=taken(request, "method", str),
        url=taken(request, "url", str),
        request=posted.pop("text", None),
        request_headers=_headers(request, "headers"),
        status=taken(response, "status", int),
        response=body,
        response_headers=_headers(response, "headers"),
        started_at=nanoseconds(given.get("startedDateTime")),
    )
    duration = number(given.get("time"))
    if exchange.started_at is not None and duration is not None and duration >= 0:
        exchange.ended_at = exchange.started_at + round(duration * 1e6)
    # The query says the URL's fields once more.
    request.pop("queryString", None)
    exchange.rest = _without_nothing(
        {**given, "request": request, "posted": posted, "response_line": response, "content": content}
    )
    return exchange


def _nock(given: dict[str, Any]) -> Exchange:
    exchange = Exchange(
        method=taken(given, "method", str),
        url=f"{given.pop('scope')}{given.pop('path')}",
        request=given.pop("body", None) or None,
        request_headers=_headers(given, "reqheaders"),
        status=taken(given, "status", int),
        response=_from_hex(given.pop("response")),
        response_headers=_headers(given, "responseHeaders") or _headers(given, "rawHeaders"),
    )
    _headers(given, "rawHeaders")
    exchange.rest = _without_nothing(given)
    return exchange


def _from_hex(response: Any) -> Any:
    """A compressed body, which nock writes as hex digits in pieces."""
    if isinstance(response, list) and response and all(isinstance(one, str) for one in response):
        try:
            return bytes.fromhex("".join(response))
        except ValueError:
            return response
    return response


def _response_alone(given: dict[str, Any]) -> Exchange:
    return Exchange(
        status=taken(given, "status", int),
        response_headers=_headers(given, "headers"),
        response=given.pop("body", None),
        rest=_without_nothing(given),
    )


# --- What is left ----------------------------------------------------------------------------------


def _summary(exchange: Exchange, given: Any) -> dict[str, Any]:
    """What may be shown of an exchange with somebody else. It may be a sign-in: of its bodies, a digest."""
    return {
        "method": exchange.method,
        "url": (exchange.url or "").partition("?")[0],
        "status": exchange.status,
        "all": content_id("exchange", as_json(given)),
    }


def _without_nothing(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {}, [], "")}


FORMAT = Format(_NAME, "recorded HTTP exchanges (VCR cassettes, HAR, snapshots)", _recognises, read)
